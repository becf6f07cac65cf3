"""Cells of a sheet as XML, a whole column at a time. Text is never a formula (Contract security T5)."""

import re
from collections.abc import Sequence

import pyarrow as pa

from queryserver.domain.result import Column
from queryserver.formats.cells import cell_values
from queryserver.formats.download import kernels
from queryserver.formats.download.text import (
    NUMERIC_TYPES,
    is_binary,
    is_text,
    needs_values,
    texts,
    value_texts,
)
from queryserver.formats.download.xlsx_moments import HEADER_STYLE, Moments, moments_of

NUMBER_DIGITS = 15
"""Excel keeps no more of an integer or a decimal; longer ones stand as text."""

_NUMBER = r"^-?[0-9]+(\.[0-9]+)?$"
_FEW_DIGITS = rf"^-?[0.]*([0-9]\.?){{0,{NUMBER_DIGITS}}}$"

# XML cannot hold these, so Excel writes them as _xHHHH_; and what looks like that has its first mark written so.
# A carriage return would be read as a line feed.
_UNWRITABLE = "[\0-\x08\x0b-\x1f\ufffe\uffff]"
_LOOKS_ESCAPED = "_x[0-9A-Fa-f]{4}_"
_MARK_OF_ESCAPE = re.compile(f"_(?={_LOOKS_ESCAPED[1:]})")
_UNWRITABLE_CHARACTER = re.compile(_UNWRITABLE)


def column_letters(number: int) -> str:
    """The name of column `number`, counted from 0: A, …, Z, AA, …"""
    letters = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return letters


def cells_xml(array: pa.Array, column: Column, reference: pa.Array) -> pa.Array:
    """One `<c>` for each value, NULL for NULL. `reference` is the name of each cell."""
    kind = array.type
    moments = moments_of(array, column)
    if moments is not None:
        return _moments(array, column, moments, reference)
    if pa.types.is_boolean(kind):
        return _booleans(array.cast(pa.int8()).cast(pa.string()), reference)
    if is_text(kind) or is_binary(kind):
        cells = texts(array, column)
        return _numbers_and_texts(cells, _spelled_numbers(cells, column), reference)
    if needs_values(kind, column):
        return _mixed(cell_values(array, column), reference)
    cells = texts(array, column)
    return _numbers_and_texts(cells, _number_cells(array, cells), reference)


def text_cells_xml(cells: pa.Array, reference: pa.Array) -> pa.Array:
    """Cells that hold texts as they are."""
    return _cells(reference, ' t="inlineStr"><is><t xml:space="preserve">', _escaped(cells), "</t></is></c>")


def header_cells_xml(names: pa.Array, reference: pa.Array) -> pa.Array:
    """Cells that hold the names of columns, in bold."""
    opening = f' s="{HEADER_STYLE}" t="inlineStr"><is><t xml:space="preserve">'
    return _cells(reference, opening, _escaped(names), "</t></is></c>")


def _moments(array: pa.Array, column: Column, moments: Moments, reference: pa.Array) -> pa.Array:
    """Dates and times as such; as text what a sheet has no number for."""
    cells = kernels.joined('<c r="', reference, '" s="', moments.styles, '"><v>', moments.serials, "</v></c>")
    if moments.serials.null_count == array.null_count:
        return cells
    return kernels.chosen(kernels.present(moments.serials), cells, text_cells_xml(texts(array, column), reference))


def _spelled_numbers(cells: pa.Array, column: Column) -> pa.Array:
    """Numbers that come as text: decimals of any length, values of a column without one type."""
    if column.type not in NUMERIC_TYPES:
        return pa.repeat(False, len(cells))
    return kernels.both(kernels.matching(cells, _NUMBER), kernels.matching(cells, _FEW_DIGITS))


def _mixed(values: Sequence[object], reference: pa.Array) -> pa.Array:
    """Cells of a column whose values are of several kinds."""
    are_numbers = [type(v) is float or (type(v) is int and abs(v) < 10**NUMBER_DIGITS) for v in values]
    cells = _numbers_and_texts(value_texts(values), pa.array(are_numbers, pa.bool_()), reference)
    are_booleans = pa.array([type(v) is bool for v in values], pa.bool_())
    digits = pa.array([str(int(v)) if type(v) is bool else None for v in values], pa.string())
    return kernels.chosen(are_booleans, _booleans(digits, reference), cells)


def _number_cells(array: pa.Array, cells: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_floating(kind):
        # A cell holds a double: nothing is lost.
        return kernels.finite(array)
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return kernels.matching(cells, _FEW_DIGITS)
    return pa.repeat(False, len(array))


def _numbers_and_texts(cells: pa.Array, numbers: pa.Array, reference: pa.Array) -> pa.Array:
    if not kernels.some(numbers):
        return text_cells_xml(cells, reference)
    as_numbers = _cells(reference, "><v>", cells, "</v></c>")
    if kernels.every(numbers):
        return as_numbers
    return kernels.chosen(numbers, as_numbers, text_cells_xml(cells, reference))


def _booleans(digits: pa.Array, reference: pa.Array) -> pa.Array:
    return _cells(reference, ' t="b"><v>', digits, "</v></c>")


def _cells(reference: pa.Array, opening: str, values: pa.Array, closing: str) -> pa.Array:
    return kernels.joined('<c r="', reference, f'"{opening}', values, closing)


def _escaped(cells: pa.Array) -> pa.Array:
    strange = kernels.matching(cells, f"{_UNWRITABLE}|{_LOOKS_ESCAPED}")
    cells = kernels.changed(cells, strange, _written)
    if kernels.some(kernels.matching(cells, "[&<>]")):
        for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            cells = kernels.substituted(cells, character, entity)
    return cells


def _written(text: str) -> str:
    marked = _MARK_OF_ESCAPE.sub("_x005F_", text)
    return _UNWRITABLE_CHARACTER.sub(lambda found: f"_x{ord(found[0]):04X}_", marked)
