"""Opens and closes named sessions for callers (Contract editor 9).

The command close_sessions, which closes sessions of all users by age, is implemented by
`RetentionSweep.close_sessions`.
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
from queryserver.statements.forwarding import WorkForwarder
from queryserver.statements.model import new_session_guid
from queryserver.statements.repository import StatementRecords
from queryserver.statements.runner import CLOSE_SESSION, Runner
from queryserver.statements.running_statements import StateSignals
from queryserver.statements.session_options import SessionCredentials, filter_settings
from queryserver.statements.session_repository import SessionRecord, SessionRecords

_OPEN = "open_session"
_ANSWER_S = 2.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NewSession:
    """A create_session request: its properties, with blanked passwords, and the values parsed from them."""

    connector: str | None
    properties: Sequence[Mapping[str, Any]]
    settings: Mapping[str, str]
    credentials: Credentials | None
    database: str | None = None
    """The initial database. None selects the connector's default."""


@dataclass(slots=True, eq=False, kw_only=True)
class Sessions:
    """Opens and closes named sessions. The instance that opened a session runs its statements.

    If another process holds the connector's data, the session is opened in that process.
    """

    records: SessionRecords
    statements: StatementRecords
    connectors: Connectors
    credentials: SessionCredentials
    runner: Runner
    forwarding: WorkForwarder
    notices: Notices
    signals: StateSignals
    max_per_user: int
    allowed_settings: frozenset[str]

    def __post_init__(self) -> None:
        self.forwarding.register(_OPEN, self._open_forwarded, self._undo_forwarded)

    async def create(self, user: User, new: NewSession) -> SessionRecord:
        """Open a persistent engine session, which lasts until it is closed or expires.

        Raises InvalidParameter, UnknownDialect, EngineJwtRequired, too_many_sessions, stopping, EngineError. After an
        error, the caller has no session.
        """
        connector = self.connectors.resolve(user, new.connector)
        self.credentials.require_token(user, connector)
        settings = filter_settings(new.settings, connector, self.allowed_settings)
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
        if data is not None and not await self.runner.data.can_run(connector):
            try:
                holder = await self.forwarding.holder(data)
                is_open = await self._open_at(holder, user, connector, record, new.database)
            except BaseException:  # including CancelledError: the holder may have opened the session
                await asyncio.shield(self._close_unanswered(record.id))
                raise
        else:
            is_open = await self._open_here(user, connector, record, credentials, new.database)
        if not is_open:
            raise too_many_sessions(
                f"{self.max_per_user} of your sessions are open (`editor.max_sessions_per_user`). Close some of them."
            )
        try:
            return await self.records.read(record.id) or record  # read again for the database's timestamps
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
        """Open the session in the process that holds the data. Also raises EngineTimeout."""
        # Credentials are not sent: data held by a single process are files, which need no login.
        arguments = [record.id, record.guid, record.properties, record.settings, *([database] if database else [])]
        budget = connector.limits.metadata_timeout
        try:
            # The holder responds within `budget`. The extra time is for forwarding the response.
            async with asyncio.timeout(budget.total_seconds() + _ANSWER_S):
                return orjson.loads(
                    await self.forwarding.send(holder, user, connector, _OPEN, arguments, budget=budget)
                )
        except TimeoutError:
            raise EngineTimeout(f"No session was opened within {budget.total_seconds():g} s.") from None

    async def _open_forwarded(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        session_id, guid, properties, settings, *database = arguments  # the database is sent only if it is set
        self.runner.instance.require_open()
        if not await self.runner.data.can_run(connector):
            raise EngineUnavailable("Another server has opened this database. Retry the call.")
        record = self._record(user, connector, session_id, guid=guid, properties=properties, settings=settings)
        return orjson.dumps(await self._open_here(user, connector, record, None, database[0] if database else None))

    async def _close_unanswered(self, session_id: int) -> None:
        """Close the record of a session whose id the client never received. Its owner then closes the session."""
        with suppress(DatabaseUnavailable):
            await self.records.close(session_id)
        await self.notices.publish(CLOSE_SESSION, str(session_id))

    async def _undo_forwarded(self, arguments: Sequence[Any]) -> None:
        """Close the session, because the caller received an error."""
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
        """Close one of the caller's sessions. Return None if it was already closed. Raises session_not_found."""
        record = await self.records.read(session_id)
        if record is None:
            session = await self.records.find_named(session_id)
            if session is None or session[0] != user.id or not user.reaches(session[1]):
                raise session_not_found(session_id)
            # The session may have expired or been lost, or an earlier call may have failed halfway.
            await self._close_results(*session, session_id)
            return None
        if record.user_id != user.id or not record.named or not user.reaches(record.connector):
            raise session_not_found(session_id)
        await self.end(record)
        return record

    async def close_all(self, user: User, connector: str | None) -> SessionRecord | None:
        """Close all the caller's sessions on one connector, and return the last one. Raises the errors of `resolve`.

        Also works if the caller may no longer use the connector, provided they have or had sessions on it.
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
        """Cancel the session's statements and close it. Return False if it was already closed.

        Results are kept unless the connector has `close_queries` set.
        """
        for statement_id in await self.statements.active_in_session(record.id):
            await self.statements.request_cancel(statement_id, by="close_session")
        closed = await self.runner.close_session(record.id)
        if not closed:
            closed = await self.records.close(record.id)
            await self.notices.publish(CLOSE_SESSION, str(record.id))
        await self._close_results(record.user_id, record.connector, record.id)
        return closed

    async def _close_results(self, user_id: int, connector: str, session_id: int | None) -> None:
        """If the connector has `close_queries` set, close the results of one session, or of all the user's sessions."""
        connector_settings = self.connectors.known(connector)
        if connector_settings is not None and connector_settings.close_queries:
            for statement_id in await self.statements.close_results_of_sessions(user_id, connector, session_id):
                self.signals.notify(statement_id)
