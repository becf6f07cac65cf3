"""describe: databases, tables, columns."""

from typing import Any

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.dependencies import AuthenticatedCall, Call, CallRoute
from queryserver.api.v1.editor import metadata_shapes
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import DescribeRequest
from queryserver.services.metadata.browsing import Source

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)

_DECLARED: dict[str, Any] = {
    "responses": failures(400, 403, 404, 413, 415, 501),
    "openapi_extra": accepts(DescribeRequest),
}


@router.post(
    "/editor/describe/{database:segment}",
    response_model=wire.DatabaseDescription | wire.ErrorBody,
    summary="A database",
    **_DECLARED,
)
async def database(call: AuthenticatedCall, database: str) -> Response:
    """Comment, location and owner of a database. Spec §4, Contract editor 10.4."""
    found = await call.services.metadata.browsing.database(await _source(call), database)
    return answer(metadata_shapes.database_description(found))


@router.post(
    "/editor/describe/{database:segment}/{table:name}",
    response_model=wire.TableDescription | wire.ErrorBody,
    summary="A table",
    **_DECLARED,
)
@router.post(
    "/editor/describe/{database:segment}/{table:name}/stats",
    response_model=wire.TableDescription | wire.ErrorBody,
    summary="A table",
    **_DECLARED,
)
async def table(call: AuthenticatedCall, database: str, table: str) -> Response:
    """Columns, keys, properties and statistics of a table. Spec §4, Contract editor 10.4."""
    found = await call.services.metadata.browsing.table(await _source(call), database, table)
    return answer(metadata_shapes.table_description(found))


@router.post(
    "/editor/describe/{database:segment}/{table:name}/stats/{column:name}",
    response_model=wire.ColumnDescription | wire.ErrorBody,
    summary="Statistics of a column",
    **_DECLARED,
)
async def column(call: AuthenticatedCall, database: str, table: str, column: str) -> Response:
    """What the engine already knows of a column's values. Contract editor 10.4."""
    found = await call.services.metadata.browsing.statistics(await _source(call), database, table, column)
    return answer(metadata_shapes.column_description(found))


async def _source(call: Call) -> Source:
    asked = await call.read(DescribeRequest)
    return Source(call.user, asked.chosen, asked.refresh)
