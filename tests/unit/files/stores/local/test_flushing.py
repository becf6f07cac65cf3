"""Files that reach the disk while they arrive."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from threading import Event

import pytest

from queryserver.errors.files import StorageUnavailable
from queryserver.files.stores.local.storage import FileThreads, Flushing
from queryserver.files.stores.local.transfers import LocalUpload
from queryserver.files.stores.local.tree import LocalTree

_PATIENCE_S = 10


async def _pieces(count: int) -> AsyncGenerator[bytes]:
    for number in range(count):
        yield b"%010d" % number


async def test_each_share_of_a_body_is_flushed_and_all_bytes_pass() -> None:
    flushed = list[int]()
    threads = FileThreads(max_threads=1, timeout_s=_PATIENCE_S)
    try:
        flushing = Flushing(threads, lambda: flushed.append(1), size_bytes=30)
        passed = [piece async for piece in flushing.while_written(_pieces(10))]
    finally:
        await threads.close()
    assert passed == [piece async for piece in _pieces(10)]
    assert len(flushed) == 3


async def test_pieces_go_on_while_a_share_is_flushed_but_not_past_the_next_one() -> None:
    may_end, begun = Event(), list[int]()

    def flush() -> None:
        begun.append(len(taken))
        may_end.wait(_PATIENCE_S)

    taken = list[bytes]()
    threads = FileThreads(max_threads=1, timeout_s=_PATIENCE_S)
    try:
        flushing = Flushing(threads, flush, size_bytes=20)
        async with aclosing(flushing.while_written(_pieces(100))) as pieces:
            taken += [await anext(pieces) for _ in range(4)]
            fifth = asyncio.ensure_future(anext(pieces))
            done, _ = await asyncio.wait({fifth}, timeout=0.2)
            assert not done
            assert len(begun) == 1
            may_end.set()
            assert await fifth == b"%010d" % 4
    finally:
        may_end.set()
        await threads.close()


async def test_a_disk_that_fails_ends_the_body() -> None:
    def flush() -> None:
        raise StorageUnavailable("The device of the store fails.")

    threads = FileThreads(max_threads=1, timeout_s=_PATIENCE_S)
    try:
        with pytest.raises(StorageUnavailable):
            async for _ in Flushing(threads, flush, size_bytes=10).while_written(_pieces(2)):
                pass
    finally:
        await threads.close()


async def test_a_disk_that_does_not_answer_ends_the_body() -> None:
    may_end = Event()

    def flush() -> None:
        may_end.wait(_PATIENCE_S)

    threads = FileThreads(max_threads=1, timeout_s=0.2)
    try:
        with pytest.raises(StorageUnavailable):
            async for _ in Flushing(threads, flush, size_bytes=10).while_written(_pieces(2)):
                pass
    finally:
        may_end.set()
        await threads.close()


async def test_who_stands_behind_the_flushes_of_others_waits_as_long_as_they_go_on() -> None:
    flush_s, together = 0.3, 5

    async def drained() -> int:
        passed = Flushing(threads, lambda: time.sleep(flush_s), size_bytes=10).while_written(_pieces(1))
        return len([piece async for piece in passed])

    threads = FileThreads(max_threads=1, timeout_s=1)
    try:
        assert await asyncio.gather(*[drained() for _ in range(together)]) == [1] * together
    finally:
        await threads.close()


def test_an_upload_can_be_flushed_before_during_and_after(tmp_path: Path) -> None:
    upload = LocalUpload(LocalTree(tmp_path), "file", overwrite=False)
    upload.flush()
    upload.open()
    upload.write(b"abc")
    upload.flush()
    upload.write(b"def")
    upload.commit()
    upload.flush()
    assert (tmp_path / "file").read_bytes() == b"abcdef"
