"""PostgreSQL behind TLS: what each `sslmode` of a connector's url accepts and refuses (libpq's words)."""

from collections.abc import AsyncGenerator, Callable, Generator

import pytest
from tests.contract.built_engines import assert_tells_nothing, built, cell, refusal
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, run, started
from tests.engines.certificates import Authority
from tests.engines.postgresql import system_server
from tests.engines.servers import ServerAddress
from tests.fixtures.database import execute

from queryserver.domain.errors import CredentialsRequired, EngineUnavailable
from queryserver.interfaces.engine import OperationState

pytestmark = pytest.mark.engine("postgresql15")

IS_ENCRYPTED = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
PASSWORD = "of%20private"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
async def server(authority: Authority) -> AsyncGenerator[ServerAddress]:
    """Its certificate is for `localhost`, not for 127.0.0.1; `private` may come by TLS only."""
    with system_server(authority.certify("localhost")) as address:
        dsn = f"postgresql://{address.user}:{address.password}@127.0.0.1:{address.port}/postgres"
        await execute(dsn, "CREATE ROLE private LOGIN PASSWORD 'of private'")
        yield address


@pytest.fixture
def trusted(authority: Authority, trust: Callable[[str], None]) -> None:
    """The authority is one of the system's: urls name no files."""
    trust(authority.certificate)


def url_of(server: ServerAddress, sslmode: str, host: str = "localhost") -> str:
    """As `private`, whom the server lets in by TLS only."""
    return f"postgresql://private:{PASSWORD}@{host}:{server.port}/postgres?sslmode={sslmode}"


@pytest.mark.parametrize(
    ("sslmode", "host"),
    [
        ("allow", "localhost"),
        ("prefer", "localhost"),
        ("require", "localhost"),
        ("require", "127.0.0.1"),
        ("verify-ca", "localhost"),
        ("verify-ca", "127.0.0.1"),
        ("verify-full", "localhost"),
    ],
)
@pytest.mark.usefixtures("trusted")
async def test_statements_run_over_tls(server: ServerAddress, sslmode: str, host: str):
    async with built("sqlalchemy", url=url_of(server, sslmode, host)) as engine:
        await engine.ping()
        async with engine.session(USER, NO_OPTIONS) as session:
            assert (await run(session, IS_ENCRYPTED)).cell is True
            (column,) = (await run(session, "SELECT 'v'::varchar(20)")).columns
            assert column.native_type == "varchar(20)"
            rows = (await run(session, "SELECT generate_series(1, 50000) AS n")).rows
            assert [number for (number,) in rows] == list(range(1, 50_001))


@pytest.mark.usefixtures("trusted")
async def test_a_statement_is_canceled_over_tls(server: ServerAddress):
    async with (
        built("sqlalchemy", url=url_of(server, "verify-full")) as engine,
        engine.session(USER, NO_OPTIONS) as session,
    ):
        handle = await session.submit("SELECT pg_sleep(30)")
        await started(session, handle)
        await session.cancel(handle)
        assert (await ended(session, handle, within_s=5)).state is OperationState.CANCELED


@pytest.mark.parametrize("sslmode", ["verify-ca", "verify-full"])
async def test_a_certificate_of_an_unknown_authority_is_refused(server: ServerAddress, sslmode: str):
    async with built("sqlalchemy", url=url_of(server, sslmode)) as engine:
        error = await refusal(engine)
        assert isinstance(error, EngineUnavailable)
        told = "No connection to PostgreSQL could be made: its certificate was not accepted ("
        assert error.message.startswith(told)
        assert "issuer certificate" in error.message
        assert_tells_nothing(error, "of private", PASSWORD)
        with pytest.raises(EngineUnavailable, match="its certificate was not accepted"):
            await engine.ping()


@pytest.mark.usefixtures("trusted")
async def test_a_certificate_of_another_name_is_refused(server: ServerAddress):
    async with built("sqlalchemy", url=url_of(server, "verify-full", "127.0.0.1")) as engine:
        error = await refusal(engine)
        assert isinstance(error, EngineUnavailable)
        assert "its certificate was not accepted (IP address mismatch" in error.message
        assert_tells_nothing(error, "of private")


async def test_a_login_without_the_tls_that_the_server_wants_is_refused(server: ServerAddress):
    async with built("sqlalchemy", url=url_of(server, "disable")) as engine:
        error = await refusal(engine)
        assert isinstance(error, CredentialsRequired)
        assert error.message == 'no pg_hba.conf entry for user "private", database "postgres", no encryption'


@pytest.mark.usefixtures("trusted")
async def test_a_wrong_password_over_tls_is_a_refused_login(server: ServerAddress):
    url = url_of(server, "verify-full").replace(PASSWORD, "wrong")
    async with built("sqlalchemy", url=url) as engine:
        error = await refusal(engine)
        assert isinstance(error, CredentialsRequired)
        assert error.message == 'password authentication failed for user "private"'


@pytest.fixture(scope="module")
def plain_server() -> Generator[ServerAddress]:
    """It offers no TLS."""
    with system_server() as address:
        yield address


@pytest.mark.parametrize("sslmode", ["require", "verify-ca", "verify-full"])
async def test_no_login_is_sent_to_a_server_without_tls_that_must_have_it(plain_server: ServerAddress, sslmode: str):
    url = f"postgresql://admin:secret@localhost:{plain_server.port}/postgres"
    async with built("sqlalchemy", url=f"{url}?sslmode={sslmode}") as engine:
        error = await refusal(engine)
        assert isinstance(error, EngineUnavailable)
        assert error.message == "No connection to PostgreSQL could be made: it offers no TLS."
    async with built("sqlalchemy", url=f"{url}?sslmode=prefer") as engine:
        assert await cell(engine, IS_ENCRYPTED) is False
