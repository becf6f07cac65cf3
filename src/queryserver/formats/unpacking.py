"""Decompresses gzip, bzip2 and Snappy files as streams, and extracts the requested range.

Snappy data is divided into frames or Hadoop blocks, or is one raw block. cramjam decompresses the blocks and verifies
checksums.
"""

import bz2
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import cramjam

from queryserver.errors.files import DecompressionFailed, DecompressionLimit

OUTPUT_BYTES = 64 * 1024
"""Maximum size of a decompressed piece. This limits the memory that a decompression bomb can occupy at a time."""

LOOK_BACK_BYTES = 4096
"""Number of bytes kept before the requested range, to detect a character that is split at its start."""
LOOK_AHEAD_BYTES = 8
"""Number of bytes kept after the requested range, to complete a character and to detect the end of the stream."""
START_BYTES = 4
"""Number of bytes kept from the beginning of the stream, for a byte order mark."""

_GZIP = b"\x1f\x8b"
_BZ2 = b"BZh"
_AVRO = b"Obj\x01"
_PARQUET = b"PAR1"
_SNAPPY_NAMES = (".snappy", ".sz")

FRAMED_START = b"\xff\x06\x00\x00sNaPpY"
"""The stream identifier chunk (framing_format.txt of Snappy)."""

# A three-byte copy element produces at most 64 bytes. Compression can enlarge a block by a sixth plus 32 bytes
# (snappy.h: MaxCompressedLength).
_MAX_EXPANSION = 22
_MAX_LENGTH = 2**32 - 1
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_DETECTION_BYTES = 4096
_HADOOP_NUMBER = struct.Struct(">I")
_COMPRESSED, _PLAIN, _FIRST_SKIPPABLE, _IDENTIFIER = 0x00, 0x01, 0x80, 0xFF


class Codec(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    BZ2 = "bz2"
    AVRO = "avro"
    PARQUET = "parquet"
    SNAPPY = "snappy"


def head_bytes(name: str) -> int:
    """Return how many leading bytes `detect_codec` needs. Raw Snappy has no signature, so its detection needs more."""
    return 4096 if name.lower().endswith(_SNAPPY_NAMES) else 16


def detect_codec(name: str, head: bytes, size_bytes: int) -> Codec:
    """Detect the compression codec of a file from its name and its first `head_bytes(name)` bytes."""
    lowered = name.lower()
    if head.startswith(_PARQUET):
        return Codec.PARQUET
    if lowered.endswith(".gz") and head.startswith(_GZIP):
        return Codec.GZIP
    if lowered.endswith((".bz2", ".bzip2")) and head.startswith(_BZ2):
        return Codec.BZ2
    if lowered.endswith(".avro") and head.startswith(_AVRO):
        return Codec.AVRO
    if lowered.endswith(_SNAPPY_NAMES) and snappy_form(head, size_bytes) is not None:
        return Codec.SNAPPY
    return Codec.NONE


class SnappyForm(StrEnum):
    """Forms of Snappy files: chunks with checksums (`.sz`), blocks written by Hadoop, or a single raw block."""

    FRAMED = "framed"
    HADOOP = "hadoop"
    RAW = "raw"


def snappy_form(head: bytes, size_bytes: int) -> SnappyForm | None:
    """Detect the form of a Snappy file of `size_bytes` that begins with `head`. Return None if it does not contain
    Snappy data.
    """
    if head.startswith(FRAMED_START):
        return SnappyForm.FRAMED
    if is_raw_start(head, size_bytes):
        return SnappyForm.RAW
    return SnappyForm.HADOOP if _is_hadoop_start(head, size_bytes) else None


def is_raw_start(head: bytes, size_bytes: int) -> bool:
    """Return whether a raw block of `size_bytes` can begin with `head`: a length, then literals and copy elements."""
    preamble = raw_length(head)
    if preamble is None:
        return False
    length, begin = preamble
    if size_bytes > 32 + length + length // 6 or length > _MAX_EXPANSION * size_bytes:
        return False
    place, made = begin, 0
    while (element := _next_element(head, place)) is not None:
        size, count, distance = element
        place, made = place + size, made + count
        if place > size_bytes or made > length or not 0 <= distance <= made - count:
            return False
    return made == length if place == size_bytes else made < length


def _next_element(head: bytes, place: int) -> tuple[int, int, int] | None:
    """Read one element: its size, the number of bytes it produces, and the distance of a copy (0 for a literal).

    The distance is -1 for a copy with the invalid distance 0. Return None if the head ends within the element.
    """
    if place >= len(head):
        return None
    tag, kind = head[place] >> 2, head[place] & 0b11
    if kind == 0:
        further = max(tag - 59, 0)
        count = 1 + (int.from_bytes(head[place + 1 : place + 1 + further], "little") if further else tag)
        return (1 + further + count, count, 0) if place + 1 + further <= len(head) else None
    further = (1, 2, 4)[kind - 1]
    if place + 1 + further > len(head):
        return None
    low = int.from_bytes(head[place + 1 : place + 1 + further], "little")
    distance, count = (low | tag >> 3 << 8, 4 + (tag & 0b111)) if kind == 1 else (low, tag + 1)
    return 1 + further, count, distance or -1


def raw_length(block: bytes) -> tuple[int, int] | None:
    """Return the uncompressed length of a raw block and the size of its varint, or None if the varint is invalid."""
    length = 0
    for place, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (length, place + 1) if length <= _MAX_LENGTH else None
    return None


def _is_hadoop_start(head: bytes, size_bytes: int) -> bool:
    """Return whether `head` begins a Hadoop block: 32-bit big-endian lengths of the block and of its first raw part."""
    if len(head) < 8:
        return head == bytes(4) and size_bytes == 4
    whole, part = int.from_bytes(head[:4]), int.from_bytes(head[4:8])
    if whole == 0 or part == 0 or part > size_bytes - 8:
        return False
    preamble = raw_length(head[8:])
    return preamble is not None and 0 < preamble[0] <= whole and is_raw_start(head[8 : 8 + part], part)


class StreamsUnpacker:
    """Decompresses gzip members or bzip2 streams. Bytes in `padding` may follow a member, for example the zeros that
    fill a tape block.
    """

    def __init__(
        self, name: str, begin: Callable[[], Any], unpack: Callable[[Any, bytes], Iterator[bytes]], padding: bytes = b""
    ) -> None:
        self._name = name
        self._begin = begin
        self._unpack = unpack
        self._padding = padding
        self._stream = begin()
        self._begun = False
        self._ended_streams = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        while piece:
            if not self._begun and self._ended_streams:
                piece = piece.lstrip(self._padding)
            if not piece:
                return
            self._begun = True
            try:
                yield from self._unpack(self._stream, piece)
            except (zlib.error, OSError, ValueError):
                raise DecompressionFailed(f"The {self._name} data is corrupt.") from None
            if not self._stream.eof:
                return
            piece, self._stream = self._stream.unused_data, self._begin()
            self._begun = False
            self._ended_streams += 1

    def end(self) -> Iterator[bytes]:
        if self._begun or not self._ended_streams:
            raise DecompressionFailed(f"The {self._name} data is truncated.")
        return iter(())


def _inflate(member: Any, piece: bytes) -> Iterator[bytes]:
    while True:
        made = member.decompress(piece, OUTPUT_BYTES)
        if made:
            yield made
        piece = member.unconsumed_tail
        if member.eof or (not piece and len(made) < OUTPUT_BYTES):
            return


def _bunzip2(stream: bz2.BZ2Decompressor, piece: bytes) -> Iterator[bytes]:
    while True:
        if made := stream.decompress(piece, OUTPUT_BYTES):
            yield made
        piece = b""
        if stream.eof or stream.needs_input:
            return


class SnappyUnpacker:
    """Decompresses a Snappy file of `size_bytes`. The form is detected from the first bytes."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self._size = size_bytes
        self._limit = limit_bytes
        self._form: SnappyForm | None = None
        self._waiting = bytearray()
        self._left_of_block = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        self._waiting += piece
        if self._form is None:
            if len(self._waiting) < min(self._size, _DETECTION_BYTES):
                return
            self._form = snappy_form(bytes(self._waiting[:_DETECTION_BYTES]), self._size)
        match self._form:
            case SnappyForm.FRAMED:
                yield from self._frames()
            case SnappyForm.HADOOP:
                yield from self._blocks()
            case SnappyForm.RAW:
                pass
            case None:
                raise DecompressionFailed("The file does not contain Snappy data.")

    def end(self) -> Iterator[bytes]:
        if self._form is SnappyForm.RAW:
            yield from _chunks(_raw_block(bytes(self._waiting), self._limit))
        elif self._waiting or self._left_of_block or self._form is None:
            raise DecompressionFailed("The Snappy data is truncated.")

    def _frames(self) -> Iterator[bytes]:
        """Decompress chunks. A chunk consists of a kind, a length (three bytes, little-endian) and the content."""
        while len(self._waiting) >= 4:
            kind, length = self._waiting[0], int.from_bytes(self._waiting[1:4], "little")
            if len(self._waiting) < 4 + length:
                return
            content = bytes(self._waiting[4 : 4 + length])
            del self._waiting[: 4 + length]
            if kind in {_COMPRESSED, _PLAIN}:
                # cramjam verifies the checksum of the chunk, which has at most 64 KiB of data.
                chunk = FRAMED_START + bytes([kind]) + len(content).to_bytes(3, "little") + content
                try:
                    yield bytes(cramjam.snappy.decompress(chunk))
                except cramjam.DecompressionError:
                    raise DecompressionFailed("The Snappy data is corrupt: a checksum does not match.") from None
            elif kind < _FIRST_SKIPPABLE or (kind == _IDENTIFIER and content != FRAMED_START[4:]):
                raise DecompressionFailed("The Snappy data is corrupt.")

    def _blocks(self) -> Iterator[bytes]:
        """Decompress Hadoop blocks. A block has any number of raw parts, each preceded by its length."""
        while len(self._waiting) >= 4:
            number = _HADOOP_NUMBER.unpack_from(self._waiting)[0]
            if not self._left_of_block:
                self._left_of_block = number
                del self._waiting[:4]
                continue
            if number > self._size:
                raise DecompressionFailed("The Snappy data is corrupt.")
            if len(self._waiting) < 4 + number:
                return
            part = _raw_block(bytes(self._waiting[4 : 4 + number]), self._limit)
            del self._waiting[: 4 + number]
            if not 0 < len(part) <= self._left_of_block:
                raise DecompressionFailed("The Snappy data is corrupt.")
            self._left_of_block -= len(part)
            yield from _chunks(part)


Unpacker: TypeAlias = StreamsUnpacker | SnappyUnpacker
"""Decompresses a file in pieces of about 64 KiB. Its methods block and must not be called concurrently.

`feed` and `end` raise DecompressionFailed, DecompressionLimit; for a truncated file, `end` raises DecompressionFailed.
"""


def unpacker(codec: Codec, *, size_bytes: int, limit_bytes: int) -> Unpacker | None:
    """Create an unpacker for a file of `size_bytes`, or return None if this module does not decompress the codec.

    `limit_bytes` limits the decompressed size of each Snappy block.
    """
    match codec:
        case Codec.GZIP:
            return StreamsUnpacker("gzip", lambda: zlib.decompressobj(_GZIP_WINDOW), _inflate, padding=b"\0")
        case Codec.BZ2:
            return StreamsUnpacker("bzip2", bz2.BZ2Decompressor, _bunzip2)
        case Codec.SNAPPY:
            return SnappyUnpacker(size_bytes, limit_bytes)
        case Codec.AVRO | Codec.PARQUET | Codec.NONE:
            return None


def _raw_block(block: bytes, limit_bytes: int) -> bytes:
    """Decompress one raw block. Raises DecompressionFailed, and DecompressionLimit if its length exceeds
    `limit_bytes`.
    """
    preamble = raw_length(block)
    if preamble is None:
        raise DecompressionFailed("The Snappy data is corrupt.")
    length = preamble[0]
    if length > limit_bytes:
        raise DecompressionLimit(f"A block of the file decompresses to more than {limit_bytes} bytes.")
    if length == 0:
        return b""
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError:
        raise DecompressionFailed("The Snappy data is corrupt.") from None


def _chunks(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), OUTPUT_BYTES):
        yield content[start : start + OUTPUT_BYTES]


@dataclass(frozen=True, slots=True)
class ByteExcerpt:
    """The bytes [offset, offset + length) of a stream, and some of the bytes around them."""

    offset: int
    length: int
    start: bytes
    before: bytes
    content: bytes
    """The requested bytes, followed by up to LOOK_AHEAD_BYTES bytes."""

    @property
    def requested(self) -> bytes:
        """The requested bytes, which are fewer than `length` at the end of the stream."""
        return self.content[: self.length]

    @property
    def is_last(self) -> bool:
        """Whether the stream ends with the requested bytes."""
        return len(self.content) <= self.length


class Window:
    """Extracts an excerpt from a stream, holding little more than the requested bytes in memory."""

    def __init__(self, offset: int, length: int, limit_bytes: int) -> None:
        self._offset = offset
        self._length = length
        self._limit = limit_bytes
        self._passed = 0
        self._start = b""
        self._before = bytearray()
        self._content = bytearray()

    @property
    def is_full(self) -> bool:
        return self._passed >= self._offset + self._length + LOOK_AHEAD_BYTES

    def take(self, piece: bytes) -> None:
        """Process the next bytes. Raises DecompressionLimit if the requested bytes lie beyond the limit."""
        if len(self._start) < START_BYTES:
            self._start = (self._start + piece[:START_BYTES])[:START_BYTES]
        skipped = min(max(self._offset - self._passed, 0), len(piece))
        if skipped:
            self._before += piece[max(skipped - LOOK_BACK_BYTES, 0) : skipped]
            del self._before[: max(len(self._before) - LOOK_BACK_BYTES, 0)]
        wanted = self._length + LOOK_AHEAD_BYTES - len(self._content)
        self._content += piece[skipped : skipped + wanted]
        self._passed += len(piece)
        if self._passed > self._limit and self._offset + self._length > self._limit:
            raise DecompressionLimit(
                f"Displaying this part of the file requires decompressing more than {self._limit} bytes."
                " Request an earlier part."
            )

    def excerpt(self) -> ByteExcerpt:
        return ByteExcerpt(self._offset, self._length, self._start, bytes(self._before), bytes(self._content))
