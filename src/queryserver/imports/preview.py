"""Detects file types and headers, and previews files (Contract importer 4, 5, 7).

Limits are in `formats/table_files.py`: the detection sample (SAMPLE_BYTES), the type inference sample (SAMPLE_RECORDS,
SAMPLE_TEXT_BYTES), and the rows shown (PREVIEW_ROWS).
"""

import asyncio
from collections.abc import AsyncGenerator, Generator, Hashable, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from pydantic import TypeAdapter

from queryserver.errors.base import TooComplex
from queryserver.errors.files import FileTooComplex, file_empty, format_mismatch
from queryserver.formats.cell_types.analysis import Analysis, SampleWarning, WarningCode, analyse_records, skipped_lines
from queryserver.formats.cell_types.header import COMPARED_RECORDS, has_header
from queryserver.formats.detection import DetectedFormat, ReadingOptions, type_by_signature
from queryserver.formats.layout import count_rows_above
from queryserver.formats.table_files import (
    RECORD_TYPES,
    SAMPLE_BYTES,
    SAMPLE_RECORDS,
    SAMPLE_TEXT_BYTES,
    FileType,
    SkippedLines,
)
from queryserver.imports.computed import CUT_FIELD_BYTES, MORE_NEEDED, DetectedHeader
from queryserver.imports.uploads import ImportFile
from queryserver.platform.computation import ComputationExecutor, Task
from queryserver.platform.fair_queue import FairSemaphore
from queryserver.platform.lru_cache import LruCache
from queryserver.platform.threads import FairThreads
from queryserver.workbooks.reader import ProcessWorkbooks, SheetRows

_ANALYSES_BYTES = 16 * 1024 * 1024
_GROWTH = 4
"""Growth factor of the sample with each attempt. Rereading the sample costs at most a third more."""


_adapter = cache(TypeAdapter[Any])
"""Builds typed values from the workers' JSON.

Adapters are created on first use, since creating them would delay startup.
"""


@dataclass(frozen=True, slots=True)
class Sheets:
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Records:
    """A file that names its columns itself."""

    type: FileType


FileForm: TypeAlias = DetectedFormat | Sheets | Records


class Detection:
    """Detects the types of files, and the delimiters, sheets or encodings that they need."""

    def __init__(self, workbooks: ProcessWorkbooks, computations: ComputationExecutor, slots: FairSemaphore) -> None:
        self._workbooks = workbooks
        self._computations = computations
        self._slots = slots

    async def metadata(self, user_id: int, file: ImportFile, encoding: str | None = None) -> FileForm:
        """Return a text's delimiters, a workbook's sheets, or the type of a file with records.

        Detects the encoding of a text without `encoding`. Raises encoding_failed, file_empty, UnsupportedFormat,
        file_encrypted, FileCorrupt, FileTooComplex, TooManyRequests, and the errors of `ImportFile.read`.
        """
        async with self._slots.slot(user_id):
            head, is_whole = await _file_head(file)
            with _file_errors():
                answer = await self._computations.run(
                    user_id, Task.DETECT_FILE, {"is_whole": is_whole, "encoding": encoding, "is_given": False}, head
                )
            if not isinstance(answer, str):
                return _adapter(DetectedFormat).validate_python(answer)
            if answer != FileType.EXCEL:
                return Records(FileType(answer))
            async with file.on_disk() as path:
                return Sheets(await self._workbooks.sheet_names(path))


class Previews:
    """Infers columns, types and first rows from the beginning of a file. Caches analyses of files that never change.

    Every call raises file_empty, format_mismatch, UnsupportedFormat, encoding_failed, too_many_columns,
    record_too_long, FileTooComplex, TooManyRequests; for workbooks sheet_not_found, file_encrypted, FileCorrupt; and
    the errors of `ImportFile.read`.
    """

    def __init__(
        self, workbooks: ProcessWorkbooks, computations: ComputationExecutor, threads: FairThreads, slots: FairSemaphore
    ) -> None:
        self._workbooks = workbooks
        self._computations = computations
        self._threads = threads
        self._analyses = LruCache[Hashable, Analysis](_ANALYSES_BYTES, weigh=_analysis_weight)
        self._locks = WeakValueDictionary[Hashable, asyncio.Lock]()
        self._slots = slots

    async def analysis(self, user_id: int, file: ImportFile, options: ReadingOptions, *, has_header: bool) -> Analysis:
        """Return the columns of a file with their types, and its first rows. Also raises separator_required."""
        options.require_separator()
        if file.fixed_identity is None:
            return await self._analysis(user_id, file, options, has_header)
        key = file.fixed_identity, options, has_header
        # Concurrent equal calls share the first call's result; if that call fails or is canceled, the next one tries.
        async with self._locks.setdefault(key, asyncio.Lock()):
            analysis = self._analyses.get(key)
            if analysis is None:
                analysis = await self._analysis(user_id, file, options, has_header)
                if _analysis_weight(analysis) <= _ANALYSES_BYTES // 4:  # a larger analysis would evict too many others
                    self._analyses.put(key, analysis)
            return analysis

    async def header(self, user_id: int, file: ImportFile, options: ReadingOptions) -> DetectedHeader:
        """Return whether the first record names the columns. Detects a missing separator."""
        async with self._slots.slot(user_id):
            if options.file_type in RECORD_TYPES:
                await self._require_records(user_id, file, options.file_type)
                return DetectedHeader(has_header=True)
            if options.sheet_name is not None:
                # Rows of a sheet are never completely empty, but all cells may be errors.
                sheet = await self._sheet(user_id, file, options, 2 * COMPARED_RECORDS)
                if not sheet.rows:
                    raise file_empty("The worksheet is empty.")
                header = await self._threads.run(user_id, lambda _: has_header(sheet.rows))
                return DetectedHeader(header, SkippedLines(sheet.skipped))
            header = await self._run_on_text(user_id, file, Task.HEADER, {"reading": asdict(options)})
            return _adapter(DetectedHeader).validate_python(header)

    async def _analysis(self, user_id: int, file: ImportFile, options: ReadingOptions, has_header: bool) -> Analysis:
        async with self._slots.slot(user_id):
            if options.file_type in RECORD_TYPES:
                await self._require_records(user_id, file, options.file_type)
                async with file.on_disk() as path:
                    return _adapter(Analysis).validate_python(
                        await self._workbooks.record_preview(path, options.file_type)
                    )
            if options.sheet_name is not None:
                # One row more than is analyzed shows whether the sheet continues.
                sheet = await self._sheet(user_id, file, options, SAMPLE_RECORDS + has_header + 1)
                analyse = partial(_analysis_of_sheet, sheet, options, has_header=has_header)
                return await self._threads.run(user_id, lambda _: analyse())
            task_options = {"reading": asdict(options), "has_header": has_header}
            answer = await self._run_on_text(user_id, file, Task.PREVIEW, task_options)
            return _adapter(Analysis).validate_python(answer)

    async def _require_records(self, user_id: int, file: ImportFile, kind: FileType) -> None:
        """Raise format_mismatch if the file begins like another type. JSON Lines are checked by their reader."""
        if kind is FileType.NDJSON:
            return
        head, is_whole = await _file_head(file)
        if type_by_signature(head) is kind:
            return
        await self._require_text(user_id, head, is_whole=is_whole, is_given=False)
        raise format_mismatch(f"The file is not of the type {kind}.")

    async def _sheet(self, user_id: int, file: ImportFile, options: ReadingOptions, limit: int) -> SheetRows:
        """Return the first rows of the table in a worksheet."""
        head, is_whole = await _file_head(file)
        if type_by_signature(head) is not FileType.EXCEL:
            await self._require_text(user_id, head, is_whole=is_whole, is_given=True)
            raise format_mismatch("The file is text, not a workbook.")
        async with file.on_disk() as path:
            read = partial(self._workbooks.first_rows, path, options.sheet_name or "", limit=limit)
            sheet = await read(skip=options.skip_rows or 0)
            if options.skip_rows is not None:
                return sheet
            above = await self._threads.run(user_id, lambda _: count_rows_above(sheet.rows, sheet.positions))
            # Without the rows above the table, the sheet may be narrower.
            return await read(skip=sheet.positions[above]) if above else sheet

    async def _require_text(self, user_id: int, head: bytes, *, is_whole: bool, is_given: bool) -> None:
        """Raise the errors of the detection for files other than text.

        With `is_given`, the caller has given the type.
        """
        options = {"is_whole": is_whole, "encoding": None, "is_given": is_given}
        await self._computations.run(user_id, Task.DETECT_FILE, options, head)

    async def _run_on_text(self, user_id: int, file: ImportFile, task: Task, options: Mapping[str, Any]) -> Any:
        """Run the task on as much of the file as it needs, and return its result."""
        async with aclosing(file.read(length=SAMPLE_TEXT_BYTES + CUT_FIELD_BYTES)) as pieces:
            head = bytearray(await _first_bytes(pieces))
            is_last = False
            while True:
                is_whole = len(head) >= file.size_bytes
                task_options = {**options, "is_whole": is_whole, "is_last": is_last}
                with _file_errors():
                    answer = await self._computations.run(user_id, task, task_options, bytes(head))
                if answer == FileType.EXCEL:
                    async with file.on_disk() as path:
                        await self._workbooks.sheet_names(path)  # only a file that can be read is a workbook
                    raise format_mismatch("The file is a workbook.")
                if answer != MORE_NEEDED:
                    return answer
                target = _GROWTH * len(head)
                while (len(head) < target or target >= SAMPLE_TEXT_BYTES) and not is_last:
                    piece = await anext(pieces, None)
                    is_last = piece is None
                    head += piece or b""


def _analysis_of_sheet(sheet: SheetRows, options: ReadingOptions, *, has_header: bool) -> Analysis:
    """Analyze the rows of a sheet. Raises file_empty."""
    analysis = analyse_records(sheet.rows, has_header=has_header, is_whole=sheet.is_whole, formats=options.formats)
    count, rows = sheet.without_value
    skipped = SkippedLines(sheet.skipped)
    warnings_found = [*analysis.warnings, SampleWarning(WarningCode.FORMULAS_WITHOUT_VALUES, count, list(rows))]
    warnings = [warning for warning in (*warnings_found, *skipped_lines(skipped)) if warning.count]
    return replace(analysis, warnings=warnings, skipped=skipped)


async def _file_head(file: ImportFile) -> tuple[bytes, bool]:
    """Return at least the first SAMPLE_BYTES, and whether they are the whole file."""
    async with aclosing(file.read(length=SAMPLE_BYTES)) as pieces:
        head = await _first_bytes(pieces)
    return head, file.size_bytes <= len(head)


async def _first_bytes(pieces: AsyncGenerator[bytes]) -> bytes:
    head = bytearray()
    async for piece in pieces:
        head += piece
        if len(head) >= SAMPLE_BYTES:
            break
    return bytes(head)


@contextmanager
def _file_errors() -> Generator[None]:
    """Convert TooComplex to FileTooComplex."""
    try:
        yield
    except TooComplex as error:
        raise FileTooComplex(f"The file could not be read: {error.message}") from None


def _analysis_weight(analysis: Analysis) -> int:
    """Estimate the memory in bytes: about 60 per text object, and up to four per character."""
    cells = sum(60 + 2 * len(cell) for row in analysis.rows for cell in row)
    fields = sum(60 + 2 * len(name) for name in analysis.fields)
    return 1000 + cells + sum(200 + 2 * len(column.name) for column in analysis.columns) + fields
