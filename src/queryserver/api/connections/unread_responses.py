"""Counts response bytes that clients have not read yet, and disconnects clients that read too slowly."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from queryserver.api.connections.admission import ConnectionLimits
from queryserver.platform.metrics import DisconnectReason

SLOWEST_BYTES_PER_S = 1024
_SWEEP_S = 1.0
# If the limit on unsent bytes is exceeded, connections measured for less time than this are spared, because their
# speed is not known yet.
_MIN_MEASURED_S = 1.0
_RESPONSE_START = b"HTTP/1.1 "


@dataclass(slots=True)
class _Window:
    """When the measurement of a client's read speed began, and how many bytes the client had read by then."""

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
        fast clients with much unsent data would cause the disconnection of a slow client with little. Up to twice the
        limit, clients measured for less than a second are spared.
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
    """The transport that uvicorn writes to; counts the bytes written to one connection.

    Response headers are held back, so that the first part of the body is sent in the same system call if it is written
    in the same event loop iteration. Writes to a closing connection are ignored; an asyncio transport would raise.
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
