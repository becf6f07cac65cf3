"""Logins at data sources: those that callers gave through create_session, and callers' own tokens (platform 3.9)."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

import structlog

from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.connectors.secrets import masked
from queryserver.engines.protocol import Credentials, SessionOptions
from queryserver.errors.statements import CredentialsRequired, EngineJwtRequired
from queryserver.identity.model import ExternalToken, SealedToken, User
from queryserver.platform.deployment import Sealer
from queryserver.statements.session_repository import SessionRecords

log = structlog.get_logger(__name__)

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class CredentialBook:
    """Keeps credentials sealed in the record of the session that brought them, for that session's life.

    Tokens of other issuers are never kept here: they come with the call, or sealed with the statement that needs them.
    `passes_tokens` False: no engine ever gets one.
    """

    def __init__(
        self,
        sessions: SessionRecords,
        connectors: Connectors,
        sealer: Sealer,
        *,
        passes_tokens: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sessions = sessions
        self._connectors = connectors
        self._sealer = sealer
        self._passes_tokens = passes_tokens
        self._clock = clock

    async def options(
        self,
        user: User,
        connector: Connector,
        *,
        database: str | None = None,
        settings: Mapping[str, str] = _NO_SETTINGS,
        token: SealedToken | None = None,
    ) -> SessionOptions:
        """What a session of the caller is opened with; `token` in place of the one that the call came with.

        Raises CredentialsRequired when the token is past its time, or cannot be read.
        """
        external = self._usable(user, connector, token)
        return SessionOptions(
            database=database,
            settings=settings,
            credentials=await self.of(user, connector),
            external_token=external.text if external else None,
            token_expires_at=external.expires_at if external else None,
        )

    def require_token(self, user: User, connector: Connector) -> None:
        """Raises EngineJwtRequired when the engine takes callers' own tokens and this call came with none to pass."""
        if not self._connectors.engine(connector).capabilities.wants_external_token:
            return
        if not self._passes_tokens:
            raise EngineJwtRequired("This server passes no tokens on: desktop.use_thrift_http_jwt is off.")
        if user.external_token is None:
            raise EngineJwtRequired(f"The connector {connector.nice_name} needs a token of your identity provider.")

    def sealed_token(self, user: User, connector: Connector) -> SealedToken | None:
        """For the record of a statement; None where the engine takes none."""
        token = user.external_token
        if token is None or not self._wants_token(connector):
            return None
        return SealedToken(self._sealer.seal(token.text.encode()), token.expires_at)

    async def of(self, user: User, connector: Connector) -> Credentials | None:
        """What the caller gave last for this connector. Costs nothing where the connector has its own login."""
        if not self._connectors.engine(connector).capabilities.wants_credentials:
            return None
        sealed = await self._sessions.credentials(user.id, connector.key)
        if sealed is None:
            return None
        try:
            username, password, *places = json.loads(self._sealer.unseal(sealed))
        except ValueError as error:  # their key is gone: the caller can give them again
            log.warning("credentials cannot be read", connector=connector.key, reason=str(error))
            return None
        # What was given for one address never goes to another.
        return Credentials(username, password) if places == self._places(connector) else None

    async def are_missing(self, user: User, connector: Connector) -> bool:
        """Whether the data source is known to need a login that the caller has not given."""
        wanted = self._connectors.engine(connector).capabilities.wants_credentials
        return wanted and await self.of(user, connector) is None

    def seal(self, credentials: Credentials, connector: Connector) -> bytes:
        """For the record of a session."""
        known = [credentials.username, credentials.password, *self._places(connector)]
        return self._sealer.seal(json.dumps(known).encode())

    def _places(self, connector: Connector) -> list[str]:
        """Where its connections go. Where only the driver knows, all options stand for it."""
        places = self._connectors.engine(connector).capabilities.places
        if places:
            return [f"{host}:{port}" for host, port in places]
        options = json.dumps(masked(connector.options), sort_keys=True, default=str)
        return [hashlib.sha256(options.encode()).hexdigest()]

    def _wants_token(self, connector: Connector) -> bool:
        return self._passes_tokens and self._connectors.engine(connector).capabilities.wants_external_token

    def _usable(self, user: User, connector: Connector, sealed: SealedToken | None) -> ExternalToken | None:
        """The token for the engine. A statement's own comes first: it says as whom the statement was sent."""
        if not self._wants_token(connector):
            return None
        token = self._unsealed_token(sealed) if sealed else user.external_token
        if token is not None and token.expires_at <= self._clock():
            raise CredentialsRequired("Your token has expired before the data source could be asked.")
        return token

    def _unsealed_token(self, sealed: SealedToken) -> ExternalToken:
        try:
            return ExternalToken(self._sealer.unseal(sealed.content).decode(), sealed.expires_at)
        except ValueError:  # its key is gone
            raise CredentialsRequired("The token that came with the statement cannot be read any more.") from None
