"""Engine sessions that outlive one statement, held by this process.

Each has a task of its own that opens it, keeps it and closes it: an engine session belongs to one task, while the
statements that use it come and go.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import structlog

from queryserver.domain.errors import EngineError, SessionLost
from queryserver.domain.user import User
from queryserver.interfaces.engine import Engine, EngineSession, SessionOptions

log = structlog.get_logger(__name__)


class HeldSession:
    """One open engine session with its keeper. Statements take turns in the order in which they come."""

    def __init__(self, session_id: int, *, named: bool, idle: timedelta) -> None:
        self.id = session_id
        self.named = named
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
    def is_idle(self) -> bool:
        """Nothing runs in it and its time without use is over."""
        return not self.turn.locked() and time.monotonic() - self._last_used >= self._idle_s

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
        except BaseException as error:
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
        held = HeldSession(session_id, named=named, idle=idle)
        await held.open(engine, user, options)
        self._sessions[session_id] = held
        return held

    @asynccontextmanager
    async def turn(self, held: HeldSession) -> AsyncGenerator[EngineSession]:
        """Wait for this session's turn. Raises SessionLost when it died; a dead one is dropped."""
        async with held.turn:
            if self._sessions.get(held.id) is not held or not await held.engine_session.is_alive():
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
        await self._forget(session_id)
        return True

    async def drop_idle(self) -> None:
        """Close what nobody used for its idle time."""
        for held in [one for one in self._sessions.values() if one.is_idle]:
            await self.drop(held.id)

    async def keep_only(self, session_ids: Sequence[int]) -> None:
        """Close what the records no longer count as ours."""
        wanted = set(session_ids)
        for session_id in [one for one in self._sessions if one not in wanted]:
            await self.drop(session_id)

    async def aclose(self) -> None:
        """Close all."""
        with suppress(EngineError):
            await asyncio.gather(*(self.drop(session_id) for session_id in list(self._sessions)))
