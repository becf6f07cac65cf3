"""Going through trees, and doing many things side by side."""

import asyncio

from tests.fakes.storage import MemoryStorage

from queryserver.errors.files import StorageError
from queryserver.files.model import EntryKind
from queryserver.files.transfer_steps import attempt_each, joined, walk


async def test_directories_come_before_what_they_hold_and_links_are_not_followed():
    storage = MemoryStorage()
    for path in ("t/a/b/x", "t/a/y", "t/z"):
        storage.tree.put(path, b"")
    storage.tree.make_entry("t/a/link", EntryKind.LINK)
    found = [path async for path, _ in walk(storage, await storage.stat("t"))]
    assert sorted(found) == ["", "a", "a/b", "a/b/x", "a/link", "a/y", "z"]
    assert all(found.index(path.rpartition("/")[0]) < found.index(path) for path in found if path)


async def test_a_file_is_a_tree_of_its_own():
    storage = MemoryStorage()
    storage.tree.put("f", b"content")
    assert [(path, status.size_bytes) async for path, status in walk(storage, await storage.stat("f"))] == [("", 7)]


def test_paths_are_joined_whichever_is_empty():
    assert [joined("", ""), joined("a", ""), joined("", "b"), joined("a", "b")] == ["", "a", "b", "a/b"]


async def test_after_a_failure_those_under_way_end_and_no_other_begins():
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


async def test_no_more_than_so_many_run_side_by_side():
    running = most = 0

    async def work(_: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    attempts = await attempt_each(range(50), work, at_once=4)
    assert (len(attempts.done), most) == (50, 4)
