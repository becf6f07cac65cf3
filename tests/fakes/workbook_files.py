"""Builds valid and invalid workbooks from their parts."""

import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_KINDS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"


def sheet_xml(rows: str, *, after: str = "") -> str:
    """Return the XML of a worksheet with these rows."""
    return f'<worksheet xmlns="{_MAIN}"><sheetData>{rows}</sheetData>{after}</worksheet>'


def column_xml(cells: Sequence[str]) -> str:
    """Return the XML of a worksheet with one cell per row."""
    placed = (
        cell if ' r="' in cell else cell.replace("<c", f'<c r="A{number}"', 1) for number, cell in enumerate(cells, 1)
    )
    return sheet_xml("".join(f'<row r="{number}">{cell}</row>' for number, cell in enumerate(placed, 1)))


def strings_xml(items: Sequence[str]) -> str:
    """Return the XML of a shared string table; each item is the content of `<si>`."""
    return f'<sst xmlns="{_MAIN}">{"".join(f"<si>{item}</si>" for item in items)}</sst>'


def styles_xml(formats: Sequence[int | str]) -> str:
    """Return the XML of cell styles 0, 1, …. Each format is a built-in format's number or a format code."""
    codes = {form: number for number, form in enumerate(formats, 164) if isinstance(form, str)}
    defined = "".join(f'<numFmt numFmtId="{number}" formatCode="{code}"/>' for code, number in codes.items())
    used = "".join(f'<xf numFmtId="{codes.get(form, form) if isinstance(form, str) else form}"/>' for form in formats)
    return (
        f'<styleSheet xmlns="{_MAIN}"><numFmts>{defined}</numFmts>'
        f'<cellStyleXfs><xf numFmtId="14"/></cellStyleXfs><cellXfs>{used}</cellXfs></styleSheet>'
    )


def workbook_parts(
    sheets: Mapping[str, str],
    *,
    strings: Sequence[str] | None = None,
    formats: Sequence[int | str] = (),
    is_1904: bool = False,
) -> dict[str, str]:
    """Return the package parts of a workbook; `sheets` maps sheet names to their XML."""
    names = "".join(
        f'<sheet name="{name}" sheetId="{number}" r:id="rId{number}"/>' for number, name in enumerate(sheets, 1)
    )
    targets = {f"rId{number}": ("worksheet", f"worksheets/sheet{number}.xml") for number in range(1, len(sheets) + 1)}
    parts = {f"xl/worksheets/sheet{number}.xml": xml for number, xml in enumerate(sheets.values(), 1)}
    if strings is not None:
        targets["strings"] = ("sharedStrings", "/xl/sharedStrings.xml")
        parts["xl/sharedStrings.xml"] = strings_xml(strings)
    if formats:
        targets["styles"] = ("styles", "styles.xml")
        parts["xl/styles.xml"] = styles_xml(formats)
    calendar = '<workbookPr date1904="1"/>' if is_1904 else ""
    related = "".join(
        f'<Relationship Id="{key}" Type="{_KINDS}/{kind}" Target="{target}"/>'
        for key, (kind, target) in targets.items()
    )
    workbook = f"{calendar}<sheets>{names}</sheets>"
    root = f'<Relationship Id="rId1" Type="{_KINDS}/officeDocument" Target="xl/workbook.xml"/>'
    return {
        "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}">{root}</Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_KINDS}">{workbook}</workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}">{related}</Relationships>',
        **parts,
    }


def write_package(path: Path, parts: Mapping[str, str | bytes]) -> Path:
    """Write a zip file that contains these parts."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in parts.items():
            package.writestr(name, content)
    return path


def write_ods(path: Path, tables: str, *, beginning: str = "", manifest: str = "") -> Path:
    """Write an OpenDocument spreadsheet. `tables` is the XML inside `<office:spreadsheet>`."""
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "table", "text")
    )
    body = f"<office:body><office:spreadsheet>{tables}</office:spreadsheet></office:body>"
    space = "urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"
    return write_package(
        path,
        {
            "mimetype": "application/vnd.oasis.opendocument.spreadsheet",
            "META-INF/manifest.xml": f'<manifest:manifest xmlns:manifest="{space}">{manifest}</manifest:manifest>',
            "content.xml": f"{beginning}<office:document-content {spaces}>{body}</office:document-content>",
        },
    )


def compound_file(names: Sequence[str], *, table: Sequence[int] | None = None) -> bytes:
    """Return a compound file whose root contains empty streams with these names. If `table` is given, it replaces the
    sector table.

    Sector 0 is the sector table, and the directory begins in sector 1 (MS-CFB 2.2, 2.6).
    """
    end, free, table_sector = 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFD
    entries = [_directory_entry("Root Entry", kind=5, right=free, child=1 if names else free)]
    for number, name in enumerate(names, 1):
        entries.append(_directory_entry(name, kind=2, right=number + 1 if number < len(names) else free, child=free))
    entries += [bytes(128)] * (-len(entries) % 4)
    sectors = len(entries) // 4
    chain = list(table) if table is not None else [table_sector, *range(2, sectors + 1), end]
    numbers = (0x3E, 3, 0xFFFE, 9, 6, 0, 1, 1, 0, 4096, end, 0, end, 0)
    header = struct.pack("<8s16s5H6x9L", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", bytes(16), *numbers)
    header += struct.pack("<109L", 0, *[free] * 108)
    return header + struct.pack("<128L", *chain, *[free] * (128 - len(chain))) + b"".join(entries)


def _directory_entry(name: str, *, kind: int, right: int, child: int) -> bytes:
    text = f"{name}\0".encode("utf-16-le")
    return struct.pack("<64sHBB3L36xLQ", text, len(text), kind, 1, 0xFFFFFFFF, right, child, 0xFFFFFFFE, 0)
