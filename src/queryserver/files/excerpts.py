"""File excerpts for display. Compressed files are decompressed as streams in bounded memory (Contract storage 5.3)."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from queryserver.errors.files import DecompressionLimit, FileTooComplex, StorageUnavailable
from queryserver.files.access import Location
from queryserver.files.model import FileStatus
from queryserver.formats.unpacking import (
    LOOK_AHEAD_BYTES,
    LOOK_BACK_BYTES,
    OUTPUT_BYTES,
    START_BYTES,
    ByteExcerpt,
    Codec,
    Unpacker,
    Window,
    detect_codec,
    head_bytes,
    unpacker,
)
from queryserver.platform.fair_queue import FairSemaphore
from queryserver.platform.threads import FairThreads, Stop
from queryserver.workbooks.reader import ProcessWorkbooks

# Up to this offset, one store call reads both the file's head and the requested range.
_NEAR_BYTES = 64 * 1024
_THREAD_BYTES = 32 * 1024
# Input that decompresses to almost nothing, such as empty gzip members, must not be read forever, so the compressed
# input is limited to this multiple of the output limit. The ratio exceeds 1 because records rendered as text can be
# shorter than their stored bytes; gzip and bzip2 output never is.
_MAX_PACKED_RATIO = 4
# Time limit per request, so that a slow store cannot block a thread that all users share.
_TIMEOUT_S = 300.0

_LINE_BYTES = 16
_PRINTABLE = bytes(byte if 0x20 <= byte <= 0x7E else ord(".") for byte in range(256))
_ESCAPED = {ord('"'): '\\"', ord("\\"): "\\\\"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileExcerpt:
    """An excerpt of a file's decompressed content, and the codec that was used."""

    codec: Codec
    excerpt: ByteExcerpt


class Excerpts:
    """Reads file excerpts. The `unpacking` threads decompress; the `workers` processes read Avro and Parquet files.

    `within_s` limits the time for reading one compressed or record file.
    """

    def __init__(
        self,
        unpacking: FairThreads,
        workers: ProcessWorkbooks,
        *,
        max_unpacked_bytes: int,
        max_snappy_bytes: int,
        within_s: float = _TIMEOUT_S,
    ) -> None:
        self._unpacking = unpacking
        self._workers = workers
        self._worker_slots = FairSemaphore(workers.processes)
        self._within_s = within_s
        self._max_unpacked = max_unpacked_bytes
        self._max_snappy = max_snappy_bytes

    async def read(
        self, user_id: int, location: Location, status: FileStatus, offset: int, length: int, codec: Codec | None
    ) -> FileExcerpt:
        """Return bytes [offset, offset + length) of the decompressed stream. If `codec` is None, it is detected.

        Raises NotAFile, SymlinkNotFollowed, DecompressionFailed, DecompressionLimit, CodecNotAvailable,
        StorageUnavailable, TooManyRequests.
        """
        window = Window(offset, length, self._max_unpacked)
        if codec in {None, Codec.NONE}:
            is_near = offset <= _NEAR_BYTES
            at_once = offset + length + LOOK_AHEAD_BYTES if is_near else head_bytes(status.name)
            head = await _bytes(location, 0, at_once)
            if codec is None:
                needed = head_bytes(status.name)
                start = head if len(head) >= min(needed, status.size_bytes) else await _bytes(location, 0, needed)
                codec = detect_codec(status.name, start[:needed], status.size_bytes)
            if codec is Codec.NONE:
                return FileExcerpt(codec, await _plain(location, status, head, offset, length, is_near=is_near))
        if codec is Codec.PARQUET:
            await self._parquet(user_id, location, status, window)
        elif codec is Codec.AVRO:
            await self._avro(user_id, location, window)
        elif codec is not None:
            await self._unpacked(user_id, location, status, codec, window)
        return FileExcerpt(codec or Codec.NONE, window.excerpt())

    async def run_in_thread_if_large(self, user_id: int, work: Callable[[], T], size_bytes: int) -> T:
        """Run `work` and return its result; above 32 KiB (`size_bytes`), run it in a thread. Raises TooManyRequests."""
        if size_bytes <= _THREAD_BYTES:
            return work()
        return await self._unpacking.run(user_id, lambda _: work())

    async def _unpacked(
        self, user_id: int, location: Location, status: FileStatus, codec: Codec, window: Window
    ) -> None:
        if codec is Codec.SNAPPY and status.size_bytes > self._max_snappy:
            raise DecompressionLimit(f"Snappy files larger than {self._max_snappy} bytes cannot be displayed.")
        packed = unpacker(codec, size_bytes=status.size_bytes, limit_bytes=self._max_unpacked)
        if packed is None:
            return
        async with (
            self._unpacking.turn(user_id) as turn,
            self._time_limit(),
            aclosing(self._packed_chunks(location)) as pieces,
        ):
            async for piece in pieces:
                if await turn.run(partial(_feed, packed, window, piece, turn.stop)):
                    return
            await turn.run(lambda: _fill(window, packed.end(), turn.stop))

    async def _avro(self, user_id: int, location: Location, window: Window) -> None:
        async with aclosing(self._packed_chunks(location)) as stored:
            await self._records(user_id, self._workers.avro_lines(stored), window)

    async def _parquet(self, user_id: int, location: Location, status: FileStatus, window: Window) -> None:
        await self._records(user_id, self._workers.parquet_lines(partial(_bytes, location), status.size_bytes), window)

    async def _records(self, user_id: int, worker_lines: AsyncGenerator[bytes], window: Window) -> None:
        try:
            async with self._worker_slots.slot(user_id), self._time_limit(), aclosing(worker_lines) as lines:
                async for made in lines:
                    window.take(made)
                    if window.is_full:
                        return
        except FileTooComplex as error:
            raise DecompressionLimit("Displaying the file exceeds the memory or time limit.") from error

    async def _packed_chunks(self, location: Location) -> AsyncGenerator[bytes]:
        """Yield the compressed file's chunks. Raises DecompressionLimit after 4 times the output limit."""
        max_bytes, taken_bytes = _MAX_PACKED_RATIO * self._max_unpacked, 0
        async with aclosing(location.storage.read(location.path.path)) as pieces:
            async for piece in pieces:
                yield piece
                taken_bytes += len(piece)
                if taken_bytes > max_bytes:
                    raise DecompressionLimit(
                        f"Displaying this part of the file requires reading more than {max_bytes} compressed bytes."
                    )

    @asynccontextmanager
    async def _time_limit(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._within_s):
                yield
        except TimeoutError:
            raise StorageUnavailable("The store did not return this part of the file in time.") from None


def _feed(packed: Unpacker, window: Window, piece: bytes, stop: Stop) -> bool:
    starts = range(0, len(piece), OUTPUT_BYTES)
    return any(_fill(window, packed.feed(piece[start : start + OUTPUT_BYTES]), stop) for start in starts)


def _fill(window: Window, pieces: Iterator[bytes], stop: Stop) -> bool:
    """Fill the window; return whether it is full."""
    for piece in pieces:
        stop.check()
        window.take(piece)
        if window.is_full:
            return True
    return False


async def _bytes(location: Location, offset: int, length: int) -> bytes:
    async with aclosing(location.storage.read(location.path.path, offset=offset, length=length)) as pieces:
        return b"".join([piece async for piece in pieces])


async def _plain(
    location: Location, status: FileStatus, head: bytes, offset: int, length: int, *, is_near: bool
) -> ByteExcerpt:
    start = head[:START_BYTES]
    if is_near:
        return ByteExcerpt(offset, length, start, head[max(offset - LOOK_BACK_BYTES, 0) : offset], head[offset:])
    if offset - LOOK_BACK_BYTES >= status.size_bytes:
        # Stores respond differently to offsets past the end, so this range is not requested.
        return ByteExcerpt(offset, length, start, b"", b"")
    around = await _bytes(location, offset - LOOK_BACK_BYTES, LOOK_BACK_BYTES + length + LOOK_AHEAD_BYTES)
    return ByteExcerpt(offset, length, start, around[:LOOK_BACK_BYTES], around[LOOK_BACK_BYTES:])


def hexdump(content: bytes, offset: int) -> bytes:
    """Return a hex dump as a JSON array of lines `[offset, [[byte, byte], …], printable text]`, 16 bytes per line.

    `offset` is the file offset of `content`.

    The JSON is formatted directly as bytes: lists for one megabyte would be 600,000 objects and cost seconds of garbage
    collection.
    """
    printable = content.translate(_PRINTABLE).decode("ascii")
    lines = [
        _LINES[len(line)] % (offset + start, *line, printable[start : start + _LINE_BYTES].translate(_ESCAPED))
        for start in range(0, len(content), _LINE_BYTES)
        if (line := content[start : start + _LINE_BYTES])
    ]
    return f"[{','.join(lines)}]".encode()


def _line_of(size: int) -> str:
    words = ["[%d,%d]"] * (size // 2) + ["[%d]"] * (size % 2)
    return f'[%d,[{",".join(words)}],"%s"]'


_LINES = [_line_of(size) for size in range(_LINE_BYTES + 1)]
