"""The Storage of HDFS over WebHDFS or HttpFS, as one user sees it."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta

from queryserver.domain.errors.base import InvalidParameter, NotSupported
from queryserver.domain.errors.files import (
    ChangedMeanwhile,
    NotADirectory,
    NotAFile,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
    root_not_allowed,
)
from queryserver.domain.files import ContentSummary, FileStatus
from queryserver.domain.storage_names import RESERVED_PREFIX, is_name, names_of
from queryserver.interfaces.storage import Batch, PartPlan, StoredPart
from queryserver.storages.webhdfs import parts as part_files
from queryserver.storages.webhdfs.finishing import finished
from queryserver.storages.webhdfs.replacing import OLD_PREFIX, Renaming, restore
from queryserver.storages.webhdfs.statuses import content_summary
from queryserver.storages.webhdfs.tree import NewFile, Tree
from queryserver.storages.webhdfs.writing import keep_owner, written

_MOST_IN_BATCH = 1000


class WebHdfsStorage:
    """See the Protocols. `renaming` belongs to the FileSystem."""

    def __init__(self, tree: Tree, renaming: Renaming, *, umask: int) -> None:
        self._tree = tree
        self._renaming = renaming
        self._umask = umask

    async def stat(self, path: str) -> FileStatus:
        """See the Protocol."""
        names_of(path)
        return await self._tree.stat(path)

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        """See the Protocol. A cursor is the last name.

        HDFS compares names as signed bytes, so that names beyond ASCII come first. What comes in one batch is sorted
        by code points; larger directories keep the order of the store.
        """
        names_of(path)
        most, is_first = max(batch_size, _MOST_IN_BATCH), cursor is None
        while True:
            async with aclosing(self._tree.entries(path, cursor, most)) as entries:
                async for found in entries:
                    cursor = None if found.remaining == 0 else found.last
                    shown = found.statuses(path, is_name, by_name=is_first and cursor is None)
                    is_first = False
                    yield Batch(shown, cursor, _exact(found.remaining, found.last))
            if cursor is None:
                return

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        """See the Protocol. The last piece is given when the file is still that version."""
        names_of(path)
        status = version or await self._tree.stat(path)
        if not status.is_file:
            raise NotAFile(f"/{path} is no file.")
        wanted = status.size_bytes - offset if length is None else min(length, status.size_bytes - offset)
        if wanted <= 0:
            await self._check(path, version)
            return
        held = b""
        try:
            async with aclosing(self._tree.content(path, offset, wanted)) as pieces:
                async for piece in pieces:
                    if held:
                        yield held
                    held = piece
        except (StorageError, PathNotFound):
            # A file that became shorter fails in several ways.
            await self._check(path, version)
            raise
        await self._check(path, version)
        if held:
            yield held

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        """See the Protocol."""
        del size_bytes  # the body is sent in chunks, which need no announcement
        former = await self._replaceable(path, overwrite=overwrite)
        return await self._write(path, body, former, self._new_file(former))

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        """See the Protocol."""
        if not names_of(path):
            raise PathExists("The root exists.")
        wanted = 0o777 & ~self._umask if permissions is None else permissions
        await self._renaming.make_directory(self._tree, path, wanted)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        """See the Protocol. The bytes go through this server."""
        names_of(source)
        names_of(target)
        status = await self._tree.stat(source)
        if not status.is_file:
            raise NotAFile(f"/{source} is no file.")
        former = await self._replaceable(target, overwrite=overwrite)
        async with aclosing(self.read(source, version=status)) as body:
            return await self._write(target, body, former, self._like(status))

    async def delete(self, path: str, *, recursive: bool) -> None:
        """See the Protocol."""
        if not names_of(path):
            raise root_not_allowed("The root is not deleted.")
        if not await self._tree.remove(path, recursive=recursive):
            await self._tree.stat(path)
            raise StorageError("The store does not delete this.")

    def can_rename(self, source: str, target: str) -> bool:  # noqa: ARG002 the Protocol's
        """See the Protocol: all of a cluster is near enough."""
        return True

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """See the Protocol."""
        if not names_of(source):
            raise root_not_allowed("The root has no other name.")
        if not names_of(target):
            raise PathExists("The root exists.")
        await self._renaming.rename(self._tree, source, target, overwrite=overwrite)

    async def trash_root(self, path: str) -> str:
        """See the Protocol. Encryption zones have a trash of their own."""
        names_of(path)
        try:
            told = await self._tree.told("GETTRASHROOT", path, "Path")
        except NotSupported:
            return f"user/{self._tree.user}/.Trash"
        return str(told).strip("/")

    async def set_replication(self, path: str, factor: int) -> None:
        """See the Protocol."""
        names_of(path)
        status = await self._tree.stat(path)
        if not status.is_file:
            raise NotAFile(f"/{path} is no file.")
        try:
            is_done = await self._tree.set_replication(path, factor)
        except StorageUnavailable:
            raise
        except StorageError as error:
            # The bounds are the cluster's own; only the text tells.
            if "replication" in error.message.lower():
                raise InvalidParameter(error.message) from error
            raise
        if not is_done:
            raise PathNotFound(f"/{path} does not exist.")

    async def content_summary(self, path: str) -> ContentSummary:
        """See the Protocol."""
        names_of(path)
        return content_summary(await self._tree.told("GETCONTENTSUMMARY", path, "ContentSummary"))

    async def set_permissions(self, path: str, permissions: int) -> None:
        """See the Protocol."""
        names_of(path)
        await self._tree.set_permissions(path, permissions)

    async def set_owner(self, path: str, *, owner: str | None, group: str | None) -> None:
        """See the Protocol."""
        names_of(path)
        await self._tree.set_owner(path, owner, group)

    async def begin_parts(self, plan: PartPlan) -> str:
        """See the Protocol."""
        names_of(plan.path)
        return await part_files.begin(self._tree, plan)

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        """See the Protocol."""
        names_of(plan.path)
        return await part_files.write_part(self._tree, plan, staging, index, body)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """See the Protocol."""
        former = await self._replaceable(plan.path, overwrite=overwrite)
        joined = await part_files.join(self._tree, plan, staging, parts, self._new_file(former))
        if former is not None:
            await keep_owner(self._tree, joined, await self._tree.stat(joined), former)
        status = await self._renaming.give_name(self._tree, joined, plan.path, former)
        await finished(part_files.discard(self._tree, plan, staging))
        return status

    async def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        """See `ReadableParts`."""
        names_of(plan.path)
        async with aclosing(part_files.read(self._tree, plan, staging, parts)) as pieces:
            async for piece in pieces:
                yield piece

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        """See the Protocol."""
        names_of(plan.path)
        await part_files.discard(self._tree, plan, staging)

    async def sweep_leftovers(self, path: str, older_than_s: float) -> int:
        """See the Protocol. What stepped aside for a new file is brought back if that never came."""
        names_of(path)
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)
        count = 0
        async with aclosing(self._tree.all_entries(path)) as entries:
            async for entry in entries:
                if entry.name.startswith(RESERVED_PREFIX) and entry.modified_at and entry.modified_at < before:
                    if entry.name.startswith(OLD_PREFIX) and entry.is_directory:
                        await restore(self._tree, path, entry.path)
                    else:
                        await self._tree.remove(entry.path, recursive=True)
                    count += 1
        return count

    async def _write(
        self, path: str, body: AsyncIterator[bytes], former: FileStatus | None, new: NewFile
    ) -> FileStatus:
        async with written(self._tree, path, body, new) as status:
            if former is not None:
                await keep_owner(self._tree, status.path, status, former)
            return await self._renaming.give_name(self._tree, status.path, path, former)

    async def _replaceable(self, path: str, *, overwrite: bool) -> FileStatus | None:
        """The file that a new one is to replace; None: there is none. Raises PathExists."""
        if not names_of(path):
            raise PathExists("The root exists.")
        former = await self._tree.find(path)
        if former is not None and (not overwrite or not former.is_file):
            raise PathExists(f"/{path} exists.")
        return former

    def _new_file(self, former: FileStatus | None) -> NewFile:
        """With what a file is made that may replace another one."""
        if former is None or not self._tree.has_attributes:
            return NewFile(0o666 & ~self._umask)
        return NewFile(former.permissions, former.replication)

    def _like(self, status: FileStatus) -> NewFile:
        """With what a copy is made."""
        if not self._tree.has_attributes:
            return self._new_file(None)
        return NewFile(status.permissions, status.replication, status.block_size)

    async def _check(self, path: str, version: FileStatus | None) -> None:
        """Raises ChangedMeanwhile."""
        if version is None:
            return
        with suppress(PathNotFound, NotADirectory):
            if (await self._tree.stat(path)).is_same_content(version):
                return
        raise ChangedMeanwhile(f"/{path} was changed meanwhile.")


def _exact(remaining: int | None, last: str) -> int | None:
    """How many entries follow; None where names of our own may be among them, which begin with an ASCII dot."""
    is_behind_ours = last[:1].isascii() and last > f"{RESERVED_PREFIX}\U0010ffff"
    return remaining if remaining == 0 or is_behind_ours else None
