"""An engine session over one connection whose statements stream their rows."""

from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor

import pyarrow as pa

from queryserver.domain.errors.statements import OutcomeUnknown, SessionLost
from queryserver.domain.result import Column
from queryserver.engines.streamed_operation import Operation, StatementSource
from queryserver.interfaces.engine import OperationHandle, OperationStatus


class StreamedSession:
    """An EngineSession. It knows its last statement only, because one runs at a time.

    `is_connected` tells whether the connection is still there; `executor` turns rows into Arrow.
    """

    def __init__(
        self,
        new_source: Callable[[str], StatementSource],
        *,
        is_connected: Callable[[], bool],
        executor: Executor,
    ) -> None:
        self._new_source = new_source
        self._is_connected = is_connected
        self._executor = executor
        self._count = 0
        self._operation: Operation | None = None
        self._in_doubt = False
        self._left = False

    @property
    def is_reusable(self) -> bool:
        """Whether another session may have the connection."""
        return not self._in_doubt and self._is_connected()

    async def submit(self, statement: str) -> OperationHandle:
        """Start a statement; what is left of the one before is freed."""
        await self._close_operation()
        if not await self.is_alive():
            raise SessionLost("The session is gone; the statement was not started.")
        self._count += 1
        self._operation = Operation(self._new_source(statement), self._executor)
        return OperationHandle(str(self._count))

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        """The present status; waits up to `wait_s` for a terminal one."""
        return await self._find(handle).status(wait_s)

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        """Columns of the result, in order."""
        return self._find(handle).columns

    def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        """The rows, read once."""
        return self._find(handle).batches()

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        """What the server told, from line `start` on."""
        return self._find(handle).log_lines[start:]

    async def cancel(self, handle: OperationHandle) -> None:
        """Stop the statement at the server. A handle of an earlier statement is harmless."""
        if handle.token == str(self._count) and self._operation is not None:
            await self._operation.cancel()

    async def close(self, handle: OperationHandle) -> None:
        """Free what the server holds for the statement. A handle of an earlier statement is harmless."""
        if handle.token == str(self._count):
            await self._close_operation()

    async def is_alive(self) -> bool:
        """Whether the session can take another statement."""
        is_free = self._operation is None or not self._operation.is_running
        return is_free and not self._left and self._is_connected()

    async def leave(self) -> None:
        """Stop and free everything; the connection is somebody else's from now on. Limited in time."""
        self._left = True
        await self._close_operation()

    async def _close_operation(self) -> None:
        if self._operation is not None:
            await self._operation.close()
            self._in_doubt = self._in_doubt or self._operation.in_doubt

    def _find(self, handle: OperationHandle) -> Operation:
        if self._operation is None or handle.token != str(self._count):
            raise OutcomeUnknown("The engine no longer knows this statement.")
        return self._operation
