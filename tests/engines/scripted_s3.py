"""A peer that speaks S3's HTTP protocol and sends a test's responses, which a real store would not send on demand."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser

_REPLY_HEAD = "HTTP/1.1 {status} Told\r\nConnection: close\r\n{headers}\r\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """A response. `content_length` may be wrong on purpose."""

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    content_length: int | None = None

    @classmethod
    def refusal(cls, status: int, code: str, message: str = "Told by http://10.1.2.3:9000 for AKIA0") -> "Reply":
        """Return an error response in S3's format."""
        text = f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>4442587FB7D0</RequestId></Error>"
        return cls(status, text)


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request that the peer has received."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class ScriptedS3:
    """A peer that sends the given responses in order, with a separate sequence for HEAD, and repeats the last one."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[ReceivedRequest] = []
        self._replies = deque[Reply]()
        self._heads = deque[Reply]()

    def will_answer(self, *replies: Reply, heads: Sequence[Reply] = ()) -> None:
        """Set the next responses and clear the recorded requests. If `heads` is empty, HEAD requests get the same
        responses as other requests.
        """
        self._replies, self._heads = deque(replies), deque(heads)
        self.asked = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection with a single request."""
        try:
            request, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            headers = {name.lower(): value for name, value in BytesParser().parsebytes(rest).items()}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, _ = request.decode().split(" ", 2)
            self.asked.append(ReceivedRequest(method, target, headers, body))
            replies = self._heads if method == "HEAD" and self._heads else self._replies
            reply = replies.popleft() if len(replies) > 1 else replies[0]
            writer.write(_written(reply, without_body=method == "HEAD"))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has disconnected
        finally:
            writer.close()


def _written(reply: Reply, *, without_body: bool) -> bytes:
    body = reply.body.encode()
    length = len(body) if reply.content_length is None else reply.content_length
    headers = {"Content-Length": str(length), **reply.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return _REPLY_HEAD.format(status=reply.status, headers=lines).encode() + (b"" if without_body else body)


@asynccontextmanager
async def scripted_s3() -> AsyncGenerator[ScriptedS3]:
    """Start a peer that listens on a loopback port."""
    peer = ScriptedS3()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield peer
