"""Connections of clients: HTTP/1.1 with bounds in time and size for all that a client can make grow.

Uvicorn's own protocol waits for ever for the rest of a request head, keeps heads of any size, and queues any number of
requests that a client sends before it has read a response.
"""

import asyncio
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from queryserver.platform.metrics import ConnectionCounts, Cut
from queryserver.platform.networks import Network, contains, network_of
from queryserver.platform.open_files import affordable_connections
from queryserver.platform.settings.desktop import DesktopSettings

MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 16
"""Requests of one connection that wait for the response to an earlier one."""
_RETRY_AFTER_S = 5
_KEEP_ALIVE_S = 75
# Closing with unread input resets the connection, and the client would lose the answer. So input is discarded first.
_LINGER_S = 1.0
# A client that does not answer the end of TLS must not keep its connection; asyncio's default is 30 s.
_TLS_END_S = 5.0
SLOWEST_BYTES_PER_S = 1024
# Refused connections that still get an answer; beyond them a connection is closed without one.
_ANSWERED_REFUSALS = 64
_LONGEST_PAUSE_S = 1.0
_JUDGED_AFTER_S = 1.0
_LONGEST_CLOSING_PAUSE_S = 0.2
_BEGIN_OF_RESPONSE = b"HTTP/1.1 "


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    request_head_s: float
    """From the connection, or from the first byte of a further request, to the end of the request head."""
    response_stall_s: float
    """A client must take at least 1 KiB per second of a response, measured over this time."""
    in_all: int
    per_address: int
    """Trusted proxies are exempt: one proxy connects for many clients."""
    unsent_bytes: int
    """Responses that are written and that clients have not taken yet."""
    trusted_proxies: Sequence[Network] = ()


def limits_of(desktop: DesktopSettings) -> ConnectionLimits:
    """The bounds that the settings give, lowered in the same proportion to what the limit of open files permits."""
    in_all = min(desktop.max_connections, affordable_connections())
    return ConnectionLimits(
        request_head_s=desktop.request_head_timeout_s,
        response_stall_s=desktop.response_stall_timeout_s,
        in_all=in_all,
        per_address=max(desktop.max_connections_per_address * in_all // desktop.max_connections, 1),
        unsent_bytes=desktop.unsent_max_bytes,
        trusted_proxies=desktop.trusted_proxies,
    )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a connection is not admitted. Without an answer it is closed at once."""

    status: int
    message: str
    is_answered: bool
    leave: Callable[[], None]
    """To be called when the connection has ended."""


class Admission:
    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave

    def leave(self) -> None:
        if self._leave is not None:
            leave, self._leave = self._leave, None
            leave()


@dataclass(slots=True)
class _Window:
    """A stretch of time over which the speed of one client is measured."""

    began: float
    taken: int


class ConnectionGuard:
    """Counts the connections of this process and ends those that hold memory without progress."""

    def __init__(self, limits: ConnectionLimits, metrics: ConnectionCounts) -> None:
        self.limits = limits
        self.metrics = metrics
        self._open = 0
        self._by_address: Counter[str] = Counter()
        self._refused = 0
        self._windows: dict[GuardedProtocol, _Window] = {}
        self._unsent = 0
        self._sweep_at: asyncio.TimerHandle | None = None
        self._is_urgent = False

    def admit(self, peer: str) -> Admission | Refusal:
        """Count a connection from the address `peer`, or refuse it."""
        trusted = self.limits.trusted_proxies
        address = None if trusted and contains(trusted, peer) else network_of(peer)
        if self._open >= self.limits.in_all:
            self.metrics.refused("total")
            return self._refusal(503, "The server has too many connections.")
        if address is not None and self._by_address[address] >= self.limits.per_address:
            self.metrics.refused("address")
            return self._refusal(429, "Your address has too many connections.")
        self._open += 1
        self.metrics.open.inc()
        if address is not None:
            self._by_address[address] += 1
        return Admission(lambda: self._left(address))

    def wrote(self, connection: "GuardedProtocol", size: int) -> None:
        """`size` bytes of a response were passed to the transport of `connection`."""
        if connection not in self._windows:
            self._windows[connection] = _Window(time.monotonic(), connection.written_bytes() - size)
        self._unsent += size
        if self._sweep_at is None:
            self._sweep_in(min(_LONGEST_PAUSE_S, self.limits.response_stall_s / 4))
        if self._unsent > self.limits.unsent_bytes and not self._is_urgent:
            self._is_urgent = True
            self._sweep_in(0)

    def forget(self, connection: "GuardedProtocol") -> None:
        self._windows.pop(connection, None)

    def _refusal(self, status: int, message: str) -> Refusal:
        is_answered = self._refused < _ANSWERED_REFUSALS
        self._refused += is_answered
        return Refusal(status, message, is_answered, self._refusal_ended if is_answered else lambda: None)

    def _refusal_ended(self) -> None:
        self._refused -= 1

    def _left(self, address: str | None) -> None:
        self._open -= 1
        self.metrics.open.dec()
        if address is None:
            return
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _sweep_in(self, seconds: float) -> None:
        if self._sweep_at is not None:
            self._sweep_at.cancel()
        self._sweep_at = asyncio.get_running_loop().call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        self._sweep_at = None
        self._is_urgent = False
        now = time.monotonic()
        self._unsent = 0
        for connection, window in list(self._windows.items()):
            unsent = connection.unsent_bytes()
            if not unsent:
                del self._windows[connection]
            elif self._is_stalled(connection, window, now):
                connection.cut_off("stalled")
            else:
                self._unsent += unsent
        if self._unsent > self.limits.unsent_bytes:
            self._shed(now)
        if self._windows and self._sweep_at is None:
            self._sweep_in(min(_LONGEST_PAUSE_S, self.limits.response_stall_s / 4))

    def _is_stalled(self, connection: "GuardedProtocol", window: _Window, now: float) -> bool:
        if now - window.began < self.limits.response_stall_s:
            return False
        taken = connection.written_bytes() - connection.unsent_bytes()
        if taken - window.taken < SLOWEST_BYTES_PER_S * self.limits.response_stall_s:
            return True
        window.began, window.taken = now, taken
        return False

    def _shed(self, now: float) -> None:
        """End connections until the rest fits: first those that would need longest for what waits for them.

        By speed alone many fast clients with much unsent would end a slow one with little. Up to twice the bound, those
        younger than 1 s are spared.
        """
        is_severe = self._unsent > 2 * self.limits.unsent_bytes
        judged = [
            (connection.unsent_bytes() / (self._speed(connection, window, now) + 1), connection)
            for connection, window in self._windows.items()
            if is_severe or now - window.began >= _JUDGED_AFTER_S
        ]
        for _, connection in sorted(judged, key=lambda pair: pair[0], reverse=True):
            if self._unsent <= self.limits.unsent_bytes:
                return
            self._unsent -= connection.unsent_bytes()
            connection.cut_off("unsent")

    def _speed(self, connection: "GuardedProtocol", window: _Window, now: float) -> float:
        taken = connection.written_bytes() - connection.unsent_bytes() - window.taken
        return taken / max(now - window.began, 0.001)


class CountedTransport:
    """A transport that counts what is written. What has ended takes no more, where the event loop's would raise.

    The head of a response is written with the body that follows it in the same turn of the event loop: a call of the
    system takes longer than most of what this process does for a response. `carrier` is what TLS writes to: nearly all
    that waits in this process waits there.
    """

    def __init__(
        self, transport: asyncio.Transport, carrier: asyncio.Transport | None, wrote: Callable[[int], None]
    ) -> None:
        self._transport = transport
        self._carrier = carrier
        self._wrote: Callable[[int], None] | None = wrote
        self._closes = False
        self._head: tuple[bytes, asyncio.Handle] | None = None
        """Begins a response, is not written yet, and is written alone at the end of this turn."""
        self.written = 0
        self.get_extra_info = transport.get_extra_info
        self.abort = transport.abort
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.set_protocol = transport.set_protocol
        if carrier is None:
            self.get_write_buffer_size = transport.get_write_buffer_size
            self.is_closing = transport.is_closing

    def detach(self) -> None:
        """Release the connection, which refers to this transport: the two need no search for cycles to be freed."""
        self._wrote = None
        self._carrier = None

    def write(self, data: bytes) -> None:
        if self.is_closing():
            return
        if self._head is None and data.startswith(_BEGIN_OF_RESPONSE):
            self._head = data, asyncio.get_running_loop().call_soon(self._write_head)
            return
        if self._head is not None:
            head, alone = self._head
            self._head = None
            alone.cancel()
            self._transport.writelines([head, data])
            self._count(len(head) + len(data))
        else:
            self._transport.write(data)
            self._count(len(data))

    def _write_head(self) -> None:
        """Write a head that nothing followed, if there is one."""
        head, self._head = self._head, None
        if head is not None and not self.is_closing():
            self._transport.write(head[0])
            self._count(len(head[0]))

    def _count(self, size: int) -> None:
        self.written += size
        if self._wrote is not None:
            self._wrote(size)

    def get_write_buffer_size(self) -> int:
        below = self._carrier.get_write_buffer_size() if self._carrier else 0
        return self._transport.get_write_buffer_size() + below

    def is_closing(self) -> bool:
        return self._closes or self._transport.is_closing()

    def close(self) -> None:
        """See asyncio. The end of TLS has a deadline, which would cut off what a slow client has not taken yet."""
        self._write_head()
        if self._carrier is None:
            self._transport.close()
        elif not self._closes:
            self._closes = True
            self._close_when_sent(0.001)

    def _close_when_sent(self, pause_s: float) -> None:
        if self._transport.is_closing() or self._carrier is None or not self.get_write_buffer_size():
            self._transport.close()
            return
        pause_s = min(2 * pause_s, _LONGEST_CLOSING_PAUSE_S)
        asyncio.get_running_loop().call_later(pause_s, self._close_when_sent, pause_s)


class GuardedProtocol(HttpToolsProtocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        guard: ConnectionGuard,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._guard = guard
        self._admission: Admission | Refusal | None = None
        self._carrier: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._counted: CountedTransport | None = None
        self._problem: tuple[Cut, int, str, str] | None = None
        self._is_over = False
        self._has_bytes = False
        """Whether anything has come since the last response or since the connection was made."""
        self._in_message = False
        self._in_body = False
        self._head_bytes = 0
        """Size of the request line and of all headers and trailers of the current request."""
        self._quiet_bytes = 0
        """Bytes since the parser last found something: part of one long name or value."""

    @property
    def is_made(self) -> bool:
        """Whether it has begun; behind TLS that is after the handshake."""
        return self._counted is not None

    def carry(self, admission: Admission, carrier: asyncio.Transport) -> None:
        """To be called before TLS begins on `carrier`: the connection is admitted already."""
        self._admission = admission
        self._carrier = carrier

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        if self._admission is None:
            self._admission = self._guard.admit(str(peer[0]) if isinstance(peer, tuple) and peer else "")
        self._counted = CountedTransport(transport, self._carrier, partial(self._guard.wrote, self))
        self.transport = cast("asyncio.Transport", self._counted)
        if isinstance(self._admission, Refusal) and not self._admission.is_answered:
            self._is_over = True
            transport.abort()
            return
        super().connection_made(self.transport)
        if isinstance(self._admission, Refusal):
            self._answer_and_end(self._admission.status, "too_many_connections", self._admission.message)
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._admission is not None:
            self._admission.leave()
        self._guard.forget(self)
        self._disarm()
        self._unset_keepalive_if_required()  # after a reset uvicorn's own would keep all this for as long as it runs
        if self._counted is not None:
            self._counted.detach()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over or self.transport.is_closing():
            return
        self._has_bytes = True
        self._quiet_bytes += len(data)
        was_in_message = self._in_message
        super().data_received(data)
        if self._is_over or self.transport.is_closing():
            return
        if self._quiet_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
            self.send_400_response("")
        elif not self._call_runs():
            self._wait_on(message_ended=was_in_message and not self._in_message)

    def on_message_begin(self) -> None:
        self._in_message = True
        self._head_bytes = self._quiet_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools. Trailers of a chunked body come here too."""
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._quiet_bytes = 0
        self._in_body = True
        if len(self.pipeline) >= MAX_PIPELINED:
            self._problem = "pipeline", 400, "invalid_request", "Too many requests wait on this connection."
            raise _RefusedHeadError
        super().on_headers_complete()
        self._disarm()

    def on_body(self, body: bytes) -> None:
        self._quiet_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = self._in_body = False
        self._quiet_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._call_runs() or self._is_over or self.transport.is_closing():
            return
        self._has_bytes = False
        if self._in_message:
            # The rest of the body, or the head of the next request: neither may drip for ever.
            self._unset_keepalive_if_required()
            self._has_bytes = True
            self._arm()

    def send_400_response(self, msg: str) -> None:
        """See uvicorn: answer what cannot be read as a request, and end the connection."""
        cut, status, code, message = self._problem or ("malformed", 400, "invalid_request", msg)
        if self._call_runs():
            # An answer here would stand in the middle of the response to an earlier request.
            self.cut_off(cut)
            return
        self._guard.metrics.cut(cut)
        self._answer_and_end(status, code, message)

    def written_bytes(self) -> int:
        """All bytes of responses so far."""
        return self._counted.written if self._counted else 0

    def unsent_bytes(self) -> int:
        """Those of them that wait in this process."""
        return self._counted.get_write_buffer_size() if self._counted else 0

    def cut_off(self, reason: Cut) -> None:
        self._guard.metrics.cut(reason)
        self._is_over = True
        self._disarm()
        self.transport.abort()

    def _call_runs(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _count(self, size: int) -> None:
        self._quiet_bytes = 0
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
            raise _RefusedHeadError

    def _refuse_head(self) -> None:
        message = f"The headers are above the limit of {MAX_HEAD_BYTES} bytes."
        self._problem = "head_too_large", 431, "headers_too_large", message

    def _wait_on(self, *, message_ended: bool) -> None:
        """No call runs. Bytes that complete no request keep the deadline that is set."""
        if message_ended:  # the rest of a body whose response was sent before
            self._disarm()
            self._has_bytes = False
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        elif self._deadline is None:
            self._arm()

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(self._guard.limits.request_head_s, self._late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        self._guard.metrics.cut("head_timeout")
        if self._has_bytes and not self._in_body:
            self._answer_and_end(408, "request_timeout", "The request did not arrive in time.")
        else:
            self._is_over = True
            self.transport.close()

    def _answer_and_end(self, status: int, code: str, message: str) -> None:
        self._is_over = True
        self._disarm()
        self._unset_keepalive_if_required()
        default_headers = dict(self.server_state.default_headers)
        self.transport.write(_answer(status, code, message, default_headers))
        self._deadline = self.loop.call_later(_LINGER_S, self.transport.abort)


class _RefusedHeadError(Exception):
    """Ends the parsing; `_problem` of the connection says why."""


def _answer(status: int, code: str, message: str, headers: Mapping[bytes, bytes]) -> bytes:
    body: dict[str, Any] = {"status": -1, "code": code, "message": message}
    lines = [
        b"content-type: application/json\r\nx-content-type-options: nosniff\r\ncache-control: no-store\r\n",
        *(b"%b: %b\r\n" % pair for pair in headers.items()),
    ]
    if status in {429, 503}:
        lines.append(b"retry-after: %d\r\n" % _RETRY_AFTER_S)
    if status == 429:
        body["retry_after"] = _RETRY_AFTER_S
    content = orjson.dumps(body)
    lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(content))
    return STATUS_LINE[status] + b"".join(lines) + content


def http_config(app: Any, desktop: DesktopSettings, **options: Any) -> Config:
    """How every port of this service speaks HTTP; `options` are those of one port. Connections are to be guarded."""
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
    """Let `config` accept connections within `limits`.

    Loads `config`. TLS begins behind the guard: the event loop's own TLS server gives a connection to its protocol
    only after the handshake, so those that never finish one would not be counted.
    """
    config.load()
    guard = ConnectionGuard(limits, metrics)
    tls, config.ssl = config.ssl, None

    def make(**of_server: Any) -> asyncio.BaseProtocol:
        inner = GuardedProtocol(guard=guard, **of_server)
        return inner if tls is None else _Secured(guard, tls, inner)

    config.http_protocol_class = cast("type[asyncio.Protocol]", make)


class _Secured(SSLProtocol):
    """TLS on one connection that is counted before the handshake, or closed.

    Asyncio's own class, as the one of uvloop hides the transport below: what waits in that one would not be seen.
    """

    def __init__(self, guard: ConnectionGuard, tls: ssl.SSLContext, inner: GuardedProtocol) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            inner,
            tls,
            None,  # pyright: ignore[reportArgumentType] nobody waits for the handshake
            server_side=True,
            ssl_handshake_timeout=guard.limits.request_head_s,  # pyright: ignore[reportArgumentType] any number
            ssl_shutdown_timeout=_TLS_END_S,
        )
        self._guard = guard
        self._inner = inner
        self._admission: Admission | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        carrier = cast("asyncio.Transport", transport)
        peer = carrier.get_extra_info("peername")
        admission = self._guard.admit(str(peer[0]) if isinstance(peer, tuple) and peer else "")
        if isinstance(admission, Refusal):
            admission.leave()
            carrier.abort()
            return
        self._admission = admission
        self._inner.carry(admission, carrier)
        super().connection_made(carrier)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio. Asyncio does not report the end to the connection inside when there was no handshake."""
        super().connection_lost(exc)
        if self._admission is None:
            return
        self._admission.leave()
        if not self._inner.is_made:
            self._guard.metrics.cut("handshake")
