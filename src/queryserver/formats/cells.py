"""Converts Arrow columns to JSON cells, either raw or in the form that Hue's clients expect (Contract editor 6.3).

Whole columns are converted at once: Arrow turns a column into numbers, booleans or text (`text_forms.py`) in C++. Only
nested values and unions are converted one by one in Python.
"""

import html
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import accumulate, chain, pairwise, takewhile
from typing import Any, TypeAlias

import orjson
import pyarrow as pa
from pyarrow import types

from queryserver.formats.arrow import (
    NUMBERS_AS_TEXT,
    Column,
    ResultType,
    decoded_bytes,
    field_names,
    is_binary,
    is_text,
    kernels,
    split_batch,
    union_offsets,
)
from queryserver.formats.text_forms import text_form

# Rows are rendered in blocks of about this many Arrow bytes. This limits the number of Python values in memory when a
# page ends at `max_bytes`: a one-letter string takes about 50 bytes in Python.
BLOCK_BYTES = 2 * 1024 * 1024
_PYTHON_BYTES_PER_BYTE = 12
_JSON_BYTES_PER_BYTE = 4
_ESCAPED_CHARACTERS = {False: r"[\x00-\x07\x0b\x0e-\x1f]", True: "[&<>\"' ]"}
_ESCAPE_GROWTH = {False: len(r"\u0000") - 1, True: len("&lt;") - 1}
_SMALL = frozenset({ResultType.BOOLEAN, ResultType.TINYINT, ResultType.SMALLINT, ResultType.INT})
_NESTED = frozenset({ResultType.ARRAY, ResultType.MAP, ResultType.STRUCT, ResultType.UNION})
CellConverter: TypeAlias = Callable[[pa.Array], list[object]]
"""Converts a child array, or an array of integers, to raw cells."""

# A double represents up to 15 significant digits exactly, and orjson parses every fraction as a double.
_LONG_NUMBER = re.compile(r"\d[\d.]{15}|\d[eE][+-]?\d{3}")
_MAX_NESTED_LEVELS = 250
"""orjson serializes at most 254 levels."""
MAX_SAFE_INTEGER = 2**53 - 1
"""Up to this value, a double represents every integer exactly (JavaScript: Number.MAX_SAFE_INTEGER)."""


@dataclass(frozen=True, slots=True)
class RenderedRows:
    """Rows as JSON. The pieces, joined with commas, are the elements of the JSON array of rows.

    `is_cut` states that the next row would have exceeded the limit.
    """

    pieces: tuple[bytes, ...]
    rows: int
    is_cut: bool = False

    @property
    def json(self) -> bytes:
        return b"[" + b",".join(self.pieces) + b"]"

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.pieces)) + max(len(self.pieces) - 1, 0) + len(b"[]")


def render_page(
    batches: Sequence[pa.Table | pa.RecordBatch],
    *,
    columns: Sequence[Column],
    escape: bool,
    max_bytes: int,
    big_numbers_as_text: bool = False,
) -> RenderedRows:
    """Render as many rows of the batches as fit into `max_bytes`.

    The batches may have different Arrow types. 10,000 rows of 10 simple columns take about 7 ms.
    """
    pieces: list[bytes] = []
    rows, left = 0, max_bytes - len("[]")
    filled = (batch for batch in batches if batch.num_rows)
    for block in chain.from_iterable(split_batch(batch, BLOCK_BYTES, decoded_bytes) for batch in filled):
        if block.num_rows == 1 and block.nbytes > BLOCK_BYTES and _min_json_bytes(block, escape=escape) > left:
            return RenderedRows(tuple(pieces), rows, is_cut=True)
        values = [
            cell_values(block.column(i), column, escape=escape, big_numbers_as_text=big_numbers_as_text)
            for i, column in enumerate(columns)
        ]
        cells = list(zip(*values, strict=True)) if values else [()] * block.num_rows
        json = orjson.dumps(cells)[1:-1]
        taken = len(cells)
        if len(json) > left:
            json, taken = _fitting_rows(cells, left)
        if taken:
            pieces.append(json)
        rows += taken
        left -= len(json) + len(",")
        if taken < len(cells):
            return RenderedRows(tuple(pieces), rows, is_cut=True)
    return RenderedRows(tuple(pieces), rows)


def rendering_memory(rows: pa.Table | pa.RecordBatch, max_bytes: int | None = None) -> int:
    """Estimate the memory that rendering needs, in bytes: for the rows, for one block as Python values, and for two
    copies of the JSON of at most `max_bytes` each.
    """
    size = rows.nbytes
    json = _JSON_BYTES_PER_BYTE * size
    return (
        size
        + _PYTHON_BYTES_PER_BYTE * min(size, BLOCK_BYTES)
        + (json if max_bytes is None else min(json, 2 * max_bytes))
    )


def join_pages(pages: Sequence[RenderedRows]) -> RenderedRows:
    """Combine the rows of several pages, in order."""
    pieces = tuple(piece for page in pages for piece in page.pieces)
    return RenderedRows(pieces, sum(page.rows for page in pages), is_cut=any(page.is_cut for page in pages))


def _fitting_rows(cells: list[tuple[object, ...]], left: int) -> tuple[bytes, int]:
    """Return the JSON of as many leading rows as fit into `left` bytes, and their number."""
    rows = [orjson.dumps(row) for row in cells]
    ends = accumulate(len(row) + len(",") for row in rows)
    taken = sum(1 for _ in takewhile(lambda end: end - len(",") <= left, ends))
    return b",".join(rows[:taken]), taken


def _min_json_bytes(block: pa.Table | pa.RecordBatch, *, escape: bool) -> int:
    """Return a lower bound for the JSON size of the block's strings, including escapes, without rendering them."""
    least = 0
    for column in block.columns:
        if is_text(column.type) or is_binary(column.type):
            octets = column.cast(pa.large_binary())
            least += kernels.sum(kernels.binary_length(octets)).as_py() or 0
            if is_text(column.type):
                longer = kernels.sum(kernels.count_substring_regex(octets, _ESCAPED_CHARACTERS[escape])).as_py() or 0
                least += longer * _ESCAPE_GROWTH[escape]
    return least


def cell_values(
    array: pa.Array | pa.ChunkedArray, column: Column, *, escape: bool = False, big_numbers_as_text: bool = False
) -> list[object]:
    """Convert a column to str, int, float, bool, None, list and dict, for any JSON writer.

    Floats are finite, integers have at most 64 bits, and the keys of objects are strings. If `big_numbers_as_text` is
    set, 64-bit integers become strings. In columns of the types NUMBERS_AS_TEXT, this applies to all integers; in other
    columns, only to integers that a double cannot represent exactly.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if not big_numbers_as_text or column.type in _SMALL:
        return _cells(array, column.type, escape=escape, numbers=integers_as_numbers)
    numbers = integers_64_as_text if column.type in NUMBERS_AS_TEXT else unsafe_integers_as_text
    return _cells(array, column.type, escape=escape, numbers=numbers)


def _cells(array: pa.Array, declared: ResultType, *, escape: bool, numbers: CellConverter) -> list[object]:
    array = plain_array(array)
    kind = array.type
    if types.is_union(kind):
        member = ResultType.STRING if declared in _NESTED else declared
        return union_values(array, partial(_cells, declared=member, escape=escape, numbers=numbers))
    values = _values(array, numbers)
    if declared in _NESTED and is_text(kind):
        values = json_values(values, big_numbers_as_text=numbers is not integers_as_numbers)
    elif declared is ResultType.DECIMAL and types.is_integer(kind):
        values = array.cast(pa.string()).to_pylist()
    elif declared is ResultType.BOOLEAN and types.is_integer(kind):  # SQLite stores booleans as integers
        values = [bool(value) if value in (0, 1) else value for value in values]
    return escape_for_hue(values, array) if escape else values


def plain_array(array: pa.Array) -> pa.Array:
    """Decode dictionary, run-end encoded and extension arrays to plain arrays."""
    kind = array.type
    if types.is_dictionary(kind):
        return plain_array(array.dictionary_decode())
    if types.is_run_end_encoded(kind):
        return plain_array(kernels.run_end_decode(array))
    if not isinstance(kind, pa.BaseExtensionType):
        return array
    if kind.extension_name == "arrow.uuid":
        return pa.array([value and str(value) for value in array.to_pylist()], pa.string())
    if kind.extension_name == "arrow.bool8":
        return kernels.not_equal(array.storage, 0)
    return plain_array(array.storage)


def _values(array: pa.Array, numbers: CellConverter) -> list[object]:
    """Convert an array to raw cells based only on its Arrow type."""
    array = plain_array(array)
    kind = array.type
    if types.is_integer(kind):
        return numbers(array)
    if types.is_boolean(kind) or types.is_null(kind):
        return array.to_pylist()
    if types.is_floating(kind):
        return float_values(array)
    if (made := text_form(array)) is not None:
        return made.to_pylist()
    if types.is_nested(kind):
        return nested_values(array, partial(_values, numbers=numbers))
    return [None if value is None else str(value) for value in array.to_pylist()]


def escape_for_hue(values: list[object], array: pa.Array) -> list[object]:
    """Convert raw cells to the form that Hue's clients expect. `array` is the source of the raw cells."""
    if is_binary(array.type):
        return ["NULL" if value is None else _escaped(value.decode(errors="replace")) for value in array.to_pylist()]
    if types.is_floating(array.type):
        # repr() of a float is the shortest string that parses to the same float, and writes nan, inf and -inf like Hue.
        return ["NULL" if value is None else repr(float(value)) for value in values]  # type: ignore[arg-type]
    return [
        "NULL" if value is None
        else _escaped(value) if isinstance(value, str)
        else _escaped(orjson.dumps(value).decode()) if isinstance(value, list | dict)
        else value
        for value in values
    ]  # fmt: skip


def _escaped(text: str) -> str:
    return html.escape(text, quote=True).replace(" ", "&nbsp;")


def nested_values(array: pa.Array, values: CellConverter) -> list[object]:
    """Convert nested values to lists and dicts. Each child array is converted once, as a whole column."""
    kind = array.type
    if types.is_union(kind):
        return union_values(array, values)
    if types.is_struct(kind):
        members = _struct_values(array, values)
    elif types.is_map(kind):
        keys, items = _children(array, array.keys, values), _children(array, array.items, values)
        members = (
            {key if isinstance(key, str) else orjson.dumps(key).decode(): item for key, item in zip(*pair, strict=True)}
            for pair in zip(keys, items, strict=True)
        )
    else:
        members = _children(array, array.values, values)
    valid = array.is_valid().to_pylist() if array.null_count else None
    if valid is None:
        return list(members)
    return [member if there else None for member, there in zip(members, valid, strict=True)]


def json_values(texts: list[object], *, big_numbers_as_text: bool = False) -> list[object]:
    """Parse strings as JSON. A string that is not valid JSON stays unchanged.

    If `big_numbers_as_text` is set, integers that a double cannot represent exactly become strings.
    """
    exact = partial(_integer, least=-MAX_SAFE_INTEGER, greatest=MAX_SAFE_INTEGER)
    integer = exact if big_numbers_as_text else _integer
    return [_parsed(text, integer) if isinstance(text, str) else text for text in texts]


def _struct_values(array: pa.Array, values: CellConverter) -> Iterable[object]:
    names = field_names(array.type)
    if not names:
        return ({} for _ in range(len(array)))
    columns = [values(array.field(index)) for index in range(len(names))]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _children(array: Any, child: pa.Array, values: CellConverter) -> Iterable[list[object]]:
    """Convert the part of the child array that `array` refers to, and split the cells into one list per value."""
    bounds = _bounds(array)
    first = min((start for start, _ in bounds), default=0)
    last = max((end for _, end in bounds), default=0)
    cells = values(child.slice(first, last - first))
    return (cells[start - first : end - first] for start, end in bounds)


def _bounds(array: Any) -> list[tuple[int, int]]:
    kind = array.type
    if types.is_fixed_size_list(kind):
        size, offset = kind.list_size, array.offset
        return [(size * index, size * (index + 1)) for index in range(offset, offset + len(array))]
    offsets = array.offsets.to_pylist()
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return [(start, start + size) for start, size in zip(offsets, array.sizes.to_pylist(), strict=True)]
    return list(pairwise(offsets))


def union_values(array: pa.Array, values: CellConverter) -> list[object]:
    members = {code: values(array.field(index)) for index, code in enumerate(array.type.type_codes)}
    return [members[code][place] for code, place in zip(*union_offsets(array), strict=True)]


def _parsed(text: str, integer: Callable[[str], int | str]) -> object:
    try:
        if not _LONG_NUMBER.search(text) and text.count("[") + text.count("{") < _MAX_NESTED_LEVELS:
            return orjson.loads(text)
        value = json.loads(text, parse_int=integer, parse_float=_fraction, parse_constant=int)  # int rejects NaN
        orjson.dumps(value)  # fails for lone surrogates and too many levels, which could not be serialized again
    except (ValueError, TypeError, RecursionError):
        return text
    return value


def _integer(digits: str, least: int = -(2**63), greatest: int = 2**64 - 1) -> int | str:
    """Parse an integer. An integer out of range stays a string, like integers wider than 64 bits in a column."""
    if len(digits) > len(str(greatest)) + 1:
        return digits
    number = int(digits)
    return number if least <= number <= greatest else digits


def _fraction(number: str) -> float | str:
    """Parse a fraction. A fraction that a double cannot represent exactly stays a string, like decimals in a column."""
    value = float(number)
    try:
        is_exact = Decimal(repr(value)) == Decimal(number)
    except ArithmeticError:  # the exponent exceeds the range of Decimal
        is_exact = False
    return value if is_exact else number


def float_values(array: pa.Array) -> list[object]:
    if types.is_float32(array.type):
        # The cast goes through strings, so that a 32-bit 0.1 stays 0.1 instead of becoming 0.10000000149011612.
        array = array.cast(pa.string()).cast(pa.float64())
    elif types.is_float16(array.type):
        array = array.cast(pa.float64())
    values = array.to_pylist()
    if kernels.all(kernels.is_finite(array), min_count=0).as_py():
        return values
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return [value if value is None or math.isfinite(value) else names[str(value)] for value in values]


def integers_as_numbers(array: pa.Array) -> list[object]:
    return array.to_pylist()


def integers_64_as_text(array: pa.Array) -> list[object]:
    """Convert all integers of a 64-bit type to strings, so that the column has a uniform form."""
    return array.cast(pa.string()).to_pylist() if array.type.bit_width == 64 else array.to_pylist()


def unsafe_integers_as_text(array: pa.Array) -> list[object]:
    values = array.to_pylist()
    if array.type.bit_width < 64 or not len(array):
        return values
    bounds = kernels.min_max(array).as_py()
    if max(-(bounds["min"] or 0), bounds["max"] or 0) <= MAX_SAFE_INTEGER:
        return values
    return [str(value) if value is not None and abs(value) > MAX_SAFE_INTEGER else value for value in values]
