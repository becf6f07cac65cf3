"""The transports for calls and replies: SASL frames, unframed messages, or HTTP."""

import asyncio
import base64
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tests.engines.scripted_hs2.codec import Incomplete

Answer = Callable[["Peer", bytes], Awaitable[bytes | None]]
"""Returns the reply to a call on a connection; None closes the connection without a reply."""

_START, _OK, _BAD, _COMPLETE = 1, 2, 3, 5
_LENGTH = struct.Struct(">I")
_READ = 1 << 16


@dataclass(eq=False)
class Peer:
    """A connection, and the user who logged in on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    user: str = ""
    sessions: set[bytes] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Passwords:
    """The accepted logins; if there are none, any login is accepted. `logins` records the `Authorization` headers of
    HTTP calls.
    """

    by_user: Mapping[str, str]
    logins: list[str] = field(default_factory=list[str])

    def accept(self, user: str, password: str) -> bool:
        return not self.by_user or self.by_user.get(user) == password


async def serve_sasl(peer: Peer, answer: Answer, passwords: Passwords) -> None:
    """Serve SASL PLAIN messages (status byte, length, text), then calls prefixed with their length."""
    if not await _log_in(peer, passwords):
        return
    while True:
        (length,) = _LENGTH.unpack(await peer.reader.readexactly(4))
        reply = await answer(peer, await peer.reader.readexactly(length))
        if reply is None:
            return
        peer.writer.write(_LENGTH.pack(len(reply)) + reply)
        await peer.writer.drain()


async def serve_bare(peer: Peer, answer: Answer, passwords: Passwords) -> None:
    """Serve NOSASL connections, on which self-delimiting messages follow one another."""
    buffer = b""
    while piece := await peer.reader.read(_READ):
        buffer += piece
        try:
            reply = await answer(peer, buffer)
        except Incomplete:
            continue
        if reply is None:
            return
        buffer = b""
        peer.writer.write(reply)
        await peer.writer.drain()


async def serve_http(peer: Peer, answer: Answer, passwords: Passwords) -> None:
    """Serve HTTP, where each POST is one call."""
    while head := await _read_head(peer.reader):
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)
        lower = {name.lower(): value for name, value in headers.items()}
        body = await peer.reader.readexactly(int(lower.get("content-length", "0")))
        login = lower.get("authorization", "")
        passwords.logins.append(login)
        user, _, password = _basic(login).partition(":")
        if not passwords.accept(user, password):
            _write_http(peer.writer, b"401 Unauthorized", b"", b"WWW-Authenticate: Basic\r\n")
            continue
        peer.user = user
        reply = await answer(peer, body)
        if reply is None:
            return
        _write_http(peer.writer, b"200 OK", reply, b"Content-Type: application/x-thrift\r\n")
        await peer.writer.drain()


async def _log_in(peer: Peer, passwords: Passwords) -> bool:
    kind, name = await _negotiation(peer.reader)
    if kind != _START or name != b"PLAIN":
        return await _refuse(peer, b"Unsupported mechanism type " + name)
    _, text = await _negotiation(peer.reader)
    _, user, password = (part.decode() for part in text.split(b"\0"))
    if not passwords.accept(user, password):
        return await _refuse(peer, b"Error validating the login")
    peer.user = user
    await _negotiate(peer, _COMPLETE, b"")
    return True


async def _refuse(peer: Peer, words: bytes) -> bool:
    await _negotiate(peer, _BAD, words)
    return False


async def _negotiate(peer: Peer, status: int, text: bytes) -> None:
    peer.writer.write(struct.pack(">BI", status, len(text)) + text)
    await peer.writer.drain()


async def _negotiation(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, length = struct.unpack(">BI", await reader.readexactly(5))
    return status, await reader.readexactly(length)


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def _basic(header: str) -> str:
    kind, _, value = header.partition(" ")
    return base64.b64decode(value).decode() if kind.lower() == "basic" else ""


def _write_http(writer: asyncio.StreamWriter, status: bytes, body: bytes, headers: bytes) -> None:
    length = f"Content-Length: {len(body)}\r\n\r\n".encode()
    writer.write(b"HTTP/1.1 " + status + b"\r\n" + headers + length + body)
