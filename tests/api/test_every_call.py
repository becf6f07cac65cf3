"""What holds for every call of the table, asked of each: rights, the order of checks, bodies that are none.

The rows come from openapi/operations.yaml, so a new call is covered by its row.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from scripts.check_operations import SERVED, Operation, read_operations
from tests.api.driving import Api, Caller
from tests.api.test_conventions import concrete, name_of
from tests.cases import each

CALLS = [
    one for one in read_operations() if one.status == SERVED and not one.path.endswith("{asset}") and one.path != "/"
]
SECURED = [one for one in CALLS if one.rights in {"user", "admin"}]
ADMIN = [one for one in CALLS if one.rights == "admin"]
GETS = [one for one in CALLS if one.method == "GET" and "/events/" not in one.path and one.rights != "network"]
UPLOADS = ("/upload/file", "/upload/chunks")
READS_A_BODY = [one for one in CALLS if one.method == "POST" and not one.path.endswith(UPLOADS)]
TAKES_A_FILE = [one for one in CALLS if one.method == "POST" and one.path.endswith(UPLOADS)]

JSON = "application/json"
# Each of these must be refused before anything is done; the code is that of the platform (Contract platform 1.2).
BROKEN = {
    "broken": (b'{"a": ', "invalid_json"),
    "array": (b"[1]", "invalid_body"),
    "text": (b'"a"', "invalid_body"),
    "U+0000": (b'{"a\\u0000": "b\\u0000", "statement": "x\\u0000", "connector": "\\u0000"}', ""),
    "raw U+0000": (b'{"a": "\x00"}', "invalid_json"),
    "invalid UTF-8": (b'{"a": "\xff"}', "invalid_json"),
    "depth 65": (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}", "invalid_json"),
    "duplicate": (b'{"a": 1, "a": 2}', "invalid_json"),
    "NaN": (b'{"a": NaN}', "invalid_json"),
    "infinite": (b'{"a": -Infinity}', "invalid_json"),
}


class Watched:
    """A body that is told to be large, and counts the pieces that were asked for."""

    def __init__(self) -> None:
        self.pieces = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(200):
            self.pieces += 1
            yield b" " * 65536


def code_of(response: httpx.Response) -> str:
    return response.json().get("code", "")


async def sent(caller: Caller, one: Operation, content: Any, kind: str = JSON, **headers: str) -> httpx.Response:
    return await caller.send(one.method, concrete(one), content=content, headers={"Content-Type": kind, **headers})


@pytest.fixture(scope="module")
async def user(api: Api) -> Caller:
    return await api.user("each")


@pytest.fixture(scope="module")
async def admin(api: Api) -> Caller:
    return await api.user("eachadmin", admin=True)


class TestRights:
    @pytest.mark.platform(67, 89)
    @pytest.mark.security("T10")
    @each("one", ADMIN, ids=name_of)
    async def test_a_call_of_administrators_is_403_for_others_before_its_body_is_looked_at(
        self, user: Caller, one: Operation
    ):
        answers = [await user.send(one.method, concrete(one))]
        if one.method == "POST":
            answers += [await sent(user, one, b"x", "text/plain"), await sent(user, one, b"{")]
        for answer in answers:
            assert (answer.status_code, code_of(answer)) == (403, "admin_required")
            assert answer.json()["message"] == "You must be an administrator."

    @pytest.mark.platform(7)
    @each("one", ADMIN, ids=name_of)
    async def test_a_wrong_method_is_told_before_a_missing_right(self, user: Caller, one: Operation):
        assert (await user.send("PUT", concrete(one))).status_code == 405

    @pytest.mark.platform(15)
    @each("one", SECURED, ids=name_of)
    @pytest.mark.security("T18")
    async def test_a_cookie_without_bearer_is_401(self, api: Api, user: Caller, one: Operation):
        token = user.headers["Authorization"].removeprefix("Bearer ")
        cookie = {"Cookie": f"sessionid={token}; access={token}; jwt={token}"}
        assert (await api.stranger.send(one.method, concrete(one), headers=cookie)).status_code == 401

    @pytest.mark.platform(6)
    @each("one", SECURED, ids=name_of)
    async def test_credentials_are_asked_for_before_the_body_is_looked_at(self, api: Api, one: Operation):
        answer = await api.stranger.send(
            one.method, concrete(one), content=b"{" * 10, headers={"Content-Type": "text/plain"}
        )
        assert answer.status_code == 401


class TestPaths:
    @pytest.mark.platform(1)
    @pytest.mark.security("T17")
    @each("one", CALLS, ids=name_of)
    async def test_a_last_slash_is_the_same_path(self, api: Api, user: Caller, one: Operation):
        # Behind `=` and as an empty last segment a slash means something.
        if "={" in one.path or one.path.endswith("}"):
            return
        path = concrete(one).rstrip("/")
        for caller in (api.stranger, user):
            plain = await caller.send("PUT", path)
            slashed = await caller.send("PUT", f"{path}/")
            assert plain.status_code == slashed.status_code
            assert plain.status_code in {401, 405}
            assert plain.json() == slashed.json()

    @pytest.mark.platform(4)
    @each("one", GETS, ids=name_of)
    async def test_head_is_get_without_a_body(self, admin: Caller, one: Operation):
        got, head = await admin.get(concrete(one)), await admin.send("HEAD", concrete(one))
        unlike = {"x-request-id", "date", "last-modified"}
        # What counts its own calls, or tells how long its checks took, has another length each time.
        if one.path in {"/desktop/debug/is_ready", "/api/v1/logs", "/api/v1/logs/download", "/api/v1/check_config"}:
            unlike |= {"content-length", "content-disposition"}
        assert head.status_code == got.status_code
        assert {k: v for k, v in head.headers.items() if k not in unlike} == {
            k: v for k, v in got.headers.items() if k not in unlike
        }
        assert head.content == b""


class TestBodies:
    @pytest.mark.platform(8)
    @pytest.mark.security("T28")
    @each("one", READS_A_BODY + TAKES_A_FILE, ids=name_of)
    async def test_another_content_type_is_not_read(self, admin: Caller, one: Operation):
        answer = await sent(admin, one, b"hello", "text/plain")
        if one.error_style != "importer":
            assert (answer.status_code, code_of(answer)) == (415, "unsupported_media_type")
        else:
            assert answer.status_code == 400
            assert code_of(answer) in {"unsupported_media_type", "not_multipart"}

    @pytest.mark.platform(8, 10, 12)
    @pytest.mark.security("T28", "T31")
    @each("one", READS_A_BODY, ids=name_of)
    async def test_a_body_that_is_no_object_of_json_is_told_so(self, admin: Caller, one: Operation):
        found: dict[str, tuple[int, str]] = {}
        expected: dict[str, tuple[int, str]] = {}
        for name, (body, code) in BROKEN.items():
            if not code:
                continue
            answer = await sent(admin, one, body)
            found[name] = (answer.status_code, code_of(answer))
            expected[name] = (400, code)
        assert found == expected

    @pytest.mark.platform(10)
    @each("one", READS_A_BODY, ids=name_of)
    async def test_zero_characters_in_fields_never_reach_anything(self, admin: Caller, one: Operation):
        for body, kind in (
            (BROKEN["U+0000"][0], JSON),
            (b"statement=%00&connector=%00&path=%00", "application/x-www-form-urlencoded"),
            (b"statement=%ff&connector=%ff&path=%ff", "application/x-www-form-urlencoded"),
        ):
            answer = await sent(admin, one, body, kind)
            # Some of these calls read no field, and some never succeed.
            assert answer.status_code in {200, 400, 404, 501}, answer.text
            if answer.status_code == 200:
                assert not one.request or "\0" not in answer.text

    @pytest.mark.platform(9)
    @each("one", READS_A_BODY, ids=name_of)
    async def test_a_body_above_the_limit_is_refused_before_it_is_read(self, admin: Caller, one: Operation):
        body = Watched()
        answer = await sent(admin, one, body, **{"Content-Length": str(200 * 1024 * 1024)})
        expected = 400 if one.error_style == "importer" else 413
        assert (answer.status_code, code_of(answer)) == (expected, "payload_too_large")
        assert body.pieces <= 2

    @pytest.mark.platform(3, 12)
    @each("one", [one for one in READS_A_BODY if one.group != "token"], ids=name_of)
    async def test_an_empty_body_counts_as_no_parameters_under_every_content_type(self, user: Caller, one: Operation):
        kinds = (JSON, "application/x-www-form-urlencoded", "text/plain", "application/x-unknown")
        answers = [await sent(user, one, b"", kind) for kind in kinds]
        assert {(answer.status_code, code_of_any(answer)) for answer in answers[1:]} == {
            (answers[0].status_code, code_of_any(answers[0]))
        }


def code_of_any(response: httpx.Response) -> str:
    body = json.loads(response.content)
    return body.get("code", "") if isinstance(body, dict) else ""
