"""Excerpts of files for display, and file downloads.

Excerpts of compressed files are decompressed as streams in bounded memory (Contract storage 5.3). Downloads support
conditional requests and byte ranges (Contract storage 5.5).
"""

import asyncio
import mimetypes
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import quote

from queryserver.errors.base import QueryServerError, download_disabled
from queryserver.errors.files import (
    DecompressionLimit,
    FileTooComplex,
    NotAFile,
    RangeNotSatisfiable,
    StorageError,
    StorageUnavailable,
    SymlinkNotFollowed,
)
from queryserver.files.access import Caller, Location, StorageAudit, Stores
from queryserver.files.model import EntryKind, FileStatus, StoragePath
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
from queryserver.identity.limits import Streams
from queryserver.identity.model import DOWNLOAD, User
from queryserver.platform.fair_queue import FairSemaphore
from queryserver.platform.threads import FairThreads, Stop
from queryserver.workbooks.reader import ProcessWorkbooks

# Up to this offset, one store call reads both the file's head and the requested range.
_NEAR_BYTES = 64 * 1024
_THREAD_BYTES = 32 * 1024
# Input that decompresses to almost nothing, such as empty gzip members, must not be read forever, so the compressed
# input is limited to this multiple of the output limit. The ratio exceeds 1 because records rendered as text can be
# shorter than their stored bytes; the output of gzip and bzip2 practically never is.
_MAX_PACKED_RATIO = 4
# Time limit per request, so that a slow store cannot block a thread that all users share.
_TIMEOUT_S = 300.0

_LINE_BYTES = 16
_PRINTABLE = bytes(byte if 0x20 <= byte <= 0x7E else ord(".") for byte in range(256))
_ESCAPED = {ord('"'): '\\"', ord("\\"): "\\\\"}

T = TypeVar("T")

_UNIT = "bytes="
_RANGE = re.compile(r"([0-9]*)-([0-9]*)")
_ENTITY_TAG = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_MAX_POSITION = 2**63


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
        """Run `work` and return its result. If `size_bytes` exceeds 32 KiB, run it in a thread. Raises
        TooManyRequests.
        """
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
        """Yield the compressed file's chunks. Raises DecompressionLimit if they exceed 4 times the output limit."""
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
    """Fill the window, and return whether it is full."""
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


@dataclass(frozen=True, slots=True)
class Conditions:
    """The values of the Range and conditional request headers; empty if absent."""

    range: str = ""
    if_range: str = ""
    if_none_match: str = ""
    if_modified_since: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    """The validators that identify a file's current content."""

    tag: str
    """A strong entity tag, in quotes."""
    modified_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes [start, start + length) of a file that has `size_bytes` bytes in total."""

    start: int
    length: int
    size_bytes: int
    is_whole: bool
    """Whether the response is the whole file (200). False for a range (206), even if it covers all bytes."""

    @property
    def content_range(self) -> str:
        return f"bytes {self.start}-{self.start + self.length - 1}/{self.size_bytes}"


def is_unchanged(conditions: Conditions, version: Version) -> bool:
    """Return whether the client already has this version. If-None-Match takes precedence over If-Modified-Since."""
    if conditions.if_none_match:
        if conditions.if_none_match.strip() == "*":
            return True
        return version.tag in _ENTITY_TAG.findall(conditions.if_none_match)
    return _matches_date(conditions.if_modified_since, version, or_later=True)


def wants_part(conditions: Conditions, version: Version) -> bool:
    """Return whether the client requests a byte range, and If-Range, if present, matches this version."""
    if conditions.range.strip()[: len(_UNIT)].lower() != _UNIT:
        return False
    if_range = conditions.if_range.strip()
    if not if_range:
        return True
    # If-Range only matches a strong entity tag or exactly the same date.
    return if_range == version.tag if if_range.endswith('"') else _matches_date(if_range, version)


def requested_part(conditions: Conditions, version: Version, size: int) -> Part:
    """Return which part of a file of `size` bytes to send.

    This is the requested range, or the whole file if no range applies to this version or several ranges are requested.
    Raises RangeNotSatisfiable.
    """
    if not wants_part(conditions, version):
        return Part(0, size, size, is_whole=True)
    ranges = [_bounds(text.strip(" \t"), size) for text in conditions.range.strip()[len(_UNIT) :].split(",")]
    if len(ranges) > 1:
        return Part(0, size, size, is_whole=True)
    first, last = ranges[0]
    if first >= size:
        raise RangeNotSatisfiable(size)
    return Part(first, min(last, size - 1) - first + 1, size, is_whole=False)


async def extract_part(pieces: AsyncGenerator[bytes], part: Part) -> AsyncGenerator[bytes]:
    """Yield the bytes of `part` from a stream of the whole file. The bytes before the part are read and discarded."""
    position, beyond = 0, part.start + part.length
    async with aclosing(pieces):
        async for piece in pieces:
            wanted = piece[max(part.start - position, 0) : max(beyond - position, 0)]
            position += len(piece)
            if wanted:
                yield wanted
            if position >= beyond:
                return


def _bounds(text: str, size: int) -> tuple[int, int]:
    """Parse one byte range into its first and last positions. A first position of `size` or more is past the end.
    Raises RangeNotSatisfiable if the range is malformed.
    """
    match = _RANGE.fullmatch(text)
    if match is None or text == "-":
        raise RangeNotSatisfiable(size)
    first, last = match.groups()
    if not first:
        count = _number(last)
        return (max(size - count, 0), size - 1) if count else (size, size)
    if last and _number(last) < _number(first):
        raise RangeNotSatisfiable(size)
    return _number(first), _number(last) if last else size


def _number(digits: str) -> int:
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) < 19 else _MAX_POSITION


def _matches_date(http_date: str, version: Version, *, or_later: bool = False) -> bool:
    """Return whether the content was last modified in exactly that second or, if `or_later` is set, in that second or
    earlier. Return False if the date is invalid or the modification time is unknown.
    """
    if not http_date or version.modified_at is None:
        return False
    try:
        date = parsedate_to_datetime(http_date)
    except (ValueError, TypeError, OverflowError):
        return False
    date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    changed = version.modified_at.replace(microsecond=0)
    return changed <= date if or_later else changed == date


_OPERATION = "storage.download"
_TAG_TEXT = re.compile(r"[\x21\x23-\x7e]{1,200}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class FileDownload:
    """A file that the caller may download. `part` is None if the client already has the current version."""

    location: Location
    status: FileStatus
    part: Part | None


class FileDownloads:
    """Finds files and sends their bytes. Records an audit event for every download, including denied ones."""

    def __init__(self, stores: Stores, streams: Streams, audit: StorageAudit, *, enabled: bool) -> None:
        self._stores = stores
        self._streams = streams
        self._audit = audit
        self._enabled = enabled

    async def find(
        self, caller: Caller, path: StoragePath, conditions: Conditions, *, headers_only: bool = False
    ) -> FileDownload:
        """Return the file and the part to send, without reading any bytes. If `headers_only` is set, errors are not
        audited.

        Raises download_disabled, NotAFile, SymlinkNotFollowed, PathNotFound, RangeNotSatisfiable.
        """
        try:
            return await self._find(caller, path, conditions)
        except QueryServerError as error:
            if not headers_only:
                self._audit.record(caller, _OPERATION, path, error.code)
            raise

    async def _find(self, caller: Caller, path: StoragePath, conditions: Conditions) -> FileDownload:
        self._require_right(caller.user)
        location = self._stores.location(caller, path)
        status = await location.storage.stat(path.path)
        if status.kind is EntryKind.LINK:
            raise SymlinkNotFollowed(f"{path} is a symbolic link; symbolic links are not followed.")
        if not status.is_file:
            raise NotAFile(f"{path} is not a file.")
        version = Version(entity_tag(status), status.modified_at)
        part = None if is_unchanged(conditions, version) else requested_part(conditions, version, status.size_bytes)
        return FileDownload(location, status, part)

    def _require_right(self, user: User) -> None:
        if not self._enabled or not user.may(DOWNLOAD):
            raise download_disabled("Downloads are disabled for your account.")

    async def body(self, caller: Caller, found: FileDownload, part: Part) -> AsyncGenerator[bytes]:
        """Yield a part's bytes. Ends without an error only if the store delivered all bytes and reported success.

        Raises TooManyStreams, NotAFile, EntryChanged, StorageError, and the errors of `StreamSlot.recheck`.
        """

        def require(user: User) -> None:
            self._require_right(user)
            self._stores.require_rights(caller, user, found.location.path.scheme)

        length = None if part.is_whole else part.length
        outcome, sent = "interrupted", 0
        try:
            with self._streams.slot(caller.user) as slot:
                path = found.location.path.path
                stored = found.location.storage.read(path, offset=part.start, length=length, version=found.status)
                async with aclosing(stored) as pieces:
                    async for piece in _check_length(pieces, part.length):
                        await slot.recheck(require)
                        sent += len(piece)
                        if sent == part.length:
                            outcome = "ok"
                        yield piece
            outcome = "ok"
        except QueryServerError as error:
            outcome = error.code
            raise
        finally:
            self._audit.record(caller, _OPERATION, found.location.path, outcome, size_bytes=sent)


async def _check_length(pieces: AsyncIterator[bytes], length: int) -> AsyncGenerator[bytes]:
    """Yield exactly `length` bytes. Holds back the last chunk until the store's stream has ended without an error.
    Raises StorageError if the store returns more or fewer bytes.
    """
    left = length
    last = b""
    async for piece in pieces:
        if len(piece) > left:
            raise StorageError("The store returned more bytes than the size of the file.")
        left -= len(piece)
        if not piece:
            continue
        if left:
            yield piece
        else:
            last = piece
    if left:
        raise StorageError("The store returned fewer bytes than the size of the file.")
    if last:
        yield last


def entity_tag(status: FileStatus) -> str:
    """Return a strong entity tag in quotes: the store's tag if it can be sent as it is, otherwise one built from the
    store's tag, file id, size and modification time in milliseconds.
    """
    if _TAG_TEXT.fullmatch(status.tag):
        return f'"{status.tag}"'
    changed = 0 if status.modified_at is None else (status.modified_at - _EPOCH) // timedelta(milliseconds=1)
    seed = f"{status.tag}-{status.file_id}" if status.tag else status.file_id
    known = seed if not seed or _TAG_TEXT.fullmatch(seed) else sha256(seed.encode("utf-8", "replace")).hexdigest()
    return f'"{known}-{status.size_bytes}-{changed}"'


UNKNOWN_MEDIA_TYPE = "application/octet-stream"

# The operating system's tables are ignored, so that media types are the same on every machine.
_TYPES = mimetypes.MimeTypes(filenames=())
_EXTRA_MEDIA_TYPES: Mapping[str, str] = MappingProxyType(
    {
        ".avro": "application/avro",
        ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        ".js": "text/javascript",
        ".jsonl": "application/x-ndjson",
        ".md": "text/markdown",
        ".mjs": "text/javascript",
        ".ndjson": "application/x-ndjson",
        ".odp": "application/vnd.oasis.opendocument.presentation",
        ".ods": "application/vnd.oasis.opendocument.spreadsheet",
        ".odt": "application/vnd.oasis.opendocument.text",
        ".orc": "application/vnd.apache.orc",
        ".parquet": "application/vnd.apache.parquet",
        ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        ".webp": "image/webp",
        ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        ".yaml": "application/yaml",
        ".yml": "application/yaml",
    }
)
_PACKED: Mapping[str, str] = MappingProxyType(
    {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}
)
_HARMLESS = ("video/", "audio/", "image/")
_HARMLESS_DOCUMENTS = (
    "application/pdf",
    "application/msword",
    "application/vnd.ms-",
    "application/vnd.openxmlformats-officedocument.",
    "application/vnd.oasis.opendocument.",
)
# attr-char in RFC 8187, except letters, digits and the characters that `quote` leaves unchanged.
_PLAIN = "!#$&+-.^_`|~"
_UNQUOTED = frozenset(b'"\\%')


def media_type_of(name: str) -> str:
    """Return the media type for the file name's extension. Compressed files are sent as stored, so `a.csv.gz` has the
    media type of gzip.
    """
    dot = name.rfind(".")
    extension = name[dot:].lower() if dot > 0 else ""
    if extension in _EXTRA_MEDIA_TYPES:
        return _EXTRA_MEDIA_TYPES[extension]
    if (packed := _TYPES.encodings_map.get(extension)) is not None:
        return _PACKED.get(packed, UNKNOWN_MEDIA_TYPE)
    return _TYPES.types_map[True].get(extension, UNKNOWN_MEDIA_TYPE)


def is_harmless(media_type: str) -> bool:
    """Return whether browsers may display this type inline: it cannot run scripts in the server's origin (Contract
    storage 5.5).
    """
    if media_type.startswith("image/svg"):
        return False
    return media_type.startswith(_HARMLESS) or media_type.startswith(_HARMLESS_DOCUMENTS)


def content_disposition(name: str, *, is_inline: bool = False) -> str:
    """Return a Content-Disposition value with `filename` and `filename*` (RFC 6266). The name is escaped so that it can
    end neither the quoted string nor the header line.
    """
    raw = name.encode("utf-8", "replace")
    plain = "".join(chr(byte) if 0x20 <= byte < 0x7F and byte not in _UNQUOTED else "_" for byte in raw)
    kind = "inline" if is_inline else "attachment"
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(raw, safe=_PLAIN)}"
