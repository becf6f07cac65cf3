"""Limits the connections that a process accepts, in total and from each address, and counts TLS connections before the
handshake.

With asyncio's own TLS server, the protocol gets a connection only after the handshake, so connections that never finish
the handshake would not be counted. Neither would unread response bytes, which that server keeps in its own buffers.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from queryserver.platform.machine_limits import permitted_connections
from queryserver.platform.metrics import ConnectionCounts
from queryserver.platform.networks import Network, contains, network_of
from queryserver.platform.settings.desktop import DesktopSettings

_MAX_ANSWERED_REFUSALS = 64
"""Maximum number of refused connections that stay open for a response. Further ones are closed without a response."""

_RECORD_BYTES = 16 * 1024
"""Maximum payload of a TLS record."""
_WRITE_BYTES = 16 * _RECORD_BYTES


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    request_head_s: float
    """Time limit for receiving request headers, from the connection's start or the first byte of a later request."""
    response_stall_s: float
    """A client must read at least 1 KiB/s of a response on average over this time."""
    in_all: int
    per_address: int
    """Trusted proxies are exempt, because a proxy connects on behalf of many clients."""
    unsent_bytes: int
    """Limit on all response bytes that have been written but that clients have not read yet."""
    trusted_proxies: Sequence[Network] = ()


def limits_of(desktop: DesktopSettings) -> ConnectionLimits:
    """Return the limits from the settings, with lower connection counts if the limit on open files requires it."""
    in_all = min(desktop.max_connections, permitted_connections())
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
    """The reason for refusing a connection. If `is_answered` is False, the client gets no response."""

    status: int
    message: str
    is_answered: bool


@dataclass(slots=True)
class Admission:
    """A connection that `Admissions` counts until `leave` is called."""

    refusal: Refusal | None
    _uncount: Callable[[], None] | None = field(repr=False)

    def leave(self) -> None:
        """Stop counting the connection once it has ended. Idempotent."""
        uncount, self._uncount = self._uncount, None
        if uncount is not None:
            uncount()


class Admissions:
    """Counts the open connections of this process, and refuses connections above the limits."""

    def __init__(self, limits: ConnectionLimits, metrics: ConnectionCounts) -> None:
        self._limits = limits
        self._metrics = metrics
        self._open = 0
        self._by_address: Counter[str] = Counter()
        self._answered_refusals = 0

    def admit(self, peer: Any) -> Admission:
        """Count a connection, or refuse it above a limit (`refusal` is then set).

        `peer` is the transport's `peername`: a tuple of host and port, or another value if the peer has no host.
        """
        host = str(cast("tuple[object, ...]", peer)[0]) if isinstance(peer, tuple) and peer else ""
        trusted = self._limits.trusted_proxies
        address = None if trusted and contains(trusted, host) else network_of(host)
        if self._open >= self._limits.in_all:
            self._metrics.refused("total")
            return self._refuse(503, "The server has too many open connections (`desktop.max_connections`).")
        if address is not None and self._by_address[address] >= self._limits.per_address:
            self._metrics.refused("address")
            return self._refuse(
                429, "Your address has too many open connections (`desktop.max_connections_per_address`)."
            )
        self._open += 1
        self._metrics.open.inc()
        if address is not None:
            self._by_address[address] += 1
        return Admission(None, lambda: self._left(address))

    def _left(self, address: str | None) -> None:
        self._open -= 1
        self._metrics.open.dec()
        if address is None:
            return
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _refuse(self, status: int, message: str) -> Admission:
        is_answered = self._answered_refusals < _MAX_ANSWERED_REFUSALS
        self._answered_refusals += is_answered
        return Admission(Refusal(status, message, is_answered), self._refusal_ended if is_answered else None)

    def _refusal_ended(self) -> None:
        self._answered_refusals -= 1


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """TLS layer between an asyncio transport and the protocol that `make_protocol` creates after the handshake.

    A connection is closed if its handshake takes longer than `handshake_s`. `failed` is called if a connection ends
    before the handshake has finished. Responses are encrypted as they are written, so all unsent bytes are in the
    buffer of the underlying transport. `close` sends close_notify without waiting for the client's (RFC 8446 §6.1).
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        admissions: Admissions,
        make_protocol: Callable[[Admission], asyncio.Protocol],
        *,
        handshake_s: float,
        failed: Callable[[], None],
    ) -> None:
        super().__init__()
        self._admissions = admissions
        self._make_protocol = make_protocol
        self._handshake_s = handshake_s
        self._failed = failed
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)
        self._protocol: asyncio.Protocol | None = None
        """None before the handshake and after the end of the connection."""
        self._is_closing = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._admission = self._admissions.admit(transport.get_extra_info("peername"))
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._handshake_s, transport.abort)
        if self._admission.refusal is not None:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._admission.leave()
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(exc)
        elif self._admission.refusal is None:
            self._failed()

    def data_received(self, data: bytes) -> None:
        self._received.write(data)
        try:
            if self._protocol is not None or self._complete_handshake():
                self._pass_on()
        except ssl.SSLError:  # not TLS, or an unsupported version: send the alert that OpenSSL has prepared
            self._send()
            self._transport.close()

    def _complete_handshake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._send()
        self._deadline.cancel()
        self._protocol = self._make_protocol(self._admission)
        self._protocol.connection_made(self)
        return True

    def _pass_on(self) -> None:
        """Decrypt all received data and pass it to the protocol in one call, because the protocol may pause reading."""
        pieces: list[bytes] = []
        has_ended = False
        with suppress(ssl.SSLWantReadError):
            while piece := self._tls.read(_RECORD_BYTES):
                pieces.append(piece)
            has_ended = True
        self._send()  # TLS protocol messages, such as key updates
        if pieces and self._protocol is not None:
            self._protocol.data_received(b"".join(pieces))
        if has_ended:
            self.close()

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._tls.context
        return self._tls if name == "ssl_object" else self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest and not self.is_closing():
            rest = rest[self._tls.write(rest[:_WRITE_BYTES]) :]
            self._send()

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        self._is_closing = True
        with suppress(ssl.SSLError):  # prepares close_notify, and raises because the client's has not arrived
            self._tls.unwrap()
        self._send()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _send(self) -> None:
        if self._to_send.pending:
            self._transport.write(self._to_send.read())
