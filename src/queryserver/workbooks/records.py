"""What a worker answers about files of records: their preview, or all their rows as Arrow batches."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import BinaryIO

import pyarrow as pa

from queryserver.errors.files import (
    CodecNotAvailable,
    DecompressionFailed,
    DecompressionLimit,
    FileCorrupt,
    FileTooComplex,
    UnsupportedFormat,
    file_empty,
    format_mismatch,
    too_many_columns,
)
from queryserver.formats.cell_types.classes import column_type, facts_of_cells
from queryserver.formats.cell_types.header import header_names
from queryserver.formats.cell_types.preview import Analysis, Oddity, PreviewColumn, SampleWarning
from queryserver.formats.columns import Column, ResultType
from queryserver.formats.download.texts import texts
from queryserver.imports.model import (
    MAX_COLUMNS,
    PREVIEW_ROWS,
    SAMPLE_RECORDS,
    SAMPLE_TEXT_BYTES,
    STRING,
    FileType,
    TypedText,
)
from queryserver.workbooks.frames import BATCH, END, PREVIEW, batch_frame, frame
from queryserver.workbooks.record_files import (
    RESULT_TYPES,
    ColumnarFile,
    LinesFile,
    RecordColumn,
    arrow_file,
    avro_file,
    cell_of,
    json_lines,
    parquet_file,
    record_of,
)

Fields = Sequence[str]


def record_frames(file: BinaryIO, kind: FileType, fields: Fields | None) -> Iterator[bytes]:
    """The frames of an answer. `fields` None: the preview; else the names of the columns that the file must have.

    Raises FileCorrupt, format_mismatch, FileTooComplex, file_empty, too_many_columns, record_too_long,
    UnsupportedFormat.
    """
    # Threads of Arrow would each take a part of the address space that this process may have.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    with _reading_errors():
        if fields is None:
            yield frame(PREVIEW, asdict(_preview(file, kind)))
            return
        records = _opened(file, kind, fields)
        if [column.name for column in records.columns] != list(fields):
            raise FileCorrupt("The columns of the file have changed.")
        for batch in records.batches():
            yield batch_frame(BATCH, batch.rows, batch.strange)
        yield frame(END, True)


def _opened(file: BinaryIO, kind: FileType, fields: Fields) -> ColumnarFile | LinesFile:
    match kind:
        case FileType.PARQUET:
            return parquet_file(file)
        case FileType.ARROW:
            return arrow_file(file)
        case FileType.AVRO:
            return avro_file(file)
        case _:
            return LinesFile(json_lines(file), [RecordColumn(name, STRING) for name in fields])


def _preview(file: BinaryIO, kind: FileType) -> Analysis:
    if kind is FileType.NDJSON:
        return _of_lines(file)
    records = _opened(file, kind, ())
    names = [column.name for column in records.columns]
    _check_columns(names)
    rows, size = list[list[str]](), 0
    for batch in records.batches():
        kinds = [RESULT_TYPES.get(column.type.base, ResultType.STRING) for column in records.columns]
        shown = batch.rows.slice(0, PREVIEW_ROWS - len(rows))
        cells = [texts(own, Column("", kind, "")).to_pylist() for own, kind in zip(shown.columns, kinds, strict=True)]
        for row in zip(*cells, strict=True):
            size += sum(len(cell or "") for cell in row)
            if size > SAMPLE_TEXT_BYTES:
                break
            rows.append([cell or "" for cell in row])
        if len(rows) == PREVIEW_ROWS or size > SAMPLE_TEXT_BYTES:
            break
    warnings = [SampleWarning(Oddity.TRUNCATED_SAMPLE, 1)] if size > SAMPLE_TEXT_BYTES else []
    columns = [
        PreviewColumn(name, column.type)
        for name, column in zip(header_names(names, len(names)), records.columns, strict=True)
    ]
    return Analysis(columns, rows, warnings, has_header=True, is_whole=True, fields=names)


def _of_lines(file: BinaryIO) -> Analysis:
    """Types are those of the values of the first records, as far as a sample goes."""
    lines = json_lines(file)
    found, size, read = list[dict[str, TypedText]](), 0, 0
    for line in lines:
        read += 1
        record = record_of(line)
        if record is not None:
            found.append({name: cell_of(value) for name, value in record.items()})
        size += len(line)
        if len(found) == SAMPLE_RECORDS or size >= SAMPLE_TEXT_BYTES or read == 2 * SAMPLE_RECORDS:
            break
    if not read:
        raise file_empty("File is empty.")
    if not found:
        raise format_mismatch("The lines of the file are no JSON objects.")
    is_whole = next(lines, None) is None
    names = list(dict.fromkeys(name for record in found for name in record))
    _check_columns(names)
    # Most records may lack most names.
    cells = {name: list[TypedText]() for name in names}
    for record in found:
        for name, cell in record.items():
            cells[name].append(cell)
    columns = [
        PreviewColumn(shown, column_type(facts_of_cells(cells[name]), is_whole=is_whole))
        for shown, name in zip(header_names(names, len(names)), names, strict=True)
    ]
    rows = [[str(record.get(name, "")) for name in names] for record in found[:PREVIEW_ROWS]]
    return Analysis(columns, rows, [], has_header=True, is_whole=is_whole, fields=names)


def _check_columns(names: Sequence[str]) -> None:
    if not names:
        raise file_empty("The file has no columns.")
    if len(names) > MAX_COLUMNS:
        raise too_many_columns(f"The file has more than {MAX_COLUMNS} columns.")


@contextmanager
def _reading_errors() -> Generator[None]:
    try:
        yield
    except (pa.ArrowMemoryError, DecompressionLimit) as error:
        raise FileTooComplex("The file needs more memory to be read than there is.") from error
    except (DecompressionFailed, CodecNotAvailable) as error:
        raise FileCorrupt(error.message) from error
    except UnsupportedFormat:
        raise
    except (pa.ArrowException, OSError, OverflowError, ValueError) as error:
        raise FileCorrupt("The file cannot be read: it is broken, or of a kind that is not known here.") from error
