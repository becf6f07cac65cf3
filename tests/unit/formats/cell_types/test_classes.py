"""Classes of cells (Contract importer 12.1)."""

import calendar
import re

import pyarrow as pa
import pytest
from tests.cases import each

from queryserver.formats.cell_types.classes import PATTERNS, CellFacts, classify, facts_of
from queryserver.formats.columns import kernels
from queryserver.imports.model import CellKind, QuotedText, TypedText

CELLS = {
    CellKind.NULL: [
        "",
        " ",
        "\t \r\n",
        r"\N",
        r" \N ",
        "null",
        "NULL",
        "nUll",
        " null ",
        QuotedText(""),
        QuotedText(" "),
    ],
    CellKind.INTEGER: ["0", "-0", "1", "-1", " 42 ", "9223372036854775807", "-9223372036854775808", "1731527620"],
    CellKind.DECIMAL: [
        "9223372036854775808",
        "-9223372036854775809",
        "9" * 38,
        "-" + "9" * 38,
        "1.2345678901234567",
        "-0.1234567890123456",
        "1234567890123456.",
        "1.000000000000000",
        "0." + "1" * 38,
        "1" * 19 + "." + "1" * 19,
    ],
    CellKind.DOUBLE: [
        "1.5",
        "1.",
        "-1.",
        ".5",
        "-.5",
        "0.0",
        "1.50",
        "123456789012345.",
        "0.00000000000000000000000123456789012345",
        "1e5",
        "1E5",
        "1e+5",
        "1e-05",
        "1e400",
        "1e5",
        "1.e5",
        ".5e3",
        "-0e0",
        "12345678901234567890.5e1",
        "9" * 60 + "e1",
    ],
    CellKind.NON_FINITE: ["nan", "NaN", "NAN", "inf", "-inf", "+inf", "Infinity", "-INFINITY", "+nan"],
    CellKind.BOOLEAN: ["true", "false", "TRUE", "False", " tRuE "],
    CellKind.DATE: ["2024-02-29", "2024/03/01", "2000-02-29", "0001-01-01", "9999-12-31", "0004-02-29", " 2024-01-31 "],
    CellKind.TIMESTAMP: [
        "2024-01-15T10:30",
        "2024-01-15 10:30",
        "2024/01/15 10:30:00",
        "2024-01-15T10:30:00.1",
        "2024-01-15T10:30:00.123456789",
        "2024-01-15T10:30:00Z",
        "2024-01-15 00:00Z",
        "2024-01-15T23:59:59+05:30",
        "2024-01-15T23:59:59-0530",
    ],
    CellKind.TIME: ["0:00", "00:00", "8:05", "08:05", "10:30", "23:59:59", "9:00:00.5", "23:59:59.123456789"],
    CellKind.TEXT: [
        *("NA", "N/A", "-", "None", "--", ".", "-.", "+", r"\n", r"\NN", "nul", "nulll"),
        *(
            "007",
            "00",
            "-01",
            "+5",
            "+1.5",
            "1,234",
            "1 234",
            "1_000",
            "0x1F",
            "$5",
            "5%",
            "1.2.3",
            "--1",
            "- 1",
            "01.5",
        ),
        *("9" * 39, "-" + "9" * 39, "1." + "1" * 38, "1e5.", "1e", "e5", "1e1000", "1e+", ".e5", "1e5.0", "+1e5"),
        *("yes", "no", "y", "t", "f", "T", "truee", "nane", "infinit", "infinite", "- inf", "++inf"),
        *("15/01/2024", "2024-02-30", "2023-02-29", "1900-02-29", "2024-13-01", "2024-00-10", "2024-04-31", "2024-1-5"),
        *("2024-01/15", "0000-01-01", "0000-02-29", "2024-0115", "24-01-15", "2024-01-15T", "2024-01-15  10:30"),
        *("2024-01-15T24:00", "2024-01-15T10:60", "2024-01-15T10:30:60", "2024-01-15T9:30", "2024-01-15t10:30"),
        *("2024-01-15T10:30:00.1234567890", "2024-01-15T10:30:00.", "2024-01-15T10:30z", "2024-01-15T10:30 Z"),
        *("2024-01-15T10:30+24:00", "2024-01-15T10:30+5:30", "2024-01-15T10:30+05", "2024-02-30T10:30", "10:30Z"),
        *("24:00", "10:60", "10:30:60", "1:2", "001:30", "10:30:", ":30", "-1:30", "10:30:00."),
        *(
            "\u0661\u0662",
            "1\u0663",
            "\uff11",
            "\u00b2",
            "\u00a01",
            "1\u00a0",
            "\u20071",
            "1\u2028",
            "\ufeff1",
            "\x1f1",
        ),
        *("\x1f1", "01.5", "fal\u017fe", "\u0130nf", "\u0131nf", "nul\u013a"),
        *("2024\u201301\u201315", "\u0662024-01-15", "1\u066b5"),
        *(QuotedText("null"), QuotedText("NULL"), QuotedText(" null ")),
    ],
}


@each(("kind", "cell"), [(kind, cell) for kind, cells in CELLS.items() for cell in cells], ids=ascii)
def test_a_cell_has_the_class_of_the_table(kind: CellKind, cell: str) -> None:
    assert classify(cell) is kind


def test_quoted_and_unquoted_are_alike_but_for_the_word_null() -> None:
    cells = [cell for cells in CELLS.values() for cell in cells if cell.strip().lower() != "null"]
    assert [classify(QuotedText(cell)) for cell in cells] == [classify(cell) for cell in cells]


@pytest.mark.importer(44)
@pytest.mark.parametrize(
    ("text", "kind"),
    [("12", CellKind.TEXT), ("12", CellKind.INTEGER), ("30:00:00", CellKind.DURATION), ("null", CellKind.TEXT)],
)
def test_a_cell_of_a_workbook_has_the_class_of_the_workbook(text: str, kind: CellKind) -> None:
    assert classify(TypedText(text, kind)) is kind
    assert facts_of(TypedText(text, kind)).kind is kind


@pytest.mark.parametrize(
    ("cell", "facts"),
    [
        ("0", CellFacts(CellKind.INTEGER, 0)),
        ("-12", CellFacts(CellKind.INTEGER, 2)),
        ("2147483647", CellFacts(CellKind.INTEGER, 10)),
        ("-2147483648", CellFacts(CellKind.INTEGER, 10)),
        ("2147483648", CellFacts(CellKind.INTEGER, 10, is_wide=True)),
        ("-2147483649", CellFacts(CellKind.INTEGER, 10, is_wide=True)),
        ("12.50", CellFacts(CellKind.DOUBLE, 2, 2)),
        ("-0.05", CellFacts(CellKind.DOUBLE, 0, 2)),
        ("-7.", CellFacts(CellKind.DOUBLE, 1, 0)),
        ("1e5", CellFacts(CellKind.DOUBLE, has_exponent=True)),
        ("1.2345678901234567", CellFacts(CellKind.DECIMAL, 1, 16)),
        (TypedText("2.0", CellKind.DOUBLE), CellFacts(CellKind.DOUBLE, 1, 1)),
    ],
)
def test_numbers_tell_their_digits(cell: str, facts: CellFacts) -> None:
    assert facts_of(cell) == facts


@pytest.mark.parametrize("year", [1, 4, 100, 400, 1900, 2000, 2023, 2024, 2100, 9999])
def test_exactly_the_days_of_the_calendar_are_dates(year: int) -> None:
    days = {(month, day) for month in range(14) for day in range(33)}
    found = {(month, day) for month, day in days if classify(f"{year:04}-{month:02}-{day:02}") is CellKind.DATE}
    assert found == {
        (month, day) for month in range(1, 13) for day in range(1, calendar.monthrange(year, month)[1] + 1)
    }


def test_exactly_the_leap_years_of_the_calendar_have_29_february() -> None:
    found = {year for year in range(10_000) if classify(f"{year:04}/02/29") is CellKind.DATE}
    assert found == {year for year in range(1, 10_000) if calendar.isleap(year)}


def test_no_text_has_two_forms_and_re2_reads_the_patterns_as_python_does() -> None:
    cells = [cell.strip(" ") for cells in CELLS.values() for cell in cells]
    column = pa.array(cells, pa.string())
    forms = 0
    for pattern in PATTERNS.values():
        matches = [bool(re.fullmatch(pattern, cell)) for cell in cells]
        assert kernels.match_substring_regex(column, f"^(?:{pattern})$").to_pylist() == matches
        forms += sum(matches)
    assert forms == sum(any(re.fullmatch(pattern, cell) for pattern in PATTERNS.values()) for cell in cells)
