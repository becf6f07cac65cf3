"""Lookups: queries of catalogues and samples, from the cache or at the engine within limits (Contract editor 10).

Equal lookups are one (`Flights`); those of data that another process holds are forwarded to it (`Forwarding`).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID, uuid4

import orjson
import structlog

from queryserver import errors
from queryserver.catalog.cache import MetadataCache
from queryserver.catalog.questions import BY_KIND, CatalogQuestion
from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.engines import protocol
from queryserver.identity.model import User
from queryserver.identity.users import UserDirectory
from queryserver.platform.database import Database, Notices
from queryserver.platform.limits import Slots
from queryserver.platform.metrics import Metrics
from queryserver.platform.threads import Tasks
from queryserver.statements.session_repository import CredentialBook

log = structlog.get_logger(__name__)

T = TypeVar("T")

Handler = Callable[[User, Connector, Sequence[Any]], Awaitable[bytes]]
"""Runs a lookup in this process. Raises QueryServerError."""

ASKED = "look"
ANSWERED = "looked"
# A notice may be lost: then the next read finds the answer, and the request is announced again.
_READ_EVERY_S = 0.5

_NOT_FOUND = ("database_not_found", "column_not_found", "nested_path_not_found", "function_not_found")
_ERRORS: Mapping[str, type[errors.QueryServerError]] = MappingProxyType(
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

PER_CONNECTOR = 8
"""Lookups of one connector at once, beside its statements."""
_PER_USER = 4
_QUESTION = "question"
_TABLE_EXISTS = "import_table_exists"

AnswerListener = Callable[[User, Connector, CatalogQuestion[Any], object], None]


class _Flight:
    def __init__(self, task: "asyncio.Task[Any]", *, until: float) -> None:
        self.task = task
        self.until = until
        self.waiting = 0


class Flights:
    """Owns the tasks. Equal keys share one; it is canceled when its time is over or its last caller has left.

    A canceled task may take a while to end the engine's work: only the end of `running` waits for that.
    """

    def __init__(self) -> None:
        self._joinable: dict[Hashable, _Flight] = {}
        self._tasks = Tasks()
        self.running = self._tasks.running

    async def join(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]], *, budget: timedelta) -> T:
        """What `work` gives, or equal work that is under way. Raises EngineTimeout after the work's `budget`."""
        flight = self._joinable.get(key) or self._start(key, work, budget)
        flight.waiting += 1
        try:
            left_s = max(flight.until - asyncio.get_running_loop().time(), 0)
            done, _ = await asyncio.wait({flight.task}, timeout=left_s)
            if not done:
                raise errors.EngineTimeout(f"The data source did not answer within {budget.total_seconds():g} s.")
            if flight.task.cancelled():
                raise errors.EngineUnavailable("The server ended this look at the data source.")
            return flight.task.result()
        finally:
            flight.waiting -= 1
            if not flight.task.done() and (not flight.waiting or flight.until <= asyncio.get_running_loop().time()):
                self._leave(key, flight)
                flight.task.cancel()

    def _start(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]], budget: timedelta) -> _Flight:
        task = self._tasks.start(work(), "lookup")
        flight = _Flight(task, until=asyncio.get_running_loop().time() + budget.total_seconds())
        self._joinable[key] = flight

        def ended(_: "asyncio.Task[Any]") -> None:
            self._leave(key, flight)
            if not task.cancelled() and (error := task.exception()) and not isinstance(error, errors.QueryServerError):
                log.error("lookup failed", exc_info=error)

        task.add_done_callback(ended)
        return flight

    def _leave(self, key: Hashable, flight: _Flight) -> None:
        if self._joinable.get(key) is flight:
            del self._joinable[key]


_HOLDER = "select owner from engine_owners where connector = $1 and lease_until > now()"

# Requests of processes that died are deleted after an hour.
_ADD = """
with gone as (delete from forwarded_looks where asked_at < now() - interval '1 hour')
insert into forwarded_looks (id, target, user_id, request) values ($1, $2, $3, $4)
"""

# Once, if it is for this process and still wanted.
_TAKE = """
update forwarded_looks set taken_at = now() where id = $1 and target = $2 and taken_at is null
returning user_id, request
"""

_ANSWER = "update forwarded_looks set answer = $2 where id = $1"
_READ = "select answer from forwarded_looks where id = $1"
_DELETE = "delete from forwarded_looks where id = $1"


class Forwarding:
    """Sends lookups to other processes, and runs those that they send; `owner` names this process. Use `running()`.

    Requests and answers are rows of the service database.
    """

    def __init__(
        self, owner: str, database: Database, users: UserDirectory, connectors: Connectors, notices: Notices
    ) -> None:
        self.owner = owner
        self._database = database
        self._users = users
        self._connectors = connectors
        self._notices = notices
        self._handlers: dict[str, Handler] = {}
        self._waiting: dict[UUID, asyncio.Event] = {}
        self._tasks = Tasks()
        self._flights = Flights()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with self._tasks.running(), self._flights.running():
            yield

    def serve(self, kind: str, handler: Handler) -> None:
        self._handlers[kind] = handler

    async def run_here(self, user: User, connector: Connector, kind: str, arguments: Sequence[Any]) -> bytes:
        return await self._handlers[kind](user, connector, arguments)

    async def holder(self, data: str) -> str:
        """The other process that holds data of that name. Raises EngineUnavailable when none does."""
        holder = await self._database.value(_HOLDER, data)
        if holder in (None, self.owner):
            raise errors.EngineUnavailable("No server holds this database just now; ask again in a few seconds.")
        return holder or ""

    async def send(
        self, target: str, user: User, connector: Connector, kind: str, arguments: Sequence[Any], *, budget: timedelta
    ) -> bytes:
        """The answer of the process `target`; waits until canceled. Raises the errors of its lookup."""
        lookup_id = uuid4()
        named = {"kind": kind, "connector": connector.key, "arguments": list(arguments)}
        request = {**named, "budget_s": budget.total_seconds()}
        answered = self._waiting[lookup_id] = asyncio.Event()
        try:
            await self._database.execute(_ADD, lookup_id, target, user.id, orjson.dumps(request))
            while True:
                await self._notices.publish(ASKED, str(lookup_id))
                with suppress(TimeoutError):
                    async with asyncio.timeout(_READ_EVERY_S):
                        await answered.wait()
                answer = await self._database.value(_READ, lookup_id)
                if answer is not None:
                    return _opened(answer)
        finally:
            del self._waiting[lookup_id]
            await asyncio.shield(self._delete(lookup_id))

    def notified(self, kind: str, subject: str) -> bool:
        """Handle a notice of an instance, perhaps this one; False: it is not about a lookup."""
        if kind == ANSWERED:
            if (waiting := self._waiting.get(UUID(subject))) is not None:
                waiting.set()
        elif kind == ASKED:
            self._tasks.start(self._take(UUID(subject)), "forwarded-lookup")
        return kind in (ANSWERED, ASKED)

    async def _take(self, lookup_id: UUID) -> None:
        try:
            taken = await self._database.row(_TAKE, lookup_id, self.owner)
            if taken is not None:
                answer = await self._sealed_answer(taken["user_id"], taken["request"])
                await self._database.execute(_ANSWER, lookup_id, answer)
                await self._notices.publish(ANSWERED, str(lookup_id))
        except errors.DatabaseUnavailable:
            log.warning("forwarded look not answered")

    async def _sealed_answer(self, user_id: int, request: bytes) -> bytes:
        """`+` and the answer, or `-` and code and message of its error."""
        try:
            return b"+" + await self._run(user_id, orjson.loads(request))
        except errors.QueryServerError as error:
            return b"-" + orjson.dumps([error.code, error.message])
        except Exception:  # the outer wall of a task: the other process must not wait in vain
            log.exception("forwarded look failed")
            return b"-" + orjson.dumps(["", "The server that holds the data failed."])

    async def _run(self, user_id: int, request: Mapping[str, Any]) -> bytes:
        user = await self._users.user(user_id)
        connector = self._connectors.find(request["connector"])
        if connector is None:
            # The other process may have read a new connector first.
            await self._connectors.refresh()
            connector = self._connectors.find(request["connector"])
        if user is None or connector is None:
            raise errors.EngineUnavailable("The server that holds the data does not know this user or connector.")
        work = partial(self.run_here, user, connector, request["kind"], request["arguments"])
        return await self._flights.join(object(), work, budget=timedelta(seconds=request["budget_s"]))

    async def _delete(self, lookup_id: UUID) -> None:
        try:
            await self._database.execute(_DELETE, lookup_id)
        except errors.DatabaseUnavailable:
            log.warning("forwarded look stays in the database for an hour")


def _opened(answer: bytes) -> bytes:
    if answer.startswith(b"+"):
        return answer[1:]
    code, message = orjson.loads(answer[1:])
    kind = _ERRORS.get(code, errors.EngineUnavailable)
    raise errors.remade(kind, code if code in _ERRORS else kind.code, message)


@dataclass(slots=True, eq=False)
class Lookups:
    """All queries of an engine that are no operation. Use `running()`.

    `may_run`: whether this process can reach the data of a connector. `on_answer` is called with each answer of an
    engine; it must neither wait nor fail.
    """

    connectors: Connectors
    credentials: CredentialBook
    cache: MetadataCache
    may_run: Callable[[Connector], Awaitable[bool]]
    forwarding: Forwarding
    metrics: Metrics
    on_answer: AnswerListener | None
    _flights: Flights = field(default_factory=Flights, init=False)
    _slots: Slots = field(default_factory=lambda: Slots(per_connector=PER_CONNECTOR, per_user=_PER_USER), init=False)

    def __post_init__(self) -> None:
        self.forwarding.serve(_QUESTION, self._forwarded_answer)
        self.forwarding.serve(_TABLE_EXISTS, self._table_exists_here)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with self.cache.running(), self.forwarding.running(), self._flights.running():
            yield

    async def answer(
        self, user: User, connector: Connector, question: CatalogQuestion[T], *, refresh: bool = False
    ) -> T:
        """The answer of the catalogue as this user gets it, not older than the cache allows; equal questions share one.

        Raises NotSupported, CredentialsRequired, EngineUnavailable, EngineTimeout, EngineForbidden, StatementRejected,
        and what the question raises.
        """
        _as_catalog(self.connectors.engine(connector), connector)
        login = await self._login(user, connector)
        found = await self.cache.find(user, connector, login, question)
        if found.value is not None and not refresh:
            return await self.cache.read(question, found.value)

        async def work() -> T:
            answer = await self._engine_answer(user, connector, question)
            if self.on_answer is not None:
                self.on_answer(user, connector, question, answer)
            await self.cache.keep(question, answer, key=found.key, looked_at=found.looked_at)
            return answer

        # After a change of objects, and with `refresh`, an older lookup is not shared.
        shared = object() if refresh else found.changed_at
        return await self._flights.join((found.key, shared), work, budget=connector.limits.metadata_timeout)

    @asynccontextmanager
    async def catalog(self, user: User, connector: Connector) -> AsyncGenerator[protocol.Catalog]:
        """A catalogue opened as the user, within the limits. Raises as `answer`."""
        _as_catalog(self.connectors.engine(connector), connector)
        async with (
            self._place(user, connector) as (engine, options),
            _as_catalog(engine, connector).catalog(user, options) as catalog,
        ):
            yield catalog

    @asynccontextmanager
    async def session(
        self, user: User, connector: Connector, database: str | None = None
    ) -> AsyncGenerator[protocol.EngineSession]:
        """An engine session of this lookup's own, within the limits. Raises as `answer`."""
        async with (
            self._place(user, connector, database) as (engine, options),
            engine.session(user, options) as session,
        ):
            yield session

    async def table_exists(
        self, user: User, connector: Connector, table: protocol.TableName, *, budget: timedelta
    ) -> bool:
        """Whether a loader would find the table now. Raises as `answer`."""
        arguments = [table.database, table.name]
        return orjson.loads(await self.anywhere(user, connector, _TABLE_EXISTS, arguments, budget=budget))

    async def _table_exists_here(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        async with self._place(user, connector) as (engine, options):
            if not isinstance(engine, protocol.LoadingEngine):
                raise errors.NotSupported(f"The connector {connector.nice_name} makes no tables of files.")
            async with engine.loader(user, options) as loader:
                return orjson.dumps(await loader.exists(protocol.TableName(*arguments)))

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
        """What the lookup `kind` answers at `owner` or the holder of the data. Raises its errors, EngineTimeout."""
        # A process that uses a session which it holds needs no token, so none is sent to it.
        self.credentials.require_token(user, connector)

        async def work() -> bytes:
            target = owner or await self._holder(connector)
            if target == self.forwarding.owner:
                return await self.forwarding.run_here(user, connector, kind, arguments)
            async with self._slots.slot(connector.key, user.id):
                return await self.forwarding.send(target, user, connector, kind, arguments, budget=budget)

        return await self._flights.join(object(), work, budget=budget)

    async def runs_here(self, connector: Connector) -> bool:
        """Whether this process can reach the data of a connector. Raises EngineUnavailable when none does just now."""
        return await self._holder(connector) == self.forwarding.owner

    def lists_functions(self, connector: Connector) -> bool:
        """Whether the catalogue has functions at all. Raises NotSupported for an engine without catalogue."""
        return _as_catalog(self.connectors.engine(connector), connector).lists_functions

    async def _engine_answer(self, user: User, connector: Connector, question: CatalogQuestion[T]) -> T:
        target = await self._holder(connector)
        if target == self.forwarding.owner:
            async with self.catalog(user, connector) as catalog:
                return await question.put_to(catalog)
        async with self._slots.slot(connector.key, user.id):
            budget, arguments = connector.limits.metadata_timeout, [question.kind, *question.names]
            return question.decode(
                await self.forwarding.send(target, user, connector, _QUESTION, arguments, budget=budget)
            )

    async def _forwarded_answer(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        kind, *names = arguments
        question = BY_KIND[kind](*names)
        async with self.catalog(user, connector) as catalog:
            return question.encode(await question.put_to(catalog))

    async def _holder(self, connector: Connector) -> str:
        """The process that can reach the data: this one, unless another holds it."""
        data = self.connectors.data_of(connector)
        if data is not None and not await self.may_run(connector):
            return await self.forwarding.holder(data)
        return self.forwarding.owner

    @asynccontextmanager
    async def _place(
        self, user: User, connector: Connector, database: str | None = None
    ) -> AsyncGenerator[tuple[protocol.Engine, protocol.SessionOptions]]:
        await self._login(user, connector)
        if await self._holder(connector) != self.forwarding.owner:
            raise errors.EngineUnavailable("Another server has taken hold of this database; ask again.")
        async with self._slots.slot(connector.key, user.id):
            options = await self.credentials.options(user, connector, database=database)
            try:
                async with self.connectors.using(connector) as engine:
                    try:
                        yield engine, options
                    except (errors.OutcomeUnknown, errors.SessionLost) as error:  # repeating a lookup is safe
                        raise errors.EngineUnavailable(error.message) from error
            except errors.EngineError as error:
                self.metrics.engine_failed(connector.dialect, error.code)
                raise

    async def _login(self, user: User, connector: Connector) -> str:
        """The caller's name in the data source; empty: its own login. Raises CredentialsRequired, EngineJwtRequired."""
        capabilities = self.connectors.engine(connector).capabilities
        if capabilities.wants_external_token:
            self.credentials.require_token(user, connector)
        if not capabilities.wants_credentials:
            return ""
        given = await self.credentials.required(user, connector)
        return given.username if given else ""


def _as_catalog(engine: protocol.Engine, connector: Connector) -> protocol.CatalogEngine:
    if not isinstance(engine, protocol.CatalogEngine):
        raise errors.NotSupported(f"The connector {connector.nice_name} tells no metadata.")
    return engine
