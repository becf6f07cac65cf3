"""Regular pieces of delimited text by Arrow's CSV reader, which reads them as the exact reader does."""

import re
from itertools import product

import pyarrow as pa
from pyarrow import csv

from queryserver.domain.importing import MAX_FIELD_CHARACTERS, Delimiters
from queryserver.formats.delimited.grammar import grammar_of
from queryserver.formats.delimited.regular import are_simple, regular_bytes

MAX_PIECE_BYTES = MAX_FIELD_CHARACTERS
"""No field of a piece of this size is too long."""

_NULL_WORDS = tuple(map("".join, product("nN", "uU", "lL", "lL")))
_SUBSTITUTES = tuple(bytes([code]) for code in (*range(0x1F, 0x1B, -1), *range(1, 9), *range(0x0E, 0x1C)))
"""Control characters that may stand for separators of several characters; few texts hold any."""

_BLANKS = " \t\f\v"
_MARK = b"\xef\xbb\xbf"


class PlainReader:
    """Reads pieces of UTF-8 text of one set of delimiters and one width. Records end at LF, or at CR."""

    def __init__(self, delimiters: Delimiters, width: int) -> None:
        self._field = delimiters.field.encode()
        self._record = delimiters.record.encode()
        self._quote = (delimiters.quote or "").encode()
        self._quote_char = delimiters.quote
        self._regular = regular_bytes(delimiters) if are_simple(delimiters) else None
        self._needs_substitute = len(self._field) > 1 or self._field == b"\0"
        self._is_able = (
            grammar_of(delimiters).splits
            and delimiters.record in {"\n", "\r"}
            and not {"\n", "\r"} & set(delimiters.field)
        )
        blanks, separator = (
            "".join(blank for blank in _BLANKS if blank != delimiters.field),
            re.escape(delimiters.field),
        )
        self._padded_null = re.compile(
            rf"(?:^|{separator})(?:[{blanks}]+null[{blanks}]*|null[{blanks}]+)(?:{separator}|\r?$)".encode(),
            re.MULTILINE,
        )
        self._near_null = tuple(near for blank in blanks for near in (f"{blank}null".encode(), f"null{blank}".encode()))
        self._blank_line = re.compile(rf"^[{_BLANKS}]+\r?$".encode(), re.MULTILINE) if width == 1 else None
        self._names = [str(position) for position in range(width)]
        self._convert = csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(self._names, pa.string()),
            null_values=["", *_NULL_WORDS],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def end(self, text: bytes, start: int) -> int:
        """Where the records end that begin at `start` and that `batch` may be able to read; `start` if there are none.

        What is between is whole records, at most MAX_PIECE_BYTES.
        """
        if not self._is_able:
            return start
        limit = min(start + MAX_PIECE_BYTES, len(text))
        quote = text.find(self._quote, start, limit) if self._quote else -1
        if quote >= 0 and self._regular is not None:
            found = self._regular.match(text, start, limit)
            return start if found is None else found.end()
        return text.rfind(self._record, start, limit if quote < 0 else quote) + 1 or start

    def batch(self, text: bytes) -> pa.RecordBatch | None:
        """The records as columns; None if Arrow would read them otherwise than they are, or their widths differ."""
        if text.startswith(_MARK) or not self._is_plain(text):
            return None
        delimiter = self._field
        if self._needs_substitute:
            delimiter = next((sign for sign in _SUBSTITUTES if sign not in text), b"")
            if not delimiter:
                return None
            text = text.replace(self._field, delimiter)
        if self._record == b"\r":
            text = text.replace(b"\r", b"\n")
        has_quotes = bool(self._quote) and self._quote in text
        try:
            table = csv.read_csv(
                pa.BufferReader(text),
                csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=self._names),
                csv.ParseOptions(
                    delimiter=delimiter.decode(),
                    quote_char=self._quote_char if has_quotes else False,
                    double_quote=True,
                    escape_char=False,
                    newlines_in_values=has_quotes,
                ),
                self._convert,
            )
        except pa.ArrowInvalid:
            # Records of another width, or nothing but blank lines.
            return None
        batches = table.combine_chunks().to_batches()
        return batches[0] if len(batches) == 1 else None

    def _is_plain(self, text: bytes) -> bool:
        """Whether Arrow sees the same lines, blank lines and nulls as we do."""
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
