"""The dates and times of an xls workbook as the numbers that they are (MS-XLS 2.4, BIFF8).

python-calamine makes dates of them by rules of its own: it does not tell a date from a date-time at midnight, nor keep
fractions of seconds. With number and format a cell gets what the same cell of an xlsx gets.
"""

import struct
from collections.abc import Iterator
from typing import BinaryIO

from queryserver.domain.errors import file_encrypted
from queryserver.formats.workbooks.compound_files import CompoundFile
from queryserver.formats.workbooks.number_formats import temporal_of_format
from queryserver.formats.workbooks.serials import Temporal

_BOF, _EOF, _BOUNDSHEET, _DATEMODE, _FORMAT, _XF = 0x0809, 0x000A, 0x0085, 0x0022, 0x041E, 0x00E0
_FILEPASS = 0x002F
_NUMBER, _RK, _MULRK, _FORMULA = 0x0203, 0x027E, 0x00BD, 0x0006
_BIFF8 = 0x0600
_WORKSHEET = 0

Serials = dict[tuple[int, int], tuple[float, Temporal]]
"""By row and column from 0 on."""


class XlsSerials:
    """Numbers with formats of dates and times. Of an older format than BIFF8, or of a damaged file, there are none."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises FileCorrupt, file_encrypted."""
        self._stream = CompoundFile(file).stream("WORKBOOK") or b""
        self.is_1904 = False
        self._sheets: list[int] = []
        self._codes: dict[int, str] = {}
        self._formats: list[int] = []
        is_known = self._stream[4:6] == struct.pack("<H", _BIFF8)
        for kind, body in self._records(0):
            if kind == _FILEPASS:
                raise file_encrypted("The workbook has a password.")
            if is_known:
                self._take_global(kind, body)
        temporals = {number: temporal_of_format(number, self._codes.get(number)) for number in set(self._formats)}
        self._temporals = {index: shown for index, number in enumerate(self._formats) if (shown := temporals[number])}

    def of_sheet(self, index: int) -> Serials:
        """Those of a worksheet; sheets of other kinds do not count."""
        if not self._temporals or index >= len(self._sheets):
            return {}
        return {
            (row, column): (serial, temporal)
            for row, column, style, serial in self._numbers(self._sheets[index])
            if (temporal := self._temporals.get(style)) is not None
        }

    def _take_global(self, kind: int, body: bytes) -> None:
        if kind == _DATEMODE and len(body) >= 2:
            self.is_1904 = body[:2] == b"\x01\x00"
        elif kind == _BOUNDSHEET and len(body) >= 6 and body[5] == _WORKSHEET:
            self._sheets.append(struct.unpack_from("<L", body)[0])
        elif kind == _XF and len(body) >= 4:
            self._formats.append(struct.unpack_from("<H", body, 2)[0])
        elif kind == _FORMAT and len(body) >= 5:
            wide = body[4] & 1
            self._codes[struct.unpack_from("<H", body)[0]] = body[5:].decode(
                "utf-16-le" if wide else "latin-1", "replace"
            )

    def _numbers(self, place: int) -> Iterator[tuple[int, int, int, float]]:
        """Row, column, style and number of each cell that has one."""
        for kind, body in self._records(place):
            if kind == _NUMBER and len(body) >= 14:
                yield struct.unpack_from("<3Hd", body)
            elif kind == _RK and len(body) >= 10:
                row, column, style, packed = struct.unpack_from("<3HL", body)
                yield row, column, style, _unpacked(packed)
            elif kind == _MULRK and len(body) >= 12:
                row, first = struct.unpack_from("<2H", body)
                cells = struct.iter_unpack("<HL", body[4 : 4 + (len(body) - 6) // 6 * 6])
                yield from (
                    (row, first + index, style, _unpacked(packed)) for index, (style, packed) in enumerate(cells)
                )
            elif kind == _FORMULA and len(body) >= 14 and body[12:14] != b"\xff\xff":
                yield struct.unpack_from("<3Hd", body)

    def _records(self, place: int) -> Iterator[tuple[int, bytes]]:
        """Kind and content of the records from the beginning of a part to its end; charts inside it are passed over."""
        depth = 0
        while place + 4 <= len(self._stream):
            kind, size = struct.unpack_from("<2H", self._stream, place)
            place += 4
            if kind == _BOF:
                depth += 1
            elif kind == _EOF:
                depth -= 1
                if depth <= 0:
                    return
            elif depth == 1:
                yield kind, self._stream[place : place + size]
            place += size


def _unpacked(packed: int) -> float:
    """The number that 30 bits hold, as integer or as the upper half of a double, maybe times 100 (MS-XLS 2.5.217)."""
    if packed & 2:
        number = float((packed >> 2) - (1 << 30 if packed & 0x80000000 else 0))
    else:
        number = struct.unpack("<d", struct.pack("<Q", (packed & 0xFFFFFFFC) << 32))[0]
    return number / 100 if packed & 1 else number
