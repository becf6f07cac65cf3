"""Bodies with a file, which are read in pieces as they arrive."""

from collections.abc import AsyncGenerator

from fastapi import Request

from queryserver.domain.errors.files import upload_aborted

MULTIPART = "multipart/form-data"

_MOST_DIGITS = 18


def multipart_type(request: Request) -> str | None:
    """The header Content-Type; None unless it says that the body is multipart."""
    content_type = request.headers.get("content-type", "")
    return content_type if content_type.partition(";")[0].strip().lower() == MULTIPART else None


def announced_bytes(request: Request) -> int | None:
    """Length of the body, where the client tells it."""
    length = request.headers.get("content-length", "")
    # Of a number beyond all bounds the first digits are beyond them, too.
    return int(length[:_MOST_DIGITS]) if length.isascii() and length.isdecimal() else None


async def pieces(request: Request) -> AsyncGenerator[bytes]:
    """The body as it arrives. Raises upload_aborted."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise upload_aborted("The client left before the body ended.")
        if body := message.get("body"):
            yield body
        if not message.get("more_body"):
            return
