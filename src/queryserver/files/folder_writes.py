"""Creates folders that appear with all their files at once (Contract exports 5).

The files are written to a folder with a reserved name next to the target. Then that folder is renamed, or moved like a
folder of the file browser in a store that cannot rename folders. After a move, an empty file marks the folder as
complete. A record in `unfinished_writes` lets the orphan sweep remove the folder after a crash.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from functools import partial
from uuid import uuid4

import structlog

from queryserver import errors
from queryserver.engines.external_data import FileSink
from queryserver.errors.base import QueryServerError
from queryserver.errors.files import PathExists, PathNotFound
from queryserver.files.access import Location
from queryserver.files.model import FileStatus, Transfer, TransferKind, TransferState, staged_folder_name
from queryserver.files.moves import Moves, can_rename
from queryserver.files.operations import Progress
from queryserver.files.protocol import empty_body
from queryserver.files.statement_files import (
    CallerFiles,
    FileBody,
    RequestedPath,
    StatementFileAccess,
    require_new_name,
)
from queryserver.identity.model import Scope, User
from queryserver.platform.threads import settled

log = structlog.get_logger(__name__)

SUCCESS_NAME = "_SUCCESS"
"""The name of the marker. Hadoop and Spark write the same one, and most readers skip names that begin with `_`."""

_WRITE = "statement.write"


def part_name(number: int, extension: str) -> str:
    """Return the name of a file of a folder, for example `part-00000.csv.gz`."""
    return f"part-{number:05}.{extension}"


class NewFolder:
    """A folder that is being filled. `store` stores one file; its second argument is the name in error messages."""

    def __init__(
        self, staging: Location, store: Callable[[Location, str], AbstractAsyncContextManager[FileBody]]
    ) -> None:
        self.staging = staging
        self._store = store
        self._sizes: dict[str, int] = {}

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._sizes)

    @asynccontextmanager
    async def file(self, name: str) -> AsyncGenerator[FileSink]:
        """Write one file of the folder."""
        async with self._store(self.staging.at(self.staging.path.child(name)), name) as body:
            yield body
        self._sizes[name] = body.size_bytes

    async def require_whole(self) -> None:
        """Check that all files are still there. Another process may have removed them if this one was held for long.

        Raises StorageError.
        """
        found: dict[str, int] = {}
        async with aclosing(self.staging.storage.list_directory(self.staging.path.path)) as batches:
            async for batch in batches:
                found |= {entry.name: entry.size_bytes for entry in batch.entries}
        if found != self._sizes:
            raise errors.StorageError("Files of the export were removed before it was complete.")


async def _may_always_publish() -> None:
    """Allow publishing: for checks, which publish nothing."""


class ExportFiles(CallerFiles):
    """The file access of a statement whose rows go into files, which also creates folders.

    `require_claim` is awaited before anything becomes visible, and raises an error if the statement is no longer this
    process's. `on_published` is called as soon as everything is visible. From then on, the export has succeeded.

    The size limit of uploads does not apply to files that the server makes. Quotas and the free space of the disk do.
    """

    def __init__(
        self,
        access: StatementFileAccess,
        moves: Moves,
        user: User,
        operation_id: str = "",
        *,
        require_claim: Callable[[], Awaitable[None]] = _may_always_publish,
        on_published: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(access, user, operation_id, may_write=True)
        self._max_bytes = None
        self._moves = moves
        self._require_claim = require_claim
        self._on_published = on_published
        self._is_staging = False

    async def require_new_file(self, path: str, *, overwrite: bool) -> None:
        """Check the target of a file before anything is written. Raises the errors of `write`."""
        requested = self._requested_path(path)
        with self._failures(_WRITE, requested):
            await self._target(requested, overwrite=overwrite)

    async def require_new_folder(self, path: str, extension: str) -> None:
        """Check the target of a folder before anything is written. Raises the errors of `write_folder`."""
        requested = self._requested_path(path)
        with self._failures(_WRITE, requested):
            await self._new_folder(requested, extension)

    @asynccontextmanager
    async def write_folder(self, path: str, extension: str) -> AsyncGenerator[NewFolder]:
        """Create a folder of files with this extension. If the block fails, nothing is left behind.

        Raises PathExists, OperationInProgress, and the errors of `UploadRules.folder`.
        """
        requested = self._requested_path(path)
        with self._event(_WRITE, requested) as details:
            target = await self._new_folder(requested, extension)
            staging = target.at(target.path.parent.child(staged_folder_name()))
            folder, self._is_staging = NewFolder(staging, partial(self._storing, overwrite=False)), True
            async with self._access.orphans.recorded_write(self._caller, staging.path):
                try:
                    yield folder
                    self._require_running()
                    await self._require_claim()
                    await folder.require_whole()
                    await self._require_absent(target)
                    await settled(asyncio.create_task(self._publish(folder, target), name="publish folder"))
                    self._on_published()
                except BaseException:  # includes CancelledError: nothing may remain
                    await self._discard(staging)
                    raise
            details.size_bytes = folder.size_bytes

    async def _complete(self, body: FileBody, task: "asyncio.Task[FileStatus]") -> None:
        """Complete a file. Once all its bytes were sent, it is not interrupted, so that no file appears unnoticed.

        The files of a staged folder may be interrupted, because they are hidden.
        """
        if self._is_staging:
            await super()._complete(body, task)
            return
        await self._require_claim()
        await body.finish()
        self._require_running()
        await settled(task)
        self._on_published()

    async def _new_folder(self, requested: RequestedPath, extension: str) -> Location:
        """Check the path as for an upload (Contract storage 9.1), and that nothing exists there."""
        self._location(requested, Scope.FILES_WRITE)
        self._access.rules.admit()
        if requested.path.is_root:
            raise errors.PathExists(f"{requested.text} already exists.")
        require_new_name(requested.path, is_directory=True)
        target = await self._access.rules.folder(self._caller, requested.path, file_name=part_name(0, extension))
        await self._require_absent(target)
        return target

    async def _require_absent(self, target: Location) -> None:
        if await self._moves.existing(target) is not None:
            raise errors.PathExists(f"{target.path} already exists.")

    async def _publish(self, folder: NewFolder, target: Location) -> None:
        """Give the folder its name. Where its files appear one by one, mark it as complete after the last one."""
        try:
            await self._move(folder.staging, target)
        except errors.StorageError as error:
            if (error.details or {}).get("state") != TransferState.DELETING:
                raise
            # All files have been moved, and only some of the staged ones could not be deleted.
            await self._discard(folder.staging)
        if can_rename(folder.staging, target):
            return
        marker = target.path.child(SUCCESS_NAME)
        try:
            with suppress(PathExists):
                await target.storage.write(marker.path, empty_body(), overwrite=False, size_bytes=0)
        except QueryServerError:
            await self._withdraw(folder, target)
            raise

    async def _withdraw(self, folder: NewFolder, target: Location) -> None:
        """Delete the published files, and the folder if it is then empty. Stop at the first error of the store."""
        with suppress(QueryServerError):
            for path in (*map(target.path.child, folder.names), target.path):
                await target.storage.delete(path.path, recursive=False)

    async def _move(self, source: Location, target: Location) -> None:
        entry = await source.storage.stat(source.path.path)
        transfer = Transfer(self._user.id, self._caller.acting, TransferKind.MOVE, source.path, target.path)
        await self._moves.move(self._caller, transfer, (source, target), entry, Progress())

    async def _discard(self, staging: Location) -> None:
        """Delete the staged folder. If the store fails, leave that to the orphan sweep."""
        try:
            await staging.storage.delete(staging.path.path, recursive=True)
        except PathNotFound:
            pass
        except QueryServerError as error:
            log.warning("staged folder not removed", code=error.code)
            await self._access.orphans.begin(uuid4(), self._caller, staging.path)
