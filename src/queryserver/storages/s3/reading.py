"""Contents of objects as streams."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from queryserver.domain.errors.files import NotAFile, PathNotFound, StorageError
from queryserver.domain.files import FileStatus
from queryserver.storages.s3.connection import S3Connection
from queryserver.storages.s3.errors import PastTheEnd, s3_errors
from queryserver.storages.s3.objects import Objects
from queryserver.storages.s3.places import Place


class Reading:
    """Reads ranges of objects."""

    def __init__(self, connection: S3Connection, objects: Objects) -> None:
        self._connection = connection
        self._objects = objects

    async def pieces(
        self, place: Place, offset: int, length: int | None, version: FileStatus | None
    ) -> AsyncGenerator[bytes]:
        """Bytes [offset, offset + length). Raises PathNotFound, NotAFile, ChangedMeanwhile, StorageError."""
        if length == 0 and version is not None:
            return
        try:
            # An empty range cannot be asked for; one byte tells whether the file is there.
            answer = await self._open(place, offset, 1 if length == 0 else length, version)
        except PastTheEnd:
            return
        except PathNotFound:
            if await self._objects.keys_below(place, 1):
                raise NotAFile(f"{place.label} is a directory.") from None
            raise
        async with answer["Body"] as body:
            if length == 0:
                return
            expected, received = int(answer["ContentLength"]), 0
            while received < expected and (piece := await self._piece(place, body)):
                received += len(piece)
                yield piece
        if received < expected:
            raise StorageError(f"The store broke off in the middle of {place.label}.")

    async def _open(self, place: Place, offset: int, length: int | None, version: FileStatus | None) -> Any:
        arguments: dict[str, object] = {"Bucket": place.bucket, "Key": place.key}
        if offset or length is not None:
            arguments["Range"] = f"bytes={offset}-{'' if length is None else offset + length - 1}"
        if version is not None and version.tag:
            arguments["IfMatch"] = f'"{version.tag}"'
        return await self._connection.ask("get_object", arguments, about=place.label)

    async def _piece(self, place: Place, body: Any) -> bytes:
        with s3_errors(place.label):
            async with asyncio.timeout(self._connection.options.timeout_s):
                return await body.read(self._connection.read_sizes.piece_bytes)
