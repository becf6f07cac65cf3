"""The service database fails over to its standby while servers are running."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest
from tests.e2e.installation import Installation, Node, eventually, installed, query, signed_in
from tests.engines.replicated_postgresql import ServerPair, replicated
from tests.fixtures.database import execute

from queryserver.platform.embedded.companions import ValkeyServer
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.migrations import migrate

pytestmark = [pytest.mark.engine("postgresql15"), pytest.mark.timeout(300)]

SERVICE = "service"


@pytest.fixture
def databases() -> Iterator[ServerPair]:
    with replicated() as databases:
        yield databases


@pytest.fixture
async def place(
    postgres: EmbeddedPostgres,
    tcp_open: EmbeddedPostgres,
    migrated_template: str,
    tmp_path: Path,
    databases: ServerPair,
) -> AsyncIterator[Installation]:
    """An installation whose statements run on a separate PostgreSQL server. That server remains available during the
    failover.
    """
    await asyncio.to_thread(databases.execute, f"CREATE DATABASE {SERVICE}")
    dsn = databases.dsn(SERVICE)
    await migrate(dsn)
    async with installed(postgres, migrated_template, tmp_path) as plain:
        yield replace(plain.through(dsn), tokens=await signed_in(dsn, tmp_path))


@pytest.mark.parametrize("who_runs", ["servers", "a worker"])
async def test_failover_to_standby_loses_nothing(
    place: Installation, databases: ServerPair, valkey: ValkeyServer, who_runs: str
) -> None:
    place = place.with_task_server(valkey.url) if who_runs == "a worker" else place
    holder = await asyncpg.connect(place.users_dsn, timeout=60)
    try:
        await execute(place.users_dsn, "CREATE SEQUENCE over")
        await holder.execute("SELECT pg_advisory_lock(7)")
        async with (
            place.server(editor__lease_timeout_s="120") as runner,
            place.server(editor__lease_timeout_s="120") as other,
            place.worker(editor__lease_timeout_s="120") if who_runs == "a worker" else nullcontext() as worker,
        ):
            nodes = (runner, other)
            before = await runner.finished("postgresql", "SELECT generate_series(1, 1000) AS n")
            # PostgreSQL evaluates nextval immediately, so the sequence counts the executions of the statement.
            lasting = await runner.submit("postgresql", "SELECT nextval('over'), pg_advisory_lock(7)::text")
            await runner.until(lasting, lambda status: status["state"] == "running")
            owner = await query(place.database_dsn, "select owner from statements where id = $1::text::uuid", lasting)
            assert worker is None or owner == worker.owner
            await asyncio.to_thread(databases.kill_first)
            for node in nodes:
                answer = await node.post("editor/check_status", operationId=lasting)
                assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
                assert answer.headers["Retry-After"]
                submitted = await node.execute("postgresql", "SELECT nextval('over')")
                assert submitted.json()["code"] == "database_unavailable"
            await asyncio.to_thread(databases.promote_second)
            for node in nodes:
                await eventually(lambda node=node: answers(node, lasting), within_s=60)
                assert await node.state(lasting) == "running"
                assert (await node.page(before, start_row=990))["data"] == [[n] for n in range(991, 1001)]
            await holder.execute("SELECT pg_advisory_unlock(7)")
            for node in nodes:
                assert await node.state(lasting, wait=30) == "available"
                assert (await node.page(lasting))["data"][0][0] == 1
                assert await node.value("postgresql", "SELECT 'new'") == "new"
        assert await query(place.users_dsn, "SELECT last_value FROM over") == 1
    finally:
        await holder.close(timeout=60)


async def answers(node: Node, operation: str) -> bool:
    return (await node.post("editor/check_status", operationId=operation)).status_code == 200
