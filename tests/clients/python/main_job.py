"""The main job by the generated Python client: log in, run a statement, fetch, look back, import, list files.

Arguments: base URL, user, password. Prints what it found as JSON.
"""

import json
import sys
from http import HTTPStatus
from io import BytesIO
from typing import TypeVar

from queryserver_client import AuthenticatedClient, Client
from queryserver_client.api.editor import check_status, execute_on, fetch_result_data, get_history, get_logs
from queryserver_client.api.get_config import get_config
from queryserver_client.api.importer import guess_file_metadata, preview_file, upload_import_file
from queryserver_client.api.storage import list_directory, list_file_systems
from queryserver_client.api.token import log_in
from queryserver_client.models import (
    CheckStatusRequest,
    ClientConfiguration,
    DelimitedMetadata,
    ErrorBody,
    ExecuteRequestForm,
    ExecuteResponse,
    FetchRequest,
    FileListing,
    GuessFileMetadataImportType,
    HistoryResponse,
    ImportedFile,
    LogInDataBody,
    LogInJsonBody,
    LogsRequest,
    LogsResponse,
    Preview,
    PreviewFileFileType,
    PreviewFileImportType,
    PreviewFileSqlDialect,
    ResultResponse,
    StatusResponse,
    TokenPair,
    Unauthorized,
    UploadImportFileBody,
)
from queryserver_client.types import File, Response

T = TypeVar("T")

STATEMENT = "SELECT 1 AS id, 'blue pen' AS name"
CONTENT = b"id,name\n1,blue pen\n2,red pen\n"


def parsed(answer: Response[object], kind: type[T], status: HTTPStatus = HTTPStatus.OK) -> T:
    """The body as the client read it; ends the job when it is another one."""
    if answer.status_code != status or not isinstance(answer.parsed, kind):
        sys.exit(f"{answer.status_code} {type(answer.parsed).__name__}: {answer.content[:500]!r}")
    return answer.parsed


def logged_in(base_url: str, username: str, password: str) -> AuthenticatedClient:
    client = Client(base_url=base_url)
    wrong = log_in.sync_detailed(client=client, body=LogInDataBody(username=username, password="no"))
    parsed(wrong, Unauthorized, HTTPStatus.UNAUTHORIZED)
    pair = log_in.sync_detailed(client=client, body=LogInJsonBody(username=username, password=password))
    return AuthenticatedClient(base_url=base_url, token=parsed(pair, TokenPair).access)


def statement(client: AuthenticatedClient) -> dict[str, object]:
    started = execute_on.sync_detailed("duckdb", client=client, body=ExecuteRequestForm(statement=STATEMENT))
    operation = parsed(started, ExecuteResponse).history_uuid
    state = "waiting"
    while state in {"waiting", "running"}:
        asked = CheckStatusRequest(operation_id=operation, wait=10)
        state = parsed(check_status.sync_detailed(client=client, body=asked), StatusResponse).query_status.status
    fetched = fetch_result_data.sync_detailed(client=client, body=FetchRequest(operation_id=operation, rows=10))
    page = parsed(fetched, ResultResponse).result
    log = parsed(get_logs.sync_detailed(client=client, body=LogsRequest(operation_id=operation)), LogsResponse)
    unknown = check_status.sync_detailed(client=client, body=CheckStatusRequest(operation_id="unknown"))
    history = parsed(get_history.sync_detailed(client=client, doc_text="blue pen"), HistoryResponse)
    return {
        "state": state,
        "columns": [column.name for column in page.meta],
        "rows": page.data,
        "has_log": bool(log.logs),
        "unknown": parsed(unknown, ErrorBody, HTTPStatus.NOT_FOUND).code,
        "history": [entry.uuid == operation for entry in history.history],
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
        sql_dialect=PreviewFileSqlDialect.HIVE,
        has_header=True,
        field_separator=parsed(guessed, DelimitedMetadata).field_separator,
    )
    shown = parsed(preview, Preview)
    return {"types": {column.name: column.type_ for column in shown.columns}, "preview": shown.preview_data}


def main(base_url: str, username: str, password: str) -> None:
    client = logged_in(base_url, username, password)
    configuration = parsed(get_config.sync_detailed(client=client), ClientConfiguration)
    systems = list_file_systems.sync_detailed(client=client)
    homes = [one.user_home_directory for one in parsed(systems, list)]
    listing = parsed(list_directory.sync_detailed(client=client, path=homes[0]), FileListing)
    found = {
        "interpreters": [one.type_ for one in configuration.app_config.editor.interpreters],
        **statement(client),
        **imported(client),
        "files": listing.page.total_count,
    }
    print(json.dumps(found))


main(*sys.argv[1:])
