"""Which engine session a statement runs in: found, opened, kept or re-attached (Contract editor 9)."""

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
from queryserver.statements.assignments import Assignment
from queryserver.statements.credentials import SessionCredentials
from queryserver.statements.execution import Attached
from queryserver.statements.open_sessions import OpenSession, OpenSessions, SessionShares
from queryserver.statements.session_reach import NO_REACH, Reach, SessionReach
from queryserver.statements.session_repository import SessionRecord, SessionRecords

ImportOpener: TypeAlias = Callable[
    [Assignment, User, Engine, SessionOptions], AbstractAsyncContextManager[EngineSession]
]
"""Opens what makes a table of a file, in place of a session with the engine."""

_NO_SERVER = "Results have expired: no server can go on with this statement."


@dataclass(eq=False, kw_only=True)
class SessionOpener:
    """Finds, opens and keeps engine sessions for the statements of one process."""

    owner: str
    held: OpenSessions
    slots: ConnectorSlots
    records: SessionRecords
    connectors: Connectors
    credentials: SessionCredentials
    lease: timedelta
    max_kept: int
    max_named: int
    imports: ImportOpener | None = None
    reach: Reach = NO_REACH
    # A lock exists as long as a task holds it or waits for it.
    _openings: WeakValueDictionary[int, asyncio.Lock] = field(default_factory=WeakValueDictionary, init=False)

    def __post_init__(self) -> None:
        self._shares = SessionShares(self.held, per_connector=self.max_named)
        # Statements that open a session to be kept: it is a connection to the data source, also while they wait to run.
        self._first_statements = ConnectorSlots(per_connector=sys.maxsize, per_user=self.max_kept)

    @asynccontextmanager
    async def session(self, assignment: Assignment, user: User) -> AsyncGenerator[EngineSession]:
        """The session for one statement, within the limits. Raises SessionLost when its named session is gone."""
        held = self.held.get(assignment.session_id)
        # An open session continues with what it was opened with, also when its connector, as it is now, does not run.
        connector = (self.connectors.known if held else self.connectors.find)(assignment.connector)
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
            # Never replaced silently: the effects of USE and SET are lost.
            if held is None and (assignment.in_named_session or assignment.needs_session):
                raise errors.SessionLost(f"Invalid session Id {assignment.session_id}: the session is gone.")
            if held is None and assignment.keeps_session:
                held = await self._kept(assignment, connector, user, stack)
            if held is None:
                wanted = self.connectors.engine(connector).capabilities
                options = (
                    await self._options(assignment, connector, user)
                    if wanted.wants_credentials or wanted.wants_external_token
                    else SessionOptions(database=assignment.database, settings=assignment.settings)
                )
                reach = self._reach(connector)
                await stack.enter_async_context(self.slots.slot(connector.key, user.id))
                engine = await stack.enter_async_context(self.connectors.using(connector))
                await stack.enter_async_context(reach.acting(user, operation_id=_operation_id(assignment)))
                yield await stack.enter_async_context(engine.session(user, reach.given_to(options)))
                return
            if not (held.named or assignment.keeps_session):
                stack.push_async_callback(self.held.drop, held.id)
            turn = self.held.turn(held, user, operation_id=_operation_id(assignment))
            session = await stack.enter_async_context(turn)
            if (script := assignment.lease.operation_id) is not None:
                held.scripts.add(script)
            await stack.enter_async_context(self.slots.slot(connector.key, user.id))
            yield session

    @asynccontextmanager
    async def reattached(self, assignment: Assignment, user: User) -> AsyncGenerator[Attached]:
        """The statement that another runner has left at the engine, within the limits of its connector.

        Raises OutcomeUnknown when it cannot be followed, EngineUnavailable.
        """
        connector = self.connectors.find(assignment.connector)
        left = assignment.resumption
        if connector is None or left is None:
            raise errors.OutcomeUnknown(_NO_SERVER)
        try:
            options = await self._options(assignment, connector, user)
        except errors.CredentialsRequired as error:
            # The engine may have done it all: the message must not suggest to send it again.
            raise errors.OutcomeUnknown(f"Results have expired: {error.message}") from error
        async with self.slots.slot(connector.key, user.id), self.connectors.using(connector) as engine:
            if not isinstance(engine, ResumableEngine):
                raise errors.OutcomeUnknown(_NO_SERVER)
            async with engine.reattach(user, options, left.mark.token, rows_read=left.rows) as attached:
                yield attached

    async def open_named(
        self, record: SessionRecord, connector: Connector, user: User, options: SessionOptions, *, max_open: int
    ) -> bool:
        """Open and record the session of create_session; False when the user has `max_open` already.

        Raises too_many_sessions beyond the share of one user, what the engine raises, DatabaseUnavailable; then nothing
        is open.
        """
        with self._shares.opening(connector.key, user.id, max_open=max_open):
            return await self._open(record, connector, user, options, max_open=max_open)

    async def _kept(
        self, assignment: Assignment, connector: Connector, user: User, stack: AsyncExitStack
    ) -> OpenSession | None:
        """A session for the statements of one script: recorded, so that the next one is sent to this process.

        If several statements continue the script at once, the first opens the session and the rest use it.
        """
        async with self._openings.setdefault(assignment.session_id, asyncio.Lock()):
            held = self.held.get(assignment.session_id)
            if held is not None:
                return held
            script, place = assignment.lease.operation_id, AsyncExitStack()
            # The session of a script is open for all its statements, and so holds its place as long.
            slot = self._first_statements.slot(connector.key, user.id)
            await (stack if script is None else place).enter_async_context(slot)
            stack.push_async_callback(self._leave, place, assignment.session_id)
            await self.held.make_room(user.id, keep=self.max_kept - 1)
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
            await self._open(record, connector, user, options, max_open=0, script=script, place=place)
            return self.held.get(record.id)

    async def _leave(self, place: AsyncExitStack, session_id: int) -> None:
        """Give back the place of a script whose session was not opened."""
        held = self.held.get(session_id)
        if held is None or held.place is not place:
            await place.aclose()

    async def _open(
        self,
        record: SessionRecord,
        connector: Connector,
        user: User,
        options: SessionOptions,
        *,
        max_open: int,
        script: UUID | None = None,
        place: AsyncExitStack | None = None,
    ) -> bool:
        reach = self._reach(connector)
        held = OpenSession(record.id, connector.key, user, named=record.named, idle=record.idle, reach=reach)
        if script is not None and place is not None:
            held.scripts.add(script)
            held.place = place
        await self.held.open(held, self.connectors.using(connector), reach.given_to(options))
        try:
            held.is_recorded = await self.records.open(record, lease=self.lease, max_open=max_open)
        finally:
            if not held.is_recorded:
                await self.held.drop(record.id)
        return held.is_recorded

    def _reach(self, connector: Connector) -> SessionReach:
        capabilities = self.connectors.engine(connector).capabilities
        return self.reach.of_session(capabilities, read_only=connector.read_only)

    async def _options(self, assignment: Assignment, connector: Connector, user: User) -> SessionOptions:
        return await self.credentials.options(
            user, connector, database=assignment.database, settings=assignment.settings, token=assignment.token
        )


def _operation_id(assignment: Assignment) -> str:
    """The operation id that clients use: for a statement of a script that of the script."""
    return str(assignment.lease.operation_id or assignment.lease.statement_id)
