"""The containers of workbooks, and which kind of workbook a file is (Contract importer 14.4).

`zipfile` reads packages, in a process with limits of memory and time: a directory as large as the file ends at these.
What the directory says is checked before anything is unpacked. Compound files are read by MS-CFB: what goes round in
circles there is found before a library follows it for ever.
"""

import struct
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from copy import copy
from enum import Enum
from typing import BinaryIO, Never
from xml.parsers import expat

from queryserver.errors.files import FileCorrupt, FileTooComplex, UnsupportedFormat, file_encrypted

MAX_ENTRIES = 10_000
MAX_UNPACKED_BYTES = 512 * 1024 * 1024
MAX_RATIO = 200
RATIO_FREE_BYTES = 1024 * 1024
"""Entries up to this size may be packed as tightly as they like."""

PIECE_BYTES = 64 * 1024
_MAX_PROLOG_BYTES = 4 * 1024 * 1024
_IS_ENCRYPTED = 1
"""A bit of the flags of an entry (APPNOTE.TXT 4.4.4)."""

MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_HEADER = struct.Struct("<8s22xH16xL16xL4x109L")
"""Magic number, power of two of the bytes of a sector, first sectors of the directory and of the table's own chain, and
the first sectors of the table (MS-CFB 2.2)."""
_ENTRY_BYTES = 128
_SMALL_STREAM_BYTES = 4096
_LAST_REGULAR = 0xFFFFFFFA
_NO_STREAM = 0xFFFFFFFF
_STORAGE_OR_STREAM, _ROOT = (1, 2), 5
_SPREADSHEET = b"application/vnd.oasis.opendocument.spreadsheet"


class WorkbookKind(Enum):
    """The four formats that people call Excel files. All are `excel` for clients."""

    XLSX = "xlsx"
    XLSB = "xlsb"
    ODS = "ods"
    XLS = "xls"


class Package:
    """The parts of a zip file by name; of parts with one name the last counts."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises FileCorrupt when there is no readable directory, FileTooComplex when there are too many entries."""
        with _zip_errors():
            self._zip = zipfile.ZipFile(file)
        if len(self._zip.infolist()) > MAX_ENTRIES:
            raise FileTooComplex(f"The workbook has more than {MAX_ENTRIES:,} parts.")
        self._names = {name.lower(): name for name in self._zip.namelist()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._names

    def names(self) -> Iterator[str]:
        return iter(self._zip.NameToInfo)

    def check_limits(self) -> None:
        """Raises FileTooComplex when unpacking would give too much (Contract importer 14.4)."""
        entries = self._zip.infolist()
        if sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
            raise FileTooComplex(f"The workbook has more than {MAX_UNPACKED_BYTES // 1024**2} MiB when it is unpacked.")
        if any(entry.file_size > max(RATIO_FREE_BYTES, entry.compress_size * MAX_RATIO) for entry in entries):
            raise FileTooComplex(f"A part of the workbook is packed more than {MAX_RATIO}:1.")

    def pieces(self, name: str) -> Generator[bytes]:
        """What the part unpacks to. Raises FileCorrupt also when there is no such part, file_encrypted.

        Names of parts differ in more than case (ECMA-376 part 2, 6.2.2).
        """
        entry = self._zip.NameToInfo.get(name) or self._zip.NameToInfo.get(self._names.get(name.lower(), ""))
        if entry is None:
            raise FileCorrupt("A part of the workbook is missing.")
        if entry.flag_bits & _IS_ENCRYPTED:
            raise file_encrypted("The workbook has a password.")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FileCorrupt("A part of the workbook is packed in an unknown way.")
        said, found = entry.file_size, 0
        entry = copy(entry)
        entry.file_size = MAX_UNPACKED_BYTES * 2  # else `zipfile` cuts there, and calls the check sum wrong
        with _zip_errors(), self._zip.open(entry) as part:
            while piece := part.read(PIECE_BYTES):
                found += len(piece)
                if found > said:
                    raise FileTooComplex("A part of the workbook is larger than the directory says.")
                yield piece
        if found < said:
            raise FileCorrupt("A part of the workbook is smaller than the directory says.")


@contextmanager
def _zip_errors() -> Generator[None]:
    """Damage that `zipfile` does not foresee ends in an error of the number, place or text that it reads."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, RuntimeError, ValueError) as error:
        raise FileCorrupt("The workbook is damaged, or a part of it is missing.") from error


def check_parts(package: Package) -> None:
    """Unpack every part that a reader may unpack, to compare its check sum, and check the beginning of those in XML: a
    document type stands before the first element or nowhere.

    Raises FileCorrupt, FileTooComplex, and FileEncrypted: the manifest of OpenDocument names what is encrypted.
    """
    for name in package.names():
        kind = name.lower().rpartition(".")[2]
        if kind in {"xml", "rels"}:
            _check_xml(package.pieces(name), is_manifest=name == "META-INF/manifest.xml")
        elif kind == "bin":
            for _ in package.pieces(name):
                """Its check sum is compared at its end."""


def _check_xml(pieces: Iterator[bytes], *, is_manifest: bool) -> None:
    def refuse(*_declaration: object) -> Never:
        raise FileTooComplex("The workbook declares a document type or entities.")

    found: set[str] = set()
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, _: found.add(name.rpartition(":")[2])
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    fed = 0
    try:
        for piece in pieces:
            fed += len(piece)
            if is_manifest or not found:
                parser.Parse(piece)
                if fed > _MAX_PROLOG_BYTES:
                    raise FileTooComplex("A part of the workbook has markup of more than 4 MiB.")
                if "encryption-data" in found:
                    raise file_encrypted("The workbook has a password.")
        if not found:
            parser.Parse(b"", True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        # LookupError and ValueError: the part has an encoding that is unknown, or not for a stream.
        raise FileCorrupt("A part of the workbook is not well-formed.") from error


class CompoundFile:
    """What lies in the root of a compound file.

    Chains may be circular in a hostile file, so none is followed further than the file is long.
    """

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        self._content = file.read()
        if len(self._content) < _HEADER.size:
            raise FileCorrupt("The workbook is damaged at its beginning.")
        magic, shift, directory, more, *table = _HEADER.unpack_from(self._content)
        if shift not in (9, 12) or magic != MAGIC:
            raise FileCorrupt("The workbook is damaged at its beginning.")
        self._sector_bytes = 1 << shift
        self._numbers = struct.Struct(f"<{self._sector_bytes // 4}L")
        self._next: list[int] = []
        """The number of the sector that follows each sector. Where this table lies is in the header and in a chain."""
        for _ in range(len(self._content) // self._sector_bytes // (self._sector_bytes // 4) + 2):
            for number in table:
                if number < _LAST_REGULAR:
                    self._next += self._numbers.unpack(self._sector(number))
            if len(self._next) > 2 * len(self._content) // self._sector_bytes + self._sector_bytes:
                raise FileCorrupt("The workbook is damaged: its table is longer than the file.")
            if more >= _LAST_REGULAR:
                break
            *table, more = self._numbers.unpack(self._sector(more))
        else:
            raise FileCorrupt("The workbook is damaged: it goes round in circles.")
        self._entries = [
            sector[place : place + _ENTRY_BYTES]
            for sector in self._chain(directory)
            for place in range(0, self._sector_bytes, _ENTRY_BYTES)
        ]

    def root_names(self) -> set[str]:
        """Names in the root, in upper case: names that differ in case only are the same (MS-CFB 2.6.4)."""
        return set(self._root())

    def stream(self, name: str) -> bytes | None:
        """The content of a stream in the root, by its name in upper case.

        None if there is none, or a small one: those are stored otherwise, and no workbook is as small.
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
        entries = self._entries
        if not entries or entries[0][66] != _ROOT:
            raise FileCorrupt("The workbook has no directory.")
        found: dict[str, bytes] = {}
        seen = {_NO_STREAM}
        waiting: list[int] = list(struct.unpack_from("<L", entries[0], 76))
        while waiting:
            index = waiting.pop()
            if index in seen:
                continue
            seen.add(index)
            if index >= len(entries):
                raise FileCorrupt("The directory of the workbook is damaged.")
            entry = entries[index]
            if entry[66] in _STORAGE_OR_STREAM:
                length = min(struct.unpack_from("<H", entry, 64)[0], 64)
                name = entry[: max(length - 2, 0)].decode("utf-16-le", errors="replace")
                found[name.upper()] = entry
            waiting += struct.unpack_from("<2L", entry, 68)
        return found

    def _chain(self, start: int) -> Iterator[bytes]:
        """The sectors from `start` on. A chain that is longer than the file is circular."""
        number = start
        for _ in range(len(self._content) // self._sector_bytes + 1):
            if number >= _LAST_REGULAR:
                return
            yield self._sector(number)
            if number >= len(self._next):
                raise FileCorrupt("The workbook is damaged.")
            number = self._next[number]
        raise FileCorrupt("The workbook is damaged: it goes round in circles.")

    def _sector(self, number: int) -> bytes:
        sector = self._content[(number + 1) * self._sector_bytes : (number + 2) * self._sector_bytes]
        if len(sector) < self._sector_bytes:
            raise FileCorrupt("A part of the workbook is missing.")
        return sector


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
