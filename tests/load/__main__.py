"""Runs many concurrent users on one server, or on several servers with workers. Prints response times and resource
usage.

`make load` runs 1,000 users for ten minutes on one server. `make load ARGS="--servers 2 --workers 2"` runs the same
load on a fleet, and `ARGS="--users 50 --minutes 0.5"` is a trial. The exit code is 1 if a call failed or a value was
wrong.

A round consists of six calls: execute, status, page, close, autocomplete, history (`users.py`). "Processor per round"
is the CPU time that the servers and workers, or PostgreSQL, used in the measured period, divided by the number of
rounds. It includes a directory listing in every fifth round, and four `is_alive` calls per second. PostgreSQL is both
the service database and the statements' data source. Percentiles are measured in the users' process, from the first
byte sent to the last byte received. The `status` call waits for the statement's end. The servers' memory excludes
PostgreSQL and the broker. A memory page that processes share counts proportionally for each of them.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop
from tests.bench.client import Client
from tests.bench.fleet import Fleet, bench_installation, running_fleet
from tests.bench.processes import processor_s, resident_mib, shared_once_mib

_PROJECT = Path(__file__).resolve().parents[2]
_RESULTS = Path("bench-results")
_P99_MS, _ROUND_MS, _MEMORY_MIB = 250, 5, 350
_ALIVE_CALLS, _ALIVE_CLIENTS = 300, 16
_ENDS_WITHIN_S = 120
ROUND = ("execute", "status", "page", "close", "autocomplete", "history")


@dataclass(frozen=True)
class Usage:
    """CPU seconds that the servers and workers, or PostgreSQL, had used at the time `at`."""

    at: float
    servers_s: float
    postgres_s: float

    @classmethod
    def of(cls, fleet: Fleet) -> "Usage":
        return cls(time.monotonic(), processor_s(fleet.pids), processor_s([fleet.postgres]))


@dataclass(frozen=True)
class Memory:
    """The memory of each server and worker in MiB at one time: `shared_once` is PSS, `resident` is RSS."""

    at_s: int
    shared_once: list[int]
    resident: list[int]

    @classmethod
    def of(cls, fleet: Fleet, at_s: float) -> "Memory":
        pss = [round(shared_once_mib([pid])) for pid in fleet.pids]
        return cls(round(at_s), pss, [round(resident_mib([pid])) for pid in fleet.pids])


async def load(chosen: argparse.Namespace) -> bool:
    """Run the load, print the report and store it in bench-results/. Returns whether all responses were correct."""
    users = [f"user{number}" for number in range(chosen.users)]
    with tempfile.TemporaryDirectory(prefix="qsl") as folder:
        async with (
            bench_installation(Path(folder), users) as installation,
            running_fleet(installation, servers=chosen.servers, workers=chosen.workers) as fleet,
        ):
            alive_ms = await _alive_ms(fleet)
            idle = Memory.of(fleet, 0)
            begins_at = time.monotonic() + 2
            plan = {
                "addresses": fleet.addresses,
                "tokens": [installation.tokens[user] for user in users],
                "begins_at": begins_at,
                "measured_from": begins_at + chosen.warm_up,
                "ends_at": begins_at + chosen.warm_up + chosen.minutes * 60,
                "think_s": chosen.think,
                "keeps_server": chosen.affinity,
                "places": chosen.places,
                "seed": chosen.seed,
            }
            met, usage, memory = await _measured(fleet, plan)
    setting = {name: value for name, value in vars(chosen).items() if name != "seed"}
    facts = {"setting": setting, "alive_ms": alive_ms, "memory": [asdict(one) for one in (idle, *memory)]}
    lines = report(met, usage, [idle, *memory], alive_ms)
    print("\n".join([", ".join(f"{name} {value}" for name, value in setting.items()), *lines]))
    _keep({**facts, "errors": met["errors"], "report": lines})
    return not met["errors"]


async def _alive_ms(fleet: Fleet) -> float:
    """Return the CPU time in ms of one `is_alive` call on an idle fleet."""

    async def some(number: int) -> None:
        async with Client(fleet.addresses[number % len(fleet.addresses)]) as client:
            for _ in range(_ALIVE_CALLS):
                assert (await client.get("/desktop/debug/is_alive"))[0] == 200

    await asyncio.gather(*(some(number) for number in range(_ALIVE_CLIENTS)))
    before = Usage.of(fleet)
    await asyncio.gather(*(some(number) for number in range(_ALIVE_CLIENTS)))
    return (Usage.of(fleet).servers_s - before.servers_s) * 1000 / (_ALIVE_CALLS * _ALIVE_CLIENTS)


async def _measured(fleet: Fleet, plan: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Usage, Usage], list[Memory]]:
    """Run the users; return their results, the usage at the start and end of the measured period, and the memory per
    minute.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.load.users",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=_PROJECT,
        env={**os.environ, "PYTHONPATH": str(_PROJECT)},
    )
    answer = asyncio.create_task(process.communicate(json.dumps(plan).encode()))
    try:
        await _until(plan["measured_from"], answer)
        first, memory = Usage.of(fleet), [Memory.of(fleet, plan["measured_from"] - plan["begins_at"])]
        while (at := min(time.monotonic() + 60, plan["ends_at"])) < plan["ends_at"]:
            await _until(at, answer)
            memory.append(Memory.of(fleet, at - plan["begins_at"]))
        await _until(plan["ends_at"], answer)
        last = Usage.of(fleet)
        memory.append(Memory.of(fleet, plan["ends_at"] - plan["begins_at"]))
        output, _ = await asyncio.wait_for(answer, _ENDS_WITHIN_S)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, process.returncode
    return json.loads(output), (first, last), memory


def report(met: Mapping[str, Any], usage: tuple[Usage, Usage], memory: Sequence[Memory], alive_ms: float) -> list[str]:
    """Return the lines of the report."""
    first, last = usage
    seconds, rounds, took = last.at - first.at, max(met["rounds"], 1), met["took_ms"]
    alive, of_users = took.pop("is_alive", [0.0]), [ms for kind in took.values() for ms in kind]
    servers_ms = (last.servers_s - first.servers_s) * 1000 / rounds
    lines = [f"{sum(met['errors'].values()):>8}  errors (0 wanted)"]
    lines += [f"{count:>8}  {what}" for what, count in met["errors"].items()]
    lines += [f"{rounds / seconds:>8.1f}  rounds per second; {len(of_users) / seconds:.0f} calls per second"]
    lines += [f"{servers_ms:>8.2f}  ms processor of servers and workers per round (<= {_ROUND_MS})"]
    lines += [f"{(last.postgres_s - first.postgres_s) * 1000 / rounds:>8.2f}  ms processor of PostgreSQL per round"]
    lines += [f"{servers_ms / alive_ms:>8.0f}  is_alive ({alive_ms:.3f} ms) have the processor of one round"]
    lines += [f"{_percentile(of_users, 50) / max(_percentile(alive, 50), 0.01):>8.1f}  p50 of all calls / is_alive"]
    lines += [f"{met['processor_s'] / seconds:>8.2f}  cores used by the users", ""]
    lines += [f"{'calls':<14}{'number':>9}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}{'longest':>9}"]
    kinds = [*ROUND, *(kind for kind in took if kind not in ROUND)]
    lines += [_line(kind, took.get(kind, [])) for kind in kinds]
    lines += [_line("all of these", of_users) + f"  (p99 < {_P99_MS})", _line("is_alive", alive), ""]
    lines += [f"Memory in MiB of each server and worker, shared pages once (with all of them); <= {_MEMORY_MIB}, flat:"]
    lines += [f"{one.at_s:>6} s  " + ", ".join(map(_both, one.shared_once, one.resident)) for one in memory]
    return lines


def _both(shared_once: int, resident: int) -> str:
    return f"{shared_once} ({resident})"


def _line(kind: str, took: Sequence[float]) -> str:
    numbers = "".join(f"{_percentile(took, percent):>9.1f}" for percent in (50, 95, 99, 100))
    return f"{kind:<14}{len(took):>9}{numbers}"


def _percentile(took: Sequence[float], percent: int) -> float:
    ordered = sorted(took) or [0.0]
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


async def _until(moment: float, users: asyncio.Task[Any]) -> None:
    """Wait until this time; fail if the users' process exits earlier."""
    await asyncio.wait({users}, timeout=max(moment - time.monotonic(), 0))
    assert not users.done(), "the process of the users has ended early"


def _keep(facts: Mapping[str, Any]) -> None:
    _RESULTS.mkdir(exist_ok=True)
    file = _RESULTS / f"load-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    file.write_text(json.dumps(facts, indent=1))
    print(f"kept in {file}")


def main() -> None:
    """Run the load with the command-line arguments, and exit."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=10, help="measured time, after the warm-up")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="0: the servers run the statements themselves")
    parser.add_argument("--affinity", action="store_true", help="each user keeps to one server; else call by call")
    parser.add_argument("--think", type=float, nargs=2, default=(5, 10), metavar="S", help="from round to round")
    parser.add_argument("--warm-up", type=float, default=20, metavar="S")
    parser.add_argument("--places", type=int, default=1, help="tables that each user completes, 1 to 5")
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(0 if uvloop.run(load(parser.parse_args())) else 1)


if __name__ == "__main__":
    main()
