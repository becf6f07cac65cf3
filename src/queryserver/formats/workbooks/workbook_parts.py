"""What a workbook consists of: its worksheets, its calendar, its formats (ECMA-376 part 1, 18.2, 18.8; part 2, 9)."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from queryserver.domain.errors import FileCorrupt, sheet_not_found
from queryserver.formats.workbooks.number_formats import temporal_of_format
from queryserver.formats.workbooks.packages import Package
from queryserver.formats.workbooks.serials import Temporal
from queryserver.formats.workbooks.xml_parts import local_name, parse_whole, xml_parser

_WORKBOOK, _RELATIONSHIPS = "xl/workbook.xml", "xl/_rels/workbook.xml.rels"


@dataclass(frozen=True, slots=True)
class Worksheet:
    """A sheet of cells and the name of its part."""

    name: str
    part: str


@dataclass(frozen=True, slots=True)
class Workbook:
    """The worksheets in their order, hidden ones included. Parts are None where the workbook has none."""

    worksheets: tuple[Worksheet, ...]
    shared_strings: str | None
    styles: str | None
    is_1904: bool

    def worksheet(self, name: str) -> Worksheet:
        """Raises sheet_not_found."""
        for worksheet in self.worksheets:
            if worksheet.name == name:
                return worksheet
        raise sheet_not_found(f"There is no sheet {name[:100]}.")


@dataclass(frozen=True, slots=True)
class _Relationship:
    kind: str
    part: str


def read_workbook(package: Package) -> Workbook:
    """Raises FileCorrupt, file_too_complex."""
    relationships = _read_relationships(package)
    sheets: list[tuple[str, str]] = []
    dates: list[bool] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        match local_name(name):
            case "sheet":
                of_sheet = {local_name(key): value for key, value in attributes.items()}
                sheets.append((attributes.get("name", ""), of_sheet.get("id", "")))
            case "workbookPr":
                dates.append(attributes.get("date1904", "").strip().lower() in ("1", "true", "on"))
            case _:
                pass

    parser = xml_parser()
    parser.StartElementHandler = start
    parse_whole(parser, package.pieces(_WORKBOOK))
    if not sheets:
        raise FileCorrupt("The workbook has no sheets.")
    by_kind = {relationship.kind: relationship.part for relationship in relationships.values()}
    return Workbook(
        worksheets=tuple(_worksheets(sheets, relationships)),
        shared_strings=by_kind.get("sharedStrings"),
        styles=by_kind.get("styles"),
        is_1904=any(dates),
    )


def _worksheets(sheets: list[tuple[str, str]], relationships: Mapping[str, _Relationship]) -> list[Worksheet]:
    """Sheets of charts, dialogs and macros are relationships of other kinds."""
    found: list[Worksheet] = []
    for name, reference in sheets:
        relationship = relationships.get(reference)
        if relationship is None:
            raise FileCorrupt("The workbook names a sheet that it does not have.")
        if relationship.kind == "worksheet":
            found.append(Worksheet(name, relationship.part))
    return found


def _read_relationships(package: Package) -> dict[str, _Relationship]:
    """By their ids. Kinds without the address before them, which has two forms. What lies outside is left out."""
    found: dict[str, _Relationship] = {}

    def start(name: str, attributes: dict[str, str]) -> None:
        if local_name(name) == "Relationship" and attributes.get("TargetMode", "Internal") != "External":
            kind = attributes.get("Type", "").rpartition("/")[2]
            target = posixpath.normpath(posixpath.join("/xl", attributes.get("Target", "")))
            found[attributes.get("Id", "")] = _Relationship(kind, target.lstrip("/"))

    parser = xml_parser()
    parser.StartElementHandler = start
    parse_whole(parser, package.pieces(_RELATIONSHIPS))
    return found


def read_temporal_styles(package: Package, workbook: Workbook) -> dict[str, Temporal]:
    """What the styles of dates and times show, by the number that cells name them with."""
    if workbook.styles is None:
        return {}
    codes: dict[int, str] = {}
    formats: list[int] = []
    within: list[str] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        local = local_name(name)
        if local == "numFmt" and within[-1:] == ["numFmts"]:
            codes[_number(attributes.get("numFmtId"))] = attributes.get("formatCode", "")
        elif local == "xf" and within[-1:] == ["cellXfs"]:
            formats.append(_number(attributes.get("numFmtId")))
        within.append(local)

    parser = xml_parser()
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _name: within.pop()
    parse_whole(parser, package.pieces(workbook.styles))
    # A workbook may have thousands of styles of a few formats.
    temporals = {number: temporal_of_format(number, codes.get(number)) for number in set(formats)}
    return {str(index): shown for index, number in enumerate(formats) if (shown := temporals[number]) is not None}


def _number(text: str | None) -> int:
    return int(text) if text and len(text) < 10 and text.isdecimal() else 0
