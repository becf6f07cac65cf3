"""Types of columns: T1-T18, and the rules that they are cases of (Contract importer 12.3, 12.4)."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from queryserver.formats.cell_types.classes import ColumnFacts, classify, column_type, facts_of_array
from queryserver.imports.model import (
    NULL,
    SQL_TYPES,
    STRING,
    BaseType,
    CellKind,
    ColumnType,
    QuotedText,
    TypedText,
    type_name,
)

Names = tuple[str, str, str]
SPECIFIED_DIALECTS = ("hive", "impala", "trino", "phoenix", "sparksql")
"""Those that the specification lists types of."""
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


def vectorised(cells: Sequence[str], repeated: int = 1) -> ColumnFacts:
    """As a Block has them: null where the class is null, but for what was quoted."""
    column = [None if classify(cell) is CellKind.NULL and type(cell) is str else str(cell) for cell in cells]
    return facts_of_array(pa.array(column * repeated, pa.string()))


def names(column: ColumnType) -> dict[str, str]:
    return {dialect: type_name(column, dialect) for dialect in SPECIFIED_DIALECTS}


def expected(row: Names) -> dict[str, str]:
    hive, trino, phoenix = row
    return {"hive": hive, "sparksql": hive, "impala": hive, "trino": trino, "phoenix": phoenix}


@pytest.mark.importer(29)
@pytest.mark.parametrize(("cells", "row"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_column_of_a_whole_file_has_the_type_of_the_table_in_all_dialects(cells: Sequence[str], row: Names) -> None:
    for facts in (exact(cells), vectorised(cells), vectorised(cells, 200)):
        found = names(column_type(facts, is_whole=True))
        assert found == expected(row)
        assert all(name in SQL_TYPES[dialect] for dialect, name in found.items())


@pytest.mark.importer(29)
def test_integers_of_a_partial_sample_are_bigint() -> None:
    for facts in (exact(["1", "2"]), vectorised(["1", "2"])):
        assert names(column_type(facts, is_whole=False)) == dict.fromkeys(SPECIFIED_DIALECTS, "BIGINT")


@pytest.mark.importer(29)
@pytest.mark.parametrize(("cells", "row"), WORKBOOK_ROWS)
def test_cells_of_workbooks_give_the_types_of_the_table(cells: Sequence[tuple[str, CellKind]], row: Names) -> None:
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
def test_numbers_keep_every_digit_where_a_double_would_not(cells: Sequence[str], column: ColumnType) -> None:
    for facts in (exact(cells), vectorised(cells), vectorised(cells, 200)):
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
def test_a_mix_of_classes_is_text_unless_the_table_says_otherwise(kinds: set[CellKind], column: ColumnType) -> None:
    assert column_type(ColumnFacts(kinds), is_whole=True) == column


def test_a_quoted_null_is_text_and_a_quoted_blank_is_not() -> None:
    for facts in (exact, vectorised):
        assert column_type(facts([QuotedText("null"), "1"]), is_whole=True) == STRING
        assert column_type(facts([QuotedText(""), QuotedText("  "), "1"]), is_whole=True) == ColumnType(BaseType.INT32)


@pytest.mark.parametrize("late", ["x", "1.5", "2147483648", "9223372036854775808", "1e3", "NaN", "2024-01-01", ""])
def test_one_late_cell_counts_as_much_as_ten_thousand(late: str) -> None:
    cells = [*map(str, range(10_000)), late, *map(str, range(100))]
    assert column_type(vectorised(cells), is_whole=True) == column_type(exact(["1", "9999", late]), is_whole=True)


def test_facts_of_parts_merge_to_the_facts_of_the_whole() -> None:
    parts = [["1", "2147483648"], ["-12.345", "1.2345678901234567"], ["", "12345678901234567"]]
    merged = ColumnFacts()
    for part in parts:
        merged.merge(exact(part))
    assert merged == exact([cell for part in parts for cell in part])
