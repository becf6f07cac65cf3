"""A Trino coordinator with scripted responses on a real socket, for behavior that a healthy Trino does not show.

Responses are sent in script order, one per request, whatever the request is; the last one is repeated. `{url}` in a
body stands for the server's own address.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

_LINE_END = b"\r\n"
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """A response. `cut` closes the connection after this many bytes of the body. If `hangs` is set, no response is
    sent.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    hangs: bool = False
    raw: bytes | None = None
    """Bytes that are sent instead of an HTTP response."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request from the client."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Header names are in lower case."""
    body: bytes


def page(
    number: int | None = None,
    *,
    rows: Sequence[Sequence[Any]] | Mapping[str, Any] | None = None,
    columns: Sequence[Mapping[str, Any]] = (),
    state: str = "RUNNING",
    next_host: str = "{url}",
    **members: Any,
) -> Reply:
    """Return a page of results in the statement protocol. `number` identifies the next URI; None makes this the last
    page.
    """
    answer: dict[str, Any] = {"id": "20260101_000000_00001_abcde", "stats": {"state": state}, **members}
    if number is not None:
        answer["nextUri"] = f"{next_host}/v1/statement/executing/20260101_000000_00001_abcde/slug/{number}"
    if columns:
        answer["columns"] = list(columns)
    if rows is not None:
        answer["data"] = rows
    return Reply(orjson.dumps(answer))


def column(name: str, raw_type: str, *numbers: int) -> Mapping[str, Any]:
    """Return a column whose type has no nested types."""
    arguments = [{"kind": "LONG", "value": number} for number in numbers]
    return {"name": name, "type": raw_type, "typeSignature": {"rawType": raw_type, "arguments": arguments}}


def error(message: str, name: str = "SYNTAX_ERROR") -> Mapping[str, Any]:
    """Return the value of a response's `error` member."""
    return {"message": message, "errorName": name, "errorCode": 1, "errorType": "USER_ERROR"}


def segment_bytes(rows: Sequence[Sequence[Any]], encoding: str) -> bytes:
    """Encode the content of a segment."""
    text = orjson.dumps(rows)
    return text if encoding == "json" else pa.compress(text, "zstd", asbytes=True)


def inline_segment(rows: Sequence[Sequence[Any]], encoding: str) -> Mapping[str, Any]:
    """Return a segment that is embedded in the page."""
    content = b64encode(segment_bytes(rows, encoding)).decode()
    return {"type": "inline", "data": content, "metadata": {"rowOffset": 0, "rowsCount": len(rows)}}


def spooled_segment(name: str, rows: int, headers: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
    """Return a segment that the client must fetch from this server."""
    return {
        "type": "spooled",
        "uri": f"{{url}}/v1/spooled/download/{name}",
        "ackUri": f"{{url}}/v1/spooled/ack/{name}",
        "headers": headers,
        "metadata": {"rowOffset": 0, "rowsCount": rows},
    }


class ScriptedTrino:
    """A coordinator that listens on `port` and records `requests`. Login checks (`/v1/query`) do not consume responses
    of the script.
    """

    def __init__(self, script: Sequence[Reply]) -> None:
        self.requests: list[Request] = []
        self.port = 0
        self.login = Reply(status=410)
        self._script = list(script)
        self._tasks = set[asyncio.Task[None]]()
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, method: str) -> list[str]:
        """Return the paths that were requested with a method, without query strings."""
        return [request.path.partition("?")[0] for request in self.requests if request.method == method]

    async def listen(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and abort all connections, like a dying process."""
        if self._listener is not None:
            self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            try:
                while await self._answer(await _read(reader), writer):
                    pass
            finally:
                writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Respond to a request; return whether the connection stays open."""
        if request.path.startswith("/v1/query/"):
            reply = self.login
        else:
            self.requests.append(request)
            reply = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if reply.hangs:
            await asyncio.Event().wait()
        body = reply.body.replace(b"{url}", self.url.encode())
        head = [f"HTTP/1.1 {reply.status} Scripted", f"Content-Length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write(_LINE_END.join(line.encode() for line in head) + _HEAD_END if reply.raw is None else reply.raw)
        writer.write(body[: reply.cut])
        await writer.drain()
        return reply.cut is None and reply.raw is None


@asynccontextmanager
async def scripted_trino(*script: Reply) -> AsyncGenerator[ScriptedTrino]:
    """Start a coordinator that listens on a loopback port."""
    server = ScriptedTrino(script)
    await server.listen()
    try:
        yield server
    finally:
        await server.close()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(_HEAD_END)).decode().split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    return Request(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))
