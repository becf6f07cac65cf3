"""Converts rows of a file to Arrow batches. Bad rows are left out and explained (Contract importer 13.2).

Converting a column gives the same values as converting each cell with `cell_converter`. Arrow accepts more forms of
numbers and times than the contract (`007`, `0x1F`, `+5`), so Arrow converts only cells that match a pattern. Other
cells are converted one by one. Most columns of numbers, dates and timestamps can be checked without patterns, in half
the time.
"""

import math
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TypeAlias, cast

import pyarrow as pa
from pyarrow import types

from queryserver.formats.arrow import BaseType, Column, ColumnType, ResultType, kernels
from queryserver.formats.cell_types.classes import MAX_INTEGER_DIGITS, match_form, text_facts
from queryserver.formats.cell_types.value_formats import normalize_cells, null_words_to_null
from queryserver.formats.delimited.records import Block
from queryserver.formats.download.encoder import duration_text, texts
from queryserver.formats.table_files import BLANKS, CellKind, QuotedText, TypedText

_TOO_MANY_FIELDS = "the row has more fields than the file has columns"
_NULL_NOT_ALLOWED = "the value is missing, and the column does not allow NULL"
Value: TypeAlias = bool | int | float | Decimal | date | datetime | time | timedelta | str

_MAX_QUOTED_CHARACTERS = 60

_TIMESTAMP = re.compile(
    r"([0-9]{4}).([0-9]{2}).([0-9]{2}).([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
    r"(?:Z|([+-])([0-9]{2}):?([0-9]{2}))?"
)
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?")
"""The two patterns split a string that is known to be a timestamp or a time into its parts."""
_DURATION = re.compile(r"(-?)([0-9]{1,9}):([0-5][0-9])(?::([0-5][0-9])(?:\.([0-9]{1,9}))?)?")

RANGES: Mapping[BaseType, tuple[int, int]] = {
    **{getattr(BaseType, f"INT{bits}"): (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{getattr(BaseType, f"UINT{bits}"): (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}

_NUMBERS = frozenset({"integer", "fraction", "exponent"})
_FLOAT32_LIMIT = (2 - 2**-24) * 2.0**127
"""Numbers with at least this absolute value become infinite as 32-bit floats."""

_DATE_TYPES = frozenset({BaseType.DATE, BaseType.DATETIME})
_PLAIN_DATE_LENGTHS = frozenset({None, 10, 16, 19, *range(21, 27)})
"""Lengths of dates, and of timestamps with minutes, seconds or up to six fraction digits; None for NULL."""

_MAX_PLAIN_DIGITS = 38
_SHORT_NUMBER = r"-?(?:(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{0,20})?|\.[0-9]{1,20})"
_NUMBER = r"-?(?:(?:0|[1-9]\d{0,8})(?:\.\d{0,28})?|[1-9]\d{9,18}(?:\.\d{0,19})?|[1-9]\d{19,37}|\.\d{1,37})"
"""Numbers with at most 38 digits, which fit the limits of decimals and the range of 32-bit floats."""
_DAY = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-[0-9]{2}-[0-9]{2}"
_ARROW_PATTERNS: Mapping[BaseType, str] = {
    **dict.fromkeys(RANGES, r"^-?(?:0|[1-9][0-9]{0,18})$"),
    BaseType.FLOAT32: rf"^(?:{_NUMBER}|{_SHORT_NUMBER}[eE][+-]?[0-9])$",
    BaseType.FLOAT64: rf"^(?:{_NUMBER}|{_SHORT_NUMBER}[eE][+-]?[0-9]{{1,2}})$",
    BaseType.DECIMAL: rf"^{_NUMBER}$",
    BaseType.BOOLEAN: r"^(?i:true|false)$",
    BaseType.DATE: rf"^{_DAY}$",
    BaseType.DATETIME: rf"^{_DAY}(?:[T ][0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:\.[0-9]{{1,6}})?)?Z?)?$",
    BaseType.TIME: r"^[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?$",
}
"""Patterns of cells that Arrow either converts as the contract requires or rejects."""


# Arrow's names of types, if they differ from the BaseType in lower case.
_ARROW_NAMES: Mapping[BaseType, str] = {
    BaseType.FLOAT32: "float",
    BaseType.FLOAT64: "double",
    BaseType.BOOLEAN: "bool",
    BaseType.DATE: "date32",
    BaseType.DATETIME: "timestamp[us]",
    BaseType.TIME: "time64[us]",
    BaseType.DURATION: "duration[us]",
    BaseType.NULL: "string",
}


def arrow_type(column: ColumnType) -> pa.DataType:
    """Return the Arrow type for a column's values. Timestamps are naive UTC."""
    if column.base is BaseType.DECIMAL:
        return pa.decimal128(column.precision or 38, column.scale or 0)
    return pa.type_for_alias(_ARROW_NAMES.get(column.base) or column.base.lower())


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the new table. `source` is the index of its cells in the rows of the file."""

    source: int
    name: str
    type: ColumnType
    nullable: bool = True
    format: str | None = None
    """The format of the dates or numbers in the cells; None if they have the standard form. None for text columns."""
    null_words: tuple[str, ...] = ()
    """Cell values that mean NULL, in delimited text."""

    @property
    def accepts_any_cell(self) -> bool:
        return self.nullable and types.is_string(arrow_type(self.type)) and self.type.length is None


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is left out, and the error in its first invalid column. `record` is counted from 1, including the
    header.
    """

    record: int
    reason: str
    column: str | None = None

    def __str__(self) -> str:
        where = f'record {self.record}, column "{self.column}"' if self.column is not None else f"record {self.record}"
        return f"{where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ConvertedRows:
    """The result of converting `rows` rows. `batch` contains the good rows; `bad` is the number of rows left out."""

    rows: int
    batch: pa.RecordBatch
    bad: int
    explanations: Sequence[BadRow]
    nulls: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of cells with null words, by column name."""


@dataclass(frozen=True, slots=True)
class ConvertedColumn:
    """The converted values of a column. Cells in `invalid_rows` could not be converted and are null."""

    values: pa.Array
    invalid_rows: Sequence[int] = ()


class RowConverter:
    """Converts a file in portions. Explains at most `max_explanations` bad rows in total."""

    def __init__(self, columns: Sequence[TargetColumn], *, max_explanations: int) -> None:
        self._columns = columns
        self._schema = pa.schema([(one.name, arrow_type(one.type)) for one in columns])
        self._explanations_left = max_explanations

    def block(self, block: Block, *, has_header: bool) -> ConvertedRows:
        """Convert rows of delimited text. If `has_header` is set, the first record of the file is skipped."""
        skip = 1 if has_header and block.first_record == 1 else 0
        texts = block.columns.slice(skip)
        bad = {row - skip: _BadRowCause(None, _TOO_MANY_FIELDS) for row in block.long_rows if row >= skip}
        cells = [
            null_words_to_null(texts.column(one.source), one.null_words) if one.null_words else texts.column(one.source)
            for one in self._columns
        ]
        converted = [convert(own, one.type, one.format) for own, one in zip(cells, self._columns, strict=True)]
        portion = self._converted_rows(converted, cells, bad, texts.num_rows, block.first_record + skip)
        nulls = {
            column.name: own.null_count - texts.column(column.source).null_count
            for own, column in zip(cells, self._columns, strict=True)
            if column.null_words
        }
        return replace(portion, nulls=nulls) if nulls else portion

    def cells(self, rows: Sequence[Sequence[TypedText]], first_record: int) -> ConvertedRows:
        columns: list[list[str | None]] = []
        converted: list[ConvertedColumn] = []
        for column in self._columns:
            own = (row[column.source] for row in rows)
            is_text = types.is_string(arrow_type(column.type))
            cells = [None if is_null(cell, is_text=is_text) else str(cell) for cell in own]
            columns.append(cells)
            if column.format is None:
                converted.append(convert_cells(cells, column.type))
            else:
                converted.append(convert(pa.array(cells, pa.string()), column.type, column.format))
        return self._converted_rows(converted, columns, {}, len(rows), first_record)

    def records(
        self, rows: pa.RecordBatch, unreadable: Sequence[tuple[int, int | None, str]], first_record: int
    ) -> ConvertedRows:
        """Convert rows of a record file. Their values are typed, or are strings that represent typed values.

        `unreadable` lists values that could not be read: row, column index (None for the whole row), reason.
        """
        cells = [rows.column(one.source) for one in self._columns]
        converted = [_convert_values(own, one) for own, one in zip(cells, self._columns, strict=True)]
        kept = {one.source: at for at, one in enumerate(self._columns)}
        bad: dict[int, _BadRowCause] = {}
        for row, source, reason in unreadable:
            if source is None or source in kept:
                bad.setdefault(row, _BadRowCause(None if source is None else kept[source], reason))
        return self._converted_rows(converted, cells, bad, rows.num_rows, first_record)

    def _converted_rows(
        self,
        converted: Sequence[ConvertedColumn],
        cells: "_Cells",
        bad: "dict[int, _BadRowCause]",
        rows: int,
        first_record: int,
    ) -> ConvertedRows:
        for at, (one, column) in enumerate(zip(converted, self._columns, strict=True)):
            for row in one.invalid_rows:
                bad.setdefault(row, _BadRowCause(at))
            if not column.nullable and one.values.null_count:
                for row in kernels.indices_nonzero(kernels.is_null(one.values)).to_pylist():
                    bad.setdefault(row, _BadRowCause(at, _NULL_NOT_ALLOWED))
        batch = pa.RecordBatch.from_arrays([one.values for one in converted], schema=self._schema)
        if bad and converted:
            batch = batch.filter(pa.array([row not in bad for row in range(rows)], pa.bool_()))
        return ConvertedRows(rows, batch, len(bad), list(self._explain(bad, cells, first_record)))

    def _explain(self, bad: "dict[int, _BadRowCause]", cells: "_Cells", first_record: int) -> Iterator[BadRow]:
        for row in sorted(bad)[: self._explanations_left]:
            self._explanations_left -= 1
            at, reason = bad[row].column, bad[row].reason
            if at is None:
                yield BadRow(first_record + row, reason)
                continue
            column, own = self._columns[at], cells[at]
            is_array = isinstance(own, pa.Array)
            cell = str(value_texts(cast("pa.Array", own).slice(row, 1))[0] if is_array else own[row])
            yield BadRow(first_record + row, reason or _reason(column, cell), column.name)


def _reason(column: TargetColumn, cell: str) -> str:
    try:
        if column.format is not None:
            plain: str | None = normalize_cells(pa.array([cell.strip(BLANKS)], pa.string()), column.format)[0].as_py()
            if plain is None:
                raise _not_a(cell, f"in the format {column.format}")
            cell = plain
        cell_converter(column.type)(cell)
    except InvalidCell as error:
        return str(error)
    raise AssertionError(cell)


_Cells: TypeAlias = "Sequence[Sequence[str | None] | pa.StringArray]"


@dataclass(frozen=True, slots=True)
class _BadRowCause:
    """Why a row is bad. `column` is None if the whole row is bad. If `reason` is empty, `_reason` determines it."""

    column: int | None
    reason: str = ""


def _convert_values(values: pa.Array, column: TargetColumn) -> ConvertedColumn:
    """Convert typed values. Text columns keep all strings unchanged, even if they are blank. Values of another type are
    converted from their text.
    """
    wanted = arrow_type(column.type)
    if types.is_string(wanted):
        return limit_length(value_texts(values), column.type)
    if values.type == wanted:
        return ConvertedColumn(values)
    if types.is_binary(wanted):
        # Bytes are given as base64 text.
        return ConvertedColumn(
            pa.array([None if text is None else b64decode(text) for text in values.to_pylist()], wanted)
        )
    return convert(value_texts(values), column.type, column.format)


def convert(cells: pa.StringArray, column: ColumnType, form: str | None = None) -> ConvertedColumn:
    """Convert the cells of a column of a `Block`, in which null differs from an empty cell.

    `form` is the required format of the dates or numbers. It must be None for text columns.
    """
    if types.is_string(arrow_type(column)):
        return limit_length(null_cells_to_null(cells, is_text=True), column)
    texts = null_cells_to_null(cells, is_text=False)
    if form is not None:
        plain = normalize_cells(texts, form)
        unreadable = kernels.and_(kernels.is_valid(texts), kernels.is_null(plain))
        converted = convert(plain, column)
        return ConvertedColumn(
            converted.values, sorted({*kernels.indices_nonzero(unreadable).to_pylist(), *converted.invalid_rows})
        )
    if (whole := _convert_whole_column(texts, column)) is not None:
        return ConvertedColumn(whole)
    wanted = arrow_type(column)
    if column.base not in _ARROW_PATTERNS:
        return convert_cells(texts.to_pylist(), column)
    matches = kernels.fill_null(kernels.match_substring_regex(texts, _ARROW_PATTERNS[column.base]), fill_value=False)
    try:
        known = _cast(kernels.if_else(matches, texts, pa.scalar(None, pa.string())), wanted)
    except pa.ArrowInvalid:  # an impossible date or a number out of range; Arrow does not report which cell
        return convert_cells(texts.to_pylist(), column)
    doubted = kernels.and_(kernels.is_valid(texts), kernels.invert(matches))
    rest = convert_cells(texts.filter(doubted).to_pylist(), column)
    values = kernels.replace_with_mask(known, doubted, rest.values)
    rows = kernels.indices_nonzero(doubted).to_pylist()
    return ConvertedColumn(values, [rows[at] for at in rest.invalid_rows])


def limit_length(texts: pa.StringArray, column: ColumnType) -> ConvertedColumn:
    """Mark strings that are longer than the column's length limit as invalid, and replace them with null."""
    if column.length is None:
        return ConvertedColumn(texts)
    is_long = kernels.fill_null(kernels.greater(kernels.utf8_length(texts), column.length), fill_value=False)
    rows = kernels.indices_nonzero(is_long).to_pylist()
    return ConvertedColumn(kernels.if_else(is_long, pa.scalar(None, pa.string()), texts) if rows else texts, rows)


def convert_cells(cells: Sequence[str | None], column: ColumnType) -> ConvertedColumn:
    """Convert cells one by one. None stands for NULL cells."""
    convert_one = cell_converter(column)
    values: list[Value | None] = []
    invalid_rows: list[int] = []
    for row, cell in enumerate(cells):
        value = None
        if cell is not None:
            try:
                value = convert_one(cell)
            except InvalidCell:
                invalid_rows.append(row)
        values.append(value)
    return ConvertedColumn(pa.array(values, arrow_type(column)), invalid_rows)


def null_cells_to_null(cells: pa.StringArray, *, is_text: bool) -> pa.StringArray:
    """Replace blank cells and `\\N` with null. In text columns, an empty quoted cell stays an empty string."""
    trimmed = kernels.utf8_trim(cells, characters=BLANKS)
    means_null = kernels.or_(kernels.equal(trimmed, ""), kernels.equal(trimmed, r"\N"))
    if is_text:
        means_null = kernels.and_(means_null, kernels.not_equal(cells, ""))
        return kernels.if_else(means_null, pa.scalar(None, pa.string()), cells)
    return kernels.if_else(means_null, pa.scalar(None, pa.string()), trimmed)


def _convert_whole_column(texts: pa.StringArray, column: ColumnType) -> pa.Array | None:
    """Convert a column with Arrow alone, without patterns. Return None if the result might not conform to the
    contract.
    """
    try:
        if column.base in _DATE_TYPES:
            lengths = set(kernels.unique(kernels.binary_length(texts)).to_pylist())
            has_year_zero = kernels.any(kernels.starts_with(texts, "0000")).as_py()
            is_plain = lengths <= _PLAIN_DATE_LENGTHS and not has_year_zero
            return kernels.cast(texts, arrow_type(column)) if is_plain else None
        if column.base in RANGES or column.base is BaseType.BOOLEAN:
            values = kernels.cast(texts, arrow_type(column))
            is_same = kernels.all(kernels.equal(kernels.cast(values, pa.string()), texts), min_count=0).as_py()
            return values if is_same else None
        if column.base in {BaseType.FLOAT32, BaseType.FLOAT64, BaseType.DECIMAL}:
            return _cast(texts, arrow_type(column)) if _are_plain_numbers(texts) else None
    except pa.ArrowInvalid:
        pass
    return None


def _are_plain_numbers(texts: pa.StringArray) -> bool:
    """Return whether all numbers are finite, have at most 38 characters, and no exponent, plus sign or leading zero."""
    known = texts.drop_null()
    joined = kernels.binary_join(pa.ListArray.from_arrays([0, len(known)], known), ",")[0].as_buffer().to_pybytes()
    if any(sign in joined for sign in (b"e", b"E", b"n", b"N", b"+", b"-0")) or _max_length(known) > _MAX_PLAIN_DIGITS:
        return False
    zeros = kernels.starts_with(known, "0"), kernels.equal(known, "0"), kernels.starts_with(known, "0.")
    begun, alone, fractions = (kernels.sum(each, min_count=0).as_py() for each in zeros)
    return begun == alone + fractions


def _max_length(texts: pa.StringArray) -> int:
    return kernels.max(kernels.binary_length(texts)).as_py() or 0


def _cast(texts: pa.StringArray, wanted: pa.DataType) -> pa.Array:
    """Convert strings with Arrow. Raises ArrowInvalid if a string is not a value of the type or is out of range."""
    if types.is_floating(wanted):
        return kernels.cast(kernels.cast(texts, pa.float64()), wanted)
    if types.is_time(wanted):
        # Arrow does not parse times, so they are parsed as timestamps on 1970-01-01.
        moments = kernels.cast(kernels.binary_join_element_wise("1970-01-01", texts, " "), pa.timestamp("us"))
        return kernels.cast(moments, wanted)
    if types.is_timestamp(wanted):
        return kernels.cast(kernels.ascii_rtrim(texts, characters="Z"), wanted)
    if types.is_decimal(wanted) and _max_length(texts) + wanted.scale > _MAX_PLAIN_DIGITS:
        # Arrow does not detect that rescaling overflows 128 bits. 256 bits always suffice.
        return kernels.cast(kernels.cast(texts, pa.decimal256(76, wanted.scale)), wanted)
    return kernels.cast(texts, wanted)


def value_texts(values: pa.Array) -> pa.StringArray:
    """Return each value as text, with all its digits. NULL stays NULL."""
    if isinstance(values, pa.StringArray):
        return values
    if types.is_duration(values.type):
        return duration_text(values)
    kind = ResultType.BOOLEAN if types.is_boolean(values.type) else ResultType.STRING
    kind = ResultType.DECIMAL if types.is_decimal(values.type) else kind
    return texts(values, Column("", kind, "")).cast(pa.string())


class InvalidCell(ValueError):
    """A cell cannot be converted to the type of its column. The message quotes at most 60 characters of the cell."""


def is_null(cell: str, *, is_text: bool) -> bool:
    """Return whether a cell means NULL. In text files, this is a blank cell, `\\N` or an unquoted null; in workbooks, a
    cell of class NULL.

    In text columns, an empty quoted cell is an empty string.
    """
    if isinstance(cell, TypedText):
        return cell.kind is CellKind.NULL
    stripped = cell.strip(BLANKS)
    if not stripped:
        return not (is_text and not cell and isinstance(cell, QuotedText))
    return stripped == r"\N" or (stripped.lower() == "null" and not isinstance(cell, QuotedText))


def cell_converter(column: ColumnType) -> Callable[[str], Value]:
    """Return a function that converts a cell, which must not mean NULL, to a value. The function raises InvalidCell."""
    base = column.base
    if base in RANGES:
        least, greatest = RANGES[base]
        return lambda cell: _integer(cell.strip(BLANKS), least, greatest, base)
    if base is BaseType.DECIMAL:
        precision, scale = column.precision or MAX_INTEGER_DIGITS, column.scale or 0
        return lambda cell: _decimal(cell.strip(BLANKS), precision, scale)
    if base in _CELL_PARSERS:
        read = _CELL_PARSERS[base]
        return lambda cell: read(cell.strip(BLANKS))
    if (length := column.length) is None:
        return str

    def short_text(text: str) -> str:
        if len(text) > length:
            raise InvalidCell(f"{_quoted_start(text)} has more than {length} characters")
        return text

    return short_text


def _integer(text: str, least: int, greatest: int, base: BaseType) -> int:
    if match_form(text) != "integer":
        raise _not_a(text, "an integer")
    if len(text) > MAX_INTEGER_DIGITS or not least <= (value := int(text)) <= greatest:
        raise InvalidCell(f"{_quoted_start(text)} is out of the range of {base.value}")
    return value


def _number(text: str) -> str:
    """Return the text if it is a finite number of at most MAX_INTEGER_DIGITS digits. Raises InvalidCell."""
    if match_form(text) not in _NUMBERS:
        raise _not_a(text, "a number")
    if text_facts(text).kind is CellKind.TEXT:
        raise InvalidCell(f"{_quoted_start(text)} has more than {MAX_INTEGER_DIGITS} digits")
    return text


def _double(text: str) -> float:
    if match_form(text) == "non_finite":
        return float(text)
    value = float(_number(text))
    if math.isinf(value):
        raise InvalidCell(f"{_quoted_start(text)} is out of range")
    return value


def _float32(text: str) -> float:
    value = _double(text)
    if math.isfinite(value) and abs(value) >= _FLOAT32_LIMIT:
        raise InvalidCell(f"{_quoted_start(text)} is out of range")
    return value


def _decimal(text: str, precision: int, scale: int) -> Decimal:
    value = Decimal(_number(text))
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    try:
        fixed = value.quantize(Decimal(1).scaleb(-scale), context=context)
    except (Inexact, InvalidOperation):
        digits = f"a decimal with precision {precision} and scale {scale}"
        raise InvalidCell(f"{_quoted_start(text)} does not fit {digits}") from None
    return fixed or Decimal(0)


def _boolean(text: str) -> bool:
    if match_form(text) != "boolean":
        raise _not_a(text, "true or false")
    return text.lower() == "true"


def _date(text: str) -> date:
    if match_form(text) != "date":
        raise _not_a(text, "a date")
    return date(int(text[:4]), int(text[5:7]), int(text[8:]))


def _timestamp(text: str) -> datetime:
    if match_form(text) == "date":
        return datetime.combine(_date(text), time())
    found = _TIMESTAMP.fullmatch(text) if match_form(text) == "timestamp" else None
    if found is None:
        raise _not_a(text, "a timestamp")
    *parts, fraction, sign, hours, minutes = found.groups()
    year, month, day, hour, minute, second = (int(part or 0) for part in parts)
    moment = datetime(year, month, day, hour, minute, second, _microseconds(fraction), tzinfo=UTC)
    if sign is not None:
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        try:
            moment = moment - offset if sign == "+" else moment + offset
        except OverflowError:
            raise InvalidCell(f"{_quoted_start(text)} is out of range") from None
    return moment.replace(tzinfo=None)


def _time(text: str) -> time:
    found = _TIME.fullmatch(text) if match_form(text) == "time" else None
    if found is None:
        raise _not_a(text, "a time")
    return time(int(found[1]), int(found[2]), int(found[3] or 0), _microseconds(found[4]))


def _duration(text: str) -> timedelta:
    if (found := _DURATION.fullmatch(text)) is None:
        raise _not_a(text, "a duration")
    sign, hours, minutes, seconds, fraction = found.groups()
    length = timedelta(
        hours=int(hours), minutes=int(minutes), seconds=int(seconds or 0), microseconds=_microseconds(fraction)
    )
    return -length if sign else length


_CELL_PARSERS: Mapping[BaseType, Callable[[str], Value]] = {
    BaseType.FLOAT32: _float32,
    BaseType.FLOAT64: _double,
    BaseType.BOOLEAN: _boolean,
    BaseType.DATE: _date,
    BaseType.DATETIME: _timestamp,
    BaseType.TIME: _time,
    BaseType.DURATION: _duration,
}


def _microseconds(fraction: str | None) -> int:
    return int((fraction or "")[:6].ljust(6, "0"))


def _not_a(text: str, wanted: str) -> InvalidCell:
    return InvalidCell(f"{_quoted_start(text)} is not {wanted}")


def _quoted_start(text: str) -> str:
    """Return the beginning of a cell in quotes. Unprintable characters are replaced with U+FFFD."""
    cut = text if len(text) <= _MAX_QUOTED_CHARACTERS else text[:_MAX_QUOTED_CHARACTERS] + "…"
    return '"' + "".join(one if one.isprintable() else "�" for one in cut) + '"'
