"""Streams of bytes, cut where patterns can be held against them."""

from collections.abc import Callable, Iterator

from queryserver.formats.workbooks.xml_parts import MAX_MARKUP_BYTES


class ByteSource:
    """The bytes of a part, cut where somebody wants them cut."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._waiting = b""

    def through_first(self, mark: bytes) -> bytes:
        """Up to and with the mark; all that was looked at if it is not there."""
        return self._through(lambda waiting: waiting.find(mark) + len(mark) if mark in waiting else 0) or self._all()

    def through_last(self, mark: bytes) -> bytes:
        """Up to and with the last mark of what is at hand; nothing if none comes in a reasonable piece."""
        return self._through(lambda waiting: waiting.rfind(mark) + len(mark) if mark in waiting else 0)

    def begins_with(self, mark: bytes) -> bool:
        """Whether what is at hand does so."""
        return self._waiting.startswith(mark)

    def rest(self) -> Iterator[bytes]:
        """Everything that was not taken yet."""
        yield self._all()
        yield from self._pieces

    def put_back(self, taken: bytes) -> None:
        """It comes again next."""
        self._waiting = taken + self._waiting

    def _through(self, cut_of: Callable[[bytes], int]) -> bytes:
        while not (cut := cut_of(self._waiting)):
            piece = next(self._pieces, b"")
            if not piece or len(self._waiting) > MAX_MARKUP_BYTES:
                self._waiting += piece
                return b""
            self._waiting += piece
        taken, self._waiting = self._waiting[:cut], self._waiting[cut:]
        return taken

    def _all(self) -> bytes:
        taken, self._waiting = self._waiting, b""
        return taken
