# Generated from openapi/resources.yaml by scripts/generate_models.py (make models); never edited.
"""Wire models: one class for each resource of openapi/resources.yaml."""

from typing import Annotated, Any, Literal
from pydantic import ConfigDict, Field, RootModel
from queryserver.api.schemas.fields import Omittable, Time, WireModel, one_of


class ErrorBody(WireModel):
    """
    A failed call. `code` is stable. `message` is meant for people and may change.
    """

    status: Annotated[int, one_of(-1, 1, 2, 5, 401, -3, -4)]
    code: str
    message: str
    errors: Omittable[dict[str, list[str]]] = None
    error_id: Omittable[str] = None
    retry_after: Omittable[int] = None
    details: Omittable[dict[str, Any]] = None
    version: Omittable[int] = None
    running: Omittable[int] = None
    scope: Omittable[str] = None


class TokenMessage(WireModel):
    """
    Why a token was rejected.
    """

    token_class: Annotated[str, one_of("AccessToken", "RefreshToken")]
    token_type: Annotated[str, one_of("access", "refresh")]
    message: str


class Unauthorized(WireModel):
    """
    Body of every 401 response. It has only `detail` if the call has no credentials.
    """

    detail: str
    code: Omittable[str] = None
    messages: Omittable[list[TokenMessage]] = None


class FieldErrors(RootModel[dict[str, list[str]]]):
    """
    Body of a 400 response to a token call: the problems of each invalid field.
    """

    root: dict[str, list[str]]


class TokenPair(WireModel):
    """
    The access token and refresh token of a login.
    """

    refresh: str
    access: str


class TokenVerifyResponse(WireModel):
    """
    The token is valid. The object is empty.
    """


class TokenRefreshResponse(WireModel):
    """
    A new access token.
    """

    access: str
    refresh: Omittable[str] = None


class TokenRevokeResponse(WireModel):
    """
    The token was revoked. The object is empty.
    """


class LoginIssuer(WireModel):
    """
    An external issuer at which users log in.
    """

    name: str


class SessionResponse(WireModel):
    """
    A new access token. The refresh token of the session is in a cookie.
    """

    status: Literal[0]
    access: str
    expires_in: int
    refresh: Omittable[str] = None


class IssuerLoginResponse(WireModel):
    """
    A login at the external issuer that this browser has begun.
    """

    status: Literal[0]
    url: str


class DeviceLoginResponse(WireModel):
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


class DevicePollResponse(WireModel):
    """
    The state of a login of a program.
    """

    status: Literal[0]
    state: Annotated[str, one_of("pending", "slow_down", "done")]
    access: Omittable[str] = None
    refresh: Omittable[str] = None
    expires_in: Omittable[int] = None


class SessionEnded(WireModel):
    """
    The session has ended.
    """

    status: Literal[0]


class DownloadTicketResponse(WireModel):
    """
    The address of a download with its ticket.
    """

    status: Literal[0]
    url: str


class Position(WireModel):
    """
    A position in the submitted script. Both numbers are 0-based; columns count Unicode code points.
    """

    row: int
    column: int


class Handle(WireModel):
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


class ScriptStatement(WireModel):
    """
    A started statement of a script that was executed with `run_all`.
    """

    statement_id: int
    operationId: str
    status: Annotated[str, one_of("waiting", "running", "available", "failed", "canceled", "expired", "closed")]
    state: Annotated[
        str,
        one_of("waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"),
    ]
    has_result_set: bool
    message: str
    rows: int
    truncated: bool
    truncated_reason: Annotated[str, one_of("row_limit", "byte_limit")] | None
    truncated_by: Annotated[str, one_of("default_limit", "limit", "result_max_rows", "result_max_bytes")] | None
    modified_row_count: int | None
    code: Omittable[str] = None
    line: int | None
    column: int | None
    sqlstate: Omittable[str] = None
    start: Position
    end: Position
    started: Time | None
    ended: Time | None
    elapsed_ms: int
    estimated_bytes: Omittable[int] = None
    scanned_bytes: Omittable[int] = None


class QueryStatus(WireModel):
    """
    The state of an operation. Clients poll while `status` is `waiting` or `running`.
    """

    status: Annotated[str, one_of("waiting", "running", "available", "failed", "canceled", "expired", "closed")]
    has_result_set: bool
    state: Annotated[
        str,
        one_of("waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"),
    ]
    message: str
    rows: int
    truncated: bool
    truncated_reason: Annotated[str, one_of("row_limit", "byte_limit")] | None
    truncated_by: Annotated[str, one_of("default_limit", "limit", "result_max_rows", "result_max_bytes")] | None
    modified_row_count: int | None
    expires_at: Time | None
    submitted: Time
    started: Time | None
    ended: Time | None
    elapsed_ms: int
    queued_ms: int
    queue_position: int | None
    statements: Omittable[list[ScriptStatement]] = None
    reused_from: Omittable[str] = None
    estimated_bytes: Omittable[int] = None
    scanned_bytes: Omittable[int] = None
    reused_age_s: Omittable[int] = None


class StatusResponse(WireModel):
    """
    The state of an operation, from the record of this service and not from the engine.
    """

    status: Literal[0]
    query_status: QueryStatus


class ColumnMeta(WireModel):
    """
    A column of a result.
    """

    name: str
    type: Annotated[
        str,
        one_of(
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
        ),
    ]
    comment: str
    native_type: str
    as_text: Omittable[bool] = None


class ResultPage(WireModel):
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
    truncated_reason: Annotated[str, one_of("row_limit", "byte_limit")] | None
    truncated_by: Annotated[str, one_of("default_limit", "limit", "result_max_rows", "result_max_bytes")] | None
    expires_at: Time | None
    message: Omittable[str] = None


class ResultResponse(WireModel):
    """
    Response of fetch_result_data.
    """

    status: Literal[0]
    result: ResultPage


class ResultMetadata(WireModel):
    """
    The columns of a result.
    """

    meta: list[ColumnMeta]


class ResultMetadataResponse(WireModel):
    """
    Response of fetch_result_metadata.
    """

    status: Literal[0]
    result: ResultMetadata


class ResultSize(WireModel):
    """
    Size of the stored result; null until the statement has ended.
    """

    rows: int | None
    size: int | None
    message: str
    truncated: bool


class ResultSizeResponse(WireModel):
    """
    Response of fetch_result_size.
    """

    status: Literal[0]
    result: ResultSize


class Share(WireModel):
    """
    A user or a group to whom a result is granted.
    """

    user: str | None
    group: str | None
    title: str
    shared_at: Time
    until: Time


class SharesResponse(WireModel):
    """
    The valid grants of a result.
    """

    status: Literal[0]
    operationId: str
    link: str
    share_results: Annotated[str, one_of("never", "users_of_connector", "anyone")]
    expires_at: Time | None
    changed: int
    shares: list[Share]


class SharedResultEntry(WireModel):
    """
    A result that another user has granted to the caller.
    """

    operationId: str
    link: str
    title: str
    shared_by: str
    shared_at: Time
    until: Time
    type: str
    state: Annotated[
        str,
        one_of("waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"),
    ]
    rows: int
    submitted: Time
    expires_at: Time | None


class SharedWithMeResponse(WireModel):
    """
    Results that other users have granted to the caller, newest grant first.
    """

    status: Literal[0]
    count: int
    results: list[SharedResultEntry]


class SharedResultResponse(WireModel):
    """
    A result as its link shows it.
    """

    status: Literal[0]
    operationId: str
    title: str
    shared_by: str
    until: Time | None
    query_status: QueryStatus
    meta: list[ColumnMeta]


class Job(WireModel):
    """
    A job that the engine reports for a statement.
    """

    name: str
    url: str
    started: bool
    finished: bool
    percentJob: int | None


class LogsResponse(WireModel):
    """
    Log lines of an operation.
    """

    status: Literal[0]
    progress: int
    jobs: list[Job]
    logs: str
    isFullLogs: bool
    next_from: int
    submitted: Time
    started: Time | None
    ended: Time | None
    elapsed_ms: int
    queued_ms: int
    queue_position: int | None


class ActionResult(WireModel):
    """
    Outcome of cancel_statement or close_statement.
    """

    status: Annotated[int, one_of(0, -1)]


class CancelResponse(WireModel):
    """
    Response of cancel_statement, with the current state of the operation.
    """

    status: Literal[0]
    result: ActionResult
    query_status: QueryStatus


class CloseResponse(WireModel):
    """
    Response of close_statement.
    """

    status: Literal[0]
    result: ActionResult
    message: str


class WatchResponse(WireModel):
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


class WatchFailure(WireModel):
    """
    The status and log of an operation that did not succeed.
    """

    status: Annotated[int, one_of(1, 401, -3, -4)]
    code: str
    message: str
    line: int | None
    column: int | None
    sqlstate: Omittable[str] = None
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
    statement_id: Omittable[int] = None


class ProgressEvent(WireModel):
    """
    Data of the server-sent event `progress`.
    """

    progress: int
    rows: int
    jobs: list[Job]


class LogEvent(WireModel):
    """
    Data of the server-sent event `log`: the lines [from, next_from).
    """

    from_: Annotated[int, Field(alias="from")]
    next_from: int
    logs: str


class ExplainResponse(WireModel):
    """
    The engine's plan of a statement that was not run.
    """

    status: Literal[0]
    explanation: str
    statement: str
    estimated_bytes: Omittable[int] = None
    estimated_cost: Omittable[float] = None


class ExplainFailure(WireModel):
    """
    The engine refused to explain the statement. The HTTP status is 200.
    """

    status: Literal[1]
    code: str
    message: str
    line: int | None
    column: int | None
    statement: str


class FormatResponse(WireModel):
    """
    Formatted statements.
    """

    status: Literal[0]
    formatted_statements: str


class HistoryData(WireModel):
    """
    The statement of a history entry.
    """

    statement: str
    lastExecuted: int
    status: Annotated[str, one_of("waiting", "running", "available", "failed", "canceled", "expired", "closed")]
    parentSavedQueryUuid: str
    state: Annotated[
        str,
        one_of("waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"),
    ]
    message: str
    line: int | None
    column: int | None
    connector: Omittable[str] = None
    database: str
    rows: int
    parameters: Omittable[int] = None
    submitted: Time
    started: Time | None
    ended: Time | None
    elapsed_ms: int
    queued_ms: int
    queue_position: int | None
    reused_from: Omittable[str] = None
    reused_age_s: Omittable[int] = None


class HistoryEntry(WireModel):
    """
    One operation of the caller.
    """

    name: str
    id: int
    uuid: str
    type: str
    data: HistoryData
    absoluteUrl: str


class HistoryResponse(WireModel):
    """
    The caller's operations, newest first.
    """

    status: Literal[0]
    count: int
    message: str
    history: list[HistoryEntry]


class Notebook(WireModel):
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


class NotebookResponse(WireModel):
    """
    Response of create_notebook.
    """

    status: Literal[0]
    notebook: Notebook


class DocumentParameter(WireModel):
    """
    A parameter of a document's statement.
    """

    name: str
    type: (
        Annotated[
            str,
            one_of(
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
            ),
        ]
        | None
    )
    default: Any


class DocumentGrant(WireModel):
    """
    A permission of a user or of a group.
    """

    user: str | None
    group: str | None
    permission: Annotated[str, one_of("view", "run", "edit", "manage")]


class Document(WireModel):
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
    created: Time
    modified: Time
    last_modified: Time
    modified_by: str
    permission: Annotated[str, one_of("view", "run", "edit", "manage")]
    is_trashed: bool
    absoluteUrl: str
    grants: list[DocumentGrant]


class DocumentEntry(WireModel):
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
    created: Time
    modified: Time
    last_modified: Time
    modified_by: str
    permission: Annotated[str, one_of("view", "run", "edit", "manage")]
    is_trashed: bool
    absoluteUrl: str


class DocumentListResponse(WireModel):
    """
    Documents, last changed first.
    """

    documents: list[DocumentEntry]
    next_after: str | None
    status: Literal[0]


class SavedConnector(WireModel):
    """
    The connector of a snippet.
    """

    id: str
    type: str
    dialect: str | None


class SavedSnippet(WireModel):
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


class SavedNotebook(WireModel):
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


class DocumentResponse(WireModel):
    """
    One document.
    """

    document: Document
    data: SavedNotebook
    status: Literal[0]


class DocumentSaveResponse(WireModel):
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


class DocumentOwnerResponse(WireModel):
    """
    The documents have the new owner.
    """

    changed: Annotated[int, Field(ge=0)]
    status: Literal[0]


class DocumentDeleteResponse(WireModel):
    """
    The document was deleted.
    """

    uuid: str
    status: Literal[0]


class DocumentVersionEntry(WireModel):
    """
    A version in a list.
    """

    version: int
    name: str
    modified: Time
    modified_by: str


class DocumentVersionListResponse(WireModel):
    """
    Versions of a document, newest first.
    """

    versions: list[DocumentVersionEntry]
    status: Literal[0]


class DocumentVersion(WireModel):
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
    modified: Time
    modified_by: str


class DocumentVersionResponse(WireModel):
    """
    One version of a document.
    """

    version: DocumentVersion
    status: Literal[0]


class Session(WireModel):
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
    expires_at: Time | None


class CreateSessionResponse(WireModel):
    """
    Response of create_session.
    """

    status: Literal[0]
    session: Session


class ClosedSession(WireModel):
    """
    A closed session.
    """

    id: int
    application: str
    status: Literal[4]


class SessionClosure(WireModel):
    """
    Outcome of close_session.
    """

    status: Literal[0]
    message: str
    session: ClosedSession | None


class CloseSessionResponse(WireModel):
    """
    Response of close_session.
    """

    status: Literal[0]
    session: SessionClosure


class HealthCheck(WireModel):
    """
    Outcome of one check.
    """

    ok: bool
    ms: int


class BrokerCheck(WireModel):
    """
    Outcome of the broker's check.
    """

    ok: bool
    ms: int
    enabled: bool


class HealthChecks(WireModel):
    """
    Checks of the components that the service requires, without addresses and error messages.
    """

    database: HealthCheck
    schema_: Annotated[HealthCheck, Field(alias="schema")]
    result_store: HealthCheck
    broker: BrokerCheck


class ReadyResponse(WireModel):
    """
    The instance accepts calls.
    """

    status: Literal[0]
    ready: bool
    checks: HealthChecks


class NotReadyResponse(WireModel):
    """
    The instance does not accept calls, because it is stopping or a required component is unavailable. The HTTP status is 503.
    """

    status: Literal[-1]
    code: Annotated[str, one_of("not_ready", "stopping")]
    message: str
    ready: bool
    checks: HealthChecks


class DatabaseList(WireModel):
    """
    Databases of a data source.
    """

    status: Literal[0]
    databases: list[str]
    truncated: bool


class TableSummary(WireModel):
    """
    A table or view in a list.
    """

    name: str
    type: Annotated[str, one_of("Table", "View", "Materialized_view")]
    comment: str


class DatabaseMetadata(WireModel):
    """
    Tables and views of a database.
    """

    status: Literal[0]
    tables_meta: list[TableSummary]
    truncated: bool


class ColumnSummary(WireModel):
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


class PartitionKey(WireModel):
    """
    A partition column.
    """

    name: str
    type: str


class PrimaryKey(WireModel):
    """
    A column of the primary key.
    """

    name: str


class ForeignKey(WireModel):
    """
    A column that references another table.
    """

    name: str
    to: str


class TableMetadata(WireModel):
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


class FunctionSummary(WireModel):
    """
    A function in a list. Properties that the engine does not report are empty.
    """

    name: str
    signature: str
    return_type: str
    is_builtin: str
    is_persistent: str


class FunctionList(WireModel):
    """
    Functions of a data source or of one database.
    """

    status: Literal[0]
    functions: list[FunctionSummary]
    truncated: bool


class FunctionDetail(WireModel):
    """
    A function. The object is empty if the engine cannot list functions.
    """

    name: Omittable[str] = None
    signature: Omittable[str] = None
    description: Omittable[str] = None
    return_type: Omittable[str] = None
    is_builtin: Omittable[str] = None
    is_persistent: Omittable[str] = None


class FunctionResponse(WireModel):
    """
    Details of one function.
    """

    status: Literal[0]
    function: FunctionDetail


class SampleResponse(WireModel):
    """
    Sample rows of a table, or values of a column.
    """

    status: Literal[0]
    headers: list[str]
    full_headers: list[ColumnMeta]
    rows: list[list[Any]]
    message: str
    isEscaped: bool


class SampleStart(WireModel):
    """
    The operation that returns the sample.
    """

    status: Literal[0]
    handle: Handle


class SampleStartResponse(WireModel):
    """
    Response of a sample call with `async`.
    """

    status: Literal[0]
    result: SampleStart
    operationId: str
    history_uuid: str


class DatabaseDescription(WireModel):
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


class DescribedColumn(WireModel):
    """
    A column or partition column of a described table.
    """

    name: str
    type: str
    comment: str
    nullable: bool | None
    default: str | None


class TableProperty(WireModel):
    """
    One property or statistic of a described table.
    """

    col_name: str
    data_type: str
    comment: str


class TableDetailProperties(WireModel):
    """
    Properties of a described table that are the same for all engines.
    """

    owner: str
    create_time: Time | Literal[""]
    table_type: Annotated[str, one_of("MANAGED_TABLE", "EXTERNAL_TABLE", "VIRTUAL_VIEW", "MATERIALIZED_VIEW")]
    format: str


class TableDetails(WireModel):
    """
    Properties and statistics of a described table.
    """

    properties: TableDetailProperties
    stats: dict[str, str]


class TableDescription(WireModel):
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


class ColumnDescription(WireModel):
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


class AnalyzeResponse(WireModel):
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


class DialectProperties(WireModel):
    """
    Properties of a SQL dialect for editors; empty for other types.
    """

    is_sql: Omittable[bool] = None
    sql_identifier_quote: Omittable[str] = None
    sql_identifier_comment_single: Omittable[str] = None
    has_catalog: Omittable[bool] = None
    has_database: Omittable[bool] = None
    has_table: Omittable[bool] = None
    has_live_queries: Omittable[bool] = None
    has_optimizer_risks: Omittable[bool] = None
    has_optimizer_values: Omittable[bool] = None
    has_auto_limit: Omittable[bool] = None
    has_reference_language: Omittable[bool] = None
    has_reference_functions: Omittable[bool] = None
    has_use_statement: Omittable[bool] = None


class Interpreter(WireModel):
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


class CatalogEntry(WireModel):
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


class BrowserEntry(WireModel):
    """
    A browser that the caller may use.
    """

    type: Annotated[str, one_of("hdfs", "s3", "abfs", "ofs", "file", "tables", "yarn", "importer", "celery-beat")]
    displayName: str
    buttonName: str
    tooltip: str
    page: str


class EditorApp(WireModel):
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


class BrowserApp(WireModel):
    """
    The browser application.
    """

    name: str
    displayName: str
    buttonName: str
    interpreters: list[BrowserEntry]
    interpreter_names: list[str]


class SchedulerApp(WireModel):
    """
    The scheduler application.
    """

    name: str
    displayName: str
    buttonName: str
    interpreters: list[BrowserEntry]
    interpreter_names: list[str]
    page: str


class HomeApp(WireModel):
    """
    The home page with documents.
    """

    name: str
    displayName: str
    buttonName: str
    interpreters: list[Any]
    page: str


class AppConfig(WireModel):
    """
    Applications that the caller may use.
    """

    editor: EditorApp
    catalogs: list[CatalogEntry]
    browser: BrowserApp
    scheduler: Omittable[SchedulerApp] = None
    home: HomeApp


class ServiceFlags(WireModel):
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


class StorageBrowserConfig(WireModel):
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


class ImporterConfig(WireModel):
    """
    Settings of the importer.
    """

    is_enabled: bool
    restrict_local_file_extensions: list[str] | None
    max_local_file_size_upload_limit: int


class Cluster(WireModel):
    """
    A cluster; credentials are always empty.
    """

    id: str
    name: str
    type: str
    credentials: dict[str, Any]


class DocumentsConfig(WireModel):
    """
    Document types of the caller.
    """

    types: list[str]


class ClientConfiguration(WireModel):
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


class Namespace(WireModel):
    """
    A namespace of a data source.
    """

    id: str
    name: str
    status: Literal["CREATED"]
    computes: list[Cluster]


class Compute(WireModel):
    """
    A compute of a data source.
    """

    id: str
    name: str
    namespace: str
    interface: str
    type: str
    options: dict[str, Any]


class NamespacesResponse(WireModel):
    """
    The namespaces. The key is the interface in the path.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[Namespace]]
    status: Literal[0]


class ComputesResponse(WireModel):
    """
    The computes. The key is the interface in the path.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[Compute]]
    status: Literal[0]


class ClustersResponse(WireModel):
    """
    The clusters. The key is the interface in the path.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[Cluster]]
    status: Literal[0]


class BannersResponse(WireModel):
    """
    The banner of the service.
    """

    system: str | None
    configured: str
    status: Literal[0]


class ConfigProblem(WireModel):
    """
    A problem in the settings. Secrets are masked.
    """

    name: str
    message: str
    value: str
    level: Annotated[str, one_of("error", "warning")]


class CheckConfigResponse(WireModel):
    """
    Response of check_config.
    """

    hue_config_dir: str
    config_errors: list[ConfigProblem]
    status: Literal[0]


class ServerLogsResponse(WireModel):
    """
    The last lines of the server log.
    """

    hue_hostname: str
    logs: list[str]
    status: Literal[0]


class AdminStatement(WireModel):
    """
    A statement of any user, without its text.
    """

    id: str
    history_id: int
    user: str
    connector: str
    dialect: str
    state: Annotated[
        str,
        one_of("waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"),
    ]
    submitted: Time
    started: Time | None
    ended: Time | None
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


class AdminInstance(WireModel):
    """
    A process of the fleet: a server, a worker or the beat.
    """

    id: str
    kind: Annotated[str, one_of("server", "worker", "beat")]
    name: str
    version: str
    started: Time
    heartbeat: Time
    is_alive: bool
    running: int
    capacity: int


class AdminInstancesResponse(WireModel):
    """
    Processes of the fleet, in the order of their starts.
    """

    status: Literal[0]
    instances: list[AdminInstance]


class DoctorFinding(WireModel):
    """
    A finding about one area of the deployment. It contains no secrets and no paths of the server.
    """

    area: str
    state: Annotated[str, one_of("ok", "warning", "error")]
    what: str
    to_do: str


class AdminDoctorResponse(WireModel):
    """
    Findings of `queryserver doctor`, area by area.
    """

    status: Literal[0]
    host: str
    took_ms: int
    errors: int
    warnings: int
    findings: list[DoctorFinding]


class AdminStatementsResponse(WireModel):
    """
    Statements of all users, newest first.
    """

    status: Literal[0]
    statements: list[AdminStatement]
    next_after: int | None


class AdminStatementResponse(WireModel):
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
    deadline: Time


class AdminCancelResponse(WireModel):
    """
    The statement after the cancellation was requested. It may still be running if its engine has not confirmed the cancellation.
    """

    status: Literal[0]
    statement: AdminStatement


class AppExamplesResponse(WireModel):
    """
    Examples that can be installed.
    """

    apps: dict[str, str]
    status: Literal[0]


class InstallAppExamplesResponse(WireModel):
    """
    The examples were installed.
    """

    message: str
    status: Literal[0]


class FilesystemConfig(WireModel):
    """
    Properties of a file system and the caller, with the same keys for all file systems. The keys for HDFS are false, empty or null for other file systems, and while the HDFS cluster does not respond.
    """

    is_trash_enabled: bool
    is_hdfs_superuser: bool
    groups: list[str]
    users: list[str]
    superuser: str | None
    supergroup: str | None


class Filesystem(WireModel):
    """
    A file system that the caller may use.
    """

    file_system: Annotated[str, one_of("hdfs", "s3a", "abfs", "ofs", "file")]
    name: str
    user_home_directory: str
    has_trash: bool
    supports: list[Annotated[str, one_of("summary", "permissions", "owners", "recursive", "replication")]]
    config: FilesystemConfig


class FilesystemList(RootModel[list[Filesystem]]):
    """
    Response of storage/filesystems.
    """

    root: Annotated[list[Filesystem], Field(description="Response of storage/filesystems.")]


class FileStats(WireModel):
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


class FileEntry(WireModel):
    """
    An entry of a directory view.
    """

    path: str
    name: str
    stats: FileStats
    mtime: str
    humansize: str
    type: Annotated[str, one_of("dir", "file", "link", "unknown")]
    rwx: str
    mode: str
    url: str
    is_sentry_managed: bool


class FlatFileEntry(WireModel):
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
    type: Annotated[str, one_of("dir", "file", "link", "unknown")]
    rwx: str


class StatResponse(WireModel):
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
    type: Annotated[str, one_of("dir", "file", "link", "unknown")]
    rwx: str


class Breadcrumb(WireModel):
    """
    One component of a path.
    """

    url: str
    label: str


class ListingPage(WireModel):
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


class FileListing(WireModel):
    """
    Response of storage/list.
    """

    status: Literal[0]
    path: str
    files: list[FlatFileEntry]
    page: ListingPage


class DirectoryView(WireModel):
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


class FileDisplay(WireModel):
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
    compression: Annotated[str, one_of("none", "gzip", "bz2", "avro", "parquet", "snappy")]


class FileWindow(WireModel):
    """
    The displayed part of a file.
    """

    offset: int
    length: int
    end: int
    dirname: str
    mode: Annotated[str, one_of("text", "binary")]
    compression: Annotated[str, one_of("none", "gzip", "bz2", "avro", "parquet", "snappy")]
    size: int
    max_chunk_size: str
    contents: str
    masked_binary_data: bool
    xxd: Omittable[list[list[Any]]] = None


class FileView(WireModel):
    """
    Response of storage/view on a file.
    """

    path: str
    name: str
    stats: FileStats
    mtime: str
    humansize: str
    type: Annotated[str, one_of("dir", "file", "link", "unknown")]
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


class ContentSummaryCounts(WireModel):
    """
    Number of entries and bytes below a path, and its quotas.
    """

    model_config = ConfigDict(extra="allow")
    directoryCount: int
    fileCount: int
    length: int
    quota: int
    spaceConsumed: int
    spaceQuota: int
    typeQuota: dict[str, Any]
    replication: int


class ContentSummaryResponse(WireModel):
    """
    Response of storage/content_summary. Further keys from the store are passed on.
    """

    model_config = ConfigDict(extra="allow")
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


class PathResponse(WireModel):
    """
    The changed path.
    """

    status: Literal[0]
    path: str


class SaveResponse(WireModel):
    """
    Response of storage/save.
    """

    status: Literal[0]
    path: str
    size: int


class ReplicationResponse(WireModel):
    """
    Response of storage/set_replication.
    """

    status: Literal[0]
    path: str
    replication: int


class ChownResponse(WireModel):
    """
    Response of storage/chown.
    """

    status: Literal[0]
    path: str
    user: str | None
    group: str | None


class ChmodResponse(WireModel):
    """
    Response of storage/chmod.
    """

    status: Literal[0]
    path: str
    mode: str


class TransferResponse(WireModel):
    """
    Response of rename, move and copy.
    """

    status: Literal[0]
    path: str
    source: str
    message: str
    details: Omittable[dict[str, Any]] = None
    skipped_files: Omittable[str] = None


class SkippedFiles(RootModel[str]):
    root: Annotated[
        str,
        Field(
            description="Response of a copy on Ozone: the skipped files that are larger than the chunk size; may be empty."
        ),
    ]


class DeleteResponse(WireModel):
    """
    Response of storage/rmtree.
    """

    status: Literal[0]
    path: str
    trashed: bool
    trash_path: str | None


class BulkResponse(WireModel):
    """
    Outcome of a bulk call.
    """

    status: Annotated[int, one_of(0, -1)]
    code: Omittable[str] = None
    message: Omittable[str] = None
    results: dict[str, dict[str, Any]]


class RunningOperation(WireModel):
    """
    The operation continues after the response. The HTTP status is 202.
    """

    status: Literal[0]
    path: str
    operation_id: str
    state: Literal["running"]


class OperationProgress(WireModel):
    """
    Progress of a long operation.
    """

    status: Literal[0]
    operation_id: str
    state: Annotated[str, one_of("running", "done", "failed")]
    done: int
    total: int | None
    result: dict[str, Any] | str | None


class TrashPathResponse(WireModel):
    """
    The trash directory of a path.
    """

    status: Literal[0]
    path: str
    trash_path: str | None


class RestoreResponse(WireModel):
    """
    Response of storage/trash/restore.
    """

    status: Literal[0]
    path: str
    source: str


class PurgeResponse(WireModel):
    """
    Response of storage/trash/purge.
    """

    status: Literal[0]
    path: str
    purged: int


class UploadResponse(WireModel):
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


class UploadPartResponse(WireModel):
    """
    A part of a file was uploaded.
    """

    status: Literal[0]
    uuid: str
    path: str
    part: int
    received: list[list[int]]
    offset: int


class UploadStateResponse(WireModel):
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
    expires_at: Time


class UploadCompleteResponse(WireModel):
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


class AvailableSpaceResponse(WireModel):
    """
    Response of available_space.
    """

    status: Literal[0]
    upload_available_space: int


class ImporterError(WireModel):
    """
    A failure of the importer.
    """

    error: str
    code: str
    column: Omittable[int] = None


class ImportedFile(WireModel):
    """
    An uploaded file.
    """

    file_path: str
    size: int
    expires_at: Time


class DiscardedFile(WireModel):
    """
    The outcome of discarding an uploaded file.
    """

    status: Literal[0]
    discarded: bool


class ExcelMetadata(WireModel):
    """
    The sheets of a workbook.
    """

    type: Literal["excel"]
    sheet_names: list[str]


class RecordsMetadata(WireModel):
    """
    The format of a file whose records contain column names.
    """

    type: Annotated[str, one_of("parquet", "ndjson", "avro", "arrow")]


class HeaderGuess(WireModel):
    """
    Whether the first row looks like column names.
    """

    has_header: bool
    skip_rows: Omittable[int] = None
    comment: Omittable[str] = None


class PreviewColumn(WireModel):
    """
    A column typed for the chosen dialect.
    """

    name: str
    type: str
    precision: Omittable[int] = None
    scale: Omittable[int] = None
    source: Omittable[int] = None
    format: Omittable[str] = None
    null_words: Omittable[list[str]] = None


class PreviewWarning(WireModel):
    """
    An anomaly in the file.
    """

    code: Annotated[
        str,
        one_of(
            "long_rows",
            "short_rows",
            "unclosed_quote",
            "undecodable",
            "truncated_sample",
            "encoding_uncertain",
            "skipped_lines",
            "formulas_without_values",
            "null_words",
        ),
    ]
    count: int
    rows: list[int]


class Preview(WireModel):
    """
    The first rows of a file as a table.
    """

    type: Annotated[str, one_of("csv", "tsv", "excel", "delimiter_format", "parquet", "ndjson", "avro", "arrow")]
    columns: list[PreviewColumn]
    preview_data: list[list[str]]
    warnings: Omittable[list[PreviewWarning]] = None
    skip_rows: Omittable[int] = None
    comment: Omittable[str] = None
    escape: Omittable[str] = None


class SqlTypes(RootModel[list[str]]):
    """
    Type names of a dialect, sorted and unique.
    """

    root: Annotated[list[str], Field(description="Type names of a dialect, sorted and unique.")]


class CreateTableResponse(WireModel):
    """
    The operation that creates the table.
    """

    status: Literal[0]
    history_uuid: str
    history_id: int
    path: str
    table: str


class ExportResponse(WireModel):
    """
    The operation that exports the rows.
    """

    status: Literal[0]
    history_uuid: str
    history_id: int
    path: str | None
    table: str | None


class ConnectorSetting(WireModel):
    """
    A setting of a connector. Secrets are masked.
    """

    name: str
    value: str | int | float | bool


class ConnectorOption(WireModel):
    """
    A setting of a connector type, as a field of a form.
    """

    name: str
    kind: Annotated[str, one_of("text", "multiline", "url", "secret", "integer", "boolean", "choice")]
    section: Annotated[str, one_of("main", "advanced", "general", "unused")]
    description: str
    default: str | int | float | bool | None
    required: bool
    choices: list[str]
    minimum: int | None
    maximum: int | None


class ConnectorType(WireModel):
    """
    A kind of data source that can be configured.
    """

    dialect: str
    interface: str
    category: Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")]
    nice_name: str
    description: str
    name: str
    settings: list[ConnectorSetting]
    properties: DialectProperties
    is_runnable: bool


class Connector(WireModel):
    """
    A configured data source.
    """

    id: str
    name: str
    nice_name: str
    dialect: str
    interface: str
    category: Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")]
    description: str
    settings: list[ConnectorSetting]
    dialect_properties: DialectProperties
    is_runnable: bool
    version: int
    groups: Omittable[list[str]] = None
    last_modified: Time


class ConnectorGroup(WireModel):
    """
    The connectors of a category.
    """

    category: Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")]
    category_name: str
    description: str
    values: list[Connector]


class ConnectorTypeGroup(WireModel):
    """
    The connector types of a category.
    """

    category: Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")]
    category_name: str
    description: str
    values: list[ConnectorType]


class ConnectorCategoryEntry(WireModel):
    """
    A category of connectors.
    """

    name: str
    type: Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")]
    description: str


class ConnectorTypeList(WireModel):
    """
    Response of connector/types.
    """

    connectors: list[ConnectorTypeGroup]
    categories: list[ConnectorCategoryEntry]
    status: Literal[0]


class ConnectorList(WireModel):
    """
    The connectors that the caller may use.
    """

    connectors: list[ConnectorGroup]
    status: Literal[0]


class ConnectorTemplate(WireModel):
    """
    A connector type with its defaults, as a template for connector/instance/update.
    """

    dialect: str
    interface: str
    category: Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")]
    nice_name: str
    description: str
    name: str
    settings: list[ConnectorSetting]
    properties: DialectProperties
    is_runnable: bool
    dialect_properties: DialectProperties
    id: str | None
    options: list[ConnectorOption]


class ConnectorTemplateResponse(WireModel):
    """
    Response of connector/instance/new.
    """

    connector: ConnectorTemplate
    status: Literal[0]


class ConnectorResponse(WireModel):
    """
    A connector.
    """

    id: str
    name: str
    nice_name: str
    dialect: str
    interface: str
    category: Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")]
    description: str
    settings: list[ConnectorSetting]
    dialect_properties: DialectProperties
    is_runnable: bool
    version: int
    groups: Omittable[list[str]] = None
    last_modified: Time
    options: list[ConnectorOption]
    status: Literal[0]


class ConnectorUpdateResponse(WireModel):
    """
    A stored connector.
    """

    connector: Connector
    saved_as: bool
    status: Literal[0]


class ConnectorDeleteResponse(WireModel):
    """
    The connector was deleted.
    """

    id: str
    status: Literal[0]


class ConnectionCheck(WireModel):
    """
    A step of a connection test.
    """

    name: Annotated[str, one_of("resolve", "connect", "login", "statement")]
    ok: bool
    ms: int


class ConnectorTestResponse(WireModel):
    """
    Outcome of a connection test.
    """

    status: Literal[0]
    ok: bool
    warnings: str
    hasWarnings: bool
    reason: Annotated[str, one_of("", "dns", "refused", "timeout", "tls", "auth", "engine", "other")]
    checks: list[ConnectionCheck]
    duration_ms: int
    server_version: str | None


class ConnectorExamplesResponse(WireModel):
    """
    The outcome of an installation of examples.
    """

    status: Literal[0]
    message: str
    added: list[str]
    updated: list[str]
    unchanged: list[str]


class Group(WireModel):
    """
    A group of users.
    """

    id: int
    name: str


class User(WireModel):
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
    groups: Omittable[list[Group]] = None


class UsersResponse(WireModel):
    """
    Response of iam/users.
    """

    users: list[User]
    status: Literal[0]


class UserSummary(WireModel):
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


class UserListResponse(WireModel):
    """
    Matching users, sorted by name.
    """

    users: list[UserSummary]
    count: int
    status: Literal[0]


class UserAutocompleteResponse(WireModel):
    """
    Matching users and groups.
    """

    users: list[User]
    groups: list[Group]
    status: Literal[0]


class LinkedIdentity(WireModel):
    """
    An external identity with which a user logs in.
    """

    issuer: str
    subject: str


class Account(WireModel):
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


class AccountResponse(WireModel):
    """
    A user as administrators see it.
    """

    status: Literal[0]
    user: Account


class GroupRights(WireModel):
    """
    A group with its rights.
    """

    name: str
    rights: list[str]
    members: int
    is_default: bool


class GroupListResponse(WireModel):
    """
    All groups with their rights.
    """

    status: Literal[0]
    groups: list[GroupRights]
    rights: list[str]


class GroupResponse(WireModel):
    """
    A group with its rights.
    """

    status: Literal[0]
    group: GroupRights


class GroupDeleteResponse(WireModel):
    """
    The group is deleted.
    """

    status: Literal[0]
    name: str


class Preferences(WireModel):
    """
    A user's defaults for omitted fields.
    """

    big_numbers: Annotated[str, one_of("number", "text")]


class PreferencesResponse(WireModel):
    """
    The preferences of the caller.
    """

    status: Literal[0]
    preferences: Preferences


class Allowance(WireModel):
    """
    A limit per UTC day, and how much of it is used.
    """

    limit: int | None
    used: int
    left: int | None


class Budget(WireModel):
    """
    The budget of a user for the current UTC day.
    """

    username: str
    engine_s: Allowance
    bytes: Allowance
    resets_at: Time


class BudgetResponse(WireModel):
    """
    The budget of a user.
    """

    status: Literal[0]
    budget: Budget


class BudgetsResponse(WireModel):
    """
    The budgets of the users who have used the most engine time today.
    """

    status: Literal[0]
    budgets: list[Budget]


class ApiToken(WireModel):
    """
    An API token. Its value is returned only when the token is created.
    """

    id: str
    name: str
    username: str
    scopes: list[Annotated[str, one_of("query", "query:read", "files:read", "files:write", "import", "admin")]]
    connectors: list[str] | None
    state: Annotated[str, one_of("active", "expired", "revoked")]
    created_at: Time
    created_by: str
    expires_at: Time
    last_used_at: Time | None
    max_estimated_bytes: int | None


class ApiTokenList(WireModel):
    """
    A page of API tokens, including tokens that expired or were revoked within the last 30 days.
    """

    status: Literal[0]
    tokens: list[ApiToken]
    count: int


class NewApiTokenResponse(WireModel):
    """
    The new API token.
    """

    status: Literal[0]
    token: ApiToken
    value: str


class ApiTokenResponse(WireModel):
    """
    A revoked API token.
    """

    status: Literal[0]
    token: ApiToken


class SearchRecord(WireModel):
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
    internalType: Omittable[str] = None
    meanings: Omittable[list[dict[str, Any]]] = None
    meaningNames: Omittable[list[str]] = None
    classifications: Omittable[list[dict[str, Any]]] = None
    original_name: Omittable[str] = None


class SearchSource(WireModel):
    """
    The outcome of a search source.
    """

    ok: bool
    matched: int
    truncated: bool
    message: str


class SearchResponse(WireModel):
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


class Worker(WireModel):
    """
    A worker process.
    """

    id: str
    started: Time
    heartbeat: Time
    running: int
    capacity: int


class TaskServerStatus(WireModel):
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


class Task(WireModel):
    """
    A task of the task server.
    """

    id: str
    name: str
    params: dict[str, Any]
    state: Annotated[str, one_of("queued", "running", "finished", "failed", "canceled")]
    owner: str
    created: Time
    started: Time | None
    ended: Time | None
    progress: int
    message: str
    result: dict[str, Any] | None


class TaskListResponse(WireModel):
    """
    Tasks, newest first.
    """

    tasks: list[Task]
    count: int
    status: Literal[0]


class TaskResponse(WireModel):
    """
    One task.
    """

    task: Task
    status: Literal[0]


class ScheduleNotice(WireModel):
    """
    Notifications about the runs of a schedule.
    """

    on: list[str]
    to: list[str]
    url: str | None
    attach_csv: bool


class Schedule(WireModel):
    """
    A statement or task that runs at scheduled times.
    """

    id: int
    version: int
    next_run: Time | None
    last_run: Time | None
    last_status: Annotated[str, one_of("", "finished", "failed", "skipped")]
    last_history_uuid: str | None
    total_runs: int
    name: str
    enabled: bool
    owner: str
    kind: Annotated[str, one_of("statement", "task")]
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
    overlap: Annotated[str, one_of("skip", "queue")]
    expires_at: Time | None
    notify: ScheduleNotice | None


class ScheduleListResponse(WireModel):
    """
    Schedules by name.
    """

    schedules: list[Schedule]
    count: int
    beat_running: bool
    status: Literal[0]


class ScheduleResponse(WireModel):
    """
    One schedule.
    """

    schedule: Schedule
    status: Literal[0]


class ScheduleRun(WireModel):
    """
    A run of a schedule.
    """

    fire_id: str
    due: Time
    status: Annotated[str, one_of("", "finished", "failed", "skipped")]
    message: str
    history_uuid: str | None
    task_id: str | None
    started: Time
    ended: Time | None


class ScheduleRunListResponse(WireModel):
    """
    Runs of a schedule, newest first.
    """

    runs: list[ScheduleRun]
    count: int
    status: Literal[0]


class ScheduleDeleteResponse(WireModel):
    """
    The schedule was deleted.
    """

    id: int
    status: Literal[0]


class ScheduleRunResponse(WireModel):
    """
    A run of the schedule was started.
    """

    fire_id: str
    status: Literal[0]


class EmailTestResponse(WireModel):
    """
    The outcome of a test email.
    """

    ok: bool
    message: str
    status: Literal[0]


class StatementFailure(WireModel):
    """
    A recorded statement that did not succeed. The HTTP status is 200.
    """

    status: Annotated[int, one_of(1, 401, -3, -4)]
    code: str
    message: str
    line: int | None
    column: int | None
    sqlstate: Omittable[str] = None
    query_status: QueryStatus
    handle: Handle
    history_id: int
    history_uuid: str
    history_parent_uuid: Omittable[str] = None
    statement_id: Omittable[int] = None
    warning: Omittable[str] = None


class LoginOptions(WireModel):
    """
    The ways to log in that this server offers.
    """

    status: Literal[0]
    password: bool
    issuer: LoginIssuer | None
    device: bool


class ExecuteResponse(WireModel):
    """
    A recorded statement, which will be run.
    """

    status: Literal[0]
    history_id: int
    history_uuid: str
    handle: Handle
    query_status: QueryStatus
    history_parent_uuid: Omittable[str] = None
    warning: Omittable[str] = None
    result: Omittable[ResultPage] = None


class DelimitedMetadata(WireModel):
    """
    The format of a delimited text file. Characters are not escaped.
    """

    type: Annotated[str, one_of("csv", "tsv", "delimiter_format")]
    field_separator: str
    quote_char: str
    record_separator: str
    encoding: str
    confidence: float
    warnings: Omittable[list[PreviewWarning]] = None
    skip_rows: Omittable[int] = None
    comment: Omittable[str] = None
    escape: Omittable[str] = None


class NestedType(WireModel):
    """
    Type of the elements of an array, or of the keys or values of a map.
    """

    type: str
    native_type: str
    item: Omittable["NestedType"] = None
    key: Omittable["NestedType"] = None
    value: Omittable["NestedType"] = None
    fields: Omittable[list["NestedField"]] = None


class NestedField(WireModel):
    """
    A field of a struct or row.
    """

    name: str
    type: str
    native_type: str
    item: Omittable[NestedType] = None
    key: Omittable[NestedType] = None
    value: Omittable[NestedType] = None
    fields: Omittable[list["NestedField"]] = None


class ColumnMetadata(WireModel):
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
    item: Omittable[NestedType] = None
    key: Omittable[NestedType] = None
    value: Omittable[NestedType] = None
    fields: Omittable[list[NestedField]] = None


NestedType.model_rebuild()
