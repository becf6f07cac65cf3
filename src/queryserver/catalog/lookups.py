"""Looks at data sources: from the cache, or at the engine within limits of time and number (Contract editor 10)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID, uuid4

import orjson
import structlog

from queryserver import errors
from queryserver.catalog.cache import BY_KIND, ForwardedLook, ForwardedLooks, MetadataCache, Question
from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.engines.protocol import (
    Catalog,
    CatalogEngine,
    Engine,
    EngineSession,
    LoadingEngine,
    SessionOptions,
    TableLoader,
)
from queryserver.errors.base import DatabaseUnavailable, NotSupported, QueryServerError
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
)
from queryserver.identity.model import User
from queryserver.identity.users import UserDirectory
from queryserver.platform.database import Notices
from queryserver.platform.limits import Slots
from queryserver.platform.metrics import UNMEASURED, StatementMetrics
from queryserver.statements.session_repository import CredentialBook

log = structlog.get_logger(__name__)

T = TypeVar("T")


class _Flight:
    def __init__(self, task: "asyncio.Task[Any]", *, until: float) -> None:
        self.task = task
        self.until = until
        self.waiting = 0


class Flights:
    """Owns the tasks. Equal keys share one; it is canceled when its time is over or nobody waits any more.

    A canceled task may take a while to end the engine's work: nobody waits for that, but `running` does at its end.
    """

    def __init__(self) -> None:
        self._joinable: dict[Hashable, _Flight] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """End all work at the end."""
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def join(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]], *, budget: timedelta) -> T:
        """What `work` gives, or equal work that is under way. Raises EngineTimeout after the work's `budget`."""
        flight = self._joinable.get(key) or self._start(key, work, budget)
        flight.waiting += 1
        try:
            left_s = max(flight.until - asyncio.get_running_loop().time(), 0)
            done, _ = await asyncio.wait({flight.task}, timeout=left_s)
            if not done:
                raise EngineTimeout(f"The data source did not answer within {_seconds(budget)}.")
            if flight.task.cancelled():
                raise EngineUnavailable("The server ended this look at the data source.")
            return flight.task.result()
        finally:
            flight.waiting -= 1
            if not flight.task.done() and (not flight.waiting or flight.until <= asyncio.get_running_loop().time()):
                self._leave(key, flight)
                flight.task.cancel()

    def _start(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]], budget: timedelta) -> _Flight:
        task = asyncio.create_task(work(), name="look-up")
        flight = _Flight(task, until=asyncio.get_running_loop().time() + budget.total_seconds())
        self._joinable[key] = flight
        self._tasks.add(task)

        def ended(_: "asyncio.Task[Any]") -> None:
            self._tasks.discard(task)
            self._leave(key, flight)
            if not task.cancelled() and (error := task.exception()) and not isinstance(error, QueryServerError):
                log.error("look-up failed", exc_info=error)

        task.add_done_callback(ended)
        return flight

    def _leave(self, key: Hashable, flight: _Flight) -> None:
        if self._joinable.get(key) is flight:
            del self._joinable[key]


def _seconds(budget: timedelta) -> str:
    return f"{budget.total_seconds():g} s"


ASKED = "look"
ANSWERED = "looked"
# A notice may be lost: then the answer is found by looking, and the question is told again.
_LOOK_EVERY_S = 0.5

Handler = Callable[[User, Connector, Sequence[Any]], Awaitable[bytes]]
"""Takes a look in this process. Raises QueryServerError."""

_NOT_FOUND = ("database_not_found", "column_not_found", "nested_path_not_found", "function_not_found")
_ERRORS: Mapping[str, type[QueryServerError]] = MappingProxyType(
    {
        **dict.fromkeys(_NOT_FOUND, errors.MetadataNotFound),
        **{
            kind.code: kind
            for kind in (
                errors.TableNotFound,
                errors.NotSupported,
                errors.CredentialsRequired,
                errors.EngineForbidden,
                errors.EngineTimeout,
                errors.EngineUnavailable,
                errors.SessionLost,
                errors.StatementRejected,
            )
        },
    }
)


@dataclass(frozen=True, slots=True)
class ElsewhereParts:
    """What it works with; `owner` names this process."""

    owner: str
    looks: ForwardedLooks
    users: UserDirectory
    connectors: Connectors
    notices: Notices


class Elsewhere:
    """Asks other processes, and takes looks that others ask for. Use `running()`."""

    def __init__(self, parts: ElsewhereParts) -> None:
        self._parts = parts
        self._handlers: dict[str, Handler] = {}
        self._waiting: dict[UUID, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._flights = Flights()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Take looks of others while inside."""
        try:
            async with self._flights.running():
                yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def owner(self) -> str:
        """The name of this process."""
        return self._parts.owner

    def serve(self, kind: str, handler: Handler) -> None:
        """Take looks of that kind with `handler`."""
        self._handlers[kind] = handler

    async def here(self, user: User, connector: Connector, kind: str, arguments: Sequence[Any]) -> bytes:
        """Take the look in this process."""
        return await self._handlers[kind](user, connector, arguments)

    async def holder(self, data: str) -> str:
        """The other process that holds data of that name. Raises EngineUnavailable when none does."""
        holder = await self._parts.looks.holder(data)
        if holder in (None, self._parts.owner):
            raise EngineUnavailable("No server holds this database just now; ask again in a few seconds.")
        return holder or ""

    async def ask(
        self, target: str, user: User, connector: Connector, kind: str, arguments: Sequence[Any], *, budget: timedelta
    ) -> bytes:
        """What the process `target` answers; waits until canceled. Raises what its look raises."""
        look_id = uuid4()
        asked = {
            "kind": kind,
            "connector": connector.key,
            "arguments": list(arguments),
            "budget_s": budget.total_seconds(),
        }
        answered = self._waiting[look_id] = asyncio.Event()
        try:
            await self._parts.looks.ask(look_id, ForwardedLook(user.id, orjson.dumps(asked)), of=target)
            while True:
                await self._parts.notices.publish(ASKED, str(look_id))
                await _within(answered, _LOOK_EVERY_S)
                answer = await self._parts.looks.read(look_id)
                if answer is not None:
                    return _opened(answer)
        finally:
            del self._waiting[look_id]
            await asyncio.shield(self._forget(look_id))

    def heard(self, kind: str, subject: str) -> bool:
        """A word from an instance, perhaps this one; False when it is about something else."""
        if kind == ANSWERED:
            if (waiting := self._waiting.get(UUID(subject))) is not None:
                waiting.set()
        elif kind == ASKED:
            task = asyncio.create_task(self._take(UUID(subject)), name="forwarded-look")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return kind in (ANSWERED, ASKED)

    async def _take(self, look_id: UUID) -> None:
        try:
            look = await self._parts.looks.take(look_id, by=self._parts.owner)
            if look is not None:
                await self._parts.looks.answer(look_id, await self._sealed_answer(look))
                await self._parts.notices.publish(ANSWERED, str(look_id))
        except DatabaseUnavailable:
            log.warning("forwarded look not answered")

    async def _sealed_answer(self, look: ForwardedLook) -> bytes:
        try:
            return b"+" + await self._looked(look)
        except QueryServerError as error:
            return b"-" + orjson.dumps([error.code, error.message])
        except Exception:  # the outer wall of a task: who asked must not wait for nothing
            log.exception("forwarded look failed")
            return b"-" + orjson.dumps(["", "The server that holds the data failed."])

    async def _looked(self, look: ForwardedLook) -> bytes:
        asked = orjson.loads(look.request)
        user = await self._parts.users.user(look.user_id)
        connector = self._parts.connectors.find(asked["connector"])
        if connector is None:
            # Who asks may have heard of it first.
            await self._parts.connectors.refresh()
            connector = self._parts.connectors.find(asked["connector"])
        if user is None or connector is None:
            raise EngineUnavailable("The server that holds the data does not know this user or connector.")

        async def looking() -> bytes:
            return await self.here(user, connector, asked["kind"], asked["arguments"])

        return await self._flights.join(object(), looking, budget=timedelta(seconds=asked["budget_s"]))

    async def _forget(self, look_id: UUID) -> None:
        try:
            await self._parts.looks.forget(look_id)
        except DatabaseUnavailable:
            log.warning("forwarded look stays in the database for an hour")


def _opened(answer: bytes) -> bytes:
    """The answer, or its error raised."""
    if answer.startswith(b"+"):
        return answer[1:]
    code, message = orjson.loads(answer[1:])
    kind = _ERRORS.get(code, EngineUnavailable)
    error = kind.__new__(kind)
    # Errors that are made of names have their message already.
    QueryServerError.__init__(error, message)
    if code in _ERRORS:
        error.code = code
    raise error


async def _within(event: asyncio.Event, wait_s: float) -> None:
    try:
        async with asyncio.timeout(wait_s):
            await event.wait()
    except TimeoutError:
        return


PER_CONNECTOR = 8
"""Looks at one connector at once, beside its statements."""
_PER_USER = 4
_QUESTION = "question"


Heard = Callable[[User, Connector, Question[Any], object], None]


@dataclass(frozen=True, slots=True)
class LookUpParts:
    """What looks work with. `may_run` tells whether this process can reach the data of a connector."""

    connectors: Connectors
    credentials: CredentialBook
    cache: MetadataCache
    may_run: Callable[[Connector], Awaitable[bool]]
    elsewhere: Elsewhere
    metrics: StatementMetrics = UNMEASURED
    heard: Heard | None = None
    """Told of each answer of an engine; must neither wait nor fail."""


class LookUps:
    """Everything that asks an engine without an operation. Use `running()`."""

    def __init__(self, parts: LookUpParts) -> None:
        self._parts = parts
        self._flights = Flights()
        parts.elsewhere.serve(_QUESTION, self._answer_for_others)
        self._slots = Slots(per_connector=PER_CONNECTOR, per_user=_PER_USER)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Look while inside; at the end all looks are ended."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._parts.cache.running())
            await stack.enter_async_context(self._parts.elsewhere.running())
            await stack.enter_async_context(self._flights.running())
            yield

    async def ask(self, user: User, connector: Connector, question: Question[T], *, refresh: bool = False) -> T:
        """The answer of the catalogue as this user gets it, not older than the cache allows; equal questions share one.

        Raises NotSupported, CredentialsRequired, EngineUnavailable, EngineTimeout, EngineForbidden, StatementRejected,
        and what the question raises.
        """
        self._catalog_engine(connector)
        login = await self._login(user, connector)
        found = await self._parts.cache.look(user, connector, login, question)
        if found.value is not None and not refresh:
            return await self._parts.cache.read(question, found.value)

        async def work() -> T:
            answer = await self._answer(user, connector, question)
            if self._parts.heard is not None:
                self._parts.heard(user, connector, question, answer)
            await self._parts.cache.keep(question, answer, key=found.key, looked_at=found.looked_at)
            return answer

        # Whoever comes after a change of objects, or asks for what is new, waits for no older look.
        shared = object() if refresh else found.changed_at
        return await self._flights.join((found.key, shared), work, budget=connector.limits.metadata_timeout)

    @asynccontextmanager
    async def catalog(self, user: User, connector: Connector) -> AsyncGenerator[Catalog]:
        """A catalogue opened as the user, within the limits. Raises as `ask`."""
        self._catalog_engine(connector)
        async with self._place(user, connector) as (engine, options):
            with engine_errors():
                async with _as_catalog(engine, connector).catalog(user, options) as catalog:
                    yield catalog

    @asynccontextmanager
    async def session(
        self, user: User, connector: Connector, database: str | None = None
    ) -> AsyncGenerator[EngineSession]:
        """An engine session of this look's own, within the limits. Raises as `ask`."""
        async with self._place(user, connector, database) as (engine, options):
            with engine_errors():
                async with engine.session(user, options) as session:
                    yield session

    @asynccontextmanager
    async def loader(self, user: User, connector: Connector) -> AsyncGenerator[TableLoader]:
        """A loader of this look's own, within the limits. Raises as `ask`."""
        async with self._place(user, connector) as (engine, options):
            if not isinstance(engine, LoadingEngine):
                raise NotSupported(f"The connector {connector.nice_name} makes no tables of files.")
            with engine_errors():
                async with engine.loader(user, options) as loader:
                    yield loader

    async def anywhere(
        self,
        user: User,
        connector: Connector,
        kind: str,
        arguments: Sequence[Any],
        *,
        budget: timedelta,
        owner: str | None = None,
    ) -> bytes:
        """The look `kind` in the process that can take it: `owner` if given, else who has the data.

        Raises EngineTimeout after `budget`, and what the look raises.
        """
        elsewhere = self._parts.elsewhere
        # The process that looks in a session that it holds needs no token, so none is sent to it.
        self._parts.credentials.require_token(user, connector)

        async def looking() -> bytes:
            target = owner or await self._holder(connector)
            if target == elsewhere.owner:
                return await elsewhere.here(user, connector, kind, arguments)
            async with self._slots.slot(connector.key, user.id):
                return await elsewhere.ask(target, user, connector, kind, arguments, budget=budget)

        return await self._flights.join(object(), looking, budget=budget)

    async def runs_here(self, connector: Connector) -> bool:
        """Whether this process can reach the data of a connector. Raises EngineUnavailable when none does just now."""
        return await self._holder(connector) == self._parts.elsewhere.owner

    def lists_functions(self, connector: Connector) -> bool:
        """Whether the catalogue has functions at all. Raises NotSupported for an engine without catalogue."""
        return self._catalog_engine(connector).lists_functions

    async def _answer(self, user: User, connector: Connector, question: Question[T]) -> T:
        target = await self._holder(connector)
        if target == self._parts.elsewhere.owner:
            async with self.catalog(user, connector) as catalog:
                return await question.put_to(catalog)
        async with self._slots.slot(connector.key, user.id):
            return question.decode(
                await self._parts.elsewhere.ask(
                    target,
                    user,
                    connector,
                    _QUESTION,
                    [question.kind, *question.names],
                    budget=connector.limits.metadata_timeout,
                )
            )

    async def _answer_for_others(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        kind, *names = arguments
        question = BY_KIND[kind](*names)
        async with self.catalog(user, connector) as catalog:
            return question.encode(await question.put_to(catalog))

    async def _holder(self, connector: Connector) -> str:
        """The process that can reach the data: this one, unless another holds them."""
        data = self._parts.connectors.data_of(connector)
        if data is not None and not await self._parts.may_run(connector):
            return await self._parts.elsewhere.holder(data)
        return self._parts.elsewhere.owner

    @asynccontextmanager
    async def _place(
        self, user: User, connector: Connector, database: str | None = None
    ) -> AsyncGenerator[tuple[Engine, SessionOptions]]:
        await self._login(user, connector)
        if await self._holder(connector) != self._parts.elsewhere.owner:
            raise EngineUnavailable("Another server has taken hold of this database; ask again.")
        async with self._slots.slot(connector.key, user.id):
            options = await self._parts.credentials.options(user, connector, database=database)
            try:
                async with self._parts.connectors.using(connector) as engine:
                    yield engine, options
            except EngineError as error:
                self._parts.metrics.engine_failed(connector.dialect, error.code)
                raise

    async def _login(self, user: User, connector: Connector) -> str:
        """The name by which the data source knows the caller; empty when the connector has a login of its own.

        Raises CredentialsRequired, EngineJwtRequired.
        """
        self._parts.credentials.require_token(user, connector)
        if not self._parts.connectors.engine(connector).capabilities.wants_credentials:
            return ""
        credentials = await self._parts.credentials.of(user, connector)
        if credentials is None:
            raise CredentialsRequired("The data source wants credentials: call create_session with user and password.")
        return credentials.username

    def _catalog_engine(self, connector: Connector) -> CatalogEngine:
        return _as_catalog(self._parts.connectors.engine(connector), connector)


def _as_catalog(engine: Engine, connector: Connector) -> CatalogEngine:
    if not isinstance(engine, CatalogEngine):
        raise NotSupported(f"The connector {connector.nice_name} tells no metadata.")
    return engine


@contextmanager
def engine_errors() -> Generator[None]:
    """A connection that was lost in the middle of a look loses nothing: asking again is safe."""
    try:
        yield
    except (OutcomeUnknown, SessionLost) as error:
        raise EngineUnavailable(error.message) from error
