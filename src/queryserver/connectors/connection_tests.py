"""Tests of connections: what works, how far, and why not (Contract platform 5.8). Nothing is stored."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import structlog

from queryserver.connectors.failures import cleaned, reason_of
from queryserver.connectors.instances import ConnectorAudit, ConnectorInstances, Draft, GivenConnector
from queryserver.connectors.types import Runs
from queryserver.engines.protocol import Engine, EngineSession, SessionOptions
from queryserver.engines.sessions import Answer, run
from queryserver.errors.base import QueryServerError, TooManyRequests
from queryserver.errors.statements import EngineError, interface_not_supported
from queryserver.identity.model import User


class LoggedIn(Protocol):
    """A login at the data source."""

    async def try_it(self) -> str | None:
        """Have it do something; its version, as it says. Raises EngineError."""
        ...


class Attempt(Protocol):
    """Logs in at one data source."""

    def login(self, user: User) -> AbstractAsyncContextManager[LoggedIn]:
        """Log in, for the caller where the data source acts for users. Raises EngineError."""
        ...

    async def close(self) -> None:
        """Close what is open. Limited in time."""
        ...


@dataclass(frozen=True, slots=True)
class Trial:
    """A data source to be tried. It belongs to whoever asked for it, and is to be closed."""

    attempt: Attempt
    places: Sequence[tuple[str, int]]
    """Hosts and ports, of which one must answer; empty: none, or only the driver knows."""
    takes_own_logins: bool = False
    """Users log in themselves: then the test ends with the connection."""
    warnings: Sequence[str] = ()
    """What is to be said however it ends."""


class Reach(Protocol):
    """Connections under the rules for hosts (Contract platform 5.11)."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The permitted addresses. Raises EngineUnavailable."""
        ...

    async def connect(self, address: str, port: int) -> None:
        """Open a connection and close it. Raises OSError."""
        ...


log = structlog.get_logger(__name__)

_AT_ONCE = 4
_ANSWERS = frozenset({"auth", "engine"})
_TIMED_OUT = "No answer came within {:g} s"
_OWN_LOGIN = "Users give their own credentials through create_session: tested up to the connection"
_ONLY_NAME = "Only the name of the host was looked up: the port is known to the driver alone"
_NOTHING = "Nothing was connected to: the address is known to the driver alone"


@dataclass(frozen=True, slots=True)
class Check:
    """One step."""

    name: str
    ok: bool
    ms: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test ended."""

    reason: str
    """Empty: it worked."""
    checks: Sequence[Check]
    warnings: str
    duration_ms: int
    server_version: str | None


@dataclass(slots=True)
class _Course:
    """A test under way."""

    began: float = field(default_factory=time.monotonic)
    checks: list[Check] = field(default_factory=list[Check])
    at_work: tuple[str, float] | None = None
    server_version: str | None = None
    is_connected: bool = False
    """The connection is a step of its own; else the login makes it."""
    is_over: bool = False

    @contextmanager
    def step(self, name: str) -> Generator[None]:
        """One check; it has failed when something is raised in it, a cancel too."""
        self.at_work = name, time.monotonic()
        try:
            yield
        except BaseException:  # a cancel too
            self.fail()
            raise
        ms = _ms_since(self.at_work[1])
        self.at_work = None
        if name == "login" and not self.is_connected:
            self.connected_by_login(ms)
            ms = 0
        self.checks.append(Check(name, ok=True, ms=ms))

    def connected_by_login(self, ms: int) -> None:
        """The login has shown that there is a connection."""
        self.is_connected = True
        self.checks.append(Check("connect", ok=True, ms=ms))

    def fail(self) -> None:
        """The step under way has failed."""
        if self.at_work is not None:
            name, began = self.at_work
            self.at_work = None
            failed = "connect" if name == "login" and not self.is_connected else name
            self.checks.append(Check(failed, ok=False, ms=_ms_since(began)))

    def answered(self) -> None:
        """It was the data source itself that said no: then there was a connection."""
        last = self.checks[-1]
        if last.name == "connect" and not last.ok:
            self.checks[-1:] = [Check("connect", ok=True, ms=last.ms), Check("login", ok=False, ms=0)]

    def login_failed(self) -> None:
        """Where a login costs no exchange of its own, the first statement shows that it was refused."""
        *before, last = self.checks
        if last.name == "statement":
            *before, login = before
            self.checks = [*before, Check("login", ok=False, ms=login.ms + last.ms)]


class ConnectionTests:
    """At most four at once. Use `running()`: what a test leaves open is closed behind it, at the latest at the end."""

    def __init__(
        self,
        *,
        instances: ConnectorInstances,
        audit: ConnectorAudit,
        prepare: Callable[[Draft], Awaitable[Trial]],
        reach: Reach,
        timeout: timedelta,
    ) -> None:
        """`prepare` makes what is to be tried of a draft."""
        self._instances = instances
        self._audit = audit
        self._prepare = prepare
        self._reach = reach
        self._timeout = timeout
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = 0

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Test while inside."""
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def test(self, user: User, given: GivenConnector) -> Outcome:
        """Try what was given, or what is stored where only an id is.

        Raises ConnectorRefused, connector_not_found, ConnectorTypeNotFound, interface_not_supported,
        DriverNotInstalled, TooManyRequests.
        """
        with self._audit.event(user, "test", given.id or given.nice_name) as event:
            instance = None if given.id is None else await self._instances.stored(given.id)
            draft = await self._instances.draft(given, instance)
            row = draft.row
            if row.runs is Runs.NO:
                text = f"Connectors of {row.dialect} with {row.interface} can be stored, and neither run nor tested."
                raise interface_not_supported(text)
            if self._open >= _AT_ONCE:
                raise TooManyRequests(f"{_AT_ONCE} connections are being tested already.")
            name = given.nice_name or (instance.nice_name if instance else row.nice_name)
            outcome = await self._test(user, draft, f"{name} - {row.dialect}: ")
            event.outcome = outcome.reason or "ok"
        return outcome

    async def _test(self, user: User, draft: Draft, prefix: str) -> Outcome:
        """The answer does not wait for what a data source without answer keeps open."""
        course = _Course()
        self._open += 1
        try:
            trial = await self._prepare(draft)
        except BaseException:
            self._open -= 1
            raise
        task = asyncio.create_task(self._run(trial, user, course), name="connection-test")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._timeout.total_seconds())
        finally:
            task.cancel()
        reason, texts = self._told(draft, trial, course, task if done else None)
        return Outcome(
            reason=reason,
            checks=tuple(course.checks),
            warnings=prefix + ". ".join(text.rstrip(". ") for text in texts) if texts else "",
            duration_ms=_ms_since(course.began),
            server_version=course.server_version,
        )

    def _told(
        self, draft: Draft, trial: Trial, course: _Course, ended: "asyncio.Task[None] | None"
    ) -> tuple[str, list[str]]:
        """Why it failed, empty when it did not, and what to say."""
        texts = list(trial.warnings)
        if ended is None:
            course.fail()
            return "timeout", [_TIMED_OUT.format(self._timeout.total_seconds()), *texts]
        error = ended.exception()
        if error is None:
            return "", [*texts, *_untried(trial, course)]
        if not isinstance(error, QueryServerError | OSError):
            log.error("connection test failed", exc_info=error)
        reason = reason_of(error)
        if reason in _ANSWERS:
            course.answered()
        if reason == "auth":
            course.login_failed()
        return reason, [cleaned(error, draft.settings, trial.places), *texts]

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._open -= 1

    async def _run(self, trial: Trial, user: User, course: _Course) -> None:
        try:
            await self._connect(trial.places, course)
            if not trial.takes_own_logins:
                await _log_in(trial, user, course)
        finally:
            await trial.attempt.close()

    async def _connect(self, places: Sequence[tuple[str, int]], course: _Course) -> None:
        """To the first address that takes a connection. Where the driver alone knows the port, the login connects."""
        with course.step("resolve"):
            found = await self._addresses(places)
        if not all(port for _, port in found) or not found:
            return
        course.is_connected = True
        with course.step("connect"):
            failure = None
            for address, port in found:
                failure = await self._failure(address, port, within_s=self._timeout.total_seconds() / len(found))
                if failure is None:
                    return
            if failure is not None:
                raise failure

    async def _failure(self, address: str, port: int, *, within_s: float) -> OSError | None:
        try:
            async with asyncio.timeout(within_s):
                await self._reach.connect(address, port)
        except OSError as error:  # a TimeoutError is one
            return error
        return None

    async def _addresses(self, places: Sequence[tuple[str, int]]) -> Sequence[tuple[str, int]]:
        found, failure = list[tuple[str, int]](), None
        for host, port in places:
            try:
                found += [(address, port) for address in await self._reach.resolve(host, port)]
            except EngineError as error:
                failure = error
        if failure is not None and not found:
            raise failure
        return found


async def _log_in(trial: Trial, user: User, course: _Course) -> None:
    try:
        async with AsyncExitStack() as stack:
            with course.step("login"):
                logged_in = await stack.enter_async_context(trial.attempt.login(user))
            with course.step("statement"):
                course.server_version = await logged_in.try_it()
            course.is_over = True
    except EngineError as error:
        if not course.is_over:
            raise
        log.info("tested session did not close cleanly", code=error.code)


def _untried(trial: Trial, course: _Course) -> list[str]:
    """What a test that went well says of how far it went."""
    if not trial.takes_own_logins:
        return []
    if course.is_connected:
        return [_OWN_LOGIN]
    return [_ONLY_NAME if trial.places else _NOTHING, _OWN_LOGIN]


def _ms_since(began: float) -> int:
    return round(1000 * (time.monotonic() - began))


_HELLO = "SELECT 'Hello World!'"
_HELLOS = {"oracle": "SELECT 'Hello World!' FROM dual", "calcite": "VALUES 1", "elasticsearch": "SELECT 1"}
"""Where the usual one is no statement."""

_VERSIONS = {
    "postgresql": "SELECT current_setting('server_version')",
    "redshift": "SELECT version()",
    "mysql": "SELECT version()",
    "hive": "SELECT version()",
    "hplsql": "SELECT version()",
    "impala": "SELECT version()",
    "sparksql": "SELECT version()",
    "trino": "SELECT version()",
    "duckdb": "SELECT version()",
    "sqlite": "SELECT sqlite_version()",
    "clickhouse": "SELECT version()",
    "snowflake": "SELECT current_version()",
}
"""The version is asked for where a statement tells it."""

_LONGEST_VERSION = 200


class EngineAttempt:
    """See `connectors.tests.Attempt`; owns the engine."""

    def __init__(self, engine: Engine, dialect: str, *, passes_tokens: bool) -> None:
        self._engine = engine
        self._dialect = dialect
        self._passes_tokens = passes_tokens

    @asynccontextmanager
    async def login(self, user: User) -> AsyncGenerator["EngineLogin"]:
        token = user.external_token if self._passes_tokens else None
        options = SessionOptions(
            external_token=token.text if token else None,
            token_expires_at=token.expires_at if token else None,
        )
        async with self._engine.session(user, options) as session:
            yield EngineLogin(session, self._dialect)

    async def close(self) -> None:
        await self._engine.close()


class EngineLogin:
    """See `connectors.tests.LoggedIn`."""

    def __init__(self, session: EngineSession, dialect: str) -> None:
        self._session = session
        self._dialect = dialect

    async def try_it(self) -> str | None:
        """See the Protocol. An engine that says no version may be a good one."""
        await run(self._session, _HELLOS.get(self._dialect, _HELLO), max_rows=1)
        question = _VERSIONS.get(self._dialect)
        try:
            answer = await run(self._session, question, max_rows=1) if question else Answer()
        except EngineError:
            return None
        for batch in answer.rows:
            if batch.num_rows and batch.num_columns:
                return str(batch.column(0)[0].as_py())[:_LONGEST_VERSION]
        return None
