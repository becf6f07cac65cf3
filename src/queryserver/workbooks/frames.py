"""The frames that a worker process sends through its pipe. Each frame has a kind, a length, and a body in JSON or Arrow
format. The body never contains pickled Python objects.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_letters
from typing import TYPE_CHECKING, NotRequired, TypedDict

from queryserver.errors.files import record_too_long
from queryserver.formats.table_files import CellKind, TypedText

if TYPE_CHECKING:
    import pyarrow as pa


HEAD = struct.Struct("<cL")
_UNREADABLE_SIZE = struct.Struct("<L")
MAX_BYTES = 128 * 1024 * 1024
"""Maximum size of a frame. A row has up to 16 Mi characters (Contract importer 8.5) of up to six bytes each in JSON."""

MEMORY_BYTES = 1024**3
AVRO_MEMORY_BYTES = MEMORY_BYTES // 4
"""Memory limit for displaying an excerpt of an Avro file, which requires one block and one record at a time."""
MAX_READ_BYTES = 64 * 1024 * 1024
"""Maximum size of a single read from a file in a store. A corrupt file may declare a footer or page of any size."""
TIME_S = 60
RECORDS_TIME_S = 900
"""Time limit for reading all rows of a record file."""

NAMES, ROWS, END, FAILED, PREVIEW, BATCH, LINES = b"N", b"R", b"E", b"F", b"P", b"B", b"L"
CHUNK_REQUEST = b"W"
"""The worker requests a chunk of the displayed file. The frame contains the offset and length as JSON."""
FRAME_KINDS = NAMES, ROWS, END, FAILED, PREVIEW, BATCH, LINES, CHUNK_REQUEST
CHUNK_HEAD = struct.Struct("<L")
"""The size of a chunk in bytes, which is sent before the chunk."""

_PORTION_ROWS = 512
_PORTION_CELLS = 8192
_PORTION_CHARACTERS = 256 * 1024

_LETTERS = dict(zip(CellKind, ascii_letters, strict=False))
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}

Rows = list[list[TypedText]]
UnreadableRows = Sequence[tuple[int, int | None, str]]
"""For each unreadable row: its number in the batch, starting at 0, the unreadable column (None for all), and the
reason.
"""


class WorkerRequest(TypedDict):
    """The first line of the worker's input.

    For a workbook, the response contains the sheet names if `sheet` is missing, and otherwise up to `limit` rows
    (missing: all) after the first `skip` rows of the sheet. For a record file, `records` is its type, and the response
    contains a preview if `fields` is missing, otherwise all rows. If `path` is None, the response contains a record
    file from a store as JSON Lines: an Avro file follows on standard input, and a Parquet file of `size_bytes` bytes is
    requested in chunks.
    """

    path: str | None
    sheet: NotRequired[str]
    limit: NotRequired[int]
    skip: NotRequired[int]
    records: NotRequired[str]
    fields: NotRequired[Sequence[str]]
    size_bytes: NotRequired[int]


@dataclass(frozen=True, slots=True)
class RecordPortion:
    """A batch of rows from a record file.

    `rows` has one column per column of the file, named by its position. The values have the type of the table column,
    or are strings; unreadable values are null. `invalid_texts` contains the unreadable values as strings by row and
    column, for previews.
    """

    rows: "pa.RecordBatch"
    unreadable: UnreadableRows = ()
    invalid_texts: Mapping[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])


def json_frame(kind: bytes, content: object) -> bytes:
    return raw_frame(kind, json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())


def raw_frame(kind: bytes, body: bytes | bytearray) -> bytes:
    return HEAD.pack(kind, len(body)) + body


def portions(rows: Iterable[list[TypedText]]) -> Iterator[Rows]:
    """Group the rows into portions of up to 512 rows, fewer if the rows are large."""
    portion: Rows = []
    cells = characters = 0
    for row in rows:
        portion.append(row)
        cells += len(row)
        characters += sum(map(len, row))
        if len(portion) == _PORTION_ROWS or cells >= _PORTION_CELLS or characters >= _PORTION_CHARACTERS:
            yield portion
            portion, cells, characters = [], 0, 0
    if portion:
        yield portion


def encode_rows(rows: Rows) -> bytes:
    """Encode the strings of all rows, followed by each row's cell kinds as one letter per cell."""
    return json_frame(ROWS, [rows, ["".join([_LETTERS[cell.kind] for cell in row]) for row in rows]])


def decode_rows(body: bytes) -> Rows:
    """Decode the body of a frame that `encode_rows` created. Raises ValueError for an invalid frame."""
    texts, letters = json.loads(body)
    return [
        [TypedText(text, _KINDS[letter]) for text, letter in zip(row, kinds, strict=True)]
        for row, kinds in zip(texts, letters, strict=True)
    ]


def encode_batch(kind: bytes, portion: RecordPortion) -> bytes:
    """Encode a portion: the length of the JSON for the unreadable rows, this JSON, and the rows as an Arrow IPC
    stream.

    Raises record_too_long if the frame would be too large.
    """
    import pyarrow as pa  # noqa: PLC0415 not needed in workers for workbooks

    reasons = json.dumps(portion.unreadable).encode()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, portion.rows.schema) as stream:
        stream.write_batch(portion.rows)
    body = _UNREADABLE_SIZE.pack(len(reasons)) + reasons + sink.getvalue().to_pybytes()
    if len(body) > MAX_BYTES:
        raise record_too_long("A row of the file is too long.")
    return raw_frame(kind, body)


def decode_batch(body: bytes) -> RecordPortion:
    """Decode the body of a frame that `encode_batch` created. Raises ValueError for an invalid frame."""
    import pyarrow as pa  # noqa: PLC0415 not needed in workers for workbooks

    (size,) = _UNREADABLE_SIZE.unpack_from(body)
    start = _UNREADABLE_SIZE.size + size
    found = json.loads(body[_UNREADABLE_SIZE.size : start])
    unreadable = [(int(row), None if column is None else int(column), str(reason)) for row, column, reason in found]
    batch = pa.ipc.open_stream(memoryview(body)[start:]).read_next_batch()
    # A malicious file may have compromised the worker, so its output is not trusted.
    batch.validate(full=True)
    return RecordPortion(batch, unreadable)
