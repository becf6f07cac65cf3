"""Admission of connections, their bounds, and the end of those whose clients do not take their responses."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Literal, Protocol

import structlog
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as MetricCounter

from queryserver.platform.limits import affordable_connections
from queryserver.platform.settings.desktop import DesktopSettings
from queryserver.platform.settings.sections import Network, contains, parsed_address

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds for the connections of one process."""

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


Cut = Literal["head_timeout", "head_too_large", "malformed", "pipeline", "handshake", "stalled", "unsent"]
"""Why the server ended a connection."""

SLOWEST_BYTES_PER_S = 1024
# Refused connections that still get an answer; beyond them a connection is closed without one.
_ANSWERED_REFUSALS = 64
_LONGEST_PAUSE_S = 1.0
_JUDGED_AFTER_S = 1.0


class ConnectionMetrics(Protocol):
    """What is counted about connections."""

    def opened(self) -> None:
        """One more is open."""
        ...

    def closed(self) -> None:
        """One fewer is open."""
        ...

    def refused(self, bound: Literal["address", "total"]) -> None:
        """One was not admitted."""
        ...

    def cut(self, reason: Cut) -> None:
        """One was ended by the server."""
        ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a connection is not admitted. Without an answer it is closed at once."""

    status: int
    message: str
    is_answered: bool
    leave: Callable[[], None]
    """To be called when the connection has ended."""


class Admission:
    """One admitted connection."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave

    def leave(self) -> None:
        """The connection has ended. Further calls change nothing."""
        if self._leave is not None:
            leave, self._leave = self._leave, None
            leave()


class Watched(Protocol):
    """A connection with bytes that its client may not have taken."""

    def written_bytes(self) -> int:
        """All bytes of responses so far."""
        ...

    def unsent_bytes(self) -> int:
        """Those of them that wait in this process."""
        ...

    def cut_off(self, reason: Cut) -> None:
        """End the connection at once."""
        ...


@dataclass(slots=True)
class _Window:
    """A stretch of time over which the speed of one client is measured."""

    began: float
    taken: int


class ConnectionGuard:
    """Counts the connections of this process and ends those that hold memory without progress."""

    def __init__(self, limits: ConnectionLimits, metrics: ConnectionMetrics) -> None:
        self.limits = limits
        self.metrics = metrics
        self._open = 0
        self._by_address: Counter[str] = Counter()
        self._refused = 0
        self._windows: dict[Watched, _Window] = {}
        self._unsent = 0
        self._sweep_at: asyncio.TimerHandle | None = None
        self._is_urgent = False

    def admit(self, peer: str) -> Admission | Refusal:
        """Count a connection from the address `peer`, or refuse it."""
        address = None if contains(self.limits.trusted_proxies, peer) else counted_address(peer)
        if self._open >= self.limits.in_all:
            self.metrics.refused("total")
            return self._refusal(503, "The server has too many connections.")
        if address is not None and self._by_address[address] >= self.limits.per_address:
            self.metrics.refused("address")
            return self._refusal(429, "Your address has too many connections.")
        self._open += 1
        self.metrics.opened()
        if address is not None:
            self._by_address[address] += 1
        return Admission(lambda: self._left(address))

    def wrote(self, connection: Watched, size: int) -> None:
        """`size` bytes of a response were passed to the transport of `connection`."""
        if connection not in self._windows:
            self._windows[connection] = _Window(time.monotonic(), connection.written_bytes() - size)
        self._unsent += size
        if self._sweep_at is None:
            self._sweep_in(min(_LONGEST_PAUSE_S, self.limits.response_stall_s / 4))
        if self._unsent > self.limits.unsent_bytes and not self._is_urgent:
            self._is_urgent = True
            self._sweep_in(0)

    def forget(self, connection: Watched) -> None:
        """The connection has ended."""
        self._windows.pop(connection, None)

    def _refusal(self, status: int, message: str) -> Refusal:
        is_answered = self._refused < _ANSWERED_REFUSALS
        self._refused += is_answered
        return Refusal(status, message, is_answered, self._refusal_ended if is_answered else lambda: None)

    def _refusal_ended(self) -> None:
        self._refused -= 1

    def _left(self, address: str | None) -> None:
        self._open -= 1
        self.metrics.closed()
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

    def _is_stalled(self, connection: Watched, window: _Window, now: float) -> bool:
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

    def _speed(self, connection: Watched, window: _Window, now: float) -> float:
        taken = connection.written_bytes() - connection.unsent_bytes() - window.taken
        return taken / max(now - window.began, 0.001)


def counted_address(peer: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 network of an IPv6 address, which one subscriber owns."""
    address = parsed_address(peer)
    if isinstance(address, IPv6Address):
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return peer if address is None else str(address)


class ConnectionCounts:
    """What is counted about connections, in Prometheus form."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._open = Gauge(
            "queryserver_http_connections", "Open connections.", registry=registry, multiprocess_mode="livesum"
        )
        self._refused = MetricCounter(
            "queryserver_http_connections_refused",
            "Connections above a bound, by the bound.",
            ["bound"],
            registry=registry,
        )
        self._cut = MetricCounter(
            "queryserver_http_connections_cut", "Connections ended early, by reason.", ["reason"], registry=registry
        )

    def opened(self) -> None:
        """One more is open."""
        self._open.inc()

    def closed(self) -> None:
        """One fewer is open."""
        self._open.dec()

    def refused(self, bound: Literal["address", "total"]) -> None:
        """One was not admitted."""
        self._refused.labels(bound).inc()

    def cut(self, reason: Cut) -> None:
        """One was ended by the server."""
        self._cut.labels(reason).inc()
