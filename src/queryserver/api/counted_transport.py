"""What a connection writes to: it counts the bytes, and joins the head of a response with its body."""

import asyncio
from collections.abc import Callable

_LONGEST_CLOSING_PAUSE_S = 0.2
_BEGIN_OF_RESPONSE = b"HTTP/1.1 "


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
        self._head = b""
        """Begins a response, and is not written yet."""
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
        if not self._head and data.startswith(_BEGIN_OF_RESPONSE):
            self._head = data
            asyncio.get_running_loop().call_soon(self._write_head)
            return
        if self._head:
            pieces = [self._head, data]
            self._head = b""
            self._transport.writelines(pieces)
            self._count(sum(map(len, pieces)))
        else:
            self._transport.write(data)
            self._count(len(data))

    def _write_head(self) -> None:
        """Write a head that nothing followed, if there is one."""
        head, self._head = self._head, b""
        if head and not self.is_closing():
            self._transport.write(head)
            self._count(len(head))

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
