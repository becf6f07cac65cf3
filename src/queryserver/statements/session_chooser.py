"""Chooses the session for a new statement (Contract editor 9.3)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from queryserver import errors
from queryserver.connectors.model import Connector
from queryserver.identity.model import User
from queryserver.statements.model import StatementRecord, new_session_guid
from queryserver.statements.repository import StatementRecords
from queryserver.statements.session_repository import SessionRecords


@dataclass(frozen=True, slots=True)
class StatementSession:
    """A session by its identifiers; it need not be open yet."""

    id: int
    guid: str
    owner: str | None
    """The process that has it open, if any."""
    named: bool = False
    """Whether it was opened by create_session."""
    shared: bool = False
    """Whether statements with the same session options share it."""


@dataclass(frozen=True, slots=True)
class SessionChooser:
    """Chooses the session of a statement: a named one, that of the previous statement, a shared or a new one."""

    statements: StatementRecords
    sessions: SessionRecords

    async def named(self, user: User, connector: Connector, session_id: int) -> StatementSession:
        """A session opened by create_session. Raises session_not_found.

        A lost session is no error here; a statement in it is recorded, and fails.
        """
        session = await self.sessions.read(session_id)
        if session is None and await self.sessions.named(session_id) == (user.id, connector.key):
            return StatementSession(session_id, new_session_guid(), owner=None, named=True)
        if session is None or not session.named or session.user_id != user.id or session.connector != connector.key:
            raise errors.session_not_found(session_id)
        await self.sessions.touch(session.id)
        return StatementSession(session.id, session.guid, owner=session.owner if session.is_live else None, named=True)

    async def of_previous(self, previous: StatementRecord, connector: Connector) -> StatementSession:
        """The session of the previous statement, if it ran on the connector."""
        handle, named = previous.handle, previous.in_named_session
        owner, shared = await self._owner_of(handle.session_id), connector.limits.shared_session and not named
        return StatementSession(handle.session_id, handle.session_guid, owner, named, shared)

    async def new(
        self, user: User, connector: Connector, database: str | None, settings: Mapping[str, str]
    ) -> StatementSession:
        """A new session, or the shared one with these options if the connector shares sessions."""
        guid, session_id = new_session_guid(), await self.statements.new_session_id()
        if not connector.limits.shared_session:
            return StatementSession(session_id, guid, owner=None)
        purpose = json.dumps([database or None, sorted(settings.items())])
        session_id, guid = await self.sessions.shared(user.id, connector.key, purpose, (session_id, guid))
        return StatementSession(session_id, guid, await self._owner_of(session_id), shared=True)

    async def _owner_of(self, session_id: int) -> str | None:
        session = await self.sessions.read(session_id)
        return session.owner if session is not None and session.is_live else None
