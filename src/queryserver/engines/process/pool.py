"""The processes of all engines of one kind: one for each file, one for each user of databases in memory."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Hashable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from queryserver.engines.process.engine_process import EngineProcess
from queryserver.engines.process.losses import Losses
from queryserver.errors.statements import EngineUnavailable

Configuration = Mapping[str, Any]
"""What the program gets. Engines with equal ones share a process."""

_TURN_S = 30.0
"""How long an engine with other settings may go on with the same file until the wait for it is given up."""
_CHECK_AGAIN_S = 0.05
_IDLE_S = 60.0
"""How long a process without sessions is kept for its user."""
MOST_USERS = 64
"""Processes of databases in memory that the engines of one kind have at most: an idle one takes some 50 MiB."""


@dataclass(slots=True, eq=False)
class _Held:
    """A process with the sessions that use it."""

    configuration: Configuration
    process: EngineProcess
    uses: int = 0
    idle: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _Place:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the process starts or ends."""
    held: _Held | None = None
    engines: set[object] = field(default_factory=set[object])
    """Those that have used it and are not closed."""
    losses: Losses = field(default_factory=Losses)


@dataclass(slots=True, eq=False)
class _Starting:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class EngineProcesses:
    """Shared by the engines of one kind in a server, each of which calls `leave` when it is closed.

    `program` is the Python text that a process runs. Beyond `most_users` with databases in memory, idle processes make
    way, and users wait.
    """

    def __init__(self, program: str, *, most_users: int = MOST_USERS) -> None:
        self._program = program
        self._most_users = most_users
        self._places = dict[Hashable, _Place]()
        self._users = dict[tuple[object, int], _Held]()
        self._starting = dict[tuple[object, int], _Starting]()
        self._begun = 0
        """Processes of users that are being started."""
        self._memory_engines = dict[object, Losses]()
        self._spare: asyncio.Task[EngineProcess] | None = None
        self._ending = set[asyncio.Task[None]]()

    @asynccontextmanager
    async def of_place(self, engine: object, name: Hashable, wanted: Configuration) -> AsyncGenerator[EngineProcess]:
        """The process that has the file of that name open, in use while inside.

        Engines with other settings take turns: an idle one makes way, one at work is waited for. Raises
        EngineUnavailable.
        """
        place = self._places.setdefault(name, _Place())
        place.engines.add(engine)
        held = await self._shared(place, wanted)
        try:
            yield held.process
        finally:
            held.uses -= 1

    @asynccontextmanager
    async def of_user(self, engine: object, user_id: int, wanted: Configuration) -> AsyncGenerator[EngineProcess]:
        """The process of a user's databases in memory, in use while inside. Raises EngineUnavailable."""
        key = engine, user_id
        starting = self._starting.setdefault(key, _Starting())
        starting.waiting += 1
        try:
            async with starting.lock:
                held = self._users.get(key)
                if held is None or held.process.has_ended:
                    held = await self._of_new_user(key, wanted)
                held.uses += 1
        finally:
            starting.waiting -= 1
            if not starting.waiting:
                del self._starting[key]
        if held.idle is not None:
            held.idle.cancel()
            held.idle = None
        try:
            yield held.process
        finally:
            held.uses -= 1
            if not held.uses and self._users.get(key) is held:
                loop = asyncio.get_running_loop()
                held.idle = loop.call_later(_IDLE_S, lambda: self._end_later(self._users.pop(key, None)))

    def losses_of(self, engine: object, name: Hashable | None) -> Losses:
        """Of the file of that name; None: of the engine's databases in memory."""
        if name is None:
            return self._memory_engines.setdefault(engine, Losses())
        return self._places.setdefault(name, _Place()).losses

    async def leave(self, engine: object) -> None:
        """End the processes that no other engine uses. Idempotent."""
        for place in self._places.values():
            if engine in place.engines:
                async with place.lock:
                    place.engines.discard(engine)
                    if not place.engines and place.held is not None:
                        await self._end_shared(place)
        self._memory_engines.pop(engine, None)
        for key in [key for key in self._users if key[0] is engine]:
            self._end_later(self._users.pop(key))
        if not self._memory_engines and self._spare is not None:
            spare, self._spare = self._spare, None
            await self._end_unused(spare)
        if self._ending:
            await asyncio.wait(self._ending)

    async def _shared(self, place: _Place, wanted: Configuration) -> _Held:
        """The process with these settings, counted as in use."""
        give_up = asyncio.get_running_loop().time() + _TURN_S
        while asyncio.get_running_loop().time() < give_up:
            async with place.lock:
                held = place.held
                if held is not None and (held.process.has_ended or (held.configuration != wanted and not held.uses)):
                    held = await self._end_shared(place)
                if held is None:
                    held = place.held = _Held(wanted, await self._started(wanted))
                if held.configuration == wanted:
                    held.uses += 1
                    return held
            await asyncio.sleep(_CHECK_AGAIN_S)
        raise EngineUnavailable(
            "The database file is in use with other settings; try again when those statements have ended."
        )

    async def _of_new_user(self, key: tuple[object, int], wanted: Configuration) -> _Held:
        """A new process, once there is room for it."""
        self._end_later(self._users.pop(key, None))
        give_up = asyncio.get_running_loop().time() + _TURN_S
        while len(self._users) + self._begun >= self._most_users:
            idle = next((one for one, held in self._users.items() if not held.uses), None)
            if idle is not None:
                self._end_later(self._users.pop(idle))
                break
            if asyncio.get_running_loop().time() >= give_up:
                raise EngineUnavailable(
                    "Too many users have databases in memory; try again when some of their sessions are closed."
                )
            await asyncio.sleep(_CHECK_AGAIN_S)
        self._begun += 1
        try:
            held = self._users[key] = _Held(wanted, await self._started(wanted))
        finally:
            self._begun -= 1
        self._warm()
        return held

    async def _end_shared(self, place: _Place) -> None:
        """The caller has the lock. The file is free when this returns."""
        held, place.held = place.held, None
        if held is not None:
            await asyncio.shield(held.process.close())

    def _end_later(self, held: _Held | None) -> None:
        if held is not None:
            if held.idle is not None:
                held.idle.cancel()
            self._keep_ending(held.process.close())

    async def _started(self, configuration: Configuration) -> EngineProcess:
        """A process with that database open; the spare one if there is one."""
        process = None
        while process is None or process.has_ended:
            process = await self._loaded()
        try:
            await process.open(configuration)
        except BaseException:  # a process without an owner must not stay
            await asyncio.shield(process.close())
            raise
        return process

    async def _loaded(self) -> EngineProcess:
        """One that has loaded its program. When the caller is cancelled, the next one gets it."""
        starting, self._spare = self._spare, None
        is_spare = starting is not None
        if starting is None:
            starting = self._start()
        try:
            return await asyncio.shield(starting)
        except EngineUnavailable:
            if not is_spare:
                raise
            return await self._loaded()
        except asyncio.CancelledError:
            if self._spare is None:
                self._spare = starting
            else:
                self._keep_ending(self._end_unused(starting))
            raise

    def _start(self) -> "asyncio.Task[EngineProcess]":
        return asyncio.create_task(EngineProcess.started(self._program), name="engine-process-start")

    def _warm(self) -> None:
        """Have a process ready for the next user."""
        if self._spare is None:
            self._spare = self._start()

    async def _end_unused(self, starting: "asyncio.Task[EngineProcess]") -> None:
        with suppress(EngineUnavailable):
            await (await starting).close()

    def _keep_ending(self, work: Coroutine[Any, Any, None]) -> None:
        ending = asyncio.create_task(work, name="engine-process-end")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
