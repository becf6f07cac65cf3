"""Support for tests of the blocking clients, which run in a thread because the server runs in the tests' event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any


def in_thread(test: Callable[..., None]) -> Callable[..., Awaitable[None]]:
    """Make a blocking test run in a thread."""

    @wraps(test)
    async def run(*case: Any, **fixtures: Any) -> None:
        await asyncio.to_thread(test, *case, **fixtures)

    return run
