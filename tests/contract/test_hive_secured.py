"""Hive with TLS, password checks and doAs, and Hive without SASL, both configured through administrator settings."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager

import pytest
from tests.contract.built_engines import assert_tells_nothing, built, cell, refusal
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, read, run, started
from tests.contract.test_hive_engine import FACTS
from tests.engines.certificates import Authority
from tests.engines.hive_secured import PASSWORDS, SERVICE, SecuredHive
from tests.engines.servers import ServerAddress

from queryserver.engines.protocol import Credentials, Engine, OperationState, ResumableEngine, SessionOptions
from queryserver.errors.statements import CredentialsRequired, EngineUnavailable
from queryserver.identity.model import User

pytestmark = pytest.mark.engine("hive")

ANA = User(id=2, username="ana")
BOB = User(id=3, username="bob")
WHO = "SELECT concat(current_user(), '/', logged_in_user())"
"""Returns the user whose permissions apply, and the user to whom the session belongs."""
ROWS = 5_000
WIDE = 2_000
"""The number of characters per row. The whole result takes several TLS records and many reads."""


def secured(server: SecuredHive, **changes: str | bool) -> AbstractAsyncContextManager[Engine]:
    """Build an engine that logs in as the service and does not impersonate users."""
    settings: dict[str, str | int | bool] = {
        "server_host": "localhost",
        "server_port": server.port,
        "use_ssl": True,
        "ssl_ca": server.authority,
        "auth_mechanism": "LDAP",
        "username": SERVICE,
        "password": PASSWORDS[SERVICE],
        "impersonation_enabled": False,
    }
    return built("hiveserver2", dialect="hive", **(settings | changes))


def nosasl(server: ServerAddress, **changes: str | bool) -> AbstractAsyncContextManager[Engine]:
    """Build an engine for a server that accepts any username without a login."""
    settings = {"server_host": server.host, "server_port": server.port, "auth_mechanism": "NOSASL"}
    return built("hiveserver2", dialect="hive", **(settings | changes))


def with_password(password: str) -> SessionOptions:
    """Return session options with the username `ana` and the password."""
    return SessionOptions(credentials=Credentials("ana", password))


@pytest.fixture(params=["TLS", "NOSASL"])
async def engine(
    request: pytest.FixtureRequest, secured_hive_server: SecuredHive, nosasl_hive_server: ServerAddress
) -> AsyncGenerator[Engine]:
    """Yield an engine for each of the two servers in turn."""
    either = secured(secured_hive_server) if request.param == "TLS" else nosasl(nosasl_hive_server)
    async with either as engine:
        yield engine


async def test_megabytes_of_rows_arrive_whole(engine: Engine) -> None:
    async with engine.session(USER, NO_OPTIONS) as session:
        wide = f"concat(rpad('', {WIDE}, 'x'), CAST(i AS string))"
        rows = f"SELECT {wide} FROM (SELECT posexplode(split(space({ROWS - 1}), ' ')) AS (i, x)) t"
        answer = await run(session, rows)
        assert [text.lstrip("x") for (text,) in answer.rows] == [str(number) for number in range(ROWS)]
        assert {text.count("x") for (text,) in answer.rows} == {WIDE}


async def test_statement_is_canceled(engine: Engine) -> None:
    async with engine.session(USER, NO_OPTIONS) as session:
        handle = await session.submit(FACTS.slow_sql)
        await started(session, handle)
        await session.cancel(handle)
        assert (await ended(session, handle)).state is OperationState.CANCELED


async def test_another_process_resumes_statement(engine: Engine) -> None:
    assert isinstance(engine, ResumableEngine)
    async with engine.session(USER, NO_OPTIONS) as session:
        handle = await session.submit(FACTS.rows_sql(ROWS))
        token = session.resume_token(handle)
        session.detach()
    async with engine.reattach(USER, NO_OPTIONS, token, rows_read=0) as (again, found):
        await ended(again, found)
        assert len(await read(again, found)) == ROWS


async def test_certificate_of_unknown_authority_is_refused(secured_hive_server: SecuredHive) -> None:
    for authorities in (Authority().certificate, ""):
        async with secured(secured_hive_server, ssl_ca=authorities) as engine:
            error = await refusal(engine)
            assert isinstance(error, EngineUnavailable)
            assert error.message.startswith("Could not connect to the engine: certificate verification failed")
            assert_tells_nothing(error, PASSWORDS[SERVICE])


async def test_certificate_for_another_host_is_refused(secured_hive_server: SecuredHive) -> None:
    async with secured(secured_hive_server, server_host="127.0.0.1") as engine:
        error = await refusal(engine)
        assert isinstance(error, EngineUnavailable)
        assert "certificate verification failed (IP address mismatch" in error.message
        assert_tells_nothing(error, PASSWORDS[SERVICE])


async def test_unverified_certificate_is_accepted_if_configured(secured_hive_server: SecuredHive) -> None:
    async with secured(secured_hive_server, server_host="127.0.0.1", ssl_ca="", ssl_validate=False) as engine:
        assert await cell(engine, WHO) == f"{SERVICE}/{SERVICE}"


async def test_tls_server_refuses_plain_connection(secured_hive_server: SecuredHive) -> None:
    async with secured(secured_hive_server, use_ssl=False) as engine:
        error = await refusal(engine)
        assert isinstance(error, EngineUnavailable)
        assert_tells_nothing(error, PASSWORDS[SERVICE])


async def test_plain_server_refuses_tls_connection(nosasl_hive_server: ServerAddress) -> None:
    async with nosasl(nosasl_hive_server, use_ssl=True) as engine:
        assert isinstance(await refusal(engine), EngineUnavailable)


async def test_login_mechanism_must_match_server(
    secured_hive_server: SecuredHive, nosasl_hive_server: ServerAddress
) -> None:
    async with (
        nosasl(nosasl_hive_server, auth_mechanism="NONE") as with_sasl,
        secured(secured_hive_server, auth_mechanism="NOSASL") as without,
    ):
        for engine in (with_sasl, without):
            error = await refusal(engine)
            assert isinstance(error, EngineUnavailable)
            assert_tells_nothing(error, PASSWORDS[SERVICE])


async def test_callers_log_in_with_their_own_password(secured_hive_server: SecuredHive) -> None:
    async with secured(secured_hive_server, username="", password="") as engine:
        assert await cell(engine, WHO, user=BOB, options=with_password(PASSWORDS["ana"])) == "ana/ana"
        assert isinstance(await refusal(engine, user=ANA), CredentialsRequired)


async def test_wrong_password_is_refused_even_after_correct_one(secured_hive_server: SecuredHive) -> None:
    async with secured(secured_hive_server, username="", password="") as engine:
        for _ in range(2):
            for wrong in ("wrong", f"{PASSWORDS['ana']} ", ""):
                error = await refusal(engine, user=ANA, options=with_password(wrong))
                assert isinstance(error, CredentialsRequired)
                assert error.message == "Error validating the login"
            assert await cell(engine, WHO, user=ANA, options=with_password(PASSWORDS["ana"])) == "ana/ana"


async def test_ping_fails_with_wrong_service_password(secured_hive_server: SecuredHive) -> None:
    async with secured(secured_hive_server, password="wrong") as engine:
        with pytest.raises(CredentialsRequired, match="Error validating the login"):
            await engine.ping()
    async with secured(secured_hive_server) as engine:
        await engine.ping()


async def test_service_impersonates_its_callers(secured_hive_server: SecuredHive) -> None:
    """The sessions of all users share one connection, one after another."""
    async with secured(secured_hive_server, impersonation_enabled=True) as engine:
        for user in (BOB, ANA, BOB):
            assert await cell(engine, WHO, user=user) == f"{user.username}/{user.username}"
        own = with_password(PASSWORDS["ana"])
        assert await cell(engine, WHO, user=BOB, options=own) == "ana/ana"


async def test_login_without_impersonation_rights_is_refused(secured_hive_server: SecuredHive) -> None:
    async with secured(
        secured_hive_server, username="ana", password=PASSWORDS["ana"], impersonation_enabled=True
    ) as engine:
        error = await refusal(engine, user=BOB)
        assert isinstance(error, CredentialsRequired)
        assert error.message == "Failed to validate proxy privilege of ana for bob"
        assert await cell(engine, WHO, user=ANA) == "ana/ana"


async def test_without_sasl_session_belongs_to_the_claimed_user(nosasl_hive_server: ServerAddress) -> None:
    async with nosasl(nosasl_hive_server) as engine:
        assert await cell(engine, "SELECT logged_in_user()", user=BOB) == "bob"
    async with nosasl(nosasl_hive_server, username=SERVICE) as engine:
        assert await cell(engine, "SELECT logged_in_user()", user=BOB) == "bob"
    async with nosasl(nosasl_hive_server, username="ana") as engine:
        assert isinstance(await refusal(engine, user=BOB), CredentialsRequired)
