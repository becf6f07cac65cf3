"""Workbooks (Contract importer 4, 5, 7, 12.2)."""

import io
from collections.abc import Callable
from datetime import date, datetime, time, timedelta

import openpyxl
import pytest
import xlwt
from openpyxl.chart import BarChart
from openpyxl.utils.datetime import CALENDAR_MAC_1904
from tests.api.driving import Caller
from tests.api.importer.asking import guess, header, names, preview, types
from tests.api.importer.conftest import refusal, uploaded
from tests.cases import each

from queryserver.imports.model import PREVIEW_DIALECTS, SQL_TYPES

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
    """A workbook with these rows in the sheet `one`."""
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
    """The same as an old workbook."""
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
    """The preview of the sheet `one`."""
    answer = await preview(caller, await uploaded(caller, content), "excel", **{"sheet_name": "one", **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


class TestSheets:
    @pytest.mark.importer(13)
    async def test_worksheets_come_in_order_with_hidden_ones_and_without_charts(self, ana: Caller):
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
    async def test_a_sheet_must_be_named_exactly(self, ana: Caller):
        reference = await uploaded(ana, xlsx(ROWS))
        assert refusal(await preview(ana, reference, "excel")) == (400, "sheet_required")
        for name in ("One", "one ", "two"):
            assert refusal(await preview(ana, reference, "excel", sheet_name=name)) == (400, "sheet_not_found")
        for file_type in ("csv", "tsv"):
            assert refusal(await preview(ana, reference, file_type)) == (400, "format_mismatch")
        assert refusal(await preview(ana, reference, "delimiter_format", field_separator=";"))[1] == "format_mismatch"


class TestCells:
    @pytest.mark.importer(14, 27, 42, 44)
    @each("write", [xlsx, xls])
    async def test_cells_have_the_type_that_the_workbook_gives_them(self, ana: Caller, write: Callable[[Rows], bytes]):
        reference = await uploaded(ana, write(ROWS))
        assert (await guess(ana, reference)).json() == {"type": "excel", "sheet_names": ["one"]}
        assert (await header(ana, reference, "excel", sheet_name="one")).json() == {"has_header": True}
        body = (await preview(ana, reference, "excel", sheet_name="one")).json()
        assert (body["type"], names(body), types(body)) == ("excel", ROWS[0], HIVE)
        assert body["preview_data"] == SHOWN
        assert "warnings" not in body

    @pytest.mark.importer(42, 43)
    async def test_every_dialect_names_the_types(self, ana: Caller):
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
    async def test_days_are_counted_from_1904_where_the_workbook_does(self, ana: Caller):
        content = xlsx([["day"], [date(2024, 1, 15)]], epoch=CALENDAR_MAC_1904)
        assert (await shown(ana, content))["preview_data"] == [["2024-01-15"]]

    @pytest.mark.importer(42)
    async def test_errors_merged_cells_and_empty_rows(self, ana: Caller):
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

    @pytest.mark.importer(42)
    async def test_formulas_without_a_stored_value_are_empty(self, ana: Caller):
        def change(book: openpyxl.Workbook) -> None:
            book["one"]["A2"].value = "=1+1"

        body = await shown(ana, xlsx([["a", "b"], [None, 1]], change=change))
        assert body["preview_data"] == [["", "1"]]

    @pytest.mark.importer(44, 51)
    async def test_text_stays_text(self, ana: Caller):
        body = await shown(ana, xlsx([["a", "b"], ["007", "=1+1"], ["12", "true"]]))
        assert (types(body), body["preview_data"]) == (["STRING", "STRING"], [["007", "=1+1"], ["12", "true"]])

    async def test_without_a_header_all_rows_are_shown(self, ana: Caller):
        body = await shown(ana, xlsx([["a", 1], ["b", 2]]), has_header="no")
        assert (names(body), types(body)) == (["column_1", "column_2"], ["STRING", "INT"])
        assert len(body["preview_data"]) == 2  # type: ignore[arg-type]

    @pytest.mark.importer(29, 41)
    async def test_a_long_sheet_is_read_in_part(self, ana: Caller):
        body = await shown(ana, xlsx([["n"], *([n] for n in range(10_001))]))
        assert (types(body), len(body["preview_data"])) == (["BIGINT"], 50)  # type: ignore[arg-type]

    @pytest.mark.importer(47)
    async def test_a_workbook_can_be_previewed_after_a_failure(self, ana: Caller):
        reference = await uploaded(ana, xlsx(ROWS))
        assert refusal(await preview(ana, reference, "excel", sheet_name="x"))[1] == "sheet_not_found"
        first = await preview(ana, reference, "excel", sheet_name="one")
        second = await preview(ana, reference, "excel", sheet_name="one")
        assert (first.status_code, second.json()) == (200, first.json())
