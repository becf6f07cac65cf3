"""Answers that are longer than memory. The first piece is made before the status is sent, so that errors show."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import ClassVar

import structlog
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from queryserver.domain.errors.base import BodyTooSlow, QueryServerError

HEADERS_ONLY = "queryserver.headers_only"
"""True in the scope of a HEAD call, which routes see as GET."""

_SLOWEST_BYTES_PER_S = 1024

log = structlog.get_logger(__name__)


class OwnedStream(StreamingResponse):
    """A streamed answer that closes its source at the end, also when the client leaves or takes nothing any more."""

    patience_s: ClassVar[float] = 300.0
    """How long a client may take no byte, or fewer than 1 KiB/s: meanwhile it holds what the source holds."""

    def __init__(
        self,
        source: AsyncGenerator[bytes],
        first: bytes,
        media_type: str | None,
        headers: Mapping[str, str],
        status: int = 200,
    ) -> None:
        super().__init__(_prepended(first, source), status, media_type=media_type, headers=dict(headers))
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; for HEAD the source is closed behind its first piece.

        When the source fails, the answer stays without its end, and so the server breaks the connection.
        """
        try:
            if scope.get(HEADERS_ONLY):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": b""})
                return
            await super().__call__(scope, receive, self._in_time(send))
        except QueryServerError as error:
            log.warning("answer broke off", code=error.code, reason=error.message)
        finally:
            await self._source.aclose()

    def _in_time(self, send: Send) -> Send:
        on_its_way = 0

        async def timely(message: Message) -> None:
            nonlocal on_its_way
            try:
                # The server waits here until the client has taken nearly all of the piece before.
                async with asyncio.timeout(self.patience_s + on_its_way / _SLOWEST_BYTES_PER_S):
                    await send(message)
            except TimeoutError:
                raise BodyTooSlow("The client takes the answer too slowly.") from None
            on_its_way = len(message.get("body", b""))

        return timely


async def stream(
    source: AsyncGenerator[bytes],
    *,
    media_type: str | None = None,
    headers: Mapping[str, str] | None = None,
    status: int = 200,
) -> OwnedStream:
    """A streamed answer. Raises what `source` raises on its way to the first piece.

    With a `Content-Length` of its own a body that ends early breaks the connection.
    """
    first = await anext(source, b"")
    return OwnedStream(source, first, media_type, headers or {}, status)


async def _prepended(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    if first:
        yield first
    async for piece in rest:
        yield piece
