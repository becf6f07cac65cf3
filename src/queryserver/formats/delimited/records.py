"""Records of delimited text, exactly as Contract importer 8 cuts them, whatever the pieces in which the text comes.

Text without quotes is split in bulk; a record that holds a quote is cut field by field. Every text is read a bounded
number of times: a quote that does not close is known not to close before the next quote that stands alone, so no two
broken fields search the same text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from queryserver.formats.delimited import cutting
from queryserver.formats.delimited.encodings import Decoder
from queryserver.formats.table_files import (
    BLANKS,
    MAX_COLUMNS,
    MAX_FIELD_CHARACTERS,
    MAX_RECORD_CHARACTERS,
    Delimiters,
    QuotedText,
    SkippedLines,
)

_WAIT_CHARACTERS = 64 * 1024
"""Unfinished text longer than this is read again only when a quarter of it has been added."""

_SPLIT_CHARACTERS = 256 * 1024
"""How much is split at once, except for the rest of the last record."""

_PART_RECORDS = 16 * 1024
"""A part of so many records is complete."""

_EXACT_BYTES = 64 * 1024
"""How much is cut record by record before Arrow is tried again."""

_MIN_PLAIN_BYTES = 4 * 1024
"""Less is cut faster record by record: a call of Arrow takes 0.1 ms."""

NO_LINES = SkippedLines()

Record = list[str]


class RecordReader:
    """Cuts text that is fed in pieces. One reader reads one text; it is used by one thread at a time.

    Raises record_too_long and too_many_columns; after that it is of no use.
    """

    def __init__(
        self,
        delimiters: Delimiters,
        *,
        skipped: SkippedLines = NO_LINES,
        counts_quotes: bool = False,
        max_columns: int = MAX_COLUMNS,
    ) -> None:
        """`counts_quotes`: keep `quotes`."""
        self._delimiters = delimiters
        self._lines_to_skip = skipped.first
        self._comment = skipped.comment
        self.comments = 0
        """Comment lines that were left out so far."""
        self._grammar: cutting.Grammar = cutting.grammar_of(delimiters)
        self._cutter = cutting.RecordCutter(delimiters, max_columns=max_columns)
        self._max_columns = max_columns
        self._counts_quotes = counts_quotes
        self._waiting: list[str] = []
        self._waiting_characters = 0
        self._retry_at = 0
        self.records = 0
        """Records read so far; blank lines do not count."""
        self.unclosed: list[int] = []
        """Numbers (from 1 for the whole text) of the last feed's records with a quote that opens and does not close."""
        self.quotes: dict[int, tuple[int, int]] = {}
        """Of records, by number: how many fields are quoted, and how many are broken: their quote does not close."""

    def feed(self, text: str, *, final: bool = False) -> list[Record]:
        """The records that end in the text so far; with `final` also the last one."""
        found: list[Record] = []
        unclosed: list[int] = []
        for records in self.parts(text, final=final):
            found += records
            unclosed += self.unclosed
        self.unclosed = unclosed
        return found

    def parts(self, text: str, *, final: bool = False) -> Iterator[list[Record]]:
        """What `feed` gives, in parts that take little memory, with their `unclosed`. The last call may be left early.

        Once a quote turns out not to close, megabytes of short records come at once.
        """
        self.unclosed = []
        if text:
            self._waiting.append(text)
            self._waiting_characters += len(text)
        if not final and self._waiting_characters < self._retry_at:
            return
        whole = "".join(self._waiting)
        position = self._skip_lines(whole)
        is_end = self._lines_to_skip > 0
        while not is_end:
            found: list[Record] = []
            self.unclosed = []
            position, is_end = self._read(whole, position, final, found)
            if found:
                yield found
        self._keep(whole[position:])

    def _skip_lines(self, text: str) -> int:
        """Where the first line begins that is read; the end of the text, if more lines have to be skipped."""
        position, record = 0, self._delimiters.record
        while self._lines_to_skip:
            found = text.find(record, position)
            if found < 0:
                # A longer record separator may be cut by the end of the text.
                return max(position, len(text) - len(record) + 1)
            position = found + len(record)
            self._lines_to_skip -= 1
        return position

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def take_rest(self) -> str:
        """The text after the last record, which the reader drops."""
        rest = "".join(self._waiting)
        self._keep("")
        return rest

    def _keep(self, rest: str) -> None:
        self._waiting = [rest] if rest else []
        self._waiting_characters = len(rest)
        self._retry_at = len(rest) * 5 // 4 if len(rest) > _WAIT_CHARACTERS else 0
        if len(rest) > MAX_RECORD_CHARACTERS:
            raise cutting.whole_record_too_long()

    def _read(self, text: str, position: int, final: bool, found: list[Record]) -> tuple[int, bool]:
        """Adds some of the next records; returns where the next one begins, and whether none is left to read."""
        while position < len(text):
            if len(found) >= _PART_RECORDS:
                return position, False
            if self._grammar.splits:
                start = position
                position, is_end = self._split(text, position, final, found)
                if is_end:
                    break
                if position - start >= _SPLIT_CHARACTERS // 2:
                    continue
            after = self._cut(text, position, final, found)
            if after is None:
                break
            position = after
        return position, True

    def _split(self, text: str, position: int, final: bool, found: list[Record]) -> tuple[int, bool]:
        """Adds the next records before a quote; returns where it stopped, and whether nothing is left to do."""
        quote, record = self._delimiters.quote, self._delimiters.record
        far = text.find(record, position + _SPLIT_CHARACTERS)
        end = len(text) if far < 0 else far + len(record)
        at = -1 if quote is None else text.find(quote, position, end)
        limit = end if at < 0 else at
        escape = self._delimiters.escape
        if escape is not None and (escaped := text.find(escape, position, limit)) >= 0:
            at = limit = escaped
        lines = text[position:limit].split(record)
        last = lines.pop()
        if record == "\n" and text.find("\r", position, limit) >= 0:
            lines = [line.removesuffix("\r") for line in lines]
        is_end = at < 0 and limit == len(text)
        if is_end and final and last:
            lines.append(last)
            last = ""
        if self._comment:
            read = len(lines)
            lines = [line for line in lines if not line.startswith(self._comment)]
            self.comments += read - len(lines)
        if lines:
            separator = self._delimiters.field
            records = [line.split(separator) for line in lines]
            if len(max(lines, key=len)) > MAX_FIELD_CHARACTERS:
                for cells in records:
                    if max(map(len, cells)) > MAX_FIELD_CHARACTERS:
                        raise cutting.field_too_long()
                    if sum(map(len, cells)) + len(cells) > MAX_RECORD_CHARACTERS:
                        raise cutting.whole_record_too_long()
            self._add(records, found)
        return limit - len(last), is_end

    def _add(self, records: list[Record], found: list[Record]) -> None:
        kept = [cells for cells in records if len(cells) > 1 or not _is_blank(cells)]
        if kept:
            if max(map(len, kept)) > self._max_columns:
                raise cutting.table_too_wide()
            self.records += len(kept)
            found += kept

    def _cut(self, text: str, start: int, final: bool, found: list[Record]) -> int | None:
        """Adds the record at `start`; returns where the next one begins, None if the record is not finished."""
        cutter = self._cutter
        if self._comment:
            if text.startswith(self._comment, start):
                return self._skip_comment(text, start, final)
            if not final and len(text) - start < len(self._comment):
                return None
        end = cutter.cut(text, start, final=final)
        if end is None:
            return None
        if len(cutter.cells) > 1 or not _is_blank(cutter.cells):
            self.records += 1
            found.append(cutter.cells)
            if cutter.broken:
                self.unclosed.append(self.records)
            if self._counts_quotes:
                self.quotes[self.records] = cutter.quoted, cutter.broken
        return end

    def _skip_comment(self, text: str, start: int, final: bool) -> int | None:
        found = text.find(self._delimiters.record, start)
        if found < 0 and not final:
            return None
        self.comments += 1
        return len(text) if found < 0 else found + len(self._delimiters.record)


def _is_blank(cells: Record) -> bool:
    """Whether a record of one cell is a blank line; `""` is none."""
    return not cells or (type(cells[0]) is not QuotedText and not cells[0].strip(BLANKS))


@dataclass(frozen=True, slots=True)
class Block:
    """Records one after the other, about 1 MiB of text.

    `columns` has one `string` column per cell position. Null is a cell that is missing, or unquoted and empty, or the
    unquoted word null in any case (blanks around it do not count); `""` is a quoted empty cell. All else is the cell's
    text untouched: blanks and `\\N` are still text.
    `long_rows`, `short_rows` and `unclosed` are row numbers within the block, from 0: rows cut to the width that lose
    cells which are not blank, rows filled with null, rows with a quote that opens and does not close.
    """

    first_record: int
    """Number in the file, from 1, of the first record; a header counts, blank lines do not."""
    columns: pa.RecordBatch
    long_rows: Sequence[int] = ()
    short_rows: Sequence[int] = ()
    unclosed: Sequence[int] = ()
    wider_rows: Sequence[int] = ()
    """`long_rows`, and the rows cut to the width that lose blank cells only; Arrow's blocks do not count these."""


class BlockReader:
    """Cuts a file that is fed in pieces into blocks of `width` columns.

    Arrow reads the runs of regular records, RecordReader all else; the result is always that of RecordReader.
    Raises record_too_long, too_many_columns. It is used by one thread at a time; each iterator must be used up.
    """

    def __init__(self, delimiters: Delimiters, encoding: str, width: int, *, skipped: SkippedLines = NO_LINES) -> None:
        self.decoder = Decoder(encoding)
        """Counts the characters that could not be decoded."""
        self._width = width
        self._reader = RecordReader(delimiters, skipped=SkippedLines(comment=skipped.comment))
        self._plain = cutting.PlainReader(delimiters, width, comment=skipped.comment)
        self._record = delimiters.record.encode()
        self._lines_to_skip = skipped.first
        self._reader_waits = False
        self._text = b""
        """UTF-8 that has gone nowhere yet."""
        self._retry_at = 0
        self._records = 0

    def feed(self, piece: bytes) -> Iterator[Block]:
        self._text += self.decoder.decode(piece).encode()
        if len(self._text) >= self._retry_at:
            yield from self._drain(final=False)

    @property
    def comments(self) -> int:
        """Comment lines that were left out so far."""
        return self._reader.comments

    def finish(self) -> Iterator[Block]:
        self._text += self.decoder.decode(b"", final=True).encode()
        yield from self._drain(final=True)
        yield from self._exact("", final=True)

    def _drain(self, *, final: bool) -> Iterator[Block]:
        text, position = self._text, self._skip_lines()
        while position < len(text) and not self._lines_to_skip:
            end = position if self._reader_waits else self._plain.end(text, position)
            if end - position >= _MIN_PLAIN_BYTES:
                yield from self._regular(text[position:end])
                position = end
            elif final or self._reader_waits or len(text) - position >= _EXACT_BYTES:
                piece = _first_piece(text, position)
                yield from self._exact(piece.decode())
                position += len(piece)
                if not self._reader_waits:
                    # Arrow may go on behind the last record.
                    position -= len(self._reader.take_rest().encode())
            elif end > position:
                yield from self._exact(text[position:end].decode())
                position = end
            else:
                break
        self._text = text[position:]
        rest = len(self._text)
        self._retry_at = rest + rest // 4 if rest > _MIN_PLAIN_BYTES else 0

    def _skip_lines(self) -> int:
        """Where the first line begins that is read; the end of the text, if more lines have to be skipped."""
        position, text = 0, self._text
        while self._lines_to_skip:
            found = text.find(self._record, position)
            if found < 0:
                # A longer record separator may be cut by the end of the text.
                return max(position, len(text) - len(self._record) + 1)
            position = found + len(self._record)
            self._lines_to_skip -= 1
        return position

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


def _first_piece(text: bytes, start: int) -> bytes:
    """Some text from `start` on, in whole characters; up to an end of a line, if there is one."""
    end = min(start + _EXACT_BYTES, len(text))
    if end < len(text):
        end = text.rfind(b"\n", start, end) + 1 or end
        while text[end] & 0xC0 == 0x80:
            end -= 1
    return text[start:end]


def block_of(records: list[Record], first_record: int, width: int, unclosed: Sequence[int]) -> Block:
    wider_rows = [row for row, cells in enumerate(records) if len(cells) > width]
    long_rows = [row for row in wider_rows if not all(map(_is_blank_cell, records[row][width:]))]
    short_rows = [row for row, cells in enumerate(records) if len(cells) < width]
    rows = [[*cells[:width], *[""] * (width - len(cells))] for cells in records]
    arrays = [pa.array(map(_value, column), pa.string(), size=len(rows)) for column in zip(*rows, strict=True)]
    names = [str(position) for position in range(width)]
    columns = pa.RecordBatch.from_arrays(arrays, names=names)
    return Block(first_record, columns, long_rows, short_rows, unclosed, wider_rows)


def _is_blank_cell(cell: str) -> bool:
    return not cell.strip(BLANKS)


def _value(cell: str) -> str | None:
    if type(cell) is not QuotedText and (not cell or cell.strip(BLANKS).lower() == "null"):
        return None
    return cell
