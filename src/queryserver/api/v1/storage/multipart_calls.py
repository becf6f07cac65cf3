"""Calls whose body is multipart with one file of any size."""

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeVar

from queryserver.api.multipart_bodies import MULTIPART, multipart_type, pieces
from queryserver.api.unknown_fields import came
from queryserver.api.v1.storage.calls import StorageCall, grouped
from queryserver.domain.errors.base import InvalidParameter, UnsupportedMediaType
from queryserver.formats.multipart_stream import MultipartStream
from queryserver.schemas.requests.given import Given, StorageFields

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

    Raises UnsupportedMediaType, InvalidRequest, too_many_parts, PayloadTooLarge, BodyTooSlow, upload_aborted.
    """
    content_type = multipart_type(call.request)
    if content_type is None:
        raise UnsupportedMediaType(f"An upload is {MULTIPART}.")
    leading = {*leading_fields, "doas"}  # refused wherever it stands
    stream = MultipartStream(pieces(call.request), content_type, file_fields=file_fields, leading_fields=leading)
    name = await stream.file_name()
    fields = grouped(stream.fields)
    if "doas" in fields:
        raise InvalidParameter("doas is for GET calls only.")
    return FileCall(replace(call, given=Given(call.given.query, fields)), name, _noted(call, stream))


async def _noted(call: StorageCall, stream: MultipartStream) -> AsyncGenerator[bytes]:
    """The file; after it, the names of the fields behind it are known too."""
    async with aclosing(stream.content()) as content:
        async for piece in content:
            yield piece
    came(call.request.scope, (name for name, _ in stream.fields))
