"""Noticing that nothing comes, without asking ahead."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from queryserver.statements.spool import with_pauses


class Source:
    """Gives numbers, the later ones after `delay_s`; counts how often it was asked."""

    def __init__(self, numbers: int, delay_s: float = 0, *, fail: bool = False) -> None:
        self.numbers, self.delay_s, self.fail = numbers, delay_s, fail
        self.asked, self.closed = 0, False

    async def items(self) -> AsyncIterator[int]:
        try:
            for number in range(self.numbers):
                self.asked += 1
                if number:
                    await asyncio.sleep(self.delay_s)
                yield number
            if self.fail:
                raise OSError("lost")
        finally:
            self.closed = True


async def test_items_pass_in_order() -> None:
    assert [item async for item in with_pauses(Source(5).items(), pause_s=1)] == [0, 1, 2, 3, 4]


async def test_a_pause_shows_as_none_and_nothing_is_lost() -> None:
    seen = [item async for item in with_pauses(Source(2, 0.25).items(), pause_s=0.1)]
    assert [item for item in seen if item is not None] == [0, 1]
    assert seen.count(None) >= 1


async def test_nothing_is_asked_for_before_the_last_item_was_used() -> None:
    source = Source(5)
    async with aclosing(with_pauses(source.items(), pause_s=1)) as items:
        async for _ in items:
            await asyncio.sleep(0.01)
            break
    assert source.asked == 1
    assert source.closed


async def test_a_failure_of_the_source_arrives() -> None:
    with pytest.raises(OSError, match="lost"):
        _ = [item async for item in with_pauses(Source(1, fail=True).items(), pause_s=1)]


async def test_leaving_in_a_pause_ends_the_source() -> None:
    source = Source(2, 30)
    async with aclosing(with_pauses(source.items(), pause_s=0.05)) as items:
        async for item in items:
            if item is None:
                break
    assert source.closed
