"""What a worker writes to its standard output: frames of a kind, a length and JSON. Never objects of Python."""

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from queryserver.domain.importing import CellKind, TypedText

HEAD = struct.Struct("<cL")
MAX_BYTES = 128 * 1024 * 1024
"""A row has up to 16 Mi characters (Contract importer 8.5), and a character takes up to six bytes in JSON."""

NAMES, ROWS, END, FAILED = b"N", b"R", b"E", b"F"

_PORTION_ROWS = 512
_PORTION_CELLS = 8192
_PORTION_CHARACTERS = 256 * 1024

_LETTERS = {
    CellKind.NULL: "0",
    CellKind.INTEGER: "i",
    CellKind.DECIMAL: "m",
    CellKind.DOUBLE: "d",
    CellKind.NON_FINITE: "n",
    CellKind.BOOLEAN: "b",
    CellKind.DATE: "D",
    CellKind.TIMESTAMP: "S",
    CellKind.TIME: "T",
    CellKind.DURATION: "u",
    CellKind.TEXT: "t",
}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}

Rows = list[list[TypedText]]


def frame(kind: bytes, content: object) -> bytes:
    """One frame as bytes."""
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
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
    texts, letters = _json(body)
    return [
        [TypedText(text, _KINDS[letter]) for text, letter in zip(row, kinds, strict=True)]
        for row, kinds in zip(texts, letters, strict=True)
    ]


def names_of(body: bytes) -> Sequence[str]:
    """The names of a frame."""
    return [str(name) for name in _json(body)]


def is_whole_of(body: bytes) -> bool:
    """What the last frame says: whether there are no more rows."""
    return bool(_json(body))


def failure_of(body: bytes) -> tuple[str, str]:
    """Code and message of a failure."""
    code, message = _json(body)
    return str(code), str(message)


def _json(body: bytes) -> Any:
    return json.loads(body)
