"""The log of one operation."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from queryserver.domain.errors.statements import EngineError
from queryserver.engines.hiveserver2.errors import Purpose, call_errors, check
from queryserver.engines.hiveserver2.fetching import log_lines
from queryserver.engines.hiveserver2.protocol.calls import TOperationReq
from queryserver.engines.hiveserver2.protocol.methods import GET_LOG
from queryserver.engines.hiveserver2.protocol.status import TOperationHandle
from queryserver.engines.hiveserver2.redaction import LONGEST_LINE, LogFilter
from queryserver.engines.hiveserver2.wire import Wire
from queryserver.engines.streamed_operation import MAX_LOG_LINES

_MOST_CHARACTERS = 8 * 1024 * 1024
_AT_ONCE = 32 * 1024
"""Characters that are filtered in one step, or one line: it holds the event loop for some 20 ms."""


class OperationLog:
    """Lines read so far, clean. `by_rpc`: the server gives the whole log each time, otherwise what has come since.

    At most MAX_LOG_LINES lines, and lines of 8 MiB of characters, are kept: the first ones.
    """

    def __init__(self, wire: Wire, handle: TOperationHandle, *, by_rpc: bool) -> None:
        self._wire = wire
        self._handle = handle
        self._by_rpc = by_rpc
        self._reading = asyncio.Lock()
        self._is_first = True
        """The server's place in the log is not known: the whole log is read."""
        self._filter = LogFilter()
        self._characters = 0
        self._is_full = False
        self._whole = (0, 0)
        """Length and hash of the whole log that was read last."""
        self.lines: list[str] = []

    async def read(self) -> None:
        """Add what has come. A log that cannot be read now stays as it is: it is not worth a failure."""
        async with self._reading:
            if self._is_full:
                return
            with suppress(EngineError):
                await (self._read_whole() if self._by_rpc else self._read_on())

    async def _read_whole(self) -> None:
        with call_errors(Purpose.FOLLOW):
            request = TOperationReq(operation_handle=self._handle)
            reply = await self._wire.call(GET_LOG, request, limit_s=self._wire.limits.other_s)
            check(reply.status)
        text = reply.log or ""
        if (whole := (len(text), hash(text))) != self._whole:
            await self._take(text.splitlines(), is_whole=True)
            self._whole = whole

    async def _read_on(self) -> None:
        """Add what has come since. An answer that is lost takes its lines with it: the next time all are read again."""
        is_whole, self._is_first = self._is_first, True
        lines = await log_lines(self._wire, self._handle, first=is_whole)
        await self._take(lines, is_whole=is_whole)
        self._is_first = False

    async def _take(self, lines: Sequence[str], *, is_whole: bool) -> None:
        if is_whole:
            self._filter, self._characters = LogFilter(), 0
        kept = [] if is_whole else self.lines
        filtered, is_full = 0, False
        for line in lines:
            if is_full := len(kept) >= MAX_LOG_LINES or self._characters >= _MOST_CHARACTERS:
                break
            for clean in self._filter.lines([line]):
                kept.append(clean)
                self._characters += len(clean)
            filtered += min(len(line), LONGEST_LINE)
            if filtered >= _AT_ONCE:
                filtered = 0
                await asyncio.sleep(0)
        self.lines, self._is_full = kept, is_full
