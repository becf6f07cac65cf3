"""Avro as JSON Lines, block by block.

Runs in the confined worker process, whose memory is limited: nothing here imports Arrow.
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
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 timestamps of imports have no zone
_DIGITS_OF_A_FLOAT = range(6, 10)
_MAX_DECIMAL_BYTES = 1024
_MAX_SCALE = 1000


class AvroFile:
    """A file that is open at its beginning. It needs `read` alone."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises DecompressionFailed, CodecNotAvailable."""
        self._file = file
        if file.read(len(_MAGIC)) != _MAGIC:
            raise DecompressionFailed("The file holds no avro data.")
        with _broken_data():
            metadata = cast("Mapping[str, bytes]", schemaless_reader(file, _METADATA, None))
        self._sync = file.read(_SYNC_BYTES)
        if len(self._sync) < _SYNC_BYTES:
            raise DecompressionFailed("The avro header breaks off.")
        codec = metadata.get("avro.codec", b"null").decode(errors="replace")
        if codec not in _CODECS:
            raise CodecNotAvailable(f"This server cannot read avro files that are packed with {codec[:20]}.")
        self._unpack = _CODECS[codec]
        try:
            self.schema: Any = parse_json(metadata.get("avro.schema", b"").decode(errors="replace"))
            self._shown = parse_schema(_shown_schema(self.schema))
        except (SchemaParseException, InvalidJson, LookupError, TypeError, ValueError, AttributeError):
            raise DecompressionFailed("The avro schema is broken.") from None
        except RecursionError:
            raise DecompressionFailed("The avro schema is nested too deeply.") from None

    def lines(self) -> Iterator[bytes]:
        """The values, a line each, with its end. Raises DecompressionFailed."""
        while (count := self._next_count()) is not None:
            with _broken_data():
                packed = cast("bytes", schemaless_reader(self._file, "bytes", None))
            try:
                block = io.BytesIO(self._unpack(packed))
            except (zlib.error, OSError, EOFError, ValueError, lzma.LZMAError, cramjam.DecompressionError):
                raise DecompressionFailed("The avro data are broken: a block cannot be unpacked.") from None
            for _ in range(count):
                with _broken_data():
                    value = schemaless_reader(block, self._shown, None, handle_unicode_errors="replace")
                    line = orjson.dumps(
                        value, default=lambda content: b64encode(content).decode(), option=orjson.OPT_APPEND_NEWLINE
                    )
                yield line
            if block.read(1):
                raise DecompressionFailed("The avro data are broken: a block is longer than its records.")
            if self._file.read(_SYNC_BYTES) != self._sync:
                raise DecompressionFailed("The avro data are broken: a block lacks its mark.")

    def _next_count(self) -> int | None:
        """How many values the next block has; None behind the last block."""
        head = self._file.read(1)
        while head and head[-1] & 0x80 and len(head) < _MAX_VARINT_BYTES:
            byte = self._file.read(1)
            if not byte:
                break
            head += byte
        if not head:
            return None
        with _broken_data():
            count = cast("int", schemaless_reader(io.BytesIO(head), "long", None))
        if count < 0:
            raise DecompressionFailed("The avro data hold a negative length.")
        return count


@contextmanager
def _broken_data() -> Generator[None]:
    """Errors of fastavro and orjson. Raises DecompressionFailed."""
    try:
        yield
    except (EOFError, LookupError, OverflowError, TypeError, ValueError, struct.error):
        raise DecompressionFailed("The avro data are broken, or end too early.") from None
    except RecursionError:
        raise DecompressionFailed("A record of the file is nested too deeply.") from None


def _snappy(block: bytes) -> bytes:
    """Behind the data of the block stands the CRC-32 of what they unpack to."""
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


def _shown_schema(schema: Any) -> Any:
    """The schema with the logical types of `_FORMS` and without any other, without defaults, aliases and texts."""
    if isinstance(schema, str):
        return {"type": schema, "logicalType": _form(schema, "")} if schema in {"float", "double"} else schema
    if isinstance(schema, list):
        return [_shown_schema(branch) for branch in cast("list[Any]", schema)]
    declared = cast("Mapping[str, Any]", schema)
    kind = declared["type"]
    if not isinstance(kind, str):
        return _shown_schema(kind)
    named = {key: declared[key] for key in ("name", "namespace") if key in declared}
    match kind:
        case "record" | "error":
            fields = [{"name": field["name"], "type": _shown_schema(field["type"])} for field in declared["fields"]]
            return {"type": "record", **named, "fields": fields}
        case "enum":
            return {"type": kind, **named, "symbols": declared["symbols"]}
        case "array":
            return {"type": kind, "items": _shown_schema(declared["items"])}
        case "map":
            return {"type": kind, "values": _shown_schema(declared["values"])}
        case _:
            return _shown_plain(kind, declared, named)


def _shown_plain(kind: str, declared: Mapping[str, Any], named: Mapping[str, Any]) -> Any:
    """Primitive types, fixed ones and names of others."""
    size = {"size": declared["size"]} if kind == "fixed" else {}
    form = _form(kind, str(declared.get("logicalType", "")))
    scale = declared.get("scale", 0)
    is_form = f"{kind}-{form}" in _FORMS
    if kind in {"bytes", "fixed"} and is_form and type(scale) is int and 0 <= scale <= _MAX_SCALE:
        return {"type": kind, **named, **size, "logicalType": form, "scale": scale}
    if kind == "fixed":
        return {"type": kind, **named, **size}
    return {"type": kind, "logicalType": form} if is_form and kind != "bytes" else _shown_schema(kind)


def _form(kind: str, logical: str) -> str:
    """Our own name for a logical type, so that fastavro uses no other reader."""
    return f"shown-{kind if kind in {'float', 'double'} else logical}"


def _float(value: float, *_schemas: object) -> object:
    if math.isfinite(value):
        for digits in _DIGITS_OF_A_FLOAT:
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
    """A decimal in big-endian two's complement."""
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
_FORMS: dict[str, Callable[..., Any]] = {
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
"""By type and logical type; any other logical type is shown as its type."""
LOGICAL_READERS.update(_FORMS)
