"""Maps the columns of a result to the columns of a table: names, types and values (Contract exports 8).

Types that files have too become the same types as in an import. Results have more types; each of them becomes a type of
the dialect that represents all its values exactly, or else text.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types

from queryserver.engines.protocol import LoadColumn
from queryserver.errors.statements import EngineError, rejected_by_rule
from queryserver.formats.arrow import (
    STRING,
    BaseType,
    Column,
    ColumnType,
    ResultType,
    is_text,
    is_text_union,
    kernels,
    text_union_to_native,
    text_union_value_type,
)
from queryserver.formats.cells import plain_array
from queryserver.formats.conversion import arrow_type
from queryserver.formats.download.columnar import common_type
from queryserver.formats.download.encoder import NESTED_TYPES, json_texts, texts, unique_names
from queryserver.formats.table_files import MAX_COLUMNS
from queryserver.imports.model import declared_type, engine_names, name_limit

_TEXT = pa.string()
_MAX_SHOWN_CHARACTERS = 100
_JSON_TYPES = frozenset({"json", "jsonb"})
_DECIMAL = re.compile(r"(?:decimal|numeric)\((\d+),\s*(\d+)\)(?: unsigned)?", re.IGNORECASE)
_TRINO_TIMESTAMP = re.compile(r"timestamp\(\d{1,2}\)(?: with time zone)?", re.IGNORECASE)
_MYSQL_TIME = re.compile(r"time(?:\([0-6]\))?", re.IGNORECASE)
_TABLE_DOT_COLUMN = re.compile(r"(\w+)\.(\w+)")
_DAYS = (-719_162, 2_932_896)
"""0001-01-01 and 9999-12-31, in days since 1970-01-01."""
_DAY_US = 86_400_000_000
_DECIMAL_LIMITS: Mapping[str, tuple[int, int]] = {"postgresql": (1000, 1000), "mysql": (65, 30)}
"""The maximum precision and scale of decimals, if they differ from `_MAX_DIGITS`."""
_MAX_DIGITS = 38
_LARGE_TEXT: Mapping[str, str] = {"mysql": "LONGTEXT"}
"""The text type, if the type that imports use is limited to less than a cell of a result."""
_JSON: Mapping[str, str] = {"postgresql": "JSONB", "mysql": "JSON", "duckdb": "JSON"}
_TIMES: Mapping[str, str] = {"postgresql": "TIME", "mysql": "TIME(6)", "duckdb": "TIME"}
_ZONED: Mapping[str, str] = {
    "postgresql": "TIMESTAMP WITH TIME ZONE",
    "duckdb": "TIMESTAMP WITH TIME ZONE",
    "trino": "TIMESTAMP(6) WITH TIME ZONE",
    "sqlite": "TEXT",
}
_SAME_TEXT: Mapping[tuple[str, str], str] = {
    ("postgresql", "uuid"): "UUID",
    ("duckdb", "uuid"): "UUID",
    ("postgresql", "interval"): "INTERVAL",
    ("duckdb", "interval"): "INTERVAL",
}
"""Types of results by dialect and native type whose text the same type of the dialect accepts."""
_REFUSED_IN_NAMES: Mapping[str, str] = {
    "hive": "[,:;.]|\\$(?=\\{)", "sparksql": "[,]|\\$(?=\\{)", "phoenix": '"', "mysql": "[^\u0001-\uffff]",
}  # fmt: skip
_CONTROLS = r"[\x00-\x1f\x7f]"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the table and its source. `arrow` is the type of the values that the loader receives.

    If `is_json` is set, values are written as JSON text.
    """

    source: Column
    load: LoadColumn
    arrow: pa.DataType
    dialect: str
    is_json: bool = False

    def convert(self, array: pa.Array) -> pa.Array:
        """Convert the values of the result to values for the loader. Blocks.

        Raises rejected_by_rule for a value that the column cannot store exactly.
        """
        array = plain_array(array)
        if self.is_json:
            return json_texts(array, self.source)
        if is_text_union(array.type):
            return self._convert_text_union(array)
        if types.is_timestamp(array.type) or types.is_time(array.type):
            array = self._require_microseconds(array)
        if self.arrow == _TEXT:
            return texts(array, self.source)
        return self._cast(array)

    def _cast(self, array: pa.Array) -> pa.Array:
        kind = array.type
        if types.is_timestamp(kind):
            array = array.view(pa.timestamp(kind.unit))  # a time with a zone becomes the same instant in UTC
            if self.dialect == "hive" and kind.unit == "ns":
                return array
        if types.is_union(kind) and types.is_floating(self.arrow):
            return self._floats(array)
        if kind == self.arrow or types.is_null(kind) or _is_compatible(kind, self.arrow):
            try:
                made = array.cast(self.arrow)
            except pa.ArrowInvalid:
                pass
            else:
                if self.dialect != "duckdb":
                    self._require_in_range(made)
                return made
        raise self._refusal(f"contains values that are not of the type {self.load.declared}")

    def _floats(self, array: pa.Array) -> pa.Array:
        """Convert integers and floating point numbers in one column, as SQLite may return them."""
        numbers = array.to_pylist()
        values = [_exact_float(number) for number in numbers]
        if values.count(None) > numbers.count(None):
            raise self._refusal(f"contains values that are not of the type {self.load.declared}")
        return pa.array(values, self.arrow)

    def _convert_text_union(self, array: pa.Array) -> pa.Array:
        """Convert infinities, NaN, and dates outside the years 1 to 9999, which only few dialects can store."""
        if self.arrow == _TEXT or self.dialect == "postgresql":
            return texts(array, self.source)
        if self.dialect == "duckdb" and types.is_temporal(self.arrow):
            try:
                return text_union_to_native(array, self.arrow)
            except ValueError:
                pass
        shown = next((text for text in array.field(1).to_pylist() if text is not None), "")
        raise self._refusal(f"contains the value {shown}, which the type {self.load.declared} cannot represent")

    def _require_microseconds(self, array: pa.Array) -> pa.Array:
        """Convert nanoseconds to microseconds unless the table stores nanoseconds."""
        kind = array.type
        is_kept = self.load.declared in {_text_type(self.dialect), "TIMESTAMP_NS"}
        if kind.unit != "ns" or is_kept or (self.dialect == "hive" and types.is_timestamp(kind)):
            return array
        try:
            return array.cast(pa.timestamp("us", kind.tz) if types.is_timestamp(kind) else pa.time64("us"))
        except pa.ArrowInvalid:
            raise self._refusal(
                f"contains a time with nanoseconds, which the type {self.load.declared} cannot represent"
            ) from None

    def _require_in_range(self, array: pa.Array) -> None:
        """Refuse values outside the range of their type. Engines would store NULL, or not name the column."""
        kind = array.type
        numbers: Any
        least: int | Decimal
        greatest: int | Decimal
        if types.is_decimal(kind):  # 128 bits hold more than 38 digits, as in HUGEINT of duckdb
            nines = (9,) * kind.precision
            numbers, least, greatest = array, Decimal((1, nines, -kind.scale)), Decimal((0, nines, -kind.scale))
        elif types.is_date32(kind):
            numbers, least, greatest = array.cast(pa.int32()), *_DAYS
        elif types.is_timestamp(kind):
            numbers, least, greatest = array.view(pa.int64()), _DAYS[0] * _DAY_US, (_DAYS[1] + 1) * _DAY_US - 1
        elif types.is_time(kind):
            numbers, least, greatest = array.cast(pa.int64()), 0, _DAY_US - 1
        else:
            return
        found = kernels.min_max(numbers).as_py()
        if found["min"] is not None and not least <= found["min"] <= found["max"] <= greatest:
            raise self._refusal(f"contains a value outside the range of the type {self.load.declared}")

    def _refusal(self, reason: str) -> EngineError:
        name = self.source.name[:_MAX_SHOWN_CHARACTERS]
        return rejected_by_rule(f'Column "{name}" {reason}. Cast the column to text in the statement.')


@dataclass(frozen=True, slots=True)
class TableColumns:
    """All columns of the table, in the order of the result."""

    columns: tuple[TableColumn, ...]

    @property
    def load_columns(self) -> tuple[LoadColumn, ...]:
        return tuple(column.load for column in self.columns)

    @property
    def renamed(self) -> Sequence[tuple[str, str]]:
        """Each name in the result that differs from the name in the table, with that name."""
        return [(one.source.name, one.load.name) for one in self.columns if one.source.name != one.load.name]

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch of the result to a batch for the loader. Blocks. Raises rejected_by_rule."""
        arrays = [column.convert(array) for column, array in zip(self.columns, batch.columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=[column.load.name for column in self.columns])


def table_columns(
    columns: Sequence[Column], schemas: Iterable[pa.Schema], dialect: str, *, names: Sequence[str] | None = None
) -> TableColumns:
    """Choose the columns of the table. `schemas` are those of the first rows, `names` the requested column names.

    Raises rejected_by_rule if a table cannot have these columns.
    """
    if not 1 <= len(columns) <= MAX_COLUMNS:
        raise rejected_by_rule(f"A table needs 1 to {MAX_COLUMNS} columns; the result has {len(columns)}.")
    chosen = table_names([column.name for column in columns], dialect) if names is None else _given(names, columns)
    seen = {schema.remove_metadata() for schema in schemas}
    by_column = [{schema.field(place).type for schema in seen} for place in range(len(columns))]
    return TableColumns(
        tuple(
            _table_column(column, kinds, name, dialect)
            for column, kinds, name in zip(columns, by_column, chosen, strict=True)
        )
    )


def table_names(names: Sequence[str], dialect: str) -> Sequence[str]:
    """Return the column names of the table: distinct ignoring case, not empty, and valid in the dialect.

    If all names have the form `table.column`, as in Hive's results of `SELECT *`, the part before the dot is left out
    unless two names would become equal.
    """
    parts = [_TABLE_DOT_COLUMN.fullmatch(name) for name in names]
    if all(parts) and len({match[2].lower() for match in parts if match}) == len(names):
        names = [match[2] for match in parts if match]
    if refused := _REFUSED_IN_NAMES.get(dialect):
        names = [re.sub(refused, "_", name) for name in names]
    cleaned = [re.sub(_CONTROLS, "_", name).strip() for name in names]
    filled = [name or f"column_{place}" for place, name in enumerate(cleaned, 1)]
    return engine_names(_distinct(filled), dialect)


def _distinct(names: Sequence[str]) -> Sequence[str]:
    """Add `_2`, `_3`, … to names that occur before, ignoring case."""
    folded = unique_names([name.lower() for name in names])
    return [name + new[len(name.lower()) :] for name, new in zip(names, folded, strict=True)]


def _given(names: Sequence[str], columns: Sequence[Column]) -> Sequence[str]:
    if len(names) != len(columns):
        raise rejected_by_rule(f"columns: {len(names)} names were given, but the result has {len(columns)} columns.")
    return names


def check_names(names: Sequence[str], dialect: str) -> str | None:
    """Return why the names cannot be the columns of one table, or None if they can."""
    limit = name_limit(dialect)
    used: set[str] = set()
    for name in names:
        shown = name[:_MAX_SHOWN_CHARACTERS]
        if not name.strip() or "\0" in name or not limit.allows(name):
            return f'"{shown}" is not a valid column name; names in {dialect} must have 1 to {limit}.'
        if name.lower() in used:
            return f'The column name "{shown}" occurs twice.'
        used.add(name.lower())
    return None


def _table_column(column: Column, kinds: set[pa.DataType], name: str, dialect: str) -> TableColumn:
    kinds = {_plain_type(kind) for kind in kinds} - {pa.null()}
    if column.type in NESTED_TYPES or any(types.is_nested(kind) and not types.is_union(kind) for kind in kinds):
        declared = _JSON.get(dialect) or _text_type(dialect)
        return TableColumn(column, LoadColumn(name, STRING, declared), _TEXT, dialect, is_json=True)
    are_texts = all(map(is_text, kinds))
    declared = _declared_for_texts(column, kinds, dialect) if are_texts else _declared_for_values(kinds, dialect)
    base = STRING
    if declared is None:
        base = _column_type(kinds, column)
        declared = declared_type(base, dialect)
        if declared == declared_type(STRING, dialect):
            base, declared = STRING, _text_type(dialect)
    return TableColumn(column, LoadColumn(name, base, declared), arrow_type(base), dialect)


def _declared_for_texts(column: Column, kinds: set[pa.DataType], dialect: str) -> str | None:
    """Return the type of a column whose values arrive as text but are not text; None if the column is text.

    `kinds` is empty if the first rows contain only NULL, or if there are no rows.
    """
    native = column.native_type.lower()
    if native in _JSON_TYPES:
        return _JSON.get(dialect)
    if column.type is ResultType.DECIMAL:
        return _declared_decimal(native, dialect, is_long=bool(kinds))
    if column.type is ResultType.TIMESTAMP_TZ and not kinds:
        return _ZONED.get(dialect)
    if dialect == "trino" and _TRINO_TIMESTAMP.fullmatch(native):
        return native.upper()
    if native == "time without time zone" or (dialect == "mysql" and _MYSQL_TIME.fullmatch(native)):
        return _TIMES.get(dialect)
    if dialect == "postgresql" and column.type is ResultType.TIMESTAMP_TZ:
        return _ZONED[dialect]
    return _SAME_TEXT.get((dialect, native))


def _declared_for_values(kinds: set[pa.DataType], dialect: str) -> str | None:
    """Return the type of a column whose values the loader receives as text; None if it receives values."""
    if all(map(types.is_time, kinds)):
        return _TIMES.get(dialect)
    if all(map(_is_zoned, kinds)):
        return _ZONED.get(dialect)
    if dialect == "duckdb" and kinds == {pa.timestamp("ns")}:
        return "TIMESTAMP_NS"
    [kind, *others] = kinds
    if types.is_decimal(kind) and not others and (kind.precision > _MAX_DIGITS or kind.scale > kind.precision):
        return _declared_decimal(f"decimal({kind.precision},{kind.scale})", dialect, is_long=True)
    return None


def _declared_decimal(native: str, dialect: str, *, is_long: bool) -> str | None:
    """Return the type of decimals that are text, because they have more digits than Arrow's or no limit of digits.

    Return None for text. If `is_long` is not set, the values are not known, so shorter types are possible too.
    """
    unlimited = "NUMERIC" if dialect == "postgresql" else None
    if (digits := _DECIMAL.fullmatch(native)) is None:
        return unlimited
    precision, scale = int(digits[1]), int(digits[2])
    max_precision, max_scale = _DECIMAL_LIMITS.get(dialect, (_MAX_DIGITS, _MAX_DIGITS))
    is_allowed = precision <= max_precision and scale <= min(max_scale, precision)
    if not is_allowed or dialect == "sqlite" or (is_long and precision <= _MAX_DIGITS):
        return unlimited
    return declared_type(ColumnType(BaseType.DECIMAL, precision, scale), dialect)


def _column_type(kinds: set[pa.DataType], column: Column) -> ColumnType:
    """Return the type of all values. STRING if they have no other type in common."""
    if kinds and all(map(types.is_time, kinds)):
        return ColumnType(BaseType.TIME)
    if kinds and all(map(types.is_duration, kinds)):
        return ColumnType(BaseType.DURATION)
    if kinds and all(map(types.is_timestamp, kinds)) and len(set(map(_is_zoned, kinds))) == 1:
        return ColumnType(BaseType.DATETIME)
    kind = common_type(kinds, column)
    if types.is_decimal(kind):
        is_short = kind.scale <= kind.precision <= _MAX_DIGITS
        return ColumnType(BaseType.DECIMAL, kind.precision, kind.scale) if is_short else STRING
    if types.is_timestamp(kind):
        return ColumnType(BaseType.DATETIME)
    return ColumnType(_BASES.get(kind, BaseType.STRING))


_BASES: Mapping[pa.DataType, BaseType] = {
    arrow_type(ColumnType(base)): base
    for base in (
        BaseType.INT8, BaseType.INT16, BaseType.INT32, BaseType.INT64, BaseType.UINT8, BaseType.UINT16,
        BaseType.UINT32, BaseType.UINT64, BaseType.FLOAT32, BaseType.FLOAT64, BaseType.BOOLEAN, BaseType.DATE,
        BaseType.BINARY,
    )
}  # fmt: skip


def _is_zoned(kind: Any) -> bool:
    return types.is_timestamp(kind) and kind.tz is not None


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values after `plain_array`; for a text union, the type of its usual values."""
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_array(pa.array([], kind.storage_type).cast(kind)).type
    return text_union_value_type(kind) if is_text_union(kind) else kind


def _exact_float(value: object) -> float | None:
    """Return the number as a float, or None if it is not a number or a float cannot represent it exactly."""
    if isinstance(value, float) or (isinstance(value, int) and float(value) == value):
        return float(value)
    return None


def _text_type(dialect: str) -> str:
    return _LARGE_TEXT.get(dialect) or declared_type(STRING, dialect)


def _is_compatible(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a cast can only change the form of a value. It fails for values out of range."""
    if types.is_floating(wanted):
        return types.is_integer(kind) or (types.is_floating(kind) and kind.bit_width <= wanted.bit_width)
    if types.is_decimal(wanted) or types.is_integer(wanted):
        return types.is_integer(kind) or (types.is_decimal(kind) and types.is_decimal(wanted))
    if types.is_temporal(wanted):
        return any(fits(kind) and fits(wanted) for fits in _TEMPORAL)
    return types.is_binary(wanted) and (types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


_TEMPORAL = (types.is_date, types.is_time, types.is_timestamp, types.is_duration)
