"""Export of stored results into files and tables (Contract exports)."""

from typing import Annotated

from fastapi import Request, Response

from queryserver.api.dependencies import ExportsDep, QueryUser, RecipientsDep, StatementAccessDep, editor_fields
from queryserver.api.responses import json_response
from queryserver.api.routes import editor_group, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import exports as requests
from queryserver.api.v1.editor.status import requested_operation_id
from queryserver.exports.submission import ExportRequest

router = editor_group()


@router.post(
    "/api/v1/editor/export_result",
    status_code=202,
    response_model=wire.ExportResponse,
    responses=failures(403, 404, 409, 410),
)
async def export_result(
    http: Request,
    user: QueryUser,
    request: Annotated[requests.ExportRequest, editor_fields(requests.ExportRequest)],
    access: StatementAccessDep,
    exports: ExportsDep,
    recipients: RecipientsDep,
) -> Response:
    """Start to write a result into files of a store, or into a table. The result may still be in the making.

    The response is sent once the export is recorded, and check_status reports its end. The files, or the rows of the
    table, appear whole or not at all. Contract exports 2.
    """
    operation_id = await requested_operation_id(access, user, request)
    await access.result_record(
        user, operation_id
    )  # an unknown operation has the same answer, whatever the other fields
    destination = exports.target(user, request.requested())
    if request.notify is not None:
        await recipients.require_url(request.notify.url, "notify.url")
    recorded = await exports.submissions.submit(
        user,
        ExportRequest(
            operation_id,
            destination,
            statement_id=request.statement_id,
            allow_truncated=request.allow_truncated,
            idempotency_key=request.idempotency_key(http.headers.get("idempotency-key")),
            notify_url=request.notify.url if request.notify else None,
        ),
    )
    status = recorded.record.status
    return json_response(
        wire.ExportResponse(
            status=0,
            history_uuid=str(status.id),
            history_id=status.history_id,
            path=destination.path if request.table is None else None,
            table=None if request.table is None else destination.path,
        ),
        status=202,
        headers={"Idempotency-Replayed": "true"} if recorded.is_replay else {},
    )
