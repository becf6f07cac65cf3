"""Values that files and readers lost: the inputs of `tests/field/sql`, whose comments say what was wrong."""

import datetime as dt
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import openpyxl
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from tests.api.driving import Caller
from tests.api.test_download import FORMATS, file_of, finished, rows_of
from tests.cases import each

FIELD = Path(__file__).parents[1] / "field" / "sql"


def statement(name: str) -> str:
    return (FIELD / name).read_text()


async def cells(ana: Caller, dialect: str, sql: str) -> list[list[Any]]:
    operation = await finished(ana, dialect, sql)
    return (await ana.page(operation))["data"]


def typed(kind: str, content: bytes) -> pa.Table:
    """A file with types, read by pyarrow."""
    match kind:
        case "parquet":
            return pq.read_table(io.BytesIO(content))
        case "arrow":
            return pa.ipc.open_stream(content).read_all()
        case _:
            return pa.ipc.open_file(content).read_all()


@each("kind", FORMATS)
@each(
    ("sql", "expected"),
    (statement("08_duckdb_time_24.sql"), "24:00:00"),
    ("SELECT '24:00:00'::TIME_NS AS t", "24:00:00"),
    ("SELECT '24:00:00+02'::TIMETZ AS t", "24:00:00+02"),
)
async def test_the_end_of_a_day_is_24_o_clock_in_every_form(ana: Caller, kind, sql, expected):
    operation = await finished(ana, "duckdb", sql)
    assert (await ana.page(operation))["data"] == [[expected]]
    content = await file_of(ana, operation, kind)
    assert (rows_of(kind, content) if kind != "ndjson" else content) == (
        [[expected]] if kind != "ndjson" else f'{{"t":"{expected}"}}\n'.encode()
    )


async def test_the_end_of_a_day_is_24_o_clock_within_other_values(ana: Caller):
    sql = "SELECT [TIME '24:00:00', TIME '10:20:30.5', NULL] AS l, {'t': TIME '24:00:00'} AS s"
    assert await cells(ana, "duckdb", sql) == [[["24:00:00", "10:20:30.500000", None], {"t": "24:00:00"}]]


@each(("sql", "message"),
    ("SELECT from_binary('ééé')", "Invalid Input Error: Invalid input for binary digit: �"),
    ("SELECT from_hex('é')", "Invalid Input Error: Invalid input for hex digit: �"))  # fmt: skip
async def test_an_error_of_duckdb_that_is_no_utf8_is_an_error_of_the_engine(ana: Caller, sql, message):
    body = await ana.run("duckdb", sql)
    assert (body["status"], body["code"], body["message"]) == (1, "engine_error", message)
    assert await cells(ana, "duckdb", "SELECT 1") == [[1]]


NULL_ROWS = statement("19_null_rows_of_one_column.sql")


async def test_no_reader_loses_rows_of_one_null_from_a_csv_of_one_column(ana: Caller, tmp_path: Path):
    operation = await finished(ana, "duckdb", NULL_ROWS)
    content, path = await file_of(ana, operation, "csv"), tmp_path / "rows.csv"
    path.write_bytes(content)
    assert content == b'a\r\n1\r\n""\r\n3\r\n""\r\n'
    assert pd.read_csv(path)["a"].tolist()[::2] == [1, 3]
    assert pd.read_csv(path)["a"].isna().tolist() == [False, True, False, True]
    assert pyarrow.csv.read_csv(path)["a"].to_pylist() == [1, None, 3, None]
    assert duckdb.sql(f"FROM read_csv('{path}')").fetchall() == [(1,), (None,), (3,), (None,)]
    assert pl.read_csv(path, schema={"a": pl.String})["a"].to_list() == ["1", "", "3", ""]
    assert rows_of("csv", content) == [["1"], [""], ["3"], [""]]


async def test_rows_of_one_null_are_rows_in_tsv_and_xlsx_too(ana: Caller):
    operation = await finished(ana, "duckdb", NULL_ROWS)
    assert (await file_of(ana, operation, "tsv")) == b'a\r\n1\r\n""\r\n3\r\n""\r\n'
    workbook = await file_of(ana, operation, "xlsx")
    sheet = openpyxl.load_workbook(io.BytesIO(workbook))["result"]
    assert [row[0] for row in sheet.iter_rows(values_only=True)] == ["a", 1, None, 3, None]
    assert rows_of("xlsx", workbook) == [[1], [None], [3], [None]]
    # pandas drops the empty rows at the end of any sheet, whatever stands in them.
    assert pd.read_excel(io.BytesIO(workbook), engine="openpyxl")["a"].isna().tolist() == [False, True, False]


def kinds(table: pa.Table) -> dict[str, pa.DataType]:
    return dict(zip(table.schema.names, table.schema.types, strict=True))


TYPED = ("parquet", "arrow", "feather")


@each("kind", TYPED)
async def test_nested_values_and_wide_integers_of_duckdb_have_their_types(ana: Caller, kind):
    operation = await finished(ana, "duckdb", statement("17_duckdb_parquet_arrow_types_lost.sql"))
    table = typed(kind, await file_of(ana, operation, kind))
    assert kinds(table) == {
        "a": pa.list_(pa.int32()),
        "b": pa.list_(pa.date32()),
        "c": pa.struct([("t", pa.timestamp("us"))]),
        "u": pa.decimal256(39, 0),
    }
    assert table.to_pylist() == [
        {"a": [1, 2, 3], "b": [dt.date(2024, 1, 1)], "c": {"t": dt.datetime(2024, 1, 1)}, "u": Decimal(1)}  # noqa: DTZ001
    ]


@each("kind", TYPED)
@each(
    ("dialect", "usual", "odd"),
    ("duckdb", "DATE '2024-01-01'", "DATE 'infinity'"),
    ("duckdb", "DATE '2024-01-01'", "DATE '0044-03-15 (BC)'"),
    ("duckdb", "TIMESTAMP '2024-01-01'", "TIMESTAMP '12024-01-01 10:20:30.5'"),
    ("duckdb", "TIMESTAMP_NS '2024-01-01'", "TIMESTAMP_NS '-infinity'"),
    ("duckdb", "TIMESTAMPTZ '2024-01-01 00:00+00'", "TIMESTAMPTZ '0044-03-15 (BC) 00:00:00+00'"),
    ("duckdb", "[DATE '2024-01-01']", "[DATE 'infinity', NULL, DATE '2024-01-01']"),
    ("duckdb", "{'a': [TIMESTAMP '2024-01-01']}", "{'a': [TIMESTAMP 'infinity']}"),
    ("duckdb", "MAP {DATE '2024-01-01': 1}", "MAP {DATE '12024-01-01': 1}"),
    ("duckdb", "1::HUGEINT", "170141183460469231731687303715884105727::HUGEINT"),
    ("duckdb", "[1::HUGEINT]", "[170141183460469231731687303715884105727::HUGEINT]"),
    ("duckdb", "1::UHUGEINT", "340282366920938463463374607431768211455::UHUGEINT"),
    ("duckdb", "TIME '10:20:30'", "TIME '24:00:00'"),
    ("duckdb", "[TIME '10:20:30']", "[TIME '24:00:00']"),
)
async def test_a_column_of_a_file_has_the_same_type_whatever_its_values(ana: Caller, kind, dialect, usual, odd):
    found = set[pa.DataType]()
    for sql in (usual, odd, f"{usual} AS v UNION ALL SELECT {odd}"):
        operation = await finished(ana, dialect, f"SELECT {sql}" if " AS v" in sql else f"SELECT {sql} AS v")
        found |= set(typed(kind, await file_of(ana, operation, kind)).schema.types)
    assert len(found) == 1, found
    assert found != {pa.string()} or usual.startswith("TIME '")


EPOCH = dt.date(1970, 1, 1)


@each(
    ("sql", "numbers"),
    ("DATE 'infinity'", 2**31 - 1),
    ("DATE '-infinity'", -(2**31) + 1),
    ("DATE '0044-03-15 (BC)'", -735_160),
    ("DATE '12024-02-29'", 3_672_207),
    ("TIMESTAMP 'infinity'", 2**63 - 1),
    ("TIMESTAMP '0001-12-31 (BC) 23:59:59.5'", -62_135_596_800_500_000),
)
async def test_odd_dates_are_their_days_and_infinities_the_extremes_that_duckdb_reads(
    ana: Caller, tmp_path: Path, sql, numbers
):
    operation = await finished(ana, "duckdb", f"SELECT {sql} AS v, [{sql}] AS l")
    path = tmp_path / "odd.parquet"
    path.write_bytes(await file_of(ana, operation, "parquet"))
    table = pq.read_table(path)
    storage = pa.int32() if "DATE" in sql else pa.int64()
    assert [one.as_py() for one in table["v"].combine_chunks().view(storage)] == [numbers]
    assert duckdb.sql(f"SELECT v = {sql} AND l = [{sql}] FROM '{path}'").fetchall() == [(True,)]
