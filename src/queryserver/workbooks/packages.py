"""The container formats of workbooks, zip packages and compound files, and their limits (Contract importer 14.4).

Finds the workbook, sheets, shared strings and styles in an Office Open XML package (ECMA-376 part 2, 6.2 and 6.5).

Relationships specify the names of the parts, but calamine expects the usual names. A package with other names is
therefore copied to one with the usual names.
"""

import io
import posixpath
import struct
import zipfile
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import BinaryIO, Never
from urllib.parse import unquote
from xml.etree import ElementTree as ET
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

from queryserver.errors.files import FileCorrupt, FileTooComplex, file_encrypted

MAX_ENTRIES = 10_000
MAX_UNPACKED_BYTES = 512 * 1024 * 1024
MAX_RATIO = 200
RATIO_FREE_BYTES = 1024 * 1024
"""Entries of at most this decompressed size may have any compression ratio."""

PIECE_BYTES = 64 * 1024
_MAX_PROLOG_BYTES = 4 * 1024 * 1024
_IS_ENCRYPTED = 1
"""The encryption bit in the flags of an entry (APPNOTE.TXT 4.4.4)."""

MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_HEADER = struct.Struct("<8s22xH16xL8xL4xL4x109L")
"""Magic number, sector size as a power of two, first directory sector, first mini FAT sector, first DIFAT sector, and
the first 109 DIFAT entries, which locate the FAT (MS-CFB 2.2).
"""
_ENTRY_BYTES = 128
_SMALL_STREAM_BYTES, _SMALL_SECTOR_BYTES = 4096, 64
_LAST_REGULAR = 0xFFFFFFFA
_NO_STREAM = 0xFFFFFFFF
_STORAGE_OR_STREAM, _ROOT = (1, 2), 5

_USUAL_NAMES = ("xl/workbook.xml", "xl/workbook.bin")
_TYPE_PREFIX = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_RELATIONSHIPS = "http://schemas.openxmlformats.org/package/2006/relationships"
_BEGIN_OF_XLSB = b"\x83\x01"
"""The id of the record BrtBeginBook, with which an XLSB workbook starts (MS-XLSB 2.4.20)."""
_FOLDERS = {"worksheet": "worksheets", "chartsheet": "chartsheets", "dialogsheet": "dialogsheets"}
SINGLE_KINDS = frozenset({"sharedStrings", "styles"})
READ_KINDS = frozenset({*_FOLDERS, *SINGLE_KINDS})
"""The kinds of parts that are read from a workbook."""


class Package:
    """The parts of a zip file by name. If several parts have the same name, the last one is used."""

    def __init__(self, file: BinaryIO) -> None:
        """Read the zip directory. Raises FileCorrupt if it is not readable, and FileTooComplex if it has too many
        entries.
        """
        with _zip_errors():
            self._zip = zipfile.ZipFile(file)
        if len(self._zip.infolist()) > MAX_ENTRIES:
            raise FileTooComplex(f"The workbook has more than {MAX_ENTRIES:,} parts.")
        # Some programs write names with backslashes or a leading slash.
        self._names = {name.replace("\\", "/").removeprefix("/").lower(): name for name in self._zip.namelist()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._names

    def stored_name(self, name: str) -> str:
        """Return the name as stored in the file. Raises KeyError."""
        return name if name in self._zip.NameToInfo else self._names[name.lower()]

    def check_limits(self) -> None:
        """Raise FileTooComplex if the decompressed size or a compression ratio is too large (Contract importer
        14.4).
        """
        entries = self._zip.infolist()
        if sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
            raise FileTooComplex(f"The decompressed workbook is larger than {MAX_UNPACKED_BYTES // 1024**2} MiB.")
        if any(entry.file_size > max(RATIO_FREE_BYTES, entry.compress_size * MAX_RATIO) for entry in entries):
            raise FileTooComplex(f"The compression ratio of a part of the workbook is above {MAX_RATIO}:1.")

    def pieces(self, name: str) -> Generator[bytes]:
        """Yield the decompressed content of a part, ignoring the case of its name (ECMA-376 part 2, 6.2.2).

        Raises FileCorrupt (also for a missing part), FileTooComplex, file_encrypted.
        """
        entry = self._zip.NameToInfo.get(name) or self._zip.NameToInfo.get(self._names.get(name.lower(), ""))
        if entry is None:
            raise FileCorrupt("A part of the workbook is missing.")
        if entry.flag_bits & _IS_ENCRYPTED:
            raise file_encrypted("The workbook is password-protected.")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FileCorrupt("A part of the workbook uses an unknown compression method.")
        declared_bytes, unpacked_bytes = entry.file_size, 0
        entry = copy(entry)
        entry.file_size = (
            MAX_UNPACKED_BYTES * 2
        )  # otherwise `zipfile` stops at the declared size and reports a bad checksum
        with _zip_errors(), self._zip.open(entry) as part:
            while piece := part.read(PIECE_BYTES):
                unpacked_bytes += len(piece)
                if unpacked_bytes > declared_bytes:
                    raise FileTooComplex("A part of the workbook is larger than its declared size.")
                yield piece
        if unpacked_bytes < declared_bytes:
            raise FileCorrupt("A part of the workbook is smaller than its declared size.")


@contextmanager
def _zip_errors() -> Generator[None]:
    """Convert errors of `zipfile` to FileCorrupt. Depending on the damage, `zipfile` also raises errors other than
    BadZipFile, such as ValueError.
    """
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, RuntimeError, ValueError) as error:
        raise FileCorrupt("The workbook is damaged, or a part of it is missing.") from error


def check_part(package: Package, name: str) -> None:
    """Decompress a part completely before a library reads it, which verifies its size and checksum. Raises the errors
    of `checked_pieces`.
    """
    for _ in checked_pieces(package, name):
        """The chunks are discarded."""


def checked_pieces(package: Package, name: str) -> Generator[bytes]:
    """Yield the chunks of a part. In XML parts, also reject document types and entities. They can only precede the
    first element, so only the beginning is parsed. Raises FileCorrupt, FileTooComplex, file_encrypted.
    """
    pieces = package.pieces(name)
    return pieces if name.lower().endswith(".bin") else _checked_xml(pieces)


def _checked_xml(pieces: Iterator[bytes]) -> Generator[bytes]:
    def refuse(*_declaration: object) -> Never:
        raise FileTooComplex("The workbook declares a document type or entities.")

    elements: set[str] = set()
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, _: elements.add(name)
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    fed = 0
    try:
        for piece in pieces:
            fed += len(piece)
            if not elements:
                parser.Parse(piece)
                if fed > _MAX_PROLOG_BYTES:
                    raise FileTooComplex("A part of the workbook contains markup larger than 4 MiB.")
            yield piece
        if not elements:
            parser.Parse(b"", True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        # LookupError and ValueError mean that the encoding is unknown, or that the parser cannot decode it.
        raise FileCorrupt("A part of the workbook is not well-formed.") from error


class CompoundFile:
    """The root entries of a compound file.

    In a malicious file, chains may be circular, so no chain is followed for more sectors than the file has.
    """

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        self.content = file.read()
        if len(self.content) < _HEADER.size:
            raise FileCorrupt("The header of the workbook is damaged.")
        magic, shift, directory, self._small_table, more, *table = _HEADER.unpack_from(self.content)
        if shift not in (9, 12) or magic != MAGIC:
            raise FileCorrupt("The header of the workbook is damaged.")
        self._sector_bytes = 1 << shift
        self._numbers = struct.Struct(f"<{self._sector_bytes // 4}L")
        self._next: list[int] = []
        """The FAT: the number of the sector that follows each sector. The header and the DIFAT chain locate it."""
        for _ in range(len(self.content) // self._sector_bytes // (self._sector_bytes // 4) + 2):
            for number in table:
                if number < _LAST_REGULAR:
                    self._next += self._numbers.unpack(self._sector(number))
            if len(self._next) > 2 * len(self.content) // self._sector_bytes + self._sector_bytes:
                raise FileCorrupt("The workbook is damaged: its sector table is longer than the file.")
            if more >= _LAST_REGULAR:
                break
            *table, more = self._numbers.unpack(self._sector(more))
        else:
            raise FileCorrupt("The workbook is damaged: a chain of sectors is circular.")
        self._entries = [
            sector[position : position + _ENTRY_BYTES]
            for sector in map(self._sector, self._chain(directory))
            for position in range(0, self._sector_bytes, _ENTRY_BYTES)
        ]

    def root_names(self) -> set[str]:
        """Return the names of the root entries in upper case, because names are case-insensitive (MS-CFB 2.6.4)."""
        return set(self._root_entries())

    def stream(self, name: str) -> bytes | None:
        """Return the content of a root stream, or None if it does not exist or is empty. `name` is in upper case."""
        pieces = list(self._pieces(name))
        return b"".join(self.content[begin:end] for begin, end in pieces) if pieces else None

    def file_position(self, name: str, offset: int) -> int:
        """Return the position in the file of the byte at `offset` in a stream. Raises FileCorrupt."""
        for begin, end in self._pieces(name):
            if offset < end - begin:
                return begin + offset
            offset -= end - begin
        raise FileCorrupt("The workbook is damaged.")

    def _pieces(self, name: str) -> Iterator[tuple[int, int]]:
        """Yield the start and end positions in the file of a stream's sectors, in order."""
        entry = self._root_entries().get(name)
        if entry is None:
            return
        start, size = struct.unpack_from("<2L", entry, 116)
        is_small = size < _SMALL_STREAM_BYTES
        sectors = self._small_sector_positions(start) if is_small else map(self._sector_position, self._chain(start))
        for begin in sectors:
            if size <= 0:
                return
            length = min(size, _SMALL_SECTOR_BYTES if is_small else self._sector_bytes)
            yield begin, begin + length
            size -= length

    def _small_sector_positions(self, start: int) -> Iterator[int]:
        """Yield the file positions of the mini sectors from `start` on, which lie in the mini stream of the root entry
        (MS-CFB 2.4).
        """
        (root_start,) = struct.unpack_from("<L", self._entries[0], 116)
        containers = list(self._chain(root_start))
        per_sector = self._sector_bytes // _SMALL_SECTOR_BYTES
        following = [
            number for sector in self._chain(self._small_table) for number in self._numbers.unpack(self._sector(sector))
        ]
        number = start
        for _ in range(len(following) + 1):
            if number >= _LAST_REGULAR:
                return
            if number >= len(following) or number // per_sector >= len(containers):
                raise FileCorrupt("The workbook is damaged.")
            yield self._sector_position(containers[number // per_sector]) + number % per_sector * _SMALL_SECTOR_BYTES
            number = following[number]
        raise FileCorrupt("The workbook is damaged: a chain of sectors is circular.")

    def _root_entries(self) -> dict[str, bytes]:
        """Return the directory entries directly below the root, by name in upper case."""
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

    def _chain(self, start: int) -> Iterator[int]:
        """Yield the sector numbers of the chain from `start` on. Raises FileCorrupt if the chain is circular."""
        number = start
        for _ in range(len(self.content) // self._sector_bytes + 1):
            if number >= _LAST_REGULAR:
                return
            yield number
            if number >= len(self._next):
                raise FileCorrupt("The workbook is damaged.")
            number = self._next[number]
        raise FileCorrupt("The workbook is damaged: a chain of sectors is circular.")

    def _sector_position(self, number: int) -> int:
        return (number + 1) * self._sector_bytes

    def _sector(self, number: int) -> bytes:
        sector = self.content[self._sector_position(number) : self._sector_position(number + 1)]
        if len(sector) < self._sector_bytes:
            raise FileCorrupt("A part of the workbook is missing.")
        return sector


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
    also such packages.
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
