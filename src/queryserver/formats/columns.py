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


@dataclass(frozen=True, slots=True)
class CellForm:
    """How the cells of an answer are written (Contract editor 6.3)."""

    is_escaped: bool = False
    """In the form of Hue."""
    big_numbers_as_text: bool = False
    """Numbers that may have more digits than a double keeps are text."""


NUMBERS_AS_TEXT = frozenset(
    {
        ResultType.BIGINT,
        ResultType.DECIMAL,
        ResultType.ARRAY,
        ResultType.MAP,
        ResultType.STRUCT,
        ResultType.UNION,
    }
)
"""Types of columns whose integers of 64 bits, and decimals, are text with `big_numbers_as_text`: all of them."""


class TruncationReason(StrEnum):
    """Which cap cut the stored result (Contract editor 6.4)."""

    ROW_LIMIT = "row_limit"
    BYTE_LIMIT = "byte_limit"


class LimitSource(StrEnum):
    """Where the row limit of a statement comes from."""

    DEFAULT = "default"
    """The setting `editor.default_limit`."""
    CALLER = "caller"
    """The field `limit` of the call."""
    MAXIMUM = "maximum"
    """The setting `editor.result_max_rows`: there is no default, or the statement has a LIMIT above it."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """What cut a stored result (Contract editor 6.4)."""

    reason: TruncationReason
    limit_source: LimitSource | None = None
    """None: not known, as for statements that were recorded by an earlier version."""

    @property
    def by(self) -> str:
        """The field or setting that has to be larger for more rows."""
        if self.reason is TruncationReason.BYTE_LIMIT:
            return "result_max_bytes"
        match self.limit_source:
            case LimitSource.DEFAULT:
                return "default_limit"
            case LimitSource.MAXIMUM:
                return "result_max_rows"
            case _:
                return "limit"

    @property
    def is_asked_for(self) -> bool:
        """Whether the caller's own `limit` cut the result."""
        return self.by == "limit"

    def message(self, *, rows: int, max_rows: int, max_bytes: int, may_change: bool) -> str:
        """What was cut and why, and how to get more rows.

        `may_change`: the statement may have changed data, so that sending it again may change them again.
        """
        kept = f"Only the first {rows} rows were kept: "
        match self.by:
            case "result_max_bytes":
                kept += f"a result has at most {max_bytes} bytes on this server."
                advice = "select fewer columns or rows."
            case "result_max_rows":
                kept += f"a result has at most {max_rows} rows on this server."
                advice = "run several statements, each for a part of them."
            case "default_limit":
                kept += "the default limit of this server."
                advice = f"execute the statement with limit=… (up to {max_rows})."
            case _ if rows >= max_rows:
                return kept + "the limit of the call."
            case _:
                kept += "the limit of the call."
                advice = f"execute the statement with a larger limit (up to {max_rows})."
        if may_change:
            return f"{kept} The statement was carried out in full. If it only reads data, {advice}"
        return f"{kept} To get more, {advice}"


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
