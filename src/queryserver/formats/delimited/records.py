"""Records of delimited text, exactly as Contract importer 8 cuts them, whatever the pieces in which the text comes.

Text without quotes is split in bulk; a record that holds a quote is cut field by field. Every text is read a bounded
number of times: a quote that does not close is known not to close before the next quote that stands alone, so no two
broken fields look over the same text.
"""

from collections.abc import Iterator

from queryserver.domain.importing import (
    MAX_COLUMNS,
    MAX_FIELD_CHARACTERS,
    MAX_RECORD_CHARACTERS,
    Delimiters,
    QuotedText,
)
from queryserver.formats.delimited.cutting import RecordCutter, field_too_long, table_too_wide, whole_record_too_long
from queryserver.formats.delimited.grammar import BLANKS, Grammar, grammar_of
from queryserver.formats.delimited.regular import RegularText, are_simple

_WAIT_CHARACTERS = 64 * 1024
"""Unfinished text longer than this is looked at again only when a quarter of it has been added."""

_SPLIT_CHARACTERS = 256 * 1024
"""How much is split at once, but for the rest of the last record."""

_PART_RECORDS = 16 * 1024
"""A part of so many records is complete."""

Record = list[str]


class RecordReader:
    """Cuts text that is fed in pieces. One reader reads one text; it is used by one thread at a time.

    Raises record_too_long and too_many_columns; after that it is of no use.
    """

    def __init__(self, delimiters: Delimiters, *, counts_quotes: bool = False, max_columns: int = MAX_COLUMNS) -> None:
        """`counts_quotes`: keep `quotes`, which takes longer."""
        self._delimiters = delimiters
        self._grammar: Grammar = grammar_of(delimiters)
        self._regular = RegularText(delimiters) if are_simple(delimiters) and not counts_quotes else None
        self._cutter = RecordCutter(delimiters, max_columns=max_columns)
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

        Once it is told that a quote does not close, megabytes of short records come at once.
        """
        self.unclosed = []
        if text:
            self._waiting.append(text)
            self._waiting_characters += len(text)
        if not final and self._waiting_characters < self._retry_at:
            return
        whole = "".join(self._waiting)
        position, is_end = 0, False
        while not is_end:
            found: list[Record] = []
            self.unclosed = []
            position, is_end = self._read(whole, position, final, found)
            if found:
                yield found
        self._keep(whole[position:])

    @property
    def is_waiting(self) -> bool:
        """Whether there is text after the last record."""
        return bool(self._waiting)

    def take_rest(self) -> str:
        """The text after the last record, which the reader forgets."""
        rest = "".join(self._waiting)
        self._keep("")
        return rest

    def _keep(self, rest: str) -> None:
        self._waiting = [rest] if rest else []
        self._waiting_characters = len(rest)
        self._retry_at = len(rest) * 5 // 4 if len(rest) > _WAIT_CHARACTERS else 0
        if len(rest) > MAX_RECORD_CHARACTERS:
            raise whole_record_too_long()

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
            if self._regular is not None:
                end = self._regular.end(text, position)
                if end > position:
                    self._add(self._regular.records(text[position:end]), found)
                    position = end
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
        lines = text[position:limit].split(record)
        last = lines.pop()
        if record == "\n" and text.find("\r", position, limit) >= 0:
            lines = [line.removesuffix("\r") for line in lines]
        is_end = at < 0 and limit == len(text)
        if is_end and final and last:
            lines.append(last)
            last = ""
        if lines:
            self._add_lines(lines, found)
        return limit - len(last), is_end

    def _add_lines(self, lines: list[str], found: list[Record]) -> None:
        separator = self._delimiters.field
        records = [line.split(separator) for line in lines]
        if len(max(lines, key=len)) > MAX_FIELD_CHARACTERS:
            _check_lengths(records)
        self._add(records, found)

    def _add(self, records: list[Record], found: list[Record]) -> None:
        """Adds records but blank lines."""
        kept = [cells for cells in records if len(cells) > 1 or not _is_blank(cells)]
        if kept:
            if max(map(len, kept)) > self._max_columns:
                raise table_too_wide()
            self.records += len(kept)
            found += kept

    def _cut(self, text: str, start: int, final: bool, found: list[Record]) -> int | None:
        """Adds the record at `start`; returns where the next one begins, None if the record is not finished."""
        cutter = self._cutter
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


def _is_blank(cells: Record) -> bool:
    """Whether a record of one cell is a blank line; `""` is none."""
    return not cells or (type(cells[0]) is not QuotedText and not cells[0].strip(BLANKS))


def _check_lengths(records: list[Record]) -> None:
    for cells in records:
        if max(map(len, cells)) > MAX_FIELD_CHARACTERS:
            raise field_too_long()
        if sum(map(len, cells)) + len(cells) > MAX_RECORD_CHARACTERS:
            raise whole_record_too_long()
