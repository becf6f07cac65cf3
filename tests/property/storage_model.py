"""The expected content of a store after any operations, as a dictionary: the model with which stores are compared."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from hypothesis import strategies as st
from tests.contract.storage_basis import content, entries, put

from queryserver.errors.base import QueryServerError
from queryserver.errors.files import (
    DirectoryNotEmpty,
    NotADirectory,
    NotAFile,
    PathExists,
    PathNotFound,
    TargetInsideSource,
)
from queryserver.files.protocol import RenamingStorage, Storage

# Few names, so that operations affect each other. One name is a prefix of another, and one has non-ASCII letters.
_NAMES = ("a", "ab", "é d")
PATHS = st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3).map("/".join)
CONTENTS = st.sampled_from((b"", b"one", b"three"))

Refusals = frozenset[type[QueryServerError]]
NONE: Refusals = frozenset()


@dataclass(frozen=True, slots=True)
class Operation:
    """A call on a store. `path` is its first argument; fields that the call does not need are ignored."""

    kind: str
    path: str
    target: str
    content: bytes
    flag: bool


KINDS = ("write", "write", "mkdir", "rename", "rename", "copy", "delete", "read", "stat", "list")
OPERATIONS = st.lists(st.builds(Operation, st.sampled_from(KINDS), PATHS, PATHS, CONTENTS, st.booleans()), max_size=20)


@dataclass
class Model:
    """Content of all files by path; None marks a directory. The root is not included."""

    entries: dict[str, bytes | None] = field(default_factory=dict[str, bytes | None])

    def is_directory(self, path: str) -> bool:
        return path == "" or (path in self.entries and self.entries[path] is None)

    def is_file(self, path: str) -> bool:
        return self.entries.get(path) is not None

    def below(self, path: str) -> list[str]:
        return [entry for entry in self.entries if entry.startswith(f"{path}/") or not path]

    def children(self, path: str) -> list[str]:
        depth = path.count("/") + 1 if path else 0
        return sorted(entry.rpartition("/")[2] for entry in self.below(path) if entry.count("/") == depth)

    def leads_through_file(self, path: str) -> bool:
        return any(self.is_file(parent) for parent in _parents(path))

    def put(self, path: str, content: bytes | None) -> None:
        for parent in _parents(path):
            self.entries.setdefault(parent, None)
        self.entries[path] = content

    def move(self, source: str, target: str) -> None:
        for entry in [source, *self.below(source)]:
            self.entries[target + entry.removeprefix(source)] = self.entries.pop(entry)

    # The following methods return the errors with which a store may refuse a call. The set is empty if the call
    # succeeds.

    def missing(self, path: str) -> Refusals:
        if self.leads_through_file(path):
            return frozenset({PathNotFound, NotADirectory})
        return NONE if path in self.entries else frozenset({PathNotFound})

    def not_readable(self, path: str) -> Refusals:
        return self.missing(path) or (frozenset({NotAFile}) if self.is_directory(path) else NONE)

    def not_listable(self, path: str) -> Refusals:
        return self.missing(path) or (frozenset({NotADirectory}) if self.is_file(path) else NONE)

    def not_free(self, path: str, *, overwrite: bool) -> Refusals:
        if self.leads_through_file(path):
            return frozenset({NotADirectory, PathExists})
        is_taken = path in self.entries and not (overwrite and self.is_file(path))
        return frozenset({PathExists}) if is_taken else NONE

    def not_deletable(self, path: str, *, recursive: bool) -> Refusals:
        return self.missing(path) or (frozenset({DirectoryNotEmpty}) if self.below(path) and not recursive else NONE)

    def not_movable(self, source: str, target: str, *, overwrite: bool) -> Refusals:
        refusals = set(self.missing(source))
        if target.startswith(f"{source}/"):
            refusals.add(TargetInsideSource)
        parent = target.rpartition("/")[0]
        if self.leads_through_file(target):
            refusals |= {NotADirectory, PathNotFound}
        elif not self.is_directory(parent):
            refusals.add(PathNotFound)
        if target in self.entries and not (overwrite and self.is_file(source) and self.is_file(target)):
            refusals.add(PathExists)
        return frozenset(refusals)


def _parents(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:end]) for end in range(1, len(names))]


@dataclass
class Comparison:
    """A comparison of a store with the model. `has_directories` states whether the store ensures that no entry is below
    a file.
    """

    storage: Storage
    base: str
    has_directories: bool = True
    model: Model = field(default_factory=Model)

    def at(self, path: str) -> str:
        return f"{self.base}/{path}" if path else self.base

    async def run(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if self._is_comparable(operation):
                await getattr(self, f"_{operation.kind}")(operation)
        await self._compare("")

    def _is_comparable(self, operation: Operation) -> bool:
        """Return whether the operation's outcome is defined. Stores may handle writes below a file differently, and
        also a file that is copied or renamed onto itself.
        """
        is_two_places = operation.kind in {"rename", "copy"}
        if is_two_places and operation.path == operation.target and operation.flag:
            return False
        if operation.kind == "rename" and not isinstance(self.storage, RenamingStorage):
            return False
        changed = operation.target if is_two_places else operation.path
        return self.has_directories or not self.model.leads_through_file(changed)

    async def _write(self, it: Operation) -> None:
        refusals = self.model.not_free(it.path, overwrite=it.flag)
        if await self._agrees(put(self.storage, self.at(it.path), it.content, overwrite=it.flag), refusals, it):
            self.model.put(it.path, it.content)

    async def _mkdir(self, it: Operation) -> None:
        if await self._agrees(self.storage.mkdir(self.at(it.path)), self.model.not_free(it.path, overwrite=False), it):
            self.model.put(it.path, None)

    async def _rename(self, it: Operation) -> None:
        assert isinstance(self.storage, RenamingStorage)
        refusals = self.model.not_movable(it.path, it.target, overwrite=it.flag)
        call = self.storage.rename(self.at(it.path), self.at(it.target), overwrite=it.flag)
        if await self._agrees(call, refusals, it):
            self.model.move(it.path, it.target)

    async def _copy(self, it: Operation) -> None:
        # The service refuses to copy a file onto itself before it calls the store, so the error differs from the
        # store's error for a missing source.
        if it.path == it.target:
            return
        refusals = self.model.not_readable(it.path) | self.model.not_free(it.target, overwrite=it.flag)
        call = self.storage.copy(self.at(it.path), self.at(it.target), overwrite=it.flag)
        if await self._agrees(call, refusals, it):
            self.model.put(it.target, self.model.entries[it.path])

    async def _delete(self, it: Operation) -> None:
        refusals = self.model.not_deletable(it.path, recursive=it.flag)
        if await self._agrees(self.storage.delete(self.at(it.path), recursive=it.flag), refusals, it):
            for entry in [it.path, *self.model.below(it.path)]:
                del self.model.entries[entry]

    async def _read(self, it: Operation) -> None:
        refusals = self.model.not_readable(it.path)
        if await self._agrees(content(self.storage, self.at(it.path)), refusals, it):
            assert await content(self.storage, self.at(it.path)) == self.model.entries[it.path]

    async def _stat(self, it: Operation) -> None:
        if await self._agrees(self.storage.stat(self.at(it.path)), self.model.missing(it.path), it):
            status = await self.storage.stat(self.at(it.path))
            held = self.model.entries[it.path]
            assert (status.is_directory, status.size_bytes) == (held is None, len(held or b""))

    async def _list(self, it: Operation) -> None:
        if await self._agrees(entries(self.storage, self.at(it.path)), self.model.not_listable(it.path), it):
            found = [entry.name for entry in await entries(self.storage, self.at(it.path))]
            assert found == self.model.children(it.path)

    async def _agrees(self, call: Awaitable[object], refusals: Refusals, it: Operation) -> bool:
        """Await the call; return whether it succeeded. Fails unless the model predicts this outcome; an error must be
        one of the predicted errors.
        """
        (outcome,) = await asyncio.gather(call, return_exceptions=True)
        if not isinstance(outcome, BaseException):
            assert not refusals, f"{it} succeeded instead of {refusals}"
            return True
        assert type(outcome) in refusals, f"{it}: {outcome!r} instead of {refusals or 'success'}"
        return False

    async def _compare(self, path: str) -> None:
        """Compare the tree below a path with the model, at the end of the run."""
        found = await entries(self.storage, self.at(path))
        assert [entry.name for entry in found] == self.model.children(path)
        for entry in found:
            inner = f"{path}/{entry.name}" if path else entry.name
            held = self.model.entries[inner]
            assert entry.is_directory == (held is None)
            if held is None:
                await self._compare(inner)
            else:
                assert await content(self.storage, self.at(inner)) == held


def compare(place: AbstractAsyncContextManager[Comparison], operations: Sequence[Operation]) -> None:
    """Run the operations in an empty directory of a store, in a separate event loop, and compare each outcome."""

    async def run() -> None:
        async with place as comparison:
            await comparison.run(operations)

    asyncio.run(run())
