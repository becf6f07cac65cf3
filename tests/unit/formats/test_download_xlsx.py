"""Downloads as XLSX, read back with openpyxl and with a plain XML parser (Contract editor 8.2)."""

import io
import itertools
import xml.etree.ElementTree as ET
import zipfile
from datetime import date, datetime, time
from decimal import Decimal

import openpyxl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.downloads import StoredTables, column, downloaded, one_column

from queryserver.errors.base import InvalidParameter
from queryserver.formats.arrow import Column
from queryserver.formats.arrow import ResultType as R
from queryserver.formats.download.encoder import DownloadFormat
from queryserver.formats.download.xlsx import XlsxEncoder, XlsxLimits, column_letters

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
SHEET = "xl/worksheets/sheet1.xml"


async def rows(source: StoredTables) -> list[tuple]:
    stored = await downloaded(source, DownloadFormat.XLSX)
    workbook = openpyxl.load_workbook(io.BytesIO(stored), read_only=True)
    assert workbook.sheetnames == ["result"]
    found = list(workbook["result"].iter_rows(values_only=True))
    workbook.close()
    return found


async def cells(array: pa.Array, kind: R) -> list:
    return [row[0] for row in (await rows(one_column(array, kind)))[1:]]


async def sheet_texts(values: list[str]) -> list[str]:
    stored = await downloaded(one_column(pa.array(values, pa.string()), R.STRING), DownloadFormat.XLSX)
    with zipfile.ZipFile(io.BytesIO(stored)) as archive:
        sheet = ET.fromstring(archive.read(SHEET))  # noqa: S314 written by this test
    return [found.text or "" for found in sheet.iter(f"{MAIN}t")][1:]


@pytest.mark.item(54)
async def test_sheet_has_a_header_and_typed_cells():
    table = pa.table(
        {
            "id": [1, None],
            "name": ["é😀 <b>&", None],
            "price": pa.array([Decimal("12.50"), None], pa.decimal128(10, 2)),
            "day": [date(2024, 1, 31), None],
            "at": [datetime(2024, 1, 31, 10, 20, 30), None],  # noqa: DTZ001 a naive timestamp
            "ok": [True, None],
        }
    )
    kinds = [R.BIGINT, R.STRING, R.DECIMAL, R.DATE, R.TIMESTAMP, R.BOOLEAN]
    source = StoredTables([column(*of) for of in zip(table.column_names, kinds, strict=True)], [table])
    assert await rows(source) == [
        ("id", "name", "price", "day", "at", "ok"),
        (1, "é😀 <b>&", 12.5, datetime(2024, 1, 31), datetime(2024, 1, 31, 10, 20, 30), True),  # noqa: DTZ001 as above
        (None, None, None, None, None, None),
    ]


async def test_sheet_without_rows_is_its_header():
    assert await rows(StoredTables([column("a", R.BIGINT), column("b", R.STRING)], [])) == [("a", "b")]


@pytest.mark.item(54)
@pytest.mark.security("T5")
async def test_text_is_never_a_formula():
    values = ["=1+1", "+1", "-1", "@x", "{=1}", "=cmd|' /C calc'!A0"]
    source = StoredTables([column("=1+1", R.STRING)], [pa.table({"c": values})])
    stored = await downloaded(source, DownloadFormat.XLSX)
    workbook = openpyxl.load_workbook(io.BytesIO(stored))
    found = [cell for (cell,) in workbook["result"].iter_rows()]
    assert [cell.value for cell in found] == ["=1+1", *values]
    with zipfile.ZipFile(io.BytesIO(stored)) as archive:
        assert b"<f" not in archive.read(SHEET)


@pytest.mark.parametrize(
    ("array", "kind", "expected"),
    [
        (pa.array([10**15 - 1, 1 - 10**15, 10**15]), R.BIGINT, [10**15 - 1, 1 - 10**15, str(10**15)]),
        (pa.array([1.5, 0.1 + 0.2, 1e300]), R.DOUBLE, [1.5, 0.1 + 0.2, 1e300]),
        (pa.array([float("nan"), float("inf"), None]), R.DOUBLE, ["NaN", "Infinity", None]),
        (
            pa.array(
                [Decimal("1234567890123.45"), Decimal("12345678901234.56"), Decimal("-0.01")], pa.decimal128(20, 2)
            ),
            R.DECIMAL,
            [1234567890123.45, "12345678901234.56", -0.01],
        ),
        (
            pa.array(["12.50", "-0.000000000000001", "1234567890123456", "NaN"]),
            R.DECIMAL,
            [12.5, -1e-15, "1234567890123456", "NaN"],
        ),
        (pa.array(["12.50", "007"]), R.STRING, ["12.50", "007"]),
        (pa.array([0, 1, 2, None]), R.BOOLEAN, [False, True, 2, None]),
        (pa.array([b"\xff"]), R.BINARY, ["/w=="]),
        (pa.array([[1]]), R.ARRAY, ["[1]"]),
    ],
)
async def test_numbers_up_to_15_digits_are_numeric(array, kind, expected):
    assert await cells(array, kind) == expected


async def test_union_cells_keep_their_own_types():
    union = pa.UnionArray.from_dense(
        pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([7, 10**15]), pa.array(["12"])]
    )
    assert await cells(union, R.STRING) == [7, "12", str(10**15)]


async def test_characters_invalid_in_xml_are_escaped_as_in_excel():
    values = ["\x01", "\x00a\x1f", "a\rb", "tab\tand\nline", "\ufffe\uffff", "_x0041_", "_x0041_x0042_", "_x41_", " a "]
    assert await sheet_texts(values) == [
        "_x0001_",
        "_x0000_a_x001F_",
        "a_x000D_b",
        "tab\tand\nline",
        "_xFFFE__xFFFF_",
        "_x005F_x0041_",
        "_x005F_x0041_x005F_x0042_",
        "_x41_",
        " a ",
    ]


@given(values=st.lists(st.text(st.characters(codec="utf-8"), max_size=10), min_size=1))
async def test_any_text_round_trips(values):
    stored = await sheet_texts(values)
    assert [openpyxl.utils.escape.unescape(text) for text in stored] == values


async def test_overlong_cell_is_rejected_before_the_first_byte():
    short, long = pa.table({"c": ["x" * 32_767]}), pa.table({"c": ["x" * 32_768]})
    await downloaded(StoredTables([column("c", R.STRING)], [short]), DownloadFormat.XLSX)
    source = StoredTables([column("note", R.STRING)], [short, long])
    with pytest.raises(InvalidParameter, match=r"format: .*32767 characters.*'note' has 32768"):
        await downloaded(source, DownloadFormat.XLSX)
    assert source.open_reads == 0


@pytest.mark.parametrize(("array", "fits"),
    [(pa.array(["😀" * 16_383]), True), (pa.array(["😀" * 16_384]), False), (pa.array(["é" * 32_767]), True),
    (pa.array(["é" * 32_768]), False), (pa.array([b"x" * 24_573]), True), (pa.array([b"x" * 24_576]), False),
    (pa.array([["x" * 32_763]]), True), (pa.array([["x" * 32_764]]), False),
    (pa.array(["x" * 32_768]).dictionary_encode(), False)])  # fmt: skip
async def test_cell_limit_counts_as_excel_does(array, fits):
    kind = R.ARRAY if pa.types.is_list(array.type) else R.STRING
    if fits:
        assert len(await cells(array, kind)) == 1
    else:
        with pytest.raises(InvalidParameter, match="32767 characters"):
            await downloaded(one_column(array, kind), DownloadFormat.XLSX)


def test_too_many_rows_or_columns_are_rejected():
    few = (column("c", R.INT),)
    XlsxLimits(few, 1_048_575)
    with pytest.raises(InvalidParameter, match=r"at most 1048575 rows; the result has 1048576\. Choose another format"):
        XlsxLimits(few, 1_048_576)
    XlsxLimits(few * 16_384, 1)
    with pytest.raises(InvalidParameter, match="at most 16384 columns; the result has 16385"):
        XlsxLimits(few * 16_385, 1)


def test_columns_have_excel_letters():
    letters = [column_letters(number) for number in range(16_384)]
    assert letters == [openpyxl.utils.get_column_letter(number + 1) for number in range(16_384)]


async def test_cells_have_references_and_the_sheet_a_dimension():
    table = pa.table({"a": [1, None], "b": [None, "x"]})
    source = StoredTables([column("a", R.INT), column("b", R.STRING)], [table, table])
    stored = await downloaded(source, DownloadFormat.XLSX)
    with zipfile.ZipFile(io.BytesIO(stored)) as archive:
        assert archive.testzip() is None
        sheet = ET.fromstring(archive.read(SHEET))  # noqa: S314 written by this test
    assert sheet.find(f"{MAIN}dimension").get("ref") == "A1:B5"
    assert [cell.get("r") for cell in sheet.iter(f"{MAIN}c")] == ["A1", "B1", "A2", "B3", "A4", "B5"]
    assert [row.get("r") for row in sheet.iter(f"{MAIN}row")] == ["1", "2", "3", "4", "5"]


async def test_same_result_gives_identical_workbooks():
    sources = [one_column(pa.array(["a", "b"]), R.STRING) for _ in range(2)]
    first, second = [await downloaded(source, DownloadFormat.XLSX) for source in sources]
    assert first == second


@pytest.mark.slow
def test_huge_sheets_use_64_bit_sizes():
    columns = (column("c", R.STRING),)
    limits = XlsxLimits(columns, 1_000_000)
    assert not limits.is_huge
    batch = pa.record_batch([pa.array(["x" * 32_000] * 100)], names=["c"])
    for _ in range(1000):
        limits.check(batch)
        if limits.is_huge:
            break
    assert limits.is_huge
    encoder = XlsxEncoder(columns, 100, widths=[10.0] * len(columns), is_huge=True)
    stored = encoder.start() + encoder.rows(batch) + encoder.end()
    workbook = openpyxl.load_workbook(io.BytesIO(stored), read_only=True)
    assert len(list(itertools.islice(workbook["result"].rows, 200))) == 101
    workbook.close()


def _at(*of: int) -> datetime:
    return datetime(*of)  # noqa: DTZ001 spreadsheets have no time zones


@pytest.mark.item(54)
async def test_dates_and_times_are_formatted_numbers():
    utc = pa.timestamp("us", "UTC")
    berlin = pa.timestamp("ms", "Europe/Berlin")
    for array, kind, expected, shown in (
        (pa.array([_at(2024, 1, 31)], pa.date32()), R.DATE, _at(2024, 1, 31), "yyyy\\-mm\\-dd"),
        (pa.array([_at(1900, 3, 1)], pa.date64()), R.DATE, _at(1900, 3, 1), "yyyy\\-mm\\-dd"),
        (pa.array([_at(9999, 12, 31)], pa.date32()), R.DATE, _at(9999, 12, 31), "yyyy\\-mm\\-dd"),
        (pa.array([_at(2024, 2, 29, 23, 59, 59)], pa.timestamp("s")), R.TIMESTAMP, _at(2024, 2, 29, 23, 59, 59),
         "yyyy\\-mm\\-dd\\ hh:mm:ss"),
        (pa.array([_at(2024, 2, 29, 1, 2, 3, 250000)], pa.timestamp("ns")), R.TIMESTAMP,
         _at(2024, 2, 29, 1, 2, 3, 250000), "yyyy\\-mm\\-dd\\ hh:mm:ss.000"),
        (pa.array([_at(2024, 2, 29, 1, 2, 3)], utc), R.TIMESTAMP_TZ, _at(2024, 2, 29, 1, 2, 3),
         'yyyy\\-mm\\-dd\\ hh:mm:ss"Z"'),
        (pa.array([_at(2024, 2, 29, 1, 2, 3)], utc).cast(berlin), R.TIMESTAMP_TZ, _at(2024, 2, 29, 1, 2, 3),
         'yyyy\\-mm\\-dd\\ hh:mm:ss"Z"'),
        (pa.array([time(10, 20, 30)], pa.time32("s")), R.STRING, time(10, 20, 30), "hh:mm:ss"),
        (pa.array([time(0, 0, 0, 500000)], pa.time64("us")), R.STRING, time(0, 0, 0, 500000), "hh:mm:ss.000"),
        (pa.array(["2024-01-31"]), R.DATE, _at(2024, 1, 31), "yyyy\\-mm\\-dd"),
        (pa.array(["2024-01-31 10:20:30"]), R.TIMESTAMP, _at(2024, 1, 31, 10, 20, 30), "yyyy\\-mm\\-dd\\ hh:mm:ss"),
    ):  # fmt: skip
        cell = await only_cell(array, kind)
        assert (cell.value, cell.number_format, cell.is_date) == (expected, shown, True), (array.type, kind)


@pytest.mark.item(54)
async def test_dates_outside_the_sheet_calendar_stay_text():
    for array, kind, expected in (
        (pa.array([_at(1900, 2, 28)], pa.date32()), R.DATE, "1900-02-28"),
        (pa.array([_at(1, 1, 1)], pa.timestamp("us")), R.TIMESTAMP, "0001-01-01 00:00:00"),
        (pa.array(["2024-02-30"]), R.DATE, "2024-02-30"),
        (pa.array(["infinity"]), R.TIMESTAMP, "infinity"),
        (pa.array(["2024-01-31"]), R.STRING, "2024-01-31"),
    ):
        cell = await only_cell(array, kind)
        assert (cell.value, cell.data_type) == (expected, "s")
    words = pa.array(["infinity", "2024-01-31 10:20:30.5", None, "2024-02-30 10:20:30", "2024-01-31 24:00:00"])
    # If a column contains infinity, it arrives from DuckDB as a union of timestamps and strings.
    kinds, places = pa.array([1, 0, 1, 1, 1], pa.int8()), pa.array([0, 0, 2, 3, 4], pa.int32())
    at = pa.array([_at(2024, 1, 31, 10, 20, 30, 500000)], pa.timestamp("us"))
    union = pa.UnionArray.from_dense(kinds, places, [at, words])
    for values in (words, words.cast(pa.large_string()), union):
        assert await cells(values, R.TIMESTAMP) == [
            "infinity", _at(2024, 1, 31, 10, 20, 30, 500000), None, "2024-02-30 10:20:30", "2024-01-31 24:00:00"
        ]  # fmt: skip
    days = pa.array(["0000-00-00", "2024-01-31", "10000-01-01"])
    assert await cells(days, R.DATE) == ["0000-00-00", _at(2024, 1, 31), "10000-01-01"]
    zoned = pa.array(["2024-01-31 10:00:00.000 UTC", "2024-01-31T10:00:00+02:00", "2024-01-31 10:00:00 Europe/Berlin"])
    assert await cells(zoned, R.TIMESTAMP_TZ) == [_at(2024, 1, 31, 10), _at(2024, 1, 31, 8), zoned[2].as_py()]
    mixed = pa.array([_at(1850, 1, 1), None, _at(2024, 1, 31)], pa.date32())
    assert await cells(mixed, R.DATE) == ["1850-01-01", None, _at(2024, 1, 31)]


@pytest.mark.item(54)
async def test_times_given_as_text_are_converted():
    clocks = pa.table({"c": ["10:20:30", "10:20:30.5", None, "100:00:00"]})
    for native, is_time in (("time without time zone", True), ("time(3)", True), ("TIME", True), ("text", False)):
        source = StoredTables([Column("c", R.STRING, native)], [clocks])
        sheet = openpyxl.load_workbook(io.BytesIO(await downloaded(source, DownloadFormat.XLSX)))["result"]
        expected = [time(10, 20, 30), time(10, 20, 30, 500000)] if is_time else ["10:20:30", "10:20:30.5"]
        assert [row[0].value for row in list(sheet)[1:]] == [*expected, None, "100:00:00"]


async def only_cell(array: pa.Array, kind: R):
    stored = await downloaded(one_column(array, kind), DownloadFormat.XLSX)
    return openpyxl.load_workbook(io.BytesIO(stored))["result"]["A2"]


async def test_header_is_bold_and_frozen_and_columns_fit_their_values():
    table = pa.table(
        {"id": [1], "text": ["x" * 500], "a name of some length": [True], "at": [_at(2024, 1, 31, 1, 2, 3)]}
    )
    kinds = [R.BIGINT, R.STRING, R.BOOLEAN, R.TIMESTAMP]
    source = StoredTables([column(*of) for of in zip(table.column_names, kinds, strict=True)], [table])
    sheet = openpyxl.load_workbook(io.BytesIO(await downloaded(source, DownloadFormat.XLSX)))["result"]
    assert sheet.freeze_panes == "A2"
    assert [cell.font.b for cell in sheet[1]] == [True] * 4
    assert not any(cell.font.b for cell in sheet[2])
    assert [cell.data_type for cell in sheet[2]] == ["n", "s", "b", "d"]
    widths = [sheet.column_dimensions[letter].width for letter in "ABCD"]
    assert widths[:2] == [8, 60]
    assert all(20 < width < 30 for width in widths[2:])
