"""The engine contract for Trino: a real coordinator with its memory and tpch connectors."""

import datetime as dt
from collections.abc import AsyncGenerator
from decimal import Decimal

import pytest
from tests.contract.engine_contract import EngineContract
from tests.contract.engine_facts import Change, EngineFacts, SessionState, TypeFact
from tests.contract.engine_resuming import ResumingContract
from tests.contract.trino_basis import TrinoBasis, address_of
from tests.engines.servers import HttpAddress
from tests.ports import free_port

from queryserver.engines.protocol import Engine
from queryserver.engines.trino.engine import TrinoEngine
from queryserver.engines.trino.protocol import TrinoAddress
from queryserver.formats.arrow import ResultType


def _typed(name: str, expression: str, kind: ResultType, native_type: str, value: object) -> TypeFact:
    sql = f"SELECT if(n = 1, {expression}) AS a FROM (VALUES 1, 2) v(n) ORDER BY n"
    return TypeFact(name, sql, kind, native_type, value)


TYPES = (
    _typed("boolean", "true", ResultType.BOOLEAN, "boolean", True),
    _typed("tinyint", "TINYINT '-7'", ResultType.TINYINT, "tinyint", -7),
    _typed("smallint", "SMALLINT '-7'", ResultType.SMALLINT, "smallint", -7),
    _typed("integer", "7", ResultType.INT, "integer", 7),
    _typed("bigint", "BIGINT '9223372036854775807'", ResultType.BIGINT, "bigint", 9223372036854775807),
    _typed("real", "REAL '1.5'", ResultType.FLOAT, "real", 1.5),
    _typed("real infinity", "CAST(-infinity() AS real)", ResultType.FLOAT, "real", float("-inf")),
    _typed("double", "1.5E0", ResultType.DOUBLE, "double", 1.5),
    _typed("double infinity", "infinity()", ResultType.DOUBLE, "double", float("inf")),
    _typed("decimal(10,2)", "CAST(12.5 AS decimal(10,2))", ResultType.DECIMAL, "decimal(10, 2)", Decimal("12.50")),
    _typed("decimal(38,10)", "CAST(-0.0000000001 AS decimal(38,10))", ResultType.DECIMAL, "decimal(38, 10)",
           Decimal("-0.0000000001")),
    _typed("varchar", "CAST('NULL' AS varchar)", ResultType.STRING, "varchar", "NULL"),
    _typed("varchar(20)", "CAST('v' AS varchar(20))", ResultType.VARCHAR, "varchar(20)", "v"),
    _typed("char(3)", "CAST('c' AS char(3))", ResultType.CHAR, "char(3)", "c  "),
    _typed("varbinary", "X'00ff'", ResultType.BINARY, "varbinary", b"\x00\xff"),
    _typed("sketch", "CAST(X'020c010080034400' AS HyperLogLog)", ResultType.BINARY, "HyperLogLog",
           bytes.fromhex("020c010080034400")),
    _typed("json", "JSON '{\"a\":  1}'", ResultType.STRING, "json", '{"a":1}'),
    _typed("uuid", "UUID '0c0f6d1e-2f0b-4a55-9a53-5d3c8e6c9a10'", ResultType.STRING, "uuid",
           "0c0f6d1e-2f0b-4a55-9a53-5d3c8e6c9a10"),
    _typed("ipaddress", "IPADDRESS '10.0.0.1'", ResultType.STRING, "ipaddress", "10.0.0.1"),
    _typed("date", "DATE '2024-01-31'", ResultType.DATE, "date", dt.date(2024, 1, 31)),
    _typed("time", "TIME '10:20:30.5'", ResultType.STRING, "time(1)", "10:20:30.5"),
    _typed("time without fraction", "TIME '10:20:30.000'", ResultType.STRING, "time(3)", "10:20:30"),
    _typed("time with zone", "TIME '10:20:30+02:00'", ResultType.STRING, "time(0) with time zone", "10:20:30+02:00"),
    _typed("timestamp(3)", "TIMESTAMP '2024-01-31 10:20:30.123'", ResultType.TIMESTAMP, "timestamp(3)",
           dt.datetime(2024, 1, 31, 10, 20, 30, 123000)),  # noqa: DTZ001 a naive timestamp
    _typed("timestamp(6)", "TIMESTAMP '2024-01-31 10:20:30.123456'", ResultType.TIMESTAMP, "timestamp(6)",
           dt.datetime(2024, 1, 31, 10, 20, 30, 123456)),  # noqa: DTZ001 a naive timestamp
    _typed("timestamp(12)", "TIMESTAMP '2024-01-31 10:20:30.123456789012'", ResultType.TIMESTAMP, "timestamp(12)",
           "2024-01-31 10:20:30.123456789012"),
    _typed("timestamp with zone", "TIMESTAMP '2024-01-31 10:20:30.000 Europe/Berlin'", ResultType.TIMESTAMP_TZ,
           "timestamp(3) with time zone", "2024-01-31 10:20:30.000 Europe/Berlin"),
    _typed("interval year", "INTERVAL '1-2' YEAR TO MONTH", ResultType.INTERVAL_YEAR_MONTH,
           "interval year to month", "1-2"),
    _typed("interval day", "INTERVAL '2 03:04:05' DAY TO SECOND", ResultType.INTERVAL_DAY_TIME,
           "interval day to second", "2 03:04:05.000"),
    _typed("array", "ARRAY[1, NULL, 3]", ResultType.ARRAY, "array(integer)", [1, None, 3]),
    _typed("array of arrays", "ARRAY[ARRAY['a', NULL], NULL, ARRAY[]]", ResultType.ARRAY, "array(array(varchar(1)))",
           [["a", None], None, []]),
    _typed("map", "MAP(ARRAY[1, 2], ARRAY[1.5, NULL])", ResultType.MAP, "map(integer, decimal(2, 1))",
           [(1, Decimal("1.5")), (2, None)]),
    _typed("row", "CAST(ROW(1, ARRAY['x']) AS ROW(\"a b\" bigint, c array(varchar)))", ResultType.STRUCT,
           'row("a b" bigint, c array(varchar))', {"a b": 1, "c": ["x"]}),
    TypeFact("unknown", "SELECT NULL AS a UNION ALL SELECT NULL", ResultType.NULL, "unknown", None),
)  # fmt: skip

FACTS = EngineFacts(
    slow_sql="SELECT count(*) FROM tpch.sf1000.lineitem WHERE comment LIKE '%no such words%'",
    rows_sql=lambda count: f"SELECT sequential_number AS n FROM TABLE(sequence(0, {count - 1}))",
    wide_rows_sql=lambda count, width: (
        f"SELECT rpad('', {width} + CAST(0 * sequential_number AS integer), 'x') AS t FROM TABLE(sequence(1, {count}))"
    ),
    text_sql=lambda text: "SELECT '" + text.replace("'", "''") + "' AS t",
    bad_table_sql="SELECT * FROM memory.default.no_such_table",
    bad_table_message="Table 'memory.default.no_such_table' does not exist",
    misspelled_at=(2, 9),
    types=TYPES,
    changes=(
        Change("CREATE TABLE {t} (a integer)"),
        Change("INSERT INTO {t} VALUES 1, 2, 3", rows=3),
        Change("INSERT INTO {t} SELECT sequential_number FROM TABLE(sequence(4, 1000))", rows=997),
        Change("CREATE TABLE {t}_copy AS SELECT * FROM {t}", rows=1000),
        Change("DROP TABLE {t}_copy"),
        Change("TRUNCATE TABLE {t}"),
        Change("DROP TABLE {t}"),
    ),
    session_state=(
        SessionState("schema", "USE tpch.tiny", "SELECT current_schema", "tiny"),
        SessionState("catalog", "USE tpch.tiny", "SELECT current_catalog", "tpch"),
        SessionState("time zone", "SET TIME ZONE 'Europe/Berlin'", "SELECT current_timezone()", "Europe/Berlin"),
        SessionState("prepared statement", "PREPARE mine FROM SELECT 5", "EXECUTE mine", 5),
    ),
    unknown_database="no_such_schema",
    known_database="tpch.tiny",
    fails_midway_sql="SELECT 1 / (9000000 - sequential_number) FROM TABLE(sequence(0, 9900000))",
    driver_words=("httpx", "http://", "io.trino", "java.", "127.0.0.1"),
)


@pytest.mark.engine("trino")
class TestTrino(TrinoBasis, EngineContract, ResumingContract):
    """The engine contract on a single node."""

    facts = FACTS
    tested_with = "Trino 476"

    @pytest.fixture
    async def engine(self, trino_server: HttpAddress) -> AsyncGenerator[Engine]:
        engine = TrinoEngine(address_of(trino_server))
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self) -> AsyncGenerator[Engine]:
        engine = TrinoEngine(TrinoAddress(f"http://127.0.0.1:{free_port()}"))
        yield engine
        await engine.close()
