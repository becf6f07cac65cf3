# Generated from openapi/resources.yaml by scripts/generate_models.py (make models); never edited.
"""The wire models: one class per resource of openapi/resources.yaml."""

from typing import Annotated, Any
from pydantic import Field, RootModel
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
