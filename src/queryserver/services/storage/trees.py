"""Going through trees, and doing something with many entries at once."""

from asyncio import TaskGroup
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.files import FileStatus
from queryserver.interfaces.storage import Storage

T = TypeVar("T")


async def walk(storage: Storage, entry: FileStatus) -> AsyncGenerator[tuple[str, FileStatus]]:
    """The entry and all below it, with paths relative to it (its own is empty); directories before what they hold.

    Links are not followed. Holds the paths of directories that are still to be listed, and one batch.
    """
    yield "", entry
    pending = [""] if entry.is_directory else []
    while pending:
        directory = pending.pop()
        async with aclosing(storage.list_directory(joined(entry.path, directory))) as batches:
            async for batch in batches:
                for child in batch.entries:
                    path = joined(directory, child.name)
                    if child.is_directory:
                        pending.append(path)
                    yield path, child


def joined(directory: str, path: str) -> str:
    """A path below a directory; either may be empty."""
    return f"{directory}/{path}" if directory and path else directory or path


@dataclass(slots=True)
class Attempts(Generic[T]):
    """What became of many: items that are in neither list were never begun."""

    done: list[T] = field(default_factory=list[T])
    failed: list[tuple[T, QueryServerError]] = field(default_factory=list[tuple[T, QueryServerError]])

    def raise_failure(self) -> None:
        """Raises the first failure."""
        for _, error in self.failed:
            raise error


async def attempt_each(items: Iterable[T], work: Callable[[T], Awaitable[object]], *, at_once: int) -> Attempts[T]:
    """Do `at_once` items side by side; after a failure those under way end, and no other is begun."""
    attempts: Attempts[T] = Attempts()
    pending = iter(items)

    async def worker() -> None:
        for item in pending:
            try:
                await work(item)
            except QueryServerError as error:
                attempts.failed.append((item, error))
            else:
                attempts.done.append(item)
            if attempts.failed:
                return

    async with TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
    return attempts
