"""Manages the processes of all engines of one kind: one process per file, and one per user of in-memory databases."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from math import ceil
from typing import Any

from queryserver.engines.process.engine_process import EngineProcess
from queryserver.errors.base import TooManyRequests
from queryserver.errors.statements import EngineUnavailable

_FREE_LOSSES = 2.0
"""Number of lost processes that a user may cause without having to wait."""
_FIRST_WAIT_S, _MAX_WAIT_S = 5.0, 300.0
_HALF_LIFE_S = 600.0


@dataclass(slots=True)
class _LossRecord:
    """One user's recent losses of processes."""

    score: float = 0.0
    """Number of lost processes, halved every ten minutes."""
    lost_at: float = 0.0
    waits_until: float = 0.0


class ProcessLosses:
    """Counts one database's process losses by user. Each further loss doubles the time that the user must wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records = dict[int, _LossRecord]()

    def require_admitted(self, user_id: int) -> None:
        """Raise TooManyRequests if the user must still wait after repeated losses."""
        record = self._records.get(user_id)
        if record is not None and (left := record.waits_until - self._clock()) > 0:
            raise TooManyRequests(
                "Your statements crashed this database's process repeatedly. Retry in"
                f" {ceil(left)} seconds with smaller statements.",
                retry_after=timedelta(seconds=ceil(left)),
            )

    def note(self, user_id: int, share: float) -> None:
        """Record the loss of a process that was running the user's statements.

        `share` is the user's share of the responsibility, from 0 to 1.
        """
        now = self._clock()
        self._records = {user: one for user, one in self._records.items() if now - one.lost_at < 8 * _HALF_LIFE_S}
        record = self._records.setdefault(user_id, _LossRecord())
        record.score = record.score * 0.5 ** ((now - record.lost_at) / _HALF_LIFE_S) + share
        record.lost_at = now
        if record.score > _FREE_LOSSES:
            record.waits_until = now + min(_FIRST_WAIT_S * 2 ** (record.score - _FREE_LOSSES), _MAX_WAIT_S)


Configuration = Mapping[str, Any]
"""The configuration passed to the program. Engines with equal configurations share a process."""

_MAX_TURN_WAIT_S = 30.0
"""How long to wait for a file that is in use with different settings, or until a new user's process is allowed."""
_CHECK_INTERVAL_S = 0.05
_IDLE_S = 60.0
"""How long a user's process is kept once it has no sessions."""
MAX_USERS = 64
"""Maximum number of processes for in-memory databases. An idle process takes some 50 MiB."""


@dataclass(slots=True, eq=False)
class _PooledProcess:
    """A process and the number of sessions that use it."""

    configuration: Configuration
    process: EngineProcess
    uses: int = 0
    idle: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class _DatabaseFile:
    """The process that has a database file open, and the users' losses of such processes."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the process starts or ends."""
    pooled: _PooledProcess | None = None
    engines: set[object] = field(default_factory=set[object])
    """Engines that have used the file and are not closed yet."""
    losses: ProcessLosses = field(default_factory=ProcessLosses)


@dataclass(slots=True, eq=False)
class _PendingStart:
    """Ensures that sessions that one user opens concurrently start only one process.

    `waiting` is the number of sessions that need the lock.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class EngineProcesses:
    """Processes shared by a server's engines of one kind. Each engine must call `leave` when it is closed.

    `program` is the Python source that a process runs. Once there are `max_users` processes for in-memory databases, an
    idle process is ended before one is started for a new user. If no process is idle, the user waits.
    """

    def __init__(self, program: str, *, max_users: int = MAX_USERS) -> None:
        self._program = program
        self._max_users = max_users
        self._files = dict[Hashable, _DatabaseFile]()
        self._users = dict[tuple[object, int], _PooledProcess]()
        self._starting = dict[tuple[object, int], _PendingStart]()
        self._starting_count = 0
        """Number of processes that are being started for users."""
        self._memory_engines = dict[object, ProcessLosses]()
        self._spare: asyncio.Task[EngineProcess] | None = None
        self._ending = set[asyncio.Task[None]]()

    @asynccontextmanager
    async def process_for_file(
        self, engine: object, name: Hashable, wanted: Configuration
    ) -> AsyncGenerator[EngineProcess]:
        """Yield the process that has the named file open. It counts as in use inside the context.

        A process with different settings is replaced once it is idle. Raises EngineUnavailable.
        """
        file = self._files.setdefault(name, _DatabaseFile())
        file.engines.add(engine)
        pooled = await self._shared(file, engine, wanted)
        try:
            yield pooled.process
        finally:
            pooled.uses -= 1

    @asynccontextmanager
    async def process_for_user(
        self, engine: object, user_id: int, wanted: Configuration
    ) -> AsyncGenerator[EngineProcess]:
        """Yield the process for a user's in-memory databases.

        It counts as in use inside the context. Raises EngineUnavailable.
        """
        key = engine, user_id
        starting = self._starting.setdefault(key, _PendingStart())
        starting.waiting += 1
        try:
            async with starting.lock:
                pooled = self._users.get(key)
                if pooled is None or pooled.process.has_ended:
                    pooled = await self._start_for_user(key, wanted)
                pooled.uses += 1
        finally:
            starting.waiting -= 1
            if not starting.waiting:
                del self._starting[key]
        if pooled.idle is not None:
            pooled.idle.cancel()
            pooled.idle = None
        try:
            yield pooled.process
        finally:
            pooled.uses -= 1
            if not pooled.uses and self._users.get(key) is pooled:
                loop = asyncio.get_running_loop()
                pooled.idle = loop.call_later(_IDLE_S, lambda: self._end_later(self._users.pop(key, None)))

    def losses_for(self, engine: object, name: Hashable | None) -> ProcessLosses:
        """Return the loss record of the named file or, if `name` is None, of the engine's in-memory databases."""
        if name is None:
            return self._memory_engines.setdefault(engine, ProcessLosses())
        return self._files.setdefault(name, _DatabaseFile()).losses

    async def leave(self, engine: object) -> None:
        """End the engine's processes, except those that another engine uses. Idempotent."""
        for file in list(self._files.values()):  # other engines may add files in the meantime
            if engine in file.engines:
                async with file.lock:
                    file.engines.discard(engine)
                    if not file.engines and file.pooled is not None:
                        await self._end_shared(file)
        self._memory_engines.pop(engine, None)
        for key in [key for key in self._users if key[0] is engine]:
            self._end_later(self._users.pop(key))
        if not self._memory_engines and self._spare is not None:
            spare, self._spare = self._spare, None
            await self._end_unused(spare)
        if self._ending:
            await asyncio.wait(self._ending)

    async def _shared(self, file: _DatabaseFile, engine: object, wanted: Configuration) -> _PooledProcess:
        """Return the file's process with these settings, already counted as in use."""
        deadline = asyncio.get_running_loop().time() + _MAX_TURN_WAIT_S
        while asyncio.get_running_loop().time() < deadline:
            async with file.lock:
                if engine not in file.engines:  # it was closed while it waited for the file
                    raise EngineUnavailable("The engine is closed.")
                pooled = file.pooled
                if pooled is not None and (
                    pooled.process.has_ended or (pooled.configuration != wanted and not pooled.uses)
                ):
                    pooled = await self._end_shared(file)
                if pooled is None:
                    pooled = file.pooled = _PooledProcess(wanted, await self._started(wanted))
                if pooled.configuration == wanted:
                    pooled.uses += 1
                    return pooled
            await asyncio.sleep(_CHECK_INTERVAL_S)
        raise EngineUnavailable(
            "The database file is in use with other settings. Retry when those statements have ended."
        )

    async def _start_for_user(self, key: tuple[object, int], wanted: Configuration) -> _PooledProcess:
        """Start a new process as soon as the limit on processes allows it."""
        self._end_later(self._users.pop(key, None))
        deadline = asyncio.get_running_loop().time() + _MAX_TURN_WAIT_S
        while len(self._users) + self._starting_count >= self._max_users:
            idle = next((one for one, pooled in self._users.items() if not pooled.uses), None)
            if idle is not None:
                self._end_later(self._users.pop(idle))
                break
            if asyncio.get_running_loop().time() >= deadline:
                raise EngineUnavailable(
                    "Too many users have in-memory databases open. Retry when some of their sessions have closed."
                )
            await asyncio.sleep(_CHECK_INTERVAL_S)
        self._starting_count += 1
        try:
            pooled = _PooledProcess(wanted, await self._started(wanted))
        finally:
            self._starting_count -= 1
        if key[0] not in self._memory_engines:  # the engine was closed while the process started
            await asyncio.shield(self._keep_ending(pooled.process.close()))
            raise EngineUnavailable("The engine is closed.")
        self._users[key] = pooled
        self._start_spare()
        return pooled

    async def _end_shared(self, file: _DatabaseFile) -> None:
        """End a file's process. The file is no longer open when this returns. The caller holds the lock."""
        if file.pooled is not None:
            await asyncio.shield(file.pooled.process.close())
            file.pooled = None  # not before, because a canceled caller does not wait until the file is closed

    def _end_later(self, pooled: _PooledProcess | None) -> None:
        if pooled is not None:
            if pooled.idle is not None:
                pooled.idle.cancel()
            self._keep_ending(pooled.process.close())

    async def _started(self, configuration: Configuration) -> EngineProcess:
        """Return a process that has opened the database. Uses the spare process if there is one."""
        process = None
        while process is None or process.has_ended:
            process = await self._loaded()
        try:
            await process.open(configuration)
        except BaseException:  # the process must not remain without an owner
            await asyncio.shield(self._keep_ending(process.close()))
            raise
        return process

    async def _loaded(self) -> EngineProcess:
        """Return a process that has loaded its program.

        If the caller is canceled, the process is kept for the next caller.
        """
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
            has_engines = self._memory_engines or any(file.engines for file in self._files.values())
            if self._spare is None and has_engines:
                self._spare = starting
            else:
                self._keep_ending(self._end_unused(starting))
            raise

    def _start(self) -> "asyncio.Task[EngineProcess]":
        return asyncio.create_task(EngineProcess.started(self._program), name="engine-process-start")

    def _start_spare(self) -> None:
        """Start a spare process for the next user."""
        if self._spare is None:
            self._spare = self._start()

    async def _end_unused(self, starting: "asyncio.Task[EngineProcess]") -> None:
        with suppress(EngineUnavailable):
            await (await starting).close()

    def _keep_ending(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start `work`, which `leave` waits for even if the caller does not."""
        ending = asyncio.create_task(work, name="engine-process-end")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending
