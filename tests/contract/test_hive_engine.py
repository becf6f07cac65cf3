"""The engine contract for Apache Hive."""

import asyncio
import datetime as dt
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_breaks import BreaksContract
from tests.contract.engine_contract import EngineContract
from tests.contract.engine_driving import ended, operation, rows_of, run
from tests.contract.engine_facts import Change, EngineFacts, SessionState, TypeFact
from tests.contract.engine_faults import FaultsContract
from tests.contract.engine_resuming import ResumingContract
from tests.engines.fault_proxy import fault_proxy
from tests.engines.servers import ServerAddress
from tests.fixtures.hiveserver2 import run_statements
from tests.ports import free_port
from tests.refusals import raises_code

from queryserver.engines.catalog_queries import escaped_literal
from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.variants import HIVE, Hs2Address, Limits, Member
from queryserver.engines.protocol import Engine
from queryserver.errors.statements import OutcomeUnknown
from queryserver.formats.arrow import ResultType as T


def typed(expression: str, kind: T, native: str, value: object) -> TypeFact:
    # A UNION would run as a Tez job of several seconds.
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
    # IF converts a varchar to a string.
    TypeFact(
        "varchar(20)",
        "SELECT CAST(IF(i = 0, 'ab', NULL) AS varchar(20)) AS a FROM (SELECT explode(array(0, 1)) AS i) t",
        T.VARCHAR,
        "varchar(20)",
        "ab",
    ),
    typed("unhex('00FF')", T.BINARY, "binary", b"\x00\xff"),
    typed("DATE '2024-01-31'", T.DATE, "date", dt.date(2024, 1, 31)),
    typed("TIMESTAMP '2024-01-31 10:20:30'", T.TIMESTAMP, "timestamp", dt.datetime(2024, 1, 31, 10, 20, 30)),  # noqa: DTZ001 a naive timestamp
    typed("TIMESTAMP '2024-01-31 10:20:30.5'", T.TIMESTAMP, "timestamp", dt.datetime(2024, 1, 31, 10, 20, 30, 500000)),  # noqa: DTZ001 a naive timestamp
    typed("array(1, 2)", T.ARRAY, "array", "[1,2]"),
    typed("map('a', 1)", T.MAP, "map", '{"a":1}'),
    typed("named_struct('x', 1, 'y', 'z')", T.STRUCT, "struct", '{"x":1,"y":"z"}'),
)

_NUMBERS = 100_000
"""The number of rows in the integer table from which the tests generate long results."""

_FEW = 5_000
_PIECE_BYTES = 100_000
_FAULTS_SLEEP_S = 10


def _rows(count: int, block: int = _FEW, value: str = "{n}") -> str:
    """Return a query for `count` rows.

    A fetch expands each row of the table completely, so each row expands to at most `block` rows. The LIMIT has no
    outer query, because that would run as a Tez job, which finishes before its first row can be read.
    """
    if count <= block:
        chosen = value.format(n="i")
        return f"SELECT {chosen} AS n FROM (SELECT posexplode(split(space({count - 1}), ' ')) AS (i, x)) t"
    chosen = value.format(n=f"(i * CAST({block} AS bigint) + j)")
    return (
        f"SELECT {chosen} AS n FROM numbers"
        f" LATERAL VIEW posexplode(split(space({block - 1}), ' ')) b AS j, y LIMIT {count}"
    )


def _sleep(seconds: int) -> str:
    return f"SELECT reflect('java.lang.Thread', 'sleep', CAST({seconds * 1000} AS bigint))"


def _wide_rows(count: int, width: int) -> str:
    value = f"concat(rpad('', {width - 10}, 'x'), lpad(CAST({{n}} AS string), 10, ' '))"
    return _rows(count, max(_PIECE_BYTES // width, 1), value)


FACTS = EngineFacts(
    # Avoid a Tez job: in local mode, Hive delays the cancel of a job until the current task has finished.
    slow_sql=_sleep(30),
    rows_sql=_rows,
    wide_rows_sql=_wide_rows,
    text_sql=lambda text: f"SELECT {escaped_literal(text)}",
    bad_table_sql="SELECT * FROM no_such_table",
    bad_table_message="Table not found 'no_such_table'",
    misspelled_at=(2, 9),
    types=TYPES,
    changes=(
        # Hive reports 0 for statements that do not change rows.
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
    fails_midway_sql=_rows(200_000, value="IF(assert_true({n} < 150000) IS NULL, {n}, 0)"),
    driver_words=("org.apache", "java.", "Traceback", "127.0.0.1", "\tat "),
    # Hive compiles the statement during ExecuteStatement, but API clients do not wait for this call.
    submit_within_s=5.0,
    # Hive takes 0.2 s for each session.
    many_sessions=60,
)

SHORT = Limits(connect_s=2.0, execute_s=5.0, status_s=4.0, fetch_s=4.0, other_s=4.0, end_s=1.0, retry_s=2.0)
STREAMED = {"hive.fetch.task.caching": "false"}
"""Makes Hive compute the rows of a query that needs no job while they are read, instead of holding them in memory."""

_LONG_RESULTS = frozenset(
    {
        "test_failure_during_fetch_ends_the_rows",
        "test_partially_read_result_frees_the_session",
        "test_unread_result_frees_the_session",
        "test_canceled_reader_frees_the_session",
        "test_cancel_ends_the_reading_of_rows",
        "test_memory_stays_flat_while_a_large_result_passes",
    }
)
"""Tests whose results do not fit in the server's memory."""


@pytest.fixture(scope="module")
def numbers(hive_server: ServerAddress) -> None:
    """Create the integer table as one file in ascending order."""
    columns = f"SELECT posexplode(split(space({_NUMBERS - 1}), ' ')) AS (i, x)"
    run_statements(hive_server, HIVE, [f"CREATE TABLE IF NOT EXISTS numbers AS SELECT i FROM ({columns}) t"])


@pytest.mark.engine("hive")
class TestHive(ResumingContract, EngineContract):
    """The engine contract on Hive in one JVM, with Tez in local mode."""

    tested_with = "Hive 4.0.1"
    facts = FACTS
    known_failures: ClassVar[Mapping[str, pytest.MarkDecorator]] = {
        "test_column_names_may_repeat": pytest.mark.never("Hive renames the second of two columns `a` to `a_1`")
    }

    @pytest.fixture(autouse=True)
    def _hive(self, numbers: None, hive_server: ServerAddress) -> None:
        self.port = hive_server.port

    async def running_statements(self, engine: Engine) -> int:
        """Return the number of HiveServer2 threads that are running a statement, as reported by the JVM."""
        return await statements_at_work(self.port)

    @pytest.fixture
    async def engine(self, hive_server: ServerAddress, request: pytest.FixtureRequest) -> AsyncGenerator[Engine]:
        conf = STREAMED if request.node.originalname in _LONG_RESULTS else {}
        engine = Hs2Engine(Hs2Address((Member(hive_server.host, hive_server.port),), session_conf=conf), HIVE)
        yield engine
        await engine.close()

    @pytest.fixture
    async def unreachable_engine(self) -> AsyncGenerator[Engine]:
        engine = Hs2Engine(Hs2Address((Member("127.0.0.1", free_port()),), limits=Limits()), HIVE)
        yield engine
        await engine.close()


@pytest.fixture(scope="class")
async def rest_afterward(hive_server: ServerAddress) -> AsyncGenerator[None]:
    """Wait until Hive is idle: statements of lost clients keep running, and other tests count running statements."""
    yield
    async with asyncio.timeout(2 * _FAULTS_SLEEP_S):
        while await statements_at_work(hive_server.port):  # noqa: ASYNC110 Hive sends no event
            await asyncio.sleep(0.2)


@pytest.mark.engine("hive")
@pytest.mark.usefixtures("numbers", "rest_afterward")
class TestHiveFaults(FaultsContract):
    """The broken-connection tests on Hive. A session outlives its connection, but the adapter does not repeat
    a call whose response was lost.
    """

    facts = replace(FACTS, slow_sql=_sleep(_FAULTS_SLEEP_S))
    tested_with = "Hive 4.0.1"

    @pytest.fixture
    def server(self, hive_server: ServerAddress) -> tuple[str, int]:
        return hive_server.host, hive_server.port

    @pytest.fixture
    def engine_at(self, request: pytest.FixtureRequest) -> Callable[[int], Engine]:
        conf = STREAMED if "fetch" in request.node.originalname else {}
        return lambda port: Hs2Engine(Hs2Address((Member("127.0.0.1", port),), session_conf=conf, limits=SHORT), HIVE)


@pytest.mark.engine("hive")
@pytest.mark.usefixtures("numbers", "rest_afterward")
class TestHiveBreaks(BreaksContract):
    """The network-outage tests on Hive, with an outage of twenty seconds."""

    facts = FACTS
    tested_with = "Hive 4.0.1"
    break_s = 20.0
    sleep_sql = staticmethod(_sleep)

    @pytest.fixture(autouse=True)
    def _hive(self, hive_server: ServerAddress) -> None:
        self.port = hive_server.port

    async def running_statements(self, engine: Engine) -> int:
        """Return how many statements this server is running."""
        return await statements_at_work(self.port)

    @pytest.fixture
    def server(self, hive_server: ServerAddress) -> tuple[str, int]:
        return hive_server.host, hive_server.port

    @pytest.fixture
    def engine_at(self, request: pytest.FixtureRequest) -> Callable[[int], Engine]:
        conf = STREAMED if request.node.originalname == "test_cancel_ends_a_reader_that_waits_for_rows" else {}
        return lambda port: Hs2Engine(Hs2Address((Member("127.0.0.1", port),), session_conf=conf), HIVE)


@pytest.mark.engine("hive")
@pytest.mark.usefixtures("numbers")
@pytest.mark.capability("A broken connection is reported in time")
@pytest.mark.parametrize(
    ("sql", "is_kept"),
    [(_rows(60_000), False), ("SELECT i FROM numbers ORDER BY i LIMIT 60000", True)],
    ids=["without a job", "of a job"],
)
async def test_rows_that_hive_does_not_keep_are_never_lost(hive_server: ServerAddress, sql: str, is_kept: bool) -> None:
    """If a query needs no job, reading it a second time would lose rows: Hive does not reset its LIMIT counter."""
    async with fault_proxy(hive_server.host, hive_server.port) as proxy:
        engine = Hs2Engine(Hs2Address((Member("127.0.0.1", proxy.port),), session_conf=STREAMED), HIVE)
        given = list[object]()

        async def read() -> None:
            async with engine.session(USER, NO_OPTIONS) as session, operation(session, sql) as handle:
                await ended(session, handle, within_s=60)
                async for batch in session.batches(handle):
                    is_first, given[len(given) :] = not given, [row[0] for row in rows_of(batch)]
                    if is_first:
                        await proxy.die()
                        await proxy.listen()

        if is_kept:
            await read()
            assert len(given) == 60_000
        else:
            with pytest.raises(OutcomeUnknown, match=r"^Results have expired"):
                await read()
        assert given == list(range(len(given)))
        await engine.close()


@pytest.mark.engine("hive")
async def test_cell_above_limit_is_refused_and_named(hive_server: ServerAddress) -> None:
    """The limit is lower than the default, because a Hive server with 1 GB of memory cannot return a cell of 60 MB."""
    address = Hs2Address((Member(hive_server.host, hive_server.port),), cell_max_bytes=1_000_000)
    engine = Hs2Engine(address, HIVE)
    rows = "(SELECT explode(array(5, 26000000)) AS i) t"  # not a constant, which Hive would compute at compile time
    async with engine.session(USER, NO_OPTIONS) as session:
        with raises_code("cell_too_large", match=r"row 1 of column b .* 1000000 bytes"):
            await run(session, f"SELECT i AS a, repeat('x', i) AS b FROM {rows}")
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT 1 AS a")).rows == [(1,)]
    await engine.close()


@pytest.mark.engine("hive")
@pytest.mark.capability("Abandoned statements are stopped")
async def test_caller_leaving_during_session_opening_leaves_no_session(hive_server: ServerAddress) -> None:
    """Hive takes about 50 ms to open a session, and keeps the session after its connection is closed."""
    engine = Hs2Engine(Hs2Address((Member(hive_server.host, hive_server.port),)), HIVE)

    async def visit() -> None:
        async with engine.session(USER, NO_OPTIONS):
            pass

    before = await sessions_open(hive_server.port)
    async with engine.session(USER, NO_OPTIONS):
        assert await sessions_open(hive_server.port) == before + 1
    for milliseconds in range(0, 80, 5):
        visiting = asyncio.create_task(visit())
        await asyncio.wait({visiting}, timeout=milliseconds / 1000)
        visiting.cancel()
        await asyncio.wait({visiting})
    await engine.close()
    assert await sessions_open(hive_server.port) == before


async def statements_at_work(port: int) -> int:
    """Return how many statements are running on the HiveServer2 that listens on `port`."""
    stacks = (await _asked_of_jvm(port, "Thread.print")).split("\n\n")
    return sum("SQLOperation.runQuery" in stack for stack in stacks)


async def sessions_open(port: int) -> int:
    """Return how many sessions the HiveServer2 that listens on `port` holds in memory."""
    histogram = await _asked_of_jvm(port, "GC.class_histogram")
    instances = re.findall(r"^ *\d+: +(\d+) +\d+ +[\w.]+\.HiveSessionImpl\b", histogram, re.MULTILINE)
    return sum(map(int, instances))


async def _asked_of_jvm(port: int, question: str) -> str:
    """Return the output of a jcmd command, sent to the Java process that listens on `port`."""
    (pid,) = {
        one.pid
        for one in psutil.net_connections("tcp4")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid
    }
    tool = Path(psutil.Process(pid).exe()).with_name("jcmd")
    asked = await asyncio.create_subprocess_exec(
        tool, str(pid), question, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        told, _ = await asked.communicate()
    assert asked.returncode == 0
    return told.decode(errors="replace")
