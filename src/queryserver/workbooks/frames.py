"""The pipe from a worker: frames of a kind, a length and JSON (never Python objects)."""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_letters
from typing import TYPE_CHECKING

from queryserver.errors.files import record_too_long
from queryserver.formats.table_files import CellKind, TypedText

if TYPE_CHECKING:
    import pyarrow as pa


HEAD = struct.Struct("<cL")
_STRANGE_BYTES = struct.Struct("<L")
MAX_BYTES = 128 * 1024 * 1024
"""A row has up to 16 Mi characters (Contract importer 8.5), and a character takes up to six bytes in JSON."""

MEMORY_BYTES = 1024**3
AVRO_MEMORY_BYTES = MEMORY_BYTES // 4
"""For an Avro file of which a part is shown: that holds a block of it, and a record."""
MAX_READ_BYTES = 64 * 1024 * 1024
"""Largest single read of a file in a store: a broken file may claim to have a footer or a page of any size."""
TIME_S = 60
RECORDS_TIME_S = 900
"""For all rows of a file of records."""

NAMES, ROWS, END, FAILED, PREVIEW, BATCH, LINES = b"N", b"R", b"E", b"F", b"P", b"B", b"L"
WANTED = b"W"
"""`WANTED`: the worker needs a piece of the file that is shown; its offset and length as JSON."""
FRAME_KINDS = NAMES, ROWS, END, FAILED, PREVIEW, BATCH, LINES, WANTED
PIECE_HEAD = struct.Struct("<L")
"""The number of bytes of a piece, which stands before them."""

_PORTION_ROWS = 512
_PORTION_CELLS = 8192
_PORTION_CHARACTERS = 256 * 1024

_LETTERS = dict(zip(CellKind, ascii_letters, strict=False))
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}

Rows = list[list[TypedText]]
Strange = Sequence[tuple[int, int | None, str]]
"""Rows that cannot be read, from 0 in their batch, the column for which they cannot, None: for all, and why."""


@dataclass(frozen=True, slots=True)
class RecordPortion:
    """Some rows of a file of records: one column for each of the file, named by its position.

    Values are of the type of their column, or texts of such values. `strange`: rows that cannot be read, from 0, and
    why; what cannot be read is null. `misfits`, for previews: the texts of such values by row and column.
    """

    rows: "pa.RecordBatch"
    strange: Strange = ()
    misfits: Mapping[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])


def frame(kind: bytes, content: object) -> bytes:
    return raw_frame(kind, json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())


def raw_frame(kind: bytes, body: bytes | bytearray) -> bytes:
    return HEAD.pack(kind, len(body)) + body


def portions(rows: Iterable[list[TypedText]]) -> Iterator[Rows]:
    """The rows a few hundred at a time, fewer if they are large."""
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


def rows_frame(rows: Rows) -> bytes:
    """The texts of each row, and their classes as a letter each."""
    return frame(ROWS, [rows, ["".join([_LETTERS[cell.kind] for cell in row]) for row in rows]])


def rows_of(body: bytes) -> Rows:
    """The rows of a frame. Raises ValueError for anything else."""
    texts, letters = json.loads(body)
    return [
        [TypedText(text, _KINDS[letter]) for text, letter in zip(row, kinds, strict=True)]
        for row, kinds in zip(texts, letters, strict=True)
    ]


def batch_frame(kind: bytes, portion: RecordPortion) -> bytes:
    """Rows as a stream of Arrow behind the JSON of those that are strange, whose length comes first.

    Raises record_too_long for more than a frame may have.
    """
    import pyarrow as pa  # noqa: PLC0415 workers of workbooks do without

    reasons = json.dumps(portion.strange).encode()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, portion.rows.schema) as stream:
        stream.write_batch(portion.rows)
    body = _STRANGE_BYTES.pack(len(reasons)) + reasons + sink.getvalue().to_pybytes()
    if len(body) > MAX_BYTES:
        raise record_too_long("A row of the file is too long.")
    return raw_frame(kind, body)


def batch_of(body: bytes) -> RecordPortion:
    """The rows of a frame and those that are strange. Raises ValueError for anything else."""
    import pyarrow as pa  # noqa: PLC0415 workers of workbooks do without

    (size,) = _STRANGE_BYTES.unpack_from(body)
    start = _STRANGE_BYTES.size + size
    found = json.loads(body[_STRANGE_BYTES.size : start])
    strange = [(int(row), None if place is None else int(place), str(reason)) for row, place, reason in found]
    batch = pa.ipc.open_stream(memoryview(body)[start:]).read_next_batch()
    # A worker may have become anything that its file made of it.
    batch.validate(full=True)
    return RecordPortion(batch, strange)
