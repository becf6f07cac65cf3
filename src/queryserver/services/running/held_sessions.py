"""Engine sessions that outlive one statement, held by this process.

Each has a task of its own that opens it, keeps it and closes it: an engine session belongs to one task, while the
statements that use it come and go.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import structlog

from queryserver.domain.errors import DatabaseUnavailable, EngineError, SessionLost
from queryserver.domain.user import User
from queryserver.interfaces.engine import Engine, EngineSession, SessionOptions

log = structlog.get_logger(__name__)


class HeldSession:
    """One open engine session with its keeper. Statements take turns in the order in which they come."""

    def __init__(self, session_id: int, user_id: int, *, named: bool, idle: timedelta) -> None:
        self.id = session_id
        self.user_id = user_id
        self.named = named
        self.is_recorded = False
        self.turn = asyncio.Lock()
        self._idle_s = idle.total_seconds()
        self._last_used = time.monotonic()
        self._opened: asyncio.Future[EngineSession] = asyncio.get_running_loop().create_future()
        self._released = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def open(self, engine: Engine, user: User, options: SessionOptions) -> None:
        """Open the engine session. Raises what the engine raises."""
        self._keeper = asyncio.create_task(self._keep(engine, user, options), name=f"session-{self.id}")
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, self._opened, return_exceptions=True)
            raise

    async def close(self) -> None:
        """Close it; work that the engine still does in it ends."""
        self._released.set()
        if self._keeper is not None:
            await asyncio.gather(self._keeper, return_exceptions=True)

    @property
    def engine_session(self) -> EngineSession:
        """The open session."""
        return self._opened.result()

    def touch(self) -> None:
        """The user did something in it."""
        self._last_used = time.monotonic()

    @property
    def unused_s(self) -> float:
        """How long nobody used it; 0 while a statement runs in it."""
        return 0 if self.turn.locked() else time.monotonic() - self._last_used

    @property
    def is_idle(self) -> bool:
        """Nothing runs in it and its time without use is over."""
        return not self.turn.locked() and self.unused_s >= self._idle_s

    async def _keep(self, engine: Engine, user: User, options: SessionOptions) -> None:
        try:
            async with engine.session(user, options) as session:
                self._opened.set_result(session)
                await self._released.wait()
        except EngineError as error:
            if not self._opened.done():
                self._opened.set_exception(error)
            else:
                log.warning("engine session did not close cleanly", session=self.id, code=error.code)
        except BaseException as error:  # a cancel too: whoever waits for the opening must hear of it
            if not self._opened.done():
                self._opened.set_exception(error if isinstance(error, Exception) else SessionLost("Closed."))
            raise


class HeldSessions:
    """The sessions of this process by id. `forget` tells the record when one is gone."""

    def __init__(self, forget: Callable[[int], Awaitable[object]]) -> None:
        self._forget = forget
        self._sessions: dict[int, HeldSession] = {}

    def get(self, session_id: int) -> HeldSession | None:
        """The session, if this process holds it."""
        return self._sessions.get(session_id)

    async def open(
        self,
        session_id: int,
        engine: Engine,
        user: User,
        options: SessionOptions,
        *,
        named: bool,
        idle: timedelta,
    ) -> HeldSession:
        """Open and hold one. Raises what the engine raises; then nothing is held."""
        held = HeldSession(session_id, user.id, named=named, idle=idle)
        await held.open(engine, user, options)
        self._sessions[session_id] = held
        return held

    @asynccontextmanager
    async def turn(self, held: HeldSession) -> AsyncGenerator[EngineSession]:
        """Wait for this session's turn. Raises SessionLost when it died; a dead one is dropped."""
        async with held.turn:
            if self._sessions.get(held.id) is not held or not await held.engine_session.is_alive():
                if self._sessions.get(held.id) is held:
                    await self.drop(held.id)
                raise SessionLost(f"Invalid session Id {held.id}: the session is gone.")
            held.touch()
            try:
                yield held.engine_session
            finally:
                held.touch()

    async def drop(self, session_id: int) -> bool:
        """Close one; False when this process does not hold it."""
        held = self._sessions.pop(session_id, None)
        if held is None:
            return False
        await held.close()
        try:
            await self._forget(session_id)
        except DatabaseUnavailable:
            log.warning("record of a closed session stays open until the next heartbeat", session=session_id)
        return True

    async def drop_idle(self) -> None:
        """Close what nobody used for its idle time."""
        for held in list(self._sessions.values()):
            # Looked at one by one: while one closes, a statement may come for the next.
            if held.is_idle and self._sessions.get(held.id) is held:
                await self.drop(held.id)

    async def make_room(self, user_id: int, *, keep: int) -> None:
        """Close those sessions between statements of scripts that the user left longest, until `keep` are open."""
        kept = [one for one in self._sessions.values() if one.user_id == user_id and not one.named]
        unused = sorted((one for one in kept if one.unused_s > 0), key=lambda one: one.unused_s)
        for held in unused[max(keep - (len(kept) - len(unused)), 0) :]:
            if not held.turn.locked() and self._sessions.get(held.id) is held:
                await self.drop(held.id)

    def recorded(self) -> Sequence[int]:
        """The sessions that have a record as ours."""
        return [held.id for held in self._sessions.values() if held.is_recorded]

    async def reconcile(self, recorded: Sequence[int], renewed: Sequence[int]) -> None:
        """Close the sessions among `recorded` whose records were not renewed, and renewed records without a session."""
        for session_id in set(recorded) - set(renewed):
            await self.drop(session_id)
        for session_id in set(renewed) - set(self._sessions):
            await self._forget(session_id)

    async def aclose(self) -> None:
        """Close all."""
        await asyncio.gather(*(self.drop(session_id) for session_id in list(self._sessions)))
