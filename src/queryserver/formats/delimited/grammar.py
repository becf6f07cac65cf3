"""The patterns by which one set of delimiters cuts text, compiled once."""

import re
from dataclasses import dataclass
from functools import lru_cache

from queryserver.domain.importing import Delimiters

BLANKS = " \t\n\r\f\v"
"""What counts as blank around and in cells and lines; around quotes only U+0020 does (Contract importer 8.2)."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """Patterns over text. They go back over nothing but blanks, so all of them are linear."""

    field: re.Pattern[str]
    """One whole field and what ends it; groups are the quoted content, the unquoted text, the end.

    The third group, before the end, is the text of fields whose closing quote is followed by something else.
    """
    end: re.Pattern[str]
    """What ends a field; CR and LF are one end where records end at LF."""
    opening: re.Pattern[str]
    """Blanks and the quote at the beginning of a field."""
    blanks: re.Pattern[str]
    """Blanks that may stand around quotes."""
    closing: re.Pattern[str]
    """From behind the opening quote to behind the closing one; the group is the content, quotes still doubled."""
    after: re.Pattern[str]
    """From behind the closing quote to behind the end of the field; the group is the end."""
    longest_end: int
    """Characters of the longest end of a field."""
    splits: bool
    """Text without quotes may be split at record ends first, then at separators: the two never overlap."""


@lru_cache(maxsize=256)
def grammar_of(delimiters: Delimiters) -> Grammar:
    """The patterns of these delimiters."""
    separator = re.escape(delimiters.field)
    record = r"\r?\n" if delimiters.record == "\n" else re.escape(delimiters.record)
    end = f"{record}|{separator}"
    unquoted = _unquoted(delimiters, end)
    blanks = "" if " " in {delimiters.field, delimiters.quote} else " *"
    if delimiters.quote is None:
        opening = content = "(?!)"
        field = f"(?:(?!)()|({unquoted})|(?!)())({end})"
    else:
        quote = re.escape(delimiters.quote)
        opening = blanks + quote
        inside = f"[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+"
        content = f"({inside}){quote}"
        is_plain = blanks and _ends_by_character(delimiters)
        followed = f" *+[^ \r{re.escape(delimiters.field + delimiters.record)}]" if is_plain else "(?!)"
        broken = f"(?={opening}{inside}{quote}{followed})({unquoted})"
        field = f"(?:{opening}{content}{blanks}|(?!{opening})({unquoted})|{broken})({end})"
    return Grammar(
        field=re.compile(field, re.DOTALL),
        end=re.compile(end),
        opening=re.compile(opening),
        blanks=re.compile(blanks),
        closing=re.compile(content),
        after=re.compile(f"{blanks}({end})"),
        longest_end=max(len(delimiters.field), len(delimiters.record), 2),
        splits=not _overlap(delimiters.field, delimiters.record),
    )


def _unquoted(delimiters: Delimiters, end: str) -> str:
    """The text up to an end; where CR and LF are one end, a CR before LF is still in it."""
    if _ends_by_character(delimiters):
        return f"[^{re.escape(delimiters.field + delimiters.record)}]*+"
    return f".*?(?={end})"


def _ends_by_character(delimiters: Delimiters) -> bool:
    return len(delimiters.field) == 1 and len(delimiters.record) == 1 and delimiters.field != "\r"


def _overlap(field: str, record: str) -> bool:
    """Whether a field separator may end with what a record end begins with, both longer than a character."""
    if len(field) == 1 or len(record) == 1:
        return False
    return any(field.endswith(record[:length]) for length in range(1, len(record)))
