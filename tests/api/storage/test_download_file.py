"""File downloads (Contract storage 5.5)."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx
import pytest
from tests.api.driving import Api, Caller, open_api, verdict, without_ends
from tests.api.serving import served
from tests.api.storage.conftest import Files, storage_settings
from tests.api.storage.worlds import builders
from tests.fakes.storage_reads import OddFileSystem, Oddity

from queryserver.errors.files import EntryChanged, StorageUnavailable
from queryserver.files.model import Scheme
from queryserver.identity.repository import AccountRepository

MIB = 1024 * 1024
CONTENT = bytes(range(256)) * 5000


@pytest.fixture
def path(files: Files, folder: str) -> str:
    return put(files, f"{folder}/data.bin", CONTENT)


@pytest.fixture
async def odd(tmp_path, database_dsn) -> AsyncIterator[tuple[OddFileSystem, Caller]]:
    """A store of misbehaving files, and a user of an application that serves it."""
    async with odd_api(tmp_path, database_dsn) as (store, api):
        yield store, await api.user()


@asynccontextmanager
async def odd_api(tmp_path, database_dsn, **editor) -> AsyncIterator[tuple[OddFileSystem, Api]]:
    store = OddFileSystem()
    settings = storage_settings(tmp_path, database_dsn)
    settings = settings.model_copy(update={"editor": settings.editor.model_copy(update=editor)})
    async with open_api(settings, builders({Scheme.HDFS: store})) as api:
        yield store, api


def put(files: Files, path: str, content: bytes) -> str:
    (files.root / path).write_bytes(content)
    return f"file:///{path}"


async def fetch(ana: Caller, path: str, method: str = "GET", disposition: str = "", **headers: str) -> httpx.Response:
    """Send a download request. The names of headers contain underscores, as in `if_range` for `If-Range`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    query = f"?disposition={disposition}" if disposition else ""
    return await ana.send(method, f"storage/download={quote(path, safe='/:')}{query}", headers=named)


@pytest.mark.platform(140)
@pytest.mark.parametrize("form", ["storage/download={}?disposition=inline", "storage/download?path={}"])
async def test_ticket_downloads_a_file_without_a_header(ana: Caller, files: Files, folder: str, form: str):
    path = put(files, f"{folder}/a b.png", CONTENT)
    url = "/api/v1/" + form.format(quote(path, safe=""))
    ticketed = (await ana.post_json("token/download", url=url)).json()["url"]
    answer = await ana.api.http.get(ticketed)
    assert (answer.status_code, answer.content) == (200, CONTENT), answer.text[:200]
    assert (await ana.api.http.get(ticketed.replace("download", "stat"))).status_code == 401


class TestHeaders:
    @pytest.mark.storage(46)
    async def test_both_path_forms_send_all_headers(self, ana, path):
        for answer in (await fetch(ana, path), await ana.get("storage/download", path=path)):
            assert answer.status_code == 200
            assert answer.content == CONTENT
            headers = answer.headers
            assert headers["content-length"] == str(len(CONTENT))
            assert headers["content-type"] == "application/octet-stream"
            assert headers["accept-ranges"] == "bytes"
            assert headers["etag"].startswith('"')
            assert headers["etag"].endswith('"')
            assert headers["last-modified"].endswith("GMT")
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["content-security-policy"] == "sandbox; default-src 'none'"
            assert headers["content-disposition"] == "attachment; filename=\"data.bin\"; filename*=UTF-8''data.bin"
            assert headers["cache-control"] == "private, no-cache"
            assert "content-encoding" not in headers

    @pytest.mark.storage(46)
    @pytest.mark.security("S7")
    @pytest.mark.parametrize(
        ("name", "plain", "encoded"),
        [
            ("test file name.txt", "test file name.txt", "test%20file%20name.txt"),
            ("test%file.txt", "test_file.txt", "test%25file.txt"),
            ("test%20file.txt", "test_20file.txt", "test%2520file.txt"),
            ('a"b\\c.txt', "a_b_c.txt", "a%22b%5Cc.txt"),
            ("a\r\nSet-Cookie: x=1.txt", "a__Set-Cookie: x=1.txt", "a%0D%0ASet-Cookie%3A%20x%3D1.txt"),
            ("é日.txt", "_____.txt", "%C3%A9%E6%97%A5.txt"),
        ],
    )
    async def test_file_names_cannot_break_out_of_content_disposition(self, ana, files, folder, name, plain, encoded):
        path = put(files, f"{folder}/{name}", b"x")
        answer = await fetch(ana, path)
        assert answer.status_code == 200
        expected = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}"
        assert answer.headers["content-disposition"] == expected
        assert "set-cookie" not in answer.headers

    @pytest.mark.storage(53)
    @pytest.mark.security("S8", "T5")
    @pytest.mark.parametrize(
        ("name", "kind", "disposition"),
        [
            ("a.html", "text/html", "attachment"), ("a.svg", "image/svg+xml", "attachment"),
            ("a.SVG", "image/svg+xml", "attachment"), ("a.xml", "text/xml", "attachment"),
            ("a.js", "text/javascript", "attachment"), ("a.txt", "text/plain", "attachment"),
            ("a", "application/octet-stream", "attachment"), ("a.json", "application/json", "attachment"),
            ("a.xhtml", "application/octet-stream", "attachment"),
            ("a.png", "image/png", "inline"), ("a.pdf", "application/pdf", "inline"), ("a.mp4", "video/mp4", "inline"),
            ("a.wav", "audio/x-wav", "inline"), ("a.doc", "application/msword", "inline"),
            ("a.xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "inline"),
            ("a.csv.gz", "application/gzip", "attachment"), ("a.csv", "text/csv", "attachment"),
        ],
    )  # fmt: skip
    async def test_only_safe_media_types_are_served_inline(self, ana, files, folder, name, kind, disposition):
        path = put(files, f"{folder}/{name}", b"<script>alert(1)</script>")
        answer = await fetch(ana, path, disposition="inline")
        assert answer.headers["content-type"] == kind
        assert answer.headers["content-disposition"].startswith(f"{disposition};")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
        plain = await fetch(ana, path)
        assert plain.headers["content-disposition"].startswith("attachment;")

    @pytest.mark.storage(52)
    @pytest.mark.parametrize("headers", [{}, {"range": "bytes=5-9"}, {"if_none_match": "*"}, {"range": "bytes=x"}])
    async def test_head_returns_the_get_headers(self, ana, path, headers):
        get, head = await fetch(ana, path, **headers), await fetch(ana, path, "HEAD", **headers)
        assert head.status_code == get.status_code
        assert head.content == b""
        ours = {"x-request-id", "date"}
        assert {k: v for k, v in head.headers.items() if k not in ours} == {
            k: v for k, v in get.headers.items() if k not in ours
        }

    @pytest.mark.storage(52)
    async def test_head_reads_no_content(self, odd):
        store, ana = odd
        store.odd["large"] = Oddity(2**50)
        head = await fetch(ana, "/large", "HEAD")
        assert (head.status_code, head.headers["content-length"]) == (200, str(2**50))
        assert store.touched == []

    @pytest.mark.storage(52)
    async def test_empty_file_is_downloaded(self, ana, files, folder):
        path = put(files, f"{folder}/empty", b"")
        for method in ("GET", "HEAD"):
            answer = await fetch(ana, path, method)
            assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "0", b"")

    async def test_strong_etag_of_the_store_is_returned(self, odd):
        store, ana = odd
        store.odd["a"] = Oddity(10, tag="0x8DC-3")
        store.odd["b"] = Oddity(10, tag='no"tag\r\n')
        store.odd["c"] = Oddity(11, tag='no"tag\r\n')
        assert (await fetch(ana, "/a")).headers["etag"] == '"0x8DC-3"'
        odd_tag = (await fetch(ana, "/b")).headers["etag"]
        assert odd_tag.count('"') == 2
        assert odd_tag != (await fetch(ana, "/c")).headers["etag"]
        assert (await fetch(ana, "/a")).headers["last-modified"] == "Wed, 31 Jan 2024 10:20:30 GMT"


class TestRanges:
    @pytest.mark.storage(47)
    @pytest.mark.parametrize(
        ("asked", "first", "last"),
        [
            ("bytes=0-0", 0, 0), ("bytes=-1", -1, -1), ("bytes=5-", 5, -1), ("bytes=5-9", 5, 9),
            ("Bytes=0-1", 0, 1), ("bytes=0-99999999999999999999", 0, -1), ("bytes=-99999999999999999999", 0, -1),
            ("bytes= 5-9 ", 5, 9), ("bytes=1200000-1210000", 1_200_000, 1_210_000), ("bytes=0-1279999", 0, -1),
        ],
    )  # fmt: skip
    async def test_single_ranges_return_206(self, ana, path, asked, first, last):
        first, last = first % len(CONTENT), last % len(CONTENT)
        answer = await fetch(ana, path, range=asked)
        assert answer.status_code == 206
        assert answer.content == CONTENT[first : last + 1]
        assert answer.headers["content-range"] == f"bytes {first}-{last}/{len(CONTENT)}"
        assert answer.headers["content-length"] == str(last - first + 1)
        assert answer.headers["etag"]

    @pytest.mark.storage(47)
    @pytest.mark.parametrize(
        "asked",
        ["bytes=9999999-", "bytes=1280000-", "bytes=5-2", "bytes=x", "bytes=", "bytes=-", "bytes=-0", "bytes=1-2-3",
         "bytes=1", "bytes=--1", "bytes=+1-2", "bytes=0-1,x", "bytes=\u0661-"],
    )  # fmt: skip
    async def test_unsatisfiable_ranges_return_416(self, ana, path, asked):
        answer = await ana.send("GET", f"storage/download={path}", headers=[("Range", asked.encode())])
        assert verdict(answer) == (416, -1, "range_not_satisfiable")
        assert answer.headers["content-range"] == f"bytes */{len(CONTENT)}"

    @pytest.mark.parametrize("asked", ["bytes=0-1,3-4", "lines=0-1", "0-1", ""])
    async def test_unsupported_ranges_return_the_whole_file(self, ana, path, asked):
        answer = await fetch(ana, path, range=asked)
        assert (answer.status_code, answer.content) == (200, CONTENT)
        assert "content-range" not in answer.headers

    @pytest.mark.storage(49)
    async def test_if_range_matches_only_the_current_version(self, ana, path):
        whole = await fetch(ana, path)
        tag, date = whole.headers["etag"], whole.headers["last-modified"]
        for given in (tag, date):
            assert (await fetch(ana, path, range="bytes=0-0", if_range=given)).status_code == 206
        for given in ('"old"', f"W/{tag}", "Wed, 31 Jan 2001 10:20:30 GMT", "nonsense"):
            answer = await fetch(ana, path, range="bytes=0-0", if_range=given)
            assert (answer.status_code, answer.content) == (200, CONTENT)
        assert (await fetch(ana, path, range="bytes=9999999-", if_range='"old"')).status_code == 200

    async def test_ranges_of_empty_files_return_416(self, ana, files, folder):
        path = put(files, f"{folder}/empty", b"")
        for asked in ("bytes=0-", "bytes=-5", "bytes=0-0"):
            answer = await fetch(ana, path, range=asked)
            assert verdict(answer) == (416, -1, "range_not_satisfiable")
            assert answer.headers["content-range"] == "bytes */0"


class TestConditions:
    @pytest.mark.storage(48)
    async def test_matching_conditions_return_304(self, ana, files, path):
        whole = await fetch(ana, path)
        tag, date = whole.headers["etag"], whole.headers["last-modified"]
        for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            answer = await fetch(ana, path, if_none_match=known)
            assert (answer.status_code, answer.content) == (304, b"")
            assert (answer.headers["etag"], answer.headers["last-modified"]) == (tag, date)
        for since in (date, "Wed, 31 Jan 2120 10:20:30 GMT"):
            assert (await fetch(ana, path, if_modified_since=since)).status_code == 304
        for since in ("Wed, 31 Jan 2001 10:20:30 GMT", "nonsense", "99"):
            assert (await fetch(ana, path, if_modified_since=since)).status_code == 200
        (files.root / path.removeprefix("file:///")).write_bytes(b"changed")
        answer = await fetch(ana, path, if_none_match=tag)
        assert (answer.status_code, answer.content) == (200, b"changed")

    @pytest.mark.storage(48)
    async def test_etag_takes_precedence_over_date(self, ana, path):
        future = "Wed, 31 Jan 2120 10:20:30 GMT"
        assert (await fetch(ana, path, if_none_match='"other"', if_modified_since=future)).status_code == 200
        whole = await fetch(ana, path)
        past = "Wed, 31 Jan 2001 10:20:30 GMT"
        both = await fetch(ana, path, if_none_match=whole.headers["etag"], if_modified_since=past)
        assert both.status_code == 304


class TestRefusals:
    @pytest.mark.storage(50)
    async def test_missing_denied_and_directory_paths_are_refused(self, ana, files, folder):
        assert verdict(await fetch(ana, f"file:///{folder}/none")) == (404, -1, "path_not_found")
        assert verdict(await fetch(ana, f"file:///{folder}")) == (400, -1, "not_a_file")
        assert verdict(await fetch(ana, "")) == (400, -1, "missing_parameter")
        assert verdict(await ana.get("storage/download")) == (400, -1, "missing_parameter")
        (files.root / "user" / "eve").mkdir(parents=True, exist_ok=True)
        (files.root / "user" / "eve" / "a").write_bytes(b"secret")
        denied = await fetch(ana, "file:///user/eve/a")
        assert verdict(denied) == (403, -1, "permission_denied")

    @pytest.mark.security("S5")
    async def test_links_are_not_followed(self, ana, files, folder):
        outside = files.root.parent / "outside.txt"
        outside.write_text("secret")
        (files.root / folder / "link").symlink_to(outside)
        for method in ("GET", "HEAD"):
            assert (await fetch(ana, f"file:///{folder}/link", method)).status_code == 403
        for call in ("storage/download", "storage/display"):
            refused = await ana.get(call, path=f"file:///{folder}/link")
            assert verdict(refused) == (403, -1, "symlink_not_followed")
        refused = await ana.get(f"storage/view=file:///{folder}/link")
        assert verdict(refused) == (403, -1, "symlink_not_followed")

    @pytest.mark.storage(50)
    async def test_failures_before_the_first_byte_return_an_error_response(self, odd):
        store, ana = odd
        store.odd["a"] = Oddity(10, sent_bytes=0, failure=StorageUnavailable("The store is down."))
        store.odd["b"] = Oddity(10, sent_bytes=0)
        answer = await fetch(ana, "/a")
        assert verdict(answer) == (503, -1, "storage_unavailable")
        assert answer.headers["retry-after"]
        assert verdict(await fetch(ana, "/b")) == (502, -1, "storage_error")

    @pytest.mark.storage(54)
    async def test_disabled_downloads_are_refused(self, tmp_path, database_dsn):
        settings = storage_settings(tmp_path, database_dsn)
        desktop = settings.desktop.model_copy(update={"enable_download": False})
        (tmp_path / "files" / "shared" / "a").write_bytes(b"x")
        async with open_api(settings.model_copy(update={"desktop": desktop})) as api:
            ana = await api.user(admin=True)
            assert verdict(await fetch(ana, "file:///shared/a")) == (403, -1, "download_disabled")
            listed = await ana.get("storage/view=file:///shared")
            assert (listed.status_code, listed.json()["show_download_button"]) == (200, False)
            shown = await ana.get("storage/view=file:///shared/a")
            assert (shown.json()["contents"], shown.json()["show_download_button"]) == ("x", False)

    @pytest.mark.storage(96)
    async def test_callers_without_the_right_are_refused(self, files, path):
        await AccountRepository(files.api.database).ensure_group("lookers", ["filebrowser.file_access"])
        bob = await files.api.user("bob", groups=("lookers",))
        await files.api.database.execute(
            "delete from group_members where user_id = (select id from users where username = $1)"
            " and group_id <> (select id from groups where name = 'lookers')",
            bob.username,
        )
        for method in ("GET", "HEAD"):
            assert (await fetch(bob, path, method)).status_code == 403
        assert verdict(await fetch(bob, path)) == (403, -1, "download_disabled")
        listed = await bob.get("storage/list", path=path.rpartition("/")[0])
        assert [entry["name"] for entry in listed.json()["files"]] == ["data.bin"]


class TestBrokenTransfers:
    @pytest.mark.storage(51)
    @pytest.mark.parametrize(
        "oddity",
        [
            Oddity(5 * MIB, sent_bytes=3 * MIB, failure=StorageUnavailable("It is down.")),
            Oddity(5 * MIB, sent_bytes=3 * MIB),
            Oddity(5 * MIB, sent_bytes=5 * MIB - 1),
            Oddity(5 * MIB, failure=EntryChanged("It was changed.")),
            Oddity(5 * MIB, sent_bytes=6 * MIB),
        ],
    )
    async def test_client_detects_an_incomplete_body(self, odd, audited, oddity):
        store, ana = odd
        store.odd["a"] = oddity
        audited.clear()
        async with served(ana.api) as address, httpx.AsyncClient(base_url=address) as http:
            received = bytearray()
            with pytest.raises(httpx.RemoteProtocolError):
                await _receive(http, "/api/v1/storage/download=/a", ana, received)
        assert 0 < len(received) < 5 * MIB
        assert b"down" not in received
        assert without_ends(audited)[-1]["outcome"] not in {"ok", "interrupted"}

    @pytest.mark.storage(51)
    async def test_file_change_during_transfer_aborts_the_download(self, odd, audited):
        store, ana = odd
        store.odd["a"] = Oddity(64 * MIB)
        async with served(ana.api) as address, httpx.AsyncClient(base_url=address) as http:
            with pytest.raises(httpx.RemoteProtocolError):
                await _receive(http, "/api/v1/storage/download=/a", ana, bytearray(), _change(store))
        assert without_ends(audited)[-1]["outcome"] == "conflict"

    async def test_disconnected_client_frees_its_stream_slot(self, tmp_path, database_dsn, audited):
        async with odd_api(tmp_path, database_dsn, max_streams_per_user=1) as (store, api):
            ana = await api.user()
            store.odd["a"] = Oddity(2**40)
            store.odd["b"] = Oddity(10)
            for _ in range(3):
                async with api.http.stream("GET", "/api/v1/storage/download=/a", headers=ana.headers) as answer:
                    assert answer.status_code == 200
                    assert await anext(answer.aiter_raw())
                    refused = await fetch(ana, "/b")
                    assert verdict(refused) == (429, -1, "too_many_streams")
                    assert refused.headers["retry-after"]
                    assert (await fetch(ana, "/b", "HEAD")).status_code == 200
            assert (await fetch(ana, "/b")).status_code == 200
        outcomes = [event["outcome"] for event in without_ends(audited)]
        assert sorted(set(outcomes)) == ["interrupted", "ok", "too_many_streams"]
        assert outcomes.count("interrupted") == 3


class TestAudit:
    @pytest.mark.security("S15")
    async def test_every_download_is_audited(self, ana, files, path, audited):
        await fetch(ana, path)
        await fetch(ana, path, range="bytes=0-9")
        await fetch(ana, f"{path}x")
        expected = {"operation": "storage.download", "user": ana.username, "effective_user": ana.username}
        assert without_ends(audited) == [
            {**expected, "path": path, "outcome": "ok", "size": len(CONTENT)},
            {**expected, "path": path, "outcome": "ok", "size": 10},
            {**expected, "path": f"{path}x", "outcome": "path_not_found"},
        ]

    @pytest.mark.security("S15")
    async def test_responses_without_content_are_not_audited(self, ana, path, audited):
        await fetch(ana, path, "HEAD")
        await fetch(ana, path, if_none_match="*")
        assert without_ends(audited) == []

    @pytest.mark.security("S15")
    async def test_administrators_download_as_another_user(self, odd, audited):
        store, ana = odd
        boss = await ana.api.user("boss", admin=True)
        store.odd["a"] = Oddity(10)
        answer = await boss.get("storage/download", path="/a", doas="carl")
        assert answer.status_code == 200
        assert without_ends(audited)[-1]["effective_user"] == "carl"
        refused = await ana.get("storage/download", path="/a", doas="carl")
        assert verdict(refused) == (403, -1, "impersonation_not_allowed")


class TestMemory:
    @pytest.mark.security("S10")
    async def test_two_gibibytes_stream_in_bounded_memory(self, odd):
        store, ana = odd
        store.odd["large"] = Oddity(2 * 1024 * MIB)
        tracemalloc.start()
        received = 0
        async with ana.api.http.stream("GET", "/api/v1/storage/download=/large", headers=ana.headers) as answer:
            async for piece in answer.aiter_raw():
                received += len(piece)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert received == 2 * 1024 * MIB
        assert peak < 64 * MIB

    async def test_slow_client_slows_down_reads_from_the_store(self, odd):
        store, ana = odd
        store.odd["large"] = Oddity(512 * MIB)
        async with served(ana.api) as address:
            reader, writer = await asyncio.open_connection(*address.removeprefix("http://").split(":"))
            writer.write(
                b"GET /api/v1/storage/download=/large HTTP/1.1\r\nHost: test\r\nAuthorization: "
                + ana.headers["Authorization"].encode() + b"\r\n\r\n"
            )  # fmt: skip
            await reader.readuntil(b"\r\n\r\n")
            tracemalloc.start()
            await asyncio.sleep(0.5)
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            writer.close()
        assert held < 32 * MIB


def _change(store: OddFileSystem) -> Callable[[], None]:
    def change() -> None:
        store.odd["a"] = Oddity(64 * MIB, tag="new")

    return change


async def _receive(
    http: httpx.AsyncClient, path: str, ana: Caller, received: bytearray, then: Callable[[], None] = lambda: None
) -> None:
    """Read the whole response. `then` is called when the first chunk arrives."""
    async with http.stream("GET", path, headers=ana.headers) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_raw():
            if not received:
                then()
            received += piece
