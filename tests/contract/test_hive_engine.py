"""Apache Hive keeps the rules of all engines."""

import asyncio
import datetime as dt
from collections.abc import AsyncGenerator, Generator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
from tests.contract.engine_contract import EngineContract
from tests.contract.engine_facts import Change, EngineFacts, SessionState, TypeFact
from tests.contract.engine_resuming import ResumingContract
from tests.engines.hive import hive_server
from tests.engines.servers import ServerAddress, free_port

from queryserver.domain.result import ResultType as T
from queryserver.engines.hiveserver2.address import Hs2Address, Limits, Member
from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.variants import HIVE
from queryserver.engines.quoting import escaped_literal
from queryserver.interfaces.engine import Engine


def typed(expression: str, kind: T, native: str, value: object) -> TypeFact:
    # No UNION: that would be a Tez job of some seconds.
    sql = f"SELECT IF(i = 0, {expression}, NULL) AS a FROM (SELECT explode(array(0, 1)) AS i) t"
    return TypeFact(expression, sql, kind, native, value)


TYPES = (
    typed("true", T.BOOLEAN, "boolean", True),
    typed("CAST(-128 AS tinyint)", T.TINYINT, "tinyint", -128),
    typed("CAST(-32768 AS smallint)", T.SMALLINT, "smallint", -32768),
    typed("2147483647", T.INT, "int", 2147483647),
    typed("9223372036854775807", T.BIGINT, "bigint", 9223372036854775807),
    typed("CAST(1.5 AS float)", T.FLOAT, "float", 1.5),
    typed("CAST(1e300 AS double)", T.DOUBLE, "double", 1e300),
    typed("CAST(12.5 AS decimal(10,2))", T.DECIMAL, "decimal(10,2)", Decimal("12.50")),
    typed("CAST(7 AS decimal(38,0))", T.DECIMAL, "decimal(38,0)", Decimal(7)),
    typed("'Zoë 🐘'", T.STRING, "string", "Zoë 🐘"),
    typed("CAST('ab' AS varchar(20))", T.VARCHAR, "varchar(20)", "ab"),
    typed("unhex('00FF')", T.BINARY, "binary", b"\x00\xff"),
    typed("DATE '2024-01-31'", T.DATE, "date", dt.date(2024, 1, 31)),
    typed("TIMESTAMP '2024-01-31 10:20:30'", T.TIMESTAMP, "timestamp", dt.datetime(2024, 1, 31, 10, 20, 30)),  # noqa: DTZ001 it has none
    typed("TIMESTAMP '2024-01-31 10:20:30.5'", T.TIMESTAMP, "timestamp", dt.datetime(2024, 1, 31, 10, 20, 30, 500000)),  # noqa: DTZ001 it has none
    typed("array(1, 2)", T.ARRAY, "array", "[1,2]"),
    typed("map('a', 1)", T.MAP, "map", '{"a":1}'),
    typed("named_struct('x', 1, 'y', 'z')", T.STRUCT, "struct", '{"x":1,"y":"z"}'),
)

_BLOCK = 5_000


def _rows(count: int) -> str:
    """Two nested lists, so that neither is long; a condition on both would be ignored, so blocks must be whole."""
    if count <= _BLOCK or count % _BLOCK:
        return f"SELECT posexplode(split(space({count - 1}), ' ')) AS (n, x)"
    return (
        f"SELECT a.i * {_BLOCK} + b.j AS n FROM (SELECT posexplode(split(space({count // _BLOCK - 1}), ' '))"
        f" AS (i, x)) a LATERAL VIEW posexplode(split(space({_BLOCK - 1}), ' ')) b AS j, y"
    )


FACTS = EngineFacts(
    # No Tez job: those hold the cancel until their task has ended, in local mode.
    slow_sql="SELECT reflect('java.lang.Thread', 'sleep', CAST(30000 AS bigint))",
    rows_sql=lambda count: f"SELECT n FROM ({_rows(count)}) t",
    wide_rows_sql=lambda count, width: (
        f"SELECT concat(rpad('', {width - 10}, 'x'), lpad(CAST(n AS string), 10, ' ')) FROM ({_rows(count)}) t"
    ),
    text_sql=lambda text: f"SELECT {escaped_literal(text)}",
    bad_table_sql="SELECT * FROM no_such_table",
    bad_table_message="Table not found 'no_such_table'",
    types=TYPES,
    changes=(
        # Hive tells 0 for what changes no rows.
        Change("CREATE TABLE {t} (n int, s string)", rows=0),
        Change("INSERT INTO {t} VALUES (1, 'a'), (2, 'b')", rows=2),
        Change("SELECT * FROM {t}", has_result_set=True),
        Change("CREATE VIEW {t}_v AS SELECT * FROM {t}", rows=0),
        Change("DROP VIEW {t}_v", rows=0),
        Change("DROP TABLE {t}", rows=0),
    ),
    session_state=(SessionState("variable", "SET hivevar:mine=7", "SELECT '${hivevar:mine}'", "7"),),
    unknown_database="no_such_database",
    known_database="default",
    no_rows_sql="SELECT 1 AS a, 'x' AS b FROM (SELECT 1) t WHERE 1 = 0",
    driver_words=("org.apache", "java.", "Traceback", "127.0.0.1", "\tat "),
)

_STREAMED = frozenset(
    {
        "test_a_result_left_half_way_frees_the_session",
        "test_a_result_that_nobody_reads_frees_the_session",
        "test_the_reader_s_own_end_frees_the_session",
        "test_cancel_stops_who_reads_rows",
        "test_memory_stays_flat_while_a_large_result_passes",
    }
)
"""Tests whose results Hive must make while they are read: it keeps those of queries without a job otherwise."""


@pytest.fixture(scope="module")
def hive() -> Generator[ServerAddress]:
    """HiveServer2 with an empty metastore."""
    with hive_server() as address:
        yield address


@pytest.mark.engine("hive")
class TestHive(ResumingContract, EngineContract):
    """Hive in one JVM, with Tez in local mode."""

    tested_with = "Hive 4.0.1"
    facts = FACTS
    known_failures: ClassVar[Mapping[str, pytest.MarkDecorator]] = {
        "test_names_of_columns_may_occur_twice": pytest.mark.never("Hive renames the second of them to a_1"),
    }

    @pytest.fixture(autouse=True)
    def _hive(self, hive: ServerAddress) -> None:
        self.port = hive.port

    async def running_statements(self, engine: Engine) -> int:
        """Threads of HiveServer2 that carry out a statement, asked of the JVM."""
        return sum("SQLOperation.runQuery" in stack for stack in await stacks(self.port))

    @pytest.fixture
    async def engine(self, hive: ServerAddress, request: pytest.FixtureRequest) -> AsyncGenerator[Engine]:
        streamed = {"hive.fetch.task.caching": "false"} if request.node.originalname in _STREAMED else {}
        engine = Hs2Engine(Hs2Address((Member(hive.host, hive.port),), session_conf=streamed), HIVE)
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self, hive: ServerAddress) -> AsyncGenerator[Engine]:
        engine = Hs2Engine(Hs2Address((Member(hive.host, free_port()),), limits=Limits()), HIVE)
        yield engine
        await engine.close()


async def stacks(port: int) -> list[str]:
    """The stack of each Java thread of the server that listens on `port`."""
    (pid,) = {
        one.pid
        for one in psutil.net_connections("tcp4")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid
    }
    tool = Path(psutil.Process(pid).exe()).with_name("jcmd")
    asked = await asyncio.create_subprocess_exec(
        tool, str(pid), "Thread.print", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        told, _ = await asked.communicate()
    assert asked.returncode == 0
    return told.decode(errors="replace").split("\n\n")
