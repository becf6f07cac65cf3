"""The log of one operation."""

import asyncio
from contextlib import suppress

from queryserver.domain.errors import EngineError
from queryserver.engines.hiveserver2.errors import Purpose, call_errors, check
from queryserver.engines.hiveserver2.fetching import log_lines
from queryserver.engines.hiveserver2.protocol.calls import TOperationReq
from queryserver.engines.hiveserver2.protocol.methods import GET_LOG
from queryserver.engines.hiveserver2.protocol.status import TOperationHandle
from queryserver.engines.hiveserver2.wire import Wire
from queryserver.engines.streamed_operation import MAX_LOG_LINES


class OperationLog:
    """Lines read so far. `by_rpc`: the server gives the whole log each time, otherwise what has come since."""

    def __init__(self, wire: Wire, handle: TOperationHandle, *, by_rpc: bool) -> None:
        self._wire = wire
        self._handle = handle
        self._by_rpc = by_rpc
        self._reading = asyncio.Lock()
        self._is_first = True
        self.lines: list[str] = []

    async def read(self) -> None:
        """Add what has come. A log that cannot be read now stays as it is: it is not worth a failure."""
        async with self._reading:
            with suppress(EngineError):
                if self._by_rpc:
                    self.lines = await self._whole()
                else:
                    self.lines += await log_lines(self._wire, self._handle, first=self._is_first)
                    self._is_first = False
                del self.lines[MAX_LOG_LINES:]

    async def _whole(self) -> list[str]:
        with call_errors(Purpose.FOLLOW):
            request = TOperationReq(operation_handle=self._handle)
            reply = await self._wire.call(GET_LOG, request, limit_s=self._wire.limits.other_s)
            check(reply.status)
        return (reply.log or "").splitlines()
