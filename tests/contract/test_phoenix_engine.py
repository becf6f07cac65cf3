"""The engine contract for Phoenix."""

import asyncio
import datetime as dt
from collections.abc import AsyncGenerator, Mapping
from decimal import Decimal
from typing import Any, ClassVar

import pytest
from tests.cases import every_case
from tests.contract.engine_contract import NO_OPTIONS, USER, EngineContract
from tests.contract.engine_driving import ended, operation, run, started
from tests.contract.engine_facts import Change, EngineFacts, SessionState, TypeFact
from tests.contract.engine_parameters import TEXTS
from tests.contract.phoenix_basis import PhoenixBasis
from tests.engines.servers import HttpAddress
from tests.ports import free_port

from queryserver.engines.catalog_queries import escaped_literal
from queryserver.engines.phoenix.connection import PhoenixAddress
from queryserver.engines.phoenix.engine import PhoenixEngine
from queryserver.engines.phoenix.protocol import PARAMETERS
from queryserver.engines.protocol import Engine, OperationState, SessionOptions
from queryserver.errors.statements import StatementRejected
from queryserver.formats.arrow import ResultType
from queryserver.sql.parameters import ParameterType, read_parameters

NUMBERS = 1024
"""The number of rows in the integer table; a self-join yields longer sequences in the same order."""

_TYPED = (
    ("BOOLEAN", "TRUE", ResultType.BOOLEAN, True),
    ("TINYINT", "-128", ResultType.TINYINT, -128),
    ("UNSIGNED_TINYINT", "127", ResultType.TINYINT, 127),
    ("SMALLINT", "-32768", ResultType.SMALLINT, -32768),
    ("UNSIGNED_SMALLINT", "32767", ResultType.SMALLINT, 32767),
    ("INTEGER", "-2147483648", ResultType.INT, -2147483648),
    ("UNSIGNED_INT", "2147483647", ResultType.INT, 2147483647),
    ("BIGINT", "-9223372036854775807", ResultType.BIGINT, -9223372036854775807),
    ("UNSIGNED_LONG", "9223372036854775807", ResultType.BIGINT, 9223372036854775807),
    ("FLOAT", "1.5", ResultType.FLOAT, 1.5),
    ("UNSIGNED_FLOAT", "1.5", ResultType.FLOAT, 1.5),
    ("DOUBLE", "1E300", ResultType.DOUBLE, 1e300),
    ("UNSIGNED_DOUBLE", "1E300", ResultType.DOUBLE, 1e300),
    ("DECIMAL", "12.5", ResultType.DECIMAL, "12.5"),
    ("DECIMAL(10,2)", "12.5", ResultType.DECIMAL, Decimal("12.50")),
    ("DECIMAL(38,0)", "9" * 38, ResultType.DECIMAL, Decimal("9" * 38)),
    ("CHAR(5)", "'ab'", ResultType.CHAR, "ab"),
    ("VARCHAR(20)", "'Zoë 🐘'", ResultType.VARCHAR, "Zoë 🐘"),
    ("VARCHAR", "'NULL'", ResultType.STRING, "NULL"),
    ("DATE", "TO_DATE('2024-01-31 10:20:30')", ResultType.DATE, dt.date(2024, 1, 31)),
    ("TIME", "TO_TIME('2024-01-31 10:20:30.5')", ResultType.STRING, dt.time(10, 20, 30, 500_000)),
    ("TIMESTAMP", "TO_TIMESTAMP('2024-01-31 10:20:30.123')", ResultType.TIMESTAMP,
     dt.datetime(2024, 1, 31, 10, 20, 30, 123_000)),  # noqa: DTZ001 a naive timestamp
    ("UNSIGNED_DATE", "CAST(TO_DATE('2024-01-31') AS UNSIGNED_DATE)", ResultType.DATE, dt.date(2024, 1, 31)),
    ("UNSIGNED_TIME", "CAST(TO_TIME('2024-01-31 10:20:30') AS UNSIGNED_TIME)", ResultType.STRING, dt.time(10, 20, 30)),
    ("UNSIGNED_TIMESTAMP", "CAST(TO_TIMESTAMP('2024-01-31 10:20:30') AS UNSIGNED_TIMESTAMP)", ResultType.TIMESTAMP,
     dt.datetime(2024, 1, 31, 10, 20, 30)),  # noqa: DTZ001 a naive timestamp
    ("BINARY(3)", "X'010203'", ResultType.BINARY, b"\1\2\3"),
    ("VARBINARY", "X'00FF'", ResultType.BINARY, b"\0\xff"),
    ("INTEGER ARRAY", "ARRAY[1,2]", ResultType.ARRAY, [1, 2]),
    ("VARCHAR(20) ARRAY", "ARRAY['a',NULL,'b']", ResultType.ARRAY, ["a", None, "b"]),
    ("DECIMAL(10,2) ARRAY", "ARRAY[1.5,2]", ResultType.ARRAY, [Decimal("1.50"), Decimal("2.00")]),
    ("DOUBLE ARRAY", "ARRAY[1.5,2.5]", ResultType.ARRAY, [1.5, 2.5]),
    ("BOOLEAN ARRAY", "ARRAY[TRUE,FALSE]", ResultType.ARRAY, [True, False]),
    ("DATE ARRAY", "ARRAY[TO_DATE('2024-01-31')]", ResultType.ARRAY, [dt.date(2024, 1, 31)]),
    ("TIMESTAMP ARRAY", "ARRAY[TO_TIMESTAMP('2024-01-31 10:20:30')]", ResultType.ARRAY,
     [dt.datetime(2024, 1, 31, 10, 20, 30)]),  # noqa: DTZ001 a naive timestamp
    ("CHAR(3) ARRAY", "ARRAY['abc']", ResultType.ARRAY, ["abc"]),
    ("BINARY(3) ARRAY", "ARRAY[X'010203']", ResultType.ARRAY, [b"\1\2\3"]),
)  # fmt: skip

TYPES = tuple(
    TypeFact(native, f"SELECT c{number} FROM qs.typed ORDER BY id", kind, native, value)
    for number, (native, _, kind, value) in enumerate(_TYPED)
)


def _rows(count: int) -> str:
    if count <= NUMBERS:
        return f"SELECT n FROM qs.n ORDER BY n LIMIT {count}"
    if count <= NUMBERS**2:
        return f"SELECT a.n * {NUMBERS} + b.n AS n FROM qs.n AS a, qs.n AS b LIMIT {count}"
    return (
        f"SELECT CAST(a.n AS BIGINT) * {NUMBERS**2} + b.n * {NUMBERS} + c.n AS n"
        f" FROM qs.n AS a, qs.n AS b, qs.n AS c LIMIT {count}"
    )


def _wide_rows(count: int, width: int) -> str:
    tables = "qs.n" if count <= NUMBERS else "qs.n AS a, qs.n AS b"
    return f"SELECT LPAD('x', {width}, 'x') AS t FROM {tables} LIMIT {count}"


_DECLARED = {
    ParameterType.DECIMAL: "DECIMAL(38,6)",
    ParameterType.BINARY: "VARBINARY",
    ParameterType.ARRAY: "VARCHAR ARRAY",
}

FACTS = EngineFacts(
    # Because of the LIMIT, the Query Server itself counts the rows that the region server sends.
    slow_sql="SELECT COUNT(*) FROM (SELECT a.n FROM qs.n AS a, qs.n AS b, qs.n AS c LIMIT 20000000)",
    rows_sql=_rows,
    wide_rows_sql=_wide_rows,
    text_sql=lambda text: "SELECT " + escaped_literal(text) + " AS t",
    bad_table_sql="SELECT * FROM no_such_table",
    bad_table_message="ERROR 1012 (42M03): Table undefined. tableName=NO_SUCH_TABLE",
    misspelled_at=(2, 9),
    types=TYPES,
    changes=(
        Change("CREATE TABLE {t} (a INTEGER PRIMARY KEY)"),
        Change("UPSERT INTO {t} VALUES (1)", rows=1),
        Change("UPSERT INTO {t} SELECT n FROM qs.n WHERE n BETWEEN 2 AND 1000", rows=999),
        Change("DELETE FROM {t} WHERE a > 10", rows=990),
        Change("DROP TABLE {t}"),
    ),
    session_state=(SessionState("schema", "USE qs", "SELECT COUNT(*) FROM n", NUMBERS),),
    unknown_database="no_such_schema",
    known_database="qs",
    duplicate_columns_sql='SELECT 1 AS "a", 2 AS "a"',
    no_rows_sql='SELECT 1 AS "a", \'x\' AS "b" FROM qs.n WHERE n < 0',
    fails_midway_sql=f"SELECT 1 / (150000 - a.n * {NUMBERS} - b.n) FROM qs.n AS a, qs.n AS b",
    # Phoenix cannot infer the type of a placeholder that forms a whole column, as in `SELECT ?`.
    parameter_sql=lambda kind: f"UPSERT INTO qs.given (id, p_{kind}) VALUES (1, ?)",
    parameter_read_sql=lambda kind: f"SELECT p_{kind} FROM qs.given WHERE id = 1",
    number_sql=lambda expression: f"SELECT n FROM qs.n WHERE n = {expression}",
    driver_words=("org.apache", "java.", "Exception", "\tat ", "127.0.0.1", "httpx"),
)


async def make_tables(url: str) -> None:
    """Create the schema QS with three tables.

    N holds the integers 0 to 1023, TYPED holds a value and a NULL of every type, and GIVEN has a column for each
    parameter type.
    """
    engine = PhoenixEngine(PhoenixAddress(url))
    columns = ", ".join(f"c{number} {native}" for number, (native, *_) in enumerate(_TYPED))
    values = ", ".join(literal for _, literal, *_ in _TYPED)
    given = ", ".join(f"p_{kind} {_DECLARED.get(kind, kind.upper())}" for kind in PARAMETERS.types)
    try:
        async with engine.session(USER, NO_OPTIONS) as session:
            for sql in (
                "CREATE SCHEMA IF NOT EXISTS qs",
                "CREATE TABLE IF NOT EXISTS qs.n (n INTEGER PRIMARY KEY)",
                "UPSERT INTO qs.n VALUES (0)",
                *(f"UPSERT INTO qs.n SELECT n + {2**power} FROM qs.n WHERE n < {2**power}" for power in range(10)),
                f"CREATE TABLE IF NOT EXISTS qs.typed (id INTEGER PRIMARY KEY, {columns})",
                f"UPSERT INTO qs.typed VALUES (1, {values})",
                "UPSERT INTO qs.typed (id) VALUES (2)",
                f"CREATE TABLE IF NOT EXISTS qs.given (id INTEGER PRIMARY KEY, {given})",
            ):
                await run(session, sql)
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def phoenix(phoenix_server: HttpAddress) -> HttpAddress:
    """Yield a Phoenix that has these tests' tables."""
    asyncio.run(make_tables(phoenix_server.url))
    return phoenix_server


@pytest.mark.engine("phoenix")
@pytest.mark.timeout(400)
class TestPhoenix(PhoenixBasis, EngineContract):
    """The engine contract on the Query Server, with HBase in one process."""

    facts = FACTS
    tested_with = "Phoenix 5.2.1 on HBase 2.5, Query Server 6.0.0"
    known_failures: ClassVar[Mapping[str, pytest.MarkDecorator]] = {
        "test_hbase_stops_aggregating_for_a_canceled_statement": pytest.mark.never(
            "HBase cannot interrupt an aggregation that is running on a region server"
        )
    }

    @pytest.fixture
    async def engine(self, phoenix: HttpAddress) -> AsyncGenerator[Engine]:
        engine = PhoenixEngine(PhoenixAddress(phoenix.url))
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self) -> AsyncGenerator[Engine]:
        engine = PhoenixEngine(PhoenixAddress(f"http://127.0.0.1:{free_port()}"))
        yield engine
        await engine.close()

    @pytest.fixture
    async def hbase_at_rest(self) -> AsyncGenerator[None]:
        """Wait until HBase runs no scan, before and after the test."""
        await self.no_scans(within_s=100)
        yield
        await self.no_scans(within_s=100)

    @pytest.mark.capability("Cancel reaches the engine")
    @pytest.mark.item(36)
    @pytest.mark.parametrize("after_s", [0, 0.003, 0.01, 0.02, 0.05, 0.1, 1])
    async def test_cancel_at_any_moment_stops_statement(self, engine: Engine, after_s: float) -> None:
        """Closing a statement before the server has started it would not stop it."""
        async with engine.session(USER, SessionOptions(database="qs")) as session:
            async with operation(session, self.facts.slow_sql) as handle:
                await asyncio.sleep(after_s)
                await session.cancel(handle)
                assert (await ended(session, handle)).state is OperationState.CANCELED
                await self.eventually_idle(engine)
            assert (await run(session, "SELECT COUNT(*) FROM n")).cell == NUMBERS

    @pytest.mark.capability("Cancel reaches the engine")
    @pytest.mark.item(36)
    @pytest.mark.usefixtures("hbase_at_rest")
    async def test_hbase_stops_scanning_for_abandoned_rows(self, engine: Engine) -> None:
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, self.facts.slow_sql) as handle:
            await started(session, handle)
            await session.cancel(handle)
        await self.no_scans(within_s=10)

    @pytest.mark.capability("Cancel reaches the engine")
    @pytest.mark.item(36)
    @pytest.mark.usefixtures("hbase_at_rest")
    async def test_hbase_stops_aggregating_for_a_canceled_statement(self, engine: Engine) -> None:
        """The Query Server stops at once; a region server finishes the call that it is executing."""
        sql = "SELECT COUNT(*) FROM qs.n AS a, qs.n AS b, qs.n AS c WHERE c.n < 100"
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, sql) as handle:
            await started(session, handle)
            await self.scanning(within_s=60)
            await session.cancel(handle)
        await self.no_scans(within_s=5)

    @pytest.mark.capability("Parameters")
    async def test_bound_arrays_are_correct_in_columns_of_their_type(self, engine: Engine) -> None:
        """The Query Server corrupts arrays bound to a column of another type, such as 64-bit elements in an INTEGER
        ARRAY.
        """
        given: tuple[tuple[str, list[Any], list[Any]], ...] = (
            ("INTEGER", [1, -2147483648], [1, -2147483648]),
            ("BIGINT", [7, 2**63 - 1, -(2**63)], [7, 2**63 - 1, -(2**63)]),
            ("DOUBLE", [1, 2.5, 1e300, -1e-5], [1.0, 2.5, 1e300, -1e-5]),
            ("DECIMAL(20,3)", [1, {"type": "decimal", "value": "-12.5"}], [Decimal("1.000"), Decimal("-12.500")]),
            ("VARCHAR", [*TEXTS, None, "z"], [*TEXTS, None, "z"]),
            ("VARCHAR", [None, "z"], [None, "z"]),
            ("BOOLEAN", [True, False], [True, False]),
            ("DATE", [{"type": "date", "value": "2024-02-29"}], [dt.date(2024, 2, 29)]),
            ("TIME", [{"type": "time", "value": "10:20:30.125"}], [dt.time(10, 20, 30, 125_000)]),
            (
                "TIMESTAMP",
                [{"type": "timestamp", "value": "2024-01-31 10:20:30.125"}],
                [dt.datetime(2024, 1, 31, 10, 20, 30, 125_000)],  # noqa: DTZ001 a naive timestamp
            ),
        )
        async with engine.session(USER, SessionOptions(database="qs")) as session:
            with every_case() as attempt:
                for declared, values, read in given:
                    with attempt(f"{declared} {values!r}"):
                        await run(session, "DROP TABLE IF EXISTS arrays")
                        await run(session, f"CREATE TABLE arrays (id BIGINT PRIMARY KEY, n BIGINT, a {declared} ARRAY)")
                        engine.capabilities.parameters.require(read_parameters([values]))
                        await run(session, self.bound("UPSERT INTO arrays VALUES (1, ?, ?)", 5, values))
                        assert (await run(session, "SELECT n, a FROM arrays")).rows == [(5, read)]
            any_of = self.bound("SELECT COUNT(*) FROM n WHERE n = ANY(?) AND n > ?", [1, 5, 7], 1)
            assert (await run(session, any_of)).cell == 2

    @pytest.mark.parametrize("change", ["UPSERT INTO kept VALUES (2)", "CREATE TABLE other (a INTEGER PRIMARY KEY)"])
    async def test_server_refuses_changes_in_read_only_mode(self, phoenix: HttpAddress, change: str):
        address = PhoenixAddress(phoenix.url)
        writing, reading = PhoenixEngine(address), PhoenixEngine(address, read_only=True)
        try:
            async with writing.session(USER, SessionOptions(database="qs")) as session:
                await run(session, "CREATE TABLE IF NOT EXISTS kept (a INTEGER PRIMARY KEY)")
            async with reading.session(USER, SessionOptions(database="qs")) as session:
                with pytest.raises(StatementRejected):
                    await run(session, change)
                assert (await run(session, "SELECT COUNT(*) FROM kept")).cell == 0
                async with operation(session, self.facts.slow_sql) as handle:
                    await started(session, handle)
                    await session.cancel(handle)
                with pytest.raises(StatementRejected):  # the server now sees a new connection
                    await run(session, change)
                assert (await run(session, "SELECT COUNT(*) FROM kept")).cell == 0
        finally:
            await writing.close()
            await reading.close()
