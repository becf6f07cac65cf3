"""One session at a HiveServer2 as an EngineSession."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pyarrow as pa

from queryserver.domain.errors.statements import OutcomeUnknown, SessionLost, StatementRejected
from queryserver.domain.result import Column
from queryserver.engines.hiveserver2.address import Member
from queryserver.engines.hiveserver2.connection import Connection
from queryserver.engines.hiveserver2.errors import CALL_FAILURES, EXPIRED, Purpose, call_errors, check
from queryserver.engines.hiveserver2.operation import Operation
from queryserver.engines.hiveserver2.protocol.calls import TCloseSessionReq, TExecuteStatementReq
from queryserver.engines.hiveserver2.protocol.methods import CLOSE_SESSION, EXECUTE_STATEMENT
from queryserver.engines.hiveserver2.protocol.status import TOperationHandle, TSessionHandle, TStatusCode
from queryserver.engines.hiveserver2.resuming import Mark
from queryserver.engines.hiveserver2.variants import Variant
from queryserver.engines.hiveserver2.wire import Wire
from queryserver.interfaces.engine import OperationHandle, OperationStatus


class Hs2Session:
    """An EngineSession and ResumableSession. It knows its last statement only, because one runs at a time."""

    def __init__(self, wire: Wire, handle: TSessionHandle, member: Member, variant: Variant) -> None:
        self._wire = wire
        self._handle = handle
        self._member = member
        self._variant = variant
        self._token = ""
        self._operation: Operation | None = None
        self._lost = False
        self._left = False
        self.is_detached = False
        self.is_left_open = False
        """The session was left, but the server could not be reached to close it."""

    async def submit(self, statement: str) -> OperationHandle:
        """Start a statement; what is left of the one before is freed."""
        await self._close_operation()
        if not await self.is_alive():
            raise SessionLost("The engine session is gone; the statement was not started.")
        handle = await self._execute(statement)
        return self.adopt(handle, rows_read=None)

    def adopt(self, handle: TOperationHandle, *, rows_read: int | None) -> OperationHandle:
        """Follow an operation of this session; `rows_read`: rows that another process has read."""
        self._operation = Operation(self._wire, self._handle, handle, self._variant, rows_read=rows_read)
        self._token = Mark(self._member, self._handle, handle).to_text()
        return OperationHandle(self._token)

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        """The last known status; waits up to `wait_s` for a terminal one."""
        return await self._find(handle).status(wait_s)

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        """Columns of the result, in order."""
        return self._find(handle).columns

    def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        """The rows, read once."""
        return self._find(handle).batches()

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        """The engine's log from line `start` on."""
        return await self._find(handle).logs(start)

    async def cancel(self, handle: OperationHandle) -> None:
        """Stop the statement at the engine. A handle of an earlier statement is harmless."""
        if self._operation is not None and handle.token == self._token:
            await self._operation.cancel()

    async def close(self, handle: OperationHandle) -> None:
        """Free what the engine holds for the statement. A handle of an earlier statement is harmless."""
        if handle.token == self._token:
            await self._close_operation()

    async def is_alive(self) -> bool:
        """Whether the session can take another statement."""
        is_free = self._operation is None or not self._operation.is_running
        return is_free and not self._left and not self._lost and self._wire.is_connected

    def resume_token(self, handle: OperationHandle) -> str:
        """The handle's own token: the server counts no rows for us."""
        return handle.token

    def detach(self) -> None:
        """Leave session and operation to the server from now on."""
        self.is_detached = True

    async def leave(self) -> bool:
        """End the session at the server unless it is detached; True when its connections can serve another one."""
        self._left = True
        if self.is_detached:
            if self._operation is not None:
                await self._operation.leave()
            return False
        await self._close_operation()
        return await self._close_session()

    async def close_over(self, connection: Connection) -> None:
        """Close the session, and what runs in it, over another connection. Raises as Connection.call."""
        request = TCloseSessionReq(session_handle=self._handle)
        await connection.call(CLOSE_SESSION, request, limit_s=self._wire.limits.end_s)

    async def _execute(self, statement: str) -> TOperationHandle:
        request = TExecuteStatementReq(
            session_handle=self._handle,
            statement=statement,
            conf_overlay=dict(self._variant.conf_overlay) if self._variant.conf_overlay else None,
            run_async=True,
        )
        try:
            with call_errors(Purpose.SUBMIT):
                reply = await self._wire.call_opener(EXECUTE_STATEMENT, request, limit_s=self._wire.limits.execute_s)
                check(reply.status)
        except SessionLost:
            self._lost = True
            raise
        if reply.operation_handle is None:
            raise StatementRejected("The engine accepted the statement without a handle for it.")
        return reply.operation_handle

    async def _close_operation(self) -> None:
        if self._operation is not None:
            await self._operation.close()

    async def _close_session(self) -> bool:
        """Over another connection where its own is lost or held: Hive's sessions outlive theirs."""
        request = TCloseSessionReq(session_handle=self._handle)
        for call in (self._wire.call_opener, self._wire.call):
            with suppress(*CALL_FAILURES):
                reply = await call(CLOSE_SESSION, request, limit_s=self._wire.limits.end_s)
                return reply.status.status_code == TStatusCode.SUCCESS
        self.is_left_open = True
        return False

    def _find(self, handle: OperationHandle) -> Operation:
        if self._operation is None or handle.token != self._token:
            raise OutcomeUnknown(EXPIRED)
        return self._operation
