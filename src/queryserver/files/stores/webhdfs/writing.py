"""Writes and renames of WebHDFS that no crash leaves half done: new files get their name by a rename."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

from queryserver.errors.base import PermissionDenied, QueryServerError
from queryserver.errors.files import (
    NotADirectory,
    PathExists,
    PathNotFound,
    StorageError,
    TargetInsideSource,
    VerificationFailed,
)
from queryserver.files.model import FileStatus
from queryserver.files.stores.webhdfs.tree import NewFile, Renamed, Tree, finished

OLD_PREFIX = "._qs_old_"
_DIRECTORY_PREFIX = "._qs_directory_"
_UPLOAD_PREFIX = "._qs_upload_"
_TIMES_TO_REMOVE = 3
_PAUSE_S = 0.3


class Renaming:
    """RENAME of one store, with what was learned about its options."""

    def __init__(self) -> None:
        self._knows_options: bool | None = None

    async def rename(self, tree: Tree, source: str, target: str, *, overwrite: bool) -> None:
        if target == source or target.startswith(f"{source}/"):
            await tree.stat(source)
            raise (PathExists if target == source else TargetInsideSource)(f"/{target} is in /{source}.")
        former = await tree.find(target) if overwrite or not self._knows_options else None
        if former is None:
            return await self._rename_new(tree, source, target)
        if not overwrite or not former.is_file or not (await tree.stat(source)).is_file:
            raise PathExists(f"/{target} exists.")
        return await self._replace(tree, source, target)

    async def give_name(self, tree: Tree, source: str, target: str, former: FileStatus | None) -> FileStatus:
        """Rename a new file of ours, over `former` if there was one; the entry then. Raises PathExists."""
        if former is None:
            await self._rename_new(tree, source, target)
        else:
            await self._replace(tree, source, target)
        status = await tree.stat(target)
        if status.is_directory:
            # A directory of that name was made meanwhile, and the file went into it.
            with suppress(QueryServerError):
                await finished(tree.remove(f"{target}/{_name_of(source)}", recursive=False))
            raise PathExists(f"/{target} exists.")
        return status

    async def make_directory(self, tree: Tree, path: str, permissions: int) -> None:
        """Make a directory that did not exist, which MKDIRS does not check. Raises PathExists."""
        if await tree.find(path) is not None:
            raise PathExists(f"/{path} exists.")
        made = beside(path.rpartition("/")[0], f"{_DIRECTORY_PREFIX}{uuid.uuid4().hex}")
        if not await tree.make_directory(made, permissions):
            raise StorageError("The store does not make this directory.")
        try:
            await self._rename_new(tree, made, path)
        except BaseException:  # a cancel too: the directory beside must not stay
            with suppress(QueryServerError):
                await finished(tree.remove(made, recursive=False))
            raise
        inside = f"{path}/{_name_of(made)}"
        if not self._knows_options and await tree.find(inside) is not None:
            await finished(tree.remove(inside, recursive=False))
            raise PathExists(f"/{path} exists.")

    async def _replace(self, tree: Tree, source: str, target: str) -> None:
        if self._knows_options is not False:
            outcome = await tree.rename(source, target, overwrite=True)
            self._knows_options = outcome is Renamed.AS_ASKED
            if outcome is not Renamed.REFUSED:
                return
        await finished(_replace_in_steps(tree, source, target))

    async def _rename_new(self, tree: Tree, source: str, target: str) -> None:
        outcome = await tree.rename(source, target, overwrite=False)
        self._knows_options = outcome is Renamed.AS_ASKED
        if outcome is Renamed.REFUSED:
            raise await _why_refused(tree, source, target)


async def _replace_in_steps(tree: Tree, source: str, target: str) -> None:
    parent = target.rpartition("/")[0]
    aside = beside(parent, f"{OLD_PREFIX}{uuid.uuid4().hex}")
    old = f"{aside}/{_name_of(target)}"
    await tree.make_directory(aside, 0o700)
    if await tree.rename(target, old, overwrite=False) is Renamed.REFUSED:
        await tree.remove(aside, recursive=False)
        raise await _why_refused(tree, source, target)
    try:
        if await tree.rename(source, target, overwrite=False) is Renamed.REFUSED:
            raise await _why_refused(tree, source, target)
    except QueryServerError:
        await tree.rename(old, target, overwrite=False)
        await tree.remove(aside, recursive=False)
        raise
    await tree.remove(aside, recursive=True)


async def restore(tree: Tree, parent: str, aside: str) -> None:
    """After a crash: bring back the file that was moved aside, unless there is a new one, and delete the rest."""
    async for old in tree.all_entries(aside):
        target = beside(parent, old.name)
        if await tree.find(target) is None:
            await tree.rename(old.path, target, overwrite=False)
    await tree.remove(aside, recursive=True)


async def _why_refused(tree: Tree, source: str, target: str) -> QueryServerError:
    if await tree.find(source) is None:
        return PathNotFound(f"/{source} does not exist.")
    parent = target.rpartition("/")[0]
    holder = await tree.find(parent)
    if holder is None:
        return PathNotFound(f"/{parent} does not exist.")
    if not holder.is_directory:
        return NotADirectory(f"/{parent} is no directory.")
    if await tree.find(target) is not None:
        return PathExists(f"/{target} exists.")
    return StorageError("The store does not rename this.")


def beside(parent: str, name: str) -> str:
    return f"{parent}/{name}" if parent else name


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]


@asynccontextmanager
async def written(tree: Tree, target: str, body: AsyncIterator[bytes], new: NewFile) -> AsyncGenerator[FileStatus]:
    """A file beside the target with the whole body; deleted at the end unless it was renamed.

    Raises VerificationFailed, and whatever `body` raises.
    """
    path = beside(target.rpartition("/")[0], f"{_UPLOAD_PREFIX}{uuid.uuid4().hex}")
    try:
        yield await write_verified(tree, path, body, new)
    except BaseException:  # a cancel too: no part of a file may stay
        with suppress(QueryServerError):
            await finished(remove_broken(tree, path))
        raise


async def write_verified(
    tree: Tree, path: str, body: AsyncIterator[bytes], new: NewFile, *, overwrite: bool = True
) -> FileStatus:
    """Write a file. Raises VerificationFailed; PathExists without `overwrite`."""
    sent = await tree.upload(path, body, new, overwrite=overwrite)
    status = await tree.stat(path)
    if status.size_bytes != sent:
        raise VerificationFailed(f"The store kept {status.size_bytes} of {sent} bytes.")
    if status.permissions == new.permissions or not tree.has_attributes:
        return status
    # HttpFS removes the bits of its own umask.
    with suppress(PermissionDenied):
        await tree.set_permissions(path, new.permissions)
    return await tree.stat(path)


async def keep_owner(tree: Tree, path: str, status: FileStatus, former: FileStatus) -> None:
    """Owner and group of a file that is replaced, as far as the store lets the user set them."""
    if not tree.has_attributes:
        return
    owner = former.owner if former.owner != status.owner else None
    group = former.group if former.group != status.group else None
    if owner:
        with suppress(PermissionDenied):
            await tree.set_owner(path, owner, group)
            return
    if group:
        with suppress(PermissionDenied):
            await tree.set_owner(path, None, group)


async def remove_broken(tree: Tree, path: str) -> None:
    """Delete the file of a broken upload, which the store may make a moment later."""
    for _ in range(_TIMES_TO_REMOVE):
        if await tree.remove(path, recursive=False):
            return
        await asyncio.sleep(_PAUSE_S)
