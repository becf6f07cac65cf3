"""Giving entries their names: never over another one unless asked, and never with both contents gone.

WebHDFS renames with options in one step. HttpFS passes the options over: it refuses where a file is in the way and
moves into a directory of that name. There the old file steps aside first (Contract storage 10.3), into a directory
`._qs_old_<hex>` under its own name, so that it can be brought back after a crash.
"""

import uuid
from contextlib import suppress

from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.errors.files import NotADirectory, PathExists, PathNotFound, StorageError, TargetInsideSource
from queryserver.domain.files import FileStatus
from queryserver.storages.webhdfs.finishing import finished
from queryserver.storages.webhdfs.tree import Renamed, Tree

OLD_PREFIX = "._qs_old_"
DIRECTORY_PREFIX = "._qs_directory_"
_ASIDE_PERMISSIONS = 0o700


class Renaming:
    """What one FileSystem has learned about its store's RENAME."""

    def __init__(self) -> None:
        self._knows_options: bool | None = None

    async def rename(self, tree: Tree, source: str, target: str, *, overwrite: bool) -> None:
        """See the Protocol."""
        if target == source or target.startswith(f"{source}/"):
            await tree.stat(source)
            raise (PathExists if target == source else TargetInsideSource)(f"/{target} is in /{source}.")
        former = await tree.find(target) if overwrite or not self._knows_options else None
        if former is None:
            await self._rename_new(tree, source, target)
            return
        if not overwrite or not former.is_file or not (await tree.stat(source)).is_file:
            raise PathExists(f"/{target} exists.")
        await self.replace(tree, source, target)

    async def give_name(self, tree: Tree, source: str, target: str, former: FileStatus | None) -> FileStatus:
        """Rename a new file of ours, over `former` if there was one; what then stands there. Raises PathExists."""
        if former is None:
            await self._rename_new(tree, source, target)
        else:
            await self.replace(tree, source, target)
        status = await tree.stat(target)
        if status.is_directory:
            # A directory of that name came between: the file went into it.
            with suppress(QueryServerError):
                await finished(tree.remove(f"{target}/{_name_of(source)}", recursive=False))
            raise PathExists(f"/{target} exists.")
        return status

    async def make_directory(self, tree: Tree, path: str, permissions: int) -> None:
        """Make a directory as nobody else does at the same time: MKDIRS would take one that is there for its own.

        Raises PathExists.
        """
        if await tree.find(path) is not None:
            raise PathExists(f"/{path} exists.")
        made = beside(path.rpartition("/")[0], f"{DIRECTORY_PREFIX}{uuid.uuid4().hex}")
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

    async def replace(self, tree: Tree, source: str, target: str) -> None:
        """A file takes the place of a file."""
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
    await tree.make_directory(aside, _ASIDE_PERMISSIONS)
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
    """After a crash: bring back what stepped aside, unless there is something new in its place, and tidy up."""
    async for old in tree.all_entries(aside):
        target = beside(parent, old.name)
        if await tree.find(target) is None:
            await tree.rename(old.path, target, overwrite=False)
    await tree.remove(aside, recursive=True)


async def _why_refused(tree: Tree, source: str, target: str) -> QueryServerError:
    """The cause of a RENAME that answered false."""
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
    """An entry of a directory."""
    return f"{parent}/{name}" if parent else name


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]
