"""Credentials and tokens of users for engines (Contract editor 9)."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

import structlog

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.connectors.secrets import masked
from queryserver.engines.protocol import Credentials, SessionOptions
from queryserver.errors.statements import CredentialsRequired, EngineJwtRequired
from queryserver.identity.model import ExternalToken, SealedToken, User
from queryserver.platform.sealer import Sealer
from queryserver.statements.session_repository import SessionRecords

log = structlog.get_logger(__name__)

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class SessionCredentials:
    """Credentials of users, sealed in the record of their session until it is closed.

    Tokens of external issuers are sealed in the record of each statement that needs one. Without `passes_tokens`, no
    token is ever passed to an engine.
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
        """The options of a session; `token` replaces that of the call. Raises CredentialsRequired."""
        external = None
        if self._wants_token(connector):
            # The token of the statement has precedence, since it identifies the user who sent the statement.
            external = user.external_token
            if token:
                try:
                    external = ExternalToken(self._sealer.unseal(token.content).decode(), token.expires_at)
                except ValueError:  # the key was removed
                    message = "The token that came with the statement cannot be read any more."
                    raise CredentialsRequired(message) from None
        if external is not None and external.expires_at <= self._clock():
            raise CredentialsRequired("Your token has expired before the data source could be asked.")
        return SessionOptions(
            database=database,
            settings=settings,
            credentials=await self.latest(user, connector),
            external_token=external.text if external else None,
            token_expires_at=external.expires_at if external else None,
        )

    def require_token(self, user: User, connector: Connector) -> None:
        """Raises EngineJwtRequired if the engine needs the token of the caller and this call has none to pass on."""
        if not self._connectors.engine(connector).capabilities.wants_external_token:
            return
        if not self._passes_tokens:
            raise EngineJwtRequired("This server passes no tokens on: desktop.use_thrift_http_jwt is off.")
        if user.external_token is None:
            raise EngineJwtRequired(f"The connector {connector.nice_name} needs a token of your identity provider.")

    def sealed_token(self, user: User, connector: Connector) -> SealedToken | None:
        """The sealed token for the record of a statement; None if the engine takes none."""
        token = user.external_token
        if token is None or not self._wants_token(connector):
            return None
        return SealedToken(self._sealer.seal(token.text.encode()), token.expires_at)

    async def latest(self, user: User, connector: Connector) -> Credentials | None:
        """The latest credentials of the user for this connector; no query if the connector has its own login."""
        if not self._connectors.engine(connector).capabilities.wants_credentials:
            return None
        sealed = await self._sessions.credentials(user.id, connector.key)
        if sealed is None:
            return None
        try:
            username, password, *addresses = json.loads(self._sealer.unseal(sealed))
        except ValueError as error:  # the key was removed; the caller can send them again
            log.warning("credentials cannot be read", connector=connector.key, reason=str(error))
            return None
        # Credentials for one address are never sent to another.
        return Credentials(username, password) if addresses == self._addresses(connector) else None

    async def required(self, user: User, connector: Connector) -> Credentials | None:
        """As `of`, but raises CredentialsRequired if they are missing and the connector has no own login."""
        credentials = await self.latest(user, connector)
        if credentials is None and self._connectors.engine(connector).capabilities.wants_credentials:
            raise CredentialsRequired("The data source wants credentials: call create_session with user and password.")
        return credentials

    def seal(self, credentials: Credentials, connector: Connector) -> bytes:
        """The sealed form for the record of a session."""
        content = [credentials.username, credentials.password, *self._addresses(connector)]
        return self._sealer.seal(json.dumps(content).encode())

    def _addresses(self, connector: Connector) -> list[str]:
        """The addresses of the connector, or a digest of all its options if only the driver knows them."""
        endpoints = self._connectors.engine(connector).capabilities.endpoints
        if endpoints:
            return [f"{host}:{port}" for host, port in endpoints]
        options = json.dumps(masked(connector.options), sort_keys=True, default=str)
        return [hashlib.sha256(options.encode()).hexdigest()]

    def _wants_token(self, connector: Connector) -> bool:
        return self._passes_tokens and self._connectors.engine(connector).capabilities.wants_external_token
