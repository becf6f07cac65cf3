"""What calls share: status, handles, enumerations."""

from enum import IntEnum

from queryserver.engines.hiveserver2.protocol.declaring import (
    BOOL,
    BYTES,
    DOUBLE,
    I32,
    TEXT,
    Struct,
    list_of,
    struct,
    struct_of,
    wire,
)


class TProtocolVersion(IntEnum):
    """HIVE_CLI_SERVICE_PROTOCOL_V1 … V11. Results are columnar from V6 on."""

    V1, V2, V3, V4, V5, V6, V7, V8, V9, V10, V11 = range(11)


class TStatusCode(IntEnum):
    """How a call went."""

    SUCCESS, SUCCESS_WITH_INFO, STILL_EXECUTING, ERROR, INVALID_HANDLE = range(5)


class TOperationState(IntEnum):
    """Where a statement is."""

    INITIALIZED, RUNNING, FINISHED, CANCELED, CLOSED, ERROR, UNKNOWN, PENDING, TIMEDOUT = range(9)


class TOperationType(IntEnum):
    """What an operation handle stands for."""

    (
        EXECUTE_STATEMENT,
        GET_TYPE_INFO,
        GET_CATALOGS,
        GET_SCHEMAS,
        GET_TABLES,
        GET_TABLE_TYPES,
        GET_COLUMNS,
        GET_FUNCTIONS,
        UNKNOWN,
    ) = range(9)


@struct
class TStatus(Struct):
    """How a call went, and the engine's words about it."""

    status_code: int = wire(1, I32)
    info_messages: list[str] | None = wire(2, list_of(TEXT), default=None)
    sql_state: str | None = wire(3, TEXT, default=None)
    error_code: int | None = wire(4, I32, default=None)
    error_message: str | None = wire(5, TEXT, default=None)


@struct
class THandleIdentifier(Struct):
    """16 bytes that name something, and 16 that prove the right to it."""

    guid: bytes = wire(1, BYTES)
    secret: bytes = wire(2, BYTES)


@struct
class TSessionHandle(Struct):
    session_id: THandleIdentifier = wire(1, struct_of(THandleIdentifier))


@struct
class TOperationHandle(Struct):
    """`modified_row_count` is below 0 where the server does not know."""

    operation_id: THandleIdentifier = wire(1, struct_of(THandleIdentifier))
    operation_type: int = wire(2, I32)
    has_result_set: bool = wire(3, BOOL)
    modified_row_count: float | None = wire(4, DOUBLE, default=None)
