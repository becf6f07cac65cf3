"""The engine sessions that this process has open (Contract editor 9)."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from uuid import UUID

import structlog

from queryserver import errors
from queryserver.engines.protocol import Engine, EngineSession, SessionOptions
from queryserver.identity.model import User
from queryserver.statements.session_reach import NOTHING_REACHED, SessionReach

log = structlog.get_logger(__name__)


class OpenSession:
    """One open engine session with the task that keeps it open. Statements take turns in the order of their calls."""

    def __init__(
        self,
        session_id: int,
        connector: str,
        user: User,
        *,
        named: bool,
        idle: timedelta,
        reach: SessionReach = NOTHING_REACHED,
    ) -> None:
        """`idle`: how long it is kept without use. `reach`: what its options give it."""
        self.id = session_id
        self.connector = connector
        self.user_id = user.id
        self.named = named
        self.reach = reach
        self._user = user
        self._token_expires_at: int | None = None
        self.is_recorded = False
        self.scripts: set[UUID] = set()
        """Operations that run in it: between two statements of a script it is in use as well."""
        self.place = AsyncExitStack()
        """The place of the script that it was opened for, among those of its user."""
        self.turn = asyncio.Lock()
        self._idle_s = idle.total_seconds()
        self._last_used = time.monotonic()
        self._opened: asyncio.Future[EngineSession] = asyncio.get_running_loop().create_future()
        self._released = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def open(self, use: AbstractAsyncContextManager[Engine], options: SessionOptions) -> None:
        """Open the engine session; `use` keeps its engine open. Raises what the engine raises."""
        self._token_expires_at = options.token_expires_at
        self._keeper = asyncio.create_task(self._keep(use, options), name=f"session-{self.id}")
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, self._opened, return_exceptions=True)
            raise

    async def close(self) -> None:
        """Close it; work of the engine in it ends."""
        await self.place.aclose()
        self._released.set()
        if self._keeper is not None:
            await asyncio.gather(self._keeper, return_exceptions=True)

    @property
    def engine_session(self) -> EngineSession:
        return self._opened.result()

    def touch(self) -> None:
        """Note a use by its user."""
        self._last_used = time.monotonic()

    @property
    def is_in_use(self) -> bool:
        """A statement or a script runs in it."""
        return bool(self.scripts) or self.turn.locked()

    @property
    def unused_s(self) -> float:
        """Time since its last use; 0 while a statement or a script runs in it."""
        return 0 if self.is_in_use else time.monotonic() - self._last_used

    @property
    def is_idle(self) -> bool:
        """Nothing runs in it, and its idle time is over or its login has expired."""
        return not self.is_in_use and (self.unused_s >= self._idle_s or self.is_expired)

    @property
    def is_expired(self) -> bool:
        """The token that it was opened with has expired."""
        return self._token_expires_at is not None and self._token_expires_at <= time.time()

    async def _keep(self, use: AbstractAsyncContextManager[Engine], options: SessionOptions) -> None:
        try:
            async with use as engine, engine.session(self._user, options) as session:
                self._opened.set_result(session)
                await self._released.wait()
        except errors.EngineError as error:
            if not self._opened.done():
                self._opened.set_exception(error)
            else:
                log.warning("engine session did not close cleanly", session=self.id, code=error.code)
        except BaseException as error:  # a cancel too: the task that waits for the opening must end
            if not self._opened.done():
                self._opened.set_exception(error if isinstance(error, Exception) else errors.SessionLost("Closed."))
            raise


class OpenSessions:
    """The sessions of this process by id. `forget` closes the record of one that is gone."""

    def __init__(self, forget: Callable[[int], Awaitable[object]]) -> None:
        self._forget = forget
        self._sessions: dict[int, OpenSession] = {}

    def get(self, session_id: int) -> OpenSession | None:
        return self._sessions.get(session_id)

    def ids(self) -> Sequence[int]:
        return list(self._sessions)

    async def open(self, held: OpenSession, use: AbstractAsyncContextManager[Engine], options: SessionOptions) -> None:
        """Open and hold it. Raises what the engine raises; then nothing is held."""
        await held.open(use, options)
        self._sessions[held.id] = held

    @asynccontextmanager
    async def turn(self, held: OpenSession, user: User, *, operation_id: str = "") -> AsyncGenerator[EngineSession]:
        """Wait for the turn in this session. Raises SessionLost when it is dead or expired; it is dropped then.

        `user` is the one that it was opened for, with the rights of this turn.
        """
        async with held.turn:
            if self._sessions.get(held.id) is not held or held.is_expired or not await held.engine_session.is_alive():
                if self._sessions.get(held.id) is held:
                    await self.drop(held.id)
                raise errors.SessionLost(f"Invalid session Id {held.id}: the session is gone.")
            held.touch()
            try:
                async with held.reach.acting(user, operation_id=operation_id):
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
        except errors.DatabaseUnavailable:
            log.warning("record of a closed session stays open until the next heartbeat", session=session_id)
        return True

    async def _drop_all(self, sessions: Iterable[OpenSession], is_due: Callable[[OpenSession], bool]) -> None:
        """One by one: while one closes, a statement may come for the next, or another task may drop it."""
        for held in list(sessions):
            if is_due(held) and self._sessions.get(held.id) is held:
                await self.drop(held.id)

    async def drop_of(self, gone: Callable[[str], bool]) -> None:
        """Close those whose connectors are gone; statements that run in them end."""
        await self._drop_all(self._sessions.values(), lambda held: gone(held.connector))

    async def drop_owned_by(self, users: Collection[int]) -> None:
        """Close the sessions of these users, all at once; statements that run in them end."""
        theirs = [held.id for held in self._sessions.values() if held.user_id in users]
        await asyncio.gather(*(self.drop(session_id) for session_id in theirs))

    async def drop_idle(self) -> None:
        await self._drop_all(self._sessions.values(), lambda held: held.is_idle)

    async def end_script(self, session_id: int, script: UUID, *, closes: bool) -> None:
        """No further statement of a script runs in the session; `closes`: it was opened for the script."""
        held = self._sessions.get(session_id)
        if held is not None:
            held.scripts.discard(script)
            if not held.scripts:
                await held.place.aclose()
        if closes:
            await self.drop(session_id)

    async def make_room(self, user_id: int, *, keep: int) -> None:
        """Close those sessions between statements of scripts that are unused longest, until `keep` are open."""
        kept = [one for one in self._sessions.values() if one.user_id == user_id and not one.named]
        unused = sorted((one for one in kept if one.unused_s > 0), key=lambda one: one.unused_s)
        oldest = unused[max(keep - (len(kept) - len(unused)), 0) :]
        await self._drop_all(oldest, lambda held: not held.is_in_use)

    async def aclose(self) -> None:
        await asyncio.gather(*(self.drop(session_id) for session_id in list(self._sessions)))

    def owners(self) -> set[int]:
        return {held.user_id for held in self._sessions.values()}

    def named(self) -> Counter[tuple[str, int]]:
        """The number of open and recorded named sessions by connector and user."""
        return Counter(
            (held.connector, held.user_id) for held in self._sessions.values() if held.named and held.is_recorded
        )

    def recorded(self) -> Sequence[int]:
        """The sessions whose records name this process."""
        return [held.id for held in self._sessions.values() if held.is_recorded]

    async def reconcile(self, recorded: Sequence[int], renewed: Sequence[int]) -> None:
        """Close the sessions among `recorded` whose records were not renewed, and renewed records without a session."""
        for session_id in set(recorded) - set(renewed):
            await self.drop(session_id)
        for session_id in set(renewed) - set(self._sessions):
            await self._forget(session_id)


class SessionShares:
    """`per_connector` named sessions of one process, at most half of them of one user.

    Once three quarters are open, a user may have at most the equal share that one more user would leave.
    """

    def __init__(self, held: OpenSessions, *, per_connector: int) -> None:
        self._held = held
        self._per_connector = per_connector
        self._opening: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def opening(self, connector: str, user_id: int, *, max_open: int) -> Generator[None]:
        """Around the opening of one more session of a user, who may have `max_open` in all.

        Sessions that are being opened count: a connection exists before its record. Raises too_many_sessions.
        """
        open_here = self._opening + self._held.named()
        own = sum(count for (_, owner), count in open_here.items() if owner == user_id)
        if own >= max_open:
            raise errors.too_many_sessions(f"{max_open} sessions of yours are open. Close some of them.")
        by_user = {owner: count for (key, owner), count in open_here.items() if key == connector}
        taken, most = sum(by_user.values()), self._per_connector
        if taken >= most:
            raise errors.too_many_sessions(f"All {most} sessions of this connector are in use.")
        share = most // 2 if taken < most - most // 4 else most // (len(by_user.keys() | {user_id}) + 1)
        if by_user.get(user_id, 0) >= max(share, 1):
            raise errors.too_many_sessions(
                f"{by_user[user_id]} sessions of yours are open on this connector, the share of one user."
                " Close some of them."
            )
        key = (connector, user_id)
        self._opening[key] += 1
        try:
            yield
        finally:
            self._opening[key] -= 1
            if not self._opening[key]:
                del self._opening[key]
