"""Builds responses from wire models and streams, and reads the request headers that affect responses."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog
from fastapi import Response
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from queryserver.errors.base import QueryServerError
from queryserver.files.downloads import Conditions
from queryserver.formats.download.encoder import ContentCoding
from queryserver.formats.download.stream import preferred_coding

Model = TypeVar("Model", bound=BaseModel)


def json_response(model: BaseModel, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a wire model as JSON."""
    content = model.__pydantic_serializer__.to_json(model, by_alias=True)
    return Response(content, status, dict(headers or {}), "application/json")


def model_from(model: type[Model], found: object, **others: Any) -> Model:
    """Build a wire model. Fields that are not in `others` are taken from the attributes of `found` of the same name."""
    same = {name: getattr(found, name) for name in model.model_fields if name not in others and hasattr(found, name)}
    return model(**same, **others)


def utc_text(time: datetime | None) -> str | None:
    """Return a time in UTC as `2025-01-31T10:20:30Z` (Contract editor 1.3)."""
    if time is None:
        return None
    return f"{time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def utc_text_without_zone(time: datetime | None) -> str | None:
    """Return a time in UTC as `2026-01-05T09:10:11.123`. Omits zero milliseconds (Contract platform 1.3)."""
    if time is None:
        return None
    utc = time.astimezone(UTC).replace(tzinfo=None)
    return utc.isoformat(timespec="milliseconds" if utc.microsecond >= 1000 else "seconds")


def epoch_milliseconds(time: datetime) -> int:
    """Return a time as Unix time in milliseconds."""
    return int(time.timestamp() * 1000)


def conditions_of(request: Request) -> Conditions:
    given = request.headers
    return Conditions(
        range=given.get("range", ""),
        if_range=given.get("if-range", ""),
        if_none_match=", ".join(given.getlist("if-none-match")),
        if_modified_since=given.get("if-modified-since", ""),
    )


def coding_for(request: Request) -> ContentCoding:
    """Return the compression of the response body.

    Range requests are never compressed, because their offsets refer to the original file.
    """
    if "range" in request.headers:
        return ContentCoding.IDENTITY
    return preferred_coding(", ".join(request.headers.getlist("accept-encoding")))


T = TypeVar("T")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancel `work`.

    The request body must already have been read. Raises ClientDisconnect, and the errors of `work`.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_disconnected(request), name="client-presence")
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


HEADERS_ONLY = "queryserver.headers_only"
"""Scope key. The value is True for a HEAD request, which is routed as GET."""

log = structlog.get_logger(__name__)


def is_headers_only(request: Request) -> bool:
    """Return whether the request is a HEAD request, whose response is that of GET without the body."""
    return bool(request.scope.get(HEADERS_ONLY))


class OwnedStream(StreamingResponse):
    """A streaming response that always closes its source, even if the client disconnects.

    The `ConnectionGuard` disconnects clients that stop reading.
    """

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
        """Send the response. If the source fails, the body ends early, and uvicorn closes the connection.

        For HEAD, only the headers are sent and the source is closed.
        """
        try:
            if scope.get(HEADERS_ONLY):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": b""})
                return
            await super().__call__(scope, receive, send)
        except QueryServerError as error:
            log.warning("response aborted", code=error.code, reason=error.message)
        finally:
            await self._source.aclose()


async def stream(
    source: AsyncGenerator[bytes],
    *,
    media_type: str | None = None,
    headers: Mapping[str, str] | None = None,
    status: int = 200,
) -> OwnedStream:
    """Create a streaming response. If `source` fails before its first chunk, raises the error of `source`.

    If `headers` contain a Content-Length and the body ends early, uvicorn closes the connection.
    """
    first = await anext(source, b"")
    return OwnedStream(source, first, media_type, headers or {}, status)


async def _prepended(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    if first:
        yield first
    async for piece in rest:
        yield piece
