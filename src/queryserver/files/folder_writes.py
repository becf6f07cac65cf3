"""Creates folders that appear with all their files at once (Contract exports 4).

The files are written to a folder with a reserved name next to the target. Then that folder is renamed, or moved like a
folder of the file browser in a store that cannot rename folders. A record in `unfinished_writes` lets the orphan sweep
remove the folder after a crash.
"""

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from uuid import uuid4

import structlog

from queryserver import errors
from queryserver.engines.external_data import FileSink
from queryserver.errors.base import QueryServerError
from queryserver.errors.files import PathNotFound
from queryserver.files.access import Location
from queryserver.files.model import Transfer, TransferKind, staged_folder_name
from queryserver.files.moves import Moves, can_rename
from queryserver.files.operations import Progress
from queryserver.files.statement_files import (
    CallerFiles,
    FileBody,
    RequestedPath,
    StatementFileAccess,
    require_new_name,
)
from queryserver.identity.model import Scope, User

log = structlog.get_logger(__name__)

_WRITE = "statement.write"
_PART = re.compile(r"part-[0-9]{5}\.[a-z.]+")


def part_name(number: int, extension: str) -> str:
    """Return the name of a file of a folder, for example `part-00000.csv.gz`."""
    return f"part-{number:05}.{extension}"


class NewFolder:
    """A folder that is being filled. `store` stores one file; its second argument is the name in error messages."""

    def __init__(
        self, staging: Location, store: Callable[[Location, str], AbstractAsyncContextManager[FileBody]]
    ) -> None:
        self._staging = staging
        self._store = store
        self.size_bytes = 0

    @asynccontextmanager
    async def file(self, name: str) -> AsyncGenerator[FileSink]:
        """Write one file of the folder."""
        async with self._store(self._staging.at(self._staging.path.child(name)), name) as body:
            yield body
        self.size_bytes += body.size_bytes


class ExportFiles(CallerFiles):
    """The file access of a statement whose rows go into files, which also creates folders.

    The size limit of uploads does not apply to files that the server makes. Quotas and the free space of the disk do.
    """

    def __init__(self, access: StatementFileAccess, moves: Moves, user: User, operation_id: str) -> None:
        super().__init__(access, user, operation_id, may_write=True)
        self._max_bytes = None
        self._moves = moves

    async def require_new_file(self, path: str, *, overwrite: bool) -> None:
        """Check the target of a file before anything is written. Raises the errors of `write`."""
        requested = self._requested_path(path)
        with self._failures(_WRITE, requested):
            await self._target(requested, overwrite=overwrite)

    async def require_new_folder(self, path: str, extension: str, *, overwrite: bool) -> None:
        """Check the target of a folder before anything is written. Raises the errors of `write_folder`."""
        requested = self._requested_path(path)
        with self._failures(_WRITE, requested):
            await _require_replaceable(await self._folder_target(requested, extension), overwrite=overwrite)

    @asynccontextmanager
    async def write_folder(self, path: str, extension: str, *, overwrite: bool) -> AsyncGenerator[NewFolder]:
        """Create a folder of files with this extension. If the block fails, nothing is left behind.

        If `overwrite` is set, an existing folder is replaced, but only if it contains nothing except files named as
        `part_name` does. Raises PathExists, and the errors of `UploadRules.folder`.
        """
        requested = self._requested_path(path)
        with self._event(_WRITE, requested) as details:
            target = await self._folder_target(requested, extension)
            await _require_replaceable(target, overwrite=overwrite)
            staging = target.at(target.path.parent.child(staged_folder_name()))
            folder = NewFolder(staging, partial(self._storing, overwrite=False))
            async with self._access.orphans.recorded_write(self._caller, staging.path):
                try:
                    yield folder
                    self._require_running()
                    # Checked again, because another client may have used the folder in the meantime.
                    await self._publish(
                        staging, target, replaces=await _require_replaceable(target, overwrite=overwrite)
                    )
                except BaseException:  # includes CancelledError: nothing may remain
                    await self._discard(staging)
                    raise
            details.size_bytes = folder.size_bytes

    async def _folder_target(self, requested: RequestedPath, extension: str) -> Location:
        """Check the path as for an upload (Contract storage 9.1)."""
        self._location(requested, Scope.FILES_WRITE)
        self._access.rules.admit()
        if requested.path.is_root:
            raise errors.PathExists(f"{requested.text} already exists.")
        require_new_name(requested.path, is_directory=True)
        return await self._access.rules.folder(self._caller, requested.path, file_name=part_name(0, extension))

    async def _publish(self, staging: Location, target: Location, *, replaces: bool) -> None:
        """Give the staged folder its final name. A replaced folder is moved aside first, or deleted where the store
        cannot rename it.
        """
        if not replaces:
            await self._move(staging, target)
            return
        aside = target.at(target.path.parent.child(staged_folder_name()))
        if not can_rename(target, aside):
            await target.storage.delete(target.path.path, recursive=True)
            await self._move(staging, target)
            return
        async with self._access.orphans.recorded_write(self._caller, aside.path):
            await self._move(target, aside)
            try:
                await self._move(staging, target)
            except BaseException:  # includes CancelledError: the former folder must not be lost
                await self._move(aside, target)
                raise
            await self._discard(aside)

    async def _move(self, source: Location, target: Location) -> None:
        entry = await source.storage.stat(source.path.path)
        transfer = Transfer(self._user.id, self._caller.acting, TransferKind.MOVE, source.path, target.path)
        await self._moves.move(self._caller, transfer, (source, target), entry, Progress())

    async def _discard(self, staged: Location) -> None:
        """Delete a staged folder. If the store fails, leave that to the orphan sweep."""
        try:
            await staged.storage.delete(staged.path.path, recursive=True)
        except PathNotFound:
            pass
        except QueryServerError as error:
            log.warning("staged folder not removed", code=error.code)
            await self._access.orphans.begin(uuid4(), self._caller, staged.path)


async def _require_replaceable(target: Location, *, overwrite: bool) -> bool:
    """Return whether there is a folder to replace. Raises PathExists for anything else that exists."""
    existing = await target.find()
    if existing is None:
        return False
    if not overwrite:
        raise errors.PathExists(f"{target.path} already exists.")
    if not existing.is_directory:
        raise errors.PathExists(f"{target.path} exists and is not a folder.")
    async with aclosing(target.storage.list_directory(target.path.path)) as batches:
        async for batch in batches:
            for entry in batch.entries:
                if not (entry.is_file and _PART.fullmatch(entry.name)):
                    raise errors.PathExists(
                        f"{target.path} contains {entry.name}, which is not a file of an export, so it is not replaced."
                    )
    return True
