"""Encodes Python values as statement parameters.

None, booleans, integers within ±(2^53 - 1), finite floats, strings and lists become plain JSON. Every other value
becomes an object with `type` and `value`, where `value` is a lossless string.
"""

import base64
import datetime as dt
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

MAX_EXACT = 2**53 - 1
"""The largest integer that every JSON parser represents exactly."""
Parameters = Sequence[Any] | Mapping[str, Any]
"""Values for `?` in order, or for `:name` by name."""
ParameterRows = Iterable[Parameters]
"""Several sets of parameters, for a statement that runs once for each set."""


def encode_parameters(parameters: "Parameters") -> "list[Any] | dict[str, Any]":
    """Return the `parameters` field of execute. Raises TypeError for a value that cannot be encoded."""
    if isinstance(parameters, Mapping):
        return {name: encode(value) for name, value in parameters.items()}
    if isinstance(parameters, (str, bytes, bytearray, memoryview)):
        raise TypeError("parameters must be a list, a tuple or a mapping; a single value is [value]")
    return [encode(value) for value in parameters]


def encode(value: Any) -> Any:  # noqa: C901
    """Return a value as JSON. NumPy and pandas scalars are encoded like the equivalent Python values.

    Raises TypeError for a value that cannot be encoded.
    """
    match value:
        case None | bool():
            return value
        case Enum():
            return encode(value.value)
        case str():
            return str(value)
        case int():
            if abs(value) <= MAX_EXACT:
                return int(value)
            return _typed("bigint" if -(2**63) <= value < 2**63 else "decimal", str(int(value)))
        case float():
            return float(value) if math.isfinite(value) else _typed("double", _FLOAT_WORDS[str(float(value))])
        case Decimal():
            return _typed("decimal", _decimal(value))
        case dt.datetime():
            if value != value:  # pandas' NaT
                return None
            zoned = value.tzinfo is not None
            return _typed("timestamp_tz" if zoned else "timestamp", value.isoformat(sep=" "))
        case dt.date():
            return _typed("date", value.isoformat())
        case dt.time():
            return _typed("time", value.isoformat())
        case bytes() | bytearray() | memoryview():
            return _typed("binary", base64.b64encode(value).decode("ascii"))
        case UUID():
            return str(value)  # sent without a type, so that the engine infers the type of the placeholder
        case list() | tuple() | set() | frozenset():
            return [encode(item) for item in value]
        case _:
            return _encode_foreign(value)


_MAX_ROWS = 5_000
_MAX_VALUES = 50_000
_MAX_CHARACTERS = 1024 * 1024
_MAX_TEXT = 16 * 1024 * 1024


def batches(rows: Iterable[Parameters], statement_characters: int) -> Iterator[list[Parameters]]:
    """Split rows into batches that a server accepts in one call (Contract editor 4.6).

    A batch contains either only mappings or only sequences.
    """
    batch, values, characters = list[Parameters](), 0, 0
    max_rows = max(1, min(_MAX_ROWS, _MAX_TEXT // max(1, statement_characters)))
    for row in rows:
        size = sum(map(_characters, row.values() if isinstance(row, Mapping) else row))
        is_full = len(batch) >= max_rows or values >= _MAX_VALUES or characters + size > _MAX_CHARACTERS
        if batch and (is_full or isinstance(row, Mapping) != isinstance(batch[0], Mapping)):
            yield batch
            batch, values, characters = [], 0, 0
        batch.append(row)
        values += len(row)
        characters += size
    if batch:
        yield batch


def _characters(value: Any) -> int:
    """Return the approximate length of a value in JSON."""
    if isinstance(value, (str, bytes, bytearray, memoryview, list, tuple)):
        return 2 * len(value) + 32
    return 64


def _encode_foreign(value: Any) -> Any:
    """Encode a value of another library: a scalar or array of NumPy, pandas or pyarrow.

    The value is converted with its method `item`, `as_py`, `tolist` or `to_pylist`. Raises TypeError for other values.
    """
    if type(value).__name__ == "NAType":  # pandas.NA
        return None
    dtype = str(getattr(value, "dtype", ""))
    if dtype.startswith(("timedelta64", "duration")):
        raise TypeError("a parameter cannot be a timedelta64; pass text such as '1 day'")
    if dtype in _FINER:  # datetime has only microseconds
        return [encode(item) for item in value] if getattr(value, "ndim", 0) else _finer_timestamp(str(value))
    for name in ("to_pylist", "as_py", "tolist", "item"):
        convert = getattr(value, name, None)
        if callable(convert):
            plain = convert()
            if type(plain) is not type(value):
                return encode(plain)
    message = f"a parameter cannot be a {type(value).__qualname__}"
    raise TypeError(message)


def _finer_timestamp(text: str) -> dict[str, str] | None:
    if text == "NaT":
        return None
    whole, _, fraction = text.partition(".")
    if fraction := fraction.rstrip("0"):
        whole += "." + fraction.ljust(6, "0")
    return _typed("timestamp", whole.replace("T", " "))


def _decimal(value: Decimal) -> str:
    """Return a decimal with all its digits and without an exponent, or NaN, Infinity, -Infinity."""
    if value.is_nan():
        return "NaN"
    if value.is_infinite():
        return "Infinity" if value > 0 else "-Infinity"
    return format(value, "f")


def _typed(kind: str, text: str) -> dict[str, str]:
    return {"type": kind, "value": text}


_FINER = frozenset({"datetime64[ns]", "datetime64[ps]", "datetime64[fs]", "datetime64[as]"})
_FLOAT_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
