"""events: one operation as server-sent events."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from queryserver.api.answers import failures
from queryserver.api.dependencies import AuthenticatedCall, Call, CallRoute
from queryserver.api.streaming import stream
from queryserver.api.v1.editor import shapes
from queryserver.domain.errors.base import NotAuthenticated, PermissionDenied
from queryserver.domain.errors.statements import OperationNotFound
from queryserver.domain.statement import StatementRecord, StatementStatus
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import EventsParameters, query_parameters
from queryserver.services.statements.status import Progress, parse_operation_id

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)

_COMMENT_EVERY_S = 15.0
# An event id carries the log position it stands for, so that any instance can go on from it.
_IDS_PER_LINE = 1_000_000
_EVENT_ID = re.compile(r"[0-9]{1,18}")

# No type: generators and checkers differ on whether it is that of the stream or of an event.
_EVENTS = {"description": "`status`, `progress`, `log`, `end` and `denied`, each with JSON."}
_DESCRIPTION = {200: {"content": {"text/event-stream": {"schema": _EVENTS}}, "description": "Events."}}


@router.get(
    "/editor/events/{operation_id:name}",
    responses={**failures(400, 403, 404, 429), **_DESCRIPTION},
    response_class=StreamingResponse,
    openapi_extra={"parameters": query_parameters(EventsParameters)},
    summary="Follow a statement by events",
)
async def events(call: AuthenticatedCall, operation_id: str) -> Response:
    """status, progress, log and end events of one operation. Contract editor 8.1."""
    asked = await call.read(EventsParameters)
    status = await call.services.following.status(call.user, parse_operation_id(operation_id))
    resumed = call.request.headers.get("last-event-id", "")
    sender = _Sender(int(resumed) if _EVENT_ID.fullmatch(resumed) else asked.log_from * _IDS_PER_LINE)
    return await stream(
        _events(call, status, sender), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


async def _events(call: Call, status: StatementStatus, sender: "_Sender") -> AsyncGenerator[bytes]:
    following = call.services.following
    longest_s = call.services.settings.editor.stream_max_s
    with call.services.streams.place(call.user) as place:
        yield b"retry: 2000\n\n"
        async with aclosing(following.progress(status, place, log_from=sender.log_line, until_s=longest_s)) as looks:
            try:
                async for look in looks:
                    for piece in await _told(call, look, sender):
                        yield piece
            except (NotAuthenticated, PermissionDenied, OperationNotFound) as error:
                # The user was disabled, or may not follow the statement any more. A client that comes back is refused.
                yield sender.event("denied", wire.ErrorBody(status=-1, code=error.code, message=error.message))


async def _told(call: Call, look: Progress, sender: "_Sender") -> list[bytes]:
    """What a look brings that was not told yet."""
    record = None
    if look.status.outcome is not None:
        record = await call.services.following.record(call.user, look.status.id)
    status = look.status
    if sender.is_news(status):
        status = await call.services.following.placed(status)
    pieces = sender.status(_status_body(status, record), status)
    if not look.status.state.is_terminal:
        pieces += sender.progress(look)
    pieces += sender.log(look)
    if look.status.state.is_terminal:
        pieces.append(sender.event("end", _status_body(look.status, record)))
    return pieces or sender.comment()


def _status_body(status: StatementStatus, record: StatementRecord | None) -> BaseModel:
    """The check_status body."""
    if record is None:
        return wire.StatusResponse(status=0, query_status=shapes.query_status(status))
    return shapes.failure_body(record)


class _Sender:
    """Writes events and remembers what the client knows."""

    def __init__(self, last_id: int) -> None:
        self._last_id = last_id
        self.log_line = last_id // _IDS_PER_LINE
        self._state: str | None = None
        self._progress: bytes | None = None
        self._commented = asyncio.get_running_loop().time()

    def event(self, name: str, body: BaseModel) -> bytes:
        """One event with the next id."""
        self._last_id = max(self._last_id + 1, self.log_line * _IDS_PER_LINE)
        self._commented = asyncio.get_running_loop().time()
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self._last_id, name.encode(), body.model_dump_json().encode())

    def is_news(self, status: StatementStatus) -> bool:
        """Whether its state is another than the client knows."""
        return self._state != status.state.value

    def status(self, body: BaseModel, status: StatementStatus) -> list[bytes]:
        """First, and at every change of state."""
        if not self.is_news(status):
            return []
        self._state = status.state.value
        return [self.event("status", body)]

    def progress(self, look: Progress) -> list[bytes]:
        """At every change."""
        body = wire.ProgressEvent(
            progress=shapes.shown_progress(look.status), rows=look.status.rows, jobs=shapes.jobs(look.log.jobs)
        )
        written = body.model_dump_json().encode()
        if written == self._progress:
            return []
        self._progress = written
        return [self.event("progress", body)]

    def log(self, look: Progress) -> list[bytes]:
        """New lines."""
        if not look.log.lines:
            return []
        body = wire.LogEvent(
            from_=look.log.start, next_from=look.log.start + len(look.log.lines), logs="\n".join(look.log.lines)
        )
        self.log_line = body.next_from
        return [self.event("log", body)]

    def comment(self) -> list[bytes]:
        """A sign of life when nothing else was said for a while."""
        if asyncio.get_running_loop().time() - self._commented < _COMMENT_EVERY_S:
            return []
        self._commented = asyncio.get_running_loop().time()
        return [b": still there\n\n"]
