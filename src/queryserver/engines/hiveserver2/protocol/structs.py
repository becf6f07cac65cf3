"""Thrift structs as dataclasses that Apache thrift's C extension reads and writes without further code."""

from dataclasses import Field, dataclass, field, fields
from enum import IntEnum
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from thrift.protocol.TBase import TBase
from thrift.Thrift import TType


@dataclass(frozen=True, slots=True)
class Kind:
    """A thrift type; `arguments` is what `thrift_spec` says about what is inside it."""

    number: int
    arguments: Any = None


BOOL = Kind(TType.BOOL)
BYTE = Kind(TType.BYTE)
I16 = Kind(TType.I16)
I32 = Kind(TType.I32)
I64 = Kind(TType.I64)
DOUBLE = Kind(TType.DOUBLE)
TEXT = Kind(TType.STRING, "UTF8")
BYTES = Kind(TType.STRING, "BINARY")


def list_of(kind: Kind) -> Kind:
    """`list<kind>`."""
    return Kind(TType.LIST, (kind.number, kind.arguments, False))


def map_of(key: Kind, value: Kind) -> Kind:
    """`map<key, value>`."""
    return Kind(TType.MAP, (key.number, key.arguments, value.number, value.arguments, False))


def struct_of(one: type["Struct"]) -> Kind:
    """A struct within a struct."""
    return Kind(TType.STRUCT, [one, one.thrift_spec])


class Struct(TBase):
    """A thrift struct or union. Fields that are not set are None."""

    __slots__ = ()
    thrift_spec: ClassVar[tuple[tuple[Any, ...] | None, ...]] = ()
    required: ClassVar[tuple[str, ...]] = ()
    """Fields without which a decoded struct is worth nothing."""
    inner: ClassVar[tuple[str, ...]] = ()
    """Fields that hold structs or lists of structs."""


def wire(number: int, kind: Kind, *, default: Any = ...) -> Any:
    """A field: its number and type on the wire; required where no default is given."""
    return field(default=None, metadata={"number": number, "kind": kind, "required": default is ...})


StructT = TypeVar("StructT", bound=Struct)


@dataclass_transform(field_specifiers=(wire,), kw_only_default=True)
def struct(one: type[StructT]) -> type[StructT]:
    """Make a dataclass of `one` and give it its `thrift_spec`."""
    made = dataclass(kw_only=True, slots=True)(one)
    declared: dict[int, Field[Any]] = {each.metadata["number"]: each for each in fields(cast("Any", made))}
    made.thrift_spec = tuple(
        _spec(number, declared[number].name, declared[number].metadata["kind"]) if number in declared else None
        for number in range(max(declared, default=-1) + 1)
    )
    made.required = tuple(each.name for each in declared.values() if each.metadata["required"])
    made.inner = tuple(each.name for each in declared.values() if _holds_structs(each.metadata["kind"]))
    return made


def _spec(number: int, name: str, kind: Kind) -> tuple[Any, ...]:
    return number, kind.number, name, kind.arguments, None


def _holds_structs(kind: Kind) -> bool:
    return kind.number == TType.STRUCT or (kind.number == TType.LIST and kind.arguments[0] == TType.STRUCT)


def missing_field(one: Struct) -> str | None:
    """The first required field that is not set, in `one` or in what it holds; None when all are there."""
    for name in one.required:
        if getattr(one, name) is None:
            return f"{type(one).__name__}.{name}"
    for name in one.inner:
        held: Any = getattr(one, name)
        for each in held if isinstance(held, list) else ():
            if found := missing_field(each):
                return found
        if isinstance(held, Struct) and (found := missing_field(held)):
            return found
    return None


class TTypeId(IntEnum):
    """Types of columns."""

    (
        BOOLEAN,
        TINYINT,
        SMALLINT,
        INT,
        BIGINT,
        FLOAT,
        DOUBLE,
        STRING,
        TIMESTAMP,
        BINARY,
        ARRAY,
        MAP,
        STRUCT,
        UNION,
        USER_DEFINED,
        DECIMAL,
        NULL,
        DATE,
        VARCHAR,
        CHAR,
        INTERVAL_YEAR_MONTH,
        INTERVAL_DAY_TIME,
        TIMESTAMP_LOCAL_TZ,
    ) = range(23)


@struct
class TTypeQualifierValue(Struct):
    i32_value: int | None = wire(1, I32, default=None)
    string_value: str | None = wire(2, TEXT, default=None)


@struct
class TTypeQualifiers(Struct):
    """Keys: `characterMaximumLength`, `precision`, `scale`."""

    qualifiers: dict[str, TTypeQualifierValue] = wire(1, map_of(TEXT, struct_of(TTypeQualifierValue)))


@struct
class TPrimitiveTypeEntry(Struct):
    type: int = wire(1, I32)
    type_qualifiers: TTypeQualifiers | None = wire(2, struct_of(TTypeQualifiers), default=None)


@struct
class TArrayTypeEntry(Struct):
    """Numbers of types are positions in the list of the TTypeDesc."""

    object_type: int = wire(1, I32)


@struct
class TMapTypeEntry(Struct):
    key_type: int = wire(1, I32)
    value_type: int = wire(2, I32)


@struct
class TStructTypeEntry(Struct):
    name_to_type: dict[str, int] = wire(1, map_of(TEXT, I32))


@struct
class TUnionTypeEntry(Struct):
    name_to_type: dict[str, int] = wire(1, map_of(TEXT, I32))


@struct
class TUserDefinedTypeEntry(Struct):
    type_class_name: str = wire(1, TEXT)


@struct
class TTypeEntry(Struct):
    """A union."""

    primitive: TPrimitiveTypeEntry | None = wire(1, struct_of(TPrimitiveTypeEntry), default=None)
    array: TArrayTypeEntry | None = wire(2, struct_of(TArrayTypeEntry), default=None)
    map: TMapTypeEntry | None = wire(3, struct_of(TMapTypeEntry), default=None)
    struct: TStructTypeEntry | None = wire(4, struct_of(TStructTypeEntry), default=None)
    union: TUnionTypeEntry | None = wire(5, struct_of(TUnionTypeEntry), default=None)
    user_defined: TUserDefinedTypeEntry | None = wire(6, struct_of(TUserDefinedTypeEntry), default=None)


@struct
class TTypeDesc(Struct):
    """The first entry is the type itself. Hive and Spark describe complex types by one primitive entry."""

    types: list[TTypeEntry] = wire(1, list_of(struct_of(TTypeEntry)))


@struct
class TColumnDesc(Struct):
    """`position` counts from 1."""

    column_name: str = wire(1, TEXT)
    type_desc: TTypeDesc = wire(2, struct_of(TTypeDesc))
    position: int = wire(3, I32)
    comment: str | None = wire(4, TEXT, default=None)


@struct
class TTableSchema(Struct):
    columns: list[TColumnDesc] = wire(1, list_of(struct_of(TColumnDesc)))


@struct
class TBoolColumn(Struct):
    """`nulls` is a bit mask, lowest bit first; it may be shorter than the column."""

    values: list[bool] = wire(1, list_of(BOOL))
    nulls: bytes = wire(2, BYTES)


@struct
class TByteColumn(Struct):
    values: list[int] = wire(1, list_of(BYTE))
    nulls: bytes = wire(2, BYTES)


@struct
class TI16Column(Struct):
    values: list[int] = wire(1, list_of(I16))
    nulls: bytes = wire(2, BYTES)


@struct
class TI32Column(Struct):
    values: list[int] = wire(1, list_of(I32))
    nulls: bytes = wire(2, BYTES)


@struct
class TI64Column(Struct):
    values: list[int] = wire(1, list_of(I64))
    nulls: bytes = wire(2, BYTES)


@struct
class TDoubleColumn(Struct):
    values: list[float] = wire(1, list_of(DOUBLE))
    nulls: bytes = wire(2, BYTES)


@struct
class TStringColumn(Struct):
    """The values are UTF-8; they stay bytes, so that Arrow can take them without a detour over str."""

    values: list[bytes] = wire(1, list_of(BYTES))
    nulls: bytes = wire(2, BYTES)


@struct
class TBinaryColumn(Struct):
    values: list[bytes] = wire(1, list_of(BYTES))
    nulls: bytes = wire(2, BYTES)


@struct
class TColumn(Struct):
    """A union."""

    bool_val: TBoolColumn | None = wire(1, struct_of(TBoolColumn), default=None)
    byte_val: TByteColumn | None = wire(2, struct_of(TByteColumn), default=None)
    i16_val: TI16Column | None = wire(3, struct_of(TI16Column), default=None)
    i32_val: TI32Column | None = wire(4, struct_of(TI32Column), default=None)
    i64_val: TI64Column | None = wire(5, struct_of(TI64Column), default=None)
    double_val: TDoubleColumn | None = wire(6, struct_of(TDoubleColumn), default=None)
    string_val: TStringColumn | None = wire(7, struct_of(TStringColumn), default=None)
    binary_val: TBinaryColumn | None = wire(8, struct_of(TBinaryColumn), default=None)


@struct
class TRow(Struct):
    """Rows of protocols before V6; never asked for, so its values are skipped."""


@struct
class TRowSet(Struct):
    start_row_offset: int = wire(1, I64)
    rows: list[TRow] = wire(2, list_of(struct_of(TRow)))
    columns: list[TColumn] | None = wire(3, list_of(struct_of(TColumn)), default=None)
    binary_columns: bytes | None = wire(4, BYTES, default=None)
    column_count: int | None = wire(5, I32, default=None)


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


@struct
class TDmlResult(Struct):
    """Rows by partition; the empty text stands for an unpartitioned table."""

    rows_modified: dict[str, int] = wire(1, map_of(TEXT, I64))
    num_row_errors: int | None = wire(2, I64, default=None)
    rows_deleted: dict[str, int] | None = wire(3, map_of(TEXT, I64), default=None)


@struct
class TCloseImpalaOperationResp(Struct):
    """`dml_result` is set after a change of data."""

    status: TStatus = wire(1, STATUS)
    dml_result: TDmlResult | None = wire(2, struct_of(TDmlResult), default=None)


@struct
class TExecProgress(Struct):
    total_scan_ranges: int | None = wire(1, I64, default=None)
    num_completed_scan_ranges: int | None = wire(2, I64, default=None)
    total_fragment_instances: int | None = wire(3, I64, default=None)
    num_completed_fragment_instances: int | None = wire(4, I64, default=None)


@struct
class TExecSummary(Struct):
    """Of the summary only what tells progress; plan nodes are skipped."""

    state: int | None = wire(1, I32, default=None)
    error_logs: list[str] | None = wire(5, list_of(TEXT), default=None)
    progress: TExecProgress | None = wire(6, struct_of(TExecProgress), default=None)
    is_queued: bool | None = wire(7, BOOL, default=None)
    queued_reason: str | None = wire(8, TEXT, default=None)


@struct
class TGetExecSummaryReq(Struct):
    operation_handle: TOperationHandle | None = wire(1, OPERATION, default=None)
    session_handle: TSessionHandle | None = wire(2, SESSION, default=None)


@struct
class TGetExecSummaryResp(Struct):
    status: TStatus = wire(1, STATUS)
    summary: TExecSummary | None = wire(2, struct_of(TExecSummary), default=None)
