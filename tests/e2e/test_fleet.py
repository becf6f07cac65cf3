"""Servers and workers run as processes on one service database and one Valkey (Contract platform 10.1, 10.2)."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.e2e.installation import (
    Installation,
    Node,
    WorkerProcess,
    at_work,
    eventually,
    held,
    installed,
    is_at_work,
    query,
)
from tests.fixtures.database import execute
from tests.fixtures.valkey import running_valkey
from tests.timing import at_best

from queryserver.platform.embedded.companions import ValkeyServer
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.shutdown import REST_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LEASE_S = 6
"""The lease must be this long, because a process may block its event loop for three seconds when it starts on a busy
machine.
"""
TAKEN_OVER_WITHIN_S = LEASE_S + 15
GATED = "gated"
"""The name of a connector whose PostgreSQL is reached through the gate."""


class Gate:
    """A proxy for PostgreSQL. While it is closed, it still accepts connections but forwards nothing."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._open = asyncio.Event()
        self._open.set()
        self._passing: set[asyncio.Task[None]] = set()
        self.port = 0

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Gate"]:
        """Listen on a loopback port until the context exits."""
        server = await asyncio.start_server(self._accept, "127.0.0.1")
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._passing:
                task.cancel()
            await asyncio.gather(*self._passing, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._open.wait()
            with suppress(OSError):
                from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target_port)
                try:
                    await asyncio.gather(_pass_on(reader, to_server), _pass_on(from_server, writer))
                finally:
                    to_server.close()
        finally:
            writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()


@pytest.fixture(scope="module")
async def broker() -> AsyncIterator[ValkeyServer]:
    """A Valkey server that all tests in this file share."""
    async with running_valkey() as server:
        yield server


@pytest.fixture(scope="module")
async def gate(tcp_open: EmbeddedPostgres) -> AsyncIterator[Gate]:
    """A gate that all tests in this file share. It is open unless a test closes it."""
    async with Gate(tcp_open.address.port).listening() as gate:
        yield gate


@pytest.fixture(scope="module")
async def place(
    tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path_factory, broker: ValkeyServer, gate: Gate
) -> AsyncIterator[Installation]:
    """An installation with a task server that all tests in this file share."""
    admin = tcp_open.admin_dsn()
    await execute(admin, f"CREATE ROLE {GATED} LOGIN PASSWORD '{GATED}'")
    gated = {
        "interface": "sqlalchemy",
        "dialect": "postgresql",
        "options": {"url": f"postgresql://{GATED}:{GATED}@127.0.0.1:{gate.port}/{GATED}"},
    }
    await execute(admin, f"CREATE DATABASE {GATED} TEMPLATE template0 OWNER {GATED}")
    async with installed(tcp_open, migrated_template, tmp_path_factory.mktemp("fleet"), {GATED: gated}) as place:
        yield place.with_task_server(broker.url, lease_s=LEASE_S)
    await execute(admin, f"DROP DATABASE {GATED} WITH (FORCE)")
    await execute(admin, f"DROP ROLE {GATED}")


@pytest.fixture(scope="module")
async def pair(place: Installation) -> AsyncIterator[tuple[Node, Node]]:
    """Two servers, whose statements are run by workers."""
    async with place.server() as first, place.server() as second:
        yield first, second


@pytest.fixture
async def gated_dsn(tcp_open: EmbeddedPostgres, gate: Gate) -> AsyncIterator[str]:
    """A DSN that bypasses the gate. The gate is opened when the test ends."""
    yield f"postgresql://{GATED}:{GATED}@127.0.0.1:{tcp_open.address.port}/{GATED}"
    gate.open()


async def sent(dsn: str, sequence: str) -> int:
    """Return the number of executions that the sequence on the engine has counted."""
    return await query(dsn, f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}")


async def owned(place: Installation, operation: str) -> str | None:
    """Return the owner of the statement."""
    return await query(place.database_dsn, "select owner from statements where id = $1::text::uuid", operation)


async def all_available(node: Node, operations: Sequence[str], **options: Any) -> list[Any]:
    """Wait until the results of all statements are available; return their first cells."""
    cells = []
    for operation in operations:
        body = await node.status(operation, wait=60, **options)
        assert body["query_status"]["state"] == "available", body
        cells.append((await node.page(operation, **options))["data"][0][0])
    return cells


@asynccontextmanager
async def paused(worker: WorkerProcess) -> AsyncIterator[None]:
    """Pause the worker process until the context exits."""
    worker.process.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.process.process.send_signal(signal.SIGCONT)


@pytest.mark.platform(103)
async def test_without_broker_statements_are_accepted_and_run_once(
    place: Installation, pair: tuple[Node, Node], broker: ValkeyServer
) -> None:
    await execute(place.users_dsn, "CREATE SEQUENCE away")
    nodes = cycle(pair)
    async with place.worker(), place.worker():
        submits = [next(nodes).submit("postgresql", "SELECT nextval('away')") for _ in range(6)]
        _, *operations = await asyncio.gather(broker.stop(), *submits)
        try:
            operations += [await next(nodes).submit("postgresql", "SELECT nextval('away')") for _ in range(4)]
            assert sorted(await all_available(pair[0], operations)) == list(range(1, 11))
            waiting = await pair[1].submit("postgresql", "SELECT nextval('away')")
        finally:
            await broker.start()
        assert await all_available(pair[0], [waiting]) == [11]

        async def five() -> tuple[float, None]:
            # If the events were found only by sweeps, this would take 20 s.
            began = time.monotonic()
            for _ in range(5):
                await pair[0].finished("postgresql", "SELECT nextval('away')")
            return time.monotonic() - began, None

        await at_best(five, below_s=10)
    runs = await query(place.database_dsn, "select count(*) from statements where statement like '%nextval(''away'')%'")
    assert await sent(place.users_dsn, "away") == runs


@pytest.mark.platform(103)
@pytest.mark.parametrize("workers", ["none", "a full one"])
async def test_emptied_broker_loses_no_statement(
    place: Installation, pair: tuple[Node, Node], broker: ValkeyServer, workers: str
) -> None:
    sequence = f"emptied_{workers.split(maxsplit=1)[0]}"
    await execute(place.users_dsn, f"CREATE SEQUENCE {sequence}")
    async with held(place.users_dsn, 1) as release, AsyncExitStack() as stack, Redis.from_url(broker.url) as redis:
        await redis.flushall()
        if workers != "none":
            await stack.enter_async_context(place.worker(desktop__task_server__concurrency="1"))
            lasting = await pair[0].submit("postgresql", "SELECT pg_advisory_xact_lock(1)", user="bob")
            await pair[0].until(lasting, lambda status: status["state"] == "running", user="bob")
        operations = [await pair[0].submit("postgresql", f"SELECT nextval('{sequence}')") for _ in range(6)]
        await eventually(lambda: redis.exists("queryserver"), within_s=10)
        await redis.flushall()
        assert {await pair[0].state(operation) for operation in operations} == {"waiting"}
        await release()
        if workers == "none":
            await stack.enter_async_context(place.worker())
        assert sorted(await all_available(pair[1], operations)) == [1, 2, 3, 4, 5, 6]
    assert await sent(place.users_dsn, sequence) == 6


@pytest.mark.platform(104)
async def test_unsent_statement_of_killed_worker_runs_on_another(
    place: Installation, pair: tuple[Node, Node], gate: Gate, gated_dsn: str
) -> None:
    await execute(gated_dsn, "CREATE SEQUENCE unsent")
    async with place.worker() as victim:
        gate.close()
        operation = await pair[0].submit(GATED, "SELECT nextval('unsent') + ?", parameters="[41]")
        await eventually(lambda: owned(place, operation))
        assert await owned(place, operation) == victim.owner
        assert await pair[0].state(operation) == "waiting"
        async with place.worker() as survivor:
            await victim.process.kill9()
            gate.open()
            killed = time.monotonic()
            assert await all_available(pair[1], [operation]) == [42]
            assert time.monotonic() - killed < TAKEN_OVER_WITHIN_S
            assert await owned(place, operation) == survivor.owner
    assert await sent(gated_dsn, "unsent") == 1


@pytest.mark.platform(104)
async def test_sent_statements_of_killed_worker_end_as_unknown_and_free_slots(
    place: Installation, pair: tuple[Node, Node], tcp_open: EmbeddedPostgres
) -> None:
    await execute(place.users_dsn, "CREATE SEQUENCE killed; CREATE SEQUENCE queued")
    # A single user can occupy only eight slots. The ninth slot is reserved for other users.
    async with place.worker(desktop__task_server__concurrency="9") as victim:
        lasting = "SELECT nextval('killed'), pg_sleep(60)"
        running = [await pair[0].submit("postgresql", f"{lasting}, {number}") for number in range(8)]
        for operation in running:
            await pair[0].until(operation, lambda status: status["state"] == "running")
        queued = [await pair[0].submit("postgresql", "SELECT nextval('queued')") for _ in range(2)]
        async with place.worker():
            assert {await pair[0].state(operation) for operation in queued} == {"waiting"}
            await victim.process.kill9()
            killed = time.monotonic()
            for operation in running:
                body = await pair[1].status(operation, wait=30)
                assert (body["query_status"]["state"], body["code"]) == ("failed", "outcome_unknown")
            assert time.monotonic() - killed < TAKEN_OVER_WITHIN_S
            assert sorted(await all_available(pair[1], queued)) == [1, 2]
            assert time.monotonic() - killed < TAKEN_OVER_WITHIN_S
    assert await sent(place.users_dsn, "killed") == 8
    assert await sent(place.users_dsn, "queued") == 2
    # PostgreSQL continues these statements although their client has disconnected.
    stop = "select pg_terminate_backend(pid) from pg_stat_activity where query like '%nextval(''killed'')%' and state = 'active' and pid <> pg_backend_pid()"  # noqa: E501
    await execute(tcp_open.admin_dsn(), stop)


@pytest.mark.platform(105)
async def test_paused_worker_cannot_write_after_lease_expiry(
    place: Installation, pair: tuple[Node, Node], tcp_open: EmbeddedPostgres
) -> None:
    # The first rows are stored immediately. The remaining rows arrive slowly.
    sql = """SELECT n, md5(n::text) || md5((n + 1)::text), CASE WHEN n > 200000 THEN pg_sleep(0.001)::text END
        FROM generate_series(1, 1000000) AS n"""
    record = """select (state, rows, size_bytes, fence, owner, message, ended_at)::text
        from statements where id = $1::text::uuid"""
    async with held(place.users_dsn, 2) as release, place.worker() as victim:
        rows = await pair[0].submit("postgresql", sql, limit=1_000_000)
        answer = await pair[0].submit("postgresql", "SELECT 'of the paused', pg_advisory_xact_lock(2)")
        await pair[0].until(answer, lambda status: status["state"] == "running")
        await pair[0].until(rows, lambda status: status["rows"] > 0)
        await eventually(lambda: is_at_work(tcp_open.admin_dsn(), "of the paused"))
        async with place.worker() as other:
            async with paused(victim):
                for operation in (rows, answer):
                    body = await pair[1].status(operation, wait=30)
                    assert (body["query_status"]["state"], body["code"]) == ("failed", "outcome_unknown")
                    # The other worker or a server records the outcome, because this requires no engine.
                    assert await owned(place, operation) != victim.owner
                before = [await query(place.database_dsn, record, one) for one in (rows, answer)]
                # From now on, the paused worker can read the engine's response.
                await release()
                await eventually(lambda: _answered(tcp_open, "of the paused"))
            assert await other.process.terminate() == 0
        # The victim is now the only worker, so it must run new statements.
        assert await pair[0].value("postgresql", "SELECT 'new'") == "new"
        await eventually(lambda: _idle(tcp_open, "WHEN n > 200000"))
        await runs_nothing_now(place, victim.owner)
        assert [await query(place.database_dsn, record, one) for one in (rows, answer)] == before
        for operation in (rows, answer):
            assert (await pair[0].status(operation))["code"] == "outcome_unknown"
            page = await pair[0].post("editor/fetch_result_data", operationId=operation)
            assert page.json()["status"] != 0
        # The earlier segments of this result are deleted, and no new segments are added.
        await eventually(lambda: _no_segments(place, rows))
        # A file that the worker has written since then has no record. The orphan sweep deletes it an hour later.
        assert await victim.process.terminate() == 0


async def _idle(postgres: EmbeddedPostgres, marker: str) -> bool:
    return not await at_work(postgres.admin_dsn(), marker)


async def _answered(postgres: EmbeddedPostgres, marker: str) -> bool:
    """Return whether PostgreSQL has finished the statement. Its client may not have read the response yet."""
    active = """select count(*) from pg_stat_activity
        where query like '%' || $1 || '%' and state = 'active' and pid <> pg_backend_pid()"""
    return not await query(postgres.admin_dsn(), active, marker)


async def runs_nothing_now(place: Installation, owner: str) -> None:
    """Wait for a new heartbeat of this worker that reports no running statements."""
    now = await query(place.database_dsn, "select now()")
    idle = "select running = 0 from instances where id = $1 and heartbeat_at > $2"
    await eventually(lambda: query(place.database_dsn, idle, owner, now), within_s=30)


async def _no_segments(place: Installation, operation: str) -> bool:
    stored = "select count(*) from result_segments where statement_id = $1::text::uuid"
    return not await query(place.database_dsn, stored, operation)


@pytest.mark.platform(105)
async def test_paused_worker_does_not_resend_statement_sent_by_another(
    place: Installation, pair: tuple[Node, Node], gate: Gate, gated_dsn: str
) -> None:
    await execute(gated_dsn, "CREATE SEQUENCE paused")
    async with place.worker() as victim:
        gate.close()
        operation = await pair[0].submit(GATED, "SELECT nextval('paused')")
        await eventually(lambda: owned(place, operation))
        async with paused(victim), place.worker() as other:
            gate.open()
            assert await all_available(pair[1], [operation]) == [1]
            assert await owned(place, operation) == other.owner
            assert await other.process.terminate() == 0
        await runs_nothing_now(place, victim.owner)
        assert await pair[0].value("postgresql", "SELECT 'new'") == "new"
        assert await pair[0].state(operation) == "available"
    assert await sent(gated_dsn, "paused") == 1


async def test_stopping_worker_finishes_running_statements_and_accepts_none(
    place: Installation, pair: tuple[Node, Node], gate: Gate, gated_dsn: str
) -> None:
    await execute(gated_dsn, "CREATE SEQUENCE given_back")
    async with held(place.users_dsn, 3) as release, place.worker(desktop__shutdown_grace_s="12") as stopping:
        gate.close()
        unsent = await pair[0].submit(GATED, "SELECT nextval('given_back')")
        running = await pair[0].submit("postgresql", "SELECT 'finished', pg_advisory_xact_lock(3)")
        await eventually(lambda: owned(place, unsent))
        await pair[0].until(running, lambda status: status["state"] == "running")
        began = time.monotonic()
        stopping.process.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(2)  # the worker has received the signal by then
        # The worker runs two of eight statements, so it would take a third one if it were not stopping.
        new = await pair[0].submit("postgresql", "SELECT 'new'")
        await asyncio.sleep(3)
        await release()
        assert (await pair[0].state(running, wait=30), await pair[0].state(new)) == ("available", "waiting")
        assert await owned(place, new) is None
        async with place.worker() as other:
            assert await all_available(pair[0], [new]) == ["new"]
            assert await stopping.process.terminate() == 0
            assert time.monotonic() - began < 12 + REST_S
            gate.open()
            assert await all_available(pair[1], [running, unsent]) == ["finished", 1]
            assert await owned(place, unsent) == other.owner
    assert await sent(gated_dsn, "given_back") == 1


async def test_statements_wait_until_a_worker_starts(place: Installation, pair: tuple[Node, Node]) -> None:
    await execute(place.users_dsn, "CREATE SEQUENCE alone; CREATE SEQUENCE never")
    operations = [await pair[0].submit("postgresql", f"SELECT {n}, nextval('alone')") for n in range(3)]
    late = await pair[0].submit("postgresql", "SELECT nextval('never')", timeout=1, user="bob")
    canceled = await pair[0].submit("postgresql", "SELECT nextval('never')", user="eve")
    assert (await pair[1].post_ok("editor/cancel_statement", operationId=canceled, user="eve"))["status"] == 0
    assert await pair[0].state(canceled, user="eve", wait=30) == "canceled"
    shown = [(await pair[1].status(operation))["query_status"] for operation in operations]
    assert [status["state"] for status in shown] == ["waiting"] * 3
    positions = [status["queue_position"] for status in shown]
    assert positions == sorted(set(positions)), positions
    assert await pair[1].state(late, user="bob", wait=30) == "timed_out"
    async with place.worker():
        assert await all_available(pair[1], operations) == [0, 1, 2]
        assert await pair[1].state(canceled, user="eve") == "canceled"
    assert (await sent(place.users_dsn, "alone"), await sent(place.users_dsn, "never")) == (3, 0)


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite", "duckdb"])
async def test_each_server_responds_for_worker_statements(
    place: Installation, pair: tuple[Node, Node], dialect: str
) -> None:
    nodes = cycle(pair)
    async with place.worker():
        for number in range(3):
            operation = await next(nodes).submit(dialect, f"SELECT {number} AS n")
            next(nodes)
            assert await next(nodes).state(operation, wait=30) == "available"
            assert [await next(nodes).page(operation) for _ in range(2)][1]["data"] == [[number]]
            logs = [(await next(nodes).post_ok("editor/get_logs", operationId=operation))["logs"] for _ in range(2)]
            assert logs[0]
            assert logs[0] == logs[1]
            assert await next(nodes).file(operation) == await next(nodes).file(operation)


@pytest.mark.parametrize("call", ["cancel_statement", "close_statement"])
async def test_cancel_on_another_server_reaches_worker_and_engine(
    place: Installation, pair: tuple[Node, Node], tcp_open: EmbeddedPostgres, call: str
) -> None:
    marker = f"fleet {call}"
    async with place.worker():

        async def stop() -> tuple[float, None]:
            operation = await pair[0].submit("postgresql", f"SELECT pg_sleep(60), '{marker}'")
            await pair[0].until(operation, lambda status: status["state"] == "running")
            await eventually(lambda: is_at_work(tcp_open.admin_dsn(), marker))
            began = time.monotonic()
            assert (await pair[1].post_ok(f"editor/{call}", operationId=operation))["status"] == 0
            assert await pair[0].state(operation, wait=30) == "canceled"
            took_s = time.monotonic() - began
            assert await at_work(tcp_open.admin_dsn(), marker) == 0
            return took_s, None

        await at_best(stop, below_s=3)


async def test_session_belongs_to_the_server_that_opened_it(place: Installation, pair: tuple[Node, Node]) -> None:
    # No worker is running, so one of the servers opens the session.
    created = await pair[0].post_ok("editor/create_session", session='{"type": "postgresql"}')
    session = created["session"]["id"]
    await pair[1].finished("postgresql", "CREATE TEMP TABLE here AS SELECT 7 AS n", session_id=session)
    async with place.worker():
        for node in (*pair, *pair):
            operation = await node.finished("postgresql", "SELECT n FROM here", session_id=session)
            assert (await node.page(operation))["data"] == [[7]]
            session_owner = await query(place.database_dsn, "select owner from sessions where id = $1", session)
            assert await owned(place, operation) == session_owner
            kind = await query(place.database_dsn, "select kind from instances where id = $1", session_owner)
            assert kind == "server"
    await pair[1].post_ok("editor/close_session", session=f'{{"type": "postgresql", "id": {session}}}')


async def test_script_statements_keep_one_session_across_workers(place: Installation, pair: tuple[Node, Node]) -> None:
    script = "CREATE TEMP TABLE s AS SELECT 5 AS n; SELECT n FROM s; SELECT n + 1 FROM s"
    async with place.worker() as first, place.worker() as second:
        for _ in range(3):
            operation = await pair[0].finished("postgresql", script)
            seen, owners = [], {await owned(place, operation)}
            for node in (pair[1], pair[0]):
                going_on = await node.post_ok("editor/execute/postgresql", operationId=operation, wait=30)
                operation = going_on["history_uuid"]
                seen.append((await node.page(operation))["data"])
                owners.add(await owned(place, operation))
            assert seen == [[[5]], [[6]]]
            assert len(owners) == 1
            assert owners <= {first.owner, second.owner}


async def test_duckdb_file_is_used_through_the_worker_that_holds_it(
    tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path, broker: ValkeyServer
) -> None:
    # This test has its own installation, because a server of the shared one may have locked the file while no worker
    # was running.
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(installed(tcp_open, migrated_template, tmp_path))
        place = own.with_task_server(broker.url, lease_s=LEASE_S)
        place = replace(place, environment={**place.environment, "desktop__task_server__queue": "duckdb"})
        first, second = [await stack.enter_async_context(place.worker()) for _ in range(2)]
        pair = [await stack.enter_async_context(place.server()) for _ in range(2)]
        await pair[0].finished("duckdb", "CREATE OR REPLACE TABLE t AS SELECT 1 AS n")
        await pair[1].finished("duckdb", "INSERT INTO t SELECT 2")
        operations = [await node.finished("duckdb", "SELECT sum(n)::INTEGER FROM t") for node in (*pair, *pair)]
        assert await all_available(pair[1], operations) == [3] * 4
        holders = {await owned(place, operation) for operation in operations}
        assert len(holders) == 1
        assert holders <= {first.owner, second.owner}
        for node in pair:
            tables = await node.post_ok("editor/autocomplete/main", snippet='{"type": "duckdb"}')
            assert "t" in [table["name"] for table in tables["tables_meta"]]
        holder = first if holders == {first.owner} else second
        await holder.process.kill9()
        assert await pair[0].value("duckdb", "SELECT count(*)::INTEGER FROM t") == 2
