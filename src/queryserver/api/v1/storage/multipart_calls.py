"""Calls whose body is multipart with one file of any size."""

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, replace
from typing import TypeVar

from fastapi import Request

from queryserver.api.v1.storage.calls import StorageCall, grouped
from queryserver.domain.errors import InvalidParameter, UnsupportedMediaType, UploadAborted
from queryserver.formats.multipart_stream import MultipartStream
from queryserver.schemas.requests.given import Given, StorageFields

_MULTIPART = "multipart/form-data"

Model = TypeVar("Model", bound=StorageFields)


@dataclass(frozen=True, slots=True)
class FileCall:
    """A call whose body was read up to its file."""

    call: StorageCall
    file_name: str
    """As the client wrote it."""
    content: AsyncGenerator[bytes]
    """Ends only when the whole body was read and nothing is wrong with it."""

    def read(self, model: type[Model]) -> Model:
        """The fields of the query string and those before the file. Raises InvalidRequest."""
        return self.call.read(model)


async def file_call(
    call: StorageCall, *, file_fields: Collection[str] = (), leading_fields: Collection[str] = ()
) -> FileCall:
    """Read the body up to its file.

    Raises UnsupportedMediaType, InvalidRequest, TooManyParts, PayloadTooLarge, BodyTooSlow, UploadAborted.
    """
    content_type = call.request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind != _MULTIPART:
        raise UnsupportedMediaType(f"An upload is {_MULTIPART}.")
    leading = {*leading_fields, "doas"}  # refused wherever it stands
    stream = MultipartStream(_pieces(call.request), content_type, file_fields=file_fields, leading_fields=leading)
    name = await stream.file_name()
    fields = grouped(stream.fields)
    if "doas" in fields:
        raise InvalidParameter("doas is for GET calls only.")
    return FileCall(replace(call, given=Given(call.given.query, fields)), name, stream.content())


def announced_bytes(request: Request) -> int | None:
    """Length of the body, where the client tells it."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdecimal() else None


async def _pieces(request: Request) -> AsyncGenerator[bytes]:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise UploadAborted("The client left before the body ended.")
        if body := message.get("body"):
            yield body
        if not message.get("more_body"):
            return
