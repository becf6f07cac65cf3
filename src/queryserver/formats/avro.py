"""Converts Avro files to JSON Lines, block by block.

Runs in the confined worker process, whose memory is limited, so this module must not import Arrow.
"""

import bz2
import io
import lzma
import math
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import Any, BinaryIO, cast

import cramjam
import orjson
from fastavro import parse_schema, schemaless_reader
from fastavro.read import LOGICAL_READERS
from fastavro.schema import SchemaParseException

from queryserver.errors.base import InvalidJson
from queryserver.errors.files import CodecNotAvailable, DecompressionFailed
from queryserver.platform.text import parse_json

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MAX_VARINT_BYTES = 10
_RAW_DEFLATE = -15
_METADATA = parse_schema({"type": "map", "values": "bytes"})

_FLOAT = struct.Struct("<f")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 naive; the readers append the zone as text
_FLOAT_DIGITS = range(6, 10)
_MAX_DECIMAL_BYTES = 1024
_MAX_SCALE = 1000


class AvroFile:
    """An Avro file that is read sequentially. `file` needs only the method `read`, and must be at its beginning."""

    def __init__(self, file: BinaryIO) -> None:
        """Read the header. Raises DecompressionFailed or CodecNotAvailable."""
        self._file = file
        if file.read(len(_MAGIC)) != _MAGIC:
            raise DecompressionFailed("The file does not contain Avro data.")
        with _translate_errors():
            metadata = cast("Mapping[str, bytes]", schemaless_reader(file, _METADATA, None))
        self._sync = file.read(_SYNC_BYTES)
        if len(self._sync) < _SYNC_BYTES:
            raise DecompressionFailed("The Avro header is truncated.")
        codec = metadata.get("avro.codec", b"null").decode(errors="replace")
        if codec not in _CODECS:
            raise CodecNotAvailable(f"Avro files compressed with {codec[:20]} are not supported.")
        self._unpack = _CODECS[codec]
        try:
            self.schema: Any = parse_json(metadata.get("avro.schema", b"").decode(errors="replace"))
            self._shown = parse_schema(_reader_schema(self.schema))
        except (SchemaParseException, InvalidJson, LookupError, TypeError, ValueError, AttributeError):
            raise DecompressionFailed("The Avro schema is invalid.") from None
        except RecursionError:
            raise DecompressionFailed("The Avro schema is nested too deeply.") from None

    def lines(self) -> Iterator[bytes]:
        """Yield each value as JSON, terminated by a line feed. Raises DecompressionFailed."""
        while (count := self._next_count()) is not None:
            with _translate_errors():
                packed = cast("bytes", schemaless_reader(self._file, "bytes", None))
            try:
                block = io.BytesIO(self._unpack(packed))
            except (zlib.error, OSError, EOFError, ValueError, lzma.LZMAError, cramjam.DecompressionError):
                raise DecompressionFailed("The Avro data is corrupt: a block could not be decompressed.") from None
            for _ in range(count):
                with _translate_errors():
                    value = schemaless_reader(block, self._shown, None, handle_unicode_errors="replace")
                    line = orjson.dumps(
                        value, default=lambda content: b64encode(content).decode(), option=orjson.OPT_APPEND_NEWLINE
                    )
                yield line
            if block.read(1):
                raise DecompressionFailed("The Avro data is corrupt: a block is longer than its records.")
            if self._file.read(_SYNC_BYTES) != self._sync:
                raise DecompressionFailed("The Avro data is corrupt: a block does not end with the sync marker.")

    def _next_count(self) -> int | None:
        """Return the number of values in the next block, or None at the end of the file."""
        head = self._file.read(1)
        while head and head[-1] & 0x80 and len(head) < _MAX_VARINT_BYTES:
            byte = self._file.read(1)
            if not byte:
                break
            head += byte
        if not head:
            return None
        with _translate_errors():
            count = cast("int", schemaless_reader(io.BytesIO(head), "long", None))
        if count < 0:
            raise DecompressionFailed("The Avro data contains a negative length.")
        return count


@contextmanager
def _translate_errors() -> Generator[None]:
    """Translate errors from fastavro and orjson to DecompressionFailed."""
    try:
        yield
    except (EOFError, LookupError, OverflowError, TypeError, ValueError, struct.error):
        raise DecompressionFailed("The Avro data is corrupt or truncated.") from None
    except RecursionError:
        raise DecompressionFailed("A record of the file is nested too deeply.") from None


def _snappy(block: bytes) -> bytes:
    """Decompress a block, which ends with the CRC-32 of the decompressed data. Raises ValueError if they differ."""
    unpacked = bytes(cramjam.snappy.decompress_raw(block[:-4]))
    if zlib.crc32(unpacked) != int.from_bytes(block[-4:]):
        raise ValueError(block[-4:])
    return unpacked


_CODECS: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType(
    {
        "null": bytes,
        "deflate": lambda block: zlib.decompress(block, _RAW_DEFLATE),
        "snappy": _snappy,
        "bzip2": bz2.decompress,
        "xz": lzma.decompress,
        "zstandard": lambda block: bytes(cramjam.zstd.decompress(block)),
    }
)


def _reader_schema(schema: Any) -> Any:
    """Reduce a schema to names, types, and the logical types that `_LOGICAL_READERS` supports."""
    if isinstance(schema, str):
        return {"type": schema, "logicalType": _logical_name(schema, "")} if schema in {"float", "double"} else schema
    if isinstance(schema, list):
        return [_reader_schema(branch) for branch in cast("list[Any]", schema)]
    declared = cast("Mapping[str, Any]", schema)
    kind = declared["type"]
    if not isinstance(kind, str):
        return _reader_schema(kind)
    named = {key: declared[key] for key in ("name", "namespace") if key in declared}
    match kind:
        case "record" | "error":
            fields = [{"name": field["name"], "type": _reader_schema(field["type"])} for field in declared["fields"]]
            return {"type": "record", **named, "fields": fields}
        case "enum":
            return {"type": kind, **named, "symbols": declared["symbols"]}
        case "array":
            return {"type": kind, "items": _reader_schema(declared["items"])}
        case "map":
            return {"type": kind, "values": _reader_schema(declared["values"])}
        case _:
            return _reader_schema_of_primitive(kind, declared, named)


def _reader_schema_of_primitive(kind: str, declared: Mapping[str, Any], named: Mapping[str, Any]) -> Any:
    """Reduce the schema of a primitive type, a fixed type, or a reference to a named type."""
    size = {"size": declared["size"]} if kind == "fixed" else {}
    form = _logical_name(kind, str(declared.get("logicalType", "")))
    scale = declared.get("scale", 0)
    is_form = f"{kind}-{form}" in _LOGICAL_READERS
    if kind in {"bytes", "fixed"} and is_form and type(scale) is int and 0 <= scale <= _MAX_SCALE:
        return {"type": kind, **named, **size, "logicalType": form, "scale": scale}
    if kind == "fixed":
        return {"type": kind, **named, **size}
    return {"type": kind, "logicalType": form} if is_form and kind != "bytes" else _reader_schema(kind)


def _logical_name(kind: str, logical: str) -> str:
    """Return a private name for a logical type, so that fastavro uses the readers below instead of its own."""
    return f"shown-{kind if kind in {'float', 'double'} else logical}"


def _float(value: float, *_schemas: object) -> object:
    if math.isfinite(value):
        for digits in _FLOAT_DIGITS:
            shorter = float(f"{value:.{digits}g}")
            with suppress(OverflowError):
                if _FLOAT.unpack(_FLOAT.pack(shorter))[0] == value:
                    return _double(shorter)
    return _double(value)


def _double(value: float, *_schemas: object) -> object:
    if math.isfinite(value):
        return orjson.Fragment(repr(value))
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(content: bytes, schema: Mapping[str, Any], _reader_schema: object) -> str | bytes:
    """Read a decimal, which is stored as a big-endian two's-complement integer. Very long decimals stay bytes."""
    if len(content) > _MAX_DECIMAL_BYTES:
        return content
    number = Decimal(int.from_bytes(content, "big", signed=True)).as_tuple()
    return f"{Decimal((number.sign, number.digits, -schema['scale'])):f}"


def _date(days: int, *_schemas: object) -> str | int:
    try:
        return str(date(1970, 1, 1) + timedelta(days=days))
    except OverflowError:
        return days


def _clock(value: int, *_schemas: object, per_second: int) -> str | int:
    try:
        moment = _EPOCH + timedelta(microseconds=value * (1_000_000 // per_second))
    except OverflowError:
        return value
    return str(moment.time()) if moment.date() == _EPOCH.date() else value


def _timestamp(value: int, *_schemas: object, per_second: int, zone: str) -> str | int:
    seconds, fraction = divmod(value, per_second)
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return value
    digits = 9 if per_second > 1_000_000 else 6
    shown = f".{fraction * 10**digits // per_second:0{digits}}" if fraction else ""
    return f"{moment}{shown}{zone}"


_UNITS = {"millis": 1000, "micros": 1_000_000, "nanos": 1_000_000_000}
_LOGICAL_READERS: dict[str, Callable[..., Any]] = {
    "float-shown-float": _float,
    "double-shown-double": _double,
    "bytes-shown-decimal": _decimal,
    "fixed-shown-decimal": _decimal,
    "int-shown-date": _date,
    "int-shown-time-millis": partial(_clock, per_second=1000),
    "long-shown-time-micros": partial(_clock, per_second=1_000_000),
    **{
        f"long-shown-{local}timestamp-{unit}": partial(_timestamp, per_second=per_second, zone=zone)
        for local, zone in (("", "+00:00"), ("local-", ""))
        for unit, per_second in _UNITS.items()
    },
}
"""Readers by type and logical type. Values of other logical types are shown as values of their underlying type."""
LOGICAL_READERS.update(_LOGICAL_READERS)
