"""Delimited text as Arrow batches of text, block by block: for reading whole files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from queryserver.domain.importing import Delimiters, QuotedText
from queryserver.formats.delimited.encodings import Decoder
from queryserver.formats.delimited.grammar import BLANKS
from queryserver.formats.delimited.plain import PlainReader
from queryserver.formats.delimited.records import Record, RecordReader

_EXACT_BYTES = 64 * 1024
"""How much is cut record by record before Arrow is asked again."""

_MIN_PLAIN_BYTES = 4 * 1024
"""Less is cut faster record by record: a call of Arrow takes 0.1 ms."""


@dataclass(frozen=True, slots=True)
class Block:
    """Records one after the other, about 1 MiB of text.

    `columns` has one `string` column per cell position. Null is a cell that is missing, or unquoted and empty, or the
    unquoted word null in any case (blanks around it do not count); `""` is a quoted empty cell. All else is the cell's
    text untouched: blanks and `\\N` are still text.
    `long_rows`, `short_rows` and `unclosed` are row numbers within the block, from 0: rows cut to the width, rows
    filled with null, rows with a quote that opens and does not close.
    """

    first_record: int
    """Number in the file, from 1, of the first record; a header counts, blank lines do not."""
    columns: pa.RecordBatch
    long_rows: Sequence[int] = ()
    short_rows: Sequence[int] = ()
    unclosed: Sequence[int] = ()


class BlockReader:
    """Cuts a file that is fed in pieces into blocks of `width` columns.

    Arrow reads the runs of regular records, RecordReader all else; what comes out is what RecordReader says.
    Raises record_too_long, too_many_columns. It is used by one thread at a time; each iterator must be used up.
    """

    def __init__(self, delimiters: Delimiters, encoding: str, width: int) -> None:
        self.decoder = Decoder(encoding)
        """Knows how many characters could not be decoded."""
        self._width = width
        self._plain = PlainReader(delimiters, width)
        self._reader = RecordReader(delimiters)
        self._reader_waits = False
        """The reader has the beginning of a record."""
        self._text = b""
        """UTF-8 that has gone nowhere yet."""
        self._retry_at = 0
        self._records = 0

    def feed(self, piece: bytes) -> Iterator[Block]:
        """The blocks that are complete with this piece of the file."""
        self._text += self.decoder.decode(piece).encode()
        if len(self._text) >= self._retry_at:
            yield from self._drain(final=False)

    def finish(self) -> Iterator[Block]:
        """The last blocks, once the file has been fed."""
        self._text += self.decoder.decode(b"", final=True).encode()
        yield from self._drain(final=True)
        yield from self._exact("", final=True)

    def _drain(self, *, final: bool) -> Iterator[Block]:
        text, position = self._text, 0
        while position < len(text):
            end = position if self._reader_waits else self._plain.end(text, position)
            if end - position >= _MIN_PLAIN_BYTES:
                yield from self._regular(text[position:end])
                position = end
            elif final or self._reader_waits or len(text) - position >= _EXACT_BYTES:
                piece = _first_piece(text, position)
                yield from self._exact(piece.decode())
                position += len(piece) - self._taken_back()
            elif end > position:
                yield from self._exact(text[position:end].decode())
                position = end
            else:
                break
        self._text = text[position:]
        rest = len(self._text)
        self._retry_at = rest + rest // 4 if rest > _MIN_PLAIN_BYTES else 0

    def _regular(self, text: bytes) -> Iterator[Block]:
        """The block, or the blocks, of whole records that Arrow may be able to read."""
        batch = self._plain.batch(text)
        if batch is not None:
            if batch.num_rows:
                yield Block(self._records + 1, batch)
            self._records += batch.num_rows
            return
        position = 0
        while position < len(text):
            piece = _first_piece(text, position)
            yield from self._exact(piece.decode())
            position += len(piece)
        self._reader_waits = False

    def _exact(self, text: str, *, final: bool = False) -> Iterator[Block]:
        before = self._records
        for records in self._reader.parts(text, final=final):
            first = self._reader.records - len(records) + 1
            unclosed = [number - first for number in self._reader.unclosed]
            yield block_of(records, self._records + 1, self._width, unclosed)
            self._records += len(records)
        self._reader_waits = self._records == before and self._reader.is_waiting

    def _taken_back(self) -> int:
        """How many bytes the reader gives back, so that Arrow may go on from there: none in the midst of a record."""
        return 0 if self._reader_waits else len(self._reader.take_rest().encode())


def _first_piece(text: bytes, start: int) -> bytes:
    """Some text from `start` on, in whole characters; up to an end of a line, if there is one."""
    end = min(start + _EXACT_BYTES, len(text))
    if end < len(text):
        end = text.rfind(b"\n", start, end) + 1 or end
        while text[end] & 0xC0 == 0x80:
            end -= 1
    return text[start:end]


def block_of(records: list[Record], first_record: int, width: int, unclosed: Sequence[int]) -> Block:
    """A block of records that were cut one by one."""
    long_rows = [row for row, cells in enumerate(records) if len(cells) > width]
    short_rows = [row for row, cells in enumerate(records) if len(cells) < width]
    rows = [[*cells[:width], *[""] * (width - len(cells))] for cells in records]
    arrays = [pa.array(map(_value, column), pa.string(), size=len(rows)) for column in zip(*rows, strict=True)]
    names = [str(position) for position in range(width)]
    columns = pa.RecordBatch.from_arrays(arrays, names=names)
    return Block(first_record, columns, long_rows, short_rows, unclosed)


def _value(cell: str) -> str | None:
    if type(cell) is not QuotedText and (not cell or cell.strip(BLANKS).lower() == "null"):
        return None
    return cell
