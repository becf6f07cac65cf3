"""Waiting for the end of a statement that this service sends on its own account."""

from queryserver.domain.errors.statements import StatementRejected
from queryserver.interfaces.engine import EngineSession, OperationHandle, OperationState, OperationStatus

_POLL_S = 1.0


async def ended(session: EngineSession, handle: OperationHandle) -> OperationStatus:
    """The status at the end. Raises the statement's failure, StatementRejected when it was stopped at the engine."""
    status = await session.poll(handle, wait_s=_POLL_S)
    while not status.state.is_terminal:
        status = await session.poll(handle, wait_s=_POLL_S)
    if status.error is not None:
        raise status.error
    if status.state is OperationState.CANCELED:
        raise StatementRejected("The statement was canceled at the engine.")
    return status
