"""The banners in the client configuration, and the readiness check."""

import asyncio
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queryserver.administration import readiness
from queryserver.administration.client_configuration import sanitized_html
from queryserver.administration.readiness import Readiness
from queryserver.errors.base import DatabaseUnavailable


@pytest.mark.platform(88)
@pytest.mark.parametrize(
    ("given_html", "kept"),
        [("", ""),
        ("Maintenance at <b>8</b> &amp; 9", "Maintenance at <b>8</b> &amp; 9"),
        ("<p>a<br>b<br/>c</p>", "<p>a<br>b<br>c</p>"),
        ('<a href="https://x.example/?a=1&amp;b=2" target=_blank>x</a>', '<a href="https://x.example/?a=1&amp;b=2">x</a>'),
        ("<a HREF='http://x.example'>x</a>", '<a href="http://x.example">x</a>'),
        ("<script>alert(1)</script>ok", "ok"),
        ("<SCRIPT SRC=//x.example/y.js></SCRIPT >ok", "ok"),
        ("<scr<script>ipt>alert(1)</script>ok", "ipt&gt;alert(1)ok"),
        ("<style>p{}</style><svg onload=alert(1)><p>in</p></svg>after", "<p>in</p>after"),
        ('<b onclick="x()" style="y" onmouseover=z>a</b>', "<b>a</b>"),
        ("<img src=x onerror=alert(1)>a<div>b</div>", "ab"),
        ("<b title=x lang=de>a</b>", "<b>a</b>"),
        ("<a href=javascript:alert(1)>a</a>", "<a>a</a>"),
        ('<a href="java\nscript:alert(1)">a</a>', "<a>a</a>"),
        ('<a href="&#106;avascript&colon;alert(1)">a</a>', "<a>a</a>"),
        ('<a href="&#x01;javascript:alert(1)">a</a>', "<a>a</a>"),
        ('<a href="data:text/html,<script>">a</a>', "<a>a</a>"),
        ('<a href="//x.example">a</a><a href="/local">b</a>', "<a>a</a><a>b</a>"),
        ("<a href=http:evil>a</a><a href=' http://x'>b</a>", "<a>a</a><a>b</a>"),
        ("<a href='ht\ntps://x.example'>a</a><a href='http://'>b</a>", "<a>a</a><a>b</a>"),
        ("<title>a</title><object>b</object><noscript>c</noscript><math>d</math>e", "e"),
        ('<a href="vbscript:x" href="https://x.example">a</a>', "<a>a</a>"),
        ("&lt;script&gt;alert(1)&lt;/script&gt;", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("<b><i>a</b>b", "<b><i>a</i></b><i>b</i>"),
        ("<b>never closed", "<b>never closed</b>"),
        ("<!-- <b>a</b> --><![CDATA[x]]><?php y ?>z", "z"),
        ("a < b > c", "a &lt; b &gt; c")],
)  # fmt: skip
def test_sanitizing_keeps_harmless_tags_and_web_links(given_html: str, kept: str) -> None:
    assert sanitized_html(given_html) == kept


@pytest.mark.platform(88)
@given(st.lists(st.sampled_from(
    ["<", ">", "script", "/", "a", " href=", '"', "'", "javascript:", "https://x", "onload=", "=", "&#", "106;", "!--",
     "--", "svg", "b", "\n", "\0", "`", "<a", "</", "style", "]]>", "&lt;", "textarea", "title", "plaintext"]
), max_size=25).map("".join))  # fmt: skip
@example("<b <script>x</script>")
def test_sanitized_html_parses_to_harmless_tags_only(given_html: str) -> None:
    seen = _Seen()
    seen.feed(sanitized_html(given_html))
    seen.close()
    assert seen.tags <= {"a", "b", "i", "em", "strong", "p", "br", "span"}
    assert all(name == "href" and value.startswith(("http://", "https://")) for name, value in seen.attributes)


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


class Store:
    """A store that counts its health checks and fails them until `ok` is set."""

    ok = False
    looks = 0

    async def look(self) -> None:
        self.looks += 1
        await asyncio.sleep(0.01)
        if not self.ok:
            raise DatabaseUnavailable


async def nothing() -> None:
    """A health check that always succeeds."""


@pytest.mark.platform(98)
async def test_failing_store_is_checked_once_for_all_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    ready = Readiness(database=nothing, schema=nothing, result_store=store.look)

    async def told() -> set[bool]:
        checks = await asyncio.gather(*(ready.checks() for _ in range(20)))
        return {one["result_store"].ok for one in checks}

    monkeypatch.setattr(readiness, "_LIMIT_S", 60.0)
    monkeypatch.setattr(readiness, "_FAILED_STORE_EVERY_S", 3600.0)
    assert (await told(), store.looks) == ({False}, 1)
    assert (await told(), store.looks) == ({False}, 1)
    store.ok = True
    monkeypatch.setattr(readiness, "_FAILED_STORE_EVERY_S", 0.0)
    assert (await told(), store.looks) == ({True}, 2)
