"""Forwards work to the process that holds the data. Requests and responses are rows in the service database."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

import orjson
import structlog

from queryserver import errors
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.identity.model import ApiTokenLimits, User
from queryserver.identity.users import UserDirectory
from queryserver.platform.caches import SingleFlight
from queryserver.platform.database import Database, Notices
from queryserver.platform.threads import Tasks
from queryserver.statements.session_repository import ENGINE_OWNERS

log = structlog.get_logger(__name__)

Undo = Callable[[Sequence[Any]], Awaitable[object]]
"""Undoes a handler call whose caller stopped waiting before the response. Receives the arguments of that call."""
Handler = Callable[[User, Connector, Sequence[Any]], Coroutine[Any, Any, bytes]]
"""Performs forwarded work in this process and returns the encoded response. Raises QueryServerError."""

REQUEST = "look"
RESPONSE = "looked"
# If a notice is lost, the next read still finds the response, and the request is announced again.
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
        errors.too_many_sessions.code: errors.TooManyRequests,
    }
)


_HOLDER = f"select owner from engine_owners where connector = $1 and {ENGINE_OWNERS.is_owned()}"

# Also deletes requests that are older than an hour. Their callers died before they could delete them.
_ADD = """
with gone as (delete from forwarded_looks where asked_at < now() - interval '1 hour')
insert into forwarded_looks (id, target, user_id, request) values ($1, $2, $3, $4)
"""

# Only one process accepts a request, and only while its caller waits.
_ACCEPT = """
update forwarded_looks set taken_at = now() where id = $1 and target = $2 and taken_at is null
returning user_id, request, now() - asked_at as waited
"""

_RESPOND = "update forwarded_looks set answer = $2 where id = $1"
_READ = "select answer from forwarded_looks where id = $1"
_DELETE = "delete from forwarded_looks where id = $1"


class WorkForwarder:
    """Sends work to other processes and performs the work that they send. `owner` is the name of this process.

    Active inside `running()`.
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
        self._undos: dict[str, Undo] = {}
        self._waiting: dict[UUID, asyncio.Event] = {}
        self._tasks = Tasks()
        self._calls = SingleFlight()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with self._tasks.running(), self._calls.running():
            yield

    def register(self, kind: str, handler: Handler, undo: Undo | None = None) -> None:
        """Register the handler for a kind of work. `undo` is called if the caller stops waiting before the response."""
        self._handlers[kind] = handler
        if undo is not None:
            self._undos[kind] = undo

    def run_here(
        self, user: User, connector: Connector, kind: str, arguments: Sequence[Any]
    ) -> Coroutine[Any, Any, bytes]:
        """Perform the work in this process."""
        return self._handlers[kind](user, connector, arguments)

    async def holder(self, data: str) -> str:
        """Return the name of the process that holds the named data.

        Raises EngineUnavailable if no other process holds it.
        """
        holder = await self._database.value(_HOLDER, data)
        if holder in (None, self.owner):
            raise errors.EngineUnavailable("No server has this database open at the moment. Retry in a few seconds.")
        return holder or ""

    async def send(
        self, target: str, user: User, connector: Connector, kind: str, arguments: Sequence[Any], *, budget: timedelta
    ) -> bytes:
        """Send work to the process `target`, and wait for the response.

        `budget` limits the work in that process. The wait itself has no time limit and ends only if it is canceled.
        Raises the handler's errors.
        """
        request_id = uuid4()
        request = {
            "kind": kind,
            "connector": connector.key,
            "arguments": list(arguments),
            "api_token": None if user.api_token is None else user.api_token.stored,
            "budget_s": budget.total_seconds(),
        }
        responded = self._waiting[request_id] = asyncio.Event()
        try:
            await self._database.execute(_ADD, request_id, target, user.id, orjson.dumps(request))
            while True:
                await self._notices.publish(REQUEST, str(request_id))
                with suppress(TimeoutError):
                    async with asyncio.timeout(_READ_EVERY_S):
                        await responded.wait()
                response = await self._database.value(_READ, request_id)
                if response is not None:
                    return _decode_response(response)
        finally:
            del self._waiting[request_id]
            await asyncio.shield(self._delete(request_id))

    def notified(self, kind: str, subject: str) -> bool:
        """Handle a notice from any instance, including this one. Return False if it is not about forwarded work."""
        if kind == RESPONSE:
            if (waiting := self._waiting.get(UUID(subject))) is not None:
                waiting.set()
        elif kind == REQUEST:
            self._tasks.start(self._accept(UUID(subject)), "forwarded-work")
        return kind in (RESPONSE, REQUEST)

    async def _accept(self, request_id: UUID) -> None:
        request: Mapping[str, Any] = {}
        is_announced = False
        try:
            row = await self._database.row(_ACCEPT, request_id, self.owner)
            if row is None:
                return
            request = orjson.loads(row["request"])
            budget = timedelta(seconds=request["budget_s"]) - row["waited"]
            response = await self._encoded_response(row["user_id"], request, budget)
            # A caller that stops waiting deletes its request. The update then finds no row.
            is_announced = await self._database.execute(_RESPOND, request_id, response) > 0
            await self._notices.publish(RESPONSE, str(request_id))
        except errors.DatabaseUnavailable:
            log.warning("response to forwarded work not sent: database unreachable")
        finally:
            if not is_announced and (undo := self._undos.get(request.get("kind", ""))) is not None:
                await undo(request["arguments"])

    async def _encoded_response(self, user_id: int, request: Mapping[str, Any], budget: timedelta) -> bytes:
        """Perform the request. Return `+` followed by the result, or `-` followed by the error's code and message."""
        try:
            return b"+" + await self._run(user_id, request, budget)
        except errors.QueryServerError as error:
            return b"-" + orjson.dumps([error.code, error.message])
        except Exception:  # last resort of a task: the requesting process must receive a response
            log.exception("forwarded work failed")
            return b"-" + orjson.dumps(["", "The server that has the database open failed."])

    async def _run(self, user_id: int, request: Mapping[str, Any], budget: timedelta) -> bytes:
        user = await self._users.user(user_id)
        connector = self._connectors.find(request["connector"])
        if connector is None:
            # The requesting process may already know a connector that is new here.
            await self._connectors.refresh()
            connector = self._connectors.find(request["connector"])
        if user is None or connector is None:
            raise errors.EngineUnavailable(
                "The server that has the database open does not know this user or connector."
            )
        # Processes of older versions send no API token.
        if (token := request.get("api_token")) is not None:
            user = user.narrowed(ApiTokenLimits.of_stored(token))
        work = partial(self.run_here, user, connector, request["kind"], request["arguments"])
        return await self._calls.join(object(), work, budget=budget)

    async def _delete(self, request_id: UUID) -> None:
        try:
            await self._database.execute(_DELETE, request_id)
        except errors.DatabaseUnavailable:
            log.warning("forwarded work not deleted: database unreachable")


def _decode_response(response: bytes) -> bytes:
    if response.startswith(b"+"):
        return response[1:]
    code, message = orjson.loads(response[1:])
    kind = _ERRORS.get(code, errors.EngineUnavailable)
    raise errors.recreate_error(kind, code if code in _ERRORS else kind.code, message)
