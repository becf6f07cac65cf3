"""gzip, bzip2 and snappy, unpacked from the beginning of a file, piece by piece; and the part of it that is shown.

Snappy comes in frames, in Hadoop's blocks or as one raw block; cramjam unpacks the blocks and compares check sums.
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
"""Largest piece that an unpacker gives: what a bomb can make of memory at a time."""

LOOK_BACK_BYTES = 4096
"""How much before the requested part is kept: it shows whether a character is cut at its start."""
LOOK_AHEAD_BYTES = 8
"""How much behind it: the rest of a character, and whether the stream goes on."""
START_BYTES = 4
"""How much of the beginning of the stream is kept: a byte order mark."""

_GZIP = b"\x1f\x8b"
_BZ2 = b"BZh"
_AVRO = b"Obj\x01"
_PARQUET = b"PAR1"
_SNAPPY_NAMES = (".snappy", ".sz")

FRAMED_START = b"\xff\x06\x00\x00sNaPpY"
"""A stream identifier chunk (framing_format.txt of snappy)."""

# A copy of three bytes stands for at most 64; a block can grow by a sixth and 32 bytes (snappy.h: MaxCompressedLength).
_MOST_GROWTH = 22
_MAX_LENGTH = 2**32 - 1
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_FORM_BYTES = 4096
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
    """How much of the beginning of a file `detect` needs: raw snappy has no mark, so more of it must fit."""
    return 4096 if name.lower().endswith(_SNAPPY_NAMES) else 16


def detect(name: str, head: bytes, size_bytes: int) -> Codec:
    """What a file called `name` is packed with, by its name and its first `head_bytes(name)` bytes."""
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
    """`FRAMED`: chunks with check sums, `.sz`. `HADOOP`: blocks with lengths, as Hadoop's codec writes. `RAW`: one."""

    FRAMED = "framed"
    HADOOP = "hadoop"
    RAW = "raw"


def snappy_form(head: bytes, size_bytes: int) -> SnappyForm | None:
    """Which form a file of `size_bytes` that begins with `head` has; None: it holds no snappy data."""
    if head.startswith(FRAMED_START):
        return SnappyForm.FRAMED
    if is_raw_start(head, size_bytes):
        return SnappyForm.RAW
    return SnappyForm.HADOOP if _is_hadoop_start(head, size_bytes) else None


def is_raw_start(head: bytes, size_bytes: int) -> bool:
    """Whether a raw block of `size_bytes` can begin so: its length, then literals and copies of what came before."""
    preamble = raw_length(head)
    if preamble is None:
        return False
    length, begin = preamble
    if size_bytes > 32 + length + length // 6 or length > _MOST_GROWTH * size_bytes:
        return False
    place, made = begin, 0
    while (step := _step(head, place)) is not None:
        size, count, distance = step
        place, made = place + size, made + count
        if place > size_bytes or made > length or not 0 <= distance <= made - count:
            return False
    return made == length if place == size_bytes else made < length


def _step(head: bytes, place: int) -> tuple[int, int, int] | None:
    """One element: its bytes, the bytes that it makes, how far back it copies from (0: a literal).

    A copy from nowhere is -1. None where the head ends before the end of the element.
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
    """How long the data of a raw block are, and how many bytes hold this length; None: this is no length."""
    length = 0
    for place, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (length, place + 1) if length <= _MAX_LENGTH else None
    return None


def _is_hadoop_start(head: bytes, size_bytes: int) -> bool:
    """Length of the data of a block, length of its first raw part, the part: numbers of 32 bits, big end first."""
    if len(head) < 8:
        return head == bytes(4) and size_bytes == 4
    whole, part = int.from_bytes(head[:4]), int.from_bytes(head[4:8])
    if whole == 0 or part == 0 or part > size_bytes - 8:
        return False
    preamble = raw_length(head[8:])
    return preamble is not None and 0 < preamble[0] <= whole and is_raw_start(head[8 : 8 + part], part)


class StreamsUnpacker:
    """Members of gzip, or streams of bzip2. `padding`: what may stand behind one; zeros, as tapes leave them."""

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
                raise DecompressionFailed(f"The {self._name} data are broken.") from None
            if not self._stream.eof:
                return
            piece, self._stream = self._stream.unused_data, self._begin()
            self._begun = False
            self._ended_streams += 1

    def end(self) -> Iterator[bytes]:
        if self._begun or not self._ended_streams:
            raise DecompressionFailed(f"The {self._name} data end too early.")
        return iter(())


def _inflated(member: Any, piece: bytes) -> Iterator[bytes]:
    while True:
        made = member.decompress(piece, OUTPUT_BYTES)
        if made:
            yield made
        piece = member.unconsumed_tail
        if member.eof or (not piece and len(made) < OUTPUT_BYTES):
            return


def _bunzipped(stream: bz2.BZ2Decompressor, piece: bytes) -> Iterator[bytes]:
    while True:
        if made := stream.decompress(piece, OUTPUT_BYTES):
            yield made
        piece = b""
        if stream.eof or stream.needs_input:
            return


class SnappyUnpacker:
    """Detects the form by the first bytes. `size_bytes` is that of the file."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self._size = size_bytes
        self._limit = limit_bytes
        self._form: SnappyForm | None = None
        self._waiting = bytearray()
        self._left_of_block = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        self._waiting += piece
        if self._form is None:
            if len(self._waiting) < min(self._size, _FORM_BYTES):
                return
            self._form = snappy_form(bytes(self._waiting[:_FORM_BYTES]), self._size)
        match self._form:
            case SnappyForm.FRAMED:
                yield from self._frames()
            case SnappyForm.HADOOP:
                yield from self._blocks()
            case SnappyForm.RAW:
                pass
            case None:
                raise DecompressionFailed("The file holds no snappy data.")

    def end(self) -> Iterator[bytes]:
        if self._form is SnappyForm.RAW:
            yield from _cut(_raw_block(bytes(self._waiting), self._limit))
        elif self._waiting or self._left_of_block or self._form is None:
            raise DecompressionFailed("The snappy data end too early.")

    def _frames(self) -> Iterator[bytes]:
        """Chunks: a kind, a length of three bytes with the small end first, the content."""
        while len(self._waiting) >= 4:
            kind, length = self._waiting[0], int.from_bytes(self._waiting[1:4], "little")
            if len(self._waiting) < 4 + length:
                return
            content = bytes(self._waiting[4 : 4 + length])
            del self._waiting[: 4 + length]
            if kind in {_COMPRESSED, _PLAIN}:
                # The data of one chunk behind their check sum: at most 64 KiB.
                chunk = FRAMED_START + bytes([kind]) + len(content).to_bytes(3, "little") + content
                try:
                    yield bytes(cramjam.snappy.decompress(chunk))
                except cramjam.DecompressionError:
                    raise DecompressionFailed("The snappy data are broken: a check sum is wrong.") from None
            elif kind < _FIRST_SKIPPABLE or (kind == _IDENTIFIER and content != FRAMED_START[4:]):
                raise DecompressionFailed("The snappy data are broken.")

    def _blocks(self) -> Iterator[bytes]:
        """Blocks of any number of raw parts, each behind its length."""
        while len(self._waiting) >= 4:
            number = _HADOOP_NUMBER.unpack_from(self._waiting)[0]
            if not self._left_of_block:
                self._left_of_block = number
                del self._waiting[:4]
                continue
            if number > self._size:
                raise DecompressionFailed("The snappy data are broken.")
            if len(self._waiting) < 4 + number:
                return
            part = _raw_block(bytes(self._waiting[4 : 4 + number]), self._limit)
            del self._waiting[: 4 + number]
            if not 0 < len(part) <= self._left_of_block:
                raise DecompressionFailed("The snappy data are broken.")
            self._left_of_block -= len(part)
            yield from _cut(part)


Unpacker: TypeAlias = StreamsUnpacker | SnappyUnpacker
"""Turns a packed file into the bytes to be shown, in pieces of some 64 KiB. Work for a thread, one call at a time.

`feed` and `end` raise DecompressionFailed, DecompressionLimit; `end` also when the file ends too early.
"""


def unpacker(codec: Codec, *, size_bytes: int, limit_bytes: int) -> Unpacker | None:
    """A new unpacker for a file of `size_bytes`; None where there is none. `limit_bytes`: the largest single block."""
    match codec:
        case Codec.GZIP:
            return StreamsUnpacker("gzip", lambda: zlib.decompressobj(_GZIP_WINDOW), _inflated, padding=b"\0")
        case Codec.BZ2:
            return StreamsUnpacker("bzip2", bz2.BZ2Decompressor, _bunzipped)
        case Codec.SNAPPY:
            return SnappyUnpacker(size_bytes, limit_bytes)
        case Codec.AVRO | Codec.PARQUET | Codec.NONE:
            return None


def _raw_block(block: bytes, limit_bytes: int) -> bytes:
    """The data of one raw block. Raises DecompressionFailed, DecompressionLimit (by its own length)."""
    preamble = raw_length(block)
    if preamble is None:
        raise DecompressionFailed("The snappy data are broken.")
    length = preamble[0]
    if length > limit_bytes:
        raise DecompressionLimit(f"A block of the file unpacks to more than {limit_bytes} bytes.")
    if length == 0:
        return b""
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError:
        raise DecompressionFailed("The snappy data are broken.") from None


def _cut(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), OUTPUT_BYTES):
        yield content[start : start + OUTPUT_BYTES]


@dataclass(frozen=True, slots=True)
class ByteExcerpt:
    """Bytes [offset, offset + length) of a stream, and what stands around them."""

    offset: int
    length: int
    start: bytes
    before: bytes
    content: bytes
    """The requested bytes, and up to LOOK_AHEAD_BYTES behind them."""

    @property
    def asked(self) -> bytes:
        """The requested bytes; fewer at the end of the stream."""
        return self.content[: self.length]

    @property
    def is_last(self) -> bool:
        """Whether the stream ends with the requested bytes."""
        return len(self.content) <= self.length


class Window:
    """Takes a stream piece by piece. Holds the requested bytes and little more, however long the stream is."""

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
        """The next bytes. Raises DecompressionLimit when the requested bytes lie behind the limit."""
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
                f"Showing this part of the file would unpack more than {self._limit} bytes. Ask for an earlier part."
            )

    def excerpt(self) -> ByteExcerpt:
        return ByteExcerpt(self._offset, self._length, self._start, bytes(self._before), bytes(self._content))
