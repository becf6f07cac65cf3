"""Header detection, column names and previews (Contract importer 7, 11)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.refusals import raises_code

from queryserver.formats.arrow import NULL, BaseType, ColumnType
from queryserver.formats.cell_types.analysis import (
    FIRST_RECORDS,
    Analysis,
    WidthUncertain,
    analyze_blocks,
    analyze_records,
    sample_width,
)
from queryserver.formats.cell_types.classes import classify
from queryserver.formats.cell_types.header import has_header, header_names, numbered_names
from queryserver.formats.delimited.records import Block, RecordReader
from queryserver.formats.detection import detect_delimiters
from queryserver.formats.table_files import CellKind, Delimiters, QuotedText, TypedText
from queryserver.imports.model import PREVIEW_DIALECTS, type_name

COMMA, TAB, PIPE, COLON, BLANK = (Delimiters(field) for field in ",\t|: ")

CASES: list[tuple[str, str, Delimiters, bool]] = [
    ("H1", "id,name\n1,a\n2,b\n3,c\n", COMMA, True),
    ("H1", "a|b\n1|2\n3|4\n", PIPE, True),
    ("H1", "a:b\n1:2\n3:4\n", COLON, True),
    ("H1", "a b\n1 2\n3 4\n", BLANK, True),
    ("H1", "a, b\n1, 2\n3, 4\n", COMMA, True),
    ("H1", "a,b\r\n1,2\r\n", COMMA, True),
    ("H2", "ab,cd\nef,gh\nij,kl\n", COMMA, False),
    ("H2", "1,2\n3,4\n5,6\n", COMMA, False),
    ("H2", "FR,Paris\nDE,Berlin\nIT,Rome\n", COMMA, False),
    ("H3", "header1,header2\nvalue1,value2\nvalue3,value4", COMMA, True),
    ("H3", "col1\tcol2\tcol3\nval1\tval2\tval3\n", TAB, True),
    ("H4", "name,city\nbob,rome\nalexander,xx\n", COMMA, True),
    ("H4", "product,color\nchair,red\ntable,blue\n", COMMA, True),
    ("H5", "a\tb\tc\nv1\tv2\tv3\nv4\tv5\tv6", TAB, True),
    ("H6", "id,name\n", COMMA, True),
    ("H6", "a,b,c", COMMA, True),
    ("H7", "hello", COMMA, False),
    ("H7", "alpha\nbeta\ngamma\n", COMMA, False),
    ("H7", "1\n2\n3\n", COMMA, False),
    ("H8", "name\nalice\nbob\n", COMMA, True),
    ("H8", "n\n1\n2\n", COMMA, True),
    ("H8", "time\n12:30\n13:45\n", COMMA, True),
    ("H9", "id,id\n1,2\n", COMMA, True),
    ("H9", "x,x\nfoo,bar\n", COMMA, False),
    ("H10", "name,2019,2020\nFR,1,2\n", COMMA, True),
    ("H10", "Country,Code,1960,1961,1962\nAruba,ABW,,,\nAngola,AGO,1.5,,2\n", COMMA, True),
    ("H10", "name,2019,5\nFR,1,2\n", COMMA, False),
    ("H10", "name,2019\nFR,1\n", COMMA, False),
    ("H10", "name,2019,2018,2020\nFR,1,2,3\n", COMMA, False),
    ("H10", "1960,1961\n1,2\n", COMMA, False),
    ("H10", "anna,1960,1985\nbob,1970,1991\n", COMMA, False),
    ("H10", "flight,1000,1010\nboat,300,400\n", COMMA, False),
    ("H15", "who,seen\nanna,15/01/2024\nbob,01/02/2024\n", COMMA, True),
    ("H11", "d,v\n2024-01-01,1.5\n2024-01-02,2.5\n", COMMA, True),
    ("H11", "id,ok\n1,true\n2,\n", COMMA, True),
    ("H12", "007,abc\n008,def\n", COMMA, False),
    ("H12", ",\n,\n", COMMA, False),
    ("H13", '"id","name"\n"1","a"\n"2","b"\n', COMMA, True),
    ("H13", "'a';'b'\n'1';'2'\n", Delimiters(";", "'"), True),
    ("H16", "country,2020-01-22,2020-01-23\nFrance,1,2\nItaly,4,5\n", COMMA, True),
    ("H16", "Gender,10,20,30\nmale,5,6,7\nfemale,8,9,1\n", COMMA, True),
    ("H17", "a,2024-01-01,2024-02-01\nx,2024-01-05,2024-02-02\n", COMMA, False),
    ("H18", "Nom;Prénom;Ville\nDupont;Jean;Paris\nDurand;Marie;Lyon\nPetit;Luc;Nice\n", Delimiters(";"), True),
    ("H18", "客户名称,电话\n王小明,一\n李丽,二二\n", COMMA, True),
    ("H18", "Όνομα,Πόλη\nΓιώργος,Αθήνα\nΜαρία,Πάτρα\nΝίκος,Βόλος\n", COMMA, True),
    ("H19", "Γιώργος,Αθήνα\nΜαρία,Πάτρα\nΝίκος,Βόλος\nΕλένη,Χανιά\n", COMMA, False),
    ("H18", "NOM\nAnna\nBert\nCarla\n", COMMA, True),
    ("H19", "Dupont;Jean;Paris\nDurand;Marie;Lyon\nPetit;Luc;Nice\nMoreau;Anne;Lille\n", Delimiters(";"), False),
    ("H19", "Nomen\nAnna\nBert\nCarla\n", COMMA, False),
    ("H20", "Name,Price (€),Share [%]", COMMA, True),
    ("H20", "a,b@c.de", COMMA, False),
]


def records(text: str, delimiters: Delimiters = COMMA) -> list[list[str]]:
    return RecordReader(delimiters).feed(text, final=True)


@pytest.mark.importer(20)
@pytest.mark.parametrize(("text", "delimiters", "answer"), [case[1:] for case in CASES])
def test_header_is_detected(text: str, delimiters: Delimiters, answer: bool) -> None:
    assert detect_delimiters(text.encode(), is_whole=True).delimiters == delimiters
    assert has_header(records(text, delimiters)) is answer


@pytest.mark.importer(20)
@pytest.mark.parametrize(("kind", "answer"), [(CellKind.TEXT, True), (CellKind.INTEGER, False)])
def test_workbook_header_2019_is_text_not_a_number(kind: CellKind, answer: bool) -> None:
    column = [TypedText("2019", kind), *[TypedText(text, CellKind.INTEGER) for text in ("1", "2")]]
    assert has_header([[cell] for cell in column]) is answer


@pytest.mark.parametrize(
    ("text", "answer"),
    # no header: only NULL cells, or a cell of a type other than text
    [
        (',"",NULL\n1,2,3\n', False),
        ("a,b,true\n1,2,3\n", False),
        ("a,b,2024-01-01\n2024-01-02,2,2024-01-03\n", False),
        # without data rows, a header needs at least two names, all different and none NULL
        ("id,", False),
        ("id,ID", False),
        ("first name,e-mail (%),_x/y.z#", True),
        ("9a,b", False),
        ("a,b@c.de", False),
        ("a,https://b.de", False),
        ("Price (€),Share [%]", True),
        ("Temp. °C,№,R&D*,Paid?", True),
        ("a,???", False),
        ("Straße,naïve", True),
        ("a," + "b" * 64, True),
        ("a," + "b" * 65, False),
        ("a,b\n,\nNULL,\\N\n", True),
        # a column with a type other than text decides, whatever the other columns suggest
        ("x,x,n\nx,x,1\n", True),
        # the value in the header occurs again in the column
        ("a\na\nbb\n", False),
        ("name,y\nname,foo\nbob,barbar\n", False),
        # common header words count if they occur in the header and in at most half of the cells below it
        ("userID\nfoo\nx\n", True),
        ("userid\nfoo\nx\n", False),
        ("unit_PRICE\nfoo\nx\n", True),
        ("first\nmy name\nthe key\nx\nfoo\n", True),
        ("first\nmy name\nthe key\nx\na city\n", False),
        # the length of the header, compared with the lengths of the cells below
        ("foo\nba\nxy\n", True),
        ("foo\nba\n", False),
        ("fo\nba\nxy\n", False),
        ("foo,ab\nba,cd\nxy,ef\n", False),
        # the form of the cells: upper and lower case, digits, signs, scripts, repeated values
        ("NOM\nAnna\nBert\nCarla\n", True),
        ("Nomen\nAnna\nBert\nCarla\n", False),
        ("zzz\nA1\nB22\nC333\n", True),
        ("zzz\na@b\nccc@d\nee@ff\n", True),
        ("Zzz\nИван\nОльга\nПётр\n", True),
        ("Zzzz\nred\ngreen\nred\ngreen\nred\n", True),
        ("Carla\nAnna\nBert\nDora\nEmil\n", False),
        # common header words in other languages
        ("Prénom;Ville\nJean;Paris\nMarie;Lyon\n".replace(";", ","), True),
        ("Straße,Länder\nAllee,Ulm\nGasse,Bonn\n", True),
        ("客户名称,电话\n王小明,一\n李丽,二二\n", True),
        ("Titel,Autor\nFaust,Goethe\nRäuber,Schiller\n", True),
        ("Faust,Goethe\nRäuber,Schiller\nEmilia Galotti,Lessing\n", False),
        # a common word is weaker evidence if it is one of several words or also occurs in cells below
        ("the manager\nmy name\nfoo\nbarbarbarbar\nx\n", False),
        # dates and times are names if the cells below are numbers, or if they are text and the dates rise or fall
        ("a,2024-01-01\nx,1\ny,2\n", True),
        ("a,2024-01-01,2024-02-01\nx,here,away\ny,away,here\n", True),
        ("a,2024-01-01\nx,here\ny,away\n", False),
        ("a,2024-01-01,2024-02-01\nx,2024-01-05,2024-02-02\n", False),
        ("a,10:00,11:00\nx,1.5,2\n", True),
        ("2024-01-01,2024-01-02\n1,2\n", True),
        (",2018,2019\nx,1,2\ny,3,4\n", True),
        # integers in equal steps count as names if another cell is a name
        ("Gender,10,20,30\nmale,5,6,7\nfemale,8,9,1\n", True),
        ("ann,10,20,30\nmax,5,6,7\n", False),
        ("Gender,10,20,35\nmale,5,6,7\nfemale,8,9,1\n", False),
        # blanks around cells are ignored
        (" 1 ,x\n2,3\n", False),
        ("foo , ab\nba,cd\nxy, efg\n", True),
        # cells below an empty header cell are ignored
        (",foo\n1,fooo\n2,fo\n", False),
        # cells beyond the header are ignored
        ("foo\nfoo,1\nfo,2\n", False),
    ],
)
def test_heuristic_rule_detects_the_header(text: str, answer: bool) -> None:
    assert has_header(records(text)) is answer


def test_header_is_compared_with_a_hundred_records_with_a_value() -> None:
    header, empty = ["foo"], [""]
    assert has_header([header, *[empty] * 500, *[["1"]] * 100, ["foo"]])
    assert not has_header([header, *[empty] * 500, *[["1"]] * 99, ["foo"]])


def test_no_records_means_no_header() -> None:
    assert not has_header([])


@pytest.mark.importer(30)
@pytest.mark.parametrize(
    ("header", "names"),
    [
        (["b", "a", "c"], ["b", "a", "c"]),
        (["id", "id", "id"], ["id", "id_2", "id_3"]),
        (["id", "ID", "Id"], ["id", "ID_2", "Id_3"]),
        (["a", "a", "a_2"], ["a", "a_3", "a_2"]),
        (["a_2", "a", "a"], ["a_2", "a", "a_3"]),
        (["a", "a", "a_2", "a_2"], ["a", "a_3", "a_2", "a_2_2"]),
        (["", "b", " "], ["column_1", "b", "column_3"]),
        (["", "column_1"], ["column_1", "column_1_2"]),
        (["  x \t", "\n y\n"], ["x", "y"]),
        (["a\r\nb", "a\n\nb", "a\rb"], ["a b", "a b_2", "a b_3"]),
        (["é", "É"], ["é", "É_2"]),
        (["null", "\\N"], ["null", "\\N"]),
    ],
)
def test_header_names_are_made_unique(header: list[str], names: list[str]) -> None:
    assert header_names(header, len(header)) == names


@pytest.mark.importer(30)
def test_unique_names_stay_within_255_characters() -> None:
    names = header_names(["x" * 300, "x" * 260, "x" * 255 + " y"], 3)
    assert names == ["x" * 255, "x" * 253 + "_2", "x" * 253 + "_3"]


def test_header_is_cut_or_filled_to_the_width() -> None:
    assert header_names(["a", "b", "c"], 2) == ["a", "b"]
    assert header_names(["a"], 3) == ["a", "column_2", "column_3"]


def test_two_thousand_equal_names_become_unique() -> None:
    names = header_names(["n"] * 2_000, 2_000)
    assert names[-1] == "n_2000"
    assert len(set(names)) == 2_000


def test_columns_without_a_header_are_numbered() -> None:
    assert numbered_names(3) == ["column_1", "column_2", "column_3"]


def blocks_of(records_of_preview: Sequence[Sequence[str]], width: int, rows: int = 99) -> Iterator[Block]:
    for start in range(0, len(records_of_preview), rows):
        part = records_of_preview[start : start + rows]
        cells = [[_block_cell(cell) for cell in record[:width]] + [None] * (width - len(record)) for record in part]
        arrays = [pa.array([row[position] for row in cells], pa.string()) for position in range(width)]
        yield Block(
            start + 1,
            pa.RecordBatch.from_arrays(arrays, [str(position) for position in range(width)]),
            [index for index, record in enumerate(part) if len(record) > width],
            [index for index, record in enumerate(part) if len(record) < width],
            wider_rows=[index for index, record in enumerate(part) if len(record) > width],
        )


def _block_cell(cell: str) -> str | None:
    is_null = cell.strip().lower() in {"", "null"} and not isinstance(cell, QuotedText)
    return None if is_null else str(cell)


def by_blocks(records_of_preview: Sequence[Sequence[str]], *, has_header: bool, is_whole: bool) -> Analysis:
    first = records_of_preview[:FIRST_RECORDS]
    blocks = blocks_of(records_of_preview, sample_width(first, has_header=has_header))
    return analyze_blocks(first, blocks, has_header=has_header, is_whole=is_whole)


Way = Callable[..., Analysis]
both_ways = pytest.mark.parametrize("analyze", [analyze_records, by_blocks])


def records_of_preview(text: str, delimiters: Delimiters | None = None) -> list[list[str]]:
    return RecordReader(delimiters or Delimiters()).feed(text, final=True)


def shown(analysis: Analysis, dialect: str) -> list[tuple[str, str]]:
    return [(column.name, type_name(column.type, dialect)) for column in analysis.columns]


def warnings(analysis: Analysis) -> list[tuple[str, int, list[int]]]:
    return [(warning.code.value, warning.count, warning.rows) for warning in analysis.warnings]


@pytest.mark.importer(28)
@both_ways
def test_specified_previews_are_reproduced(analyze: Way) -> None:
    typed = analyze(records_of_preview("col1,col2\n1.1,true\n2.2,false"), has_header=True, is_whole=True)
    assert shown(typed, "hive") == [("col1", "DOUBLE"), ("col2", "BOOLEAN")]
    assert typed.rows == [["1.1", "true"], ["2.2", "false"]]
    mixed = analyze(records_of_preview("sample1,sample2\n1.1,true\n2.2,false"), has_header=False, is_whole=True)
    assert shown(mixed, "hive") == [("column_1", "STRING"), ("column_2", "STRING")]
    assert mixed.rows == [["sample1", "sample2"], ["1.1", "true"], ["2.2", "false"]]
    text = analyze(records_of_preview("string_col\nfoo\nbar"), has_header=True, is_whole=True)
    assert shown(text, "trino") == [("string_col", "VARCHAR")]


@pytest.mark.importer(31)
@both_ways
def test_header_only_file_gives_text_columns_and_no_rows(analyze: Way) -> None:
    analysis = analyze(records_of_preview("id,name\n"), has_header=True, is_whole=True)
    assert analysis.rows == []
    for dialect in PREVIEW_DIALECTS:
        text = {
            **dict.fromkeys(("hive", "impala", "sparksql"), "STRING"),
            "trino": "VARCHAR",
            "phoenix": "VARCHAR",
        }.get(dialect, "VARCHAR" if dialect == "duckdb" else "TEXT")
        assert shown(analysis, dialect) == [("id", text), ("name", text)]


@pytest.mark.importer(31)
@pytest.mark.parametrize("has_header", [True, False])
@both_ways
def test_blank_file_is_empty(analyze: Way, has_header: bool) -> None:
    with raises_code("file_empty"):
        analyze(records_of_preview("\n \n\t\n"), has_header=has_header, is_whole=True)


@both_ways
def test_sample_without_a_record_end_is_not_an_empty_file(analyze: Way) -> None:
    with raises_code("record_too_long"):
        analyze([], has_header=False, is_whole=False)


@pytest.mark.importer(32)
@both_ways
def test_short_rows_are_filled_and_long_rows_cut_with_a_warning(analyze: Way) -> None:
    analysis = analyze(records_of_preview("a,b\n1\n1,2,3\n\n1,2\n"), has_header=True, is_whole=True)
    assert analysis.rows == [["1", ""], ["1", "2"], ["1", "2"]]
    assert warnings(analysis) == [("long_rows", 1, [3]), ("short_rows", 1, [2])]
    assert shown(analysis, "hive") == [("a", "INT"), ("b", "INT")]


@pytest.mark.importer(32)
@both_ways
def test_warning_names_the_first_ten_irregular_records(analyze: Way) -> None:
    analysis = analyze(records_of_preview("a,b\n" + "1,2\n1\n" * 30), has_header=True, is_whole=True)
    assert warnings(analysis) == [("short_rows", 30, list(range(3, 22, 2)))]


@pytest.mark.importer(32)
@pytest.mark.parametrize(
    ("text", "width"), [("1\n1,2\n1,2\n", 2), ("1\n1,2\n", 2), ("1,2,3\n1\n1\n", 1), ("1,2\n1,2\n1,2,3\n", 2)]
)
def test_width_without_a_header_is_the_most_frequent_or_larger_one(text: str, width: int) -> None:
    analysis = analyze_records(records_of_preview(text), has_header=False, is_whole=True)
    assert len(analysis.columns) == width
    assert {len(row) for row in analysis.rows} == {width}


@pytest.mark.importer(32)
def test_blocks_of_an_uncertain_width_are_rejected() -> None:
    sample = records_of_preview("1,2\n" * FIRST_RECORDS + "1\n" * 60)
    with pytest.raises(WidthUncertain):
        by_blocks(sample, has_header=False, is_whole=True)
    assert len(analyze_records(sample, has_header=False, is_whole=True).columns) == 1
    with_header = by_blocks(sample, has_header=True, is_whole=True)
    assert len(with_header.columns) == 2
    assert with_header == analyze_records(sample, has_header=True, is_whole=True)


@pytest.mark.importer(39)
@both_ways
def test_cells_are_shown_unchanged(analyze: Way) -> None:
    analysis = analyze(
        records_of_preview('a,b,c,d,e\n1.50,007,\\N,NULL, x \n2," q ","","null",=1+1\n'), has_header=True, is_whole=True
    )
    assert analysis.rows == [["1.50", "007", "\\N", "NULL", " x "], ["2", " q ", "", "null", "=1+1"]]
    assert {type(cell) for row in analysis.rows for cell in row} == {str}


@pytest.mark.importer(30)
@both_ways
def test_columns_keep_file_order_with_unique_names(analyze: Way) -> None:
    analysis = analyze(records_of_preview("b,a,,A,b\n1,2,3,4,5\n"), has_header=True, is_whole=True)
    assert [column.name for column in analysis.columns] == ["b", "a", "column_3", "A_2", "b_2"]


@pytest.mark.importer(27)
@pytest.mark.parametrize("has_header", [True, False])
@both_ways
def test_fifty_rows_are_shown_and_all_rows_determine_types(analyze: Way, has_header: bool) -> None:
    sample = [["1"]] * 60 + [["x"]]
    analysis = analyze(sample, has_header=has_header, is_whole=True)
    assert analysis.rows == [["1"]] * 50
    assert shown(analysis, "hive")[0][1] == "STRING"


@pytest.mark.parametrize("has_header", [True, False])
@pytest.mark.parametrize(("beyond", "base"), [(0, BaseType.INT32), (1, BaseType.INT64)])
@both_ways
def test_ten_thousand_records_determine_types(analyze, has_header, beyond, base) -> None:
    sample = [["1"]] * (10_000 + has_header) + [["x"]] * beyond
    analysis = analyze(sample, has_header=has_header, is_whole=True)
    assert [column.type for column in analysis.columns] == [ColumnType(base)]
    assert analysis.is_whole is (not beyond)
    assert warnings(analysis) == []


@pytest.mark.parametrize(
    ("rows", "is_whole", "found"), [(49, False, [("truncated_sample", 1, [])]), (50, False, []), (49, True, [])]
)
@both_ways
def test_partial_sample_below_fifty_rows_is_a_warning(analyze, rows, is_whole, found) -> None:
    assert warnings(analyze([["a"], *[["1"]] * rows], has_header=True, is_whole=is_whole)) == found


def test_undecodable_characters_and_unclosed_quotes_are_warnings_with_records() -> None:
    sample = [["a", "b"], ["1", "\ufffd\ufffd"], ["2", "x"], ["\ufffd", '"open']]
    expected = [("unclosed_quote", 1, [4]), ("undecodable", 3, [2, 4])]
    found = analyze_records(sample, has_header=True, is_whole=True, unclosed=[4], undecodable=3)
    assert warnings(found) == expected
    first, second = blocks_of(sample, 2, rows=3)
    second = replace(second, unclosed=[0])
    fast = analyze_blocks(sample, [first, second], has_header=True, is_whole=True, undecodable=3)
    assert warnings(fast) == expected


def test_replacement_character_in_the_file_is_not_a_warning() -> None:
    assert not analyze_records([["\ufffd"], ["x"]], has_header=True, is_whole=True).warnings


@pytest.mark.importer(42)
def test_worksheet_is_typed_by_its_cell_classes() -> None:
    sheet = [
        [TypedText("n", CellKind.TEXT), TypedText("2019", CellKind.TEXT), TypedText("", CellKind.NULL)],
        [TypedText("1", CellKind.INTEGER), TypedText("12", CellKind.TEXT), TypedText("30:00:00", CellKind.DURATION)],
        [TypedText("1.5", CellKind.DOUBLE), TypedText("13", CellKind.TEXT), TypedText("", CellKind.NULL)],
    ]
    analysis = analyze_records(sheet, has_header=True, is_whole=True)
    assert [(column.name, column.type.base) for column in analysis.columns] == [
        ("n", BaseType.FLOAT64),
        ("2019", BaseType.STRING),
        ("column_3", BaseType.DURATION),
    ]
    assert analysis.rows == [["1", "12", "30:00:00"], ["1.5", "13", ""]]
    assert {type(cell) for row in analysis.rows for cell in row} == {str}


def test_column_of_nulls_has_the_null_type() -> None:
    analysis = analyze_records([["a"], [""], ["\\N"], ["NULL"]], has_header=True, is_whole=True)
    assert analysis.columns[0].type == NULL
    assert classify("NULL") is CellKind.NULL


def test_first_records_without_blocks_determine_types() -> None:
    sample = records_of_preview("a,b\n1,x\n2\n")
    by_no_blocks = analyze_blocks(sample, [], has_header=True, is_whole=True)
    assert by_no_blocks == analyze_records(sample, has_header=True, is_whole=True)
    assert shown(by_no_blocks, "hive") == [("a", "INT"), ("b", "STRING")]
