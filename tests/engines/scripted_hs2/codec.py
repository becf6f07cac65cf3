"""Thrift's binary protocol for the structs in `idl`. A struct is represented by a dictionary from field names to
values, which omits absent fields.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.engines.scripted_hs2.idl import METHODS, STRUCTS

Value: TypeAlias = Any
"""A bool, int, float, str, bytes, list, or dictionary of values by name."""

_CALL, _REPLY, _EXCEPTION = 1, 2, 3
_VERSION_1 = 0x80010000
_STOP, _STRUCT, _MAP, _SET, _LIST = 0, 12, 13, 14, 15
_CODES = {"bool": 2, "byte": 3, "double": 4, "i16": 6, "i32": 8, "i64": 10, "string": 11, "binary": 11}
_FIXED = {2: ">b", 3: ">b", 4: ">d", 6: ">h", 8: ">i", 10: ">q"}


@dataclass(frozen=True, slots=True)
class Call:
    """A request that the server has received."""

    name: str
    sequence: int
    request: Mapping[str, Value]


class Incomplete(Exception):
    """The bytes end before the message does."""


class _Reader:
    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, form: str) -> int | float:
        size = struct.calcsize(form)
        return struct.unpack(form, self.piece(size))[0]

    def piece(self, size: int) -> bytes:
        if self.at + size > len(self.raw):
            raise Incomplete
        self.at += size
        return self.raw[self.at - size : self.at]

    def text(self) -> bytes:
        return self.piece(int(self.take(">i")))

    def value(self, code: int, kind: str | None) -> Value:
        """Read a value of wire type `code`. `kind` is its declared type; None skips the value."""
        if code in _FIXED:
            number = self.take(_FIXED[code])
            return bool(number) if code == _CODES["bool"] else number
        if code == _CODES["string"]:
            raw = self.text()
            return raw.decode() if kind == "string" else raw
        if code == _STRUCT:
            return self.struct(kind)
        if code in {_LIST, _SET}:
            inner = int(self.take(">b"))
            return [self.value(inner, kind and kind[1:-1]) for _ in range(int(self.take(">i")))]
        if code != _MAP:
            raise ValueError(f"wire type {code}")
        key, inner = int(self.take(">b")), int(self.take(">b"))
        pairs = [
            (self.value(key, "string"), self.value(inner, kind and kind[1:-1])) for _ in range(int(self.take(">i")))
        ]
        return {str(name): value for name, value in pairs}

    def struct(self, kind: str | None) -> Mapping[str, Value]:
        known, found = STRUCTS.get(kind or "", {}), {}
        while (code := int(self.take(">b"))) != _STOP:
            number = int(self.take(">h"))
            name, inner = known.get(number, (f"field {number}", None))
            found[name] = self.value(code, inner)
        return found


def read_call(raw: bytes) -> Call:
    """Parse the request in `raw`. Raises Incomplete if bytes are missing, and ValueError if they are not a call."""
    reader = _Reader(raw)
    if int(reader.take(">I")) != _VERSION_1 | _CALL:
        raise ValueError("no call of the binary protocol")
    name = reader.text().decode()
    sequence = int(reader.take(">i"))
    if (code := int(reader.take(">b"))) != _STRUCT or int(reader.take(">h")) != 1:
        raise ValueError(f"{name}: argument of wire type {code}")
    request = reader.struct(METHODS.get(name, ("", ""))[0])
    if int(reader.take(">b")) != _STOP:
        raise ValueError(f"{name} has more than one argument")
    return Call(name, sequence, request)


def write_reply(call: Call, reply: Mapping[str, Value]) -> bytes:
    """Encode the reply to a call of a known method."""
    body = _write(METHODS[call.name][1], reply)
    return _head(call, _REPLY) + struct.pack(">bh", _STRUCT, 0) + body + bytes([_STOP])


def write_unknown_method(call: Call) -> bytes:
    """Encode a Thrift server's response to a call of an unknown method, a TApplicationException."""
    text = f"Invalid method name: '{call.name}'".encode()
    fields = struct.pack(">bh", 11, 1) + struct.pack(">i", len(text)) + text + struct.pack(">bhi", 8, 2, 1)
    return _head(call, _EXCEPTION) + fields + bytes([_STOP])


def _head(call: Call, kind: int) -> bytes:
    name = call.name.encode()
    return struct.pack(">Ii", _VERSION_1 | kind, len(name)) + name + struct.pack(">i", call.sequence)


def _write(kind: str, value: Value) -> bytes:
    if kind.startswith("["):
        return _write_list(kind[1:-1], value)
    if kind.startswith("{"):
        pairs = b"".join(_write("string", name) + _write(kind[1:-1], one) for name, one in value.items())
        return struct.pack(">bbi", 11, _code(kind[1:-1]), len(value)) + pairs
    if kind in {"string", "binary"}:
        raw = value.encode() if isinstance(value, str) else bytes(value)
        return struct.pack(">i", len(raw)) + raw
    if kind in _CODES:
        return struct.pack(_FIXED[_CODES[kind]], value)
    numbers = {name: (number, inner) for number, (name, inner) in STRUCTS[kind].items()}
    fields = [(*numbers[name], one) for name, one in value.items() if one is not None]
    parts = [struct.pack(">bh", _code(inner), number) + _write(inner, one) for number, inner, one in fields]
    return b"".join(parts) + bytes([_STOP])


def _write_list(kind: str, values: Sequence[Value]) -> bytes:
    head = struct.pack(">bi", _code(kind), len(values))
    if kind in _CODES and _CODES[kind] in _FIXED:
        return head + struct.pack(f">{len(values)}{_FIXED[_CODES[kind]][1]}", *values)
    return head + b"".join([_write(kind, value) for value in values])


def _code(kind: str) -> int:
    return _LIST if kind[0] == "[" else _MAP if kind[0] == "{" else _CODES.get(kind, _STRUCT)
