"""Noticing that nothing comes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

Item = TypeVar("Item")


async def with_pauses(items: AsyncIterator[Item], *, pause_s: float) -> AsyncGenerator[Item | None]:
    """The items as they come, and None whenever none came for `pause_s`. Closes its source at the end."""
    coming: asyncio.Task[Item] | None = None
    try:
        while True:
            # Nothing is asked for ahead: who stops here must not have to break off a fetch.
            coming = coming or asyncio.create_task(_next(items))
            await asyncio.wait({coming}, timeout=pause_s)
            if not coming.done():
                yield None
                continue
            try:
                item = coming.result()
            except StopAsyncIteration:
                return
            coming = None
            yield item
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        if isinstance(items, AsyncGenerator):
            await items.aclose()


async def _next(items: AsyncIterator[Item]) -> Item:
    return await anext(items)
