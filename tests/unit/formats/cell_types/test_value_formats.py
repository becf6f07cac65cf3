"""Date and number formats: which formats are unambiguous, and how values are parsed (Contract importer 12.5)."""

import pyarrow as pa
import pytest

from queryserver.formats.arrow import STRING, BaseType
from queryserver.formats.cell_types.classes import column_type
from queryserver.formats.cell_types.value_formats import (
    UnknownFormat,
    ValueFormats,
    normalize_cells,
    parse_value_format,
    profile_column,
)
from queryserver.formats.table_files import CellKind, TypedText

CERTAIN = {
    "%d/%m/%Y": (["15/01/2024", "01/02/2024"], BaseType.DATE),
    "%m/%d/%Y": (["1/2/2024", "12/31/2024"], BaseType.DATE),
    "%d.%m.%Y %H:%M": (["15.01.2024 10:30"], BaseType.DATETIME),
    "%m/%d/%Y %I:%M %p": (["1/15/2024 1:05 PM", ""], BaseType.DATETIME),
    "%b %d %Y": (["Jan 1 2000", " feb 29 2000 "], BaseType.DATE),
    "%d %B %Y": (["1 January 2000", "31 August 2001"], BaseType.DATE),
    "%d-%b-%Y": (["01-JAN-2000"], BaseType.DATE),
    "%Y/%m/%d": (["2024/1/5", "2024/12/31"], BaseType.DATE),
    "%Y.%m.%d": (["2024.01.05", "2024.12.31"], BaseType.DATE),
    "1.234,5": (["1.234,50", "12", "-0,5", "1.234.567"], BaseType.FLOAT64),
    "1,234.5": (["1,234.50", "3", "12", "1,234,567"], BaseType.FLOAT64),
    "1 234,5": (["1\u00a0234,50", "1 234"], BaseType.FLOAT64),
    "1'234.5": (["1'234.50"], BaseType.FLOAT64),
}
UNCERTAIN = [
    ["01/02/2024", "03/04/2024"], ["15/01/2024", "01/15/2024"], ["15/01/2024", "soon"], ["31/02/2024"], ["15/01/24"],
    ["15/01/2024", "15/01/2024 10:30"], ["2024.1.3", "2023.12.1"], ["1,234"], ["1,234", "12"], ["1.234,50", "1,234.50"],
    ["1,23,456"], ["192.168.100.200"], ["555 123"], ["007"], ["5%"], ["May"],
]  # fmt: skip


def of(cells: list[str], given: ValueFormats = ValueFormats()) -> set[tuple[BaseType, str | None]]:  # noqa: B008 an immutable default
    """Profile the cells as a list and as a long Arrow column; return the types and formats that were found."""
    ways = [profile_column(cells, given), profile_column(pa.array(cells * 60, pa.string()), given)]
    return {(column_type(one.facts, is_whole=True).base, one.format) for one in ways}


@pytest.mark.parametrize("form", CERTAIN)
def test_unambiguous_format_is_found(form: str) -> None:
    cells, base = CERTAIN[form]
    assert of(cells) == {(base, form)}


def test_grouped_whole_numbers_are_integers() -> None:
    assert of(["1,234,567", "12"]) == {(BaseType.INT32, "1,234.5")}


@pytest.mark.parametrize("cells", UNCERTAIN, ids=" ".join)
def test_ambiguous_column_is_text(cells: list[str]) -> None:
    assert of(cells) == {(STRING.base, None)}


def test_plain_values_need_no_format() -> None:
    assert of(["2024-01-15"]) == {(BaseType.DATE, None)}
    assert of(["1.234"]) == {(BaseType.FLOAT64, None)}
    assert of(["", "\\N"]) == {(BaseType.NULL, None)}


def test_workbook_text_has_a_format_if_all_cells_are_text() -> None:
    text, other = TypedText("15/01/2024", CellKind.TEXT), TypedText("2024-01-15", CellKind.DATE)
    assert profile_column([text, TypedText("", CellKind.NULL)]).format == "%d/%m/%Y"
    assert profile_column([text, other]).format is None
    assert profile_column([TypedText("007", CellKind.TEXT), TypedText("12", CellKind.TEXT)]).format is None


def test_given_format_applies_if_all_cells_fit() -> None:
    given = ValueFormats("%d/%m/%Y", "1.234,5")
    assert of(["01/02/2024"], given) == {(BaseType.DATE, "%d/%m/%Y")}
    assert of(["1.234", "5"], given) == {(BaseType.INT32, "1.234,5")}
    assert of(["1.5", "5"], given) == {(BaseType.FLOAT64, None)}
    assert of(["12/31/2024"], given) == {(BaseType.DATE, "%m/%d/%Y")}
    assert of(["x"], given) == {(STRING.base, None)}


def test_formats_parse_values() -> None:
    cases = [
        ("%d/%m/%y", ["1/2/69", "1/2/68", "1/2/2024", None], ["1969-02-01", "2068-02-01", None, None]),
        ("%b %d, %Y %I:%M:%S %p", ["Dec 1, 2024 12:00:01 AM", "dec 1, 2024 12:00:01 pm"],
         ["2024-12-01 00:00:01", "2024-12-01 12:00:01"]),
        ("%Y%m%d %H:%M:%S.%f", ["20240115 7:05:09.5"], ["2024-01-15 07:05:09.5"]),
        ("1 234,5", ["1 234\u202f567", "1 234,5"], [None, "1234.5"]),
        ("1234,5", ["1.234,5", ",5", "007", "1,"], [None, ".5", None, None]),
    ]  # fmt: skip
    for form, cells, plain in cases:
        assert normalize_cells(pa.array(cells, pa.string()), form).to_pylist() == plain


@pytest.mark.parametrize("text", [
    "", "abc", "%", "%q", "%d/%m", "%d/%m/%Y/%y", "%d/%b/%m/%Y", "%I %d/%m/%Y", "%p %H %d/%m/%Y",
     "%M %d/%m/%Y",
     "%H %S %d/%m/%Y", "%d%d/%m/%Y", "%d/%m/%Y" + "x" * 60, "1.234"])  # fmt: skip
def test_invalid_formats_are_rejected(text: str) -> None:
    with pytest.raises(UnknownFormat):
        parse_value_format(text)


def test_adjacent_fields_require_both_digits() -> None:
    cells = pa.array(["01122024", "1112024", "11122024"], pa.string())
    assert normalize_cells(cells, "%d%m%Y").to_pylist() == ["2024-12-01", None, "2024-12-11"]
    assert normalize_cells(pa.array(["1Jan2024 905"]), "%d%b%Y %H%M").to_pylist() == [None]
    assert normalize_cells(pa.array(["1Jan2024 0905"]), "%d%b%Y %H%M").to_pylist() == ["2024-01-01 09:05"]


def test_punctuation_in_a_format_is_literal() -> None:
    assert normalize_cells(pa.array(["(1.2+2024)", "1x2x2024"]), "(%d.%m+%Y)").to_pylist() == ["2024-02-01", None]
