"""Parts of files to be shown: plain, or unpacked as streams in bounded memory (Contract storage 5.3)."""

import asyncio
import io
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import quote

from queryserver.errors.files import DecompressionLimit, FileTooComplex, StorageUnavailable
from queryserver.files.model import FileStatus, StoragePath
from queryserver.files.places import Place
from queryserver.formats.parquet import parquet_lines
from queryserver.formats.unpacking import (
    LOOK_AHEAD_BYTES,
    LOOK_BACK_BYTES,
    OUTPUT_BYTES,
    START_BYTES,
    ByteExcerpt,
    Codec,
    Unpacker,
    Window,
    detect,
    head_bytes,
    unpacker,
)
from queryserver.platform.threads import FairThreads, Stop
from queryserver.workbooks.reader import AvroReader

MAX_READ_BYTES = 64 * 1024 * 1024
"""Largest single read: a broken file may claim to have a footer or a page of any size."""

# The store has time-outs of its own; this one is for a loop that died.
_WITHIN_S = 300.0


class RandomAccess(io.RawIOBase):
    """Reads run on `loop` while the thread waits. After `stop` every read fails at once.

    `read_at` gives up to `length` bytes from `offset` on.
    """

    def __init__(
        self,
        read_at: Callable[[int, int], Coroutine[Any, Any, bytes]],
        size_bytes: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__()
        self._read_at = read_at
        self._size = size_bytes
        self._loop = loop
        self._place = 0
        self._lock = Lock()
        self._stopped = False
        self._reading: Future[bytes] | None = None

    def readable(self) -> bool:
        """True: this is all it can do."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move; nothing is asked of the store."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(base + offset, 0)
        return self._place

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes. Raises DecompressionLimit, StorageUnavailable, and what the store raises."""
        left = max(self._size - self._place, 0)
        wanted = left if size < 0 else min(size, left)
        if wanted > MAX_READ_BYTES:
            raise DecompressionLimit(f"A part of the file has more than {MAX_READ_BYTES} bytes.")
        content = self._wait(self._begin(wanted)) if wanted else b""
        self._place += len(content)
        return content

    def stop(self) -> None:
        """End the read under way and all that follow. For the loop."""
        with self._lock:
            self._stopped = True
            if self._reading is not None:
                self._reading.cancel()

    def _begin(self, wanted: int) -> Future[bytes]:
        with self._lock:
            if self._stopped:
                raise StorageUnavailable("The reading was ended.")
            self._reading = asyncio.run_coroutine_threadsafe(self._read_at(self._place, wanted), self._loop)
            return self._reading

    def _wait(self, reading: Future[bytes]) -> bytes:
        try:
            return reading.result(_WITHIN_S)
        except (TimeoutError, CancelledError):
            reading.cancel()
            raise StorageUnavailable("The store did not answer in time.") from None


# One call of the store gives the head and the asked part.
_NEAR_BYTES = 64 * 1024
_ASIDE_BYTES = 32 * 1024
# What unpacks to nothing, such as members without content, must not be read for ever: of a file so many times as many
# bytes are read as may be made of it. Text of records can be shorter than their bytes, of gzip and bzip2 it never is.
_PACKED_PER_UNPACKED = 4
# A store that is slow without being late must not keep a place from all other users.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shown:
    """A part of a file, and what the file is packed with."""

    codec: Codec
    excerpt: ByteExcerpt


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


def _near(head: bytes, offset: int, length: int) -> ByteExcerpt:
    before = head[max(offset - LOOK_BACK_BYTES, 0) : offset]
    return ByteExcerpt(offset, length, head[:START_BYTES], before, head[offset:])


async def _far(place: Place, status: FileStatus, head: bytes, offset: int, length: int) -> ByteExcerpt:
    if offset - LOOK_BACK_BYTES >= status.size_bytes:
        # Not asked for: stores differ in what they say to numbers far behind the end.
        return ByteExcerpt(offset, length, head[:START_BYTES], b"", b"")
    around = await _bytes(place, offset - LOOK_BACK_BYTES, LOOK_BACK_BYTES + length + LOOK_AHEAD_BYTES)
    return ByteExcerpt(offset, length, head[:START_BYTES], around[:LOOK_BACK_BYTES], around[LOOK_BACK_BYTES:])


_LINE_BYTES = 16
_PRINTABLE = bytes(byte if 0x20 <= byte <= 0x7E else ord(".") for byte in range(256))
_ESCAPED = {ord('"'): '\\"', ord("\\"): "\\\\"}


def hexdump(content: bytes, offset: int) -> bytes:
    """A JSON array of lines `[offset, words of two bytes, printable text]`; `content` begins at `offset`.

    Written at once: as lists a megabyte would be 600,000 objects, and some seconds of collecting garbage.
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


STICKY = 0o1000

# What stays as it is in links, beside letters, digits and `_.-~`.
_PLAIN = "@$&()*!+=;,'"
_TYPE_LETTERS = {0o040000: "d", 0o100000: "-", 0o120000: "l"}
_UNITS = ("KB", "MB", "GB", "TB", "PB")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def mode_text(mode: int) -> str:
    """A mode with type bits in octal digits, such as `40777`."""
    return f"{mode:o}"


def rwx(mode: int, *, has_acl: bool = False) -> str:
    """A mode with type bits as `drwxr-xr-x`; a tenth letter `t` when sticky, then `+` when there is an ACL."""
    letters = "".join(letter if mode & (0o400 >> bit) else "-" for bit, letter in enumerate("rwx" * 3))
    kind = _TYPE_LETTERS.get(mode & 0o170000, "?")
    return f"{kind}{letters}{'t' if mode & STICKY else ''}{'+' if has_acl else ''}"


def human_size(size_bytes: int) -> str:
    """A size to base 1024 with one decimal, such as `5.9 MB` with a no-break space; below 1024 as `12 bytes`."""
    if size_bytes < 1024:
        return f"{size_bytes}\u00a0{'byte' if size_bytes == 1 else 'bytes'}"
    size = size_bytes / 1024
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.1f}\u00a0{unit}"
        size /= 1024
    return f"{size:.1f}\u00a0{_UNITS[-1]}"


def epoch_seconds(time: datetime | None) -> int | None:
    """Whole seconds since 1970, rounded down."""
    return None if time is None else (time - _EPOCH) // timedelta(seconds=1)


def time_text(seconds: int | None, zone: tzinfo) -> str:
    """A time of `epoch_seconds` as `October 31, 2016 03:34 PM`, in English whatever the locale; empty for None and 0.

    Empty also for a time that no calendar reaches.
    """
    if not seconds:
        return ""
    try:
        time = (_EPOCH + timedelta(seconds=seconds)).astimezone(zone)
    except OverflowError:
        return ""
    date = f"{_MONTHS[time.month - 1]} {time.day:02}, {time.year:04}"
    return f"{date} {time.hour % 12 or 12:02}:{time.minute:02} {'AM' if time.hour < 12 else 'PM'}"


def url_part(path: str) -> str:
    """A path as it stands in links: `/`, `:`, `?`, `#`, `%` and blanks are encoded too."""
    return quote(path, safe=_PLAIN)


def breadcrumbs(path: StoragePath) -> Iterator[tuple[str, str]]:
    """Path and label of each step of the way: the root first."""
    root = StoragePath(path.scheme, "")
    yield str(root), path.root_label
    step = root
    for name in path.names:
        step = step.child(name)
        yield str(step), name
