"""`ProcessWorkbooks` on real workbooks of all formats and on malicious ones."""

import asyncio
import os
import signal
import time
import zipfile
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import date, datetime, timedelta
from datetime import time as clock
from pathlib import Path

import openpyxl
import psutil
import pytest
import xlwt
from tests.fakes.workbook_files import (
    column_xml,
    compound_file,
    sheet_xml,
    strings_xml,
    workbook_parts,
    write_ods,
    write_package,
)
from tests.refusals import raises_code
from tests.timing import until

from queryserver.errors.files import FileCorrupt, StorageUnavailable, UnsupportedFormat
from queryserver.formats.table_files import CellKind
from queryserver.workbooks import frames
from queryserver.workbooks.reader import ProcessWorkbooks

WITHIN_S = 60
"""How long a malicious workbook may be processed, in seconds (Contract importer 15, item 49)."""

VALUES = [
    (1, None, "1", CellKind.INTEGER),
    (2.0, None, "2", CellKind.INTEGER),
    (-1.5, None, "-1.5", CellKind.DOUBLE),
    (12345678901234500000.0, None, "1.23456789012345e+19", CellKind.DOUBLE),
    (True, None, "true", CellKind.BOOLEAN),
    (False, None, "false", CellKind.BOOLEAN),
    ("12", None, "12", CellKind.TEXT),
    (" é\n😀", None, " é\n😀", CellKind.TEXT),
    ("", None, "", CellKind.NULL),
    (None, None, "", CellKind.NULL),
    (date(2024, 1, 15), "yyyy-mm-dd", "2024-01-15", CellKind.DATE),
    (date(1900, 1, 1), "yyyy-mm-dd", "1900-01-01", CellKind.DATE),
    (datetime(2024, 1, 15, 10, 30), "yyyy-mm-dd hh:mm:ss", "2024-01-15 10:30:00", CellKind.TIMESTAMP),  # noqa: DTZ001
    (45306.43751157407, "yyyy-mm-dd hh:mm:ss", "2024-01-15 10:30:01", CellKind.TIMESTAMP),
    (clock(8, 5), "hh:mm:ss", "08:05:00", CellKind.TIME),
    (datetime(2024, 1, 15), "yyyy-mm-dd hh:mm:ss", "2024-01-15 00:00:00", CellKind.TIMESTAMP),  # noqa: DTZ001
    (45306.437512763, "yyyy-mm-dd hh:mm:ss", "2024-01-15 10:30:01.103000", CellKind.TIMESTAMP),
    (-2, "yyyy-mm-dd", "-2", CellKind.INTEGER),
    (-0.5, "yyyy-mm-dd", "-0.5", CellKind.DOUBLE),
    (2, "hh:mm", "1900-01-02 00:00:00", CellKind.TIMESTAMP),
    (7, "0.00", "7", CellKind.INTEGER),
    (timedelta(hours=30), "[h]:mm:ss", "30:00:00", CellKind.DURATION),
    (3000000, "yyyy-mm-dd", "3000000", CellKind.INTEGER),
]


@pytest.fixture
async def workbooks():
    async with ProcessWorkbooks() as opened:
        yield opened


def write_xlsx(path: Path) -> Path:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Values"
    for row, (value, form, _, _) in enumerate(VALUES, 4):
        cell = sheet.cell(row, 3, value)
        if form:
            cell.number_format = form
        sheet.cell(row, 2, "x")
    hidden = book.create_sheet("Hidden")
    hidden.sheet_state = "hidden"
    hidden["A1"] = 1
    book.save(path)
    return path


def write_xls(path: Path) -> Path:
    book = xlwt.Workbook()
    sheet = book.add_sheet("Values")
    for row, (value, form, _, _) in enumerate(VALUES, 3):
        number = value / timedelta(days=1) if isinstance(value, timedelta) else value
        sheet.write(row, 2, number, xlwt.easyxf(num_format_str=form or "General"))
        sheet.write(row, 1, "x")
    hidden = book.add_sheet("Hidden")
    hidden.visibility = 1
    hidden.write(0, 0, 1)
    book.save(str(path))
    return path


@pytest.mark.importer(13)
@pytest.mark.importer(14)
@pytest.mark.importer(42)
@pytest.mark.importer(44)
@pytest.mark.parametrize("write", [write_xls, write_xlsx])
async def test_xls_and_xlsx_return_the_same_results(workbooks, tmp_path, write):
    path = write(tmp_path / "a")
    assert await workbooks.sheet_names(path) == ["Values", "Hidden"]
    found = await workbooks.first_rows(path, "Values", limit=100)
    assert found.is_whole
    assert [(cell, cell.kind) for _, cell in found.rows] == [(text, kind) for _, _, text, kind in VALUES]
    async with aclosing(workbooks.rows(path, "Values")) as portions:
        assert [row async for portion in portions for row in portion] == found.rows


@pytest.mark.importer(42)
async def test_xls_may_count_days_from_1904(workbooks, tmp_path):
    book = xlwt.Workbook()
    book.dates_1904 = True
    book.add_sheet("A").write(0, 0, 43844, xlwt.easyxf(num_format_str="yyyy-mm-dd"))
    book.save(str(tmp_path / "a"))
    found = await workbooks.first_rows(tmp_path / "a", "A", limit=5)
    assert found.rows == [["2024-01-15"]]


async def test_xls_rows_may_be_packed(workbooks, tmp_path):
    """Adjacent cells that contain integers or hundredths share one record (MULRK)."""
    book = xlwt.Workbook()
    sheet = book.add_sheet("A")
    style = xlwt.easyxf(num_format_str="yyyy-mm-dd hh:mm")
    for column, number in enumerate((45306, 45306.5, 45306.25, -3, 1e10)):
        sheet.write(0, column, number, style)
    book.save(str(tmp_path / "a"))
    found = await workbooks.first_rows(tmp_path / "a", "A", limit=5)
    assert found.rows == [["2024-01-15 00:00:00", "2024-01-15 12:00:00", "2024-01-15 06:00:00", "-3", "10000000000"]]


@pytest.mark.importer(15)
async def test_password_protected_xls_is_reported(workbooks, tmp_path):
    whole = bytearray(write_xls(tmp_path / "a").read_bytes())
    # Replaces the type of the second record with FILEPASS (MS-XLS 2.4.117).
    place = 512 + 4 + int.from_bytes(whole[514:516], "little")
    whole[place : place + 2] = b"\x2f\x00"
    (tmp_path / "a").write_bytes(whole)
    with raises_code("file_encrypted"):
        await workbooks.sheet_names(tmp_path / "a")


async def test_open_document_spreadsheet_is_read(workbooks, tmp_path):
    cells = [
        '<table:table-cell office:value-type="float" office:value="1"/>',
        '<table:table-cell office:value-type="float" office:value="1.5"/>',
        '<table:table-cell office:value-type="boolean" office:boolean-value="true"/>',
        '<table:table-cell office:value-type="date" office:date-value="2024-01-15"/>',
        '<table:table-cell office:value-type="date" office:date-value="2024-01-15T10:30:00"/>',
        '<table:table-cell office:value-type="time" office:time-value="PT08H05M00S"/>',
        '<table:table-cell office:value-type="time" office:time-value="PT30H00M00S"/>',
        '<table:table-cell office:value-type="string"><text:p>12</text:p></table:table-cell>',
    ]
    rows = "".join(f"<table:table-row><table:table-cell/>{cell}</table:table-row>" for cell in cells)
    empty = '<table:table-row table:number-rows-repeated="1000"><table:table-cell/></table:table-row>'
    path = write_ods(tmp_path / "a.ods", f'<table:table table:name="T">{empty}{rows}{empty}</table:table>')
    assert await workbooks.sheet_names(path) == ["T"]
    found = await workbooks.first_rows(path, "T", limit=100)
    assert [(cell, cell.kind) for (cell,) in found.rows] == [
        ("1", CellKind.INTEGER),
        ("1.5", CellKind.DOUBLE),
        ("true", CellKind.BOOLEAN),
        ("2024-01-15", CellKind.DATE),
        ("2024-01-15 10:30:00", CellKind.TIMESTAMP),
        ("08:05:00", CellKind.TIME),
        ("30:00:00", CellKind.DURATION),
        ("12", CellKind.TEXT),
    ]


async def test_sample_has_at_most_the_requested_rows(workbooks, tmp_path):
    path = write_package(tmp_path / "a", workbook_parts({"A": column_xml(["<c><v>1</v></c>"] * 60)}))
    first = await workbooks.first_rows(path, "A", limit=50)
    assert (len(first.rows), first.is_whole) == (50, False)
    whole = await workbooks.first_rows(path, "A", limit=60)
    assert (len(whole.rows), whole.is_whole) == (60, True)


@pytest.mark.importer(21)
@pytest.mark.parametrize("write", [write_xls, write_xlsx])
async def test_unknown_sheet_is_not_found(workbooks, tmp_path, write):
    path = write(tmp_path / "a")
    with raises_code("sheet_not_found"):
        await workbooks.first_rows(path, "values", limit=5)
    with raises_code("sheet_not_found"):
        await anext(workbooks.rows(path, "Nope"))


async def test_vanished_file_is_not_found(workbooks, tmp_path):
    with raises_code("file_not_found"):
        await workbooks.sheet_names(tmp_path / "none")


async def test_unsupported_file_kind_is_not_supported(workbooks, tmp_path):
    (tmp_path / "a").write_text("a,b\n")
    with pytest.raises(UnsupportedFormat):
        await workbooks.sheet_names(tmp_path / "a")


async def all_answers(workbooks: ProcessWorkbooks, path: Path) -> None:
    """Read the sheet names and all rows of the first sheet.

    The worker performs the same checks before it returns the first rows, so `first_rows` needs no separate test.
    """
    (sheet, *_) = await workbooks.sheet_names(path)
    async with aclosing(workbooks.rows(path, sheet)) as portions:
        async for _ in portions:
            pass


ENTITIES = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {later} "{f"&{earlier};" * 10}">' for earlier, later in zip("abcdefgh", "bcdefghi", strict=True)
)
BOMB = ENTITIES + "]>"
CELL = "<c><v>1</v></c>"


def package(**changes: str | bytes | None):
    """Return a function that writes a workbook with changed parts.

    In part names, `_` stands for `/`; None omits a part.
    """

    def write(path: Path) -> Path:
        parts = workbook_parts({"A": column_xml([CELL, '<c t="s"><v>0</v></c>'])}, strings=["<t>a</t>"], formats=[14])
        for key, content in changes.items():
            name = next(part for part in parts if part.endswith(f"/{key.replace('__', '.')}"))
            if content is None:
                del parts[name]
            else:
                parts[name] = content
        return write_package(path, parts)

    return write


def ratio_bomb(path: Path) -> Path:
    return write_package(path, workbook_parts({"A": sheet_xml(" " * 40_000_000)}))


def lying_sizes(path: Path) -> Path:
    """Write a sheet that declares a thousand bytes but contains 40 million."""
    ratio_bomb(path)
    whole = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as made:
        sheet = made.getinfo("xl/worksheets/sheet1.xml")
    place = whole.rindex(b"PK\x01\x02", 0, whole.rindex(sheet.filename.encode()))
    whole[place + 24 : place + 28] = (1000).to_bytes(4, "little")
    path.write_bytes(bytes(whole))
    return path


def twenty_thousand_entries(path: Path) -> Path:
    parts = workbook_parts({"A": column_xml([CELL])})
    return write_package(path, parts | {f"xl/media/{number}": "" for number in range(20_000)})


def repeated_strings(path: Path) -> Path:
    """Write 5,000 cells that all refer to the same string of 32,000 characters."""
    row = "<row>" + '<c t="s"><v>0</v></c>' * 100 + "</row>"
    parts = workbook_parts({"A": sheet_xml(row * 50)}, strings=[f"<t>{'x' * 32_000}</t>"])
    return write_package(path, parts)


def ods_with(tables: str, **more: str):
    return lambda path: write_ods(path, f'<table:table table:name="T">{tables}</table:table>', **more)


REPEATED = 'table:number-columns-repeated="2000000000"'
NUMBER = 'office:value-type="float" office:value="1"'


@pytest.mark.slow
@pytest.mark.importer(49)
@pytest.mark.importer(61)
async def test_zip_bomb_is_too_complex(workbooks, tmp_path, subtests: pytest.Subtests):
    for what, write in [
        ("a part packed 1000:1", ratio_bomb),
        ("sizes that are lies", lying_sizes),
        ("20,000 entries", twenty_thousand_entries),
        ("entities in a sheet", package(sheet1__xml=BOMB + sheet_xml("<row><c><v>&i;</v></c></row>"))),
        ("entities in strings", package(sharedStrings__xml=BOMB + strings_xml(["<t>&i;</t>"]))),
        ("entities in the workbook", package(workbook__xml=BOMB + "<workbook/>")),
        ("an outer document type", package(styles__xml='<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>')),
        ("a row beyond the last", package(sheet1__xml=sheet_xml(f'<row r="1048577">{CELL}</row>'))),
        ("a row far beyond", package(sheet1__xml=sheet_xml(f'<row r="99999999999">{CELL}</row>'))),
        ("column ZZZZZ", package(sheet1__xml=column_xml(['<c r="ZZZZZ1"><v>1</v></c>']))),
        ("a column beyond the last", package(sheet1__xml=column_xml(['<c r="XFE1"><v>1</v></c>']))),
        ("2,001 columns", package(sheet1__xml=sheet_xml(f"<row>{CELL * 2001}</row>"))),
        ("2,001 apart", package(sheet1__xml=sheet_xml(f'<row>{CELL}</row><row><c r="BXZ2"><v>1</v></c></row>'))),
        (
            "a cell repeated two billion times",
            ods_with(f"<table:table-row><table:table-cell {REPEATED} {NUMBER}/></table:table-row>"),
        ),
        ("entities in an OpenDocument spreadsheet", ods_with("", beginning=BOMB)),
    ]:
        with subtests.test(what=what, write=write):
            path = write(tmp_path / "a")
            began = time.monotonic()
            with raises_code("file_too_complex"):
                await all_answers(workbooks, path)
            assert time.monotonic() - began < WITHIN_S


@pytest.mark.importer(61)
async def test_range_exceeding_memory_is_too_complex(workbooks, tmp_path):
    """Two cells are in opposite corners of a sheet, and calamine allocates all cells in between."""
    rows = '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="BXZ1048576"><v>1</v></c></row>'
    path = write_package(tmp_path / "a", workbook_parts({"A": sheet_xml(rows)}))
    with raises_code("file_too_complex"):
        await all_answers(workbooks, path)


@pytest.mark.importer(15)
async def test_broken_workbook_is_corrupt(workbooks, tmp_path, subtests: pytest.Subtests):
    for what, write in [
        ("no sheet", package(sheet1__xml=None)),
        ("no strings", package(sharedStrings__xml=None)),
        ("no relationships", package(workbook__xml__rels=None)),
        ("no relationship", package(workbook__xml__rels="<Relationships/>")),
        ("an empty part", package(workbook__xml="")),
        ("text", package(workbook__xml="no XML")),
        ("a sheet that breaks off", package(sheet1__xml="<worksheet><sheetData><row>")),
        ("tags across each other", package(sheet1__xml="<worksheet><sheetData><row></c></row>")),
        ("an unknown entity", package(sheet1__xml=sheet_xml("<row><c><v>&x;</v></c></row>"))),
        ("no UTF-8", package(sheet1__xml=b"<worksheet><sheetData><row><c><v>\xff</v></c></row>")),
        ("an unknown encoding", package(sheet1__xml='<?xml version="1.0" encoding="x"?><a/>')),
        ("an odd encoding", package(sheet1__xml='<?xml version="1.0" encoding="utf-7"?><a/>')),
        ("a string that is none", package(sheet1__xml=column_xml(['<c t="s"><v>7</v></c>']))),
        ("a cell nowhere", package(sheet1__xml=column_xml(['<c r="?1"><v>1</v></c>']))),
        ("an empty old workbook", lambda path: path.write_bytes(compound_file(["Workbook"])) and path),
        ("a broken OpenDocument spreadsheet", ods_with("<table:table-row>")),
        (
            "a binary workbook of noise",
            lambda path: write_package(path, {"xl/workbook.bin": b"\xff" * 100, "xl/_rels/workbook.bin.rels": "<a/>"}),
        ),
    ]:
        with subtests.test(what=what, write=write):
            path = write(tmp_path / "a")
            with pytest.raises(FileCorrupt):
                await all_answers(workbooks, path)


@pytest.mark.importer(15)
async def test_modified_bytes_are_detected(workbooks, tmp_path):
    path = write_package(tmp_path / "a", workbook_parts({"A": column_xml([CELL] * 3000)}))
    whole = bytearray(path.read_bytes())
    for place in range(len(whole) // 3, len(whole) // 3 + 20):
        whole[place] ^= 0x55
    path.write_bytes(bytes(whole))
    with pytest.raises(FileCorrupt):
        await all_answers(workbooks, path)


@pytest.mark.importer(15)
async def test_encrypted_workbook_is_reported(workbooks, tmp_path):
    (tmp_path / "a").write_bytes(compound_file(["EncryptionInfo", "EncryptedPackage"]))
    with raises_code("file_encrypted"):
        await workbooks.sheet_names(tmp_path / "a")
    entry = "<manifest:file-entry><manifest:encryption-data/></manifest:file-entry>"
    with raises_code("file_encrypted"):
        await workbooks.sheet_names(write_ods(tmp_path / "b", "", manifest=entry))


async def test_text_shared_by_many_cells_is_streamed_in_chunks(workbooks, tmp_path):
    path = await asyncio.to_thread(repeated_strings, tmp_path / "a")
    found = await workbooks.first_rows(path, "A", limit=200)
    # Each row has 3.2 million characters, and a sample ends with the row that reaches 8 MiB.
    assert (len(found.rows), found.is_whole) == (3, False)
    seen = 0
    async with aclosing(workbooks.rows(path, "A")) as portions:
        async for portion in portions:
            assert len(portion) == 1
            seen += 1
            if seen == 10:
                break


async def test_external_links_are_not_followed(workbooks, tmp_path):
    parts = workbook_parts({"A": column_xml([CELL])})
    parts["xl/_rels/workbook.xml.rels"] = parts["xl/_rels/workbook.xml.rels"].replace(
        'Target="worksheets', 'TargetMode="External" Target="http://127.0.0.1:9/worksheets'
    )
    with pytest.raises(FileCorrupt):
        await all_answers(workbooks, write_package(tmp_path / "a", parts))


def workers() -> set[int]:
    found = set[int]()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # the worker may exit at this moment
            if "queryserver.workbooks.worker" in str(child.cmdline()):
                found.add(child.pid)
    return found


async def test_leaving_reader_ends_worker(workbooks, tmp_path):
    cells = [f"<c><v>{number}</v></c>" for number in range(60_000)]
    path = write_package(tmp_path / "a", workbook_parts({"A": column_xml(cells)}))
    async with aclosing(workbooks.rows(path, "A")) as portions:
        await anext(portions)
        assert workers()
    assert not workers()


async def test_canceled_call_ends_worker(workbooks, tmp_path):
    path = tmp_path / "a"
    os.mkfifo(path)  # no process writes to the pipe, so the worker waits forever
    call = asyncio.create_task(workbooks.first_rows(path, "A", limit=50))
    try:
        await until(workers)
        call.cancel()
        await asyncio.wait({call}, timeout=60)
        assert call.cancelled()
        assert not workers()
    finally:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # ends a worker that is still waiting


AVRO = (Path(__file__).parents[1] / "unit" / "formats" / "avro" / "null.avro").read_bytes()


async def test_store_error_is_raised_even_if_worker_has_whole_file(workbooks):
    async def pieces() -> AsyncGenerator[bytes]:
        yield AVRO
        raise StorageUnavailable("The store is gone.")

    with pytest.raises(StorageUnavailable):
        [made async for made in workbooks.avro_lines(pieces())]
    assert not workers()


@pytest.mark.storage(44)
async def test_abandoned_avro_view_ends_worker(workbooks):
    header, block = AVRO[: AVRO.index(AVRO[-16:]) + 16], AVRO[AVRO.index(AVRO[-16:]) + 16 :]

    async def pieces() -> AsyncGenerator[bytes]:
        yield header
        while True:
            yield block * 100

    async with aclosing(workbooks.avro_lines(pieces())) as lines:
        assert len(await anext(lines)) == 64 * 1024
        assert workers()
    assert not workers()


@pytest.mark.importer(61)
async def test_slow_worker_is_too_complex(workbooks, tmp_path, monkeypatch):
    path = write_package(tmp_path / "a", workbook_parts({"A": column_xml([CELL])}))
    monkeypatch.setattr(frames, "TIME_S", 0.001)
    with raises_code("file_too_complex"):
        await workbooks.sheet_names(path)
    assert not workers()


@pytest.mark.importer(61)
async def test_killed_worker_is_too_complex(workbooks, tmp_path):
    cells = [f"<c><v>{number}</v></c>" for number in range(60_000)]
    path = write_package(tmp_path / "a", workbook_parts({"A": column_xml(cells)}))
    async with aclosing(workbooks.rows(path, "A")) as portions:
        await anext(portions)
        for pid in workers():
            os.kill(pid, signal.SIGKILL)
        with raises_code("file_too_complex"):
            [_ async for _ in portions]


async def test_lookups_wait_for_a_slot(tmp_path):
    path = write_xlsx(tmp_path / "a")
    async with ProcessWorkbooks(processes=1) as workbooks:
        names = await asyncio.gather(*(workbooks.sheet_names(path) for _ in range(3)))
    assert names == [["Values", "Hidden"]] * 3


@pytest.mark.importer(45)
@pytest.mark.slow
async def test_large_workbook_is_read_completely_in_little_memory(workbooks, tmp_path):
    rows = (
        f'<row r="{n}"><c r="A{n}"><v>{n}</v></c><c r="B{n}" t="s"><v>{n % 9}</v></c></row>' for n in range(1, 30_001)
    )
    parts = workbook_parts({"A": sheet_xml("".join(rows))}, strings=[f"<t>text {number}</t>" for number in range(9)])
    path = write_package(tmp_path / "a", parts)
    first = await workbooks.first_rows(path, "A", limit=50)
    assert (len(first.rows), first.is_whole) == (50, False)
    seen = 0
    async with aclosing(workbooks.rows(path, "A")) as portions:
        async for portion in portions:
            assert len(portion) <= 1000
            for row in portion:
                seen += 1
                assert row == [str(seen), f"text {seen % 9}"]
    assert seen == 30_000
