"""How messages travel: in frames after SASL, or bare. One call at a time; its answer is read whole, then decoded."""

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from queryserver.engines.hiveserver2.protocol.messages import IncompleteMessage, MalformedMessage

ReplyT = TypeVar("ReplyT")

MAX_REPLY_BYTES = 256 * 1024 * 1024
"""A longer answer is refused: it is garbage, or rows of many megabytes each."""

READ_BYTES = 4 * 1024 * 1024
"""How much a stream reads ahead."""

_LENGTH = struct.Struct(">I")
_QUIET_S = 0.001
_CLOSE_S = 2.0


class Transport(Protocol):
    """One connection that is logged in."""

    def is_closed(self) -> bool:
        """Whether either side has ended it."""
        ...

    async def exchange(self, call: bytes, decode: Callable[[bytes], ReplyT]) -> ReplyT:
        """Send a call and decode its answer; `decode` raises IncompleteMessage for one that ends too early."""
        ...

    async def close(self) -> None:
        """End it. Limited in time, raises nothing."""
        ...


class StreamTransport:
    """What both kinds of TCP connections have in common."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def is_closed(self) -> bool:
        return self._writer.is_closing() or self._reader.at_eof()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._writer.wait_closed()
            return
        self._writer.transport.abort()


class FramedTransport(StreamTransport):
    """Each message has its length before it."""

    async def exchange(self, call: bytes, decode: Callable[[bytes], ReplyT]) -> ReplyT:
        self._writer.write(_LENGTH.pack(len(call)) + call)
        await self._writer.drain()
        (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        if length > MAX_REPLY_BYTES:
            raise MalformedMessage("the answer is too long")
        return decode(await self._reader.readexactly(length))


class BareTransport(StreamTransport):
    """Messages without length: their end is found by decoding them.

    A small answer comes in one piece. A larger one is tried again only when the server has become silent, after a wait
    that grows with the cost of a try, so that all tries together cost a fraction of the time of the transfer.
    """

    async def exchange(self, call: bytes, decode: Callable[[bytes], ReplyT]) -> ReplyT:
        self._writer.write(call)
        await self._writer.drain()
        buffer = bytearray(await self._more())
        quiet_s = _QUIET_S
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                return decode(bytes(buffer))
            except IncompleteMessage:
                quiet_s = max(_QUIET_S, 4 * (loop.time() - begun))
            await self._read_until_quiet(buffer, quiet_s)

    async def _read_until_quiet(self, buffer: bytearray, quiet_s: float) -> None:
        """Add at least one piece, then all that come without a pause of `quiet_s`."""
        buffer += await self._more()
        with suppress(TimeoutError):
            while len(buffer) <= MAX_REPLY_BYTES:
                async with asyncio.timeout(quiet_s):
                    piece = await self._more()
                buffer += piece
        if len(buffer) > MAX_REPLY_BYTES:
            raise MalformedMessage("the answer is too long")

    async def _more(self) -> bytes:
        piece = await self._reader.read(READ_BYTES)
        if not piece:
            raise EOFError
        return piece
