"""Rows of a file as batches of a table, with bad rows left out and explained (Contract importer 13.2).

The file goes from rows over columns to single cells. What a column gives is always what `converter` gives for each
cell. Arrow reads numbers and times more freely than the rules do (`007`, `0x1F`, `+5`), so it reads the cells that
match a pattern of the rules, and the others are converted one by one. Most columns of numbers, dates and timestamps
need no patterns, which take half of the time.
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

from queryserver.formats.arrow import kernels
from queryserver.formats.cell_types.classes import MAX_INTEGER_DIGITS, facts_of_text, form_of
from queryserver.formats.cell_types.written_forms import rewritten, without_words
from queryserver.formats.columns import BaseType, Column, ColumnType, ResultType
from queryserver.formats.delimited.records import Block
from queryserver.formats.download.texts import duration_text, texts
from queryserver.formats.table_files import BLANKS, CellKind, QuotedText, TypedText

_LONG = "the row has more fields than the file has columns"
_NULL = "the value is missing, and the column takes no NULL"
Value: TypeAlias = bool | int | float | Decimal | date | datetime | time | timedelta | str

_SHOWN_CHARACTERS = 60

_TIMESTAMP = re.compile(
    r"([0-9]{4}).([0-9]{2}).([0-9]{2}).([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
    r"(?:Z|([+-])([0-9]{2}):?([0-9]{2}))?"
)
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?")
"""The parts of what is known to be a timestamp, or a time."""
_DURATION = re.compile(r"(-?)([0-9]{1,9}):([0-5][0-9])(?::([0-5][0-9])(?:\.([0-9]{1,9}))?)?")

RANGES: Mapping[BaseType, tuple[int, int]] = {
    **{getattr(BaseType, f"INT{bits}"): (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{getattr(BaseType, f"UINT{bits}"): (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}

_NUMBERS = frozenset({"integer", "fraction", "exponent"})
_FLOAT32_LIMIT = (2 - 2**-24) * 2.0**127
"""What is at least so large becomes infinite in 32 bits."""

_MOMENTS = frozenset({BaseType.DATE, BaseType.DATETIME})
_MOMENT_LENGTHS = frozenset({None, 10, 16, 19, *range(21, 27)})
"""Of dates, and of timestamps with minutes, seconds or up to six digits of a fraction. Null has None."""

_MAX_PLAIN_NUMBER = 38
_SHORT_NUMBER = r"-?(?:(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{0,20})?|\.[0-9]{1,20})"
_NUMBER = r"-?(?:(?:0|[1-9]\d{0,8})(?:\.\d{0,28})?|[1-9]\d{9,18}(?:\.\d{0,19})?|[1-9]\d{19,37}|\.\d{1,37})"
"""With at most 38 digits none has too many, or is out of the range of 32 bit floats."""
_DAY = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-[0-9]{2}-[0-9]{2}"
_FAMILIES: Mapping[BaseType, str] = {
    **dict.fromkeys(RANGES, r"^-?(?:0|[1-9][0-9]{0,18})$"),
    BaseType.FLOAT32: rf"^(?:{_NUMBER}|{_SHORT_NUMBER}[eE][+-]?[0-9])$",
    BaseType.FLOAT64: rf"^(?:{_NUMBER}|{_SHORT_NUMBER}[eE][+-]?[0-9]{{1,2}})$",
    BaseType.DECIMAL: rf"^{_NUMBER}$",
    BaseType.BOOLEAN: r"^(?i:true|false)$",
    BaseType.DATE: rf"^{_DAY}$",
    BaseType.DATETIME: rf"^{_DAY}(?:[T ][0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:\.[0-9]{{1,6}})?)?Z?)?$",
    BaseType.TIME: r"^[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?$",
}
"""Cells that Arrow reads as the rules do, if it reads them at all."""


# Arrow's names of types; of the others they are those of BaseType in lower case.
_ARROW: Mapping[BaseType, str] = {
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
    """The Arrow type of the values of a column. Timestamps are UTC without a zone."""
    if column.base is BaseType.DECIMAL:
        return pa.decimal128(column.precision or 38, column.scale or 0)
    return pa.type_for_alias(_ARROW.get(column.base) or column.base.lower())


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the table to be. `source` is the place of its cells in a row, from 0."""

    source: int
    name: str
    type: ColumnType
    nullable: bool = True
    format: str | None = None
    """The format of dates or numbers that its cells are in; None: the plain forms. Columns of text have none."""
    null_words: tuple[str, ...] = ()
    """Cells of delimited text that mean NULL."""

    @property
    def takes_all(self) -> bool:
        return self.nullable and types.is_string(arrow_type(self.type)) and self.type.length is None


@dataclass(frozen=True, slots=True)
class BadRow:
    """Why a row is left out: the first reason in the order of the columns. `record` counts from 1, a header too."""

    record: int
    reason: str
    column: str | None = None

    def __str__(self) -> str:
        where = f'record {self.record}, column "{self.column}"' if self.column is not None else f"record {self.record}"
        return f"{where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Portion:
    """Some rows: how many, the good ones as a batch, how many were bad, and why the first of these are."""

    rows: int
    batch: pa.RecordBatch
    bad: int
    explained: Sequence[BadRow]
    nulls: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many cells of each column are words that mean NULL."""


@dataclass(frozen=True, slots=True)
class Converted:
    """The values of a column, null where nothing or nothing fitting was; and the rows with what does not fit."""

    values: pa.Array
    misfits: Sequence[int] = ()


class RowConverter:
    """Makes portions. `explain` bad rows at most are explained, in all."""

    def __init__(self, columns: Sequence[TargetColumn], *, explain: int) -> None:
        self._columns = columns
        self._schema = pa.schema([(one.name, arrow_type(one.type)) for one in columns])
        self._explain = explain

    def block(self, block: Block, *, has_header: bool) -> Portion:
        """Rows of delimited text. `has_header`: the first record of the file is none."""
        skip = 1 if has_header and block.first_record == 1 else 0
        texts = block.columns.slice(skip)
        bad = {row - skip: _Bad(None, _LONG) for row in block.long_rows if row >= skip}
        cells = [
            without_words(texts.column(one.source), one.null_words) if one.null_words else texts.column(one.source)
            for one in self._columns
        ]
        converted = [convert(own, one.type, one.format) for own, one in zip(cells, self._columns, strict=True)]
        portion = self._portion(converted, cells, bad, texts.num_rows, block.first_record + skip)
        nulls = {
            column.name: own.null_count - texts.column(column.source).null_count
            for own, column in zip(cells, self._columns, strict=True)
            if column.null_words
        }
        return replace(portion, nulls=nulls) if nulls else portion

    def cells(self, rows: Sequence[Sequence[TypedText]], first_record: int) -> Portion:
        columns: list[list[str | None]] = []
        converted: list[Converted] = []
        for column in self._columns:
            own = (row[column.source] for row in rows)
            is_text = types.is_string(arrow_type(column.type))
            cells = [None if is_null(cell, is_text=is_text) else str(cell) for cell in own]
            columns.append(cells)
            if column.format is None:
                converted.append(convert_cells(cells, column.type))
            else:
                converted.append(convert(pa.array(cells, pa.string()), column.type, column.format))
        return self._portion(converted, columns, {}, len(rows), first_record)

    def records(
        self, rows: pa.RecordBatch, strange: Sequence[tuple[int, int | None, str]], first_record: int
    ) -> Portion:
        """Rows of a file of records: values of the types of its columns, or texts of such values.

        `strange`: rows that cannot be read, for a column or, None, as a whole, and why.
        """
        cells = [rows.column(one.source) for one in self._columns]
        converted = [_of_values(own, one) for own, one in zip(cells, self._columns, strict=True)]
        kept = {one.source: at for at, one in enumerate(self._columns)}
        bad: dict[int, _Bad] = {}
        for row, source, reason in strange:
            if source is None or source in kept:
                bad.setdefault(row, _Bad(None if source is None else kept[source], reason))
        return self._portion(converted, cells, bad, rows.num_rows, first_record)

    def _portion(
        self, converted: Sequence[Converted], cells: "_Cells", bad: "dict[int, _Bad]", rows: int, first_record: int
    ) -> Portion:
        for at, (one, column) in enumerate(zip(converted, self._columns, strict=True)):
            for row in one.misfits:
                bad.setdefault(row, _Bad(at))
            if not column.nullable and one.values.null_count:
                for row in kernels.indices_nonzero(kernels.is_null(one.values)).to_pylist():
                    bad.setdefault(row, _Bad(at, _NULL))
        batch = pa.RecordBatch.from_arrays([one.values for one in converted], schema=self._schema)
        if bad and converted:
            batch = batch.filter(pa.array([row not in bad for row in range(rows)], pa.bool_()))
        return Portion(rows, batch, len(bad), list(self._explained(bad, cells, first_record)))

    def _explained(self, bad: "dict[int, _Bad]", cells: "_Cells", first_record: int) -> Iterator[BadRow]:
        for row in sorted(bad)[: self._explain]:
            self._explain -= 1
            at, reason = bad[row].column, bad[row].reason
            if at is None:
                yield BadRow(first_record + row, reason)
                continue
            column, own = self._columns[at], cells[at]
            is_array = isinstance(own, pa.Array)
            cell = str(plain_texts(cast("pa.Array", own).slice(row, 1))[0] if is_array else own[row])
            yield BadRow(first_record + row, reason or _reason(column, cell), column.name)


def _reason(column: TargetColumn, cell: str) -> str:
    try:
        if column.format is not None:
            plain: str | None = rewritten(pa.array([cell.strip(BLANKS)], pa.string()), column.format)[0].as_py()
            if plain is None:
                raise _misfit(cell, f"in the format {column.format}")
            cell = plain
        converter(column.type)(cell)
    except CellMisfit as misfit:
        return str(misfit)
    raise AssertionError(cell)


_Cells: TypeAlias = "Sequence[Sequence[str | None] | pa.StringArray]"


@dataclass(frozen=True, slots=True)
class _Bad:
    """The column that makes a row bad, None: the row itself. Without a reason, `_reason` computes it."""

    column: int | None
    reason: str = ""


def _of_values(values: pa.Array, column: TargetColumn) -> Converted:
    """Texts stay what they are, also blank ones; values of another type than the column's go by way of their text."""
    wanted = arrow_type(column.type)
    if types.is_string(wanted):
        return within_length(plain_texts(values), column.type)
    if values.type == wanted:
        return Converted(values)
    if types.is_binary(wanted):
        # Texts of bytes are base64.
        return Converted(pa.array([None if text is None else b64decode(text) for text in values.to_pylist()], wanted))
    return convert(plain_texts(values), column.type, column.format)


def convert(cells: pa.StringArray, column: ColumnType, form: str | None = None) -> Converted:
    """Null cells are missing, empty or an unquoted null; empty ones were quoted (see `Block`).

    `form`: the format of dates or numbers that all cells must be in, of a column that is no text.
    """
    if types.is_string(arrow_type(column)):
        return within_length(without_nulls(cells, is_text=True), column)
    texts = without_nulls(cells, is_text=False)
    if form is not None:
        plain = rewritten(texts, form)
        strange = kernels.and_(kernels.is_valid(texts), kernels.is_null(plain))
        converted = convert(plain, column)
        return Converted(converted.values, sorted({*kernels.indices_nonzero(strange).to_pylist(), *converted.misfits}))
    if (whole := _whole(texts, column)) is not None:
        return Converted(whole)
    wanted = arrow_type(column)
    if column.base not in _FAMILIES:
        return convert_cells(texts.to_pylist(), column)
    matches = kernels.fill_null(kernels.match_substring_regex(texts, _FAMILIES[column.base]), fill_value=False)
    try:
        known = _cast(kernels.if_else(matches, texts, pa.scalar(None, pa.string())), wanted)
    except pa.ArrowInvalid:  # a day that is none, or a number out of range: Arrow does not name the cell
        return convert_cells(texts.to_pylist(), column)
    doubted = kernels.and_(kernels.is_valid(texts), kernels.invert(matches))
    rest = convert_cells(texts.filter(doubted).to_pylist(), column)
    values = kernels.replace_with_mask(known, doubted, rest.values)
    rows = kernels.indices_nonzero(doubted).to_pylist()
    return Converted(values, [rows[at] for at in rest.misfits])


def within_length(texts: pa.StringArray, column: ColumnType) -> Converted:
    """Texts; those that are too long for the column do not fit."""
    if column.length is None:
        return Converted(texts)
    is_long = kernels.fill_null(kernels.greater(kernels.utf8_length(texts), column.length), fill_value=False)
    rows = kernels.indices_nonzero(is_long).to_pylist()
    return Converted(kernels.if_else(is_long, pa.scalar(None, pa.string()), texts) if rows else texts, rows)


def convert_cells(cells: Sequence[str | None], column: ColumnType) -> Converted:
    """The same, one by one. None is NULL already."""
    convert_one = converter(column)
    values: list[Value | None] = []
    misfits: list[int] = []
    for row, cell in enumerate(cells):
        value = None
        if cell is not None:
            try:
                value = convert_one(cell)
            except CellMisfit:
                misfits.append(row)
        values.append(value)
    return Converted(pa.array(values, arrow_type(column)), misfits)


def without_nulls(cells: pa.StringArray, *, is_text: bool) -> pa.StringArray:
    """Cells that mean NULL as nulls: blank ones and `\\N`; in columns of text an empty quoted one stays."""
    trimmed = kernels.utf8_trim(cells, characters=BLANKS)
    means_null = kernels.or_(kernels.equal(trimmed, ""), kernels.equal(trimmed, r"\N"))
    if is_text:
        means_null = kernels.and_(means_null, kernels.not_equal(cells, ""))
        return kernels.if_else(means_null, pa.scalar(None, pa.string()), cells)
    return kernels.if_else(means_null, pa.scalar(None, pa.string()), trimmed)


def _whole(texts: pa.StringArray, column: ColumnType) -> pa.Array | None:
    """A column by Arrow alone, without patterns; None: it may read some cells otherwise than the rules do."""
    try:
        if column.base in _MOMENTS:
            lengths = set(kernels.unique(kernels.binary_length(texts)).to_pylist())
            has_year_zero = kernels.any(kernels.starts_with(texts, "0000")).as_py()
            is_plain = lengths <= _MOMENT_LENGTHS and not has_year_zero
            return kernels.cast(texts, arrow_type(column)) if is_plain else None
        if column.base in RANGES or column.base is BaseType.BOOLEAN:
            values = kernels.cast(texts, arrow_type(column))
            is_same = kernels.all(kernels.equal(kernels.cast(values, pa.string()), texts), min_count=0).as_py()
            return values if is_same else None
        if column.base in {BaseType.FLOAT32, BaseType.FLOAT64, BaseType.DECIMAL}:
            return _cast(texts, arrow_type(column)) if _are_plain_fractions(texts) else None
    except pa.ArrowInvalid:
        pass
    return None


def _are_plain_fractions(texts: pa.StringArray) -> bool:
    """Whether no number has more than 38 characters, an exponent, a plus or a leading zero, or is nan or infinite."""
    known = texts.drop_null()
    joined = kernels.binary_join(pa.ListArray.from_arrays([0, len(known)], known), ",")[0].as_buffer().to_pybytes()
    if any(sign in joined for sign in (b"e", b"E", b"n", b"N", b"+", b"-0")) or _longest(known) > _MAX_PLAIN_NUMBER:
        return False
    zeros = kernels.starts_with(known, "0"), kernels.equal(known, "0"), kernels.starts_with(known, "0.")
    begun, alone, fractions = (kernels.sum(each, min_count=0).as_py() for each in zeros)
    return begun == alone + fractions


def _longest(texts: pa.StringArray) -> int:
    return kernels.max(kernels.binary_length(texts)).as_py() or 0


def _cast(texts: pa.StringArray, wanted: pa.DataType) -> pa.Array:
    """Raises ArrowInvalid when a text is not of the type or out of its range."""
    if types.is_floating(wanted):
        return kernels.cast(kernels.cast(texts, pa.float64()), wanted)
    if types.is_time(wanted):
        # By way of timestamps of the first day, for Arrow reads no times.
        moments = kernels.cast(kernels.binary_join_element_wise("1970-01-01", texts, " "), pa.timestamp("us"))
        return kernels.cast(moments, wanted)
    if types.is_timestamp(wanted):
        return kernels.cast(kernels.ascii_rtrim(texts, characters="Z"), wanted)
    if types.is_decimal(wanted) and _longest(texts) + wanted.scale > _MAX_PLAIN_NUMBER:
        # Arrow does not see when moving the point leaves 128 bits; 256 it does not leave.
        return kernels.cast(kernels.cast(texts, pa.decimal256(76, wanted.scale)), wanted)
    return kernels.cast(texts, wanted)


def plain_texts(values: pa.Array) -> pa.StringArray:
    """The text of each value, with all its digits; NULL stays NULL."""
    if isinstance(values, pa.StringArray):
        return values
    if types.is_duration(values.type):
        return duration_text(values)
    kind = ResultType.BOOLEAN if types.is_boolean(values.type) else ResultType.STRING
    kind = ResultType.DECIMAL if types.is_decimal(values.type) else kind
    return texts(values, Column("", kind, "")).cast(pa.string())


class CellMisfit(ValueError):
    """A value that its column does not take; the text is the reason, with at most some sixty characters of the cell."""


def is_null(cell: str, *, is_text: bool) -> bool:
    """Whether a cell means NULL; in columns of text an empty quoted one does not.

    The class decides for cells of workbooks. Of others NULL are those that are blank, `\\N`, or an unquoted null.
    """
    if isinstance(cell, TypedText):
        return cell.kind is CellKind.NULL
    stripped = cell.strip(BLANKS)
    if not stripped:
        return not (is_text and not cell and isinstance(cell, QuotedText))
    return stripped == r"\N" or (stripped.lower() == "null" and not isinstance(cell, QuotedText))


def converter(column: ColumnType) -> Callable[[str], Value]:
    """What makes values of a column of cells that are not NULL. It raises CellMisfit."""
    base = column.base
    if base in RANGES:
        least, greatest = RANGES[base]
        return lambda cell: _integer(cell.strip(BLANKS), least, greatest, base)
    if base is BaseType.DECIMAL:
        precision, scale = column.precision or MAX_INTEGER_DIGITS, column.scale or 0
        return lambda cell: _decimal(cell.strip(BLANKS), precision, scale)
    if base in _SIMPLE:
        read = _SIMPLE[base]
        return lambda cell: read(cell.strip(BLANKS))
    if (length := column.length) is None:
        return str

    def short_text(text: str) -> str:
        if len(text) > length:
            raise CellMisfit(f"{_shown(text)} has more than {length} characters")
        return text

    return short_text


def _integer(text: str, least: int, greatest: int, base: BaseType) -> int:
    if form_of(text) != "integer":
        raise _misfit(text, "an integer")
    if len(text) > MAX_INTEGER_DIGITS or not least <= (value := int(text)) <= greatest:
        raise CellMisfit(f"{_shown(text)} is out of the range of {base.value}")
    return value


def _number(text: str) -> str:
    """The text of a finite number, whose digits are not too many."""
    if form_of(text) not in _NUMBERS:
        raise _misfit(text, "a number")
    if facts_of_text(text).kind is CellKind.TEXT:
        raise CellMisfit(f"{_shown(text)} has more than {MAX_INTEGER_DIGITS} digits")
    return text


def _double(text: str) -> float:
    if form_of(text) == "non_finite":
        return float(text)
    value = float(_number(text))
    if math.isinf(value):
        raise CellMisfit(f"{_shown(text)} is out of range")
    return value


def _single(text: str) -> float:
    value = _double(text)
    if math.isfinite(value) and abs(value) >= _FLOAT32_LIMIT:
        raise CellMisfit(f"{_shown(text)} is out of range")
    return value


def _decimal(text: str, precision: int, scale: int) -> Decimal:
    value = Decimal(_number(text))
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    try:
        fixed = value.quantize(Decimal(1).scaleb(-scale), context=context)
    except (Inexact, InvalidOperation):
        digits = f"{precision} digits with {scale} of them behind the point"
        raise CellMisfit(f"{_shown(text)} does not fit {digits}") from None
    return fixed or Decimal(0)


def _boolean(text: str) -> bool:
    if form_of(text) != "boolean":
        raise _misfit(text, "true or false")
    return text.lower() == "true"


def _date(text: str) -> date:
    if form_of(text) != "date":
        raise _misfit(text, "a date")
    return date(int(text[:4]), int(text[5:7]), int(text[8:]))


def _timestamp(text: str) -> datetime:
    if form_of(text) == "date":
        return datetime.combine(_date(text), time())
    found = _TIMESTAMP.fullmatch(text) if form_of(text) == "timestamp" else None
    if found is None:
        raise _misfit(text, "a timestamp")
    *parts, fraction, sign, hours, minutes = found.groups()
    year, month, day, hour, minute, second = (int(part or 0) for part in parts)
    moment = datetime(year, month, day, hour, minute, second, _microseconds(fraction), tzinfo=UTC)
    if sign is not None:
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        try:
            moment = moment - offset if sign == "+" else moment + offset
        except OverflowError:
            raise CellMisfit(f"{_shown(text)} is out of range") from None
    return moment.replace(tzinfo=None)


def _time(text: str) -> time:
    found = _TIME.fullmatch(text) if form_of(text) == "time" else None
    if found is None:
        raise _misfit(text, "a time")
    return time(int(found[1]), int(found[2]), int(found[3] or 0), _microseconds(found[4]))


def _duration(text: str) -> timedelta:
    if (found := _DURATION.fullmatch(text)) is None:
        raise _misfit(text, "a duration")
    sign, hours, minutes, seconds, fraction = found.groups()
    length = timedelta(
        hours=int(hours), minutes=int(minutes), seconds=int(seconds or 0), microseconds=_microseconds(fraction)
    )
    return -length if sign else length


_SIMPLE: Mapping[BaseType, Callable[[str], Value]] = {
    BaseType.FLOAT32: _single,
    BaseType.FLOAT64: _double,
    BaseType.BOOLEAN: _boolean,
    BaseType.DATE: _date,
    BaseType.DATETIME: _timestamp,
    BaseType.TIME: _time,
    BaseType.DURATION: _duration,
}


def _microseconds(fraction: str | None) -> int:
    return int((fraction or "")[:6].ljust(6, "0"))


def _misfit(text: str, wanted: str) -> CellMisfit:
    return CellMisfit(f"{_shown(text)} is not {wanted}")


def _shown(text: str) -> str:
    """The beginning of a cell, on one line."""
    cut = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
    return '"' + "".join(one if one.isprintable() else "�" for one in cut) + '"'
