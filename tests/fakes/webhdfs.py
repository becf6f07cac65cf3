"""A minimal NameNode: an HTTP server whose responses a test defines, including responses that no real NameNode
sends.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request that the server received."""

    method: str
    path: str
    """The decoded path."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def op(self) -> str:
        return self.query.get("op", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. If the body is an iterator, each chunk is sent as soon as it is yielded."""

    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    content_length: int | None = None
    """The Content-Length header.

    If it is None, the header contains the actual length of a bytes body. An iterator body has no header in this case,
    and ends when the connection is closed.
    """


Script = Callable[[ReceivedRequest], Awaitable[Answer]]


class ScriptedNameNode:
    """Answers requests with `script` and records them in `asked`."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[ReceivedRequest] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/webhdfs/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                asked = await _request(head, reader)
                self.asked.append(asked)
                if not await _send(writer, await self.script(asked)):
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def scripted_name_node(script: Script, tls: ssl.SSLContext | None = None) -> AsyncGenerator[ScriptedNameNode]:
    node = ScriptedNameNode(script)
    server = await asyncio.start_server(node.serve, "127.0.0.1", 0, ssl=tls)
    node.port = server.sockets[0].getsockname()[1]
    try:
        yield node
    finally:
        server.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


async def _request(head: bytes, reader: asyncio.StreamReader) -> ReceivedRequest:
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    parts = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    if headers.get("transfer-encoding") == "chunked":
        body = await _chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return ReceivedRequest(method, unquote(parts.path), query, headers, body)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return bytes(body)


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> bool:
    """Send the response; return whether the connection can be reused."""
    length = answer.content_length
    if length is None and isinstance(answer.body, bytes):
        length = len(answer.body)
    headers = {**answer.headers, **({} if length is None else {"Content-Length": str(length)})}
    lines = [f"HTTP/1.1 {answer.status} Said", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    writer.write("\r\n".join(lines).encode())
    if isinstance(answer.body, bytes):
        writer.write(answer.body)
        await writer.drain()
        return length == len(answer.body)
    async for piece in answer.body:
        writer.write(piece)
        await writer.drain()
    return False
