"""The column types of each dialect (Contract importer 12.4), and references to uploads."""

import hashlib
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryserver.formats.arrow import BaseType, ColumnType
from queryserver.formats.conversion import arrow_type
from queryserver.imports.model import (
    PREVIEW_DIALECTS,
    SQL_TYPES,
    TABLE_DIALECTS,
    base_type_of,
    column_type_of,
    declared_type,
    type_name,
)
from queryserver.imports.uploads import MAX_NAME_CHARACTERS, UploadReference, safe_name

TABLE = """
Base type|hive, sparksql|impala|trino|phoenix|postgresql|mysql|sqlite|duckdb
Int8|TINYINT|TINYINT|TINYINT|TINYINT|SMALLINT|TINYINT|INTEGER|TINYINT
Int16|SMALLINT|SMALLINT|SMALLINT|SMALLINT|SMALLINT|SMALLINT|INTEGER|SMALLINT
Int32|INT|INT|INTEGER|INT|INTEGER|INT|INTEGER|INTEGER
Int64|BIGINT|BIGINT|BIGINT|BIGINT|BIGINT|BIGINT|INTEGER|BIGINT
UInt8|SMALLINT|SMALLINT|SMALLINT|UNSIGNED_TINYINT|SMALLINT|TINYINT UNSIGNED|INTEGER|UTINYINT
UInt16|INT|INT|INTEGER|UNSIGNED_SMALLINT|INTEGER|SMALLINT UNSIGNED|INTEGER|USMALLINT
UInt32|BIGINT|BIGINT|BIGINT|UNSIGNED_INT|BIGINT|INT UNSIGNED|INTEGER|UINTEGER
UInt64|DECIMAL|DECIMAL|DECIMAL|UNSIGNED_LONG|NUMERIC|BIGINT UNSIGNED|TEXT|UBIGINT
Float32|FLOAT|FLOAT|REAL|FLOAT|REAL|FLOAT|REAL|FLOAT
Float64|DOUBLE|DOUBLE|DOUBLE|DOUBLE|DOUBLE PRECISION|DOUBLE|REAL|DOUBLE
Decimal|DECIMAL|DECIMAL|DECIMAL|DECIMAL|NUMERIC|DECIMAL|TEXT|DECIMAL
Boolean|BOOLEAN|BOOLEAN|BOOLEAN|BOOLEAN|BOOLEAN|BOOLEAN|INTEGER|BOOLEAN
Date|DATE|DATE|DATE|DATE|DATE|DATE|TEXT|DATE
Datetime|TIMESTAMP|TIMESTAMP|TIMESTAMP|TIMESTAMP|TIMESTAMP|DATETIME(6)|TEXT|TIMESTAMP
Time|STRING|STRING|VARCHAR|TIME|TIME|TIME(6)|TEXT|TIME
Duration|INTERVAL DAY TO SECOND|STRING|INTERVAL DAY TO SECOND|VARCHAR|INTERVAL|VARCHAR(64)|TEXT|INTERVAL
String, Null|STRING|STRING|VARCHAR|VARCHAR|TEXT|TEXT|TEXT|VARCHAR
Binary|BINARY|BINARY|VARBINARY|VARBINARY|BYTEA|LONGBLOB|BLOB|BLOB
Array|ARRAY|ARRAY|ARRAY|ARRAY|JSONB|JSON|TEXT|JSON
Struct|STRUCT|STRUCT|ROW|VARCHAR|JSONB|JSON|TEXT|JSON
Object (JSON)|STRING|STRING|JSON|VARCHAR|JSONB|JSON|TEXT|JSON
"""
HEADINGS, *ROWS = [line.split("|") for line in TABLE.split("\n") if line]
NAMES = [
    (BaseType(base), dialect, name)
    for bases, *names in ROWS
    for base in bases.removesuffix(" (JSON)").split(", ")
    for dialects, name in zip(HEADINGS[1:], names, strict=True)
    for dialect in dialects.split(", ")
]
SPECIFIED = {
    "hive": "ARRAY, BIGINT, BINARY, BOOLEAN, DATE, DECIMAL, DOUBLE, FLOAT, INT, INTERVAL DAY TO SECOND, SMALLINT, "
    "STRING, STRUCT, TIMESTAMP, TINYINT",
    "impala": "ARRAY, BIGINT, BINARY, BOOLEAN, DATE, DECIMAL, DOUBLE, FLOAT, INT, SMALLINT, STRING, STRUCT, TIMESTAMP, "
    "TINYINT",
    "trino": "ARRAY, BIGINT, BOOLEAN, DATE, DECIMAL, DOUBLE, INTEGER, INTERVAL DAY TO SECOND, JSON, REAL, ROW, "
    "SMALLINT, STRING, TIMESTAMP, TINYINT, VARBINARY, VARCHAR",
    "phoenix": "ARRAY, BIGINT, BOOLEAN, DATE, DECIMAL, DOUBLE, FLOAT, INT, SMALLINT, STRING, TIME, TIMESTAMP, TINYINT, "
    "UNSIGNED_INT, UNSIGNED_LONG, UNSIGNED_SMALLINT, UNSIGNED_TINYINT, VARBINARY, VARCHAR",
}
SPECIFIED["sparksql"] = SPECIFIED["hive"]

INFERRED = [
    ColumnType(BaseType.INT32), ColumnType(BaseType.INT64), ColumnType(BaseType.FLOAT64),
    ColumnType(BaseType.DECIMAL, 20, 3), ColumnType(BaseType.BOOLEAN), ColumnType(BaseType.DATE),
    ColumnType(BaseType.DATETIME), ColumnType(BaseType.TIME), ColumnType(BaseType.STRING),
]  # fmt: skip


def test_table_covers_every_base_type_and_dialect() -> None:
    assert {(base, dialect) for base, dialect, _ in NAMES} == {
        (base, dialect) for base in BaseType for dialect in {*PREVIEW_DIALECTS, *TABLE_DIALECTS}
    }


@pytest.mark.parametrize(("base", "dialect", "name"), NAMES)
def test_type_name_matches_the_table(base: BaseType, dialect: str, name: str) -> None:
    assert type_name(ColumnType(base), dialect) == name


@pytest.mark.importer(48)
@pytest.mark.parametrize("dialect", SPECIFIED)
def test_dialect_list_is_the_specified_list_sorted_without_duplicates(dialect: str) -> None:
    assert list(SQL_TYPES[dialect]) == SPECIFIED[dialect].split(", ")
    assert list(SQL_TYPES[dialect]) == sorted(set(SQL_TYPES[dialect]))


@pytest.mark.importer(29)
@pytest.mark.parametrize("dialect", PREVIEW_DIALECTS)
@pytest.mark.parametrize("base", BaseType)
def test_every_preview_type_is_in_its_dialect_list(base: BaseType, dialect: str) -> None:
    assert type_name(ColumnType(base), dialect) in SQL_TYPES[dialect]


@pytest.mark.parametrize("dialect", TABLE_DIALECTS)
@pytest.mark.parametrize("column", INFERRED, ids=lambda column: column.base)
def test_shown_type_declares_the_same_column_when_sent_back(column: ColumnType, dialect: str) -> None:
    base = base_type_of(type_name(column, dialect), dialect)
    assert base is not None
    assert declared_type(ColumnType(base, column.precision, column.scale), dialect) == declared_type(column, dialect)


@pytest.mark.parametrize(("dialect", "name", "base"),
    [("hive", "DECIMAL", BaseType.DECIMAL), ("sparksql", "decimal", BaseType.DECIMAL),
    ("trino", "DECIMAL", BaseType.DECIMAL), ("postgresql", "NUMERIC", BaseType.DECIMAL),
    ("hive", "SMALLINT", BaseType.INT16), ("hive", "BIGINT", BaseType.INT64), ("trino", "INTEGER", BaseType.INT32),
    ("trino", "STRING", BaseType.STRING), ("trino", "VARCHAR", BaseType.STRING), ("phoenix", "STRING", BaseType.STRING),
    ("phoenix", "UNSIGNED_LONG", BaseType.UINT64), ("phoenix", "TIME", BaseType.TIME),
    ("mysql", "DATETIME(6)", BaseType.DATETIME), ("mysql", "BIGINT UNSIGNED", BaseType.UINT64),
    ("duckdb", "UTINYINT", BaseType.UINT8), ("sqlite", "INTEGER", BaseType.INT64), ("sqlite", "TEXT", BaseType.STRING),
    ("hive", "INTERVAL DAY TO SECOND", BaseType.DURATION), ("hive", "BINARY", None), ("trino", "JSON", None),
    ("postgresql", "BYTEA", None), ("postgresql", "STRING", None), ("hive", "VARCHAR", None),
    ("mysql", "INT); DROP TABLE t", None)])  # fmt: skip
def test_type_name_maps_to_one_base_type_or_none(dialect: str, name: str, base: BaseType | None) -> None:
    assert base_type_of(name, dialect) is base


@pytest.mark.parametrize("dialect", sorted(set(PREVIEW_DIALECTS) - set(SPECIFIED)))
def test_other_dialect_lists_contain_their_table_names_and_varchar(dialect: str) -> None:
    assert set(SQL_TYPES[dialect]) == {name for _, one, name in NAMES if one == dialect} | {"VARCHAR"}
    assert list(SQL_TYPES[dialect]) == sorted(set(SQL_TYPES[dialect]))


@pytest.mark.parametrize(("text", "declared"),
    [("numeric(12,2)", "DECIMAL(12,2)"), ("Decimal( 10 , 2 )", "DECIMAL(10,2)"), ("dec (7)", "DECIMAL(7,0)"),
    ("varchar(20)", "VARCHAR(20)"), ("character  varying (5)", "VARCHAR(5)"), ("varchar(5,2)", None),
    ("varchar(x)", None), ("varchar(20); DROP TABLE t", None), ("numeric(1,2,3)", None),
    ("numeric(12,2) CHECK (1)", None), ("nvarchar(20)", None), ("bigint(20)", None), ("timestamp(3)", None), ("", None),
    ("(2)", None), ("numeric(١٢,٢)", None)])  # fmt: skip
@pytest.mark.parametrize("dialect", TABLE_DIALECTS)
def test_type_may_include_precision_or_length(text: str, declared: str | None, dialect: str) -> None:
    chosen = column_type_of(text, dialect)
    if declared is None:
        assert chosen is None
        return
    if declared.startswith("DECIMAL"):
        declared = {"sqlite": "TEXT", "postgresql": declared.replace("DECIMAL", "NUMERIC")}.get(dialect, declared)
    assert chosen is not None
    assert declared_type(chosen, dialect) == declared


@pytest.mark.parametrize(
    ("column", "dialect", "declared"),
    [
        (ColumnType(BaseType.DECIMAL, 17, 16), "hive", "DECIMAL(17,16)"),
        (ColumnType(BaseType.DECIMAL, 17, 16), "postgresql", "NUMERIC(17,16)"),
        (ColumnType(BaseType.DECIMAL, 17, 16), "sqlite", "TEXT"),
        (ColumnType(BaseType.UINT64), "trino", "DECIMAL(20,0)"),
        (ColumnType(BaseType.UINT64), "postgresql", "NUMERIC(20,0)"),
        (ColumnType(BaseType.UINT64), "mysql", "BIGINT UNSIGNED"),
        (ColumnType(BaseType.DURATION), "hive", "STRING"),
        (ColumnType(BaseType.DURATION), "sparksql", "STRING"),
        (ColumnType(BaseType.DURATION), "trino", "INTERVAL DAY TO SECOND"),
    ],
)
def test_declared_type_has_precision_and_is_storable(column, dialect, declared) -> None:
    assert declared_type(column, dialect) == declared


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (ColumnType(BaseType.INT32), pa.int32()),
        (ColumnType(BaseType.FLOAT64), pa.float64()),
        (ColumnType(BaseType.DECIMAL, 20, 3), pa.decimal128(20, 3)),
        (ColumnType(BaseType.UINT64), pa.uint64()),
        (ColumnType(BaseType.DATETIME), pa.timestamp("us")),
        (ColumnType(BaseType.TIME), pa.time64("us")),
        (ColumnType(BaseType.NULL), pa.string()),
    ],
)
def test_values_use_an_arrow_type_that_holds_them_all(column: ColumnType, values: pa.DataType) -> None:
    assert arrow_type(column) == values


SECRET = "3q2-7wAAu1Xl9mXcQ0pTn8vYb5kR4sEoZ6dJhLfGi1M"


@pytest.mark.importer(3)
@given(st.text())
def test_reference_round_trips(client_name: str) -> None:
    reference = UploadReference.new(client_name)
    assert re.fullmatch(r"upload/[A-Za-z0-9_-]{43}/[\w.-]{1,100}", str(reference))
    assert UploadReference.read(str(reference)) == reference


@pytest.mark.importer(10)
@given(st.text())
def test_reading_a_reference_never_fails_or_alters_it(text: str) -> None:
    reference = UploadReference.read(text)
    assert reference is None or str(reference) == text


@pytest.mark.importer(10)
@pytest.mark.parametrize("text",
    ["", f"upload/{SECRET}", f"upload/{SECRET}/", f"upload/{SECRET}/a/b", f"upload/{SECRET}a/b",
    f"upload/{SECRET[1:]}/b", f"upload/{SECRET[1:]}=/b", f"/upload/{SECRET}/b", f"uploads/{SECRET}/b",
    f"upload/{SECRET}/{'b' * (MAX_NAME_CHARACTERS + 1)}", f"upload/{SECRET}/b\n/"])  # fmt: skip
def test_malformed_reference_is_none(text: str) -> None:
    assert UploadReference.read(text) is None


@pytest.mark.security("T21")
def test_references_are_unguessable_and_hide_their_secret() -> None:
    made = [UploadReference.new("a.csv") for _ in range(1000)]
    assert len({reference.secret for reference in made}) == 1000
    reference = made[0]
    assert reference.secret not in repr(reference)
    assert reference.digest == hashlib.sha256(reference.secret.encode()).digest()


@pytest.mark.importer(4)
@given(st.text())
def test_safe_name_is_not_a_path(client_name: str) -> None:
    name = safe_name(client_name)
    assert 1 <= len(name) <= MAX_NAME_CHARACTERS
    assert not set(name) & set("/\\\0\n\r\"' &?#%")
    assert name.strip(".")
