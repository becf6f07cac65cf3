"""Cells in a format of dates or numbers, rewritten to the plain forms of `classes` (Contract importer 12.5)."""

from functools import lru_cache

import pyarrow as pa

from queryserver.domain.value_formats import MONTHS, DateFormat, NumberFormat, value_format
from queryserver.formats.cells_kernels import kernels

_TEXT = pa.string()
_MONTH_STARTS = pa.array([month[:3] for month in MONTHS], _TEXT)
_FIRST_YEAR_OF_1900 = "69"
"""Two digits from here on are of the 20th century, those below of the 21st, as POSIX has it."""


@lru_cache(maxsize=256)
def format_of(text: str) -> DateFormat | NumberFormat:
    """The format that was checked before."""
    return value_format(text)


def rewritten(cells: pa.StringArray, format_text: str) -> pa.StringArray:
    """Trimmed cells as plain numbers, ISO dates or ISO timestamps; null where a cell is null or not in the format.

    A date in the format may still be no day of the calendar: `31/02/2024` becomes `2024-02-31`.
    """
    known = format_of(format_text)
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
    parts = {name: _null_like(found, kernels.struct_field(found, name)) for name in known.directives}
    day = kernels.binary_join_element_wise(_year(parts), _month(parts), _two_digits(parts["d"]), "-")
    if not known.has_time:
        return day
    clock = [_hour(parts), parts.get("M", "00")]
    if "S" in parts:
        clock.append(parts["S"])
    time = kernels.binary_join_element_wise(*clock, ":")
    if "f" in parts:
        time = kernels.binary_join_element_wise(time, parts["f"], ".")
    return kernels.binary_join_element_wise(day, time, " ")


def _null_like(found: pa.StructArray, part: pa.StringArray) -> pa.StringArray:
    return kernels.if_else(kernels.is_valid(found), part, pa.scalar(None, _TEXT))


def _two_digits(part: pa.StringArray) -> pa.StringArray:
    return kernels.utf8_lpad(part, 2, "0")


def _year(parts: dict[str, pa.StringArray]) -> pa.StringArray:
    if "Y" in parts:
        return parts["Y"]
    century = kernels.if_else(kernels.greater_equal(parts["y"], _FIRST_YEAR_OF_1900), "19", "20")
    return kernels.binary_join_element_wise(century, parts["y"], "")


def _month(parts: dict[str, pa.StringArray]) -> pa.StringArray:
    if "m" in parts:
        return _two_digits(parts["m"])
    name = parts["b"] if "b" in parts else parts["B"]
    start = kernels.utf8_lower(kernels.utf8_slice_codeunits(name, 0, 3))
    number = kernels.add(kernels.index_in(start, value_set=_MONTH_STARTS), 1)
    return _two_digits(kernels.cast(number, _TEXT))


def _hour(parts: dict[str, pa.StringArray]) -> pa.StringArray:
    if "H" in parts:
        return _two_digits(parts["H"])
    hour = kernels.cast(parts["I"], pa.int32())
    hour = kernels.if_else(kernels.equal(hour, 12), 0, hour)
    is_afternoon = kernels.equal(kernels.utf8_lower(parts["p"]), "pm")
    hour = kernels.if_else(is_afternoon, kernels.add(hour, 12), hour)
    return _two_digits(kernels.cast(hour, _TEXT))
