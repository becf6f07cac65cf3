"""Files as typed columns, and whether they have a header (Contract importer 5, 7)."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import aclosing
from functools import partial
from typing import NoReturn, TypeVar

from queryserver.domain.errors import FileEmpty, FormatMismatch
from queryserver.domain.importing import SAMPLE_BYTES, SAMPLE_RECORDS, SAMPLE_TEXT_BYTES
from queryserver.formats.cell_types.header import COMPARED_RECORDS, has_header
from queryserver.formats.cell_types.preview import Analysis, analyse_records
from queryserver.formats.delimited.detection import detect
from queryserver.formats.delimited.encodings import detect_encoding
from queryserver.formats.kinds import FileKind, recognise_told
from queryserver.interfaces.workbooks import SheetRows, WorkbookReader
from queryserver.services.importing.detecting import first_bytes
from queryserver.services.importing.files import ImportFile
from queryserver.services.importing.keeping import KeptAnswers
from queryserver.services.importing.samples import HeaderSample, PreviewSample, ReadingOptions, Sample, TextForm

_KEPT_BYTES = 16 * 1024 * 1024
_HEADERS_BYTES = 1024 * 1024
_HEADER_BYTES = 512
_AT_ONCE = 4

AnySample = TypeVar("AnySample", bound=Sample)
T = TypeVar("T")


class Previews:
    """Reads the beginning of files. Of those that never change, answers are kept.

    Every call raises FileEmpty, FormatMismatch, UnsupportedFormat, EncodingFailed, TooManyColumns, RecordTooLong; of
    workbooks SheetNotFound, FileEncrypted, FileCorrupt, FileTooComplex; and what reading raises.
    """

    def __init__(self, workbooks: WorkbookReader, threads: Executor) -> None:
        self._workbooks = workbooks
        self._threads = threads
        self._analyses: KeptAnswers[Analysis] = KeptAnswers(_weight, max_bytes=_KEPT_BYTES)
        self._headers: KeptAnswers[bool] = KeptAnswers(lambda _: _HEADER_BYTES, max_bytes=_HEADERS_BYTES)
        # Each holds a sample of several megabytes and what has been made of it.
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def analysis(self, file: ImportFile, options: ReadingOptions, *, has_header: bool) -> Analysis:
        """The columns of a file with their types, and its first rows. Raises SeparatorRequired, too."""
        options.require_separator()
        key = _key(file, options, has_header)
        return await self._analyses.get(key, partial(self._analysis, file, options, has_header))

    async def has_header(self, file: ImportFile, options: ReadingOptions) -> bool:
        """Whether the first record names the columns. A separator that is not told is detected."""
        return await self._headers.get(_key(file, options), partial(self._has_header, file, options))

    async def _analysis(self, file: ImportFile, options: ReadingOptions, has_header: bool) -> Analysis:
        async with self._places:
            if options.sheet_name is not None:
                # One more than is looked at: it tells whether the sheet goes on.
                sheet = await self._sheet(file, options.sheet_name, SAMPLE_RECORDS + has_header + 1)
                analyse = partial(analyse_records, sheet.rows, has_header=has_header, is_whole=sheet.is_whole)
                return await self._aside(analyse)
            sample = await self._sample(file, options, partial(PreviewSample, has_header=has_header))
            return await self._aside(sample.analysis)

    async def _has_header(self, file: ImportFile, options: ReadingOptions) -> bool:
        async with self._places:
            if options.sheet_name is not None:
                return await self._sheet_has_header(file, options.sheet_name)
            sample = await self._sample(file, options, HeaderSample)
            return await self._aside(sample.has_header)

    async def _sheet_has_header(self, file: ImportFile, sheet_name: str) -> bool:
        # No row of a sheet is wholly empty, but its cells may be errors.
        sheet = await self._sheet(file, sheet_name, 2 * COMPARED_RECORDS)
        if not sheet.rows:
            raise FileEmpty("The worksheet is empty.")
        return await self._aside(partial(has_header, sheet.rows))

    async def _sheet(self, file: ImportFile, sheet_name: str, limit: int) -> SheetRows:
        async with aclosing(file.read(length=SAMPLE_BYTES)) as pieces:
            head = await first_bytes(pieces)
        recognised = partial(recognise_told, head, is_whole=file.size_bytes <= len(head))
        if await self._aside(recognised) is FileKind.TEXT:
            raise FormatMismatch("The file is text, not a workbook.")
        async with file.on_disk() as path:
            return await self._workbooks.first_rows(path, sheet_name, limit=limit)

    async def _sample(
        self, file: ImportFile, options: ReadingOptions, make: Callable[[TextForm], AnySample]
    ) -> AnySample:
        async with aclosing(file.read(length=SAMPLE_TEXT_BYTES)) as pieces:
            head = await first_bytes(pieces)
            form = await self._aside(partial(_form_of, head, options, is_whole=file.size_bytes <= SAMPLE_BYTES))
            if form is None:
                return await self._refuse_workbook(file)
            sample = make(form)
            taken, is_full = len(head), await self._aside(partial(sample.feed, head))
            while not is_full and (piece := await anext(pieces, None)) is not None:
                taken += len(piece)
                is_full = await self._aside(partial(sample.feed, piece))
        if not is_full and taken >= file.size_bytes:
            await self._aside(sample.finish)
        return sample

    async def _refuse_workbook(self, file: ImportFile) -> NoReturn:
        """Only a file that can be read as one is a workbook."""
        async with file.on_disk() as path:
            await self._workbooks.sheet_names(path)
        raise FormatMismatch("The file is a workbook.")

    async def _aside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _form_of(head: bytes, options: ReadingOptions, *, is_whole: bool) -> TextForm | None:
    """None: the file begins as workbooks do."""
    sample = head[:SAMPLE_BYTES]
    if recognise_told(sample, is_whole=is_whole, encoding=options.encoding) is not FileKind.TEXT:
        return None
    encoding = options.encoding or detect_encoding(sample, is_whole=is_whole)
    delimiters = options.delimiters
    if delimiters is None:
        delimiters = options.completed(detect(sample, is_whole=is_whole, encoding=encoding).delimiters)
    return TextForm(delimiters, encoding, is_encoding_given=options.encoding is not None)


def _key(file: ImportFile, options: ReadingOptions, *more: bool) -> tuple[object, ...] | None:
    return None if file.fixed_identity is None else (file.fixed_identity, options, *more)


def _weight(analysis: Analysis) -> int:
    """Bytes, about: objects of text take some 60 bytes each, and up to four for a character."""
    cells = sum(60 + 2 * len(cell) for row in analysis.rows for cell in row)
    return 1000 + cells + sum(200 + 2 * len(column.name) for column in analysis.columns)
