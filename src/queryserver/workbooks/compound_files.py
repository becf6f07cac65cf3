"""The compound file that an old workbook is: a file system in sectors (MS-CFB 2.2 to 2.6)."""

import struct
from collections.abc import Iterator
from enum import Enum
from typing import BinaryIO

from queryserver.errors.files import FileCorrupt, FileTooComplex, UnsupportedFormat, file_encrypted
from queryserver.workbooks.packages import Package

MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"

_MAX_DIRECTORY_ENTRIES = 10_000
_HEADER_BYTES = 512
_HEADER_TABLE_SECTORS = 109
_ENTRY_BYTES = 128
_SMALL_STREAM_BYTES = 4096
_LAST_REGULAR = 0xFFFFFFFA
_NO_STREAM = 0xFFFFFFFF
_STORAGE_OR_STREAM, _ROOT = (1, 2), 5


class CompoundFile:
    """What lies in the root of a compound file.

    Chains may be circular in a file that somebody made for us, so nothing is followed further than it can be true.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Raises FileCorrupt."""
        self._file = file
        self._file_bytes = file.seek(0, 2)
        header = self._read(0, _HEADER_BYTES)
        shift = struct.unpack_from("<H", header, 30)[0]
        if shift not in (9, 12) or not header.startswith(MAGIC):
            raise FileCorrupt("The workbook is damaged at its beginning.")
        self._sector_bytes = 1 << shift
        self._directory_start: int = struct.unpack_from("<L", header, 48)[0]
        self._table = list(self._table_sectors(header))

    def root_names(self) -> set[str]:
        """Names in the root, in upper case: names that differ in case only are the same (MS-CFB 2.6.4)."""
        return set(self._root())

    def stream(self, name: str) -> bytes | None:
        """The content of a stream in the root, by its name in upper case.

        None if there is none, or a small one: those lie elsewhere, and no workbook is as small.
        """
        entry = self._root().get(name)
        if entry is None:
            return None
        start, size = struct.unpack_from("<2L", entry, 116)
        if size < _SMALL_STREAM_BYTES:
            return None
        return b"".join(self._chain(start))[:size]

    def _root(self) -> dict[str, bytes]:
        """Entries in the root by name in upper case."""
        entries = list(self._entries())
        if not entries or entries[0][66] != _ROOT:
            raise FileCorrupt("The workbook has no directory.")
        found: dict[str, bytes] = {}
        seen = {_NO_STREAM}
        waiting = [_child(entries[0])]
        while waiting:
            index = waiting.pop()
            if index in seen:
                continue
            seen.add(index)
            if index >= len(entries):
                raise FileCorrupt("The directory of the workbook is damaged.")
            entry = entries[index]
            if entry[66] in _STORAGE_OR_STREAM:
                found[_name(entry).upper()] = entry
            waiting += struct.unpack_from("<2L", entry, 68)
        return found

    def _entries(self) -> Iterator[bytes]:
        found = 0
        for sector in self._chain(self._directory_start):
            for place in range(0, self._sector_bytes, _ENTRY_BYTES):
                yield sector[place : place + _ENTRY_BYTES]
                found += 1
            if found > _MAX_DIRECTORY_ENTRIES:
                raise FileTooComplex(f"The workbook has more than {_MAX_DIRECTORY_ENTRIES:,} parts.")

    def _chain(self, start: int) -> Iterator[bytes]:
        """The sectors from `start` on. A chain that is longer than the file is circular."""
        number = start
        for _ in range(self._file_bytes // self._sector_bytes + 1):
            if number >= _LAST_REGULAR:
                return
            yield self._sector(number)
            number = self._next(number)
        raise FileCorrupt("The workbook is damaged: it goes round in circles.")

    def _next(self, number: int) -> int:
        per_sector = self._sector_bytes // 4
        index = number // per_sector
        if index >= len(self._table):
            raise FileCorrupt("The workbook is damaged.")
        place = self._offset(self._table[index]) + number % per_sector * 4
        return struct.unpack("<L", self._read(place, 4))[0]

    def _table_sectors(self, header: bytes) -> Iterator[int]:
        """Where the table of sectors lies: 109 numbers in the header, the rest in a chain of its own."""
        yield from _regular(struct.unpack_from(f"<{_HEADER_TABLE_SECTORS}L", header, 76))
        number = struct.unpack_from("<L", header, 68)[0]
        for _ in range(self._file_bytes // self._sector_bytes // (self._sector_bytes // 4) + 2):
            if number >= _LAST_REGULAR:
                return
            *numbers, number = struct.unpack(f"<{self._sector_bytes // 4}L", self._sector(number))
            yield from _regular(numbers)
        raise FileCorrupt("The workbook is damaged: it goes round in circles.")

    def _offset(self, number: int) -> int:
        return (number + 1) * self._sector_bytes

    def _sector(self, number: int) -> bytes:
        return self._read(self._offset(number), self._sector_bytes)

    def _read(self, offset: int, size: int) -> bytes:
        if offset + size > self._file_bytes:
            raise FileCorrupt("A part of the workbook is missing.")
        self._file.seek(offset)
        return self._file.read(size)


def _regular(numbers: tuple[int, ...] | list[int]) -> Iterator[int]:
    return (number for number in numbers if number < _LAST_REGULAR)


def _child(entry: bytes) -> int:
    return struct.unpack_from("<L", entry, 76)[0]


def _name(entry: bytes) -> str:
    length = min(struct.unpack_from("<H", entry, 64)[0], 64)
    return entry[: max(length - 2, 0)].decode("utf-16-le", errors="replace")


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
