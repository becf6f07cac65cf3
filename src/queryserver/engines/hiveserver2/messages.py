"""Encodes and decodes calls and replies in memory, in Thrift's strict binary protocol.

With Apache Thrift's C extension, decoding handles about 5 million rows of five columns per second.
"""

import struct as packing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from thrift.protocol.TBinaryProtocol import TBinaryProtocol, TBinaryProtocolAccelerated
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

from queryserver.engines.hiveserver2 import structs
from queryserver.engines.hiveserver2.structs import I32, TEXT, Struct, StructT, missing_field, struct_of, wire

RequestT = TypeVar("RequestT", bound=Struct)
ReplyT = TypeVar("ReplyT", bound=structs.TStatusResp)


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

_VERSION = 0x80010000
_CALL, _REPLY, _EXCEPTION = 1, 2, 3
_HEADER = packing.Struct(">II")
_MAX_ELEMENTS = 16 * 1024 * 1024
_MAX_NAME_BYTES = 100


class MalformedMessage(Exception):
    """The bytes are not a valid message of this protocol."""


class IncompleteMessage(MalformedMessage):
    """The bytes are only the start of a message."""


class ServerException(Exception):
    """The server could not handle the call (TApplicationException), for example because it does not know the method."""

    def __init__(self, message: str, kind: int) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind


class TApplicationException(Struct):
    message: str | None = wire(1, TEXT, default=None)
    type: int | None = wire(2, I32, default=None)


def encode_call(method: Method[RequestT, ReplyT], request: RequestT, sequence: int) -> bytes:
    return encode_message(method.name, _CALL, sequence, request, field=1)


def decode_reply(method: Method[RequestT, ReplyT], raw: bytes, sequence: int = 0) -> ReplyT:
    """Decode the reply in `raw`, which must contain nothing else.

    Raises MalformedMessage, ServerException, and IncompleteMessage if `raw` ends before the message does.
    """
    reader = _Reader(raw)
    name, kind, answered = reader.header()
    if kind == _EXCEPTION:
        refused = reader.whole(TApplicationException)
        raise ServerException(refused.message or "The server could not execute the call.", refused.type or 0)
    if kind != _REPLY or name != method.name or answered != sequence:
        raise MalformedMessage(f"a response to {name[:40]!r} instead of {method.name!r}")
    reply = reader.wrapped(method.reply, field=0)
    if missing := missing_field(reply):
        raise MalformedMessage(f"{missing} is not set")
    return reply


def encode_message(name: str, kind: int, sequence: int, body: Struct, *, field: int | None) -> bytes:
    """Encode a message.

    `field` is the body's field number in an enclosing struct; None if there is no enclosing struct.
    """
    target, text = TMemoryBuffer(), name.encode()
    body.write(TBinaryProtocolAccelerated(target))
    head = _HEADER.pack(_VERSION | kind, len(text)) + text + packing.pack(">i", sequence)
    if field is None:
        return head + target.getvalue()
    return b"".join((head, packing.pack(">bh", TType.STRUCT, field), target.getvalue(), b"\0"))


_AROUND: dict[tuple[type[Struct], int], type[Struct]] = {}


class _Reader:
    """Reads one message. Rejects containers with more than _MAX_ELEMENTS elements."""

    def __init__(self, raw: bytes, protocol: type[TBinaryProtocol] = TBinaryProtocolAccelerated) -> None:
        self._raw = raw
        self._source = TMemoryBuffer(raw)
        self._protocol: Any = protocol(self._source, string_length_limit=None, container_length_limit=_MAX_ELEMENTS)

    def header(self) -> tuple[str, int, int]:
        """Read the message's name, kind and sequence number."""
        if len(self._raw) < _HEADER.size:
            raise IncompleteMessage
        version, length = _HEADER.unpack_from(self._raw)
        if version & 0xFFFF0000 != _VERSION or length > _MAX_NAME_BYTES:
            raise MalformedMessage("invalid Thrift message")
        end = _HEADER.size + length
        if len(self._raw) < end + 4:
            raise IncompleteMessage
        (sequence,) = packing.unpack_from(">i", self._raw, end)
        self._source.cstringio_buf.seek(end + 4)
        return self._raw[_HEADER.size : end].decode("utf-8", "replace"), version & 0xFF, sequence

    def wrapped(self, kind: type[StructT], *, field: int) -> StructT:
        """Read the only field of the enclosing struct: a call's request (field 1) or result (field 0)."""
        around = _AROUND.get((kind, field))
        if around is None:

            class Around(Struct):
                body: Struct | None = wire(field, struct_of(kind))

            around = _AROUND[kind, field] = Around
        filled: Any = self.whole(around)
        body: StructT | None = filled.body
        if body is None:
            raise MalformedMessage("the message is empty")
        return body

    def whole(self, kind: type[StructT]) -> StructT:
        """Read the rest of the message as one struct."""
        one = kind()
        try:
            one.read(self._protocol)
        except EOFError as error:
            raise IncompleteMessage from error
        except (TProtocolException, TypeError, ValueError, OverflowError, MemoryError, RecursionError) as error:
            raise MalformedMessage("the message cannot be read") from error
        if self._source.cstringio_buf.tell() != len(self._raw):
            raise MalformedMessage("bytes after the end of the message")
        return one
