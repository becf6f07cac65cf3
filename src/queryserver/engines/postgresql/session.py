"""One PostgreSQL session: a connection of the pool for as long as the session lasts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor

import pyarrow as pa

from queryserver.domain.errors import OutcomeUnknown, SessionLost
from queryserver.domain.result import Column
from queryserver.engines.postgresql.operation import Operation
from queryserver.engines.postgresql.wire import Connection
from queryserver.interfaces.engine import OperationHandle, OperationStatus


class PostgresqlSession:
    """An EngineSession. It knows its last statement only: one runs at a time."""

    def __init__(
        self, connection: Connection, *, interrupt: Callable[[int], Awaitable[None]], executor: Executor
    ) -> None:
        self._connection = connection
        self._interrupt = interrupt
        self._executor = executor
        self._count = 0
        self._operation: Operation | None = None
        self._in_doubt = False
        self._left = False

    @property
    def is_reusable(self) -> bool:
        """Whether another session may have the connection."""
        return not self._in_doubt and not self._connection.is_closed()

    async def submit(self, statement: str) -> OperationHandle:
        """Start a statement; what is left of the one before is freed."""
        await self._close_operation()
        if not await self.is_alive():
            raise SessionLost("The PostgreSQL session is gone; the statement was not started.")
        self._count += 1
        self._operation = Operation(self._connection, statement, interrupt=self._interrupt, executor=self._executor)
        return OperationHandle(str(self._count))

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        return await self._find(handle).status(wait_s)

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        return self._find(handle).columns

    def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        return self._find(handle).batches()

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        return self._find(handle).log_lines[start:]

    async def cancel(self, handle: OperationHandle) -> None:
        if handle.token == str(self._count) and self._operation is not None:
            await self._operation.cancel()

    async def close(self, handle: OperationHandle) -> None:
        if handle.token == str(self._count):
            await self._close_operation()

    async def is_alive(self) -> bool:
        is_free = self._operation is None or not self._operation.is_running
        return is_free and not self._left and not self._connection.is_closed()

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
            raise OutcomeUnknown("PostgreSQL no longer knows this statement.")
        return self._operation
