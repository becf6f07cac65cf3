"""The Storage over buckets and keys."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from queryserver.domain.errors.base import PermissionDenied
from queryserver.domain.errors.files import (
    NotADirectory,
    NotAFile,
    PathExists,
    PathNotFound,
    root_not_allowed,
    same_path,
)
from queryserver.domain.files import FileStatus
from queryserver.interfaces.storage import Batch, PartPlan, StoredPart
from queryserver.storages.s3.connection import S3Connection
from queryserver.storages.s3.copies import Copies
from queryserver.storages.s3.deleting import Deletion
from queryserver.storages.s3.listing import MAX_KEYS, Listing
from queryserver.storages.s3.multipart import MultipartUpload
from queryserver.storages.s3.objects import Objects
from queryserver.storages.s3.parts import join, send_part
from queryserver.storages.s3.places import Place, label, object_place, place_of
from queryserver.storages.s3.reading import Reading
from queryserver.storages.s3.sweeping import Sweep
from queryserver.storages.s3.uploads import Upload


class S3Storage:
    """The store as all users see it: it knows one login only."""

    def __init__(self, connection: S3Connection) -> None:
        self._connection = connection
        self._objects = Objects(connection)

    async def stat(self, path: str) -> FileStatus:
        """See the Protocol. A prefix of keys is a directory, with its marker or without."""
        return await self._objects.status(place_of(path))

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = MAX_KEYS
    ) -> AsyncGenerator[Batch]:
        """See the Protocol. Keys that no path can name are left out."""
        listing = Listing(self._connection, self._objects)
        async for batch in listing.batches(place_of(path), cursor, batch_size):
            yield batch

    async def list_tree(self, path: str) -> AsyncGenerator[Sequence[FileStatus]]:
        """See FlatStorage."""
        async for entries in Listing(self._connection, self._objects).below(place_of(path)):
            yield entries

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        """See the Protocol."""
        place = await self._file_place(path)
        with self._connection.read_sizes.reader():
            async for piece in Reading(self._connection, self._objects).pieces(place, offset, length, version):
                yield piece

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        await self._check_target(object_place(path), overwrite=overwrite)
        return await self.write_checked(path, body, overwrite=overwrite, size_bytes=size_bytes)

    async def write_checked(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        target = object_place(path)
        upload = Upload(self._connection, self._objects, target, overwrite=overwrite, announced_bytes=size_bytes)
        return await upload.run(body)

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:  # noqa: ARG002 a store without modes
        """See the Protocol. Raises PermissionDenied for a bucket, unless the settings allow new ones."""
        place = place_of(path)
        if not place.key:
            await self._make_bucket(place)
            return
        await self._check_target(place, overwrite=False)
        await self._objects.make_marker(place)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        """See the Protocol. The store copies, the bytes do not pass through here."""
        if source == target:
            raise same_path("Source and target are one.")
        place = object_place(target)
        origin = await self._file_place(source)
        await self._check_target(place, overwrite=overwrite)
        return await Copies(self._connection, self._objects).copy(origin, place, overwrite=overwrite)

    async def delete(self, path: str, *, recursive: bool) -> None:
        """See the Protocol. A directory that becomes empty stays, by a marker."""
        place = place_of(path)
        if not place.bucket:
            raise root_not_allowed("The root of the store cannot be deleted.")
        if not place.key:
            await self._objects.delete_bucket(place)
            return
        await Deletion(self._connection, self._objects).delete(place, recursive=recursive)

    async def begin_parts(self, plan: PartPlan) -> str:
        """See the Protocol. The staging place is the id of a multipart upload."""
        target = object_place(plan.path)
        await self._check_parent(target)
        return (await MultipartUpload.begin(self._connection, self._objects, target)).upload_id

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        """See the Protocol."""
        return await send_part(self._upload(plan, staging), plan, index, body)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """See the Protocol. A repeated call gives the same answer."""
        upload, target = self._upload(plan, staging), object_place(plan.path)
        if not parts:
            # S3 joins no parts at all to nothing.
            status = await self.write(plan.path, _nothing(), overwrite=overwrite)
            await upload.discard()
            return status
        return await join(upload, plan, parts, overwrite=overwrite) or await self._objects.status(target)

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        """See the Protocol."""
        await self._upload(plan, staging).discard()

    async def sweep_leftovers(self, path: str, older_than_s: float) -> int:
        """See the Protocol. Nothing of ours has a name here before it is complete."""
        del older_than_s
        place_of(path)
        return 0

    async def discard_unseen(self, path: str, older_than_s: float) -> int:
        """See `UnseenUploads`. What counts is the last part."""
        return await Sweep(self._connection, self._objects).run(object_place(path), older_than_s)

    def _upload(self, plan: PartPlan, staging: str) -> MultipartUpload:
        return MultipartUpload(self._connection, self._objects, object_place(plan.path), staging)

    async def _file_place(self, path: str) -> Place:
        """The place of what should be a file. Raises NotAFile: roots and buckets are none."""
        place = place_of(path)
        if not place.key:
            await self._objects.status(place)
            raise NotAFile(f"{place.label} is a directory.")
        return place

    async def _check_target(self, target: Place, *, overwrite: bool) -> None:
        """Raises PathExists: there is a directory of that name, or a file without `overwrite`; NotADirectory."""
        found = await asyncio.gather(
            self._objects.find(target),
            self._objects.keys_below(target, 1),
            self._file_above(target),
            return_exceptions=True,
        )
        file, keys, above = [_outcome(each) for each in found]
        if above:
            raise NotADirectory(f"{label(target.parent.path)} is a file.")
        if keys or (file and not overwrite):
            raise PathExists(f"{target.label} exists.")

    async def _file_above(self, target: Place) -> FileStatus | None:
        return await self._objects.find(target.parent) if target.parent.key else None

    async def _check_parent(self, target: Place) -> None:
        parent = await self._objects.status(target.parent)
        if not parent.is_directory:
            raise NotADirectory(f"{label(parent.path)} is a file.")

    async def _make_bucket(self, place: Place) -> None:
        try:
            await self._objects.status(place)
        except PathNotFound:
            if not self._connection.options.allow_bucket_creation:
                raise PermissionDenied("New buckets are not allowed here.") from None
            await self._objects.make_bucket(place)
            return
        raise PathExists(f"{place.label or 's3a://'} exists.")


def _outcome(found: object) -> object:
    if isinstance(found, BaseException):
        raise found
    return found


async def _nothing() -> AsyncGenerator[bytes]:
    for piece in ():
        yield piece
