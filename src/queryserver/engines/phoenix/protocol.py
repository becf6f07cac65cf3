"""Encodes and decodes Avatica messages and parameter values, and translates errors.

See Avatica's Protocol Buffers Reference. Every HTTP body is a WireMessage, which contains the name of the message's
Java class and the message itself.
"""

import math
import re
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, auto
from typing import Any

import httpx
import pyarrow as pa

from queryserver import errors
from queryserver.engines.engine_messages import PHOENIX, find_location
from queryserver.engines.loader import cell_texts
from queryserver.sql.literals import PHOENIX as LITERALS
from queryserver.sql.parameters import Parameter, ParameterSupport, ParameterType

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WORD = (1 << 64) - 1


class Malformed(ValueError):
    """The bytes are not a valid Avatica message."""


def varint(value: int) -> bytes:
    """Encode an integer below 2**64 as a varint. A negative integer is encoded in two's complement."""
    rest = value & _WORD
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Encode a field of type int32, int64, uint32, uint64, bool or enum."""
    return varint(field << 3 | VARINT) + varint(value)


def octets(field: int, value: bytes) -> bytes:
    """Encode a field of type bytes, or a nested message."""
    return varint(field << 3 | BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """Encode a field of type string."""
    return octets(field, value.encode(errors="replace"))


def pairs(field: int, value: Mapping[str, str]) -> bytes:
    """Encode a field of type map<string, string>."""
    return b"".join(octets(field, text(1, key) + text(2, item)) for key, item in value.items())


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the varint at offset `at`. Return its value and the offset after it. Raises Malformed."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Malformed
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _WORD, at
        shift += 7


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield field numbers and values in order. Values are integers for varints, bytes for other types.

    Raises Malformed.
    """
    at, end = 0, len(data)
    while at < end:
        tag, at = read_varint(data, at)
        kind = tag & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield tag >> 3, value
            continue
        if kind == BYTES:
            length, at = read_varint(data, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise Malformed
        if length > end - at:
            raise Malformed
        yield tag >> 3, data[at : at + length]
        at += length


class Message:
    """A decoded message. The methods raise Malformed if a field has a different type.

    As in proto3, they return the last value of a field, or the type's default value if the field is absent.
    """

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        for field, value in fields(data):
            self._fields.setdefault(field, []).append(value)

    def number(self, field: int) -> int:
        """Return the value of an unsigned or boolean field."""
        value = self._fields.get(field, [0])[-1]
        if isinstance(value, bytes):
            raise Malformed
        return value

    def signed(self, field: int) -> int:
        """Return the value of an int32 or int64 field, or of an unsigned field that contains a negative number."""
        return signed(self.number(field))

    def octets(self, field: int) -> bytes:
        value = self._fields.get(field, [b""])[-1]
        if isinstance(value, int):
            raise Malformed
        return value

    def text(self, field: int) -> str:
        return self.octets(field).decode(errors="replace")

    def has(self, field: int) -> bool:
        """Return whether the message contains the field, even with an empty value."""
        return field in self._fields

    def message(self, field: int) -> "Message":
        return Message(self.octets(field))

    def each(self, field: int) -> Iterator[bytes]:
        """Yield all values of a repeated field."""
        for value in self._fields.get(field, ()):
            if isinstance(value, int):
                raise Malformed
            yield value

    def messages(self, field: int) -> Iterable["Message"]:
        return map(Message, self.each(field))


def signed(value: int) -> int:
    """Interpret a 64-bit number as two's complement."""
    return value - (1 << 64) if value >> 63 else value


def zigzag(value: int) -> int:
    """Decode a sint32 or sint64."""
    return (value >> 1) ^ -(value & 1)


@dataclass(frozen=True, slots=True)
class AvaticaColumn:
    """A column as declared by the server. Precision and scale are 0 if the type has none."""

    label: str
    type_name: str
    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class AvaticaFrame:
    """Rows as encoded `Row` messages. `done` is set if no more rows follow."""

    rows: Sequence[bytes]
    done: bool


@dataclass(frozen=True, slots=True)
class ExecuteResult:
    """The first response to a statement: either columns and a frame, or the number of changed rows."""

    columns: Sequence[AvaticaColumn]
    frame: AvaticaFrame
    update_count: int | None
    statement: int = 0  # statement number, if the server assigned one


class ServerError(Exception):
    """An ErrorResponse. `text` is the server's message; `traces` contains its Java exceptions with stack traces."""

    def __init__(self, text: str, traces: Sequence[str], sqlstate: str = "") -> None:
        super().__init__(text)
        self.sqlstate = sqlstate
        self.text = text
        self.traces = traces


class StatementMissing(Exception):
    """The server no longer has the statement or its result."""


def request(name: str, body: bytes) -> bytes:
    return text(1, f"org.apache.calcite.avatica.proto.Requests${name}Request") + octets(2, body)


def response(name: str, body: bytes) -> Message:
    """Decode the response body for the request `name`. Raises ServerError, StatementMissing, Malformed."""
    wire = Message(body)
    kind = wire.text(1).rpartition("$")[2]
    if kind == "ErrorResponse":
        error = wire.message(2)
        traces = [one.decode(errors="replace") for one in error.each(1)]
        if any(trace.partition(":")[0].endswith("NoSuchStatementException") for trace in traces):
            raise StatementMissing
        raise ServerError(error.text(2), traces, error.text(5))
    expected = {"PrepareAndExecute": "ExecuteResponse", "Columns": "ResultSetResponse"}
    if kind != expected.get(name, f"{name}Response"):
        raise Malformed
    return wire.message(2)


def encode_sync_request(
    connection: str, *, auto_commit: bool | None = None, read_only: bool | None = None, schema: str = ""
) -> bytes:
    """Encode a ConnectionSyncRequest. None and "" leave a property unchanged."""
    properties = text(6, schema) if schema else b""
    if auto_commit is not None:
        properties += number(2, auto_commit) + number(7, 1)
    if read_only is not None:
        properties += number(3, read_only) + number(8, 1)
    return text(1, connection) + octets(2, properties)


def decode_execute_response(message: Message) -> ExecuteResult:
    """Decode an ExecuteResponse. Raises StatementMissing, Malformed."""
    if message.number(2):
        raise StatementMissing
    for result in message.messages(1):
        return result_set(result)
    return ExecuteResult((), AvaticaFrame((), done=True), None)


def result_set(message: Message) -> ExecuteResult:
    """Decode a ResultSetResponse. Raises Malformed."""
    count = message.signed(6)
    declared = list[AvaticaColumn]()
    for one in message.message(4).messages(1):
        name, type_name = one.text(9) or one.text(10), one.message(20).text(2)
        declared.append(AvaticaColumn(name, type_name, precision=one.number(12), scale=one.number(13)))
    if declared:
        return ExecuteResult(declared, _frame(message.message(5)), None, message.number(2))
    return ExecuteResult((), AvaticaFrame((), done=True), count if count >= 0 else None)


def decode_fetch_response(message: Message) -> AvaticaFrame:
    """Decode a FetchResponse. Raises StatementMissing, Malformed."""
    if message.number(2) or message.number(3):
        raise StatementMissing
    return _frame(message.message(1))


def _frame(message: Message) -> AvaticaFrame:
    return AvaticaFrame(list(message.each(3)), done=bool(message.number(2)))


# Values of Avatica's `Rep` enum.
_BOOLEAN, _LONG, _DOUBLE, _TIME, _TIMESTAMP, _DATE, _STRING, _NULL, _BIG_DECIMAL = 8, 13, 15, 16, 17, 18, 21, 24, 26
_BYTE_STRING = 20
# Numbers of the value fields in `TypedValue`.
_BOOL_VALUE, _STRING_VALUE, _NUMBER_VALUE, _BYTES_VALUE, _DOUBLE_VALUE, _IS_NULL = 2, 3, 4, 5, 6, 7

_GREGORIAN = datetime(1582, 10, 15)  # noqa: DTZ001 Java parses earlier dates in the Julian calendar
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 imported timestamps have no zone
_MAX_LONG = 2**63 - 1

Write = Callable[[Any], bytes]


class _UnsupportedValue(ValueError):
    """Phoenix cannot store a value. The message states the reason."""


def parameter_rows(names: Sequence[str], batch: pa.RecordBatch) -> list[bytes]:
    """Encode each row as an `UpdateBatch`. Raises StatementRejected for values that Phoenix cannot store."""
    null = octets(1, number(1, _NULL) + number(_IS_NULL, 1))
    columns = list[list[bytes]]()
    for name, column in zip(names, batch.columns, strict=True):
        write, values = _value_encoder(column)
        try:
            columns.append([null if value is None else octets(1, write(value)) for value in values.to_pylist()])
        except _UnsupportedValue as error:
            raise errors.StatementRejected(
                f'Column "{name}" contains a value that Phoenix cannot store: {error}.'
            ) from error
    return [b"".join(row) for row in zip(*columns, strict=True)]


def with_row_numbers(rows: Sequence[bytes], first: int) -> list[bytes]:
    """Append a consecutive number, starting at `first`, to each row as its last parameter."""
    return [row + octets(1, _long(value)) for value, row in enumerate(rows, first)]


def _refusal_reason(one: Parameter) -> str | None:
    try:
        if isinstance(one.value, tuple):
            _require_array(one)
        else:
            typed_value(one)
    except _UnsupportedValue as error:
        return str(error)
    return None


def _require_array(one: Parameter) -> None:
    """Raise _UnsupportedValue for values that `ARRAY[…]` cannot store, such as NULL, which would become 0."""
    if not one.elements:
        raise _UnsupportedValue("empty arrays are not supported")
    types = {element.type for element in one.elements if element.value is not None}
    if types & {ParameterType.ARRAY, ParameterType.BINARY}:
        raise _UnsupportedValue("arrays can contain only numbers, strings, dates and times")
    if types != {ParameterType.VARCHAR} and any(element.value is None for element in one.elements):
        raise _UnsupportedValue("only arrays of strings can contain NULL")
    for value in (element.value for element in one.elements):
        if isinstance(value, date) and value.year <= _GREGORIAN.year:
            raise _UnsupportedValue("dates in arrays must be later than 1582")
        if isinstance(value, datetime) and value.microsecond % 1000:
            raise _UnsupportedValue("its time is more precise than milliseconds")


PARAMETERS = ParameterSupport(frozenset(ParameterType) - {ParameterType.TIMESTAMP_TZ}, refusal_reason=_refusal_reason)


def mark(number: int, one: Parameter) -> str:
    """Return the marker for a value. An array becomes a literal, because the Query Server corrupts bound arrays."""
    return LITERALS.write(number, one) if isinstance(one.value, tuple) else "?"


def typed_value(one: Parameter) -> bytes:
    """Encode a value other than an array as a `TypedValue`. Raises _UnsupportedValue unless `PARAMETERS` permits it."""
    match one.value:
        case None:
            return number(1, _NULL) + number(_IS_NULL, 1)
        case bool() as value:
            return number(1, _BOOLEAN) + number(_BOOL_VALUE, value)
        case int() as value:
            return _long(value)
        case float() as value:
            return _double(value)
        case Decimal() as value:
            return number(1, _BIG_DECIMAL) + text(_STRING_VALUE, format(value, "f"))
        case bytes() as value:
            return number(1, _BYTE_STRING) + octets(_BYTES_VALUE, value)
        case str() as value:
            return _text(value)
        case date() | time() as value:
            return _encode_date_or_time(value)
        case tuple():
            raise TypeError("arrays are rendered as literals")


def _encode_date_or_time(value: date | time) -> bytes:
    if isinstance(value, datetime):
        return _timestamp(value)
    if isinstance(value, date):
        return _whole(_DATE, (value - _EPOCH.date()).days)
    past = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
    return _clock(past // timedelta(microseconds=1))


def _value_encoder(column: pa.Array) -> tuple[Write, pa.Array]:
    """Return a function that encodes one value, and the column converted to that function's input type."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return lambda value: number(1, _BOOLEAN) + number(_BOOL_VALUE, value), column
    if pa.types.is_integer(kind):
        return _long, column
    if pa.types.is_floating(kind):
        return _double, column
    if pa.types.is_decimal(kind):
        return lambda value: number(1, _BIG_DECIMAL) + text(_STRING_VALUE, format(value, "f")), column
    if pa.types.is_date(kind):
        return lambda value: _whole(_DATE, value), column.cast(pa.int32())
    if pa.types.is_time(kind):
        return _clock, column.cast(pa.int64())
    if pa.types.is_timestamp(kind):
        return _timestamp, column
    if pa.types.is_binary(kind):
        return lambda value: number(1, _BYTE_STRING) + octets(_BYTES_VALUE, value), column
    return _text, cell_texts(column)


def _whole(rep: int, value: int) -> bytes:
    return number(1, rep) + varint(_NUMBER_VALUE << 3 | VARINT) + varint((value << 1) ^ (value >> 63))


def _long(value: int) -> bytes:
    if value > _MAX_LONG:
        raise _UnsupportedValue(f"it is greater than {_MAX_LONG}")
    return _whole(_LONG, value)


def _double(value: float) -> bytes:
    if not math.isfinite(value):
        raise _UnsupportedValue("it is not a finite number")
    return number(1, _DOUBLE) + varint(_DOUBLE_VALUE << 3 | FIXED64) + struct.pack("<d", value)


def _clock(microseconds: int) -> bytes:
    if microseconds % 1000:
        raise _UnsupportedValue("its time is more precise than milliseconds")
    return _whole(_TIME, microseconds // 1000)


def _timestamp(value: datetime) -> bytes:
    """Encode a timestamp as a string, because numbers are limited to milliseconds.

    A timestamp before 1582-10-15 is encoded as a number, because Java parses such dates in the Julian calendar.
    """
    if value >= _GREGORIAN:
        return _text(value.isoformat(" "))
    if value.microsecond % 1000:
        raise _UnsupportedValue("its time is more precise than milliseconds, and its date is before 1583")
    return _whole(_TIMESTAMP, (value - _EPOCH) // timedelta(milliseconds=1))


def _text(value: str) -> bytes:
    return number(1, _STRING) + text(_STRING_VALUE, value)


GONE = "Results have expired: the statement no longer exists on the Query Server."
_SESSION_GONE = "The Phoenix session no longer exists; the statement was not started."
_LOST = "The connection to the Query Server was lost while the statement ran."
_UNREACHABLE = "Could not connect to the Query Server."

_MESSAGE_CHARS = 10_000
# Matches, for example, `org.apache.phoenix.schema.TableNotFoundException: `. Another class name may follow.
_CLASS = re.compile(r"^(?:Caused by: )?(?:[a-z]\w*\.)+[A-Z][\w$]*(?:: ?|$)")
_STACK_LINE = re.compile(r"^\s+(?:at |\.\.\. \d+ more)")
_DENIED = re.compile(r"AccessDeniedException|AccessControlException|Insufficient permissions|\(42000\).*permission")


class Phase(Enum):
    """The phase of a statement in which a failure occurred."""

    OPENING = auto()  # a session is being opened or metadata requested; no statement was started
    BEFORE = auto()  # the session is open, but the statement was not sent
    SENT = auto()  # the statement was sent and may have taken effect


class HttpRefusal(Exception):
    """An HTTP response that is not an Avatica message."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


@contextmanager
def avatica_errors(phase: Phase) -> Generator[None]:
    """Translate Query Server failures into EngineError, depending on the phase."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:  # nothing was sent
        if phase is Phase.SENT:
            raise errors.OutcomeUnknown(_LOST) from error
        raise _lost_error(phase, _UNREACHABLE) from error
    except TimeoutError as error:
        raise _lost_error(phase, "The Query Server did not respond in time.") from error
    except (httpx.TransportError, httpx.StreamError, httpx.DecodingError) as error:
        raise _lost_error(phase, _LOST) from error
    except Malformed as error:
        raise _lost_error(phase, "The Query Server returned an invalid response.") from error
    except HttpRefusal as error:
        if error.status in {401, 403}:
            raise errors.CredentialsRequired("The Query Server rejected the login.") from error
        raise _lost_error(phase, f"The Query Server returned HTTP status {error.status}.") from error
    except StatementMissing as error:
        raise errors.OutcomeUnknown(GONE) from error
    except ServerError as error:
        raise _server_error(phase, error) from error


_ON_FIRST_LINE = re.compile(r"\bat line 1, column (\d+)\b")


@contextmanager
def without_text(before: str) -> Generator[None]:
    """Correct the positions in errors of a statement that was sent after `before`, which has no line breaks."""
    try:
        yield
    except errors.StatementRejected as error:
        if not before or not _ON_FIRST_LINE.search(error.message):
            raise
        text = _ON_FIRST_LINE.sub(
            lambda found: f"at line 1, column {max(int(found[1]) - len(before), 1)}", error.message
        )
        raise type(error)(text).at(find_location(text, PHOENIX)).with_sqlstate(error.sqlstate) from error.__cause__


def _lost_error(phase: Phase, text: str) -> errors.EngineError:
    if phase is Phase.OPENING:
        return errors.EngineUnavailable(_UNREACHABLE if text == _LOST else text)
    if phase is Phase.BEFORE:
        return errors.SessionLost(_SESSION_GONE)
    return errors.OutcomeUnknown(f"{text} The statement may or may not have taken effect.")


def _server_error(phase: Phase, error: ServerError) -> errors.EngineError:
    if any(trace.partition(":")[0].endswith("NoSuchConnectionException") for trace in error.traces):
        return errors.OutcomeUnknown(GONE) if phase is Phase.SENT else errors.SessionLost(_SESSION_GONE)
    text = server_text(error.text, error.traces)
    if "(TIM01)" in text:  # Phoenix's own timeout
        return errors.EngineTimeout(text)
    refused = errors.StatementDenied(text) if any(map(_DENIED.search, error.traces)) else errors.StatementRejected(text)
    return refused.at(find_location(text, PHOENIX)).with_sqlstate(error.sqlstate)


def server_text(text: str, traces: Sequence[str]) -> str:
    """Return the message of the first cause that has one, without Java class names and stack traces."""
    for trace in traces:
        for cause in re.split(r"^(?=Caused by: )", trace, flags=re.MULTILINE):
            if message := _message_of(cause):
                return message[:_MESSAGE_CHARS]
    without = _message_of(re.sub(r" -> .*", "", text, flags=re.DOTALL))
    return without[:_MESSAGE_CHARS] or "Phoenix returned no error message."


def _message_of(cause: str) -> str:
    lines = list[str]()
    for line in cause.splitlines():
        if _STACK_LINE.match(line):
            break
        while match := _CLASS.match(line):
            line = line[match.end() :].lstrip()  # noqa: PLW2901
        lines.append(line)
    return "\n".join(lines).strip()
