"""A column of text as typed Arrow, many cells at a time; what it gives is always what `exact` says.

Arrow reads numbers and times more freely than the rules do (`007`, `0x1F`, `+5`). So a column is read by it only if
cheap looks at all its characters leave no doubt; else only those cells are that match the rules by a pattern, and the
others go one by one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from queryserver.domain.import_types import arrow_type
from queryserver.domain.importing import BaseType, ColumnType
from queryserver.formats.cell_types.classes import BLANKS
from queryserver.formats.cell_types.rewriting import rewritten
from queryserver.formats.cells_kernels import kernels
from queryserver.formats.converting.exact import RANGES, Misfit, Value, converter

_BLANKS_BUT_SPACES = (b"\t", b"\r", b"\n", b"\f", b"\v")
_HEXADECIMAL = (b"x", b"X")
_UNUSUAL_FRACTIONS = (b"e", b"E", b"n", b"N", b"+")
"""What is in exponents, in nan, inf and infinity, and after signs that the rules do not know."""

_MAX_PLAIN_NUMBER = 38
"""No number of so few characters has too many digits, or is out of the range of 32 bit floats."""

_NAIVE_LENGTHS = frozenset({10, 16, 19, *range(21, 27)})
_ZULU_LENGTHS = frozenset({17, 20, *range(22, 28)})
_CLOCK_LENGTHS = frozenset({5, 8, *range(10, 16)})

_SHORT_NUMBER = r"-?(?:(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{0,15})?|\.[0-9]{1,15})"
_DAY = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-[0-9]{2}-[0-9]{2}"
_FAMILIES: Mapping[BaseType, str] = {
    **dict.fromkeys(RANGES, r"^-?(?:0|[1-9][0-9]{0,17})$"),
    BaseType.FLOAT32: rf"^{_SHORT_NUMBER}(?:[eE][+-]?[0-9])?$",
    BaseType.FLOAT64: rf"^{_SHORT_NUMBER}(?:[eE][+-]?[0-9]{{1,2}})?$",
    BaseType.DECIMAL: r"^-?(?:(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{0,18})?|\.[0-9]{1,18})$",
    BaseType.BOOLEAN: r"^(?i:true|false)$",
    BaseType.DATE: rf"^{_DAY}$",
    BaseType.DATETIME: rf"^{_DAY}(?:[T ][0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:\.[0-9]{{1,6}})?)?)?$",
    BaseType.TIME: r"^[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?$",
}
"""Cells that Arrow reads as the rules do, if it reads them at all."""


@dataclass(frozen=True, slots=True)
class Converted:
    """The values of a column, null where nothing or nothing fitting was; and the rows with what does not fit."""

    values: pa.Array
    misfits: Sequence[int] = ()


def convert(cells: pa.StringArray, column: ColumnType, form: str | None = None) -> Converted:
    """Null cells are missing, empty or an unquoted null; empty ones were quoted (see `formats.delimited.blocks`).

    `form`: the format of dates or numbers that all cells must be in, of a column that is no text.
    """
    if pa.types.is_string(arrow_type(column)):
        return within_length(_texts(cells), column)
    if form is not None:
        return _in_format(without_nulls(cells, is_text=False), column, form)
    try:
        found = _DIRECT[column.base](cells, column) if column.base in _DIRECT else None
    except pa.ArrowInvalid:
        found = None
    return Converted(found) if found is not None else _by_patterns(cells, column)


def within_length(texts: pa.StringArray, column: ColumnType) -> Converted:
    """Texts; those that are too long for the column do not fit."""
    if column.length is None:
        return Converted(texts)
    is_long = kernels.fill_null(kernels.greater(kernels.utf8_length(texts), column.length), fill_value=False)
    rows = kernels.indices_nonzero(is_long).to_pylist()
    return Converted(kernels.if_else(is_long, pa.scalar(None, pa.string()), texts) if rows else texts, rows)


def _in_format(texts: pa.StringArray, column: ColumnType, form: str) -> Converted:
    plain = rewritten(texts, form)
    strange = kernels.and_(kernels.is_valid(texts), kernels.is_null(plain))
    converted = convert(plain, column)
    return Converted(converted.values, sorted({*kernels.indices_nonzero(strange).to_pylist(), *converted.misfits}))


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
            except Misfit:
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


def _texts(cells: pa.StringArray) -> pa.StringArray:
    data = _bytes_of(cells)
    begins_blank = b" " in data and kernels.any(kernels.starts_with(cells, " ")).as_py()
    if begins_blank or b"\\N" in data or _has_any(data, _BLANKS_BUT_SPACES):
        return without_nulls(cells, is_text=True)
    return cells


def _by_patterns(cells: pa.StringArray, column: ColumnType) -> Converted:
    texts = without_nulls(cells, is_text=False)
    wanted = arrow_type(column)
    if column.base not in _FAMILIES:
        return convert_cells(texts.to_pylist(), column)
    matches = kernels.fill_null(kernels.match_substring_regex(texts, _FAMILIES[column.base]), fill_value=False)
    try:
        known = _cast(kernels.if_else(matches, texts, pa.scalar(None, pa.string())), wanted)
    except pa.ArrowInvalid:  # a day that is none, a number out of range: which one it is, Arrow does not tell
        return convert_cells(texts.to_pylist(), column)
    doubted = kernels.and_(kernels.is_valid(texts), kernels.invert(matches))
    rest = convert_cells(texts.filter(doubted).to_pylist(), column)
    values = kernels.replace_with_mask(known, doubted, rest.values)
    rows = kernels.indices_nonzero(doubted).to_pylist()
    return Converted(values, [rows[at] for at in rest.misfits])


def _cast(texts: pa.StringArray, wanted: pa.DataType) -> pa.Array:
    """Raises ArrowInvalid when a text is not of the type or out of its range."""
    if pa.types.is_floating(wanted):
        return kernels.cast(kernels.cast(texts, pa.float64()), wanted)
    if pa.types.is_time(wanted):
        return _clock(texts)
    if pa.types.is_decimal(wanted) and _longest(texts) + wanted.scale > _MAX_PLAIN_NUMBER:
        # Arrow does not see when moving the point leaves 128 bits; 256 it does not leave.
        return kernels.cast(kernels.cast(texts, pa.decimal256(76, wanted.scale)), wanted)
    return kernels.cast(texts, wanted)


def _clock(texts: pa.StringArray) -> pa.Array:
    """Times by way of timestamps of the first day, for Arrow reads no others."""
    moments = kernels.cast(kernels.binary_join_element_wise("1970-01-01", texts, " "), pa.timestamp("us"))
    return kernels.cast(moments, pa.time64("us"))


def _bytes_of(cells: pa.StringArray) -> bytes:
    """The characters of all cells, one after another."""
    _, offsets, data = cells.buffers()
    if data is None or not len(cells):
        return b""
    places = memoryview(offsets).cast("i")
    return data.slice(places[cells.offset], places[cells.offset + len(cells)] - places[cells.offset]).to_pybytes()


def _has_any(data: bytes, wanted: Iterable[bytes]) -> bool:
    return any(one in data for one in wanted)


def _has_plain_zeros(cells: pa.StringArray, data: bytes, *, point: bool) -> bool:
    """Whether no number has a zero before its other digits."""
    if b"-0" in data:
        return False
    zeros = _count(kernels.starts_with(cells, "0"))
    if not zeros:
        return True
    return zeros == _count(kernels.equal(cells, "0")) + (_count(kernels.starts_with(cells, "0.")) if point else 0)


def _integers(cells: pa.StringArray, column: ColumnType) -> pa.Array | None:
    data = _bytes_of(cells)
    if _has_any(data, _HEXADECIMAL) or not _has_plain_zeros(cells, data, point=False):
        return None
    return kernels.cast(cells, arrow_type(column))


def _fractions(cells: pa.StringArray, column: ColumnType) -> pa.Array | None:
    data = _bytes_of(cells)
    if _has_any(data, _UNUSUAL_FRACTIONS) or _longest(cells) > _MAX_PLAIN_NUMBER:
        return None
    return _cast(cells, arrow_type(column)) if _has_plain_zeros(cells, data, point=True) else None


def _booleans(cells: pa.StringArray, column: ColumnType) -> pa.Array | None:
    return None if _has_any(_bytes_of(cells), (b"0", b"1")) else kernels.cast(cells, arrow_type(column))


def _dates(cells: pa.StringArray, column: ColumnType) -> pa.Array | None:
    return None if _has_year_zero(cells) else kernels.cast(cells, arrow_type(column))


def _timestamps(cells: pa.StringArray, column: ColumnType) -> pa.Array | None:
    if _has_year_zero(cells):
        return None
    if b"Z" not in _bytes_of(cells):
        return kernels.cast(cells, arrow_type(column)) if _lengths(cells) <= _NAIVE_LENGTHS else None
    if not _lengths(cells) <= _ZULU_LENGTHS or not kernels.all(kernels.ends_with(cells, "Z")).as_py():
        return None
    return kernels.cast(kernels.cast(cells, pa.timestamp("us", "UTC")), arrow_type(column))


def _times(cells: pa.StringArray, column: ColumnType) -> pa.Array | None:
    del column
    return _clock(cells) if _lengths(cells) <= _CLOCK_LENGTHS else None


_DIRECT: Mapping[BaseType, Callable[[pa.StringArray, ColumnType], pa.Array | None]] = {
    **dict.fromkeys(RANGES, _integers),
    BaseType.FLOAT32: _fractions,
    BaseType.FLOAT64: _fractions,
    BaseType.DECIMAL: _fractions,
    BaseType.BOOLEAN: _booleans,
    BaseType.DATE: _dates,
    BaseType.DATETIME: _timestamps,
    BaseType.TIME: _times,
}
"""Whole columns by Arrow; None, or ArrowInvalid: there are cells that need a closer look."""


def _has_year_zero(cells: pa.StringArray) -> bool:
    return bool(kernels.any(kernels.starts_with(cells, "0000")).as_py())


def _lengths(cells: pa.StringArray) -> frozenset[int]:
    """All lengths that there are; None of a null left out."""
    lengths = kernels.binary_length(cells)
    shortest, longest = kernels.min_max(lengths).as_py().values()
    if shortest == longest:
        return frozenset() if shortest is None else frozenset({shortest})
    return frozenset(length for length in kernels.unique(lengths).to_pylist() if length is not None)


def _longest(cells: pa.StringArray) -> int:
    return kernels.max(kernels.binary_length(cells)).as_py() or 0


def _count(mask: pa.BooleanArray) -> int:
    return kernels.sum(mask).as_py() or 0
