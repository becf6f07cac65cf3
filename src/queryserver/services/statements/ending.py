"""Stopping statements and closing results (Contract editor 7.2, 7.3)."""

from datetime import timedelta
from uuid import UUID

from queryserver.db.statements.records import StatementRecords
from queryserver.domain.statement import StatementState, StatementStatus
from queryserver.domain.user import User
from queryserver.interfaces.tasks import StatementQueue
from queryserver.services.signals import StateSignals
from queryserver.services.statements.access import Access
from queryserver.services.statements.following import Following


class Ending:
    """Cancel and close. Both may be repeated."""

    def __init__(
        self,
        *,
        records: StatementRecords,
        access: Access,
        following: Following,
        queue: StatementQueue,
        signals: StateSignals,
        cancel_wait: timedelta,
    ) -> None:
        self._records = records
        self._access = access
        self._following = following
        self._queue = queue
        self._signals = signals
        self._cancel_wait_s = cancel_wait.total_seconds()

    async def cancel(self, user: User, operation_id: UUID) -> StatementStatus:
        """Stop a statement and wait a while for the engine's confirmation; no effect in a terminal state.

        Raises OperationNotFound.
        """
        status = await self._access.end(user, operation_id)
        if status.state.is_terminal:
            return status
        return await self.stop(status, by=user.username)

    async def stop(self, status: StatementStatus, *, by: str) -> StatementStatus:
        """The same, for a statement that the caller may stop."""
        asked = await self._records.request_cancel(status.id, by=by) or status
        await self._queue.cancel(asked.id, owner=asked.owner)
        self._signals.notify(asked.id)
        if asked.state.is_terminal:
            return asked
        return await self._following.settled(asked, self._cancel_wait_s)

    async def close(self, user: User, operation_id: UUID) -> StatementState:
        """Delete the result now, or stop the statement. Answers the state before.

        Raises OperationNotFound.
        """
        status = await self._access.end(user, operation_id)
        if not status.state.is_terminal:
            settled = await self.stop(status, by=user.username)
            if settled.state is not StatementState.AVAILABLE:
                return status.state
        if status.state is StatementState.AVAILABLE or not status.state.is_terminal:
            await self._records.close_result(operation_id)
            self._signals.notify(operation_id)
        return status.state
