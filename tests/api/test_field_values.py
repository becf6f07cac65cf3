"""Values that downloads or the readers of their files once lost. The comments in the inputs, `tests/field/sql`,
describe the defects.
"""

import datetime as dt
import io
import json
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
import pytest
from tests.api.driving import Caller, verdict
from tests.api.test_download import FORMATS, file_of, finished, rows_of

FIELD = Path(__file__).parents[1] / "field" / "sql"


def statement(name: str) -> str:
    return (FIELD / name).read_text()


async def cells(ana: Caller, dialect: str, sql: str) -> list[list[Any]]:
    operation = await finished(ana, dialect, sql)
    return (await ana.page(operation))["data"]


def typed(kind: str, content: bytes) -> pa.Table:
    """Read a Parquet or Arrow file with pyarrow."""
    match kind:
        case "parquet":
            return pq.read_table(io.BytesIO(content))
        case "arrow":
            return pa.ipc.open_stream(content).read_all()
        case _:
            return pa.ipc.open_file(content).read_all()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (statement("08_duckdb_time_24.sql"), "24:00:00"),
        ("SELECT '24:00:00'::TIME_NS AS t", "24:00:00"),
        ("SELECT '24:00:00+02'::TIMETZ AS t", "24:00:00+02"),
    ],
)
async def test_end_of_day_is_24_o_clock_in_every_format(ana: Caller, kind, sql, expected):
    operation = await finished(ana, "duckdb", sql)
    assert (await ana.page(operation))["data"] == [[expected]]
    content = await file_of(ana, operation, kind)
    assert (rows_of(kind, content) if kind != "ndjson" else content) == (
        [[expected]] if kind != "ndjson" else f'{{"t":"{expected}"}}\n'.encode()
    )


async def test_end_of_day_is_24_o_clock_in_nested_values(ana: Caller):
    sql = "SELECT [TIME '24:00:00', TIME '10:20:30.5', NULL] AS l, {'t': TIME '24:00:00'} AS s"
    assert await cells(ana, "duckdb", sql) == [[["24:00:00", "10:20:30.500000", None], {"t": "24:00:00"}]]


@pytest.mark.parametrize(("sql", "message"),
    [("SELECT from_binary('ééé')", "Invalid Input Error: Invalid input for binary digit: �"),
    ("SELECT from_hex('é')", "Invalid Input Error: Invalid input for hex digit: �")])  # fmt: skip
async def test_duckdb_error_with_invalid_utf8_is_an_engine_error(ana: Caller, sql, message):
    body = await ana.run("duckdb", sql)
    assert (body["status"], body["code"], body["message"]) == (1, "engine_error", message)
    assert await cells(ana, "duckdb", "SELECT 1") == [[1]]


NULL_ROWS = statement("19_null_rows_of_one_column.sql")


async def test_single_column_csv_keeps_null_rows_in_every_reader(ana: Caller, tmp_path: Path):
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


async def test_single_column_tsv_and_xlsx_keep_null_rows(ana: Caller):
    operation = await finished(ana, "duckdb", NULL_ROWS)
    assert (await file_of(ana, operation, "tsv")) == b'a\r\n1\r\n""\r\n3\r\n""\r\n'
    workbook = await file_of(ana, operation, "xlsx")
    sheet = openpyxl.load_workbook(io.BytesIO(workbook))["result"]
    assert [row[0] for row in sheet.iter_rows(values_only=True)] == ["a", 1, None, 3, None]
    assert rows_of("xlsx", workbook) == [[1], [None], [3], [None]]
    # pandas drops all empty rows at the end of a sheet.
    assert pd.read_excel(io.BytesIO(workbook), engine="openpyxl")["a"].isna().tolist() == [False, True, False]


def kinds(table: pa.Table) -> dict[str, pa.DataType]:
    return dict(zip(table.schema.names, table.schema.types, strict=True))


TYPED = ("parquet", "arrow", "feather")


@pytest.mark.parametrize("kind", TYPED)
async def test_nested_values_and_wide_integers_of_duckdb_keep_their_types(ana: Caller, kind):
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


@pytest.mark.parametrize("kind", TYPED)
@pytest.mark.parametrize(
    ("dialect", "usual", "odd"),
    [
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
        ("postgresql", "DATE '2024-01-01'", "DATE 'infinity'"),
        ("postgresql", "TIMESTAMP '2024-01-01'", "TIMESTAMP '0044-03-15 10:20:30 BC'"),
        ("postgresql", "TIMESTAMPTZ '2024-01-01 00:00+00'", "TIMESTAMPTZ '12024-01-01 00:00+00'"),
        ("postgresql", "ARRAY[DATE '2024-01-01']", "ARRAY[DATE '-infinity', NULL, DATE '2024-01-01']"),
        ("postgresql", "ARRAY[TIMESTAMPTZ '2024-01-01 00:00+00']", "ARRAY[TIMESTAMPTZ '0044-03-15 10:20:30+00 BC']"),
    ],
)
async def test_column_type_in_a_file_does_not_depend_on_its_values(ana: Caller, kind, dialect, usual, odd):
    found = set[pa.DataType]()
    for sql in (usual, odd, f"{usual} AS v UNION ALL SELECT {odd}"):
        operation = await finished(ana, dialect, f"SELECT {sql}" if " AS v" in sql else f"SELECT {sql} AS v")
        found |= set(typed(kind, await file_of(ana, operation, kind)).schema.types)
    assert len(found) == 1, found
    assert found != {pa.string()} or usual.startswith("TIME '")


EPOCH = dt.date(1970, 1, 1)


@pytest.mark.parametrize(
    ("sql", "numbers"),
    [
        ("DATE 'infinity'", 2**31 - 1),
        ("DATE '-infinity'", -(2**31) + 1),
        ("DATE '0044-03-15 (BC)'", -735_160),
        ("DATE '12024-02-29'", 3_672_207),
        ("TIMESTAMP 'infinity'", 2**63 - 1),
        ("TIMESTAMP '0001-12-31 (BC) 23:59:59.5'", -62_135_596_800_500_000),
    ],
)
async def test_unusual_dates_keep_their_days_and_infinities_become_extremes_that_duckdb_reads(
    ana: Caller, tmp_path: Path, sql, numbers
):
    operation = await finished(ana, "duckdb", f"SELECT {sql} AS v, [{sql}] AS l")
    path = tmp_path / "odd.parquet"
    path.write_bytes(await file_of(ana, operation, "parquet"))
    table = pq.read_table(path)
    storage = pa.int32() if "DATE" in sql else pa.int64()
    assert [one.as_py() for one in table["v"].combine_chunks().view(storage)] == [numbers]
    assert duckdb.sql(f"SELECT v = {sql} AND l = [{sql}] FROM '{path}'").fetchall() == [(True,)]


async def test_postgresql_array_keeps_its_type_with_out_of_range_dates(ana: Caller):
    operation = await finished(ana, "postgresql", statement("09_postgresql_date_arrays_out_of_range.sql"))
    expected = [["infinity", "2024-01-01 00:00:00"], ["0001-01-01 BC"], ["10000-01-01"]]
    page = await ana.page(operation)
    assert page["data"] == [expected]
    assert [column["type"] for column in page["meta"]] == ["ARRAY_TYPE"] * 3
    table = pq.read_table(io.BytesIO(await file_of(ana, operation, "parquet")))
    assert kinds(table) == {"a": pa.list_(pa.timestamp("us")), "b": pa.list_(pa.date32()), "c": pa.list_(pa.date32())}
    numbers = [column.combine_chunks().flatten() for column in table.columns]
    assert numbers[0].view(pa.int64()).to_pylist() == [2**63 - 1, 1_704_067_200_000_000]
    assert [numbers[1].view(pa.int32()).to_pylist(), numbers[2].view(pa.int32()).to_pylist()] == [
        [-719_528],
        [2_932_897],
    ]
    lines = (await file_of(ana, operation, "ndjson")).decode().splitlines()
    assert [json.loads(line) for line in lines] == [dict(zip("abc", expected, strict=True))]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [("'{{infinity,-infinity}}'::timestamptz[]", [["infinity", "-infinity"]]),
    ("'{0044-03-15 10:20:30.5+00 BC,2024-01-01 00:00:00+00}'::timestamptz[]",
     ["0044-03-15 10:20:30.5+00 BC", "2024-01-01 00:00:00+00:00"]),
    ("'{NaN,1.50,NULL}'::numeric(10,2)[]", ["NaN", "1.50", None]),
    ("ARRAY[NULL, DATE 'infinity']", [None, "infinity"])],
)  # fmt: skip
async def test_unusual_elements_have_their_postgresql_text(ana: Caller, sql, expected):
    assert await cells(ana, "postgresql", f"SELECT {sql} AS v") == [[expected]]


async def test_infinite_date_after_usual_dates_is_read(ana: Caller):
    days = "CASE WHEN n < 30000 THEN DATE '2024-01-01' ELSE DATE 'infinity' END"
    sql = f"SELECT {days} AS d FROM generate_series(0, 30000) n"
    operation = await finished(ana, "postgresql", sql, limit=40_000)
    assert (await ana.page(operation, start_row=29_999))["data"] == [["2024-01-01"], ["infinity"]]
    table = pq.read_table(io.BytesIO(await file_of(ana, operation, "parquet")))
    assert kinds(table) == {"d": pa.date32()}


async def test_nan_decimal_cannot_be_written_to_a_typed_file(ana: Caller):
    operation = await finished(ana, "postgresql", "SELECT 'NaN'::numeric(10,2) AS price")
    assert (await ana.page(operation))["data"] == [["NaN"]]
    answer = await ana.get(f"editor/download/{operation}", format="parquet")
    assert verdict(answer) == (400, -1, "invalid_parameter")
    assert "the column 'price' contains a value" in answer.json()["message"]
    assert await file_of(ana, operation, "csv") == b"price\r\nNaN\r\n"


@pytest.mark.parametrize(
    ("dialect", "sql"), [("postgresql", "SELECT row(1, 'a') AS r"), ("duckdb", "SELECT row(1, 'a') AS r")]
)
async def test_row_fields_are_typed_in_every_format(ana: Caller, dialect, sql):
    operation = await finished(ana, dialect, sql)
    page = await ana.page(operation)
    assert page["data"] == [[{"field0": 1, "field1": "a"}]]
    assert page["meta"][0]["type"] == "STRUCT_TYPE"
    for kind in TYPED:
        table = typed(kind, await file_of(ana, operation, kind))
        assert kinds(table) == {"r": pa.struct([("field0", pa.int32()), ("field1", pa.string())])}
        assert table.to_pylist() == [{"r": {"field0": 1, "field1": "a"}}]


@pytest.mark.parametrize("value",
    ["true", "1::smallint", "'-9223372036854775808'::bigint", "1.5::real", "'NaN'::float8", "'Infinity'::float8",
    "7::oid",
    "12.50", "-0.00001::numeric", "12345678901234567890.123::numeric", "'NaN'::numeric", "0::numeric", "10000::numeric",
    "'é😀'::text", "'x'::varchar(3)", "'x'::char(3)", "'name'::name", "'{\"a\": 1}'::json", "'{\"a\": [1]}'::jsonb",
    "DATE '2024-01-31'", "DATE 'infinity'", "TIMESTAMP '2024-01-31 10:20:30.5'", "TIMESTAMP '0044-03-15 00:00:00 BC'",
    "TIMESTAMPTZ '2024-01-31 10:20:30+02'", "TIME '10:20:30.5'", "TIMETZ '10:20:30+05:30'", "TIMETZ '10:20:30-03'",
    "INTERVAL '1 year 2 mons -3 days 04:05:06.7'", "INTERVAL '-00:00:01'", "INTERVAL '0'", "INTERVAL '-14 mons'",
    "INTERVAL '-1 day +2 hours'", "INTERVAL '1 mon -2 days +03:00'", "INTERVAL '-1 year +1 day'",
    "'\\x00ff'::bytea", "'6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid", "'10.0.0.1'::inet", "'10.0.0.0/8'::cidr",
    "'::1/64'::inet", "B'0101'", "ARRAY[1, NULL, 3]", "ARRAY['a', 'b,c']", "'{}'::int[]", "ARRAY[DATE 'infinity']",
    "NULL::integer", "NULL::int[]"])  # fmt: skip
async def test_row_field_has_the_same_value_as_a_column(ana: Caller, value):
    [[row, cell]] = await cells(ana, "postgresql", f"SELECT row({value}, 1) AS r, {value} AS v")
    assert row == {"field0": cell, "field1": 1}


async def test_rows_may_be_nested_and_null(ana: Caller):
    sql = "SELECT CASE WHEN n = 2 THEN row(row(n, 'x'), NULL::row_kind) END AS r FROM generate_series(1, 2) n"
    await ana.run("postgresql", "DROP TYPE IF EXISTS row_kind")
    await ana.run("postgresql", "CREATE TYPE row_kind AS ENUM ('small', 'large')")
    assert await cells(ana, "postgresql", sql) == [[None], [{"field0": {"field0": 2, "field1": "x"}, "field1": None}]]
    assert await cells(ana, "postgresql", "SELECT row('small'::row_kind) AS r") == [[{"field0": "small"}]]


@pytest.mark.parametrize(
    ("name", "names", "data"),
    [
        ("11_duckdb_functions_that_need_statistics.sql", {}, {2: [["101"]]}),
        ("12_duckdb_column_names_changed.sql", {1: ["nextval('s')", "nextval('s')"], 3: ["i", "i"]}, {}),
        ("14_duckdb_export_state.sql", {}, {0: [[[1, 2, 3]]]}),
        ("15_duckdb_current_query.sql", {}, {0: [["SELECT current_query()"]]}),
        ("16_duckdb_overflow_not_folded.sql", {}, {2: [[None]]}),
    ],
)
async def test_duckdb_results_match_duckdb_outside_the_server(
    ana: Caller, name: str, names: dict[int, list[str]], data: dict[int, list[Any]]
):
    text = "\n".join(line for line in statement(name).splitlines() if not line.startswith("--"))
    body = await ana.run("duckdb", text, run_all="true")
    seen = {
        number: (await ana.on(body["history_uuid"], "fetch_result_data", statement_id=str(number)))["result"]
        for number in (*names, *data)
    }
    assert {number: [column["name"] for column in seen[number]["meta"]] for number in names} == names
    assert {number: seen[number]["data"] for number in data} == data
