"""What goes through the pipes of a worker: frames of a kind, the length of JSON, the length of bytes. No pickle."""

import struct
from typing import Any

import orjson

HEAD = struct.Struct("<cLL")
MAX_BYTES = 256 * 1024 * 1024

TASK, RESULT, REFUSED, EXCEEDED, BROKEN = b"T", b"R", b"D", b"X", b"B"
"""A task; its result; a domain error; limits reached; an error of the program."""


def frame(kind: bytes, told: object, content: bytes = b"") -> bytes:
    """The begin of a frame: its content follows."""
    body = orjson.dumps(told)
    return HEAD.pack(kind, len(body), len(content)) + body


def parsed(body: bytes) -> Any:
    """The JSON of a frame."""
    return orjson.loads(body)
