"""Interfaces for downloads: the source of a result, the encoder of a file, and the options of the file."""

import io
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from importlib.metadata import version
from typing import Protocol
from uuid import UUID

import orjson
import pyarrow as pa

from queryserver.formats.arrow import Column

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""The end-of-stream marker of an Arrow IPC stream."""


@dataclass(frozen=True, slots=True)
class PackedRows:
    """A stored segment: an Arrow IPC stream of `size_bytes` that begins with the schema message `head`.

    `read(start, stop)` returns the bytes [start, stop) of the stream.
    """

    head: bytes
    size_bytes: int
    read: Callable[[int, int], Awaitable[bytes]]

    @property
    def batches_bytes(self) -> int:
        """The size of the messages that contain rows."""
        return self.size_bytes - len(self.head) - len(END_OF_STREAM)


class ResultSource(Protocol):
    """A finished result, which can be read repeatedly."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of every table, in order. The field names of the tables may differ."""
        ...

    @property
    def rows(self) -> int: ...

    def tables(self) -> AsyncGenerator[pa.Table]:
        """Yield all rows, in order. The Arrow type of a column can differ between tables."""
        ...

    def schemas(self) -> AsyncGenerator[pa.Schema]:
        """Yield the distinct schemas of `tables`, in any order; if possible, without reading the rows."""
        ...

    def packed(self) -> AsyncGenerator[PackedRows]:
        """Yield the stored segments, in order; none if the rows are not stored in segments."""
        ...


class Encoder(ABC):
    """Encodes one file. All methods block; call them from one thread at a time."""

    def start(self) -> bytes:
        return b""

    @abstractmethod
    def rows(self, batch: pa.RecordBatch) -> bytes:
        """Encode rows without dictionary-encoded columns. May return no bytes while it collects rows."""

    def end(self) -> bytes:
        return b""

    def close(self) -> None:  # noqa: B027 most encoders have no resources
        """Release all resources, even if the file is incomplete. Idempotent."""


class WriteBuffer(io.RawIOBase):
    """A writable file object that buffers the written bytes until `take` is called."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, piece: bytes | memoryview, /) -> int:  # type: ignore[override]
        """Append a copy of the bytes, because the caller may reuse its buffer."""
        self._pieces.append(bytes(piece))
        return len(piece)

    def take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


def unique_names(names: Sequence[str]) -> list[str]:
    """Make names unique by appending `_2`, `_3`, … to repeated names."""
    taken = set(names)
    seen: set[str] = set()
    unique: list[str] = []
    for name in names:
        chosen, number = name, 2
        if name in seen:
            while (chosen := f"{name}_{number}") in taken:
                number += 1
            taken.add(chosen)
        seen.add(name)
        unique.append(chosen)
    return unique


XLSX_MAX_ROWS = 1_048_575
"""Maximum number of data rows: a sheet has at most 1,048,576 rows, of which the first is the header."""
XLSX_MAX_COLUMNS = 16_384
XLSX_MAX_CHARACTERS = 32_767
"""Maximum length of a cell in UTF-16 code units, which is how Excel counts."""


class ContentCoding(StrEnum):
    """Values of `Content-Encoding` for a download."""

    IDENTITY = "identity"
    GZIP = "gzip"
    ZSTD = "zstd"


class DownloadFormat(StrEnum):
    """Values of `format` for a download, which are also the extensions of the file names."""

    CSV = "csv"
    TSV = "tsv"
    XLSX = "xlsx"
    PARQUET = "parquet"
    ARROW = "arrow"
    FEATHER = "feather"
    NDJSON = "ndjson"

    @property
    def content_type(self) -> str:
        return _CONTENT_TYPES[self]

    @property
    def is_compressed(self) -> bool:
        """Whether the format already compresses its data, so that a content coding would not help."""
        return self in {DownloadFormat.XLSX, DownloadFormat.PARQUET}


_CONTENT_TYPES = {
    DownloadFormat.CSV: "text/csv; charset=utf-8; header=present",
    DownloadFormat.TSV: "text/tab-separated-values; charset=utf-8",
    DownloadFormat.XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    DownloadFormat.PARQUET: "application/vnd.apache.parquet",
    DownloadFormat.ARROW: "application/vnd.apache.arrow.stream",
    DownloadFormat.FEATHER: "application/vnd.apache.arrow.file",
    DownloadFormat.NDJSON: "application/x-ndjson",
}

_ENCODER_VERSIONS = (
    version("queryserver"),
    pa.__version__,
    orjson.__version__,
    zlib.ZLIB_RUNTIME_VERSION,
    *sys.version_info[:2],
)
_VERSION_TAG = sha256(repr(_ENCODER_VERSIONS).encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class FileForm:
    """The options of a downloaded file. The same result with the same options always gives the same bytes."""

    format: DownloadFormat
    guard: bool = False
    """For csv and tsv: put `'` before texts that a spreadsheet could interpret as formulas."""
    coding: ContentCoding = ContentCoding.IDENTITY
    is_packed: bool = False
    """For arrow: compress the buffers of the batches with LZ4."""

    def entity_tag(self, operation_id: UUID) -> str:
        """Return a strong entity tag, in quotes. It includes a hash of library versions, which can change the bytes."""
        words = [str(operation_id), self.format.value, *(["guarded"] if self.guard else [])]
        words += ["lz4"] if self.is_packed else []
        if self.coding is not ContentCoding.IDENTITY:
            words.append(self.coding.value)
        return f'"{"-".join(words)}-{_VERSION_TAG}"'
