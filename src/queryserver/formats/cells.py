"""Arrow columns as JSON cells, in the raw and in the Hue form (Contract editor 6.3).

Work goes column by column: Arrow turns a column into numbers, booleans or text (`text_forms.py`) in C++. Only nested
and odd values become Python objects one by one. The file goes from pages over columns to values: nested, then numbers.
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

from queryserver.formats.arrow import is_binary, is_text, kernels, union_places
from queryserver.formats.columns import NUMBERS_AS_TEXT, Column, ResultType
from queryserver.formats.text_forms import text_form
from queryserver.formats.value_sizes import parts, plain_bytes

# Rows are turned into JSON in blocks of about this many Arrow bytes, so that a page that is cut at `max_bytes`
# never has much more than that in memory as Python values: some 50 bytes for a text of one letter.
BLOCK_BYTES = 2 * 1024 * 1024
_VALUES_FACTOR = 12
_JSON_FACTOR = 4
_LONGER = {False: r"[\x00-\x07\x0b\x0e-\x1f]", True: "[&<>\"' ]"}
_LONGER_BY = {False: len(r"\u0000") - 1, True: len("&lt;") - 1}
_SMALL = frozenset({ResultType.BOOLEAN, ResultType.TINYINT, ResultType.SMALLINT, ResultType.INT})
_NESTED = frozenset({ResultType.ARRAY, ResultType.MAP, ResultType.STRUCT, ResultType.UNION})
Values: TypeAlias = Callable[[pa.Array], list[object]]
"""What makes the raw cells of a child array, or of one of integers."""

# A double keeps 15 digits of any number that is not very large or small; orjson reads every fraction as a double.
_LONG_NUMBER = re.compile(r"\d[\d.]{15}|\d[eE][+-]?\d{3}")
_MAX_BRACKETS = 250
"""orjson writes 254 levels."""
EXACT_IN_A_DOUBLE = 2**53 - 1
"""The largest integer that no other one is read as (JavaScript: Number.MAX_SAFE_INTEGER)."""


@dataclass(frozen=True, slots=True)
class RenderedRows:
    """Rows as JSON, in pieces: with commas between them they are the members of the array of rows.

    `is_cut`: the row after them was above the limit.
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
    """The rows of all batches as JSON, as many as fit into `max_bytes`.

    Batches of one result may differ in their Arrow types. About 7 ms for 10,000 rows of 10 simple columns.
    """
    pieces: list[bytes] = []
    rows, left = 0, max_bytes - len("[]")
    filled = (batch for batch in batches if batch.num_rows)
    for block in chain.from_iterable(parts(batch, BLOCK_BYTES, plain_bytes) for batch in filled):
        if block.num_rows == 1 and block.nbytes > BLOCK_BYTES and _least_bytes(block, escape=escape) > left:
            return RenderedRows(tuple(pieces), rows, is_cut=True)
        values = [
            cell_values(block.column(i), column, escape=escape, big_numbers_as_text=big_numbers_as_text)
            for i, column in enumerate(columns)
        ]
        cells = list(zip(*values, strict=True)) if values else [()] * block.num_rows
        json = orjson.dumps(cells)[1:-1]
        taken = len(cells)
        if len(json) > left:
            json, taken = _head(cells, left)
        if taken:
            pieces.append(json)
        rows += taken
        left -= len(json) + len(",")
        if taken < len(cells):
            return RenderedRows(tuple(pieces), rows, is_cut=True)
    return RenderedRows(tuple(pieces), rows)


def memory_of(rows: pa.Table | pa.RecordBatch, max_bytes: int | None = None) -> int:
    """Bytes that the rendering of rows takes, about: the rows, a block of them as values, at most `max_bytes` of JSON
    and a copy of it.
    """
    size = rows.nbytes
    json = _JSON_FACTOR * size
    return size + _VALUES_FACTOR * min(size, BLOCK_BYTES) + (json if max_bytes is None else min(json, 2 * max_bytes))


def joined_rows(pages: Sequence[RenderedRows]) -> RenderedRows:
    """The rows of several pages, in their order, as one."""
    pieces = tuple(piece for page in pages for piece in page.pieces)
    return RenderedRows(pieces, sum(page.rows for page in pages), is_cut=any(page.is_cut for page in pages))


def _head(cells: list[tuple[object, ...]], left: int) -> tuple[bytes, int]:
    """The first rows whose JSON is at most `left` bytes, and how many they are."""
    rows = [orjson.dumps(row) for row in cells]
    ends = accumulate(len(row) + len(",") for row in rows)
    taken = sum(1 for _ in takewhile(lambda end: end - len(",") <= left, ends))
    return b",".join(rows[:taken]), taken


def _least_bytes(block: pa.Table | pa.RecordBatch, *, escape: bool) -> int:
    """JSON bytes that the texts of the block take, known without making them: some characters become six."""
    least = 0
    for column in block.columns:
        if is_text(column.type) or is_binary(column.type):
            octets = column.cast(pa.large_binary())
            least += kernels.sum(kernels.binary_length(octets)).as_py() or 0
            if is_text(column.type):
                longer = kernels.sum(kernels.count_substring_regex(octets, _LONGER[escape])).as_py() or 0
                least += longer * _LONGER_BY[escape]
    return least


def cell_values(
    array: pa.Array | pa.ChunkedArray, column: Column, *, escape: bool = False, big_numbers_as_text: bool = False
) -> list[object]:
    """The values of one column as str, int, float, bool, None, list and dict, ready for any JSON writer.

    Floats are finite, integers have 64 bits at most, keys of objects are text.
    `big_numbers_as_text`: integers of 64 bits are text as well; outside of the types NUMBERS_AS_TEXT only those that a
    double does not keep.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if not big_numbers_as_text or column.type in _SMALL:
        return _cells(array, column.type, escape=escape, numbers=as_numbers)
    numbers = as_texts if column.type in NUMBERS_AS_TEXT else as_texts_where_needed
    return _cells(array, column.type, escape=escape, numbers=numbers)


def _cells(array: pa.Array, declared: ResultType, *, escape: bool, numbers: Values) -> list[object]:
    array = _unwrapped(array)
    kind = array.type
    if types.is_union(kind):
        member = ResultType.STRING if declared in _NESTED else declared
        return union_values(array, partial(_cells, declared=member, escape=escape, numbers=numbers))
    values = _values(array, numbers)
    if declared in _NESTED and is_text(kind):
        values = json_values(values, big_numbers_as_text=numbers is not as_numbers)
    elif declared is ResultType.DECIMAL and types.is_integer(kind):
        values = array.cast(pa.string()).to_pylist()
    elif declared is ResultType.BOOLEAN and types.is_integer(kind):  # sqlite has no booleans of its own
        values = [bool(value) if value in (0, 1) else value for value in values]
    return escaped_values(values, array) if escape else values


def _unwrapped(array: pa.Array) -> pa.Array:
    """The array without dictionary, run ends and extension type."""
    kind = array.type
    if types.is_dictionary(kind):
        return _unwrapped(array.dictionary_decode())
    if types.is_run_end_encoded(kind):
        return _unwrapped(kernels.run_end_decode(array))
    if not isinstance(kind, pa.BaseExtensionType):
        return array
    if kind.extension_name == "arrow.uuid":
        return pa.array([value and str(value) for value in array.to_pylist()], pa.string())
    if kind.extension_name == "arrow.bool8":
        return kernels.not_equal(array.storage, 0)
    return _unwrapped(array.storage)


def _values(array: pa.Array, numbers: Values) -> list[object]:
    """Raw form, by the Arrow type alone."""
    array = _unwrapped(array)
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


def escaped_values(values: list[object], array: pa.Array) -> list[object]:
    """Raw cells as Hue's clients expect them. `array` is what they were made of."""
    if is_binary(array.type):
        return ["NULL" if value is None else _escaped(value.decode(errors="replace")) for value in array.to_pylist()]
    if types.is_floating(array.type):
        # repr() of a float is the shortest text that reads back; it also has Hue's words nan, inf and -inf.
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


def nested_values(array: pa.Array, values: Values) -> list[object]:
    """JSON arrays and objects; every child array is turned into cells once, as a column of its own."""
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
    """The values that JSON texts stand for; a text that is no JSON stays as it is.

    The texts have no types: with `big_numbers_as_text` the integers that a double does not keep are text.
    """
    exact = partial(_integer, least=-EXACT_IN_A_DOUBLE, greatest=EXACT_IN_A_DOUBLE)
    integer = exact if big_numbers_as_text else _integer
    return [_parsed(text, integer) if isinstance(text, str) else text for text in texts]


def _struct_values(array: pa.Array, values: Values) -> Iterable[object]:
    names = field_names(array.type)
    if not names:
        return ({} for _ in range(len(array)))
    columns = [values(array.field(index)) for index in range(len(names))]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def field_names(kind: pa.StructType) -> list[str]:
    """Names of a struct's fields: `field0`, `field1`, … where there are none, `_2`, … at repeated ones."""
    names: dict[str, None] = {}
    for index in range(kind.num_fields):
        wanted = name = kind.field(index).name or f"field{index}"
        number = 2
        while name in names:
            name, number = f"{wanted}_{number}", number + 1
        names[name] = None
    return list(names)


def _children(array: Any, child: pa.Array, values: Values) -> Iterable[list[object]]:
    """The child's cells, divided as the lists of `array` are. Only the part that `array` uses is converted."""
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


def union_values(array: pa.Array, values: Values) -> list[object]:
    members = {code: values(array.field(index)) for index, code in enumerate(array.type.type_codes)}
    return [members[code][place] for code, place in zip(*union_places(array), strict=True)]


def _parsed(text: str, integer: Callable[[str], int | str]) -> object:
    try:
        if not _LONG_NUMBER.search(text) and text.count("[") + text.count("{") < _MAX_BRACKETS:
            return orjson.loads(text)
        value = json.loads(text, parse_int=integer, parse_float=_fraction, parse_constant=int)  # int refuses NaN
        orjson.dumps(value)  # half a surrogate pair, too many levels: nothing that JSON could be made of again
    except (ValueError, TypeError, RecursionError):
        return text
    return value


def _integer(digits: str, least: int = -(2**63), greatest: int = 2**64 - 1) -> int | str:
    """Integers beyond these are text, as those wider than 64 bits are in a column."""
    if len(digits) > len(str(greatest)) + 1:
        return digits
    number = int(digits)
    return number if least <= number <= greatest else digits


def _fraction(number: str) -> float | str:
    """Numbers that a double does not keep are text, as decimals of a column are."""
    value = float(number)
    try:
        is_exact = Decimal(repr(value)) == Decimal(number)
    except ArithmeticError:  # an exponent beyond that of Decimal
        is_exact = False
    return value if is_exact else number


def float_values(array: pa.Array) -> list[object]:
    if types.is_float32(array.type):
        # Through text: 0.1 as a float of 32 bits is 0.1, and not the 0.10000000149011612 of a mere widening.
        array = array.cast(pa.string()).cast(pa.float64())
    elif types.is_float16(array.type):
        array = array.cast(pa.float64())
    values = array.to_pylist()
    if kernels.all(kernels.is_finite(array), min_count=0).as_py():
        return values
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return [value if value is None or math.isfinite(value) else names[str(value)] for value in values]


def as_numbers(array: pa.Array) -> list[object]:
    return array.to_pylist()


def as_texts(array: pa.Array) -> list[object]:
    """Those of a type of 64 bits as text, whatever their values: a column has one form."""
    return array.cast(pa.string()).to_pylist() if array.type.bit_width == 64 else array.to_pylist()


def as_texts_where_needed(array: pa.Array) -> list[object]:
    values = array.to_pylist()
    if array.type.bit_width < 64 or not len(array):
        return values
    bounds = kernels.min_max(array).as_py()
    if max(-(bounds["min"] or 0), bounds["max"] or 0) <= EXACT_IN_A_DOUBLE:
        return values
    return [str(value) if value is not None and abs(value) > EXACT_IN_A_DOUBLE else value for value in values]
