"""Engines to which a user can log in only with the token of the API call (Contract platform 3.9, last part)."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.driving import Api, Caller, open_api, verdict
from tests.api.token.logins import tampered
from tests.api.transport import AppTransport
from tests.engines.scripted_hs2.server import Fault, ScriptedServer
from tests.engines.scripted_trino import Reply, column, error, page, scripted_trino
from tests.fakes.issuer import AUDIENCE, ISSUER, Issuer

from queryserver.errors.base import ConfigurationError
from queryserver.identity.callers import Callers
from queryserver.identity.model import AuthRequest, ExternalToken, User
from queryserver.main import create_app
from queryserver.platform.database import open_database
from queryserver.platform.logs import AUDIT_LOGGER
from queryserver.platform.settings.sections import DatabaseSettings
from queryserver.platform.settings.tree import Settings
from queryserver.wiring import open_services

# Logs mask tokens of this form. Tests also search for PLANTED, the middle part of the token.
PLANTED = "cGxhbnRlZC1leHRlcm5hbC10b2tlbg"
TOKEN = f"eyJhbGciOiJSUzI1NiJ9.{PLANTED}.c2ln"
REFUSED = (403, -1, "engine_jwt_required")
_AN_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class ByTestHeader:
    """Authenticates the service's own tokens as usual. A test header simulates an external token with which the call
    was made.
    """

    own: Callers

    async def authenticate(self, request: AuthRequest) -> User:
        user = await self.own.authenticate(request)
        token = request.headers.get("x-test-external-token")
        expires_at = int(request.headers.get("x-test-expires-at") or time.time() + _AN_HOUR_S)
        return replace(user, external_token=ExternalToken(token, expires_at)) if token else user


@dataclass(frozen=True, slots=True)
class TokenForwarding:
    """An application whose only engine takes the caller's external token, and callers for one user. One of them has an
    external token, the other the service's own token.
    """

    api: Api
    with_token: Caller
    own_token: Caller

    async def stored(self) -> list[bytes]:
        """Return the encrypted tokens that the service database stores for the user."""
        rows = await self.api.database.fetch(
            """select sealed_token from statements join users on users.id = user_id
            where username = $1 and sealed_token is not null""",
            self.own_token.username,
        )
        return [row["sealed_token"] for row in rows]

    async def statements(self) -> int:
        """Return the number of statements that are recorded for the user."""
        return await self.api.database.value(
            "select count(*) from statements join users on users.id = user_id where username = $1",
            self.own_token.username,
        )


def passing_settings(tmp_path: Path, dsn: str, interpreter: dict[str, Any], *, on: bool, **auth: Any) -> Settings:
    return Settings.model_validate(
        {
            "desktop": {
                "data_dir": tmp_path / "data",
                "secret_key": "k7Qm2vX9pLw4Rt8Zb3Nc6Yf1Hs5Jd0Ge",
                "shutdown_grace_s": 0,
                "database": {"url": dsn, "pool_max": 5, "connect_timeout_s": 60},
                "use_thrift_http_jwt": on,
                "auth": auth,
            },
            "editor": {"cancel_wait_s": 30},
            "notebook": {"interpreters": {"guarded": interpreter}},
        }
    )


@asynccontextmanager
async def passing(settings: Settings) -> AsyncIterator[Api]:
    async with (
        open_database(
            settings.desktop.database.dsn or "", DatabaseSettings(pool_max=2, connect_timeout_s=60)
        ) as database,
        open_services(settings) as opened,
    ):
        accounts = replace(opened.accounts, authenticator=ByTestHeader(opened.accounts.authenticator))
        services = replace(opened, accounts=accounts)
        app = create_app(settings, services=services)
        async with httpx.AsyncClient(transport=AppTransport(app), base_url="http://test", timeout=60) as http:
            yield Api(app, services, database, {}, http)


async def caller(api: Api) -> TokenForwarding:
    own = await api.user("ana")
    return TokenForwarding(api, Caller(api, own.username, {**own.headers, "x-test-external-token": TOKEN}), own)


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token that an issuer has signed, two callers for its user, and the engine that receives the token."""

    server: ScriptedServer
    token: str
    with_token: Caller
    own_token: Caller


def bearing(user: Caller, token: str) -> Caller:
    return Caller(user.api, user.username, {"Authorization": f"Bearer {token}"})


def hiveserver2(server: ScriptedServer) -> dict[str, Any]:
    return {
        "interface": "hiveserver2",
        "dialect": "impala",
        "options": {
            "server_host": "127.0.0.1",
            "server_port": server.port,
            "transport_mode": "http",
            "allow_insecure_http": True,
        },
    }


@pytest.fixture(scope="module")
async def listening() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer("http").serving() as scripted:
        yield scripted


@pytest.fixture(scope="module")
async def application(
    listening: ScriptedServer, tmp_path_factory: pytest.TempPathFactory, module_database_dsn: str
) -> AsyncIterator[Api]:
    directory = tmp_path_factory.mktemp("passing")
    async with passing(passing_settings(directory, module_database_dsn, hiveserver2(listening), on=True)) as api:
        yield api


@pytest.fixture
async def setting(application: Api) -> TokenForwarding:
    return await caller(application)


@pytest.fixture
def server(listening: ScriptedServer) -> ScriptedServer:
    """The scripted server, from which the logins and faults of earlier tests have been removed."""
    listening.passwords.logins.clear()
    listening.faults.clear()
    listening.let_go.clear()
    listening.held = 0
    return listening


@pytest.mark.platform(46)
async def test_engine_receives_exactly_the_callers_token(setting: TokenForwarding, server: ScriptedServer):
    body = await setting.with_token.run("guarded", "SELECT 7 AS n")
    assert (await setting.with_token.page(body["history_uuid"]))["data"] == [[7]]
    assert set(server.passwords.logins) == {f"Bearer {TOKEN}"}


@pytest.fixture
async def issued(tmp_path: Path, database_dsn: str) -> AsyncIterator[IssuedToken]:
    """A user of one test, with an issued token. The application has its own issuer and engine."""
    issuer = Issuer()
    async with issuer.serving() as url, ScriptedServer("http").serving() as server:
        jwt = {"key_server_url": url, "issuer": ISSUER, "audience": AUDIENCE, "timeout_s": 60}
        settings = passing_settings(tmp_path, database_dsn, hiveserver2(server), on=True, jwt=jwt)
        async with open_api(settings) as api:
            own = await api.user("ana")
            token = issuer.token(sub=own.username)
            yield IssuedToken(server, token, bearing(own, token), own)


@pytest.mark.platform(46)
async def test_issuer_token_reaches_the_engine_unchanged(issued: IssuedToken):
    body = await issued.with_token.run("guarded", "SELECT 7 AS n")
    assert (await issued.with_token.page(body["history_uuid"]))["data"] == [[7]]
    assert set(issued.server.passwords.logins) == {f"Bearer {issued.token}"}


@pytest.mark.platform(46)
async def test_own_token_is_refused_and_never_sent_to_the_engine(issued: IssuedToken):
    assert await issued.own_token.refused("editor/execute/guarded", statement="SELECT 7 AS n") == REFUSED
    assert issued.server.passwords.logins == []


@pytest.mark.platform(46)
@pytest.mark.security("T14")
async def test_token_is_stored_sealed_only_until_the_statement_ends(setting: TokenForwarding, server: ScriptedServer):
    server.faults["ExecuteStatement"] = Fault.HOLD
    operation = (await setting.with_token.execute("guarded", "SELECT 1"))["history_uuid"]
    await server.until(lambda: server.held == 1)
    [sealed] = await setting.stored()
    assert TOKEN.encode() not in sealed
    assert PLANTED.encode() not in sealed
    server.let_go.set()
    await setting.with_token.ended(operation)
    assert await setting.stored() == []


@pytest.mark.platform(46)
@pytest.mark.parametrize("ending", ["cancel_statement", "close_statement"])
async def test_token_is_deleted_when_the_statement_is_stopped(setting: TokenForwarding, ending: str):
    operation = (await setting.with_token.execute("guarded", "SELECT sleep(60000)"))["history_uuid"]
    await setting.with_token.running(operation)
    assert len(await setting.stored()) == 1
    await setting.with_token.on(operation, ending)
    await setting.with_token.ended(operation)
    assert await setting.stored() == []


@pytest.mark.platform(46)
async def test_own_token_is_refused_before_anything_is_recorded(setting: TokenForwarding, server: ScriptedServer):
    ana = setting.own_token
    calls = {
        "editor/execute/guarded": {"statement": "SELECT 1"},
        "editor/explain/guarded": {"statement": "SELECT 1"},
        "editor/create_session": {"session": json.dumps({"type": "guarded"})},
        "editor/autocomplete": {"dialect": "guarded"},
        "editor/autocomplete/default/t": {"dialect": "guarded"},
        "editor/sample/default/t": {"dialect": "guarded"},
        "editor/describe/default/t": {"dialect": "guarded"},
        "guarded/analyze/default/t": {},
    }
    verdicts = {path: verdict(await ana.post(path, **fields)) for path, fields in calls.items()}
    assert verdicts == dict.fromkeys(calls, REFUSED)
    assert await setting.statements() == 0
    # Sessions of earlier tests may still be closing. Therefore an earlier login may have been added.
    assert set(server.passwords.logins) <= {f"Bearer {TOKEN}"}


@pytest.mark.platform(46)
async def test_metadata_and_sessions_use_the_token_of_their_call(setting: TokenForwarding, server: ScriptedServer):
    ana = setting.with_token
    await ana.run("guarded", "CREATE TABLE shelf (a INT)")
    server.passwords.logins.clear()
    await ana.post_ok("editor/autocomplete", dialect="guarded", refresh="true")
    await ana.post_ok("editor/sample/default/shelf", dialect="guarded")
    await ana.post_ok("editor/explain/guarded", statement="SELECT a FROM shelf")
    session = (await ana.post_ok("editor/create_session", session=json.dumps({"type": "guarded"})))["session"]
    assert (await ana.run("guarded", "SELECT 1", session_id=session["id"]))["status"] == 0
    await ana.post_ok("editor/close_session", session=json.dumps({"id": session["id"]}))
    assert len(server.passwords.logins) > 10
    assert set(server.passwords.logins) == {f"Bearer {TOKEN}"}
    assert await setting.stored() == []


@pytest.mark.platform(46)
@pytest.mark.security("T29")
async def test_token_never_appears_in_logs_or_responses(issued, caplog, capsys):
    """The service writes its own log lines to stdout or stderr. Audit events and lines of libraries are captured as
    records.
    """
    caplog.set_level(logging.DEBUG)
    audit = logging.getLogger(AUDIT_LOGGER)
    audit.addHandler(caplog.handler)
    ana = issued.with_token
    try:
        bodies = [
            await ana.run("guarded", "SELECT 1"),
            await ana.run("guarded", "SELECT no_such_thing"),
            await ana.history(),
        ]
        bodies.append(await ana.on(bodies[0]["history_uuid"], "get_logs"))
        bodies.append((await bearing(ana, tampered(issued.token)).get("editor/get_history")).json())
    finally:
        audit.removeHandler(caplog.handler)
    logged = "".join(capsys.readouterr()) + "".join(
        f"{record.getMessage()} {record.__dict__}" for record in caplog.records
    )
    assert "external token rejected" in logged
    assert "statement.start" in logged
    # The first character of the signature is not searched for, because the tampered token has another one.
    planted = (*issued.token.split(".")[:2], issued.token.rpartition(".")[2][1:])
    for name, text in (("answers", json.dumps(bodies)), ("log", logged)):
        assert not [part for part in planted if part in text], name


@pytest.mark.platform(46)
async def test_expired_token_is_deleted_and_not_used(setting: TokenForwarding, server: ScriptedServer):
    old = {"x-test-external-token": f"{TOKEN}b2xk", "x-test-expires-at": str(int(time.time()) - 1)}
    late = Caller(setting.api, "ana", {**setting.with_token.headers, **old})
    body = await late.run("guarded", "SELECT 1")
    assert (body["status"], body["code"]) == (401, "credentials_required")
    assert f"Bearer {TOKEN}b2xk" not in server.passwords.logins

    operation = (await setting.with_token.execute("guarded", "SELECT sleep(60000)"))["history_uuid"]
    await setting.with_token.running(operation)
    await setting.api.database.execute(
        "update statements set token_expires_at = now() - interval '1 second' where sealed_token is not null"
    )
    await setting.api.services.statements.retention.expire()
    assert await setting.stored() == []
    await setting.with_token.on(operation, "cancel_statement")
    await setting.with_token.ended(operation)


async def session_that_ends_soon(setting: TokenForwarding) -> tuple[dict[str, Any], int]:
    """Open a session whose token expires soon; return the session and the expiry time. On a busy machine, a longer
    lifetime is tried.
    """
    for life_s in (2, 8, 32):
        expires_at = int(time.time()) + life_s
        soon = Caller(setting.api, "ana", {**setting.with_token.headers, "x-test-expires-at": str(expires_at)})
        answer = (await soon.post("editor/create_session", session=json.dumps({"type": "guarded"}))).json()
        if answer["status"] == 0:
            return answer["session"], expires_at
    raise AssertionError(answer)


async def test_session_accepts_no_statements_after_its_token_expired(setting: TokenForwarding):
    session, expires_at = await session_that_ends_soon(setting)
    await asyncio.sleep(max(0.0, expires_at - time.time()) + 0.2)
    body = await setting.with_token.run("guarded", "SELECT 1", session_id=session["id"])
    assert (body["status"], body["code"]) == (1, "session_lost")


async def test_no_token_is_passed_on_without_the_setting(tmp_path: Path, database_dsn: str):
    async with ScriptedServer("http").serving() as server:
        interpreter = hiveserver2(server)
        interpreter["options"]["auth_mechanism"] = "JWT"
        async with passing(passing_settings(tmp_path, database_dsn, interpreter, on=False)) as api:
            ana = (await caller(api)).with_token
            assert await ana.refused("editor/execute/guarded", statement="SELECT 1") == REFUSED
        assert server.passwords.logins == []


@pytest.mark.platform(46)
async def test_plain_http_requires_the_connectors_permission(server, tmp_path, database_dsn):
    interpreter = hiveserver2(server)
    interpreter["options"]["allow_insecure_http"] = False
    with pytest.raises(ConfigurationError, match="use_ssl"):
        async with passing(passing_settings(tmp_path, database_dsn, interpreter, on=True)):
            pass


@pytest.mark.platform(46)
async def test_trino_receives_the_token(tmp_path: Path, database_dsn: str):
    pages = [page(1), page(rows=[[7]], columns=(column("n", "bigint"),), state="FINISHED")]
    async with scripted_trino(*pages) as coordinator:
        interpreter = {"interface": "trino", "options": {"url": coordinator.url, "auth_mechanism": "JWT"}}
        settings = passing_settings(tmp_path, database_dsn, interpreter | {"dialect": "trino"}, on=True)
        async with passing(settings) as api:
            ready = await caller(api)
            assert await ready.own_token.refused("editor/execute/guarded", statement="SELECT 7") == REFUSED
            assert coordinator.requests == []
            body = await ready.with_token.run("guarded", "SELECT 7 AS n")
            assert (await ready.with_token.page(body["history_uuid"]))["data"] == [[7]]
            assert await ready.stored() == []
        assert {request.headers.get("authorization") for request in coordinator.requests} == {f"Bearer {TOKEN}"}


@pytest.mark.platform(46)
@pytest.mark.security("T29")
async def test_token_repeated_by_an_engine_is_masked(setting: TokenForwarding):
    """Only the engine's message is checked, because the statement is the caller's own text."""
    body = await setting.with_token.run("guarded", f"SELECT error('{TOKEN}')")
    logs = await setting.with_token.on(body["history_uuid"], "get_logs")
    assert body["status"] != 0
    assert "***" in body["message"]
    assert PLANTED not in body["message"] + json.dumps(logs)


@pytest.mark.platform(46)
@pytest.mark.security("T29")
@pytest.mark.parametrize(
    "answer", [page(error=error(f"Invalid token: {TOKEN}")), Reply(f"Bearer {TOKEN} is not good".encode(), 401)]
)
async def test_token_repeated_by_a_coordinator_is_masked(tmp_path, database_dsn, answer):
    async with scripted_trino(answer) as coordinator:
        options = {"url": coordinator.url, "auth_mechanism": "JWT"}
        interpreter = {"interface": "trino", "dialect": "trino", "options": options}
        async with passing(passing_settings(tmp_path, database_dsn, interpreter, on=True)) as api:
            body = await (await caller(api)).with_token.run("guarded", "SELECT 7 AS n")
    assert "***" in body["message"]
    assert PLANTED not in json.dumps(body)
