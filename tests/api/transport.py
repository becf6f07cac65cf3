"""An httpx transport for the application in this process. It yields the chunks of a response as they are sent."""

import asyncio
from collections.abc import AsyncIterator

import httpx
from starlette.types import ASGIApp, Message, Scope

_MAX_UNREAD = 16
"""The maximum number of response messages that the application may send before the client reads them."""


class AppTransport(httpx.AsyncBaseTransport):
    """Sends requests to the application in this process.

    Unlike httpx.ASGITransport, it does not wait for the complete response. Therefore clients can follow event streams.
    """

    def __init__(self, app: ASGIApp, peer: str = "127.0.0.1") -> None:
        """`peer` is the address from which the requests come."""
        self._app = app
        self._peer = peer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(self._app, request, self._peer)
        try:
            start = await exchange.start()
        except asyncio.CancelledError:
            exchange.leave()
            raise
        return httpx.Response(start["status"], headers=start["headers"], stream=exchange)


class _Exchange(httpx.AsyncByteStream):
    """One request and its response. If the client leaves before the end, the application receives a disconnect."""

    def __init__(self, app: ASGIApp, request: httpx.Request, peer: str) -> None:
        self._left = asyncio.Event()
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue(_MAX_UNREAD)
        self._body = request.stream.__aiter__()
        self._body_ended = False
        self._task = asyncio.create_task(self._serve(app, scope_of(request, peer)))

    async def start(self) -> Message:
        message = await self._sent.get()
        if message is None:
            await self._task
            raise httpx.RemoteProtocolError("No answer.")
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._sent.get()) is not None:
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                return
        raise httpx.RemoteProtocolError("The answer ends without its last chunk.")

    def leave(self) -> None:
        """Report the client's disconnect to the application."""
        self._left.set()

    async def aclose(self) -> None:
        self.leave()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _serve(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            await self._send(None)

    async def _send(self, message: Message | None) -> None:
        """Send a message to the client. Like a socket, this blocks while too many messages are unread. Messages after a
        disconnect are discarded.
        """
        if not self._sent.full():
            self._sent.put_nowait(message)
            return
        putting, leaving = asyncio.ensure_future(self._sent.put(message)), asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait([putting, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (putting, leaving):
                one.cancel()
            await asyncio.gather(putting, leaving, return_exceptions=True)

    async def _receive(self) -> Message:
        if not self._body_ended:
            piece = await anext(self._body, None)
            self._body_ended = piece is None
            return {"type": "http.request", "body": piece or b"", "more_body": not self._body_ended}
        await self._left.wait()
        return {"type": "http.disconnect"}


def scope_of(request: httpx.Request, peer: str = "127.0.0.1") -> Scope:
    # httpx resolves dot segments in URLs. Therefore `target` is used unchanged, as in httpx's own transports.
    raw_path, _, query = request.extensions.get("target", request.url.raw_path).partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": raw_path,
        "query_string": query,
        "server": (request.url.host, request.url.port),
        "client": (peer, 1234),
        "root_path": "",
    }
