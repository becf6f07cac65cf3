"""Sessions that callers open and close themselves (Contract editor 9).

The command close_sessions closes those of all users by age: `retention.RetentionSweep.close_sessions`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import orjson
import structlog

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors, key_named
from queryserver.engines.protocol import Credentials
from queryserver.errors.base import DatabaseUnavailable, NotSupported, too_many_sessions
from queryserver.errors.statements import EngineTimeout, EngineUnavailable, UnknownDialect, session_not_found
from queryserver.identity.model import User
from queryserver.platform.database import Notices
from queryserver.statements.credentials import SessionCredentials
from queryserver.statements.dispatcher import CLOSE_SESSION
from queryserver.statements.engine_settings import chosen_settings
from queryserver.statements.forwarding import Forwarding
from queryserver.statements.model import new_session_guid
from queryserver.statements.repository import StatementRecords
from queryserver.statements.runner import Runner
from queryserver.statements.session_repository import SessionRecord, SessionRecords
from queryserver.statements.signals import StateSignals

_OPEN = "open_session"
_ANSWER_S = 2.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NewSession:
    """The request of create_session: the properties as received, and as they were understood."""

    connector: str | None
    properties: Sequence[Mapping[str, Any]]
    settings: Mapping[str, str]
    credentials: Credentials | None
    database: str | None = None
    """Current at its beginning; None: the connector's default."""


@dataclass(slots=True, eq=False, kw_only=True)
class Sessions:
    """Named sessions. The instance that opened one runs its statements, also when another instance receives them.

    Those in data that another process holds are opened there.
    """

    records: SessionRecords
    statements: StatementRecords
    connectors: Connectors
    credentials: SessionCredentials
    runner: Runner
    forwarding: Forwarding
    notices: Notices
    signals: StateSignals
    max_per_user: int
    allowed_settings: frozenset[str]

    def __post_init__(self) -> None:
        self.forwarding.serve(_OPEN, self._open_forwarded, self._undo_forwarded)

    async def create(self, user: User, new: NewSession) -> SessionRecord:
        """Open an engine session and keep it.

        Raises InvalidParameter, UnknownDialect, EngineJwtRequired, too_many_sessions, Stopping, EngineError; then no
        session exists.
        """
        connector = self.connectors.resolve(user, new.connector)
        self.credentials.require_token(user, connector)
        settings = chosen_settings(new.settings, connector, self.allowed_settings)
        for line in settings.warnings:
            log.info(line, connector=connector.key)
        self.runner.instance.require_open()
        credentials, session_id = new.credentials, await self.statements.new_session_id()
        record = self._record(
            user, connector, session_id, guid=new_session_guid(), properties=new.properties, settings=settings.passed_on
        )
        if credentials:
            record = replace(record, sealed_credentials=self.credentials.seal(credentials, connector))
        data = self.connectors.data_of(connector)
        if data is not None and not await self.runner.data.may_run(connector):
            try:
                holder = await self.forwarding.holder(data)
                is_open = await self._open_at(holder, user, connector, record, new.database)
            except BaseException:  # a cancel too: the holder may have opened it
                await asyncio.shield(self._close_unanswered(record.id))
                raise
        else:
            is_open = await self._open_here(user, connector, record, credentials, new.database)
        if not is_open:
            raise too_many_sessions(f"{self.max_per_user} sessions of yours are open. Close some of them.")
        try:
            return await self.records.read(record.id) or record  # as recorded: its times are those of the database
        except DatabaseUnavailable:
            return record

    async def _open_here(
        self,
        user: User,
        connector: Connector,
        record: SessionRecord,
        credentials: Credentials | None,
        database: str | None,
    ) -> bool:
        options = await self.credentials.options(user, connector, database=database, settings=record.settings)
        if credentials:
            options = replace(options, credentials=credentials)
        return await self.runner.opener.open_named(record, connector, user, options, max_open=self.max_per_user)

    async def _open_at(
        self, holder: str, user: User, connector: Connector, record: SessionRecord, database: str | None
    ) -> bool:
        """The same in the process that holds the data. Raises EngineTimeout too."""
        # No credentials: data that one process holds are files, which have no logins.
        arguments = [record.id, record.guid, record.properties, record.settings, *([database] if database else [])]
        budget = connector.limits.metadata_timeout
        try:
            # The holder answers within its own time limit.
            async with asyncio.timeout(budget.total_seconds() + _ANSWER_S):
                return orjson.loads(
                    await self.forwarding.send(holder, user, connector, _OPEN, arguments, budget=budget)
                )
        except TimeoutError:
            raise EngineTimeout(f"No session was opened within {budget.total_seconds():g} s.") from None

    async def _open_forwarded(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        session_id, guid, properties, settings, *database = arguments  # a database only where there is one
        self.runner.instance.require_open()
        if not await self.runner.data.may_run(connector):
            raise EngineUnavailable("Another server has taken hold of this database; ask again.")
        record = self._record(user, connector, session_id, guid=guid, properties=properties, settings=settings)
        return orjson.dumps(await self._open_here(user, connector, record, None, database[0] if database else None))

    async def _close_unanswered(self, session_id: int) -> None:
        """Close a session whose id no client received. Its holder closes sessions that have no record."""
        with suppress(DatabaseUnavailable):
            await self.records.close(session_id)
        await self.notices.publish(CLOSE_SESSION, str(session_id))

    async def _undo_forwarded(self, arguments: Sequence[Any]) -> None:
        """Its caller has got an error: then no session exists."""
        await self.runner.close_session(arguments[0])

    def _record(
        self,
        user: User,
        connector: Connector,
        session_id: int,
        *,
        guid: str,
        properties: Sequence[Mapping[str, Any]],
        settings: Mapping[str, str],
    ) -> SessionRecord:
        return SessionRecord(
            id=session_id,
            guid=guid,
            user_id=user.id,
            connector=connector.key,
            dialect=connector.dialect,
            named=True,
            properties=properties,
            settings=settings,
            sealed_credentials=None,
            owner=self.runner.owner,
            is_live=True,
            idle=connector.limits.session_idle,
            last_used_at=datetime.now(UTC),
        )

    async def close(self, user: User, session_id: int) -> SessionRecord | None:
        """Close one session of the caller; None when it was closed already. Raises session_not_found."""
        record = await self.records.read(session_id)
        if record is None:
            named = await self.records.named(session_id)
            if named is None or named[0] != user.id or not user.reaches(named[1]):
                raise session_not_found(session_id)
            # It may have ended by itself, or an earlier call failed half-way.
            await self._close_results(*named, session_id)
            return None
        if record.user_id != user.id or not record.named or not user.reaches(record.connector):
            raise session_not_found(session_id)
        await self.end(record)
        return record

    async def close_all(self, user: User, connector: str | None) -> SessionRecord | None:
        """Close all sessions of the caller for one connector; answers the last of them. Raises as `resolve`.

        Also for a connector that the caller may no longer use, if they have or had sessions in it.
        """
        try:
            key = self.connectors.resolve(user, connector).key
        except (UnknownDialect, NotSupported):
            name = (connector or "").strip()
            key = key_named(name, await self.records.used_connectors(user.id)) if name else None
            if key is None or not user.reaches(key):
                raise
        open_ones = await self.records.open_sessions(user_id=user.id, connectors=[key])
        for record in open_ones:
            await self.end(record)
        await self._close_results(user.id, key, None)
        return open_ones[-1] if open_ones else None

    async def end(self, record: SessionRecord) -> bool:
        """Cancel what runs in it and close it; False when it was closed. Results stay but for `close_queries`."""
        for statement_id in await self.statements.active_in_session(record.id):
            await self.statements.request_cancel(statement_id, by="close_session")
        closed = await self.runner.close_session(record.id)
        if not closed:
            closed = await self.records.close(record.id)
            await self.notices.publish(CLOSE_SESSION, str(record.id))
        await self._close_results(record.user_id, record.connector, record.id)
        return closed

    async def _close_results(self, user_id: int, connector: str, session_id: int | None) -> None:
        """With `close_queries`: as close_statement for each result of the session, or of all sessions of the user."""
        known = self.connectors.known(connector)
        if known is not None and known.close_queries:
            for statement_id in await self.statements.close_results_of_sessions(user_id, connector, session_id):
                self.signals.notify(statement_id)
