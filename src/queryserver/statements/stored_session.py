"""Reads the rows of a statement from the stored result of another operation, so that the engine is not asked again."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import pyarrow as pa

from queryserver import errors
from queryserver.engines.protocol import NO_CONTEXT, OperationHandle, OperationState, OperationStatus, StatementContext
from queryserver.errors.statements import EngineError
from queryserver.formats.arrow import Column
from queryserver.sql.markers import BoundStatement
from queryserver.statements.external_access import SourcedResult
from queryserver.statements.states import TruncationReason


@dataclass(slots=True)
class StoredSession:
    """Implements `engines.protocol.EngineSession` for the rows of one stored result, which the caller keeps open."""

    source: SourcedResult
    truncated_reason: TruncationReason | None = None
    """The limit that truncated the stored result, if any."""
    _is_canceled: bool = field(default=False, init=False)

    async def submit(self, statement: str | BoundStatement, context: StatementContext = NO_CONTEXT) -> OperationHandle:
        """Begin to read the rows. `statement` is ignored, because its rows are known."""
        del statement, context
        return OperationHandle("stored")

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        del handle, wait_s
        if self._is_canceled:
            return OperationStatus(OperationState.CANCELED)
        return OperationStatus(OperationState.FINISHED, has_result_set=True)

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        del handle
        return self.source.columns

    async def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        """Yield the rows as stored. The schema may differ between pieces of the result (Contract editor 6.3)."""
        del handle
        try:
            async with aclosing(self.source.tables()) as tables:
                async for table in tables:
                    for batch in table.to_batches():
                        if self._is_canceled:
                            return
                        yield batch
        except (errors.ServiceUnavailable, errors.TooManyRequests) as error:
            raise EngineError(error.message) from error

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        del handle, start
        return ()

    async def cancel(self, handle: OperationHandle) -> None:
        del handle
        self._is_canceled = True

    async def close(self, handle: OperationHandle) -> None:
        """Do nothing, because the result is released when the session's context ends."""
        del handle

    async def is_alive(self) -> bool:
        """Return False. A session reads one result, so it cannot be reused."""
        return False
