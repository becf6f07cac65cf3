"""The server side of TCLIService: decodes calls and encodes replies."""

from dataclasses import dataclass
from typing import Any

from queryserver.engines.hiveserver2 import messages as methods
from queryserver.engines.hiveserver2.messages import (
    _CALL,
    _EXCEPTION,
    _REPLY,
    MalformedMessage,
    Method,
    TApplicationException,
    _Reader,
    encode_message,
)
from queryserver.engines.hiveserver2.structs import Struct, TStatus, TStatusCode

METHODS = {one.name: one for one in vars(methods).values() if isinstance(one, Method)}
SUCCESS = TStatus(status_code=TStatusCode.SUCCESS)
UNKNOWN_METHOD = 1
INTERNAL_ERROR = 6


@dataclass(frozen=True, slots=True)
class Call:
    """A decoded call. If the method name is unknown, `method` is None and `request` is an empty struct."""

    name: str
    sequence: int
    method: Method[Any, Any] | None
    request: Struct


class _EmptyStruct(Struct):
    """A struct without fields, which skips every field that it reads."""


def decode_call(raw: bytes) -> Call:
    """Decode a call. Raises IncompleteMessage if bytes are missing, and MalformedMessage if the message is not a valid
    call.
    """
    reader = _Reader(raw)
    name, kind, sequence = reader.header()
    if kind != _CALL:
        raise MalformedMessage("not a call")
    method = METHODS.get(name)
    if method is None:
        return Call(name, sequence, None, reader.whole(_EmptyStruct))
    return Call(name, sequence, method, reader.wrapped(method.request, field=1))


def encode_reply(call: Call, reply: Struct) -> bytes:
    """Encode the reply to `call`."""
    return encode_message(call.name, _REPLY, call.sequence, reply, field=0)


def encode_exception(call: Call, message: str, kind: int = INTERNAL_ERROR) -> bytes:
    """Encode an exception as the reply to `call`."""
    return encode_message(
        call.name, _EXCEPTION, call.sequence, TApplicationException(message=message, type=kind), field=None
    )
