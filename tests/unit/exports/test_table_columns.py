"""The columns of a table made from a result: types, names and values (Contract exports 8)."""

import datetime as dt
import json
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pytest

from queryserver.errors.statements import EngineError
from queryserver.exports.table_columns import check_names, table_columns, table_names
from queryserver.formats.arrow import Column, ResultType, text_union
from queryserver.formats.conversion import arrow_type
from queryserver.imports.model import TABLE_DIALECTS

pytestmark = pytest.mark.exports(18)

DIALECTS = ("hive", "sparksql", "trino", "phoenix", "postgresql", "mysql", "sqlite", "duckdb")
ZONED = pa.timestamp("us", "UTC")
PG_ZONED = "TIMESTAMP WITH TIME ZONE"
INTS = pa.list_(pa.int64())

TYPES: Sequence[tuple[Column, pa.DataType | None, str]] = (
    (Column("c", ResultType.BOOLEAN, "boolean"), pa.bool_(),
     "BOOLEAN|BOOLEAN|BOOLEAN|BOOLEAN|BOOLEAN|BOOLEAN|INTEGER|BOOLEAN"),
    (Column("c", ResultType.BIGINT, "ubigint"), pa.uint64(),
     "DECIMAL(20,0)|DECIMAL(20,0)|DECIMAL(20,0)|UNSIGNED_LONG|NUMERIC(20,0)|BIGINT UNSIGNED|TEXT|UBIGINT"),
    (Column("c", ResultType.BIGINT, "bigint"), None,
     "BIGINT|BIGINT|BIGINT|BIGINT|BIGINT|BIGINT|INTEGER|BIGINT"),
    (Column("c", ResultType.FLOAT, "real"), pa.float32(), "FLOAT|FLOAT|REAL|FLOAT|REAL|FLOAT|REAL|FLOAT"),
    (Column("c", ResultType.DECIMAL, "decimal(12,2)"), pa.decimal128(12, 2),
     "DECIMAL(12,2)|DECIMAL(12,2)|DECIMAL(12,2)|DECIMAL(12,2)|NUMERIC(12,2)|DECIMAL(12,2)|TEXT|DECIMAL(12,2)"),
    (Column("c", ResultType.DECIMAL, "decimal(12,2)"), None,
     "DECIMAL(12,2)|DECIMAL(12,2)|DECIMAL(12,2)|DECIMAL(12,2)|NUMERIC(12,2)|DECIMAL(12,2)|TEXT|DECIMAL(12,2)"),
    (Column("c", ResultType.DECIMAL, "numeric(50,10)"), pa.string(),
     "STRING|STRING|VARCHAR|VARCHAR|NUMERIC(50,10)|DECIMAL(50,10)|TEXT|VARCHAR"),
    (Column("c", ResultType.DECIMAL, "uhugeint"), pa.decimal256(39, 0),
     "STRING|STRING|VARCHAR|VARCHAR|NUMERIC(39,0)|DECIMAL(39,0)|TEXT|VARCHAR"),
    (Column("c", ResultType.DECIMAL, "numeric"), pa.string(),
     "STRING|STRING|VARCHAR|VARCHAR|NUMERIC|LONGTEXT|TEXT|VARCHAR"),
    (Column("c", ResultType.DATE, "date"), pa.date32(), "DATE|DATE|DATE|DATE|DATE|DATE|TEXT|DATE"),
    (Column("c", ResultType.TIMESTAMP, "timestamp"), pa.timestamp("ms"),
     "TIMESTAMP|TIMESTAMP|TIMESTAMP|TIMESTAMP|TIMESTAMP|DATETIME(6)|TEXT|TIMESTAMP"),
    (Column("c", ResultType.TIMESTAMP, "timestamp_ns"), pa.timestamp("ns"),
     "TIMESTAMP|TIMESTAMP|TIMESTAMP|TIMESTAMP|TIMESTAMP|DATETIME(6)|TEXT|TIMESTAMP_NS"),
    (Column("c", ResultType.TIMESTAMP, "timestamp(9)"), pa.string(),
     "STRING|STRING|TIMESTAMP(9)|VARCHAR|TEXT|LONGTEXT|TEXT|VARCHAR"),
    (Column("c", ResultType.TIMESTAMP_TZ, "timestamp with time zone"), ZONED,
     "TIMESTAMP|TIMESTAMP|TIMESTAMP(6) WITH TIME ZONE|TIMESTAMP|" + f"{PG_ZONED}|DATETIME(6)|TEXT|{PG_ZONED}"),
    (Column("c", ResultType.TIMESTAMP_TZ, "timestamp(3) with time zone"), pa.string(),
     "STRING|STRING|TIMESTAMP(3) WITH TIME ZONE|VARCHAR|TIMESTAMP WITH TIME ZONE|LONGTEXT|TEXT|VARCHAR"),
    (Column("c", ResultType.STRING, "TIME"), pa.time64("us"),
     "STRING|STRING|VARCHAR|TIME|TIME|TIME(6)|TEXT|TIME"),
    (Column("c", ResultType.STRING, "time without time zone"), pa.string(),
     "STRING|STRING|VARCHAR|VARCHAR|TIME|TIME(6)|TEXT|TIME"),
    (Column("c", ResultType.STRING, "time(3)"), pa.string(),
     "STRING|STRING|VARCHAR|VARCHAR|TEXT|TIME(6)|TEXT|VARCHAR"),
    (Column("c", ResultType.USER_DEFINED, "duration"), pa.duration("us"),
     "STRING|STRING|INTERVAL DAY TO SECOND|VARCHAR|INTERVAL|VARCHAR(64)|TEXT|INTERVAL"),
    (Column("c", ResultType.INTERVAL_DAY_TIME, "interval"), pa.string(),
     "STRING|STRING|VARCHAR|VARCHAR|INTERVAL|LONGTEXT|TEXT|INTERVAL"),
    (Column("c", ResultType.VARCHAR, "varchar(20)"), pa.string(),
     "STRING|STRING|VARCHAR|VARCHAR|TEXT|LONGTEXT|TEXT|VARCHAR"),
    (Column("c", ResultType.STRING, "uuid"), pa.string(),
     "STRING|STRING|VARCHAR|VARCHAR|UUID|LONGTEXT|TEXT|UUID"),
    (Column("c", ResultType.STRING, "jsonb"), pa.string(),
     "STRING|STRING|VARCHAR|VARCHAR|JSONB|JSON|TEXT|JSON"),
    (Column("c", ResultType.BINARY, "bytea"), pa.binary(),
     "BINARY|BINARY|VARBINARY|VARBINARY|BYTEA|LONGBLOB|BLOB|BLOB"),
    (Column("c", ResultType.ARRAY, "bigint[]"), INTS,
     "STRING|STRING|VARCHAR|VARCHAR|JSONB|JSON|TEXT|JSON"),
    (Column("c", ResultType.MAP, "map<string,int>"), pa.string(),
     "STRING|STRING|VARCHAR|VARCHAR|JSONB|JSON|TEXT|JSON"),
    (Column("c", ResultType.NULL, "null"), pa.null(),
     "STRING|STRING|VARCHAR|VARCHAR|TEXT|LONGTEXT|TEXT|VARCHAR"),
)  # fmt: skip


def test_every_dialect_of_imports_is_covered() -> None:
    assert set(DIALECTS) == set(TABLE_DIALECTS)


@pytest.mark.parametrize(("column", "kind", "expected"), TYPES, ids=lambda value: str(value).replace(" ", "-"))
def test_declared_types(column: Column, kind: pa.DataType | None, expected: str) -> None:
    schemas = [] if kind is None else [pa.schema([("c", kind)])]
    made = [table_columns([column], schemas, dialect).load_columns[0].declared for dialect in DIALECTS]
    assert made == expected.split("|")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("column", "kind"), [(one, kind) for one, kind, _ in TYPES if kind is not None])
def test_converted_values_have_the_type_that_loaders_expect(column: Column, kind: pa.DataType, dialect: str) -> None:
    """DuckDB's loader, for example, fixes the schema before the first batch."""
    made = table_columns([column], [pa.schema([("c", kind)])], dialect)
    batch = made.convert(pa.RecordBatch.from_arrays([pa.nulls(2, kind)], names=["c"]))
    keeps_nanoseconds = dialect == "hive" and kind == pa.timestamp("ns")
    assert batch.schema.types == [kind if keeps_nanoseconds else arrow_type(made.load_columns[0].type)]
    assert batch.column(0).null_count == 2


def converted(column: Column, array: pa.Array, dialect: str, *, first: pa.DataType | None = None) -> list[object]:
    """Convert the array for a table whose columns were chosen from rows of the type `first`."""
    made = table_columns([column], [pa.schema([("c", first or array.type)])], dialect)
    return made.convert(pa.RecordBatch.from_arrays([array], names=["c"])).column(0).to_pylist()


def test_nested_values_become_json() -> None:
    column = Column("c", ResultType.ARRAY, "struct[]")
    kind = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))
    array = pa.array([[{"a": 2**60, "b": 'say "hi"'}], None, []], kind)
    [first, second, third] = converted(column, array, "postgresql")
    assert json.loads(str(first)) == [{"a": 2**60, "b": 'say "hi"'}]
    assert (second, third) == (None, "[]")


def test_json_text_of_an_engine_stays_json_and_other_text_becomes_a_json_string() -> None:
    column = Column("c", ResultType.MAP, "map<string,int>")
    assert converted(column, pa.array(['{"a":1}', "oops", None]), "mysql") == ['{"a":1}', '"oops"', None]


def test_zoned_times_keep_their_instant() -> None:
    column = Column("c", ResultType.TIMESTAMP_TZ, "timestamptz")
    array = pa.array([dt.datetime(2024, 1, 31, 10, tzinfo=dt.UTC)], pa.timestamp("us", "Europe/Berlin"))
    assert converted(column, array, "mysql") == [dt.datetime(2024, 1, 31, 10)]  # noqa: DTZ001 stored in UTC
    assert converted(column, array, "postgresql") == ["2024-01-31 11:00:00+01:00"]
    assert converted(column, array, "sqlite") == ["2024-01-31 11:00:00+01:00"]


def infinite() -> pa.Array:
    dates = pa.array([dt.date(2024, 1, 31), None], pa.date32())
    return text_union(dates, pa.array([None, "infinity"], pa.string()))


def test_infinite_dates_are_kept_or_refused() -> None:
    column = Column("c", ResultType.DATE, "date")
    assert converted(column, infinite(), "postgresql") == ["2024-01-31", "infinity"]
    assert converted(column, infinite(), "sqlite") == ["2024-01-31", "infinity"]
    made = table_columns([column], [pa.schema([("c", infinite().type)])], "duckdb")
    dates = made.convert(pa.RecordBatch.from_arrays([infinite()], names=["c"])).column(0)
    assert dates.cast(pa.int32()).to_pylist() == [(dt.date(2024, 1, 31) - dt.date(1970, 1, 1)).days, 2**31 - 1]
    with pytest.raises(EngineError, match='Column "c" contains the value infinity, which the type DATE'):
        converted(column, infinite(), "mysql")


def test_dates_outside_the_calendar_are_refused() -> None:
    late = pa.array([3_000_000], pa.int32()).view(pa.date32())
    column = Column("c", ResultType.DATE, "date")
    with pytest.raises(EngineError, match="outside the range of the type DATE"):
        converted(column, late, "hive")


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "trino"])
def test_nanoseconds_are_refused_rather_than_rounded(dialect: str) -> None:
    column = Column("c", ResultType.TIMESTAMP, "timestamp_ns")
    assert converted(column, pa.array([5000], pa.timestamp("ns")), dialect) != [None]
    with pytest.raises(EngineError, match="nanoseconds"):
        converted(column, pa.array([5001], pa.timestamp("ns")), dialect)


def test_nanoseconds_are_kept_where_tables_have_them() -> None:
    column = Column("c", ResultType.TIMESTAMP, "timestamp_ns")
    array = pa.array([5001], pa.timestamp("ns"))
    assert converted(column, array, "duckdb") == ["1970-01-01 00:00:00.000005001"]
    assert converted(column, array, "sqlite") == ["1970-01-01 00:00:00.000005001"]


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "hive", "trino"])
def test_integers_of_39_digits_are_refused_with_their_column(dialect: str) -> None:
    column, kind = Column("sum", ResultType.DECIMAL, "HUGEINT"), pa.decimal128(38, 0)
    largest = 10**38 - 1
    whole = pa.array([-largest, largest, None], kind)
    assert converted(column, whole, dialect) == [-largest, largest, None]
    bits = (largest + 1).to_bytes(16, "little", signed=True)
    longer = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bits)])
    with pytest.raises(EngineError, match='"sum" contains a value outside the range'):
        converted(column, longer, dialect)


def test_long_decimals_are_written_with_all_digits() -> None:
    column = Column("c", ResultType.DECIMAL, "uhugeint")
    value = Decimal(2**128 - 1)
    assert converted(column, pa.array([value], pa.decimal256(39, 0)), "postgresql") == [str(value)]


def test_first_rows_of_several_types_get_a_type_for_all_of_them() -> None:
    column = Column("c", ResultType.DOUBLE, "")
    schemas = [pa.schema([("c", kind)]) for kind in (pa.int64(), pa.float64())]
    made = table_columns([column], schemas, "postgresql")
    assert made.load_columns[0].declared == "DOUBLE PRECISION"
    batch = pa.RecordBatch.from_arrays([pa.array([3])], names=["c"])
    assert made.convert(batch).column(0).to_pylist() == [3.0]


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (pa.int64(), pa.array(["5"])),
        (pa.int64(), pa.array([1.5])),
        (pa.int32(), pa.array([2**40])),
        (pa.float64(), pa.array([2**60 + 1])),
        (pa.date32(), pa.array(["2024-01-31"])),
    ],
    ids=str,
)
def test_later_rows_of_another_type_are_refused(first: pa.DataType, later: pa.Array) -> None:
    with pytest.raises(EngineError, match=r'Column "c" contains values .* Cast the column to text'):
        converted(Column("c", ResultType.BIGINT, ""), later, "postgresql", first=first)


@pytest.mark.parametrize(
    ("names", "dialect", "expected"),
    [
        (["a", "A", "", "", "a"], "postgresql", ["a", "A_2", "column_3", "column_4", "a_3"]),
        (["x", "x", "x_2"], "mysql", ["x", "x_3", "x_2"]),
        (["t.id", "t.name"], "hive", ["id", "name"]),
        (["a.id", "b.id"], "postgresql", ["a.id", "b.id"]),
        (["a.id", "b.id"], "hive", ["a_id", "b_id"]),
        (["t.id", "count(*)"], "postgresql", ["t.id", "count(*)"]),
        (['say "x"'], "phoenix", ["say _x_"]),
        (["line\nbreak", " x "], "duckdb", ["line_break", "x"]),
        (["🐘"], "mysql", ["_"]),
        (["n" * 70, "n" * 70], "postgresql", ["n" * 63, "n" * 61 + "_2"]),
    ],
)
def test_names(names: list[str], dialect: str, expected: list[str]) -> None:
    assert list(table_names(names, dialect)) == expected


def test_given_names_must_fit_the_result() -> None:
    columns = [Column("a", ResultType.INT, "int"), Column("b", ResultType.INT, "int")]
    made = table_columns(columns, [], "postgresql", names=["x", "y"])
    assert [column.name for column in made.load_columns] == ["x", "y"]
    assert made.renamed == [("a", "x"), ("b", "y")]
    with pytest.raises(EngineError, match="1 names were given, but the result has 2 columns"):
        table_columns(columns, [], "postgresql", names=["x"])


def test_given_names_are_checked() -> None:
    assert check_names(["a", "b"], "postgresql") is None
    assert "occurs twice" in (check_names(["a", "A"], "postgresql") or "")
    assert "1 to 63 bytes" in (check_names([" "], "postgresql") or "")


def test_result_without_columns_is_refused() -> None:
    with pytest.raises(EngineError, match="1 to 2000 columns"):
        table_columns([], [], "postgresql")
