"""Header or not: H1-H15 and the rules that they are cases of (Contract importer 11)."""

import pytest
from tests.cases import each

from queryserver.formats.cell_types.header import has_header
from queryserver.formats.delimited.records import RecordReader
from queryserver.formats.detection import detect
from queryserver.imports.model import CellKind, Delimiters, TypedText

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
]


def records(text: str, delimiters: Delimiters = COMMA) -> list[list[str]]:
    return RecordReader(delimiters).feed(text, final=True)


@pytest.mark.importer(20)
@pytest.mark.parametrize(
    ("text", "delimiters", "answer"), [case[1:] for case in CASES], ids=[f"{case[0]}-{case[1]!r}" for case in CASES]
)
def test_a_text_has_a_header_as_the_table_says(text: str, delimiters: Delimiters, answer: bool) -> None:
    assert detect(text.encode(), is_whole=True).delimiters == delimiters
    assert has_header(records(text, delimiters)) is answer


@pytest.mark.importer(20)
@pytest.mark.parametrize(("kind", "answer"), [(CellKind.TEXT, True), (CellKind.INTEGER, False)])
def test_a_text_2019_over_numbers_of_a_workbook_is_a_header_and_a_number_is_not(kind: CellKind, answer: bool) -> None:
    column = [TypedText("2019", kind), *[TypedText(text, CellKind.INTEGER) for text in ("1", "2")]]
    assert has_header([[cell] for cell in column]) is answer


@each(
    ("text", "answer"),
    [
        # only null cells; a typed cell, were it only one
        (',"",NULL\n1,2,3\n', False),
        ("a,b,true\n1,2,3\n", False),
        ("a,b,2024-01-01\n1,2,3\n", False),
        # no data: names, all different, none null, at least two
        ("id,", False),
        ("id,ID", False),
        ("first name,e-mail (%),_x/y.z#", True),
        ("9a,b", False),
        ("a,b?", False),
        ("Straße,naïve", True),
        ("a," + "b" * 64, True),
        ("a," + "b" * 65, False),
        ("a,b\n,\nNULL,\\N\n", True),
        # a column of another type than text settles it, whatever the others say
        ("x,x,n\nx,x,1\n", True),
        # the same value again
        ("a\na\nbb\n", False),
        ("name,y\nname,foo\nbob,barbar\n", False),
        # common words: in the header, and in at most half of the cells below
        ("userID\nfoo\nx\n", True),
        ("userid\nfoo\nx\n", False),
        ("unit_PRICE\nfoo\nx\n", True),
        ("first\nmy name\nthe key\nx\nfoo\n", True),
        ("first\nmy name\nthe key\nx\na city\n", False),
        # lengths
        ("foo\nba\nxy\n", True),
        ("foo\nba\n", False),
        ("fo\nba\nxy\n", False),
        ("foo,ab\nba,cd\nxy,ef\n", False),
        # blanks around cells do not count
        (" 1 ,x\n2,3\n", False),
        ("foo , ab\nba,cd\nxy, efg\n", True),
        # cells below a missing header cell say nothing
        (",foo\n1,fooo\n2,fo\n", False),
        # cells beyond the header say nothing
        ("foo\nfoo,1\nfo,2\n", False),
    ],
)
def test_each_rule_of_the_heuristic(text: str, answer: bool) -> None:
    assert has_header(records(text)) is answer


def test_a_hundred_records_with_a_value_are_compared() -> None:
    header, empty = ["foo"], [""]
    assert has_header([header, *[empty] * 500, *[["1"]] * 100, ["text"]])
    assert not has_header([header, *[empty] * 500, *[["1"]] * 99, ["text"]])


def test_no_record_is_no_header() -> None:
    assert not has_header([])
