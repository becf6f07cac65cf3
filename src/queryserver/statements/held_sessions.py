"""Engine sessions that outlive one statement, held by this process.

Each has a task of its own that opens it, keeps it and closes it: an engine session belongs to one task, while the
statements that use it come and go.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import structlog

from queryserver.engines.protocol import Engine, EngineSession, SessionOptions
from queryserver.errors.base import DatabaseUnavailable, too_many_sessions
from queryserver.errors.statements import EngineError, SessionLost
from queryserver.identity.model import User

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """Which session, whose, and how long it is kept without use."""

    id: int
    connector: str
    user: User
    named: bool
    idle: timedelta


class HeldSession:
    """One open engine session with its keeper. Statements take turns in the order in which they come."""

    def __init__(self, place: HeldPlace) -> None:
        self.id = place.id
        self.connector = place.connector
        self.user_id = place.user.id
        self.named = place.named
        self._user = place.user
        self._token_expires_at: int | None = None
        self.is_recorded = False
        self.turn = asyncio.Lock()
        self._idle_s = place.idle.total_seconds()
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
        """Nothing runs in it, and its time without use is over or its login has expired."""
        return not self.turn.locked() and (self.unused_s >= self._idle_s or self.is_expired)

    @property
    def is_expired(self) -> bool:
        """Whether the token that it was opened with is past its time."""
        return self._token_expires_at is not None and self._token_expires_at <= time.time()

    async def _keep(self, use: AbstractAsyncContextManager[Engine], options: SessionOptions) -> None:
        try:
            async with use as engine, engine.session(self._user, options) as session:
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

    def ids(self) -> Sequence[int]:
        """The sessions that are open here."""
        return list(self._sessions)

    async def open(
        self, place: HeldPlace, use: AbstractAsyncContextManager[Engine], options: SessionOptions
    ) -> HeldSession:
        """Open and hold one. Raises what the engine raises; then nothing is held."""
        held = HeldSession(place)
        await held.open(use, options)
        self._sessions[place.id] = held
        return held

    @asynccontextmanager
    async def turn(self, held: HeldSession) -> AsyncGenerator[EngineSession]:
        """Wait for this session's turn. Raises SessionLost when it died; a dead one is dropped."""
        async with held.turn:
            if self._sessions.get(held.id) is not held or held.is_expired or not await held.engine_session.is_alive():
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

    async def drop_of(self, gone: Callable[[str], bool]) -> None:
        """Close those whose connectors are gone; a statement that runs in one ends."""
        for held in list(self._sessions.values()):
            if gone(held.connector) and self._sessions.get(held.id) is held:
                await self.drop(held.id)

    def named(self) -> Counter[tuple[str, int]]:
        """Named sessions that are open here and have their records, by connector and user."""
        return Counter(
            (held.connector, held.user_id) for held in self._sessions.values() if held.named and held.is_recorded
        )

    def owners(self) -> set[int]:
        """The users whose sessions are open here."""
        return {held.user_id for held in self._sessions.values()}

    async def drop_owned_by(self, users: Collection[int]) -> None:
        """Close the sessions of these users, all at once; a statement that runs in one ends."""
        theirs = [held.id for held in self._sessions.values() if held.user_id in users]
        await asyncio.gather(*(self.drop(session_id) for session_id in theirs))

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


class SessionShares:
    """`per_connector` named sessions of one process, at most half of them of one user.

    Of the last quarter a user gets no more than an equal share: what each would have if one more user came.
    """

    def __init__(self, held: HeldSessions, *, per_connector: int) -> None:
        self._held = held
        self._per_connector = per_connector
        self._opening: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def opening(self, connector: str, user_id: int, *, max_open: int) -> Generator[None]:
        """Around the opening of one more session of a user, who may have `max_open` in all.

        Sessions that are being opened count: a connection exists before its record does. Raises too_many_sessions.
        """
        self._require_share(connector, user_id, max_open=max_open)
        key = (connector, user_id)
        self._opening[key] += 1
        try:
            yield
        finally:
            self._opening[key] -= 1
            if not self._opening[key]:
                del self._opening[key]

    def _require_share(self, connector: str, user_id: int, *, max_open: int) -> None:
        open_here = self._opening + self._held.named()
        own = sum(count for (_, owner), count in open_here.items() if owner == user_id)
        if own >= max_open:
            raise too_many_sessions(f"{max_open} sessions of yours are open. Close some of them.")
        by_user = {owner: count for (key, owner), count in open_here.items() if key == connector}
        taken = sum(by_user.values())
        if taken >= self._per_connector:
            raise too_many_sessions(f"All {self._per_connector} sessions of this connector are in use.")
        share = self._per_connector // 2
        if taken >= self._per_connector - self._per_connector // 4:
            share = self._per_connector // (len(by_user.keys() | {user_id}) + 1)
        if by_user.get(user_id, 0) >= max(share, 1):
            raise too_many_sessions(
                f"{by_user[user_id]} sessions of yours are open on this connector, the share of one user."
                " Close some of them."
            )
