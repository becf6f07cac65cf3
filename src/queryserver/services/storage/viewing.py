"""Parts of files to be shown: plain, or unpacked as streams in bounded memory (Contract storage 5.3)."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from queryserver.domain.errors.files import DecompressionLimit, FileTooComplex, StorageUnavailable
from queryserver.domain.files import FileStatus
from queryserver.formats.unpacking.codecs import OUTPUT_BYTES, Codec, Unpacker, detect, head_bytes
from queryserver.formats.unpacking.parquet import parquet_lines
from queryserver.formats.unpacking.streams import unpacker
from queryserver.formats.unpacking.window import (
    LOOK_AHEAD_BYTES,
    LOOK_BACK_BYTES,
    START_BYTES,
    Excerpt,
    Window,
)
from queryserver.interfaces.workbooks import AvroReader
from queryserver.services.storage.random_access import RandomAccess
from queryserver.services.storage.stores import Place
from queryserver.services.threads import FairThreads, Stop

# One call of the store gives the head and the asked part.
_NEAR_BYTES = 64 * 1024
_ASIDE_BYTES = 32 * 1024
# What unpacks to nothing, such as members without content, must not be read for ever: of a file so many times as many
# bytes are read as may be made of it. Text of records can be shorter than their bytes, of gzip and bzip2 it never is.
_PACKED_PER_UNPACKED = 4
# A store that is slow without being late must not keep a place from all other users.
_WITHIN_S = 300.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shown:
    """A part of a file, and what the file is packed with."""

    codec: Codec
    excerpt: Excerpt


class Viewing:
    """Cuts parts out of files. `unpacking` do what takes time; those of `parquet` wait for the store, too. `avro` reads
    in processes.

    `within_s`: how long a packed file is read for one part of it.
    """

    def __init__(
        self,
        unpacking: FairThreads,
        parquet: FairThreads,
        avro: AvroReader,
        *,
        max_unpacked_bytes: int,
        max_snappy_bytes: int,
        within_s: float = _WITHIN_S,
    ) -> None:
        self._unpacking = unpacking
        self._parquets = parquet
        self._avro = avro
        self._within_s = within_s
        self._max_unpacked = max_unpacked_bytes
        self._max_snappy = max_snappy_bytes

    async def show(
        self, user_id: int, place: Place, status: FileStatus, offset: int, length: int, codec: Codec | None
    ) -> Shown:
        """Bytes [offset, offset + length) of the shown stream; `codec` None: what the file seems to be.

        Raises NotAFile, SymlinkNotFollowed, DecompressionFailed, DecompressionLimit, CodecNotAvailable,
        StorageUnavailable, TooManyRequests.
        """
        window = Window(offset, length, self._max_unpacked)
        if codec in {None, Codec.NONE}:
            is_near = offset <= _NEAR_BYTES
            at_once = offset + length + LOOK_AHEAD_BYTES if is_near else head_bytes(status.name)
            head = await _bytes(place, 0, at_once)
            codec = codec or await self._detected(place, status, head)
            if codec is Codec.NONE:
                if is_near:
                    return Shown(codec, _near(head, offset, length))
                return Shown(codec, await _far(place, status, head, offset, length))
        if codec is Codec.PARQUET:
            await self._parquet(user_id, place, status, window)
        elif codec is Codec.AVRO:
            await self._records(user_id, place, window)
        elif codec is not None:
            await self._unpacked(user_id, place, status, codec, window)
        return Shown(codec or Codec.NONE, window.excerpt())

    async def aside(self, user_id: int, work: Callable[[], T], size_bytes: int) -> T:
        """What `work` gives, made in a thread when it is about many bytes. Raises TooManyRequests."""
        if size_bytes <= _ASIDE_BYTES:
            return work()
        return await self._unpacking.run(user_id, lambda _: work())

    async def _detected(self, place: Place, status: FileStatus, head: bytes) -> Codec:
        needed = head_bytes(status.name)
        if len(head) < min(needed, status.size_bytes):
            head = await _bytes(place, 0, needed)
        return detect(status.name, head[:needed], status.size_bytes)

    async def _unpacked(self, user_id: int, place: Place, status: FileStatus, codec: Codec, window: Window) -> None:
        if codec is Codec.SNAPPY and status.size_bytes > self._max_snappy:
            raise DecompressionLimit(f"Snappy files of more than {self._max_snappy} bytes are not shown.")
        packed = unpacker(codec, size_bytes=status.size_bytes, limit_bytes=self._max_unpacked)
        if packed is None:
            return
        async with self._unpacking.turn(user_id) as turn, self._in_time(), aclosing(self._stored(place)) as pieces:
            async for piece in pieces:
                if await turn.run(partial(_feed, packed, window, piece, turn.stop)):
                    return
            await turn.run(partial(_end, packed, window, turn.stop))

    async def _records(self, user_id: int, place: Place, window: Window) -> None:
        """The work is done by a process; a turn of the user keeps their calls apart, as with other codecs."""
        stored = self._stored(place)
        lines = self._avro.avro_lines(stored)
        try:
            async with self._unpacking.turn(user_id), self._in_time(), aclosing(stored), aclosing(lines):
                async for made in lines:
                    window.take(made)
                    if window.is_full:
                        return
        except FileTooComplex as error:
            raise DecompressionLimit("The file needs more memory or time to be shown than there is.") from error

    async def _stored(self, place: Place) -> AsyncGenerator[bytes]:
        """The pieces of the file. Raises DecompressionLimit when they are too many for what was made of them."""
        most, taken = _PACKED_PER_UNPACKED * self._max_unpacked, 0
        async with aclosing(place.storage.read(place.path.path)) as pieces:
            async for piece in pieces:
                yield piece
                taken += len(piece)
                if taken > most:
                    raise DecompressionLimit(f"This part of the file lies behind {most} bytes that unpack to little.")

    async def _parquet(self, user_id: int, place: Place, status: FileStatus, window: Window) -> None:
        async with self._parquets.turn(user_id) as turn, self._in_time():
            file = RandomAccess(partial(_bytes, place), status.size_bytes, asyncio.get_running_loop())
            try:
                await turn.run(partial(_fill, file, window, turn.stop))
            finally:
                # The thread must not wait for a loop that no longer waits for it.
                file.stop()

    @asynccontextmanager
    async def _in_time(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._within_s):
                yield
        except TimeoutError:
            raise StorageUnavailable("The store gives the file too slowly to show this part of it.") from None


def _feed(packed: Unpacker, window: Window, piece: bytes, stop: Stop) -> bool:
    """Whether the window is full."""
    for start in range(0, len(piece), OUTPUT_BYTES):
        for made in packed.feed(piece[start : start + OUTPUT_BYTES]):
            stop.check()
            window.take(made)
            if window.is_full:
                return True
    return False


def _end(packed: Unpacker, window: Window, stop: Stop) -> None:
    for made in packed.end():
        stop.check()
        window.take(made)
        if window.is_full:
            return


def _fill(file: RandomAccess, window: Window, stop: Stop) -> None:
    with closing(parquet_lines(file)) as lines:
        for made in lines:
            stop.check()
            window.take(made)
            if window.is_full:
                return


async def _bytes(place: Place, offset: int, length: int) -> bytes:
    async with aclosing(place.storage.read(place.path.path, offset=offset, length=length)) as pieces:
        return b"".join([piece async for piece in pieces])


def _near(head: bytes, offset: int, length: int) -> Excerpt:
    before = head[max(offset - LOOK_BACK_BYTES, 0) : offset]
    return Excerpt(offset, length, head[:START_BYTES], before, head[offset:])


async def _far(place: Place, status: FileStatus, head: bytes, offset: int, length: int) -> Excerpt:
    if offset - LOOK_BACK_BYTES >= status.size_bytes:
        # Not asked for: stores differ in what they say to numbers far behind the end.
        return Excerpt(offset, length, head[:START_BYTES], b"", b"")
    around = await _bytes(place, offset - LOOK_BACK_BYTES, LOOK_BACK_BYTES + length + LOOK_AHEAD_BYTES)
    return Excerpt(offset, length, head[:START_BYTES], around[:LOOK_BACK_BYTES], around[LOOK_BACK_BYTES:])
