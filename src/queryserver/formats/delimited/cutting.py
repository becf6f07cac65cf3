"""Patterns for delimited text (Contract importer 8.2), and two record readers: field by field, and with Arrow."""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import pyarrow as pa
from pyarrow import csv as pyarrow_csv

from queryserver.errors.base import InvalidRequest
from queryserver.errors.files import record_too_long, too_many_columns
from queryserver.formats.table_files import (
    BLANKS,
    MAX_COLUMNS,
    MAX_FIELD_CHARACTERS,
    MAX_RECORD_CHARACTERS,
    Delimiters,
    QuotedText,
)

LOOK_AHEAD_CHARACTERS = 2 * MAX_FIELD_CHARACTERS
"""A quote counts as unclosed if it is not closed within this distance, which suffices for a field of doubled quotes."""
MAX_PIECE_BYTES = MAX_FIELD_CHARACTERS
"""A piece of at most this size cannot contain a field that is too long."""

_NULL_WORDS = tuple(map("".join, product("nN", "uU", "lL", "lL")))
_SUBSTITUTES = tuple(bytes([code]) for code in (*range(0x1F, 0x1B, -1), *range(1, 9), *range(0x0E, 0x1C)))
"""Control characters that replace a multi-character separator for Arrow. Few texts contain any of them."""

_BLANKS = " \t\f\v"
_NULL_MARK = r"\N"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Grammar:
    """Patterns for the fields of a text. They backtrack only over blanks, so matching takes linear time."""

    field: re.Pattern[str]
    """A whole field and its end.

    Groups: the content of a quoted field; the text of an unquoted field; the text of a field whose closing quote is
    followed by other text; the end.
    """
    end: re.Pattern[str]
    """The end of an unquoted field, as a group. If there is an escape character, the whole field and its end.

    CR LF is a single end if records end with LF.
    """
    opening: re.Pattern[str]
    blanks: re.Pattern[str]
    closing: re.Pattern[str]
    """The content of a quoted field, as a group in which quotes are still doubled, and the closing quote."""
    after: re.Pattern[str]
    """The text after a closing quote, up to and including the end of the field. The end is the group."""
    longest_end: int
    special: re.Pattern[str] | None
    """Doubled quotes and, in the second group, escape sequences; None if there is no escape character."""
    splits: bool
    """Whether text without quotes can be split at record ends and then at separators, because these never overlap."""


@lru_cache(maxsize=256)
def compile_grammar(delimiters: Delimiters) -> Grammar:
    separator = re.escape(delimiters.field)
    record = r"\r?\n" if delimiters.record == "\n" else re.escape(delimiters.record)
    end = f"{record}|{separator}"
    ends_by_character = len(delimiters.field) == 1 and len(delimiters.record) == 1 and delimiters.field != "\r"
    escape = re.escape(delimiters.escape or "")
    # The text up to an end. If CR LF is an end, this text still includes the CR.
    one = f"(?:{escape}.|[^{escape}])" if escape else "."
    plain = f"[^{re.escape(delimiters.field + delimiters.record)}{escape}]*+"
    by_character = f"{plain}(?:{escape}.{plain})*+" if escape else plain
    unquoted = by_character if ends_by_character else f"{one}*?(?={end})"
    blanks = "" if " " in {delimiters.field, delimiters.quote} else " *"
    if delimiters.quote is None:
        opening = content = "(?!)"
        field = f"(?:(?!)()|({unquoted})|(?!)())({end})"
    else:
        quote = re.escape(delimiters.quote)
        opening = blanks + quote
        paired = f"{quote}{quote}|{escape}." if escape else quote * 2
        inside = f"[^{quote}{escape}]*+(?:(?:{paired})[^{quote}{escape}]*+)*+"
        content = f"({inside}){quote}"
        is_plain = blanks and ends_by_character
        followed = f" *+[^ \r{re.escape(delimiters.field + delimiters.record)}]" if is_plain else "(?!)"
        broken = f"(?={opening}{inside}{quote}{followed})({unquoted})"
        field = f"(?:{opening}{content}{blanks}|(?!{opening})({unquoted})|{broken})({end})"
    # If both have several characters, the end of a field separator may be the beginning of a record end.
    is_overlap = min(len(delimiters.field), len(delimiters.record)) > 1 and any(
        delimiters.field.endswith(delimiters.record[:length]) for length in range(1, len(delimiters.record))
    )
    return Grammar(
        field=re.compile(field, re.DOTALL),
        end=re.compile(f"{unquoted if escape else ''}({end})", re.DOTALL),
        opening=re.compile(opening),
        blanks=re.compile(blanks),
        closing=re.compile(content),
        after=re.compile(f"{blanks}({end})"),
        special=_special(delimiters),
        longest_end=max(len(delimiters.field), len(delimiters.record), 2),
        splits=not is_overlap,
    )


_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}


def _special(delimiters: Delimiters) -> re.Pattern[str] | None:
    if not delimiters.escape:
        return None
    escape = re.escape(delimiters.escape)
    meant = "|".join(re.escape(one) for one in {delimiters.escape, *delimiters.field, *delimiters.record, "\r", "\n"})
    controls = "|[nrt]" if delimiters.escape == "\\" else ""
    if delimiters.quote is None:
        return re.compile(f"(?!)()|{escape}({meant}{controls})")
    quote = re.escape(delimiters.quote)
    return re.compile(f"({quote})?{quote}|{escape}({meant}|{quote}{controls})")


def table_too_wide() -> InvalidRequest:
    return too_many_columns(f"The file has more than {MAX_COLUMNS} columns.")


def field_too_long() -> InvalidRequest:
    return record_too_long(f"A field is larger than {MAX_FIELD_CHARACTERS // 1024**2} MiB.")


def whole_record_too_long() -> InvalidRequest:
    return record_too_long(f"A record is larger than {MAX_RECORD_CHARACTERS // 1024**2} MiB.")


class _UnfinishedError(Exception):
    """The text ends within a record."""


class RecordCutter:
    """Cuts a text into records, one record and field at a time."""

    __slots__ = (
        "_delimiters",
        "_final",
        "_grammar",
        "_max_columns",
        "_text",
        "cells",
        "quoted_fields",
        "unclosed_fields",
    )

    def __init__(self, delimiters: Delimiters, *, max_columns: int = MAX_COLUMNS) -> None:
        self._delimiters = delimiters
        self._max_columns = max_columns
        self._grammar: Grammar = compile_grammar(delimiters)
        self._text = ""
        self._final = False
        self.cells: list[str] = []
        self.quoted_fields = 0
        self.unclosed_fields = 0
        """Number of fields with an unclosed quote in the most recent record."""

    def cut(self, text: str, start: int, *, final: bool) -> int | None:
        """Cut the record at `start` into `cells` and return its end.

        Return None if more text is needed, which never happens if `final` is set.

        Raises record_too_long or too_many_columns.
        """
        self._text, self._final = text, final
        self.cells, self.quoted_fields, self.unclosed_fields = [], 0, 0
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
        """Read regular fields with one pattern. Read irregular fields, and fields after the first MiB, one by one."""
        separator = self._delimiters.field
        match_field = self._grammar.field.match
        text, position = self._text, start
        limit = start + MAX_FIELD_CHARACTERS
        # What looks like a separator just before the limit may be the beginning of a record end.
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
                self.unclosed_fields += 1
                self._add(broken, end)
            is_end = end != separator
        return position

    def _read_field(self, position: int) -> tuple[int, bool]:
        """Read one field. Return the position after it, and whether the record ends there."""
        opened = self._grammar.opening.match(self._text, position)
        if opened is not None:
            end = self._read_quoted(opened.end())
            if end is not None:
                return end
            self.unclosed_fields += 1
        return self._read_unquoted(position)

    def _read_quoted(self, start: int) -> tuple[int, bool] | None:
        """Read a field after its opening quote. Return None if the quote is not closed, or if its closing quote is
        followed by other text.
        """
        text, limit = self._text, start + LOOK_AHEAD_CHARACTERS
        closed = self._grammar.closing.match(text, start, limit)
        if closed is None:
            self._require_length(limit)
            return None
        self._require_length(closed.end() + 1)
        if closed.end() == limit and text[limit : limit + 1] == self._delimiters.quote:
            return None
        after = self._grammar.after.match(text, closed.end())
        if after is not None:
            self._add_quoted(closed[1])
            return after.end(), after[1] != self._delimiters.field
        blanks = self._grammar.blanks.match(text, closed.end())
        blanks_end = closed.end() if blanks is None else blanks.end()
        self._require_length(blanks_end + self._grammar.longest_end)
        if blanks_end < len(text):
            return None
        self._add_quoted(closed[1])
        return blanks_end, True

    def _read_unquoted(self, position: int) -> tuple[int, bool]:
        text = self._text
        find_end = self._grammar.end.search if self._delimiters.escape is None else self._grammar.end.match
        end = find_end(text, position)
        if end is None:
            self._require_length(len(text) + 1)
            self._add(text[position:], "")
            return len(text), True
        self._add(text[position : end.start(1)], end[1])
        return end.end(), end[1] != self._delimiters.field

    def _require_length(self, length: int) -> None:
        """Raise _UnfinishedError if the text is shorter than `length` and more text can follow."""
        if len(self._text) < length and not self._final:
            raise _UnfinishedError

    def _add(self, text: str, end: str) -> None:
        if end == "\n" == self._delimiters.record and text.endswith("\r"):
            # If record ends are single characters, the pattern includes the CR before LF in the field.
            text = text[:-1]
        escape = self._delimiters.escape
        self._append(self._unescaped(text) if escape is not None and escape in text else text)

    def _add_quoted(self, content: str) -> None:
        quote, escape = self._delimiters.quote or "", self._delimiters.escape
        if escape is not None and escape in content:
            text = self._unescaped(content, is_quoted=True)
        else:
            text = content.replace(quote * 2, quote)
        bare = text.strip(BLANKS)
        self._append(QuotedText(text) if not bare or bare.lower() == "null" else text)
        self.quoted_fields += 1

    def _unescaped(self, text: str, *, is_quoted: bool = False) -> str:
        """Replace escape sequences. `\\N` is kept, and so is an escape character before an ordinary character."""
        special = self._grammar.special
        if special is None or text == _NULL_MARK:
            return text

        def meant(found: re.Match[str]) -> str:
            if (escaped := found[2]) is not None:
                return _CONTROLS.get(escaped, escaped)
            return found[1] if is_quoted and found[1] else found[0]

        return special.sub(meant, text)

    def _append(self, cell: str) -> None:
        cells = self.cells
        if len(cells) == self._max_columns:
            raise table_too_wide()
        if len(cell) > MAX_FIELD_CHARACTERS:
            raise field_too_long()
        cells.append(cell)


def _regular_records_pattern(delimiters: Delimiters) -> re.Pattern[bytes] | None:
    """Return a pattern for a run of regular records, or None if Arrow might read quoted fields differently."""
    field, quote = delimiters.field, delimiters.quote or ""
    is_simple = len(field) == 1 and field.isascii() and field not in "\r\0" and delimiters.record == "\n"
    if not (is_simple and quote and quote.isascii() and quote not in " \r\0"):
        return None
    separator, quote = re.escape(field), re.escape(quote)
    whole = rf"(?<![^{separator}\n]){quote}[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+{quote}(?={separator}|\r?\n)"
    within = rf"(?<=[^{separator}\n ]){quote}"
    if field != " ":
        within += rf"|(?<=[^{separator}\n ] ){quote}"
    return re.compile(rf"(?:[^{quote}\n]*+(?:(?:{whole}|{within})[^{quote}\n]*+)*+\n)*+".encode())


class ArrowCsvReader:
    """Reads UTF-8 text with Arrow's CSV reader, for fixed delimiters and width. Records must end with LF or CR."""

    def __init__(self, delimiters: Delimiters, width: int, *, comment: str = "") -> None:
        self._escape = (delimiters.escape or "").encode()
        self._comment = comment.encode()
        self._field = delimiters.field.encode()
        self._record = delimiters.record.encode()
        self._quote = (delimiters.quote or "").encode()
        self._quote_char = delimiters.quote
        self._regular_records = _regular_records_pattern(delimiters)
        self._needs_substitute = len(self._field) > 1 or self._field == b"\0"
        self._is_supported = (
            compile_grammar(delimiters).splits
            and delimiters.record in {"\n", "\r"}
            and not {"\n", "\r"} & set(delimiters.field)
        )
        blanks = "".join(blank for blank in _BLANKS if blank != delimiters.field)
        separator = re.escape(delimiters.field)
        self._padded_null = re.compile(
            rf"(?:^|{separator})(?:[{blanks}]+null[{blanks}]*|null[{blanks}]+)(?:{separator}|\r?$)".encode(),
            re.MULTILINE,
        )
        self._near_null = tuple(near for blank in blanks for near in (f"{blank}null".encode(), f"null{blank}".encode()))
        self._blank_line = re.compile(rf"^[{_BLANKS}]+\r?$".encode(), re.MULTILINE) if width == 1 else None
        self._width = width
        self._blank_ends = 0
        """Number of empty fields after the last column in the records of the most recent batch."""
        self._names = [str(position) for position in range(width + 1)]
        self._convert = pyarrow_csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(self._names, pa.string()),
            null_values=["", *_NULL_WORDS],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def end(self, text: bytes, start: int) -> int:
        """Return the end of the records from `start` that `batch` can probably read, or `start` if there are none.

        The records have at most MAX_PIECE_BYTES in total.
        """
        if not self._is_supported:
            return start
        limit = min(start + MAX_PIECE_BYTES, len(text))
        if self._escape and (escaped := text.find(self._escape, start, limit)) >= 0:
            limit = escaped
        quote = text.find(self._quote, start, limit) if self._quote else -1
        if quote >= 0 and self._regular_records is not None:
            found = self._regular_records.match(text, start, limit)
            return start if found is None else found.end()
        return text.rfind(self._record, start, limit if quote < 0 else quote) + 1 or start

    def batch(self, text: bytes) -> pa.RecordBatch | None:
        """Read records as columns. Return None if Arrow would read them incorrectly or their widths differ."""
        if text.startswith(_BYTE_ORDER_MARK) or not self._is_plain(text):
            return None
        if self._comment and (text.startswith(self._comment) or self._record + self._comment in text):
            return None
        delimiter = self._field
        if self._needs_substitute:
            delimiter = next((sign for sign in _SUBSTITUTES if sign not in text), b"")
            if not delimiter:
                return None
            text = text.replace(self._field, delimiter)
        if self._record == b"\r":
            text = text.replace(b"\r", b"\n")
        ends_blank = text.endswith((delimiter + b"\n", delimiter + b"\r\n"))
        for blank_ends in (self._blank_ends, 1 - self._blank_ends) if ends_blank else (0,):
            batch = self._read(text, delimiter.decode(), self._width + blank_ends)
            if batch is not None and (not blank_ends or batch.column(self._width).null_count == batch.num_rows):
                self._blank_ends = blank_ends
                return batch.select(range(self._width)) if blank_ends else batch
        return None

    def _read(self, text: bytes, delimiter: str, width: int) -> pa.RecordBatch | None:
        has_quotes = bool(self._quote) and self._quote in text
        names = self._names[:width]
        try:
            table = pyarrow_csv.read_csv(
                pa.BufferReader(text),
                pyarrow_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
                pyarrow_csv.ParseOptions(
                    delimiter=delimiter,
                    quote_char=self._quote_char if has_quotes else False,
                    double_quote=True,
                    escape_char=False,
                    newlines_in_values=has_quotes,
                ),
                self._convert,
            )
        except pa.ArrowInvalid:
            # The records have another width, or all lines are blank.
            return None
        batches = table.combine_chunks().to_batches()
        return batches[0] if len(batches) == 1 else None

    def _is_plain(self, text: bytes) -> bool:
        """Return whether Arrow recognizes the same lines, blank lines and nulls as RecordReader."""
        if self._record == b"\r":
            if b"\n" in text:
                return False
        elif b"\r" in text and text.count(b"\r") != text.count(b"\r\n"):
            return False
        if self._blank_line is not None and self._blank_line.search(text):
            return False
        lowered = text.lower()
        if b"null" in lowered and any(near in lowered for near in self._near_null):
            return self._padded_null.search(lowered) is None
        return True
