"""Lookups that another instance must run, because its process holds the data; and single-flight of equal lookups."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID, uuid4

import orjson
import structlog

from queryserver import errors
from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.errors.base import DatabaseUnavailable, QueryServerError
from queryserver.errors.statements import EngineTimeout, EngineUnavailable
from queryserver.identity.model import User
from queryserver.identity.users import UserDirectory
from queryserver.platform.database import Database, Notices

log = structlog.get_logger(__name__)

T = TypeVar("T")

Handler = Callable[[User, Connector, Sequence[Any]], Awaitable[bytes]]
"""Runs a lookup in this process. Raises QueryServerError."""

ASKED = "look"
ANSWERED = "looked"
# A notice may be lost: then the next read finds the answer, and the request is announced again.
_READ_EVERY_S = 0.5

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
        self._tasks: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
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
                raise EngineTimeout(f"The data source did not answer within {budget.total_seconds():g} s.")
            if flight.task.cancelled():
                raise EngineUnavailable("The server ended this look at the data source.")
            return flight.task.result()
        finally:
            flight.waiting -= 1
            if not flight.task.done() and (not flight.waiting or flight.until <= asyncio.get_running_loop().time()):
                self._leave(key, flight)
                flight.task.cancel()

    def _start(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]], budget: timedelta) -> _Flight:
        task = asyncio.create_task(work(), name="lookup")
        flight = _Flight(task, until=asyncio.get_running_loop().time() + budget.total_seconds())
        self._joinable[key] = flight
        self._tasks.add(task)

        def ended(_: "asyncio.Task[Any]") -> None:
            self._tasks.discard(task)
            self._leave(key, flight)
            if not task.cancelled() and (error := task.exception()) and not isinstance(error, QueryServerError):
                log.error("lookup failed", exc_info=error)

        task.add_done_callback(ended)
        return flight

    def _leave(self, key: Hashable, flight: _Flight) -> None:
        if self._joinable.get(key) is flight:
            del self._joinable[key]


class ForwardedLookups:
    """Requests and answers in the service database. Each method is one transaction. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def holder(self, connector: str) -> str | None:
        """The living process that holds the data of this name (`EngineCapabilities.data_name`)."""
        return await self._database.value(
            "select owner from engine_owners where connector = $1 and lease_until > now()", connector
        )

    async def add(self, lookup_id: UUID, user_id: int, request: bytes, *, target: str) -> None:
        """Leave a request for the process `target`; those of processes that died are deleted after an hour."""
        await self._database.execute(
            """with gone as (delete from forwarded_looks where asked_at < now() - interval '1 hour')
            insert into forwarded_looks (id, target, user_id, request) values ($1, $2, $3, $4)""",
            lookup_id,
            target,
            user_id,
            request,
        )

    async def take(self, lookup_id: UUID, *, by: str) -> tuple[int, bytes] | None:
        """User and request, once, if it is for this process and still wanted."""
        row = await self._database.row(
            """update forwarded_looks set taken_at = now() where id = $1 and target = $2 and taken_at is null
            returning user_id, request""",
            lookup_id,
            by,
        )
        return (row["user_id"], row["request"]) if row else None

    async def answer(self, lookup_id: UUID, answer: bytes) -> None:
        """Leave the answer; nothing happens when the request is gone."""
        await self._database.execute("update forwarded_looks set answer = $2 where id = $1", lookup_id, answer)

    async def read(self, lookup_id: UUID) -> bytes | None:
        return await self._database.value("select answer from forwarded_looks where id = $1", lookup_id)

    async def delete(self, lookup_id: UUID) -> None:
        await self._database.execute("delete from forwarded_looks where id = $1", lookup_id)


class Forwarding:
    """Sends lookups to other processes, and runs those that they send; `owner` names this process. Use `running()`."""

    def __init__(
        self, owner: str, lookups: ForwardedLookups, users: UserDirectory, connectors: Connectors, notices: Notices
    ) -> None:
        self.owner = owner
        self._lookups = lookups
        self._users = users
        self._connectors = connectors
        self._notices = notices
        self._handlers: dict[str, Handler] = {}
        self._waiting: dict[UUID, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._flights = Flights()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        try:
            async with self._flights.running():
                yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def serve(self, kind: str, handler: Handler) -> None:
        self._handlers[kind] = handler

    async def run_here(self, user: User, connector: Connector, kind: str, arguments: Sequence[Any]) -> bytes:
        return await self._handlers[kind](user, connector, arguments)

    async def holder(self, data: str) -> str:
        """The other process that holds data of that name. Raises EngineUnavailable when none does."""
        holder = await self._lookups.holder(data)
        if holder in (None, self.owner):
            raise EngineUnavailable("No server holds this database just now; ask again in a few seconds.")
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
            await self._lookups.add(lookup_id, user.id, orjson.dumps(request), target=target)
            while True:
                await self._notices.publish(ASKED, str(lookup_id))
                with suppress(TimeoutError):
                    async with asyncio.timeout(_READ_EVERY_S):
                        await answered.wait()
                answer = await self._lookups.read(lookup_id)
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
            task = asyncio.create_task(self._take(UUID(subject)), name="forwarded-lookup")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return kind in (ANSWERED, ASKED)

    async def _take(self, lookup_id: UUID) -> None:
        try:
            taken = await self._lookups.take(lookup_id, by=self.owner)
            if taken is not None:
                await self._lookups.answer(lookup_id, await self._sealed_answer(*taken))
                await self._notices.publish(ANSWERED, str(lookup_id))
        except DatabaseUnavailable:
            log.warning("forwarded look not answered")

    async def _sealed_answer(self, user_id: int, request: bytes) -> bytes:
        """`+` and the answer, or `-` and code and message of its error."""
        try:
            return b"+" + await self._run(user_id, orjson.loads(request))
        except QueryServerError as error:
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
            raise EngineUnavailable("The server that holds the data does not know this user or connector.")
        work = partial(self.run_here, user, connector, request["kind"], request["arguments"])
        return await self._flights.join(object(), work, budget=timedelta(seconds=request["budget_s"]))

    async def _delete(self, lookup_id: UUID) -> None:
        try:
            await self._lookups.delete(lookup_id)
        except DatabaseUnavailable:
            log.warning("forwarded look stays in the database for an hour")


def _opened(answer: bytes) -> bytes:
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
