"""Delimited text as Arrow batches of text, block by block: for reading whole files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from queryserver.domain.importing import Delimiters, QuotedText
from queryserver.formats.delimited.encodings import Decoder
from queryserver.formats.delimited.grammar import BLANKS
from queryserver.formats.delimited.records import Record, RecordReader


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

    Raises RecordTooLong, TooManyColumns. It is used by one thread at a time.
    """

    def __init__(self, delimiters: Delimiters, encoding: str, width: int) -> None:
        self.decoder = Decoder(encoding)
        """Knows how many characters could not be decoded."""
        self._width = width
        self._reader = RecordReader(delimiters)

    def feed(self, piece: bytes) -> Iterator[Block]:
        """The blocks that are complete with this piece of the file."""
        yield from self._blocks(self._reader.feed(self.decoder.decode(piece)))

    def finish(self) -> Iterator[Block]:
        """The last blocks, once the file has been fed."""
        yield from self._blocks(self._reader.feed(self.decoder.decode(b"", final=True), final=True))

    def _blocks(self, records: list[Record]) -> Iterator[Block]:
        if records:
            first = self._reader.records - len(records) + 1
            yield block_of(records, first, self._width, [number - first for number in self._reader.unclosed])


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
