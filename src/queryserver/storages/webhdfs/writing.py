"""New files: written under a name of our own beside the target, checked, renamed (Contract storage 9.1)."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

from queryserver.domain.errors.base import PermissionDenied, QueryServerError
from queryserver.domain.errors.files import VerificationFailed
from queryserver.domain.files import FileStatus
from queryserver.storages.webhdfs.finishing import finished
from queryserver.storages.webhdfs.replacing import beside
from queryserver.storages.webhdfs.tree import NewFile, Tree

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
