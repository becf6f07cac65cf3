"""Workbooks as other programs write them: part names, damage in unused parts, and encryption."""

import io
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import xlwt
from tests.fakes.workbook_files import sheet_xml, workbook_parts
from tests.refusals import raises_code

from queryserver.errors.files import FileCorrupt, UnsupportedFormat
from queryserver.workbooks.cells import RowNotes
from queryserver.workbooks.packages import CompoundFile
from queryserver.workbooks.worker import OpenWorkbook, WorkbookKind, recognize_workbook

FIELD = Path(__file__).parents[2] / "field" / "import"
Parts = dict[str, str | bytes]

ODS_TABLE = (
    '<table:table table:name="S"><table:table-row><table:table-cell office:value-type="string"><text:p>id</text:p>'
    '</table:table-cell><table:table-cell office:value-type="float" office:value="1.5"/></table:table-row>'
    "</table:table>"
)
SPACES = " ".join(
    f'xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
    for prefix, name in (
        ("office", "office"), ("table", "table"), ("text", "text"), ("draw", "drawing"), ("style", "style"),
    )
)  # fmt: skip


def packed(parts: Mapping[str, str | bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in parts.items():
            package.writestr(name, content)
    return file.getvalue()


def rows_of(content: bytes) -> list[list[str]]:
    """Return the cells of the first sheet as strings."""
    file = io.BytesIO(content)
    kind = recognize_workbook(file)
    assert kind is not None
    workbook = OpenWorkbook(file, kind)
    return [[str(cell) for cell in row.values()] for row in workbook.rows(workbook.sheet_names()[0])]


def ods(table: str = ODS_TABLE, *, spaces: str = SPACES) -> Parts:
    """Return the parts of an ODS file, as LibreOffice writes them."""
    space = 'xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"'
    entry = '<manifest:file-entry manifest:full-path="/"/>'
    body = f"<office:body><office:spreadsheet>{table}</office:spreadsheet></office:body>"
    return {
        "mimetype": "application/vnd.oasis.opendocument.spreadsheet",
        "Configurations2/accelerator/current.xml": "",
        "Thumbnails/thumbnail.png": b"\x89PNG",
        "settings.xml": "<settings/>",
        "styles.xml": "<styles/>",
        "meta.xml": "<meta/>",
        "content.xml": f"<office:document-content {spaces}>{body}</office:document-content>",
        "META-INF/manifest.xml": f"<manifest:manifest {space}>{entry}</manifest:manifest>",
    }  # fmt: skip


def xlsx() -> Parts:
    """Return the parts of a workbook that contains shared strings and a date."""
    sheet = sheet_xml('<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" s="0"><v>45306</v></c></row>')
    return dict(workbook_parts({"S": sheet}, strings=["<t>id</t>"], formats=[14]))


@pytest.mark.importer(15)
@pytest.mark.parametrize("name", ["ods_control_ok", "ods_empty_accelerator", "ods_whitespace_between_cells"])
def test_field_ods_files_are_read(name):
    assert rows_of((FIELD / f"{name}.ods").read_bytes()) == [["id", "name"], ["1", "a"]]


@pytest.mark.parametrize("damage", [b"", b"<x", b"\xff\xfe\x00", b"<!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>", None])
@pytest.mark.parametrize(
    "part",
    ["Configurations2/accelerator/current.xml", "meta.xml", "settings.xml", "styles.xml", "META-INF/manifest.xml"],
)  # fmt: skip
def test_unused_ods_part_may_have_any_content(part, damage):
    parts = ods()
    if damage is None:
        del parts[part]
    else:
        parts[part] = damage
    assert rows_of(packed(parts)) == [["id", "1.5"]]


@pytest.mark.parametrize(
    ("before", "after"),
    [("><", ">\n  <"),
    ("><", "><!-- a comment --><"),
    ("<text:p>id</text:p>", "<office:annotation><text:p>a comment</text:p></office:annotation><text:p>id</text:p>"),
    ("<text:p>id", "<draw:frame><draw:text-box><text:p>x</text:p></draw:text-box></draw:frame><text:p>id"),
    ("<text:p>id</text:p>", '<text:p><text:a><text:span>i</text:span>d</text:a></text:p>'),
    ("<text:p>id</text:p>", "<text:p><![CDATA[id]]></text:p>"),
    ("<table:table-row>", "<table:table-header-rows><table:table-row>"),
    ("<table:table ", "<table:calculation-settings/><table:table "),
    ("<table:table-row>", "<office:forms/><table:shapes><draw:frame/></table:shapes><table:table-row>"),
    ("<table:table-row>", "<table:table-column/><table:table-row>")],
)  # fmt: skip
def test_ods_content_may_be_written_in_many_ways(before, after):
    table = ODS_TABLE.replace(before, after)
    if "header-rows" in after:
        table = table.replace("</table:table-row>", "</table:table-row></table:table-header-rows>")
    assert rows_of(packed(ods(table))) == [["id", "1.5"]]


def test_ods_content_may_use_other_prefixes():
    parts = ods()
    content = str(parts["content.xml"])
    for prefix in ("office", "table", "text"):
        content = content.replace(f"<{prefix}:", f"<x{prefix}:").replace(f"</{prefix}:", f"</x{prefix}:")
        content = content.replace(f" {prefix}:", f" x{prefix}:").replace(f"xmlns:{prefix}=", f"xmlns:x{prefix}=")
    assert rows_of(packed(parts | {"content.xml": content})) == [["id", "1.5"]]


@pytest.mark.parametrize(
    ("paragraphs", "text"),
    [
        ("<text:p>a</text:p><text:p>b</text:p>", "a\nb"),
        ('<text:p>a<text:s text:c="3"/>b<text:tab/>c<text:line-break/>d</text:p>', "a   b\tc\nd"),
        ("<text:p> <text:span>a</text:span> <text:span>b</text:span></text:p>", " a b"),
        ("<text:p>a&amp;b &lt;c&gt; &#233;</text:p>", "a&b <c> é"),
    ],
)
def test_ods_text_keeps_blanks_and_line_breaks(paragraphs, text):
    assert rows_of(packed(ods(ODS_TABLE.replace("<text:p>id</text:p>", paragraphs))))[0][0] == text


def test_repeated_ods_rows_and_cells_are_expanded():
    cell = '<table:table-cell office:value-type="float" office:value="7" table:number-columns-repeated="3"/>'
    last = '<table:table-cell table:number-columns-repeated="16381"/>'
    row = f'<table:table-row table:number-rows-repeated="2">{cell}{last}</table:table-row>'
    empty = '<table:table-row table:number-rows-repeated="1048570"><table:table-cell/></table:table-row>'
    assert rows_of(packed(ods(f'<table:table table:name="S">{row}{empty}</table:table>'))) == [["7"] * 3] * 2


@pytest.mark.parametrize(
    "attributes",
    [
        'office:value-type="string" office:string-value="" table:formula="of:=1/0"',
        'office:value-type="string" calcext:value-type="error" table:formula="of:=1/0"',
        'table:formula="of:=1/0"',
    ],
)
def test_ods_errors_are_null(attributes):
    spaces = f'{SPACES} xmlns:calcext="urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0"'
    table = ODS_TABLE.replace('office:value-type="string"', attributes).replace("id", "#DIV/0!")
    assert rows_of(packed(ods(table, spaces=spaces))) == [["1.5"]]


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ('office:value-type="date" office:date-value="2024-01-15"', "2024-01-15"),
        ('office:value-type="date" office:date-value="2024-01-15T10:30:00.123456789"', "2024-01-15 10:30:00.123456"),
        ('office:value-type="time" office:time-value="PT10H20M30.5S"', "10:20:30.500000"),
        ('office:value-type="time" office:time-value="PT30H00M00S"', "30:00:00"),
        ('office:value-type="currency" office:currency="EUR" office:value="2"', "2"),
        ('office:value-type="percentage" office:value="0.25"', "0.25"),
        ('office:value-type="boolean" office:boolean-value="false"', "false"),
        ('office:value-type="string" office:string-value="written"', "written"),
    ],
)
def test_ods_cell_value_follows_its_type(attributes, text):
    assert rows_of(packed(ods(ODS_TABLE.replace('office:value-type="string"', attributes)))) == [[text, "1.5"]]


SUB_TABLE = (
    '<table:table table:name="sub" table:is-sub-table="true"><table:table-row><table:table-cell'
    ' office:value-type="float" office:value="9"/></table:table-row></table:table>'
)
CHANGES = (
    "<table:tracked-changes><table:cell-content-change><table:previous><table:change-track-table-cell"
    ' office:value-type="float" office:value="5"/></table:previous></table:cell-content-change></table:tracked-changes>'
)
NAMED = "<table:named-expressions>\n<table:named-range/>\n</table:named-expressions>"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<text:p>id</text:p>", f"{SUB_TABLE}<text:p>id</text:p>"),
        ("<table:table ", f"{CHANGES}<table:table "),
        ("</table:table>", f"</table:table>{NAMED}"),
    ],
)
def test_nested_tables_tracked_changes_and_names_are_not_cells(before, after):
    assert rows_of(packed(ods(ODS_TABLE.replace(before, after)))) == [["id", "1.5"]]


@pytest.mark.security("T14")
@pytest.mark.parametrize(
    "table",
    [
        (
            '<table:table table:name="S"><table:table-row table:number-rows-repeated="9999999">'
            '<table:table-cell office:value-type="float" office:value="7"/></table:table-row></table:table>'
        ),
        (
            '<table:table table:name="S"><table:table-row><table:table-cell table:number-columns-repeated="99999"'
            ' office:value-type="float" office:value="7"/></table:table-row></table:table>'
        ),
    ],
)
def test_excessive_ods_repetition_is_too_complex(table):
    with raises_code("file_too_complex"):
        rows_of(packed(ods(table)))


@pytest.mark.security("T14")
def test_ods_with_entities_is_rejected():
    parts = ods()
    parts["content.xml"] = '<!DOCTYPE x [<!ENTITY a "aaaa">]>' + str(parts["content.xml"])
    with raises_code("file_too_complex"):
        rows_of(packed(parts))


@pytest.mark.importer(15)
@pytest.mark.parametrize(
    "content", ["", "<office:document-content", "\0", str(ods()["content.xml"]).replace('"1.5"', '"1,5"')]
)
def test_damaged_ods_content_is_corrupt(content):
    with pytest.raises(FileCorrupt):
        rows_of(packed(ods() | {"content.xml": content}))


ENTRY = '<manifest:file-entry manifest:full-path="content.xml"><manifest:encryption-data/></manifest:file-entry>'


@pytest.mark.importer(15)
def test_encrypted_ods_is_reported():
    """LibreOffice encrypts each part or, since version 24.8, the whole package."""
    parts = ods()
    manifest = str(parts["META-INF/manifest.xml"]).replace("</manifest:manifest>", f"{ENTRY}</manifest:manifest>")
    noise = dict.fromkeys(("content.xml", "settings.xml", "styles.xml", "meta.xml"), b"\x8f\x01\xfe" * 50)
    whole = {name: parts[name] for name in ("mimetype", "META-INF/manifest.xml")} | {"encrypted-package": b"\x8f\x01"}
    for encrypted in (parts | noise | {"META-INF/manifest.xml": manifest}, whole):
        with raises_code("file_encrypted"):
            recognize_workbook(io.BytesIO(packed(encrypted)))


def moved(parts: Parts, names: Mapping[str, str], *, target: Callable[[str], str] = lambda name: f"/{name}") -> Parts:
    """Rename parts, and adjust the relationships that refer to them."""
    found = {names.get(name, name): content for name, content in parts.items()}
    for name, content in found.items():
        if name.endswith(".rels"):
            text = str(content)
            for old, new in names.items():
                for written in (f'Target="{old}"', f'Target="/{old}"', f'Target="{old.removeprefix("xl/")}"'):
                    text = text.replace(written, f'Target="{target(new)}"')
            found[name] = text
    return found


NAMES = {
    "xl/workbook.xml": "book.xml",
    "xl/_rels/workbook.xml.rels": "_rels/book.xml.rels",
    "xl/worksheets/sheet1.xml": "data/first.xml",
    "xl/sharedStrings.xml": "data/texts.xml",
    "xl/styles.xml": "data/looks.xml",
}


PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"
PREFIXED = {
    "<Relationship": "<r:Relationship",
    "</Relationship": "</r:Relationship",
    f'<r:Relationships xmlns="{PACKAGE}"': f'<r:Relationships xmlns:r="{PACKAGE}"',
}
AWKWARD = {"xl/worksheets/sheet1.xml": "xl/sheets/a b.xml"}
STRICT = {
    "http://schemas.openxmlformats.org/officeDocument/2006/": "http://purl.oclc.org/ooxml/officeDocument/",
    "http://schemas.openxmlformats.org/spreadsheetml/2006/": "http://purl.oclc.org/ooxml/spreadsheetml/",
}


def rewritten(parts: Parts, texts: Mapping[str, str]) -> Parts:
    found = dict(parts)
    for old, new in texts.items():
        found = {name: str(content).replace(old, new) for name, content in found.items()}
    return found


@pytest.mark.parametrize(
    "change",
    [lambda parts: parts,
    lambda parts: moved(parts, NAMES),
    lambda parts: moved(parts, NAMES, target=lambda name: name),
    lambda parts: moved(parts, {"xl/sharedStrings.xml": "xl/texts.xml", "xl/styles.xml": "xl/looks.xml"}),
    lambda parts: moved(parts, AWKWARD, target=lambda name: "worksheets/../sheets/a%20b.xml"),
    lambda parts: {name.replace("/", "\\"): content for name, content in parts.items()},
    lambda parts: {f"/{name}": content for name, content in parts.items()},
    lambda parts: {name.upper(): content for name, content in parts.items()},
    lambda parts: {name: content for name, content in parts.items() if name != "_rels/.rels"},
    lambda parts: parts | {"_rels/.rels": b"<damaged"},
    lambda parts: rewritten(parts, {" r:id=": " d3p1:id=", "xmlns:r=": "xmlns:d3p1="}),
    lambda parts: rewritten(parts, PREFIXED),
    lambda parts: parts | {"docProps/core.xml": b"", "docProps/app.xml": b"<!DOCTYPE a>", "xl/theme/theme1.xml": b"<x"},
    lambda parts: rewritten(parts, {'Target="styles.xml"': 'Target="./styles.xml"'}),
    lambda parts: rewritten(parts, STRICT)],
)  # fmt: skip
def test_workbook_parts_are_found_through_relationships(change):
    assert rows_of(packed(change(xlsx()))) == [["id", "2024-01-15"]]


def test_field_workbook_in_the_package_root_is_read():
    assert rows_of((FIELD / "xlsx_workbook_in_root.xlsx").read_bytes()) == [["1"]]


def test_other_document_is_not_a_workbook():
    parts = moved(xlsx(), {"xl/workbook.xml": "word/document.xml"})
    parts["word/document.xml"] = '<w:document xmlns:w="urn:w"/>'
    with pytest.raises(UnsupportedFormat):
        recognize_workbook(io.BytesIO(packed(parts)))


def test_damaged_sheet_leaves_the_others_readable():
    sheets = {"A": sheet_xml('<row r="1"><c r="A1"><v>1</v></c></row>'), "B": "<damaged"}
    file = io.BytesIO(packed(workbook_parts(sheets)))
    workbook = OpenWorkbook(file, WorkbookKind.XLSX)
    assert workbook.sheet_names() == ["A", "B"]
    assert [[*row.values()] for row in workbook.rows("A")] == [["1"]]
    with pytest.raises(FileCorrupt):
        list(workbook.rows("B"))


def xls(texts: list[str]) -> bytes:
    book = xlwt.Workbook()
    sheet = book.add_sheet("Blätter")
    for number, text in enumerate(texts):
        sheet.write(number, 0, text)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def with_record(content: bytes, kind: int, body: bytes, *, instead_of: int) -> bytes:
    """Return the xls file with the first record of type `instead_of` replaced with a record of type `kind`."""
    compound = CompoundFile(io.BytesIO(content))
    stream = compound.stream("WORKBOOK")
    assert stream is not None
    place = 0
    while True:
        found, size = struct.unpack_from("<2H", stream, place)
        if found == instead_of:
            break
        place += 4 + size
    assert len(body) <= size
    changed = bytearray(content)
    for offset, byte in enumerate(struct.pack("<2H", kind, size) + body.ljust(size, b"\0")):
        changed[compound.file_position("WORKBOOK", place + offset)] = byte
    return bytes(changed)


CODE_PAGE, FILE_PASS = 0x0042, 0x002F
TEXTS = ["plain", "é and ü", "Ελληνικά", "日本", "x" * 9000, "日本" * 3000]


@pytest.mark.parametrize("page", [1200, 1252, 1250, 1251, 932, 10000, 65001, 0x8000, 0x8001, 7])
def test_xls_text_is_independent_of_the_code_page(page):
    """BIFF8 strings are always UTF-16 or Latin-1. If the file declares another code page, calamine reads NULs between
    the letters.
    """
    content = with_record(xls(TEXTS), CODE_PAGE, struct.pack("<H", page), instead_of=CODE_PAGE)
    workbook = OpenWorkbook(io.BytesIO(content), WorkbookKind.XLS)
    assert workbook.sheet_names() == ["Blätter"]
    assert [row[0] for row in workbook.rows("Blätter")] == TEXTS


@pytest.mark.importer(15)
@pytest.mark.parametrize("method", [b"\0\0\x12\x34\x56\x78", b"\1\0\1\0\1\0", b"\1\0\2\0\2\0"])
def test_encrypted_xls_is_reported(method):
    """Covers encryption by XOR, RC4, and RC4 with CryptoAPI (MS-XLS 2.4.117)."""
    content = with_record(xls(["a"]), FILE_PASS, method, instead_of=0x005C)
    with raises_code("file_encrypted"):
        OpenWorkbook(io.BytesIO(content), WorkbookKind.XLS)


def test_formulas_without_values_are_found():
    def unset(content: bytes) -> list[int]:
        file, notes = io.BytesIO(content), RowNotes()
        kind = recognize_workbook(file)
        assert kind is not None
        workbook = OpenWorkbook(file, kind)
        for _ in workbook.rows(workbook.sheet_names()[0], notes):
            """Only the numbers of rows are wanted."""
        return notes.rows_without_value

    assert unset((FIELD / "xlsx_formulas_without_values.xlsx").read_bytes()) == [2, 3]
    formula = '<table:table-cell table:formula="of:=1+1"/>'
    with_value = '<table:table-cell table:formula="of:=1+1" office:value-type="float" office:value="2"/>'
    for cell, rows in ((formula, [1]), (with_value, [])):
        assert unset(packed(ods(ODS_TABLE.replace("</table:table-row>", f"{cell}</table:table-row>")))) == rows
    cells = (
        '<c r="A1"><f>1+1</f></c>', '<c r="A1"><f>1+1</f><v/></c>', '<c r="A1" s="0"><f t="shared" si="0"/><v></v></c>',
        '<c r="A1"><f>1+1</f><v>2</v></c>', '<c r="A1" t="str"><f>""</f><v></v></c>', '<c r="A1"><v>2</v></c>',
    )  # fmt: skip
    found = [
        unset(packed(workbook_parts({"A": sheet_xml(f'<row r="1">{cell}<c r="B1"><v>1</v></c></row>')})))
        for cell in cells
    ]
    assert found == [[1], [1], [1], [], [], []]


def test_leading_sheet_rows_are_skipped_even_if_unused():
    def found(content: bytes, skip: int) -> tuple[list[str], list[int]]:
        file, notes = io.BytesIO(content), RowNotes()
        kind = recognize_workbook(file)
        assert kind is not None
        workbook = OpenWorkbook(file, kind)
        cells = [str(cell) for row in workbook.rows("S", notes, skip=skip) for cell in row.values()]
        return cells, notes.positions

    rows = "".join(f'<row r="{row}"><c r="A{row}"><v>{row}</v></c></row>' for row in (1, 3, 4))
    cell = '<table:table-cell office:value-type="float" office:value="{}"/>'
    twice = f'<table:table-row table:number-rows-repeated="2">{cell.format(3)}</table:table-row>'
    one, empty = (
        f"<table:table-row>{cell.format(1)}</table:table-row>",
        "<table:table-row><table:table-cell/></table:table-row>",
    )
    for content, last in (
        (packed(workbook_parts({"S": sheet_xml(rows)})), "4"),
        (packed(ods(f'<table:table table:name="S">{one}{empty}{twice}</table:table>')), "3"),
    ):
        assert found(content, 0) == (["1", "3", last], [0, 2, 3])
        assert found(content, 1) == found(content, 2) == (["3", last], [2, 3])
        assert found(content, 3) == ([last], [3])
        assert found(content, 4) == ([], [])
