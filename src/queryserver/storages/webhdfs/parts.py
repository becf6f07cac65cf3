"""Files that arrive in parts: one file per part in a directory of our own beside the target (Contract storage 9.2).

The directory is `._qs_parts_<hex>`. Parts become one file by CONCAT, which moves blocks and copies nothing, and where
the store refuses that, by a streamed join. Both can be taken up again where they stopped.
"""

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing

from queryserver.domain.errors.base import InvalidParameter, PermissionDenied, QueryServerError
from queryserver.domain.errors.files import (
    NotADirectory,
    PathNotFound,
    StorageUnavailable,
    StoreQuotaExceeded,
    VerificationFailed,
)
from queryserver.domain.files import FileStatus
from queryserver.interfaces.storage import PartPlan, StoredPart
from queryserver.storages.webhdfs.replacing import beside
from queryserver.storages.webhdfs.tree import NewFile, Tree
from queryserver.storages.webhdfs.writing import write_verified

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
