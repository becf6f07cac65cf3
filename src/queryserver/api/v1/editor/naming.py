"""Which operation a call means (Contract editor 2.4)."""

from uuid import UUID

from queryserver.api.dependencies import Call
from queryserver.schemas.requests import EndRequest, OperationRequest


async def operation_of(call: Call, asked: OperationRequest) -> UUID:
    """By `operationId`, else by the handle's `guid`, else (cancel and close) by the notebook.

    Raises OperationNotFound for what names nothing; whose it is, is checked by the services.
    """
    named = asked.operation_id
    if isinstance(asked, EndRequest) and asked.notebook_uuid:
        named = asked.notebook_uuid
    return await call.services.access.id_of(call.user, named, asked.guid)
