"""Encodes contexts, errors, columns, estimates and record batches for the channels of an engine process.

The server may send pickles to the process, because the process trusts the server. The server never unpickles anything.
"""

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import pyarrow as pa

from queryserver import errors
from queryserver.engines.blocking_drivers import Interrupted
from queryserver.engines.estimates import CostEstimate
from queryserver.engines.process.channel import ChannelClosed, Content, Frame
from queryserver.engines.protocol import StatementContext
from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import Character, EngineError, ErrorExcerpt, LineColumn, Octet, Rest, Unit
from queryserver.formats.arrow import Column, ResultType
from queryserver.sql.markers import BoundStatement

_POSITION_CLASSES = {kind.__name__: kind for kind in (Character, Octet, LineColumn, ErrorExcerpt, Rest)}
_TEXTS = frozenset({"shown", "text", "unit"})
_INTERRUPTED = "Interrupted"
_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")

SentT = TypeVar("SentT")


def packed(value: object) -> bytes:
    """Encode a value for the process, which decodes it with `unpacked`."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def unpacked(content: Content, kind: type[SentT]) -> SentT:
    """Decode a value sent by the server. Only for use in the process."""
    value = pickle.loads(content)  # noqa: S301 the process trusts the server, which wrote it
    assert isinstance(value, kind)  # noqa: S101 both sides are one program
    return value


def encode_context(context: StatementContext) -> dict[str, Any]:
    """Encode what the process needs of a statement's context."""
    return {
        "user": context.user,
        "operation_id": context.operation_id,
        "connector": context.connector,
        "read_only": context.read_only,
    }


def decode_context(message: Mapping[str, Any]) -> StatementContext:
    """Decode a context that the server sent. Only for use in the process."""
    return StatementContext(
        user=message["user"],
        operation_id=message["operation_id"],
        connector=message["connector"],
        read_only=message["read_only"],
    )


def encode_estimate(estimate: CostEstimate | None) -> dict[str, Any]:
    return {"scanned_bytes": None if estimate is None else estimate.scanned_bytes}


def decode_estimate(frame: Frame) -> CostEstimate | None:
    """Decode an estimate; None if the process cannot estimate the statement, or if the number is invalid."""
    scanned_bytes = read_count(frame, "scanned_bytes")
    return None if scanned_bytes is None else CostEstimate(scanned_bytes=scanned_bytes)


def encode_error(error: QueryServerError) -> dict[str, Any]:
    """Encode an error as a JSON object."""
    message: dict[str, Any] = {
        "class": _INTERRUPTED if isinstance(error, Interrupted) else type(error).__name__,
        "code": error.code,
        "message": error.message,
        "details": error.details,
    }
    if isinstance(error, EngineError):
        message["sqlstate"] = error.sqlstate
        if error.location is not None:
            location = asdict(error.location)
            if "unit" in location:
                location["unit"] = location["unit"].name
            message["location"] = [type(error.location).__name__, location]
    return message


def decode_error(message: Mapping[str, Any]) -> QueryServerError:
    """Decode an error encoded by `encode_error`. Raises ChannelClosed for any other message."""
    try:
        name, code, text = message["class"], message["code"], message["message"]
        if name == _INTERRUPTED:
            return Interrupted()
        kind = getattr(errors, name)
        if not (issubclass(kind, QueryServerError) and isinstance(text, str) and _CODE.fullmatch(code)):
            raise ChannelClosed
        error = errors.recreate_error(kind, code, text, message.get("details"))
        if isinstance(error, EngineError):
            error.with_sqlstate(message.get("sqlstate"))
            if (location := message.get("location")) is not None:
                error.at(_location(*location))
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ChannelClosed from None
    return error


def _location(name: str, fields: dict[str, Any]) -> Any:
    for field, value in fields.items():
        is_number = type(value) is int and value >= 0
        if not (isinstance(value, str) if field in _TEXTS else is_number or (field == "column" and value is None)):
            raise ChannelClosed
    if "unit" in fields:
        fields = fields | {"unit": Unit[fields["unit"]]}
    return _POSITION_CLASSES[name](**fields)


def read_count(frame: Frame, name: str) -> int | None:
    """Return a count from a message; None if the field is not a valid count."""
    count = frame.message.get(name)
    return count if type(count) is int and 0 <= count < 2**63 else None


def encode_columns(columns: Sequence[Column]) -> list[list[str]]:
    return [[column.name, column.type.value, column.native_type, column.comment] for column in columns]


def decode_columns(message: Sequence[Sequence[str]]) -> tuple[Column, ...]:
    """Decode columns. Raises ChannelClosed if the message is invalid."""
    try:
        for texts in message:
            if not all(type(text) is str for text in texts):
                raise ChannelClosed
        return tuple(Column(name, ResultType(kind), native, comment) for name, kind, native, comment in message)
    except (TypeError, ValueError):
        raise ChannelClosed from None


def encode_rendered(statement: "str | BoundStatement") -> dict[str, Any] | None:
    """Encode which text a BoundStatement in the process rendered last, and where the values are in it.

    The server needs this for error positions and redaction. Returns None for a statement that is plain text.
    """
    if isinstance(statement, str):
        return None
    one = statement.rows[statement.row] if statement.rows else statement
    text, pieces = one.last_rendered
    return {"row": statement.row, "text": text, "pieces": pieces}


def adopt_rendered_message(statement: "str | BoundStatement", message: Mapping[str, Any] | None) -> None:
    """Apply the result of `encode_rendered` to the server's BoundStatement. Raises ChannelClosed if it is invalid."""
    if isinstance(statement, str) or message is None:
        return
    try:
        row, text, pieces = message["row"], message["text"], message["pieces"]
        if statement.rows:
            statement.row = range(len(statement.rows))[row]
        one = statement.rows[statement.row] if statement.rows else statement
        one.adopt_rendered(str(text), [(int(start), int(at), int(size)) for start, at, size in pieces])
    except (KeyError, IndexError, TypeError, ValueError):
        raise ChannelClosed from None


class BatchWriter:
    """Encodes record batches as parts of frames. A schema is sent only if it differs from the previous one."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None

    def parts(self, batches: Sequence[pa.RecordBatch]) -> tuple[list[list[int]], list[pa.Buffer]]:
        """Return the sizes of each batch's schema (0 if unchanged) and content, and the buffers of all batches."""
        sizes, contents = list[list[int]](), list[pa.Buffer]()
        for batch in batches:
            schema_bytes = 0
            if self._schema is None or not batch.schema.equals(self._schema, check_metadata=True):
                self._schema = batch.schema
                schema = batch.schema.serialize()
                contents.append(schema)
                schema_bytes = schema.size
            body = batch.serialize()
            contents.append(body)
            sizes.append([schema_bytes, body.size])
        return sizes, contents


class BatchReader:
    """Decodes batches encoded by a BatchWriter. The decoded columns reference the frames' buffers without copying."""

    def __init__(self, columns: int | None = None) -> None:
        """`columns` is the required number of columns; None if the writer is trusted."""
        self._columns = columns
        self._schema: pa.Schema | None = None
        self._checked = pa.schema([])

    def batches(self, frame: Frame) -> Iterator[pa.RecordBatch]:
        """Yield a frame's batches. Raises ChannelClosed if the frame is invalid."""
        at = 0
        try:
            for schema_bytes, batch_bytes in frame.message["parts"]:
                if schema_bytes:
                    schema = self._schema = pa.ipc.read_schema(frame.content.slice(at, schema_bytes))
                    self._checked = pa.schema([one.with_type(_unbounded_type(one.type)) for one in schema])
                    at += schema_bytes
                if self._schema is None:
                    raise ChannelClosed
                body = frame.content.slice(at, batch_bytes)
                batch = pa.ipc.read_record_batch(body, self._schema)
                if self._columns is not None:
                    # Validate all offsets and strings, because later readers do not check their bounds.
                    pa.ipc.read_record_batch(body, self._checked).validate(full=True)
                    if batch.num_columns != self._columns:
                        raise ChannelClosed
                at += batch_bytes
                yield batch
        except (KeyError, IndexError, TypeError, ValueError, OverflowError, OSError, pa.ArrowException):
            raise ChannelClosed from None


def _unbounded_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with the same layout but no restriction on values.

    DuckDB uses decimals with 39 digits where Arrow allows 38, and the time 24:00:00.
    """
    if pa.types.is_decimal(kind):
        return pa.binary(kind.bit_width // 8)
    if pa.types.is_time32(kind):
        return pa.int32()
    if pa.types.is_time64(kind) or pa.types.is_date64(kind):
        return pa.int64()
    if not pa.types.is_nested(kind):
        return kind
    fields = [kind.field(number) for number in range(kind.num_fields)]
    fields = [one.with_type(_unbounded_type(one.type)) for one in fields]
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(_unbounded_type(kind.key_type)),
                       kind.item_field.with_type(_unbounded_type(kind.item_type)), kind.keys_sorted)  # fmt: skip
    if pa.types.is_union(kind):
        return pa.union(fields, kind.mode, kind.type_codes)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    return pa.large_list(fields[0]) if pa.types.is_large_list(kind) else pa.list_(fields[0])
