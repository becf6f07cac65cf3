"""Malformed bodies and query strings (Contract editor 1.2, platform 1.2). `tests/unit/api/test_bodies.py` has further
tests.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.api.conftest import ApiOpener, make_settings
from tests.api.driving import Api, Caller, open_api, verdict

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}
MIB = 1024 * 1024

PATHS = ("editor/execute/mysql", "editor/check_status", "editor/create_session", "query/create_notebook")


def part(name: str, value: bytes, *, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


@dataclass
class ChunkedBody:
    """A request body that is sent in chunks. It counts the chunks that are read."""

    count: int
    piece: bytes = b"x" * 65_536
    taken: int = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self.count):
            self.taken += 1
            yield self.piece


class TestJson:
    @pytest.mark.platform(8, 10)
    @pytest.mark.parametrize(
        "body",
        [b"{", b'{"a": 1, "a": 2}', b'{"a": "\\u0000"}', b'{"a": "\xff"}', b"[" * 100_000],
        ids=lambda body: body[:24],
    )
    @pytest.mark.parametrize("path", PATHS)
    async def test_invalid_json_is_refused(self, ana: Caller, path: str, body: bytes):
        answer = await ana.send("POST", path, content=body, headers=JSON)
        assert verdict(answer) == (400, -1, "invalid_json")

    @pytest.mark.platform(8)
    @pytest.mark.parametrize("body", [b"[]", b"null"])
    @pytest.mark.parametrize("path", PATHS)
    async def test_non_object_json_is_refused(self, ana: Caller, path: str, body: bytes):
        assert verdict(await ana.send("POST", path, content=body, headers=JSON)) == (400, -1, "invalid_body")

    @pytest.mark.platform(10)
    @pytest.mark.parametrize("path", PATHS)
    async def test_json_nested_64_levels_is_accepted(self, ana: Caller, path: str):
        body = (
            b'{"statement": "rows 1", "operationId": "x", "session": {"type": "nope"}, "a": '
            + b"[" * 63
            + b"]" * 63
            + b"}"
        )
        answer = await ana.send("POST", path, content=body, headers=JSON)
        assert answer.status_code in {200, 404}


class TestForms:
    @pytest.mark.platform(10)
    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("body", [b"a=%00", b"%FF=1", b"a=\xff"])
    async def test_undecodable_form_text_is_refused(self, ana: Caller, path: str, body: bytes):
        assert verdict(await ana.send("POST", path, content=body, headers=FORM)) == (400, -1, "invalid_parameter")

    async def test_last_of_repeated_fields_counts(self, ana: Caller):
        form = b"statement=rows+1&statement=rows+2&wait=30"
        assert (await ana.send("POST", "editor/execute/mysql", content=form)).json()["query_status"]["rows"] == 2
        parts = part("statement", b"rows 1") + part("statement", b"rows 3") + part("wait", b"30") + b"--b--\r\n"
        answer = await ana.send("POST", "editor/execute/mysql", content=parts, headers=MULTIPART)
        assert answer.json()["query_status"]["rows"] == 3

    @pytest.mark.parametrize("path", PATHS)
    async def test_more_than_a_thousand_fields_are_refused(self, ana: Caller, path: str):
        body = b"&".join(b"a%d=1" % number for number in range(1001))
        assert verdict(await ana.send("POST", path, content=body, headers=FORM)) == (400, -1, "invalid_parameter")

    async def test_malformed_multipart_body_is_refused(self, ana: Caller):
        broken = (part("a", b"1"), part("a", b"\xff") + b"--b--\r\n", part("a", b"1") * 1001 + b"--b--\r\n")
        for path in PATHS:
            for body in broken:
                answer = await ana.send("POST", path, content=body, headers=MULTIPART)
                assert verdict(answer) == (400, -1, "invalid_parameter"), (path, body[:90])

    async def test_part_headers_are_limited(self, ana: Caller):
        body = b'--b\r\nContent-Disposition: form-data; name="a"\r\nX: ' + b"x" * 20_000 + b"\r\n\r\n1\r\n--b--\r\n"
        assert verdict(await ana.send("POST", PATHS[0], content=body, headers=MULTIPART))[0] == 413


class TestEmpty:
    @pytest.mark.platform(3)
    @pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data", "x", ""])
    async def test_empty_body_has_no_fields_under_any_content_type(self, ana: Caller, kind: str):
        answer = await ana.send("POST", "editor/create_notebook", content=b"", headers={"Content-Type": kind})
        assert answer.status_code == 200
        answer = await ana.send(
            "POST", "editor/create_notebook", content=ChunkedBody(0), headers={"Content-Type": kind}
        )
        assert answer.status_code == 200


class TestQueryStrings:
    @pytest.mark.platform(10)
    @pytest.mark.parametrize(
        "query", ["doc_text=%00", "doc_type=a%00b", "doc_text=%FF", "page=%FF", "doc_connector=%ED%A0%80"]
    )
    async def test_undecodable_query_text_is_refused(self, ana: Caller, query: str):
        assert verdict(await ana.send("GET", f"editor/get_history?{query}")) == (400, -1, "invalid_parameter")

    async def test_get_ignores_the_body_and_post_ignores_the_query(self, ana: Caller):
        await ana.run("mysql", "rows 1")
        answer = await ana.send("GET", "editor/get_history", content=b"page=x", headers=FORM)
        assert answer.json()["count"] == 1
        assert await ana.refused("editor/execute/mysql?statement=rows+1") == (400, -1, "missing_parameter")

    async def test_last_of_repeated_parameters_counts(self, ana: Caller):
        await ana.run("mysql", "rows 1")
        assert (await ana.send("GET", "editor/get_history?doc_text=nothing&doc_text=rows")).json()["count"] == 1


class TestSize:
    @pytest.mark.item(69)
    @pytest.mark.platform(9)
    @pytest.mark.parametrize("kind", [JSON, FORM, MULTIPART])
    async def test_large_body_is_refused_before_it_is_fully_read(self, ana: Caller, kind: dict[str, str]):
        for path in PATHS:
            body = ChunkedBody(1000)
            length = {"Content-Length": str(1000 * 65_536)}
            answer = await ana.send("POST", path, content=body, headers={**kind, **length})
            assert (verdict(answer), body.taken) == ((413, -1, "payload_too_large"), 0)
            forget_warnings = ChunkedBody(1000)
            answer = await ana.send("POST", path, content=forget_warnings, headers=kind)
            assert verdict(answer) == (413, -1, "payload_too_large")
            assert "(`editor.request_body_max_bytes`)" in answer.json()["message"]
            assert forget_warnings.taken <= 16 * MIB // 65_536 + 2

    @pytest.mark.platform(9)
    async def test_public_calls_have_the_general_size_limit(self, api: Api):
        pieces = ChunkedBody(1000)
        answer = await api.stranger.send("POST", "token/auth", content=pieces, headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
        assert "(`limits.max_body_bytes`)" in answer.json()["message"]
        assert pieces.taken <= 10 * MIB // 65_536 + 2

    @pytest.mark.item(69)
    async def test_ten_mebibytes_of_sql_run_and_one_more_byte_is_refused(self, ana: Caller):
        text = "text " + "é" * (5 * MIB - 3) + "x"
        assert len(text.encode()) == 10 * MIB
        answer = await ana.post_json("editor/execute/mysql", statement=text, wait=60)
        assert answer.json()["status"] == 0
        page = await ana.page(answer.json()["history_uuid"])
        assert page["data"] == [[text.removeprefix("text ")]]
        assert (await ana.history())["history"][0]["data"]["statement"] == text[:1001]
        too_large = await ana.post_json("editor/execute/mysql", statement=text + "x")
        assert verdict(too_large) == (413, -1, "payload_too_large")

    async def test_json_with_too_many_values_is_refused(self, small_api: ApiOpener):
        async with small_api() as api:
            ana = await api.user()
            body = b'{"a": [' + b"1," * 1_100_000 + b"1]}"
            assert verdict(await ana.send("POST", PATHS[0], content=body, headers=JSON)) == (400, -1, "invalid_json")


@pytest.mark.platform(10)
async def test_json_depth_limit_is_configurable(tmp_path: Path, database_dsn: str, users_url: str):
    settings = make_settings(tmp_path, database_dsn, users_url)
    limits = settings.limits.model_copy(update={"max_json_depth": 3})
    async with open_api(settings.model_copy(update={"limits": limits})) as api:
        ana = await api.user("ana")
        assert (await ana.post_json("editor/execute/mysql", statement="rows 1", x=[[]])).status_code == 200
        for deep in ([[[]]], "x"):
            answer = await ana.post_json("editor/execute/mysql", statement="rows 1", x=deep, snippet='{"a":[[[]]]}')
            assert verdict(answer) == (400, -1, "invalid_json")
