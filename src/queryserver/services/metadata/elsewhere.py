"""Looks that another process must take: it holds the data, or the session. Asked and answered through the database."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

import orjson
import structlog

from queryserver.db.catalog import ForwardedLooks
from queryserver.db.notices import Notices
from queryserver.domain import errors
from queryserver.domain.connector import Connector
from queryserver.domain.errors.base import DatabaseUnavailable, QueryServerError
from queryserver.domain.errors.statements import EngineUnavailable
from queryserver.domain.user import User
from queryserver.interfaces.forwarding import ForwardedLook
from queryserver.interfaces.users import UserDirectory
from queryserver.services.connectors import Connectors
from queryserver.services.metadata.flights import Flights

log = structlog.get_logger(__name__)

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
