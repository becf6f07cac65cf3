"""The classes of cells, and the types of columns (Contract importer 12)."""

import calendar
import re
from collections.abc import Sequence

import pyarrow as pa
import pytest

from queryserver.formats.arrow import NULL, STRING, BaseType, ColumnType, kernels
from queryserver.formats.cell_types.classes import (
    PATTERNS,
    CellFacts,
    ColumnFacts,
    array_facts,
    cell_facts,
    classify,
    column_type,
)
from queryserver.formats.table_files import CellKind, QuotedText, TypedText
from queryserver.imports.model import SQL_TYPES, type_name

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


@pytest.mark.parametrize(("kind", "cell"), [(kind, cell) for kind, cells in CELLS.items() for cell in cells], ids=ascii)
def test_cell_has_its_class(kind: CellKind, cell: str) -> None:
    assert classify(cell) is kind


def test_quoting_matters_only_for_the_word_null() -> None:
    cells = [cell for cells in CELLS.values() for cell in cells if cell.strip().lower() != "null"]
    assert [classify(QuotedText(cell)) for cell in cells] == [classify(cell) for cell in cells]


@pytest.mark.importer(44)
@pytest.mark.parametrize(("text", "kind"),
    [("12", CellKind.TEXT), ("12", CellKind.INTEGER), ("30:00:00", CellKind.DURATION),
    ("null", CellKind.TEXT)])  # fmt: skip
def test_workbook_cell_keeps_its_class(text: str, kind: CellKind) -> None:
    assert classify(TypedText(text, kind)) is kind
    assert cell_facts(TypedText(text, kind)).kind is kind


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
def test_number_facts_count_digits(cell: str, facts: CellFacts) -> None:
    assert cell_facts(cell) == facts


@pytest.mark.parametrize("year", [1, 4, 100, 400, 1900, 2000, 2023, 2024, 2100, 9999])
def test_only_calendar_days_are_dates(year: int) -> None:
    days = {(month, day) for month in range(14) for day in range(33)}
    found = {(month, day) for month, day in days if classify(f"{year:04}-{month:02}-{day:02}") is CellKind.DATE}
    assert found == {
        (month, day) for month in range(1, 13) for day in range(1, calendar.monthrange(year, month)[1] + 1)
    }


def test_only_leap_years_have_29_february() -> None:
    found = {year for year in range(10_000) if classify(f"{year:04}/02/29") is CellKind.DATE}
    assert found == {year for year in range(1, 10_000) if calendar.isleap(year)}


def test_patterns_are_disjoint_and_match_the_same_in_re2_and_python() -> None:
    cells = [cell.strip(" ") for cells in CELLS.values() for cell in cells]
    column = pa.array(cells, pa.string())
    forms = 0
    for pattern in PATTERNS.values():
        matches = [bool(re.fullmatch(pattern, cell)) for cell in cells]
        assert kernels.match_substring_regex(column, f"^(?:{pattern})$").to_pylist() == matches
        forms += sum(matches)
    assert forms == sum(any(re.fullmatch(pattern, cell) for pattern in PATTERNS.values()) for cell in cells)


Names = tuple[str, str, str]
SPECIFIED_DIALECTS = ("hive", "impala", "trino", "phoenix", "sparksql")
"""The dialects whose types are listed in the specification."""
TEXT: Names = ("STRING", "VARCHAR", "VARCHAR")


def same(name: str) -> Names:
    return name, name, name


INT: Names = ("INT", "INTEGER", "INT")
ROWS: list[tuple[str, Sequence[str], Names]] = [
    ("T1", ["1", "2"], INT),
    ("T2", ["1", "2147483648"], same("BIGINT")),
    ("T4", ["9223372036854775808"], same("DECIMAL")),
    ("T5", ["1", "2.5"], same("DOUBLE")),
    ("T5", [".5"], same("DOUBLE")),
    ("T5", ["1e5"], same("DOUBLE")),
    ("T6", ["1.2345678901234567"], same("DECIMAL")),
    ("T6", ["12345678901234567", "1.5"], same("DECIMAL")),
    *[("T7", [cell], TEXT) for cell in ("007", "+5", "1,234", "0x1F", "1" * 39)],
    ("T8", ["TRUE", "false", ""], same("BOOLEAN")),
    ("T9", ["true", "1"], TEXT),
    ("T9", ["yes", "no"], TEXT),
    ("T10", ["2024-02-29", "2024/03/01"], same("DATE")),
    ("T11", ["2024-02-30"], TEXT),
    ("T11", ["01/02/2024"], TEXT),
    ("T12", ["2024-01-15", "2024-01-15T10:30:00Z"], same("TIMESTAMP")),
    ("T13", ["10:30", "23:59:59"], ("STRING", "VARCHAR", "TIME")),
    ("T14", ["1731527620"], INT),
    ("T15", ["1", "x"], TEXT),
    ("T15", ["2024-01-15", "1"], TEXT),
    ("T16", ["", "\\N", "NULL"], TEXT),
    ("T17", ["NaN", "1"], same("DOUBLE")),
    ("T17", ["NaN"], TEXT),
]
WORKBOOK_ROWS: list[tuple[Sequence[tuple[str, CellKind]], Names]] = [
    ([("1", CellKind.INTEGER), ("2", CellKind.INTEGER)], INT),
    ([("1", CellKind.INTEGER), ("1.5", CellKind.DOUBLE)], same("DOUBLE")),
    ([("2024-01-15", CellKind.DATE), ("", CellKind.NULL)], same("DATE")),
    ([("2024-01-15 10:30:00", CellKind.TIMESTAMP)], same("TIMESTAMP")),
    ([("12", CellKind.TEXT)], TEXT),
]


def exact(cells: Sequence[str]) -> ColumnFacts:
    facts = ColumnFacts()
    facts.add_all(cells)
    return facts


def vectorized(cells: Sequence[str], repeated: int = 1) -> ColumnFacts:
    """Return the facts about the column as computed from an Arrow array.

    Unquoted cells of class NULL become nulls in that array.
    """
    column = [None if classify(cell) is CellKind.NULL and type(cell) is str else str(cell) for cell in cells]
    return array_facts(pa.array(column * repeated, pa.string()))


def names(column: ColumnType) -> dict[str, str]:
    return {dialect: type_name(column, dialect) for dialect in SPECIFIED_DIALECTS}


def expected(row: Names) -> dict[str, str]:
    hive, trino, phoenix = row
    return {"hive": hive, "sparksql": hive, "impala": hive, "trino": trino, "phoenix": phoenix}


@pytest.mark.parametrize("distinct", [200, 201])
@pytest.mark.parametrize("last", ["1.25", "2024-01-31", "x"])
def test_cells_after_many_repeated_ones_count(distinct: int, last: str) -> None:
    """A column that begins with at most 200 distinct values is classified by its distinct values."""
    cells = [str(number % distinct) for number in range(400)] + [last]
    facts = array_facts(pa.array(cells, pa.string()))
    assert column_type(facts, is_whole=True) == column_type(exact(cells), is_whole=True)


@pytest.mark.importer(29)
@pytest.mark.parametrize(("cells", "row"), [row[1:] for row in ROWS])
def test_whole_file_column_has_its_type_in_all_dialects(cells: Sequence[str], row: Names) -> None:
    for facts in (exact(cells), vectorized(cells), vectorized(cells, 200)):
        found = names(column_type(facts, is_whole=True))
        assert found == expected(row)
        assert all(name in SQL_TYPES[dialect] for dialect, name in found.items())


@pytest.mark.importer(29)
def test_integers_of_a_partial_sample_are_bigint() -> None:
    for facts in (exact(["1", "2"]), vectorized(["1", "2"])):
        assert names(column_type(facts, is_whole=False)) == dict.fromkeys(SPECIFIED_DIALECTS, "BIGINT")


@pytest.mark.importer(29)
@pytest.mark.parametrize(("cells", "row"), WORKBOOK_ROWS)
def test_workbook_cells_give_the_specified_types(cells: Sequence[tuple[str, CellKind]], row: Names) -> None:
    facts = exact([TypedText(text, kind) for text, kind in cells])
    assert names(column_type(facts, is_whole=True)) == expected(row)


@pytest.mark.importer(40)
@pytest.mark.parametrize(
    ("cells", "column"),
    [
        (["9223372036854775808"], ColumnType(BaseType.DECIMAL, 19, 0)),
        (["-" + "9" * 38], ColumnType(BaseType.DECIMAL, 38, 0)),
        (["1.2345678901234567"], ColumnType(BaseType.DECIMAL, 17, 16)),
        (["12345678901234567", "1.5"], ColumnType(BaseType.DECIMAL, 18, 1)),
        (["0.1234567890123456"], ColumnType(BaseType.DECIMAL, 16, 16)),
        (["0." + "1" * 38], ColumnType(BaseType.DECIMAL, 38, 38)),
        (["9223372036854775808", "1", "-12.345"], ColumnType(BaseType.DECIMAL, 22, 3)),
        (["1234567890123456", "1"], ColumnType(BaseType.INT64)),
        (["123456789012345", "0.5"], ColumnType(BaseType.FLOAT64)),
        (["1234567890123456", "0.5"], ColumnType(BaseType.DECIMAL, 17, 1)),
        (["1234567890123456", "5e-1"], ColumnType(BaseType.FLOAT64)),
        (["1234567890123456", "NaN"], ColumnType(BaseType.FLOAT64)),
        (["1.2345678901234567", "1e5"], ColumnType(BaseType.FLOAT64)),
        (["1.2345678901234567", "-Infinity"], ColumnType(BaseType.FLOAT64)),
        (["9" * 38, "0.5"], STRING),
        (["1" * 19 + "." + "1" * 19, "1" * 20 + "."], STRING),
    ],
)
def test_numbers_keep_digits_beyond_double_precision(cells: Sequence[str], column: ColumnType) -> None:
    for facts in (exact(cells), vectorized(cells), vectorized(cells, 200)):
        assert column_type(facts, is_whole=True) == column


@pytest.mark.parametrize(
    ("kinds", "column"),
    [
        ({CellKind.DURATION}, ColumnType(BaseType.DURATION)),
        ({CellKind.TIME}, ColumnType(BaseType.TIME)),
        ({CellKind.DURATION, CellKind.TIME}, STRING),
        ({CellKind.TIMESTAMP}, ColumnType(BaseType.DATETIME)),
        ({CellKind.TIMESTAMP, CellKind.TIME}, STRING),
        ({CellKind.BOOLEAN, CellKind.NON_FINITE}, STRING),
        ({CellKind.INTEGER, CellKind.TEXT}, STRING),
        (set[CellKind](), NULL),
    ],
)
def test_mixed_classes_are_text_with_few_exceptions(kinds: set[CellKind], column: ColumnType) -> None:
    assert column_type(ColumnFacts(kinds), is_whole=True) == column


def test_quoted_null_is_text_and_quoted_blank_is_null() -> None:
    for facts in (exact, vectorized):
        assert column_type(facts([QuotedText("null"), "1"]), is_whole=True) == STRING
        assert column_type(facts([QuotedText(""), QuotedText("  "), "1"]), is_whole=True) == ColumnType(BaseType.INT32)


@pytest.mark.parametrize("late", ["x", "1.5", "2147483648", "9223372036854775808", "1e3", "NaN", "2024-01-01", ""])
def test_single_late_cell_affects_the_type(late: str) -> None:
    cells = [*map(str, range(10_000)), late, *map(str, range(100))]
    assert column_type(vectorized(cells), is_whole=True) == column_type(exact(["1", "9999", late]), is_whole=True)
