"""Workbooks with random content, compared with openpyxl, and damaged workbooks."""

import io
import math
import tempfile
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from pathlib import Path

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.workbook_files import column_xml, compound_file, workbook_parts, write_package

from queryserver.errors.base import InvalidRequest
from queryserver.workbooks.cells import checked_rows, columns_in_use, read_head
from queryserver.workbooks.worker import OpenWorkbook, recognize_workbook

# Text that openpyxl can write: it refuses control characters, does not read escapes, and does not mark text that
# consists of blanks as significant.
TEXT = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc"]), max_size=12).filter(
    lambda text: "_x" not in text and not text.startswith("=") and (not text or text.strip() != "")
)
MOMENTS = st.datetimes(datetime(1900, 3, 1), datetime(9999, 12, 30)).map(lambda moment: moment.replace(microsecond=0))  # noqa: DTZ001
VALUES = st.one_of(
    st.none(),
    TEXT,
    st.booleans(),
    st.integers(-(10**15), 10**15),
    st.floats(-1e300, 1e300).map(lambda number: float(f"{number:.15g}")),
    MOMENTS,
    st.dates(date(1900, 3, 1)),
    st.times().map(lambda clock: clock.replace(microsecond=0)),
    st.integers(0, 10**7).map(lambda seconds: timedelta(seconds=seconds)),
)
TABLES = st.lists(st.lists(VALUES, min_size=4, max_size=4), max_size=6)


def shown(value: object) -> str:
    """Format a value according to Contract importer 12.2."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return str(int(value)) if value.is_integer() and abs(value) <= 2**53 else repr(value)
        case datetime():
            return value.isoformat(" ")
        case timedelta():
            seconds = int(value.total_seconds())
            return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        case date() | time():
            return value.isoformat()
        case _:
            return str(value)


def used(table: list[list[object]]) -> list[list[str]]:
    """Return the cells of the used range, as the contract defines it."""
    rows = [row for row in ([shown(value) for value in row] for row in table) if any(row)]
    columns = [column for column in range(4) if any(row[column] for row in rows)]
    return [row[columns[0] : columns[-1] + 1] for row in rows]


def rows_of(file: io.BytesIO | io.BufferedReader) -> list[list[str]]:
    kind = recognize_workbook(file)
    assert kind is not None
    workbook = OpenWorkbook(file, kind)
    (name, *_) = workbook.sheet_names()
    columns = columns_in_use(read_head(workbook.rows(name)).rows)
    return [list(map(str, row)) for row in checked_rows(columns, workbook.rows(name))]


@pytest.mark.importer(42)
@examples(40)
@given(TABLES)
def test_openpyxl_output_is_read(table):
    book = openpyxl.Workbook()
    for number, row in enumerate(table, 1):
        for column, value in enumerate(row, 1):
            cell = book.active.cell(number, column, value)
            if isinstance(value, timedelta):
                cell.number_format = "[h]:mm:ss"
            elif isinstance(value, str):
                cell.data_type = "s"
    file = io.BytesIO()
    book.save(file)
    assert rows_of(file) == used(table)


def whole_package() -> bytes:
    cells = ['<c r="A1" s="1"><v>45306</v></c>', '<c t="s"><v>0</v></c>', '<c t="b"><v>1</v></c>']
    parts = workbook_parts({"A": column_xml(cells)}, strings=["<t>a</t>"], formats=[0, 14])
    with tempfile.TemporaryDirectory() as folder:
        return write_package(Path(folder) / "a", parts).read_bytes()


PACKAGE = whole_package()
COMPOUND = compound_file(["Workbook", "a", "b", "c", "d"])
CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8)


def damaged(whole: bytes, changes: list[tuple[float, int]], kept: float) -> io.BytesIO:
    changed = bytearray(whole)
    for place, byte in changes:
        changed[math.floor(place * len(whole))] = byte
    return io.BytesIO(bytes(changed[: math.ceil(kept * len(whole))]))


@pytest.mark.importer(15)
@examples(150)
@given(CHANGES, st.one_of(st.just(1.0), st.floats(0.1, 1)), st.sampled_from([PACKAGE, COMPOUND]))
def test_damaged_workbook_is_read_or_refused(changes, kept, whole):
    file = damaged(whole, changes, kept)
    with suppress(InvalidRequest):
        if recognize_workbook(file) is not None:
            rows_of(file)
