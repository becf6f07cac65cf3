"""Which kind of workbook a file is (Contract importer 9.1.2)."""

import re
from enum import Enum
from typing import BinaryIO

from queryserver.errors.files import FileCorrupt, UnsupportedFormat, file_encrypted
from queryserver.workbooks.ods import CONTENT
from queryserver.workbooks.office_parts import is_binary, workbook_part
from queryserver.workbooks.packages import MAGIC, CompoundFile, Package

_SPREADSHEET = b"application/vnd.oasis.opendocument.spreadsheet"
_MANIFEST = "META-INF/manifest.xml"
_MANIFEST_BYTES = 4 * 1024 * 1024
_SIGNS = ("xl/workbook.xml", "xl/workbook.bin", "_rels/.rels", "mimetype", CONTENT)
"""A package with one of these may be a workbook: nothing of it is unpacked before its limits are checked."""
_ENCRYPTION = re.compile(rb"<(?:[\w.-]+:)?encryption-data[\s/>]")
_WHOLE = "encrypted-package"
"""What a package holds that is encrypted as a whole (OpenDocument 1.4 part 2, 3.4.1)."""


class WorkbookKind(Enum):
    """The four formats that people call Excel files. All are `excel` for clients."""

    XLSX = "xlsx"
    XLSB = "xlsb"
    ODS = "ods"
    XLS = "xls"


def recognise_workbook(file: BinaryIO) -> WorkbookKind | None:
    """The kind; None for what begins neither as a zip file nor as a compound file.

    Raises FileCorrupt, file_encrypted, FileTooComplex, and UnsupportedFormat for zip files and compound files that are
    no workbook.
    """
    file.seek(0)
    beginning = file.read(len(MAGIC))
    if beginning.startswith(b"PK\x03\x04"):
        return _kind_of_package(Package(file))
    if beginning != MAGIC:
        return None
    names = CompoundFile(file).root_names()
    if "ENCRYPTEDPACKAGE" in names:
        raise file_encrypted("The workbook has a password.")
    if names.isdisjoint({"WORKBOOK", "BOOK"}):
        raise UnsupportedFormat
    return WorkbookKind.XLS


def _kind_of_package(package: Package) -> WorkbookKind:
    if any(name in package for name in _SIGNS):
        package.check_limits()
    if workbook := workbook_part(package):
        kind = WorkbookKind.XLSB if is_binary(package, workbook) else WorkbookKind.XLSX
    elif _is_spreadsheet(package):
        _refuse_encrypted(package)
        if CONTENT not in package:
            raise UnsupportedFormat
        kind = WorkbookKind.ODS
    else:
        raise UnsupportedFormat
    return kind


def _is_spreadsheet(package: Package) -> bool:
    """By its media type, or by that in its manifest."""
    return _beginning(package, "mimetype").startswith(_SPREADSHEET) or (
        "mimetype" not in package and _SPREADSHEET in _beginning(package, _MANIFEST)
    )


def _refuse_encrypted(package: Package) -> None:
    if _WHOLE in package or _ENCRYPTION.search(_beginning(package, _MANIFEST)):
        raise file_encrypted("The workbook has a password.")


def _beginning(package: Package, part: str) -> bytes:
    """The beginning of a part that need not be there, or whole."""
    content = b""
    try:
        for piece in package.pieces(part) if part in package else ():
            content += piece
            if len(content) >= _MANIFEST_BYTES:
                break
    except FileCorrupt:
        """What was read of it counts."""
    return content
