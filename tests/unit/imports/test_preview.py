"""Detection, previews and headers of files, and the cache of these results."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest
from tests.fakes.computation import InlineComputations
from tests.fakes.import_files import MemoryFile, MemoryWorkbooks
from tests.refusals import raises_code

from queryserver.errors.base import InvalidParameter
from queryserver.errors.files import UnsupportedFormat
from queryserver.formats.arrow import BaseType
from queryserver.formats.cell_types.analysis import Analysis
from queryserver.formats.detection import DetectedFormat, ReadingOptions, TextParameters
from queryserver.formats.table_files import SAMPLE_BYTES, SAMPLE_RECORDS, CellKind, Cells, FileType, TypedText
from queryserver.imports import computed as samples
from queryserver.imports.computed import CUT_FIELD_BYTES
from queryserver.imports.preview import Detection, Previews, Sheets
from queryserver.platform.fair_queue import FairSemaphore
from queryserver.platform.threads import FairThreads

CSV = ReadingOptions.from_parameters(FileType.CSV)
ZIP = b"PK\x03\x04 and more"
MIB = 1024 * 1024
ANA = 1


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def workbooks() -> MemoryWorkbooks:
    rows = [[TypedText("n", CellKind.TEXT)], *([TypedText(str(n), CellKind.INTEGER)] for n in range(3))]
    return MemoryWorkbooks({"one": rows, "none": []})


@pytest.fixture
def previews(workbooks: MemoryWorkbooks, threads: Executor) -> Previews:
    return Previews(workbooks, InlineComputations(), FairThreads(threads, FairSemaphore(2)), FairSemaphore(4))


def bases(analysis: Analysis) -> list[BaseType]:
    return [column.type.base for column in analysis.columns]


def warnings(analysis: Analysis) -> dict[str, tuple[int, list[int]]]:
    return {warning.code: (warning.count, list(warning.rows)) for warning in analysis.warnings}


class TestReading:
    async def test_small_file_is_read_completely(self, previews: Previews):
        found = await previews.analysis(ANA, MemoryFile(b"a,b\n1,x\n2,y\n"), CSV, has_header=True)
        assert [column.name for column in found.columns] == ["a", "b"]
        assert bases(found) == [BaseType.INT32, BaseType.STRING]
        assert found.rows == [["1", "x"], ["2", "y"]]
        assert found.is_whole

    @pytest.mark.importer(41)
    async def test_sample_ends_at_ten_thousand_rows(self, previews: Previews):
        file = MemoryFile(b"n\n" + b"12345678\n" * MIB)
        found = await previews.analysis(ANA, file, CSV, has_header=True)
        assert (found.is_whole, bases(found), len(found.rows)) == (False, [BaseType.INT64], 50)
        assert file.read_bytes == MIB
        assert not found.warnings

    @pytest.mark.importer(45)
    async def test_only_the_sample_is_read(self, previews: Previews):
        file = MemoryFile(b"n\n" + b"12345678\n" * MIB, piece_bytes=32 * 1024)
        assert (await previews.analysis(ANA, file, CSV, has_header=True)).is_whole is False
        assert file.read_bytes == 256 * 1024
        file.read_bytes = 0
        assert (await previews.header(ANA, file, CSV)).has_header
        assert file.read_bytes == 256 * 1024

    @pytest.mark.parametrize("has_header", [True, False])
    @pytest.mark.parametrize(("rows", "is_whole"), [(9_999, True), (10_000, True), (10_001, False)])
    async def test_file_of_ten_thousand_rows_is_whole(self, previews: Previews, has_header, rows, is_whole):
        file = MemoryFile(b"1,2\n" * (rows + has_header))
        found = await previews.analysis(ANA, file, CSV, has_header=has_header)
        assert found.is_whole is is_whole
        assert bases(found) == [BaseType.INT32 if is_whole else BaseType.INT64] * 2

    async def test_long_records_end_a_sample_after_eight_mebibytes(self, previews: Previews):
        record = b"1," + b"x" * (MIB // 2) + b"\n"
        file = MemoryFile(b"n,text\n" + record * 40)
        found = await previews.analysis(ANA, file, CSV, has_header=True)
        assert (found.is_whole, len(found.rows)) == (False, 15)
        assert warnings(found) == {"truncated_sample": (1, [])}
        # The additional bytes show how long the field at the end of the sample is.
        assert file.read_bytes == 8 * MIB + CUT_FIELD_BYTES

    @pytest.mark.importer(72)
    @pytest.mark.parametrize("mebibytes", [2, 9, 13, 20])
    @pytest.mark.parametrize("quote", [b"", b'"'])
    @pytest.mark.parametrize("rows", [0, 60])
    async def test_overlong_field_starting_in_the_sample_is_rejected(self, previews: Previews, mebibytes, quote, rows):
        content = b"n,text\n" + b"1,x\n" * rows + b"2," + quote + b"y" * (mebibytes * MIB) + quote + b"\n3,z\n"
        with raises_code("record_too_long", match="A field is larger than 1 MiB"):
            await previews.analysis(ANA, MemoryFile(content), CSV, has_header=True)

    async def test_preview_is_the_same_at_any_chunk_size(self, previews: Previews):
        content = 'name,n\n"a,\n""b""",1\né,2\n'.encode() * 60
        whole = await previews.analysis(ANA, MemoryFile(content), CSV, has_header=True)
        assert whole.rows[:2] == [['a,\n"b"', "1"], ["é", "2"]]
        assert await previews.analysis(ANA, MemoryFile(content, piece_bytes=7), CSV, has_header=True) == whole

    @pytest.mark.parametrize(
        "after_sample", [b"6,x\n", b'7,"a,\n""b"""\n', b"8,x,y\n", b"#9,x\n10,x\n", b"9,\xff\n"], ids=repr
    )
    async def test_small_chunks_in_the_worker_change_no_answer(self, previews: Previews, monkeypatch, after_sample):
        rows = b"".join(b'%d,"text, ""quoted"" %d"\n' % (n, n % 300) for n in range(SAMPLE_RECORDS))
        note = b"# note of the table\n" if after_sample.startswith(b"#") else b""
        file = MemoryFile(note + b"id,text\n" + rows + after_sample * 60_000)
        found = await previews.analysis(ANA, file, CSV, has_header=True)
        monkeypatch.setattr(samples, "_MAX_SMALL_FEED_COLUMNS", 0)
        assert await previews.analysis(ANA, MemoryFile(file.content), CSV, has_header=True) == found

    @pytest.mark.parametrize("has_header", [True, False])
    @pytest.mark.importer(32)
    async def test_most_frequent_width_counts_beyond_the_first_records(self, previews: Previews, has_header):
        file = MemoryFile(b"1\n" * 60 + b"1,2,3\n" * 200)
        found = await previews.analysis(ANA, file, CSV, has_header=has_header)
        short = [number for number in range(1, 12) if number > has_header][:10]
        assert (len(found.columns), warnings(found)) == (3, {"short_rows": (60 - has_header, short)})

    @pytest.mark.importer(33)
    @pytest.mark.parametrize("lines", [10, 1000])
    async def test_unclosed_quotes_are_reported_with_record_numbers(self, previews: Previews, lines):
        file = MemoryFile(b'a,b\n1,"x\n' + b"2,y\n" * lines)
        found = await previews.analysis(ANA, file, CSV, has_header=True)
        assert found.rows[:2] == [["1", '"x'], ["2", "y"]]
        assert warnings(found) == {"unclosed_quote": (1, [2])}


class TestEncodings:
    @pytest.mark.importer(33, 50)
    async def test_header_detection_uses_a_bounded_number_of_records(self, previews: Previews, monkeypatch):
        looked_at = 0

        def counting(record: Cells) -> bool:
            nonlocal looked_at
            looked_at += 1
            return False

        monkeypatch.setattr(samples, "_has_value", counting)
        assert (await previews.header(ANA, MemoryFile(b'a,b\n1,"' + b",\n" * (2 * MIB)), CSV)).has_header
        # The first sample is too small, so more of the file is read, and the record before the quote is counted twice.
        assert looked_at == SAMPLE_RECORDS + 1 + 1

    @pytest.mark.importer(38)
    async def test_given_encoding_applies(self, previews: Previews):
        file = MemoryFile("naïve,b\n1,2\n".encode("iso-8859-1"))
        given = ReadingOptions.from_parameters(FileType.CSV, text=TextParameters(encoding="koi8-r"))
        assert (await previews.analysis(ANA, file, CSV, has_header=True)).columns[0].name == "naïve"
        assert (await previews.analysis(ANA, file, given, has_header=True)).columns[0].name == "naОve"

    async def test_few_undecodable_characters_are_a_warning(self, previews: Previews):
        given = ReadingOptions.from_parameters(FileType.CSV, text=TextParameters(encoding="utf-8"))
        found = await previews.analysis(ANA, MemoryFile(b"name,b\n1,2\n1,\xff\n1,2\n"), given, has_header=True)
        assert found.rows[1] == ["1", "\ufffd"]
        assert warnings(found) == {"undecodable": (1, [3])}

    async def test_many_undecodable_characters_are_an_error(self, previews: Previews):
        given = ReadingOptions.from_parameters(FileType.CSV, text=TextParameters(encoding="utf-8"))
        file = MemoryFile(b"a,b\n\xff\xff,\xff\n")
        with raises_code("encoding_error"):
            await previews.analysis(ANA, file, given, has_header=True)
        with raises_code("encoding_error"):
            await previews.header(ANA, file, given)

    def test_unknown_encoding_is_rejected(self):
        with pytest.raises(InvalidParameter):
            ReadingOptions.from_parameters(FileType.CSV, text=TextParameters(encoding="klingon"))


class TestKinds:
    async def test_workbook_is_not_text(self, previews: Previews):
        with raises_code("format_mismatch"):
            await previews.analysis(ANA, MemoryFile(ZIP), CSV, has_header=True)
        with raises_code("format_mismatch"):
            await previews.header(ANA, MemoryFile(ZIP), CSV)

    async def test_text_is_no_workbook(self, previews: Previews):
        excel = ReadingOptions.from_parameters(FileType.EXCEL, sheet_name="one")
        with raises_code("format_mismatch"):
            await previews.analysis(ANA, MemoryFile(b"a,b\n"), excel, has_header=True)
        with raises_code("format_mismatch"):
            await previews.header(ANA, MemoryFile(b"a,b\n"), excel)

    @pytest.mark.parametrize("file_type", [FileType.CSV, FileType.EXCEL])
    async def test_other_formats_are_unsupported(self, previews: Previews, file_type):
        options = ReadingOptions.from_parameters(file_type, sheet_name="one")
        with pytest.raises(UnsupportedFormat):
            await previews.analysis(ANA, MemoryFile(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\1\2\3"), options, has_header=True)

    @pytest.mark.importer(31)
    @pytest.mark.parametrize("content", [b"", b"\n\n  \n", b"\xef\xbb\xbf"])
    async def test_blank_file_is_reported_as_empty(self, previews: Previews, content):
        with raises_code("file_empty"):
            await previews.analysis(ANA, MemoryFile(content), CSV, has_header=False)
        with raises_code("file_empty"):
            await previews.header(ANA, MemoryFile(content), CSV)

    def test_workbook_requires_a_sheet(self):
        with raises_code("sheet_required"):
            ReadingOptions.from_parameters(FileType.EXCEL)

    async def test_preview_requires_a_separator_unless_the_type_implies_it(self, previews: Previews):
        options = ReadingOptions.from_parameters(FileType.DELIMITED)
        file = MemoryFile(b"a;b\n1;2\n")
        with raises_code("separator_required"):
            await previews.analysis(ANA, file, options, has_header=True)
        assert (await previews.header(ANA, file, options)).has_header is True


class TestSheets:
    async def test_sheet_types_come_from_its_cells(self, previews: Previews):
        excel = ReadingOptions.from_parameters(FileType.EXCEL, sheet_name="one")
        found = await previews.analysis(ANA, MemoryFile(ZIP), excel, has_header=True)
        assert (bases(found), found.rows) == ([BaseType.INT32], [["0"], ["1"], ["2"]])
        assert (await previews.header(ANA, MemoryFile(ZIP), excel)).has_header is True

    async def test_sheet_without_rows_is_empty(self, previews: Previews):
        excel = ReadingOptions.from_parameters(FileType.EXCEL, sheet_name="none")
        with raises_code("file_empty"):
            await previews.analysis(ANA, MemoryFile(ZIP), excel, has_header=False)
        with raises_code("file_empty"):
            await previews.header(ANA, MemoryFile(ZIP), excel)

    async def test_unknown_sheet_is_an_error(self, previews: Previews):
        excel = ReadingOptions.from_parameters(FileType.EXCEL, sheet_name="two")
        with raises_code("sheet_not_found"):
            await previews.header(ANA, MemoryFile(ZIP), excel)

    async def test_workbook_ignores_separators_and_encodings(self):
        given = ReadingOptions.from_parameters(
            FileType.EXCEL, sheet_name="one", text=TextParameters(field_separator='"', encoding="klingon")
        )
        assert given == ReadingOptions.from_parameters(FileType.EXCEL, sheet_name="one")


class TestKeeping:
    async def test_immutable_file_is_read_once(self, previews: Previews):
        file = MemoryFile(b"a,b\n1,2\n", fixed_identity="x")
        first = await previews.analysis(ANA, file, CSV, has_header=True)
        assert await previews.analysis(ANA, file, CSV, has_header=True) is first
        separators = TextParameters(field_separator="\\x2c", record_separator="\\r\\n")
        escaped = ReadingOptions.from_parameters(FileType.CSV, text=separators)
        assert await previews.analysis(ANA, file, escaped, has_header=True) is first
        assert file.readings == 1

    async def test_different_parameters_are_cached_separately(self, previews: Previews):
        file = MemoryFile(b"a;b\n1;2\n", fixed_identity="x")
        assert len((await previews.analysis(ANA, file, CSV, has_header=True)).columns) == 1
        assert len((await previews.analysis(ANA, file, CSV, has_header=False)).rows) == 2
        other = ReadingOptions.from_parameters(FileType.CSV, text=TextParameters(field_separator=";"))
        assert len((await previews.analysis(ANA, file, other, has_header=True)).columns) == 2
        encoded = ReadingOptions.from_parameters(FileType.CSV, text=TextParameters(encoding="utf-16-le"))
        assert (await previews.analysis(ANA, file, encoded, has_header=True)).columns[0].name != "a;b"

    async def test_remote_file_is_read_each_time(self, previews: Previews):
        file = MemoryFile(b"a,b\n1,2\n")
        await previews.analysis(ANA, file, CSV, has_header=True)
        file.content = b"a,b\n1,2\n3,4\n"
        assert len((await previews.analysis(ANA, file, CSV, has_header=True)).rows) == 2

    async def test_concurrent_equal_calls_share_the_work(self, previews: Previews):
        file = MemoryFile(b"a,b\n1,2\n", fixed_identity="x")
        found = await asyncio.gather(*(previews.analysis(ANA, file, CSV, has_header=True) for _ in range(20)))
        assert file.readings == 1
        assert all(one is found[0] for one in found)

    async def test_next_caller_takes_over_if_the_first_is_canceled(self, previews: Previews):
        class Endless(MemoryFile):
            async def read(self, *, offset: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
                begun.set()
                await asyncio.Event().wait()
                yield b""

        begun = asyncio.Event()
        first = asyncio.create_task(previews.analysis(ANA, Endless(b"x", fixed_identity="x"), CSV, has_header=True))
        await begun.wait()
        file = MemoryFile(b"a,b\n1,2\n", fixed_identity="x")
        second = asyncio.create_task(previews.analysis(ANA, file, CSV, has_header=True))
        await asyncio.sleep(0)
        assert not file.readings
        first.cancel()
        assert (await second).rows == [["1", "2"]]

    async def test_least_recently_used_analysis_is_evicted(self, previews: Previews):
        files = [MemoryFile(b"a\n" + b"x" * MIB + b"\n", fixed_identity=str(number)) for number in range(10)]
        for file in (*files, files[9], files[0]):
            await previews.analysis(ANA, file, CSV, has_header=True)
        assert [file.readings for file in files] == [2, *[1] * 9]

    @pytest.mark.importer(47)
    async def test_failure_is_not_cached(self, previews: Previews):
        file = MemoryFile(ZIP, fixed_identity="x")
        excel = ReadingOptions.from_parameters(FileType.EXCEL, sheet_name="two")
        with raises_code("sheet_not_found"):
            await previews.analysis(ANA, file, excel, has_header=True)
        good = ReadingOptions.from_parameters(FileType.EXCEL, sheet_name="one")
        assert len((await previews.analysis(ANA, file, good, has_header=True)).rows) == 3


@pytest.fixture
def two_sheets() -> MemoryWorkbooks:
    return MemoryWorkbooks({"one": [[TypedText("1", CellKind.INTEGER)]], "two": []})


@pytest.fixture
def detection(two_sheets: MemoryWorkbooks) -> Detection:
    return Detection(two_sheets, InlineComputations(), FairSemaphore(4))


async def test_warm_up_runs_a_preview_that_succeeds(workbooks: MemoryWorkbooks, threads: Executor):
    computations = InlineComputations()
    slots = FairSemaphore(4)
    Previews(workbooks, computations, FairThreads(threads, FairSemaphore(2)), slots).warm_up(ANA)
    ((user_id, task, options, content),) = computations.warmed_up
    found = await computations.run(user_id, task, options, content)
    assert [column["type"]["base"] for column in found["columns"]] == ["Int32", "String", "Float64", "Date"]


async def test_detection_reads_only_the_start_of_a_text(detection: Detection):
    file = MemoryFile(b"a;b\n1;2\n" * 2**20, piece_bytes=64 * 1024)
    found = await detection.metadata(ANA, file)
    assert isinstance(found, DetectedFormat)
    assert (found.delimiters.field, found.confidence) == (";", 1.0)
    assert file.read_bytes == SAMPLE_BYTES
    assert not file.copies


async def test_detection_is_the_same_at_any_chunk_size(detection: Detection):
    content = b"a;b\r\n" + b"1;2\r\n" * 1000
    whole = await detection.metadata(ANA, MemoryFile(content))
    assert await detection.metadata(ANA, MemoryFile(content, piece_bytes=3)) == whole


async def test_record_cut_by_the_sample_is_ignored(detection: Detection):
    record = b"1;2;" + b"x" * 95 + b"\n"
    found = await detection.metadata(ANA, MemoryFile(record * (SAMPLE_BYTES // len(record) + 2)))
    assert isinstance(found, DetectedFormat)
    assert found.confidence == 1.0


@pytest.mark.importer(13)
async def test_sheets_come_from_the_workbook_reader(detection: Detection):
    file = MemoryFile(ZIP)
    assert await detection.metadata(ANA, file) == Sheets(["one", "two"])
    assert file.copies == 1


async def test_unsupported_or_empty_file_is_an_error(detection: Detection):
    with pytest.raises(UnsupportedFormat):
        await detection.metadata(ANA, MemoryFile(b"%PDF-1.4"))
    with raises_code("file_empty"):
        await detection.metadata(ANA, MemoryFile(b""))


async def test_mutable_file_is_detected_each_time(detection: Detection):
    file = MemoryFile(b"a,b\n1,2\n")
    await detection.metadata(ANA, file)
    file.content = ZIP
    assert isinstance(await detection.metadata(ANA, file), Sheets)
