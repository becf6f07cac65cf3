"""Listings of large directories: memory stays flat, and the loop stays free (Contract storage 5.2, S10)."""

import asyncio
import time
import tracemalloc
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.contract.storage_basis import names
from tests.refusals import raises_code

from queryserver.files.stores.local import deleting as summing

ENTRIES = 10_000


@pytest.fixture
async def large(root: Path) -> Path:
    def fill() -> None:
        large = root / "shared"
        large.mkdir()
        first = large / "0"
        first.touch()
        for number in range(1, ENTRIES):
            (large / f"{number}").hardlink_to(first)

    await asyncio.to_thread(fill)
    return root / "shared"


@pytest.mark.security("S10")
async def test_one_batch_at_a_time_is_held(alice, large):
    seen, largest = 0, 0
    tracemalloc.start()
    try:
        async with aclosing(alice.list_directory("shared", batch_size=250)) as listing:
            async for batch in listing:
                largest = max(largest, len(batch.entries))
                seen += len(batch.entries)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (seen, largest) == (ENTRIES, 250)
    assert peak < 2_000_000, "all entries at a time are above 5 MB"


@pytest.mark.security("S10")
async def test_the_loop_stays_free_while_a_large_directory_is_listed(alice, large):
    worst, ended = 0.0, asyncio.Event()

    async def watch() -> None:
        nonlocal worst
        while not ended.is_set():
            begun = time.monotonic()
            await asyncio.sleep(0.001)
            worst = max(worst, time.monotonic() - begun)

    watching = asyncio.create_task(watch())
    assert len(await names(alice, "shared")) == ENTRIES
    ended.set()
    await watching
    assert worst < 1, "a listing in the loop takes longer, and a busy machine is forgiven"


async def test_a_listing_goes_on_although_entries_come_and_go(alice, large):
    """What was there all the time is told once."""
    seen, cursor = [], None
    for _ in range(10):
        async with aclosing(alice.list_directory("shared", cursor=cursor, batch_size=100)) as listing:
            batch = await anext(listing)
        seen += [entry.name for entry in batch.entries]
        cursor = batch.cursor
        for name in seen[-100:-90]:
            await alice.delete(f"shared/{name}", recursive=False)
    assert len(seen) == len(set(seen)) == 1000


async def test_a_listing_goes_on_by_number_when_its_last_entry_is_gone(alice, large):
    async with aclosing(alice.list_directory("shared", batch_size=100)) as listing:
        first = await anext(listing)
    await alice.delete(f"shared/{first.entries[-1].name}", recursive=False)
    rest = [e.name async for b in alice.list_directory("shared", cursor=first.cursor) for e in b.entries]
    assert len(set(rest)) == len(rest) == ENTRIES - 100
    assert not {entry.name for entry in first.entries[:-1]} & set(rest)


@pytest.mark.storage(80)
async def test_a_summary_of_too_many_entries_is_refused(alice, large, monkeypatch):
    monkeypatch.setattr(summing, "_MAX_ENTRIES", ENTRIES)
    assert (await alice.content_summary("shared")).file_count == ENTRIES
    (large / "one more").touch()
    with raises_code("too_many_entries", match=str(ENTRIES)):
        await alice.content_summary("shared")
