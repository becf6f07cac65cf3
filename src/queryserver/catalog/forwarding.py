"""Looks that another process must take: it holds the data, or the session. Asked and answered through the database."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID, uuid4

import orjson
import structlog

from queryserver import errors
from queryserver.catalog.repository import ForwardedLook, ForwardedLooks
from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.errors.base import DatabaseUnavailable, QueryServerError
from queryserver.errors.statements import EngineTimeout, EngineUnavailable
from queryserver.identity.model import User
from queryserver.identity.users import UserDirectory
from queryserver.platform.database import Notices

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
