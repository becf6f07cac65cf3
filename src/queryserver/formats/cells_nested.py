"""Lists, maps, structs and unions as raw cells, and complex values that came as JSON text (Contract editor 6.3)."""

import json
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from itertools import pairwise
from typing import Any

import orjson
import pyarrow as pa
from pyarrow import types

from queryserver.formats.cell_sizes import union_places
from queryserver.formats.cells_integers import EXACT_IN_A_DOUBLE

# The raw cells of a child array.
Values = Callable[[pa.Array], list[object]]

# A double keeps 15 digits of any number that is not very large or small; orjson reads every fraction as a double.
_LONG_NUMBER = re.compile(r"\d[\d.]{15}|\d[eE][+-]?\d{3}")
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1
# orjson writes 254 levels.
_MAX_BRACKETS = 250


def nested_values(array: pa.Array, values: Values) -> list[object]:
    """JSON arrays and objects; every child array is turned into cells once, as a column of its own."""
    kind = array.type
    if types.is_union(kind):
        return union_values(array, values)
    if types.is_struct(kind):
        members = _struct_values(array, values)
    elif types.is_map(kind):
        keys, items = _children(array, array.keys, values), _children(array, array.items, values)
        members = ({_key(key): item for key, item in zip(*pair, strict=True)} for pair in zip(keys, items, strict=True))
    else:
        members = _children(array, array.values, values)
    valid = array.is_valid().to_pylist() if array.null_count else None
    if valid is None:
        return list(members)
    return [member if there else None for member, there in zip(members, valid, strict=True)]


def json_values(texts: list[object], *, big_numbers_as_text: bool = False) -> list[object]:
    """The values that JSON texts stand for; a text that is no JSON stays as it is.

    The texts say no types: with `big_numbers_as_text` the integers that a double does not keep are text.
    """
    integer = _exact_integer if big_numbers_as_text else _integer
    return [_parsed(text, integer) if isinstance(text, str) else text for text in texts]


def _struct_values(array: pa.StructArray, values: Values) -> Iterable[object]:
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
    """The child's cells, parted as the lists of `array` are. Only the part that `array` uses is looked at."""
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


def union_values(array: pa.UnionArray, values: Values) -> list[object]:
    """The value of the chosen member."""
    members = {code: values(array.field(index)) for index, code in enumerate(array.type.type_codes)}
    return [members[code][place] for code, place in zip(*union_places(array), strict=True)]


def _key(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _parsed(text: str, integer: Callable[[str], int | str]) -> object:
    try:
        if not _LONG_NUMBER.search(text) and text.count("[") + text.count("{") < _MAX_BRACKETS:
            return orjson.loads(text)
        value = json.loads(text, parse_int=integer, parse_float=_fraction, parse_constant=_refuse)
        orjson.dumps(value)  # half a surrogate pair, too many levels: nothing that JSON could be made of again
    except (ValueError, TypeError, RecursionError):
        return text
    return value


def _integer(digits: str) -> int | str:
    """Integers wider than 64 bits are text, as in a column of them."""
    if len(digits) > len(str(_MAX_INT)):
        return digits
    number = int(digits)
    return number if _MIN_INT <= number <= _MAX_INT else digits


def _exact_integer(digits: str) -> int | str:
    if len(digits) > len(str(-EXACT_IN_A_DOUBLE)):
        return digits
    number = int(digits)
    return number if abs(number) <= EXACT_IN_A_DOUBLE else digits


def _fraction(number: str) -> float | str:
    """Numbers that a double does not keep are text, as decimals of a column are."""
    value = float(number)
    try:
        is_exact = Decimal(repr(value)) == Decimal(number)
    except ArithmeticError:  # an exponent beyond that of Decimal
        is_exact = False
    return value if is_exact else number


def _refuse(word: str) -> object:
    raise ValueError(word)
