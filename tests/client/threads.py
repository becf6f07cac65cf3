"""Tests of the blocking faces: the server answers in the event loop of the tests, so they run in a thread."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any


def in_thread(test: Callable[..., None]) -> Callable[..., Awaitable[None]]:
    """The same test, run in a thread."""

    @wraps(test)
    async def run(*case: Any, **fixtures: Any) -> None:
        await asyncio.to_thread(test, *case, **fixtures)

    return run
