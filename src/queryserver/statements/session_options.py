"""Determines a statement's session, settings, credentials and parameter values (Contract editor 2.3, 9).

Parameter values never appear in logs, responses or queues. In statement records, they are encrypted.
"""

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import orjson
import structlog

from queryserver import errors
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.connectors.secrets import masked
from queryserver.engines.protocol import Credentials, SessionOptions
from queryserver.errors.base import InvalidParameter
from queryserver.errors.statements import CredentialsRequired, EngineJwtRequired
from queryserver.identity.keys import Sealer
from queryserver.identity.model import ExternalToken, SealedToken, User
from queryserver.sql.classification import controls_transaction
from queryserver.sql.markers import ScriptMarkers, StatementParameters
from queryserver.sql.parameters import (
    MAX_BYTES,
    MAX_ROWS_BYTES,
    MAX_WRITTEN_BYTES,
    MORE_ROWS,
    Parameters,
    ParameterSupport,
)
from queryserver.sql.statements import Choice
from queryserver.statements.model import StatementRecord, new_session_guid
from queryserver.statements.repository import StatementRecords
from queryserver.statements.session_repository import SessionRecords

_MAX_ROWS_CHARACTERS = 128 * 1024 * 1024

log = structlog.get_logger(__name__)

_MAX_NAME_CHARACTERS = 100
_MAX_LISTED_NAMES = 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# Settings with these names determine the rights of a statement or the code that the engine loads. They are rejected
# rather than ignored, so that a client never assumes that they took effect. The colon is included because HiveServer2
# uses it for its own settings, as in `use:database` and `set:hiveconf:…`.
_DANGEROUS_NAME = re.compile(
    r"(?:^|[._-])(?:proxy[._-]?user|doas|impersonat\w*|delegation|ugi|user[._-]name|role|session_authorization"
    r"|authori[sz]ation|authentication|security|privileges?|acls?|hooks?|jars?|classpath)(?:[._-]|$)|:",
    re.IGNORECASE,
)


class ParameterSealer:
    """Encrypts the parameter values of a script for the records of its statements."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def seal(self, parameters: StatementParameters) -> bytes:
        """Encrypt the values. Raises InvalidParameter if they exceed the size limit."""
        content = _content(parameters)
        if parameters.values.rows:
            if len(content) > MAX_ROWS_BYTES:
                raise InvalidParameter(f"parameter_rows: at most {MAX_ROWS_BYTES} bytes of JSON together. {MORE_ROWS}")
            return self._sealer.seal(content)
        if len(content) > MAX_BYTES:
            raise InvalidParameter(f"parameters: at most {MAX_BYTES} bytes of JSON together.")
        return self._sealer.seal(content)

    def unseal(self, sealed: bytes) -> StatementParameters:
        """Decrypt the values. Raises ValueError if the key is unknown or the content was tampered with."""
        try:
            return StatementParameters.read(orjson.loads(self._sealer.unseal(sealed)))
        except (InvalidParameter, KeyError, TypeError) as error:
            changed = "the encrypted parameters were modified"
            raise ValueError(changed) from error

    def stored(self, record: StatementRecord) -> Parameters | None:
        """Return the values of a statement's whole script, or None if it has none, or they are no longer readable."""
        if record.sealed_parameters is None:
            return None
        try:
            return self.unseal(record.sealed_parameters).values
        except ValueError:
            return None

    def match_record(self, record: StatementRecord, parameters: Parameters | None) -> bool:
        """Return whether the values equal those of the recorded call (Contract editor 4.4)."""
        if record.sealed_parameters is None or parameters is None:
            return record.sealed_parameters is None and parameters is None
        recorded = self.stored(record)
        return recorded is not None and _content(StatementParameters(recorded)) == _content(
            StatementParameters(parameters)
        )


def check_parameters(parameters: Parameters, markers: ScriptMarkers, support: ParameterSupport) -> StatementParameters:
    """Check the values for the chosen statement of a script. Raises InvalidParameter, which names the parameter."""
    support.require(parameters)
    markers.require(parameters)
    for row in parameters.rows or (parameters,):
        if row.by_name is None:
            break
        sizes = {name: len(orjson.dumps(value)) for name, value in dict(row.original).items()}
        if (
            sum(sizes[name] * times for name, times in zip(markers.names, markers.occurrences, strict=True))
            > MAX_WRITTEN_BYTES
        ):
            raise InvalidParameter(
                f"parameters: at most {MAX_WRITTEN_BYTES} bytes of JSON, counting a value at each use of its name."
            )
    return StatementParameters(parameters, markers.before)


async def check_for_statement(
    choice: Choice, parameters: Parameters, support: ParameterSupport, script: str, dialect: str
) -> StatementParameters:
    """Check the values as `check_parameters` does. Raises InvalidParameter.

    If there are several rows, also require a single statement that can run once for each row.
    """
    if not parameters.rows:
        return check_parameters(parameters, choice.markers, support)
    _require_one_change(parameters, choice)
    if await asyncio.to_thread(controls_transaction, script[choice.first : choice.stop], dialect):
        # Such a statement would end the transaction that all rows share.
        raise InvalidParameter(
            "parameter_rows: the statement must be one that changes rows, not one that begins or ends a transaction."
        )
    return await asyncio.to_thread(check_parameters, parameters, choice.markers, support)


def _require_one_change(parameters: Parameters, choice: Choice) -> None:
    if choice.count > 1:
        raise InvalidParameter("parameter_rows: the text must be one statement.")
    if choice.has_result_set:
        raise InvalidParameter("parameter_rows: the statement must be one that changes rows, not one that reads them.")
    if len(parameters.rows) * (choice.stop - choice.first) > _MAX_ROWS_CHARACTERS:
        raise InvalidParameter(
            f"parameter_rows: the text is sent for each row, at most {_MAX_ROWS_CHARACTERS} characters in all: send"
            " fewer rows."
        )


def _content(parameters: StatementParameters) -> bytes:
    return orjson.dumps(parameters.stored(), option=orjson.OPT_SORT_KEYS)


@dataclass(frozen=True, slots=True)
class FilteredSettings:
    """The settings of one call, divided into those passed on to the engine and those ignored."""

    passed_on: Mapping[str, str]
    ignored: Sequence[str]
    """The names of the ignored settings, without their values, which may be secrets."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines for the operation's log."""
        if not self.ignored:
            return ()
        names = [name if _PLAIN_NAME.fullmatch(name) else "?" for name in self.ignored[:_MAX_LISTED_NAMES]]
        more = f" and {len(self.ignored) - _MAX_LISTED_NAMES} more" if len(self.ignored) > _MAX_LISTED_NAMES else ""
        return (f"WARN  : Settings that are not passed on to the engine: {', '.join(names)}{more}.",)


def filter_settings(settings: Mapping[str, str], connector: Connector, allowed: Collection[str]) -> FilteredSettings:
    """Select the settings to pass on. Other settings are ignored, because clients written for Hue send them every time.

    Raises InvalidParameter for dangerous settings and, if `strict_settings` is set, for any setting that would be
    ignored.
    """
    unknown = [name for name in settings if name not in allowed]
    refused = unknown if connector.strict_settings else [name for name in unknown if _DANGEROUS_NAME.search(name)]
    if refused:
        raise InvalidParameter(f"settings: {refused[0][:_MAX_NAME_CHARACTERS]} may not be set on this connector.")
    return FilteredSettings({name: value for name, value in settings.items() if name in allowed}, unknown)


_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class SessionCredentials:
    """Provides user credentials, which are stored encrypted in a session record until the session is closed.

    Tokens of external issuers are stored encrypted in the record of each statement that needs one. If `passes_tokens`
    is False, no token is ever passed to an engine.
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
        """Return the options for a new session. `token` overrides the caller's token. Raises CredentialsRequired."""
        external = None
        if self._wants_token(connector):
            # The statement's token takes precedence, because it identifies the user who submitted the statement.
            external = user.external_token
            if token:
                try:
                    external = ExternalToken(self._sealer.unseal(token.content).decode(), token.expires_at)
                except ValueError:  # the encryption key was removed
                    message = "The token of the statement can no longer be decrypted."
                    raise CredentialsRequired(message) from None
        if external is not None and external.expires_at <= self._clock():
            raise CredentialsRequired("Your token expired before the statement could be sent to the data source.")
        return SessionOptions(
            database=database,
            settings=settings,
            credentials=await self.latest(user, connector),
            external_token=external.text if external else None,
            token_expires_at=external.expires_at if external else None,
        )

    def require_token(self, user: User, connector: Connector) -> None:
        """Raise EngineJwtRequired if the engine needs the caller's token and this call has none to pass on."""
        if not self._connectors.engine(connector).capabilities.wants_external_token:
            return
        if not self._passes_tokens:
            raise EngineJwtRequired(
                "This server does not pass tokens on, because desktop.use_thrift_http_jwt is false."
            )
        if user.external_token is None:
            raise EngineJwtRequired(f"The connector {connector.nice_name} requires a token of your identity provider.")

    def sealed_token(self, user: User, connector: Connector) -> SealedToken | None:
        """Return the encrypted token for a statement's record. None if the call has none or the engine takes none."""
        token = user.external_token
        if token is None or not self._wants_token(connector):
            return None
        return SealedToken(self._sealer.seal(token.text.encode()), token.expires_at)

    async def latest(self, user: User, connector: Connector) -> Credentials | None:
        """Return the user's latest credentials for this connector. None if none are stored or the engine needs none."""
        if not self._connectors.engine(connector).capabilities.wants_credentials:
            return None
        sealed = await self._sessions.credentials(user.id, connector.key)
        if sealed is None:
            return None
        try:
            username, password, *addresses = json.loads(self._sealer.unseal(sealed))
        except ValueError as error:  # the encryption key was removed; the caller can send the credentials again
            log.warning("credentials could not be decrypted", connector=connector.key, reason=str(error))
            return None
        # Credentials for one address are never sent to another.
        return Credentials(username, password) if addresses == self._addresses(connector) else None

    async def required(self, user: User, connector: Connector) -> Credentials | None:
        """Return the user's latest credentials, as `latest` does.

        Raises CredentialsRequired if the engine needs credentials and none are stored.
        """
        credentials = await self.latest(user, connector)
        if credentials is None and self._connectors.engine(connector).capabilities.wants_credentials:
            raise CredentialsRequired(
                "The data source requires credentials. Call create_session with user and password."
            )
        return credentials

    def seal(self, credentials: Credentials, connector: Connector) -> bytes:
        """Encrypt the credentials for a session record."""
        content = [credentials.username, credentials.password, *self._addresses(connector)]
        return self._sealer.seal(json.dumps(content).encode())

    def _addresses(self, connector: Connector) -> list[str]:
        """Return the connector's addresses. If only the driver knows them, return a digest of all options instead."""
        endpoints = self._connectors.engine(connector).capabilities.endpoints
        if endpoints:
            return [f"{host}:{port}" for host, port in endpoints]
        options = json.dumps(masked(connector.options), sort_keys=True, default=str)
        return [hashlib.sha256(options.encode()).hexdigest()]

    def _wants_token(self, connector: Connector) -> bool:
        return self._passes_tokens and self._connectors.engine(connector).capabilities.wants_external_token


@dataclass(frozen=True, slots=True)
class StatementSession:
    """Identifies a session, which need not be open yet."""

    id: int
    guid: str
    owner: str | None
    """The process that has the session open, if any."""
    is_named: bool = False
    """Whether the session was opened by create_session."""
    is_shared: bool = False
    """Whether the session is shared by all statements with the same session options."""


@dataclass(frozen=True, slots=True)
class SessionChooser:
    """Chooses a statement's session: a named session, the previous statement's, a shared session, or a new one."""

    statements: StatementRecords
    sessions: SessionRecords

    async def named_session(self, user: User, connector: Connector, session_id: int) -> StatementSession:
        """Return a session that create_session opened. Raises session_not_found.

        A lost session raises no error here. A statement submitted to it is recorded, and then fails.
        """
        session = await self.sessions.read(session_id)
        if session is None and await self.sessions.find_named(session_id) == (user.id, connector.key):
            return StatementSession(session_id, new_session_guid(), owner=None, is_named=True)
        if session is None or not session.named or session.user_id != user.id or session.connector != connector.key:
            raise errors.session_not_found(session_id)
        await self.sessions.touch(session.id)
        return StatementSession(
            session.id, session.guid, owner=session.owner if session.is_live else None, is_named=True
        )

    async def previous_session(self, previous: StatementRecord, connector: Connector) -> StatementSession:
        """Return the session of the previous statement, which must have run on this connector."""
        handle, is_named = previous.handle, previous.in_named_session
        owner = await self._live_owner(handle.session_id)
        is_shared = connector.limits.shared_session and not is_named
        return StatementSession(handle.session_id, handle.session_guid, owner, is_named, is_shared)

    async def new_session(
        self, user: User, connector: Connector, database: str | None, settings: Mapping[str, str]
    ) -> StatementSession:
        """Return a new session. If the connector shares sessions, return the shared session with these options."""
        guid, session_id = new_session_guid(), await self.statements.new_session_id()
        if not connector.limits.shared_session:
            return StatementSession(session_id, guid, owner=None)
        purpose = json.dumps([database or None, sorted(settings.items())])
        session_id, guid = await self.sessions.find_shared(user.id, connector.key, purpose, (session_id, guid))
        return StatementSession(session_id, guid, await self._live_owner(session_id), is_shared=True)

    async def _live_owner(self, session_id: int) -> str | None:
        session = await self.sessions.read(session_id)
        return session.owner if session is not None and session.is_live else None
