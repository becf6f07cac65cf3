# Generated from openapi/resources.yaml by scripts/generate_models.py (make models); never edited.
"""Responses of the server: one TypedDict for each resource of openapi/resources.yaml."""

from __future__ import annotations
from typing import Any, Literal, TYPE_CHECKING, TypeAlias, TypedDict

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class ErrorBody(TypedDict):
    """
    A failed call. `code` is stable. `message` is meant for people and may change.
    """

    status: Literal[-1, 1, 2, 5, 401, -3, -4]
    code: str
    message: str
    errors: NotRequired[dict[str, list[str]]]
    error_id: NotRequired[str]
    retry_after: NotRequired[int]
    details: NotRequired[dict[str, Any]]
    version: NotRequired[int]
    running: NotRequired[int]
    scope: NotRequired[str]


class TokenMessage(TypedDict):
    """
    Why a token was rejected.
    """

    token_class: Literal["AccessToken", "RefreshToken"]
    token_type: Literal["access", "refresh"]
    message: str


class Unauthorized(TypedDict):
    """
    Body of every 401 response. It has only `detail` if the call has no credentials.
    """

    detail: str
    code: NotRequired[str]
    messages: NotRequired[list[TokenMessage]]


FieldErrors: TypeAlias = dict[str, list[str]]
"\nBody of a 400 response to a token call: the problems of each invalid field.\n"


class TokenPair(TypedDict):
    """
    The access token and refresh token of a login.
    """

    refresh: str
    access: str


class TokenVerifyResponse(TypedDict):
    """
    The token is valid. The object is empty.
    """


class TokenRefreshResponse(TypedDict):
    """
    A new access token.
    """

    access: str
    refresh: NotRequired[str]


class TokenRevokeResponse(TypedDict):
    """
    The token was revoked. The object is empty.
    """


class LoginIssuer(TypedDict):
    """
    An external issuer at which users log in.
    """

    name: str


class SessionResponse(TypedDict):
    """
    A new access token. The refresh token of the session is in a cookie.
    """

    status: Literal[0]
    access: str
    expires_in: int
    refresh: NotRequired[str]


class IssuerLoginResponse(TypedDict):
    """
    A login at the external issuer that this browser has begun.
    """

    status: Literal[0]
    url: str


class DeviceLoginResponse(TypedDict):
    """
    A login of a program that a user approves at the external issuer.
    """

    status: Literal[0]
    device: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None
    expires_in: int
    interval: int


class DevicePollResponse(TypedDict):
    """
    The state of a login of a program.
    """

    status: Literal[0]
    state: Literal["pending", "slow_down", "done"]
    access: NotRequired[str]
    refresh: NotRequired[str]
    expires_in: NotRequired[int]


class SessionEnded(TypedDict):
    """
    The session has ended.
    """

    status: Literal[0]


class DownloadTicketResponse(TypedDict):
    """
    The address of a download with its ticket.
    """

    status: Literal[0]
    url: str


class Position(TypedDict):
    """
    A position in the submitted script. Both numbers are 0-based; columns count Unicode code points.
    """

    row: int
    column: int


class Handle(TypedDict):
    """
    The operation for one statement of a script. `guid` and `secret` grant no rights.
    """

    statement_id: int
    statements_count: int
    has_more_statements: bool
    previous_statement_hash: str
    start: Position
    end: Position
    statement: str
    guid: str
    secret: str
    operation_type: Literal[0]
    has_result_set: bool
    modified_row_count: int | None
    log_context: str | None
    session_id: int
    session_guid: str
    session_type: str


class ScriptStatement(TypedDict):
    """
    A started statement of a script that was executed with `run_all`.
    """

    statement_id: int
    operationId: str
    status: Literal["waiting", "running", "available", "failed", "canceled", "expired", "closed"]
    state: Literal["waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"]
    has_result_set: bool
    message: str
    rows: int
    truncated: bool
    truncated_reason: Literal["row_limit", "byte_limit"] | None
    truncated_by: Literal["default_limit", "limit", "result_max_rows", "result_max_bytes"] | None
    modified_row_count: int | None
    code: NotRequired[str]
    line: int | None
    column: int | None
    sqlstate: NotRequired[str]
    start: Position
    end: Position
    started: str | None
    ended: str | None
    elapsed_ms: int
    estimated_bytes: NotRequired[int]
    scanned_bytes: NotRequired[int]


class QueryStatus(TypedDict):
    """
    The state of an operation. Clients poll while `status` is `waiting` or `running`.
    """

    status: Literal["waiting", "running", "available", "failed", "canceled", "expired", "closed"]
    has_result_set: bool
    state: Literal["waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"]
    message: str
    rows: int
    truncated: bool
    truncated_reason: Literal["row_limit", "byte_limit"] | None
    truncated_by: Literal["default_limit", "limit", "result_max_rows", "result_max_bytes"] | None
    modified_row_count: int | None
    expires_at: str | None
    submitted: str
    started: str | None
    ended: str | None
    elapsed_ms: int
    queued_ms: int
    queue_position: int | None
    statements: NotRequired[list[ScriptStatement]]
    reused_from: NotRequired[str]
    estimated_bytes: NotRequired[int]
    scanned_bytes: NotRequired[int]
    reused_age_s: NotRequired[int]


class StatusResponse(TypedDict):
    """
    The state of an operation, from the record of this service and not from the engine.
    """

    status: Literal[0]
    query_status: QueryStatus


class ColumnMeta(TypedDict):
    """
    A column of a result.
    """

    name: str
    type: Literal[
        "BOOLEAN_TYPE",
        "TINYINT_TYPE",
        "SMALLINT_TYPE",
        "INT_TYPE",
        "BIGINT_TYPE",
        "FLOAT_TYPE",
        "DOUBLE_TYPE",
        "DECIMAL_TYPE",
        "STRING_TYPE",
        "VARCHAR_TYPE",
        "CHAR_TYPE",
        "DATE_TYPE",
        "TIMESTAMP_TYPE",
        "TIMESTAMPLOCALTZ_TYPE",
        "INTERVAL_YEAR_MONTH_TYPE",
        "INTERVAL_DAY_TIME_TYPE",
        "BINARY_TYPE",
        "ARRAY_TYPE",
        "MAP_TYPE",
        "STRUCT_TYPE",
        "UNION_TYPE",
        "NULL_TYPE",
        "USER_DEFINED_TYPE",
    ]
    comment: str
    native_type: str
    as_text: NotRequired[bool]


class ResultPage(TypedDict):
    """
    A batch of rows. Each row has one cell for each element of `meta`.
    """

    has_more: bool
    type: Literal["table"]
    isEscaped: bool
    meta: list[ColumnMeta]
    data: list[list[Any]]
    start_row: int
    rows_total: int | None
    truncated: bool
    truncated_reason: Literal["row_limit", "byte_limit"] | None
    truncated_by: Literal["default_limit", "limit", "result_max_rows", "result_max_bytes"] | None
    expires_at: str | None
    message: NotRequired[str]


class ResultResponse(TypedDict):
    """
    Response of fetch_result_data.
    """

    status: Literal[0]
    result: ResultPage


class ResultMetadata(TypedDict):
    """
    The columns of a result.
    """

    meta: list[ColumnMeta]


class ResultMetadataResponse(TypedDict):
    """
    Response of fetch_result_metadata.
    """

    status: Literal[0]
    result: ResultMetadata


class ResultSize(TypedDict):
    """
    Size of the stored result; null until the statement has ended.
    """

    rows: int | None
    size: int | None
    message: str
    truncated: bool


class ResultSizeResponse(TypedDict):
    """
    Response of fetch_result_size.
    """

    status: Literal[0]
    result: ResultSize


class Share(TypedDict):
    """
    A user or a group to whom a result is granted.
    """

    user: str | None
    group: str | None
    title: str
    shared_at: str
    until: str


class SharesResponse(TypedDict):
    """
    The valid grants of a result.
    """

    status: Literal[0]
    operationId: str
    link: str
    share_results: Literal["never", "users_of_connector", "anyone"]
    expires_at: str | None
    changed: int
    shares: list[Share]


class SharedResultEntry(TypedDict):
    """
    A result that another user has granted to the caller.
    """

    operationId: str
    link: str
    title: str
    shared_by: str
    shared_at: str
    until: str
    type: str
    state: Literal["waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"]
    rows: int
    submitted: str
    expires_at: str | None


class SharedWithMeResponse(TypedDict):
    """
    Results that other users have granted to the caller, newest grant first.
    """

    status: Literal[0]
    count: int
    results: list[SharedResultEntry]


class SharedResultResponse(TypedDict):
    """
    A result as its link shows it.
    """

    status: Literal[0]
    operationId: str
    title: str
    shared_by: str
    until: str | None
    query_status: QueryStatus
    meta: list[ColumnMeta]


class Job(TypedDict):
    """
    A job that the engine reports for a statement.
    """

    name: str
    url: str
    started: bool
    finished: bool
    percentJob: int | None


class LogsResponse(TypedDict):
    """
    Log lines of an operation.
    """

    status: Literal[0]
    progress: int
    jobs: list[Job]
    logs: str
    isFullLogs: bool
    next_from: int
    submitted: str
    started: str | None
    ended: str | None
    elapsed_ms: int
    queued_ms: int
    queue_position: int | None


class ActionResult(TypedDict):
    """
    Outcome of cancel_statement or close_statement.
    """

    status: Literal[0, -1]


class CancelResponse(TypedDict):
    """
    Response of cancel_statement, with the current state of the operation.
    """

    status: Literal[0]
    result: ActionResult
    query_status: QueryStatus


class CloseResponse(TypedDict):
    """
    Response of close_statement.
    """

    status: Literal[0]
    result: ActionResult
    message: str


class WatchResponse(TypedDict):
    """
    The status and log of an operation. Clients poll until `isSuccess` or `isFailure` is true.
    """

    status: Literal[0]
    query_status: QueryStatus
    id: int
    operationId: str
    watch_url: str
    statement: str
    log: str
    jobs: list[Job]
    isSuccess: bool
    isFailure: bool


class WatchFailure(TypedDict):
    """
    The status and log of an operation that did not succeed.
    """

    status: Literal[1, 401, -3, -4]
    code: str
    message: str
    line: int | None
    column: int | None
    sqlstate: NotRequired[str]
    query_status: QueryStatus
    handle: Handle
    history_id: int
    history_uuid: str
    id: int
    operationId: str
    watch_url: str
    statement: str
    log: str
    jobs: list[Job]
    isSuccess: bool
    isFailure: bool
    statement_id: NotRequired[int]


class ProgressEvent(TypedDict):
    """
    Data of the server-sent event `progress`.
    """

    progress: int
    rows: int
    jobs: list[Job]


LogEvent = TypedDict("LogEvent", {"from": int, "next_from": int, "logs": str})


class ExplainResponse(TypedDict):
    """
    The engine's plan of a statement that was not run.
    """

    status: Literal[0]
    explanation: str
    statement: str
    estimated_bytes: NotRequired[int]
    estimated_cost: NotRequired[float]


class ExplainFailure(TypedDict):
    """
    The engine refused to explain the statement. The HTTP status is 200.
    """

    status: Literal[1]
    code: str
    message: str
    line: int | None
    column: int | None
    statement: str


class FormatResponse(TypedDict):
    """
    Formatted statements.
    """

    status: Literal[0]
    formatted_statements: str


class HistoryData(TypedDict):
    """
    The statement of a history entry.
    """

    statement: str
    lastExecuted: int
    status: Literal["waiting", "running", "available", "failed", "canceled", "expired", "closed"]
    parentSavedQueryUuid: str
    state: Literal["waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"]
    message: str
    line: int | None
    column: int | None
    connector: NotRequired[str]
    database: str
    rows: int
    parameters: NotRequired[int]
    submitted: str
    started: str | None
    ended: str | None
    elapsed_ms: int
    queued_ms: int
    queue_position: int | None
    reused_from: NotRequired[str]
    reused_age_s: NotRequired[int]


class HistoryEntry(TypedDict):
    """
    One operation of the caller.
    """

    name: str
    id: int
    uuid: str
    type: str
    data: HistoryData
    absoluteUrl: str


class HistoryResponse(TypedDict):
    """
    The caller's operations, newest first.
    """

    status: Literal[0]
    count: int
    message: str
    history: list[HistoryEntry]


class Notebook(TypedDict):
    """
    An empty notebook. It is not stored before save_document saves it.
    """

    name: str
    uuid: str
    description: str
    type: str
    isSaved: bool
    isManaged: bool
    skipHistorify: bool
    sessions: list[Any]
    snippets: list[Any]
    directoryUuid: str | None


class NotebookResponse(TypedDict):
    """
    Response of create_notebook.
    """

    status: Literal[0]
    notebook: Notebook


class DocumentParameter(TypedDict):
    """
    A parameter of a document's statement.
    """

    name: str
    type: (
        Literal[
            "boolean",
            "bigint",
            "double",
            "decimal",
            "varchar",
            "date",
            "time",
            "timestamp",
            "timestamp_tz",
            "binary",
            "array",
        ]
        | None
    )
    default: Any


class DocumentGrant(TypedDict):
    """
    A permission of a user or of a group.
    """

    user: str | None
    group: str | None
    permission: Literal["view", "run", "edit", "manage"]


class Document(TypedDict):
    """
    A saved query.
    """

    id: int
    uuid: str
    owner: str
    name: str
    type: str
    description: str
    statement: str
    parameters: list[DocumentParameter]
    connector: str | None
    dialect: str | None
    database: str | None
    folder: str
    tags: list[str]
    version: int
    created: str
    modified: str
    last_modified: str
    modified_by: str
    permission: Literal["view", "run", "edit", "manage"]
    is_trashed: bool
    absoluteUrl: str
    grants: list[DocumentGrant]


class DocumentEntry(TypedDict):
    """
    A document in a list.
    """

    id: int
    uuid: str
    owner: str
    name: str
    type: str
    description: str
    connector: str | None
    dialect: str | None
    database: str | None
    folder: str
    tags: list[str]
    version: int
    created: str
    modified: str
    last_modified: str
    modified_by: str
    permission: Literal["view", "run", "edit", "manage"]
    is_trashed: bool
    absoluteUrl: str


class DocumentListResponse(TypedDict):
    """
    Documents, last changed first.
    """

    documents: list[DocumentEntry]
    next_after: str | None
    status: Literal[0]


class SavedConnector(TypedDict):
    """
    The connector of a snippet.
    """

    id: str
    type: str
    dialect: str | None


class SavedSnippet(TypedDict):
    """
    The statement of a document as a snippet of a notebook.
    """

    id: str
    type: str
    connector: SavedConnector | None
    statement: str
    statement_raw: str
    database: str
    status: Literal["ready"]
    properties: dict[str, Any]


class SavedNotebook(TypedDict):
    """
    A document as a notebook in the form of Hue.
    """

    id: int
    uuid: str
    name: str
    description: str
    type: str
    version: int
    isSaved: bool
    isManaged: bool
    skipHistorify: bool
    sessions: list[Any]
    snippets: list[SavedSnippet]
    directoryUuid: str | None


class DocumentResponse(TypedDict):
    """
    One document.
    """

    document: Document
    data: SavedNotebook
    status: Literal[0]


class DocumentSaveResponse(TypedDict):
    """
    The saved document.
    """

    document: Document
    id: int
    uuid: str
    name: str
    type: str
    save_as: bool
    message: str
    status: Literal[0]


class DocumentOwnerResponse(TypedDict):
    """
    The documents have the new owner.
    """

    changed: int
    status: Literal[0]


class DocumentDeleteResponse(TypedDict):
    """
    The document was deleted.
    """

    uuid: str
    status: Literal[0]


class DocumentVersionEntry(TypedDict):
    """
    A version in a list.
    """

    version: int
    name: str
    modified: str
    modified_by: str


class DocumentVersionListResponse(TypedDict):
    """
    Versions of a document, newest first.
    """

    versions: list[DocumentVersionEntry]
    status: Literal[0]


class DocumentVersion(TypedDict):
    """
    The content of one version of a document.
    """

    uuid: str
    version: int
    name: str
    type: str
    description: str
    statement: str
    parameters: list[DocumentParameter]
    connector: str | None
    dialect: str | None
    database: str | None
    tags: list[str]
    modified: str
    modified_by: str


class DocumentVersionResponse(TypedDict):
    """
    One version of a document.
    """

    version: DocumentVersion
    status: Literal[0]


class Session(TypedDict):
    """
    An engine session of the caller. Passwords in `properties` are replaced with empty strings.
    """

    type: str
    id: int
    session_id: str
    properties: list[dict[str, Any]]
    configuration: dict[str, Any]
    reuse_session: bool
    http_addr: str | None
    expires_at: str | None


class CreateSessionResponse(TypedDict):
    """
    Response of create_session.
    """

    status: Literal[0]
    session: Session


class ClosedSession(TypedDict):
    """
    A closed session.
    """

    id: int
    application: str
    status: Literal[4]


class SessionClosure(TypedDict):
    """
    Outcome of close_session.
    """

    status: Literal[0]
    message: str
    session: ClosedSession | None


class CloseSessionResponse(TypedDict):
    """
    Response of close_session.
    """

    status: Literal[0]
    session: SessionClosure


class HealthCheck(TypedDict):
    """
    Outcome of one check.
    """

    ok: bool
    ms: int


class BrokerCheck(TypedDict):
    """
    Outcome of the broker's check.
    """

    ok: bool
    ms: int
    enabled: bool


class HealthChecks(TypedDict):
    """
    Checks of the components that the service requires, without addresses and error messages.
    """

    database: HealthCheck
    schema: HealthCheck
    result_store: HealthCheck
    broker: BrokerCheck


class ReadyResponse(TypedDict):
    """
    The instance accepts calls.
    """

    status: Literal[0]
    ready: bool
    checks: HealthChecks


class NotReadyResponse(TypedDict):
    """
    The instance does not accept calls, because it is stopping or a required component is unavailable. The HTTP status is 503.
    """

    status: Literal[-1]
    code: Literal["not_ready", "stopping"]
    message: str
    ready: bool
    checks: HealthChecks


class DatabaseList(TypedDict):
    """
    Databases of a data source.
    """

    status: Literal[0]
    databases: list[str]
    truncated: bool


class TableSummary(TypedDict):
    """
    A table or view in a list.
    """

    name: str
    type: Literal["Table", "View", "Materialized_view"]
    comment: str


class DatabaseMetadata(TypedDict):
    """
    Tables and views of a database.
    """

    status: Literal[0]
    tables_meta: list[TableSummary]
    truncated: bool


class ColumnSummary(TypedDict):
    """
    A column of a table. Properties that the engine does not report are null.
    """

    name: str
    type: str
    comment: str
    nullable: bool | None
    default: str | None
    autoincrement: bool | None
    primary_key: bool | None
    partition_key: bool


class PartitionKey(TypedDict):
    """
    A partition column.
    """

    name: str
    type: str


class PrimaryKey(TypedDict):
    """
    A column of the primary key.
    """

    name: str


class ForeignKey(TypedDict):
    """
    A column that references another table.
    """

    name: str
    to: str


class TableMetadata(TypedDict):
    """
    Columns and keys of a table or view.
    """

    status: Literal[0]
    name: str
    comment: str
    is_view: bool
    support_updates: bool | None
    hdfs_link: str | None
    columns: list[str]
    extended_columns: list[ColumnSummary]
    partition_keys: list[PartitionKey]
    primary_keys: list[PrimaryKey]
    foreign_keys: list[ForeignKey]


class FunctionSummary(TypedDict):
    """
    A function in a list. Properties that the engine does not report are empty.
    """

    name: str
    signature: str
    return_type: str
    is_builtin: str
    is_persistent: str


class FunctionList(TypedDict):
    """
    Functions of a data source or of one database.
    """

    status: Literal[0]
    functions: list[FunctionSummary]
    truncated: bool


class FunctionDetail(TypedDict):
    """
    A function. The object is empty if the engine cannot list functions.
    """

    name: NotRequired[str]
    signature: NotRequired[str]
    description: NotRequired[str]
    return_type: NotRequired[str]
    is_builtin: NotRequired[str]
    is_persistent: NotRequired[str]


class FunctionResponse(TypedDict):
    """
    Details of one function.
    """

    status: Literal[0]
    function: FunctionDetail


class SampleResponse(TypedDict):
    """
    Sample rows of a table, or values of a column.
    """

    status: Literal[0]
    headers: list[str]
    full_headers: list[ColumnMeta]
    rows: list[list[Any]]
    message: str
    isEscaped: bool


class SampleStart(TypedDict):
    """
    The operation that returns the sample.
    """

    status: Literal[0]
    handle: Handle


class SampleStartResponse(TypedDict):
    """
    Response of a sample call with `async`.
    """

    status: Literal[0]
    result: SampleStart
    operationId: str
    history_uuid: str


class DatabaseDescription(TypedDict):
    """
    Description of a database.
    """

    status: Literal[0]
    message: str
    db_name: str
    name: str
    comment: str
    location: str
    hdfs_link: str
    owner_name: str
    owner_type: str
    parameters: str


class DescribedColumn(TypedDict):
    """
    A column or partition column of a described table.
    """

    name: str
    type: str
    comment: str
    nullable: bool | None
    default: str | None


class TableProperty(TypedDict):
    """
    One property or statistic of a described table.
    """

    col_name: str
    data_type: str
    comment: str


class TableDetailProperties(TypedDict):
    """
    Properties of a described table that are the same for all engines.
    """

    owner: str
    create_time: str | Literal[""]
    table_type: Literal["MANAGED_TABLE", "EXTERNAL_TABLE", "VIRTUAL_VIEW", "MATERIALIZED_VIEW"]
    format: str


class TableDetails(TypedDict):
    """
    Properties and statistics of a described table.
    """

    properties: TableDetailProperties
    stats: dict[str, str]


class TableDescription(TypedDict):
    """
    Description of a table or view.
    """

    status: Literal[0]
    message: str
    name: str
    comment: str
    is_view: bool
    path_location: str
    hdfs_link: str
    cols: list[DescribedColumn]
    partition_keys: list[PartitionKey]
    primary_keys: list[PrimaryKey]
    foreign_keys: list[ForeignKey]
    properties: list[TableProperty]
    stats: list[TableProperty]
    details: TableDetails


class ColumnDescription(TypedDict):
    """
    Statistics that the engine has already computed for a column.
    """

    status: Literal[0]
    message: str
    col_name: str
    data_type: str
    min: str | None
    max: str | None
    num_nulls: int | None
    distinct_count: int | None
    avg_col_len: float | None
    max_col_len: int | None
    num_trues: int | None
    num_falses: int | None


class AnalyzeResponse(TypedDict):
    """
    The operation that computes the statistics.
    """

    status: Literal[0]
    message: str
    redirect: str
    watch_url: str
    operationId: str
    history_uuid: str
    history_id: int
    handle: Handle


class DialectProperties(TypedDict):
    """
    Properties of a SQL dialect for editors; empty for other types.
    """

    is_sql: NotRequired[bool]
    sql_identifier_quote: NotRequired[str]
    sql_identifier_comment_single: NotRequired[str]
    has_catalog: NotRequired[bool]
    has_database: NotRequired[bool]
    has_table: NotRequired[bool]
    has_live_queries: NotRequired[bool]
    has_optimizer_risks: NotRequired[bool]
    has_optimizer_values: NotRequired[bool]
    has_auto_limit: NotRequired[bool]
    has_reference_language: NotRequired[bool]
    has_reference_functions: NotRequired[bool]
    has_use_statement: NotRequired[bool]


class Interpreter(TypedDict):
    """
    A data source that can run statements.
    """

    name: str
    type: str
    id: str
    displayName: str
    buttonName: str
    tooltip: str
    optimizer: Literal["off"]
    page: str
    is_sql: bool
    is_batchable: bool
    dialect: str
    dialect_properties: DialectProperties


class CatalogEntry(TypedDict):
    """
    A data source whose tables can be browsed.
    """

    name: str
    type: str
    id: str
    displayName: str
    buttonName: str
    tooltip: str
    page: str
    is_sql: bool
    is_catalog: bool


class BrowserEntry(TypedDict):
    """
    A browser that the caller may use.
    """

    type: Literal["hdfs", "s3", "abfs", "ofs", "file", "tables", "yarn", "importer", "celery-beat"]
    displayName: str
    buttonName: str
    tooltip: str
    page: str


class EditorApp(TypedDict):
    """
    The editor and its interpreters.
    """

    name: str
    displayName: str
    buttonName: str
    interpreters: list[Interpreter]
    default_limit: int
    interpreter_names: list[str]
    page: str
    default_sql_interpreter: str
    source_autocomplete_disabled: bool


class BrowserApp(TypedDict):
    """
    The browser application.
    """

    name: str
    displayName: str
    buttonName: str
    interpreters: list[BrowserEntry]
    interpreter_names: list[str]


class SchedulerApp(TypedDict):
    """
    The scheduler application.
    """

    name: str
    displayName: str
    buttonName: str
    interpreters: list[BrowserEntry]
    interpreter_names: list[str]
    page: str


class HomeApp(TypedDict):
    """
    The home page with documents.
    """

    name: str
    displayName: str
    buttonName: str
    interpreters: list[Any]
    page: str


class AppConfig(TypedDict):
    """
    Applications that the caller may use.
    """

    editor: EditorApp
    catalogs: list[CatalogEntry]
    browser: BrowserApp
    scheduler: NotRequired[SchedulerApp]
    home: HomeApp


class ServiceFlags(TypedDict):
    """
    Flags of the service and of the caller.
    """

    is_admin: bool
    is_yarn_enabled: bool
    enable_task_server: bool
    enable_workflow_creation_action: bool
    allow_sample_data_from_views: bool
    enable_sharing: bool
    collect_usage: bool


class StorageBrowserConfig(TypedDict):
    """
    Settings for file browsers.
    """

    enable_chunked_file_upload: bool
    enable_new_storage_browser: bool
    restrict_file_extensions: list[str] | None
    concurrent_max_connection: int
    file_upload_chunk_size: int
    enable_file_download_button: bool
    max_file_editor_size: int
    enable_extract_uploaded_archive: bool


class ImporterConfig(TypedDict):
    """
    Settings of the importer.
    """

    is_enabled: bool
    restrict_local_file_extensions: list[str] | None
    max_local_file_size_upload_limit: int


class Cluster(TypedDict):
    """
    A cluster; credentials are always empty.
    """

    id: str
    name: str
    type: str
    credentials: dict[str, Any]


class DocumentsConfig(TypedDict):
    """
    Document types of the caller.
    """

    types: list[str]


class ClientConfiguration(TypedDict):
    """
    Response of get_config.
    """

    app_config: AppConfig
    main_button_action: Interpreter | EditorApp
    button_actions: list[EditorApp | SchedulerApp]
    default_sql_interpreter: str
    cluster_type: str
    has_computes: bool
    vw_name: str
    img_version: str
    hue_version: str
    svc_config: ServiceFlags
    hue_config: ServiceFlags
    storage_browser: StorageBrowserConfig
    importer: ImporterConfig
    clusters: list[Cluster]
    documents: DocumentsConfig
    username: str
    status: Literal[0]


class Namespace(TypedDict):
    """
    A namespace of a data source.
    """

    id: str
    name: str
    status: Literal["CREATED"]
    computes: list[Cluster]


class Compute(TypedDict):
    """
    A compute of a data source.
    """

    id: str
    name: str
    namespace: str
    interface: str
    type: str
    options: dict[str, Any]


class NamespacesResponse(TypedDict):
    """
    The namespaces. The key is the interface in the path.
    """

    status: Literal[0]


class ComputesResponse(TypedDict):
    """
    The computes. The key is the interface in the path.
    """

    status: Literal[0]


class ClustersResponse(TypedDict):
    """
    The clusters. The key is the interface in the path.
    """

    status: Literal[0]


class BannersResponse(TypedDict):
    """
    The banner of the service.
    """

    system: str | None
    configured: str
    status: Literal[0]


class ConfigProblem(TypedDict):
    """
    A problem in the settings. Secrets are masked.
    """

    name: str
    message: str
    value: str
    level: Literal["error", "warning"]


class CheckConfigResponse(TypedDict):
    """
    Response of check_config.
    """

    hue_config_dir: str
    config_errors: list[ConfigProblem]
    status: Literal[0]


class ServerLogsResponse(TypedDict):
    """
    The last lines of the server log.
    """

    hue_hostname: str
    logs: list[str]
    status: Literal[0]


class AdminStatement(TypedDict):
    """
    A statement of any user, without its text.
    """

    id: str
    history_id: int
    user: str
    connector: str
    dialect: str
    state: Literal["waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"]
    submitted: str
    started: str | None
    ended: str | None
    elapsed_ms: int
    queued_ms: int
    rows: int
    bytes: int
    progress: int
    server: str | None
    session_id: int
    error_code: str | None
    cancel_requested: bool
    canceled_by: str | None
    is_import: bool


class AdminInstance(TypedDict):
    """
    A process of the fleet: a server, a worker or the beat.
    """

    id: str
    kind: Literal["server", "worker", "beat"]
    name: str
    version: str
    started: str
    heartbeat: str
    is_alive: bool
    running: int
    capacity: int


class AdminInstancesResponse(TypedDict):
    """
    Processes of the fleet, in the order of their starts.
    """

    status: Literal[0]
    instances: list[AdminInstance]


class DoctorFinding(TypedDict):
    """
    A finding about one area of the deployment. It contains no secrets and no paths of the server.
    """

    area: str
    state: Literal["ok", "warning", "error"]
    what: str
    to_do: str


class AdminDoctorResponse(TypedDict):
    """
    Findings of `queryserver doctor`, area by area.
    """

    status: Literal[0]
    host: str
    took_ms: int
    errors: int
    warnings: int
    findings: list[DoctorFinding]


class AdminStatementsResponse(TypedDict):
    """
    Statements of all users, newest first.
    """

    status: Literal[0]
    statements: list[AdminStatement]
    next_after: int | None


class AdminStatementResponse(TypedDict):
    """
    A statement of any user, with its text.
    """

    status: Literal[0]
    statement: AdminStatement
    text: str
    text_is_cut: bool
    database: str | None
    message: str
    row_limit: int
    timeout_s: int
    deadline: str


class AdminCancelResponse(TypedDict):
    """
    The statement after the cancellation was requested. It may still be running if its engine has not confirmed the cancellation.
    """

    status: Literal[0]
    statement: AdminStatement


class AppExamplesResponse(TypedDict):
    """
    Examples that can be installed.
    """

    apps: dict[str, str]
    status: Literal[0]


class InstallAppExamplesResponse(TypedDict):
    """
    The examples were installed.
    """

    message: str
    status: Literal[0]


class FilesystemConfig(TypedDict):
    """
    Properties of a file system and the caller, with the same keys for all file systems. The keys for HDFS are false, empty or null for other file systems, and while the HDFS cluster does not respond.
    """

    is_trash_enabled: bool
    is_hdfs_superuser: bool
    groups: list[str]
    users: list[str]
    superuser: str | None
    supergroup: str | None


class Filesystem(TypedDict):
    """
    A file system that the caller may use.
    """

    file_system: Literal["hdfs", "s3a", "abfs", "ofs", "file"]
    name: str
    user_home_directory: str
    has_trash: bool
    supports: list[Literal["summary", "permissions", "owners", "recursive", "replication"]]
    config: FilesystemConfig


FilesystemList: TypeAlias = list[Filesystem]
"\nResponse of storage/filesystems.\n"


class FileStats(TypedDict):
    """
    Attributes of an entry; the same keys for every store.
    """

    path: str
    name: str
    size: int
    atime: int | None
    mtime: int | None
    mode: int
    user: str
    group: str
    aclBit: bool
    blockSize: int
    replication: int


class FileEntry(TypedDict):
    """
    An entry of a directory view.
    """

    path: str
    name: str
    stats: FileStats
    mtime: str
    humansize: str
    type: Literal["dir", "file", "link", "unknown"]
    rwx: str
    mode: str
    url: str
    is_sentry_managed: bool


class FlatFileEntry(TypedDict):
    """
    An entry of storage/list.
    """

    path: str
    name: str
    size: int
    atime: int | None
    mtime: int | None
    mode: int
    user: str
    group: str
    aclBit: bool
    blockSize: int
    replication: int
    type: Literal["dir", "file", "link", "unknown"]
    rwx: str


class StatResponse(TypedDict):
    """
    Attributes of one entry.
    """

    status: Literal[0]
    path: str
    name: str
    size: int
    atime: int | None
    mtime: int | None
    mode: int
    user: str
    group: str
    aclBit: bool
    blockSize: int
    replication: int
    type: Literal["dir", "file", "link", "unknown"]
    rwx: str


class Breadcrumb(TypedDict):
    """
    One component of a path.
    """

    url: str
    label: str


class ListingPage(TypedDict):
    """
    The position of a page in a directory listing. Some values have two keys.
    """

    number: int
    page_number: int
    page_size: int
    num_pages: int
    total_pages: int
    total_count: int
    total_size: int
    previous_page_number: int
    next_page_number: int
    start_index: int
    end_index: int
    total_is_exact: bool


class FileListing(TypedDict):
    """
    Response of storage/list.
    """

    status: Literal[0]
    path: str
    files: list[FlatFileEntry]
    page: ListingPage


class DirectoryView(TypedDict):
    """
    Response of storage/view on a directory.
    """

    status: Literal[0]
    path: str
    current_dir_path: str
    current_request_path: str
    breadcrumbs: list[Breadcrumb]
    files: list[FileEntry]
    page: ListingPage
    pagesize: int
    descending: str | None
    home_directory: str | None
    is_trash_enabled: bool
    is_fs_superuser: bool
    groups: list[str]
    users: list[str]
    superuser: str | None
    supergroup: str | None
    is_sentry_managed: bool
    apps: list[str]
    show_download_button: bool
    show_upload_button: bool
    is_embeddable: bool
    cwd_set: bool
    file_filter: str
    s3_listing_not_allowed: str


class FileDisplay(TypedDict):
    """
    Response of storage/display.
    """

    status: Literal[0]
    path: str
    contents: str
    offset: int
    length: int
    end: int
    mode: Literal["text"]
    compression: Literal["none", "gzip", "bz2", "avro", "parquet", "snappy"]


class FileWindow(TypedDict):
    """
    The displayed part of a file.
    """

    offset: int
    length: int
    end: int
    dirname: str
    mode: Literal["text", "binary"]
    compression: Literal["none", "gzip", "bz2", "avro", "parquet", "snappy"]
    size: int
    max_chunk_size: str
    contents: str
    masked_binary_data: bool
    xxd: NotRequired[list[list[Any]]]


class FileView(TypedDict):
    """
    Response of storage/view on a file.
    """

    path: str
    name: str
    stats: FileStats
    mtime: str
    humansize: str
    type: Literal["dir", "file", "link", "unknown"]
    rwx: str
    mode: str
    url: str
    is_sentry_managed: bool
    status: Literal[0]
    success: bool
    contents: str
    filename: str
    editable: bool
    show_download_button: bool
    is_embeddable: bool
    breadcrumbs: list[Breadcrumb]
    view: FileWindow


class ContentSummaryCounts(TypedDict):
    """
    Number of entries and bytes below a path, and its quotas.
    """

    directoryCount: int
    fileCount: int
    length: int
    quota: int
    spaceConsumed: int
    spaceQuota: int
    typeQuota: dict[str, Any]
    replication: int


class ContentSummaryResponse(TypedDict):
    """
    Response of storage/content_summary. Further keys from the store are passed on.
    """

    status: Literal[0]
    message: str
    path: str
    directoryCount: int
    fileCount: int
    length: int
    quota: int
    spaceConsumed: int
    spaceQuota: int
    typeQuota: dict[str, Any]
    replication: int
    summary: ContentSummaryCounts


class PathResponse(TypedDict):
    """
    The changed path.
    """

    status: Literal[0]
    path: str


class SaveResponse(TypedDict):
    """
    Response of storage/save.
    """

    status: Literal[0]
    path: str
    size: int


class ReplicationResponse(TypedDict):
    """
    Response of storage/set_replication.
    """

    status: Literal[0]
    path: str
    replication: int


class ChownResponse(TypedDict):
    """
    Response of storage/chown.
    """

    status: Literal[0]
    path: str
    user: str | None
    group: str | None


class ChmodResponse(TypedDict):
    """
    Response of storage/chmod.
    """

    status: Literal[0]
    path: str
    mode: str


class TransferResponse(TypedDict):
    """
    Response of rename, move and copy.
    """

    status: Literal[0]
    path: str
    source: str
    message: str
    details: NotRequired[dict[str, Any]]
    skipped_files: NotRequired[str]


SkippedFiles: TypeAlias = str


class DeleteResponse(TypedDict):
    """
    Response of storage/rmtree.
    """

    status: Literal[0]
    path: str
    trashed: bool
    trash_path: str | None


class BulkResponse(TypedDict):
    """
    Outcome of a bulk call.
    """

    status: Literal[0, -1]
    code: NotRequired[str]
    message: NotRequired[str]
    results: dict[str, dict[str, Any]]


class RunningOperation(TypedDict):
    """
    The operation continues after the response. The HTTP status is 202.
    """

    status: Literal[0]
    path: str
    operation_id: str
    state: Literal["running"]


class OperationProgress(TypedDict):
    """
    Progress of a long operation.
    """

    status: Literal[0]
    operation_id: str
    state: Literal["running", "done", "failed"]
    done: int
    total: int | None
    result: dict[str, Any] | str | None


class TrashPathResponse(TypedDict):
    """
    The trash directory of a path.
    """

    status: Literal[0]
    path: str
    trash_path: str | None


class RestoreResponse(TypedDict):
    """
    Response of storage/trash/restore.
    """

    status: Literal[0]
    path: str
    source: str


class PurgeResponse(TypedDict):
    """
    Response of storage/trash/purge.
    """

    status: Literal[0]
    path: str
    purged: int


class UploadResponse(TypedDict):
    """
    A file was uploaded.
    """

    status: Literal[0]
    path: str
    data: str
    size: int
    sha256: str
    next: str | None
    result: FileEntry
    file_stats: FlatFileEntry


class UploadPartResponse(TypedDict):
    """
    A part of a file was uploaded.
    """

    status: Literal[0]
    uuid: str
    path: str
    part: int
    received: list[list[int]]
    offset: int


class UploadStateResponse(TypedDict):
    """
    State of a multipart upload.
    """

    status: Literal[0]
    uuid: str
    path: str
    offset: int
    received: list[list[int]]
    missing_parts: list[int]
    total_size: int
    expires_at: str


class UploadCompleteResponse(TypedDict):
    """
    All parts were uploaded and combined into one file.
    """

    status: Literal[0]
    path: str
    uuid: str
    size: int
    result: FileEntry
    success: bool
    data: str
    next: str | None


class AvailableSpaceResponse(TypedDict):
    """
    Response of available_space.
    """

    status: Literal[0]
    upload_available_space: int


class ImporterError(TypedDict):
    """
    A failure of the importer.
    """

    error: str
    code: str
    column: NotRequired[int]


class ImportedFile(TypedDict):
    """
    An uploaded file.
    """

    file_path: str
    size: int
    expires_at: str


class DiscardedFile(TypedDict):
    """
    The outcome of discarding an uploaded file.
    """

    status: Literal[0]
    discarded: bool


class ExcelMetadata(TypedDict):
    """
    The sheets of a workbook.
    """

    type: Literal["excel"]
    sheet_names: list[str]


class RecordsMetadata(TypedDict):
    """
    The format of a file whose records contain column names.
    """

    type: Literal["parquet", "ndjson", "avro", "arrow"]


class HeaderGuess(TypedDict):
    """
    Whether the first row looks like column names.
    """

    has_header: bool
    skip_rows: NotRequired[int]
    comment: NotRequired[str]


class PreviewColumn(TypedDict):
    """
    A column typed for the chosen dialect.
    """

    name: str
    type: str
    precision: NotRequired[int]
    scale: NotRequired[int]
    source: NotRequired[int]
    format: NotRequired[str]
    null_words: NotRequired[list[str]]


class PreviewWarning(TypedDict):
    """
    An anomaly in the file.
    """

    code: Literal[
        "long_rows",
        "short_rows",
        "unclosed_quote",
        "undecodable",
        "truncated_sample",
        "encoding_uncertain",
        "skipped_lines",
        "formulas_without_values",
        "null_words",
    ]
    count: int
    rows: list[int]


class Preview(TypedDict):
    """
    The first rows of a file as a table.
    """

    type: Literal["csv", "tsv", "excel", "delimiter_format", "parquet", "ndjson", "avro", "arrow"]
    columns: list[PreviewColumn]
    preview_data: list[list[str]]
    warnings: NotRequired[list[PreviewWarning]]
    skip_rows: NotRequired[int]
    comment: NotRequired[str]
    escape: NotRequired[str]


SqlTypes: TypeAlias = list[str]
"\nType names of a dialect, sorted and unique.\n"


class CreateTableResponse(TypedDict):
    """
    The operation that creates the table.
    """

    status: Literal[0]
    history_uuid: str
    history_id: int
    path: str
    table: str


class ExportResponse(TypedDict):
    """
    The operation that exports the rows.
    """

    status: Literal[0]
    history_uuid: str
    history_id: int
    path: str | None
    table: str | None


class ConnectorSetting(TypedDict):
    """
    A setting of a connector. Secrets are masked.
    """

    name: str
    value: str | int | float | bool


class ConnectorOption(TypedDict):
    """
    A setting of a connector type, as a field of a form.
    """

    name: str
    kind: Literal["text", "multiline", "url", "secret", "integer", "boolean", "choice"]
    section: Literal["main", "advanced", "general", "unused"]
    description: str
    default: str | int | float | bool | None
    required: bool
    choices: list[str]
    minimum: int | None
    maximum: int | None


class ConnectorType(TypedDict):
    """
    A kind of data source that can be configured.
    """

    dialect: str
    interface: str
    category: Literal["editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins"]
    nice_name: str
    description: str
    name: str
    settings: list[ConnectorSetting]
    properties: DialectProperties
    is_runnable: bool


class Connector(TypedDict):
    """
    A configured data source.
    """

    id: str
    name: str
    nice_name: str
    dialect: str
    interface: str
    category: Literal["editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins"]
    description: str
    settings: list[ConnectorSetting]
    dialect_properties: DialectProperties
    is_runnable: bool
    version: int
    groups: NotRequired[list[str]]
    last_modified: str


class ConnectorGroup(TypedDict):
    """
    The connectors of a category.
    """

    category: Literal["editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins"]
    category_name: str
    description: str
    values: list[Connector]


class ConnectorTypeGroup(TypedDict):
    """
    The connector types of a category.
    """

    category: Literal["editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins"]
    category_name: str
    description: str
    values: list[ConnectorType]


class ConnectorCategoryEntry(TypedDict):
    """
    A category of connectors.
    """

    name: str
    type: Literal["editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins"]
    description: str


class ConnectorTypeList(TypedDict):
    """
    Response of connector/types.
    """

    connectors: list[ConnectorTypeGroup]
    categories: list[ConnectorCategoryEntry]
    status: Literal[0]


class ConnectorList(TypedDict):
    """
    The connectors that the caller may use.
    """

    connectors: list[ConnectorGroup]
    status: Literal[0]


class ConnectorTemplate(TypedDict):
    """
    A connector type with its defaults, as a template for connector/instance/update.
    """

    dialect: str
    interface: str
    category: Literal["editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins"]
    nice_name: str
    description: str
    name: str
    settings: list[ConnectorSetting]
    properties: DialectProperties
    is_runnable: bool
    dialect_properties: DialectProperties
    id: str | None
    options: list[ConnectorOption]


class ConnectorTemplateResponse(TypedDict):
    """
    Response of connector/instance/new.
    """

    connector: ConnectorTemplate
    status: Literal[0]


class ConnectorResponse(TypedDict):
    """
    A connector.
    """

    id: str
    name: str
    nice_name: str
    dialect: str
    interface: str
    category: Literal["editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins"]
    description: str
    settings: list[ConnectorSetting]
    dialect_properties: DialectProperties
    is_runnable: bool
    version: int
    groups: NotRequired[list[str]]
    last_modified: str
    options: list[ConnectorOption]
    status: Literal[0]


class ConnectorUpdateResponse(TypedDict):
    """
    A stored connector.
    """

    connector: Connector
    saved_as: bool
    status: Literal[0]


class ConnectorDeleteResponse(TypedDict):
    """
    The connector was deleted.
    """

    id: str
    status: Literal[0]


class ConnectionCheck(TypedDict):
    """
    A step of a connection test.
    """

    name: Literal["resolve", "connect", "login", "statement"]
    ok: bool
    ms: int


class ConnectorTestResponse(TypedDict):
    """
    Outcome of a connection test.
    """

    status: Literal[0]
    ok: bool
    warnings: str
    hasWarnings: bool
    reason: Literal["", "dns", "refused", "timeout", "tls", "auth", "engine", "other"]
    checks: list[ConnectionCheck]
    duration_ms: int
    server_version: str | None


class ConnectorExamplesResponse(TypedDict):
    """
    The outcome of an installation of examples.
    """

    status: Literal[0]
    message: str
    added: list[str]
    updated: list[str]
    unchanged: list[str]


class Group(TypedDict):
    """
    A group of users.
    """

    id: int
    name: str


class User(TypedDict):
    """
    A user.
    """

    id: int
    username: str
    first_name: str
    last_name: str
    email: str
    last_login: str | None
    editURL: str
    groups: NotRequired[list[Group]]


class UsersResponse(TypedDict):
    """
    Response of iam/users.
    """

    users: list[User]
    status: Literal[0]


class UserSummary(TypedDict):
    """
    A user in a list.
    """

    id: int
    username: str
    groups: list[str]
    is_active: bool
    superuser: bool
    is_service_account: bool
    first_name: str
    last_name: str
    email: str
    last_login: str | None


class UserListResponse(TypedDict):
    """
    Matching users, sorted by name.
    """

    users: list[UserSummary]
    count: int
    status: Literal[0]


class UserAutocompleteResponse(TypedDict):
    """
    Matching users and groups.
    """

    users: list[User]
    groups: list[Group]
    status: Literal[0]


class LinkedIdentity(TypedDict):
    """
    An external identity with which a user logs in.
    """

    issuer: str
    subject: str


class Account(TypedDict):
    """
    A user as administrators see it.
    """

    id: int
    username: str
    first_name: str
    last_name: str
    email: str
    groups: list[str]
    is_active: bool
    is_admin: bool
    superuser: bool
    is_service_account: bool
    has_password: bool
    identities: list[LinkedIdentity]
    last_login: str | None
    created_at: str


class AccountResponse(TypedDict):
    """
    A user as administrators see it.
    """

    status: Literal[0]
    user: Account


class GroupRights(TypedDict):
    """
    A group with its rights.
    """

    name: str
    rights: list[str]
    members: int
    is_default: bool


class GroupListResponse(TypedDict):
    """
    All groups with their rights.
    """

    status: Literal[0]
    groups: list[GroupRights]
    rights: list[str]


class GroupResponse(TypedDict):
    """
    A group with its rights.
    """

    status: Literal[0]
    group: GroupRights


class GroupDeleteResponse(TypedDict):
    """
    The group is deleted.
    """

    status: Literal[0]
    name: str


class Preferences(TypedDict):
    """
    A user's defaults for omitted fields.
    """

    big_numbers: Literal["number", "text"]


class PreferencesResponse(TypedDict):
    """
    The preferences of the caller.
    """

    status: Literal[0]
    preferences: Preferences


class Allowance(TypedDict):
    """
    A limit per UTC day, and how much of it is used.
    """

    limit: int | None
    used: int
    left: int | None


class Budget(TypedDict):
    """
    The budget of a user for the current UTC day.
    """

    username: str
    engine_s: Allowance
    bytes: Allowance
    resets_at: str


class BudgetResponse(TypedDict):
    """
    The budget of a user.
    """

    status: Literal[0]
    budget: Budget


class BudgetsResponse(TypedDict):
    """
    The budgets of the users who have used the most engine time today.
    """

    status: Literal[0]
    budgets: list[Budget]


class ApiToken(TypedDict):
    """
    An API token. Its value is returned only when the token is created.
    """

    id: str
    name: str
    username: str
    scopes: list[Literal["query", "query:read", "files:read", "files:write", "import", "admin"]]
    connectors: list[str] | None
    state: Literal["active", "expired", "revoked"]
    created_at: str
    created_by: str
    expires_at: str
    last_used_at: str | None
    max_estimated_bytes: int | None


class ApiTokenList(TypedDict):
    """
    A page of API tokens, including tokens that expired or were revoked within the last 30 days.
    """

    status: Literal[0]
    tokens: list[ApiToken]
    count: int


class NewApiTokenResponse(TypedDict):
    """
    The new API token.
    """

    status: Literal[0]
    token: ApiToken
    value: str


class ApiTokenResponse(TypedDict):
    """
    A revoked API token.
    """

    status: Literal[0]
    token: ApiToken


class SearchRecord(TypedDict):
    """
    A match of a search. Only `hue_name` and `hue_description` are HTML.
    """

    originalName: str
    name: str
    selectionName: str
    hue_name: str
    hue_description: str
    description: str
    originalDescription: str
    type: str
    sourceType: str
    parentPath: str
    owner: str
    tags: list[str]
    identity: str
    created: str | None
    lastModified: str | None
    connector: str | None
    dialect: str | None
    properties: dict[str, Any]
    customProperties: dict[str, Any]
    link: str
    doc_type: str | None
    uuid: str | None
    parentUuid: str | None
    last_modified: str | None
    internalType: NotRequired[str]
    meanings: NotRequired[list[dict[str, Any]]]
    meaningNames: NotRequired[list[str]]
    classifications: NotRequired[list[dict[str, Any]]]
    original_name: NotRequired[str]


class SearchSource(TypedDict):
    """
    The outcome of a search source.
    """

    ok: bool
    matched: int
    truncated: bool
    message: str


class SearchResponse(TypedDict):
    """
    Merged matches of all sources.
    """

    results: list[SearchRecord]
    facets: dict[str, dict[str, int]]
    count: int
    totalMatched: int
    limit: int
    offset: int
    sources: dict[str, SearchSource]
    warnings: list[str]
    status: Literal[0]


class Worker(TypedDict):
    """
    A worker process.
    """

    id: str
    started: str
    heartbeat: str
    running: int
    capacity: int


class TaskServerStatus(TypedDict):
    """
    State of the task server.
    """

    enabled: bool
    beat_enabled: bool
    beat_running: bool
    broker_ok: bool
    queued: int
    running: int
    workers: list[Worker]
    status: Literal[0]


class Task(TypedDict):
    """
    A task of the task server.
    """

    id: str
    name: str
    params: dict[str, Any]
    state: Literal["queued", "running", "finished", "failed", "canceled"]
    owner: str
    created: str
    started: str | None
    ended: str | None
    progress: int
    message: str
    result: dict[str, Any] | None


class TaskListResponse(TypedDict):
    """
    Tasks, newest first.
    """

    tasks: list[Task]
    count: int
    status: Literal[0]


class TaskResponse(TypedDict):
    """
    One task.
    """

    task: Task
    status: Literal[0]


class ScheduleNotice(TypedDict):
    """
    Notifications about the runs of a schedule.
    """

    on: list[str]
    to: list[str]
    url: str | None
    attach_csv: bool


class Schedule(TypedDict):
    """
    A statement or task that runs at scheduled times.
    """

    id: int
    version: int
    next_run: str | None
    last_run: str | None
    last_status: Literal["", "finished", "failed", "skipped"]
    last_history_uuid: str | None
    total_runs: int
    name: str
    enabled: bool
    owner: str
    kind: Literal["statement", "task"]
    connector: str | None
    database: str | None
    statement: str | None
    document: str | None
    parameters: Any
    into: dict[str, Any] | None
    task: str | None
    params: dict[str, Any]
    cron: str | None
    interval_s: int | None
    timezone: str
    overlap: Literal["skip", "queue"]
    expires_at: str | None
    notify: ScheduleNotice | None


class ScheduleListResponse(TypedDict):
    """
    Schedules by name.
    """

    schedules: list[Schedule]
    count: int
    beat_running: bool
    status: Literal[0]


class ScheduleResponse(TypedDict):
    """
    One schedule.
    """

    schedule: Schedule
    status: Literal[0]


class ScheduleRun(TypedDict):
    """
    A run of a schedule.
    """

    fire_id: str
    due: str
    status: Literal["", "finished", "failed", "skipped"]
    message: str
    history_uuid: str | None
    task_id: str | None
    started: str
    ended: str | None


class ScheduleRunListResponse(TypedDict):
    """
    Runs of a schedule, newest first.
    """

    runs: list[ScheduleRun]
    count: int
    status: Literal[0]


class ScheduleDeleteResponse(TypedDict):
    """
    The schedule was deleted.
    """

    id: int
    status: Literal[0]


class ScheduleRunResponse(TypedDict):
    """
    A run of the schedule was started.
    """

    fire_id: str
    status: Literal[0]


class EmailTestResponse(TypedDict):
    """
    The outcome of a test email.
    """

    ok: bool
    message: str
    status: Literal[0]


class StatementFailure(TypedDict):
    """
    A recorded statement that did not succeed. The HTTP status is 200.
    """

    status: Literal[1, 401, -3, -4]
    code: str
    message: str
    line: int | None
    column: int | None
    sqlstate: NotRequired[str]
    query_status: QueryStatus
    handle: Handle
    history_id: int
    history_uuid: str
    history_parent_uuid: NotRequired[str]
    statement_id: NotRequired[int]
    warning: NotRequired[str]


class LoginOptions(TypedDict):
    """
    The ways to log in that this server offers.
    """

    status: Literal[0]
    password: bool
    issuer: LoginIssuer | None
    device: bool


class ExecuteResponse(TypedDict):
    """
    A recorded statement, which will be run.
    """

    status: Literal[0]
    history_id: int
    history_uuid: str
    handle: Handle
    query_status: QueryStatus
    history_parent_uuid: NotRequired[str]
    warning: NotRequired[str]
    result: NotRequired[ResultPage]


class DelimitedMetadata(TypedDict):
    """
    The format of a delimited text file. Characters are not escaped.
    """

    type: Literal["csv", "tsv", "delimiter_format"]
    field_separator: str
    quote_char: str
    record_separator: str
    encoding: str
    confidence: float
    warnings: NotRequired[list[PreviewWarning]]
    skip_rows: NotRequired[int]
    comment: NotRequired[str]
    escape: NotRequired[str]


class NestedType(TypedDict):
    """
    Type of the elements of an array, or of the keys or values of a map.
    """

    type: str
    native_type: str
    item: NotRequired[NestedType]
    key: NotRequired[NestedType]
    value: NotRequired[NestedType]
    fields: NotRequired[list[NestedField]]


class NestedField(TypedDict):
    """
    A field of a struct or row.
    """

    name: str
    type: str
    native_type: str
    item: NotRequired[NestedType]
    key: NotRequired[NestedType]
    value: NotRequired[NestedType]
    fields: NotRequired[list[NestedField]]


class ColumnMetadata(TypedDict):
    """
    A column or a nested field. Arrays have `item`, maps `key` and `value`, structs `fields`.
    """

    status: Literal[0]
    name: str
    type: str
    native_type: str
    comment: str
    nullable: bool | None
    default: str | None
    primary_key: bool | None
    partition_key: bool
    sample: list[Any]
    item: NotRequired[NestedType]
    key: NotRequired[NestedType]
    value: NotRequired[NestedType]
    fields: NotRequired[list[NestedField]]
