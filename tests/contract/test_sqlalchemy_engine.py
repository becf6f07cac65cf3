"""The engine contract for the generic SQLAlchemy engine, with PyMySQL and MariaDB as the example of a dialect."""

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import ClassVar

import pytest
import sqlalchemy as sa
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_contract import EngineContract
from tests.contract.engine_driving import run
from tests.contract.engine_facts import TypeFact
from tests.contract.engine_faults import FaultsContract
from tests.contract.mariadb_basis import MariadbBasis
from tests.contract.test_mysql_engine import FACTS as MARIADB_FACTS
from tests.engines.servers import ServerAddress

from queryserver.engines.protocol import Credentials, Engine, SessionOptions
from queryserver.engines.sqlalchemy.engine import SqlalchemyAddress, SqlalchemyEngine
from queryserver.errors.statements import EngineUnavailable, StatementRejected
from queryserver.formats.arrow import ResultType


def _typed(declared: str, literal: str, kind: ResultType, value: object, native_type: str = "") -> TypeFact:
    setup = (
        "SET SESSION sql_mode = ''",
        f"CREATE OR REPLACE TEMPORARY TABLE typed (n int, a {declared} NULL DEFAULT NULL)",
        f"INSERT INTO typed VALUES (1, {literal}), (2, NULL)",
    )
    return TypeFact(f"{declared} {literal}", "SELECT a FROM typed ORDER BY n", kind, native_type, value, setup)


TYPES = (
    _typed("tinyint", "-128", ResultType.TINYINT, -128, "tinyint"),
    _typed("smallint", "-32768", ResultType.SMALLINT, -32768, "smallint"),
    _typed("mediumint", "-8388608", ResultType.INT, -8388608, "mediumint"),
    _typed("int", "-2147483648", ResultType.INT, -2147483648, "int"),
    _typed("bigint", "9223372036854775807", ResultType.BIGINT, 9223372036854775807, "bigint"),
    _typed("year", "2024", ResultType.SMALLINT, 2024, "year"),
    _typed("float", "1.5", ResultType.FLOAT, 1.5, "float"),
    _typed("double", "1e300", ResultType.DOUBLE, 1e300, "double"),
    _typed("decimal(10,2)", "12.5", ResultType.DECIMAL, Decimal("12.50"), "decimal"),
    _typed("decimal(65,30)", "12.5", ResultType.DECIMAL, "12.5" + "0" * 29, "decimal"),
    _typed("varchar(20)", "'Zoë 🐘'", ResultType.STRING, "Zoë 🐘"),
    _typed("longtext", "'NULL'", ResultType.STRING, "NULL"),
    _typed("blob", "X'00FF'", ResultType.BINARY, b"\x00\xff"),
    _typed("date", "'2024-01-31'", ResultType.DATE, dt.date(2024, 1, 31), "date"),
    _typed("date", "'0000-00-00'", ResultType.DATE, "0000-00-00", "date"),
    _typed("time", "'-838:59:59'", ResultType.STRING, "-838:59:59", "time"),
    _typed("datetime", "'2024-01-31 10:20:30'", ResultType.TIMESTAMP, dt.datetime(2024, 1, 31, 10, 20, 30), "datetime"),  # noqa: DTZ001 a naive timestamp
)  # fmt: skip

FACTS = replace(
    MARIADB_FACTS,
    types=TYPES,
    takes_rows=False,
    driver_words=("pymysql", "sqlalchemy", "sqlalche.me", "127.0.0.1", "[SQL:", "(1146"),
)


def engine_on(server: ServerAddress, port: int | None = None, **options: bool) -> SqlalchemyEngine:
    """Return the adapter's engine; `port` may be the port of a proxy."""
    url = sa.URL.create("mysql+pymysql", server.user, server.password, server.host, port or server.port, "users")
    return SqlalchemyEngine(SqlalchemyAddress(url, connect_timeout_s=2), dialect="mysql", **options)


@pytest.mark.engine("mariadb")
class TestSqlalchemyMariadb(MariadbBasis, EngineContract):
    """The engine contract for PyMySQL, which is synchronous, buffers whole results by default, and cannot cancel
    statements.
    """

    facts = FACTS
    tested_with = "MariaDB 10.11 through PyMySQL"
    known_failures: ClassVar[Mapping[str, pytest.MarkDecorator]] = {
        "test_error_position_refers_to_the_text_with_markers": pytest.mark.never(
            "a driver may insert the values into the text, so error positions include them"
        )
    }
    engine_on = staticmethod(engine_on)

    async def test_server_refuses_changes_in_read_only_mode(self, mariadb: ServerAddress) -> None:
        engine = engine_on(mariadb, read_only=True)
        try:
            async with engine.session(USER, NO_OPTIONS) as session:
                await run(session, "/*! SET SESSION TRANSACTION READ WRITE */")
                with pytest.raises(StatementRejected, match="READ ONLY"):
                    await run(session, "CREATE TABLE other (a INTEGER)")
        finally:
            await engine.close()

    async def test_session_may_use_its_own_login(self, mariadb: ServerAddress) -> None:
        url = sa.URL.create("mysql+pymysql", host=mariadb.host, port=mariadb.port, database="users")
        engine = SqlalchemyEngine(SqlalchemyAddress(url, wants_credentials=True), dialect="mysql")
        login = SessionOptions(credentials=Credentials(mariadb.user, mariadb.password))
        try:
            async with engine.session(USER, login) as session:
                assert (await run(session, "SELECT current_user()")).cell == f"{mariadb.user}@%"
        finally:
            await engine.close()


@pytest.mark.engine("mariadb")
class TestSqlalchemyFaults(FaultsContract):
    """The broken-connection tests on the same engine."""

    facts = FACTS
    tested_with = "MariaDB 10.11 through PyMySQL"

    @pytest.fixture
    def server(self, mariadb: ServerAddress) -> tuple[str, int]:
        return mariadb.host, mariadb.port

    @pytest.fixture
    def engine_at(self, mariadb: ServerAddress) -> Callable[[int], Engine]:
        return lambda port: engine_on(mariadb, port)


async def test_missing_driver_is_reported_when_session_is_opened() -> None:
    engine = SqlalchemyEngine(SqlalchemyAddress(sa.URL.create("druid", host="localhost")), dialect="druid")
    with pytest.raises(EngineUnavailable, match="The driver druid is not installed on this server"):
        await engine.ping()
    await engine.close()
