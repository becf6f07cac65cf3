"""Columns as columns of text: the raw text forms of Contract editor 6.3, a whole array at a time; CSV and JSON Lines.

Arrow's kernels make 1,000,000 x 10 texts in some 0.5 s; Python objects would take ten times as long. So only what
Arrow has no kernel for goes through `cell_values`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pyarrow as pa

from queryserver.formats.arrow import is_text, kernels
from queryserver.formats.cells import cell_values
from queryserver.formats.columns import Column, ResultType
from queryserver.formats.download.encoder import Encoder, unique_names
from queryserver.formats.text_forms import text_form, without_zero_fraction

NUMERIC_TYPES = frozenset(
    ResultType(f"{name}_TYPE") for name in ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")
)
NESTED_TYPES = frozenset({ResultType.ARRAY, ResultType.MAP, ResultType.STRUCT, ResultType.UNION})


def some(mask: pa.Array) -> bool:
    """Whether any value is true; NULL is not."""
    return bool(kernels.any(mask).as_py())


def every(mask: pa.Array) -> bool:
    """Whether all values but NULLs are true."""
    return kernels.all(mask).as_py() is not False


def largest(array: pa.Array) -> int:
    return kernels.max(array).as_py() or 0


def joined(*pieces: pa.Array | str, separator: str = "", null: str | None = None) -> pa.Array:
    """The pieces of each row as one text; a NULL counts as `null`, or without that makes the row NULL."""
    handling = "emit_null" if null is None else "replace"
    return kernels.binary_join_element_wise(*pieces, separator, null_handling=handling, null_replacement=null or "")


def row_bytes(*pieces: pa.Array | str, separator: str = "", null: str = "") -> bytes:
    """The pieces of each row, joined, one row after the other."""
    rows = joined(*pieces, separator=separator, null=null)
    _, offsets, characters = rows.buffers()
    if offsets is None or characters is None:
        return b""
    return characters.slice(0, memoryview(offsets).cast("i")[len(rows)]).to_pybytes()


def changed(texts: pa.Array, where: pa.Array, change: Callable[[Any], str], *, of: pa.Array | None = None) -> pa.Array:
    """Texts, but where the mask is true `change` of the value there, of the texts or of another array.

    `change` is Python and slow; it is called once for each different value.
    """
    if not some(where):
        return texts
    found = (texts if of is None else of).filter(where).dictionary_encode()
    spelled = pa.array([change(value) for value in found.dictionary.to_pylist()], pa.string())
    return kernels.replace_with_mask(texts, kernels.fill_null(where, False), spelled.take(found.indices))


def is_free_text(kind: pa.DataType) -> bool:
    """Whether the texts of an array can hold any character, in contrast to numbers, times and booleans."""
    if pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return True
    return not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind))


def texts(array: pa.Array, column: Column) -> pa.Array:
    """The raw text of each value; NULL stays NULL. Binary is base64, nested values are compact JSON."""
    made = text_form(array)
    if made is None and needs_values(array.type, column):
        return value_texts(cell_values(array, column))
    if made is None and pa.types.is_floating(array.type):
        return _float_texts(array)
    return array.cast(pa.string()) if made is None else made


def value_texts(values: Sequence[object]) -> pa.Array:
    return pa.array(
        [value if value is None or isinstance(value, str) else orjson.dumps(value).decode() for value in values],
        pa.string(),
    )


def json_texts(array: pa.Array, column: Column) -> pa.Array:
    """The raw form of each value as JSON text; NULL stays NULL."""
    kind = array.type
    if is_text(kind) and column.type not in NESTED_TYPES:
        strings = texts(array, column)
        to_escape = kernels.match_substring_regex(strings, r'["\\\x00-\x1f]')
        quoted = joined('"', strings, '"')
        return changed(quoted, to_escape, lambda text: orjson.dumps(text).decode(), of=strings)
    if is_text(kind) or needs_values(kind, column):
        values = cell_values(array, column)
        return pa.array([None if value is None else orjson.dumps(value) for value in values], pa.string())
    plain = texts(array, column)
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and column.type is not ResultType.DECIMAL):
        return plain
    if pa.types.is_floating(kind):
        return kernels.if_else(kernels.is_finite(array), plain, joined('"', plain, '"'))
    return joined('"', plain, '"')


def needs_values(kind: pa.DataType, column: Column) -> bool:
    """Whether only `cell_values` makes the raw form, for values that are not text."""
    # sqlite has no booleans: a column declared so holds integers.
    return is_free_text(kind) or (column.type is ResultType.BOOLEAN and pa.types.is_integer(kind))


def _float_texts(array: pa.Array) -> pa.Array:
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    shortest = array.cast(pa.string())
    whole = kernels.invert(kernels.match_substring_regex(shortest, "[.en]"))
    if some(whole):
        shortest = kernels.if_else(whole, joined(shortest, ".0"), shortest)
    names = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return changed(shortest, kernels.invert(kernels.is_finite(array)), names.__getitem__)


class JsonLinesEncoder(Encoder):
    """Values in the raw form of Contract editor 6.3; repeated names get `_2`, `_3`, …"""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self._columns = columns
        names = unique_names([column.name for column in columns])
        self._keys = ["{,"[number > 0] + orjson.dumps(name).decode() + ":" for number, name in enumerate(names)]

    def rows(self, batch: pa.RecordBatch) -> bytes:
        pieces: list[pa.Array | str] = []
        for key, array, column in zip(self._keys, batch.columns, self._columns, strict=True):
            pieces += [key, json_texts(array, column)]
        return row_bytes(*pieces, "}\n", null="null")


_LINE_END = "\r\n"
_FORMULA_START = r"^[=+\-@\t\r]"
_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|Infinity|NaN)$"


class CsvEncoder(Encoder):
    """Quotes only what needs it. NULL is nothing, an empty text is `""`. In a file of one column both are `""`, since
    pandas and pyarrow skip empty lines.

    `guard` puts `'` before texts that a spreadsheet would take for a formula (Contract security T5).
    """

    def __init__(self, columns: tuple[Column, ...], *, separator: str, guard: bool) -> None:
        self._columns = columns
        self._separator = separator
        self._guard = guard
        self._to_quote = f'["\r\n{separator}]'

    def start(self) -> bytes:
        names = [pa.array([column.name], pa.string()) for column in self._columns]
        if self._guard:
            names = [_guarded(name, kernels.match_substring_regex(name, _FORMULA_START)) for name in names]
        return self._joined([self._quoted(name) for name in names])

    def rows(self, batch: pa.RecordBatch) -> bytes:
        return self._joined(list(map(self._cells, batch.columns, self._columns)))

    def _cells(self, array: pa.Array, column: Column) -> pa.Array:
        cells = texts(array, column)
        if not is_free_text(array.type):
            return cells
        if self._guard:
            formulas = kernels.match_substring_regex(cells, _FORMULA_START)
            if not is_text(array.type) or column.type in NUMERIC_TYPES:
                # Numbers may stand here as text: decimals of any length, values of a column without one type.
                formulas = kernels.and_(formulas, kernels.invert(kernels.match_substring_regex(cells, _NUMBER)))
            cells = _guarded(cells, formulas)
        return self._quoted(cells)

    def _quoted(self, cells: pa.Array) -> pa.Array:
        to_quote = kernels.or_(
            kernels.match_substring_regex(cells, self._to_quote), kernels.equal(kernels.binary_length(cells), 0)
        )
        if not some(to_quote):
            return cells
        quoted = joined('"', kernels.replace_substring(cells, '"', '""'), '"')
        return kernels.if_else(to_quote, quoted, cells)

    def _joined(self, cells: list[pa.Array]) -> bytes:
        last = joined(cells[-1], _LINE_END, null="" if len(cells) > 1 else '""')
        return row_bytes(*cells[:-1], last, separator=self._separator)


def _guarded(cells: pa.Array, formulas: pa.Array) -> pa.Array:
    if not some(formulas):
        return cells
    return kernels.if_else(formulas, joined("'", cells), cells)


_HOUR_US = 3_600_000_000


def duration_text(durations: pa.Array) -> pa.StringArray:
    """Durations in microseconds as `30:00:00`, `-00:00:00.500000`: hours, which may exceed 24; a fraction if any."""
    microseconds = durations.cast(pa.int64())
    size = kernels.abs(microseconds)
    hours = kernels.divide(size, _HOUR_US)
    rest = kernels.subtract(size, kernels.multiply(hours, _HOUR_US)).cast(pa.time64("us"))
    minutes = kernels.utf8_slice_codeunits(without_zero_fraction(rest.cast(pa.string())), 2)
    sign = kernels.if_else(kernels.less(microseconds, 0), "-", "")
    padded = kernels.utf8_lpad(hours.cast(pa.string()), 2, "0")
    return kernels.binary_join_element_wise(sign, padded, minutes, "")
