"""The headers of a part of `multipart/form-data`, within a limit (Security T6)."""

from typing import TYPE_CHECKING

from queryserver.domain.errors.base import PayloadTooLarge

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

NO_LIMIT = 1 << 30
"""For the parser, which has limits per header line: here is one per part."""


class PartHeaders:
    """Hears of the parser's finds, and keeps what says who the part is."""

    def __init__(self, max_bytes: int) -> None:
        self.disposition = b""
        """`Content-Disposition`; empty: there was none."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._name = bytearray()
        self._value = bytearray()

    @property
    def callbacks(self) -> "MultipartCallbacks":
        """For the parser. They raise PayloadTooLarge."""
        return {
            "on_header_begin": self._begin,
            "on_header_field": self._read_name,
            "on_header_value": self._read_value,
            "on_header_end": self._end,
        }

    def clear(self) -> None:
        """Another part begins."""
        self.disposition, self._bytes = b"", 0

    def _begin(self) -> None:
        self._name.clear()
        self._value.clear()
        self._count(len(": \r\n"))

    def _read_name(self, window: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._name += window[start:end]

    def _read_value(self, window: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._value += window[start:end]

    def _end(self) -> None:
        if bytes(self._name).lower() == b"content-disposition":
            self.disposition = bytes(self._value)

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._max_bytes:
            raise PayloadTooLarge(f"The headers of a multipart part are above {self._max_bytes} bytes.")
