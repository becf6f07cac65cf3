# Generated from openapi/resources.yaml by scripts/generate_models.py (make models); never edited.
"""The wire models: one class per resource of openapi/resources.yaml."""

from typing import Annotated, Any, Literal
from pydantic import ConfigDict, Field, RootModel
from queryserver.api.schemas.fields import Omittable, Time, WireModel, one_of


class ErrorBody(WireModel):
    """
    A call that failed. `code` is stable, `message` is for a person and may change.
    """

    status: Annotated[
        Annotated[int, one_of(-1, 1, 2, 5, 401, -3, -4)],
        Field(
            description="-1; calls of the editor also answer 1, 2 (no such operation), 5 (not supported), 401 (the data source wants credentials), -3 and -4. Never 0."
        ),
    ]
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

    token_class: Annotated[
        Annotated[str, one_of("AccessToken", "RefreshToken")], Field(description="Kind of token that was expected.")
    ]
    token_type: Annotated[
        Annotated[str, one_of("access", "refresh")],
        Field(description="Kind of token that was expected, in lower case."),
    ]
    message: Annotated[str, Field(description="Text for a person.")]


class Unauthorized(WireModel):
    """
    Body of every 401. Without credentials it holds `detail` alone.
    """

    detail: Annotated[str, Field(description="Text for a person.")]
    code: Annotated[
        Omittable[str],
        Field(
            description="`token_not_valid`, `bad_authorization_header`, `user_not_found`, `user_inactive`, or the word of a login back end."
        ),
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

    row: Annotated[int, Field(description="0-based row.")]
    column: Annotated[int, Field(description="0-based column, in Unicode code points.")]


class Handle(WireModel):
    """
    One statement of a script as an operation of this service. `guid` and `secret` give no rights.
    """

    statement_id: Annotated[int, Field(description="0-based position of this statement in the script.")]
    statements_count: Annotated[int, Field(description="Statements in the script, at least 1.")]
    has_more_statements: Annotated[bool, Field(description="More statements of the script follow this one.")]
    previous_statement_hash: Annotated[str, Field(description="SHA-224, lower-case hex, of `statement` in UTF-8.")]
    start: Annotated[Position, Field(description="Where the statement begins in the script.")]
    end: Annotated[
        Position,
        Field(
            description="Where the statement ends: its last character when it is the only one of the script, else the position just after it."
        ),
    ]
    statement: Annotated[str, Field(description="Text sent to the engine: trimmed, without the terminator.")]
    guid: Annotated[str, Field(description="Opaque; base64 of 16 random bytes.")]
    secret: Annotated[str, Field(description="Opaque; base64 of 16 random bytes; ignored on input.")]
    operation_type: Annotated[Literal[0], Field(description="Always 0.")]
    has_result_set: Annotated[
        bool, Field(description="Expected from the first keyword until known; check_status gives the final value.")
    ]
    modified_row_count: Annotated[
        int | None, Field(description="Rows changed; null until known or when the engine does not tell.")
    ]
    log_context: Annotated[str | None, Field(description="Always null.")]
    session_id: Annotated[int, Field(description="Number of the session that the statement runs in.")]
    session_guid: Annotated[str, Field(description="Opaque; form `[0-9a-f]{16}:[0-9a-f]{16}`.")]
    session_type: Annotated[str, Field(description="Dialect.")]


class QueryStatus(WireModel):
    """
    Where an operation stands. A word other than `waiting` and `running` means: stop polling.
    """

    status: Annotated[
        Annotated[str, one_of("waiting", "running", "available", "failed", "canceled", "expired", "closed")],
        Field(description="The state in the words of Hue; stop polling when it is neither `waiting` nor `running`."),
    ]
    has_result_set: Annotated[
        bool, Field(description="Expected while waiting or running; true in state `available`; else false.")
    ]
    state: Annotated[
        Annotated[
            str,
            one_of(
                "waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"
            ),
        ],
        Field(description="The exact state; `status` shows `success` as `available` and `timed_out` as `failed`."),
    ]
    message: Annotated[
        str,
        Field(
            description="Reason in `failed`, `canceled`, `timed_out`, `expired`, `closed`; in `available` what cut the result and how to get more rows; else empty."
        ),
    ]
    rows: Annotated[int, Field(description="Rows stored so far; final in terminal states.")]
    truncated: Annotated[bool, Field(description="The stored result was cut at a cap; `message` says which.")]
    truncated_reason: Annotated[
        Annotated[str, one_of("row_limit", "byte_limit")] | None,
        Field(description="Which cap cut the stored result; null when none did."),
    ]
    truncated_by: Annotated[
        Annotated[str, one_of("default_limit", "limit", "result_max_rows", "result_max_bytes")] | None,
        Field(
            description="What cut it: the default limit, the `limit` of the call, or the largest number of rows or bytes of a result on this server; null when nothing did."
        ),
    ]
    modified_row_count: Annotated[
        int | None, Field(description="Rows changed; null until known or when the engine does not report it.")
    ]
    expires_at: Annotated[
        Time | None, Field(description="UTC time at which the result will be deleted; null unless `available`.")
    ]
    submitted: Annotated[Time, Field(description="UTC time of recording.")]
    started: Annotated[
        Time | None,
        Field(description="UTC time at which the statement was sent to the engine; null: it was not sent (yet)."),
    ]
    ended: Annotated[Time | None, Field(description="UTC time of the end; null until then.")]
    elapsed_ms: Annotated[
        int,
        Field(description="Milliseconds from `started` to `ended`, or until now; 0 for a statement that was not sent."),
    ]
    queued_ms: Annotated[
        int,
        Field(
            description="Milliseconds from `submitted` to `started`, or to the end of a statement that was never sent, or until now."
        ),
    ]
    queue_position: Annotated[
        int | None,
        Field(
            description="Place among the statements that wait for the same connector, 1 is the next one; null unless it waits for a place, and in an answer of execute without `wait`. Users take turns, so it can also grow."
        ),
    ]


class StatusResponse(WireModel):
    """
    Where an operation stands; from the service's own record, never from the engine.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    query_status: Annotated[QueryStatus, Field(description="Where the operation stands.")]


class ColumnMeta(WireModel):
    """
    A column of a result.
    """

    name: Annotated[str, Field(description="Name of the column.")]
    type: Annotated[
        Annotated[
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
        ],
        Field(description="Type of the cells; one list of names for every dialect."),
    ]
    comment: Annotated[str, Field(description="Comment stored in the data source; empty without one.")]
    native_type: Annotated[str, Field(description="The engine's own type text, for example `varchar(20)`.")]
    as_text: Annotated[
        Omittable[bool],
        Field(
            description="Only with `big_numbers=text`: integers of 64 bits and decimals of this column are JSON strings, also within arrays, maps and structs. `type` stays that of the column."
        ),
    ] = None


class ResultPage(WireModel):
    """
    A batch of rows. Every row has one cell per element of `meta`.
    """

    has_more: Annotated[bool, Field(description="Rows after this batch exist or may still arrive.")]
    type: Annotated[Literal["table"], Field(description="Always `table`.")]
    isEscaped: Annotated[
        bool,
        Field(
            description="True: cells are texts escaped as HTML, as clients of Hue show them; false: cells are JSON values."
        ),
    ]
    meta: Annotated[list[ColumnMeta], Field(description="Columns of the result; the same in every batch.")]
    data: Annotated[list[list[Any]], Field(description="Rows in order; each row has one cell per element of `meta`.")]
    start_row: Annotated[int, Field(description="Offset of the first row of this batch.")]
    rows_total: Annotated[int | None, Field(description="Null until the result is complete.")]
    truncated: Annotated[bool, Field(description="The stored result was cut at a cap.")]
    truncated_reason: Annotated[
        Annotated[str, one_of("row_limit", "byte_limit")] | None,
        Field(description="Which cap cut the stored result; null when none did."),
    ]
    truncated_by: Annotated[
        Annotated[str, one_of("default_limit", "limit", "result_max_rows", "result_max_bytes")] | None,
        Field(
            description="What cut it: the default limit, the `limit` of the call, or the largest number of rows or bytes of a result on this server; null when nothing did."
        ),
    ]
    expires_at: Annotated[Time | None, Field(description="UTC time.")]
    message: Annotated[
        Omittable[str],
        Field(
            description="Only there when the stored result was cut, or when the batch ends before a row with which it would exceed `batch_max_bytes`."
        ),
    ] = None


class ResultResponse(WireModel):
    """
    Answer of fetch_result_data.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    result: Annotated[ResultPage, Field(description="The rows of this batch.")]


class ResultMetadata(WireModel):
    """
    The columns of a result.
    """

    meta: Annotated[list[ColumnMeta], Field(description="Columns of the result; the same in every batch.")]


class ResultMetadataResponse(WireModel):
    """
    Answer of fetch_result_metadata.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    result: Annotated[ResultMetadata, Field(description="The columns.")]


class ResultSize(WireModel):
    """
    How much is stored; null while the statement has not ended.
    """

    rows: Annotated[int | None, Field(description="Exact number of stored rows.")]
    size: Annotated[int | None, Field(description="Bytes of the spool.")]
    message: Annotated[
        str,
        Field(
            description="`Result status is not available` while waiting or running; what cut the result; else empty."
        ),
    ]
    truncated: Annotated[bool, Field(description="The stored result was cut at a cap.")]


class ResultSizeResponse(WireModel):
    """
    Answer of fetch_result_size.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    result: Annotated[ResultSize, Field(description="Rows and bytes that are stored.")]


class Job(WireModel):
    """
    A job that the engine reports for a statement.
    """

    name: Annotated[str, Field(description="Name of the job in the engine.")]
    url: Annotated[str, Field(description="Empty when there is nothing to link to.")]
    started: Annotated[bool, Field(description="The job has begun.")]
    finished: Annotated[bool, Field(description="The job has ended.")]
    percentJob: Annotated[int | None, Field(description="Progress of the job, 0 to 100; null when unknown.")]


class LogsResponse(WireModel):
    """
    Log lines of an operation.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    progress: Annotated[int, Field(description="0 to 100.")]
    jobs: Annotated[
        list[Job], Field(description="Jobs that the engine reports for the statement; empty when it reports none.")
    ]
    logs: Annotated[str, Field(description="Lines joined by line breaks.")]
    isFullLogs: Annotated[bool, Field(description="True: replace what is shown; false: append.")]
    next_from: Annotated[int, Field(description="Value of `from` for the next call.")]
    submitted: Annotated[Time, Field(description="UTC time of recording.")]
    started: Annotated[
        Time | None,
        Field(description="UTC time at which the statement was sent to the engine; null: it was not sent (yet)."),
    ]
    ended: Annotated[Time | None, Field(description="UTC time of the end; null until then.")]
    elapsed_ms: Annotated[
        int,
        Field(description="Milliseconds from `started` to `ended`, or until now; 0 for a statement that was not sent."),
    ]
    queued_ms: Annotated[
        int,
        Field(
            description="Milliseconds from `submitted` to `started`, or to the end of a statement that was never sent, or until now."
        ),
    ]
    queue_position: Annotated[
        int | None,
        Field(
            description="Place among the statements that wait for the same connector, 1 is the next one; null unless it waits for a place, and in an answer of execute without `wait`. Users take turns, so it can also grow."
        ),
    ]


class ActionResult(WireModel):
    """
    0 when the call changed something or had nothing to do, -1 when there was nothing left to close.
    """

    status: Annotated[
        Annotated[int, one_of(0, -1)],
        Field(description="0: the call changed something or had nothing to do; -1: there was nothing left to close."),
    ]


class CancelResponse(WireModel):
    """
    Answer of cancel_statement: the state that the operation has now.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    result: Annotated[ActionResult, Field(description="Outcome of the call.")]
    query_status: Annotated[QueryStatus, Field(description="Where the operation stands.")]


class CloseResponse(WireModel):
    """
    Answer of close_statement.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    result: Annotated[ActionResult, Field(description="Outcome of the call.")]
    message: Annotated[str, Field(description="`Query closed.`, or `Query already expired.`")]


class WatchResponse(WireModel):
    """
    Status of any operation with its log, until `isSuccess` or `isFailure` is true.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    query_status: Annotated[QueryStatus, Field(description="Where the operation stands.")]
    id: Annotated[int, Field(description="Equals `history_id`.")]
    operationId: Annotated[str, Field(description="UUID.")]
    watch_url: Annotated[str, Field(description="Path of the watch call for this operation.")]
    statement: Annotated[str, Field(description="The statement that was sent to the engine.")]
    log: Annotated[str, Field(description="The whole log.")]
    jobs: Annotated[
        list[Job], Field(description="Jobs that the engine reports for the statement; empty when it reports none.")
    ]
    isSuccess: Annotated[bool, Field(description="The operation has ended with success.")]
    isFailure: Annotated[bool, Field(description="The operation has ended as failed, canceled or timed out.")]


class WatchFailure(WireModel):
    """
    Watch of an operation that did not succeed.
    """

    status: Annotated[Annotated[int, one_of(1, 401, -3, -4)], Field(description="As in StatementFailure.")]
    code: Annotated[str, Field(description="As in StatementFailure.")]
    message: Annotated[str, Field(description="Text for a person; for `engine_error` that of the engine.")]
    line: Annotated[
        int | None, Field(description="Line of the error in `statement`, from 1; null when the engine does not say.")
    ]
    column: Annotated[
        int | None,
        Field(description="Column of that line, from 1, in Unicode code points; null when the engine does not say."),
    ]
    query_status: Annotated[QueryStatus, Field(description="Where the operation stands.")]
    handle: Annotated[Handle, Field(description="The statement as an operation, with its place in the script.")]
    history_id: Annotated[int, Field(description="Number of the operation; unique in the service.")]
    history_uuid: Annotated[str, Field(description="UUID.")]
    id: Annotated[int, Field(description="Equals `history_id`.")]
    operationId: Annotated[str, Field(description="UUID.")]
    watch_url: Annotated[str, Field(description="Path of the watch call for this operation.")]
    statement: Annotated[str, Field(description="The statement that was sent to the engine.")]
    log: Annotated[str, Field(description="The whole log.")]
    jobs: Annotated[
        list[Job], Field(description="Jobs that the engine reports for the statement; empty when it reports none.")
    ]
    isSuccess: Annotated[
        bool, Field(description="True for `expired` and `closed`: the statement itself had succeeded.")
    ]
    isFailure: Annotated[bool, Field(description="The operation has ended as failed, canceled or timed out.")]


class ProgressEvent(WireModel):
    """
    Data of the server-sent event `progress`.
    """

    progress: Annotated[int, Field(description="0 to 100.")]
    rows: Annotated[int, Field(description="Rows stored so far.")]
    jobs: Annotated[
        list[Job], Field(description="Jobs that the engine reports for the statement; empty when it reports none.")
    ]


class LogEvent(WireModel):
    """
    Data of the server-sent event `log`: the lines [from, next_from).
    """

    from_: Annotated[int, Field(alias="from", description="Number of the first line in `logs`.")]
    next_from: Annotated[int, Field(description="Number of the line after the last one in `logs`.")]
    logs: Annotated[str, Field(description="Lines joined by line breaks.")]


class ExplainResponse(WireModel):
    """
    The engine's plan of a statement that was not run.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    explanation: Annotated[str, Field(description="The plan as the engine writes it.")]
    statement: Annotated[str, Field(description="The statement that was explained.")]


class ExplainFailure(WireModel):
    """
    The engine refuses to explain the statement; HTTP 200.
    """

    status: Annotated[Literal[1], Field(description="Always 1.")]
    code: Annotated[
        str, Field(description="Stable word for the reason; `engine_error` when the engine refuses the statement.")
    ]
    message: Annotated[str, Field(description="The engine's own text.")]
    line: Annotated[
        int | None, Field(description="Line of the error in `statement`, from 1; null when the engine does not say.")
    ]
    column: Annotated[
        int | None,
        Field(description="Column of that line, from 1, in Unicode code points; null when the engine does not say."),
    ]
    statement: Annotated[str, Field(description="The statement that was refused.")]


class FormatResponse(WireModel):
    """
    The same statements, laid out.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    formatted_statements: Annotated[
        str, Field(description="The statements with upper-case keywords, one clause per line.")
    ]


class HistoryData(WireModel):
    """
    What a history entry tells about its statement.
    """

    statement: Annotated[str, Field(description="The statement that ran, cut to 1001 characters.")]
    lastExecuted: Annotated[int, Field(description="Epoch milliseconds of recording.")]
    status: Annotated[
        Annotated[str, one_of("waiting", "running", "available", "failed", "canceled", "expired", "closed")],
        Field(description="The state in the words of Hue, as `query_status.status`."),
    ]
    parentSavedQueryUuid: Annotated[str, Field(description="UUID of the saved notebook or empty.")]
    state: Annotated[
        Annotated[
            str,
            one_of(
                "waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"
            ),
        ],
        Field(description="The exact state, as `query_status.state`."),
    ]
    message: Annotated[str, Field(description="Reason of a failed or canceled statement; else empty.")]
    line: Annotated[
        int | None, Field(description="Line of the error in the statement, from 1; null when the engine does not say.")
    ]
    column: Annotated[
        int | None,
        Field(description="Column of that line, from 1, in Unicode code points; null when the engine does not say."),
    ]
    database: Annotated[str, Field(description="Current database of the statement; empty when none was given.")]
    rows: Annotated[int, Field(description="Rows of the result.")]
    submitted: Annotated[Time, Field(description="UTC time of recording.")]
    started: Annotated[
        Time | None,
        Field(description="UTC time at which the statement was sent to the engine; null: it was not sent (yet)."),
    ]
    ended: Annotated[Time | None, Field(description="UTC time of the end; null until then.")]
    elapsed_ms: Annotated[
        int,
        Field(description="Milliseconds from `started` to `ended`, or until now; 0 for a statement that was not sent."),
    ]
    queued_ms: Annotated[
        int,
        Field(
            description="Milliseconds from `submitted` to `started`, or to the end of a statement that was never sent, or until now."
        ),
    ]
    queue_position: Annotated[
        int | None,
        Field(
            description="Place among the statements that wait for the same connector, 1 is the next one; null unless it waits for a place, and in an answer of execute without `wait`. Users take turns, so it can also grow."
        ),
    ]


class HistoryEntry(WireModel):
    """
    One operation of the caller.
    """

    name: Annotated[str, Field(description="Name of the entry; empty for statements without one.")]
    id: Annotated[int, Field(description="Number of the operation, as `history_id`.")]
    uuid: Annotated[str, Field(description="UUID.")]
    type: Annotated[str, Field(description="`query-<dialect>`.")]
    data: Annotated[HistoryData, Field(description="The statement and its outcome.")]
    absoluteUrl: Annotated[str, Field(description="Relative path to the editor.")]


class HistoryResponse(WireModel):
    """
    The caller's operations, newest first.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    count: Annotated[int, Field(description="All matches before paging.")]
    message: Annotated[str, Field(description="Text for a person; may be empty.")]
    history: Annotated[list[HistoryEntry], Field(description="The entries of this page.")]


class Notebook(WireModel):
    """
    An empty notebook; nothing of it is stored.
    """

    name: Annotated[str, Field(description="Name of the notebook; empty for a dialect's type.")]
    uuid: Annotated[str, Field(description="UUID.")]
    description: Annotated[str, Field(description="Always empty.")]
    type: Annotated[str, Field(description="`notebook` or `query-<dialect>`.")]
    isSaved: Annotated[bool, Field(description="Always false.")]
    isManaged: Annotated[bool, Field(description="Always false.")]
    skipHistorify: Annotated[bool, Field(description="Always false.")]
    sessions: Annotated[list[Any], Field(description="Always empty.")]
    snippets: Annotated[list[Any], Field(description="Always empty.")]
    directoryUuid: Annotated[str | None, Field(description="UUID.")]


class NotebookResponse(WireModel):
    """
    Answer of create_notebook.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    notebook: Annotated[Notebook, Field(description="The notebook.")]


class Session(WireModel):
    """
    An engine session of the caller. Credentials are never given back: a `password` is shown empty.
    """

    type: Annotated[str, Field(description="Dialect.")]
    id: Annotated[int, Field(description="Number of the session, for `session_id` of execute.")]
    session_id: Annotated[str, Field(description="Opaque; form `[0-9a-f]{16}:[0-9a-f]{16}`.")]
    properties: Annotated[list[dict[str, Any]], Field(description="As given.")]
    configuration: Annotated[dict[str, Any], Field(description="Engine settings in force; empty when unknown.")]
    reuse_session: Annotated[bool, Field(description="Always false.")]
    http_addr: Annotated[
        str | None, Field(description="Address of a web page of the engine session; null when there is none.")
    ]
    expires_at: Annotated[Time | None, Field(description="UTC time at which the idle session will be closed.")]


class CreateSessionResponse(WireModel):
    """
    Answer of create_session.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    session: Annotated[Session, Field(description="The session.")]


class ClosedSession(WireModel):
    """
    The session that was closed.
    """

    id: Annotated[int, Field(description="Number of the session.")]
    application: Annotated[str, Field(description="Dialect.")]
    status: Annotated[Literal[4], Field(description="4: closed.")]


class SessionClosure(WireModel):
    """
    Outcome of a close. `session` is null when there was nothing left to close.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    message: Annotated[str, Field(description="Text for a person; may be empty.")]
    session: Annotated[
        ClosedSession | None,
        Field(description="The session that was closed; null when there was nothing left to close."),
    ]


class CloseSessionResponse(WireModel):
    """
    Answer of close_session.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    session: Annotated[SessionClosure, Field(description="Outcome of the close.")]


class HealthCheck(WireModel):
    """
    Outcome of one check.
    """

    ok: Annotated[bool, Field(description="The check passed.")]
    ms: Annotated[int, Field(description="Milliseconds.")]


class BrokerCheck(WireModel):
    """
    Outcome of the broker's check.
    """

    ok: Annotated[bool, Field(description="The check passed; true when the task server is off.")]
    ms: Annotated[int, Field(description="Milliseconds.")]
    enabled: Annotated[bool, Field(description="The task server is on.")]


class HealthChecks(WireModel):
    """
    What the service needs. No addresses, no error texts.
    """

    database: Annotated[HealthCheck, Field(description="The service's own database answers.")]
    schema_: Annotated[
        HealthCheck,
        Field(alias="schema", description="The tables of the service's database have the expected version."),
    ]
    result_store: Annotated[HealthCheck, Field(description="The store of results answers.")]
    broker: Annotated[BrokerCheck, Field(description="The broker of the task server.")]


class ReadyResponse(WireModel):
    """
    The instance takes calls.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    ready: Annotated[bool, Field(description="The instance takes calls.")]
    checks: Annotated[HealthChecks, Field(description="Outcome of each check.")]


class NotReadyResponse(WireModel):
    """
    503: something that the service needs is missing, or the instance is being stopped.
    """

    status: Annotated[Literal[-1], Field(description="Always -1.")]
    code: Annotated[
        Annotated[str, one_of("not_ready", "stopping")],
        Field(description="`stopping` from the signal to stop on, whatever the checks say."),
    ]
    message: Annotated[str, Field(description="Text for a person; may be empty.")]
    ready: Annotated[bool, Field(description="The instance takes calls.")]
    checks: Annotated[HealthChecks, Field(description="Outcome of each check.")]


class DatabaseList(WireModel):
    """
    Databases of a data source.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    databases: Annotated[list[str], Field(description="Names of the databases.")]
    truncated: Annotated[bool, Field(description="The list was cut at `metadata_max_names`.")]


class TableSummary(WireModel):
    """
    A table or view in a list.
    """

    name: Annotated[str, Field(description="Name of the table or view.")]
    type: Annotated[Annotated[str, one_of("Table", "View", "Materialized_view")], Field(description="What it is.")]
    comment: Annotated[str, Field(description="Comment stored in the data source; empty without one.")]


class DatabaseMetadata(WireModel):
    """
    Tables and views of a database.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    tables_meta: Annotated[list[TableSummary], Field(description="Tables and views, by name.")]
    truncated: Annotated[bool, Field(description="The list was cut at `metadata_max_names`.")]


class ColumnSummary(WireModel):
    """
    A column of a table; null where the engine does not tell.
    """

    name: Annotated[str, Field(description="Name of the column.")]
    type: Annotated[str, Field(description="The engine's own type text.")]
    comment: Annotated[str, Field(description="Comment stored in the data source; empty without one.")]
    nullable: Annotated[bool | None, Field(description="The column takes NULL; null when unknown.")]
    default: Annotated[str | None, Field(description="Expression text.")]
    autoincrement: Annotated[bool | None, Field(description="Values are generated by the engine; null when unknown.")]
    primary_key: Annotated[bool | None, Field(description="The column belongs to the primary key; null when unknown.")]
    partition_key: Annotated[bool, Field(description="The column partitions the table.")]


class PartitionKey(WireModel):
    """
    A column that partitions a table.
    """

    name: Annotated[str, Field(description="Name of the column.")]
    type: Annotated[str, Field(description="The engine's own type text.")]


class PrimaryKey(WireModel):
    """
    A column of the primary key.
    """

    name: Annotated[str, Field(description="Name of the column.")]


class ForeignKey(WireModel):
    """
    A column that refers to another table.
    """

    name: Annotated[str, Field(description="Name of the column.")]
    to: Annotated[str, Field(description="`database.table.column`.")]


class TableMetadata(WireModel):
    """
    Columns and keys of a table or view.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    name: Annotated[str, Field(description="Name of the table or view.")]
    comment: Annotated[str, Field(description="Comment stored in the data source; empty without one.")]
    is_view: Annotated[bool, Field(description="True for a view.")]
    support_updates: Annotated[bool | None, Field(description="Rows can be updated or deleted; null when unknown.")]
    hdfs_link: Annotated[str | None, Field(description="Location as a storage path.")]
    columns: Annotated[list[str], Field(description="Column names in table order, partition columns included.")]
    extended_columns: Annotated[
        list[ColumnSummary], Field(description="The columns with their types and keys, in table order.")
    ]
    partition_keys: Annotated[
        list[PartitionKey], Field(description="Columns that partition the table; empty when there are none.")
    ]
    primary_keys: Annotated[
        list[PrimaryKey], Field(description="Columns of the primary key; empty when there are none.")
    ]
    foreign_keys: Annotated[list[ForeignKey], Field(description="Columns that refer to other tables.")]


class FunctionSummary(WireModel):
    """
    A function in a list; empty text where the engine does not tell.
    """

    name: Annotated[str, Field(description="Name of the function.")]
    signature: Annotated[str, Field(description="Types of the arguments; overloads are joined by line breaks.")]
    return_type: Annotated[str, Field(description="Type of the result; empty when unknown.")]
    is_builtin: Annotated[str, Field(description="`BUILTIN` for a function of the engine; empty when unknown.")]
    is_persistent: Annotated[
        str, Field(description="`true` for a function that outlives the session; empty when unknown.")
    ]


class FunctionList(WireModel):
    """
    Functions of a data source or of one database.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    functions: Annotated[list[FunctionSummary], Field(description="The functions, by name.")]
    truncated: Annotated[bool, Field(description="The list was cut at `metadata_max_names`.")]


class FunctionDetail(WireModel):
    """
    One function; no keys at all when the engine's catalogue cannot list functions.
    """

    name: Annotated[Omittable[str], Field(description="Name of the function.")] = None
    signature: Annotated[Omittable[str], Field(description="Overloads are joined by line breaks.")] = None
    description: Annotated[Omittable[str], Field(description="What the function does; empty when unknown.")] = None
    return_type: Annotated[Omittable[str], Field(description="Type of the result; empty when unknown.")] = None
    is_builtin: Annotated[
        Omittable[str], Field(description="`BUILTIN` for a function of the engine; empty when unknown.")
    ] = None
    is_persistent: Annotated[
        Omittable[str], Field(description="`true` for a function that outlives the session; empty when unknown.")
    ] = None


class FunctionResponse(WireModel):
    """
    Details of one function.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    function: Annotated[FunctionDetail, Field(description="The function.")]


class SampleResponse(WireModel):
    """
    Sample rows of a table, or values of a column.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    headers: Annotated[list[str], Field(description="Column names of the sample.")]
    full_headers: Annotated[list[ColumnMeta], Field(description="The columns of the sample.")]
    rows: Annotated[list[list[Any]], Field(description="Rows of the sample; each row has one cell per column.")]
    message: Annotated[str, Field(description="Text for a person; may be empty.")]
    isEscaped: Annotated[bool, Field(description="Cells are escaped as HTML text, as clients of Hue show them.")]


class SampleStart(WireModel):
    """
    The operation that will give the sample.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    handle: Annotated[Handle, Field(description="The statement as an operation, with its place in the script.")]


class SampleStartResponse(WireModel):
    """
    Answer of a sample with `async`.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    result: Annotated[SampleStart, Field(description="The operation that was started.")]
    operationId: Annotated[str, Field(description="UUID.")]
    history_uuid: Annotated[str, Field(description="UUID.")]


class DatabaseDescription(WireModel):
    """
    Description of a database.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    message: Annotated[str, Field(description="Text for a person; may be empty.")]
    db_name: Annotated[str, Field(description="Name of the database.")]
    name: Annotated[str, Field(description="Equals `db_name`.")]
    comment: Annotated[str, Field(description="Comment stored in the data source; empty without one.")]
    location: Annotated[str, Field(description="Where the engine keeps the data; empty when unknown.")]
    hdfs_link: Annotated[str, Field(description="Location as a storage path.")]
    owner_name: Annotated[str, Field(description="Owner of the database; empty when unknown.")]
    owner_type: Annotated[str, Field(description="Kind of the owner, for example `USER`; empty when unknown.")]
    parameters: Annotated[str, Field(description="The engine's text of the parameters; empty when there are none.")]


class DescribedColumn(WireModel):
    """
    A column of a described table, partition columns included.
    """

    name: Annotated[str, Field(description="Name of the column.")]
    type: Annotated[str, Field(description="The engine's own type text.")]
    comment: Annotated[str, Field(description="Comment stored in the data source; empty without one.")]
    nullable: Annotated[bool | None, Field(description="The column takes NULL; null when unknown.")]
    default: Annotated[
        str | None, Field(description="Default value as the engine's expression text; null without one.")
    ]


class TableProperty(WireModel):
    """
    One property or statistic of a described table.
    """

    col_name: Annotated[str, Field(description="Name of the property; empty for statistics.")]
    data_type: Annotated[str, Field(description="Value of a property; name of a statistic.")]
    comment: Annotated[str, Field(description="Value of a statistic; else a comment.")]


class TableDetailProperties(WireModel):
    """
    Properties of a described table that every engine fills.
    """

    owner: Annotated[str, Field(description="Owner; empty when unknown.")]
    create_time: Annotated[Time | Literal[""], Field(description="UTC time of creation; empty when unknown.")]
    table_type: Annotated[
        Annotated[str, one_of("MANAGED_TABLE", "EXTERNAL_TABLE", "VIRTUAL_VIEW", "MATERIALIZED_VIEW")],
        Field(description="Kind of the table."),
    ]
    format: Annotated[str, Field(description="`parquet`, `orc`, `text` and so on, or empty.")]


class TableDetails(WireModel):
    """
    Properties and statistics of a described table.
    """

    properties: Annotated[TableDetailProperties, Field(description="Properties that every engine fills.")]
    stats: Annotated[dict[str, str], Field(description="Keys that the engine has, for example `numRows`.")]


class TableDescription(WireModel):
    """
    Description of a table or view.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    message: Annotated[str, Field(description="Text for a person; may be empty.")]
    name: Annotated[str, Field(description="Name of the table or view.")]
    comment: Annotated[str, Field(description="Comment stored in the data source; empty without one.")]
    is_view: Annotated[bool, Field(description="True for a view.")]
    path_location: Annotated[str, Field(description="Where the engine keeps the data; empty when unknown.")]
    hdfs_link: Annotated[str, Field(description="Location as a storage path.")]
    cols: Annotated[list[DescribedColumn], Field(description="Columns in table order, partition columns included.")]
    partition_keys: Annotated[
        list[PartitionKey], Field(description="Columns that partition the table; empty when there are none.")
    ]
    primary_keys: Annotated[
        list[PrimaryKey], Field(description="Columns of the primary key; empty when there are none.")
    ]
    foreign_keys: Annotated[list[ForeignKey], Field(description="Columns that refer to other tables.")]
    properties: Annotated[list[TableProperty], Field(description="The properties as a list.")]
    stats: Annotated[list[TableProperty], Field(description="The statistics as a list.")]
    details: Annotated[TableDetails, Field(description="Properties and statistics by name.")]


class ColumnDescription(WireModel):
    """
    Statistics of a column that the engine already has.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    message: Annotated[str, Field(description="Text for a person; may be empty.")]
    col_name: Annotated[str, Field(description="Name of the column.")]
    data_type: Annotated[str, Field(description="The engine's own type text.")]
    min: Annotated[str | None, Field(description="Smallest value as text; null when unknown.")]
    max: Annotated[str | None, Field(description="Largest value as text; null when unknown.")]
    num_nulls: Annotated[int | None, Field(description="Values that are NULL; null when unknown.")]
    distinct_count: Annotated[int | None, Field(description="Distinct values; null when unknown.")]
    avg_col_len: Annotated[float | None, Field(description="Average length of the values; null when unknown.")]
    max_col_len: Annotated[int | None, Field(description="Length of the longest value; null when unknown.")]
    num_trues: Annotated[int | None, Field(description="Values that are true; null when unknown.")]
    num_falses: Annotated[int | None, Field(description="Values that are false; null when unknown.")]


class AnalyzeResponse(WireModel):
    """
    The operation that computes the statistics.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    message: Annotated[str, Field(description="Text for a person; may be empty.")]
    redirect: Annotated[str, Field(description="Always empty.")]
    watch_url: Annotated[str, Field(description="Path of the watch call for this operation.")]
    operationId: Annotated[str, Field(description="UUID.")]
    history_uuid: Annotated[str, Field(description="UUID.")]
    history_id: Annotated[int, Field(description="Number of the operation; unique in the service.")]
    handle: Annotated[Handle, Field(description="The statement as an operation, with its place in the script.")]


class DialectProperties(WireModel):
    """
    What the editor needs to know of a dialect; no keys at all for types that are not SQL.
    """

    is_sql: Annotated[Omittable[bool], Field(description="The dialect is SQL.")] = None
    sql_identifier_quote: Annotated[Omittable[str], Field(description="What encloses quoted names.")] = None
    sql_identifier_comment_single: Annotated[
        Omittable[str], Field(description="What begins a comment to the end of the line.")
    ] = None
    has_catalog: Annotated[Omittable[bool], Field(description="Objects are named with a catalogue in front.")] = None
    has_database: Annotated[Omittable[bool], Field(description="The dialect has databases.")] = None
    has_table: Annotated[Omittable[bool], Field(description="The dialect has tables.")] = None
    has_live_queries: Annotated[Omittable[bool], Field(description="The dialect has statements that never end.")] = None
    has_optimizer_risks: Annotated[
        Omittable[bool], Field(description="The optimizer reports risks; this server has no optimizer.")
    ] = None
    has_optimizer_values: Annotated[
        Omittable[bool], Field(description="The optimizer suggests values; this server has no optimizer.")
    ] = None
    has_auto_limit: Annotated[Omittable[bool], Field(description="A client may add a limit to statements.")] = None
    has_reference_language: Annotated[
        Omittable[bool], Field(description="Clients of Hue carry a language reference of the dialect.")
    ] = None
    has_reference_functions: Annotated[
        Omittable[bool], Field(description="Clients of Hue carry a list of functions of the dialect.")
    ] = None
    has_use_statement: Annotated[Omittable[bool], Field(description="The dialect has a `USE` statement.")] = None


class Interpreter(WireModel):
    """
    A place that statements can be sent to.
    """

    name: Annotated[str, Field(description="Display name.")]
    type: Annotated[str, Field(description="Settings key or connector id.")]
    id: Annotated[str, Field(description="Equals `type`.")]
    displayName: Annotated[str, Field(description="Display name.")]
    buttonName: Annotated[str, Field(description="Text for a button that opens it.")]
    tooltip: Annotated[str, Field(description="Text shown over the button.")]
    optimizer: Annotated[Literal["off"], Field(description="This server has no optimizer.")]
    page: Annotated[str, Field(description="Relative path of the page in Hue.")]
    is_sql: Annotated[bool, Field(description="The dialect is SQL.")]
    is_batchable: Annotated[bool, Field(description="Statements can run without a client.")]
    dialect: Annotated[str, Field(description="SQL dialect, for example `hive`.")]
    dialect_properties: Annotated[
        DialectProperties, Field(description="What a client needs to know about the dialect.")
    ]


class CatalogEntry(WireModel):
    """
    A data source whose tables can be browsed.
    """

    name: Annotated[str, Field(description="Display name.")]
    type: Annotated[str, Field(description="Key of the settings or id of the connector.")]
    id: Annotated[str, Field(description="Key of the settings or id of the connector.")]
    displayName: Annotated[str, Field(description="Display name.")]
    buttonName: Annotated[str, Field(description="Text for a button that opens it.")]
    tooltip: Annotated[str, Field(description="Text shown over the button.")]
    page: Annotated[str, Field(description="Relative path of the page in Hue.")]
    is_sql: Annotated[bool, Field(description="The dialect is SQL.")]
    is_catalog: Annotated[bool, Field(description="Its tables can be browsed.")]


class BrowserEntry(WireModel):
    """
    A browser that the caller may use.
    """

    type: Annotated[
        Annotated[str, one_of("hdfs", "s3", "abfs", "ofs", "file", "tables", "yarn", "importer", "celery-beat")],
        Field(description="What is browsed."),
    ]
    displayName: Annotated[str, Field(description="Display name.")]
    buttonName: Annotated[str, Field(description="Text for a button that opens it.")]
    tooltip: Annotated[str, Field(description="Text shown over the button.")]
    page: Annotated[str, Field(description="Relative path of the page in Hue.")]


class EditorApp(WireModel):
    """
    The editor and its interpreters.
    """

    name: Annotated[str, Field(description="Always `editor`.")]
    displayName: Annotated[str, Field(description="Display name.")]
    buttonName: Annotated[str, Field(description="Text for a button that opens it.")]
    interpreters: Annotated[list[Interpreter], Field(description="The entries that the caller may use, in order.")]
    default_limit: Annotated[int, Field(description="0: off.")]
    interpreter_names: Annotated[list[str], Field(description="The `type` of each interpreter, in order.")]
    page: Annotated[str, Field(description="Relative path of the page in Hue.")]
    default_sql_interpreter: Annotated[str, Field(description="Connector that statements run on when none is named.")]
    source_autocomplete_disabled: Annotated[bool, Field(description="Clients must not load names for completion.")]


class BrowserApp(WireModel):
    """
    The browsers.
    """

    name: Annotated[str, Field(description="Always `browser`.")]
    displayName: Annotated[str, Field(description="Display name.")]
    buttonName: Annotated[str, Field(description="Text for a button that opens it.")]
    interpreters: Annotated[list[BrowserEntry], Field(description="The entries that the caller may use, in order.")]
    interpreter_names: Annotated[list[str], Field(description="The `type` of each interpreter, in order.")]


class SchedulerApp(WireModel):
    """
    The scheduler.
    """

    name: Annotated[str, Field(description="Always `celery-beat`.")]
    displayName: Annotated[str, Field(description="Display name.")]
    buttonName: Annotated[str, Field(description="Text for a button that opens it.")]
    interpreters: Annotated[list[BrowserEntry], Field(description="The entries that the caller may use, in order.")]
    interpreter_names: Annotated[list[str], Field(description="The `type` of each interpreter, in order.")]
    page: Annotated[str, Field(description="Relative path of the page in Hue.")]


class HomeApp(WireModel):
    """
    The document page.
    """

    name: Annotated[str, Field(description="Always `home`.")]
    displayName: Annotated[str, Field(description="Display name.")]
    buttonName: Annotated[str, Field(description="Text for a button that opens it.")]
    interpreters: Annotated[list[Any], Field(description="Always empty.")]
    page: Annotated[str, Field(description="Relative path of the page in Hue.")]


class AppConfig(WireModel):
    """
    The applications that the caller may use.
    """

    editor: Annotated[EditorApp, Field(description="The SQL editor.")]
    catalogs: Annotated[list[CatalogEntry], Field(description="Data sources whose tables can be browsed.")]
    browser: Annotated[BrowserApp, Field(description="Browsers for files, tables and imports.")]
    scheduler: Annotated[Omittable[SchedulerApp], Field(description="Only with `beat_enabled`.")] = None
    home: Annotated[HomeApp, Field(description="Page of documents.")]


class ServiceFlags(WireModel):
    """
    Flags of the service and of the caller.
    """

    is_admin: Annotated[bool, Field(description="The caller is an administrator.")]
    is_yarn_enabled: Annotated[bool, Field(description="Always false.")]
    enable_task_server: Annotated[bool, Field(description="Statements run in workers of the task server.")]
    enable_workflow_creation_action: Annotated[bool, Field(description="Always false.")]
    allow_sample_data_from_views: Annotated[bool, Field(description="Rows of views may be sampled.")]
    enable_sharing: Annotated[bool, Field(description="Documents may be shared.")]
    collect_usage: Annotated[bool, Field(description="Usage is collected; always false.")]


class StorageBrowserConfig(WireModel):
    """
    What a file browser may offer.
    """

    enable_chunked_file_upload: Annotated[bool, Field(description="Files may be uploaded in parts.")]
    enable_new_storage_browser: Annotated[bool, Field(description="Always false.")]
    restrict_file_extensions: Annotated[
        list[str] | None, Field(description="Only files with these extensions may be uploaded; null for any.")
    ]
    concurrent_max_connection: Annotated[int, Field(description="Parts that a client may upload at the same time.")]
    file_upload_chunk_size: Annotated[int, Field(description="Bytes.")]
    enable_file_download_button: Annotated[bool, Field(description="A download button may be shown.")]
    max_file_editor_size: Annotated[int, Field(description="Bytes.")]
    enable_extract_uploaded_archive: Annotated[bool, Field(description="Archives can be unpacked; always false.")]


class ImporterConfig(WireModel):
    """
    What the importer takes.
    """

    is_enabled: Annotated[bool, Field(description="The caller may import files.")]
    restrict_local_file_extensions: Annotated[
        list[str] | None, Field(description="Only files with these extensions may be imported; null for any.")
    ]
    max_local_file_size_upload_limit: Annotated[int, Field(description="Bytes.")]


class Cluster(WireModel):
    """
    A cluster; credentials are always empty.
    """

    id: Annotated[str, Field(description="Id of the cluster.")]
    name: Annotated[str, Field(description="Name of the cluster.")]
    type: Annotated[str, Field(description="Always `direct`.")]
    credentials: Annotated[dict[str, Any], Field(description="Always empty.")]


class DocumentsConfig(WireModel):
    """
    Document types of the caller.
    """

    types: Annotated[list[str], Field(description="Sorted.")]


class ClientConfiguration(WireModel):
    """
    Answer of get_config.
    """

    app_config: Annotated[AppConfig, Field(description="What the caller may open.")]
    main_button_action: Annotated[Interpreter | EditorApp, Field(description="What the main button does.")]
    button_actions: Annotated[
        list[EditorApp | SchedulerApp], Field(description="What the main button offers as a menu.")
    ]
    default_sql_interpreter: Annotated[str, Field(description="Connector that statements run on when none is named.")]
    cluster_type: Annotated[str, Field(description="Kind of the deployment; always `direct`.")]
    has_computes: Annotated[bool, Field(description="The deployment has computes to choose from; always false.")]
    vw_name: Annotated[str, Field(description="Always empty.")]
    img_version: Annotated[str, Field(description="Version of this server.")]
    hue_version: Annotated[str, Field(description="Version of Hue whose interface is offered.")]
    svc_config: Annotated[ServiceFlags, Field(description="What is switched on and what the caller is.")]
    hue_config: Annotated[ServiceFlags, Field(description="Equals `svc_config`.")]
    storage_browser: Annotated[StorageBrowserConfig, Field(description="Settings of the file browser.")]
    importer: Annotated[ImporterConfig, Field(description="What the importer accepts.")]
    clusters: Annotated[list[Cluster], Field(description="Clusters that statements can be sent to.")]
    documents: Annotated[DocumentsConfig, Field(description="Types of documents.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class Namespace(WireModel):
    """
    A namespace of a data source.
    """

    id: Annotated[str, Field(description="Id of the namespace.")]
    name: Annotated[str, Field(description="Name of the namespace.")]
    status: Annotated[Literal["CREATED"], Field(description="Always `CREATED`.")]
    computes: Annotated[list[Cluster], Field(description="Computes of the namespace.")]


class Compute(WireModel):
    """
    A compute of a data source.
    """

    id: Annotated[str, Field(description="Id of the compute.")]
    name: Annotated[str, Field(description="Name of the compute.")]
    namespace: Annotated[str, Field(description="Id of the namespace.")]
    interface: Annotated[
        str, Field(description="How the data source is connected, for example `hiveserver2` or `sqlalchemy`.")
    ]
    type: Annotated[str, Field(description="Always `direct`.")]
    options: Annotated[dict[str, Any], Field(description="Always empty.")]


class NamespacesResponse(WireModel):
    """
    The namespaces, by the interface that the request names.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[Namespace]]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ComputesResponse(WireModel):
    """
    The computes, by the interface that the request names.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[Compute]]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ClustersResponse(WireModel):
    """
    The clusters, by the interface that the request names.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, list[Cluster]]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class BannersResponse(WireModel):
    """
    The banner of the service.
    """

    system: Annotated[str | None, Field(description="Always null.")]
    configured: Annotated[str, Field(description="Harmless HTML.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ConfigProblem(WireModel):
    """
    A problem of the settings; secrets are masked.
    """

    name: Annotated[str, Field(description="Path of the setting.")]
    message: Annotated[str, Field(description="What is wrong.")]
    value: Annotated[str, Field(description="Value of the setting; secrets are masked.")]
    level: Annotated[
        Annotated[str, one_of("error", "warning")],
        Field(description="An `error` prevents the start; a `warning` does not."),
    ]


class CheckConfigResponse(WireModel):
    """
    Problems of the settings.
    """

    hue_config_dir: Annotated[str, Field(description="Directory of the settings files.")]
    config_errors: Annotated[
        list[ConfigProblem], Field(description="Problems that were found; empty when there are none.")
    ]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ServerLogsResponse(WireModel):
    """
    The last lines of the server's log.
    """

    hue_hostname: Annotated[str, Field(description="Host name of the server that answered.")]
    logs: Annotated[list[str], Field(description="Lines of the log, each with its line break.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class AdminStatement(WireModel):
    """
    A statement of any user, without its text.
    """

    id: Annotated[str, Field(description="Id of the operation, as `operationId` of the editor calls.")]
    history_id: Annotated[int, Field(description="Number of the record; larger ones are newer.")]
    user: Annotated[str, Field(description="Name of the user who submitted it.")]
    connector: Annotated[str, Field(description="Id of the connector.")]
    dialect: Annotated[str, Field(description="Dialect of the connector.")]
    state: Annotated[
        Annotated[
            str,
            one_of(
                "waiting", "running", "available", "success", "failed", "canceled", "timed_out", "expired", "closed"
            ),
        ],
        Field(description="The state."),
    ]
    submitted: Annotated[Time, Field(description="UTC time of recording.")]
    started: Annotated[
        Time | None,
        Field(description="UTC time at which the statement was sent to the engine; null: it was not sent (yet)."),
    ]
    ended: Annotated[Time | None, Field(description="UTC time of the end; null until then.")]
    elapsed_ms: Annotated[
        int,
        Field(description="Milliseconds from `started` to `ended`, or until now; 0 for a statement that was not sent."),
    ]
    queued_ms: Annotated[
        int,
        Field(
            description="Milliseconds from `submitted` to `started`, or to the end of a statement that was never sent, or until now."
        ),
    ]
    rows: Annotated[int, Field(description="Rows stored so far.")]
    bytes: Annotated[int, Field(description="Bytes of the stored result.")]
    progress: Annotated[int, Field(description="0 to 100, as in get_logs.")]
    server: Annotated[
        str | None,
        Field(description="Name of the process that runs the statement, or ran it last; null while no process has it."),
    ]
    session_id: Annotated[int, Field(description="Number of the session that the statement runs in.")]
    error_code: Annotated[str | None, Field(description="Code of the failure; null when there is none.")]
    cancel_requested: Annotated[bool, Field(description="A cancel was requested.")]
    canceled_by: Annotated[str | None, Field(description="Who requested it; null when it was not requested.")]
    is_import: Annotated[bool, Field(description="The statement makes a table from a file.")]


class AdminStatementsResponse(WireModel):
    """
    Statements of all users, newest first.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    statements: Annotated[list[AdminStatement], Field(description="The page.")]
    next_after: Annotated[int | None, Field(description="`after` for the next page; null: this is the last page.")]


class AdminStatementResponse(WireModel):
    """
    One statement of any user, with its text.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    statement: Annotated[AdminStatement, Field(description="The statement.")]
    text: Annotated[str, Field(description="Text of the statement; of an import a description.")]
    text_is_cut: Annotated[bool, Field(description="Only the beginning of the text is still stored.")]
    database: Annotated[
        str | None, Field(description="Database that the statement runs in; null when the caller named none.")
    ]
    message: Annotated[str, Field(description="Reason of the end; empty when there is none.")]
    row_limit: Annotated[int, Field(description="Most rows that are stored.")]
    timeout_s: Annotated[int, Field(description="Seconds that the statement may take.")]
    deadline: Annotated[Time, Field(description="UTC time at which it is ended.")]


class AdminCancelResponse(WireModel):
    """
    The statement after the cancel was requested: ended, or still running while its engine has not confirmed.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    statement: Annotated[AdminStatement, Field(description="The statement.")]


class AppExamplesResponse(WireModel):
    """
    Examples that can be installed.
    """

    apps: Annotated[dict[str, str], Field(description="Name of each set of examples, with its title.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class InstallAppExamplesResponse(WireModel):
    """
    The examples are installed.
    """

    message: Annotated[str, Field(description="Text for a person; may be empty.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class HdfsConfig(WireModel):
    """
    Facts about a cluster and the caller; false, empty and null while it does not answer.
    """

    is_trash_enabled: Annotated[bool, Field(description="Deleted entries go to a trash.")]
    is_hdfs_superuser: Annotated[bool, Field(description="The caller is a superuser of HDFS.")]
    groups: Annotated[list[str], Field(description="All groups of the service, for superusers of HDFS.")]
    users: Annotated[list[str], Field(description="All users of the service, for superusers of HDFS.")]
    superuser: Annotated[str | None, Field(description="Superuser of HDFS; null for other stores and when unknown.")]
    supergroup: Annotated[
        str | None, Field(description="Group of the superusers of HDFS; null for other stores and when unknown.")
    ]


class NoConfig(WireModel):
    """
    File systems other than hdfs are not described.
    """


class Filesystem(WireModel):
    """
    A file system that the caller may use.
    """

    file_system: Annotated[
        Annotated[str, one_of("hdfs", "s3a", "abfs", "ofs", "file")], Field(description="Scheme of its paths.")
    ]
    name: Annotated[str, Field(description="Equals `file_system`.")]
    user_home_directory: Annotated[str, Field(description="Home directory of the caller.")]
    config: Annotated[
        HdfsConfig | NoConfig,
        Field(description="Facts about the cluster of `hdfs`; an empty object for other file systems."),
    ]


class FilesystemList(RootModel[list[Filesystem]]):
    """
    Answer of storage/filesystems.
    """

    root: Annotated[list[Filesystem], Field(description="Answer of storage/filesystems.")]


class FileStats(WireModel):
    """
    Attributes of an entry; the same keys for every store.
    """

    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    name: Annotated[str, Field(description="Last segment of the path.")]
    size: Annotated[int, Field(description="Bytes.")]
    atime: Annotated[int | None, Field(description="Epoch seconds.")]
    mtime: Annotated[int | None, Field(description="Epoch seconds.")]
    mode: Annotated[int, Field(description="With type bits.")]
    user: Annotated[str, Field(description="Owner of the entry; empty where the store has none.")]
    group: Annotated[str, Field(description="Group of the entry; empty where the store has none.")]
    aclBit: Annotated[bool, Field(description="True: an access control list is set on the entry.")]
    blockSize: Annotated[int, Field(description="Bytes.")]
    replication: Annotated[int, Field(description="Number of copies; 0 where the store has none.")]


class FileEntry(WireModel):
    """
    An entry of a directory view.
    """

    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    name: Annotated[str, Field(description="Last segment of the path, or `.` and `..`.")]
    stats: Annotated[FileStats, Field(description="Attributes of the entry.")]
    mtime: Annotated[
        str,
        Field(
            description="Time of the last change as text, for example `October 31, 2016 03:34 PM`; empty when unknown."
        ),
    ]
    humansize: Annotated[
        str, Field(description="Size with a unit, for example `5.9 MB`; a no-break space before the unit.")
    ]
    type: Annotated[Annotated[str, one_of("dir", "file", "link", "unknown")], Field(description="Kind of the entry.")]
    rwx: Annotated[str, Field(description="Type and permissions as `ls` prints them, for example `drwxr-xr-x`.")]
    mode: Annotated[str, Field(description="Octal text.")]
    url: Annotated[str, Field(description="URL of the entry, percent-encoded.")]
    is_sentry_managed: Annotated[
        bool, Field(description="The path lies below a configured prefix whose rights another service manages.")
    ]


class FlatFileEntry(WireModel):
    """
    An entry of storage/list.
    """

    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    name: Annotated[str, Field(description="Last segment of the path.")]
    size: Annotated[int, Field(description="Bytes.")]
    atime: Annotated[int | None, Field(description="Epoch seconds.")]
    mtime: Annotated[int | None, Field(description="Epoch seconds.")]
    mode: Annotated[int, Field(description="With type bits.")]
    user: Annotated[str, Field(description="Owner of the entry; empty where the store has none.")]
    group: Annotated[str, Field(description="Group of the entry; empty where the store has none.")]
    aclBit: Annotated[bool, Field(description="True: an access control list is set on the entry.")]
    blockSize: Annotated[int, Field(description="Bytes.")]
    replication: Annotated[int, Field(description="Number of copies; 0 where the store has none.")]
    type: Annotated[Annotated[str, one_of("dir", "file", "link", "unknown")], Field(description="Kind of the entry.")]
    rwx: Annotated[str, Field(description="Type and permissions as `ls` prints them, for example `drwxr-xr-x`.")]


class StatResponse(WireModel):
    """
    Attributes of one entry.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    name: Annotated[str, Field(description="Last segment of the path.")]
    size: Annotated[int, Field(description="Bytes.")]
    atime: Annotated[int | None, Field(description="Epoch seconds.")]
    mtime: Annotated[int | None, Field(description="Epoch seconds.")]
    mode: Annotated[int, Field(description="With type bits.")]
    user: Annotated[str, Field(description="Owner of the entry; empty where the store has none.")]
    group: Annotated[str, Field(description="Group of the entry; empty where the store has none.")]
    aclBit: Annotated[bool, Field(description="True: an access control list is set on the entry.")]
    blockSize: Annotated[int, Field(description="Bytes.")]
    replication: Annotated[int, Field(description="Number of copies; 0 where the store has none.")]
    type: Annotated[Annotated[str, one_of("dir", "file", "link", "unknown")], Field(description="Kind of the entry.")]
    rwx: Annotated[str, Field(description="Type and permissions as `ls` prints them, for example `drwxr-xr-x`.")]


class Breadcrumb(WireModel):
    """
    A step of the way to a path.
    """

    url: Annotated[str, Field(description="Path up to this step.")]
    label: Annotated[str, Field(description="Text of the step.")]


class ListingPage(WireModel):
    """
    Which part of a directory this is, in both vocabularies.
    """

    number: Annotated[int, Field(description="Equals `page_number`.")]
    page_number: Annotated[int, Field(description="Number of this page, from 1.")]
    page_size: Annotated[int, Field(description="Entries per page.")]
    num_pages: Annotated[int, Field(description="Equals `total_pages`.")]
    total_pages: Annotated[int, Field(description="Number of pages.")]
    total_count: Annotated[int, Field(description="Equals `total_size`.")]
    total_size: Annotated[int, Field(description="Number of entries that match.")]
    previous_page_number: Annotated[int, Field(description="0: none.")]
    next_page_number: Annotated[int, Field(description="0: none.")]
    start_index: Annotated[int, Field(description="1-based; 0 when empty.")]
    end_index: Annotated[int, Field(description="1-based; 0 when empty.")]
    total_is_exact: Annotated[bool, Field(description="False: the count ended early, and more entries may exist.")]


class FileListing(WireModel):
    """
    Answer of storage/list.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    files: Annotated[list[FlatFileEntry], Field(description="Entries of this page.")]
    page: Annotated[ListingPage, Field(description="Which part of the directory this is.")]


class DirectoryView(WireModel):
    """
    Answer of storage/view on a directory.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    current_dir_path: Annotated[str, Field(description="Path of the directory in normal form.")]
    current_request_path: Annotated[str, Field(description="URL of this directory, percent-encoded.")]
    breadcrumbs: Annotated[list[Breadcrumb], Field(description="The steps from the root to this path.")]
    files: Annotated[list[FileEntry], Field(description="`..` and `.` first.")]
    page: Annotated[ListingPage, Field(description="Which part of the directory this is.")]
    pagesize: Annotated[int, Field(description="Entries per page, as applied.")]
    descending: Annotated[str | None, Field(description="The query parameter as sent; null when it was not sent.")]
    home_directory: Annotated[
        str | None, Field(description="Home directory of the caller on this store; null when it does not exist.")
    ]
    is_trash_enabled: Annotated[bool, Field(description="Deleted entries go to a trash.")]
    is_fs_superuser: Annotated[bool, Field(description="The caller is a superuser of this store.")]
    groups: Annotated[list[str], Field(description="All groups of the service, for superusers of HDFS; else empty.")]
    users: Annotated[list[str], Field(description="All users of the service, for superusers of HDFS; else empty.")]
    superuser: Annotated[str | None, Field(description="Superuser of HDFS; null for other stores and when unknown.")]
    supergroup: Annotated[
        str | None, Field(description="Group of the superusers of HDFS; null for other stores and when unknown.")
    ]
    is_sentry_managed: Annotated[
        bool, Field(description="The path lies below a configured prefix whose rights another service manages.")
    ]
    apps: Annotated[
        list[str], Field(description="Applications that can open files here: `editor`, `filebrowser` and `importer`.")
    ]
    show_download_button: Annotated[bool, Field(description="A download button may be shown.")]
    show_upload_button: Annotated[bool, Field(description="An upload button may be shown.")]
    is_embeddable: Annotated[bool, Field(description="The query parameter as sent; false when it was not sent.")]
    cwd_set: Annotated[bool, Field(description="Always true.")]
    file_filter: Annotated[str, Field(description="Always `any`.")]
    s3_listing_not_allowed: Annotated[str, Field(description="Always empty.")]


class FileDisplay(WireModel):
    """
    Answer of storage/display.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    contents: Annotated[str, Field(description="Text of the requested part.")]
    offset: Annotated[int, Field(description="Bytes of the shown stream.")]
    length: Annotated[int, Field(description="Bytes that the request names.")]
    end: Annotated[int, Field(description="Offset for the next window.")]
    mode: Annotated[Literal["text"], Field(description="Always `text`.")]
    compression: Annotated[
        Annotated[str, one_of("none", "gzip", "bz2", "avro", "parquet", "snappy")],
        Field(description="How the file is compressed: `none` or the codec."),
    ]


class FileWindow(WireModel):
    """
    The shown part of a file.
    """

    offset: Annotated[int, Field(description="Bytes of the shown stream.")]
    length: Annotated[int, Field(description="Bytes.")]
    end: Annotated[int, Field(description="Offset for the next window.")]
    dirname: Annotated[str, Field(description="Directory of the file.")]
    mode: Annotated[Annotated[str, one_of("text", "binary")], Field(description="How the content is shown.")]
    compression: Annotated[
        Annotated[str, one_of("none", "gzip", "bz2", "avro", "parquet", "snappy")],
        Field(description="How the file is compressed: `none` or the codec."),
    ]
    size: Annotated[int, Field(description="Stored bytes.")]
    max_chunk_size: Annotated[str, Field(description="Largest `length`, in decimal digits.")]
    contents: Annotated[str, Field(description="Text of the requested part.")]
    masked_binary_data: Annotated[bool, Field(description="Bytes that are not text are shown as U+FFFD.")]
    xxd: Annotated[
        Omittable[list[list[Any]]], Field(description="Only in binary mode; lines of offset, words and printable text.")
    ] = None


class FileView(WireModel):
    """
    Answer of storage/view on a file.
    """

    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    name: Annotated[str, Field(description="Last segment of the path.")]
    stats: Annotated[FileStats, Field(description="Attributes of the file.")]
    mtime: Annotated[
        str,
        Field(
            description="Time of the last change as text, for example `October 31, 2016 03:34 PM`; empty when unknown."
        ),
    ]
    humansize: Annotated[
        str, Field(description="Size with a unit, for example `5.9 MB`; a no-break space before the unit.")
    ]
    type: Annotated[Annotated[str, one_of("dir", "file", "link", "unknown")], Field(description="Kind of the entry.")]
    rwx: Annotated[str, Field(description="Type and permissions as `ls` prints them, for example `drwxr-xr-x`.")]
    mode: Annotated[str, Field(description="Octal text.")]
    url: Annotated[str, Field(description="URL of the file, percent-encoded.")]
    is_sentry_managed: Annotated[
        bool, Field(description="The path lies below a configured prefix whose rights another service manages.")
    ]
    status: Annotated[Literal[0], Field(description="Always 0.")]
    success: Annotated[bool, Field(description="Always true.")]
    contents: Annotated[str, Field(description="Text of the requested part.")]
    filename: Annotated[str, Field(description="Last segment of the path.")]
    editable: Annotated[bool, Field(description="The file is small enough to be edited and is shown as text.")]
    show_download_button: Annotated[bool, Field(description="A download button may be shown.")]
    is_embeddable: Annotated[bool, Field(description="The query parameter as sent; false when it was not sent.")]
    breadcrumbs: Annotated[list[Breadcrumb], Field(description="The steps from the root to this path.")]
    view: Annotated[FileWindow, Field(description="The part of the file that is shown, with its place.")]


class ContentSummaryCounts(WireModel):
    """
    What is below a path; -1 means no quota.
    """

    model_config = ConfigDict(extra="allow")
    directoryCount: Annotated[int, Field(description="Directories below the path, itself included.")]
    fileCount: Annotated[int, Field(description="Files below the path.")]
    length: Annotated[int, Field(description="Bytes.")]
    quota: Annotated[int, Field(description="Largest number of entries; -1 without a quota.")]
    spaceConsumed: Annotated[int, Field(description="Bytes.")]
    spaceQuota: Annotated[int, Field(description="Largest number of bytes on disk; -1 without a quota.")]
    typeQuota: Annotated[dict[str, Any], Field(description="Quotas by type of storage; empty when there are none.")]
    replication: Annotated[int, Field(description="Number of copies; 0 where the store has none.")]


class ContentSummaryResponse(WireModel):
    """
    Answer of storage/content_summary; further keys of the store are passed on.
    """

    model_config = ConfigDict(extra="allow")
    status: Annotated[Literal[0], Field(description="Always 0.")]
    message: Annotated[str, Field(description="Text for a person; may be empty.")]
    path: Annotated[str, Field(description="The path that is summed up.")]
    directoryCount: Annotated[int, Field(description="Directories below the path, itself included.")]
    fileCount: Annotated[int, Field(description="Files below the path.")]
    length: Annotated[int, Field(description="Bytes.")]
    quota: Annotated[int, Field(description="Largest number of entries; -1 without a quota.")]
    spaceConsumed: Annotated[int, Field(description="Bytes.")]
    spaceQuota: Annotated[int, Field(description="Largest number of bytes on disk; -1 without a quota.")]
    typeQuota: Annotated[dict[str, Any], Field(description="Quotas by type of storage; empty when there are none.")]
    replication: Annotated[int, Field(description="Number of copies; 0 where the store has none.")]
    summary: Annotated[ContentSummaryCounts, Field(description="The same counts in one object.")]


class PathResponse(WireModel):
    """
    The path that was changed.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]


class SaveResponse(WireModel):
    """
    Answer of storage/save.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    size: Annotated[int, Field(description="Bytes.")]


class ReplicationResponse(WireModel):
    """
    Answer of storage/set_replication.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    replication: Annotated[int, Field(description="The new number of copies.")]


class ChownResponse(WireModel):
    """
    Answer of storage/chown.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    user: Annotated[str | None, Field(description="The new owner; null when it was not changed.")]
    group: Annotated[str | None, Field(description="The new group; null when it was not changed.")]


class ChmodResponse(WireModel):
    """
    Answer of storage/chmod.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    mode: Annotated[str, Field(description="Octal text.")]


class TransferResponse(WireModel):
    """
    Answer of rename, move and copy.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[str, Field(description="Target.")]
    source: Annotated[str, Field(description="Path of the source.")]
    message: Annotated[str, Field(description="What was moved or copied, for a person.")]
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

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    trashed: Annotated[bool, Field(description="The entry was moved to the trash.")]
    trash_path: Annotated[
        str | None, Field(description="Where the entry is in the trash; null when it was deleted for good.")
    ]


class BulkResponse(WireModel):
    """
    Outcome of each item of a bulk call, by the path as sent.
    """

    status: Annotated[
        Annotated[int, one_of(0, -1)], Field(description="0: every item was carried out; -1: some were not.")
    ]
    code: Annotated[Omittable[str], Field(description="`partial_failure` when -1.")] = None
    message: Annotated[Omittable[str], Field(description="Only with `code`; text for a person.")] = None
    results: Annotated[
        dict[str, dict[str, Any]], Field(description="Status and message of each item, by its path as sent.")
    ]


class RunningOperation(WireModel):
    """
    The work goes on after the answer; HTTP 202.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[str, Field(description="The path that is worked on.")]
    operation_id: Annotated[str, Field(description="Id for storage/operation.")]
    state: Annotated[Literal["running"], Field(description="State of the work.")]


class OperationProgress(WireModel):
    """
    How far a long operation is.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    operation_id: Annotated[str, Field(description="Id for storage/operation.")]
    state: Annotated[Annotated[str, one_of("running", "done", "failed")], Field(description="State of the work.")]
    done: Annotated[int, Field(description="Entries that are finished.")]
    total: Annotated[int | None, Field(description="Entries altogether; null while unknown.")]
    result: Annotated[dict[str, Any] | str | None, Field(description="The final body.")]


class TrashPathResponse(WireModel):
    """
    Where the trash of a path is.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    trash_path: Annotated[str | None, Field(description="Directory of the trash; null when the store has none.")]


class RestoreResponse(WireModel):
    """
    Answer of storage/trash/restore.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[str, Field(description="The restored item.")]
    source: Annotated[str, Field(description="Where it was in the trash.")]


class PurgeResponse(WireModel):
    """
    Answer of storage/trash/purge.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    purged: Annotated[int, Field(description="Entries that were deleted for good.")]


class UploadResponse(WireModel):
    """
    A file arrived.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    data: Annotated[str, Field(description="Always empty.")]
    size: Annotated[int, Field(description="Bytes.")]
    sha256: Annotated[str, Field(description="SHA-256 of the content, in hexadecimal digits.")]
    next: Annotated[str | None, Field(description="Always null.")]
    result: Annotated[FileEntry, Field(description="The new file as a directory view shows it.")]
    file_stats: Annotated[FlatFileEntry, Field(description="Attributes of the new file.")]


class UploadPartResponse(WireModel):
    """
    A part of a file arrived.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    uuid: Annotated[str, Field(description="UUID.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    part: Annotated[int, Field(description="Number of the part, from 0.")]
    received: Annotated[list[list[int]], Field(description="Ranges of bytes, end exclusive.")]
    offset: Annotated[int, Field(description="End of the contiguous start.")]


class UploadStateResponse(WireModel):
    """
    How much of a part upload has arrived.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    uuid: Annotated[str, Field(description="UUID.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    offset: Annotated[int, Field(description="End of the contiguous start, in bytes.")]
    received: Annotated[list[list[int]], Field(description="Ranges of bytes that have arrived, end exclusive.")]
    missing_parts: Annotated[list[int], Field(description="Numbers of the parts that have not arrived, from 0.")]
    total_size: Annotated[int, Field(description="Bytes.")]
    expires_at: Annotated[Time, Field(description="UTC time.")]


class UploadCompleteResponse(WireModel):
    """
    All parts arrived and make one file.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    path: Annotated[
        str, Field(description="Path of the entry, as a URL of the store or as an absolute path of the default store.")
    ]
    uuid: Annotated[str, Field(description="UUID.")]
    size: Annotated[int, Field(description="Bytes.")]
    result: Annotated[FileEntry, Field(description="The new file as a directory view shows it.")]
    success: Annotated[bool, Field(description="Always true.")]
    data: Annotated[str, Field(description="`Success`.")]
    next: Annotated[str | None, Field(description="Always null.")]


class AvailableSpaceResponse(WireModel):
    """
    Bytes that the caller may still stage; -1 when no limit is known.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    upload_available_space: Annotated[int, Field(description="Bytes; -1 when no limit is known.")]


class ImporterError(WireModel):
    """
    A failure of the importer.
    """

    error: Annotated[str, Field(description="Text for a person.")]
    code: Annotated[str, Field(description="Stable word in snake_case.")]


class ImportedFile(WireModel):
    """
    A file arrived; `file_path` is a reference to hand back unchanged.
    """

    file_path: Annotated[
        str,
        Field(description="Reference of the upload for the other calls of the importer; to be sent back unchanged."),
    ]
    size: Annotated[int, Field(description="Bytes.")]
    expires_at: Annotated[Time, Field(description="UTC time.")]


class DelimitedMetadata(WireModel):
    """
    How a text file is delimited, in real characters.
    """

    type: Annotated[Annotated[str, one_of("csv", "tsv", "delimiter_format")], Field(description="Kind of the file.")]
    field_separator: Annotated[str, Field(description="What separates fields.")]
    quote_char: Annotated[str, Field(description="What encloses fields; empty for none.")]
    record_separator: Annotated[str, Field(description="What ends a record.")]
    encoding: Annotated[str, Field(description="Detected encoding of the text.")]
    confidence: Annotated[float, Field(description="0 to 1.")]


class ExcelMetadata(WireModel):
    """
    The sheets of a workbook.
    """

    type: Annotated[Literal["excel"], Field(description="Kind of the file.")]
    sheet_names: Annotated[list[str], Field(description="Names of the sheets, in order.")]


class RecordsMetadata(WireModel):
    """
    guess_metadata of a file of records, which names its columns itself.
    """

    type: Annotated[
        Annotated[str, one_of("parquet", "ndjson", "avro", "arrow")], Field(description="Kind of the file.")
    ]


class HeaderGuess(WireModel):
    """
    Whether the first row looks like column names.
    """

    has_header: Annotated[bool, Field(description="The first row holds column names.")]


class PreviewColumn(WireModel):
    """
    A column typed for the chosen dialect.
    """

    name: Annotated[str, Field(description="Name of the column.")]
    type: Annotated[str, Field(description="Type name in the chosen dialect.")]
    precision: Annotated[Omittable[int], Field(description="Only with DECIMAL.")] = None
    scale: Annotated[Omittable[int], Field(description="Only with DECIMAL.")] = None
    source: Annotated[
        Omittable[int],
        Field(
            description="Position of the column in the file, from 1: the column may be sent back in `columns` of create_table."
        ),
    ] = None
    format: Annotated[
        Omittable[str],
        Field(
            description="How the cells write dates or numbers, where they are not in the plain forms: `%d/%m/%Y`, `1.234,5`."
        ),
    ] = None


class PreviewWarning(WireModel):
    """
    What was odd in the file.
    """

    code: Annotated[
        Annotated[str, one_of("long_rows", "short_rows", "unclosed_quote", "undecodable", "truncated_sample")],
        Field(description="What was found."),
    ]
    count: Annotated[int, Field(description="How many records are affected.")]
    rows: Annotated[list[int], Field(description="First ten record numbers, from 1.")]


class Preview(WireModel):
    """
    The first rows of a file as a table.
    """

    type: Annotated[
        Annotated[str, one_of("csv", "tsv", "excel", "delimiter_format", "parquet", "ndjson", "avro", "arrow")],
        Field(description="Kind of the file, as `file_type`."),
    ]
    columns: Annotated[list[PreviewColumn], Field(description="Name and type of each column.")]
    preview_data: Annotated[list[list[str]], Field(description="The first rows, each cell as text.")]
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

    status: Annotated[Literal[0], Field(description="Always 0.")]
    history_uuid: Annotated[str, Field(description="UUID; the `operationId` of the editor's calls.")]
    history_id: Annotated[int, Field(description="Number of the operation; unique in the service.")]
    path: Annotated[str, Field(description="The file, as it was sent.")]
    table: Annotated[str, Field(description="The table with its database: `database.table`.")]


class ConnectorSetting(WireModel):
    """
    One setting; secrets are masked.
    """

    name: Annotated[str, Field(description="Name of the setting.")]
    value: Annotated[str | int | float | bool, Field(description="Value of the setting; secrets are `********`.")]


class ConnectorType(WireModel):
    """
    A kind of data source that can be configured.
    """

    dialect: Annotated[str, Field(description="SQL dialect, for example `hive`.")]
    interface: Annotated[
        str, Field(description="How the data source is connected, for example `hiveserver2` or `sqlalchemy`.")
    ]
    category: Annotated[
        Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")],
        Field(description="Category of the type."),
    ]
    nice_name: Annotated[str, Field(description="Display name.")]
    description: Annotated[str, Field(description="Short text about the type; may be empty.")]
    name: Annotated[str, Field(description="Equals `dialect`.")]
    settings: Annotated[
        list[ConnectorSetting], Field(description="The settings in the order of the type; secrets are masked.")
    ]
    properties: Annotated[DialectProperties, Field(description="What a client needs to know about the dialect.")]
    is_runnable: Annotated[bool, Field(description="This server has everything it needs to run statements on it.")]


class Connector(WireModel):
    """
    A configured data source.
    """

    id: Annotated[str, Field(description="Decimal text.")]
    name: Annotated[str, Field(description="Equals `id`.")]
    nice_name: Annotated[str, Field(description="Display name.")]
    dialect: Annotated[str, Field(description="SQL dialect, for example `hive`.")]
    interface: Annotated[
        str, Field(description="How the data source is connected, for example `hiveserver2` or `sqlalchemy`.")
    ]
    category: Annotated[
        Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")],
        Field(description="Category of the type, such as `editor`."),
    ]
    description: Annotated[str, Field(description="Stored text, or that of the type.")]
    settings: Annotated[
        list[ConnectorSetting], Field(description="The settings in the order of the type; secrets are masked.")
    ]
    dialect_properties: Annotated[
        DialectProperties, Field(description="What a client needs to know about the dialect.")
    ]
    is_runnable: Annotated[bool, Field(description="This server has everything it needs to run statements on it.")]
    version: Annotated[int, Field(description="Number of the version; grows by 1 with each change.")]
    groups: Annotated[Omittable[list[str]], Field(description="Administrators only.")] = None
    last_modified: Annotated[Time, Field(description="UTC time.")]


class ConnectorGroup(WireModel):
    """
    Instances of one category.
    """

    category: Annotated[
        Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")],
        Field(description="Category of the type, such as `editor`."),
    ]
    category_name: Annotated[str, Field(description="Display name of the category.")]
    description: Annotated[str, Field(description="Always empty.")]
    values: Annotated[list[Connector], Field(description="The members of the category.")]


class ConnectorTypeGroup(WireModel):
    """
    Types of one category.
    """

    category: Annotated[
        Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")],
        Field(description="Category of the type, such as `editor`."),
    ]
    category_name: Annotated[str, Field(description="Display name of the category.")]
    description: Annotated[str, Field(description="Always empty.")]
    values: Annotated[list[ConnectorType], Field(description="The members of the category.")]


class ConnectorCategoryEntry(WireModel):
    """
    A category of connectors.
    """

    name: Annotated[str, Field(description="Display name of the category.")]
    type: Annotated[
        Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")],
        Field(description="Word of the category."),
    ]
    description: Annotated[str, Field(description="Always empty.")]


class ConnectorTypeList(WireModel):
    """
    The catalogue of types.
    """

    connectors: Annotated[
        list[ConnectorTypeGroup], Field(description="One group per category; all six, also when empty.")
    ]
    categories: Annotated[list[ConnectorCategoryEntry], Field(description="The six categories of connectors.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ConnectorList(WireModel):
    """
    The instances that the caller may see.
    """

    connectors: Annotated[list[ConnectorGroup], Field(description="One group per category; all six, also when empty.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ConnectorTemplate(WireModel):
    """
    A type with its defaults, to be named and sent to update.
    """

    dialect: Annotated[str, Field(description="SQL dialect, for example `hive`.")]
    interface: Annotated[
        str, Field(description="How the data source is connected, for example `hiveserver2` or `sqlalchemy`.")
    ]
    category: Annotated[
        Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")],
        Field(description="Category of the type, such as `editor`."),
    ]
    nice_name: Annotated[str, Field(description="Display name.")]
    description: Annotated[str, Field(description="Short text about the type; may be empty.")]
    name: Annotated[str, Field(description="Empty.")]
    settings: Annotated[
        list[ConnectorSetting], Field(description="The settings in the order of the type; secrets are masked.")
    ]
    properties: Annotated[DialectProperties, Field(description="What a client needs to know about the dialect.")]
    is_runnable: Annotated[bool, Field(description="This server has everything it needs to run statements on it.")]
    dialect_properties: Annotated[
        DialectProperties, Field(description="What a client needs to know about the dialect.")
    ]
    id: Annotated[str | None, Field(description="Always null; sent to update it creates a connector.")]


class ConnectorTemplateResponse(WireModel):
    """
    Answer of instance/new.
    """

    connector: Annotated[ConnectorTemplate, Field(description="The type with its default settings.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ConnectorResponse(WireModel):
    """
    One instance, not wrapped.
    """

    id: Annotated[str, Field(description="Decimal text.")]
    name: Annotated[str, Field(description="Equals `id`.")]
    nice_name: Annotated[str, Field(description="Display name.")]
    dialect: Annotated[str, Field(description="SQL dialect, for example `hive`.")]
    interface: Annotated[
        str, Field(description="How the data source is connected, for example `hiveserver2` or `sqlalchemy`.")
    ]
    category: Annotated[
        Annotated[str, one_of("editor", "browsers", "catalogs", "optimizers", "schedulers", "plugins")],
        Field(description="Category of the type, such as `editor`."),
    ]
    description: Annotated[str, Field(description="Stored text, or that of the type.")]
    settings: Annotated[
        list[ConnectorSetting], Field(description="The settings in the order of the type; secrets are masked.")
    ]
    dialect_properties: Annotated[
        DialectProperties, Field(description="What a client needs to know about the dialect.")
    ]
    is_runnable: Annotated[bool, Field(description="This server has everything it needs to run statements on it.")]
    version: Annotated[int, Field(description="Number of the version; grows by 1 with each change.")]
    groups: Annotated[Omittable[list[str]], Field(description="Administrators only.")] = None
    last_modified: Annotated[Time, Field(description="UTC time.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ConnectorUpdateResponse(WireModel):
    """
    The instance as stored.
    """

    connector: Annotated[Connector, Field(description="The connector as stored.")]
    saved_as: Annotated[bool, Field(description="True after create.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ConnectorDeleteResponse(WireModel):
    """
    The instance is gone.
    """

    id: Annotated[str, Field(description="Id of the connector, in decimal digits.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ConnectionCheck(WireModel):
    """
    One step of a connection test.
    """

    name: Annotated[Annotated[str, one_of("resolve", "connect", "login", "statement")], Field(description="The step.")]
    ok: Annotated[bool, Field(description="The step passed.")]
    ms: Annotated[int, Field(description="Milliseconds.")]


class ConnectorTestResponse(WireModel):
    """
    Outcome of a connection test.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    ok: Annotated[bool, Field(description="Connection and trial statement worked.")]
    warnings: Annotated[str, Field(description="What went wrong or is doubtful; may be empty.")]
    hasWarnings: Annotated[bool, Field(description="`warnings` is not empty; always true when `ok` is false.")]
    reason: Annotated[
        Annotated[str, one_of("", "dns", "refused", "timeout", "tls", "auth", "engine", "other")],
        Field(description="Why the test failed; empty when it did not."),
    ]
    checks: Annotated[list[ConnectionCheck], Field(description="The steps in order, up to the first that failed.")]
    duration_ms: Annotated[int, Field(description="Milliseconds of the whole test.")]
    server_version: Annotated[str | None, Field(description="Version that the engine reports; null when unknown.")]


class ConnectorExamplesResponse(WireModel):
    """
    Which examples were installed.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    message: Annotated[str, Field(description="Text for a person; may be empty.")]
    added: Annotated[list[str], Field(description="Ids of the connectors that were created.")]
    updated: Annotated[list[str], Field(description="Ids of the connectors that were changed.")]
    unchanged: Annotated[list[str], Field(description="Ids of the connectors that were there already.")]


class Group(WireModel):
    """
    A group of users.
    """

    id: Annotated[int, Field(description="Number of the group.")]
    name: Annotated[str, Field(description="Name of the group.")]


class User(WireModel):
    """
    A user.
    """

    id: Annotated[int, Field(description="Number of the user.")]
    username: Annotated[str, Field(description="Name that the user logs in with.")]
    first_name: Annotated[str, Field(description="First name; may be empty.")]
    last_name: Annotated[str, Field(description="Last name; may be empty.")]
    email: Annotated[str, Field(description="Email address; may be empty.")]
    last_login: Annotated[
        str | None, Field(description="UTC time of the last login in ISO 8601 without zone; null before the first one.")
    ]
    editURL: Annotated[str, Field(description="Path of the page that edits the user.")]
    groups: Annotated[Omittable[list[Group]], Field(description="Only with `extend_user`.")] = None


class UsersResponse(WireModel):
    """
    Users by their ids.
    """

    users: Annotated[list[User], Field(description="The users, in the order of their ids.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class UserSummary(WireModel):
    """
    A user in a list.
    """

    id: Annotated[int, Field(description="Number of the user.")]
    username: Annotated[str, Field(description="Name that the user logs in with.")]
    groups: Annotated[list[str], Field(description="Sorted.")]
    is_active: Annotated[bool, Field(description="The user may log in.")]
    superuser: Annotated[bool, Field(description="The user is an administrator.")]


class UserListResponse(WireModel):
    """
    Users that match, ordered by name.
    """

    users: Annotated[list[UserSummary], Field(description="The users of this page.")]
    count: Annotated[int, Field(description="Matches before paging.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class UserAutocompleteResponse(WireModel):
    """
    Users and groups that match.
    """

    users: Annotated[list[User], Field(description="Users whose names match.")]
    groups: Annotated[list[Group], Field(description="Groups whose names match.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class Preferences(WireModel):
    """
    What a user wants where a call does not say it.
    """

    big_numbers: Annotated[
        Annotated[str, one_of("number", "text")],
        Field(
            description="How results and samples show numbers that may have more digits than a double keeps: as JSON numbers, or as JSON strings."
        ),
    ]


class PreferencesResponse(WireModel):
    """
    The preferences of the caller.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    preferences: Annotated[Preferences, Field(description="All of them.")]


class SearchRecord(WireModel):
    """
    Something that was found. Only `hue_name` and `hue_description` are HTML.
    """

    originalName: Annotated[
        str, Field(description="Full name that an editor inserts, such as `database.table.column`, or a file path.")
    ]
    name: Annotated[str, Field(description="Last part of `originalName`.")]
    selectionName: Annotated[str, Field(description="Equals `name`.")]
    hue_name: Annotated[str, Field(description="HTML of `originalName`; matched terms stand in `<em>`.")]
    hue_description: Annotated[str, Field(description="HTML of the matching text; matched terms stand in `<em>`.")]
    description: Annotated[str, Field(description="Comment of the table or column, or description of the document.")]
    originalDescription: Annotated[str, Field(description="Description as the source has it.")]
    type: Annotated[
        str,
        Field(
            description="`HUE` for a document, `DATABASE`, `TABLE`, `VIEW`, `FIELD`, `DIRECTORY`, `FILE` or `S3BUCKET`."
        ),
    ]
    sourceType: Annotated[str, Field(description="Where it was found: `HUE`, `HDFS`, `S3`, or a dialect in capitals.")]
    parentPath: Annotated[str, Field(description="Path of the object that holds it; may be empty.")]
    owner: Annotated[str, Field(description="Owner; empty when unknown.")]
    tags: Annotated[list[str], Field(description="Tags of the object.")]
    identity: Annotated[str, Field(description="Stable id of the record.")]
    created: Annotated[
        str | None, Field(description="UTC time of creation in ISO 8601 without zone; null when unknown.")
    ]
    lastModified: Annotated[
        str | None, Field(description="UTC time of the last change in ISO 8601 without zone; null when unknown.")
    ]
    connector: Annotated[str | None, Field(description="Id of the connector; null for files.")]
    dialect: Annotated[str | None, Field(description="SQL dialect of the connector; null for files.")]
    properties: Annotated[dict[str, Any], Field(description="Properties that an external catalogue gives; else empty.")]
    customProperties: Annotated[
        dict[str, Any], Field(description="Properties set by users in an external catalogue; else empty.")
    ]
    link: Annotated[str, Field(description="Relative path to the editor for documents; else empty.")]
    doc_type: Annotated[str | None, Field(description="Type of a document; null for anything else.")]
    uuid: Annotated[str | None, Field(description="UUID of a document; else null.")]
    parentUuid: Annotated[str | None, Field(description="UUID of the folder of a document; else null.")]
    last_modified: Annotated[
        str | None, Field(description="UTC time of the last change of a document in ISO 8601 without zone; else null.")
    ]
    internalType: Annotated[Omittable[str], Field(description="Of an external catalogue only, as the keys below.")] = (
        None
    )
    meanings: Annotated[
        Omittable[list[dict[str, Any]]], Field(description="Glossary terms that an external catalogue attaches.")
    ] = None
    meaningNames: Annotated[Omittable[list[str]], Field(description="Names of the meanings.")] = None
    classifications: Annotated[
        Omittable[list[dict[str, Any]]], Field(description="Classifications that an external catalogue attaches.")
    ] = None
    original_name: Annotated[Omittable[str], Field(description="Name as the external catalogue has it.")] = None


class SearchSource(WireModel):
    """
    How one source answered.
    """

    ok: Annotated[bool, Field(description="The source answered.")]
    matched: Annotated[int, Field(description="Matches in this source.")]
    truncated: Annotated[bool, Field(description="The search ended at a bound before everything was looked through.")]
    message: Annotated[str, Field(description="Why the source did not answer, or where the search began; else empty.")]


class SearchResponse(WireModel):
    """
    What was found, merged over the sources.
    """

    results: Annotated[list[SearchRecord], Field(description="The records of this page.")]
    facets: Annotated[
        dict[str, dict[str, int]],
        Field(description="Wanted facets, each with its values and how often each value occurs over all matches."),
    ]
    count: Annotated[int, Field(description="Number of entries in `results`.")]
    totalMatched: Annotated[int, Field(description="Matches over all sources.")]
    limit: Annotated[int, Field(description="Largest number of results, as used.")]
    offset: Annotated[int, Field(description="Results that were skipped, as used.")]
    sources: Annotated[dict[str, SearchSource], Field(description="Outcome of each source that was searched.")]
    warnings: Annotated[list[str], Field(description="What was skipped, as texts.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class Worker(WireModel):
    """
    A worker process.
    """

    id: Annotated[str, Field(description="Name of the worker process.")]
    started: Annotated[Time, Field(description="UTC time.")]
    heartbeat: Annotated[Time, Field(description="UTC time.")]
    running: Annotated[int, Field(description="Tasks that the worker runs.")]
    capacity: Annotated[int, Field(description="Tasks that the worker runs at once.")]


class TaskServerStatus(WireModel):
    """
    State of the task server.
    """

    enabled: Annotated[bool, Field(description="The task server is switched on.")]
    beat_enabled: Annotated[bool, Field(description="Schedules are switched on.")]
    beat_running: Annotated[bool, Field(description="A process runs the schedules at present.")]
    broker_ok: Annotated[bool, Field(description="The broker answers.")]
    queued: Annotated[int, Field(description="Tasks that wait.")]
    running: Annotated[int, Field(description="Tasks that run.")]
    workers: Annotated[list[Worker], Field(description="Worker processes.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class Task(WireModel):
    """
    A task of the task server.
    """

    id: Annotated[str, Field(description="UUID.")]
    name: Annotated[str, Field(description="Name of the task.")]
    params: Annotated[dict[str, Any], Field(description="Parameters of the task.")]
    state: Annotated[
        Annotated[str, one_of("queued", "running", "finished", "failed", "canceled")],
        Field(description="`queued`, `running`, `finished`, `failed` or `canceled`."),
    ]
    owner: Annotated[str, Field(description="Owner; empty when unknown.")]
    created: Annotated[Time, Field(description="UTC time.")]
    started: Annotated[Time | None, Field(description="UTC time.")]
    ended: Annotated[Time | None, Field(description="UTC time.")]
    progress: Annotated[int, Field(description="0 to 100.")]
    message: Annotated[str, Field(description="What the task reports.")]
    result: Annotated[dict[str, Any] | None, Field(description="What the task gave; null until it has ended.")]


class TaskListResponse(WireModel):
    """
    Tasks, newest first.
    """

    tasks: Annotated[list[Task], Field(description="The tasks of this page.")]
    count: Annotated[int, Field(description="Matches before paging.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class TaskResponse(WireModel):
    """
    One task.
    """

    task: Annotated[Task, Field(description="The task.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ScheduleNotice(WireModel):
    """
    Whom to tell about the runs of a schedule.
    """

    on: Annotated[list[str], Field(description="`finished`, `failed`.")]
    to: Annotated[list[str], Field(description="Email addresses.")]
    attach_csv: Annotated[bool, Field(description="The result is attached as CSV.")]


class Schedule(WireModel):
    """
    A statement or task that runs at set times.
    """

    id: Annotated[int, Field(description="Number of the schedule.")]
    version: Annotated[int, Field(description="Number of the version; grows by 1 with each change.")]
    next_run: Annotated[Time | None, Field(description="UTC time.")]
    last_run: Annotated[Time | None, Field(description="UTC time.")]
    last_status: Annotated[
        Annotated[str, one_of("", "finished", "failed", "skipped")],
        Field(description="Empty, `finished`, `failed` or `skipped`."),
    ]
    last_history_uuid: Annotated[str | None, Field(description="UUID.")]
    total_runs: Annotated[int, Field(description="Runs so far.")]
    name: Annotated[str, Field(description="Name of the schedule.")]
    enabled: Annotated[bool, Field(description="The schedule runs at its times.")]
    owner: Annotated[str, Field(description="Owner; empty when unknown.")]
    kind: Annotated[Annotated[str, one_of("statement", "task")], Field(description="`statement` or `task`.")]
    connector: Annotated[str | None, Field(description="Connector that the statement runs on.")]
    database: Annotated[str | None, Field(description="Current database of the statement.")]
    statement: Annotated[str | None, Field(description="The statement that runs.")]
    task: Annotated[str | None, Field(description="Name of the task that runs.")]
    params: Annotated[dict[str, Any], Field(description="Parameters of the task.")]
    cron: Annotated[str | None, Field(description="Times of the runs as a cron expression.")]
    interval_s: Annotated[int | None, Field(description="Seconds between runs.")]
    timezone: Annotated[str, Field(description="Time zone of `cron`.")]
    overlap: Annotated[Annotated[str, one_of("skip", "queue")], Field(description="`skip` or `queue`.")]
    expires_at: Annotated[Time | None, Field(description="UTC time.")]
    notify: Annotated[ScheduleNotice | None, Field(description="Recipient of an email about runs; null for none.")]


class ScheduleListResponse(WireModel):
    """
    Schedules by name.
    """

    schedules: Annotated[list[Schedule], Field(description="The schedules of this page.")]
    count: Annotated[int, Field(description="Matches before paging.")]
    beat_running: Annotated[bool, Field(description="A process runs the schedules at present.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ScheduleResponse(WireModel):
    """
    One schedule.
    """

    schedule: Annotated[Schedule, Field(description="The schedule.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ScheduleDeleteResponse(WireModel):
    """
    The schedule is gone.
    """

    id: Annotated[int, Field(description="Number of the schedule.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class ScheduleRunResponse(WireModel):
    """
    The schedule was started once.
    """

    fire_id: Annotated[str, Field(description="Id of the run that was started.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class EmailTestResponse(WireModel):
    """
    Outcome of a test mail.
    """

    ok: Annotated[bool, Field(description="The mail server accepted the mail.")]
    message: Annotated[str, Field(description="Text for a person; may be empty.")]
    status: Annotated[Literal[0], Field(description="Always 0.")]


class StatementFailure(WireModel):
    """
    Report about a recorded statement that did not succeed; HTTP 200.
    """

    status: Annotated[
        Annotated[int, one_of(1, 401, -3, -4)],
        Field(
            description="1: it failed, was rejected or canceled; 401: the data source wants credentials; -3: the result is gone; -4: the time limit passed. Never 0."
        ),
    ]
    code: Annotated[
        str,
        Field(
            description="Stable word: `engine_error`, `rejected`, `canceled`, `statement_timeout`, `expired`, `closed`, `engine_unavailable`, `outcome_unknown`, `result_store_failed`, `session_lost` or `credentials_required`."
        ),
    ]
    message: Annotated[str, Field(description="Text for a person; for `engine_error` that of the engine.")]
    line: Annotated[
        int | None,
        Field(description="Line of the error in `handle.statement`, from 1; null when the engine does not say."),
    ]
    column: Annotated[
        int | None,
        Field(description="Column of that line, from 1, in Unicode code points; null when the engine does not say."),
    ]
    query_status: Annotated[QueryStatus, Field(description="Where the operation stands.")]
    handle: Annotated[Handle, Field(description="The statement as an operation, with its place in the script.")]
    history_id: Annotated[int, Field(description="Number of the operation; unique in the service.")]
    history_uuid: Annotated[str, Field(description="UUID; the `operationId` of later calls.")]
    history_parent_uuid: Annotated[Omittable[str], Field(description="As in the answer of execute; only there.")] = None


class ExecuteResponse(WireModel):
    """
    A statement is recorded and will be run.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    history_id: Annotated[int, Field(description="Number of the operation; unique in the service.")]
    history_uuid: Annotated[str, Field(description="UUID; the `operationId` of later calls.")]
    handle: Annotated[Handle, Field(description="The statement as an operation, with its place in the script.")]
    query_status: Annotated[QueryStatus, Field(description="Where the operation stands.")]
    history_parent_uuid: Annotated[
        Omittable[str], Field(description="UUID of the saved notebook; only when `notebook.isSaved` was sent.")
    ] = None
    result: Annotated[
        Omittable[ResultPage],
        Field(
            description="The first rows, as fetch_result_data gives them; only when `rows` was sent and the statement has ended within `wait`."
        ),
    ] = None


class NestedType(WireModel):
    """
    Type of the elements of an array, or of the keys or values of a map.
    """

    type: Annotated[str, Field(description="Lower-case base word.")]
    native_type: Annotated[str, Field(description="The engine's own type text.")]
    item: Annotated[Omittable["NestedType"], Field(description="Type of the elements of an array.")] = None
    key: Annotated[Omittable["NestedType"], Field(description="Type of the keys of a map.")] = None
    value: Annotated[Omittable["NestedType"], Field(description="Type of the values of a map.")] = None
    fields: Annotated[Omittable[list["NestedField"]], Field(description="Fields of a struct, in order.")] = None


class NestedField(WireModel):
    """
    A field of a struct or row.
    """

    name: Annotated[str, Field(description="Name of the field.")]
    type: Annotated[str, Field(description="Lower-case base word.")]
    native_type: Annotated[str, Field(description="The engine's own type text.")]
    item: Annotated[Omittable[NestedType], Field(description="Type of the elements of an array.")] = None
    key: Annotated[Omittable[NestedType], Field(description="Type of the keys of a map.")] = None
    value: Annotated[Omittable[NestedType], Field(description="Type of the values of a map.")] = None
    fields: Annotated[Omittable[list["NestedField"]], Field(description="Fields of a struct, in order.")] = None


class ColumnMetadata(WireModel):
    """
    A column or a nested part of one. Arrays add `item`, maps `key` and `value`, structs `fields`.
    """

    status: Annotated[Literal[0], Field(description="Always 0.")]
    name: Annotated[str, Field(description="Name of the column, or last segment of a nested path.")]
    type: Annotated[str, Field(description="Lower-case base word.")]
    native_type: Annotated[str, Field(description="The engine's own type text.")]
    comment: Annotated[str, Field(description="Comment stored in the data source; empty without one.")]
    nullable: Annotated[bool | None, Field(description="The column takes NULL; null when unknown.")]
    default: Annotated[
        str | None, Field(description="Default value as the engine's expression text; null without one.")
    ]
    primary_key: Annotated[bool | None, Field(description="The column belongs to the primary key; null when unknown.")]
    partition_key: Annotated[bool, Field(description="The column partitions the table.")]
    sample: Annotated[list[Any], Field(description="Always empty.")]
    item: Annotated[Omittable[NestedType], Field(description="Type of the elements of an array.")] = None
    key: Annotated[Omittable[NestedType], Field(description="Type of the keys of a map.")] = None
    value: Annotated[Omittable[NestedType], Field(description="Type of the values of a map.")] = None
    fields: Annotated[Omittable[list[NestedField]], Field(description="Fields of a struct, in order.")] = None


NestedType.model_rebuild()
