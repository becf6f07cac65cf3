"""create_table: a table from a file, made by an operation of the editor (Contract importer 13)."""

from collections.abc import Sequence

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, importer_failures
from queryserver.api.v1.importer.calls import ImporterCall, ImporterRoute
from queryserver.api.v1.importer.sources import asked_header, asked_reading
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import CreateTableRequest, ImportColumn, idempotency_key
from queryserver.services.importing.creating import AskedTable
from queryserver.services.importing.plans import AskedColumn

router = APIRouter(prefix="/api/v1/importer", tags=["importer"], route_class=ImporterRoute)


@router.post(
    "/create_table",
    status_code=202,
    response_model=wire.CreateTableResponse,
    responses=importer_failures(429, 503),
    openapi_extra=accepts(CreateTableRequest),
    summary="Make a table of a file",
)
@router.post(
    "/submit",
    status_code=202,
    response_model=wire.CreateTableResponse,
    responses=importer_failures(429, 503),
    openapi_extra=accepts(CreateTableRequest),
    summary="Make a table of a file",
)
async def create_table(call: ImporterCall) -> Response:
    """Answers once the import is recorded; check_status follows it. Contract importer 13."""
    asked = await call.read(CreateTableRequest)
    key = idempotency_key(call.request.headers.get("idempotency-key"))
    created = await call.services.importing.tables.create(call.user, _table(asked, key))
    status = created.recorded.record.status
    return answer(
        wire.CreateTableResponse(
            status=0,
            history_uuid=str(status.id),
            history_id=status.history_id,
            path=asked.file_path,
            table=created.table,
        ),
        status=202,
        headers={"Idempotency-Replayed": "true"} if created.recorded.replayed else {},
    )


def _table(asked: CreateTableRequest, key: str | None) -> AskedTable:
    return AskedTable(
        origin=asked.import_type,
        file_path=asked.file_path,
        reading=asked_reading(asked),
        has_header=asked_header(asked),
        connector=asked.connector,
        database=asked.database,
        table=asked.table,
        columns=None if asked.columns is None else _columns(asked.columns),
        append=asked.if_exists == "append",
        replace=asked.if_exists == "replace",
        max_bad_rows=None if asked.max_bad_rows < 0 else asked.max_bad_rows,
        idempotency_key=key,
    )


def _columns(asked: Sequence[ImportColumn]) -> Sequence[AskedColumn]:
    return [
        AskedColumn(one.source, one.name, one.type, one.precision, one.scale, one.nullable, one.format) for one in asked
    ]
