"""Runs the main workflow with the generated Python client: statements, failures, pages, files, events, an import,
an export, a shared result, a document, a schedule.

Arguments: base URL, user, password. Prints the results as JSON.
"""

import base64
import json
import sys
from datetime import UTC, datetime
from http import HTTPStatus
from io import BytesIO
from typing import TypeVar

from query_server_api_client import AuthenticatedClient, Client
from query_server_api_client.api.documents import delete_document, list_documents, save_document, share_document
from query_server_api_client.api.editor import (
    check_status,
    download_result,
    execute,
    execute_on,
    export_result,
    fetch_result_data,
    follow_events,
    get_history,
    get_logs,
    get_shares,
    open_shared_result,
    revoke_share,
    share_result,
    shared_with_me,
)
from query_server_api_client.api.get_config import get_config
from query_server_api_client.api.importer import guess_file_metadata, preview_file, upload_import_file
from query_server_api_client.api.storage import download_file, list_directory, list_file_systems, upload_file
from query_server_api_client.api.taskserver import (
    delete_schedule,
    get_schedule,
    list_schedule_runs,
    list_schedules,
    new_schedule,
    update_schedule,
)
from query_server_api_client.api.token import log_in
from query_server_api_client.models import (
    CheckStatusRequest,
    ClientConfiguration,
    DeleteDocumentRequest,
    DelimitedMetadata,
    DestinationFields,
    DocumentDeleteResponse,
    DocumentFields,
    DocumentListResponse,
    DocumentParameterFields,
    DocumentParameterFieldsTypeType0,
    DocumentResponse,
    DocumentSaveResponse,
    DownloadResultFormat,
    ErrorBody,
    ExecuteRequest,
    ExecuteRequestForm,
    ExecuteRequestParametersType1,
    ExecuteResponse,
    ExportRequest,
    ExportRequestIfExistsType0,
    ExportResponse,
    FetchRequest,
    FileListing,
    GrantFields,
    GrantFieldsPermission,
    GuessFileMetadataImportType,
    HistoryResponse,
    ImportedFile,
    LogInRequest,
    LogInRequestForm,
    LogsRequest,
    LogsResponse,
    Preview,
    PreviewFileFileType,
    PreviewFileImportType,
    QueryStatus,
    QueryStatusStatus,
    ResultPage,
    ResultResponse,
    RevokeShareRequest,
    SaveDocumentRequest,
    ScheduleDeleteResponse,
    ScheduleFields,
    ScheduleFieldsKindType0,
    ScheduleIdFields,
    ScheduleIdRequest,
    ScheduleListResponse,
    ScheduleRequest,
    ScheduleResponse,
    ScheduleRunListResponse,
    ShareDocumentRequest,
    SharedResultResponse,
    SharedWithMeResponse,
    ShareRequest,
    SharesResponse,
    StatementFailure,
    StatusResponse,
    TokenPair,
    Unauthorized,
    UploadFileBody,
    UploadImportFileBody,
    UploadResponse,
)
from query_server_api_client.models import preview_file_sql_dialect as dialects
from query_server_api_client.types import File, Response

T = TypeVar("T")

STATEMENT = "SELECT 1 AS id, 'blue pen' AS name"
CONTENT = b"id,name\n1,blue pen\n2,red pen\n"
RUNNING = {QueryStatusStatus.WAITING, QueryStatusStatus.RUNNING}


def parsed(answer: Response[object], kind: type[T], status: HTTPStatus = HTTPStatus.OK) -> T:
    """Return the parsed response body. Exits with an error if the status or the type of the body is unexpected."""
    if answer.status_code != status or not isinstance(answer.parsed, kind):
        sys.exit(f"{answer.status_code} {type(answer.parsed).__name__}: {answer.content[:500]!r}")
    return answer.parsed


def text_of(file: File) -> str:
    return base64.b64encode(file.payload.read()).decode()


def logged_in(base_url: str, username: str, password: str) -> AuthenticatedClient:
    client = Client(base_url=base_url)
    wrong = log_in.sync_detailed(client=client, body=LogInRequestForm(username=username, password="no"))
    parsed(wrong, Unauthorized, HTTPStatus.UNAUTHORIZED)
    pair = log_in.sync_detailed(client=client, body=LogInRequest(username=username, password=password))
    return AuthenticatedClient(base_url=base_url, token=parsed(pair, TokenPair).access)


def ended(client: AuthenticatedClient, operation: str) -> QueryStatus:
    """Wait for the end of an operation; return its status."""
    while True:
        status_request = CheckStatusRequest(operation_id=operation, wait=10)
        found = parsed(check_status.sync_detailed(client=client, body=status_request), StatusResponse).query_status
        if found.status not in RUNNING:
            return found


def rows_of(client: AuthenticatedClient, operation: str) -> ResultPage:
    fetched = fetch_result_data.sync_detailed(client=client, body=FetchRequest(operation_id=operation, rows=10))
    return parsed(fetched, ResultResponse).result


def statement(client: AuthenticatedClient) -> dict[str, object]:
    started = execute_on.sync_detailed("duckdb", client=client, body=ExecuteRequestForm(statement=STATEMENT))
    operation = parsed(started, ExecuteResponse).history_uuid
    status = ended(client, operation)
    state, expires_at = status.status, status.expires_at
    page = rows_of(client, operation)
    log = parsed(get_logs.sync_detailed(client=client, body=LogsRequest(operation_id=operation)), LogsResponse)
    unknown = check_status.sync_detailed(client=client, body=CheckStatusRequest(operation_id="unknown"))
    history = parsed(get_history.sync_detailed(client=client, doc_text="blue pen"), HistoryResponse)
    stream = follow_events.sync_detailed(operation, client=client).content.decode()
    return {
        "state": state.value,
        "expires_later": isinstance(expires_at, datetime) and expires_at > datetime.now(UTC),
        "columns": [column.name for column in page.meta],
        "column_types": [column.type_.value for column in page.meta],
        "rows": page.data,
        "has_log": bool(log.logs),
        "unknown": parsed(unknown, ErrorBody, HTTPStatus.NOT_FOUND).code,
        "history": [entry.uuid == operation for entry in history.history],
        "events": [line.removeprefix("event: ") for line in stream.splitlines() if line.startswith("event: ")],
        **downloads(client, operation),
        **exported(client, operation),
        **shared(client, operation),
    }


def downloads(client: AuthenticatedClient, operation: str) -> dict[str, str]:
    found = {}
    for kind in (DownloadResultFormat.CSV, DownloadResultFormat.PARQUET):
        answer = download_result.sync_detailed(operation, client=client, format_=kind)
        found[kind.value] = text_of(parsed(answer, File))
    return found


def exported(client: AuthenticatedClient, operation: str) -> dict[str, object]:
    home = parsed(list_file_systems.sync_detailed(client=client), list)[0].user_home_directory
    path = f"{home.rstrip('/')}/exported-python.csv"
    replace = ExportRequestIfExistsType0.REPLACE
    request = ExportRequest(operation_id=operation, path=path, if_exists=replace)
    started = parsed(export_result.sync_detailed(client=client, body=request), ExportResponse, HTTPStatus.ACCEPTED)
    status = ended(client, started.history_uuid)
    page = rows_of(client, started.history_uuid)
    file = parsed(download_file.sync_detailed(client=client, path=path), File)
    request = ExportRequest(operation_id=operation, path=path)
    refused = export_result.sync_detailed(client=client, body=request)
    return {
        "export": [status.status.value, page.data[0][0], [column.name for column in page.meta]],
        "exported": text_of(file),
        "exists": parsed(refused, ErrorBody, HTTPStatus.CONFLICT).code,
    }


def shared(client: AuthenticatedClient, operation: str) -> dict[str, object]:
    request = ShareRequest(operation_id=operation, groups=["default"], title="Pens")
    made = parsed(share_result.sync_detailed(client=client, body=request), SharesResponse)
    found = parsed(get_shares.sync_detailed(operation, client=client), SharesResponse)
    opened = parsed(open_shared_result.sync_detailed(operation, client=client), SharedResultResponse)
    request = RevokeShareRequest(operation_id=operation)
    revoked = parsed(revoke_share.sync_detailed(client=client, body=request), SharesResponse)
    received = parsed(shared_with_me.sync_detailed(client=client), SharedWithMeResponse)
    return {
        "shared": [made.changed, [one.group for one in found.shares], revoked.changed, received.count],
        "opened": [opened.query_status.status.value, [column.name for column in opened.meta]],
    }


def document(client: AuthenticatedClient) -> dict[str, object]:
    parameter = DocumentParameterFields(name="n", type_=DocumentParameterFieldsTypeType0.BIGINT, default=7)
    fields = DocumentFields(name="Pens", statement="SELECT :n AS n", connector="duckdb", parameters=[parameter])
    saved = save_document.sync_detailed(client=client, body=SaveDocumentRequest(document=fields))
    made = parsed(saved, DocumentSaveResponse).document
    stale = DocumentFields(uuid=made.uuid, version=9, name="Pencils")
    conflict = save_document.sync_detailed(client=client, body=SaveDocumentRequest(document=stale))
    grant = GrantFields(group="default", permission=GrantFieldsPermission.RUN)
    request = ShareDocumentRequest(uuid=made.uuid, grants=[grant])
    granted = parsed(share_document.sync_detailed(client=client, body=request), DocumentResponse).document
    results = []
    for values in ({}, {"n": 8}):
        parameters = ExecuteRequestParametersType1.from_dict(values)
        body = ExecuteRequest(document=made.uuid, parameters=parameters)
        started = parsed(execute.sync_detailed(client=client, body=body), ExecuteResponse)
        ended(client, started.history_uuid)
        results += rows_of(client, started.history_uuid).data
    listed = parsed(list_documents.sync_detailed(client=client, text="pens"), DocumentListResponse)
    schedule = scheduled(client, made.uuid)
    deleted = delete_document.sync_detailed(client=client, body=DeleteDocumentRequest(uuid=made.uuid, skip_trash=True))
    return {
        "document": [made.version, [entry.uuid == made.uuid for entry in listed.documents], results],
        "stale": parsed(conflict, ErrorBody, HTTPStatus.CONFLICT).code,
        "granted": [[one.group, one.permission.value] for one in granted.grants],
        "deleted": parsed(deleted, DocumentDeleteResponse).uuid == made.uuid,
        **schedule,
    }


def scheduled(client: AuthenticatedClient, document_uuid: str) -> dict[str, object]:
    fields = ScheduleFields(
        name="nightly pens",
        kind=ScheduleFieldsKindType0.STATEMENT,
        document=document_uuid,
        into=DestinationFields(path="file:///pens-{date}.csv"),
        cron="30 2 * * *",
        timezone="Europe/Berlin",
    )
    made = new_schedule.sync_detailed(client=client, body=ScheduleRequest(schedule=fields))
    schedule = parsed(made, ScheduleResponse).schedule
    change = ScheduleFields(id=schedule.id, version=schedule.version, enabled=False)
    changed = update_schedule.sync_detailed(client=client, body=ScheduleRequest(schedule=change))
    found = parsed(get_schedule.sync_detailed(str(schedule.id), client=client), ScheduleResponse).schedule
    listed = parsed(list_schedules.sync_detailed(client=client), ScheduleListResponse)
    runs = parsed(list_schedule_runs.sync_detailed(str(schedule.id), client=client), ScheduleRunListResponse)
    request = ScheduleIdRequest(schedule=ScheduleIdFields(id=schedule.id))
    deleted = parsed(delete_schedule.sync_detailed(client=client, body=request), ScheduleDeleteResponse)
    return {
        "schedule": [schedule.kind.value, isinstance(schedule.next_run, datetime), found.version, found.enabled],
        "schedules": [parsed(changed, ScheduleResponse).schedule.next_run, listed.count, runs.count],
        "unscheduled": deleted.id == schedule.id,
    }


def failures(client: AuthenticatedClient) -> dict[str, object]:
    body = ExecuteRequest(statement="SELECT * FROM no_such_table", wait=30)
    failed = parsed(execute_on.sync_detailed("duckdb", client=client, body=body), StatementFailure)
    status_request = CheckStatusRequest(operation_id=failed.history_uuid)
    followed = parsed(check_status.sync_detailed(client=client, body=status_request), StatementFailure)
    fetched = fetch_result_data.sync_detailed(client=client, body=FetchRequest(operation_id=failed.history_uuid))
    refused = download_result.sync_detailed(failed.history_uuid, client=client)
    unknown_dialect = execute_on.sync_detailed("no-such-dialect", client=client, body=body)
    return {
        "failed": [failed.status, failed.code, failed.query_status.status.value, "no_such_table" in failed.message],
        "followed": [followed.code, parsed(fetched, StatementFailure).code],
        "refused": parsed(refused, ErrorBody, HTTPStatus.CONFLICT).code,
        "no_dialect": parsed(unknown_dialect, ErrorBody, HTTPStatus.NOT_FOUND).code,
    }


def imported(client: AuthenticatedClient) -> dict[str, object]:
    file = File(payload=BytesIO(CONTENT), file_name="pens.csv", mime_type="text/csv")
    uploaded = upload_import_file.sync_detailed(client=client, body=UploadImportFileBody(file=file))
    path = parsed(uploaded, ImportedFile, HTTPStatus.CREATED).file_path
    guessed = guess_file_metadata.sync_detailed(
        client=client, file_path=path, import_type=GuessFileMetadataImportType.LOCAL
    )
    preview = preview_file.sync_detailed(
        client=client,
        file_path=path,
        file_type=PreviewFileFileType.CSV,
        import_type=PreviewFileImportType.LOCAL,
        sql_dialect=dialects.PreviewFileSqlDialect.HIVE,
        has_header=True,
        field_separator=parsed(guessed, DelimitedMetadata).field_separator,
    )
    shown = parsed(preview, Preview)
    return {"types": {column.name: column.type_ for column in shown.columns}, "preview": shown.preview_data}


def stored(client: AuthenticatedClient) -> dict[str, object]:
    systems = list_file_systems.sync_detailed(client=client)
    home = parsed(systems, list)[0].user_home_directory
    file = File(payload=BytesIO(CONTENT), file_name="pens-python.csv", mime_type="text/csv")
    sent = upload_file.sync_detailed(client=client, body=UploadFileBody(dest=home, file=file, overwrite=True))
    path = parsed(sent, UploadResponse, HTTPStatus.OK).path
    back = parsed(download_file.sync_detailed(client=client, path=path), File)
    listing = parsed(list_directory.sync_detailed(client=client, path=home), FileListing)
    return {"stored": text_of(back), "is_listed": path in [entry.path for entry in listing.files]}


def main(base_url: str, username: str, password: str) -> None:
    client = logged_in(base_url, username, password)
    configuration = parsed(get_config.sync_detailed(client=client), ClientConfiguration)
    found = {
        "interpreters": [one.type_ for one in configuration.app_config.editor.interpreters],
        **statement(client),
        **failures(client),
        **imported(client),
        **stored(client),
        **document(client),
    }
    print(json.dumps(found))


main(*sys.argv[1:])
