"""What files are, as far as they are read for it, and answers that are kept."""

import asyncio

import pytest
from tests.fakes.computation import InlineComputing
from tests.fakes.import_files import MemoryFile, MemoryWorkbooks
from tests.refusals import raises_code

from queryserver.errors.files import UnsupportedFormat
from queryserver.formats.detection import Detected
from queryserver.imports.model import SAMPLE_BYTES, CellKind, TypedText
from queryserver.imports.preview import Detection, Sheets
from queryserver.platform.limits import FairPlaces

ANA = 1
ZIP = b"PK\x03\x04 and more"


@pytest.fixture
def workbooks() -> MemoryWorkbooks:
    return MemoryWorkbooks({"one": [[TypedText("1", CellKind.INTEGER)]], "two": []})


@pytest.fixture
def detection(workbooks: MemoryWorkbooks) -> Detection:
    return Detection(workbooks, InlineComputing(), FairPlaces(4))


async def test_only_the_beginning_of_a_text_is_read(detection: Detection):
    file = MemoryFile(b"a;b\n1;2\n" * 2**20, piece_bytes=64 * 1024)
    found = await detection.metadata(ANA, file)
    assert isinstance(found, Detected)
    assert (found.delimiters.field, found.confidence) == (";", 1.0)
    assert file.read_bytes == SAMPLE_BYTES
    assert not file.copies


async def test_pieces_of_any_size_give_the_same(detection: Detection):
    content = b"a;b\r\n" + b"1;2\r\n" * 1000
    whole = await detection.metadata(ANA, MemoryFile(content))
    assert await detection.metadata(ANA, MemoryFile(content, piece_bytes=3)) == whole


async def test_a_record_that_the_sample_cuts_does_not_count(detection: Detection):
    record = b"1;2;" + b"x" * 95 + b"\n"
    found = await detection.metadata(ANA, MemoryFile(record * (SAMPLE_BYTES // len(record) + 2)))
    assert isinstance(found, Detected)
    assert found.confidence == 1.0


@pytest.mark.importer(13)
async def test_sheets_come_from_the_reader_of_workbooks(detection: Detection):
    file = MemoryFile(ZIP)
    assert await detection.metadata(ANA, file) == Sheets(["one", "two"])
    assert file.copies == 1


async def test_what_is_neither_is_told(detection: Detection):
    with pytest.raises(UnsupportedFormat):
        await detection.metadata(ANA, MemoryFile(b"%PDF-1.4"))
    with raises_code("file_empty"):
        await detection.metadata(ANA, MemoryFile(b""))


async def test_a_file_that_never_changes_is_looked_at_once(detection: Detection, workbooks: MemoryWorkbooks):
    text, book = MemoryFile(b"a,b\n1,2\n", fixed_identity="x"), MemoryFile(ZIP, fixed_identity="y")
    for file in (text, book):
        first = await detection.metadata(ANA, file)
        assert all(one is first for one in await asyncio.gather(*(detection.metadata(ANA, file) for _ in range(5))))
        assert file.readings == 1
    assert workbooks.looks == 1


async def test_other_files_are_looked_at_anew(detection: Detection):
    file = MemoryFile(b"a,b\n1,2\n")
    await detection.metadata(ANA, file)
    file.content = ZIP
    assert isinstance(await detection.metadata(ANA, file), Sheets)
