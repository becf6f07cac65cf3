"""Steps that are not left half-way."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """The outcome of steps that go on when the caller is cancelled; the cancel is raised when they are done.

    Every call in `work` must have a time-out.
    """
    task, cancel = asyncio.create_task(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancel = error
    if cancel is not None and not task.cancelled():
        task.exception()
        raise cancel
    return task.result()
