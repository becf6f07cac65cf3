"""Logins at data sources that callers gave through create_session."""

import json

import structlog

from queryserver.domain.connector import Connector
from queryserver.domain.user import User
from queryserver.interfaces.engine import Credentials
from queryserver.interfaces.sealing import Sealer
from queryserver.interfaces.sessions import SessionRecords
from queryserver.services.connectors import Connectors

log = structlog.get_logger(__name__)


class CredentialBook:
    """Keeps credentials sealed in the record of the session that brought them, for that session's life."""

    def __init__(self, sessions: SessionRecords, connectors: Connectors, sealer: Sealer) -> None:
        self._sessions = sessions
        self._connectors = connectors
        self._sealer = sealer

    async def of(self, user: User, connector: Connector) -> Credentials | None:
        """What the caller gave last for this connector. Costs nothing where the connector has its own login."""
        if not self._connectors.engine(connector).capabilities.wants_credentials:
            return None
        sealed = await self._sessions.credentials(user.id, connector.key)
        if sealed is None:
            return None
        try:
            return self.unseal(sealed)
        except ValueError as error:  # their key is gone: the caller can give them again
            log.warning("credentials cannot be read", connector=connector.key, reason=str(error))
            return None

    async def are_missing(self, user: User, connector: Connector) -> bool:
        """Whether the data source is known to need a login that the caller has not given."""
        wanted = self._connectors.engine(connector).capabilities.wants_credentials
        return wanted and await self.of(user, connector) is None

    def seal(self, credentials: Credentials) -> bytes:
        """For the record of a session."""
        return self._sealer.seal(json.dumps([credentials.username, credentials.password]).encode())

    def unseal(self, sealed: bytes) -> Credentials:
        """The opposite of `seal`. Raises ValueError when they were changed or their key is unknown."""
        username, password = json.loads(self._sealer.unseal(sealed))
        return Credentials(username, password)
