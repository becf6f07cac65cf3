"""A response to FetchResults that contains one oversized string. The response is sent in chunks, so it is never
completely in memory.
"""

import asyncio
import struct
from contextlib import suppress

from tests.engines.scripted_hs2.codec import Call, Value, write_reply
from tests.engines.scripted_hs2.wire import Peer

_MARK = "*the place of the text*"
_PIECE = b"x" * (1 << 20)


async def send_huge_cell(peer: Peer, transport: str, call: Call, reply: Value, size: int) -> None:
    """Send `reply`, in which the last string of the last column is replaced with one of `size` bytes. Stops early if
    the client disconnects.
    """
    (*_, last) = reply["results"]["columns"]
    last["stringVal"]["values"][-1] = _MARK
    mark = struct.pack(">i", len(_MARK)) + _MARK.encode()
    head, _, tail = write_reply(call, reply).partition(mark)
    length = len(head) + 4 + size + len(tail)
    if transport == "sasl":
        peer.writer.write(struct.pack(">I", length))
    elif transport == "http":
        peer.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length)
    peer.writer.write(head + struct.pack(">i", size))
    with suppress(OSError):
        for start in range(0, size, len(_PIECE)):
            peer.writer.write(_PIECE[: size - start])
            await peer.writer.drain()
            await asyncio.sleep(0)
        peer.writer.write(tail)
        await peer.writer.drain()
