"""Which kind of workbook a file is (Contract importer 9.1.2). The name of the file is not asked."""

from enum import Enum
from typing import BinaryIO

from queryserver.domain.errors.files import FileCorrupt, UnsupportedFormat, file_encrypted
from queryserver.formats.workbooks.compound_files import MAGIC, CompoundFile
from queryserver.formats.workbooks.packages import Package

_SPREADSHEET = b"application/vnd.oasis.opendocument.spreadsheet"


class WorkbookKind(Enum):
    """The four formats that people call Excel files. All are `excel` for clients."""

    XLSX = "xlsx"
    XLSB = "xlsb"
    ODS = "ods"
    XLS = "xls"


def recognise_workbook(file: BinaryIO) -> WorkbookKind | None:
    """The kind; None for what begins neither as a zip file nor as a compound file.

    Reads the directory of the file only: some kilobytes at its end. Raises FileCorrupt, file_encrypted,
    FileTooComplex, and UnsupportedFormat for zip files and compound files that are no workbook.
    """
    file.seek(0)
    beginning = file.read(len(MAGIC))
    if beginning.startswith(b"PK\x03\x04"):
        return _kind_of_package(Package(file))
    return _kind_of_compound_file(file) if beginning == MAGIC else None


def _kind_of_package(package: Package) -> WorkbookKind:
    if "xl/workbook.xml" in package:
        kind = WorkbookKind.XLSX
    elif "xl/workbook.bin" in package:
        kind = WorkbookKind.XLSB
    elif "mimetype" in package and "content.xml" in package and _says_spreadsheet(package):
        kind = WorkbookKind.ODS
    else:
        raise UnsupportedFormat
    package.check_limits()
    return kind


def _says_spreadsheet(package: Package) -> bool:
    try:
        return next(package.pieces("mimetype"), b"").startswith(_SPREADSHEET)
    except FileCorrupt:
        return False


def _kind_of_compound_file(file: BinaryIO) -> WorkbookKind:
    names = CompoundFile(file).root_names()
    if "ENCRYPTEDPACKAGE" in names:
        raise file_encrypted("The workbook has a password.")
    if names.isdisjoint({"WORKBOOK", "BOOK"}):
        raise UnsupportedFormat
    return WorkbookKind.XLS
