"""The messages of Avatica that this client sends and reads (Avatica: Protocol Buffers Reference).

Every body is a WireMessage: the Java name of the message's class, and the message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from queryserver.engines.phoenix.protobuf import Malformed, Message, number, octets, pairs, text

_PACKAGE = "org.apache.calcite.avatica.proto."
_NO_LIMIT = -1
_ANSWERS = MappingProxyType({"PrepareAndExecute": "ExecuteResponse", "Columns": "ResultSetResponse"})
_NO_SUCH_STATEMENT = "NoSuchStatementException"


@dataclass(frozen=True, slots=True)
class ColumnMetadata:
    """A column as the server declares it; sizes are 0 where it has none."""

    label: str
    type_name: str
    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows, each still a message `Row`; `done` when no others follow."""

    rows: Sequence[bytes]
    done: bool


@dataclass(frozen=True, slots=True)
class Executed:
    """What a statement gave first: columns and a frame, or a count of changed rows."""

    columns: Sequence[ColumnMetadata]
    frame: Frame
    update_count: int | None
    statement: int = 0
    """The server's number of it, where it chose that itself."""


class ServerError(Exception):
    """An ErrorResponse: `text` is the server's own, `traces` are its Java exceptions with their stacks."""

    def __init__(self, text: str, traces: Sequence[str]) -> None:
        super().__init__(text)
        self.text = text
        self.traces = traces


class Missing(Exception):
    """The server no longer has the statement, or its result."""


def request(name: str, body: bytes) -> bytes:
    """The body of a POST."""
    return text(1, f"{_PACKAGE}Requests${name}Request") + octets(2, body)


def response(name: str, body: bytes) -> Message:
    """The message in the body of an answer to the request `name`. Raises ServerError, Missing, Malformed."""
    wire = Message(body)
    kind = wire.text(1).rpartition("$")[2]
    if kind == "ErrorResponse":
        error = wire.message(2)
        traces = [one.decode(errors="replace") for one in error.each(1)]
        if any(trace.partition(":")[0].endswith(_NO_SUCH_STATEMENT) for trace in traces):
            raise Missing
        raise ServerError(error.text(2), traces)
    if kind != _ANSWERS.get(name, f"{name}Response"):
        raise Malformed
    return wire.message(2)


def open_connection(connection: str, properties: Mapping[str, str]) -> bytes:
    """OpenConnectionRequest."""
    return text(1, connection) + pairs(2, properties)


def synchronize(
    connection: str, *, auto_commit: bool | None = None, read_only: bool | None = None, schema: str = ""
) -> bytes:
    """ConnectionSyncRequest. None and "" leave a property as it is."""
    properties = text(6, schema) if schema else b""
    if auto_commit is not None:
        properties += number(2, auto_commit) + number(7, 1)
    if read_only is not None:
        properties += number(3, read_only) + number(8, 1)
    return text(1, connection) + octets(2, properties)


def of_connection(connection: str) -> bytes:
    """CreateStatementRequest, CloseConnectionRequest."""
    return text(1, connection)


def schema_of(message: Message) -> str:
    """The schema that a ConnectionSyncResponse tells; "" for none."""
    return message.message(1).text(6)


def of_statement(connection: str, statement: int) -> bytes:
    """CloseStatementRequest."""
    return text(1, connection) + number(2, statement)


def prepare_and_execute(connection: str, statement: int, sql: str, *, rows: int) -> bytes:
    """PrepareAndExecuteRequest; `rows` is the size of the first frame."""
    return text(1, connection) + text(2, sql) + number(4, statement) + number(5, _NO_LIMIT) + number(6, rows)


def prepare(connection: str, sql: str) -> bytes:
    """PrepareRequest."""
    return text(1, connection) + text(2, sql) + number(4, _NO_LIMIT)


def prepared(message: Message) -> int:
    """Of a PrepareResponse: the server's number of the statement."""
    return message.message(1).number(2)


def execute_batch(connection: str, statement: int, rows: Sequence[bytes]) -> bytes:
    """ExecuteBatchRequest; each row is an UpdateBatch: the values of a prepared statement's parameters."""
    return text(1, connection) + number(2, statement) + b"".join(octets(3, row) for row in rows)


def check_batch(message: Message) -> None:
    """Of an ExecuteBatchResponse. Raises Missing."""
    if message.number(4):
        raise Missing


def fetch(connection: str, statement: int, *, offset: int, rows: int) -> bytes:
    """FetchRequest. Servers before Avatica 1.10 read the size of the frame from field 4."""
    return text(1, connection) + number(2, statement) + number(3, offset) + number(4, rows) + number(5, rows)


def columns(connection: str, schema: str, table: str) -> bytes:
    """ColumnsRequest; both are patterns of LIKE."""
    return text(2, schema) + text(3, table) + text(5, connection) + number(7, 1) + number(8, 1)


def statement_id(message: Message) -> int:
    """Of a CreateStatementResponse."""
    return message.number(2)


def executed(message: Message) -> Executed:
    """Of a PrepareAndExecute's ExecuteResponse. Raises Missing, Malformed."""
    if message.number(2):
        raise Missing
    for result in message.messages(1):
        return result_set(result)
    return Executed((), Frame((), done=True), None)


def result_set(message: Message) -> Executed:
    """A ResultSetResponse. Raises Malformed."""
    count = message.signed(6)
    declared = [_column(one) for one in message.message(4).messages(1)]
    if declared:
        return Executed(declared, _frame(message.message(5)), None, message.number(2))
    return Executed((), Frame((), done=True), count if count >= 0 else None)


def fetched(message: Message) -> Frame:
    """Of a FetchResponse. Raises Missing, Malformed."""
    if message.number(2) or message.number(3):
        raise Missing
    return _frame(message.message(1))


def _frame(message: Message) -> Frame:
    return Frame(list(message.each(3)), done=bool(message.number(2)))


def _column(message: Message) -> ColumnMetadata:
    kind = message.message(20)
    return ColumnMetadata(
        label=message.text(9) or message.text(10),
        type_name=kind.text(2),
        precision=message.number(12),
        scale=message.number(13),
    )
