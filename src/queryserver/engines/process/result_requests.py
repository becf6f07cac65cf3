"""Handles calls of an engine process about stored results, with the rights of the calling session.

The process specifies operations and pieces; `StatementResults` decides whether its session may read them.
"""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from queryserver import errors
from queryserver.engines.process.channel import MOST_DESCRIPTORS, Content
from queryserver.engines.process.engine_process import Reply
from queryserver.engines.process.interruptible import InterruptibleCalls
from queryserver.engines.process.messages import columns_message
from queryserver.engines.process.result_calls import ResultMethod
from queryserver.engines.reach import OpenResult, StatementResults

_MOST_OPEN = 1000
"""Results that one statement may open."""
_MOST_BYTES = 256 * 1024 * 1024
"""Most bytes of one read call, which is more than a segment has."""

_Handler = Callable[[Mapping[str, Any]], Awaitable[Reply]]


class ResultRequests:
    """The result calls of one session, whose statements run one at a time. Call `close` at the end of each."""

    def __init__(self, results: StatementResults) -> None:
        self._results = results
        self._numbers = itertools.count(1)
        self._open = dict[int, tuple[OpenResult, AsyncExitStack]]()
        self._calls = InterruptibleCalls()
        self.warnings = list[str]()
        """Warnings about truncated results for the log of the statement."""
        self._handlers: Mapping[str, _Handler] = {
            ResultMethod.OPEN: self._open_result,
            ResultMethod.FILES: self._files,
            ResultMethod.READ: self._read,
            ResultMethod.CLOSE: self._close_result,
        }

    async def answer(self, method: str, arguments: Mapping[str, Any], content: Content) -> Reply:  # noqa: ARG002
        """Handle a call. Raises the errors of the Protocols, InvalidParameter, and Interrupted after `interrupt`."""
        if method not in self._handlers:
            raise errors.InvalidParameter("There is no such call.")
        if method == ResultMethod.CLOSE:  # allowed even while the statement is being stopped
            return await self._answered(method, arguments)
        return await self._calls.answered(self._answered(method, arguments))

    def interrupt(self) -> None:
        """Cancel the calls in progress."""
        self._calls.interrupt()

    async def close(self) -> None:
        """Close the results that an ended statement has left open. Idempotent."""
        self.interrupt()
        left, self._open = self._open, {}
        for _, stack in left.values():
            await stack.aclose()

    async def _answered(self, method: str, arguments: Mapping[str, Any]) -> Reply:
        try:
            return await self._handlers[method](arguments)
        except (KeyError, TypeError, ValueError, IndexError):
            raise errors.InvalidParameter("The call about a result is not complete.") from None

    async def _open_result(self, arguments: Mapping[str, Any]) -> Reply:
        operation_id = arguments["operation_id"]
        if not isinstance(operation_id, str):
            raise TypeError
        if len(self._open) >= _MOST_OPEN:
            raise errors.ResultRefused(f"A statement reads at most {_MOST_OPEN} results.")
        async with AsyncExitStack() as stack:
            opened = await stack.enter_async_context(self._results.open(operation_id))
            number = next(self._numbers)
            self._open[number] = opened, stack.pop_all()
        if opened.warning:
            self.warnings.append(f"result://{operation_id}: {opened.warning}")
        pieces = [[piece.rows, piece.size_bytes] for piece in opened.pieces]
        return Reply({"result": number, "columns": columns_message(opened.columns), "pieces": pieces})

    async def _files(self, arguments: Mapping[str, Any]) -> Reply:
        opened, _ = self._opened(arguments)
        first, count = int(arguments["first"]), min(int(arguments["count"]), MOST_DESCRIPTORS)
        numbers = range(len(opened.pieces))[first : first + count]
        opening = [asyncio.create_task(opened.descriptor(number), name="result file") for number in numbers]
        try:
            descriptors = await asyncio.gather(*opening)
        except BaseException:  # the process does not receive them
            for task in opening:
                task.cancel()
            for descriptor in await asyncio.gather(*opening, return_exceptions=True):
                if isinstance(descriptor, int):
                    os.close(descriptor)
            raise
        return Reply(descriptors=[descriptor for descriptor in descriptors if descriptor is not None])

    async def _read(self, arguments: Mapping[str, Any]) -> Reply:
        opened, _ = self._opened(arguments)
        piece, start, stop = (int(arguments[name]) for name in ("piece", "start", "stop"))
        if not (0 <= piece < len(opened.pieces) and 0 <= start <= stop <= start + _MOST_BYTES):
            raise ValueError
        return Reply(content=await opened.read(piece, start, stop))

    async def _close_result(self, arguments: Mapping[str, Any]) -> Reply:
        result = self._open.pop(int(arguments["result"]), None)
        if result is not None:
            await result[1].aclose()
        return Reply()

    def _opened(self, arguments: Mapping[str, Any]) -> tuple[OpenResult, AsyncExitStack]:
        return self._open[int(arguments["result"])]
