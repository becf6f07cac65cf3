# Generated from openapi/resources.yaml by scripts/generate_models.py (make models); never edited.
"""The wire models: one class per resource of openapi/resources.yaml."""

from typing import Annotated, Any
from pydantic import ConfigDict, Field, RootModel
from queryserver.schemas.wire import Omittable, WireModel


class ErrorBody(WireModel):
    """
    A call that failed. `code` is stable, `message` is for a person and may change.
    """

    status: Annotated[int, Field(description="-1; the editor also answers 1, 2, 5, 401 and -4 (Contract editor 1.4).")]
    code: Annotated[str, Field(description="Stable word in snake_case.")]
    message: Annotated[str, Field(description="Text for a person, without traces, secrets or addresses.")]
    errors: Annotated[Omittable[dict[str, list[str]]], Field(description="Parameter or setting to its problems.")] = (
        None
    )
    error_id: Annotated[
        Omittable[str],
        Field(description="Only with `internal_error`: equals `X-Request-Id` and the id in the server log."),
    ] = None
    retry_after: Annotated[Omittable[int], Field(description="Seconds, as in the header `Retry-After`.")] = None
    details: Annotated[
        Omittable[dict[str, Any]], Field(description="Facts about the failure where a storage call states them.")
    ] = None
    version: Annotated[Omittable[int], Field(description="Only with `version_conflict`: the stored version.")] = None
    running: Annotated[
        Omittable[int], Field(description="Only with `connector_in_use`: statements waiting or running.")
    ] = None


class TokenMessage(WireModel):
    """
    Why a token was refused.
    """

    token_class: Annotated[str, Field(description="`AccessToken` or `RefreshToken`.")]
    token_type: Annotated[str, Field(description="`access` or `refresh`.")]
    message: str


class Unauthorized(WireModel):
    """
    Body of every 401. Without credentials it holds `detail` alone.
    """

    detail: str
    code: Annotated[
        Omittable[str],
        Field(description="`token_not_valid`, `bad_authorization_header`, `user_not_found` or `user_inactive`."),
    ] = None
    messages: Annotated[Omittable[list[TokenMessage]], Field(description="Only with `token_not_valid`.")] = None


class FieldErrors(RootModel[dict[str, list[str]]]):
    """
    400 of the token calls: each wrong field with its problems.
    """

    root: dict[str, list[str]]


class TokenPair(WireModel):
    """
    What a login gives.
    """

    refresh: Annotated[str, Field(description="Refresh token.")]
    access: Annotated[str, Field(description="Access token, sent as bearer.")]


class TokenVerifyResponse(WireModel):
    """
    The token would be accepted as bearer at this moment. No keys.
    """


class TokenRefreshResponse(WireModel):
    """
    A new access token.
    """

    access: Annotated[str, Field(description="Access token.")]
    refresh: Annotated[Omittable[str], Field(description="New refresh token; only with `rotate_refresh_tokens`.")] = (
        None
    )


class TokenRevokeResponse(WireModel):
    """
    The token is worth nothing any more. No keys.
    """


class Position(WireModel):
    """
    A place in the script as sent. Both numbers are 0-based; columns count Unicode code points.
    """

    row: int
    column: int


class Handle(WireModel):
    """
    One statement of a script as an operation of this service. `guid` and `secret` give no rights.
    """

    statement_id: Annotated[int, Field(description="0-based position of this statement in the script.")]
    statements_count: Annotated[int, Field(description="Statements in the script, at least 1.")]
    has_more_statements: bool
    previous_statement_hash: Annotated[str, Field(description="SHA-224, lower-case hex, of `statement` in UTF-8.")]
    start: Position
    end: Position
    statement: Annotated[str, Field(description="Text sent to the engine: trimmed, without the terminator.")]
    guid: Annotated[str, Field(description="Opaque; base64 of 16 random bytes.")]
    secret: Annotated[str, Field(description="Opaque; base64 of 16 random bytes; ignored on input.")]
    operation_type: Annotated[int, Field(description="Always 0.")]
    has_result_set: Annotated[
        bool, Field(description="Expected from the first keyword until known; check_status gives the final value.")
    ]
    modified_row_count: Annotated[
        int | None, Field(description="Rows changed; null until known or when the engine does not tell.")
    ]
    log_context: Annotated[None, Field(description="Always null.")]
    session_id: int
    session_guid: Annotated[str, Field(description="Opaque; form `[0-9a-f]{16}:[0-9a-f]{16}`.")]
    session_type: Annotated[str, Field(description="Dialect.")]


class QueryStatus(WireModel):
    """
    Where an operation stands. A word other than `waiting` and `running` means: stop polling.
    """

    status: Annotated[
        str, Field(description="`waiting`, `running`, `available`, `failed`, `canceled`, `expired` or `closed`.")
    ]
    has_result_set: Annotated[
        bool, Field(description="Expected while waiting or running; true in state `available`; else false.")
    ]
    state: Annotated[str, Field(description="Exact state: also `success` and `timed_out` (Contract editor 3.1).")]
    message: Annotated[
        str, Field(description="Reason in `failed`, `canceled`, `timed_out`, `expired`, `closed`; else empty.")
    ]
    rows: Annotated[int, Field(description="Rows stored so far; final in terminal states.")]
    truncated: Annotated[bool, Field(description="The stored result was cut at a cap.")]
    modified_row_count: int | None
    expires_at: Annotated[
        str | None, Field(description="UTC time at which the result will be deleted; null unless `available`.")
    ]


class ExecuteResponse(WireModel):
    """
    A statement is recorded and will be run.
    """

    status: int
    history_id: int
    history_uuid: Annotated[str, Field(description="UUID; the `operationId` of later calls.")]
    handle: Handle
    query_status: QueryStatus
    history_parent_uuid: Annotated[
        Omittable[str], Field(description="UUID of the saved notebook; only when `notebook.isSaved` was sent.")
    ] = None


class StatusResponse(WireModel):
    """
    Where an operation stands; from the service's own record, never from the engine.
    """

    status: int
    query_status: QueryStatus


class ColumnMeta(WireModel):
    """
    A column of a result. `type` is one list of names for every dialect (Contract editor 6.3).
    """

    name: str
    type: Annotated[str, Field(description="For example `INT_TYPE`.")]
    comment: str
    native_type: Annotated[str, Field(description="The engine's own type text, for example `varchar(20)`.")]


class ResultPage(WireModel):
    """
    A batch of rows. Every row has one cell per element of `meta`.
    """

    has_more: Annotated[bool, Field(description="Rows after this batch exist or may still arrive.")]
    type: Annotated[str, Field(description="Always `table`.")]
    isEscaped: Annotated[bool, Field(description="Cells are in Hue form (Contract editor 6.3).")]
    meta: list[ColumnMeta]
    data: list[list[Any]]
    start_row: Annotated[int, Field(description="Offset of the first row of this batch.")]
    rows_total: Annotated[int | None, Field(description="Null until the result is complete.")]
    truncated: bool
    truncated_reason: Annotated[str | None, Field(description="`row_limit` or `byte_limit`.")]
    expires_at: Annotated[str | None, Field(description="UTC time.")]
    message: Annotated[
        Omittable[str],
        Field(description="Only there when the batch ends before a row with which it would exceed `batch_max_bytes`."),
    ] = None


class ResultResponse(WireModel):
    """
    Answer of fetch_result_data.
    """

    status: int
    result: ResultPage


class ResultMetadata(WireModel):
    """
    The columns of a result.
    """

    meta: list[ColumnMeta]


class ResultMetadataResponse(WireModel):
    """
    Answer of fetch_result_metadata.
    """

    status: int
    result: ResultMetadata


class ResultSize(WireModel):
    """
    How much is stored; null while the statement has not ended.
    """

    rows: Annotated[int | None, Field(description="Exact number of stored rows.")]
    size: Annotated[int | None, Field(description="Bytes of the spool.")]
    message: Annotated[str, Field(description="`Result status is not available` while waiting or running; else empty.")]
    truncated: bool


class ResultSizeResponse(WireModel):
    """
    Answer of fetch_result_size.
    """

    status: int
    result: ResultSize


class Job(WireModel):
    """
    A job that the engine reports for a statement.
    """

    name: str
    url: Annotated[str, Field(description="Empty when there is nothing to link to.")]
    started: bool
    finished: bool
    percentJob: int | None


class LogsResponse(WireModel):
    """
    Log lines of an operation.
    """

    status: int
    progress: Annotated[int, Field(description="0 to 100.")]
    jobs: list[Job]
    logs: Annotated[str, Field(description="Lines joined by line breaks.")]
    isFullLogs: Annotated[bool, Field(description="True: replace what is shown; false: append.")]
    next_from: Annotated[int, Field(description="Value of `from` for the next call.")]


class ActionResult(WireModel):
    """
    0 when the call changed something or had nothing to do, -1 when there was nothing left to close.
    """

    status: int


class CancelResponse(WireModel):
    """
    Answer of cancel_statement: the state that the operation has now.
    """

    status: int
    result: ActionResult
    query_status: QueryStatus


class CloseResponse(WireModel):
    """
    Answer of close_statement.
    """

    status: int
    result: ActionResult
    message: Annotated[str, Field(description="`Query closed.` or `Query already expired.`")]


class WatchResponse(WireModel):
    """
    Status of any operation with its log, until `isSuccess` or `isFailure` is true.
    """

    status: int
    query_status: QueryStatus
    id: Annotated[int, Field(description="Equals `history_id`.")]
    operationId: Annotated[str, Field(description="UUID.")]
    watch_url: str
    statement: str
    log: Annotated[str, Field(description="The whole log.")]
    jobs: list[Job]
    isSuccess: bool
    isFailure: bool


class WatchFailure(WireModel):
    """
    Watch of an operation that did not succeed.
    """

    status: int
    code: str
    message: str
    query_status: QueryStatus
    handle: Handle
    history_id: int
    history_uuid: Annotated[str, Field(description="UUID.")]
    id: Annotated[int, Field(description="Equals `history_id`.")]
    operationId: Annotated[str, Field(description="UUID.")]
    watch_url: str
    statement: str
    log: Annotated[str, Field(description="The whole log.")]
    jobs: list[Job]
    isSuccess: Annotated[
        bool, Field(description="True for `expired` and `closed`: the statement itself had succeeded.")
    ]
    isFailure: bool


class ProgressEvent(WireModel):
    """
    Data of the server-sent event `progress`.
    """

    progress: Annotated[int, Field(description="0 to 100.")]
    rows: Annotated[int, Field(description="Rows stored so far.")]
    jobs: list[Job]


class LogEvent(WireModel):
    """
    Data of the server-sent event `log`: the lines [from, next_from).
    """

    from_: Annotated[int, Field(alias="from")]
    next_from: int
    logs: Annotated[str, Field(description="Lines joined by line breaks.")]


class ExplainResponse(WireModel):
    """
    The engine's plan of a statement that was not run.
    """

    status: int
    explanation: str
    statement: str


class ExplainFailure(WireModel):
    """
    The engine refuses to explain the statement; HTTP 200.
    """

    status: int
    code: str
    message: str
    statement: str


class FormatResponse(WireModel):
    """
    The same statements, laid out.
    """

    status: int
    formatted_statements: str


class HistoryData(WireModel):
    """
    What a history entry tells about its statement.
    """

    statement: Annotated[str, Field(description="The statement that ran, cut to 1001 characters.")]
    lastExecuted: Annotated[int, Field(description="Epoch milliseconds of recording.")]
    status: Annotated[str, Field(description="The word of `query_status.status`.")]
    parentSavedQueryUuid: Annotated[str, Field(description="UUID of the saved notebook or empty.")]
    state: Annotated[str, Field(description="Exact state (Contract editor 3.1).")]
    message: str
    database: str
    rows: int


class HistoryEntry(WireModel):
    """
    One operation of the caller.
    """

    name: str
    id: int
    uuid: Annotated[str, Field(description="UUID.")]
    type: Annotated[str, Field(description="`query-<dialect>`.")]
    data: HistoryData
    absoluteUrl: Annotated[str, Field(description="Relative path to the editor.")]


class HistoryResponse(WireModel):
    """
    The caller's operations, newest first.
    """

    status: int
    count: Annotated[int, Field(description="All matches before paging.")]
    message: str
    history: list[HistoryEntry]


class Notebook(WireModel):
    """
    An empty notebook; nothing of it is stored.
    """

    name: str
    uuid: Annotated[str, Field(description="UUID.")]
    description: str
    type: Annotated[str, Field(description="`notebook` or `query-<dialect>`.")]
    isSaved: bool
    isManaged: bool
    skipHistorify: bool
    sessions: list[Any]
    snippets: list[Any]
    directoryUuid: Annotated[str | None, Field(description="UUID.")]


class NotebookResponse(WireModel):
    """
    Answer of create_notebook.
    """

    status: int
    notebook: Notebook


class Session(WireModel):
    """
    An engine session of the caller. Credentials are never given back: a `password` is shown empty.
    """

    type: Annotated[str, Field(description="Dialect.")]
    id: int
    session_id: Annotated[str, Field(description="Opaque; form `[0-9a-f]{16}:[0-9a-f]{16}`.")]
    properties: Annotated[list[dict[str, Any]], Field(description="As given.")]
    configuration: Annotated[dict[str, Any], Field(description="Engine settings in force; empty when unknown.")]
    reuse_session: bool
    http_addr: str | None
    expires_at: Annotated[str | None, Field(description="UTC time at which the idle session will be closed.")]


class CreateSessionResponse(WireModel):
    """
    Answer of create_session.
    """

    status: int
    session: Session


class ClosedSession(WireModel):
    """
    The session that was closed.
    """

    id: int
    application: Annotated[str, Field(description="Dialect.")]
    status: Annotated[int, Field(description="4: closed.")]


class SessionClosure(WireModel):
    """
    Outcome of a close. `session` is null when there was nothing left to close.
    """

    status: int
    message: str
    session: ClosedSession | None


class CloseSessionResponse(WireModel):
    """
    Answer of close_session.
    """

    status: int
    session: SessionClosure


class HealthCheck(WireModel):
    """
    Outcome of one check.
    """

    ok: bool
    ms: Annotated[int, Field(description="Milliseconds.")]


class BrokerCheck(WireModel):
    """
    Outcome of the broker's check.
    """

    ok: bool
    ms: Annotated[int, Field(description="Milliseconds.")]
    enabled: Annotated[bool, Field(description="The task server is on.")]


class HealthChecks(WireModel):
    """
    What the service needs. No addresses, no error texts.
    """

    database: HealthCheck
    schema_: Annotated[HealthCheck, Field(alias="schema")]
    result_store: HealthCheck
    broker: BrokerCheck


class ReadyResponse(WireModel):
    """
    The instance takes calls.
    """

    status: int
    ready: bool
    checks: HealthChecks


class NotReadyResponse(WireModel):
    """
    503: something that the service needs is missing, or the instance is draining.
    """

    status: int
    code: Annotated[str, Field(description="`not_ready`.")]
    message: str
    ready: bool
    checks: HealthChecks


class DatabaseList(WireModel):
    """
    Databases of a data source.
    """

    status: int
    databases: list[str]
    truncated: Annotated[bool, Field(description="The list was cut at `metadata_max_names`.")]


class TableSummary(WireModel):
    """
    A table or view in a list.
    """

    name: str
    type: Annotated[str, Field(description="`Table`, `View` or `Materialized_view`.")]
    comment: str


class DatabaseMetadata(WireModel):
    """
    Tables and views of a database.
    """

    status: int
    tables_meta: list[TableSummary]
    truncated: bool


class ColumnSummary(WireModel):
    """
    A column of a table; null where the engine does not tell.
    """

    name: str
    type: Annotated[str, Field(description="The engine's own type text.")]
    comment: str
    nullable: bool | None
    default: Annotated[str | None, Field(description="Expression text.")]
    autoincrement: bool | None
    primary_key: bool | None
    partition_key: bool


class PartitionKey(WireModel):
    """
    A column that partitions a table.
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
    A column that refers to another table.
    """

    name: str
    to: Annotated[str, Field(description="`database.table.column`.")]


class TableMetadata(WireModel):
    """
    Columns and keys of a table or view.
    """

    status: int
    name: str
    comment: str
    is_view: bool
    support_updates: bool | None
    hdfs_link: Annotated[str | None, Field(description="Location as a storage path.")]
    columns: list[str]
    extended_columns: list[ColumnSummary]
    partition_keys: list[PartitionKey]
    primary_keys: list[PrimaryKey]
    foreign_keys: list[ForeignKey]


class FunctionSummary(WireModel):
    """
    A function in a list; empty text where the engine does not tell.
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

    status: int
    functions: list[FunctionSummary]
    truncated: bool


class FunctionDetail(WireModel):
    """
    One function; no keys at all when the engine's catalogue cannot list functions.
    """

    name: Omittable[str] = None
    signature: Annotated[Omittable[str], Field(description="Overloads are joined by line breaks.")] = None
    description: Omittable[str] = None
    return_type: Omittable[str] = None
    is_builtin: Omittable[str] = None
    is_persistent: Omittable[str] = None


class FunctionResponse(WireModel):
    """
    Details of one function.
    """

    status: int
    function: FunctionDetail


class SampleResponse(WireModel):
    """
    Sample rows of a table, or values of a column.
    """

    status: int
    headers: list[str]
    full_headers: list[ColumnMeta]
    rows: list[list[Any]]
    message: str
    isEscaped: bool


class SampleStart(WireModel):
    """
    The operation that will give the sample.
    """

    status: int
    handle: Handle


class SampleStartResponse(WireModel):
    """
    Answer of a sample with `async`.
    """

    status: int
    result: SampleStart
    operationId: Annotated[str, Field(description="UUID.")]
    history_uuid: Annotated[str, Field(description="UUID.")]


class DatabaseDescription(WireModel):
    """
    Description of a database.
    """

    status: int
    message: str
    db_name: str
    name: str
    comment: str
    location: str
    hdfs_link: Annotated[str, Field(description="Location as a storage path.")]
    owner_name: str
    owner_type: str
    parameters: str


class DescribedColumn(WireModel):
    """
    A column of a described table, partition columns included.
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
    Properties of a described table that every engine fills.
    """

    owner: str
    create_time: Annotated[str, Field(description="UTC time or empty.")]
    table_type: Annotated[
        str, Field(description="`MANAGED_TABLE`, `EXTERNAL_TABLE`, `VIRTUAL_VIEW` or `MATERIALIZED_VIEW`.")
    ]
    format: Annotated[str, Field(description="`parquet`, `orc`, `text` and so on, or empty.")]


class TableDetails(WireModel):
    """
    Properties and statistics of a described table.
    """

    properties: TableDetailProperties
    stats: Annotated[dict[str, str], Field(description="Keys that the engine has, for example `numRows`.")]


class TableDescription(WireModel):
    """
    Description of a table or view.
    """

    status: int
    message: str
    name: str
    comment: str
    is_view: bool
    path_location: str
    hdfs_link: Annotated[str, Field(description="Location as a storage path.")]
    cols: list[DescribedColumn]
    partition_keys: list[PartitionKey]
    primary_keys: list[PrimaryKey]
    foreign_keys: list[ForeignKey]
    properties: list[TableProperty]
    stats: list[TableProperty]
    details: TableDetails


class ColumnDescription(WireModel):
    """
    Statistics of a column that the engine already has.
    """

    status: int
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

    status: int
    message: str
    redirect: Annotated[str, Field(description="Always empty.")]
    watch_url: str
    operationId: Annotated[str, Field(description="UUID.")]
    history_uuid: Annotated[str, Field(description="UUID.")]
    history_id: int
    handle: Handle


class DialectProperties(WireModel):
    """
    What the editor needs to know of a dialect; no keys at all for types that are not SQL.
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
    A place that statements can be sent to.
    """

    name: str
    type: Annotated[str, Field(description="Settings key or connector id.")]
    id: Annotated[str, Field(description="Equals `type`.")]
    displayName: str
    buttonName: str
    tooltip: str
    optimizer: Annotated[str, Field(description="`off`.")]
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

    type: Annotated[str, Field(description="`hdfs`, `s3`, `abfs`, `ofs`, `file`, `tables`, `yarn` or `importer`.")]
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
    default_limit: Annotated[int, Field(description="0: off.")]
    interpreter_names: list[str]
    page: str
    default_sql_interpreter: str
    source_autocomplete_disabled: bool


class BrowserApp(WireModel):
    """
    The browsers.
    """

    name: str
    displayName: str
    buttonName: str
    interpreters: list[BrowserEntry]
    interpreter_names: list[str]


class SchedulerApp(WireModel):
    """
    The scheduler.
    """

    name: str
    displayName: str
    buttonName: str
    interpreters: list[BrowserEntry]
    interpreter_names: list[str]
    page: str


class HomeApp(WireModel):
    """
    The document page.
    """

    name: str
    displayName: str
    buttonName: str
    interpreters: Annotated[list[Any], Field(description="Always empty.")]
    page: str


class AppConfig(WireModel):
    """
    The applications that the caller may use.
    """

    editor: EditorApp
    catalogs: list[CatalogEntry]
    browser: BrowserApp
    scheduler: Annotated[Omittable[SchedulerApp], Field(description="Only with `beat_enabled`.")] = None
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
    What a file browser may offer.
    """

    enable_chunked_file_upload: bool
    enable_new_storage_browser: bool
    restrict_file_extensions: list[str] | None
    concurrent_max_connection: int
    file_upload_chunk_size: Annotated[int, Field(description="Bytes.")]
    enable_file_download_button: bool
    max_file_editor_size: Annotated[int, Field(description="Bytes.")]
    enable_extract_uploaded_archive: bool


class ImporterConfig(WireModel):
    """
    What the importer takes.
    """

    is_enabled: bool
    restrict_local_file_extensions: list[str] | None
    max_local_file_size_upload_limit: Annotated[int, Field(description="Bytes.")]


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

    types: Annotated[list[str], Field(description="Sorted.")]


class ClientConfiguration(WireModel):
    """
    Answer of get_config.
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
    hue_config: Annotated[ServiceFlags, Field(description="Equals `svc_config`.")]
    storage_browser: StorageBrowserConfig
    importer: ImporterConfig
    clusters: list[Cluster]
    documents: DocumentsConfig
    status: int


class Namespace(WireModel):
    """
    A namespace of a data source.
    """

    id: str
    name: str
    status: str
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
    The namespaces, under the interface as it was asked for.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[Namespace]]
    status: int


class ComputesResponse(WireModel):
    """
    The computes, under the interface as it was asked for.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[Compute]]
    status: int


class ClustersResponse(WireModel):
    """
    The clusters, under the interface as it was asked for.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[Cluster]]
    status: int


class BannersResponse(WireModel):
    """
    The banner of the service.
    """

    system: None
    configured: Annotated[str, Field(description="Harmless HTML.")]
    status: int


class ConfigProblem(WireModel):
    """
    A problem of the settings; secrets are masked.
    """

    name: str
    message: str
    value: str
    level: Annotated[str, Field(description="`error` or `warning`.")]


class CheckConfigResponse(WireModel):
    """
    Problems of the settings.
    """

    hue_config_dir: str
    config_errors: list[ConfigProblem]
    status: int


class ServerLogsResponse(WireModel):
    """
    The last lines of the server's log.
    """

    hue_hostname: str
    logs: list[str]
    status: int


class AppExamplesResponse(WireModel):
    """
    Examples that can be installed.
    """

    apps: dict[str, str]
    status: int


class InstallAppExamplesResponse(WireModel):
    """
    The examples are installed.
    """

    message: str
    status: int


class HdfsConfig(WireModel):
    """
    Facts about a cluster and the caller; false, empty and null while it does not answer.
    """

    is_trash_enabled: bool
    is_hdfs_superuser: bool
    groups: Annotated[list[str], Field(description="All groups of the service, for superusers of HDFS.")]
    users: Annotated[list[str], Field(description="All users of the service, for superusers of HDFS.")]
    superuser: str | None
    supergroup: str | None


class NoConfig(WireModel):
    """
    Nothing is told about other file systems than hdfs.
    """


class Filesystem(WireModel):
    """
    A file system that the caller may use.
    """

    file_system: Annotated[str, Field(description="`hdfs`, `s3a`, `abfs`, `ofs` or `file`.")]
    name: Annotated[str, Field(description="Equals `file_system`.")]
    user_home_directory: str
    config: HdfsConfig | NoConfig


class FilesystemList(RootModel[list[Filesystem]]):
    """
    Answer of storage/filesystems.
    """

    root: Annotated[list[Filesystem], Field(description="Answer of storage/filesystems.")]


class FileStats(WireModel):
    """
    Attributes of an entry; the same keys for every store.
    """

    path: str
    name: str
    size: Annotated[int, Field(description="Bytes.")]
    atime: Annotated[int | None, Field(description="Epoch seconds.")]
    mtime: Annotated[int | None, Field(description="Epoch seconds.")]
    mode: Annotated[int, Field(description="With type bits.")]
    user: str
    group: str
    aclBit: bool
    blockSize: Annotated[int, Field(description="Bytes.")]
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
    type: Annotated[str, Field(description="`dir`, `file`, `link` or `unknown`.")]
    rwx: str
    mode: Annotated[str, Field(description="Octal text.")]
    url: str
    is_sentry_managed: bool


class FlatFileEntry(WireModel):
    """
    An entry of storage/list.
    """

    path: str
    name: str
    size: Annotated[int, Field(description="Bytes.")]
    atime: Annotated[int | None, Field(description="Epoch seconds.")]
    mtime: Annotated[int | None, Field(description="Epoch seconds.")]
    mode: Annotated[int, Field(description="With type bits.")]
    user: str
    group: str
    aclBit: bool
    blockSize: Annotated[int, Field(description="Bytes.")]
    replication: int
    type: Annotated[str, Field(description="`dir`, `file`, `link` or `unknown`.")]
    rwx: str


class StatResponse(WireModel):
    """
    Attributes of one entry.
    """

    status: int
    path: str
    name: str
    size: Annotated[int, Field(description="Bytes.")]
    atime: Annotated[int | None, Field(description="Epoch seconds.")]
    mtime: Annotated[int | None, Field(description="Epoch seconds.")]
    mode: Annotated[int, Field(description="With type bits.")]
    user: str
    group: str
    aclBit: bool
    blockSize: Annotated[int, Field(description="Bytes.")]
    replication: int
    type: Annotated[str, Field(description="`dir`, `file`, `link` or `unknown`.")]
    rwx: str


class Breadcrumb(WireModel):
    """
    A step of the way to a path.
    """

    url: str
    label: str


class ListingPage(WireModel):
    """
    Which part of a directory this is, in both vocabularies.
    """

    number: Annotated[int, Field(description="Equals `page_number`.")]
    page_number: int
    page_size: int
    num_pages: Annotated[int, Field(description="Equals `total_pages`.")]
    total_pages: int
    total_count: Annotated[int, Field(description="Equals `total_size`.")]
    total_size: int
    previous_page_number: Annotated[int, Field(description="0: none.")]
    next_page_number: Annotated[int, Field(description="0: none.")]
    start_index: Annotated[int, Field(description="1-based; 0 when empty.")]
    end_index: Annotated[int, Field(description="1-based; 0 when empty.")]
    total_is_exact: bool


class FileListing(WireModel):
    """
    Answer of storage/list.
    """

    status: int
    path: str
    files: list[FlatFileEntry]
    page: ListingPage


class DirectoryView(WireModel):
    """
    Answer of storage/view on a directory.
    """

    status: int
    path: str
    current_dir_path: str
    current_request_path: str
    breadcrumbs: list[Breadcrumb]
    files: Annotated[list[FileEntry], Field(description="`..` and `.` first.")]
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
    s3_listing_not_allowed: Annotated[str, Field(description="Always empty.")]


class FileDisplay(WireModel):
    """
    Answer of storage/display.
    """

    status: int
    path: str
    contents: str
    offset: Annotated[int, Field(description="Bytes of the shown stream.")]
    length: Annotated[int, Field(description="Bytes, as asked for.")]
    end: Annotated[int, Field(description="Offset for the next window.")]
    mode: str
    compression: str


class FileWindow(WireModel):
    """
    The shown part of a file.
    """

    offset: Annotated[int, Field(description="Bytes of the shown stream.")]
    length: Annotated[int, Field(description="Bytes.")]
    end: int
    dirname: str
    mode: Annotated[str, Field(description="`text` or `binary`.")]
    compression: str
    size: Annotated[int, Field(description="Stored bytes.")]
    max_chunk_size: str
    contents: str
    masked_binary_data: bool
    xxd: Annotated[
        Omittable[list[list[Any]]], Field(description="Only in binary mode; lines of offset, words and printable text.")
    ] = None


class FileView(WireModel):
    """
    Answer of storage/view on a file.
    """

    path: str
    name: str
    stats: FileStats
    mtime: str
    humansize: str
    type: str
    rwx: str
    mode: Annotated[str, Field(description="Octal text.")]
    url: str
    is_sentry_managed: bool
    status: int
    success: bool
    contents: Annotated[str, Field(description="Text of the asked part.")]
    filename: str
    editable: bool
    show_download_button: bool
    is_embeddable: bool
    breadcrumbs: list[Breadcrumb]
    view: FileWindow


class ContentSummaryCounts(WireModel):
    """
    What is below a path; -1 means no quota.
    """

    model_config = ConfigDict(extra="allow")
    directoryCount: int
    fileCount: int
    length: Annotated[int, Field(description="Bytes.")]
    quota: int
    spaceConsumed: Annotated[int, Field(description="Bytes.")]
    spaceQuota: int
    typeQuota: dict[str, Any]
    replication: int


class ContentSummaryResponse(WireModel):
    """
    Answer of storage/content_summary; further keys of the store are passed on.
    """

    model_config = ConfigDict(extra="allow")
    status: int
    message: str
    path: str
    directoryCount: int
    fileCount: int
    length: Annotated[int, Field(description="Bytes.")]
    quota: int
    spaceConsumed: Annotated[int, Field(description="Bytes.")]
    spaceQuota: int
    typeQuota: dict[str, Any]
    replication: int
    summary: ContentSummaryCounts


class PathResponse(WireModel):
    """
    The path that was changed.
    """

    status: int
    path: str


class SaveResponse(WireModel):
    """
    Answer of storage/save.
    """

    status: int
    path: str
    size: Annotated[int, Field(description="Bytes.")]


class ReplicationResponse(WireModel):
    """
    Answer of storage/set_replication.
    """

    status: int
    path: str
    replication: int


class ChownResponse(WireModel):
    """
    Answer of storage/chown.
    """

    status: int
    path: str
    user: str | None
    group: str | None


class ChmodResponse(WireModel):
    """
    Answer of storage/chmod.
    """

    status: int
    path: str
    mode: Annotated[str, Field(description="Octal text.")]


class TransferResponse(WireModel):
    """
    Answer of rename, move and copy.
    """

    status: int
    path: Annotated[str, Field(description="Target.")]
    source: str
    message: str
    details: Annotated[Omittable[dict[str, Any]], Field(description="`skipped_links` where links were left out.")] = (
        None
    )
    skipped_files: Annotated[
        Omittable[str], Field(description="Files above the chunk size, in bulk copies on Ozone.")
    ] = None


class SkippedFiles(RootModel[str]):
    root: Annotated[str, Field(description="Answer of a copy on Ozone: empty, or the files above the chunk size.")]


class DeleteResponse(WireModel):
    """
    Answer of storage/rmtree.
    """

    status: int
    path: str
    trashed: bool
    trash_path: str | None


class BulkResponse(WireModel):
    """
    Outcome of each item of a bulk call, by the path as sent.
    """

    status: Annotated[int, Field(description="0 or -1.")]
    code: Annotated[Omittable[str], Field(description="`partial_failure` when -1.")] = None
    message: Omittable[str] = None
    results: dict[str, dict[str, Any]]


class RunningOperation(WireModel):
    """
    The work goes on after the answer; HTTP 202.
    """

    status: int
    path: str
    operation_id: str
    state: Annotated[str, Field(description="`running`.")]


class OperationProgress(WireModel):
    """
    How far a long operation is.
    """

    status: int
    operation_id: str
    state: Annotated[str, Field(description="`running`, `done` or `failed`.")]
    done: int
    total: int | None
    result: Annotated[dict[str, Any] | str | None, Field(description="The final body.")]


class TrashPathResponse(WireModel):
    """
    Where the trash of a path is.
    """

    status: int
    path: str
    trash_path: str | None


class RestoreResponse(WireModel):
    """
    Answer of storage/trash/restore.
    """

    status: int
    path: Annotated[str, Field(description="The restored item.")]
    source: Annotated[str, Field(description="Where it was in the trash.")]


class PurgeResponse(WireModel):
    """
    Answer of storage/trash/purge.
    """

    status: int
    path: str
    purged: int


class UploadResponse(WireModel):
    """
    A file arrived.
    """

    status: int
    path: str
    data: Annotated[str, Field(description="Always empty.")]
    size: Annotated[int, Field(description="Bytes.")]
    sha256: str
    next: None
    result: FileEntry
    file_stats: FlatFileEntry


class UploadPartResponse(WireModel):
    """
    A part of a file arrived.
    """

    status: int
    uuid: Annotated[str, Field(description="UUID.")]
    path: str
    part: int
    received: Annotated[list[list[int]], Field(description="Ranges of bytes, end exclusive.")]
    offset: Annotated[int, Field(description="End of the contiguous start.")]


class UploadStateResponse(WireModel):
    """
    How much of a part upload has arrived.
    """

    status: int
    uuid: Annotated[str, Field(description="UUID.")]
    path: str
    offset: int
    received: list[list[int]]
    missing_parts: list[int]
    total_size: Annotated[int, Field(description="Bytes.")]
    expires_at: Annotated[str, Field(description="UTC time.")]


class UploadCompleteResponse(WireModel):
    """
    All parts arrived and make one file.
    """

    status: int
    path: str
    uuid: Annotated[str, Field(description="UUID.")]
    size: Annotated[int, Field(description="Bytes.")]
    result: FileEntry
    success: bool
    data: Annotated[str, Field(description="`Success`.")]
    next: None


class AvailableSpaceResponse(WireModel):
    """
    Bytes that the caller may still stage; -1 when no limit is known.
    """

    status: int
    upload_available_space: int


class ImporterError(WireModel):
    """
    A failure of the importer.
    """

    error: Annotated[str, Field(description="Text for a person.")]
    code: str


class ImportedFile(WireModel):
    """
    A file arrived; `file_path` is a reference to hand back unchanged.
    """

    file_path: str
    size: Annotated[int, Field(description="Bytes.")]
    expires_at: Annotated[str, Field(description="UTC time.")]


class DelimitedMetadata(WireModel):
    """
    How a text file is delimited, in real characters.
    """

    type: Annotated[str, Field(description="`csv`, `tsv` or `delimiter_format`.")]
    field_separator: str
    quote_char: str
    record_separator: str
    encoding: str
    confidence: Annotated[float, Field(description="0 to 1.")]


class ExcelMetadata(WireModel):
    """
    The sheets of a workbook.
    """

    type: Annotated[str, Field(description="`excel`.")]
    sheet_names: list[str]


class HeaderGuess(WireModel):
    """
    Whether the first row looks like column names.
    """

    has_header: bool


class PreviewColumn(WireModel):
    """
    A column typed for the chosen dialect.
    """

    name: str
    type: str
    precision: Annotated[Omittable[int], Field(description="Only with DECIMAL.")] = None
    scale: Annotated[Omittable[int], Field(description="Only with DECIMAL.")] = None


class PreviewWarning(WireModel):
    """
    What was odd in the file.
    """

    code: Annotated[
        str, Field(description="`long_rows`, `short_rows`, `unclosed_quote`, `undecodable` or `truncated_sample`.")
    ]
    count: int
    rows: Annotated[list[int], Field(description="First ten record numbers, from 1.")]


class Preview(WireModel):
    """
    The first rows of a file as a table.
    """

    type: str
    columns: list[PreviewColumn]
    preview_data: list[list[str]]
    warnings: Annotated[Omittable[list[PreviewWarning]], Field(description="Only when not empty.")] = None


class SqlTypes(RootModel[list[str]]):
    """
    Type names of a dialect, sorted and unique.
    """

    root: Annotated[list[str], Field(description="Type names of a dialect, sorted and unique.")]


class CreateTableResponse(WireModel):
    """
    The operation that creates the table.
    """

    status: int
    history_uuid: Annotated[str, Field(description="UUID; the `operationId` of the editor's calls.")]
    history_id: int
    path: str
    table: str


class ConnectorSetting(WireModel):
    """
    One setting; secrets are masked.
    """

    name: str
    value: str | int | float | bool


class ConnectorType(WireModel):
    """
    A kind of data source that can be configured.
    """

    dialect: str
    interface: str
    category: Annotated[
        str, Field(description="`editor`, `browsers`, `catalogs`, `optimizers`, `schedulers` or `plugins`.")
    ]
    nice_name: str
    description: str
    name: Annotated[str, Field(description="Equals `dialect`.")]
    settings: list[ConnectorSetting]
    properties: DialectProperties
    is_runnable: bool


class Connector(WireModel):
    """
    A configured data source.
    """

    id: Annotated[str, Field(description="Decimal text.")]
    name: Annotated[str, Field(description="Equals `id`.")]
    nice_name: str
    dialect: str
    interface: str
    category: str
    description: str
    settings: list[ConnectorSetting]
    dialect_properties: DialectProperties
    is_runnable: bool
    version: int
    groups: Annotated[Omittable[list[str]], Field(description="Administrators only.")] = None
    last_modified: Annotated[str, Field(description="UTC time.")]


class ConnectorGroup(WireModel):
    """
    Instances of one category.
    """

    category: str
    category_name: str
    description: str
    values: list[Connector]


class ConnectorTypeGroup(WireModel):
    """
    Types of one category.
    """

    category: str
    category_name: str
    description: str
    values: list[ConnectorType]


class ConnectorCategory(WireModel):
    """
    A category of connectors.
    """

    name: str
    type: str
    description: str


class ConnectorTypeList(WireModel):
    """
    The catalogue of types.
    """

    connectors: list[ConnectorTypeGroup]
    categories: list[ConnectorCategory]
    status: int


class ConnectorList(WireModel):
    """
    The instances that the caller may see.
    """

    connectors: list[ConnectorGroup]
    status: int


class ConnectorTemplate(WireModel):
    """
    A type with its defaults, to be named and sent to update.
    """

    dialect: str
    interface: str
    category: str
    nice_name: str
    description: str
    name: Annotated[str, Field(description="Empty.")]
    settings: list[ConnectorSetting]
    properties: DialectProperties
    is_runnable: bool
    dialect_properties: DialectProperties
    id: None


class ConnectorTemplateResponse(WireModel):
    """
    Answer of instance/new.
    """

    connector: ConnectorTemplate
    status: int


class ConnectorResponse(WireModel):
    """
    One instance, not wrapped.
    """

    id: Annotated[str, Field(description="Decimal text.")]
    name: str
    nice_name: str
    dialect: str
    interface: str
    category: str
    description: str
    settings: list[ConnectorSetting]
    dialect_properties: DialectProperties
    is_runnable: bool
    version: int
    groups: Annotated[Omittable[list[str]], Field(description="Administrators only.")] = None
    last_modified: Annotated[str, Field(description="UTC time.")]
    status: int


class ConnectorUpdateResponse(WireModel):
    """
    The instance as stored.
    """

    connector: Connector
    saved_as: Annotated[bool, Field(description="True after create.")]
    status: int


class ConnectorDeleteResponse(WireModel):
    """
    The instance is gone.
    """

    id: str
    status: int


class ConnectionCheck(WireModel):
    """
    One step of a connection test.
    """

    name: Annotated[str, Field(description="`resolve`, `connect`, `login` or `statement`.")]
    ok: bool
    ms: Annotated[int, Field(description="Milliseconds.")]


class ConnectorTestResponse(WireModel):
    """
    Outcome of a connection test.
    """

    status: int
    ok: bool
    warnings: str
    hasWarnings: bool
    reason: Annotated[str, Field(description="Empty, `dns`, `refused`, `timeout`, `tls`, `auth`, `engine` or `other`.")]
    checks: list[ConnectionCheck]
    duration_ms: int
    server_version: str | None


class ConnectorExamplesResponse(WireModel):
    """
    Which examples were installed.
    """

    status: int
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
    last_login: Annotated[str | None, Field(description="UTC, ISO 8601 without zone.")]
    editURL: str
    groups: Annotated[Omittable[list[Group]], Field(description="Only with `extend_user`.")] = None


class UsersResponse(WireModel):
    """
    Users by their ids.
    """

    users: list[User]
    status: int


class UserSummary(WireModel):
    """
    A user in a list.
    """

    id: int
    username: str
    groups: Annotated[list[str], Field(description="Sorted.")]
    is_active: bool
    superuser: bool


class UserListResponse(WireModel):
    """
    Users that match, ordered by name.
    """

    users: list[UserSummary]
    count: Annotated[int, Field(description="Matches before paging.")]
    status: int


class UserAutocompleteResponse(WireModel):
    """
    Users and groups that match.
    """

    users: list[User]
    groups: list[Group]
    status: int


class SearchRecord(WireModel):
    """
    Something that was found. Only `hue_name` and `hue_description` are HTML.
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
    internalType: Annotated[Omittable[str], Field(description="Of an external catalogue only, as the keys below.")] = (
        None
    )
    meanings: Omittable[list[dict[str, Any]]] = None
    meaningNames: Omittable[list[str]] = None
    classifications: Omittable[list[dict[str, Any]]] = None
    original_name: Omittable[str] = None


class SearchSource(WireModel):
    """
    How one source answered.
    """

    ok: bool
    matched: int
    truncated: bool
    message: str


class SearchResponse(WireModel):
    """
    What was found, merged over the sources.
    """

    results: list[SearchRecord]
    facets: dict[str, dict[str, int]]
    count: int
    totalMatched: int
    limit: int
    offset: int
    sources: dict[str, SearchSource]
    warnings: list[str]
    status: int


class Worker(WireModel):
    """
    A worker process.
    """

    id: str
    started: Annotated[str, Field(description="UTC time.")]
    heartbeat: Annotated[str, Field(description="UTC time.")]
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
    status: int


class Task(WireModel):
    """
    A task of the task server.
    """

    id: Annotated[str, Field(description="UUID.")]
    name: str
    params: dict[str, Any]
    state: Annotated[str, Field(description="`queued`, `running`, `finished`, `failed` or `canceled`.")]
    owner: str
    created: Annotated[str, Field(description="UTC time.")]
    started: Annotated[str | None, Field(description="UTC time.")]
    ended: Annotated[str | None, Field(description="UTC time.")]
    progress: Annotated[int, Field(description="0 to 100.")]
    message: str
    result: dict[str, Any] | None


class TaskListResponse(WireModel):
    """
    Tasks, newest first.
    """

    tasks: list[Task]
    count: int
    status: int


class TaskResponse(WireModel):
    """
    One task.
    """

    task: Task
    status: int


class ScheduleNotice(WireModel):
    """
    Whom to tell about the runs of a schedule.
    """

    on: Annotated[list[str], Field(description="`finished`, `failed`.")]
    to: Annotated[list[str], Field(description="Email addresses.")]
    attach_csv: bool


class Schedule(WireModel):
    """
    A statement or task that runs at set times.
    """

    id: int
    version: int
    next_run: Annotated[str | None, Field(description="UTC time.")]
    last_run: Annotated[str | None, Field(description="UTC time.")]
    last_status: Annotated[str, Field(description="Empty, `finished`, `failed` or `skipped`.")]
    last_history_uuid: Annotated[str | None, Field(description="UUID.")]
    total_runs: int
    name: str
    enabled: bool
    owner: str
    kind: Annotated[str, Field(description="`statement` or `task`.")]
    connector: str | None
    database: str | None
    statement: str | None
    task: str | None
    params: dict[str, Any]
    cron: str | None
    interval_s: int | None
    timezone: str
    overlap: Annotated[str, Field(description="`skip` or `queue`.")]
    expires_at: Annotated[str | None, Field(description="UTC time.")]
    notify: ScheduleNotice | None


class ScheduleListResponse(WireModel):
    """
    Schedules by name.
    """

    schedules: list[Schedule]
    count: int
    beat_running: bool
    status: int


class ScheduleResponse(WireModel):
    """
    One schedule.
    """

    schedule: Schedule
    status: int


class ScheduleDeleteResponse(WireModel):
    """
    The schedule is gone.
    """

    id: int
    status: int


class ScheduleRunResponse(WireModel):
    """
    The schedule was started once.
    """

    fire_id: str
    status: int


class EmailTestResponse(WireModel):
    """
    Outcome of a test mail.
    """

    ok: bool
    message: str
    status: int


class StatementFailure(WireModel):
    """
    Report about a recorded statement that did not succeed; HTTP 200.
    """

    status: Annotated[int, Field(description="1, 401, -3 or -4 (Contract editor 1.4).")]
    code: Annotated[
        str,
        Field(
            description="`engine_error`, `canceled`, `statement_timeout`, `expired`, `closed` or a code of Contract editor 3.4."
        ),
    ]
    message: str
    query_status: QueryStatus
    handle: Handle
    history_id: int
    history_uuid: Annotated[str, Field(description="UUID; the `operationId` of later calls.")]
    history_parent_uuid: Annotated[Omittable[str], Field(description="As in the answer of execute; only there.")] = None


class NestedType(WireModel):
    """
    Type of the elements of an array, or of the keys or values of a map.
    """

    type: Annotated[str, Field(description="Lower-case base word.")]
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
    type: Annotated[str, Field(description="Lower-case base word.")]
    native_type: str
    item: Omittable[NestedType] = None
    key: Omittable[NestedType] = None
    value: Omittable[NestedType] = None
    fields: Omittable[list["NestedField"]] = None


class ColumnMetadata(WireModel):
    """
    A column or a nested part of one. Arrays add `item`, maps `key` and `value`, structs `fields`.
    """

    status: int
    name: str
    type: Annotated[str, Field(description="Lower-case base word.")]
    native_type: str
    comment: str
    nullable: bool | None
    default: str | None
    primary_key: bool | None
    partition_key: bool
    sample: Annotated[list[Any], Field(description="Always empty.")]
    item: Omittable[NestedType] = None
    key: Omittable[NestedType] = None
    value: Omittable[NestedType] = None
    fields: Omittable[list[NestedField]] = None


NestedType.model_rebuild()
