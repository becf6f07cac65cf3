"""What a download needs, what it is made by, and what the formats share."""

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

from queryserver.formats.columns import Column

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""Of an Arrow IPC stream."""


@dataclass(frozen=True, slots=True)
class PackedRows:
    """A stored segment: an IPC stream of `size_bytes`, which begins with `head`, its schema.

    `read` gives its bytes [start, stop).
    """

    head: bytes
    size_bytes: int
    read: Callable[[int, int], Awaitable[bytes]]

    @property
    def batches_bytes(self) -> int:
        """The size of its messages of rows."""
        return self.size_bytes - len(self.head) - len(END_OF_STREAM)


class ResultSource(Protocol):
    """A finished result that can be read more than once."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """In order; every table has one field for each, in this order, under whatever name."""
        ...

    @property
    def rows(self) -> int: ...

    def tables(self) -> AsyncGenerator[pa.Table]:
        """All rows, in order. The Arrow type of a column may differ from table to table."""
        ...

    def schemas(self) -> AsyncGenerator[pa.Schema]:
        """The schemas of `tables`, where that is cheaper than reading them; each once, in any order."""
        ...

    def packed(self) -> AsyncGenerator[PackedRows]:
        """All rows, in order, as they are stored; none where they are not stored in segments."""
        ...


class Encoder(ABC):
    """One file in the making. Everything here is work for a thread, one call at a time."""

    def start(self) -> bytes:
        return b""

    @abstractmethod
    def rows(self, batch: pa.RecordBatch) -> bytes:
        """The next bytes; none while they are collected. No column is dictionary-encoded."""

    def end(self) -> bytes:
        return b""

    def close(self) -> None:  # noqa: B027 most hold nothing
        """Let go of everything, also when the file was not finished. Idempotent."""


class Drain(io.RawIOBase):
    """Takes what a library writes, until it is fetched."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, piece: bytes | memoryview, /) -> int:  # type: ignore[override]
        """Keep a copy; the caller may reuse its buffer."""
        self._pieces.append(bytes(piece))
        return len(piece)

    def take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


def unique_names(names: Sequence[str]) -> list[str]:
    """Names with `_2`, `_3`, … at repeated ones. A name that is there once stays as it is."""
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
"""Rows of data: a sheet has 1,048,576 and the first one is the header."""
XLSX_MAX_COLUMNS = 16_384
XLSX_MAX_CHARACTERS = 32_767
"""Of one cell, counted as Excel does: in UTF-16 units."""


class ContentCoding(StrEnum):
    """`Content-Encoding` of a download."""

    IDENTITY = "identity"
    GZIP = "gzip"
    ZSTD = "zstd"


class DownloadFormat(StrEnum):
    """`format` of a download; the value is also the extension of the file's name."""

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
        """Whether the file itself is compressed, so that a content coding would save nothing."""
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

_MADE_BY = (
    version("queryserver"),
    pa.__version__,
    orjson.__version__,
    zlib.ZLIB_RUNTIME_VERSION,
    *sys.version_info[:2],
)
_MAKER = sha256(repr(_MADE_BY).encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class FileForm:
    """How a result becomes a file; the same result in the same form always gives the same bytes."""

    format: DownloadFormat
    guard: bool = False
    """csv and tsv: texts that a spreadsheet could take for formulas begin with `'`."""
    coding: ContentCoding = ContentCoding.IDENTITY
    is_packed: bool = False
    """arrow: the buffers of its batches are packed by lz4."""

    def entity_tag(self, operation_id: UUID) -> str:
        """A strong tag, in quotes. Servers of other versions may make other bytes, so these are a part of it."""
        words = [str(operation_id), self.format.value, *(["guarded"] if self.guard else [])]
        words += ["lz4"] if self.is_packed else []
        if self.coding is not ContentCoding.IDENTITY:
            words.append(self.coding.value)
        return f'"{"-".join(words)}-{_MAKER}"'
