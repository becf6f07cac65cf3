"""Workbooks, and files of records such as NDJSON, Avro and Arrow (Contract importer 4, 5, 7, 8a, 12.2)."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xlwt
from openpyxl.chart import BarChart
from openpyxl.utils.datetime import CALENDAR_MAC_1904
from pyarrow import feather
from tests.api.driving import Caller
from tests.api.importer.asking import guess, header, names, preview, types
from tests.api.importer.conftest import refusal, uploaded
from tests.api.importer.tables import Tables, ask, failed, imported, open_tables, rows
from tests.fixtures.database import new_database

from queryserver.imports.model import PREVIEW_DIALECTS, SQL_TYPES
from queryserver.platform.embedded.postgres import EmbeddedPostgres

AVRO = Path(__file__).parents[2] / "unit" / "formats" / "avro"
FIELD = Path(__file__).parents[2] / "field" / "import"

TABLE = pa.table(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "small": pa.array([1, 2, 3], pa.int8()),
        "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(12, 2)),
        "ok": [True, False, None],
        "day": [date(2024, 1, 15), None, date(1, 1, 1)],
        "at": pa.array([datetime(2024, 1, 15, 10, 30, tzinfo=UTC), None, None], pa.timestamp("ns", "Europe/Berlin")),
        "clock": [time(10, 20, 30), None, None],
        "name": ["anna", " ", None],
        "tags": [["a", "b"], [], None],
        "who": [{"x": 1}, None, {"x": 2}],
        "raw": pa.array([b"\x00\x01", None, b""], pa.binary()),
        "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
        "wide": pa.array([2**63, None, 2**64 - 1], pa.uint64()),
    }
)

POSTGRESQL = [
    "BIGINT", "SMALLINT", "NUMERIC", "BOOLEAN", "DATE", "TIMESTAMP", "TIME", "TEXT", "TEXT", "TEXT", "BYTEA", "TEXT",
    "NUMERIC",
]  # fmt: skip


def parquet(table: pa.Table = TABLE) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def arrow_file(table: pa.Table = TABLE) -> bytes:
    sink = io.BytesIO()
    feather.write_feather(table, sink, compression="lz4")
    return sink.getvalue()


def arrow_stream(table: pa.Table = TABLE) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


COLUMNAR: dict[str, tuple[str, Callable[[], bytes]]] = {
    "parquet": ("parquet", parquet),
    "feather": ("arrow", arrow_file),
    "stream": ("arrow", arrow_stream),
}


@pytest.fixture(scope="module")
async def tables(
    postgres: EmbeddedPostgres, migrated_template: str, tmp_path_factory: pytest.TempPathFactory, users_url: str
) -> AsyncIterator[Tables]:
    async for dsn in new_database(postgres, template=migrated_template):
        async for opened in open_tables(tmp_path_factory.mktemp("records"), dsn, users_url):
            yield opened


@pytest.fixture
async def eva(tables: Tables) -> Caller:
    return await tables.api.user("ana")


async def table_of(eva: Caller, connector: str, table: str, path: str, kind: str, **fields: Any) -> Any:
    """Import a file whose format contains the column names, so has_header is empty. Returns the row of the import's
    result.
    """
    return await imported(eva, connector, table, file_path=path, file_type=kind, has_header="", **fields)


@pytest.mark.parametrize("form", COLUMNAR)
async def test_columnar_files_keep_types_and_values(eva: Caller, form: str):
    kind, content = COLUMNAR[form]
    path = await uploaded(eva, content())
    assert (await guess(eva, path)).json() == {"type": kind}
    assert (await header(eva, path, kind)).json() == {"has_header": True}
    shown = (await preview(eva, path, kind, sql_dialect="postgresql", has_header=None)).json()
    assert (names(shown), types(shown)) == (TABLE.schema.names, POSTGRESQL)
    assert (shown["columns"][2]["precision"], shown["columns"][2]["scale"]) == (12, 2)
    assert shown["preview_data"][0][:7] == ["1", "1", "1.50", "true", "2024-01-15", "2024-01-15 10:30:00", "10:20:30"]
    assert shown["preview_data"][0][7:11] == ["anna", '["a","b"]', '{"x":1}', "AAE="]
    # A client may send the columns of the preview back unchanged.
    done = await table_of(eva, "postgresql", f"t_{form}", path, kind, columns=shown["columns"])
    assert (done["rows_read"], done["rows_loaded"]) == (3, 3)
    found = await rows(eva, "postgresql", f"t_{form}", order="small")
    assert found[0][:5] == [1, 1, "1.50", True, "2024-01-15"]
    assert found[0][7:] == ["anna", '["a","b"]', '{"x":1}', "AAE=", "a", str(2**63)]
    assert [row[7] for row in found] == ["anna", " ", None]
    assert (found[1][0], found[2][4], found[2][12]) == (2, "0001-01-01", str(2**64 - 1))
    if form != "parquet":
        return
    # Values are converted through strings if the chosen type differs from the file's type.
    chosen = [
        {"source": "id", "type": "VARCHAR(1)"},
        {"source": "price", "type": "numeric(4,3)"},
        {"source": "day", "type": "TIMESTAMP"},
        {"source": "small", "type": "DOUBLE"},
    ]
    await table_of(eva, "duckdb", f"d_{form}", path, kind, columns=chosen)
    assert (await rows(eva, "duckdb", f"d_{form}", order="small"))[0] == ["1", "1.500", "2024-01-15 00:00:00", 1.0]
    bad = {"file_path": path, "file_type": kind, "columns": [{"source": "name", "type": "VARCHAR(3)"}]}
    assert '"anna" has more than 3 characters' in (await failed(eva, "duckdb", "nothing", **bad))[1]


LINES = [
    {"id": 1, "name": "anna", "day": "2024-01-15", "price": 1.5, "tags": ["a", {"b": None}], "ok": True, "code": "007"},
    {"id": 2, "name": "", "day": None, "price": 2, "ok": False, "code": "null", "big": 2**70},
    {"code": " x "},
]


async def test_json_lines_are_imported(eva: Caller):
    content = ("\ufeff" + "\r\n\n".join(map(json.dumps, LINES))).encode()
    path = await uploaded(eva, content)
    assert (await guess(eva, path)).json() == {"type": "ndjson"}
    shown = (await preview(eva, path, "ndjson", sql_dialect="duckdb")).json()
    assert names(shown) == ["id", "name", "day", "price", "tags", "ok", "code", "big"]
    assert types(shown) == ["INTEGER", "VARCHAR", "DATE", "DOUBLE", "VARCHAR", "BOOLEAN", "VARCHAR", "DECIMAL"]
    assert shown["preview_data"][2] == ["", "", "", "", "", "", " x ", ""]
    await table_of(eva, "duckdb", "lines", path, "ndjson", columns=shown["columns"])
    assert await rows(eva, "duckdb", "lines") == [
        [1, "anna", "2024-01-15", 1.5, '["a",{"b":null}]', True, "007", None],
        [2, "", None, 2.0, None, False, "null", str(2**70)],
        [None, None, None, None, None, None, " x ", None],
    ]


async def test_non_object_lines_and_late_fields_are_bad_rows(eva: Caller):
    # The sample ends after 10,000 records, so it does not contain the field `late`.
    content = b'{"n": 1}\n' * 10_001 + b'{"n": 1, "late": 2}\n[1]\n{"n": "x"}\n{"n": 7}\n'
    fields = {"file_path": await uploaded(eva, content), "file_type": "ndjson"}
    _, message, log = await failed(eva, "duckdb", "bad_lines", max_bad_rows="0", **fields)
    assert "3 of 10005 rows are bad" in message
    assert 'record 10002: the record has a field "late"' in log
    assert "record 10003: the line is not a JSON object" in log
    assert 'record 10004, column "n": "x" is not an integer' in log
    done = await imported(eva, "duckdb", "bad_lines", max_bad_rows="3", **fields)
    assert (done["rows_loaded"], done["rows_bad"]) == (10_002, 3)


async def test_avro_file_is_imported(eva: Caller):
    path = await uploaded(eva, (AVRO / "zstandard.avro").read_bytes())
    assert (await guess(eva, path)).json() == {"type": "avro"}
    shown = (await preview(eva, path, "avro", sql_dialect="duckdb")).json()
    found = dict(zip(names(shown), types(shown), strict=True))
    wanted = {
        "id": "BIGINT", "ok": "BOOLEAN", "f": "FLOAT", "g": "DOUBLE", "price": "DECIMAL", "day": "DATE",
        "clock": "TIME", "at": "TIMESTAMP", "local": "TIMESTAMP", "tags": "VARCHAR", "inner": "VARCHAR",
        "suit": "VARCHAR",
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    done = await table_of(eva, "duckdb", "avro", path, "avro")
    assert done["rows_bad"] == 0
    chosen = 'id, price, CAST("at" AS VARCHAR), CAST("local" AS VARCHAR), tags, raw'
    assert (await rows(eva, "duckdb", "avro", columns=chosen, order="abs(id)"))[1] == [
        -1000000000, "-1.25", "2024-01-31 10:20:30.12", "1969-12-31 23:59:59.5", '["a"]', "Af8=",
    ]  # fmt: skip


@pytest.mark.security("T14")
async def test_corrupt_and_hostile_files_are_refused(eva: Caller):
    whole = parquet()
    stream = arrow_stream(pa.table({"s": ["abc", "def"]}))
    folder = stream.index(b"\x03\x00\x00\x00\x06\x00\x00\x00")
    cases = [
        ("parquet", whole[:-20], "file_corrupt"),
        ("parquet", b"PAR1" + bytes(100) + b"PAR1", "file_corrupt"),
        ("arrow", arrow_file()[:200], "file_corrupt"),
        # These string offsets point past the end of the buffer, where Arrow itself would read out of bounds.
        ("arrow", stream[:folder] + b"\xff\xff\xff\x0f" + stream[folder + 4 :], "file_corrupt"),
        ("avro", (AVRO / "null.avro").read_bytes()[:-30], "file_corrupt"),
        ("avro", b"Obj\x01\x00" + bytes(100), "file_corrupt"),
        ("parquet", b"a,b\n1,2\n", "format_mismatch"),
        ("arrow", whole, "format_mismatch"),
        ("ndjson", b"a,b\n1,2\n", "format_mismatch"),
        ("csv", whole, "format_mismatch"),
        ("ndjson", b'{"a": "' + b"x" * (16 * 1024 * 1024) + b'"}', "record_too_long"),
        ("ndjson", json.dumps({f"c{folder}": folder for folder in range(2001)}).encode(), "too_many_columns"),
        ("parquet", parquet(pa.table({f"c{folder}": [1] for folder in range(2001)})), "too_many_columns"),
    ]
    answers = await asyncio.gather(*(refused(eva, kind, content) for kind, content, _ in cases))
    assert answers == [(400, code) for _, _, code in cases]


async def refused(eva: Caller, kind: str, content: bytes) -> tuple[int, str]:
    return refusal(await preview(eva, await uploaded(eva, content), kind))


async def test_remote_parquet_file_is_imported(tables: Tables, eva: Caller):
    path = tables.shared_file("a.parquet", parquet())
    remote = {"import_type": "remote"}
    assert (await guess(eva, path, **remote)).json() == {"type": "parquet"}
    done = await imported(eva, "duckdb", "remote", file_path=path, file_type="parquet", **remote)
    assert done["rows_loaded"] == 3


async def test_duplicate_column_names_are_made_unique(eva: Caller):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "A"])
    await table_of(eva, "duckdb", "twins", await uploaded(eva, arrow_stream(table)), "arrow")
    assert (await eva.result("duckdb", 'SELECT a, "A_2" FROM twins'))["data"] == [[1, 2]]
    seen = refusal(await ask(eva, "duckdb", "other", file_path=await uploaded(eva), has_header=""))
    assert seen == (400, "missing_parameter")


Rows = list[list[object]]

ROWS: Rows = [
    ["n", "price", "ok", "day", "at", "clock", "text", "long"],
    [1, 1.5, True, date(2024, 1, 15), datetime(2024, 1, 15, 10, 30), time(8, 5), "12", 2**53],  # noqa: DTZ001 no zone
    [2.0, -0.25, False, date(2024, 2, 29), datetime(2024, 2, 29, 23, 59, 59), time(23, 59, 59), "=x", 7],  # noqa: DTZ001
    [3, None, None, None, None, None, "é", -1],
]

SHOWN = [
    ["1", "1.5", "true", "2024-01-15", "2024-01-15 10:30:00", "08:05:00", "12", "9007199254740992"],
    ["2", "-0.25", "false", "2024-02-29", "2024-02-29 23:59:59", "23:59:59", "=x", "7"],
    ["3", "", "", "", "", "", "é", "-1"],
]

HIVE = ["INT", "DOUBLE", "BOOLEAN", "DATE", "TIMESTAMP", "STRING", "STRING", "BIGINT"]


def xlsx(
    rows: Rows, *, epoch: datetime | None = None, change: Callable[[openpyxl.Workbook], None] | None = None
) -> bytes:
    """Return a workbook with these rows in the sheet `one`."""
    book = openpyxl.Workbook()
    if epoch is not None:
        book.epoch = epoch
    sheet = book.active
    assert sheet is not None
    sheet.title = "one"
    for number, row in enumerate(rows, 1):
        for position, value in enumerate(row, 1):
            cell = sheet.cell(number, position)
            cell.value = value  # type: ignore[assignment]
            if isinstance(value, str):
                cell.data_type = "s"
    if change is not None:
        change(book)
    made = io.BytesIO()
    book.save(made)
    return made.getvalue()


def xls(rows: Rows) -> bytes:
    """Return a legacy .xls workbook with these rows in the sheet `one`."""
    book = xlwt.Workbook()
    sheet = book.add_sheet("one")
    formats = {date: "YYYY-MM-DD", datetime: "YYYY-MM-DD HH:MM:SS", time: "HH:MM:SS"}
    for number, row in enumerate(rows):
        for position, value in enumerate(row):
            if value is not None:
                style = xlwt.easyxf(num_format_str=formats.get(type(value), "General"))
                sheet.write(number, position, value, style)
    made = io.BytesIO()
    book.save(made)
    return made.getvalue()


async def shown(caller: Caller, content: bytes, **query: str) -> dict[str, object]:
    """Preview the sheet `one` of a workbook; return the response body."""
    answer = await preview(caller, await uploaded(caller, content), "excel", **{"sheet_name": "one", **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


class TestSheets:
    @pytest.mark.importer(13)
    async def test_worksheets_are_listed_in_order_including_hidden_sheets_but_not_charts(self, ana: Caller):
        def more(book: openpyxl.Workbook) -> None:
            book.create_sheet("before", 0)
            book.create_chartsheet("chart").add_chart(BarChart())
            book.create_sheet("hidden & é").sheet_state = "veryHidden"
            book.create_sheet("last")

        reference = await uploaded(ana, xlsx(ROWS, change=more))
        guessed = (await guess(ana, reference)).json()
        assert guessed == {"type": "excel", "sheet_names": ["before", "one", "hidden & é", "last"]}
        assert refusal(await preview(ana, reference, "excel", sheet_name="chart")) == (400, "sheet_not_found")
        for name in ("before", "hidden & é"):
            assert refusal(await preview(ana, reference, "excel", sheet_name=name)) == (400, "file_empty")
        assert (await preview(ana, reference, "excel", sheet_name="one")).status_code == 200

    @pytest.mark.importer(21, 25)
    async def test_sheet_name_must_match_exactly(self, ana: Caller):
        reference = await uploaded(ana, xlsx(ROWS))
        assert refusal(await preview(ana, reference, "excel")) == (400, "sheet_required")
        for name in ("One", "one ", "two"):
            assert refusal(await preview(ana, reference, "excel", sheet_name=name)) == (400, "sheet_not_found")
        for file_type in ("csv", "tsv"):
            assert refusal(await preview(ana, reference, file_type)) == (400, "format_mismatch")
        assert refusal(await preview(ana, reference, "delimiter_format", field_separator=";"))[1] == "format_mismatch"


class TestCells:
    @pytest.mark.importer(14, 27, 42, 44)
    @pytest.mark.parametrize("write", [xlsx, xls])
    async def test_cells_keep_their_workbook_types(self, ana: Caller, write: Callable[[Rows], bytes]):
        reference = await uploaded(ana, write(ROWS))
        assert (await guess(ana, reference)).json() == {"type": "excel", "sheet_names": ["one"]}
        assert (await header(ana, reference, "excel", sheet_name="one")).json() == {"has_header": True}
        body = (await preview(ana, reference, "excel", sheet_name="one")).json()
        assert (body["type"], names(body), types(body)) == ("excel", ROWS[0], HIVE)
        assert body["preview_data"] == SHOWN
        assert "warnings" not in body

    @pytest.mark.importer(42, 43)
    async def test_workbook_types_are_named_in_every_dialect(self, ana: Caller):
        reference = await uploaded(ana, xlsx(ROWS))
        others = {
            "phoenix": ["DATE", "TIMESTAMP", "TIME"],
            "trino": ["DATE", "TIMESTAMP", "VARCHAR"],
            "duckdb": ["DATE", "TIMESTAMP", "TIME"],
            "postgresql": ["DATE", "TIMESTAMP", "TIME"],
            "mysql": ["DATE", "DATETIME(6)", "TIME(6)"],
            "sqlite": ["TEXT", "TEXT", "TEXT"],
        }
        for dialect in PREVIEW_DIALECTS:
            body = (await preview(ana, reference, "excel", sheet_name="one", sql_dialect=dialect)).json()
            found = types(body)
            assert set(found) <= set(SQL_TYPES[dialect])
            assert found[3:6] == others.get(dialect, ["DATE", "TIMESTAMP", "STRING"])

    @pytest.mark.importer(42)
    async def test_durations_may_exceed_a_day(self, ana: Caller):
        body = await shown(ana, xlsx([["d"], [timedelta(hours=30)], [timedelta(minutes=90)]]), sql_dialect="trino")
        assert types(body) == ["INTERVAL DAY TO SECOND"]
        assert body["preview_data"] == [["30:00:00"], ["01:30:00"]]

    @pytest.mark.importer(42)
    async def test_dates_follow_the_1904_epoch_of_the_workbook(self, ana: Caller):
        content = xlsx([["day"], [date(2024, 1, 15)]], epoch=CALENDAR_MAC_1904)
        assert (await shown(ana, content))["preview_data"] == [["2024-01-15"]]

    @pytest.mark.importer(42)
    async def test_errors_merged_cells_and_empty_rows_are_handled(self, ana: Caller):
        def change(book: openpyxl.Workbook) -> None:
            sheet = book["one"]
            sheet.insert_rows(1, 3)
            sheet.insert_cols(1, 2)
            sheet.insert_rows(6, 2)
            sheet["C8"].data_type = "e"
            sheet.merge_cells("C9:D9")

        rows: Rows = [["a", "b"], [1, 2], ["#N/A", 4], [5, None]]
        body = await shown(ana, xlsx(rows, change=change))
        assert (names(body), types(body)) == (["a", "b"], ["INT", "INT"])
        assert body["preview_data"] == [["1", "2"], ["", "4"], ["5", ""]]

    @pytest.mark.importer(42, 70)
    async def test_formulas_without_stored_values_are_empty_and_cause_a_warning(self, ana: Caller):
        def change(book: openpyxl.Workbook) -> None:
            book["one"]["A2"].value = "=1+1"

        body = await shown(ana, xlsx([["a", "b"], [None, 1]], change=change))
        assert body["preview_data"] == [["", "1"]]
        assert body["warnings"] == [{"code": "formulas_without_values", "count": 1, "rows": [2]}]
        body = await shown(ana, (FIELD / "xlsx_formulas_without_values.xlsx").read_bytes(), sheet_name="Sheet")
        assert body["preview_data"] == [["1", "2", ""], ["3", "4", ""]]
        assert body["warnings"] == [{"code": "formulas_without_values", "count": 2, "rows": [2, 3]}]

    @pytest.mark.importer(76)
    async def test_rows_above_the_table_are_skipped_and_reported(self, eva: Caller):
        field = (FIELD / "xlsx_title_line.xlsx").read_bytes()
        body = await shown(eva, field, sheet_name="Sheet")
        assert (names(body), types(body)) == (["id", "name", "amount"], ["INT", "STRING", "DOUBLE"])
        assert body["preview_data"] == [["1", "x", "1.5"], ["2", "y", "2.5"]]
        assert (body["skip_rows"], body["warnings"]) == (2, [{"code": "skipped_lines", "count": 2, "rows": [1, 2]}])
        path = await uploaded(eva, field)
        found = (await header(eva, path, "excel", sheet_name="Sheet")).json()
        assert found == {"has_header": True, "skip_rows": 2}
        fields = {"file_path": path, "file_type": "excel", "sheet_name": "Sheet"}
        await imported(eva, "duckdb", "titled", has_header="true", **fields)
        assert await rows(eva, "duckdb", "titled", order="id") == [[1, "x", 1.5], [2, "y", 2.5]]
        # If skip_rows is given, title rows are not detected.
        body = await shown(eva, field, sheet_name="Sheet", skip_rows="0")
        assert names(body) == ["Report of sales 2024", "column_2", "column_3"]
        assert "skip_rows" not in body
        body = await shown(eva, field, sheet_name="Sheet", skip_rows="3", has_header="false")
        assert (body["preview_data"], body["skip_rows"]) == ([["1", "x", "1.5"], ["2", "y", "2.5"]], 3)
        await imported(eva, "duckdb", "given", has_header="false", skip_rows="4", **fields)
        assert await rows(eva, "duckdb", "given") == [[2, "y", 2.5]]

    @pytest.mark.importer(76)
    async def test_titles_and_notes_above_the_table_are_skipped_but_data_is_not(self, ana: Caller):
        table = [["id", "name", "day"], [1, "x", date(2024, 1, 2)], [2, "y", date(2024, 1, 3)]]
        for above, skipped in (
            ([["Report"], [None], ["as of today"], [None]], 4),
            ([[None], ["Report"], [None], [None]], 4),
            # The title is directly above the table.
            ([["Report"]], 1),
            ([["a", "b", "c"]], None),
            ([[1, "x", None]], None),
        ):
            body = await shown(ana, xlsx([*above, *table]))
            assert body.get("skip_rows") == skipped, above
            if skipped:
                assert (names(body), types(body)) == (["id", "name", "day"], ["INT", "STRING", "DATE"])
        body = await shown(ana, xlsx([["Report", None, None, None, None, None], *([None, *row] for row in table)]))
        assert (names(body), body["skip_rows"]) == (["id", "name", "day"], 1)
        # A first row that has an empty cell is data, not a title. So is the first row of a table with a single column.
        for plain in ([["a", None], [None, "b"], ["c", "d"]], [["Title"], ["a"], ["b"]]):
            assert "skip_rows" not in await shown(ana, xlsx(plain), has_header="false")

    @pytest.mark.importer(51)
    async def test_text_columns_may_get_a_date_or_number_format(self, eva: Caller):
        field = (FIELD / "xlsx_dates_as_text.xlsx").read_bytes()
        body = await shown(eva, field, sheet_name="Sheet")
        assert (types(body), body["columns"][0]["format"]) == (["DATE", "INT"], "%d/%m/%Y")
        rows_of_sheet = [
            ["day", "price", "doubt", "real", "mixed"],
            ["31.12.2024", "1.234,50", "01/02/2024", date(2024, 1, 2), "31.12.2024"],
            ["1.2.2025", "0,5", "03/04/2024", date(2024, 1, 3), date(2024, 1, 3)],
        ]
        body = await shown(eva, xlsx(rows_of_sheet))
        assert types(body) == ["DATE", "DOUBLE", "STRING", "DATE", "STRING"]
        assert [one.get("format") for one in body["columns"]] == ["%d.%m.%Y", "1.234,5", None, None, None]
        body = await shown(eva, xlsx(rows_of_sheet), date_format="%d/%m/%Y")
        assert (types(body)[2], body["columns"][2]["format"]) == ("DATE", "%d/%m/%Y")
        fields = {"file_path": await uploaded(eva, xlsx(rows_of_sheet)), "file_type": "excel", "sheet_name": "one"}
        await imported(eva, "duckdb", "dated", has_header="true", date_format="%d/%m/%Y", **fields)
        assert await rows(eva, "duckdb", "dated", order="day") == [
            ["2024-12-31", 1234.5, "2024-02-01", "2024-01-02", "31.12.2024"],
            ["2025-02-01", 0.5, "2024-04-03", "2024-01-03", "2024-01-03"],
        ]

    @pytest.mark.importer(44, 51)
    async def test_text_cells_stay_text(self, ana: Caller):
        body = await shown(ana, xlsx([["a", "b"], ["007", "=1+1"], ["12", "true"]]))
        assert (types(body), body["preview_data"]) == (["STRING", "STRING"], [["007", "=1+1"], ["12", "true"]])

    async def test_all_rows_are_shown_without_a_header(self, ana: Caller):
        body = await shown(ana, xlsx([["a", 1], ["b", 2]]), has_header="no")
        assert (names(body), types(body)) == (["column_1", "column_2"], ["STRING", "INT"])
        assert len(body["preview_data"]) == 2  # type: ignore[arg-type]

    @pytest.mark.importer(29, 41)
    async def test_long_sheet_is_sampled(self, ana: Caller):
        body = await shown(ana, xlsx([["n"], *([n] for n in range(10_001))]))
        assert (types(body), len(body["preview_data"])) == (["BIGINT"], 50)  # type: ignore[arg-type]

    @pytest.mark.importer(47)
    async def test_workbook_can_be_previewed_after_a_failure(self, ana: Caller):
        reference = await uploaded(ana, xlsx(ROWS))
        assert refusal(await preview(ana, reference, "excel", sheet_name="x"))[1] == "sheet_not_found"
        first = await preview(ana, reference, "excel", sheet_name="one")
        second = await preview(ana, reference, "excel", sheet_name="one")
        assert (first.status_code, second.json()) == (200, first.json())


@pytest.mark.importer(63)
async def test_values_outside_their_type_are_bad_rows(eva: Caller):
    field = await uploaded(eva, (FIELD / "parquet_negative_time.parquet").read_bytes(), "a.parquet")
    shown = (await preview(eva, field, "parquet", sql_dialect="duckdb")).json()
    assert (types(shown), shown["preview_data"]) == (["TIME"], [["-00:00:05"]])
    times = pa.array([5, -5, 86_400_000], pa.int32()).view(pa.time32("ms"))
    digits = b"".join(number.to_bytes(16, "little") for number in (1_234_567, 2, 3))
    prices = pa.Array.from_buffers(pa.decimal128(5, 2), 3, [None, pa.py_buffer(digits)])
    table = pa.table({"id": [1, 2, 3], "t": times, "price": prices})
    for number, (kind, make) in enumerate(COLUMNAR.values()):
        path = await uploaded(eva, make(table))
        for name, reason, loaded in (
            ("t", "-00:00:00.005000 is not a time of day", [1]),
            ("price", "12345.67 has more than the 5 digits of its column", [2, 3]),
        ):
            fields = {"file_path": path, "file_type": kind, "columns": [{"source": "id"}, {"source": name}]}
            message = (await failed(eva, "duckdb", f"none{number}", **fields))[1]
            assert f'column "{name}": {reason}' in message
            await imported(eva, "duckdb", f"{name}{number}", has_header="", max_bad_rows=2, **fields)
            assert [row[0] for row in await rows(eva, "duckdb", f"{name}{number}", order="id")] == loaded
