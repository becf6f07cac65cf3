"""HTML of the operator, reduced to what can do no harm on a page of a client (Contract platform 7.4)."""

import re
from html import escape
from html.parser import HTMLParser
from urllib.parse import urlsplit

_TAGS = frozenset({"a", "b", "i", "em", "strong", "p", "br", "span"})
_WITH_THEIR_TEXT = frozenset({"script", "style", "template", "noscript", "iframe", "object", "svg", "math", "title"})
"""Elements whose content is no text for people."""
_STRIPPED = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029]+")


def harmless(html: str) -> str:
    """The text with the tags a, b, i, em, strong, p, br, span, and of all attributes only `href` to http or https.

    Nothing of the source is copied: tags are written anew, texts escaped, so that what a browser would read otherwise
    than this parser cannot come through.
    """
    writer = _Writer()
    writer.feed(html)
    writer.close()
    return writer.text()


class _Writer(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._open: list[str] = []
        self._silent: list[str] = []

    def text(self) -> str:
        """What was written, every tag closed."""
        return "".join([*self._parts, *(f"</{tag}>" for tag in reversed(self._open))])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        if tag in _WITH_THEIR_TEXT:
            self._silent.append(tag)
        if self._silent or tag not in _TAGS:
            return
        if tag == "br":
            self._parts.append("<br>")
            return
        href = next((value for name, value in attrs if name == "href" and value), None) if tag == "a" else None
        self._parts.append(f'<a href="{escape(href)}">' if href and _is_web_address(href) else f"<{tag}>")
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser; to a browser `<script/>` is a start."""
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        """See HTMLParser. What was opened inside is closed first."""
        if self._silent:
            if tag in self._silent:
                del self._silent[self._silent.index(tag) :]
            return
        if tag in self._open:
            place = len(self._open) - 1 - self._open[::-1].index(tag)
            self._parts += [f"</{one}>" for one in reversed(self._open[place:])]
            del self._open[place:]

    def handle_data(self, data: str) -> None:
        """See HTMLParser."""
        if not self._silent:
            self._parts.append(escape(data))


def _is_web_address(href: str) -> bool:
    """Browsers drop blanks and control characters before they look at the scheme; here they make it no address."""
    if _STRIPPED.search(href):
        return False
    try:
        parts = urlsplit(href)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.netloc)
