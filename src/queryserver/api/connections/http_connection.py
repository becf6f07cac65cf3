"""HTTP connections on all ports, with limits on the time and size of request headers, on pipelined requests, and on
response bytes that clients have not read yet.

Uvicorn's own protocol waits indefinitely for the remaining request headers, accepts headers of any size, and queues
any number of requests that a client sends without reading a response.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson
from uvicorn.config import Config

from queryserver.api.connections.admission import Admission, Admissions, ConnectionLimits, TlsConnection
from queryserver.api.connections.uvicorn_internals import UvicornHttp, load_without_tls, use_protocol
from queryserver.platform.metrics import ConnectionCounts, DisconnectReason
from queryserver.platform.settings.desktop import DesktopSettings

SLOWEST_BYTES_PER_S = 1024
_SWEEP_S = 1.0
# If the limit on unsent bytes is exceeded, connections measured for less time than this are spared, because their
# speed is not known yet.
_MIN_MEASURED_S = 1.0
_RESPONSE_START = b"HTTP/1.1 "

MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 16
"""Maximum number of requests that wait on one connection for the response to an earlier request."""
_KEEP_ALIVE_S = 75
_RETRY_AFTER_S = 5
# If a connection is closed with unread input, TCP resets it and the client may lose the response. So the server keeps
# discarding input for this long before it closes the connection.
_LINGER_S = 1.0


@dataclass(slots=True)
class _Window:
    """The start of a measurement of a client's read speed: the time, and the number of bytes read by then."""

    began: float
    taken: int


class UnreadResponses:
    """Checks all connections with unsent bytes at least once a second, and disconnects clients that read too slowly."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._windows: dict[CountedTransport, _Window] = {}
        self._unsent = 0
        """Unsent bytes at the last sweep, plus all bytes written since."""
        self._next_sweep: asyncio.TimerHandle | None = None
        self._is_urgent = False

    def wrote(self, transport: "CountedTransport", size: int) -> None:
        """Record that `size` bytes of a response have been written to `transport`."""
        if transport not in self._windows:
            self._windows[transport] = _Window(time.monotonic(), transport.written_bytes() - size)
        self._unsent += size
        if self._next_sweep is None:
            self._sweep_in(self._pause_s)
        if self._unsent > self._limits.unsent_bytes and not self._is_urgent:
            self._is_urgent = True
            self._sweep_in(0)

    def forget(self, transport: "CountedTransport") -> None:
        """Stop checking a connection once it has ended."""
        self._windows.pop(transport, None)

    @property
    def _pause_s(self) -> float:
        return min(_SWEEP_S, self._limits.response_stall_s / 4)

    def _sweep_in(self, seconds: float) -> None:
        if self._next_sweep is not None:
            self._next_sweep.cancel()
        self._next_sweep = asyncio.get_running_loop().call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        self._next_sweep, self._is_urgent, self._unsent = None, False, 0
        now = time.monotonic()
        for transport, window in list(self._windows.items()):
            unsent = transport.unsent_bytes()
            if not unsent:
                del self._windows[transport]
            elif self._is_stalled(transport, window, now):
                transport.cut_off("stalled")
            else:
                self._unsent += unsent
        if self._unsent > self._limits.unsent_bytes:
            self._shed(now)
        if self._windows and self._next_sweep is None:
            self._sweep_in(self._pause_s)

    def _is_stalled(self, transport: "CountedTransport", window: _Window, now: float) -> bool:
        if now - window.began < self._limits.response_stall_s:
            return False
        taken = _taken_bytes(transport)
        if taken - window.taken < SLOWEST_BYTES_PER_S * self._limits.response_stall_s:
            return True
        window.began, window.taken = now, taken
        return False

    def _shed(self, now: float) -> None:
        """Disconnect clients until the unsent bytes are within the limit, starting with the slowest to finish reading.

        They are ordered by the time that they need for their unsent bytes. If they were ordered by speed alone, many
        fast clients with much unsent data would cause the disconnection of a slow client with little unsent data. Up to
        twice the limit, clients measured for less than a second are spared.
        """
        is_severe = self._unsent > 2 * self._limits.unsent_bytes
        seconds_left = {
            transport: transport.unsent_bytes() / (_speed(transport, window, now) + 1)
            for transport, window in self._windows.items()
            if is_severe or now - window.began >= _MIN_MEASURED_S
        }
        for transport in sorted(seconds_left, key=seconds_left.__getitem__, reverse=True):
            if self._unsent <= self._limits.unsent_bytes:
                return
            self._unsent -= transport.unsent_bytes()
            transport.cut_off("unsent")


def _taken_bytes(transport: "CountedTransport") -> int:
    return transport.written_bytes() - transport.unsent_bytes()


def _speed(transport: "CountedTransport", window: _Window, now: float) -> float:
    return (_taken_bytes(transport) - window.taken) / max(now - window.began, 0.001)


class CountedTransport:
    """The transport that uvicorn writes to. Counts the bytes written to one connection.

    Response headers are held back, so that the first part of the body is sent in the same system call if it is written
    in the same event loop iteration. Writes to a closing connection are ignored, although an asyncio transport would
    raise.
    """

    def __init__(
        self, transport: asyncio.Transport, unread: UnreadResponses, cut: Callable[[DisconnectReason], None]
    ) -> None:
        self._transport = transport
        self._unread = unread
        self._cut = cut
        self._head: bytes | None = None
        """Response headers that are held back."""
        self._written = 0
        self.get_extra_info = transport.get_extra_info
        self.is_closing = transport.is_closing
        self.abort = transport.abort
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.unsent_bytes = transport.get_write_buffer_size

    def written_bytes(self) -> int:
        return self._written

    def write(self, data: bytes) -> None:
        if self.is_closing():
            return
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.writelines([head, data])
            self._count(len(head) + len(data))
        elif data.startswith(_RESPONSE_START):
            self._head = data
            asyncio.get_running_loop().call_soon(self._write_head)
        else:
            self._transport.write(data)
            self._count(len(data))

    def close(self) -> None:
        """Close the connection once all written data has been sent."""
        self._write_head()
        self._transport.close()

    def cut_off(self, reason: DisconnectReason) -> None:
        self._cut(reason)
        self.abort()

    def _write_head(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self.is_closing():
            self._transport.write(head)
            self._count(len(head))

    def _count(self, size: int) -> None:
        self._written += size
        self._unread.wrote(self, size)


def http_config(app: Any, desktop: DesktopSettings, **options: Any) -> Config:
    """Return uvicorn's configuration for a port, with `options`. Call `guard_connections` before serving the port."""
    return Config(
        app,
        http="httptools",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        ssl_certfile=desktop.ssl_certificate or None,
        ssl_keyfile=desktop.ssl_private_key or None,
        **options,
    )


def guard_connections(config: Config, limits: ConnectionLimits, metrics: ConnectionCounts) -> None:
    """Load `config` and enforce `limits` on its connections. Raises OSError if the certificate or key is unusable."""
    guard = ConnectionGuard(limits, metrics)
    context = load_without_tls(config)

    def make(**of_server: Any) -> asyncio.Protocol:
        make_http = partial(HttpConnection, guard, **of_server)
        if context is None:
            return make_http()
        return TlsConnection(
            context,
            guard.admissions,
            make_http,
            handshake_s=limits.request_head_s,
            failed=partial(metrics.cut, "handshake"),
        )

    use_protocol(config, make)


@dataclass(frozen=True, slots=True)
class _Problem:
    """The reason why the server ends a connection, which the metrics count, and the response to send."""

    cut: DisconnectReason
    status: int
    code: str
    message: str


_LATE = _Problem("head_timeout", 408, "request_timeout", "The request did not arrive in time.")
_TOO_LARGE = _Problem(
    "head_too_large", 431, "headers_too_large", f"The headers exceed the limit of {MAX_HEAD_BYTES} bytes."
)
_TOO_MANY_AHEAD = _Problem(
    "pipeline", 400, "invalid_request", "Too many pipelined requests are waiting on this connection."
)


class _RefusedHeadError(Exception):
    """Makes httptools stop parsing."""


class ConnectionGuard:
    """State that all connections of a port share."""

    def __init__(self, limits: ConnectionLimits, metrics: ConnectionCounts) -> None:
        self.limits = limits
        self.metrics = metrics
        self.admissions = Admissions(limits, metrics)
        self.unread = UnreadResponses(limits)


class HttpConnection(UvicornHttp):
    """Uvicorn's protocol with limits. `of_server` are the arguments that uvicorn passes to a protocol class.

    `admission` is set for TLS connections, which are counted before the handshake.
    """

    def __init__(self, guard: ConnectionGuard, admission: Admission | None = None, **of_server: Any) -> None:
        super().__init__(**of_server)
        self._guard = guard
        self._admission = admission
        self._output: CountedTransport
        self._deadline: asyncio.TimerHandle | None = None
        self._problem: _Problem | None = None
        self._is_over = False
        """Whether further input is ignored."""
        self._has_bytes = False
        """Whether data has arrived since the last response, or since the start of the connection."""
        self._in_message = self._in_body = False
        self._under_way = 0
        """Number of requests whose headers have arrived and whose responses are not complete."""
        self._head_bytes = 0
        """Size of the request line and of all headers and trailers of the current request."""
        self._unparsed_bytes = 0
        """Number of bytes since the parser's last event, such as those of an incomplete header."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self._admission is None:
            self._admission = self._guard.admissions.admit(transport.get_extra_info("peername"))
        self._output = CountedTransport(transport, self._guard.unread, self._guard.metrics.cut)
        super().connection_made(self._output)  # pyright: ignore[reportArgumentType] it has what uvicorn uses
        refusal = self._admission.refusal
        if refusal is None:
            self._arm()
        elif refusal.is_answered:
            self._answer_and_end(refusal.status, "too_many_connections", refusal.message)
        else:
            self._is_over = True
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._disarm()
        self._guard.unread.forget(self._output)
        if self._admission is not None:
            self._admission.leave()
        # If uvicorn received the error, it would not cancel its idle timer, which keeps this object alive.
        super().connection_lost(None)

    def data_received(self, data: bytes) -> None:
        if self._is_over or self._output.is_closing():
            return
        self._has_bytes = True
        self._unparsed_bytes += len(data)
        was_in_message = self._in_message
        super().data_received(data)
        if self._is_over or self._output.is_closing():
            return
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self._end(_TOO_LARGE)
        elif self._under_way:
            return
        elif was_in_message and not self._in_message:  # the remainder of a body whose response was already sent
            self._disarm()
            self._has_bytes = False
            self.await_next_request()
        elif self._deadline is None:
            self._arm()

    def on_message_begin(self) -> None:
        self._in_message = True
        self._head_bytes = self._unparsed_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the size of a header, or of a trailer of a chunked body."""
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed_bytes = 0
        self._in_body = True
        if self._under_way > MAX_PIPELINED:
            self._refuse(_TOO_MANY_AHEAD)
        super().on_headers_complete()
        self._under_way += 1
        self._disarm()

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = self._in_body = False
        self._unparsed_bytes = 0
        super().on_message_complete()

    def response_ended(self) -> None:
        self._under_way -= 1
        if self._under_way or self._is_over or self._output.is_closing():
            return
        self._has_bytes = self._in_message
        if self._in_message:  # the remaining body, or the headers of the next request
            self._arm()

    def malformed(self, message: str) -> None:
        self._end(self._problem or _Problem("malformed", 400, "invalid_request", message))

    def _count(self, size: int) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE)

    def _refuse(self, problem: _Problem) -> None:
        """Stop the parser by raising an error. Uvicorn then calls `malformed`."""
        self._problem = problem
        raise _RefusedHeadError

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(self._guard.limits.request_head_s, self._late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        if self._output.is_closing():
            return
        if self._has_bytes and not self._in_body:
            self._end(_LATE)
        else:
            self._guard.metrics.cut(_LATE.cut)
            self._is_over = True
            self._output.close()

    def _end(self, problem: _Problem) -> None:
        if self._under_way:
            # A response would be inserted into the unfinished response to an earlier request.
            self._is_over = True
            self._disarm()
            self._output.cut_off(problem.cut)
        else:
            self._guard.metrics.cut(problem.cut)
            self._answer_and_end(problem.status, problem.code, problem.message)

    def _answer_and_end(self, status: int, code: str, message: str) -> None:
        self._is_over = True
        self._disarm()
        self._output.write(_response(status, code, message))
        self._deadline = self.loop.call_later(_LINGER_S, self._output.abort)


def _response(status: int, code: str, message: str) -> bytes:
    body: dict[str, Any] = {"status": -1, "code": code, "message": message}
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        body["retry_after"] = _RETRY_AFTER_S
    content = orjson.dumps(body)
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"date: {formatdate(usegmt=True)}",
        "content-type: application/json",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
        f"content-length: {len(content)}",
        "connection: close",
    ]
    if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        lines.append(f"retry-after: {_RETRY_AFTER_S}")
    return "\r\n".join([*lines, "", ""]).encode() + content
