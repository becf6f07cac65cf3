"""The operation that a call refers to, and the response for one without a result."""

from uuid import UUID

from fastapi import Response

from queryserver.api import responses
from queryserver.api.schemas.requests.editor import OperationRequest
from queryserver.api.v1.editor.shapes import details_of, failure_body
from queryserver.identity.model import User
from queryserver.statements.model import StatementStatus
from queryserver.statements.status import StatementAccess, StatementReader


async def operation_of(access: StatementAccess, user: User, request: OperationRequest) -> UUID:
    """By `operationId`, else by the handle's `guid`, else (cancel and close) by the notebook.

    Raises MissingParameter, OperationNotFound; the services check the owner.
    """
    operation_id, guid = (request.operation_id, None) if request.operation_id else request.named
    return await access.id_of(user, operation_id, guid)


async def failure_answer(reader: StatementReader, status: StatementStatus) -> Response:
    """HTTP 200: the call itself succeeded."""
    status = await reader.with_failure(status)
    return responses.json_response(failure_body(status, details_of(status)))
