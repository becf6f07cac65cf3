"""Calls and replies as bytes and back (thrift's binary protocol, strict form), from memory.

Apache thrift's C extension, where it is installed, decodes about 5 million rows of five columns per second.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.Thrift import TApplicationException, TException, TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer

from queryserver.engines.hiveserver2.protocol import structs
from queryserver.engines.hiveserver2.protocol.structs import Struct, missing_field

RequestT = TypeVar("RequestT", bound=Struct)
ReplyT = TypeVar("ReplyT", bound=structs.TStatusResp)
BodyT = TypeVar("BodyT", bound=Struct | TApplicationException)


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ReplyT]):
    name: str
    request: type[RequestT]
    reply: type[ReplyT]


OPEN_SESSION = Method("OpenSession", structs.TOpenSessionReq, structs.TOpenSessionResp)
CLOSE_SESSION = Method("CloseSession", structs.TCloseSessionReq, structs.TStatusResp)
EXECUTE_STATEMENT = Method("ExecuteStatement", structs.TExecuteStatementReq, structs.TOperationResp)
GET_OPERATION_STATUS = Method("GetOperationStatus", structs.TGetOperationStatusReq, structs.TGetOperationStatusResp)
CANCEL_OPERATION = Method("CancelOperation", structs.TOperationReq, structs.TStatusResp)
CLOSE_OPERATION = Method("CloseOperation", structs.TOperationReq, structs.TStatusResp)
GET_RESULT_SET_METADATA = Method("GetResultSetMetadata", structs.TOperationReq, structs.TGetResultSetMetadataResp)
FETCH_RESULTS = Method("FetchResults", structs.TFetchResultsReq, structs.TFetchResultsResp)
GET_LOG = Method("GetLog", structs.TOperationReq, structs.TGetLogResp)

CLOSE_IMPALA_OPERATION = Method("CloseImpalaOperation", structs.TOperationReq, structs.TCloseImpalaOperationResp)
GET_EXEC_SUMMARY = Method("GetExecSummary", structs.TGetExecSummaryReq, structs.TGetExecSummaryResp)

_MAX_ELEMENTS = 16 * 1024 * 1024


class MalformedMessage(Exception):
    """Bytes that are no message of this protocol."""


class IncompleteMessage(MalformedMessage):
    """The beginning of a message; more bytes may complete it."""


class ServerException(Exception):
    """The server could not carry out the call (TApplicationException): an unknown method, an internal error."""

    def __init__(self, message: str, kind: int) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind


def encode_call(method: Method[RequestT, ReplyT], request: RequestT, sequence: int) -> bytes:
    return encode_message(method.name, TMessageType.CALL, sequence, request, field=1)


def decode_reply(method: Method[RequestT, ReplyT], raw: bytes, sequence: int = 0) -> ReplyT:
    """The reply in `raw`, which must hold nothing else.

    Raises IncompleteMessage when `raw` ends too early, MalformedMessage, ServerException.
    """
    reader = Reader(raw)
    name, kind, answered = reader.begin()
    if kind == TMessageType.EXCEPTION:
        refused = reader.rest(TApplicationException, field=None)
        raise ServerException(refused.message or "The server could not carry out the call.", refused.type)
    if kind != TMessageType.REPLY or name != method.name or answered != sequence:
        raise MalformedMessage(f"an answer to {name[:40]!r} instead of {method.name!r}")
    reply = reader.rest(method.reply, field=0)
    if missing := missing_field(reply):
        raise MalformedMessage(f"{missing} is not set")
    return reply


def encode_message(name: str, kind: int, sequence: int, body: Any, *, field: int | None) -> bytes:
    """The bytes of a message; `field`: the number of the body in the struct around it, None: there is none."""
    target = TMemoryBuffer()
    protocol: Any = TBinaryProtocolAccelerated(target)
    protocol.writeMessageBegin(name, kind, sequence)
    if field is not None:
        protocol.writeFieldBegin("", TType.STRUCT, field)
    body.write(protocol)
    if field is not None:
        protocol.writeFieldStop()
    return target.getvalue()


class Reader:
    """Reads one message; a container never has more elements than the message has bytes.

    Both methods raise IncompleteMessage, MalformedMessage.
    """

    def __init__(self, raw: bytes) -> None:
        self._size = len(raw)
        self._source = TMemoryBuffer(raw)
        self._protocol: Any = TBinaryProtocolAccelerated(
            self._source, strictRead=True, string_length_limit=None, container_length_limit=_MAX_ELEMENTS
        )

    def begin(self) -> tuple[str, int, int]:
        """Name, kind and sequence number."""
        with _reading():
            return self._protocol.readMessageBegin()

    def rest(self, kind: type[BodyT], *, field: int | None) -> BodyT:
        """The rest of the message, a body of that kind; `field` as in `encode_message`."""
        body = kind()
        with _reading():
            if field is not None and self._protocol.readFieldBegin()[1:] != (TType.STRUCT, field):
                raise MalformedMessage("the message is empty")
            body.read(self._protocol)
            is_over = field is None or self._protocol.readFieldBegin()[1] == TType.STOP
        if not is_over or self._source.cstringio_buf.tell() != self._size:
            raise MalformedMessage("bytes after the end of the message")
        return body


@contextmanager
def _reading() -> Generator[None]:
    try:
        yield
    except EOFError as error:
        raise IncompleteMessage from error
    except (TException, TypeError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        raise MalformedMessage("the message cannot be read") from error
