"""Walking directory trees, and running operations concurrently."""

import asyncio

from tests.fakes.storage import MemoryStorage

from queryserver.errors.files import StorageError
from queryserver.files.model import EntryKind
from queryserver.files.transfer_steps import attempt_each, joined, walk


async def test_walk_yields_directories_before_their_content_and_follows_no_links():
    storage = MemoryStorage()
    for path in ("t/a/b/x", "t/a/y", "t/z"):
        storage.tree.put(path, b"")
    storage.tree.make_entry("t/a/link", EntryKind.LINK)
    found = [path async for path, _ in walk(storage, await storage.stat("t"))]
    assert sorted(found) == ["", "a", "a/b", "a/b/x", "a/link", "a/y", "z"]
    assert all(found.index(path.rpartition("/")[0]) < found.index(path) for path in found if path)


async def test_walk_of_a_file_yields_the_file():
    storage = MemoryStorage()
    storage.tree.put("f", b"content")
    assert [(path, status.size_bytes) async for path, status in walk(storage, await storage.stat("f"))] == [("", 7)]


def test_joining_paths_handles_empty_parts():
    assert [joined("", ""), joined("a", ""), joined("", "b"), joined("a", "b")] == ["", "a", "b", "a/b"]


async def test_failure_lets_running_work_finish_and_starts_no_more():
    begun: list[int] = []
    failed = asyncio.Event()

    async def work(number: int) -> None:
        begun.append(number)
        if number == 1:
            failed.set()
            raise StorageError("Broken.")
        await failed.wait()

    attempts = await attempt_each(range(10), work, at_once=3)
    assert begun == [0, 1, 2]
    assert sorted(attempts.done) == [0, 2]
    assert [(number, error.message) for number, error in attempts.failed] == [(1, "Broken.")]


async def test_concurrency_is_limited():
    running = most = 0

    async def work(_: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    attempts = await attempt_each(range(50), work, at_once=4)
    assert (len(attempts.done), most) == (50, 4)
