"""Read-only statements on Phoenix, the names in its log of queries, and its estimates."""

import asyncio
from collections.abc import AsyncGenerator
from uuid import uuid4

import pytest
from tests.contract.engine_driving import ended, run
from tests.contract.phoenix_basis import PhoenixBasis
from tests.contract.read_only_contract import READ_ONLY, Bypass, ReadOnlyContract, ReadOnlyFacts
from tests.contract.test_phoenix_engine import FACTS, make_tables
from tests.engines.servers import HttpAddress

from queryserver.engines.estimates import EstimatingSession
from queryserver.engines.phoenix.connection import PhoenixAddress
from queryserver.engines.phoenix.engine import PhoenixEngine
from queryserver.engines.protocol import Engine, EngineSession, StatementContext
from queryserver.errors.statements import StatementRejected
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import read_parameters

_SEQUENCE = {
    "before": ("CREATE SEQUENCE {t}_s",),
    "after": ("DROP SEQUENCE {t}_s",),
    "probes": ("SELECT CURRENT_VALUE FROM SYSTEM.\"SEQUENCE\" WHERE SEQUENCE_NAME = UPPER('{t}_s')",),
}
BYPASSES = (
    Bypass("upsert", ("UPSERT INTO {t} VALUES (4)",)),
    Bypass("upsert_select", ("UPSERT INTO {t} SELECT a + 10 FROM {t}",)),
    Bypass("upsert_markers", ("UPSERT INTO {t} VALUES (?)",), values=(4,)),
    Bypass("hint_first", ("/*+ NO_INDEX */ DELETE FROM {t}",)),
    Bypass("slashes_first", ("// SELECT 1\nDELETE FROM {t}",)),
    Bypass("drop_table", ("DROP TABLE {t} CASCADE",)),
    Bypass("create_keyed", ("CREATE TABLE {t}_x (a INTEGER PRIMARY KEY)",)),
    Bypass("create_index", ("CREATE INDEX {t}_i ON {t} (a)",)),
    Bypass("create_view_keyed", ("CREATE VIEW {t}_v (b INTEGER) AS SELECT * FROM {t}",)),
    Bypass("add_column", ("ALTER TABLE {t} ADD b VARCHAR",)),
    Bypass("next_value", ("SELECT NEXT VALUE FOR {t}_s",), **_SEQUENCE),
    Bypass("next_values", ("SELECT NEXT 5 VALUES FOR {t}_s",), **_SEQUENCE),
    Bypass("next_value_in_comment", ("SELECT NEXT/**/VALUE -- x\n FOR {t}_s FROM {t}",), **_SEQUENCE),
    Bypass("create_sequence", ("CREATE SEQUENCE {t}_q",)),
    Bypass("statistics", ("UPDATE STATISTICS {t}",)),
    Bypass("trace", ("TRACE ON",)),
    Bypass("alter_session", ("ALTER SESSION SET CONSISTENCY = 'strong'",)),
    Bypass("cursor", ("DECLARE c CURSOR FOR SELECT * FROM {t}",)),
    Bypass("grant", ("GRANT 'RW' ON {t} TO 'other'",)),
    Bypass("create_function", ("CREATE FUNCTION f(VARCHAR) RETURNS VARCHAR AS 'a.B'",)),
    Bypass("add_jars", ("ADD JARS 'x.jar'",)),
    Bypass("upgrade", ("EXECUTE UPGRADE",)),
)
_OBJECTS = (
    "SELECT TABLE_NAME, TABLE_TYPE, COLUMN_COUNT FROM SYSTEM.CATALOG"
    " WHERE TABLE_NAME LIKE UPPER('{t}%') AND COLUMN_NAME IS NULL AND COLUMN_FAMILY IS NULL ORDER BY TABLE_NAME"
)
READ_ONLY_FACTS = ReadOnlyFacts(
    setup=(
        "CREATE TABLE {t} (a INTEGER PRIMARY KEY)",
        "UPSERT INTO {t} VALUES (1)",
        "UPSERT INTO {t} VALUES (2)",
        "UPSERT INTO {t} VALUES (3)",
    ),
    probes=("SELECT a FROM {t} ORDER BY a", _OBJECTS),
    bypasses=BYPASSES,
    insert="UPSERT INTO {t} VALUES ({n})",
    reads=(
        "SELECT COUNT(*) FROM {t}",
        "-- comment\n/* DELETE */ SELECT 'delete', a FROM {t}",
        "EXPLAIN SELECT * FROM {t}",
        "EXPLAIN DELETE FROM {t}",
        "SELECT x.a FROM {t} x JOIN {t} y ON x.a = y.a",
    ),
)


@pytest.fixture(scope="module")
def phoenix(phoenix_server: HttpAddress) -> HttpAddress:
    """Return a Phoenix that has the tables of the engine's tests."""
    asyncio.run(make_tables(phoenix_server.url))
    return phoenix_server


@pytest.mark.engine("phoenix")
class TestPhoenixReadOnly(PhoenixBasis, ReadOnlyContract):
    """A real Query Server."""

    facts = FACTS
    read_only = READ_ONLY_FACTS

    @pytest.fixture
    async def engine(self, phoenix: HttpAddress) -> AsyncGenerator[Engine]:
        engine = PhoenixEngine(PhoenixAddress(phoenix.url))
        yield engine
        await engine.close()

    async def test_canceled_read_only_statement_leaves_a_session_that_may_change_data(
        self, engine: Engine, session: EngineSession, filled: str
    ) -> None:
        handle = await session.submit(f"SELECT COUNT(*) FROM {filled}", READ_ONLY)
        await session.cancel(handle)
        await ended(session, handle)
        await session.close(handle)
        assert "DELETE is not a query" in await self.refused(engine, session, f"DELETE FROM {filled}")
        assert (await run(session, f"DELETE FROM {filled}")).status.modified_rows == 3

    async def test_operation_is_found_in_the_log_of_queries(self, session: EngineSession, filled: str) -> None:
        operation_id = uuid4().hex
        context = StatementContext(user="ana", operation_id=operation_id, connector="docs")
        handle = await session.submit(f"SELECT a FROM {filled}", context)
        await ended(session, handle)
        assert [row async for row in session.batches(handle)]
        await session.close(handle)
        expected = f"/*connector='docs',operation_id='{operation_id}',user='ana'*/ SELECT a FROM {filled}"
        async with asyncio.timeout(30):
            while True:
                logged = await run(session, f"SELECT QUERY FROM SYSTEM.LOG WHERE QUERY LIKE '%{operation_id}%'")
                if (expected,) in logged.rows:
                    break
                await asyncio.sleep(0.2)

    @pytest.mark.parametrize(("sql", "at"), [("SELECT a FRO t", (1, 14)), ("SELECT\n a FRO t", (2, 8))])
    async def test_positions_of_errors_do_not_count_the_comment(
        self, session: EngineSession, sql: str, at: tuple[int, int]
    ) -> None:
        context = StatementContext(user="ana", operation_id="1", connector="docs")
        handle = await session.submit(sql, context)
        error = (await ended(session, handle)).error
        assert isinstance(error, StatementRejected)
        assert f"at line {at[0]}, column {at[1]}" in error.message
        await session.close(handle)

    async def test_estimate_is_that_of_explain(self, session: EngineSession, filled: str) -> None:
        assert isinstance(session, EstimatingSession)
        query = f"SELECT * FROM {filled}"
        # Not of `filled`, because the Query Server caches that a table has no statistics.
        assert await session.estimate("SELECT * FROM qs.typed") is None
        await run(session, f'UPDATE STATISTICS {filled} SET "phoenix.stats.guidepost.width" = 1')
        found = await session.estimate(query)
        assert found is not None
        assert found.scanned_bytes
        twice = await session.estimate(f"{query} UNION ALL {query}")
        assert twice is not None
        assert twice.scanned_bytes == 2 * found.scanned_bytes
        bound = BoundStatement(f"{query} WHERE a > ?", "phoenix", StatementParameters(read_parameters([0])))
        with_value = await session.estimate(bound)
        assert with_value is not None
        assert with_value.scanned_bytes == found.scanned_bytes
        assert await session.estimate(f"DROP TABLE {filled}") is None
        assert await session.estimate("SELECT nope FROM") is None
        assert len((await run(session, query)).rows) == 3
