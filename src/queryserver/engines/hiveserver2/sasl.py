"""SASL as HiveServer2 has it: messages of a status byte and a length, then frames (auth only).

Facts of Thrift's SASL transport: START 1, OK 2, BAD 3, ERROR 4, COMPLETE 5.
"""

import asyncio
import struct
from typing import Protocol

from queryserver.engines.hiveserver2.errors import LoginRefused
from queryserver.engines.hiveserver2.protocol.messages import MalformedMessage

_HEADER = struct.Struct(">BI")
_START, _OK, _BAD, _ERROR, _COMPLETE = range(1, 6)
_LONGEST = 1024 * 1024
_MOST_STEPS = 20


class SaslMechanism(Protocol):
    """One way to log in."""

    @property
    def name(self) -> str:
        """As SASL registers it."""
        ...

    async def step(self, challenge: bytes | None) -> bytes:
        """The answer to the server's challenge; None: the first word. Raises LoginRefused."""
        ...


class Plain:
    """User name and password; servers without authentication take any."""

    name = "PLAIN"

    def __init__(self, user: str, password: str) -> None:
        # Hive refuses an empty password even where it asks for none.
        self._answer = b"\0" + user.encode() + b"\0" + (password or "none").encode()

    async def step(self, challenge: bytes | None) -> bytes:
        """There is only one step."""
        return b"" if challenge else self._answer


async def negotiate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mechanism: SaslMechanism) -> None:
    """Log in. Raises LoginRefused; what streams raise; MalformedMessage."""
    _send(writer, _START, mechanism.name.encode())
    _send(writer, _OK, await mechanism.step(None))
    for _ in range(_MOST_STEPS):
        await writer.drain()
        status, body = await _receive(reader)
        if status == _COMPLETE:
            return
        if status in {_BAD, _ERROR}:
            raise LoginRefused(body.decode("utf-8", "replace"))
        if status != _OK:
            raise MalformedMessage("no SASL message")
        _send(writer, _OK, await mechanism.step(body))
    raise MalformedMessage("the login does not end")


def _send(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    writer.write(_HEADER.pack(status, len(body)) + body)


async def _receive(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, length = _HEADER.unpack(await reader.readexactly(_HEADER.size))
    if length > _LONGEST:
        raise MalformedMessage("no SASL message")
    return status, await reader.readexactly(length)
