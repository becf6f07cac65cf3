"""Download formats and their names on the wire (Contract editor 8.2)."""

from enum import StrEnum

XLSX_MAX_ROWS = 1_048_575
"""Rows of data: a sheet has 1,048,576 and the first one is the header."""
XLSX_MAX_COLUMNS = 16_384
XLSX_MAX_CHARACTERS = 32_767
"""Of one cell, counted as Excel does: in UTF-16 units."""


class DownloadFormat(StrEnum):
    """`format` of a download; the value is also the extension of the file's name."""

    CSV = "csv"
    TSV = "tsv"
    XLSX = "xlsx"
    PARQUET = "parquet"
    ARROW = "arrow"
    NDJSON = "ndjson"

    @property
    def content_type(self) -> str:
        """The `Content-Type` of the answer."""
        return _CONTENT_TYPES[self]


_CONTENT_TYPES = {
    DownloadFormat.CSV: "text/csv; charset=utf-8; header=present",
    DownloadFormat.TSV: "text/tab-separated-values; charset=utf-8",
    DownloadFormat.XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    DownloadFormat.PARQUET: "application/vnd.apache.parquet",
    DownloadFormat.ARROW: "application/vnd.apache.arrow.stream",
    DownloadFormat.NDJSON: "application/x-ndjson",
}
