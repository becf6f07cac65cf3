"""Tests of every documented call: rights, the order of checks, bodies, and the ids of other users (T20)."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.api.driving import Api, Caller
from tests.api.test_conventions import concrete, name_of
from tests.operations import Operation, read_operations

CALLS = [one for one in read_operations() if not one.path.endswith("{asset}") and one.group != "console"]

SECURED = [one for one in CALLS if one.rights in {"user", "admin"}]
ADMIN = [one for one in CALLS if one.rights == "admin"]
GETS = [one for one in CALLS if one.method == "GET" and "/events/" not in one.path and one.rights != "network"]
UPLOADS = ("/upload/file", "/upload/chunks")
READS_A_BODY = [one for one in CALLS if one.method == "POST" and not one.path.endswith(UPLOADS)]
TAKES_A_FILE = [one for one in CALLS if one.method == "POST" and one.path.endswith(UPLOADS)]
JSON = "application/json"

# Each of these bodies must be rejected before the call has any effect. The codes are those of Contract platform 1.2.
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


class CountedBody:
    """A large request body that counts the chunks that are read."""

    def __init__(self) -> None:
        self.pieces = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(200):
            self.pieces += 1
            yield b" " * 65536


def code_of(response: httpx.Response) -> str:
    return response.json().get("code", "")


async def sent(caller: Caller, one: Operation, content: Any, kind: str = JSON, **headers: str) -> httpx.Response:
    # Checked before the body, by the calls that use a cookie (Contract platform 3.11).
    headers = {"Content-Type": kind, "X-Requested-With": "queryserver", **headers}
    return await caller.send(one.method, concrete(one), content=content, headers=headers)


@pytest.fixture(scope="module")
async def user(api: Api) -> Caller:
    return await api.user("each")


@pytest.fixture(scope="module")
async def admin(api: Api) -> Caller:
    return await api.user("eachadmin", admin=True)


class TestRights:
    @pytest.mark.platform(67, 89)
    @pytest.mark.security("T10")
    @pytest.mark.parametrize("one", ADMIN, ids=name_of)
    async def test_administrator_call_returns_403_for_others_before_reading_the_body(self, user, one):
        answers = [await user.send(one.method, concrete(one))]
        if one.method == "POST":
            answers += [await sent(user, one, b"x", "text/plain"), await sent(user, one, b"{")]
        for answer in answers:
            assert (answer.status_code, code_of(answer)) == (403, "admin_required")
            assert answer.json()["message"] == "You must be an administrator."

    @pytest.mark.platform(7)
    @pytest.mark.parametrize("one", ADMIN, ids=name_of)
    async def test_wrong_method_is_reported_before_a_missing_right(self, user: Caller, one: Operation):
        assert (await user.send("PUT", concrete(one))).status_code == 405

    @pytest.mark.platform(15)
    @pytest.mark.parametrize("one", SECURED, ids=name_of)
    @pytest.mark.security("T18")
    async def test_cookie_without_a_bearer_returns_401(self, api: Api, user: Caller, one: Operation):
        token = user.headers["Authorization"].removeprefix("Bearer ")
        cookie = {"Cookie": f"sessionid={token}; access={token}; jwt={token}"}
        assert (await api.stranger.send(one.method, concrete(one), headers=cookie)).status_code == 401

    @pytest.mark.platform(6)
    @pytest.mark.parametrize("one", SECURED, ids=name_of)
    async def test_credentials_are_checked_before_the_body(self, api: Api, one: Operation):
        answer = await api.stranger.send(
            one.method, concrete(one), content=b"{" * 10, headers={"Content-Type": "text/plain"}
        )
        assert answer.status_code == 401


VARYING = {
    "/desktop/debug/is_ready", "/api/v1/logs", "/api/v1/logs/download", "/api/v1/check_config", "/api/v1/admin/doctor",
}  # fmt: skip
"""Calls whose responses contain counts or durations, so that their length may differ between two calls."""


class TestPaths:
    @pytest.mark.platform(1)
    @pytest.mark.security("T17")
    @pytest.mark.parametrize("one", CALLS, ids=name_of)
    async def test_trailing_slash_addresses_the_same_path(self, api: Api, user: Caller, one: Operation):
        # A trailing slash has a meaning after `=`, and if the last segment of the path is a parameter.
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
    @pytest.mark.parametrize("one", GETS, ids=name_of)
    async def test_head_matches_get_without_a_body(self, admin: Caller, one: Operation):
        got, head = await admin.get(concrete(one)), await admin.send("HEAD", concrete(one))
        unlike = {"x-request-id", "date", "last-modified"}
        if one.path in VARYING:
            unlike |= {"content-length", "content-disposition"}
        assert head.status_code == got.status_code
        assert {k: v for k, v in head.headers.items() if k not in unlike} == {
            k: v for k, v in got.headers.items() if k not in unlike
        }
        assert head.content == b""


class TestBodies:
    @pytest.mark.platform(8)
    @pytest.mark.security("T28")
    @pytest.mark.parametrize("one", READS_A_BODY + TAKES_A_FILE, ids=name_of)
    async def test_unsupported_content_type_is_refused(self, admin: Caller, one: Operation):
        answer = await sent(admin, one, b"hello", "text/plain")
        if one.group != "importer":
            assert (answer.status_code, code_of(answer)) == (415, "unsupported_media_type")
        else:
            assert answer.status_code == 400
            assert code_of(answer) in {"unsupported_media_type", "not_multipart"}

    @pytest.mark.platform(8, 10, 12)
    @pytest.mark.security("T28", "T31")
    @pytest.mark.parametrize("one", READS_A_BODY, ids=name_of)
    async def test_malformed_json_bodies_get_their_error_codes(self, admin: Caller, one: Operation):
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
    @pytest.mark.parametrize("one", READS_A_BODY, ids=name_of)
    async def test_null_characters_in_fields_are_handled_safely(self, admin: Caller, one: Operation):
        for body, kind in (
            (BROKEN["U+0000"][0], JSON),
            (b"statement=%00&connector=%00&path=%00", "application/x-www-form-urlencoded"),
            (b"statement=%ff&connector=%ff&path=%ff", "application/x-www-form-urlencoded"),
        ):
            answer = await sent(admin, one, body, kind)
            # Some of these calls have no fields, and some can never succeed.
            assert answer.status_code in {200, 400, 404, 501}, answer.text
            if answer.status_code == 200:
                assert not one.request or "\0" not in answer.text

    @pytest.mark.platform(9)
    @pytest.mark.parametrize("one", READS_A_BODY, ids=name_of)
    async def test_oversized_body_is_refused_before_it_is_read(self, admin: Caller, one: Operation):
        body = CountedBody()
        answer = await sent(admin, one, body, **{"Content-Length": str(200 * 1024 * 1024)})
        expected = 400 if one.group == "importer" else 413
        assert (answer.status_code, code_of(answer)) == (expected, "payload_too_large")
        assert body.pieces <= 2

    @pytest.mark.platform(3, 12)
    @pytest.mark.parametrize("one", [one for one in READS_A_BODY if one.group != "token"], ids=name_of)
    async def test_empty_body_has_no_parameters_under_any_content_type(self, user: Caller, one: Operation):
        kinds = (JSON, "application/x-www-form-urlencoded", "text/plain", "application/x-unknown")
        answers = [await sent(user, one, b"", kind) for kind in kinds]
        assert {(answer.status_code, code_of_any(answer)) for answer in answers[1:]} == {
            (answers[0].status_code, code_of_any(answers[0]))
        }


def code_of_any(response: httpx.Response) -> str:
    body = json.loads(response.content)
    return body.get("code", "") if isinstance(body, dict) else ""


CALLS_WITH_IDS = read_operations()


def fields_of(one: Operation) -> frozenset[str]:
    """Return the names of the fields in the operation's request model."""
    return frozenset(one.request.model_fields) if one.request else frozenset()


OF_ADMINISTRATORS = [one for one in CALLS_WITH_IDS if one.group == "admin" and "{operation_id}" in one.path]

ON_OPERATIONS = [
    one
    for one in CALLS_WITH_IDS
    if one not in OF_ADMINISTRATORS and ("{operation_id}" in one.path or "operation_id" in fields_of(one))
]

BY_CONNECTOR = [
    one
    for one in CALLS_WITH_IDS
    if one.group in {"editor", "dialect"}
    and one not in ON_OPERATIONS
    and ("{dialect}" in one.path or fields_of(one) & {"snippet", "source_type"})
]


async def call(caller: Caller, one: Operation, path: str, fields: Mapping[str, Any]) -> httpx.Response:
    if one.method == "GET":
        return await caller.get(path)
    return await caller.post_json(path, **fields)


def status_and_code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")


@pytest.mark.security("T20")
def test_call_lists_are_complete():
    """Without this check, a change to the models could silently reduce the tested calls to none."""
    assert len(ON_OPERATIONS) >= 13
    assert len(BY_CONNECTOR) >= 20


@pytest.mark.security("T20")
@pytest.mark.parametrize("one", ON_OPERATIONS, ids=name_of)
async def test_other_users_operation_is_unknown(ana: Caller, bob: Caller, one: Operation):
    theirs = (await ana.run("mysql", "rows 1"))["history_uuid"]
    answers = []
    for operation in (theirs, str(uuid4())):
        path = one.path.replace("{operation_id}", operation).replace("{dialect}", "mysql")
        answers.append(
            status_and_code(await call(bob, one, path, {"operationId": operation, "snippet": {"type": "mysql"}}))
        )
    assert answers == [(404, "operation_not_found")] * 2
    assert await ana.state(theirs) == "available"


@pytest.mark.security("T20")
async def test_administrator_calls_reveal_nothing_about_operations(ana: Caller, bob: Caller):
    theirs = (await ana.run("mysql", "rows 1"))["history_uuid"]
    for one in OF_ADMINISTRATORS:
        for operation in (theirs, str(uuid4())):
            answer = await call(bob, one, one.path.replace("{operation_id}", operation), {})
            assert status_and_code(answer) == (403, "admin_required"), one
    assert await ana.state(theirs) == "available"
    assert len(OF_ADMINISTRATORS) == 2


@pytest.mark.security("T20")
@pytest.mark.parametrize("one", BY_CONNECTOR, ids=name_of)
async def test_connector_that_is_not_granted_is_unknown(ana: Caller, one: Operation):
    answers = []
    for connector in ("vault", "nowhere"):
        path = one.path.replace("{dialect}", connector).replace("{database}", "shop").replace("{table}", "t10")
        path = path.replace("{column}", "tags").replace("{nested}", "item")
        snippet = {"type": connector, "connector": {"type": connector}}
        fields = {"snippet": snippet, "source_type": connector, "statement": "rows 1"}
        answers.append(status_and_code(await call(ana, one, path, fields)))
    assert answers == [(404, "dialect_not_found")] * 2


@pytest.mark.security("T20")
async def test_other_users_statements_are_never_listed(ana: Caller, bob: Caller):
    theirs = (await ana.run("mysql", "rows 1"))["history_uuid"]
    assert theirs in {entry["uuid"] for entry in (await ana.history())["history"]}
    assert (await bob.history())["history"] == []


@pytest.mark.security("T20")
async def test_other_users_session_is_unknown(ana: Caller, bob: Caller):
    opened = (await ana.post_ok("editor/create_session", session='{"type": "mysql"}'))["session"]
    for session in (opened["id"], 2**40):
        closed = await bob.post_json("editor/close_session", session={"type": "mysql", "id": session})
        assert status_and_code(closed) == (404, "session_not_found")
        run = await bob.post_json("editor/execute/mysql", statement="rows 1", session_id=session)
        explained = await bob.post_json("editor/explain/mysql", statement="rows 1", session_id=session)
        assert {status_and_code(run), status_and_code(explained)} == {(404, "session_not_found")}
    assert (await ana.post_ok("editor/close_session", session=f'{{"id": {opened["id"]}}}'))["session"]["status"] == 0


IMPORTS = {
    "file/guess_metadata": {},
    "file/guess_header": {"file_type": "csv"},
    "file/preview": {"file_type": "csv", "sql_dialect": "hive", "has_header": "true"},
}

TABLE = {"file_type": "csv", "has_header": "true", "connector": "duckdb", "table": "t", "import_type": "local"}


@pytest.mark.security("T20")
class TestUploads:
    async def test_other_users_upload_reference_is_not_found(self, ana: Caller, bob: Caller):
        sent = await ana.send("POST", "importer/upload/file", files={"file": ("a.csv", b"id\n1\n")})
        theirs = sent.json()["file_path"]
        forged = theirs.replace(theirs.split("/")[1], "A" * len(theirs.split("/")[1]))
        for path in (theirs, forged):
            answers = [
                await bob.get(f"importer/{call}", file_path=path, import_type="local", **more)
                for call, more in IMPORTS.items()
            ]
            answers += [
                await bob.post(f"importer/{name}", file_path=path, **TABLE) for name in ("create_table", "submit")
            ]
            assert {status_and_code(answer) for answer in answers} == {(400, "file_not_found")}
            assert (await bob.post("importer/upload/discard", file_path=path)).json()["discarded"] is False
        shown = await ana.get("importer/file/guess_metadata", file_path=theirs, import_type="local")
        assert shown.status_code == 200

    async def test_importer_treats_a_connector_that_is_not_granted_as_unknown(self, ana: Caller):
        sent = await ana.send("POST", "importer/upload/file", files={"file": ("a.csv", b"id\n1\n")})
        for connector in ("vault", "nowhere"):
            table = {**TABLE, "connector": connector, "file_path": sent.json()["file_path"]}
            for name in ("create_table", "submit"):
                assert status_and_code(await ana.post(f"importer/{name}", **table)) == (400, "connector_not_found")


@pytest.mark.security("T20")
async def test_stored_connector_that_is_not_granted_is_unknown(api: Api, ana: Caller):
    root = await api.user("root", admin=True)
    made = {"nice_name": f"Hidden {uuid4()}", "dialect": "sqlite", "interface": "sqlite", "groups": []}
    stored = (await root.post_json("connector/instance/update", connector=made)).json()["connector"]["id"]
    try:
        for connector in (stored, "999999"):
            assert status_and_code(await ana.get(f"connector/instance/get/{connector}")) == (404, "connector_not_found")
            run = await ana.post_json(f"editor/execute/{connector}", statement="SELECT 1")
            assert status_and_code(run) == (404, "dialect_not_found")
            namespaces = (await ana.get(f"get_namespaces/{connector}")).json()
            assert namespaces[connector] == (await ana.get("get_namespaces/nowhere")).json()["nowhere"]
    finally:
        await root.post_json("connector/instance/delete", connector={"id": stored})
