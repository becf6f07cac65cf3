"""The live events of a statement, received as server-sent events or, if a proxy blocks these, by polling.

A buffering proxy holds back events, sometimes even the response headers, until the stream ends. The server sends the
first event immediately and a heartbeat every 15 s. If the first event does not arrive in time, or the stream breaks
repeatedly or is silent for 20 s, check_status and get_logs are polled instead (Contract editor 7.1, 8.1). If the first
event was late, event streams are avoided only for a while, because the delay may not happen again.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx

from queryserver_client.errors import ApiError, ConnectionLost
from queryserver_client.status import Event, Logs, Progress, Status, logs_of, status_of
from queryserver_client.transport import Call, Transport

if TYPE_CHECKING:
    from queryserver_client.generated import ProgressEvent

HEAD_WITHIN_S = 10.0
"""Timeout from the call to the response headers, including login and connection setup."""
FIRST_WITHIN_S = 3.0
"""Timeout from the response headers to the first event."""
SILENT_S = 20.0
STEADY_S = 30.0
"""A stream that lasts longer than this resets the count of breaks."""
_MAX_BREAKS = 3
_POLL_S = 1.0
_COME_LATER = frozenset({429, 502, 503, 504})


class _EventsHeldBack(Exception):
    """The headers or the first event did not arrive in time."""


async def follow(transport: Transport, operation_id: str, log_from: int = 0) -> AsyncGenerator[Event, None]:
    """Yield events until the statement ends. Each log line is yielded exactly once."""
    position, breaks = log_from, 0
    while breaks < _MAX_BREAKS and not transport.rest_of_events.is_on:
        began = anyio.current_time()
        try:
            async with aclosing(_streamed(transport, operation_id, position)) as events:
                async for name, data in events:
                    event = _event_of(name, data, position)
                    if event is not None:
                        position = event.log.next_from if event.log else position
                        yield event
                    if name == "end":
                        return
        except _EventsHeldBack:
            transport.rest_of_events.failed()
            break
        except ApiError as error:
            if error.status not in _COME_LATER:
                raise
            break
        except (httpx.TransportError, ConnectionLost):
            pass
        breaks = 1 if anyio.current_time() - began > STEADY_S else breaks + 1
    async with aclosing(_polled(transport, operation_id, position)) as events:
        async for event in events:
            yield event


async def _streamed(transport: Transport, operation_id: str, log_from: int) -> AsyncGenerator[tuple[str, Any], None]:
    """Yield the name and data of each event of one stream.

    Raises _EventsHeldBack if the headers or the first event do not arrive in time.
    """
    call = Call(
        "GET",
        f"editor/events/{operation_id}",
        params={"log_from": log_from},
        headers={"Accept": "text/event-stream", "Accept-Encoding": "identity"},
        is_repeatable=True,
        is_optional=True,
        silence_s=SILENT_S,
    )
    async with AsyncExitStack() as stack:
        try:
            with anyio.fail_after(HEAD_WITHIN_S):
                response = await stack.enter_async_context(transport.stream(call))
            lines = _lines(response)
            with anyio.fail_after(FIRST_WITHIN_S):
                line = await anext(lines, "")
        except TimeoutError as error:
            raise _EventsHeldBack from error
        if line:
            transport.rest_of_events.worked()
        name, text = "", ""
        while True:
            if line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("data:"):
                text += line[5:].strip()
            elif not line and name:
                try:
                    data = json.loads(text)
                except ValueError as error:
                    raise ConnectionLost("an event is not valid JSON", is_sent=True) from error
                yield name, data
                name, text = "", ""
            try:
                line = await anext(lines)
            except StopAsyncIteration:
                return


async def _lines(response: httpx.Response) -> AsyncGenerator[str, None]:
    """Yield lines, split only at LF or CRLF, because event data may contain other separators such as U+2028."""
    waiting = b""
    async for chunk in response.aiter_bytes():
        *whole, waiting = (waiting + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")


async def _polled(transport: Transport, operation_id: str, log_from: int) -> AsyncGenerator[Event, None]:
    """Yield the same events by polling once a second, which works through every proxy."""
    fields: dict[str, Any] = {"operationId": operation_id}
    state, shown, position, is_first = "", None, log_from, True
    while True:
        began = anyio.current_time()
        status = await looked_up(transport, operation_id, wait_s=0.0 if is_first else _POLL_S)
        if not (is_first or status.is_terminal):  # responded early if the user's waiting calls are at their limit
            await anyio.sleep(max(0.0, began + _POLL_S - anyio.current_time()))
        is_first = False
        if status.state != state:
            state = status.state
            yield Event(status=status)
        body = await transport.call("POST", "editor/get_logs", {**fields, "from": position}, is_repeatable=True)
        logs = logs_of(body)
        progress = Progress(logs.progress, status.rows, logs.jobs)
        if progress != shown:
            shown = progress
            yield Event(progress=progress)
        if logs.lines:
            position = logs.next_from
            yield Event(log=logs)
        elif status.is_terminal:
            return


async def looked_up(transport: Transport, operation_id: str, *, wait_s: float) -> Status:
    """Return the status once the statement has ended, or after `wait_s`.

    The server responds earlier if the user's waiting calls are at their limit.
    """
    body, headers = await transport.answered(
        "POST",
        "editor/check_status",
        {"operationId": operation_id},
        is_repeatable=True,
        wait_s=wait_s,
        is_held=wait_s > 0,
    )
    return status_of(body, request_id=headers.get("X-Request-Id"))


def _event_of(name: str, data: Mapping[str, Any], position: int) -> Event | None:
    """Return the event; None if its name is unknown, or if all its log lines were already returned."""
    if name in {"status", "end"}:
        return Event(status=status_of(data))
    if name == "progress":
        said = cast("ProgressEvent", data)
        return Event(progress=Progress(said["progress"], said["rows"], tuple(said["jobs"])))
    if name != "log" or data["next_from"] <= position:
        return None
    logs = logs_of(data)
    new = min(len(logs.lines), logs.next_from - position)
    return Event(log=Logs(logs.lines[len(logs.lines) - new :], logs.next_from))
