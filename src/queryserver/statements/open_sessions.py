"""Manages the engine sessions that this process holds open, and finds a session for each statement.

Contract editor 9.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary

import structlog

from queryserver import errors
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines.protocol import Engine, EngineSession, ResumableEngine, SessionOptions
from queryserver.identity.model import User
from queryserver.platform.fair_queue import ConnectorSlots
from queryserver.statements.execution import AttachedOperation
from queryserver.statements.external_access import (
    NO_EXTERNAL_DATA,
    NO_SESSION_EXTERNAL_DATA,
    ExternalData,
    SessionExternalData,
)
from queryserver.statements.model import Assignment, NewStatement
from queryserver.statements.session_options import SessionCredentials
from queryserver.statements.session_repository import SessionRecord, SessionRecords
from queryserver.statements.stored_session import StoredSession

ImportOpener: TypeAlias = Callable[
    [Assignment, User, Engine, SessionOptions], AbstractAsyncContextManager[EngineSession]
]
"""Opens the session that runs an import in place of an engine session."""

ExportOpener: TypeAlias = Callable[[Assignment, User, EngineSession], AbstractAsyncContextManager[EngineSession]]
"""Opens the session that sends the rows of another session to the statement's destination."""

_NOT_RESUMABLE = "Results have expired: no server can continue this statement."


log = structlog.get_logger(__name__)


class OpenSession:
    """An open engine session and the task that keeps it open. Statements use it one at a time, in call order."""

    def __init__(
        self,
        session_id: int,
        connector: str,
        user: User,
        *,
        is_named: bool,
        idle: timedelta,
        external_data: SessionExternalData = NO_SESSION_EXTERNAL_DATA,
    ) -> None:
        """Create a session that is not open yet. `idle` is how long it stays open without use."""
        self.id = session_id
        self.connector = connector
        self.user_id = user.id
        self.is_named = is_named
        self.external_data = external_data
        self._user = user
        self._token_expires_at: int | None = None
        self.is_recorded = False
        self.scripts: set[UUID] = set()
        """Scripts that run in the session. They keep it in use between two of their statements."""
        self.slot = AsyncExitStack()
        """Holds the slot of the script for which the session was opened."""
        self.turn = asyncio.Lock()
        self._idle_s = idle.total_seconds()
        self._last_used = time.monotonic()
        self._opened: asyncio.Future[EngineSession] = asyncio.get_running_loop().create_future()
        self._released = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self, use: AbstractAsyncContextManager[Engine], options: SessionOptions) -> None:
        """Open the engine session. `use` keeps the engine open until the session closes. Raises the engine's errors."""
        self._token_expires_at = options.token_expires_at
        self._task = asyncio.create_task(self._hold_open(use, options), name=f"session-{self.id}")
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.gather(self._task, self._opened, return_exceptions=True)
            raise

    async def close(self) -> None:
        """Close the session, which ends its operations on the engine."""
        await self.slot.aclose()
        self._released.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def engine_session(self) -> EngineSession:
        return self._opened.result()

    def touch(self) -> None:
        """Record that the user has used the session, which restarts the idle time."""
        self._last_used = time.monotonic()

    @property
    def is_in_use(self) -> bool:
        """Whether a statement or a script is running in the session."""
        return bool(self.scripts) or self.turn.locked()

    @property
    def unused_s(self) -> float:
        """Seconds since the last use, or 0 while a statement or a script is running in the session."""
        return 0 if self.is_in_use else time.monotonic() - self._last_used

    @property
    def is_idle(self) -> bool:
        """Whether nothing is running in the session, and its idle time has passed or its token has expired."""
        return not self.is_in_use and (self.unused_s >= self._idle_s or self.is_expired)

    @property
    def is_expired(self) -> bool:
        """Whether the token with which the session was opened has expired."""
        return self._token_expires_at is not None and self._token_expires_at <= time.time()

    async def _hold_open(self, use: AbstractAsyncContextManager[Engine], options: SessionOptions) -> None:
        try:
            async with use as engine, engine.session(self._user, options) as session:
                self._opened.set_result(session)
                await self._released.wait()
        except errors.EngineError as error:
            if not self._opened.done():
                self._opened.set_exception(error)
            else:
                log.warning("engine session did not close cleanly", session=self.id, code=error.code)
        except BaseException as error:  # including CancelledError: `open` must not wait forever
            if not self._opened.done():
                self._opened.set_exception(error if isinstance(error, Exception) else errors.SessionLost("Closed."))
            raise


class OpenSessions:
    """The open sessions of this process, by id. `close_record` closes a session's record."""

    def __init__(self, close_record: Callable[[int], Awaitable[object]]) -> None:
        self._close_record = close_record
        self._sessions: dict[int, OpenSession] = {}

    def get(self, session_id: int) -> OpenSession | None:
        return self._sessions.get(session_id)

    def ids(self) -> Sequence[int]:
        return list(self._sessions)

    async def open(
        self, session: OpenSession, use: AbstractAsyncContextManager[Engine], options: SessionOptions
    ) -> None:
        """Open and add the session. Raises the engine's errors, in which case the session is not added."""
        await session.open(use, options)
        self._sessions[session.id] = session

    @asynccontextmanager
    async def turn(
        self, session: OpenSession, user: User, *, operation_id: str = "", statement_id: UUID | None = None
    ) -> AsyncGenerator[EngineSession]:
        """Wait until no other statement runs in the session, and yield its engine session.

        Drops a dead or expired session and raises SessionLost. `user` is the session's user, with the rights that
        apply to this statement.
        """
        async with session.turn:
            if (
                self._sessions.get(session.id) is not session
                or session.is_expired
                or not await session.engine_session.is_alive()
            ):
                if self._sessions.get(session.id) is session:
                    await self.drop(session.id)
                raise errors.SessionLost(f"Invalid session Id {session.id}: the session is gone.")
            session.touch()
            try:
                async with session.external_data.acting(user, operation_id=operation_id, statement_id=statement_id):
                    yield session.engine_session
            finally:
                session.touch()

    async def drop(self, session_id: int) -> bool:
        """Close a session. Return False if this process does not hold it."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return False
        await session.close()
        try:
            await self._close_record(session_id)
        except errors.DatabaseUnavailable:
            log.warning("record of a closed session remains open until the next check", session=session_id)
        return True

    async def _drop_all(self, sessions: Iterable[OpenSession], is_due: Callable[[OpenSession], bool]) -> None:
        """Close the due sessions one by one. Skips a session that has been used or dropped in the meantime."""
        for session in list(sessions):
            if is_due(session) and self._sessions.get(session.id) is session:
                await self.drop(session.id)

    async def drop_of_removed_connectors(self, is_removed: Callable[[str], bool]) -> None:
        """Close the sessions of removed connectors, which ends the statements that run in them."""
        await self._drop_all(self._sessions.values(), lambda session: is_removed(session.connector))

    async def drop_owned_by(self, users: Collection[int]) -> None:
        """Close the sessions of these users concurrently, which ends the statements that run in them."""
        ids = [session.id for session in self._sessions.values() if session.user_id in users]
        await asyncio.gather(*(self.drop(session_id) for session_id in ids))

    async def drop_idle(self) -> None:
        await self._drop_all(self._sessions.values(), lambda session: session.is_idle)

    async def end_script(self, session_id: int, script: UUID, *, closes: bool) -> None:
        """Mark the script as ended in the session. If `closes` is set, close the session."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.scripts.discard(script)
            if not session.scripts:
                await session.slot.aclose()
        if closes:
            await self.drop(session_id)

    async def make_room(self, user_id: int, *, keep: int) -> None:
        """Close the user's least recently used unnamed sessions until at most `keep` are open.

        Sessions in use are never closed, so more may remain open.
        """
        unnamed = [
            session for session in self._sessions.values() if session.user_id == user_id and not session.is_named
        ]
        unused = sorted((one for one in unnamed if one.unused_s > 0), key=lambda one: one.unused_s)
        oldest = unused[max(keep - (len(unnamed) - len(unused)), 0) :]
        await self._drop_all(oldest, lambda session: not session.is_in_use)

    async def aclose(self) -> None:
        await asyncio.gather(*(self.drop(session_id) for session_id in list(self._sessions)))

    def owners(self) -> set[int]:
        return {session.user_id for session in self._sessions.values()}

    def count_named(self) -> Counter[tuple[str, int]]:
        """Return the number of recorded named sessions per connector and user."""
        return Counter(
            (session.connector, session.user_id)
            for session in self._sessions.values()
            if session.is_named and session.is_recorded
        )

    def recorded_ids(self) -> Sequence[int]:
        """Return the ids of sessions whose record names this process as the owner."""
        return [session.id for session in self._sessions.values() if session.is_recorded]

    async def reconcile(self, recorded: Sequence[int], owned: Sequence[int]) -> None:
        """Close each session in `recorded` that is not among `owned`, and each record in `owned` without a session."""
        for session_id in set(recorded) - set(owned):
            await self.drop(session_id)
        for session_id in set(owned) - set(self._sessions):
            await self._close_record(session_id)


class SessionShares:
    """Limits the named sessions of one process to `per_connector` for each connector.

    One user may have at most half of them. Once three quarters are open, each user is limited to an equal share, and
    one share stays free for another user.
    """

    def __init__(self, sessions: OpenSessions, *, per_connector: int) -> None:
        self._sessions = sessions
        self._per_connector = per_connector
        self._opening: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def opening(self, connector: str, user_id: int, *, max_open: int) -> Generator[None]:
        """Count a session while it is being opened. The user may have `max_open` sessions in total.

        The connection of a session exists before its record, so a session must count while it is being opened. Raises
        too_many_sessions.
        """
        open_here = self._opening + self._sessions.count_named()
        user_total = sum(count for (_, owner), count in open_here.items() if owner == user_id)
        if user_total >= max_open:
            raise errors.too_many_sessions(
                f"{max_open} of your sessions are open (`editor.max_sessions_per_user`). Close some of them."
            )
        by_user = {owner: count for (key, owner), count in open_here.items() if key == connector}
        open_total, limit = sum(by_user.values()), self._per_connector
        if open_total >= limit:
            raise errors.too_many_sessions(
                f"All {limit} sessions of this connector are in use (`editor.max_sessions_per_connector`). Retry later,"
                " or execute statements without a session."
            )
        share = limit // 2 if open_total < limit - limit // 4 else limit // (len(by_user.keys() | {user_id}) + 1)
        if by_user.get(user_id, 0) >= max(share, 1):
            raise errors.too_many_sessions(
                f"{by_user[user_id]} of your sessions are open on this connector, the maximum for one user at present"
                f" (`editor.max_sessions_per_connector` is {limit}). Close some of them."
            )
        key = (connector, user_id)
        self._opening[key] += 1
        try:
            yield
        finally:
            self._opening[key] -= 1
            if not self._opening[key]:
                del self._opening[key]


@dataclass(eq=False, kw_only=True)
class SessionOpener:
    """Finds and opens engine sessions for statements that run in this process."""

    owner: str
    sessions: OpenSessions
    slots: ConnectorSlots
    records: SessionRecords
    connectors: Connectors
    credentials: SessionCredentials
    max_kept: int
    max_named: int
    imports: ImportOpener | None = None
    exports: ExportOpener | None = None
    external_data: ExternalData = NO_EXTERNAL_DATA
    # Entries are weak: a lock exists only while a task holds it or waits for it.
    _opening_locks: WeakValueDictionary[int, asyncio.Lock] = field(default_factory=WeakValueDictionary, init=False)

    def __post_init__(self) -> None:
        self._shares = SessionShares(self.sessions, per_connector=self.max_named)
        # Limits how many statements and scripts of one user open a session that outlives a statement, because such a
        # session uses a connection even while it waits.
        self._opening_slots = ConnectorSlots(per_connector=sys.maxsize, per_user=self.max_kept)

    @asynccontextmanager
    async def session(self, assignment: Assignment, user: User) -> AsyncGenerator[EngineSession]:
        """Find or open the session for one statement, within the connector and user limits.

        Raises SessionLost if the statement needs an existing session that was lost.
        """
        stored = assignment.source_operation is not None
        target = (assignment.destination or {}).get("connector", assignment.connector)
        async with AsyncExitStack() as stack:
            # Slots are taken in the order of the connectors' keys, so that statements which need two cannot block each
            # other.
            if target < assignment.connector:
                await stack.enter_async_context(self.slots.slot(target, user.id))
            opened = self._stored_session(assignment, user) if stored else self._session(assignment, user)
            source = await stack.enter_async_context(opened)
            if target > assignment.connector:
                await stack.enter_async_context(self.slots.slot(target, user.id))
            if assignment.destination is not None:
                if self.exports is None:
                    raise errors.rejected_by_rule("This server does not export results.")
                source = await stack.enter_async_context(self.exports(assignment, user, source))
            yield source

    @asynccontextmanager
    async def _stored_session(self, assignment: Assignment, user: User) -> AsyncGenerator[EngineSession]:
        """Open the stored result whose rows are the statement's rows. Waits until its operation has ended.

        A statement that reuses a result needs no slot, because the engine could answer it, too, but is not asked. If
        the result can no longer be read, raises ResultRefused.
        """
        operation_id, external_data = str(assignment.source_operation), self.external_data
        if external_data.open_result is None or external_data.wait_for_result is None:
            raise errors.rejected_by_rule("This server does not read stored results.")
        # Waits without a slot: the operation may need one itself.
        status = await external_data.wait_for_result(user, operation_id)
        is_reuse = assignment.reused_from is not None
        async with (
            nullcontext() if is_reuse else self.slots.slot(assignment.connector, user.id),
            external_data.open_result(user, operation_id) as opened,
        ):
            if is_reuse:
                try:
                    await opened.require_whole()
                except errors.ServiceUnavailable as error:
                    raise errors.ResultRefused(error.message) from error
            if external_data.record_sources is not None:
                await external_data.record_sources(assignment.claim.statement_id, opened.sources)
            yield StoredSession(opened, status.truncated_reason)

    @asynccontextmanager
    async def _session(self, assignment: Assignment, user: User) -> AsyncGenerator[EngineSession]:
        open_session = self.sessions.get(assignment.session_id)
        # An open session stays usable even if a change has made its connector unusable.
        connector = (self.connectors.known if open_session else self.connectors.find)(assignment.connector)
        if connector is None:
            raise errors.SessionLost(f"The connector {assignment.connector} is no longer configured.")
        async with AsyncExitStack() as stack:
            if assignment.import_plan is not None:
                if self.imports is None:
                    raise errors.rejected_by_rule("This server does not import files.")
                options = await self.credentials.options(user, connector, token=assignment.token)
                await stack.enter_async_context(self.slots.slot(connector.key, user.id))
                engine = await stack.enter_async_context(self.connectors.using(connector))
                yield await stack.enter_async_context(self.imports(assignment, user, engine, options))
                return
            # A lost session is never replaced silently: the effects of earlier USE and SET statements would be
            # missing.
            if open_session is None and (assignment.in_named_session or assignment.needs_session):
                raise errors.SessionLost(f"Invalid session Id {assignment.session_id}: the session is gone.")
            if open_session is None and assignment.keeps_session:
                open_session = await self._script_session(assignment, connector, user, stack)
            if open_session is None:
                capabilities = self.connectors.engine(connector).capabilities
                options = (
                    await self._options(assignment, connector, user)
                    if capabilities.wants_credentials or capabilities.wants_external_token
                    else SessionOptions(database=assignment.database, settings=assignment.settings)
                )
                external_data = self._external_data(connector, options)
                await stack.enter_async_context(self.slots.slot(connector.key, user.id))
                engine = await stack.enter_async_context(self.connectors.using(connector))
                acting = external_data.acting(
                    user, operation_id=str(assignment.client_operation_id), statement_id=assignment.claim.statement_id
                )
                await stack.enter_async_context(acting)
                yield await stack.enter_async_context(engine.session(user, external_data.add_to(options)))
                return
            if not (open_session.is_named or assignment.keeps_session):
                stack.push_async_callback(self.sessions.drop, open_session.id)
            turn = self.sessions.turn(
                open_session,
                user,
                operation_id=str(assignment.client_operation_id),
                statement_id=assignment.claim.statement_id,
            )
            session = await stack.enter_async_context(turn)
            if (script := assignment.claim.operation_id) is not None:
                open_session.scripts.add(script)
            await stack.enter_async_context(self.slots.slot(connector.key, user.id))
            yield session

    def is_ready_for(self, new: NewStatement) -> bool:
        """Return whether a new statement does not have to wait for a slot, or for other statements of its session."""
        session = self.sessions.get(new.handle.session_id)
        if session is None and (new.in_named_session or new.needs_session or new.keeps_session):
            return False
        if session is not None and session.turn.locked():
            return False
        return self.slots.has_free(new.connector, new.user_id)

    @asynccontextmanager
    async def reattach(self, assignment: Assignment, user: User) -> AsyncGenerator[AttachedOperation]:
        """Reattach to the operation that another runner left on the engine, within the connector limits.

        Raises OutcomeUnknown if the engine cannot resume the operation, EngineUnavailable.
        """
        connector = self.connectors.find(assignment.connector)
        resumption = assignment.resumption
        if connector is None or resumption is None:
            raise errors.OutcomeUnknown(_NOT_RESUMABLE)
        try:
            options = await self._options(assignment, connector, user)
        except errors.CredentialsRequired as error:
            # The statement may have completed, so the message must not suggest sending it again.
            raise errors.OutcomeUnknown(f"Results have expired: {error.message}") from error
        async with self.slots.slot(connector.key, user.id), self.connectors.using(connector) as engine:
            if not isinstance(engine, ResumableEngine):
                raise errors.OutcomeUnknown(_NOT_RESUMABLE)
            async with engine.reattach(
                user, options, resumption.checkpoint.token, rows_read=resumption.rows
            ) as attached:
                yield attached

    async def open_named(
        self, record: SessionRecord, connector: Connector, user: User, options: SessionOptions, *, max_open: int
    ) -> bool:
        """Open and record a session for create_session. Return False if the user already has `max_open` sessions.

        If an error occurs, no session stays open. Raises too_many_sessions if the user's share is exhausted, engine
        errors, DatabaseUnavailable.
        """
        with self._shares.opening(connector.key, user.id, max_open=max_open):
            return await self._open(record, connector, user, options, max_open=max_open)

    async def _script_session(
        self, assignment: Assignment, connector: Connector, user: User, stack: AsyncExitStack
    ) -> OpenSession | None:
        """Find or open a script's session, and record it so that the next statement is routed to this process.

        If several calls continue the script concurrently, the first one opens the session and the others share it.
        """
        async with self._opening_locks.setdefault(assignment.session_id, asyncio.Lock()):
            session = self.sessions.get(assignment.session_id)
            if session is not None:
                return session
            script, slot_stack = assignment.claim.operation_id, AsyncExitStack()
            # The session stays open, and keeps its slot, until the script ends.
            slot = self._opening_slots.slot(connector.key, user.id)
            await (stack if script is None else slot_stack).enter_async_context(slot)
            stack.push_async_callback(self._release_slot, slot_stack, assignment.session_id)
            await self.sessions.make_room(user.id, keep=self.max_kept - 1)
            record = SessionRecord(
                id=assignment.session_id,
                guid="",
                user_id=user.id,
                connector=connector.key,
                dialect=connector.dialect,
                named=False,
                properties=(),
                settings=assignment.settings,
                sealed_credentials=None,
                owner=self.owner,
                is_live=True,
                idle=connector.limits.session_idle,
                last_used_at=datetime.now(UTC),
            )
            options = await self._options(assignment, connector, user)
            await self._open(record, connector, user, options, max_open=0, script=script, slot=slot_stack)
            return self.sessions.get(record.id)

    async def _release_slot(self, slot: AsyncExitStack, session_id: int) -> None:
        """Release the slot of a script unless its session was opened and now owns the slot."""
        session = self.sessions.get(session_id)
        if session is None or session.slot is not slot:
            await slot.aclose()

    async def _open(
        self,
        record: SessionRecord,
        connector: Connector,
        user: User,
        options: SessionOptions,
        *,
        max_open: int,
        script: UUID | None = None,
        slot: AsyncExitStack | None = None,
    ) -> bool:
        external_data = self._external_data(connector, options)
        session = OpenSession(
            record.id, connector.key, user, is_named=record.named, idle=record.idle, external_data=external_data
        )
        if script is not None and slot is not None:
            session.scripts.add(script)
            session.slot = slot
        # No other statement gets a turn before the session is recorded, because it is closed if it cannot be recorded.
        async with session.turn:
            await self.sessions.open(session, self.connectors.using(connector), external_data.add_to(options))
            try:
                session.is_recorded = await self.records.open(record, max_open=max_open)
            finally:
                if not session.is_recorded:
                    await self.sessions.drop(record.id)
        return session.is_recorded

    def _external_data(self, connector: Connector, options: SessionOptions) -> SessionExternalData:
        capabilities = self.connectors.engine(connector).capabilities
        own_login = options.credentials is not None
        return self.external_data.for_session(capabilities, read_only=connector.read_only, own_login=own_login)

    async def _options(self, assignment: Assignment, connector: Connector, user: User) -> SessionOptions:
        return await self.credentials.options(
            user, connector, database=assignment.database, settings=assignment.settings, token=assignment.token
        )
