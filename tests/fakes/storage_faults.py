"""Stores that fail on request."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from queryserver.errors.base import QueryServerError
from queryserver.files.model import ContentSummary, FileStatus, Scheme, StorageUser
from queryserver.files.protocol import (
    Batch,
    FileSystem,
    ModeStorage,
    OwnedStorage,
    PartPlan,
    ReadableParts,
    RenamingStorage,
    ReplicatedStorage,
    Storage,
    StorageTraits,
    StoredPart,
    SummarizedStorage,
    TrashStorage,
    UnlistedUploads,
)

Failure = QueryServerError | Callable[[int, str], QueryServerError | None]
"""The error that a call raises. It may be a function of the call's number, which starts at 1, and the call's first
path; if the function returns None, the call succeeds.
"""


@dataclass
class FaultyStorage:
    """Wraps another store. A call raises the error in `failures` for its method name, and `calls` counts the calls by
    method.

    A failing `write` first consumes `after_pieces` chunks of its body, as if a disk became full. This class has no
    optional powers; the function `faulty` adds those of the inner store.
    """

    inner: Storage
    failures: dict[str, Failure] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    after_pieces: int = 1

    async def stat(self, path: str) -> FileStatus:
        self._call("stat", path)
        return await self.inner.stat(path)

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        self._call("list_directory", path)
        async for batch in self.inner.list_directory(path, cursor=cursor, batch_size=batch_size):
            yield batch

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        self._call("read", path)
        async for piece in self.inner.read(path, offset=offset, length=length, version=version):
            yield piece

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        if failure := self._failure("write", path):
            body = self._broken(body, failure)
        return await self.inner.write(path, body, overwrite=overwrite, size_bytes=size_bytes)

    async def mkdir(self, path: str, *, permissions: int | None = None) -> None:
        self._call("mkdir", path)
        await self.inner.mkdir(path, permissions=permissions)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        self._call("copy", source)
        return await self.inner.copy(source, target, overwrite=overwrite)

    async def delete(self, path: str, *, recursive: bool) -> None:
        self._call("delete", path)
        await self.inner.delete(path, recursive=recursive)

    async def begin_parts(self, plan: PartPlan) -> str:
        self._call("begin_parts", plan.path)
        return await self.inner.begin_parts(plan)

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        if failure := self._failure("write_part", plan.path):
            body = self._broken(body, failure)
        return await self.inner.write_part(plan, staging, index, body)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        self._call("join_parts", plan.path)
        return await self.inner.join_parts(plan, staging, parts, overwrite=overwrite)

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        self._call("discard_parts", plan.path)
        await self.inner.discard_parts(plan, staging)

    async def sweep_orphans(self, path: str, older_than_s: float) -> int:
        self._call("sweep_orphans", path)
        return await self.inner.sweep_orphans(path, older_than_s)

    def _failure(self, name: str, path: str) -> QueryServerError | None:
        self.calls[name] += 1
        failure = self.failures.get(name)
        if failure is None or isinstance(failure, QueryServerError):
            return failure
        return failure(self.calls[name], path)

    def _call(self, name: str, path: str) -> None:
        if failure := self._failure(name, path):
            raise failure

    async def _broken(self, body: AsyncIterator[bytes], failure: QueryServerError) -> AsyncIterator[bytes]:
        pieces = 0
        async for piece in body:
            yield piece
            pieces += 1
            if pieces >= self.after_pieces:
                break
        raise failure


class _RenamingFaults(FaultyStorage):
    def can_rename(self, source: str, target: str) -> bool:
        assert isinstance(self.inner, RenamingStorage)
        return self.inner.can_rename(source, target)

    async def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        assert isinstance(self.inner, RenamingStorage)
        self._call("rename", source)
        await self.inner.rename(source, target, overwrite=overwrite)


class _Trash(FaultyStorage):
    async def trash_root(self, path: str) -> str:
        assert isinstance(self.inner, TrashStorage)
        self._call("trash_root", path)
        return await self.inner.trash_root(path)


class _ReplicatedFaults(FaultyStorage):
    async def set_replication(self, path: str, factor: int) -> None:
        assert isinstance(self.inner, ReplicatedStorage)
        self._call("set_replication", path)
        await self.inner.set_replication(path, factor)


class _SummarizedFaults(FaultyStorage):
    async def content_summary(self, path: str) -> ContentSummary:
        assert isinstance(self.inner, SummarizedStorage)
        self._call("content_summary", path)
        return await self.inner.content_summary(path)


class _Modes(FaultyStorage):
    async def set_permissions(self, path: str, permissions: int) -> None:
        assert isinstance(self.inner, ModeStorage)
        self._call("set_permissions", path)
        await self.inner.set_permissions(path, permissions)


class _Owners(FaultyStorage):
    async def set_owner(self, path: str, *, owner: str | None, group: str | None) -> None:
        assert isinstance(self.inner, OwnedStorage)
        self._call("set_owner", path)
        await self.inner.set_owner(path, owner=owner, group=group)


class _Unseen(FaultyStorage):
    async def abort_unlisted_uploads(self, path: str, older_than_s: float) -> int:
        assert isinstance(self.inner, UnlistedUploads)
        self._call("abort_unlisted_uploads", path)
        return await self.inner.abort_unlisted_uploads(path, older_than_s)


class _Readable(FaultyStorage):
    async def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        assert isinstance(self.inner, ReadableParts)
        self._call("read_parts", plan.path)
        async for piece in self.inner.read_parts(plan, staging, parts):
            yield piece


_WRAPPERS: tuple[tuple[type, type[FaultyStorage]], ...] = (
    (RenamingStorage, _RenamingFaults),
    (TrashStorage, _Trash),
    (ReplicatedStorage, _ReplicatedFaults),
    (SummarizedStorage, _SummarizedFaults),
    (ModeStorage, _Modes),
    (OwnedStorage, _Owners),
    (UnlistedUploads, _Unseen),
    (ReadableParts, _Readable),
)


def faulty(
    inner: Storage, failures: dict[str, Failure] | None = None, calls: Counter[str] | None = None
) -> FaultyStorage:
    """Wrap `inner` in a FaultyStorage with exactly the same optional powers."""
    wrappers = tuple(wrapper for protocol, wrapper in _WRAPPERS if isinstance(inner, protocol))
    kind = _with(wrappers)
    return kind(inner, {} if failures is None else failures, Counter() if calls is None else calls)


@dataclass
class FaultyFileSystem:
    """Wraps another FileSystem. All its storages share `failures` and `calls`."""

    inner: FileSystem
    failures: dict[str, Failure] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def scheme(self) -> Scheme:
        return self.inner.scheme

    @property
    def traits(self) -> StorageTraits:
        return self.inner.traits

    def as_user(self, user: StorageUser) -> FaultyStorage:
        return faulty(self.inner.as_user(user), self.failures, self.calls)

    async def close(self) -> None:
        await self.inner.close()


@cache
def _with(wrappers: tuple[type[FaultyStorage], ...]) -> type[FaultyStorage]:
    return type("FaultyStorageWithPowers", (*wrappers, FaultyStorage), {})
