"""Reads anonymous records, such as `row(1, 'a')`, in PostgreSQL's binary format, because it contains the field types.

record_send (rowtypes.c) writes the number of fields, then each field's type, length (-1 for NULL) and value.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from uuid import UUID

import pyarrow as pa

from queryserver.engines.postgresql.values import (
    UnrepresentableValue,
    ValueKind,
    builtin_type,
    date_text,
    element_oid,
    read_native,
    timestamp_text,
)
from queryserver.engines.record_batches import clock_text, nulls, offsets
from queryserver.formats.arrow import PLAIN_TYPES

RECORD = 2249
_US = 1_000_000
_DAY_S = 86_400
_HEAD = struct.Struct("!i")
_FIELD = struct.Struct("!Ii")
_NUMERIC = struct.Struct("!HhHH")
_NEGATIVE, _NAN, _INFINITY, _MINUS_INFINITY = 0x4000, 0xC000, 0xD000, 0xF000
_UNIT_DIGITS = 4

Field = tuple[int, bytes | None]


def read_records(values: Sequence[bytes | None]) -> pa.Array:
    """Convert records to structs with fields `field0`, `field1`, …, whose types come from the first record.

    Raises UnrepresentableValue if all records are NULL or their field types differ; use `record_text` in that case.
    """
    rows = [None if value is None else _fields(value) for value in values]
    first = next((row for row in rows if row is not None), None)
    if first is None:
        raise UnrepresentableValue
    kinds = [oid for oid, _ in first]
    if any(row is not None and [oid for oid, _ in row] != kinds for row in rows):
        raise UnrepresentableValue
    columns = [_column(oid, [None if row is None else row[at][1] for row in rows]) for at, oid in enumerate(kinds)]
    names = [f"field{at}" for at in range(len(kinds))]
    return pa.StructArray.from_arrays(columns, names=names, mask=nulls(rows))


def record_text(value: bytes) -> str:
    """Format a record as `(1,a)`, similar to PostgreSQL's text format."""
    return "(" + ",".join("" if raw is None else _text(oid, raw) for oid, raw in _fields(value)) + ")"


def _fields(value: bytes) -> list[Field]:
    (count,), at = _HEAD.unpack_from(value), _HEAD.size
    found = list[Field]()
    for _ in range(count):
        oid, size = _FIELD.unpack_from(value, at)
        at += _FIELD.size
        found.append((oid, None if size < 0 else value[at : at + size]))
        at += max(size, 0)
    return found


def _column(oid: int, raws: Sequence[bytes | None]) -> pa.Array:
    if oid == RECORD:
        return read_records(raws) if any(raw is not None for raw in raws) else pa.nulls(len(raws), pa.string())
    declared = builtin_type(oid)
    if (element := element_oid(oid)) is not None:
        lists = [None if raw is None else _elements(raw) for raw in raws]
        items = _column(element, [item for one in lists if one is not None for item in one])
        return pa.ListArray.from_arrays(offsets(lists), items, mask=nulls(lists))
    if declared is not None and (form := _NUMBERS.get(oid)) is not None:
        numbers = [None if raw is None else form.unpack(raw)[0] for raw in raws]
        if declared.kind in _MOMENTS:
            return read_native(declared, pa.array(numbers, pa.int32() if form.size == _HEAD.size else pa.int64()))
        return pa.array(numbers, PLAIN_TYPES[declared.result])
    if declared is not None and declared.kind is ValueKind.BYTEA:
        return pa.array(raws, pa.binary())
    return pa.array([None if raw is None else _text(oid, raw) for raw in raws], pa.string())


def _elements(raw: bytes) -> list[bytes | None]:
    """Split a one-dimensional array into its elements (arrayfuncs.c: array_send). Raises UnrepresentableValue."""
    dimensions, _, _ = struct.unpack_from("!iiI", raw)
    if dimensions > 1:
        raise UnrepresentableValue
    if not dimensions:
        return []
    (count, _), at = struct.unpack_from("!ii", raw, 12), 20
    found = list[bytes | None]()
    for _ in range(count):
        (size,) = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        found.append(None if size < 0 else raw[at : at + size])
        at += max(size, 0)
    return found


_NUMBERS: Mapping[int, struct.Struct] = {
    16: struct.Struct("!?"), 20: struct.Struct("!q"), 21: struct.Struct("!h"), 23: struct.Struct("!i"),
    26: struct.Struct("!I"), 700: struct.Struct("!f"), 701: struct.Struct("!d"), 1082: struct.Struct("!i"),
    1114: struct.Struct("!q"), 1184: struct.Struct("!q"),
}  # fmt: skip
_MOMENTS = frozenset({ValueKind.DATE, ValueKind.TIMESTAMP, ValueKind.TIMESTAMPTZ})


def _text(oid: int, raw: bytes) -> str:
    """Convert a value to the server's text format.

    The bytes of an unknown type are decoded as UTF-8 or, if that fails, written in hexadecimal.
    """
    if (read := _TEXTS.get(oid)) is not None:
        return read(raw)
    if (form := _NUMBERS.get(oid)) is not None:
        return str(form.unpack(raw)[0])
    if oid == RECORD:
        return record_text(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"\\x{raw.hex()}"


def _numeric_text(raw: bytes) -> str:
    """Decode the format of numeric_send (numeric.c): base-10,000 digits, the first digit's weight, sign and scale."""
    count, weight, sign, scale = _NUMERIC.unpack_from(raw)
    if (word := {_NAN: "NaN", _INFINITY: "Infinity", _MINUS_INFINITY: "-Infinity"}.get(sign)) is not None:
        return word
    digits = struct.unpack_from(f"!{count}H", raw, _NUMERIC.size)

    def group(position: int) -> str:
        return f"{digits[position]:04}" if 0 <= position < count else "0000"

    whole = "".join(group(place) for place in range(weight + 1)).lstrip("0") or "0"
    groups = -(-scale // _UNIT_DIGITS)
    fraction = "".join(group(weight + 1 + place) for place in range(groups))[:scale]
    return f"{'-' if sign == _NEGATIVE else ''}{whole}{'.' if scale else ''}{fraction}"


def _clock(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, _US)
    return clock_text(seconds) + (f".{fraction:06}".rstrip("0") if fraction else "")


def _time_text(raw: bytes) -> str:
    return _clock(struct.unpack("!q", raw)[0])


def _timetz_text(raw: bytes) -> str:
    microseconds, west_s = struct.unpack("!qi", raw)
    hours, rest = divmod(abs(west_s), 3600)
    minutes, seconds = divmod(rest, 60)
    zone = f"{hours:02}" + (f":{minutes:02}" if minutes or seconds else "") + (f":{seconds:02}" if seconds else "")
    return f"{_clock(microseconds)}{'-' if west_s > 0 else '+'}{zone}"


def _interval_text(raw: bytes) -> str:
    """Format an interval as the server does with IntervalStyle `postgres`."""
    microseconds, days, months = struct.unpack("!qii", raw)
    years, months = int(months / 12), months - 12 * int(months / 12)
    parts, follows_negative = list[str](), False
    for amount, name in ((years, "year"), (months, "mon"), (days, "day")):
        if amount:
            sign = "+" if follows_negative and amount > 0 else ""
            parts.append(f"{sign}{amount} {name}{'' if amount == 1 else 's'}")
            follows_negative = amount < 0
    if microseconds or not parts:
        sign = "-" if microseconds < 0 else "+" if follows_negative else ""
        seconds, fraction = divmod(abs(microseconds), _US)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        parts.append(f"{sign}{clock}{f'.{fraction:06}'.rstrip('0') if fraction else ''}")
    return " ".join(parts)


def _inet_text(raw: bytes) -> str:
    bits, is_cidr, address = raw[1], raw[2], ip_address(raw[4:])
    return str(address) if bits == address.max_prefixlen and not is_cidr else f"{address}/{bits}"


def _bits_text(raw: bytes) -> str:
    (count,) = _HEAD.unpack_from(raw)
    return "".join(f"{octet:08b}" for octet in raw[_HEAD.size :])[:count]


_TEXTS: Mapping[int, Callable[[bytes], str]] = {
    16: lambda raw: "t" if raw == b"\1" else "f",
    17: lambda raw: f"\\x{raw.hex()}",
    650: _inet_text,
    869: _inet_text,
    1082: lambda raw: date_text(_HEAD.unpack(raw)[0]),
    1083: _time_text,
    1114: lambda raw: timestamp_text(struct.unpack("!q", raw)[0]),
    1184: lambda raw: timestamp_text(struct.unpack("!q", raw)[0], "+00"),
    1186: _interval_text,
    1266: _timetz_text,
    1560: _bits_text,
    1562: _bits_text,
    1700: _numeric_text,
    2950: lambda raw: str(UUID(bytes=raw)),
    3802: lambda raw: raw[1:].decode(),
}
