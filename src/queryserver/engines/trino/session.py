"""An engine session at Trino: its state lives here and goes along with every request."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pyarrow as pa

from queryserver.domain.errors.statements import EngineError, OutcomeUnknown, SessionLost
from queryserver.domain.result import Column
from queryserver.engines.trino.client_state import NO_TRANSACTION
from queryserver.engines.trino.coordinator import Coordinator
from queryserver.engines.trino.operation import TrinoOperation
from queryserver.interfaces.engine import OperationHandle, OperationStatus


class TrinoSession:
    """An EngineSession and a ResumableSession. It knows its last statement only, because one runs at a time."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._operation: TrinoOperation | None = None
        self._handle: OperationHandle | None = None
        self._left = False
        self._detached = False

    async def submit(self, statement: str) -> OperationHandle:
        """Start a statement; what is left of the one before is freed."""
        await self._close_operation()
        if not await self.is_alive():
            raise SessionLost("The session is gone; the statement was not started.")
        return self.follow(TrinoOperation(self._coordinator, await self._coordinator.start(statement)))

    def follow(self, operation: TrinoOperation) -> OperationHandle:
        """Make `operation` the statement of the session."""
        self._operation = operation
        self._handle = OperationHandle(self._token(operation))
        return self._handle

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
        """The id of the query at Trino, and Trino's warnings."""
        return self._find(handle).log_lines[start:]

    async def cancel(self, handle: OperationHandle) -> None:
        """Stop the statement at Trino. A handle of an earlier statement is harmless."""
        if self._operation is not None and handle == self._handle:
            await self._operation.cancel()

    async def close(self, handle: OperationHandle) -> None:
        """Free what Trino holds for the statement. A handle of an earlier statement is harmless."""
        if handle == self._handle:
            await self._close_operation()

    async def is_alive(self) -> bool:
        """Whether the session can take another statement."""
        is_free = self._operation is None or not self._operation.is_running
        return is_free and not self._left and not self._coordinator.http.is_closed

    def resume_token(self, handle: OperationHandle) -> str:
        """JSON: position and state of the session, as `read_token` wants it."""
        return self._token(self._find(handle))

    def detach(self) -> None:
        """From now on nothing is stopped at Trino when the session is left."""
        self._detached = True

    async def leave(self) -> None:
        """Stop and free everything. Limited in time."""
        self._left = True
        await self._close_operation()
        state = self._coordinator.state
        if state.transaction != NO_TRANSACTION and not self._detached:
            # Trino would keep the transaction, and its locks at the data source, for minutes.
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(self._coordinator.address.patience.stop_s):
                    await self._coordinator.finish("ROLLBACK")

    async def _close_operation(self) -> None:
        if self._operation is not None:
            await self._operation.close(stop=not self._detached)

    def _token(self, operation: TrinoOperation) -> str:
        return json.dumps({**operation.position(), "session": self._coordinator.state.as_json()})

    def _find(self, handle: OperationHandle) -> TrinoOperation:
        if self._operation is None or handle != self._handle:
            raise OutcomeUnknown("The engine no longer knows this statement.")
        return self._operation
