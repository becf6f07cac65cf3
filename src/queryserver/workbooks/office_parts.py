"""Finds the workbook, sheets, shared strings and styles in an Office Open XML package (ECMA-376 part 2, 6.2 and
6.5).

Relationships specify the names of the parts, but calamine expects the usual names. A package with other names is
therefore copied to one with the usual names.
"""

import io
import posixpath
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import quoteattr

from queryserver.errors.files import FileCorrupt
from queryserver.workbooks.packages import Package, checked_pieces

_USUAL_NAMES = ("xl/workbook.xml", "xl/workbook.bin")
_TYPE_PREFIX = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_RELATIONSHIPS = "http://schemas.openxmlformats.org/package/2006/relationships"
_BEGIN_OF_XLSB = b"\x83\x01"
"""The id of the record BrtBeginBook, with which an XLSB workbook starts (MS-XLSB 2.4.20)."""
_FOLDERS = {"worksheet": "worksheets", "chartsheet": "chartsheets", "dialogsheet": "dialogsheets"}
SINGLE_KINDS = frozenset({"sharedStrings", "styles"})
READ_KINDS = frozenset({*_FOLDERS, *SINGLE_KINDS})
"""The kinds of parts that are read from a workbook."""


@dataclass(frozen=True, slots=True)
class Relationship:
    id: str
    kind: str
    """The last segment of the relationship type URI, such as `worksheet`."""
    target: str
    """The target as written in the file."""
    part: str
    """The name of the target part."""


def relationships(package: Package, source: str) -> Sequence[Relationship]:
    """Return the relationships of a part, or of the package itself (""), except external ones. Raises FileCorrupt."""
    folder, name = posixpath.split(source)
    own = posixpath.join(folder, "_rels", f"{name}.rels")
    if own not in package:
        return ()
    return [
        Relationship(
            one.get("Id", ""),
            one.get("Type", "").rpartition("/")[2],
            one.get("Target", ""),
            _part(folder, one.get("Target", "")),
        )
        for one in root_element(package, own).iterfind(".//{*}Relationship")
        if one.get("TargetMode", "").lower() != "external"
    ]


def _part(folder: str, target: str) -> str:
    path = unquote(target.replace("\\", "/").partition("#")[0])
    return posixpath.normpath(posixpath.join("/", folder, path)).lstrip("/")


def root_element(package: Package, part: str) -> ET.Element:
    """Parse a part and return its root element. Raises FileCorrupt, FileTooComplex."""
    try:
        return ET.fromstring(b"".join(checked_pieces(package, part)))  # noqa: S314 document types are refused
    except (ET.ParseError, LookupError, ValueError) as error:
        raise FileCorrupt("A part of the workbook is not well-formed.") from error


def workbook_part(package: Package) -> str | None:
    """Return the name of the workbook part, or None if the package has none. Raises FileCorrupt, file_encrypted."""
    try:
        named = [one.part for one in relationships(package, "") if one.kind == "officeDocument"]
    except FileCorrupt:
        named = []
    return next((part for part in (*named, *_USUAL_NAMES) if part in package and _is_workbook(package, part)), None)


def _is_workbook(package: Package, part: str) -> bool:
    """Return whether a part is a workbook, judging by its name or its content. Word documents and presentations are
    packages of the same form.
    """
    if part.lower() in _USUAL_NAMES:
        return True
    if is_binary(package, part):
        return next(package.pieces(part), b"").startswith(_BEGIN_OF_XLSB)
    try:
        return root_element(package, part).tag.rpartition("}")[2] == "workbook"
    except FileCorrupt:
        return False


def is_binary(package: Package, part: str) -> bool:
    return part.lower().endswith(".bin") or next(package.pieces(part), b"").startswith(_BEGIN_OF_XLSB)


def has_usual_names(package: Package, workbook: str, related: Sequence[Relationship]) -> bool:
    """Return whether all parts to be read have the names that calamine expects."""
    if package.stored_name(workbook) not in _USUAL_NAMES or not _refers_to(package, workbook):
        return False
    suffix = posixpath.splitext(workbook)[1]
    for one in related:
        if one.kind not in READ_KINDS:
            continue
        is_plain = one.target in {f"/{one.part}", one.part.removeprefix("xl/")}
        if not is_plain or (one.part in package and package.stored_name(one.part) != one.part):
            return False
        if one.kind in _FOLDERS and posixpath.dirname(one.part) != f"xl/{_FOLDERS[one.kind]}":
            return False
        if one.kind in SINGLE_KINDS and one.part != f"xl/{one.kind}{suffix}":
            return False
    return True


def _refers_to(package: Package, workbook: str) -> bool:
    """Return whether the package's own relationships refer to the workbook by exactly this name."""
    try:
        return any(one.target.removeprefix("/") == workbook for one in relationships(package, ""))
    except FileCorrupt:
        return False


def copy_with_usual_names(package: Package, workbook: str, related: Sequence[Relationship]) -> BinaryIO:
    """Copy the parts to be read to an in-memory package in which they have the usual names. Raises FileCorrupt,
    FileTooComplex.
    """
    suffix = ".bin" if is_binary(package, workbook) else ".xml"
    names: dict[str, str] = {}
    """The new name of each part, below `xl`."""
    parts_to_read = [one for one in related if one.kind in READ_KINDS]
    for one in parts_to_read:
        stem = f"{_FOLDERS[one.kind]}/sheet{len(names) + 1}" if one.kind in _FOLDERS else one.kind
        names.setdefault(one.part, f"{stem}{suffix}")
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("[Content_Types].xml", _content_types(suffix))
        archive.writestr("_rels/.rels", _relationships([("rId1", "officeDocument", f"xl/workbook{suffix}")]))
        targets = [(one.id, one.kind, names[one.part]) for one in parts_to_read]
        archive.writestr(f"xl/_rels/workbook{suffix}.rels", _relationships(targets))
        for part, name in ((workbook, f"workbook{suffix}"), *names.items()):
            if part in package:
                with archive.open(f"xl/{name}", "w", force_zip64=True) as target:
                    for piece in package.pieces(part):
                        target.write(piece)
    copy.seek(0)
    return copy


def _relationships(targets: Sequence[tuple[str, str, str]]) -> str:
    elements = "".join(
        f'<Relationship Id={quoteattr(key)} Type="{_TYPE_PREFIX}/{kind}" Target={quoteattr(target)}/>'
        for key, kind, target in targets
    )
    return f'<Relationships xmlns="{_RELATIONSHIPS}">{elements}</Relationships>'


def _content_types(suffix: str) -> str:
    space = "http://schemas.openxmlformats.org/package/2006/content-types"
    main = "sheet.binary.macroEnabled.main" if suffix == ".bin" else "sheet.main+xml"
    form = (
        "application/vnd.ms-excel"
        if suffix == ".bin"
        else "application/vnd.openxmlformats-officedocument.spreadsheetml"
    )
    return (
        f'<Types xmlns="{space}"><Default Extension="rels" ContentType="application/vnd.openxmlformats-package'
        f'.relationships+xml"/><Override PartName="/xl/workbook{suffix}" ContentType="{form}.{main}"/></Types>'
    )
