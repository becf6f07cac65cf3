"""Dates and numbers that are not written in the plain forms: their formats, and which one a column has.

Formats of dates and timestamps are those of strftime, with `%Y %y %m %d %b %B %H %I %M %S %f %p` and any other
characters between them. Formats of numbers are the number 1234.5 as the file writes it (Contract importer 12.5).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from types import MappingProxyType

import pyarrow as pa

from queryserver.formats.arrow import kernels
from queryserver.formats.cell_types.classes import (
    ColumnFacts,
    column_type,
    facts_of_array,
    facts_of_cells,
    facts_of_text,
    is_null_word,
)
from queryserver.formats.columns import BaseType
from queryserver.formats.table_files import BLANKS, CellKind, TypedText

MAX_FORMAT_CHARACTERS = 64

_TEXTS = frozenset({CellKind.TEXT, CellKind.NULL})

MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip


class UnknownFormat(ValueError):
    """A text that is no format of values; the message is the reason."""


@dataclass(frozen=True, slots=True)
class DateFormat:
    """A format of dates, or with `has_time` of timestamps.

    `pattern` matches a whole cell for Python's `re` and for RE2. Its groups are named by the directives.
    """

    text: str
    pattern: str
    directives: frozenset[str]

    @property
    def has_time(self) -> bool:
        return bool(self.directives & {"H", "I"})


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A format of numbers. `groups`: the characters that may separate groups of three digits; empty without groups."""

    text: str
    point: str
    groups: str = ""

    @property
    def pattern(self) -> str:
        """Matches a whole cell for Python's `re` and for RE2."""
        point = re.escape(self.point)
        plain = "(?:0|[1-9][0-9]*)"
        whole = plain
        if self.groups:
            # A number uses one character only: RE2 has no references back, so there is a branch for each.
            grouped = "|".join(f"[1-9][0-9]{{0,2}}(?:{re.escape(mark)}[0-9]{{3}})+" for mark in self.groups)
            whole = f"(?:{grouped}|{plain})"
        return f"-?(?:{whole}(?:{point}[0-9]+)?|{point}[0-9]+)"


_SPACES = " \u00a0\u202f"

NUMBER_FORMATS: Mapping[str, NumberFormat] = MappingProxyType(
    {
        one.text: one
        for one in (
            NumberFormat("1234.5", "."),
            NumberFormat("1234,5", ","),
            NumberFormat("1,234.5", ".", ","),
            NumberFormat("1.234,5", ",", "."),
            NumberFormat("1 234.5", ".", _SPACES),
            NumberFormat("1 234,5", ",", _SPACES),
            NumberFormat("1'234.5", ".", "'\u2019"),
        )
    }
)

_DIRECTIVES: Mapping[str, str] = MappingProxyType(
    {
        "Y": "[0-9]{4}",
        "y": "[0-9]{2}",
        "m": "0?[1-9]|1[0-2]",
        "d": "0?[1-9]|[12][0-9]|3[01]",
        "b": "(?i:" + "|".join(month[:3] for month in MONTHS) + ")",
        "B": "(?i:" + "|".join(MONTHS) + ")",
        "H": "[01]?[0-9]|2[0-3]",
        "I": "0?[1-9]|1[0-2]",
        "M": "[0-5][0-9]",
        "S": "[0-5][0-9]",
        "f": "[0-9]{1,9}",
        "p": "(?i:am|pm)",
    }
)
_OF_DIGITS = re.compile("%[YymdHIMSf]")
_ALTERNATIVES = ("Yy", "mbB", "HI")
"""Directives of which a format has at most one."""


def date_format(text: str) -> DateFormat:
    """Raises UnknownFormat."""
    if len(text) > MAX_FORMAT_CHARACTERS:
        raise UnknownFormat(f"a format has at most {MAX_FORMAT_CHARACTERS} characters")
    pattern, seen, place = "", list[str](), 0
    while place < len(text):
        if text[place] != "%":
            pattern += re.escape(text[place])
            place += 1
            continue
        directive = text[place + 1 : place + 2]
        if directive not in _DIRECTIVES:
            known = " ".join(f"%{one}" for one in _DIRECTIVES)
            raise UnknownFormat(f'"%{directive}" is no directive; there are {known}')
        beside = (text[max(place - 2, 0) : place], text[place + 2 : place + 4])
        one = _DIRECTIVES[directive]
        # `1112024` has no meaning without marks: both digits of a part are needed there.
        one = one.replace("?[", "[") if any(map(_OF_DIGITS.fullmatch, beside)) else one
        pattern += f"(?P<{directive}>{one})"
        seen.append(directive)
        place += 2
    directives = set(seen)
    if len(directives) < len(seen) or any(len(directives & set(some)) > 1 for some in _ALTERNATIVES):
        raise UnknownFormat("a part of the date is there twice")
    if not (directives & set("Yy") and directives & set("mbB") and "d" in directives):
        raise UnknownFormat("a format needs a year, a month and a day")
    if ("I" in directives) != ("p" in directives):
        raise UnknownFormat("%I and %p go together")
    needs = {"M": "HI", "S": "M", "f": "S"}
    if any(one in directives and not directives & set(before) for one, before in needs.items()):
        raise UnknownFormat("a time begins with its hours, then minutes, seconds and their fraction")
    return DateFormat(text, pattern, frozenset(directives))


@lru_cache(maxsize=256)
def value_format(text: str) -> DateFormat | NumberFormat:
    if text in NUMBER_FORMATS:
        return NUMBER_FORMATS[text]
    if "%" not in text:
        shown = ", ".join(f'"{one}"' for one in NUMBER_FORMATS)
        raise UnknownFormat(f"neither a format of dates such as %d/%m/%Y nor one of the numbers {shown}")
    return date_format(text)


_TEXT = pa.string()
_FIRST_YEAR_OF_1900 = "69"
"""Two digits from here on are of the 20th century, those below of the 21st, as POSIX has it."""


def rewritten(cells: pa.StringArray, format_text: str) -> pa.StringArray:
    """Trimmed cells as plain numbers, ISO dates or ISO timestamps; null where a cell is null or not in the format.

    A date in the format may still be no day of the calendar: `31/02/2024` becomes `2024-02-31`.
    """
    known = value_format(format_text)
    return _numbers(cells, known) if isinstance(known, NumberFormat) else _dates(cells, known)


def _numbers(cells: pa.StringArray, known: NumberFormat) -> pa.StringArray:
    fits = kernels.fill_null(kernels.match_substring_regex(cells, f"^(?:{known.pattern})$"), fill_value=False)
    texts = kernels.if_else(fits, cells, pa.scalar(None, _TEXT))
    for mark in known.groups:
        texts = kernels.replace_substring(texts, mark, "")
    return texts if known.point == "." else kernels.replace_substring(texts, known.point, ".")


def _dates(cells: pa.StringArray, known: DateFormat) -> pa.StringArray:
    # A match of all parts has a struct of texts, anything else is a null struct.
    found = kernels.extract_regex(cells, f"^{known.pattern}$")
    parts = {
        name: kernels.if_else(kernels.is_valid(found), kernels.struct_field(found, name), pa.scalar(None, _TEXT))
        for name in known.directives
    }
    if "Y" in parts:
        year = parts["Y"]
    else:
        century = kernels.if_else(kernels.greater_equal(parts["y"], _FIRST_YEAR_OF_1900), "19", "20")
        year = kernels.binary_join_element_wise(century, parts["y"], "")
    if "m" in parts:
        month = parts["m"]
    else:
        start = kernels.utf8_lower(kernels.utf8_slice_codeunits(parts["b"] if "b" in parts else parts["B"], 0, 3))
        starts = pa.array([name[:3] for name in MONTHS], _TEXT)
        month = kernels.cast(kernels.add(kernels.index_in(start, value_set=starts), 1), _TEXT)
    day = kernels.binary_join_element_wise(year, _two_digits(month), _two_digits(parts["d"]), "-")
    if not known.has_time:
        return day
    clock = [_hour(parts), parts.get("M", "00")]
    if "S" in parts:
        clock.append(parts["S"])
    time = kernels.binary_join_element_wise(*clock, ":")
    if "f" in parts:
        time = kernels.binary_join_element_wise(time, parts["f"], ".")
    return kernels.binary_join_element_wise(day, time, " ")


def _two_digits(part: pa.StringArray) -> pa.StringArray:
    return kernels.utf8_lpad(part, 2, "0")


def _hour(parts: dict[str, pa.StringArray]) -> pa.StringArray:
    if "H" in parts:
        return _two_digits(parts["H"])
    hour = kernels.cast(parts["I"], pa.int32())
    hour = kernels.if_else(kernels.equal(hour, 12), 0, hour)
    is_afternoon = kernels.equal(kernels.utf8_lower(parts["p"]), "pm")
    hour = kernels.if_else(is_afternoon, kernels.add(hour, 12), hour)
    return _two_digits(kernels.cast(hour, _TEXT))


_FIRST, _PROBED = 100, 5
"""So many of the first cells are compared with all formats one by one; few columns of text pass."""

_LONGEST = 40
_DIGIT = re.compile("[0-9]")
_PADDED = r"^[0-9]{4}\.[0-9]{2}\.[0-9]{2}(?:[^0-9]|$)"

_DETECTED_NUMBERS = ("1,234.5", "1.234,5", "1 234.5", "1 234,5", "1'234.5")
_MARKED_NUMBER = re.compile(r"-?[0-9.,](?:[0-9.,'\u2019 \u00a0\u202f]*[0-9])?")
_DATES = {
    "dmy": ("%d/%m/%Y", "%d-%m-%Y", "%d.%m.%Y"),
    "mdy": ("%m/%d/%Y", "%m-%d-%Y", "%m.%d.%Y"),
    "ymd": ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d"),
    "named": tuple(
        form
        for month in ("%b", "%B")
        for form in (
            f"{month} %d %Y", f"{month} %d, %Y", f"%d {month} %Y", f"%d-{month}-%Y", f"%d/{month}/%Y",
        )
    ),
}  # fmt: skip
"""Formats by the order of their parts: the order of cells that fit two of these is not known."""

_TIMES = ("", *(f"{gap}{time}" for gap in (" ", "T", ", ") for time in (
    "%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p",
)))  # fmt: skip


@dataclass(frozen=True, slots=True)
class ValueFormats:
    """The formats that a caller gives for all columns; None: detected."""

    date: str | None = None
    number: str | None = None

    def __iter__(self) -> Iterator[str]:
        return (one for one in (self.date, self.number) if one is not None)


NO_FORMATS = ValueFormats()


@dataclass(frozen=True, slots=True)
class Measured:
    """The facts of a column, of its cells as the format reads them where it has one."""

    facts: ColumnFacts
    format: str | None = None
    null_words: tuple[str, ...] = ()
    """Cells that mean NULL in it (Contract importer 12.6)."""


def measured(
    cells: "pa.StringArray | Sequence[str]", given: ValueFormats = NO_FORMATS, null_words: Sequence[str] | None = None
) -> Measured:
    """The facts of a column of a Block, or of a list of cells of any kind.

    A given format that all cells fit counts first. Others, and words that mean NULL unless they are given, are detected
    in columns of text only. Of a workbook the cells must be text: others have types of their own. Words are not
    detected among them, because a text stays a text there.
    """
    if not isinstance(cells, pa.Array) and any(isinstance(cell, TypedText) for cell in cells):
        return _measured(cells, given)
    if null_words and (values := _values(cells)) is not None:
        found = measured(without_words(values, null_words), given, ())
        return replace(found, null_words=tuple(null_words))
    found = _measured(cells, given)
    if null_words is not None or _is_typed(found):
        return found
    return _with_null_words(cells, given) or found


def _is_typed(column: Measured) -> bool:
    """Whether it is of another type than text."""
    facts = column.facts
    return bool(facts.kinds) and column_type(facts, is_whole=True).base is not BaseType.STRING


def _measured(cells: "pa.StringArray | Sequence[str]", given: ValueFormats) -> Measured:
    for form in given:
        values = _values(cells)
        found = _fitting(values, form) if values is not None and len(values) else None
        if found is not None:
            return found
    facts = facts_of_array(cells) if isinstance(cells, pa.Array) else facts_of_cells(cells)
    if not facts.kinds or column_type(facts, is_whole=True).base is not BaseType.STRING:
        return Measured(facts)
    return _detected(cells) or Measured(facts)


NULL_WORDS = frozenset(
    {
        "na", "n/a", "#n/a", "#na", "<na>", "n.a.", "n/d", "nd", "k.a.", "s/d", "null", "(null)", "none", "nil", "nan",
        "-", "--", "---", "\u2013", "\u2014", ".", "..", "...", "?",
    }
)  # fmt: skip
"""What programs and people write for a missing value, in lower case."""


_LONGEST_MARK = max(len(word.encode()) for word in NULL_WORDS)


def is_null_mark(word: str) -> bool:
    return word.lower() in NULL_WORDS


def without_words(cells: pa.StringArray, words: Sequence[str]) -> pa.StringArray:
    """The cells, null where they are one of the words but for blanks around it."""
    found = kernels.is_in(kernels.utf8_trim(cells, characters=BLANKS), value_set=pa.array(words, pa.string()))
    return kernels.if_else(found, pa.scalar(None, pa.string()), cells)


def _with_null_words(cells: "pa.StringArray | Sequence[str]", given: ValueFormats) -> Measured | None:
    """The facts of a column that some words alone keep from having another type than text."""
    values = _values(cells[:_FIRST])
    if values is None:
        return None
    # One cell that is neither such a word nor may have a type is enough: most columns of text are done here.
    if any(map(_is_plain_text, values[:_PROBED].to_pylist())):
        return None
    values = _values(cells)
    if values is None:
        return None
    short = values.filter(kernels.less_equal(kernels.binary_length(values), _LONGEST_MARK))
    words = tuple(word for word in kernels.unique(short).to_pylist() if is_null_mark(word))
    rest = without_words(values, words).drop_null() if words else None
    if rest is None or not len(rest):
        return None
    found = _measured(rest, given)
    return replace(found, null_words=words) if _is_typed(found) else None


def _is_plain_text(cell: str) -> bool:
    if is_null_mark(cell) or facts_of_text(cell, is_quoted=True).kind is not CellKind.TEXT:
        return False
    return len(cell) > _LONGEST or not _DIGIT.search(cell)


def _values(cells: "pa.StringArray | Sequence[str]") -> pa.StringArray | None:
    """The trimmed cells that are not NULL; None where a cell of a workbook is no text."""
    if isinstance(cells, pa.Array):
        given: pa.StringArray = cells
    elif any(isinstance(cell, TypedText) and cell.kind not in _TEXTS for cell in cells):
        return None
    else:
        given = pa.array([None if is_null_word(cell) else cell for cell in cells], pa.string())
    texts = kernels.utf8_trim(given.drop_null(), characters=BLANKS)
    return texts.filter(kernels.and_(kernels.not_equal(texts, ""), kernels.not_equal(texts, r"\N")))


def _fitting(values: pa.StringArray, form: str) -> Measured | None:
    """The facts of the rewritten cells if all of them fit."""
    plain = rewritten(values, form)
    if plain.null_count:
        return None
    facts = facts_of_array(plain)
    return None if facts.is_text or not facts.kinds else Measured(facts, form)


def _detected(cells: "pa.StringArray | Sequence[str]") -> Measured | None:
    values = _values(cells[:_FIRST])
    if values is None:
        return None
    # A formatted cell is short and has digits.
    probes = values[:_PROBED].to_pylist()
    if not all(len(probe) <= _LONGEST and _DIGIT.search(probe) for probe in probes):
        return None
    values = _values(cells)
    if values is None:
        return None
    if not len(probes):
        probes = values[:_PROBED].to_pylist()
    is_number = all(map(_MARKED_NUMBER.fullmatch, probes))
    return (_number(values, probes) if is_number else None) or _date(values, probes)


def _number(values: pa.StringArray, probes: Sequence[str]) -> Measured | None:
    """The format whose decimal mark is certain: `1,234` alone may be either number.

    Groups by points, blanks or apostrophes alone prove nothing: they may be an address or a telephone number.
    """
    fitting = {
        form: one
        for form in _surviving(_DETECTED_NUMBERS, probes)
        if _has_proof(values, form) and (one := _fitting(values, form))
    }
    points = {NUMBER_FORMATS[form].point for form in fitting}
    return next(iter(fitting.values())) if len(points) == 1 else None


def _has_proof(values: pa.StringArray, form: str) -> bool:
    if form in {"1,234.5", "1.234,5"}:
        return _any_has(values, ",")
    known = NUMBER_FORMATS[form]
    return _any_has(values, known.point) and any(_any_has(values, mark) for mark in known.groups)


def _any_has(values: pa.StringArray, mark: str) -> bool:
    return bool(kernels.any(kernels.match_substring(values, mark)).as_py())


def _date(values: pa.StringArray, probes: Sequence[str]) -> Measured | None:
    found: Measured | None = None
    for days in _DATES.values():
        forms = [day + time for day in days for time in _TIMES]
        # Formats of one order differ in marks only: a cell fits one of them, or two that read it alike.
        fitting = next((one for form in _surviving(forms, probes) if (one := _fitting_date(values, form))), None)
        if fitting is not None and found is not None:
            return None
        found = fitting or found
    return found


def _fitting_date(values: pa.StringArray, form: str) -> Measured | None:
    """As `_fitting`. `2024.1.3` is as often a version as a date, `2024.01.03` is a date."""
    if form.startswith("%Y.%m.%d") and not kernels.all(kernels.match_substring_regex(values, _PADDED)).as_py():
        return None
    return _fitting(values, form)


def _surviving(forms: Iterable[str], probes: Sequence[str]) -> Iterator[str]:
    return (form for form in forms if all(map(_pattern(form).fullmatch, probes)))


@cache
def _pattern(form: str) -> "re.Pattern[str]":
    known = NUMBER_FORMATS[form] if form in NUMBER_FORMATS else date_format(form)
    return re.compile(known.pattern)
