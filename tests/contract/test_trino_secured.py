"""Trino with HTTPS and with password and token logins, configured through administrator settings."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import pytest
from tests.contract.built_engines import assert_tells_nothing, built, cell, refusal
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, failure, read, run, started
from tests.engines.certificates import Authority
from tests.engines.trino_secured import PASSWORDS, SERVICE, SecuredAddress, new_signing_key

from queryserver.engines.protocol import (
    CatalogEngine,
    Credentials,
    OperationState,
    ResumableEngine,
    ResumableSession,
    SessionOptions,
)
from queryserver.errors.statements import CredentialsRequired, EngineForbidden, EngineUnavailable
from queryserver.identity.model import User

pytestmark = pytest.mark.engine("trino")

ANA = User(id=2, username="ana")
ROOT = User(id=3, username="root")
ROWS = 60_000
SLOW = "SELECT count(*) FROM tpch.sf1000.lineitem WHERE comment LIKE '%no such words%'"


def settings_of(server: SecuredAddress, **changes: str | bool) -> dict[str, str | bool]:
    """Return settings with the service's password login."""
    return {
        "url": server.url,
        "catalog": "memory",
        "schema": "default",
        "auth_mechanism": "BASIC",
        "username": SERVICE,
        "password": PASSWORDS[SERVICE],
        "ssl_ca": server.authority,
        **changes,
    }


def by_token(server: SecuredAddress) -> dict[str, str | bool]:
    """Return settings with which each user logs in with a separate token."""
    return settings_of(server, auth_mechanism="JWT", username="", password="")


def with_password(password: str) -> SessionOptions:
    """Return session options with the username `ana` and the password."""
    return SessionOptions(credentials=Credentials("ana", password))


async def test_rows_arrive_page_by_page_over_https(secured_trino_server: SecuredAddress):
    async with (
        built("trino", **settings_of(secured_trino_server)) as engine,
        engine.session(USER, NO_OPTIONS) as session,
    ):
        answer = await run(session, f"SELECT sequential_number FROM TABLE(sequence(1, {ROWS}))")
        assert [number for (number,) in answer.rows] == list(range(1, ROWS + 1))
        table = await run(session, "CREATE TABLE secured AS SELECT 7 AS a")
        assert table.status.state is OperationState.FINISHED
        assert (await run(session, "SELECT a FROM secured")).cell == 7
        await run(session, "DROP TABLE secured")


async def test_statement_is_canceled_over_https(secured_trino_server: SecuredAddress):
    async with (
        built("trino", **settings_of(secured_trino_server)) as engine,
        engine.session(USER, NO_OPTIONS) as session,
    ):
        handle = await session.submit(SLOW)
        await started(session, handle)
        await session.cancel(handle)
        assert (await ended(session, handle)).state is OperationState.CANCELED
        running = f"SELECT count(*) FROM system.runtime.queries WHERE state = 'RUNNING' AND query = '{_quoted(SLOW)}'"
        async with asyncio.timeout(5):
            while (await run(session, running)).cell:  # noqa: ASYNC110 the engine sends no event
                await asyncio.sleep(0.05)


async def test_another_process_resumes_statement_over_https(secured_trino_server: SecuredAddress):
    async with built("trino", **settings_of(secured_trino_server)) as engine:
        assert isinstance(engine, ResumableEngine)
        async with engine.session(USER, NO_OPTIONS) as session:
            assert isinstance(session, ResumableSession)
            handle = await session.submit(f"SELECT sequential_number FROM TABLE(sequence(1, {ROWS}))")
            token = session.resume_token(handle)
            session.detach()
        assert_no_secret_in(token)
        async with engine.reattach(USER, NO_OPTIONS, token, rows_read=0) as (again, found):
            await ended(again, found)
            assert len(await read(again, found)) == ROWS


async def test_url_with_password_implies_https_and_system_authorities(
    secured_trino_server: SecuredAddress, trust: Callable[[str], None]
):
    trust(secured_trino_server.authority)
    password = PASSWORDS[SERVICE].replace(" ", "%20")
    url = f"trino://{SERVICE}:{password}@localhost:{secured_trino_server.port}/tpch/tiny"
    async with built("sqlalchemy", url=url) as engine:
        assert await cell(engine, "SELECT count(*) FROM nation") == 25


async def test_certificate_of_unknown_authority_is_refused(secured_trino_server: SecuredAddress):
    for authorities in (Authority().certificate, ""):
        async with built("trino", **settings_of(secured_trino_server, ssl_ca=authorities)) as engine:
            error = await refusal(engine)
            assert isinstance(error, EngineUnavailable)
            assert error.message.startswith("Could not connect to Trino: certificate verification failed (")
            assert "issuer certificate" in error.message
            assert_tells_nothing(error, PASSWORDS[SERVICE])


async def test_certificate_for_another_host_is_refused(secured_trino_server: SecuredAddress):
    elsewhere = f"https://127.0.0.1:{secured_trino_server.port}"
    async with built("trino", **settings_of(secured_trino_server, url=elsewhere)) as engine:
        error = await refusal(engine)
        assert isinstance(error, EngineUnavailable)
        assert "certificate verification failed (IP address mismatch" in error.message
        assert_tells_nothing(error, PASSWORDS[SERVICE])


async def test_unverified_certificate_is_accepted_if_configured(secured_trino_server: SecuredAddress):
    url = f"https://127.0.0.1:{secured_trino_server.port}"
    async with built("trino", **settings_of(secured_trino_server, url=url, ssl_ca="", ssl_validate=False)) as engine:
        assert await cell(engine, "SELECT current_user") == SERVICE


async def test_server_without_tls_is_reported(secured_trino_server: SecuredAddress, plain_port: int):
    url = f"https://localhost:{plain_port}"
    async with built("trino", **settings_of(secured_trino_server, url=url)) as engine:
        error = await refusal(engine)
        assert isinstance(error, EngineUnavailable)
        assert error.message == "Could not connect to Trino: the server does not support TLS."
        assert_tells_nothing(error, PASSWORDS[SERVICE])


@pytest.fixture
async def plain_port() -> AsyncGenerator[int]:
    """Yield the port of a server that does not support TLS."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_url_without_tls_cannot_reach_tls_server(secured_trino_server: SecuredAddress):
    url = f"http://localhost:{secured_trino_server.port}"
    async with built("trino", **settings_of(secured_trino_server, url=url)) as engine:
        error = await refusal(engine)
        assert isinstance(error, EngineUnavailable)
        assert_tells_nothing(error, PASSWORDS[SERVICE])


async def test_caller_logs_in_with_any_password_characters(secured_trino_server: SecuredAddress):
    async with built("trino", **settings_of(secured_trino_server, username="${USER}", password="")) as engine:
        options = with_password(PASSWORDS["ana"])
        assert await cell(engine, "SELECT current_user", user=ANA, options=options) == "ana"


@pytest.mark.parametrize(
    ("password", "message"),
    [
        ("wrong", "Access Denied: Invalid credentials"),
        (f"{PASSWORDS['ana']} ", "Access Denied: Invalid credentials"),
        ("", "Malformed credentials: password is empty"),
    ],
)
async def test_wrong_password_is_refused_before_any_statement(
    secured_trino_server: SecuredAddress, password: str, message: str
):
    async with built("trino", **settings_of(secured_trino_server, username="${USER}", password="")) as engine:
        error = await refusal(engine, user=ANA, options=with_password(password))
        assert isinstance(error, CredentialsRequired)
        assert error.message == message


async def test_ping_fails_only_with_wrong_password(secured_trino_server: SecuredAddress):
    async with built("trino", **settings_of(secured_trino_server, password="wrong")) as engine:
        with pytest.raises(CredentialsRequired, match="Invalid credentials"):
            await engine.ping()
    for acts_for_users in (False, True):
        async with built("trino", **settings_of(secured_trino_server, has_impersonation=acts_for_users)) as engine:
            await engine.ping()


async def test_missing_login_is_refused(secured_trino_server: SecuredAddress):
    async with built("trino", **settings_of(secured_trino_server, auth_mechanism="NONE", password="")) as engine:
        assert isinstance(await refusal(engine), CredentialsRequired)


async def test_caller_logs_in_with_token(secured_trino_server: SecuredAddress):
    options = SessionOptions(external_token=secured_trino_server.token("ana"))
    async with built("trino", **by_token(secured_trino_server)) as engine:
        assert await cell(engine, "SELECT current_user", user=ANA, options=options) == "ana"


async def test_invalid_token_is_refused_and_not_revealed(secured_trino_server: SecuredAddress):
    expired = secured_trino_server.token("ana", for_s=-60)
    forged = replace(secured_trino_server, signing_key=new_signing_key().private).token("ana")
    async with built("trino", **by_token(secured_trino_server)) as engine:
        for token, reason in ((expired, "expired"), (forged, "signature"), ("nonsense", "Invalid")):
            error = await refusal(engine, user=ANA, options=SessionOptions(external_token=token))
            assert isinstance(error, CredentialsRequired)
            assert reason in error.message
            assert_tells_nothing(error, token, token.partition(".")[0] if "." in token else token)
        assert isinstance(await refusal(engine, user=ANA), CredentialsRequired)


async def test_token_is_valid_only_for_its_own_user(secured_trino_server: SecuredAddress):
    options = SessionOptions(external_token=secured_trino_server.token("ana"))
    async with built("trino", **by_token(secured_trino_server)) as engine, engine.session(USER, options) as session:
        error = await failure(session, "SELECT current_user")
        assert error.message == "Access Denied: User ana cannot impersonate user ada"


async def test_service_logs_in_and_statements_run_as_caller(secured_trino_server: SecuredAddress):
    async with built("trino", **settings_of(secured_trino_server, has_impersonation=True)) as engine:
        assert await cell(engine, "SELECT current_user", user=ANA) == "ana"
        assert await cell(engine, "SELECT current_user") == USER.username


async def test_statements_run_as_service_without_impersonation(secured_trino_server: SecuredAddress):
    async with built("trino", **settings_of(secured_trino_server)) as engine:
        assert await cell(engine, "SELECT current_user", user=ANA) == SERVICE


async def test_refused_impersonation_is_reported_with_the_message_of_trino(secured_trino_server: SecuredAddress):
    denied = "Access Denied: User service cannot impersonate user root"
    async with built("trino", **settings_of(secured_trino_server, has_impersonation=True)) as engine:
        async with engine.session(ROOT, NO_OPTIONS) as session:
            assert (await failure(session, "SELECT 1")).message == denied
        assert isinstance(engine, CatalogEngine)
        async with engine.catalog(ROOT, NO_OPTIONS) as catalog:
            with pytest.raises(EngineForbidden) as raised:
                await catalog.tables("tpch.tiny")
            assert raised.value.message == denied


async def test_session_switches_user_by_statement(secured_trino_server: SecuredAddress):
    async with (
        built("trino", **settings_of(secured_trino_server)) as engine,
        engine.session(USER, NO_OPTIONS) as session,
    ):
        await run(session, "SET SESSION AUTHORIZATION ana")
        assert (await run(session, "SELECT current_user")).cell == "ana"
        await run(session, "RESET SESSION AUTHORIZATION")
        assert (await run(session, "SELECT current_user")).cell == SERVICE
        error = await failure(session, "SET SESSION AUTHORIZATION root")
        assert error.message == "Access Denied: User service cannot impersonate user root"


def assert_no_secret_in(text: str) -> None:
    """Assert that the string stored for a running statement contains no credentials."""
    for secret in (*PASSWORDS.values(), "Basic ", "Bearer "):
        assert secret not in text


def _quoted(sql: str) -> str:
    return sql.replace("'", "''")
