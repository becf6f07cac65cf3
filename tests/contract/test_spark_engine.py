"""The engine contract for Spark SQL through Spark's Thrift server."""

import datetime as dt
import time
from collections.abc import AsyncGenerator, Mapping
from decimal import Decimal
from typing import ClassVar

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER, EngineContract
from tests.contract.engine_driving import run, started
from tests.contract.engine_facts import Change, EngineFacts, SessionState, TypeFact
from tests.contract.engine_resuming import followed_to_its_end, resumable
from tests.contract.spark_basis import SparkBasis
from tests.engines.sparksql import SparkAddress
from tests.ports import free_port
from tests.refusals import raises_code

from queryserver.engines.catalog_queries import escaped_literal
from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.variants import SPARKSQL, Hs2Address, Limits, Member
from queryserver.engines.protocol import Engine
from queryserver.errors.statements import OutcomeUnknown
from queryserver.formats.arrow import ResultType as T


def typed(expression: str, kind: T, native: str, value: object) -> TypeFact:
    return TypeFact(expression, f"SELECT {expression} AS a UNION ALL SELECT NULL", kind, native, value)


TYPES = (
    typed("true", T.BOOLEAN, "boolean", True),
    typed("-128Y", T.TINYINT, "tinyint", -128),
    typed("-32768S", T.SMALLINT, "smallint", -32768),
    typed("2147483647", T.INT, "int", 2147483647),
    typed("9223372036854775807", T.BIGINT, "bigint", 9223372036854775807),
    typed("1.5F", T.FLOAT, "float", 1.5),
    typed("1e300", T.DOUBLE, "double", 1e300),
    typed("12.5BD", T.DECIMAL, "decimal(3,1)", Decimal("12.5")),
    typed("CAST(12.5 AS decimal(10,2))", T.DECIMAL, "decimal(10,2)", Decimal("12.50")),
    typed("CAST(7 AS decimal(38,0))", T.DECIMAL, "decimal(38,0)", Decimal(7)),
    typed("'Zoë 🐘'", T.STRING, "string", "Zoë 🐘"),
    typed("X'00FF'", T.BINARY, "binary", b"\x00\xff"),
    typed("DATE '2024-01-31'", T.DATE, "date", dt.date(2024, 1, 31)),
    typed("TIMESTAMP '2024-01-31 10:20:30'", T.TIMESTAMP, "timestamp", dt.datetime(2024, 1, 31, 10, 20, 30)),  # noqa: DTZ001 a naive timestamp
    typed("TIMESTAMP '2024-01-31 10:20:30.5'", T.TIMESTAMP, "timestamp", dt.datetime(2024, 1, 31, 10, 20, 30, 500000)),  # noqa: DTZ001 a naive timestamp
    typed("INTERVAL '1-2' YEAR TO MONTH", T.INTERVAL_YEAR_MONTH, "interval year to month", "1-2"),
    typed("INTERVAL '2 3:4:5' DAY TO SECOND", T.INTERVAL_DAY_TIME, "interval day to second", "2 03:04:05.000000000"),
    typed("array(1, NULL)", T.ARRAY, "array", "[1,null]"),
    typed("map('a', 1)", T.MAP, "map", '{"a":1}'),
    typed("named_struct('x', 1, 'y', 'z')", T.STRUCT, "struct", '{"x":1,"y":"z"}'),
)

_ROWS_OF_A_PART = 100_000
_SMALL_PARTS = 20_000


def _range(rows: int, size: int) -> str:
    return f"range(0, {rows}, 1, {-(-rows // size)})"


FACTS = EngineFacts(
    # The query has a single partition, so that only one of the server's two cores is busy. The result is repartitioned
    # because the last step of a query runs only while its rows are read, when the query already counts as finished.
    slow_sql=(
        "SELECT sum(x) FROM (SELECT /*+ REPARTITION(2) */ count(*) AS x"
        " FROM range(0, 40000000000, 1, 1) WHERE id % 7 = 1 AND sqrt(id) > 5)"
    ),
    rows_sql=lambda rows: f"SELECT id AS n FROM {_range(rows, _ROWS_OF_A_PART)}",
    wide_rows_sql=lambda rows, size: (
        f"SELECT concat(repeat('x', {size - 10}), lpad(id, 10, ' ')) FROM {_range(rows, _SMALL_PARTS)}"
    ),
    text_sql=lambda text: f"SELECT {escaped_literal(text)}",
    bad_table_sql="SELECT * FROM no_such_table",
    bad_table_message="The table or view `no_such_table` cannot be found",
    misspelled_at=(2, 9),
    types=TYPES,
    changes=(
        Change("CREATE TABLE {t} (n int, s string)"),
        Change("INSERT INTO {t} VALUES (1, 'a'), (2, 'b')"),
        Change("SELECT * FROM {t}", has_result_set=True),
        Change("SELECT 'x' AS Result", has_result_set=True),
        Change("SELECT 'x' AS Result WHERE 1 = 0", has_result_set=True),
        Change("CREATE VIEW {t}_v AS SELECT * FROM {t}"),
        Change("DROP VIEW {t}_v"),
        Change("TRUNCATE TABLE {t}"),
        Change("DROP TABLE {t}"),
    ),
    session_state=(
        SessionState("temporary view", "CREATE TEMPORARY VIEW mine AS SELECT 5 AS a", "SELECT a FROM mine", 5),
        SessionState("zone", "SET spark.sql.session.timeZone=Asia/Tokyo", "SELECT current_timezone()", "Asia/Tokyo"),
    ),
    unknown_database="no_such_database",
    known_database="default",
    fails_midway_sql="SELECT IF(id < 150000, id, raise_error('midway')) FROM range(0, 200000, 1, 4)",
    driver_words=("org.apache", "java.", "Exception", "127.0.0.1", "\tat "),
)


def spark_engine(server: SparkAddress, *, port: int | None = None, limits: Limits | None = None) -> Hs2Engine:
    """Build an engine that makes Spark return rows as soon as it produces them."""
    address = Hs2Address(
        (Member(server.host, port or server.port),),
        session_conf={"spark.sql.thriftServer.incrementalCollect": "true"},
        limits=limits or Limits(),
    )
    return Hs2Engine(address, SPARKSQL)


@pytest.mark.engine("sparksql")
class TestSpark(SparkBasis, EngineContract):
    """The engine contract on Spark in one JVM with two cores."""

    tested_with = "Spark 3.5.9 Thrift server"
    facts = FACTS
    known_failures: ClassVar[Mapping[str, pytest.MarkDecorator]] = {}

    @pytest.fixture
    async def engine(self, spark_server: SparkAddress) -> AsyncGenerator[Engine]:
        engine = spark_engine(spark_server)
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self, spark_server: SparkAddress) -> AsyncGenerator[Engine]:
        engine = spark_engine(spark_server, port=free_port())
        yield engine
        await engine.close()

    @pytest.mark.item(25)
    async def test_statement_of_lost_client_has_unknown_outcome(self, engine: Engine) -> None:
        """Spark closes a session together with its connection, so the statement cannot be resumed."""
        async with engine.session(USER, NO_OPTIONS) as session:
            handle = await session.submit(self.facts.slow_sql)
            await started(session, handle)
            token = resumable(session).resume_token(handle)
            resumable(session).detach()
        await self.eventually_idle(engine)
        begun = time.monotonic()
        with pytest.raises(OutcomeUnknown, match=r"^Results have expired"):
            await followed_to_its_end(engine, token)
        assert time.monotonic() - begun < 30


@pytest.mark.engine("sparksql")
async def test_suddenly_wide_rows_are_read_and_cells_above_limit_refused(spark_server: SparkAddress) -> None:
    """In this configuration, Spark holds the complete result, so the rows can be read again in smaller batches."""
    width, count = 3_000_000, 520
    engine = Hs2Engine(Hs2Address((Member(spark_server.host, spark_server.port),)), SPARKSQL)
    async with engine.session(USER, NO_OPTIONS) as session:
        sql = f"SELECT IF(id < 500, 'x', repeat('y', {width})) AS t FROM range(0, {count}, 1, 1)"
        answer = await run(session, sql)
        assert [len(text) for (text,) in answer.rows] == [1] * 500 + [width] * (count - 500)
        with raises_code("cell_too_large", match=r"row 0 of column b .* 16777216 bytes"):
            await run(session, "SELECT 1 AS a, repeat('x', 60000000) AS b")
    await engine.close()
