"""sample: some rows of a table, some values of a column."""

from typing import Any

import orjson
from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.dependencies import AuthenticatedCall, Call, CallRoute
from queryserver.api.routing import names_of
from queryserver.api.v1.editor import shapes
from queryserver.api.v1.editor.pages import cell_form
from queryserver.domain.catalog import SampleKind
from queryserver.domain.result import CellForm
from queryserver.domain.statement import StatementRecord
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import SampleRequest
from queryserver.services.metadata.samples import NOT_SAMPLED, Sample, Sampled

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)

_DECLARED: dict[str, Any] = {
    "response_model": wire.SampleResponse | wire.SampleStartResponse | wire.ErrorBody,
    "responses": failures(400, 403, 404, 413, 415, 429, 501),
    "openapi_extra": accepts(SampleRequest),
}


@router.post("/editor/sample/{database:segment}/{table:name}", summary="Rows of a table", **_DECLARED)
async def table(call: AuthenticatedCall, database: str, table: str) -> Response:
    """At most 100 rows, now or as an operation; or a connection test. Spec §4, Contract editor 10.3."""
    return await _sample(call, database, table)


@router.post("/editor/sample/{database:segment}/{table:name}/{column:name}", summary="Values of a column", **_DECLARED)
async def column(call: AuthenticatedCall, database: str, table: str, column: str) -> Response:
    """Distinct values, or the largest or smallest one. Spec §4, Contract editor 10.3."""
    return await _sample(call, database, table, column)


@router.post(
    "/editor/sample/{database:segment}/{table:name}/{column:name}/{nested:rest}",
    summary="Values of a part of a column",
    **_DECLARED,
)
async def nested(call: AuthenticatedCall, database: str, table: str, column: str, nested: str) -> Response:
    """The values at nested segments below a column. Contract editor 10.3."""
    return await _sample(call, database, table, column, names_of(nested))


async def _sample(
    call: Call, database: str, table: str, column: str | None = None, nested: tuple[str, ...] = ()
) -> Response:
    asked = await call.read(SampleRequest)
    samples, connector = call.services.metadata.samples, asked.snippet.dialect
    wanted = None
    if asked.operation != "hello":
        wanted = Sampled(database, table, column, nested, SampleKind(asked.operation))
    form = cell_form(call, asked)
    if asked.is_async:
        started = await samples.start(call.user, connector, wanted, timeout_s=asked.timeout)
        if started is None:
            return _rows(Sample(message=NOT_SAMPLED), form)
        return answer(_start(started.record))
    if wanted is None:
        return _rows(await samples.hello(call.user, connector, form), form)
    return _rows(await samples.read(call.user, connector, wanted, form), form)


def _rows(sample: Sample, form: CellForm) -> Response:
    """The body, put together around rows that are JSON already."""
    body = wire.SampleResponse(
        status=0,
        headers=[one.name for one in sample.columns],
        full_headers=shapes.meta(sample.columns, big_numbers_as_text=form.big_numbers_as_text),
        rows=[],
        message=sample.message,
        isEscaped=form.is_escaped,
    )
    fields = body.model_dump()
    fields["rows"] = orjson.Fragment(sample.rows_json)
    return Response(orjson.dumps(fields), media_type="application/json")


def _start(record: StatementRecord) -> wire.SampleStartResponse:
    operation = str(record.status.id)
    result = wire.SampleStart(status=0, handle=shapes.handle(record))
    return wire.SampleStartResponse(status=0, result=result, operationId=operation, history_uuid=operation)
