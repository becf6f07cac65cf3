"""The Storage over one directory of this machine."""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Protocol, TypeVar

from queryserver.errors.base import QueryServerError
from queryserver.files.model import ContentSummary, FileStatus
from queryserver.files.protocol import Batch, PartPlan, StoredPart
from queryserver.files.stores.local import deleting as sweeping
from queryserver.files.stores.local import parts
from queryserver.files.stores.local.deleting import Deletion, Summation
from queryserver.files.stores.local.parts import StagedParts
from queryserver.files.stores.local.system_calls import AccessMap, FileThreads
from queryserver.files.stores.local.transfers import Account, Download, Flushing, Upload
from queryserver.files.stores.local.tree import Listing, Tree, must_be_file

Ended = TypeVar("Ended")
Ended_co = TypeVar("Ended_co", covariant=True)


class Incoming(Protocol[Ended_co]):
    """Bytes on their way in."""

    def open(self) -> None:
        """Refuse what cannot end well before the first byte is taken."""
        ...

    def write(self, piece: bytes) -> None:
        """Add bytes at the end."""
        ...

    def commit(self) -> Ended_co:
        """Keep them."""
        ...

    def abandon(self) -> None:
        """Leave nothing behind. After `commit` nothing happens."""
        ...


class LocalStorage:
    """The files of `tree` that `access` lets one user see and change. Owns nothing."""

    def __init__(self, tree: Tree, threads: FileThreads, access: AccessMap) -> None:
        self._tree = tree
        self._threads = threads
        self._access = access
        self._account: Account | None = None

    async def stat(self, path: str) -> FileStatus:
        await self._enter(path)
        return await self._threads.run(self._tree.stat, path)

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        """See the Protocol. The order is the file system's own."""
        await self._enter(path)
        listing = Listing(self._tree, path, cursor, self._access.shows)
        try:
            while True:
                batch = await self._threads.run(listing.batch, batch_size)
                yield batch
                if batch.cursor is None:
                    return
        finally:
            # Not awaited: the generator may be closed while its loop ends. Closing the pool waits for it.
            self._threads.start(listing.close)

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        await self._enter(path)
        download, sizes = Download(self._tree, path, version), self._threads.read_sizes
        end = sys.maxsize if length is None else offset + length
        try:
            with sizes.reader():
                # Asked for even if nothing is wanted: a missing file is told.
                while piece := await self._threads.run(download.read, offset, min(end - offset, sizes.piece_bytes)):
                    offset += len(piece)
                    yield piece
                    if offset == end:
                        return
        finally:
            self._threads.start(download.close)

    async def write(
        self,
        path: str,
        body: AsyncIterator[bytes],
        *,
        overwrite: bool,
        size_bytes: int | None = None,
    ) -> FileStatus:
        """See the Protocol. Raises InsufficientStorage when the disk is below its floor, or would be behind it."""
        await self._enter_to_change(path)
        upload = Upload(self._tree, path, overwrite=overwrite, announced_bytes=size_bytes or 0, account=self._account)
        async with aclosing(Flushing(self._threads, upload.flush).while_written(body)) as pieces:
            return await self._take(upload, pieces)

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        """See the Protocol. Of several that make one directory at a time, one succeeds."""
        await self._enter_to_change(path)
        if not self._access.is_in_trash(path):
            # Deleting goes on below the floor, and the trash has directories.
            await self._threads.run(self._tree.require_room)
        await self._threads.run(self._tree.make_directory, path, permissions)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        # Before the parents of the target are made: a copy of nothing leaves nothing.
        found = await self.stat(source)
        must_be_file(source, found.kind)
        async with aclosing(self.read(source)) as body:
            return await self.write(target, body, overwrite=overwrite, size_bytes=found.size_bytes)

    async def delete(self, path: str, *, recursive: bool) -> None:
        """See the Protocol. A deletion that breaks off leaves a part of the tree."""
        await self._enter_to_change(path)
        await self._threads.until_done(Deletion(self._tree, path, recursive=recursive).step)

    def can_rename(self, source: str, target: str) -> bool:  # noqa: ARG002 the Protocol's
        return True

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """See the Protocol. A link is renamed itself."""
        await self._enter_to_change(source)
        await self._enter_to_change(target)
        await self._threads.run(self._rename, source, target, overwrite)

    async def content_summary(self, path: str) -> ContentSummary:
        """See the Protocol. Counts what the caller may see."""
        await self._enter(path)
        summation = Summation(self._tree, path, self._access.shows)
        await self._threads.until_done(summation.step)
        return summation.summary

    async def set_permissions(self, path: str, permissions: int) -> None:
        """See the Protocol. Devices, pipes and sockets keep theirs: NotAFile."""
        await self._enter_to_change(path)
        await self._threads.run(self._tree.set_permissions, path, permissions)

    async def begin_parts(self, plan: PartPlan) -> str:
        """See the Protocol. The room for the whole file is taken at once. Raises InsufficientStorage."""
        await self._enter_to_change(plan.path)
        return await self._threads.run(parts.begin, self._tree, plan, self._account)

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        await self._enter_to_change(plan.path)
        return await self._take(parts.PartUpload(self._tree, plan, staging, index), body)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        await self._enter_to_change(plan.path)
        return await self._threads.run(self._join, plan, staging, parts, overwrite)

    async def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        del parts
        await self._enter_to_change(plan.path)
        download, offset = StagedParts(self._tree, plan, staging), 0
        try:
            while piece := await self._threads.run(download.read, offset, self._threads.read_sizes.piece_bytes):
                offset += len(piece)
                yield piece
        finally:
            self._threads.start(download.close)

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        await self._enter_to_change(plan.path)
        await self._threads.run(parts.discard, self._tree, plan, staging)

    async def sweep_leftovers(self, path: str, older_than_s: float) -> int:
        """See the Protocol. `older_than_s` must exceed the longest pause of a living write, of other processes too."""
        await self._enter(path)
        return await self._threads.run(sweeping.sweep, self._tree, path, older_than_s)

    async def _enter(self, path: str) -> None:
        """Before a path is looked at. Raises PermissionDenied."""
        self._access.check_read(path)
        await self._settle(path)

    async def _enter_to_change(self, path: str) -> None:
        """Before the entry of a path comes, goes or changes. Raises PermissionDenied."""
        self._access.check_change(path)
        await self._settle(path)

    async def _settle(self, path: str) -> None:
        """Make what is always there."""

    def _rename(self, source: str, target: str, overwrite: bool) -> None:
        self._tree.rename(source, target, overwrite=overwrite)

    def _join(self, plan: PartPlan, staging: str, stored: Sequence[StoredPart], overwrite: bool) -> FileStatus:
        return parts.join(self._tree, plan, staging, stored, overwrite=overwrite)

    async def _take(self, incoming: Incoming[Ended], body: AsyncIterator[bytes]) -> Ended:
        """Give bytes to what takes them. A failure or a cancel leaves nothing behind."""
        try:
            await self._threads.run(incoming.open)
            async for piece in body:
                await self._threads.run(incoming.write, piece)
            return await self._threads.run(incoming.commit)
        except BaseException:  # a cancel too: no part of a file may stay
            await self._shielded(incoming.abandon)
            raise

    async def _shielded(self, call: Callable[[], None]) -> None:
        with suppress(QueryServerError):
            await asyncio.shield(self._threads.run(call))
