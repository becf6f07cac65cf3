"""PostgreSQL with TLS: what each `sslmode` in a connector URL accepts and refuses, as defined by libpq."""

from collections.abc import AsyncGenerator
from urllib.parse import quote

import pytest
from tests.contract.built_engines import built, cell
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import run
from tests.contract.tls_contract import TlsContract
from tests.engines.certificates import Authority
from tests.engines.postgresql import system_server
from tests.engines.servers import ServerAddress
from tests.fixtures.database import execute

IS_ENCRYPTED = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


@pytest.mark.engine("postgresql15")
class TestPostgresqlTls(TlsContract):
    engine_name = "PostgreSQL"
    without_tls, strictest = "disable", "verify-full"
    slow_sql = "SELECT pg_sleep(30)"
    password = "of private"
    refused_without_tls = 'no pg_hba.conf entry for user "private", database "postgres", no encryption'
    refused_password = 'password authentication failed for user "private"'

    def url(self, server: ServerAddress, mode: str, host: str = "localhost", password: str = "") -> str:
        login = f"private:{quote(password or self.password)}"
        return f"postgresql://{login}@{host}:{server.port}/postgres?sslmode={mode}"

    @pytest.fixture(scope="class")
    @classmethod
    async def server(cls, authority: Authority) -> AsyncGenerator[ServerAddress]:
        with system_server(authority.certify("localhost")) as address:
            await execute(_dsn(address), f"CREATE ROLE private LOGIN PASSWORD '{cls.password}'")
            yield address

    @pytest.fixture
    def plain_server(self, release15: ServerAddress) -> ServerAddress:
        return release15

    @pytest.fixture(params=["verify-ca", "verify-full"])
    def verifying(self, request: pytest.FixtureRequest) -> str:
        return request.param

    @pytest.fixture(params=["require", "verify-ca", "verify-full"])
    def requiring(self, request: pytest.FixtureRequest) -> str:
        return request.param

    @pytest.mark.parametrize(
        ("mode", "host"),
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
    async def test_statements_run_over_tls(self, server: ServerAddress, mode: str, host: str) -> None:
        async with built("sqlalchemy", url=self.url(server, mode, host)) as engine:
            await engine.ping()
            async with engine.session(USER, NO_OPTIONS) as session:
                assert (await run(session, IS_ENCRYPTED)).cell is True
                (column,) = (await run(session, "SELECT 'v'::varchar(20)")).columns
                assert column.native_type == "varchar(20)"
                rows = (await run(session, "SELECT generate_series(1, 50000) AS n")).rows
                assert [number for (number,) in rows] == list(range(1, 50_001))

    async def test_preferred_tls_falls_back_to_plain_server(self, plain_server: ServerAddress) -> None:
        async with built("sqlalchemy", url=f"{_dsn(plain_server)}?sslmode=prefer") as engine:
            assert await cell(engine, IS_ENCRYPTED) is False


def _dsn(server: ServerAddress) -> str:
    return f"postgresql://{server.user}:{server.password}@127.0.0.1:{server.port}/postgres"
