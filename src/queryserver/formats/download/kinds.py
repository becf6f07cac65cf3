"""Download formats and their names on the wire (Contract editor 8.2)."""

import sys
import zlib
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from importlib.metadata import version
from uuid import UUID

import orjson
import pyarrow as pa

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
        """The `Content-Type` of the answer."""
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

    def entity_tag(self, operation_id: UUID) -> str:
        """A strong tag, in quotes. Servers of other versions may make other bytes, so these are a part of it."""
        words = [str(operation_id), self.format.value, *(["guarded"] if self.guard else [])]
        if self.coding is not ContentCoding.IDENTITY:
            words.append(self.coding.value)
        return f'"{"-".join(words)}-{_MAKER}"'
