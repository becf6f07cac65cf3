"""Encoders for the typed download formats: Parquet, and Arrow IPC streams and files (Contract editor 8.2)."""

import io
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from queryserver.errors.base import InvalidParameter
from queryserver.formats.arrow import (
    PLAIN_TYPES,
    Column,
    ResultType,
    field_names,
    is_binary,
    is_text,
    is_text_union,
    member_types,
    text_union_to_native,
    text_union_value_type,
    with_members,
)
from queryserver.formats.download.encoder import Encoder, WriteBuffer, texts, unique_names
from queryserver.formats.text_forms import text_form

_TEXT = pa.string()
_MAX_DECIMAL_DIGITS = 76
_DECIMAL128_DIGITS = 38
_DIGITS_OF_INTEGERS = 20
_ROW_GROUP_BYTES = 16 * 1024 * 1024
_ROW_GROUP_ROWS = 1024 * 1024

_DECLARED = {**PLAIN_TYPES, ResultType.TIMESTAMP_TZ: pa.timestamp("us", "UTC")}


def common_schema(columns: tuple[Column, ...], schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return a schema that Parquet supports and that represents all rows without loss. Blocks.

    A column without a common type becomes text, because every value can be written as text. Names are made unique.
    """
    seen = {schema.remove_metadata() for schema in schemas}
    by_column = zip(*(schema.types for schema in seen), strict=True) if seen else ((),) * len(columns)
    names = unique_names([column.name for column in columns])
    kinds = [_writable_type(common_type(set(kinds), column)) for kinds, column in zip(by_column, columns, strict=True)]
    return pa.schema(list(zip(names, kinds, strict=True)))


def _writable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type itself if Parquet supports it, otherwise text."""
    if not pa.types.is_nested(kind):
        return kind
    try:
        pq.ParquetWriter(io.BytesIO(), pa.schema([("column", kind)])).close()
    except pa.ArrowException:
        return _TEXT
    return kind


class FileSchema:
    """The schema of files whose rows arrive one batch at a time: the common schema of the types known at the start.

    If no types are known, the first batch determines them. All methods block.
    """

    def __init__(self, columns: tuple[Column, ...], known: Iterable[pa.Schema] = ()) -> None:
        self._columns = columns
        self._admitted = {schema.remove_metadata() for schema in known}
        self._schema = common_schema(columns, self._admitted) if self._admitted else None

    @property
    def schema(self) -> pa.Schema:
        """The schema of the file. Without any batch, it comes from the declared types."""
        return self._schema or common_schema(self._columns, ())

    def admit(self, schema: pa.Schema) -> None:
        """Check that the file can represent rows of this type. Raises InvalidParameter."""
        schema = schema.remove_metadata()
        if schema in self._admitted:
            return
        admitted = {*self._admitted, schema}
        common = common_schema(self._columns, admitted)
        if self._schema is None:
            self._schema = common
        for column, fixed, wanted in zip(self._columns, self._schema.types, common.types, strict=True):
            if wanted != fixed != _TEXT:  # every value can be written as text
                raise InvalidParameter(
                    f"format: the column {column.name!r} has values of the type {wanted} after values of the type"
                    f" {fixed}; cast the column to one type, or use csv or ndjson."
                )
        self._admitted = admitted


def cast_batch(batch: pa.RecordBatch, columns: tuple[Column, ...], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [_cast(*of_column) for of_column in zip(batch.columns, columns, schema.types, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def _cast(array: pa.Array, column: Column, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if kind == _TEXT:
        return texts(array, column)
    if is_text_union(array.type) or pa.types.is_nested(kind):
        try:
            return _cast_nested(array, kind)
        except ValueError as error:
            raise InvalidParameter(
                f"format: the column {column.name!r} contains a value of type {column.native_type} that this file"
                f" format cannot represent ({error}); cast the column to text, or use csv or ndjson."
            ) from error
    if pa.types.is_union(array.type):
        return pa.array([None if value is None else float(value) for value in array.to_pylist()], kind)
    # Integers are converted to floating point only in columns declared as floating point.
    return array.cast(kind, safe=not pa.types.is_floating(kind))


def _cast_nested(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert an array to a type that `_parquet_type` returns. In nested arrays, whole member arrays are converted."""
    if array.type == kind:
        return array
    if pa.types.is_dictionary(array.type):
        return _cast_nested(array.dictionary_decode(), kind)
    if is_text_union(array.type):
        return text_union_to_native(array, kind)
    if kind == _TEXT:
        made = text_form(array)
        return array.cast(_TEXT) if made is None else made
    if not pa.types.is_nested(kind) or pa.types.is_null(array.type):
        return array.cast(kind)
    wanted = member_types(kind)

    def cast_member(members: pa.Array, place: int) -> pa.Array:
        return _cast_nested(members, wanted[place])

    return with_members(array, cast_member)


def common_type(seen: set[pa.DataType], column: Column) -> pa.DataType:
    if unions := [kind for kind in seen if pa.types.is_union(kind) and not is_text_union(kind)]:
        # A union means that values have different types; only a column of floats may contain integers as well.
        members = {kind.field(number).type for kind in unions for number in range(kind.num_fields)}
        common = common_type(seen.difference(unions) | members, column)
        return common if common == pa.float64() else _TEXT
    kinds: set[pa.DataType] = set()
    for kind in seen:
        storable = _parquet_type(kind)
        if storable is None:
            return _TEXT
        kinds.add(storable)
    kinds.discard(pa.null())
    if not kinds:
        return _DECLARED.get(column.type, _TEXT)
    common = kinds.pop() if len(kinds) == 1 else _widest_type(kinds, column)
    return _TEXT if common is None else _without_null_types(common)


def _parquet_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that represents an Arrow type in Parquet, or None if Parquet or its readers do not support it."""
    if pa.types.is_dictionary(kind):
        return _parquet_type(kind.value_type)
    if is_text(kind):
        return _TEXT
    if is_binary(kind):
        return pa.binary()
    if is_text_union(kind):
        return _parquet_type(text_union_value_type(kind))
    if pa.types.is_nested(kind):
        return _parquet_nested_type(kind)
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_temporal(kind):
        return _parquet_date_type(kind)
    if pa.types.is_float16(kind):
        return pa.float32()
    is_plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return kind if is_plain or pa.types.is_null(kind) else None


def _parquet_date_type(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_timestamp(kind):
        return kind if kind.unit == "ns" else pa.timestamp("us", kind.tz)
    if pa.types.is_time(kind):
        # Times become text, as in engines that return text, because Arrow and Parquet cannot represent 24:00:00.
        return _TEXT
    return pa.date32() if pa.types.is_date(kind) else None


def _parquet_nested_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the Parquet type of a nested type. Fixed-size lists become lists, and fields are named as in cells."""
    if pa.types.is_struct(kind):
        members = [member for field in kind.fields if (member := _parquet_type(field.type)) is not None]
        if not members or len(members) < len(kind):
            return None
        return pa.struct(list(zip(field_names(kind), members, strict=True)))
    if pa.types.is_map(kind):
        key, item = _parquet_type(kind.key_type), _parquet_type(kind.item_type)
        if (key, item) == (kind.key_type, kind.item_type):
            return kind  # an empty map may have keys of the null type, which `map_` rejects
        return None if key is None or item is None else pa.map_(key, item)
    if pa.types.is_union(kind) or (item := _parquet_type(kind.field(0).type)) is None:
        return None
    is_large = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind)
    return pa.large_list(item) if is_large else pa.list_(item)


def _without_null_types(kind: pa.DataType) -> pa.DataType:
    """Replace null types with text, because Parquet does not support maps with keys of the null type."""
    if pa.types.is_null(kind):
        return _TEXT
    if not pa.types.is_nested(kind):
        return kind
    members = [kind.field(number) for number in range(kind.num_fields)]
    if pa.types.is_map(kind):
        members = [kind.key_field, kind.item_field]
    filled = [_without_null_types(member.type) for member in members]
    if all(member.type == new for member, new in zip(members, filled, strict=True)):
        return kind
    fields = [member.with_type(new) for member, new in zip(members, filled, strict=True)]
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(fields[0], fields[1])
    return pa.large_list(fields[0]) if pa.types.is_large_list(kind) else pa.list_(fields[0])


def _widest_type(kinds: set[pa.DataType], column: Column) -> pa.DataType | None:
    if all(map(pa.types.is_integer, kinds)):
        by_width = {kind.bit_width: kind for kind in kinds}
        widest = by_width[max(by_width)]
        if len({pa.types.is_signed_integer(kind) for kind in kinds}) == 1:
            return widest
        return pa.decimal128(_DIGITS_OF_INTEGERS, 0) if pa.uint64() in kinds else pa.int64()
    if all(map(pa.types.is_floating, kinds)):
        return pa.float64()
    if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
        return pa.float64() if column.type in (ResultType.FLOAT, ResultType.DOUBLE) else None
    if all(pa.types.is_integer(kind) or pa.types.is_decimal(kind) for kind in kinds):
        sizes = [
            (kind.precision, kind.scale) if pa.types.is_decimal(kind) else (_DIGITS_OF_INTEGERS, 0) for kind in kinds
        ]
        scale = max(scale for _, scale in sizes)
        return _decimal(scale + max(precision - scale for precision, scale in sizes), scale)
    if not all(map(pa.types.is_nested, kinds)):
        return None
    # Empty lists and NULL members have null types, which are completed from the other types.
    schemas = [pa.schema([("column", kind)]) for kind in kinds]
    try:
        unified = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None
    return _parquet_nested_type(unified)


def _decimal(precision: int, scale: int) -> pa.DataType | None:
    if scale < 0 or precision > _MAX_DECIMAL_DIGITS:
        return None
    return pa.decimal128(precision, scale) if precision <= _DECIMAL128_DIGITS else pa.decimal256(precision, scale)


class ArrowEncoder(Encoder):
    """Writes an Arrow IPC stream or file. Buffers are compressed only if `codec` is set, because some readers do not
    support compression.

    The file format (Feather version 2) is the stream between a magic number and a footer that lists the offset of each
    batch, which takes about 24 bytes of memory per batch.
    """

    def __init__(
        self, columns: tuple[Column, ...], schema: pa.Schema, *, is_file: bool, codec: str | None = None
    ) -> None:
        self._columns = columns
        self._schema = schema
        self._sink = WriteBuffer()
        begin = pa.ipc.new_file if is_file else pa.ipc.new_stream
        options = pa.ipc.IpcWriteOptions(compression=codec)
        self._writer = begin(pa.PythonFile(self._sink, mode="w"), schema, options=options)

    def start(self) -> bytes:
        return self._sink.take()

    def rows(self, batch: pa.RecordBatch) -> bytes:
        self._writer.write_batch(cast_batch(batch, self._columns, self._schema))
        return self._sink.take()

    def end(self) -> bytes:
        self._writer.close()
        return self._sink.take()

    def close(self) -> None:
        self._writer.close()


class ParquetEncoder(Encoder):
    """Writes row groups of about 16 MiB: large enough for fast reading, small enough to keep one in memory."""

    def __init__(self, columns: tuple[Column, ...], schema: pa.Schema, *, codec: str = "snappy") -> None:
        self._columns = columns
        self._schema = schema
        self._sink = WriteBuffer()
        self._writer = pq.ParquetWriter(pa.PythonFile(self._sink, mode="w"), schema, compression=codec)
        self._collected: list[pa.RecordBatch] = []
        self._collected_bytes = self._collected_rows = 0

    def start(self) -> bytes:
        return self._sink.take()

    def rows(self, batch: pa.RecordBatch) -> bytes:
        """Collect the batch. Return a row group if enough rows have been collected, otherwise no bytes."""
        batch = cast_batch(batch, self._columns, self._schema)
        self._collected.append(batch)
        self._collected_bytes += batch.nbytes
        self._collected_rows += batch.num_rows
        if self._collected_bytes >= _ROW_GROUP_BYTES or self._collected_rows >= _ROW_GROUP_ROWS:
            self._write_row_group()
        return self._sink.take()

    def end(self) -> bytes:
        if self._collected_rows:
            self._write_row_group()
        self._writer.close()
        return self._sink.take()

    def close(self) -> None:
        self._writer.close()

    def _write_row_group(self) -> None:
        table = pa.Table.from_batches(self._collected)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._collected.clear()
        self._collected_bytes = self._collected_rows = 0
