"""MariaDB with TLS: what each `ssl_mode` in a connector URL accepts and refuses, as defined by MySQL."""

import asyncio
from collections.abc import Generator

import pytest
from tests.contract.built_engines import built
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, operation, rows_of, run
from tests.contract.tls_contract import TlsContract
from tests.engines.certificates import Authority
from tests.engines.mariadb import mariadb_server
from tests.engines.servers import ServerAddress

CIPHER = "SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'SSL_CIPHER'"


@pytest.mark.engine("mariadb")
class TestMysqlTls(TlsContract):
    engine_name = "MySQL"
    without_tls, strictest = "DISABLED", "VERIFY_IDENTITY"
    slow_sql = "SELECT SLEEP(30)"
    password = "secret"
    refused_without_tls = refused_password = "Access denied for user 'private' (using password: YES)"

    def url(self, server: ServerAddress, mode: str, host: str = "localhost", password: str = "") -> str:
        return f"mysql://private:{password or self.password}@{host}:{server.port}/users?ssl_mode={mode}"

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, authority: Authority) -> Generator[ServerAddress]:
        with mariadb_server(authority.certify("localhost")) as address:
            yield address

    @pytest.fixture
    def plain_server(self, mariadb: ServerAddress) -> ServerAddress:
        return mariadb

    @pytest.fixture(params=["VERIFY_CA", "VERIFY_IDENTITY"])
    def verifying(self, request: pytest.FixtureRequest) -> str:
        return request.param

    @pytest.fixture(params=["REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"])
    def requiring(self, request: pytest.FixtureRequest) -> str:
        return request.param

    @pytest.mark.parametrize(
        ("mode", "host"),
        [
            ("REQUIRED", "localhost"),
            ("REQUIRED", "127.0.0.1"),
            ("VERIFY_CA", "localhost"),
            ("VERIFY_CA", "127.0.0.1"),
            ("VERIFY_IDENTITY", "localhost"),
        ],
    )
    @pytest.mark.usefixtures("trusted")
    async def test_statements_run_over_tls(self, server: ServerAddress, mode: str, host: str) -> None:
        async with built("sqlalchemy", url=self.url(server, mode, host)) as engine:
            await engine.ping()
            async with engine.session(USER, NO_OPTIONS) as session:
                assert str((await run(session, CIPHER)).cell).startswith("TLS_")
                rows = (await run(session, "SELECT CAST(seq AS signed) FROM seq_1_to_50000")).rows
                assert [number for (number,) in rows] == list(range(1, 50_001))

    @pytest.mark.usefixtures("trusted")
    async def test_rows_for_slow_reader_arrive_complete_over_tls(self, server: ServerAddress) -> None:
        async with (
            built("sqlalchemy", url=self.url(server, self.strictest)) as engine,
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
