"""The Storage over one directory of this machine (Contract platform 10.3: `local`)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self, TypeVar, TypeVarTuple

from queryserver.domain.errors import PathNotFound, StorageError, StorageUnavailable
from queryserver.interfaces.storage import FileStatus
from queryserver.storages.local.transfers import Download, Upload
from queryserver.storages.local.tree import Tree

_PIECE_BYTES = 1024 * 1024

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class LocalStorage:
    """Files below `root`, which is made when missing. Files get mode 0600, directories 0700.

    All work on files is done by `max_threads` threads of its own; a call that the file system does not answer within
    `timeout_s` raises StorageUnavailable. To be closed by its owner.
    """

    def __init__(self, root: Path, *, max_threads: int = 4, timeout_s: float = 60) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._tree = Tree(root)
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="local-storage")
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let calls under way end, and the threads with them. Idempotent. Raises StorageUnavailable if one hangs."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.to_thread(self._threads.shutdown)
        except TimeoutError as error:
            raise StorageUnavailable("The file system does not answer.") from error

    async def stat(self, path: str) -> FileStatus:
        """See the Protocol."""
        return await self._run(self._tree.stat, path)

    async def list_directory(self, path: str, *, start_after: str | None = None) -> AsyncIterator[FileStatus]:
        """See the Protocol. Names that no path can hold are left out, as are links, pipes and devices."""
        for entry in await self._run(self._tree.entries, path, start_after):
            yield entry

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        """See the Protocol. Raises InvalidPath for anything but a plain file."""
        download = Download(self._tree, path)
        left = _PIECE_BYTES if length is None else length
        try:
            while left > 0 and (piece := await self._run(download.read, offset, min(left, _PIECE_BYTES))):
                offset += len(piece)
                if length is not None:
                    left -= len(piece)
                yield piece
        finally:
            # Not awaited: the generator may be closed while its loop ends. Closing the pool waits for it.
            self._threads.submit(download.close)

    async def write(self, path: str, body: AsyncIterator[bytes], *, overwrite: bool) -> int:
        """See the Protocol. Missing parents are made. A failed or cancelled write leaves nothing behind."""
        upload = Upload(self._tree, path, overwrite=overwrite)
        try:
            async for piece in body:
                await self._run(upload.write, piece)
            return await self._run(upload.commit)
        except BaseException:
            with suppress(StorageError):
                await asyncio.shield(self._run(upload.abandon))
            raise

    async def mkdir(self, path: str) -> None:
        """See the Protocol. Raises PathExists when a file is in the way."""
        await self._run(self._tree.make_directories, path)

    async def rename(self, source: str, target: str) -> None:
        """See the Protocol. The directory of `target` must be there."""
        await self._run(self._tree.rename, source, target)

    async def copy(self, source: str, target: str) -> None:
        """See the Protocol."""
        async with aclosing(self.read(source)) as body:
            await self.write(target, body, overwrite=False)

    async def delete(self, path: str, *, recursive: bool) -> None:
        """See the Protocol. A link is deleted itself."""
        await self._run(self._tree.delete, path, recursive)

    async def sweep_leftovers(self, older_than: timedelta, *, dry_run: bool = False) -> int:
        """Delete, or count only, what uploads of crashed processes left behind, last written before that time.

        `older_than` must exceed the longest pause of a living upload, of other processes too.
        """
        before = datetime.now(UTC) - older_than
        directories, removed = [""], 0
        while directories:
            # One short call per directory: a store of 100,000 directories holds up no other caller.
            with suppress(PathNotFound):
                inner, count = await self._run(self._tree.sweep, directories.pop(), before, dry_run)
                directories += inner
                removed += count
        return removed

    async def _run(self, call: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._threads, call, *arguments)
        except TimeoutError as error:
            raise StorageUnavailable("The file system does not answer.") from error
