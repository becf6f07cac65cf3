"""Rows as TRowSet, and their columns as TTableSchema. As in Impala, the type determines the list that contains a
column's values.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from tests.engines.scripted_hs2.codec import Value

_TYPES = {
    "boolean": (0, "boolVal", bool), "tinyint": (1, "byteVal", int), "smallint": (2, "i16Val", int),
    "int": (3, "i32Val", int), "bigint": (4, "i64Val", int), "float": (5, "doubleVal", float),
    "double": (6, "doubleVal", float), "string": (7, "stringVal", str), "timestamp": (8, "stringVal", str),
    "binary": (9, "binaryVal", bytes), "decimal": (15, "stringVal", str), "date": (17, "stringVal", str),
    "varchar": (18, "stringVal", str), "char": (19, "stringVal", str),
}  # fmt: skip
_EMPTY: Mapping[type, Value] = {bool: False, int: 0, float: 0.0, str: "", bytes: b""}
_NUMBERS = re.compile(r"\d+")


def schema(columns: Sequence[tuple[str, str]]) -> Value:
    described = [
        {"columnName": name, "typeDesc": {"types": [{"primitiveEntry": _entry(kind)}]}, "position": position}
        for position, (name, kind) in enumerate(columns)
    ]
    return {"columns": described}


def row_set(columns: Sequence[tuple[str, str]], rows: Sequence[tuple[object, ...]], start: int) -> Value:
    cells = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    filled = [_column(kind, values) for (_, kind), values in zip(columns, cells, strict=True)]
    return {"startRowOffset": start, "rows": [], "columns": filled}


def _entry(kind: str) -> Value:
    base = kind.partition("(")[0]
    numbers = [int(one) for one in _NUMBERS.findall(kind)]
    names = ("precision", "scale") if base == "decimal" else ("characterMaximumLength",)
    qualifiers = {name: {"i32Value": number} for name, number in zip(names, numbers, strict=False)}
    entry: dict[str, Value] = {"type": _TYPES[base][0]}
    return entry | ({"typeQualifiers": {"qualifiers": qualifiers}} if qualifiers else {})


def _column(kind: str, values: Sequence[object]) -> Value:
    base = kind.partition("(")[0]
    _, member, python = _TYPES[base]
    convert: Callable[[object], Value] = _char(kind) if base == "char" else python
    # Bit i of the mask is set if value i is NULL; trailing zero bytes may be omitted.
    mask = bytearray((len(values) + 7) // 8)
    if None in values:
        for place, value in enumerate(values):
            if value is None:
                mask[place >> 3] |= 1 << (place & 7)
        filled = [_EMPTY[python] if value is None else convert(value) for value in values]
    else:
        filled = list(values) if values and type(values[0]) is python and base != "char" else [*map(convert, values)]
    return {member: {"values": filled, "nulls": bytes(mask).rstrip(b"\0")}}


def _char(kind: str) -> Callable[[object], Value]:
    """Return a function that pads CHAR values to their declared length."""
    (length,) = (int(one) for one in _NUMBERS.findall(kind))
    return lambda value: str(value).ljust(length)
