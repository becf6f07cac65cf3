"""Avro object container files as JSON Lines (specification 1.12, Object Container Files)."""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from queryserver.domain.errors import CodecNotAvailable, DecompressionFailed, DecompressionLimit
from queryserver.formats.unpacking.avro_cursor import Cursor, OutOfBytes
from queryserver.formats.unpacking.avro_schema import reader_of
from queryserver.formats.unpacking.avro_values import Texts, text_of
from queryserver.formats.unpacking.codecs import OUTPUT_BYTES
from queryserver.formats.unpacking.snappy import raw_block
from queryserver.formats.zstandard import unpack_zstandard

MAX_BLOCK_BYTES = 8 * 1024 * 1024
"""Largest block, packed and unpacked. Writers make blocks of 16 KiB to 2 MiB."""

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MAX_HEADER_BYTES = 1024 * 1024
_RAW_DEFLATE = -15
_MAX_LZMA_BYTES = 64 * 1024 * 1024


class AvroUnpacker:
    """One record a line. A block at a time is in memory."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._header: _Header | None = None

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines of the blocks that are there to their end."""
        self._waiting += piece
        if self._header is None and not self._read_header():
            return
        while block := self._next_block():
            yield from self._lines(*block)

    def end(self) -> Iterator[bytes]:
        """Nothing. Raises DecompressionFailed in the header or within a block."""
        if self._header is None or self._waiting:
            raise OutOfBytes
        return iter(())

    @property
    def schema(self) -> str:
        """The schema of the file, JSON text. Raises DecompressionFailed in the header."""
        return self._known.schema

    def _read_header(self) -> bool:
        """Whether it is there to its end."""
        cursor = Cursor(bytes(self._waiting[:_MAX_HEADER_BYTES]))
        try:
            self._header = _header(cursor)
        except OutOfBytes:
            if len(self._waiting) >= _MAX_HEADER_BYTES:
                raise DecompressionFailed("The avro header is broken.") from None
            return False
        del self._waiting[: cursor.place]
        return True

    def _next_block(self) -> tuple[int, bytes] | None:
        """How many records the next block has, and their bytes; None until it is there to its end."""
        cursor = Cursor(bytes(self._waiting[:20]))
        try:
            count, size = cursor.whole(), cursor.whole()
        except OutOfBytes:
            return None
        if count < 0 or size < 0:
            raise DecompressionFailed("The avro data hold a negative length.")
        if size > MAX_BLOCK_BYTES:
            raise DecompressionLimit(f"A block of the file has more than {MAX_BLOCK_BYTES} bytes.")
        end = cursor.place + size
        if len(self._waiting) < end + _SYNC_BYTES:
            return None
        if bytes(self._waiting[end : end + _SYNC_BYTES]) != self._known.sync:
            raise DecompressionFailed("The avro data are broken: a block lacks its mark.")
        content = bytes(self._waiting[cursor.place : end])
        del self._waiting[: end + _SYNC_BYTES]
        return count, content

    def _lines(self, count: int, packed: bytes) -> Iterator[bytes]:
        cursor = Cursor(self._known.unpack(packed))
        made = bytearray()
        try:
            for _ in range(count):
                cursor.begin_record()
                made += self._known.texts(cursor).encode()
                made += b"\n"
                while len(made) >= OUTPUT_BYTES:
                    yield bytes(made[:OUTPUT_BYTES])
                    del made[:OUTPUT_BYTES]
        except RecursionError:
            raise DecompressionFailed("A record of the file is nested too deeply.") from None
        if not cursor.is_at_end:
            raise DecompressionFailed("The avro data are broken: a block is longer than its records.")
        yield bytes(made)

    @property
    def _known(self) -> "_Header":
        if self._header is None:
            raise OutOfBytes
        return self._header


class _Header:
    """What stands in front of the blocks."""

    def __init__(self, schema: str, unpack: Callable[[bytes], bytes], sync: bytes) -> None:
        self.schema = schema
        self.texts: Texts = reader_of(schema)
        self.unpack = unpack
        self.sync = sync


def _header(cursor: Cursor) -> _Header:
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise DecompressionFailed("The file holds no avro data.")
    metadata: dict[str, bytes] = {}
    while count := cursor.block_count():
        for _ in range(count):
            key = text_of(cursor)
            metadata[key] = cursor.take(cursor.whole())
    sync = cursor.take(_SYNC_BYTES)
    codec = metadata.get("avro.codec", b"null").decode(errors="replace")
    if codec not in _CODECS:
        raise CodecNotAvailable(f"This server cannot read avro files that are packed with {codec[:20]}.")
    schema = metadata.get("avro.schema", b"").decode(errors="replace")
    return _Header(schema, _CODECS[codec], sync)


def _plain(block: bytes) -> bytes:
    return block


def _deflate(block: bytes) -> bytes:
    try:
        return _bounded(zlib.decompressobj(_RAW_DEFLATE).decompress(block, MAX_BLOCK_BYTES + 1))
    except zlib.error:
        raise _broken() from None


def _bzip2(block: bytes) -> bytes:
    try:
        return _bounded(bz2.BZ2Decompressor().decompress(block, MAX_BLOCK_BYTES + 1))
    except OSError:
        raise _broken() from None


def _xz(block: bytes) -> bytes:
    try:
        return _bounded(lzma.LZMADecompressor(memlimit=_MAX_LZMA_BYTES).decompress(block, MAX_BLOCK_BYTES + 1))
    except lzma.LZMAError:
        raise _broken() from None


def _snappy(block: bytes) -> bytes:
    """Behind the data of the block stands the CRC-32 of what they unpack to."""
    unpacked = raw_block(block[:-4], MAX_BLOCK_BYTES)
    if zlib.crc32(unpacked) != int.from_bytes(block[-4:]):
        raise _broken()
    return unpacked


def _zstandard(block: bytes) -> bytes:
    try:
        return _bounded(bytes(unpack_zstandard(block, max_bytes=MAX_BLOCK_BYTES)))
    except ValueError:
        raise _broken() from None


def _bounded(unpacked: bytes) -> bytes:
    if len(unpacked) > MAX_BLOCK_BYTES:
        raise DecompressionLimit(f"A block of the file unpacks to more than {MAX_BLOCK_BYTES} bytes.")
    return unpacked


def _broken() -> DecompressionFailed:
    return DecompressionFailed("The avro data are broken: a block cannot be unpacked.")


_CODECS: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType(
    {
        "null": _plain,
        "deflate": _deflate,
        "snappy": _snappy,
        "bzip2": _bzip2,
        "xz": _xz,
        "zstandard": _zstandard,
    }
)
