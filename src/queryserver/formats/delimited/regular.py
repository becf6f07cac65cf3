"""Records whose quotes are all in good order: others' fast parsers read them as Contract importer 8.2 does.

In good order is a record in which every quote either encloses a whole field, without blanks around it, or stands in
the middle of an unquoted one. Delimiters are one ASCII character each, records end at LF.
"""

import csv
import re
from functools import lru_cache

from queryserver.domain.importing import MAX_FIELD_CHARACTERS, Delimiters, QuotedText
from queryserver.formats.delimited.grammar import BLANKS


def are_simple(delimiters: Delimiters) -> bool:
    """Whether the patterns of this file fit these delimiters."""
    quote = delimiters.quote
    return (
        len(delimiters.field) == 1
        and delimiters.field.isascii()
        and delimiters.field not in "\r\0"
        and delimiters.record == "\n"
        and quote is not None
        and quote.isascii()
        and quote not in " \r\0"
    )


@lru_cache(maxsize=256)
def regular_text(delimiters: Delimiters) -> re.Pattern[str]:
    """Matches as many whole regular records as follow one another."""
    return re.compile(_pattern(delimiters))


@lru_cache(maxsize=256)
def regular_bytes(delimiters: Delimiters) -> re.Pattern[bytes]:
    """The same for UTF-8."""
    return re.compile(_pattern(delimiters).encode())


def _pattern(delimiters: Delimiters) -> str:
    separator, quote = re.escape(delimiters.field), re.escape(delimiters.quote or "")
    whole = rf"(?<![^{separator}\n]){quote}[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+{quote}(?={separator}|\r?\n)"
    within = rf"(?<=[^{separator}\n ]){quote}"
    if delimiters.field != " ":
        within += rf"|(?<=[^{separator}\n ] ){quote}"
    return rf"(?:[^{quote}\n]*+(?:(?:{whole}|{within})[^{quote}\n]*+)*+\n)*+"


class RegularText:
    """Reads regular records of text."""

    def __init__(self, delimiters: Delimiters) -> None:
        self._delimiters = delimiters
        self._prefix = regular_text(delimiters)
        separator, quote = re.escape(delimiters.field), re.escape(delimiters.quote or "")
        bare = rf"[{BLANKS}]*+(?:null[{BLANKS}]*+)?"
        self._quoted_nothing = re.compile(
            rf"(?<![^{separator}\n]){quote}{bare}{quote}(?={separator}|\r?\n)", re.IGNORECASE
        )
        self._fields = re.compile(
            rf"({quote}[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+{quote}|[^{separator}\n]*+)({separator}|\r?\n)"
        )

    def end(self, text: str, start: int) -> int:
        """Where the regular records end that begin at `start`; one of more than 1 MiB is none."""
        found = self._prefix.match(text, start, start + MAX_FIELD_CHARACTERS)
        return start if found is None else found.end()

    def records(self, text: str) -> list[list[str]]:
        """The records of a text of regular records; blank lines are `[]`, or hold one blank cell."""
        if "\r" in text and text.count("\r") != text.count("\r\n"):
            return self._by_field(text)
        if self._quoted_nothing.search(text):
            return self._by_field(text)
        try:
            return list(csv.reader(_lines(text), delimiter=self._delimiters.field, quotechar=self._delimiters.quote))
        except csv.Error:
            return self._by_field(text)

    def _by_field(self, text: str) -> list[list[str]]:
        separator, quote = self._delimiters.field, self._delimiters.quote or ""
        records: list[list[str]] = []
        cells: list[str] = []
        for raw, end in self._fields.findall(text):
            if raw[:1] == quote:
                content = raw[1:-1].replace(quote * 2, quote)
                bare = content.strip(BLANKS)
                cells.append(QuotedText(content) if not bare or bare.lower() == "null" else content)
            else:
                cells.append(raw[:-1] if end == "\n" and raw[-1:] == "\r" else raw)
            if end != separator:
                records.append(cells)
                cells = []
        return records


def _lines(text: str) -> list[str]:
    """Lines with their LF, and no other ends of lines."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines.pop()
    return lines
