"""Whose statement it is, as the coordinator shows it; what a statement is expected to read, and has read."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, read, run
from tests.contract.trino_basis import SOURCE, address_of
from tests.engines.servers import HttpAddress

from queryserver.engines.estimates import CostEstimate, EstimatingSession
from queryserver.engines.protocol import EngineSession, StatementContext
from queryserver.engines.trino.engine import TrinoEngine
from queryserver.errors.statements import StatementRejected
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import read_parameters

pytestmark = pytest.mark.engine("trino")

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ORDERS_BYTES = 1_597_294
"""The size of tpch.tiny.orders according to its statistics."""
ORDERS_ROWS = 15_000


def context(**changes: Any) -> StatementContext:
    return StatementContext(**{"user": "ana", "operation_id": "0b5f-6a2e", "connector": "lake", **changes})


@pytest.fixture
async def engine(trino_server: HttpAddress) -> AsyncGenerator[TrinoEngine]:
    engine = TrinoEngine(address_of(trino_server, client_tags="editor"))
    yield engine
    await engine.close()


@pytest.fixture
async def session(engine: TrinoEngine) -> AsyncGenerator[EngineSession]:
    async with engine.session(USER, NO_OPTIONS) as session:
        yield session


async def submitted(session: EngineSession, sql: str | BoundStatement, of: StatementContext) -> str:
    """Run a statement in this context and return its query id."""
    handle = await session.submit(sql, of)
    assert (await ended(session, handle)).error is None
    await read(session, handle)
    query_id = (await session.logs(handle, start=0))[0].removeprefix("Query ")
    await session.close(handle)
    return query_id


async def test_operation_is_found_in_the_table_of_queries(session: EngineSession) -> None:
    query_id = await submitted(session, "SELECT 1", context(traceparent=TRACE))
    found = await run(
        session,
        "SELECT query_id, source, query FROM system.runtime.queries"
        " WHERE query LIKE '%operation_id=''0b5f-6a2e''%' AND query NOT LIKE '%runtime.queries%'",
    )
    comment = f"/*connector='lake',operation_id='0b5f-6a2e',traceparent='{TRACE}',user='ana'*/"
    assert (query_id, SOURCE, f"{comment} SELECT 1") in found.rows


async def test_query_of_the_coordinator_names_caller_and_operation(
    trino_server: HttpAddress, session: EngineSession
) -> None:
    query_id = await submitted(session, "SELECT 1", context(traceparent=TRACE, read_only=True))
    async with httpx.AsyncClient(base_url=trino_server.url, headers={"X-Trino-User": "ada"}) as client:
        query = (await client.get(f"/v1/query/{query_id}")).json()["session"]
    assert query["clientInfo"] == "op=0b5f-6a2e user=ana connector=lake"
    assert sorted(query["clientTags"]) == ["connector=lake", "editor", "read_only"]
    assert (query["source"], query["traceToken"]) == (SOURCE, TRACE)


async def test_names_with_any_characters_are_shown(trino_server: HttpAddress, session: EngineSession) -> None:
    odd = context(user="Zoë 🐘\r\nX-Trino-User: root", connector="a,b*/ DROP", operation_id="1" * 36)
    query_id = await submitted(session, "SELECT 1", odd)
    async with httpx.AsyncClient(base_url=trino_server.url, headers={"X-Trino-User": "ada"}) as client:
        query = (await client.get(f"/v1/query/{query_id}")).json()
    assert query["session"]["user"] == "ada"
    assert query["session"]["clientTags"] == ["editor"]
    assert query["session"]["clientInfo"].startswith("op=" + "1" * 36)
    assert "%2A%2F%20DROP" in query["query"]


@pytest.mark.parametrize(
    ("sql", "position"), [("SELECT nope", (1, 8)), ("SELECT\n nope", (2, 2)), ("SELECT\n   ,", (2, 4))]
)
@pytest.mark.parametrize("with_values", [False, True])
async def test_positions_of_errors_do_not_count_the_comment(
    session: EngineSession, sql: str, position: tuple[int, int], with_values: bool
) -> None:
    statement = BoundStatement(f"{sql} + ?", "trino", StatementParameters(read_parameters([1]))) if with_values else sql
    handle = await session.submit(statement, context())
    error = (await ended(session, handle)).error
    assert isinstance(error, StatementRejected)
    assert f"line {position[0]}:{position[1]}:" in error.message
    await session.close(handle)


async def estimated(session: EngineSession, sql: str | BoundStatement) -> CostEstimate | None:
    assert isinstance(session, EstimatingSession)
    return await session.estimate(sql)


@pytest.mark.parametrize(
    ("sql", "scanned_bytes", "rows"),
    [
        ("SELECT * FROM tpch.tiny.orders", ORDERS_BYTES, ORDERS_ROWS),
        ("SELECT * FROM tpch.tiny.orders WHERE orderkey = 1", ORDERS_BYTES, ORDERS_ROWS),
        ("SELECT * FROM tpch.tiny.orders UNION ALL SELECT * FROM tpch.tiny.orders", 2 * ORDERS_BYTES, 2 * ORDERS_ROWS),
        ("EXPLAIN ANALYZE SELECT * FROM tpch.tiny.orders", ORDERS_BYTES, ORDERS_ROWS),
        ("CREATE TABLE no_such_table AS SELECT * FROM tpch.tiny.orders", ORDERS_BYTES, ORDERS_ROWS),
        ("SELECT count(*) FROM tpch.tiny.orders", 0, ORDERS_ROWS),
        ("SELECT 1", 0, 0),
        ("SELECT * FROM tpch.tiny.orders CROSS JOIN tpch.sf100000.region", ORDERS_BYTES, None),
    ],
)
async def test_estimate_is_the_size_of_all_table_scans(
    session: EngineSession, sql: str, scanned_bytes: int, rows: int | None
) -> None:
    found = await estimated(session, sql)
    assert found is not None
    assert found.scanned_bytes == scanned_bytes
    assert rows is None or found.rows == rows


async def test_statement_with_parameters_is_estimated(session: EngineSession) -> None:
    values = StatementParameters(read_parameters([1, "O'Hara"]))
    sql = BoundStatement("SELECT * FROM tpch.tiny.orders WHERE orderkey = ? AND clerk = ?", "trino", values)
    found = await estimated(session, sql)
    assert found is not None
    assert found.scanned_bytes == ORDERS_BYTES


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT nope",
        "SELECT * FROM memory.default.no_such_table",
        "DROP TABLE memory.default.no_such_table",
        "SELECT * FROM system.runtime.nodes",
        "SELECT * FROM TABLE(sequence(1, 10))",
        "SET SESSION query_max_run_time = '1h'",
        "COMMIT",
        "",
    ],
)
async def test_statement_of_unknown_size_has_no_estimate(session: EngineSession, sql: str) -> None:
    assert await estimated(session, sql) is None


async def test_estimate_leaves_session_and_its_transaction_unchanged(session: EngineSession) -> None:
    await run(session, "USE tpch.tiny")
    await run(session, "START TRANSACTION READ ONLY")
    assert await estimated(session, "SELECT * FROM no_such_table") is None
    assert await estimated(session, "USE memory.default") is None
    found = await estimated(session, "SELECT * FROM orders")
    assert found is not None
    assert found.scanned_bytes == ORDERS_BYTES
    assert (await run(session, "SELECT current_schema")).cell == "tiny"
    await run(session, "COMMIT")


async def test_estimate_does_not_run_the_statement(session: EngineSession) -> None:
    await run(session, "CREATE TABLE IF NOT EXISTS memory.default.estimated (a integer)")
    for sql in (
        "INSERT INTO estimated VALUES 1",
        "EXPLAIN ANALYZE INSERT INTO estimated VALUES 1",
        "CREATE TABLE never_created AS SELECT 1 AS a",
        "EXPLAIN ANALYZE CREATE TABLE never_created AS SELECT 1 AS a",
        "DROP TABLE estimated",
    ):
        await estimated(session, sql)
    assert (await run(session, "SHOW TABLES LIKE 'never_created'")).rows == []
    assert (await run(session, "SELECT count(*) FROM estimated")).cell == 0
    await run(session, "DROP TABLE estimated")


async def test_status_reports_bytes_that_the_statement_has_read(session: EngineSession) -> None:
    await run(session, "CREATE TABLE memory.default.scanned AS SELECT orderkey FROM tpch.tiny.orders")
    try:
        found = await estimated(session, "SELECT max(orderkey) FROM scanned")
        answer = await run(session, "SELECT max(orderkey) FROM scanned")
        assert found is not None
        assert answer.status.scanned_bytes == found.scanned_bytes == 9 * ORDERS_ROWS
    finally:
        await run(session, "DROP TABLE memory.default.scanned")


# Trino checks the limit every second.
_LARGE = (
    "SELECT count(*) FROM limited a CROSS JOIN tpch.tiny.orders b CROSS JOIN tpch.tiny.orders c"
    " WHERE a.comment < b.comment"
)


@pytest.fixture
async def limited(session: EngineSession) -> AsyncGenerator[None]:
    """Provide a table of 1.3 MB."""
    await run(session, "CREATE TABLE memory.default.limited AS SELECT comment FROM tpch.tiny.orders")
    yield
    await run(session, "DROP TABLE memory.default.limited")


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("setting", ["", "SET SESSION query_max_scan_physical_bytes = '1PB'"])
async def test_trino_ends_statement_that_reads_more_than_its_limit(session: EngineSession, setting: str) -> None:
    if setting:
        await run(session, setting)
    handle = await session.submit(_LARGE, context(max_scanned_bytes=100_000))
    status = await ended(session, handle, within_s=60)
    assert isinstance(status.error, StatementRejected)
    assert "scan limit" in status.error.message
    assert status.scanned_bytes
    await session.close(handle)


@pytest.mark.usefixtures("limited")
async def test_lower_limit_of_the_session_remains(session: EngineSession) -> None:
    await run(session, "SET SESSION query_max_scan_physical_bytes = '10kB'")
    handle = await session.submit(_LARGE, context(max_scanned_bytes=2**50))
    status = await ended(session, handle, within_s=60)
    assert isinstance(status.error, StatementRejected)
    await session.close(handle)


async def test_statement_below_its_limit_runs(session: EngineSession) -> None:
    handle = await session.submit("SELECT count(*) FROM tpch.tiny.orders", context(max_scanned_bytes=100))
    assert (await ended(session, handle)).error is None
    await session.close(handle)
