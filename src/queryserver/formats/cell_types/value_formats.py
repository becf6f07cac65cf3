"""Non-standard formats of dates and numbers, and their detection (Contract importer 12.5).

Formats of dates and timestamps are written as for strftime, with `%Y %y %m %d %b %B %H %I %M %S %f %p` and any other
characters between them. A number format is written as the number 1234.5 in that format.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from types import MappingProxyType

import pyarrow as pa

from queryserver.formats.arrow import BaseType, kernels
from queryserver.formats.cell_types.classes import (
    ColumnFacts,
    array_facts,
    column_facts,
    column_type,
    is_null_word,
    text_facts,
)
from queryserver.formats.table_files import BLANKS, CellKind, TypedText

MAX_FORMAT_CHARACTERS = 64

_TEXT_KINDS = frozenset({CellKind.TEXT, CellKind.NULL})

MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip


class UnknownFormat(ValueError):
    """The text is not a valid format for dates or numbers. The message states the reason."""


@dataclass(frozen=True, slots=True)
class DateFormat:
    """A format for dates, or for timestamps if `has_time`.

    `pattern` matches an entire cell, in Python's `re` and in RE2. Its groups are named after the directives.
    """

    text: str
    pattern: str
    directives: frozenset[str]

    @property
    def has_time(self) -> bool:
        return bool(self.directives & {"H", "I"})


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A format for numbers. `groups` contains the accepted thousands separators; empty if there are none."""

    text: str
    point: str
    groups: str = ""

    @property
    def pattern(self) -> str:
        """A pattern for an entire cell, for Python's `re` and for RE2."""
        point = re.escape(self.point)
        plain = "(?:0|[1-9][0-9]*)"
        whole = plain
        if self.groups:
            # A number uses the same separator throughout. RE2 has no backreferences, so each separator has a branch.
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
_NUMERIC_DIRECTIVE = re.compile("%[YymdHIMSf]")
_EXCLUSIVE_DIRECTIVES = ("Yy", "mbB", "HI")
"""Groups of directives; a format may contain only one directive of each group."""


def parse_date_format(text: str) -> DateFormat:
    """Parse a date or timestamp format. Raises UnknownFormat."""
    if len(text) > MAX_FORMAT_CHARACTERS:
        raise UnknownFormat(f"a format can have at most {MAX_FORMAT_CHARACTERS} characters")
    pattern, seen, place = "", list[str](), 0
    while place < len(text):
        if text[place] != "%":
            pattern += re.escape(text[place])
            place += 1
            continue
        directive = text[place + 1 : place + 2]
        if directive not in _DIRECTIVES:
            known = " ".join(f"%{one}" for one in _DIRECTIVES)
            raise UnknownFormat(f'"%{directive}" is not a directive; valid directives are {known}')
        neighbors = (text[max(place - 2, 0) : place], text[place + 2 : place + 4])
        one = _DIRECTIVES[directive]
        # Adjacent numeric directives require all their digits, because `1112024` would be ambiguous.
        one = one.replace("?[", "[") if any(map(_NUMERIC_DIRECTIVE.fullmatch, neighbors)) else one
        pattern += f"(?P<{directive}>{one})"
        seen.append(directive)
        place += 2
    directives = set(seen)
    if len(directives) < len(seen) or any(len(directives & set(some)) > 1 for some in _EXCLUSIVE_DIRECTIVES):
        raise UnknownFormat("a part of the date or time occurs twice")
    if not (directives & set("Yy") and directives & set("mbB") and "d" in directives):
        raise UnknownFormat("a format requires a year, a month and a day")
    if ("I" in directives) != ("p" in directives):
        raise UnknownFormat("%I and %p must be used together")
    needs = {"M": "HI", "S": "M", "f": "S"}
    if any(one in directives and not directives & set(before) for one, before in needs.items()):
        raise UnknownFormat("minutes require hours, seconds require minutes, and fractions require seconds")
    return DateFormat(text, pattern, frozenset(directives))


@lru_cache(maxsize=256)
def parse_value_format(text: str) -> DateFormat | NumberFormat:
    if text in NUMBER_FORMATS:
        return NUMBER_FORMATS[text]
    if "%" not in text:
        shown = ", ".join(f'"{one}"' for one in NUMBER_FORMATS)
        raise UnknownFormat(f"it is neither a date format such as %d/%m/%Y nor one of the number formats {shown}")
    return parse_date_format(text)


_TEXT = pa.string()
_FIRST_YEAR_OF_1900 = "69"
"""Two-digit years from this year on belong to the 20th century, lower years to the 21st, as in POSIX."""


def normalize_cells(cells: pa.StringArray, format_text: str) -> pa.StringArray:
    """Convert trimmed cells in a format to plain numbers, ISO dates or ISO timestamps. Cells that do not match become
    null.

    Does not check the calendar: `31/02/2024` becomes `2024-02-31`.
    """
    known = parse_value_format(format_text)
    return _numbers(cells, known) if isinstance(known, NumberFormat) else _dates(cells, known)


def _numbers(cells: pa.StringArray, known: NumberFormat) -> pa.StringArray:
    fits = kernels.fill_null(kernels.match_substring_regex(cells, f"^(?:{known.pattern})$"), fill_value=False)
    texts = kernels.if_else(fits, cells, pa.scalar(None, _TEXT))
    for mark in known.groups:
        texts = kernels.replace_substring(texts, mark, "")
    return texts if known.point == "." else kernels.replace_substring(texts, known.point, ".")


def _dates(cells: pa.StringArray, known: DateFormat) -> pa.StringArray:
    # `extract_regex` returns a struct of strings for a match, otherwise a null struct.
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


_FIRST_CELLS, _PROBED_CELLS = 100, 5
"""Numbers of leading cells that are inspected before the whole column, which suffices to reject most text columns."""

_MAX_FORMATTED_CHARACTERS = 40
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
"""Formats by the order of day, month and year. A column that fits two orders is ambiguous."""

_TIMES = ("", *(f"{gap}{time}" for gap in (" ", "T", ", ") for time in (
    "%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p",
)))  # fmt: skip


@dataclass(frozen=True, slots=True)
class ValueFormats:
    """The date and number formats that a client declares for all columns. If one is None, that format is detected."""

    date: str | None = None
    number: str | None = None

    def __iter__(self) -> Iterator[str]:
        return (one for one in (self.date, self.number) if one is not None)


NO_FORMATS = ValueFormats()


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """The facts of a column. If `format` is set, they describe the normalized cells."""

    facts: ColumnFacts
    format: str | None = None
    null_words: tuple[str, ...] = ()
    """Cell values that mean NULL in this column (Contract importer 12.6)."""


def profile_column(
    cells: "pa.StringArray | Sequence[str]", formats: ValueFormats = NO_FORMATS, null_words: Sequence[str] | None = None
) -> ColumnProfile:
    """Profile a column of a Block, or a list of text cells or workbook cells.

    A declared format is used if it fits all cells; otherwise, the format of a text column is detected. The null words
    of a text column are detected if `null_words` is None. In workbooks, formats apply only to text cells, and null
    words are not detected, because cells have declared types there and a text cell is meant as text.
    """
    if not isinstance(cells, pa.Array) and any(isinstance(cell, TypedText) for cell in cells):
        return _profile(cells, formats)
    if null_words and (values := _non_null_texts(cells)) is not None:
        found = profile_column(null_words_to_null(values, null_words), formats, ())
        return replace(found, null_words=tuple(null_words))
    found = _profile(cells, formats)
    if null_words is not None or _is_typed(found):
        return found
    return _with_null_words(cells, formats) or found


def _is_typed(column: ColumnProfile) -> bool:
    """Return whether the column has a type other than text."""
    facts = column.facts
    return bool(facts.kinds) and column_type(facts, is_whole=True).base is not BaseType.STRING


def _profile(cells: "pa.StringArray | Sequence[str]", formats: ValueFormats) -> ColumnProfile:
    for form in formats:
        values = _non_null_texts(cells)
        found = _profile_with_format(values, form) if values is not None and len(values) else None
        if found is not None:
            return found
    facts = array_facts(cells) if isinstance(cells, pa.Array) else column_facts(cells)
    if not facts.kinds or column_type(facts, is_whole=True).base is not BaseType.STRING:
        return ColumnProfile(facts)
    return _detect_format(cells) or ColumnProfile(facts)


NULL_WORDS = frozenset(
    {
        "na", "n/a", "#n/a", "#na", "<na>", "n.a.", "n/d", "nd", "k.a.", "s/d", "null", "(null)", "none", "nil", "nan",
        "-", "--", "---", "\u2013", "\u2014", ".", "..", "...", "?",
    }
)  # fmt: skip
"""Common notations for missing values, in lower case."""


_MAX_NULL_WORD_BYTES = max(len(word.encode()) for word in NULL_WORDS)


def is_common_null_word(word: str) -> bool:
    return word.lower() in NULL_WORDS


def null_words_to_null(cells: pa.StringArray, words: Sequence[str]) -> pa.StringArray:
    """Replace cells that, when trimmed, equal one of the words with null."""
    found = kernels.is_in(kernels.utf8_trim(cells, characters=BLANKS), value_set=pa.array(words, pa.string()))
    return kernels.if_else(found, pa.scalar(None, pa.string()), cells)


def _with_null_words(cells: "pa.StringArray | Sequence[str]", formats: ValueFormats) -> ColumnProfile | None:
    """Profile the column without its null words. Return None if its type is still text."""
    values = _non_null_texts(cells[:_FIRST_CELLS])
    if values is None:
        return None
    # A single cell that is certainly text is decisive, so most text columns are rejected here.
    if any(map(_is_plain_text, values[:_PROBED_CELLS].to_pylist())):
        return None
    values = _non_null_texts(cells)
    if values is None:
        return None
    short = values.filter(kernels.less_equal(kernels.binary_length(values), _MAX_NULL_WORD_BYTES))
    words = tuple(word for word in kernels.unique(short).to_pylist() if is_common_null_word(word))
    rest = null_words_to_null(values, words).drop_null() if words else None
    if rest is None or not len(rest):
        return None
    found = _profile(rest, formats)
    return replace(found, null_words=words) if _is_typed(found) else None


def _is_plain_text(cell: str) -> bool:
    if is_common_null_word(cell) or text_facts(cell, is_quoted=True).kind is not CellKind.TEXT:
        return False
    return len(cell) > _MAX_FORMATTED_CHARACTERS or not _DIGIT.search(cell)


def _non_null_texts(cells: "pa.StringArray | Sequence[str]") -> pa.StringArray | None:
    """Return the trimmed cells that are not NULL, or None if a workbook cell is not text."""
    if isinstance(cells, pa.Array):
        formats: pa.StringArray = cells
    elif any(isinstance(cell, TypedText) and cell.kind not in _TEXT_KINDS for cell in cells):
        return None
    else:
        formats = pa.array([None if is_null_word(cell) else cell for cell in cells], pa.string())
    texts = kernels.utf8_trim(formats.drop_null(), characters=BLANKS)
    return texts.filter(kernels.and_(kernels.not_equal(texts, ""), kernels.not_equal(texts, r"\N")))


def _profile_with_format(values: pa.StringArray, form: str) -> ColumnProfile | None:
    """Profile the normalized cells. Return None if any cell does not have the format."""
    plain = normalize_cells(values, form)
    if plain.null_count:
        return None
    facts = array_facts(plain)
    return None if facts.is_text or not facts.kinds else ColumnProfile(facts, form)


def _detect_format(cells: "pa.StringArray | Sequence[str]") -> ColumnProfile | None:
    values = _non_null_texts(cells[:_FIRST_CELLS])
    if values is None:
        return None
    # Formatted values are short and contain digits.
    probes = values[:_PROBED_CELLS].to_pylist()
    if not all(len(probe) <= _MAX_FORMATTED_CHARACTERS and _DIGIT.search(probe) for probe in probes):
        return None
    values = _non_null_texts(cells)
    if values is None:
        return None
    if not len(probes):
        probes = values[:_PROBED_CELLS].to_pylist()
    is_number = all(map(_MARKED_NUMBER.fullmatch, probes))
    return (_detect_number_format(values, probes) if is_number else None) or _detect_date_format(values, probes)


def _detect_number_format(values: pa.StringArray, probes: Sequence[str]) -> ColumnProfile | None:
    """Detect a number format. The decimal mark must be unambiguous, because `1,234` fits two formats.

    Groups separated by points, blanks or apostrophes are no evidence, because addresses and telephone numbers also
    contain such groups.
    """
    fitting = {
        form: one
        for form in _matching_formats(_DETECTED_NUMBERS, probes)
        if _has_decimal_mark(values, form) and (one := _profile_with_format(values, form))
    }
    points = {NUMBER_FORMATS[form].point for form in fitting}
    return next(iter(fitting.values())) if len(points) == 1 else None


def _has_decimal_mark(values: pa.StringArray, form: str) -> bool:
    if form in {"1,234.5", "1.234,5"}:
        return _any_contains(values, ",")
    known = NUMBER_FORMATS[form]
    return _any_contains(values, known.point) and any(_any_contains(values, mark) for mark in known.groups)


def _any_contains(values: pa.StringArray, mark: str) -> bool:
    return bool(kernels.any(kernels.match_substring(values, mark)).as_py())


def _detect_date_format(values: pa.StringArray, probes: Sequence[str]) -> ColumnProfile | None:
    found: ColumnProfile | None = None
    for days in _DATES.values():
        forms = [day + time for day in days for time in _TIMES]
        # Formats of one order differ only in separators, so a cell that fits two of them has the same value in both.
        fitting = next(
            (one for form in _matching_formats(forms, probes) if (one := _profile_with_date_format(values, form))), None
        )
        if fitting is not None and found is not None:
            return None
        found = fitting or found
    return found


def _profile_with_date_format(values: pa.StringArray, form: str) -> ColumnProfile | None:
    """Like `_profile_with_format`, but require two digits for `%Y.%m.%d`: `2024.1.3` is often a version number."""
    if form.startswith("%Y.%m.%d") and not kernels.all(kernels.match_substring_regex(values, _PADDED)).as_py():
        return None
    return _profile_with_format(values, form)


def _matching_formats(forms: Iterable[str], probes: Sequence[str]) -> Iterator[str]:
    return (form for form in forms if all(map(_pattern(form).fullmatch, probes)))


@cache
def _pattern(form: str) -> "re.Pattern[str]":
    known = NUMBER_FORMATS[form] if form in NUMBER_FORMATS else parse_date_format(form)
    return re.compile(known.pattern)
