"""Files that arrive in parts: one file per part in a directory of our own beside the target (Contract storage 9.2).

The directory is `._qs_parts_<hex>`. Parts become one file by CONCAT, which moves blocks and copies nothing, and where
the store refuses that, by a streamed join. Both can be taken up again where they stopped.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

from queryserver.errors.base import InvalidParameter, PermissionDenied, QueryServerError
from queryserver.errors.files import (
    NotADirectory,
    PathExists,
    PathNotFound,
    StorageError,
    StorageUnavailable,
    StoreQuotaExceeded,
    TargetInsideSource,
    VerificationFailed,
)
from queryserver.files.model import FileStatus
from queryserver.files.protocol import PartPlan, StoredPart
from queryserver.files.stores.webhdfs.tree import NewFile, Renamed, Tree, finished

OLD_PREFIX = "._qs_old_"
DIRECTORY_PREFIX = "._qs_directory_"
_ASIDE_PERMISSIONS = 0o700


class Renaming:
    """What one FileSystem has learned about its store's RENAME."""

    def __init__(self) -> None:
        self._knows_options: bool | None = None

    async def rename(self, tree: Tree, source: str, target: str, *, overwrite: bool) -> None:
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


UPLOAD_PREFIX = "._qs_upload_"
_TIMES_TO_REMOVE = 3
_PAUSE_S = 0.3


@asynccontextmanager
async def written(tree: Tree, target: str, body: AsyncIterator[bytes], new: NewFile) -> AsyncGenerator[FileStatus]:
    """A file beside the target with the whole body in it. It is gone at the end, unless it was renamed.

    Raises VerificationFailed, and whatever `body` raises.
    """
    path = beside(target.rpartition("/")[0], f"{UPLOAD_PREFIX}{uuid.uuid4().hex}")
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
    # HttpFS takes bits away that its own umask names.
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
    """Away with a file whose upload broke off: the store may be just about to make it."""
    for _ in range(_TIMES_TO_REMOVE):
        if await tree.remove(path, recursive=False):
            return
        await asyncio.sleep(_PAUSE_S)


PARTS_PREFIX = "._qs_parts_"
_JOINED = "joined"
_STAGING_PERMISSIONS = 0o700
# These say nothing against CONCAT, and a streamed join would meet them too.
_NO_REFUSALS = (StorageUnavailable, PermissionDenied, StoreQuotaExceeded)


async def begin(tree: Tree, plan: PartPlan) -> str:
    """The name of a new staging directory. Raises PathNotFound."""
    parent = plan.path.rpartition("/")[0]
    if not (await tree.stat(parent)).is_directory:
        raise NotADirectory(f"/{parent} is no directory.")
    staging = uuid.uuid4().hex
    await tree.make_directory(_directory(plan, staging), _STAGING_PERMISSIONS)
    return staging


async def write_part(tree: Tree, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
    """Store one part under a name that no other try has; the receipt is that name."""
    directory = _directory(plan, staging)
    if await tree.find(directory) is None:
        raise PathNotFound("The parts of this upload are gone.")
    name = f"{index}_{uuid.uuid4().hex}"
    size = (await write_verified(tree, f"{directory}/{name}", body, NewFile(0o600))).size_bytes
    expected = min(plan.part_bytes, plan.size_bytes - index * plan.part_bytes)
    if size != expected:
        await tree.remove(f"{directory}/{name}", recursive=False)
        raise VerificationFailed(f"Part {index} has {size} instead of {expected} bytes.")
    return StoredPart(index, size, name)


async def join(tree: Tree, plan: PartPlan, staging: str, parts: Sequence[StoredPart], new: NewFile) -> str:
    """One file of all parts, still in the staging directory. Raises VerificationFailed, PathNotFound."""
    directory = _directory(plan, staging)
    joined = f"{directory}/{_JOINED}"
    ordered = sorted(parts, key=lambda part: part.index)
    stored = {entry.name: entry async for entry in tree.all_entries(directory)}
    todo = _not_joined(ordered, stored)
    if sum(part.size_bytes for part in ordered) != plan.size_bytes:
        raise VerificationFailed("The parts are not as long as the file.")
    if _JOINED not in stored:
        await write_verified(tree, joined, _nothing(), new)
    await _concat(tree, directory, [f"{directory}/{part.receipt}" for part in todo if part.size_bytes], new)
    status = await tree.stat(joined)
    if status.size_bytes != plan.size_bytes:
        raise VerificationFailed(f"The store joined {status.size_bytes} of {plan.size_bytes} bytes.")
    return joined


async def read(tree: Tree, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
    """What `join` would make. A former try may have joined the first parts. Raises VerificationFailed."""
    directory = _directory(plan, staging)
    stored = {entry.name: entry async for entry in tree.all_entries(directory)}
    todo = _not_joined(sorted(parts, key=lambda part: part.index), stored)
    names = [name for name in (_JOINED, *(part.receipt for part in todo)) if name in stored]
    async with aclosing(_streamed(tree, [stored[name] for name in names])) as pieces:
        async for piece in pieces:
            yield piece


async def discard(tree: Tree, plan: PartPlan, staging: str) -> None:
    """Remove the staging directory with what is in it."""
    await tree.remove(_directory(plan, staging), recursive=True)


def _directory(plan: PartPlan, staging: str) -> str:
    """Raises InvalidParameter: `staging` was never ours."""
    if len(staging) != 32 or not set(staging) <= set("0123456789abcdef"):
        raise InvalidParameter("This is no upload of parts.")
    return beside(plan.path.rpartition("/")[0], f"{PARTS_PREFIX}{staging}")


def _not_joined(parts: Sequence[StoredPart], stored: Mapping[str, FileStatus]) -> Sequence[StoredPart]:
    """What a former try left to do: it has joined the first parts, or none. Raises VerificationFailed."""
    done = stored[_JOINED].size_bytes if _JOINED in stored else 0
    start = 0
    while done > 0 and start < len(parts):
        done -= parts[start].size_bytes
        start += 1
    for part in parts[start:]:
        kept = stored.get(part.receipt)
        if kept is None or kept.size_bytes != part.size_bytes:
            raise VerificationFailed(f"Part {part.index} is not as it was stored.")
    if done:
        raise VerificationFailed("The parts that were joined are not as they were stored.")
    return parts[start:]


async def _concat(tree: Tree, directory: str, sources: Sequence[str], new: NewFile) -> None:
    """Append the parts to what is joined already."""
    joined = f"{directory}/{_JOINED}"
    try:
        await tree.concat(joined, sources)
    except _NO_REFUSALS:
        raise
    except QueryServerError:
        # Encryption zones, erasure coding and Ozone refuse it, each with words of its own.
        left = {entry.path: entry async for entry in tree.all_entries(directory)}
        streamed = [joined, *(source for source in sources if source in left)]
        copy = f"{directory}/{_JOINED}_{uuid.uuid4().hex}"
        await write_verified(tree, copy, _streamed(tree, [left[source] for source in streamed]), new)
        await tree.remove(joined, recursive=False)
        await tree.rename(copy, joined, overwrite=False)


async def _streamed(tree: Tree, files: Sequence[FileStatus]) -> AsyncGenerator[bytes]:
    for file in files:
        if file.size_bytes:
            async with aclosing(tree.content(file.path, 0, file.size_bytes)) as pieces:
                async for piece in pieces:
                    yield piece


async def _nothing() -> AsyncGenerator[bytes]:
    for piece in ():
        yield piece
