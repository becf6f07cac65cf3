"""Columns of a result and the names of their types on the wire (Contract editor 6.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

ROW_CELLS = 2
"""A row may be as large as so many of the largest cells (`editor.cell_max_bytes`)."""

_NAME_CHARACTERS = 1000
_TEXT_CHARACTERS = 10_000


class ResultType(StrEnum):
    """`meta.type`: one list of names for every dialect."""

    BOOLEAN = "BOOLEAN_TYPE"
    TINYINT = "TINYINT_TYPE"
    SMALLINT = "SMALLINT_TYPE"
    INT = "INT_TYPE"
    BIGINT = "BIGINT_TYPE"
    FLOAT = "FLOAT_TYPE"
    DOUBLE = "DOUBLE_TYPE"
    DECIMAL = "DECIMAL_TYPE"
    STRING = "STRING_TYPE"
    VARCHAR = "VARCHAR_TYPE"
    CHAR = "CHAR_TYPE"
    DATE = "DATE_TYPE"
    TIMESTAMP = "TIMESTAMP_TYPE"
    TIMESTAMP_TZ = "TIMESTAMPLOCALTZ_TYPE"
    INTERVAL_YEAR_MONTH = "INTERVAL_YEAR_MONTH_TYPE"
    INTERVAL_DAY_TIME = "INTERVAL_DAY_TIME_TYPE"
    BINARY = "BINARY_TYPE"
    ARRAY = "ARRAY_TYPE"
    MAP = "MAP_TYPE"
    STRUCT = "STRUCT_TYPE"
    UNION = "UNION_TYPE"
    NULL = "NULL_TYPE"
    USER_DEFINED = "USER_DEFINED_TYPE"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a result. `native_type` is the engine's own type text."""

    name: str
    type: ResultType
    native_type: str
    comment: str = ""


def bounded(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The same columns with texts of at most 1,000 (names) and 10,000 characters.

    Some engines name an expression by its own text: SQLite's name of `1 /* 9 MB */` has 9 MB, and is stored twice.
    """
    return tuple(
        Column(
            _cut(column.name, _NAME_CHARACTERS),
            column.type,
            _cut(column.native_type, _TEXT_CHARACTERS),
            _cut(column.comment, _TEXT_CHARACTERS),
        )
        for column in columns
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


class TruncationReason(StrEnum):
    """Which cap cut the stored result (Contract editor 6.4)."""

    ROW_LIMIT = "row_limit"
    BYTE_LIMIT = "byte_limit"


@dataclass(frozen=True, slots=True)
class Segment:
    """One stored piece of a result: rows [start_row, start_row + rows), `size_bytes` long in the store.

    `fence` is that of the runner that stored it.
    """

    number: int
    start_row: int
    rows: int
    size_bytes: int
    fence: int = 0
