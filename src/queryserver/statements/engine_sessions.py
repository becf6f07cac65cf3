"""Which engine session a statement runs in (Contract editor 9.3)."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from weakref import WeakValueDictionary

from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.engines.protocol import Engine, EngineSession, ResumableEngine, SessionOptions
from queryserver.errors.statements import CredentialsRequired, OutcomeUnknown, SessionLost, rejected_by_rule
from queryserver.identity.model import User
from queryserver.platform.shares import Slots
from queryserver.statements.credentials import CredentialBook
from queryserver.statements.execution import Attached
from queryserver.statements.held_sessions import HeldPlace, HeldSession, HeldSessions, SessionShares
from queryserver.statements.model import Assignment
from queryserver.statements.session_repository import SessionRecord, SessionRecords

ImportOpener: TypeAlias = Callable[
    [Assignment, User, Engine, SessionOptions], AbstractAsyncContextManager[EngineSession]
]
"""Opens what makes a table of a file, in place of a session with the engine."""

_NOBODY = "Results have expired: no server can go on with this statement."


class SessionOpener:
    """Finds, opens and keeps engine sessions for the statements of one process."""

    def __init__(
        self,
        *,
        owner: str,
        held: HeldSessions,
        slots: Slots,
        records: SessionRecords,
        connectors: Connectors,
        credentials: CredentialBook,
        lease: timedelta,
        max_kept: int,
        max_named: int,
        imports: ImportOpener | None = None,
    ) -> None:
        self._owner = owner
        self._held = held
        self._slots = slots
        self._records = records
        self._connectors = connectors
        self._credentials = credentials
        self._lease = lease
        self._max_kept = max_kept
        self._shares = SessionShares(held, per_connector=max_named)
        self._first_statements = Slots(per_connector=sys.maxsize, per_user=max_kept)
        """Those that open a session to be kept: it is a connection to the data source, also while they wait to run."""
        self._imports = imports
        # A lock lives as long as somebody holds it or waits for it.
        self._openings: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def session(self, assignment: Assignment, user: User) -> AsyncGenerator[EngineSession]:
        """The engine session for one statement, within the limits for its user and its connector.

        Raises SessionLost when the named session is gone: it is never replaced silently.
        """
        held = self._held.get(assignment.session_id)
        # An open session goes on with what it was opened with, also where its connector, as it is now, does not run.
        connector = (self._connectors.known if held else self._connectors.find)(assignment.connector)
        if connector is None:
            raise SessionLost(f"The connector {assignment.connector} is no longer configured.")
        if assignment.import_plan is not None:
            async with self._import(assignment, connector, user) as importing:
                yield importing
            return
        if held is None and assignment.in_named_session:
            raise SessionLost(f"Invalid session Id {assignment.session_id}: the session is gone.")
        if held is None and assignment.keeps_session:
            async with (
                self._kept(assignment, connector, user) as kept,
                self._session_in(kept, assignment, connector, user) as session,
            ):
                yield session
        else:
            async with self._session_in(held, assignment, connector, user) as session:
                yield session

    @asynccontextmanager
    async def _session_in(
        self, held: HeldSession | None, assignment: Assignment, connector: Connector, user: User
    ) -> AsyncGenerator[EngineSession]:
        """The session that is held, or one for this statement alone."""
        if held is None:
            options = await self._options(assignment, connector, user)
            async with (
                self._slots.slot(connector.key, user.id),
                self._connectors.using(connector) as engine,
                engine.session(user, options) as own,
            ):
                yield own
            return
        try:
            async with self._held.turn(held) as session, self._slots.slot(connector.key, user.id):
                yield session
        finally:
            if not (held.named or assignment.keeps_session):
                await self._held.drop(held.id)

    @asynccontextmanager
    async def _import(self, assignment: Assignment, connector: Connector, user: User) -> AsyncGenerator[EngineSession]:
        if self._imports is None:
            raise rejected_by_rule("This server imports no files.")
        options = await self._credentials.options(user, connector, token=assignment.token)
        async with (
            self._slots.slot(connector.key, user.id),
            self._connectors.using(connector) as engine,
            self._imports(assignment, user, engine, options) as importing,
        ):
            yield importing

    @asynccontextmanager
    async def reattached(self, assignment: Assignment, user: User) -> AsyncGenerator[Attached]:
        """The statement that another runner has left at the engine, within the limits of its connector.

        Raises OutcomeUnknown when it cannot be followed, EngineUnavailable.
        """
        connector = self._connectors.find(assignment.connector)
        left = assignment.resumption
        if connector is None or left is None:
            raise OutcomeUnknown(_NOBODY)
        try:
            options = await self._options(assignment, connector, user)
        except CredentialsRequired as error:
            # The engine may have done it all: nothing here may sound like "send it again".
            raise OutcomeUnknown(f"Results have expired: {error.message}") from error
        async with self._slots.slot(connector.key, user.id), self._connectors.using(connector) as engine:
            if not isinstance(engine, ResumableEngine):
                raise OutcomeUnknown(_NOBODY)
            async with engine.reattach(user, options, left.mark.token, rows_read=left.rows) as attached:
                yield attached

    async def open_named(
        self,
        record: SessionRecord,
        connector: Connector,
        user: User,
        options: SessionOptions,
        *,
        max_open: int,
    ) -> bool:
        """Open and record the session of create_session; False when the user has `max_open` already.

        Raises too_many_sessions beyond the share of one user, what the engine raises, DatabaseUnavailable; then nothing
        is open.
        """
        with self._shares.opening(connector.key, user.id, max_open=max_open):
            return await self._open(record, connector, user, options, max_open=max_open)

    @asynccontextmanager
    async def _kept(
        self, assignment: Assignment, connector: Connector, user: User
    ) -> AsyncGenerator[HeldSession | None]:
        """A session for the statements of one script: recorded, so that the next one finds its way here.

        Of several statements that continue one script at once, the first opens it and the others find it.
        """
        async with AsyncExitStack() as place:
            async with self._openings.setdefault(assignment.session_id, asyncio.Lock()):
                held = self._held.get(assignment.session_id)
                if held is None:
                    await place.enter_async_context(self._first_statements.slot(connector.key, user.id))
                    held = await self._keep_new(assignment, connector, user)
            yield held

    async def _keep_new(self, assignment: Assignment, connector: Connector, user: User) -> HeldSession | None:
        await self._held.make_room(user.id, keep=self._max_kept - 1)
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
            owner=self._owner,
            is_live=True,
            idle=connector.limits.session_idle,
            last_used_at=datetime.now(UTC),
        )
        await self._open(record, connector, user, await self._options(assignment, connector, user), max_open=0)
        return self._held.get(record.id)

    async def _open(
        self, record: SessionRecord, connector: Connector, user: User, options: SessionOptions, *, max_open: int
    ) -> bool:
        place = HeldPlace(record.id, connector.key, user, named=record.named, idle=record.idle)
        held = await self._held.open(place, self._connectors.using(connector), options)
        try:
            held.is_recorded = await self._records.open(record, lease=self._lease, max_open=max_open)
        finally:
            if not held.is_recorded:
                await self._held.drop(record.id)
        return held.is_recorded

    async def _options(self, assignment: Assignment, connector: Connector, user: User) -> SessionOptions:
        return await self._credentials.options(
            user, connector, database=assignment.database, settings=assignment.settings, token=assignment.token
        )
