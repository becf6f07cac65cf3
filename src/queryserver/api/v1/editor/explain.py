"""explain: the engine's plan of a statement that is not run."""

from typing import Any

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.dependencies import AuthenticatedCall, Call, CallRoute
from queryserver.api.presence import while_connected
from queryserver.api.v1.editor import shapes
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import ExplainRequest
from queryserver.services.metadata.explaining import ToExplain

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)

_DECLARED: dict[str, Any] = {
    "response_model": wire.ExplainResponse | wire.ExplainFailure | wire.ErrorBody,
    "responses": failures(400, 403, 404, 413, 415, 501),
    "openapi_extra": accepts(ExplainRequest),
    "summary": "The plan of a statement",
}


@router.post("/editor/explain", **_DECLARED)
async def explain(call: AuthenticatedCall) -> Response:
    """The plan of the first statement, which is not run, on the default or a named connector. Contract editor 8.3."""
    return await _explain(call, None)


@router.post("/editor/explain/{dialect:name}", **_DECLARED)
async def explain_on(call: AuthenticatedCall, dialect: str) -> Response:
    """The plan of a statement on the data source of the path; it is not run. Contract editor 8.3."""
    if not dialect.strip():
        raise call.services.connectors.unknown(call.user, dialect)
    return await _explain(call, dialect)


async def _explain(call: Call, dialect: str | None) -> Response:
    asked = await call.read(ExplainRequest)
    named = asked.snippet.dialect or dialect
    wanted = ToExplain(named, asked.script, asked.current_database, asked.session_id)
    explained = await while_connected(call.request, call.services.metadata.explanations.explain(call.user, wanted))
    refusal = explained.refusal
    if refusal is None:
        return answer(wire.ExplainResponse(status=0, explanation=explained.plan, statement=explained.statement))
    return answer(
        wire.ExplainFailure(
            status=1,
            code=refusal.code,
            message=refusal.message,
            statement=explained.statement,
            **shapes.error_place(refusal.position),
        )
    )
