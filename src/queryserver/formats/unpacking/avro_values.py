"""Values of Avro as JSON text, in the raw forms of Contract editor 6.3."""

import math
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType

import orjson

from queryserver.formats.unpacking.avro_cursor import Cursor

Texts = Callable[[Cursor], str]
"""Reads one value and gives its JSON text."""

_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 the zone is told by the type
_DIGITS_OF_A_FLOAT = range(6, 10)
_MAX_DECIMAL_BYTES = 1024


def _null(_: Cursor) -> str:
    return "null"


def _boolean(cursor: Cursor) -> str:
    return "true" if cursor.take(1) != b"\0" else "false"


def _whole(cursor: Cursor) -> str:
    return str(cursor.whole())


def _float(cursor: Cursor) -> str:
    value = _FLOAT.unpack(cursor.take(4))[0]
    if math.isfinite(value):
        for digits in _DIGITS_OF_A_FLOAT:
            shorter = float(f"{value:.{digits}g}")
            if _reads_back(shorter, value):
                return _number(shorter)
    return _number(value)


def _reads_back(shorter: float, value: float) -> bool:
    try:
        return _FLOAT.unpack(_FLOAT.pack(shorter))[0] == value
    except OverflowError:
        return False


def _double(cursor: Cursor) -> str:
    return _number(_DOUBLE.unpack(cursor.take(8))[0])


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def text_of(cursor: Cursor) -> str:
    """A string; bytes that are no UTF-8 become U+FFFD."""
    return cursor.take(cursor.whole()).decode(errors="replace")


def _string(cursor: Cursor) -> str:
    return orjson.dumps(text_of(cursor)).decode()


def _base64(content: bytes) -> str:
    return f'"{b64encode(content).decode()}"'


def _bytes(cursor: Cursor) -> str:
    return _base64(cursor.take(cursor.whole()))


PRIMITIVES: Mapping[str, Texts] = MappingProxyType(
    {
        "null": _null,
        "boolean": _boolean,
        "int": _whole,
        "long": _whole,
        "float": _float,
        "double": _double,
        "bytes": _bytes,
        "string": _string,
    }
)


def fixed(size: int) -> Texts:
    """Bytes of a length that the schema knows."""
    return lambda cursor: _base64(cursor.take(size))


def decimal(scale: int, size: int | None) -> Texts:
    """A decimal in big-endian two's complement, in bytes or, with `size`, in a fixed."""

    def read(cursor: Cursor) -> str:
        content = cursor.take(cursor.whole() if size is None else size)
        if len(content) > _MAX_DECIMAL_BYTES:
            return _base64(content)
        number = Decimal(int.from_bytes(content, "big", signed=True)).as_tuple()
        return f'"{Decimal((number.sign, number.digits, -scale)):f}"'

    return read


def _date(cursor: Cursor) -> str:
    days = cursor.whole()
    try:
        return f'"{date(1970, 1, 1) + timedelta(days=days)}"'
    except OverflowError:
        return str(days)


def _clock(per_second: int) -> Texts:
    def read(cursor: Cursor) -> str:
        value = cursor.whole()
        try:
            moment = _EPOCH + timedelta(microseconds=value * (1_000_000 // per_second))
        except OverflowError:
            return str(value)
        return f'"{moment.time()}"' if moment.date() == _EPOCH.date() else str(value)

    return read


def _timestamp(per_second: int, zone: str) -> Texts:
    def read(cursor: Cursor) -> str:
        value = cursor.whole()
        seconds, fraction = divmod(value, per_second)
        try:
            moment = _EPOCH + timedelta(seconds=seconds)
        except OverflowError:
            return str(value)
        digits = 9 if per_second > 1_000_000 else 6
        shown = f".{fraction * 10**digits // per_second:0{digits}}" if fraction else ""
        return f'"{moment}{shown}{zone}"'

    return read


_ZONE = "+00:00"

LOGICAL: Mapping[tuple[str, str], Texts] = MappingProxyType(
    {
        ("int", "date"): _date,
        ("int", "time-millis"): _clock(1000),
        ("long", "time-micros"): _clock(1_000_000),
        ("long", "timestamp-millis"): _timestamp(1000, _ZONE),
        ("long", "timestamp-micros"): _timestamp(1_000_000, _ZONE),
        ("long", "timestamp-nanos"): _timestamp(1_000_000_000, _ZONE),
        ("long", "local-timestamp-millis"): _timestamp(1000, ""),
        ("long", "local-timestamp-micros"): _timestamp(1_000_000, ""),
        ("long", "local-timestamp-nanos"): _timestamp(1_000_000_000, ""),
    }
)
"""By type and logical type; any other logical type is shown as its type."""
