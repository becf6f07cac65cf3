"""Files that hold tables: their types, how text is cut into cells, and how much of a file is read."""

from dataclasses import dataclass
from enum import StrEnum

MAX_COLUMNS = 2_000
MAX_FIELD_CHARACTERS = 1024 * 1024
MAX_RECORD_CHARACTERS = 16 * 1024 * 1024
"""Limits of delimited text (Contract importer 8.5)."""

SAMPLE_BYTES = 256 * 1024
"""What detection reads (Contract importer 9)."""

SAMPLE_RECORDS = 10_000
SAMPLE_TEXT_BYTES = 8 * 1024 * 1024
"""What types are detected from: whichever ends first (Contract importer 7.4)."""

MAX_SKIPPED_LINES = 10_000
"""How many lines above a table a call may give."""

PREVIEW_ROWS = 50
"""The rows that a preview shows (Contract importer 7)."""


class FileType(StrEnum):
    """What a file is, as clients name it (Contract importer 2.4)."""

    CSV = "csv"
    TSV = "tsv"
    EXCEL = "excel"
    DELIMITED = "delimiter_format"
    PARQUET = "parquet"
    NDJSON = "ndjson"
    AVRO = "avro"
    ARROW = "arrow"


RECORD_TYPES = frozenset({FileType.PARQUET, FileType.NDJSON, FileType.AVRO, FileType.ARROW})
"""Files of records, which name their columns themselves (Contract importer 8a)."""


@dataclass(frozen=True, slots=True)
class Delimiters:
    """How text is cut into cells. `quote` None: nothing is quoted.

    `record` is `\\n` (a CR before it is dropped), `\\r`, or another text that is taken literally; `\\r\\n` is kept as
    `\\n`, for both mean the same (Contract importer 7.2).
    """

    field: str = ","
    quote: str | None = '"'
    record: str = "\n"
    escape: str | None = None
    """Takes away the meaning of a separator or quote behind it; None: nothing does (Contract importer 8.7)."""


@dataclass(frozen=True, slots=True)
class SkippedLines:
    """Lines of a text that are not read: the first ones, and those that begin with `comment` unless it is empty."""

    first: int = 0
    comment: str = ""
