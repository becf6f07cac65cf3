"""Requests and replies of sessions and statements."""

from enum import IntEnum

from queryserver.engines.hiveserver2.protocol.declaring import (
    BOOL,
    DOUBLE,
    I16,
    I32,
    I64,
    TEXT,
    Struct,
    list_of,
    map_of,
    struct,
    struct_of,
    wire,
)
from queryserver.engines.hiveserver2.protocol.rows import TRowSet, TTableSchema
from queryserver.engines.hiveserver2.protocol.status import TOperationHandle, TSessionHandle, TStatus

STATUS = struct_of(TStatus)
SESSION = struct_of(TSessionHandle)
OPERATION = struct_of(TOperationHandle)


class TFetchOrientation(IntEnum):
    """Servers know NEXT and FIRST."""

    NEXT, PRIOR, RELATIVE, ABSOLUTE, FIRST, LAST = range(6)


class FetchType(IntEnum):
    """What FetchResults gives: rows, or the log."""

    ROWS, LOG = range(2)


@struct
class TOpenSessionReq(Struct):
    client_protocol: int = wire(1, I32)
    username: str | None = wire(2, TEXT, default=None)
    password: str | None = wire(3, TEXT, default=None)
    configuration: dict[str, str] | None = wire(4, map_of(TEXT, TEXT), default=None)


@struct
class TOpenSessionResp(Struct):
    status: TStatus = wire(1, STATUS)
    server_protocol_version: int = wire(2, I32, default=None)
    session_handle: TSessionHandle | None = wire(3, SESSION, default=None)
    configuration: dict[str, str] | None = wire(4, map_of(TEXT, TEXT), default=None)


@struct
class TCloseSessionReq(Struct):
    session_handle: TSessionHandle = wire(1, SESSION)


@struct
class TExecuteStatementReq(Struct):
    """`query_timeout` in seconds, 0: none."""

    session_handle: TSessionHandle = wire(1, SESSION)
    statement: str = wire(2, TEXT)
    conf_overlay: dict[str, str] | None = wire(3, map_of(TEXT, TEXT), default=None)
    run_async: bool | None = wire(4, BOOL, default=None)
    query_timeout: int | None = wire(5, I64, default=None)


@struct
class TOperationResp(Struct):
    """The reply of every call that starts an operation."""

    status: TStatus = wire(1, STATUS)
    operation_handle: TOperationHandle | None = wire(2, OPERATION, default=None)


@struct
class TProgressUpdateResp(Struct):
    """Progress as a table for people; `progressed_percentage` is 0..1."""

    header_names: list[str] = wire(1, list_of(TEXT))
    rows: list[list[str]] = wire(2, list_of(list_of(TEXT)))
    progressed_percentage: float = wire(3, DOUBLE)
    status: int | None = wire(4, I32, default=None)
    footer_summary: str | None = wire(5, TEXT, default=None)
    start_time: int | None = wire(6, I64, default=None)


@struct
class TGetOperationStatusReq(Struct):
    operation_handle: TOperationHandle = wire(1, OPERATION)
    get_progress_update: bool | None = wire(2, BOOL, default=None)


@struct
class TGetOperationStatusResp(Struct):
    """`operation_started` and `operation_completed` in milliseconds since 1970."""

    status: TStatus = wire(1, STATUS)
    operation_state: int | None = wire(2, I32, default=None)
    sql_state: str | None = wire(3, TEXT, default=None)
    error_code: int | None = wire(4, I32, default=None)
    error_message: str | None = wire(5, TEXT, default=None)
    task_status: str | None = wire(6, TEXT, default=None)
    operation_started: int | None = wire(7, I64, default=None)
    operation_completed: int | None = wire(8, I64, default=None)
    has_result_set: bool | None = wire(9, BOOL, default=None)
    progress_update: TProgressUpdateResp | None = wire(10, struct_of(TProgressUpdateResp), default=None)
    num_modified_rows: int | None = wire(11, I64, default=None)


@struct
class TOperationReq(Struct):
    """The request of CancelOperation, CloseOperation, CloseImpalaOperation, GetResultSetMetadata and GetLog."""

    operation_handle: TOperationHandle = wire(1, OPERATION)


@struct
class TStatusResp(Struct):
    """The reply of CloseSession, CancelOperation and CloseOperation."""

    status: TStatus = wire(1, STATUS)


@struct
class TGetResultSetMetadataResp(Struct):
    status: TStatus = wire(1, STATUS)
    schema: TTableSchema | None = wire(2, struct_of(TTableSchema), default=None)


@struct
class TFetchResultsReq(Struct):
    operation_handle: TOperationHandle = wire(1, OPERATION)
    orientation: int = wire(2, I32)
    max_rows: int = wire(3, I64)
    fetch_type: int | None = wire(4, I16, default=None)


@struct
class TFetchResultsResp(Struct):
    """`has_more_rows` cannot be trusted: Hive and Spark always answer false."""

    status: TStatus = wire(1, STATUS)
    has_more_rows: bool | None = wire(2, BOOL, default=None)
    results: TRowSet | None = wire(3, struct_of(TRowSet), default=None)


@struct
class TGetLogResp(Struct):
    status: TStatus = wire(1, STATUS)
    log: str | None = wire(2, TEXT, default=None)
