"""Snappy data in files: frames, Hadoop's blocks, one raw block. cramjam unpacks the blocks and compares check sums."""

import struct
from collections.abc import Iterator

import cramjam

from queryserver.domain.errors import DecompressionFailed, DecompressionLimit
from queryserver.formats.unpacking.codecs import OUTPUT_BYTES
from queryserver.formats.unpacking.snappy_forms import FRAMED_START, SnappyForm, raw_length, snappy_form

_FORM_BYTES = 4096
_HADOOP_NUMBER = struct.Struct(">I")
_COMPRESSED, _PLAIN, _FIRST_SKIPPABLE, _IDENTIFIER = 0x00, 0x01, 0x80, 0xFF


def raw_block(block: bytes, limit_bytes: int) -> bytes:
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
            yield from _cut(raw_block(bytes(self._waiting), self._limit))
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
            part = raw_block(bytes(self._waiting[4 : 4 + number]), self._limit)
            del self._waiting[: 4 + number]
            if not 0 < len(part) <= self._left_of_block:
                raise DecompressionFailed("The snappy data are broken.")
            self._left_of_block -= len(part)
            yield from _cut(part)


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
