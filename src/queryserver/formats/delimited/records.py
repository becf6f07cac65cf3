"""Reads records of delimited text incrementally (Contract importer 8), however the text is divided into pieces.

Text without quotes is split in bulk; a record with a quote is cut field by field. Reading takes linear time: the search
for a closing quote ends at the next single quote, so two fields with unclosed quotes never search the same text.
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
"""Incomplete text longer than this is read again only after it has grown by a quarter."""

_SPLIT_CHARACTERS = 256 * 1024
"""Number of characters that are split at once, in addition to the rest of the last record."""

_PART_RECORDS = 16 * 1024
"""Approximate maximum number of records in a part."""

_EXACT_BYTES = 64 * 1024
"""Amount of text that is cut record by record before the next attempt with Arrow."""

_MIN_PLAIN_BYTES = 4 * 1024
"""Minimum amount of text for Arrow. A call takes 0.1 ms, so cutting shorter text record by record is faster."""

NO_LINES = SkippedLines()

Record = list[str]


class RecordReader:
    """Cuts text, which is fed in pieces, into records. Use one reader per text, and from one thread at a time.

    Raises record_too_long and too_many_columns; after an error the reader must not be used again.
    """

    def __init__(
        self,
        delimiters: Delimiters,
        *,
        skipped: SkippedLines = NO_LINES,
        counts_quotes: bool = False,
        max_columns: int = MAX_COLUMNS,
    ) -> None:
        """If `counts_quotes` is set, the reader fills `quotes`."""
        self._delimiters = delimiters
        self._lines_to_skip = skipped.first
        self._comment = skipped.comment
        self.comments = 0
        """Number of comment lines that have been skipped so far."""
        self._grammar: cutting.Grammar = cutting.compile_grammar(delimiters)
        self._cutter = cutting.RecordCutter(delimiters, max_columns=max_columns)
        self._max_columns = max_columns
        self._counts_quotes = counts_quotes
        self._waiting: list[str] = []
        self._waiting_characters = 0
        self._retry_at = 0
        self.records = 0
        """Number of records that have been read so far, not counting blank lines."""
        self.unclosed: list[int] = []
        """Records with an unclosed quote in the most recent feed or part, numbered from 1 in the whole text."""
        self.quotes: dict[int, tuple[int, int]] = {}
        """By record number: the number of quoted fields and the number of fields with an unclosed quote."""

    def feed(self, text: str, *, final: bool = False) -> list[Record]:
        """Return the records that this text completes. If `final` is set, also return the last record."""
        found: list[Record] = []
        unclosed: list[int] = []
        for records in self.parts(text, final=final):
            found += records
            unclosed += self.unclosed
        self.unclosed = unclosed
        return found

    def parts(self, text: str, *, final: bool = False) -> Iterator[list[Record]]:
        """Yield the records of `feed` in small parts. `unclosed` describes the most recent part.

        This saves memory, because an unclosed quote may hold back megabytes of short records. Exhaust the iterator
        before the next call.
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
        """Return the start of the first line to read, or the end of the text if more lines must be skipped."""
        position, record = 0, self._delimiters.record
        while self._lines_to_skip:
            found = text.find(record, position)
            if found < 0:
                # A multi-character record separator may begin at the end of the text.
                return max(position, len(text) - len(record) + 1)
            position = found + len(record)
            self._lines_to_skip -= 1
        return position

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def take_rest(self) -> str:
        """Remove and return the text that follows the last record."""
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
        """Append some of the next records to `found`. Return the position after them, and whether no more follow."""
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
        """Add the records before the next quote to `found`. Return the position after them, and whether this is the end
        of the text.
        """
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
        """Append the record at `start` to `found`. Return the start of the next record, or None if this record is
        incomplete.
        """
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
            if cutter.unclosed_fields:
                self.unclosed.append(self.records)
            if self._counts_quotes:
                self.quotes[self.records] = cutter.quoted_fields, cutter.unclosed_fields
        return end

    def _skip_comment(self, text: str, start: int, final: bool) -> int | None:
        found = text.find(self._delimiters.record, start)
        if found < 0 and not final:
            return None
        self.comments += 1
        return len(text) if found < 0 else found + len(self._delimiters.record)


def _is_blank(cells: Record) -> bool:
    """Return whether a record is a blank line, which has one cell. A quoted empty cell does not make a blank line."""
    return not cells or (type(cells[0]) is not QuotedText and not cells[0].strip(BLANKS))


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive records from about 1 MiB of text.

    `columns` has one `string` column per cell position. A cell is null if it is missing, if it is empty and unquoted,
    or if it is the unquoted word null in any letter case, ignoring blanks. A quoted empty cell is `""`. Other cells,
    including blank ones and `\\N`, are unchanged.

    `long_rows`, `short_rows` and `unclosed` are row indexes in the block: rows that lost non-blank cells after the last
    column, rows that were padded with null, and rows with an unclosed quote.
    """

    first_record: int
    """Number of the first record in the file, counted from 1, including the header but not blank lines."""
    columns: pa.RecordBatch
    long_rows: Sequence[int] = ()
    short_rows: Sequence[int] = ()
    unclosed: Sequence[int] = ()
    wider_rows: Sequence[int] = ()
    """`long_rows`, and rows that lost only blank cells. In blocks that Arrow reads, rows of the second kind are not
    listed.
    """


class BlockReader:
    """Cuts a file, which is fed in pieces, into blocks of `width` columns.

    Arrow reads runs of regular records, and RecordReader reads the others; the result is the same as with RecordReader
    alone. Raises record_too_long and too_many_columns. Use it from one thread at a time, and exhaust each iterator.
    """

    def __init__(self, delimiters: Delimiters, encoding: str, width: int, *, skipped: SkippedLines = NO_LINES) -> None:
        self.decoder = Decoder(encoding)
        """Also counts the characters that could not be decoded."""
        self._width = width
        self._reader = RecordReader(delimiters, skipped=SkippedLines(comment=skipped.comment))
        self._plain = cutting.ArrowCsvReader(delimiters, width, comment=skipped.comment)
        self._record = delimiters.record.encode()
        self._lines_to_skip = skipped.first
        self._reader_waits = False
        self._text = b""
        """Decoded text, as UTF-8, that has not been processed yet."""
        self._retry_at = 0
        self._records = 0

    def feed(self, piece: bytes) -> Iterator[Block]:
        self._text += self.decoder.decode(piece).encode()
        if len(self._text) >= self._retry_at:
            yield from self._drain(final=False)

    @property
    def comments(self) -> int:
        """Number of comment lines that have been skipped so far."""
        return self._reader.comments

    def finish(self) -> Iterator[Block]:
        self._text += self.decoder.decode(b"", final=True).encode()
        yield from self._drain(final=True)
        yield from self._cut_exactly("", final=True)

    def _drain(self, *, final: bool) -> Iterator[Block]:
        text, position = self._text, self._skip_lines()
        while position < len(text) and not self._lines_to_skip:
            end = position if self._reader_waits else self._plain.end(text, position)
            if end - position >= _MIN_PLAIN_BYTES:
                yield from self._regular(text[position:end])
                position = end
            elif final or self._reader_waits or len(text) - position >= _EXACT_BYTES:
                piece = _first_piece(text, position)
                yield from self._cut_exactly(piece.decode())
                position += len(piece)
                if not self._reader_waits:
                    # Arrow may be able to continue after the last record.
                    position -= len(self._reader.take_rest().encode())
            elif end > position:
                yield from self._cut_exactly(text[position:end].decode())
                position = end
            else:
                break
        self._text = text[position:]
        rest = len(self._text)
        self._retry_at = rest + rest // 4 if rest > _MIN_PLAIN_BYTES else 0

    def _skip_lines(self) -> int:
        """Return the start of the first line to read, or the end of the text if more lines must be skipped."""
        position, text = 0, self._text
        while self._lines_to_skip:
            found = text.find(self._record, position)
            if found < 0:
                # A multi-character record separator may begin at the end of the text.
                return max(position, len(text) - len(self._record) + 1)
            position = found + len(self._record)
            self._lines_to_skip -= 1
        return position

    def _regular(self, text: bytes) -> Iterator[Block]:
        """Yield blocks of complete records, read by Arrow if possible."""
        batch = self._plain.batch(text)
        if batch is not None:
            if batch.num_rows:
                yield Block(self._records + 1, batch)
            self._records += batch.num_rows
            return
        position = 0
        while position < len(text):
            piece = _first_piece(text, position)
            yield from self._cut_exactly(piece.decode())
            position += len(piece)
        self._reader_waits = False

    def _cut_exactly(self, text: str, *, final: bool = False) -> Iterator[Block]:
        before = self._records
        for records in self._reader.parts(text, final=final):
            first = self._reader.records - len(records) + 1
            unclosed = [number - first for number in self._reader.unclosed]
            yield build_block(records, self._records + 1, self._width, unclosed)
            self._records += len(records)
        self._reader_waits = self._records == before and self._reader.is_waiting


def _first_piece(text: bytes, start: int) -> bytes:
    """Return a piece of text from `start` that ends with a line feed if possible, otherwise between characters."""
    end = min(start + _EXACT_BYTES, len(text))
    if end < len(text):
        end = text.rfind(b"\n", start, end) + 1 or end
        while text[end] & 0xC0 == 0x80:
            end -= 1
    return text[start:end]


def build_block(records: list[Record], first_record: int, width: int, unclosed: Sequence[int]) -> Block:
    wider_rows = [row for row, cells in enumerate(records) if len(cells) > width]
    long_rows = [row for row in wider_rows if not all(map(_is_blank_cell, records[row][width:]))]
    short_rows = [row for row, cells in enumerate(records) if len(cells) < width]
    rows = [[*cells[:width], *[""] * (width - len(cells))] for cells in records]
    arrays = [pa.array(map(_cell_or_null, column), pa.string(), size=len(rows)) for column in zip(*rows, strict=True)]
    names = [str(position) for position in range(width)]
    columns = pa.RecordBatch.from_arrays(arrays, names=names)
    return Block(first_record, columns, long_rows, short_rows, unclosed, wider_rows)


def _is_blank_cell(cell: str) -> bool:
    return not cell.strip(BLANKS)


def _cell_or_null(cell: str) -> str | None:
    if type(cell) is not QuotedText and (not cell or cell.strip(BLANKS).lower() == "null"):
        return None
    return cell
