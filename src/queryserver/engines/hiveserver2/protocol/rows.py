"""Types, columns and rows of results."""

from enum import IntEnum

from queryserver.engines.hiveserver2.protocol.declaring import (
    BOOL,
    BYTE,
    BYTES,
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
