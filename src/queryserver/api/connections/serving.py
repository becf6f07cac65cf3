"""Puts the guard into a uvicorn configuration: in front of HTTP, and of the TLS handshake where there is one."""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Any, cast

from uvicorn.config import Config

from queryserver.api.connections.guard import Admission, ConnectionGuard, ConnectionMetrics, Refusal
from queryserver.api.connections.limits import ConnectionLimits
from queryserver.api.connections.protocol import GuardedProtocol

# A client that does not answer the end of TLS must not keep its connection; asyncio's default is 30 s.
_TLS_END_S = 5.0


def guard_connections(config: Config, limits: ConnectionLimits, metrics: ConnectionMetrics) -> None:
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
        """See asyncio. The handshake begins."""
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
        """See asyncio. Without a handshake the connection inside never hears of its end."""
        super().connection_lost(exc)
        if self._admission is None:
            return
        self._admission.leave()
        if not self._inner.is_made:
            self._guard.metrics.cut("handshake")
