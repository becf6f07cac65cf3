"""The cost of a statement, and the task server compared with a server that runs its own statements.

Ratios and differences are measured within one run on one installation. The alternatives are measured repeatedly and
alternately, and the best round counts, because other load on the machine makes a round slower, never faster.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncpg
from tests.bench.fleet import Fleet, bench_installation, running_fleet
from tests.bench.parts import full_cycle, repeated
from tests.bench.processes import postgres_pid, processor_s
from tests.bench.setting import Bench, Measured
from tests.e2e.installation import Installation, eventually

_USERS = [f"user{number}" for number in range(8)]
_ROUNDS = 3
_CLIENTS = 64
_TURNS = 2
_STATEMENTS = 100
_LEASE_S = 10
_LONG = "SELECT pg_sleep(600)"
_HELD = 8
"""Number of concurrent statements in the takeover, which is the maximum for one user."""


async def cycle(bench: Bench) -> list[Measured]:
    """Measure the CPU time of execute, status, page and close, in the server and in PostgreSQL (service database and
    data source).
    """
    postgres = postgres_pid(bench.data_dir.parent / "state")
    await repeated(bench, 8, 50, full_cycle)
    before = processor_s([bench.server.pid])
    await repeated(bench, _CLIENTS, 100, lambda client, _: client.get("/desktop/debug/is_alive"))
    alive_ms = (processor_s([bench.server.pid]) - before) * 1000 / (_CLIENTS * 100)
    measured = [Measured("processor of is_alive, 64 clients: our process", f"{alive_ms:.3f} ms")]
    for clients, times in ((_CLIENTS, 25), (8, 200)):
        server_ms, postgres_ms = [], []
        for _ in range(_ROUNDS):
            before = processor_s([bench.server.pid]), processor_s([postgres])
            await repeated(bench, clients, times, full_cycle)
            server_ms.append((processor_s([bench.server.pid]) - before[0]) * 1000 / (clients * times))
            postgres_ms.append((processor_s([postgres]) - before[1]) * 1000 / (clients * times))
        of = f"processor of a full cycle, {clients} clients"
        measured += [
            Measured(f"{of}: our process", f"{min(server_ms):.2f} ms", "<= 3 ms"),
            Measured(f"{of}: PostgreSQL", f"{min(postgres_ms):.2f} ms", "<= 1.2 ms"),
            Measured(f"{of}: our process / is_alive", f"{min(server_ms) / alive_ms:.0f}"),
        ]
    return measured


@dataclass(frozen=True)
class _Way:
    """The measurements of one way to run statements."""

    cycles: float
    """Full cycles per second with 64 clients."""
    to_engine_ms: float
    """The median time from just before the execute call until the statement reads the engine's clock, with one client.
    """


async def task_server(folder: Path) -> list[Measured]:
    """Measure full cycles with no, one and two workers, and the time until the engine receives a statement."""
    rounds: dict[int, list[_Way]] = {0: [], 1: [], 2: []}
    async with bench_installation(folder, _USERS) as installation:
        for _ in range(_TURNS):
            for workers, measured in rounds.items():
                async with running_fleet(installation, workers=workers) as fleet:
                    measured.append(await _way(_bench(installation, fleet)))
    cycles = {workers: max(one.cycles for one in measured) for workers, measured in rounds.items()}
    to_engine = {workers: min(one.to_engine_ms for one in measured) for workers, measured in rounds.items()}
    return [
        Measured("full cycles/s, 64 clients, inline", f"{cycles[0]:.0f}"),
        Measured("full cycles/s, 64 clients, one worker", f"{cycles[1]:.0f}"),
        Measured("full cycles/s, 64 clients, two workers", f"{cycles[2]:.0f}"),
        Measured("task server / inline, one worker", f"{cycles[1] / cycles[0]:.2f}", ">= 0.7"),
        Measured("task server / inline, two workers", f"{cycles[2] / cycles[0]:.2f}", ">= 0.7"),
        Measured("execute to the engine, median, inline", f"{to_engine[0]:.1f} ms"),
        Measured("the same through the broker, above inline", f"{to_engine[1] - to_engine[0]:.1f} ms", "<= 10 ms"),
        Measured("the same with two workers, above inline", f"{to_engine[2] - to_engine[0]:.1f} ms", "<= 10 ms"),
    ]


async def take_over(folder: Path) -> list[Measured]:
    """Measure the time from kill -9 of a worker until a client knows the outcome of each of its statements."""
    took: list[float] = []
    async with (
        bench_installation(folder, _USERS) as installation,
        running_fleet(installation, workers=_ROUNDS + 1, lease_s=_LEASE_S) as fleet,
    ):
        for number in range(_ROUNDS):
            took += await _taken_over(installation, fleet, number)
    return [
        Measured(f"statements of {_ROUNDS} killed workers", f"{len(took)}"),
        Measured(f"kill -9 of a worker to the end of its statements, lease {_LEASE_S} s, median", f"{_median(took)} s"),
        Measured("the same, longest", f"{max(took):.1f} s", f"<= {_LEASE_S + 5} s"),
    ]


async def _way(bench: Bench) -> _Way:
    await repeated(bench, 8, 20, full_cycle)
    to_engine = []
    async with bench.client() as client:
        for _ in range(_STATEMENTS):
            before = time.time()
            ended = await client.call("execute/postgresql", statement="SELECT extract(epoch FROM clock_timestamp())")
            await client.call("check_status", operationId=ended["history_uuid"], wait=10)
            page = await client.call("fetch_result_data", operationId=ended["history_uuid"])
            to_engine.append((float(page["result"]["data"][0][0]) - before) * 1000)
    return _Way(await repeated(bench, _CLIENTS, 25, full_cycle), statistics.median(to_engine))


async def _taken_over(installation: Installation, fleet: Fleet, number: int) -> list[float]:
    """Kill the worker that runs most of the statements; return the seconds until each outcome is known."""
    bench = _bench(installation, fleet)
    async with bench.client(number) as client:
        answers = [await client.call("execute/postgresql", statement=_LONG) for _ in range(_HELD)]
        operations = [answer["history_uuid"] for answer in answers]
        owned: dict[str, list[str]] = {}

        async def all_sent() -> bool:
            owned.clear()
            for operation, owner in await _running(installation):
                owned.setdefault(owner, []).append(operation)
            return sum(map(len, owned.values())) == _HELD

        await eventually(all_sent)
        victim = max(owned, key=lambda owner: len(owned[owner]))
        (worker,) = (one for one in fleet.workers if one.owner == victim)
        killed_at = time.monotonic()
        await worker.process.kill9()
        took = await asyncio.gather(*(_ended_after(bench, number, one, killed_at) for one in owned[victim]))
        for operation in operations:
            await client.call("cancel_statement", operationId=operation)

        async def nothing_runs() -> bool:
            return not await _running(installation)

        await eventually(nothing_runs)
    return list(took)


async def _ended_after(bench: Bench, user: int, operation: str, began: float) -> float:
    state = "running"
    async with bench.client(user) as client:
        while state in {"waiting", "running"}:
            status, body = await client.post("/api/v1/editor/check_status", {"operationId": operation, "wait": 60})
            state = json.loads(body)["query_status"]["state"]
    # The statement was sent, and PostgreSQL cannot report its outcome, so no worker may send it again.
    assert status == 200, body
    assert json.loads(body)["code"] == "outcome_unknown", body
    return time.monotonic() - began


async def _running(installation: Installation) -> Sequence[tuple[str, str]]:
    """Return the operation id and owner of every statement that has been sent but has not finished."""
    connection = await asyncpg.connect(installation.database_dsn, timeout=60, command_timeout=60)
    try:
        rows = await connection.fetch("select id::text, owner from statements where state = 'running'")
    finally:
        await connection.close(timeout=60)
    return [(row["id"], row["owner"]) for row in rows]


def _bench(installation: Installation, fleet: Fleet) -> Bench:
    tokens = tuple(installation.tokens[user] for user in _USERS)
    data_dir = installation.directory / "data"
    return Bench(fleet.servers[0].process, data_dir, tokens, installation.users_dsn, installation.database_dsn)


def _median(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f}"
