"""The containers of workbooks, and which kind of workbook a file is (Contract importer 14.4).

Zip files are read by their central directory (APPNOTE.TXT 4.3, 4.4), compound files by MS-CFB. `zipfile` is not used:
it builds an object for each entry of a directory as large as the file, and unpacks without an end.
Here the limits are checked before anything is unpacked, and no entry gives more bytes than the directory has for it.
"""

import struct
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
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

_MAX_DIRECTORY_BYTES = 16 * 1024 * 1024
"""10,000 entries with names and extra fields of 1.6 KB each; those of real workbooks take about 100 bytes."""

_END = struct.Struct("<4s4H2LH")
_END_64_PLACE = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8
_UNKNOWN_16, _UNKNOWN_32 = 0xFFFF, 0xFFFFFFFF


MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"

_MAX_DIRECTORY_ENTRIES = 10_000
_HEADER_BYTES = 512
_HEADER_TABLE_SECTORS = 109
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


@dataclass(frozen=True, slots=True)
class PackageEntry:
    """One file in the package, as the directory describes it."""

    name: str
    is_encrypted: bool
    method: int
    crc: int
    packed_bytes: int
    unpacked_bytes: int
    offset: int


class Package:
    """The entries of a zip file by name; of entries with one name the last counts."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises FileCorrupt when there is no readable directory, FileTooComplex when there are too many entries."""
        self._file = file
        self._entries = {entry.name: entry for entry in _read_directory(file)}
        self._names = {name.lower(): name for name in self._entries}

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def names(self) -> Iterator[str]:
        return iter(self._entries)

    def check_limits(self) -> None:
        """Raises FileTooComplex when unpacking would give too much (Contract importer 14.4)."""
        if sum(entry.unpacked_bytes for entry in self._entries.values()) > MAX_UNPACKED_BYTES:
            raise FileTooComplex(f"The workbook has more than {MAX_UNPACKED_BYTES // 1024**2} MiB when it is unpacked.")
        for entry in self._entries.values():
            if entry.unpacked_bytes > max(RATIO_FREE_BYTES, entry.packed_bytes * MAX_RATIO):
                raise FileTooComplex(f"A part of the workbook is packed more than {MAX_RATIO}:1.")

    def pieces(self, name: str) -> Generator[bytes]:
        """What the entry unpacks to. Raises FileCorrupt also when there is no such entry, file_encrypted."""
        entry = self._find(name)
        if entry is None:
            raise FileCorrupt("A part of the workbook is missing.")
        if entry.is_encrypted:
            raise file_encrypted("The workbook has a password.")
        if entry.method not in (_STORED, _DEFLATED):
            raise FileCorrupt("A part of the workbook is packed in an unknown way.")
        yield from _checked(entry, _unpacked(self._packed(entry), entry))

    def _find(self, name: str) -> PackageEntry | None:
        """Names of parts differ in more than case (ECMA-376 part 2, 6.2.2)."""
        return self._entries.get(name) or self._entries.get(self._names.get(name.lower(), ""))

    def _packed(self, entry: PackageEntry) -> Iterator[bytes]:
        self._file.seek(entry.offset)
        header = self._file.read(_LOCAL.size)
        if len(header) < _LOCAL.size or not header.startswith(b"PK\x03\x04"):
            raise FileCorrupt("A part of the workbook is not where the directory says.")
        name_bytes, extra_bytes = _LOCAL.unpack(header)[-2:]
        place = entry.offset + _LOCAL.size + name_bytes + extra_bytes
        left = entry.packed_bytes
        while left:
            # Two parts may be read by turns.
            self._file.seek(place)
            piece = self._file.read(min(left, PIECE_BYTES))
            if not piece:
                raise FileCorrupt("The workbook ends in the middle of a part.")
            place, left = place + len(piece), left - len(piece)
            yield piece


def check_parts(package: Package) -> None:
    """Unpack every part that a reader may unpack, to see that none is larger than the directory says, and check the
    beginning of those in XML: a document type stands before the first element or nowhere.

    Raises FileCorrupt, FileTooComplex, and FileEncrypted: the manifest of OpenDocument names what is encrypted.
    """
    for name in package.names():
        kind = name.lower().rpartition(".")[2]
        if kind in {"xml", "rels"}:
            _check_xml(package.pieces(name), is_manifest=name == "META-INF/manifest.xml")
        elif kind == "bin":
            for _ in package.pieces(name):
                """Its size and its check sum are compared at its end."""


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


def _unpacked(packed: Iterator[bytes], entry: PackageEntry) -> Iterator[bytes]:
    if entry.method == _STORED:
        yield from packed
        return
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for piece in packed:
            waiting = piece
            while waiting and not inflater.eof:
                yield inflater.decompress(waiting, PIECE_BYTES)
                waiting = inflater.unconsumed_tail
        while not inflater.eof:
            last = inflater.decompress(b"", PIECE_BYTES)
            if not last:
                raise FileCorrupt("A part of the workbook breaks off.")
            yield last
    except zlib.error as error:
        raise FileCorrupt("A part of the workbook is damaged.") from error


def _checked(entry: PackageEntry, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """As many bytes as the directory has for the entry, with its check sum: the directory may be wrong."""
    size, crc = 0, 0
    for piece in pieces:
        size += len(piece)
        if size > entry.unpacked_bytes:
            raise FileTooComplex("A part of the workbook is larger than the directory says.")
        crc = zlib.crc32(piece, crc)
        if piece:
            yield piece
    if size != entry.unpacked_bytes or crc != entry.crc:
        raise FileCorrupt("A part of the workbook is damaged.")


def _read_directory(file: BinaryIO) -> Iterator[PackageEntry]:
    offset, size, count, shift = _find_directory(file)
    if count > MAX_ENTRIES or size > _MAX_DIRECTORY_BYTES:
        raise FileTooComplex(f"The workbook has more than {MAX_ENTRIES:,} parts.")
    file.seek(offset)
    directory = file.read(size)
    place = found = 0
    while place + _ENTRY.size <= len(directory):
        fields = _ENTRY.unpack_from(directory, place)
        if fields[0] != b"PK\x01\x02":
            break
        found += 1
        if found > MAX_ENTRIES:
            raise FileTooComplex(f"The workbook has more than {MAX_ENTRIES:,} parts.")
        name_end = place + _ENTRY.size + fields[10]
        extra_end = name_end + fields[11]
        yield _entry(fields, directory[place + _ENTRY.size : name_end], directory[name_end:extra_end], shift)
        place = extra_end + fields[12]
    if found != count:
        raise FileCorrupt("The directory of the workbook is damaged.")


def _entry(fields: tuple[int, ...], name: bytes, extra: bytes, shift: int) -> PackageEntry:
    packed, unpacked, offset = fields[8], fields[9], fields[16]
    if _UNKNOWN_32 in (packed, unpacked, offset):
        unpacked, packed, offset = _sizes_64(extra, (unpacked, packed, offset))
    flags = fields[3]
    return PackageEntry(
        name=name.decode("utf-8" if flags & 0x800 else "cp437", errors="replace"),
        is_encrypted=bool(flags & 1),
        method=fields[4],
        crc=fields[7],
        packed_bytes=packed,
        unpacked_bytes=unpacked,
        offset=offset + shift,
    )


def _sizes_64(extra: bytes, sizes: tuple[int, int, int]) -> tuple[int, ...]:
    """What stands in the extra field 1 for each number that 32 bits do not hold (APPNOTE.TXT 4.5.3)."""
    place = 0
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, place)
        place += 4
        if kind == 1:
            wide = [number for (number,) in struct.iter_unpack("<Q", extra[place : place + length // 8 * 8])]
            if len(wide) < sizes.count(_UNKNOWN_32):
                break
            return tuple(wide.pop(0) if size == _UNKNOWN_32 else size for size in sizes)
        place += length
    raise FileCorrupt("The directory of the workbook is damaged.")


def _find_directory(file: BinaryIO) -> tuple[int, int, int, int]:
    """Offset, bytes and entries of the directory, and by how much the offsets in it are too small."""
    file_bytes = file.seek(0, 2)
    tail_offset = max(0, file_bytes - _END.size - _UNKNOWN_16)
    file.seek(tail_offset)
    tail = file.read(_END.size + _UNKNOWN_16)
    place = tail.rfind(b"PK\x05\x06", 0, len(tail) - _END.size + 4)
    if place < 0:
        raise FileCorrupt("The workbook has no directory: it is damaged, or a part of it is missing.")
    _, _, _, _, count, size, offset, _ = _END.unpack_from(tail, place)
    end = tail_offset + place
    if count == _UNKNOWN_16 or _UNKNOWN_32 in (size, offset):
        end, count, size, offset = _directory_64(file, end) or (end, count, size, offset)
    shift = end - size - offset
    if shift < 0:
        raise FileCorrupt("The directory of the workbook is damaged.")
    return offset + shift, size, count, shift


def _directory_64(file: BinaryIO, end: int) -> tuple[int, int, int, int] | None:
    """The wide end record before the end record at `end`: its offset, entries, bytes and offset of the directory."""
    if end < _END_64_PLACE.size:
        return None
    file.seek(end - _END_64_PLACE.size)
    mark, _, place, _ = _END_64_PLACE.unpack(file.read(_END_64_PLACE.size))
    if mark != b"PK\x06\x07" or place > end:
        return None
    file.seek(place)
    record = file.read(_END_64.size)
    if len(record) < _END_64.size or not record.startswith(b"PK\x06\x06"):
        raise FileCorrupt("The directory of the workbook is damaged.")
    *_, count, size, offset = _END_64.unpack(record)
    return place, count, size, offset


class CompoundFile:
    """What lies in the root of a compound file.

    Chains may be circular in a hostile file, so none is followed further than the file is long.
    """

    def __init__(self, file: BinaryIO) -> None:
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
        entries = list(self._entries())
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
            index, place = divmod(number, self._sector_bytes // 4)
            if index >= len(self._table):
                raise FileCorrupt("The workbook is damaged.")
            number = struct.unpack("<L", self._read(self._offset(self._table[index]) + place * 4, 4))[0]
        raise FileCorrupt("The workbook is damaged: it goes round in circles.")

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


def recognise_workbook(file: BinaryIO) -> WorkbookKind | None:
    """The kind; None for what begins neither as a zip file nor as a compound file.

    Reads the directory of the file only: some kilobytes at its end. Raises FileCorrupt, file_encrypted,
    FileTooComplex, and UnsupportedFormat for zip files and compound files that are no workbook.
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
