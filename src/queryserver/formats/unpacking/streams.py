"""gzip and bzip2, any number of members one behind the other."""

import bz2
import zlib
from collections.abc import Iterator

from queryserver.domain.errors import DecompressionFailed
from queryserver.formats.unpacking.codecs import OUTPUT_BYTES

_GZIP_WINDOW = 16 + zlib.MAX_WBITS


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
