"""Tests connections: which steps succeed, and why a step fails (Contract platform 5.8). Nothing is stored.

Messages contain no secrets, and no addresses that the settings do not name.
"""

import asyncio
import base64
import re
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias
from urllib.parse import unquote, urlencode, urlsplit

import orjson
import structlog

from queryserver import errors
from queryserver.connectors.engine_builders import EngineBuilder, connector_address_rules
from queryserver.connectors.instances import Draft, StoredConnectors, SubmittedConnector, connector_event
from queryserver.connectors.model import MASK, Connector, SettingValue
from queryserver.connectors.options import HdfsOptions, parse_flag
from queryserver.connectors.secrets import secrets_of
from queryserver.connectors.sources import EMBEDDED, draft_connector, option_errors, require_folder_of, rest_options
from queryserver.connectors.types import RunSupport
from queryserver.engines.connections import MEMORY
from queryserver.engines.protocol import Engine, EngineSession, SessionOptions
from queryserver.engines.sessions import Answer, run
from queryserver.identity.model import User
from queryserver.platform.addresses import AddressRules, HostRefused, HttpServer, UnknownHost, literal_address
from queryserver.platform.http_client import HttpClient, HttpRequest
from queryserver.platform.threads import Tasks

_MAX_CHARACTERS = 500
_MAX_CAUSES = 10
_MIN_SECRET_CHARACTERS = 3

_REASONS: Sequence[tuple[type[BaseException], str]] = (
    (UnknownHost, "dns"),
    (HostRefused, "refused"),
    (errors.CredentialsRequired, "auth"),
    (errors.EngineForbidden, "auth"),
    (errors.EngineTimeout, "timeout"),
    (errors.StatementDenied, "engine"),
    (errors.StatementRejected, "engine"),
    (ssl.SSLError, "tls"),
    (socket.gaierror, "dns"),
    (ConnectionRefusedError, "refused"),
    (TimeoutError, "timeout"),
)
"""Failure reasons by error type. The first match wins, and the error itself comes before its causes."""

_PATTERNS = (
    (re.compile(r"(?i)certificate|\btls\b|\bssl\b"), "tls"),
    (re.compile(r"(?i)timed? ?out|in time\b"), "timeout"),
    (re.compile(r"(?i)refused the connection|connection refused"), "refused"),
)
"""Failure reasons by message, for adapters whose drivers hide the cause."""

_TRACE = re.compile(r"\s*(?:Traceback \(|File \"|at [\w.$<>]+\(|\.\.\. \d+ (?:more|common)|Caused by: )")
_ADDRESSES = re.compile(
    r"""[a-z][a-z0-9+.-]*://[^\s'"<>)\]]+"""  # urls
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"  # IPv4
    r"|(?<![\w:.])\[?(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}\]?(?![\w:])"  # IPv6
    r"|\b[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9-]+)*:\d{2,5}\b",  # host:port
    re.IGNORECASE,
)
_FILES = re.compile(r"(?<![\w/:.])(?:/[\w.@+-]+){2,}/?")

log = structlog.get_logger(__name__)

_MAX_CONCURRENT_TESTS = 4
_TIMED_OUT = "No response within {:g} s"
_OWN_LOGIN = "Users log in with their own credentials through create_session, so the login was not tested"
_ONLY_NAME = "Only the host name was resolved, because only the driver knows the port"
_NO_ADDRESS = "No connection was attempted, because only the driver knows the address"
_NO_FILE = "The file does not exist yet; the first statement creates it"
_FILE_IN_USE = "The file was not opened, because it is in use by another server"
_NOT_VERIFIED = "Certificates are not verified (ssl_validate is false)"

FirstStatement: TypeAlias = Callable[[], Awaitable[str | None]]
"""Runs a first statement. Returns the data source's version, or None if it is unknown. Raises EngineError."""
Login: TypeAlias = Callable[[User], AbstractAsyncContextManager[FirstStatement]]
"""Logs a user in to the data source. Raises EngineError."""


def reason_of(error: BaseException) -> str:
    """Classify an error as `dns`, `refused`, `timeout`, `tls`, `auth`, `engine` or `other`."""
    for one in _causes(error):
        for kind, reason in _REASONS:
            if isinstance(one, kind):
                return reason
    if isinstance(error, errors.NotSupported):
        return "engine"
    if isinstance(error, OSError):
        return "refused"  # no route, network unreachable, reset
    text = error.message if isinstance(error, errors.QueryServerError) else ""
    return next((reason for pattern, reason in _PATTERNS if pattern.search(text)), "other")


def sanitized_message(
    error: BaseException, settings: Mapping[str, SettingValue], endpoints: Sequence[tuple[str, int]]
) -> str:
    """Return the error's text without stack traces, secrets, paths, or addresses that the settings do not name."""
    if isinstance(error, errors.QueryServerError):
        text = error.message
    elif isinstance(error, TimeoutError):
        text = "The connection attempt timed out."
    elif isinstance(error, ConnectionRefusedError):
        text = "The connection was refused."
    elif isinstance(error, OSError):
        text = "The connection failed."
    else:
        text = "The test failed; see the server log."
    lines = list[str]()
    for line in text.strip().splitlines():
        if _TRACE.match(line):
            break
        lines.append(line.strip())
    # Truncate generously before the substitutions, because their time grows with the length. Truncate to the limit only
    # after them, so that no secret is split.
    text = " ".join(lines)[: 8 * _MAX_CHARACTERS]
    for secret in sorted(_secrets(settings), key=len, reverse=True):
        text = text.replace(secret, MASK)
    known = {host.lower() for host, _ in endpoints}
    text = _ADDRESSES.sub(lambda found: "(address)" if _is_foreign(found[0], known) else found[0], text)
    return _FILES.sub("(path)", text)[:_MAX_CHARACTERS].strip()


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__


def _secrets(settings: Mapping[str, SettingValue]) -> set[str]:
    """Return the secrets and the settings that contain them.

    Short strings are omitted, because they match parts of words.
    """
    found = set[str]()
    for value in secrets_of(settings).values():
        text = str(value)
        found |= {text, unquote(text)}
        if "://" in text:
            parts = urlsplit(text)
            found |= {parts.password or "", unquote(parts.password or "")}
            found |= {piece.partition("=")[2] for piece in parts.query.split("&")}
    return {text for text in found if len(text) >= _MIN_SECRET_CHARACTERS}


def _is_foreign(text: str, known: Collection[str]) -> bool:
    """Return whether the address belongs to a host that the settings do not name.

    Times of day do not count as addresses.
    """
    if "://" in text:
        try:
            return (urlsplit(text).hostname or "") not in known
        except ValueError:
            return True
    if literal_address(text) is not None:
        return text.strip("[]").lower() not in known
    return re.fullmatch(r"[\d:]+", text) is None and text.rpartition(":")[0].lower() not in known


@dataclass(frozen=True, slots=True)
class ConnectionCheck:
    name: str
    ok: bool
    ms: int


@dataclass(frozen=True, slots=True)
class ConnectionTestOutcome:
    reason: str
    """Empty if the test succeeded."""
    checks: Sequence[ConnectionCheck]
    warnings: str
    duration_ms: int
    server_version: str | None


@dataclass(frozen=True, slots=True)
class _TestTarget:
    """A data source to test; the test closes it."""

    login: Login
    close: Callable[[], Awaitable[object]]
    endpoints: Sequence[tuple[str, int]]
    """Hosts and ports, one of which must accept a connection. A port of 0 means that only the driver knows the port.

    Empty if no host is known.
    """
    takes_own_logins: bool = False
    """Whether users log in with their own credentials, in which case the test does not log in."""
    warnings: Sequence[str] = ()
    """Always included in the response."""
    addresses: AddressRules | None = None
    """The data source's address rules; None selects the rules for drafts."""


@dataclass(eq=False, repr=False)
class ConnectionTests:
    """Runs at most `at_once` tests at a time. Use `running()`, which cancels unfinished tests on exit."""

    builder: EngineBuilder
    engines: Callable[[EngineBuilder, Connector], Engine]
    """Creates a connector's engine."""
    connectors: StoredConnectors
    try_acquire: Callable[[str], Awaitable[bool]]
    """Acquires data that only one process can have open, if it is free. Returns whether this process now holds it."""
    at_once: int = _MAX_CONCURRENT_TESTS

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.at_once)
        policy, addresses = self.builder.policy, self.builder.addresses
        self._timeout_s: float = policy.test_timeout_s
        # The test only connects; the engine decides at login whether the database may be used.
        self._addresses = addresses.allowing_database_server() if policy.allow_service_database_server else addresses
        self._tasks = Tasks()
        self.running = self._tasks.running

    async def test(self, user: User, submitted: SubmittedConnector) -> ConnectionTestOutcome:
        """Test the submitted connector, or the stored one if only an id is submitted.

        Raises ConnectorRefused, connector_not_found, ConnectorTypeNotFound, interface_not_supported,
        DriverNotInstalled, TooManyRequests.
        """
        with connector_event(user, "test", submitted.id or submitted.nice_name) as event:
            instance = None if submitted.id is None else await self.connectors.stored(submitted.id)
            draft = await self.connectors.draft(submitted, instance)
            row = draft.row
            if row.runs is RunSupport.NO:
                raise errors.interface_not_supported(
                    f"Connectors of {row.dialect} with interface {row.interface} can be stored, but not run or tested."
                )
            if self._slots.locked():
                raise errors.TooManyRequests(f"{self.at_once} connection tests are already running.")
            name = submitted.nice_name or (instance.nice_name if instance else row.nice_name)
            outcome = await self._test(user, lambda: self._target(draft), draft.settings, f"{name} - {row.dialect}: ")
            event.outcome = outcome.reason or "ok"
        return outcome

    async def ping(self, user: User, connector: Connector) -> ConnectionTestOutcome:
        """Test an existing connector as soon as a slot is free. No audit event is written.

        Raises ConfigurationError if its engine cannot be built.
        """

        async def prepare() -> _TestTarget:
            target = await self._engine_target(connector)
            # As for statements, configured connectors may connect to the service's own database server.
            return replace(target, addresses=connector_address_rules(connector, self.builder))

        return await self._test(user, prepare, connector.options, "")

    async def _test(
        self,
        user: User,
        prepare: Callable[[], Awaitable[_TestTarget]],
        settings: Mapping[str, SettingValue],
        prefix: str,
    ) -> ConnectionTestOutcome:
        """Run a test without waiting for an unresponsive data source to close.

        Secrets from `settings` are masked in messages.
        """
        await self._slots.acquire()
        progress = _TestProgress()
        try:
            target = await prepare()
        except BaseException:
            self._slots.release()
            raise
        task = self._tasks.start(self._run(target, user, progress), "connection-test")
        task.add_done_callback(lambda _: self._slots.release())
        try:
            done, _ = await asyncio.wait({task}, timeout=self._timeout_s)
        finally:
            task.cancel()
        if done:
            reason, texts = _result(task.exception(), settings, target, progress)
        else:
            progress.fail()
            reason, texts = "timeout", [_TIMED_OUT.format(self._timeout_s), *target.warnings]
        return ConnectionTestOutcome(
            reason=reason,
            checks=tuple(progress.checks),
            warnings=prefix + ". ".join(text.rstrip(". ") for text in texts) if texts else "",
            duration_ms=_ms_since(progress.began),
            server_version=progress.server_version,
        )

    async def _run(self, target: _TestTarget, user: User, progress: "_TestProgress") -> None:
        try:
            await self._connect(target, progress)
            if not target.takes_own_logins:
                await _log_in(target.login, user, progress)
        finally:
            await target.close()

    async def _connect(self, target: _TestTarget, progress: "_TestProgress") -> None:
        """Connect to the first address that accepts a connection.

        If only the driver knows the port, the login makes the connection instead.
        """
        found, unknown = list[tuple[str, int]](), None
        rules = target.addresses or self._addresses
        with progress.step("resolve"):
            for host, port in target.endpoints:
                try:
                    found += [(address, port) for address in await rules.resolve(host, port)]
                except errors.EngineError as error:
                    unknown = error
            if unknown is not None and not found:
                raise unknown
        if not found or not all(port for _, port in found):
            return
        progress.is_connected = True
        with progress.step("connect"):
            failure: OSError | None = None
            for address, port in found:
                try:
                    async with asyncio.timeout(self._timeout_s / len(found)):
                        _, writer = await asyncio.open_connection(address, port)
                        writer.close()
                        with suppress(OSError):
                            await writer.wait_closed()
                except OSError as error:  # includes TimeoutError
                    failure = error
                else:
                    return
            if failure is not None:
                raise failure

    async def _target(self, draft: Draft) -> _TestTarget:
        """Prepare a draft for its test. Raises ConnectorRefused, interface_not_supported, DriverNotInstalled."""
        row, builder = draft.row, self.builder
        with option_errors():
            connector = draft_connector("new", row.dialect, row.interface, draft.settings, builder.settings)
            if row.runs is RunSupport.TEST:
                return _rest_target(connector, builder)
            return await self._engine_target(connector)

    async def _engine_target(self, connector: Connector) -> _TestTarget:
        """Build the engine for a test. Raises ConfigurationError."""
        builder = self.builder
        # In a thread, because this imports adapters on first use, reads certificates and checks files.
        await asyncio.to_thread(require_folder_of, connector, builder.databases_dir)
        engine = await asyncio.to_thread(self.engines, builder, connector)
        warnings = [_NOT_VERIFIED] if parse_flag(connector.options.get("ssl_validate", True)) is False else []
        if unopened := await self._reason_not_to_open(engine, connector):
            warnings.append(unopened)
            await engine.close()
            in_memory = MappingProxyType({**connector.options, "path": MEMORY})
            engine = self.engines(builder, replace(connector, options=in_memory, read_only=False))
        return _TestTarget(
            engine_login(engine, connector.dialect, passes_tokens=builder.settings.desktop.use_thrift_http_jwt),
            engine.close,
            endpoints=await asyncio.to_thread(_endpoints_of, engine, connector),
            takes_own_logins=engine.capabilities.wants_credentials,
            warnings=warnings,
        )

    async def _reason_not_to_open(self, engine: Engine, connector: Connector) -> str | None:
        """Return why an in-memory database must be tested instead; None if the file may be opened.

        Tests must not create a file, or open a file that another server uses.
        """
        path, root = str(connector.options.get("path", MEMORY)), self.builder.databases_dir
        if connector.interface not in EMBEDDED or path == MEMORY or root is None:
            return None
        if not await asyncio.to_thread((root / path).exists):
            return None if connector.read_only else _NO_FILE
        data = engine.capabilities.data_name
        return _FILE_IN_USE if data and not await self.try_acquire(data) else None


@dataclass(slots=True)
class _TestProgress:
    began: float = field(default_factory=time.monotonic)
    checks: list[ConnectionCheck] = field(default_factory=list[ConnectionCheck])
    step_under_way: tuple[str, float] | None = None
    server_version: str | None = None
    is_connected: bool = False
    """Whether connecting is a separate step; otherwise it is part of the login."""

    @contextmanager
    def step(self, name: str) -> Generator[None]:
        """Time one check, and record it as failed if the block raises an exception."""
        began = time.monotonic()
        self.step_under_way = name, began
        try:
            yield
        except BaseException:  # includes a cancellation
            self.fail()
            raise
        self.step_under_way = None
        ms = _ms_since(began)
        if name == "login" and not self.is_connected:
            # A login implies a connection.
            self.is_connected = True
            self.checks.append(ConnectionCheck("connect", ok=True, ms=ms))
            ms = 0
        self.checks.append(ConnectionCheck(name, ok=True, ms=ms))

    def fail(self) -> None:
        if self.step_under_way is not None:
            name, began = self.step_under_way
            self.step_under_way = None
            failed = "connect" if name == "login" and not self.is_connected else name
            self.checks.append(ConnectionCheck(failed, ok=False, ms=_ms_since(began)))

    def refused_by_data_source(self, reason: str) -> None:
        """Record that the data source itself refused the login or statement, which means that connecting succeeded.

        If there is no separate login exchange, only the first statement reveals that the login is refused.
        """
        last = self.checks[-1]
        if last.name == "connect" and not last.ok:
            self.checks[-1:] = [
                ConnectionCheck("connect", ok=True, ms=last.ms),
                ConnectionCheck("login", ok=False, ms=0),
            ]
        elif last.name == "statement" and reason == "auth":
            self.checks[-2:] = [ConnectionCheck("login", ok=False, ms=self.checks[-2].ms + last.ms)]


def _result(
    error: BaseException | None, settings: Mapping[str, SettingValue], target: _TestTarget, progress: _TestProgress
) -> tuple[str, Sequence[str]]:
    """Return the failure reason (empty for success) and the texts for the response."""
    if error is None and not target.takes_own_logins:
        return "", target.warnings
    if error is None:
        untried = [] if progress.is_connected else [_ONLY_NAME if target.endpoints else _NO_ADDRESS]
        return "", [*target.warnings, *untried, _OWN_LOGIN]
    if not isinstance(error, errors.QueryServerError | OSError):
        log.error("connection test failed", exc_info=error)
    reason = reason_of(error)
    if reason in {"auth", "engine"}:
        progress.refused_by_data_source(reason)
    return reason, [sanitized_message(error, settings, target.endpoints), *target.warnings]


async def _log_in(login: Login, user: User, progress: _TestProgress) -> None:
    is_done = False
    try:
        async with AsyncExitStack() as stack:
            with progress.step("login"):
                first_statement = await stack.enter_async_context(login(user))
            with progress.step("statement"):
                progress.server_version = await first_statement()
            is_done = True
    except errors.EngineError as error:
        if not is_done:
            raise
        log.info("test session did not close cleanly", code=error.code)


def _endpoints_of(engine: Engine, connector: Connector) -> Sequence[tuple[str, int]]:
    """Return the engine's endpoints, with port 0 if only the driver knows the port. May import a driver."""
    known = engine.capabilities.endpoints
    if known or connector.interface != "sqlalchemy":
        return known
    from queryserver.engines.sqlalchemy.engine import SqlalchemyEngine  # noqa: PLC0415 as in its builder

    host = engine.host if isinstance(engine, SqlalchemyEngine) else None
    return () if host is None else ((host, 0),)


def _ms_since(began: float) -> int:
    return round(1000 * (time.monotonic() - began))


# Engines, which are tested with a statement.

_TEST_STATEMENT = "SELECT 'Hello World!'"
_TEST_STATEMENTS = {"oracle": "SELECT 'Hello World!' FROM dual", "calcite": "VALUES 1", "elasticsearch": "SELECT 1"}
"""Replacements for dialects in which `_TEST_STATEMENT` is not valid."""

_VERSIONS = {
    **dict.fromkeys(
        ("redshift", "mysql", "hive", "hplsql", "impala", "sparksql", "trino", "duckdb", "clickhouse"),
        "SELECT version()",
    ),
    "postgresql": "SELECT current_setting('server_version')",
    "sqlite": "SELECT sqlite_version()",
    "snowflake": "SELECT current_version()",
}
"""Statements that return the version, by dialect."""

_MAX_VERSION_CHARACTERS = 200


def engine_login(engine: Engine, dialect: str, *, passes_tokens: bool) -> Login:
    """Return a function that logs in to the engine, as the caller if the data source supports this."""

    @asynccontextmanager
    async def login(user: User) -> AsyncGenerator[FirstStatement]:
        token = user.external_token if passes_tokens else None
        submitted = SessionOptions(
            external_token=token.text if token else None, token_expires_at=token.expires_at if token else None
        )
        async with engine.session(user, submitted) as session:
            yield lambda: _version(session, dialect)

    return login


async def _version(session: EngineSession, dialect: str) -> str | None:
    await run(session, _TEST_STATEMENTS.get(dialect, _TEST_STATEMENT), max_rows=1)
    statement = _VERSIONS.get(dialect)
    try:
        answer = await run(session, statement, max_rows=1) if statement else Answer()
    except errors.EngineError:  # the version is optional
        return None
    for batch in answer.rows:
        if batch.num_rows and batch.num_columns:
            return str(batch.column(0)[0].as_py())[:_MAX_VERSION_CHARACTERS]
    return None


# Servers with a REST interface, which accept no statements.

_MAX_BYTES = 256 * 1024
_MAX_REST_VERSION_CHARACTERS = 300


def _rest_target(connector: Connector, builder: EngineBuilder) -> _TestTarget:
    options, exchanges = rest_options(connector, builder), HttpClient(builder.addresses)
    if isinstance(options, HdfsOptions):
        url = options.server_url.rstrip("/")
        login = rest_login(exchanges, HttpRequest(f"{url}?op=GETHOMEDIRECTORY"), member="Path", as_user=True)
    else:
        url, headers = options.url.rstrip("/"), dict[str, str]()
        if options.username:
            basic = base64.b64encode(f"{options.username}:{options.password}".encode()).decode()
            headers["Authorization"] = f"Basic {basic}"
        request = HttpRequest(f"{url}/api/atlas/admin/version", headers=headers)
        login = rest_login(exchanges, request, member="Version", has_version=True)
    server = HttpServer(url)
    return _TestTarget(login, exchanges.__aexit__, [(server.host, server.port)])


def rest_login(
    exchanges: HttpClient, request: HttpRequest, *, member: str, has_version: bool = False, as_user: bool = False
) -> Login:
    """Return a function that logs in with a GET request.

    Only a server of the right type returns an object with `member`. `has_version` means that `member` is the version.
    `as_user` appends the caller to the query, as WebHDFS expects.
    """

    @asynccontextmanager
    async def login(user: User) -> AsyncGenerator[FirstStatement]:
        url = f"{request.url}&{urlencode({'user.name': user.username})}" if as_user else request.url
        answer = await exchanges.send(replace(request, url=url, max_bytes=_MAX_BYTES))
        if answer.status in {401, 403}:
            raise errors.CredentialsRequired("The server rejected the login.")

        async def first_statement() -> str | None:
            if answer.status != 200:
                raise errors.StatementRejected(f"The server returned HTTP status {answer.status}.")
            try:
                body = orjson.loads(answer.body)
            except orjson.JSONDecodeError:
                body = None
            value = body.get(member) if isinstance(body, dict) else None
            if not isinstance(value, str):
                raise errors.StatementRejected("The server's response does not match this connector type.")
            return value[:_MAX_REST_VERSION_CHARACTERS] if has_version else None

        yield first_statement

    return login
