"""The process that runs a script or a retryable query is killed with SIGKILL (Contract editor 3.3, 5.5)."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from tests.e2e.harness import ServerProcess
from tests.e2e.installation import Installation, Node, eventually, installed, query
from tests.fixtures.database import execute

from queryserver.platform.embedded.companions import ValkeyServer
from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WHO_RUNS = pytest.mark.parametrize("who_runs", ["server", "worker"])


@pytest.fixture
async def place(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path
) -> AsyncIterator[Installation]:
    async with installed(postgres, migrated_template, tmp_path) as place:
        yield place


@asynccontextmanager
async def fleet(
    place: Installation, valkey: ValkeyServer, who_runs: str, *, retry: str = "never"
) -> AsyncGenerator[tuple[Node, ServerProcess, Node]]:
    """Yield the server to call, the process to kill, which runs the statements, and a server that survives."""
    place = with_retry(place, retry)
    if who_runs == "server":
        async with place.server() as victim, place.server() as other:
            yield victim, victim.process, other
        return
    place = place.with_task_server(valkey.url)
    async with place.server() as node, place.worker() as victim:
        yield node, victim.process, node


def with_retry(place: Installation, retry: str) -> Installation:
    """Return the same installation in which the connector option `retry` has this value."""
    return replace(place, environment={**place.environment, "notebook__interpreters__postgresql__retry": retry})


@asynccontextmanager
async def locked(dsn: str, table: str) -> AsyncGenerator[asyncpg.Connection]:
    """Lock the table until the transaction on the yielded connection ends, which happens on exit at the latest."""
    holder = await asyncpg.connect(dsn, timeout=60)
    try:
        await holder.execute(f"BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield holder
    finally:
        await holder.close(timeout=60)


@WHO_RUNS
@pytest.mark.item(88)
async def test_script_of_killed_process_resends_nothing_and_stops(
    place: Installation, valkey: ValkeyServer, who_runs: str
) -> None:
    await execute(place.users_dsn, "CREATE TABLE gate (n int); INSERT INTO gate VALUES (0); CREATE TABLE steps (n int)")
    script = (
        "INSERT INTO steps VALUES (1); SELECT 7 AS seven; INSERT INTO steps SELECT 3 FROM gate;"
        " INSERT INTO steps VALUES (4)"
    )
    async with locked(place.users_dsn, "gate") as holder, fleet(place, valkey, who_runs) as (node, victim, other):
        operation = await node.submit("postgresql", script, run_all="true")

        def third_runs(status: dict[str, Any]) -> bool:
            return [one["state"] for one in status["statements"]] == ["success", "available", "running"]

        await node.until(operation, third_runs)
        await victim.kill9()
        body = await other.status(operation, wait=60)
        assert (body["query_status"]["state"], body["code"], body["statement_id"]) == ("failed", "outcome_unknown", 2)
        states = [one["state"] for one in body["query_status"]["statements"]]
        assert states == ["success", "available", "failed"]
        page = await other.post_ok("editor/fetch_result_data", operationId=operation, statement_id=1)
        assert page["result"]["data"] == [[7]]
        await holder.execute("COMMIT")
        # PostgreSQL continues the statement although its client has disconnected.
        waiting = "select count(*) from pg_stat_activity where query like 'INSERT INTO steps%' and state = 'active'"
        await eventually(lambda: _is_zero(place.users_dsn, waiting))
        assert await query(place.users_dsn, "SELECT array_agg(n ORDER BY n) FROM steps") in ([1], [1, 3])


@WHO_RUNS
@pytest.mark.item(92)
async def test_query_is_retried_if_connector_allows_and_change_is_not(
    place: Installation, valkey: ValkeyServer, who_runs: str
) -> None:
    await execute(place.users_dsn, "CREATE TABLE gate (n int); INSERT INTO gate VALUES (42)")
    async with (
        locked(place.users_dsn, "gate") as holder,
        fleet(place, valkey, who_runs, retry="read_only") as (node, victim, other),
    ):
        reads = await node.submit("postgresql", "SELECT n FROM gate")
        changes = await node.submit("postgresql", "UPDATE gate SET n = n + 1")
        for operation in (reads, changes):
            await node.until(operation, lambda status: status["state"] == "running")
        await victim.kill9()
        survivor = with_retry(place, "read_only").with_task_server(valkey.url).worker()
        async with survivor if who_runs == "worker" else nullcontext():
            body = await other.status(changes, wait=60)
            assert (body["query_status"]["state"], body["code"]) == ("failed", "outcome_unknown")
            await other.until(reads, lambda status: status["state"] in {"running", "available"})
            assert "run again" in (await other.post_ok("editor/get_logs", operationId=reads))["logs"]
            await holder.execute("COMMIT")
            assert await other.state(reads, wait=60) == "available"
            assert (await other.page(reads))["data"] in ([[42]], [[43]])


@pytest.mark.item(92)
async def test_query_ends_as_unknown_by_default(place: Installation, valkey: ValkeyServer) -> None:
    await execute(place.users_dsn, "CREATE TABLE gate (n int)")
    async with locked(place.users_dsn, "gate"), fleet(place, valkey, "server") as (node, victim, other):
        operation = await node.submit("postgresql", "SELECT n FROM gate")
        await node.until(operation, lambda status: status["state"] == "running")
        await victim.kill9()
        assert (await other.status(operation, wait=60))["code"] == "outcome_unknown"


async def _is_zero(dsn: str, sql: str) -> bool:
    return await query(dsn, sql) == 0
