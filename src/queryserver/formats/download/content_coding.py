"""Compression of downloads on their way: which coding a client prefers, and its compressor (RFC 9110 12.5.3)."""

import re
import zlib
from typing import Protocol

import pyarrow as pa

from queryserver.formats.download.encoder import Drain, Encoder
from queryserver.formats.download.kinds import ContentCoding

_GZIP_LEVEL = 4
"""20 MB of CSV: level 1 takes 0.19 s and leaves 6.8 MB, level 4 0.36 s and 6.1 MB, level 6 0.89 s and 5.5 MB."""
_GZIP_WINDOW = 31
"""zlib's number for the largest window with a gzip header, whose time stamp is 0."""
_MEMBER = re.compile(r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*(?:;\s*[qQ]\s*=\s*([0-9.]{1,6})\s*)?")


_BY_PREFERENCE = (ContentCoding.ZSTD, ContentCoding.GZIP, ContentCoding.IDENTITY)
_OTHER_NAMES = {"x-gzip": "gzip"}


class Compressor(Protocol):
    """One compressed stream in the making; work for a thread."""

    def compress(self, piece: bytes, /) -> bytes:
        """The next bytes; possibly none."""
        ...

    def flush(self) -> bytes:
        """The last bytes."""
        ...


def preferred_coding(accept_encoding: str) -> ContentCoding:
    """The coding with the highest weight; of equal ones zstd, then gzip, which cost less than they save.

    Without the header, or where no coding of ours is acceptable, the bytes as they are.
    """
    weights = _weights(accept_encoding)
    if not weights:
        return ContentCoding.IDENTITY
    rest = weights.get("*")
    ranked = {coding: weights.get(coding.value, rest) for coding in _BY_PREFERENCE}
    if ranked[ContentCoding.IDENTITY] is None:
        # Acceptable unless it is excluded, but nothing that a client names.
        ranked[ContentCoding.IDENTITY] = 0.0005
    best = max(_BY_PREFERENCE, key=lambda coding: ranked[coding] or 0.0)
    return best if ranked[best] else ContentCoding.IDENTITY


def compressed(encoder: Encoder, coding: ContentCoding) -> Encoder:
    """The same file under a content coding. The same file always gives the same bytes."""
    match coding:
        case ContentCoding.GZIP:
            return _Compressed(encoder, zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW))
        case ContentCoding.ZSTD:
            return _Compressed(encoder, _Zstandard())
        case ContentCoding.IDENTITY:
            return encoder


class _Compressed:
    """A file whose bytes are compressed as they are made."""

    def __init__(self, encoder: Encoder, compressor: Compressor) -> None:
        self._encoder = encoder
        self._compressor = compressor

    def start(self) -> bytes:
        return self._compressor.compress(self._encoder.start())

    def rows(self, batch: pa.RecordBatch) -> bytes:
        return self._compressor.compress(self._encoder.rows(batch))

    def end(self) -> bytes:
        return self._compressor.compress(self._encoder.end()) + self._compressor.flush()

    def close(self) -> None:
        self._encoder.close()


class _Zstandard:
    """One frame, by Arrow's copy of the library."""

    def __init__(self) -> None:
        self._sink = Drain()
        self._stream = pa.CompressedOutputStream(pa.PythonFile(self._sink, mode="w"), "zstd")

    def compress(self, piece: bytes, /) -> bytes:
        self._stream.write(piece)
        return self._sink.take()

    def flush(self) -> bytes:
        self._stream.close()
        return self._sink.take()


def _weights(accept_encoding: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for member in accept_encoding.split(","):
        match = _MEMBER.fullmatch(member)
        if match is None:
            continue
        name = match[1].lower()
        weights[_OTHER_NAMES.get(name, name)] = _weight(match[2])
    return weights


def _weight(text: str | None) -> float:
    try:
        return min(float(text), 1.0) if text else 1.0
    except ValueError:
        return 0.0
