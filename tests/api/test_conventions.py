"""Rules for all calls: paths, methods, credentials, headers and unknown fields (Contract editor 1, platform 1)."""

import json
import re
from dataclasses import replace
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.api.conftest import ApiOpener
from tests.api.driving import Api, Caller, verdict
from tests.api.transport import AppTransport
from tests.api.walk import Answers, Walk, served_calls, stable
from tests.operations import Operation, read_operations

from queryserver.api.bodies import SENT_BY_HUE, SeenFields, UnknownFieldsLog, header_value
from queryserver.identity.model import User
from queryserver.main import create_app
from queryserver.statements.model import HistoryEntry
from queryserver.statements.status import HistoryQuery, StatementHistory

# The root path serves a page to browsers. Other clients get a 404 response, whatever the method.
CALLS = [one for one in read_operations() if one.group != "console"]
OF_USERS = [one for one in CALLS if one.rights in {"user", "admin"}]
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD")


def concrete(operation: Operation) -> str:
    """Return the path of the operation with plausible values for its parameters."""
    path = operation.path.replace("{dialect}", "mysql").replace("{operation_id}", str(uuid4()))
    path = path.replace("{asset}", "swagger-ui.css").replace("{path}", "%2Fshared").replace("{interface}", "mysql")
    return path.replace("{name}", "top_tables").replace("{id}", "7")


def name_of(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


@pytest.fixture(scope="module")
async def plain(api: Api) -> Answers:
    """The responses to all calls, made as in the examples of the documentation."""
    return await Walk(api, await api.user()).whole()


class TestPaths:
    @pytest.mark.item(1)
    @pytest.mark.platform(1)
    async def test_trailing_slash_changes_nothing(self, api: Api, plain: Answers):
        slashed = await Walk(api, await api.user(), slash="/").whole()
        assert {key: stable(answer) for key, answer in plain.items()} == {
            key: stable(answer) for key, answer in slashed.items()
        }

    @pytest.mark.platform(16)
    async def test_two_samples_of_every_call_match_the_documented_shape(self, api: Api, plain: Answers):
        # The walk has already compared each response with its model.
        assert set(plain) == served_calls()
        assert set(await Walk(api, await api.user(admin=True), as_json=True).whole()) == served_calls()

    @pytest.mark.item(71)
    @pytest.mark.platform(2)
    @pytest.mark.parametrize("as_json", [False, True])
    async def test_unknown_fields_change_nothing(self, api: Api, plain: Answers, as_json: bool):
        more = await Walk(api, await api.user(), as_json=as_json, unknown="1", csrfmiddlewaretoken=7).stable_responses(
            plain
        )
        assert more == {key: stable(answer) for key, answer in plain.items() if key in more}

    @pytest.mark.platform(5)
    @pytest.mark.parametrize(
        "path",
        [
            "/",
            "/api",
            "/api/v1",
            "/api/v1/",
            "/api/v1/nope",
            "/api/v1/editor",
            "/api/v1/editor/execute/mysql/more",
            "/api/v1//editor/check_status",
            "/api/v1/editor//check_status",
            "/api/v1/editor/check_status//",
            "/api/v1/editor/watch/",
            "/api/v1/editor/events",
            "/api/v2/editor/check_status",
            "/desktop/debug/nope",
            "/api/v1/editor/check_status%2F",
            "/api/v1/editor%2Fcheck_status",
            "/api/v1/editor/execute/%FF",
            "/api/v1/editor/execute/a%00b",
            "/api/v1/editor/%2E%2E/editor/check_status",
            "/docs",
            "/openapi.json",
        ],
    )
    async def test_unknown_path_returns_404_with_and_without_credentials(self, api: Api, ana: Caller, path: str):
        for caller in (ana, api.stranger):
            for method in ("GET", "POST", "PUT", "DELETE"):
                assert verdict(await self._raw(caller, method, path)) == (404, -1, "not_found")

    @staticmethod
    async def _raw(caller: Caller, method: str, path: str, **more: Any) -> httpx.Response:
        # httpx would normalize some of these paths before it sends them.
        url = httpx.URL("http://test").copy_with(raw_path=path.encode())
        response = await caller.api.http.request(method, url, headers=caller.headers, **more)
        assert response.request.url.raw_path == path.encode()
        return response

    async def test_path_segments_are_decoded_once(self, ana: Caller):
        assert (await ana.post_ok("editor/execute/%6dysql", statement="rows 1"))["status"] == 0
        for encoded, name in (("a%2Fb", "a/b"), ("a%252Fb", "a%2Fb"), ("%C3%A9", "é")):
            answer = await ana.post(f"editor/execute/{encoded}", statement="rows 1")
            assert verdict(answer) == (404, -1, "dialect_not_found")
            assert answer.json()["message"].startswith(f"The connector {name} is not configured. Configured: duckdb,")

    @pytest.mark.parametrize("path", ["editor/execute/%20", "query/%20%09"])
    async def test_blank_segment_is_not_a_dialect(self, ana: Caller, path: str):
        answer = await self._raw(ana, "POST", f"/api/v1/{path}", data={"statement": "SELECT 1"})
        assert verdict(answer) == (404, -1, "dialect_not_found")

    async def test_long_name_is_truncated_in_the_message(self, ana: Caller):
        answer = await ana.post(f"editor/execute/{'x' * 5000}", statement="rows 1")
        assert verdict(answer) == (404, -1, "dialect_not_found")
        assert answer.json()["message"].startswith(f"The connector {'x' * 100} is not configured. Configured: duckdb,")

    @pytest.mark.platform(5)
    async def test_unknown_docs_asset_returns_the_common_404_body(self, api: Api):
        assert verdict(await self._raw(api.stranger, "GET", "/api/docs/zzz")) == (404, -1, "not_found")

    @pytest.mark.parametrize("form", ["{{{}}}", "urn:uuid:{}", "uuid:{}"])
    async def test_operation_ids_have_one_accepted_form(self, ana: Caller, form: str):
        operation = (await ana.run("mysql", "rows 1"))["history_uuid"]
        assert (await ana.on(operation.upper(), "check_status"))["status"] == 0
        refused = await ana.refused("editor/check_status", operationId=form.format(operation))
        assert refused == (404, 2, "operation_not_found")

    async def test_fixed_words_take_precedence_over_dialects(self, ana: Caller):
        assert "notebook" in await ana.post_ok("query/create_notebook")


class TestMethods:
    @pytest.mark.item(2)
    @pytest.mark.platform(7)
    @pytest.mark.parametrize("operation", OF_USERS, ids=name_of)
    async def test_wrong_method_returns_405_with_allow(self, ana: Caller, operation: Operation):
        served = {one.method for one in CALLS if one.path == operation.path}
        for method in METHODS:
            if method in served or (method == "HEAD" and "GET" in served):
                continue
            answer = await ana.send(method, concrete(operation))
            assert answer.status_code == 405
            assert operation.method in answer.headers["allow"].split(", ")
            if method != "HEAD":
                body = answer.json()
                assert body["code"] == "method_not_allowed"
                assert body.get("status") == (None if operation.group == "importer" else -1)

    @pytest.mark.platform(4)
    async def test_head_matches_get_without_a_body(self, ana: Caller):
        operation = (await ana.run("mysql", "rows 3"))["history_uuid"]
        for path in ("editor/get_history", f"editor/download/{operation}", "/desktop/debug/is_alive", "openapi.json"):
            got, head = await ana.get(path), await ana.send("HEAD", path)
            assert head.status_code == got.status_code == 200
            unlike = {"x-request-id", "date"}
            assert {k: v for k, v in head.headers.items() if k not in unlike} == {
                k: v for k, v in got.headers.items() if k not in unlike
            }
            assert head.content == b""
            assert got.content or path.endswith("is_alive")

    async def test_events_do_not_support_head(self, ana: Caller):
        operation = (await ana.run("mysql", "rows 3"))["history_uuid"]
        for method in ("HEAD", "POST", "OPTIONS"):
            answer = await ana.send(method, f"editor/events/{operation}")
            assert (answer.status_code, answer.headers["allow"]) == (204 if method == "OPTIONS" else 405, "GET")

    async def test_head_on_events_requires_credentials_before_the_method(self, api: Api):
        answer = await api.stranger.send("HEAD", f"editor/events/{uuid4()}")
        assert answer.status_code == 401

    @pytest.mark.parametrize("operation", CALLS, ids=name_of)
    async def test_options_lists_the_methods_without_credentials(self, api: Api, operation: Operation):
        answer = await api.stranger.send("OPTIONS", concrete(operation))
        assert answer.status_code == 204
        assert operation.method in answer.headers["allow"].split(", ")


class TestCredentials:
    @pytest.mark.item(7)
    @pytest.mark.platform(6)
    @pytest.mark.parametrize("operation", OF_USERS, ids=name_of)
    async def test_missing_credentials_return_401_for_every_method(self, api: Api, operation: Operation):
        for method in (operation.method, "GET", "POST", "DELETE"):
            answer = await api.stranger.send(method, concrete(operation))
            assert answer.status_code == 401
            assert answer.json() == {"detail": "Authentication credentials were not provided."}

    @pytest.mark.item(7)
    @pytest.mark.parametrize("token", ["x", "a.b.c", "é", "x" * 10_000])
    async def test_bad_token_gets_the_specified_body(self, api: Api, token: str):
        caller = Caller(api, "", {})
        answer = await caller.send(
            "POST", "editor/check_status", headers={b"Authorization": f"Bearer {token}".encode()}
        )
        assert answer.status_code == 401
        assert answer.json() == {
            "detail": "Given token not valid for any token type",
            "code": "token_not_valid",
            "messages": [
                {"token_class": "AccessToken", "token_type": "access", "message": "Token is invalid or expired"}
            ],
        }

    @pytest.mark.platform(15)
    async def test_cookies_are_not_credentials(self, api: Api, ana: Caller):
        token = ana.headers["Authorization"].removeprefix("Bearer ")
        cookie = {"Cookie": f"sessionid={token}; Authorization={token}; access={token}"}
        answer = await api.stranger.send("GET", "editor/get_history", headers=cookie)
        assert answer.status_code == 401
        query = await api.stranger.get("editor/get_history", access_token=token, token=token)
        assert query.status_code == 401

    async def test_public_path_ignores_a_bad_authorization_header(self, api: Api):
        answer = await api.stranger.send("GET", "/desktop/debug/is_alive", headers={"Authorization": "Bearer x"})
        assert answer.status_code == 200


class TestPlaces:
    async def test_url_prefix_applies_to_every_path(self, small_api: ApiOpener):
        async with small_api(desktop={"url_prefix": "/sql"}) as api:
            ana = await api.user()
            for path in ("/sql/api/v1/editor/get_history", "/sql/api/v1/editor/get_history/"):
                answer = await api.http.get(path, headers=ana.headers)
                assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
            assert (await api.http.get("/sql/desktop/debug/is_alive")).status_code == 200
            for path in ("/api/v1/editor/get_history", "/sqlx/api/v1/editor/get_history", "/sql", "/sql/", "/"):
                assert verdict(await api.http.get(path, headers=ana.headers)) == (404, -1, "not_found")

    async def test_other_host_names_are_refused(self, small_api: ApiOpener):
        async with small_api(desktop={"allowed_hosts": ("db.example.com",)}) as api:
            ana = await api.user()
            for host in ("db.example.com", "DB.example.com:8888"):
                assert (await ana.send("GET", "editor/get_history", headers={"Host": host})).status_code == 200
            for host in ("test", "db.example.com.evil.org", "evil.org:8888", ""):
                answer = await ana.send("GET", "editor/get_history", headers={"Host": host})
                assert verdict(answer) == (400, -1, "invalid_host")
            twice = [("Host", "db.example.com"), ("Host", "evil.org")]
            assert verdict(await api.http.get("/api/v1/banners", headers=twice)) == (400, -1, "invalid_host")
            assert (await ana.send("GET", "/desktop/debug/is_alive", headers={"Host": "10.0.0.1"})).status_code == 200

    async def test_downloads_can_be_disabled_for_all_users(self, small_api: ApiOpener):
        async with small_api(desktop={"enable_download": False}) as api:
            admin = await api.user(admin=True)
            operation = (await admin.run("mysql", "rows 1"))["history_uuid"]
            assert verdict(await admin.get(f"editor/download/{operation}")) == (403, -1, "download_disabled")


class TestOrderOfChecks:
    """Checks run in the order of Contract editor 1.5.

    The order is path, authentication, method, content type, size, parsing, parameters, dialect, limits.
    """

    @pytest.mark.platform(12)
    async def test_first_failing_check_determines_the_response(self, small_api, subtests: pytest.Subtests):
        for kind, body, expected in [
            ("text/plain", b"x" * 3000, (415, "unsupported_media_type")),
            ("application/json", b"{" * 3000, (413, "payload_too_large")),
            ("application/json", b"{", (400, "invalid_json")),
            ("application/json", b"[]", (400, "invalid_body")),
            ("application/json", b'{"limit": 0, "snippet": "{"}', (400, "invalid_json")),
            ("application/json", b'{"statement": "rows 1", "limit": 0}', (400, "invalid_parameter")),
            ("application/json", b'{"statement": "rows 1"}', (404, "dialect_not_found")),
        ]:
            with subtests.test(kind=kind, body=body, expected=expected):
                async with small_api(request_body_max_bytes=2000, max_statements_per_user=1) as api:
                    ana = await api.user()
                    await ana.execute("mysql", "sleep 30")
                    answer = await ana.send("POST", "editor/execute/nope", content=body, headers={"Content-Type": kind})
                    assert (answer.status_code, answer.json()["code"]) == expected
                    stranger = await api.stranger.send(
                        "POST", "editor/execute/nope", content=body, headers={"Content-Type": kind}
                    )
                    assert stranger.status_code == 401


class TestHeaders:
    @pytest.mark.platform(13)
    @pytest.mark.parametrize("legal", ["a", "A.b_c-1", "x" * 64])
    async def test_valid_request_id_is_echoed(self, ana: Caller, legal: str):
        for path in ("editor/get_history", "nope", "/desktop/debug/is_alive"):
            answer = await ana.send("GET", path, headers={"X-Request-Id": legal})
            assert answer.headers["x-request-id"] == legal

    @pytest.mark.platform(13)
    @pytest.mark.parametrize("illegal", [b"", b"x" * 65, b"a b", b"a\r\nb", "é".encode(), b"a;b"])
    async def test_invalid_request_id_is_replaced(self, ana: Caller, illegal: bytes):
        answer = await ana.send("GET", "editor/get_history", headers={b"X-Request-Id": illegal})
        assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["x-request-id"])

    @pytest.mark.platform(14)
    async def test_disabled_cors_allows_no_origin(self, api: Api, ana: Caller):
        origin = {"Origin": "https://bi.example.com"}
        preflight = {**origin, "Access-Control-Request-Method": "POST"}
        # All tests check that responses have no CORS headers, but only responses to these requests could have any.
        assert (await ana.send("GET", "editor/get_history", headers=origin)).status_code == 200
        assert (await api.stranger.send("OPTIONS", "editor/execute/mysql", headers=preflight)).status_code == 204

    async def test_running_statement_has_a_retry_after_header(self, ana: Caller):
        operation = (await ana.execute("mysql", "sleep 30"))["history_uuid"]
        answer = await ana.post("editor/check_status", operationId=operation)
        assert int(answer.headers["retry-after"]) >= 1
        await ana.on(operation, "cancel_statement")
        assert "retry-after" not in (await ana.post("editor/check_status", operationId=operation)).headers


class BrokenHistory(StatementHistory):
    """A history that raises an unexpected error. The error message contains internal details."""

    def __init__(self) -> None:
        pass

    async def page(self, user: User, query: HistoryQuery) -> tuple[int, list[HistoryEntry]]:
        message = "SELECT secret FROM /var/lib/queryserver at postgresql://u:planted-secret@10.0.0.1"
        raise RuntimeError(message)


@pytest.mark.platform(11)
async def test_unforeseen_failure_reveals_only_a_request_id(api: Api, ana: Caller):
    broken = replace(
        api.services, statements=replace(api.services.statements, history=BrokenHistory()), registry=CollectorRegistry()
    )
    app = create_app(api.services.settings, services=broken)
    async with httpx.AsyncClient(transport=AppTransport(app), base_url="http://test") as http:
        caller = Caller(replace(api, app=app, http=http), ana.username, ana.headers)
        with capture_logs() as logs:
            answer = await caller.get("editor/get_history")
    body: dict[str, Any] = answer.json()
    assert verdict(answer) == (500, -1, "internal_error")
    assert body["message"] == "Internal error."
    assert body["error_id"] == answer.headers["x-request-id"]
    assert body["error_id"] in json.dumps(logs, default=str)


HEADER = "x-unknown-fields"
MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}


async def test_unknown_fields_are_listed_for_every_encoding_and_outcome(ana: Caller):
    fields = {"statement": "rows 1", "Limt": "5", "database": "shop", "wiat": "3", "snippet": "{}", "cluster": "x"}
    parts = "".join(
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    )
    for body in (
        {"data": fields},
        {"json": fields},
        {"content": f"{parts}--b--\r\n".encode(), "headers": MULTIPART},
        # The query string of a POST supplies no fields. Therefore all names in it are reported as unknown.
        {"data": {**fields, "Limt": "5"}, "params": {"limit": "5", "Limt": "6"}},
    ):
        answer = await ana.send("POST", "editor/execute/mysql", **body)
        expected = "Limt,limit,wiat" if "params" in body else "Limt,wiat"
        assert (answer.status_code, answer.headers[HEADER]) == (200, expected)
    refused = await ana.post("editor/execute/mysql", statment="rows 1")
    assert (refused.status_code, refused.headers[HEADER]) == (400, "statment")
    answer = await ana.get("editor/get_history", limt=5, page=1, _="1700000000")
    assert (answer.status_code, answer.headers[HEADER]) == (200, "limt")


async def test_known_and_hue_fields_are_not_listed(ana: Caller):
    known = {"statement": "rows 1", "client_request_id": "k", "notebook": "{}", "session_id": None, "wait": 0}
    answer = await ana.post_json("editor/execute/mysql", **known, **dict.fromkeys(SENT_BY_HUE - {"session", *known}))
    assert (answer.status_code, HEADER in answer.headers) == (200, False)
    for path in ("editor/check_status", "editor/get_logs", "editor/fetch_result_data"):
        answer = await ana.post(path, operationId=answer.json().get("history_uuid", ""), snippet="{}", notebook="{}")
        assert HEADER not in answer.headers


async def test_unknown_fields_are_also_listed_for_other_groups_and_calls_without_fields(ana: Caller, api: Api):
    for method, path, more in (
        ("POST", "get_config", {"data": {"x": "1"}}),
        ("GET", "context/namespaces/hive", {"params": {"x": "1"}}),
        ("GET", "banners", {"params": {"x": "1"}}),
        ("GET", "connector/types", {"params": {"x": "1"}}),
        ("POST", "metadata/search/entities_interactive", {"data": {"query_s": "*", "x": "1", "sources": '["sql"]'}}),
        ("POST", "token/auth", {"data": {"username": "nobody", "password": "x", "x": "1"}}),
        ("POST", "token/revoke", {"data": {"token": "nonsense", "all": "false", "x": "1"}}),
        ("GET", "storage/list", {"params": {"path": "/nowhere", "doas": ana.username, "x": "1"}}),
        ("POST", "storage/mkdir", {"data": {"path": "/nowhere", "name": "n", "x": "1"}, "params": {"x": "2"}}),
        ("POST", "importer/upload/discard", {"data": {"file_path": "x", "x": "1"}}),
        ("POST", "importer/create_table", {"data": {"table": "t", "x": "1"}}),
        ("GET", "importer/sql_type_mapping", {"params": {"sql_dialect": "hive", "x": "1"}}),
    ):
        answer = await (await api.user(admin=True)).send(method, path, **more)
        if path == "banners":
            assert HEADER not in answer.headers  # banners is a public call, which does not report unknown fields
        else:
            assert answer.headers.get(HEADER) == "x", (path, answer.text)


async def test_uploads_list_unknown_fields_before_and_after_their_file(ana: Caller):
    parts = {"odd": "1", "csrfmiddlewaretoken": "x"}
    before = "".join(f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n1\r\n' for name in parts)
    file = '--b\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\na,b\r\n'
    behind = '--b\r\nContent-Disposition: form-data; name="later"\r\n\r\n1\r\n'
    answer = await ana.send(
        "POST",
        "importer/upload/file",
        content=f"{before}{file}{behind}--b--\r\n".encode(),
        headers=MULTIPART,
        params={"x": "2"},
    )
    assert (answer.status_code, answer.headers[HEADER]) == (201, "later,odd,x")


async def test_calls_refused_before_reading_fields_list_none(ana: Caller, api: Api):
    for answer in (
        await ana.post("editor/execute/mysql", statement="rows 1", session_id="x"),
        await api.stranger.post("editor/execute/mysql", odd="1"),
        await ana.send(
            "POST", "editor/execute/mysql", content=b'{"odd": 1', headers={"Content-Type": "application/json"}
        ),
        await ana.post("nowhere", odd="1"),
    ):
        assert HEADER not in answer.headers


async def test_every_field_sent_by_a_full_walk_is_known(api: Api):
    answers = await Walk(api, await api.user(), as_json=True).whole()
    assert {key: answer.headers[HEADER] for key, answer in answers.items() if HEADER in answer.headers} == {}


async def test_log_contains_field_names_but_no_values(small_api: ApiOpener):
    # The test opens its own application, because an application logs at most 100 such lines per minute.
    async with small_api() as api:
        ana = await api.user()
        with capture_logs() as logs:
            for _ in range(3):
                await ana.post(
                    "editor/execute/mysql", statement="rows 1", limt="hunter2", **{'{"odd": "hunter2"}': "", "é": "1"}
                )
            # If a body is not a form, all of it is parsed as the name of a field.
            await ana.send(
                "POST", "token/auth", content=b"hunter2", headers={"Content-Type": "application/x-www-form-urlencoded"}
            )
    lines = [line for line in logs if line["event"] == "unknown request fields"]
    assert [(line["log_level"], line["fields"]) for line in lines] == [("info", "limt,?")]
    assert lines[0]["path"] == "/api/v1/editor/execute/{dialect:name}"
    assert "hunter2" not in json.dumps(lines)


@pytest.mark.parametrize(
    ("names", "value"),
    [
        ((), ""),
        (("a", "b-c.d"), "a,b-c.d"),
        (("x\r\nSet-Cookie: a", "a,b", "😀", "a b"), "x%0D%0ASet-Cookie:%20a,a%2Cb,%F0%9F%98%80,a%20b"),
        (("\ud800",), "%3F"),
    ],
)
def test_field_names_are_escaped_for_the_header(names: tuple[str, ...], value: str):
    assert header_value(names) == value


def test_only_the_first_names_of_a_large_body_are_inspected():
    seen = SeenFields()
    seen.note_received(map(str, range(1_000_000)))
    seen.read({"0"})
    assert len(seen.unknown(200)) == 1999


def test_header_length_is_limited():
    assert header_value(f"n{number}" for number in range(100)).count(",") == 19
    long = header_value(["😀" * 200 + str(number) for number in range(20)])
    assert 0 < len(long) <= 1024
    assert header_value(["x" * 1000]) == "x" * 64


def test_number_of_log_lines_is_limited():
    log = UnknownFieldsLog()
    with capture_logs() as lines:
        for number in range(500):
            log.note("/path", (f"n{number}",))
    assert len(lines) == 100
