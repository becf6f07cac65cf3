"""gzip, bzip2 and snappy: files that are unpacked from their beginning, piece by piece.

Snappy comes in frames, in Hadoop's blocks or as one raw block; cramjam unpacks the blocks and compares check sums.
"""

import bz2
import struct
import zlib
from collections.abc import Iterator

import cramjam

from queryserver.domain.errors.files import DecompressionFailed, DecompressionLimit
from queryserver.formats.unpacking.codecs import (
    FRAMED_START,
    OUTPUT_BYTES,
    Codec,
    SnappyForm,
    Unpacker,
    raw_length,
    snappy_form,
)

_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_FORM_BYTES = 4096
_HADOOP_NUMBER = struct.Struct(">I")
_COMPRESSED, _PLAIN, _FIRST_SKIPPABLE, _IDENTIFIER = 0x00, 0x01, 0x80, 0xFF


def unpacker(codec: Codec, *, size_bytes: int, limit_bytes: int) -> Unpacker | None:
    """A new unpacker for a file of `size_bytes`; None where there is none. `limit_bytes`: the largest single block."""
    match codec:
        case Codec.GZIP:
            return GzipUnpacker()
        case Codec.BZ2:
            return Bz2Unpacker()
        case Codec.SNAPPY:
            return SnappyUnpacker(size_bytes, limit_bytes)
        case Codec.AVRO | Codec.PARQUET | Codec.NONE:
            return None


class GzipUnpacker:
    """Members of gzip; zeros behind the last one are padding, as tapes and some writers leave it."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._begun = False
        self._members = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """What the next piece gives."""
        while piece:
            if not self._begun and self._members:
                piece = piece.lstrip(b"\0")
            if not piece:
                return
            self._begun = True
            yield from self._of_member(piece)
            if not self._member.eof:
                return
            piece = self._member.unused_data
            self._member = zlib.decompressobj(_GZIP_WINDOW)
            self._begun = False
            self._members += 1

    def end(self) -> Iterator[bytes]:
        """Nothing: all came at once. Raises DecompressionFailed within a member."""
        if self._begun or not self._members:
            raise DecompressionFailed("The gzip data end too early.")
        return iter(())

    def _of_member(self, piece: bytes) -> Iterator[bytes]:
        try:
            while True:
                made = self._member.decompress(piece, OUTPUT_BYTES)
                if made:
                    yield made
                piece = self._member.unconsumed_tail
                if self._member.eof or (not piece and len(made) < OUTPUT_BYTES):
                    return
        except zlib.error:
            raise DecompressionFailed("The gzip data are broken.") from None


class Bz2Unpacker:
    """Streams of bzip2."""

    def __init__(self) -> None:
        self._stream = bz2.BZ2Decompressor()
        self._begun = False
        self._streams = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """What the next piece gives."""
        while piece:
            self._begun = True
            yield from self._of_stream(piece)
            if not self._stream.eof:
                return
            piece = self._stream.unused_data
            self._stream = bz2.BZ2Decompressor()
            self._begun = False
            self._streams += 1

    def end(self) -> Iterator[bytes]:
        """Nothing: all came at once. Raises DecompressionFailed within a stream."""
        if self._begun or not self._streams:
            raise DecompressionFailed("The bzip2 data end too early.")
        return iter(())

    def _of_stream(self, piece: bytes) -> Iterator[bytes]:
        try:
            while True:
                if made := self._stream.decompress(piece, OUTPUT_BYTES):
                    yield made
                piece = b""
                if self._stream.eof or self._stream.needs_input:
                    return
        except (OSError, ValueError):
            raise DecompressionFailed("The bzip2 data are broken.") from None


class SnappyUnpacker:
    """Finds out which of the forms it is by the first bytes. `size_bytes` is that of the file."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        self._size = size_bytes
        self._limit = limit_bytes
        self._form: SnappyForm | None = None
        self._waiting = bytearray()
        self._left_of_block = 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """What the next piece gives."""
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
        """The data of a raw block. Raises DecompressionFailed when the file ends within a frame or block."""
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
                yield _frame(kind, content)
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


def _raw_block(block: bytes, limit_bytes: int) -> bytes:
    """The data of one raw block. Raises DecompressionFailed, DecompressionLimit (it says that it is longer)."""
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


def _frame(kind: int, content: bytes) -> bytes:
    """The data of one chunk, behind their check sum: at most 64 KiB."""
    chunk = FRAMED_START + bytes([kind]) + len(content).to_bytes(3, "little") + content
    try:
        return bytes(cramjam.snappy.decompress(chunk))
    except cramjam.DecompressionError:
        raise DecompressionFailed("The snappy data are broken: a check sum is wrong.") from None


def _cut(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), OUTPUT_BYTES):
        yield content[start : start + OUTPUT_BYTES]
