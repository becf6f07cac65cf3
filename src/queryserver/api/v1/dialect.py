"""Paths that begin with a dialect: analyze. They come after all fixed groups.

`Connectors.resolve` refuses an unknown dialect, in the words of `errors.statements.UnknownDialect`.
"""

from fastapi import Response

from queryserver.api.answers import answer
from queryserver.api.bodies import Call
from queryserver.api.calls import PathGroup
from queryserver.api.schemas import generated as wire
from queryserver.api.v1.editor.results import shown_handle

router = PathGroup()


@router.operation("analyze_table", "analyze_column")
async def analyze(call: Call, dialect: str, database: str, table: str, column: str | None = None) -> Response:
    """Start the engine's statistics statement as an operation. Spec §4, Contract editor 10.5."""
    if not dialect.strip():
        raise call.services.connectors.unknown(call.user, dialect)
    started = await call.services.metadata.analyses.start(call.user, dialect, database, table, column)
    status = started.record.status
    return answer(
        wire.AnalyzeResponse(
            status=0,
            message="",
            redirect="",
            watch_url=f"/api/v1/editor/watch/{status.id}",
            operationId=str(status.id),
            history_uuid=str(status.id),
            history_id=status.history_id,
            handle=shown_handle(started.record),
        )
    )
