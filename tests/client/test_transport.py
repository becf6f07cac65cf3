"""Retries and credentials of calls, with a scripted server (issue 20, section 3)."""

import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.client.conftest import QUICK
from tests.client.threads import in_thread

from queryserver_client import (
    ApiError,
    AuthenticationError,
    ConfigurationError,
    Connection,
    ConnectionLost,
    NotFound,
    QueryserverError,
    Retries,
    Secret,
    ServerUnavailable,
    TooManyRequests,
    connect,
    connect_sync,
    dbapi,
)
from queryserver_client.credentials import credentials_of
from queryserver_client.dbapi import servers
from queryserver_client.retries import Rest, retry_after
from queryserver_client.transport import Call, _revealed

Answer = httpx.Response | type[httpx.TransportError]
DONE = httpx.Response(200, json={"status": 0})
SECRET = "top-secret-token"


def test_refused_address_error_is_safe_to_show_with_traceback():
    with pytest.raises(ConfigurationError) as caught:
        connect("nowhere", token=SECRET)
    frames = traceback.TracebackException(ConfigurationError, caught.value, caught.tb, capture_locals=True)
    assert "repr() failed" not in "".join(frames.format())


async def test_waiting_for_own_connection_is_not_a_failure():
    scripted = httpx.MockTransport(lambda request: httpx.Response(200, json=request.extensions["timeout"]))
    async with connect("http://server", token=SECRET, http_transport=scripted) as db:
        assert (await db.transport.call("GET", "x"))["pool"] is None


def shown(error: BaseException | None) -> str:
    """Return the messages of an error and its causes, with all local variables of this package in their tracebacks."""
    texts: list[str] = []
    while error is not None:
        traced = traceback.TracebackException.from_exception(error, capture_locals=True)
        texts += [str(frame.locals) for frame in traced.stack if "queryserver_client" in frame.filename]
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    assert len(texts) > 2
    return "\n".join(texts)


class ScriptedTransport:
    """A transport that returns or raises its answers in order, and repeats the last one."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, httpx.Response):
            return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)
        raise answer("broken")


def db_of(answer: Callable[[httpx.Request], httpx.Response], **more: Any) -> Connection:
    options = {"token": SECRET, "retries": QUICK, **more}
    return connect("http://server", http_transport=httpx.MockTransport(answer), **options)


def failure(status: int, code: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json={"status": -1, "code": code, "message": "No."}, headers=named)


PROXY_PAGE = httpx.Response(502, text="<html>Bad Gateway</html>")


@pytest.mark.parametrize(
    ("first", "is_repeatable", "tries"),
    [
        (httpx.ConnectError, False, 2),
        (httpx.ConnectTimeout, False, 2),
        (httpx.ReadError, False, 1),
        (httpx.ReadError, True, 2),
        (httpx.ReadTimeout, True, 2),
        (httpx.RemoteProtocolError, True, 2),
        (failure(429, "too_many_requests", Retry_After="0"), False, 2),
        (failure(429, "quota_exceeded", Retry_After="0"), True, 1),
        (failure(503, "stopping", Retry_After="0"), False, 2),
        (failure(503, "service_unavailable", Retry_After="0"), False, 1),
        (failure(503, "service_unavailable", Retry_After="0"), True, 2),
        (PROXY_PAGE, False, 1),
        (PROXY_PAGE, True, 2),
        (httpx.Response(504, text=""), True, 2),
        (httpx.Response(500, text="<html>of a proxy</html>"), True, 2),
        (failure(500, "internal_error"), True, 1),
        (failure(404, "operation_not_found"), True, 1),
    ],
)
async def test_repeatable_calls_are_retried(first: Answer, is_repeatable: bool, tries: int):
    server = ScriptedTransport(first, DONE)
    async with db_of(server) as db:
        call = Call("POST", "editor/x", json={}, is_repeatable=is_repeatable)
        if tries == 1:
            with pytest.raises((ApiError, ConnectionLost)):
                await db.transport.send(call)
        else:
            await db.transport.send(call)
    assert len(server.requests) == tries


async def test_retried_execute_keeps_key_and_new_statement_gets_another():
    answer = {"status": 1, "code": "rejected", "message": "No.", "query_status": None}
    server = ScriptedTransport(httpx.ReadError, PROXY_PAGE, httpx.Response(200, json=answer))
    async with db_of(server) as db:
        for _ in range(2):
            with pytest.raises(Exception, match=r"No\."):
                await db.query("duckdb", "SELECT 1")
    keys = [request.headers["Idempotency-Key"] for request in server.requests]
    assert len(keys) == 4
    assert len(set(keys)) == 2
    assert keys[0] == keys[1] == keys[2]


async def test_old_server_never_silently_ignores_parameters():
    status = {
        "status": "waiting",
        "state": "waiting",
        "message": "",
        "rows": 0,
        "has_result_set": True,
        **dict.fromkeys(("truncated_by", "modified_row_count", "queue_position", "started", "ended", "expires_at")),
        "submitted": "2025-01-31T10:20:28Z",
        "elapsed_ms": 0,
        "queued_ms": 0,
    }
    body = {"status": 0, "history_uuid": "x", "handle": {}, "query_status": status}
    server = ScriptedTransport(httpx.Response(200, json=body, headers={"X-Unknown-Fields": "parameters"}))
    async with db_of(server) as db:
        with pytest.raises(ApiError, match="does not support"):
            await db.query("duckdb", "SELECT ?", [1])
    assert [request.url.path.rpartition("/")[2] for request in server.requests] == ["duckdb", "cancel_statement"]


async def test_wait_exceeding_retry_time_fails_immediately():
    server = ScriptedTransport(failure(429, "login_throttled", Retry_After="300"))
    async with db_of(server) as db:
        with pytest.raises(TooManyRequests) as caught:
            await db.transport.call("GET", "x")
    assert (caught.value.retry_after, caught.value.code) == (300, "login_throttled")
    assert len(server.requests) == 1


async def test_retry_time_is_limited(monkeypatch: pytest.MonkeyPatch):
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    # Replace the clock, so that other load on the machine does not affect the retries.
    monkeypatch.setattr("queryserver_client.retries.anyio", SimpleNamespace(current_time=lambda: now, sleep=sleep))
    server = ScriptedTransport(PROXY_PAGE)
    async with db_of(server, retries=Retries(total_s=0.2, first_s=0.01)) as db:
        with pytest.raises(ServerUnavailable, match="Bad Gateway"):
            await db.transport.call("GET", "x")
    assert len(server.requests) > 2


async def test_errors_have_code_and_request_id():
    body = {"status": 2, "code": "operation_not_found", "message": "No such operation."}
    server = ScriptedTransport(httpx.Response(404, json=body, headers={"X-Request-Id": "abc"}))
    async with db_of(server) as db:
        with pytest.raises(NotFound, match=r"operation_not_found.*abc") as caught:
            await db.statement("x").logs()
    error = caught.value
    assert (error.status, error.code, error.message, error.request_id) == (
        404,
        "operation_not_found",
        "No such operation.",
        "abc",
    )


async def test_foreign_program_at_address_raises_clear_error():
    async with db_of(ScriptedTransport(httpx.Response(200, text="<html>Welcome</html>"))) as db:
        with pytest.raises(ApiError, match="not JSON"):
            await db.transport.call("GET", "x")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7), ("0.5", 0.5), ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("soon", None), ("", None), ("-1", None)],
)
def test_retry_after_is_number_or_date(value: str, seconds: float | None):
    assert retry_after({"Retry-After": value}) == seconds


def test_pause_doubles_with_consecutive_failures_and_resets_on_success():
    now = 0.0
    rest = Rest(60, 200, lambda: now)
    lengths: list[float] = []
    for _ in range(4):
        rest.failed()
        rest.failed()  # another failure at the same time
        began = now
        while rest.is_on:
            now += 1
        lengths.append(now - began)
    assert lengths == [60, 120, 200, 200]
    rest.failed()
    rest.worked()
    assert not rest.is_on
    rest.failed()
    now += 60
    assert not rest.is_on


class TestCredentials:
    async def test_token_function_is_called_when_server_refuses_last_token(self):
        given = iter(("old", "new", "unused"))

        def answer(request: httpx.Request) -> httpx.Response:
            return (
                DONE if request.headers["Authorization"] == "Bearer new" else httpx.Response(401, json={"detail": "no"})
            )

        async def token() -> str:
            return next(given)

        async with db_of(answer, token=token) as db:
            await db.transport.call("GET", "x")
            await db.transport.call("GET", "x")
        assert next(given) == "unused"

    async def test_refused_fixed_token_is_an_error(self):
        server = ScriptedTransport(
            httpx.Response(401, json={"detail": "Given token not valid", "code": "token_not_valid"})
        )
        async with db_of(server) as db:
            with pytest.raises(AuthenticationError, match="not valid"):
                await db.transport.call("GET", "x")
        assert len(server.requests) == 1

    async def test_password_login_refreshes_logs_in_again_and_logs_out(self):
        calls: list[str] = []
        valid = {"access-1"}

        def answer(request: httpx.Request) -> httpx.Response:
            path = request.url.path.removeprefix("/api/v1/")
            calls.append(path)
            if path == "token/auth":
                valid.add("access-3")
                number = 1 + 2 * (calls.count("token/auth") > 1)
                return httpx.Response(200, json={"refresh": "r", "access": f"access-{number}"})
            if path == "token/refresh":
                if calls.count("token/refresh") > 1:
                    return httpx.Response(401, json={"detail": "revoked", "code": "token_not_valid"})
                valid.add("access-2")
                return httpx.Response(200, json={"access": "access-2"})
            if path == "token/revoke":
                return httpx.Response(200, json={})
            known = request.headers["Authorization"].removeprefix("Bearer ") in valid
            return DONE if known else httpx.Response(401, json={"detail": "expired"})

        async with db_of(answer, token=None, user="ana", password=SECRET) as db:
            await db.transport.call("GET", "a")
            valid.clear()
            await db.transport.call("GET", "b")
            valid.clear()
            await db.transport.call("GET", "c")
        assert calls == [
            *("token/auth", "a"),
            *("b", "token/refresh", "b"),
            *("c", "token/refresh", "token/auth", "c"),
            "token/revoke",
        ]

    async def test_wrong_password_is_tried_once(self):
        server = ScriptedTransport(
            httpx.Response(401, json={"detail": "No active account found with the given credentials"})
        )
        async with db_of(server, token=None, user="ana", password="wrong") as db:
            with pytest.raises(AuthenticationError, match="No active account"):
                await db.transport.call("GET", "a")
        assert len(server.requests) == 1

    def test_environment_provides_address_and_credentials(self, monkeypatch: pytest.MonkeyPatch):
        for name in ("URL", "TOKEN", "USER", "PASSWORD"):
            monkeypatch.delenv(f"QUERYSERVER_{name}", raising=False)
        with pytest.raises(ConfigurationError, match="QUERYSERVER_URL"):
            connect()
        with pytest.raises(ConfigurationError, match="QUERYSERVER_TOKEN"):
            connect("http://server")
        with pytest.raises(ConfigurationError, match="either"):
            connect("http://server", token="t", user="ana", password="p")
        with pytest.raises(ConfigurationError, match="credentials"):
            connect("http://ana:p@server", token="t")
        monkeypatch.setenv("QUERYSERVER_URL", "http://server/api/v1/")
        monkeypatch.setenv("QUERYSERVER_USER", "ana")
        monkeypatch.setenv("QUERYSERVER_PASSWORD", "p")
        assert connect().transport.url == "http://server"
        assert type(credentials_of(None, None, None)).__name__ == "Password"
        monkeypatch.setenv("QUERYSERVER_TOKEN", "t")
        assert type(credentials_of(None, None, None)).__name__ == "FixedToken"

    @pytest.mark.parametrize("token", ["two\nlines", "tök", " ", 7])
    async def test_token_invalid_in_headers_raises_error_without_revealing_it(self, token: Any):
        with pytest.raises(ConfigurationError, match="token") as caught:
            async with db_of(ScriptedTransport(DONE), token=token if isinstance(token, str) else lambda: token) as db:
                await db.transport.call("GET", "x")
        assert str(token).strip() not in str(caught.value) or not str(token).strip()

    @pytest.mark.parametrize(
        "make",
        [
            lambda: connect("nowhere", token=SECRET, headers={"X-Proxy": SECRET}),
            lambda: connect("http://server", token=SECRET, password=SECRET),
            lambda: connect_sync("nowhere", user="ana", password=SECRET, headers={"X-Proxy": SECRET}),
            lambda: dbapi.connect("nowhere", token=SECRET, engine_login=("ana", SECRET), headers={"X-Proxy": SECRET}),
            connect,
        ],
    )
    def test_failed_connect_traceback_contains_no_secret(
        self, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("QUERYSERVER_PASSWORD", SECRET)
        monkeypatch.setenv("QUERYSERVER_URL", "http://server")
        for name in ("TOKEN", "USER"):
            monkeypatch.delenv(f"QUERYSERVER_{name}", raising=False)
        with pytest.raises(QueryserverError) as caught:
            make()
        assert SECRET not in shown(caught.value)

    @in_thread
    def test_refused_session_traceback_contains_no_secret(self):
        answer = httpx.Response(200, json={"status": 401, "code": "credentials_required", "message": "Wrong."})
        server = ScriptedTransport(httpx.ReadError, answer)
        options = {"headers": {"X-Proxy": SECRET}, "retries": QUICK, "http_transport": httpx.MockTransport(server)}
        with dbapi.connect(
            "http://server", "mysql", token=SECRET, engine_login=("ana", SECRET), **options
        ) as connection:
            with pytest.raises(dbapi.OperationalError, match="Wrong") as caught:
                connection.execute("SELECT 1")
            assert [request.headers["X-Proxy"] for request in server.requests] == [SECRET] * 2
            assert SECRET.encode() in server.requests[-1].content
            assert SECRET not in shown(caught.value)
            assert SECRET not in repr(vars(servers))

    def test_secrets_within_sent_data_are_sent(self):
        sent = {"settings": [{"name": "password", "value": Secret(SECRET)}], "x": 7}
        assert _revealed(sent) == {"settings": [{"name": "password", "value": SECRET}], "x": 7}
        assert SECRET not in repr(sent) + str(Secret(SECRET)) + f"{Secret(SECRET)}"

    @pytest.mark.parametrize("given", [{"token": SECRET}, {"token": None, "user": "ana", "password": SECRET}])
    async def test_texts_and_tracebacks_with_variables_contain_no_secret(self, given: dict[str, Any]):
        async with db_of(ScriptedTransport(httpx.ReadError), retries=Retries(total_s=0), **given) as db:
            texts = [repr(db), repr(db.transport), repr(vars(db.transport))]
            with pytest.raises(ConnectionLost) as caught:
                await db.query("duckdb", "SELECT 1")
            texts.append(shown(caught.value))
        assert not [text for text in texts if SECRET in text]
