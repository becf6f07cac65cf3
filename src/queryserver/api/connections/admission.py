"""Limits the number of connections that a process accepts, in total and from each address."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from queryserver.platform.metrics import ConnectionCounts
from queryserver.platform.networks import Network, contains, network_of
from queryserver.platform.open_files import permitted_connections
from queryserver.platform.settings.desktop import DesktopSettings

_MAX_ANSWERED_REFUSALS = 64
"""Maximum number of refused connections that stay open for a response; further ones are closed without a response."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    request_head_s: float
    """Time limit for receiving the request headers, from connection start or from the first byte of a later request."""
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
    """Why a connection is refused. If `is_answered` is False, the client is disconnected without a response."""

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
            return self._refuse(503, "The server has too many connections.")
        if address is not None and self._by_address[address] >= self._limits.per_address:
            self._metrics.refused("address")
            return self._refuse(429, "Your address has too many connections.")
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
