"""Cells of xlsx files, as the reader returns them (Contract importer 12.2)."""

import pytest
from tests.fakes.workbook_files import column_xml, sheet_xml, workbook_parts, write_package
from tests.refusals import raises_code

from queryserver.errors.files import FileCorrupt
from queryserver.formats.table_files import CellKind
from queryserver.workbooks import cells as used_range
from queryserver.workbooks import packages
from queryserver.workbooks.cells import checked_rows, columns_in_use, read_head
from queryserver.workbooks.worker import OpenWorkbook, WorkbookKind


@pytest.fixture
def read(tmp_path):
    """Return a function that reads the first sheet, checks that its head yields the same rows, and returns all rows."""

    def rows_of(parts):
        with write_package(tmp_path / "a.xlsx", parts).open("rb") as file:
            workbook = OpenWorkbook(file, WorkbookKind.XLSX)
            (name, *_) = workbook.sheet_names()
            head = read_head(workbook.rows(name))
            columns = columns_in_use(head.rows)
            rows = list(checked_rows(columns, workbook.rows(name)))
            first = list(checked_rows(columns, head.rows))
            assert first == rows[: len(first)]
            return rows

    return rows_of


@pytest.mark.importer(42)
@pytest.mark.parametrize(
    ("cell", "text", "kind"),
    [
        ("<c><v>1</v></c>", "1", CellKind.INTEGER),
        ("<c><v>2.0</v></c>", "2", CellKind.INTEGER),
        ("<c><v>-3</v></c>", "-3", CellKind.INTEGER),
        ("<c><v>-0</v></c>", "0", CellKind.INTEGER),
        ("<c><v>007</v></c>", "7", CellKind.INTEGER),
        ("<c><v>1.5</v></c>", "1.5", CellKind.DOUBLE),
        ("<c><v>0.10000000000000001</v></c>", "0.1", CellKind.DOUBLE),
        ("<c><v>1E3</v></c>", "1000", CellKind.INTEGER),
        ("<c><v>1e-7</v></c>", "1e-07", CellKind.DOUBLE),
        ("<c><v>9007199254740992</v></c>", "9007199254740992", CellKind.INTEGER),
        ("<c><v>9007199254740994</v></c>", "9007199254740994.0", CellKind.DOUBLE),
        ("<c><v>12345678901234567890</v></c>", "1.2345678901234567e+19", CellKind.DOUBLE),
        ('<c t="b"><v>1</v></c>', "true", CellKind.BOOLEAN),
        ('<c t="b"><v>0</v></c>', "false", CellKind.BOOLEAN),
        ('<c t="str"><f>A1&amp;"x"</f><v>12</v></c>', "12", CellKind.TEXT),
        ("<c><f>1+1</f><v>2</v></c>", "2", CellKind.INTEGER),
        ('<c><f t="shared" si="0"/><v>2</v></c>', "2", CellKind.INTEGER),
        ('<c t="inlineStr"><is><t>=1+1</t></is></c>', "=1+1", CellKind.TEXT),
        ('<c t="inlineStr"><is><t xml:space="preserve"> a </t></is></c>', " a ", CellKind.TEXT),
        ('<c t="inlineStr"><is><t xml:space="preserve"> </t></is></c>', " ", CellKind.TEXT),
        ('<c t="inlineStr"><is><t>a &lt;&amp;lt;&gt; b</t></is></c>', "a <&lt;> b", CellKind.TEXT),
        ('<c t="inlineStr"><is><r><t>a</t></r><r><rPr><b/></rPr><t>b</t></r></is></c>', "ab", CellKind.TEXT),
        ('<c t="inlineStr"><is><t>漢</t><rPh sb="0" eb="1"><t>kan</t></rPh></is></c>', "漢", CellKind.TEXT),
        ('<c t="inlineStr"><is><t>a_x000D_b_x005F_x0041_</t></is></c>', "a\rb_x0041_", CellKind.TEXT),
        ('<c t="inlineStr"><is><t>a\r\nb</t></is></c>', "a\nb", CellKind.TEXT),
        ('<c t="inlineStr"><is><t>&#233;&#x1F600;</t></is></c>', "é😀", CellKind.TEXT),
        ('<c t="inlineStr"><is><t><![CDATA[</row>]]></t></is></c>', "</row>", CellKind.TEXT),
        ('<c t="d"><v>2024-01-15T10:30:00</v></c>', "2024-01-15 10:30:00", CellKind.TIMESTAMP),
        ('<c t="d"><v>soon</v></c>', "soon", CellKind.TEXT),
        ('<c s="1"><v>45306</v></c>', "2024-01-15", CellKind.DATE),
        ('<c s="2"><v>45306.4375</v></c>', "2024-01-15 10:30:00", CellKind.TIMESTAMP),
        ('<c s="3"><v>1.25</v></c>', "30:00:00", CellKind.DURATION),
        ('<c s="1"><v>-5</v></c>', "-5", CellKind.INTEGER),
        ('<c s="1"><v>3000000.5</v></c>', "3000000.5", CellKind.DOUBLE),
        ('<c s="99"><v>5</v></c>', "5", CellKind.INTEGER),
        ("<c><v>abc</v></c>", "abc", CellKind.TEXT),
        ("<c><v>1_000</v></c>", "1_000", CellKind.TEXT),
        ("<c><v>٣</v></c>", "٣", CellKind.TEXT),
        ('<c vm="1"><v>7</v></c>', "7", CellKind.INTEGER),
    ],
)
def test_cell_is_read_as_text_with_its_kind(read, cell, text, kind):
    ((found,),) = read(workbook_parts({"A": column_xml([cell])}, formats=[0, 14, "yyyy\\-mm\\-dd hh:mm", 46]))
    assert (found, found.kind) == (text, kind)


@pytest.mark.importer(42)
@pytest.mark.parametrize(
    "cell",
    [
        "<c/>",
        '<c s="1"/>',
        "<c><v/></c>",
        "<c><v></v></c>",
        '<c t="e"><v>#N/A</v></c>',
        '<c t="e"><f>1/0</f><v>#DIV/0!</v></c>',
        "<c><f>1+1</f></c>",
        '<c t="str"><f>""</f><v></v></c>',
        '<c t="inlineStr"><is><t></t></is></c>',
        '<c t="s"><v>0</v></c>',
        "<c><v>NaN</v></c>",
        "<c><v>1e999</v></c>",
        '<c s="1"><v>NaN</v></c>',
    ],
)
def test_empty_cells_errors_and_formulas_without_a_value_are_null(read, cell):
    placed = cell.replace("<c", '<c r="B1"', 1)
    xml = sheet_xml(f'<row r="1"><c r="A1"><v>1</v></c>{placed}<c r="C1"><v>2</v></c></row>')
    parts = workbook_parts({"A": xml}, strings=["<t></t>"], formats=[0, 14])
    ((_, found, _),) = read(parts)
    assert (found, found.kind) == ("", CellKind.NULL)


@pytest.mark.importer(44)
def test_text_resembling_a_number_is_text(read):
    parts = workbook_parts({"A": column_xml(['<c t="s"><v>0</v></c>'])}, strings=["<t>12</t>"])
    ((found,),) = read(parts)
    assert (found, found.kind) == ("12", CellKind.TEXT)


def test_shared_strings_may_be_rich_and_have_phonetic_text(read):
    strings = [
        "<t>a</t>",
        "<r><t>b</t></r><r><t xml:space='preserve'> c</t></r>",
        "<t>d</t><rPh><t>no</t></rPh>",
        "<t/>",
    ]
    strings += ["<t>e &amp; f</t>", "<!-- </si> --><t>g</t>", "<t>h</t>"]
    cells = [f'<c t="s"><v>{number}</v></c>' for number in range(len(strings))]
    rows = read(workbook_parts({"A": sheet_xml(f"<row>{''.join(cells)}</row>")}, strings=strings))
    assert rows == [["a", "b c", "d", "", "e & f", "g", "h"]]


@pytest.mark.importer(42)
def test_used_range_excludes_empty_rows_and_outer_empty_columns(read):
    rows = (
        '<row r="1"/><row r="2"><c r="A2" s="1"/></row>'
        '<row r="3"><c r="C3"><v>1</v></c></row><row r="4"><c r="A4" t="e"><v>#N/A</v></c></row>'
        '<row r="9"><c r="E9"><v>2</v></c><c r="H9" s="1"/></row>'
    )
    assert read(workbook_parts({"A": sheet_xml(rows)})) == [["1", "", ""], ["", "", "2"]]


@pytest.mark.importer(42)
def test_merged_area_has_its_value_in_the_first_cell(read):
    rows = '<row r="1"><c r="A1"><v>1</v></c><c r="B1" s="0"/><c r="C1"><v>3</v></c></row>'
    merged = '<mergeCells count="1"><mergeCell ref="A1:B1"/></mergeCells>'
    assert read(workbook_parts({"A": sheet_xml(rows, after=merged)})) == [["1", "", "3"]]


@pytest.mark.importer(42)
def test_1904_calendar_is_respected(read):
    cells = ['<c s="0"><v>43844</v></c>', '<c s="0"><v>0</v></c>']
    parts = workbook_parts({"A": column_xml(cells)}, formats=[14], is_1904=True)
    assert read(parts) == [["2024-01-15"], ["1904-01-01"]]


def test_sheet_without_cells_has_no_rows(read):
    assert read(workbook_parts({"A": sheet_xml("")})) == []
    assert read(workbook_parts({"A": sheet_xml("").replace("<sheetData></sheetData>", "<sheetData/>")})) == []


def test_cells_without_a_reference_follow_each_other(read):
    rows = '<row><c><v>1</v></c><c r="D1"><v>2</v></c><c><v>3</v></c></row><row><c><v>4</v></c></row>'
    assert read(workbook_parts({"A": sheet_xml(rows)})) == [["1", "", "", "2", "3"], ["4", "", "", "", ""]]


def test_cells_out_of_order_are_placed_by_their_references(read):
    rows = '<row r="1"><c r="C1"><v>3</v></c><c r="A1"><v>1</v></c><c r="AB1"><v>28</v></c></row>'
    (row,) = read(workbook_parts({"A": sheet_xml(rows)}))
    assert (row[0], row[2], row[27], len(row)) == ("1", "3", "28", 28)


def test_declared_dimension_is_ignored(read):
    xml = sheet_xml('<row r="1"><c r="A1"><v>1</v></c><c r="B1"><v>2</v></c></row>')
    for dimension in ("A1", "A1:XFD1048576"):
        told = xml.replace("<sheetData>", f'<dimension ref="{dimension}"/><sheetData>')
        assert read(workbook_parts({"A": told})) == [["1", "2"]]


@pytest.mark.parametrize(
    "change",
    [
        lambda xml: xml.replace("<", "<x:").replace("<x:/", "</x:").replace("xmlns=", "xmlns:x="),
        lambda xml: "\ufeff" + xml,
        lambda xml: xml.replace("><", ">\n  <"),
        lambda xml: xml.replace("<sheetData>", "<!-- <sheetData> </row> --><sheetData>"),
        lambda xml: xml.replace("<row", "<!-- </row> --><row", 1),
        lambda xml: xml.replace("<sheetData>", "<sheetData >"),
        lambda xml: xml.replace('"', "'"),
    ],
)
def test_sheet_may_be_written_in_many_ways(read, change):
    xml = column_xml(['<c r="A1" t="inlineStr"><is><t>é</t></is></c>', '<c r="A2"><v>2</v></c>'])
    assert read({**workbook_parts({"A": xml}), "xl/worksheets/sheet1.xml": change(xml)}) == [["é"], ["2"]]


@pytest.mark.importer(15)
def test_unusual_encodings_and_cell_types_are_corrupt(read):
    """calamine supports only UTF-8 and the cell types of the standard."""
    xml = column_xml(['<c t="inlineStr"><is><t>é</t></is></c>'])
    for changed in (
        f'<?xml version="1.0" encoding="UTF-16"?>{xml}'.encode("utf-16"),
        f'<?xml version="1.0" encoding="ISO-8859-1"?>{xml}'.encode("latin-1"),
        xml.replace("<sheetData>", '<dimension ref="nonsense"/><sheetData>'),
        column_xml(['<c t="unheard"><v>1</v></c>']),
        column_xml(['<c t="n"><v> 4 </v></c>']),
    ):
        with pytest.raises(FileCorrupt):
            read({**workbook_parts({"A": xml}), "xl/worksheets/sheet1.xml": changed})


@pytest.mark.importer(42)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda xml: xml, "2024-01-15 00:00:00"),
        (lambda xml: xml.replace('s="0"', 't="n" cm="1" s="0"'), "2024-01-15 00:00:00"),
        (lambda xml: xml.replace("<v>", '<f t="shared" si="0"/><v>'), "2024-01-15 00:00:00"),
        (lambda xml: xml.replace("<v>", "<f>A1 &lt; 2</f><v>"), "2024-01-15 00:00:00"),
        (lambda xml: xml.replace('<c r="A3"', '<c r="A3" s="0"/><c r="B3"'), "2024-01-15 00:00:00"),
        # In these files, only the second reading could distinguish the types; calamine reads midnight as a date.
        (lambda xml: xml.replace('r="A3" ', ""), "2024-01-15"),
        (lambda xml: xml.replace("<", "<x:").replace("<x:/", "</x:").replace("xmlns=", "xmlns:x="), "2024-01-15"),
    ],
)
def test_timestamp_at_midnight_is_not_a_date(read, change, expected):
    xml = sheet_xml('<row r="3"><c r="A3" s="0"><v>45306</v></c></row>')
    assert read(workbook_parts({"A": change(xml)}, formats=["yyyy-mm-dd hh:mm:ss"]))[0][-1] == expected


def test_dates_are_found_at_any_chunk_boundary(read, monkeypatch):
    cells = [f'<c r="A{row}" s="{row % 2}"><v>{45000 + row}</v></c>' for row in range(1, 400)]
    monkeypatch.setattr(packages, "PIECE_BYTES", 100)
    found = read(workbook_parts({"A": column_xml(cells)}, formats=[22, 0]))
    assert [len(cell) for (cell,) in found] == [5 if row % 2 else 19 for row in range(1, 400)]


@pytest.mark.importer(13)
def test_sheets_keep_their_order_with_hidden_sheets_and_without_charts(tmp_path):
    parts = workbook_parts({"B &amp; b": sheet_xml(""), "A": sheet_xml(""), "Chart": sheet_xml(""), "C": sheet_xml("")})
    workbook = parts["xl/workbook.xml"].replace('name="A"', 'name="A" state="veryHidden"')
    relationships = parts["xl/_rels/workbook.xml.rels"].replace(
        'Id="rId3" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet"',
        'Id="rId3" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/chartsheet"',
    )
    parts |= {"xl/workbook.xml": workbook, "xl/_rels/workbook.xml.rels": relationships}
    with write_package(tmp_path / "a.xlsx", parts).open("rb") as file:
        opened = OpenWorkbook(file, WorkbookKind.XLSX)
        assert opened.sheet_names() == ["B & b", "A", "C"]
        with raises_code("sheet_not_found"):
            read_head(opened.rows("Chart"))


def test_columns_follow_the_head_and_later_rows_may_be_longer(read, monkeypatch):
    monkeypatch.setattr(used_range, "HEAD_ROWS", 2)
    rows = "".join(
        f'<row r="{number}">{cells}</row>'
        for number, cells in enumerate(
            [
                '<c r="B1"><v>1</v></c><c r="C1"><v>2</v></c>',
                '<c r="B2"><v>3</v></c>',
                '<c r="C3"><v>4</v></c>',
                '<c r="E4"><v>5</v></c>',
                '<c r="A5"><v>6</v></c>',
            ],
            1,
        )
    )
    found = read(workbook_parts({"A": sheet_xml(rows)}))
    assert found == [["1", "2"], ["3", ""], ["", "4"], ["", "", "", "5"], ["6", "", ""]]
