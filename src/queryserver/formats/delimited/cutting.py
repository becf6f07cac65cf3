"""One record of delimited text, field by field (Contract importer 8.2): for records that hold a quote."""

from queryserver.domain.errors.base import InvalidRequest
from queryserver.domain.errors.files import record_too_long, too_many_columns
from queryserver.domain.importing import (
    MAX_COLUMNS,
    MAX_FIELD_CHARACTERS,
    MAX_RECORD_CHARACTERS,
    Delimiters,
    QuotedText,
)
from queryserver.formats.delimited.grammar import BLANKS, Grammar, grammar_of

LOOK_AHEAD_CHARACTERS = 2 * MAX_FIELD_CHARACTERS
"""A quote that does not close within this many characters never closes. So much a field of doubled quotes may need."""


def table_too_wide() -> InvalidRequest:
    """What a record of too many cells raises."""
    return too_many_columns(f"The file has more than {MAX_COLUMNS} columns.")


def field_too_long() -> InvalidRequest:
    """What a cell of too many characters raises."""
    return record_too_long(f"A field has more than {MAX_FIELD_CHARACTERS // 1024**2} MiB.")


def whole_record_too_long() -> InvalidRequest:
    """What a record of too many characters raises."""
    return record_too_long(f"A record has more than {MAX_RECORD_CHARACTERS // 1024**2} MiB.")


class _UnfinishedError(Exception):
    """The text ends too early."""


class RecordCutter:
    """Cuts one record after the other out of texts."""

    __slots__ = ("_delimiters", "_final", "_grammar", "_max_columns", "_text", "broken", "cells", "quoted")

    def __init__(self, delimiters: Delimiters, *, max_columns: int = MAX_COLUMNS) -> None:
        self._delimiters = delimiters
        self._max_columns = max_columns
        self._grammar: Grammar = grammar_of(delimiters)
        self._text = ""
        self._final = False
        self.cells: list[str] = []
        """The record that was cut last."""
        self.quoted = 0
        """Its fields that are quoted."""
        self.broken = 0
        """Its fields with a quote that opens and does not close."""

    def cut(self, text: str, start: int, *, final: bool) -> int | None:
        """Where the record at `start` ends; None: it takes more text to tell, which is never so with `final`.

        Raises record_too_long, too_many_columns.
        """
        self._text, self._final = text, final
        self.cells, self.quoted, self.broken = [], 0, 0
        try:
            end = self._read(start)
        except _UnfinishedError:
            return None
        finally:
            self._text = ""
        if end - start > MAX_RECORD_CHARACTERS:
            raise whole_record_too_long()
        return end

    def _read(self, start: int) -> int:
        """Reads fields in good order by one pattern, the others and those beyond the first MiB one by one."""
        separator = self._delimiters.field
        match_field = self._grammar.field.match
        text, position = self._text, start
        limit = start + MAX_FIELD_CHARACTERS
        # What the pattern takes for a separator just before its limit may be the beginning of a record end.
        trusted = limit - self._grammar.longest_end if limit < len(text) else len(text)
        is_end = False
        while not is_end:
            match = match_field(text, position, limit)
            if match is None or match.end() > trusted:
                position, is_end = self._read_field(position)
                continue
            position = match.end()
            content, unquoted, broken, end = match.groups()
            if content is not None:
                self._add_quoted(content)
            elif unquoted is not None:
                self._add(unquoted, end)
            else:
                self.broken += 1
                self._add(broken, end)
            is_end = end != separator
        return position

    def _read_field(self, position: int) -> tuple[int, bool]:
        """Reads one field; returns where the next one begins, and whether the record ends there."""
        opened = self._grammar.opening.match(self._text, position)
        if opened is not None:
            end = self._read_quoted(opened.end())
            if end is not None:
                return end
            self.broken += 1
        return self._read_unquoted(position)

    def _read_quoted(self, start: int) -> tuple[int, bool] | None:
        """Reads a field from behind its opening quote; None: it does not close, or not in good order."""
        text, limit = self._text, start + LOOK_AHEAD_CHARACTERS
        closed = self._grammar.closing.match(text, start, limit)
        if closed is None:
            self._need(limit)
            return None
        self._need(closed.end() + 1)
        if closed.end() == limit and text[limit : limit + 1] == self._delimiters.quote:
            return None
        after = self._grammar.after.match(text, closed.end())
        if after is not None:
            self._add_quoted(closed[1])
            return after.end(), after[1] != self._delimiters.field
        blanks = self._grammar.blanks.match(text, closed.end())
        blanks_end = closed.end() if blanks is None else blanks.end()
        self._need(blanks_end + self._grammar.longest_end)
        if blanks_end < len(text):
            return None
        self._add_quoted(closed[1])
        return blanks_end, True

    def _read_unquoted(self, position: int) -> tuple[int, bool]:
        text = self._text
        end = self._grammar.end.search(text, position)
        if end is None:
            self._need(len(text) + 1)
            self._add(text[position:], "")
            return len(text), True
        self._add(text[position : end.start()], end[0])
        return end.end(), end[0] != self._delimiters.field

    def _need(self, length: int) -> None:
        """Raises _UnfinishedError if more text may come and what is there is shorter than this."""
        if len(self._text) < length and not self._final:
            raise _UnfinishedError

    def _add(self, text: str, end: str) -> None:
        if end == "\n" == self._delimiters.record and text.endswith("\r"):
            # Where single characters end fields, the pattern takes the CR before LF for part of the field.
            text = text[:-1]
        self._append(text)

    def _add_quoted(self, content: str) -> None:
        quote = self._delimiters.quote or ""
        text = content.replace(quote * 2, quote)
        bare = text.strip(BLANKS)
        self._append(QuotedText(text) if not bare or bare.lower() == "null" else text)
        self.quoted += 1

    def _append(self, cell: str) -> None:
        cells = self.cells
        if len(cells) == self._max_columns:
            raise table_too_wide()
        if len(cell) > MAX_FIELD_CHARACTERS:
            raise field_too_long()
        cells.append(cell)
