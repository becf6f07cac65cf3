"""Calls of an engine process that are cancelled when their statement is stopped."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from queryserver.engines.process.engine_process import Reply
from queryserver.engines.threaded import Interrupted


class InterruptibleCalls:
    """The calls in progress of one session."""

    def __init__(self) -> None:
        self._work = set[asyncio.Task[Reply]]()

    async def answered(self, work: Coroutine[Any, Any, Reply]) -> Reply:
        """Run `work` and return its reply. Raises what it raises, and Interrupted after `interrupt`."""
        task = asyncio.create_task(work, name="call of an engine process")
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        if task.cancelled():
            raise Interrupted
        return task.result()

    def interrupt(self) -> None:
        """Cancel the calls, so that an unresponsive store does not delay the end of a statement."""
        for work in self._work:
            work.cancel()
