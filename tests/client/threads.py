"""Runs tests of the blocking clients in a thread, because the server runs in the event loop of the tests."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any


def in_thread(test: Callable[..., None]) -> Callable[..., Awaitable[None]]:
    """Decorate a blocking test, so that it runs in a thread."""

    @wraps(test)
    async def run(*case: Any, **fixtures: Any) -> None:
        await asyncio.to_thread(test, *case, **fixtures)

    return run
