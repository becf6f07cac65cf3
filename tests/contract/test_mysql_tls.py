"""MariaDB behind TLS: what each `ssl_mode` of a connector's url accepts and refuses (MySQL's words)."""

import asyncio
from collections.abc import Callable, Generator

import pytest
from tests.contract.built_engines import assert_tells_nothing, built, refusal
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, operation, rows_of, run, started
from tests.engines.certificates import Authority
from tests.engines.mariadb import mariadb_server
from tests.engines.servers import ServerAddress

from queryserver.domain.errors import CredentialsRequired, EngineUnavailable
from queryserver.interfaces.engine import OperationState

pytestmark = pytest.mark.engine("mariadb")

CIPHER = "SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'SSL_CIPHER'"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def server(authority: Authority) -> Generator[ServerAddress]:
    """Its certificate is for `localhost`, not for 127.0.0.1; `private` may come by TLS only."""
    with mariadb_server(authority.certify("localhost")) as address:
        yield address


@pytest.fixture
def trusted(authority: Authority, trust: Callable[[str], None]) -> None:
    """The authority is one of the system's: urls name no files."""
    trust(authority.certificate)


def url_of(server: ServerAddress, ssl_mode: str, host: str = "localhost") -> str:
    """As `private`, whom the server lets in by TLS only."""
    return f"mysql://private:secret@{host}:{server.port}/users?ssl_mode={ssl_mode}"


@pytest.mark.parametrize(
    ("ssl_mode", "host"),
    [
        ("REQUIRED", "localhost"),
        ("REQUIRED", "127.0.0.1"),
        ("VERIFY_CA", "localhost"),
        ("VERIFY_CA", "127.0.0.1"),
        ("VERIFY_IDENTITY", "localhost"),
    ],
)
@pytest.mark.usefixtures("trusted")
async def test_statements_run_over_tls(server: ServerAddress, ssl_mode: str, host: str):
    async with built("sqlalchemy", url=url_of(server, ssl_mode, host)) as engine:
        await engine.ping()
        async with engine.session(USER, NO_OPTIONS) as session:
            assert str((await run(session, CIPHER)).cell).startswith("TLS_")
            rows = (await run(session, "SELECT CAST(seq AS signed) FROM seq_1_to_50000")).rows
            assert [number for (number,) in rows] == list(range(1, 50_001))


@pytest.mark.usefixtures("trusted")
async def test_rows_that_wait_for_a_slow_reader_come_whole_over_tls(server: ServerAddress):
    async with (
        built("sqlalchemy", url=url_of(server, "VERIFY_IDENTITY")) as engine,
        engine.session(USER, NO_OPTIONS) as session,
    ):
        async with operation(session, "SELECT seq, REPEAT('x', 1000) FROM seq_1_to_30000") as handle:
            await ended(session, handle)
            rows = list[tuple[int, str]]()
            async for batch in session.batches(handle):
                rows += rows_of(batch)
                await asyncio.sleep(0.01)
        assert rows == [(number, "x" * 1000) for number in range(1, 30_001)]
        assert (await run(session, "SELECT 1")).cell == 1


@pytest.mark.usefixtures("trusted")
async def test_a_statement_is_canceled_over_tls(server: ServerAddress):
    async with (
        built("sqlalchemy", url=url_of(server, "VERIFY_IDENTITY")) as engine,
        engine.session(USER, NO_OPTIONS) as session,
    ):
        handle = await session.submit("SELECT SLEEP(30)")
        await started(session, handle)
        await session.cancel(handle)
        assert (await ended(session, handle, within_s=5)).state is OperationState.CANCELED


@pytest.mark.parametrize("ssl_mode", ["VERIFY_CA", "VERIFY_IDENTITY"])
async def test_a_certificate_of_an_unknown_authority_is_refused(server: ServerAddress, ssl_mode: str):
    async with built("sqlalchemy", url=url_of(server, ssl_mode)) as engine:
        error = await refusal(engine)
        assert isinstance(error, EngineUnavailable)
        assert error.message.startswith("No connection to MySQL could be made: its certificate was not accepted (")
        assert "issuer certificate" in error.message
        assert_tells_nothing(error, "secret")
        with pytest.raises(EngineUnavailable, match="its certificate was not accepted"):
            await engine.ping()


@pytest.mark.usefixtures("trusted")
async def test_a_certificate_of_another_name_is_refused(server: ServerAddress):
    async with built("sqlalchemy", url=url_of(server, "VERIFY_IDENTITY", "127.0.0.1")) as engine:
        error = await refusal(engine)
        assert isinstance(error, EngineUnavailable)
        assert "its certificate was not accepted (IP address mismatch" in error.message
        assert_tells_nothing(error, "secret")


async def test_a_login_without_the_tls_that_the_server_wants_is_refused(server: ServerAddress):
    async with built("sqlalchemy", url=url_of(server, "DISABLED")) as engine:
        error = await refusal(engine)
        assert isinstance(error, CredentialsRequired)
        assert error.message == "Access denied for user 'private' (using password: YES)"


@pytest.mark.usefixtures("trusted")
async def test_a_wrong_password_over_tls_is_a_refused_login(server: ServerAddress):
    url = url_of(server, "VERIFY_IDENTITY").replace("secret", "wrong")
    async with built("sqlalchemy", url=url) as engine:
        error = await refusal(engine)
        assert isinstance(error, CredentialsRequired)
        assert error.message == "Access denied for user 'private' (using password: YES)"


@pytest.mark.parametrize("ssl_mode", ["REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"])
async def test_no_login_is_sent_to_a_server_without_tls_that_must_have_it(mariadb: ServerAddress, ssl_mode: str):
    url = f"mysql://{mariadb.user}:{mariadb.password}@localhost:{mariadb.port}/users?ssl_mode={ssl_mode}"
    async with built("sqlalchemy", url=url) as engine:
        error = await refusal(engine)
        assert isinstance(error, EngineUnavailable)
        assert error.message == "No connection to MySQL could be made: it offers no TLS."
