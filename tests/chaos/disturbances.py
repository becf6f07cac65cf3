"""Disturbances of the fleet. One starts every 20 seconds, and each is undone automatically."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from redis.asyncio import Redis
from tests.chaos.clients import now
from tests.chaos.fleet import Fleet, Member, until

EVERY_S = 20.0
_HELD_S = 40.0
_AWAY_S = (5.0, 15.0)
_RESTARTED_WITHIN_S = 120


class Disturbances:
    """Runs all disturbances in random order. `log` contains the effect of each."""

    def __init__(self, fleet: Fleet, random: Random) -> None:
        self._fleet = fleet
        self._random = random
        self._single = {name: asyncio.Lock() for name in ("broker", "database", "results", "rolling")}
        self.log: list[dict[str, str]] = []

    async def run(self, ends_at: float) -> None:
        """Start disturbances until the given time, and wait until all of them are undone."""
        kinds: list[Callable[[], Awaitable[str]]] = [
            self.kill_server,
            self.kill_worker,
            self.hold_server,
            self.hold_worker,
            self.broker_stopped,
            self.broker_flushed,
            self.database_restarted,
            self.database_crashed,
            self.results_away,
            self.rolling_restart,
        ]
        turns: list[Callable[[], Awaitable[str]]] = []
        async with asyncio.TaskGroup() as running:
            while time.monotonic() + EVERY_S < ends_at:
                await asyncio.sleep(EVERY_S)
                turns = turns or self._random.sample(kinds, len(kinds))
                running.create_task(self._noted(turns.pop()))

    async def kill_server(self) -> str:
        """Kill a server with SIGKILL, then restart it."""
        return await self._killed(self._fleet.servers)

    async def kill_worker(self) -> str:
        """Kill a worker with SIGKILL, then restart it."""
        return await self._killed(self._fleet.workers)

    async def hold_server(self) -> str:
        """Pause a server (SIGSTOP) for longer than a lease lasts."""
        return await self._held(self._fleet.servers)

    async def hold_worker(self) -> str:
        """Pause a worker (SIGSTOP) for longer than a lease lasts."""
        return await self._held(self._fleet.workers)

    async def broker_stopped(self) -> str:
        """Stop the broker for some seconds. It has no data after its restart."""
        async with self._single["broker"]:
            await self._fleet.valkey.stop()
            await asyncio.sleep(self._random.uniform(*_AWAY_S))
            await self._fleet.valkey.start()
        return "stopped and started"

    async def broker_flushed(self) -> str:
        """Delete all data in the broker."""
        async with self._single["broker"], Redis.from_url(self._fleet.valkey.url) as broker:
            await broker.flushall()
        return "flushed"

    async def database_restarted(self) -> str:
        """Stop PostgreSQL with a fast shutdown, and restart it at the same address. It has both the service database
        and the target table.
        """
        return await self._database_ended(signal.SIGINT)

    async def database_crashed(self) -> str:
        """Stop PostgreSQL without a shutdown, so that it must recover when it restarts."""
        return await self._database_ended(signal.SIGQUIT)

    async def results_away(self) -> str:
        """Redirect the link to the results for some seconds, either to a missing path, as if a mount were lost, or to a
        file.
        """
        async with self._single["results"]:
            kind = self._random.choice(("nowhere", "a file"))
            replacement = self._fleet.directory / kind.replace(" ", "-")
            if kind == "a file":
                replacement.touch()
            self._link(replacement)
            try:
                await asyncio.sleep(self._random.uniform(*_AWAY_S))
            finally:
                self._link(self._fleet.directory / "store")
        return kind

    async def rolling_restart(self) -> str:
        """Restart all members one after another with SIGTERM. The next member is stopped when the previous one is
        ready.
        """
        slow: list[str] = []
        async with self._single["rolling"]:
            for member in self._fleet.members:
                async with self._taken(member):
                    if not await member.stop():
                        slow.append(member.name)
                    await member.start()
                    await member.ready()
        return f"killed, as they did not end: {slow}" if slow else "all ended by themselves"

    async def _database_ended(self, number: signal.Signals) -> str:
        async with self._single["database"]:
            file = self._fleet.postgres.cluster.data / "postmaster.pid"
            await until(lambda: bool(_lines(file)[0]), _RESTARTED_WITHIN_S)
            before = _lines(file)[0]
            os.kill(int(before), number)
            await until(lambda: _is_new_and_ready(file, before), _RESTARTED_WITHIN_S)
        return number.name

    async def _killed(self, members: Sequence[Member]) -> str:
        async with self._one_of(members) as member:
            await member.kill()
            await member.start()
            await member.ready()
        return member.name

    async def _held(self, members: Sequence[Member]) -> str:
        async with self._one_of(members) as member:
            member.send(signal.SIGSTOP)
            try:
                await asyncio.sleep(_HELD_S)
            finally:
                member.send(signal.SIGCONT)
        return member.name

    @asynccontextmanager
    async def _one_of(self, members: Sequence[Member]) -> AsyncGenerator[Member]:
        await until(lambda: any(not member.taken for member in members), _RESTARTED_WITHIN_S)
        member = self._random.choice([member for member in members if not member.taken])
        async with self._taken(member):
            yield member

    @asynccontextmanager
    async def _taken(self, member: Member) -> AsyncGenerator[None]:
        await until(lambda: not member.taken, _RESTARTED_WITHIN_S)
        member.taken = True
        try:
            yield
        finally:
            member.taken = False

    def _link(self, target: Path) -> None:
        new = self._fleet.results.with_name("results.new")
        new.symlink_to(target)
        new.replace(self._fleet.results)

    async def _noted(self, disturbance: Callable[[], Awaitable[str]]) -> None:
        note = {"what": disturbance.__name__, "from": now(), "until": "", "details": ""}
        self.log.append(note)
        print(f"{note['from'][11:19]} {note['what']}", flush=True)
        note["details"] = await disturbance()
        note["until"] = now()


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().split("\n")
    except FileNotFoundError:
        return [""]


def _is_new_and_ready(file: Path, before: str) -> bool:
    lines = _lines(file)
    return lines[0] not in {"", before} and len(lines) > 7 and lines[7].startswith("ready")
