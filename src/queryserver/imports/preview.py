"""Detects file formats and headers, and previews files (Contract importer 4, 5, 7).

The limits are constants in `formats/table_files.py`: SAMPLE_BYTES for detection, SAMPLE_RECORDS and SAMPLE_TEXT_BYTES
for type inference, and PREVIEW_ROWS for the rows shown.
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
from queryserver.formats.cell_types.analysis import Analysis, SampleWarning, WarningCode, analyze_records, skipped_lines
from queryserver.formats.cell_types.header import COMPARED_RECORDS, has_header
from queryserver.formats.detection import DetectedFormat, ReadingOptions, type_by_signature
from queryserver.formats.layout import count_rows_above
from queryserver.formats.table_files import (
    RECORD_TYPES,
    SAMPLE_BYTES,
    SAMPLE_RECORDS,
    SAMPLE_TEXT_BYTES,
    Delimiters,
    FileType,
    SkippedLines,
)
from queryserver.imports.computed import CUT_FIELD_BYTES, MORE_NEEDED, DetectedHeader
from queryserver.imports.uploads import ImportFile
from queryserver.platform.caches import LruCache
from queryserver.platform.computation import ComputationExecutor, Task
from queryserver.platform.fair_queue import FairSemaphore
from queryserver.platform.threads import FairThreads
from queryserver.workbooks.reader import ProcessWorkbooks, SheetRows

_ANALYSES_BYTES = 16 * 1024 * 1024
_GROWTH = 4
"""Factor by which the sample grows with each attempt. Repeated processing costs at most a third more in total."""


_WARM_UP_SAMPLE = b"id,name,price,day\n" + b"1,a b,2.50,2026-01-31\n" * 200
"""Large enough that a preview of it uses the functions that a preview of a file uses."""

_adapter = cache(TypeAdapter[Any])
"""Returns the adapter that validates the workers' JSON as a type.

Adapters are created on first use, because creating them at import would delay startup.
"""


@dataclass(frozen=True, slots=True)
class Sheets:
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Records:
    """A file with records that contain the column names, such as Parquet or JSON Lines."""

    type: FileType


FileForm: TypeAlias = DetectedFormat | Sheets | Records


class Detection:
    """Detects the type of a file, and its delimiters and encoding or its sheets."""

    def __init__(self, workbooks: ProcessWorkbooks, computations: ComputationExecutor, slots: FairSemaphore) -> None:
        self._workbooks = workbooks
        self._computations = computations
        self._slots = slots

    async def metadata(self, user_id: int, file: ImportFile, encoding: str | None = None) -> FileForm:
        """Return the format of a text file, the sheets of a workbook, or the type of a file with records.

        If `encoding` is None, the encoding of a text file is detected. Raises encoding_failed, file_empty,
        UnsupportedFormat, file_encrypted, FileCorrupt, FileTooComplex, TooManyRequests, and the errors of
        `ImportFile.read`.
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
    """Infers columns and types from the beginning of a file, and shows its first rows. Caches analyses of immutable
    files.

    Every call may raise file_empty, format_mismatch, UnsupportedFormat, encoding_failed, too_many_columns,
    record_too_long, FileTooComplex, TooManyRequests and the errors of `ImportFile.read`; for workbooks also
    sheet_not_found, file_encrypted, FileCorrupt.
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

    def warm_up(self, user_id: int) -> None:
        """Have a worker process ready for the first call about a file that this user is uploading."""
        reading = ReadingOptions(FileType.CSV, delimiters=Delimiters())
        options = {"reading": asdict(reading), "has_header": True, "is_whole": True, "is_last": True}
        self._computations.warm_up(user_id, Task.PREVIEW, options, _WARM_UP_SAMPLE)

    async def analysis(self, user_id: int, file: ImportFile, options: ReadingOptions, *, has_header: bool) -> Analysis:
        """Return the file's columns with their types, and its first rows. Also raises separator_required."""
        options.require_separator()
        if file.fixed_identity is None:
            return await self._analysis(user_id, file, options, has_header)
        key = file.fixed_identity, options, has_header
        # Concurrent calls with the same key wait for the first one and share its result. If it fails or is canceled,
        # the next one tries.
        async with self._locks.setdefault(key, asyncio.Lock()):
            analysis = self._analyses.get(key)
            if analysis is None:
                analysis = await self._analysis(user_id, file, options, has_header)
                if _analysis_weight(analysis) <= _ANALYSES_BYTES // 4:  # larger ones would evict too many others
                    self._analyses.put(key, analysis)
            return analysis

    async def header(self, user_id: int, file: ImportFile, options: ReadingOptions) -> DetectedHeader:
        """Return whether the first record contains the column names. If the options have no separator, it is
        detected.
        """
        async with self._slots.slot(user_id):
            if options.file_type in RECORD_TYPES:
                await self._require_records(user_id, file, options.file_type)
                return DetectedHeader(has_header=True)
            if options.sheet_name is not None:
                # Sheets are read without empty rows, but the cells of a row may all be errors, so read twice as many
                # rows.
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
                # Read one row more than is analyzed, to know whether the sheet continues.
                sheet = await self._sheet(user_id, file, options, SAMPLE_RECORDS + has_header + 1)
                analyze = partial(_analysis_of_sheet, sheet, options, has_header=has_header)
                return await self._threads.run(user_id, lambda _: analyze())
            task_options = {"reading": asdict(options), "has_header": has_header}
            answer = await self._run_on_text(user_id, file, Task.PREVIEW, task_options)
            return _adapter(Analysis).validate_python(answer)

    async def _require_records(self, user_id: int, file: ImportFile, kind: FileType) -> None:
        """Raise format_mismatch if the file does not have the signature of `kind`. JSON Lines files have no signature,
        so they are checked when they are read.
        """
        if kind is FileType.NDJSON:
            return
        head, is_whole = await _file_head(file)
        if type_by_signature(head) is kind:
            return
        await self._require_text(user_id, head, is_whole=is_whole, is_given=False)
        raise format_mismatch(f"The file type is not {kind}.")

    async def _sheet(self, user_id: int, file: ImportFile, options: ReadingOptions, limit: int) -> SheetRows:
        """Return the first rows of the table in a worksheet, without the rows above the table."""
        head, is_whole = await _file_head(file)
        if type_by_signature(head) is not FileType.EXCEL:
            await self._require_text(user_id, head, is_whole=is_whole, is_given=True)
            raise format_mismatch("The file is a text file, not a workbook.")
        async with file.on_disk() as path:
            read = partial(self._workbooks.first_rows, path, options.sheet_name or "", limit=limit)
            sheet = await read(skip=options.skip_rows or 0)
            if options.skip_rows is not None:
                return sheet
            above = await self._threads.run(user_id, lambda _: count_rows_above(sheet.rows, sheet.positions))
            # Read again, because the rows above the table may be wider than the table.
            return await read(skip=sheet.positions[above]) if above else sheet

    async def _require_text(self, user_id: int, head: bytes, *, is_whole: bool, is_given: bool) -> None:
        """Raise the detection's error for the file if it cannot be imported as text.

        `is_given` is set if the caller has specified the file type.
        """
        options = {"is_whole": is_whole, "encoding": None, "is_given": is_given}
        await self._computations.run(user_id, Task.DETECT_FILE, options, head)

    async def _run_on_text(self, user_id: int, file: ImportFile, task: Task, options: Mapping[str, Any]) -> Any:
        """Run the task on a growing part of the file until it needs no more, and return its result."""
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
                        await self._workbooks.sheet_names(path)  # raises an error if it is not a readable workbook
                    raise format_mismatch("The file is a workbook.")
                if answer != MORE_NEEDED:
                    return answer
                target = _GROWTH * len(head)
                while (len(head) < target or target >= SAMPLE_TEXT_BYTES) and not is_last:
                    piece = await anext(pieces, None)
                    is_last = piece is None
                    head += piece or b""


def _analysis_of_sheet(sheet: SheetRows, options: ReadingOptions, *, has_header: bool) -> Analysis:
    """Analyze the rows of a worksheet. Raises file_empty."""
    analysis = analyze_records(sheet.rows, has_header=has_header, is_whole=sheet.is_whole, formats=options.formats)
    count, rows = sheet.without_value
    skipped = SkippedLines(sheet.skipped)
    warnings_found = [*analysis.warnings, SampleWarning(WarningCode.FORMULAS_WITHOUT_VALUES, count, list(rows))]
    warnings = [warning for warning in (*warnings_found, *skipped_lines(skipped)) if warning.count]
    return replace(analysis, warnings=warnings, skipped=skipped)


async def _file_head(file: ImportFile) -> tuple[bytes, bool]:
    """Return at least the first SAMPLE_BYTES of the file (if it is that long), and whether this is the whole file."""
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
    """Convert TooComplex, raised by a worker task, to FileTooComplex."""
    try:
        yield
    except TooComplex as error:
        raise FileTooComplex(f"The file could not be read: {error.message}") from None


def _analysis_weight(analysis: Analysis) -> int:
    """Estimate an analysis's memory in bytes, with about 60 bytes of overhead per string and two bytes per
    character.
    """
    cells = sum(60 + 2 * len(cell) for row in analysis.rows for cell in row)
    fields = sum(60 + 2 * len(name) for name in analysis.fields)
    return 1000 + cells + sum(200 + 2 * len(column.name) for column in analysis.columns) + fields
