"""Finds or opens the engine session of a statement, or reattaches to a running operation (Contract editor 9)."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary

from queryserver import errors
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines.protocol import Engine, EngineSession, ResumableEngine, SessionOptions
from queryserver.identity.model import User
from queryserver.platform.fair_queue import ConnectorSlots
from queryserver.statements.execution import AttachedOperation
from queryserver.statements.model import Assignment
from queryserver.statements.open_sessions import (
    NO_EXTERNAL_DATA,
    ExternalData,
    OpenSession,
    OpenSessions,
    SessionExternalData,
    SessionShares,
)
from queryserver.statements.session_options import SessionCredentials
from queryserver.statements.session_repository import SessionRecord, SessionRecords

ImportOpener: TypeAlias = Callable[
    [Assignment, User, Engine, SessionOptions], AbstractAsyncContextManager[EngineSession]
]
"""Opens the session of an import, which replaces an engine session."""

_NOT_RESUMABLE = "Results have expired: no server can go on with this statement."


@dataclass(eq=False, kw_only=True)
class SessionOpener:
    """Finds and opens engine sessions for statements that run in this process."""

    owner: str
    sessions: OpenSessions
    slots: ConnectorSlots
    records: SessionRecords
    connectors: Connectors
    credentials: SessionCredentials
    lease: timedelta
    max_kept: int
    max_named: int
    imports: ImportOpener | None = None
    external_data: ExternalData = NO_EXTERNAL_DATA
    # Entries are weak: a lock exists only while a task holds it or waits for it.
    _opening_locks: WeakValueDictionary[int, asyncio.Lock] = field(default_factory=WeakValueDictionary, init=False)

    def __post_init__(self) -> None:
        self._shares = SessionShares(self.sessions, per_connector=self.max_named)
        # Limits how many statements and scripts open a lasting session, because each uses a connection even while it
        # waits.
        self._opening_slots = ConnectorSlots(per_connector=sys.maxsize, per_user=self.max_kept)

    @asynccontextmanager
    async def session(self, assignment: Assignment, user: User) -> AsyncGenerator[EngineSession]:
        """Find or open the session for one statement, within the connector and user limits.

        Raises SessionLost if the statement needs an existing session that was lost.
        """
        open_session = self.sessions.get(assignment.session_id)
        # An open session stays usable even if a change has made its connector unusable.
        connector = (self.connectors.known if open_session else self.connectors.find)(assignment.connector)
        if connector is None:
            raise errors.SessionLost(f"The connector {assignment.connector} is no longer configured.")
        async with AsyncExitStack() as stack:
            if assignment.import_plan is not None:
                if self.imports is None:
                    raise errors.rejected_by_rule("This server imports no files.")
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
                external_data = self._external_data(connector)
                await stack.enter_async_context(self.slots.slot(connector.key, user.id))
                engine = await stack.enter_async_context(self.connectors.using(connector))
                await stack.enter_async_context(external_data.acting(user, operation_id=_operation_id(assignment)))
                yield await stack.enter_async_context(engine.session(user, external_data.add_to(options)))
                return
            if not (open_session.is_named or assignment.keeps_session):
                stack.push_async_callback(self.sessions.drop, open_session.id)
            turn = self.sessions.turn(open_session, user, operation_id=_operation_id(assignment))
            session = await stack.enter_async_context(turn)
            if (script := assignment.lease.operation_id) is not None:
                open_session.scripts.add(script)
            await stack.enter_async_context(self.slots.slot(connector.key, user.id))
            yield session

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

        Raises too_many_sessions beyond the user's share, engine errors, DatabaseUnavailable. No session stays open on
        an error.
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
            script, slot_stack = assignment.lease.operation_id, AsyncExitStack()
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
        external_data = self._external_data(connector)
        session = OpenSession(
            record.id, connector.key, user, is_named=record.named, idle=record.idle, external_data=external_data
        )
        if script is not None and slot is not None:
            session.scripts.add(script)
            session.slot = slot
        await self.sessions.open(session, self.connectors.using(connector), external_data.add_to(options))
        try:
            session.is_recorded = await self.records.open(record, lease=self.lease, max_open=max_open)
        finally:
            if not session.is_recorded:
                await self.sessions.drop(record.id)
        return session.is_recorded

    def _external_data(self, connector: Connector) -> SessionExternalData:
        capabilities = self.connectors.engine(connector).capabilities
        return self.external_data.for_session(capabilities, read_only=connector.read_only)

    async def _options(self, assignment: Assignment, connector: Connector, user: User) -> SessionOptions:
        return await self.credentials.options(
            user, connector, database=assignment.database, settings=assignment.settings, token=assignment.token
        )


def _operation_id(assignment: Assignment) -> str:
    """Return the operation id that clients use. For a statement of a script, this is the script's operation."""
    return str(assignment.lease.operation_id or assignment.lease.statement_id)
