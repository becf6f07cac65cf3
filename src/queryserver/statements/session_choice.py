"""The session that a new statement runs in (Contract editor 9.3)."""

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
    """The process that has it open now."""
    named: bool = False
    """It was made by create_session."""
    shared: bool = False
    """Statements that open a session with the same options share it."""


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """Chooses the session of a statement: a named one, that of the statement before it, a shared or a new one."""

    statements: StatementRecords
    sessions: SessionRecords

    async def named(self, user: User, connector: Connector, session_id: int) -> StatementSession:
        """A session of create_session. Raises session_not_found.

        One that is gone is no error here: a statement in it is recorded, and fails.
        """
        found = await self.sessions.read(session_id)
        if found is None and await self.sessions.named(session_id) == (user.id, connector.key):
            return StatementSession(session_id, new_session_guid(), owner=None, named=True)
        if found is None or not found.named or found.user_id != user.id or found.connector != connector.key:
            raise errors.session_not_found(session_id)
        await self.sessions.touch(found.id)
        return StatementSession(found.id, found.guid, owner=found.owner if found.is_live else None, named=True)

    async def continued(self, before: StatementRecord, connector: Connector) -> StatementSession:
        """The session of the statement that ran before on the connector."""
        handle, named = before.handle, before.in_named_session
        owner, shared = await self._owner_of(handle.session_id), connector.limits.shared_session and not named
        return StatementSession(handle.session_id, handle.session_guid, owner, named, shared)

    async def new(
        self, user: User, connector: Connector, database: str | None, settings: Mapping[str, str]
    ) -> StatementSession:
        """A new session, or where the connector shares sessions the one with these options."""
        guid, session_id = new_session_guid(), await self.statements.new_session_id()
        if not connector.limits.shared_session:
            return StatementSession(session_id, guid, owner=None)
        purpose = json.dumps([database or None, sorted(settings.items())])
        session_id, guid = await self.sessions.shared(user.id, connector.key, purpose, (session_id, guid))
        return StatementSession(session_id, guid, await self._owner_of(session_id), shared=True)

    async def _owner_of(self, session_id: int) -> str | None:
        session = await self.sessions.read(session_id)
        return session.owner if session is not None and session.is_live else None
