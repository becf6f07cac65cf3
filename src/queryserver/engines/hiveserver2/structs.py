"""Defines the structs of TCLIService.thrift as dataclasses that Apache Thrift's C extension reads and writes directly.

Optional fields are declared only if this product uses them; the decoder skips all others.
"""

from dataclasses import Field, dataclass, field, fields
from enum import IntEnum
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from thrift.protocol.TBase import TBase
from thrift.Thrift import TType


@dataclass(frozen=True, slots=True)
class WireType:
    """A Thrift type. `arguments` describes the type's elements or fields in the format of `thrift_spec`."""

    number: int
    arguments: Any = None


BOOL = WireType(TType.BOOL)
BYTE = WireType(TType.BYTE)
I16 = WireType(TType.I16)
I32 = WireType(TType.I32)
I64 = WireType(TType.I64)
DOUBLE = WireType(TType.DOUBLE)
TEXT = WireType(TType.STRING, "UTF8")
BYTES = WireType(TType.STRING, "BINARY")


def list_of(kind: WireType) -> WireType:
    return WireType(TType.LIST, (kind.number, kind.arguments, False))


def map_of(key: WireType, value: WireType) -> WireType:
    return WireType(TType.MAP, (key.number, key.arguments, value.number, value.arguments, False))


def struct_of(one: type["Struct"]) -> WireType:
    return WireType(TType.STRUCT, [one, one.thrift_spec])


def wire(number: int, kind: WireType, *, default: Any = ...) -> Any:
    """Declare a field with its number and type. A field without a default is required."""
    return field(default=None, metadata={"number": number, "kind": kind, "required": default is ...})


@dataclass_transform(field_specifiers=(wire,), kw_only_default=True)
class Struct(TBase):
    """A Thrift struct or union. Each subclass becomes a dataclass with a `thrift_spec`; unset fields are None."""

    thrift_spec: ClassVar[tuple[tuple[Any, ...] | None, ...]] = ()
    required: ClassVar[tuple[str, ...]] = ()  # fields that a decoded struct must have
    inner: ClassVar[tuple[str, ...]] = ()  # fields that are structs or lists of structs

    def __init_subclass__(cls) -> None:
        dataclass(kw_only=True)(cls)
        declared: dict[int, Field[Any]] = {each.metadata["number"]: each for each in fields(cast("Any", cls))}
        spec = list[tuple[Any, ...] | None]([None] * (max(declared, default=-1) + 1))
        required, inner = list[str](), list[str]()
        for number, each in declared.items():
            kind: WireType = each.metadata["kind"]
            spec[number] = (number, kind.number, each.name, kind.arguments, None)
            if each.metadata["required"]:
                required.append(each.name)
            element = kind.arguments[0] if kind.number == TType.LIST else kind.number
            if element == TType.STRUCT:
                inner.append(each.name)
        cls.thrift_spec, cls.required, cls.inner = tuple(spec), tuple(required), tuple(inner)


StructT = TypeVar("StructT", bound=Struct)


def missing_field(one: Struct) -> str | None:
    """Return the name of the first required field that is unset in `one` or a nested struct; None if all are set."""
    for name in one.required:
        if getattr(one, name) is None:
            return f"{type(one).__name__}.{name}"
    for name in one.inner:
        value: Any = getattr(one, name)
        for each in value if isinstance(value, list) else ():
            if missing := missing_field(each):
                return missing
        if isinstance(value, Struct) and (missing := missing_field(value)):
            return missing
    return None


class TTypeId(IntEnum):
    (
        BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, STRING, TIMESTAMP, BINARY, ARRAY, MAP, STRUCT, UNION,
        USER_DEFINED, DECIMAL, NULL, DATE, VARCHAR, CHAR, INTERVAL_YEAR_MONTH, INTERVAL_DAY_TIME, TIMESTAMP_LOCAL_TZ,
    ) = range(23)  # fmt: skip


class TTypeQualifierValue(Struct):
    i32_value: int | None = wire(1, I32, default=None)


class TTypeQualifiers(Struct):
    """Type qualifiers by name: `characterMaximumLength`, `precision` or `scale`."""

    qualifiers: dict[str, TTypeQualifierValue] = wire(1, map_of(TEXT, struct_of(TTypeQualifierValue)))


class TPrimitiveTypeEntry(Struct):
    type: int = wire(1, I32)
    type_qualifiers: TTypeQualifiers | None = wire(2, struct_of(TTypeQualifiers), default=None)


class TTypeEntry(Struct):
    """A union of type descriptions, of which servers send only primitive entries."""

    primitive: TPrimitiveTypeEntry | None = wire(1, struct_of(TPrimitiveTypeEntry), default=None)


class TTypeDesc(Struct):
    """A type, described by the first entry. Servers describe even complex types with a single primitive entry."""

    types: list[TTypeEntry] = wire(1, list_of(struct_of(TTypeEntry)))


class TColumnDesc(Struct):
    column_name: str = wire(1, TEXT)
    type_desc: TTypeDesc = wire(2, struct_of(TTypeDesc))
    comment: str | None = wire(4, TEXT, default=None)


class TTableSchema(Struct):
    columns: list[TColumnDesc] = wire(1, list_of(struct_of(TColumnDesc)))


class ColumnValues(Struct):
    """The values of a column.

    `nulls` is a bit mask in which the lowest bit of each byte comes first. It may have fewer bits than values.
    """

    nulls: bytes = wire(2, BYTES)


class TBoolColumn(ColumnValues):
    values: list[bool] = wire(1, list_of(BOOL))


class TByteColumn(ColumnValues):
    values: list[int] = wire(1, list_of(BYTE))


class TI16Column(ColumnValues):
    values: list[int] = wire(1, list_of(I16))


class TI32Column(ColumnValues):
    values: list[int] = wire(1, list_of(I32))


class TI64Column(ColumnValues):
    values: list[int] = wire(1, list_of(I64))


class TDoubleColumn(ColumnValues):
    values: list[float] = wire(1, list_of(DOUBLE))


class TStringColumn(ColumnValues):
    """TStringColumn or TBinaryColumn. Strings stay UTF-8 bytes, which Arrow accepts without conversion to str."""

    values: list[bytes] = wire(1, list_of(BYTES))


class TColumn(Struct):
    """A union with one member per value type."""

    bool_val: TBoolColumn | None = wire(1, struct_of(TBoolColumn), default=None)
    byte_val: TByteColumn | None = wire(2, struct_of(TByteColumn), default=None)
    i16_val: TI16Column | None = wire(3, struct_of(TI16Column), default=None)
    i32_val: TI32Column | None = wire(4, struct_of(TI32Column), default=None)
    i64_val: TI64Column | None = wire(5, struct_of(TI64Column), default=None)
    double_val: TDoubleColumn | None = wire(6, struct_of(TDoubleColumn), default=None)
    string_val: TStringColumn | None = wire(7, struct_of(TStringColumn), default=None)
    binary_val: TStringColumn | None = wire(8, struct_of(TStringColumn), default=None)


class TRowSet(Struct):
    columns: list[TColumn] | None = wire(3, list_of(struct_of(TColumn)), default=None)


class TProtocolVersion(IntEnum):
    """HIVE_CLI_SERVICE_PROTOCOL_V1 to V11. Since V6, results are columnar."""

    V1, V2, V3, V4, V5, V6, V7, V8, V9, V10, V11 = range(11)


class TStatusCode(IntEnum):
    SUCCESS, SUCCESS_WITH_INFO, STILL_EXECUTING, ERROR, INVALID_HANDLE = range(5)


class TOperationState(IntEnum):
    INITIALIZED, RUNNING, FINISHED, CANCELED, CLOSED, ERROR, UNKNOWN, PENDING, TIMEDOUT = range(9)


class TStatus(Struct):
    status_code: int = wire(1, I32)
    info_messages: list[str] | None = wire(2, list_of(TEXT), default=None)
    error_message: str | None = wire(5, TEXT, default=None)


class THandleIdentifier(Struct):
    """A 16-byte identifier with a 16-byte secret that authorizes its use."""

    guid: bytes = wire(1, BYTES)
    secret: bytes = wire(2, BYTES)


class TSessionHandle(Struct):
    session_id: THandleIdentifier = wire(1, struct_of(THandleIdentifier))


EXECUTE_STATEMENT = 0  # the only TOperationType in use


class TOperationHandle(Struct):
    operation_id: THandleIdentifier = wire(1, struct_of(THandleIdentifier))
    operation_type: int = wire(2, I32)
    has_result_set: bool = wire(3, BOOL)


STATUS = struct_of(TStatus)
SESSION = struct_of(TSessionHandle)
OPERATION = struct_of(TOperationHandle)


class TFetchOrientation(IntEnum):
    """The position from which to fetch. Servers support only NEXT and FIRST."""

    NEXT, PRIOR, RELATIVE, ABSOLUTE, FIRST, LAST = range(6)


class FetchType(IntEnum):
    """Whether FetchResults returns rows or log lines."""

    ROWS, LOG = range(2)


class TStatusResp(Struct):
    """A reply with a status, which is all that CloseSession, CancelOperation and CloseOperation return."""

    status: TStatus = wire(1, STATUS)


class TOpenSessionReq(Struct):
    client_protocol: int = wire(1, I32)
    username: str | None = wire(2, TEXT, default=None)
    configuration: dict[str, str] | None = wire(4, map_of(TEXT, TEXT), default=None)


class TOpenSessionResp(TStatusResp):
    server_protocol_version: int = wire(2, I32, default=None)
    session_handle: TSessionHandle | None = wire(3, SESSION, default=None)


class TCloseSessionReq(Struct):
    session_handle: TSessionHandle = wire(1, SESSION)


class TExecuteStatementReq(Struct):
    session_handle: TSessionHandle = wire(1, SESSION)
    statement: str = wire(2, TEXT)
    conf_overlay: dict[str, str] | None = wire(3, map_of(TEXT, TEXT), default=None)
    run_async: bool | None = wire(4, BOOL, default=None)


class TOperationResp(TStatusResp):
    """The reply to every call that starts an operation."""

    operation_handle: TOperationHandle | None = wire(2, OPERATION, default=None)


class TProgressUpdateResp(Struct):
    """An operation's progress. Despite its name, `progressed_percentage` ranges from 0 to 1."""

    progressed_percentage: float = wire(3, DOUBLE)
    status: int | None = wire(4, I32, default=None)


class TOperationReq(Struct):
    """A request with an operation handle.

    CancelOperation, CloseOperation, CloseImpalaOperation, GetResultSetMetadata and GetLog need no other field.
    """

    operation_handle: TOperationHandle = wire(1, OPERATION)


class TGetOperationStatusReq(TOperationReq):
    get_progress_update: bool | None = wire(2, BOOL, default=None)


class TGetOperationStatusResp(TStatusResp):
    operation_state: int | None = wire(2, I32, default=None)
    error_message: str | None = wire(5, TEXT, default=None)
    task_status: str | None = wire(6, TEXT, default=None)
    has_result_set: bool | None = wire(9, BOOL, default=None)
    progress_update: TProgressUpdateResp | None = wire(10, struct_of(TProgressUpdateResp), default=None)
    num_modified_rows: int | None = wire(11, I64, default=None)


class TGetResultSetMetadataResp(TStatusResp):
    schema: TTableSchema | None = wire(2, struct_of(TTableSchema), default=None)


class TFetchResultsReq(TOperationReq):
    orientation: int = wire(2, I32)
    max_rows: int = wire(3, I64)
    fetch_type: int | None = wire(4, I16, default=None)


class TFetchResultsResp(TStatusResp):
    """Rows or log lines. `has_more_rows` is unreliable: Hive and Spark always send false."""

    has_more_rows: bool | None = wire(2, BOOL, default=None)
    results: TRowSet | None = wire(3, struct_of(TRowSet), default=None)


class TGetLogResp(TStatusResp):
    log: str | None = wire(2, TEXT, default=None)


class TDmlResult(Struct):
    """Row counts by partition. For an unpartitioned table, the key is empty."""

    rows_modified: dict[str, int] = wire(1, map_of(TEXT, I64))
    rows_deleted: dict[str, int] | None = wire(3, map_of(TEXT, I64), default=None)


class TCloseImpalaOperationResp(TStatusResp):
    """The reply to CloseImpalaOperation. `dml_result` is set only after DML statements."""

    dml_result: TDmlResult | None = wire(2, struct_of(TDmlResult), default=None)


class TExecProgress(Struct):
    total_scan_ranges: int | None = wire(1, I64, default=None)
    num_completed_scan_ranges: int | None = wire(2, I64, default=None)


class TExecSummary(Struct):
    """An execution summary, of which only the progress is decoded."""

    progress: TExecProgress | None = wire(6, struct_of(TExecProgress), default=None)


class TGetExecSummaryReq(Struct):
    operation_handle: TOperationHandle | None = wire(1, OPERATION, default=None)
    session_handle: TSessionHandle | None = wire(2, SESSION, default=None)


class TGetExecSummaryResp(TStatusResp):
    summary: TExecSummary | None = wire(2, struct_of(TExecSummary), default=None)
