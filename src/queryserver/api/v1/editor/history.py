"""get_history."""

from fastapi import APIRouter, Response

from queryserver.api.answers import answer, failures, milliseconds
from queryserver.api.dependencies import AuthenticatedCall, CallRoute
from queryserver.api.v1.editor import shapes
from queryserver.domain.statement import HistoryEntry
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import HistoryParameters, query_parameters
from queryserver.services.statements.status import HistoryQuestion

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)


@router.get(
    "/editor/get_history",
    response_model=wire.HistoryResponse,
    responses=failures(400),
    openapi_extra={"parameters": query_parameters(HistoryParameters)},
    summary="Statements of the caller",
)
async def get_history(call: AuthenticatedCall) -> Response:
    """The caller's own operations, newest first. Spec §4, Contract editor 11."""
    asked = await call.read(HistoryParameters)
    count, entries = 0, []
    if not asked.is_notification_manager:
        count, entries = await call.services.history.page(
            call.user,
            HistoryQuestion(
                doc_type=asked.doc_type,
                text=asked.doc_text,
                connector=asked.doc_connector,
                page=asked.page,
                limit=asked.limit,
            ),
        )
    shown = [_entry(one) for one in entries]
    return answer(wire.HistoryResponse(status=0, count=count, message="History fetched", history=shown))


def _entry(entry: HistoryEntry) -> wire.HistoryEntry:
    return wire.HistoryEntry(
        name="",
        id=entry.history_id,
        uuid=str(entry.id),
        type=f"query-{entry.dialect}",
        data=wire.HistoryData(
            statement=entry.statement,
            lastExecuted=milliseconds(entry.times.submitted),
            status=entry.state.wire_status,
            parentSavedQueryUuid=entry.parent_uuid,
            state=entry.state.value,
            message=entry.message,
            database=entry.database or "",
            rows=entry.rows,
            **shapes.times(entry),
            **shapes.error_place(entry.error_position),
        ),
        absoluteUrl=f"/editor?editor={entry.history_id}",
    )
