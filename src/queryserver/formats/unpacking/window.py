"""The asked part of a stream, cut out while the stream goes by."""

from dataclasses import dataclass

from queryserver.domain.errors.files import DecompressionLimit

LOOK_BACK_BYTES = 4096
"""How much before the asked part is kept: whether a character is cut at its start shows there."""
LOOK_AHEAD_BYTES = 8
"""How much behind it: the rest of a character, and whether the stream goes on."""
START_BYTES = 4
"""How much of the beginning of the stream is kept: a byte order mark."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Bytes [offset, offset + length) of a stream, and what stands around them."""

    offset: int
    length: int
    start: bytes
    """The first START_BYTES of the stream."""
    before: bytes
    """Up to LOOK_BACK_BYTES in front of the offset."""
    content: bytes
    """The asked bytes, and up to LOOK_AHEAD_BYTES behind them."""

    @property
    def asked(self) -> bytes:
        """The asked bytes; fewer at the end of the stream."""
        return self.content[: self.length]

    @property
    def is_last(self) -> bool:
        """Whether the stream ends with the asked bytes."""
        return len(self.content) <= self.length


class Window:
    """Takes a stream piece by piece. Holds the asked bytes and little more, however long the stream is."""

    def __init__(self, offset: int, length: int, limit_bytes: int) -> None:
        self._offset = offset
        self._length = length
        self._limit = limit_bytes
        self._passed = 0
        self._start = b""
        self._before = bytearray()
        self._content = bytearray()

    @property
    def is_full(self) -> bool:
        """Whether nothing behind is needed."""
        return self._passed >= self._offset + self._length + LOOK_AHEAD_BYTES

    def take(self, piece: bytes) -> None:
        """The next bytes. Raises DecompressionLimit when the asked bytes lie behind the limit."""
        if len(self._start) < START_BYTES:
            self._start = (self._start + piece[:START_BYTES])[:START_BYTES]
        skipped = min(max(self._offset - self._passed, 0), len(piece))
        if skipped:
            self._before += piece[max(skipped - LOOK_BACK_BYTES, 0) : skipped]
            del self._before[: max(len(self._before) - LOOK_BACK_BYTES, 0)]
        wanted = self._length + LOOK_AHEAD_BYTES - len(self._content)
        self._content += piece[skipped : skipped + wanted]
        self._passed += len(piece)
        if self._passed > self._limit and self._offset + self._length > self._limit:
            raise DecompressionLimit(
                f"Showing this part of the file would unpack more than {self._limit} bytes. Ask for an earlier part."
            )

    def excerpt(self) -> Excerpt:
        """What was cut out."""
        return Excerpt(self._offset, self._length, self._start, bytes(self._before), bytes(self._content))
