"""Reads record files (Contract importer 8a) in batches: Parquet and Arrow as typed columns, Avro and JSON Lines as
strings.

All functions block. They run in a worker process with limits, so that a malicious file can do little damage.
"""

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import IOBase
from itertools import chain
from typing import Any, BinaryIO, Self, TypeAlias, cast

import pyarrow as pa
from pyarrow import types

from queryserver import errors
from queryserver.formats.arrow import STRING, BaseType, Column, ColumnType, ResultType, split_batch
from queryserver.formats.avro import AvroFile
from queryserver.formats.cell_types.analysis import Analysis, PreviewColumn, SampleWarning, WarningCode
from queryserver.formats.cell_types.classes import column_facts, column_type, text_facts
from queryserver.formats.cell_types.header import header_names
from queryserver.formats.download.encoder import texts
from queryserver.formats.parquet import SeekableFile, open_parquet, parquet_batches, parquet_lines
from queryserver.formats.table_files import (
    MAX_COLUMNS,
    MAX_RECORD_CHARACTERS,
    PREVIEW_ROWS,
    SAMPLE_RECORDS,
    SAMPLE_TEXT_BYTES,
    CellKind,
    FileType,
    TypedText,
)
from queryserver.workbooks.column_values import (
    RESULT_TYPES,
    ConvertedColumn,
    column_type_of,
    convert_column,
    invalid_value_reason,
)
from queryserver.workbooks.frames import (
    BATCH,
    CHUNK_HEAD,
    CHUNK_REQUEST,
    END,
    MAX_READ_BYTES,
    PREVIEW,
    RecordPortion,
    UnreadableRows,
    encode_batch,
    json_frame,
)

_ARROW_FILE = b"ARROW1"
_ROWS_AT_ONCE = 4096
_PORTION_BYTES = 4 * 1024 * 1024
_MAX_DIGITS = 38

_VIEWS = (types.is_binary_view, types.is_string_view, types.is_list_view, types.is_large_list_view)
_PORTION_ROWS, _PORTION_CHARACTERS = 4096, 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TIMES = frozenset({CellKind.DATE, CellKind.TIMESTAMP, CellKind.TIME})

_AVRO_TYPES = {
    "boolean": BaseType.BOOLEAN,
    "int": BaseType.INT32,
    "long": BaseType.INT64,
    "float": BaseType.FLOAT32,
    "double": BaseType.FLOAT64,
    "bytes": BaseType.BINARY,
    "fixed": BaseType.BINARY,
}
_AVRO_LOGICAL_TYPES = {
    ("int", "date"): BaseType.DATE,
    ("int", "time-millis"): BaseType.TIME,
    ("long", "time-micros"): BaseType.TIME,
    **{
        ("long", f"{local}timestamp-{unit}"): BaseType.DATETIME
        for local in ("", "local-")
        for unit in ("millis", "micros", "nanos")
    },
}
"""The logical types that `formats.avro` converts, except decimals. All others are ignored."""


Record: TypeAlias = Mapping[str, Any]
Fields: TypeAlias = Sequence[str]


@dataclass(frozen=True, slots=True)
class RecordColumn:
    """A column of the file: its name, and the type of its table column."""

    name: str
    type: ColumnType


class ColumnarFile:
    """An open Parquet or Arrow file, whose columns are typed."""

    def __init__(self, schema: pa.Schema, parts: Iterator[pa.RecordBatch]) -> None:
        self._parts = parts
        self.columns: Sequence[RecordColumn] = [
            RecordColumn(field.name, column_type_of(field.type)) for field in schema
        ]

    def batches(self) -> Iterator[RecordPortion]:
        """Yield batches of at most about 4 MiB, with columns in the types of `arrow_type`. Rows with an invalid value
        are unreadable.
        """
        for part in self._parts:
            # Convert about 4 MiB at a time, as estimated by `_bytes_of`, even if the batches of the file are larger.
            slices = (part.slice(start, _ROWS_AT_ONCE) for start in range(0, part.num_rows, _ROWS_AT_ONCE))
            for rows in chain.from_iterable(split_batch(rows, _PORTION_BYTES, _bytes_of) for rows in slices):
                columns = [
                    convert_column(values, own.type) for values, own in zip(rows.columns, self.columns, strict=True)
                ]
                names = [str(number) for number in range(len(columns))]
                whole = pa.RecordBatch.from_arrays([one.values for one in columns], names=names)
                begin = 0
                for portion_rows in split_batch(whole, _PORTION_BYTES, _bytes_of):
                    yield self._portion(portion_rows, columns, begin)
                    begin += portion_rows.num_rows

    def _portion(self, rows: pa.RecordBatch, columns: Sequence[ConvertedColumn], begin: int) -> RecordPortion:
        """Return the portion for `rows`, which start at row `begin` of the converted `columns`."""
        invalid_texts = {
            (row - begin, number): text
            for number, column in enumerate(columns)
            for row, text in column.invalid_texts.items()
            if begin <= row < begin + rows.num_rows
        }
        unreadable = [
            (row, number, invalid_value_reason(text, self.columns[number].type))
            for (row, number), text in invalid_texts.items()
        ]
        return RecordPortion(rows, unreadable, invalid_texts)


def _bytes_of(values: pa.Array) -> int:
    """Estimate the size of the values. Dictionary values count once per use. Views count as 0, because they share their
    bytes.
    """
    if types.is_dictionary(values.type):
        known = values.dictionary
        return known.nbytes * len(values) // max(len(known), 1)
    return 0 if any(is_view(values.type) for is_view in _VIEWS) else values.nbytes


def parquet_file(file: BinaryIO) -> ColumnarFile:
    parquet = open_parquet(cast("IOBase", file))
    return ColumnarFile(parquet.schema_arrow, parquet_batches(parquet))


def arrow_file(file: BinaryIO) -> ColumnarFile:
    """Open a file in the Arrow IPC stream format or the Arrow IPC file format (Feather version 2)."""
    head = file.read(len(_ARROW_FILE))
    file.seek(0)
    if head == _ARROW_FILE:
        reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(use_threads=False))
        return ColumnarFile(reader.schema, map(_validated, map(reader.get_batch, range(reader.num_record_batches))))
    stream = pa.ipc.open_stream(file, options=pa.ipc.IpcReadOptions(use_threads=False))
    return ColumnarFile(stream.schema, map(_validated, stream))


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch after validating its buffers, which Arrow does not do when it reads a file. Raises
    ArrowInvalid.
    """
    for values in batch.columns:
        # Times, dates and decimals are validated as plain integers or bytes: a value outside the type's range must make
        # only its row unreadable, not the whole file.
        kind = values.type
        stored_type = pa.int32() if types.is_time32(kind) else pa.int64() if types.is_time64(kind) else None
        stored_type = pa.int64() if types.is_date64(kind) else stored_type
        if types.is_decimal(kind):
            stored_type = pa.binary(kind.bit_width // 8)
        (values if stored_type is None else values.view(stored_type)).validate(full=True)
    return batch


class _ExactFloat(float):
    """A JSON number with a fraction or an exponent, together with its literal, which may have more digits than a
    double.
    """

    __slots__ = ("text",)

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str


class LinesFile:
    """JSON Lines with known columns. A record with any other field is unreadable."""

    def __init__(self, lines: Iterable[bytes], columns: Sequence[RecordColumn]) -> None:
        self.columns = columns
        self._lines = lines

    def batches(self) -> Iterator[RecordPortion]:
        """Yield batches of string columns. Raises record_too_long."""
        names = [column.name for column in self.columns]
        known = frozenset(names)
        rows = list[Record]()
        unreadable = list[tuple[int, int | None, str]]()
        size = 0
        for line in self._lines:
            record = parse_record(line)
            if record is None:
                unreadable.append((len(rows), None, "the line is not a JSON object"))
            elif unknown := record.keys() - known:
                name = json.dumps(min(unknown))[:100]
                unreadable.append(
                    (len(rows), None, f"the record has a field {name} that the first records do not have")
                )
            rows.append(record if record is not None and record.keys() <= known else {})
            size += len(line)
            if len(rows) == _PORTION_ROWS or size >= _PORTION_CHARACTERS:
                yield _text_batch(rows, names, unreadable)
                rows, unreadable, size = [], [], 0
        if rows:
            yield _text_batch(rows, names, unreadable)


def _text_batch(rows: Sequence[Record], names: Sequence[str], unreadable: UnreadableRows) -> RecordPortion:
    arrays = [pa.array([_text(row.get(name)) for row in rows], pa.string()) for name in names]
    batch = pa.RecordBatch.from_arrays(arrays, names=[str(number) for number in range(len(names))])
    return RecordPortion(batch, unreadable)


def parse_record(line: bytes) -> Record | None:
    """Parse a line as a JSON object. Return None if it is not a JSON object. Numbers keep all their digits."""
    try:
        found = json.loads(line.decode(), parse_float=_ExactFloat)
        if b"\\u" in line:
            # Reject unpaired surrogates, which cannot be encoded in UTF-8.
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return cast("Record", found) if isinstance(found, dict) else None


def typed_cell(value: Any) -> TypedText:
    """Return a JSON value as a typed cell. A string in a plain date or time format becomes a date or time."""
    match value:
        case None:
            return TypedText("", CellKind.NULL)
        case bool():
            return TypedText(_text(value) or "", CellKind.BOOLEAN)
        case int():
            return TypedText(str(value), text_facts(str(value)).kind)
        case float():
            # JSON numbers of up to 17 digits are doubles. In delimited text, more than 15 digits would make a decimal.
            text = _text(value) or ""
            is_finite = text_facts(text).kind is not CellKind.NON_FINITE
            return TypedText(text, CellKind.DOUBLE if is_finite else CellKind.NON_FINITE)
        case str():
            kind = text_facts(value).kind
            return TypedText(value, kind if kind in _TIMES else CellKind.TEXT)
        case _:
            return TypedText(_text(value) or "", CellKind.TEXT)


def _text(value: Any) -> str | None:
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case _ExactFloat():
            return value.text
        case int() | float():
            return repr(value)
        case _:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the non-blank lines, stripped. Raises record_too_long."""
    is_first = True
    while line := file.readline(MAX_RECORD_CHARACTERS + 1):
        if len(line) > MAX_RECORD_CHARACTERS:
            raise errors.record_too_long("A line of the file is too long.")
        if is_first:
            line, is_first = line.removeprefix(_BYTE_ORDER_MARK), False
        if stripped := line.strip():
            yield stripped


def avro_file(file: BinaryIO) -> LinesFile:
    """Open an Avro file. Raises DecompressionFailed, FileCorrupt, and UnsupportedFormat if its items are not
    records.
    """
    records = AvroFile(file)
    declared = records.schema
    try:
        if declared["type"] != "record":
            raise errors.UnsupportedFormat
        columns = [RecordColumn(str(one["name"]), _avro_type(one["type"])) for one in declared["fields"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise errors.FileCorrupt("The Avro schema is invalid.") from None

    def lines() -> Iterator[bytes]:
        for line in records.lines():
            if len(line) > MAX_RECORD_CHARACTERS:
                raise errors.record_too_long("A record of the file is too long.")
            yield line

    return LinesFile(lines(), columns)


def _avro_type(declared: Any) -> ColumnType:
    """Return the column type for an Avro type. A union of null and one other type becomes the other type. Types without
    a counterpart become strings.
    """
    if isinstance(declared, list):
        others = [one for one in cast("list[Any]", declared) if one != "null"]
        return _avro_type(others[0]) if len(others) == 1 else STRING
    if isinstance(declared, str):
        return ColumnType(_AVRO_TYPES.get(declared, BaseType.STRING))
    details = cast("Mapping[str, Any]", declared)
    logical, kind = str(details.get("logicalType", "")), details["type"]
    if not isinstance(kind, str):
        return _avro_type(kind)
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        precision, scale = details.get("precision"), details.get("scale", 0)
        is_supported = type(precision) is int and type(scale) is int and 0 <= scale <= precision <= _MAX_DIGITS
        return ColumnType(BaseType.DECIMAL, precision, scale) if is_supported and precision else STRING
    if base := _AVRO_LOGICAL_TYPES.get((kind, logical)):
        return ColumnType(base)
    return _avro_type(kind)


def record_frames(file: BinaryIO, kind: FileType, fields: Fields | None) -> Iterator[bytes]:
    """Yield the frames of the response: the preview if `fields` is None, otherwise all rows. `fields` are the column
    names that the file must have.

    Raises FileCorrupt, format_mismatch, FileTooComplex, file_empty, too_many_columns, record_too_long,
    UnsupportedFormat.
    """
    _limit_arrow_threads()
    with _reading_errors():
        if fields is None:
            yield json_frame(PREVIEW, asdict(_preview(file, kind)))
            return
        records = _open(file, kind, fields)
        if [column.name for column in records.columns] != list(fields):
            raise errors.FileCorrupt("The columns of the file have changed.")
        for batch in records.batches():
            yield encode_batch(BATCH, batch)
        yield json_frame(END, True)


def _open(file: BinaryIO, kind: FileType, fields: Fields) -> ColumnarFile | LinesFile:
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
        return _preview_lines(file)
    records = _open(file, kind, ())
    names = [column.name for column in records.columns]
    _check_columns(names)
    rows, size = list[list[str]](), 0
    for batch in records.batches():
        kinds = [RESULT_TYPES.get(column.type.base, ResultType.STRING) for column in records.columns]
        sample = batch.rows.slice(0, PREVIEW_ROWS - len(rows))
        cells = [texts(own, Column("", kind, "")).to_pylist() for own, kind in zip(sample.columns, kinds, strict=True)]
        for (row, column), text in batch.invalid_texts.items():
            if row < sample.num_rows:
                cells[column][row] = text
        for row in zip(*cells, strict=True):
            size += sum(len(cell or "") for cell in row)
            if size > SAMPLE_TEXT_BYTES:
                break
            rows.append([cell or "" for cell in row])
        if len(rows) == PREVIEW_ROWS or size > SAMPLE_TEXT_BYTES:
            break
    warnings = [SampleWarning(WarningCode.TRUNCATED_SAMPLE, 1)] if size > SAMPLE_TEXT_BYTES else []
    columns = [
        PreviewColumn(name, column.type)
        for name, column in zip(header_names(names, len(names)), records.columns, strict=True)
    ]
    return Analysis(columns, rows, warnings, has_header=True, is_whole=True, fields=names)


def _preview_lines(file: BinaryIO) -> Analysis:
    """Analyze JSON Lines. Column types are inferred from the values in a sample of the first records."""
    lines = json_lines(file)
    found, size, read = list[dict[str, TypedText]](), 0, 0
    for line in lines:
        read += 1
        record = parse_record(line)
        if record is not None:
            found.append({name: typed_cell(value) for name, value in record.items()})
        size += len(line)
        if len(found) == SAMPLE_RECORDS or size >= SAMPLE_TEXT_BYTES or read == 2 * SAMPLE_RECORDS:
            break
    if not read:
        raise errors.file_empty("File is empty.")
    if not found:
        raise errors.format_mismatch("The lines of the file are not JSON objects.")
    is_whole = next(lines, None) is None
    names = list(dict.fromkeys(name for record in found for name in record))
    _check_columns(names)
    # Collect cells by name, not by record: most records may lack most names.
    cells = {name: list[TypedText]() for name in names}
    for record in found:
        for name, cell in record.items():
            cells[name].append(cell)
    columns = [
        PreviewColumn(header, column_type(column_facts(cells[name]), is_whole=is_whole))
        for header, name in zip(header_names(names, len(names)), names, strict=True)
    ]
    rows = [[str(record.get(name, "")) for name in names] for record in found[:PREVIEW_ROWS]]
    return Analysis(columns, rows, [], has_header=True, is_whole=is_whole, fields=names)


def _check_columns(names: Sequence[str]) -> None:
    if not names:
        raise errors.file_empty("The file has no columns.")
    if len(names) > MAX_COLUMNS:
        raise errors.too_many_columns(f"The file has more than {MAX_COLUMNS} columns.")


@contextmanager
def _reading_errors() -> Generator[None]:
    try:
        yield
    except (pa.ArrowMemoryError, errors.DecompressionLimit) as error:
        raise errors.FileTooComplex("Reading the file exceeds the memory limit.") from error
    except (errors.DecompressionFailed, errors.CodecNotAvailable) as error:
        raise errors.FileCorrupt(error.message) from error
    except errors.UnsupportedFormat:
        raise
    except (pa.ArrowException, OSError, OverflowError, ValueError) as error:
        raise errors.FileCorrupt(
            "The file could not be read: it is corrupt, or its format is not supported."
        ) from error


class _StoreFile(SeekableFile):
    """A file in a store. A read writes a CHUNK_REQUEST frame to `output` and receives the chunk from `answers`."""

    def __init__(self, answers: BinaryIO, output: BinaryIO, size_bytes: int) -> None:
        super().__init__()
        self._answers = answers
        self._output = output
        self._size = size_bytes

    def _end(self, offset: int) -> int:
        return self._size + offset

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes. Raises DecompressionLimit, and BrokenPipeError if the server has disconnected."""
        left = max(self._size - self._position, 0)
        wanted = left if size < 0 else min(size, left)
        if wanted > MAX_READ_BYTES:
            raise errors.DecompressionLimit(f"A part of the file is larger than {MAX_READ_BYTES} bytes.")
        if not wanted:
            return b""
        self._output.write(json_frame(CHUNK_REQUEST, [self._position, wanted]))
        self._output.flush()
        head = self._answers.read(CHUNK_HEAD.size)
        if len(head) < CHUNK_HEAD.size:
            raise BrokenPipeError
        content = self._answers.read(*CHUNK_HEAD.unpack(head))
        self._position += len(content)
        return content


def parquet_json_lines(answers: BinaryIO, output: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """Yield the rows of a Parquet file in a store as JSON Lines. `_StoreFile` describes the two streams.

    Raises DecompressionFailed, DecompressionLimit.
    """
    _limit_arrow_threads()
    return parquet_lines(_StoreFile(answers, output, size_bytes))


def _limit_arrow_threads() -> None:
    """Limit Arrow to one thread, because each thread reserves some of this process's limited address space."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
