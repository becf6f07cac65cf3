"""How much a store is read at a time: few readers take much, for speed; many take little, for memory."""

from collections.abc import Generator
from contextlib import contextmanager

_KIB = 1024
_MOST_BYTES = 1024 * _KIB
_LEAST_BYTES = 64 * _KIB
_TOGETHER_BYTES = 8 * 1024 * _KIB


class ReadSizes:
    """Shares out to the readers of one store what they may hold in pieces."""

    def __init__(self, *, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._readers = 0

    @contextmanager
    def reader(self) -> Generator[None]:
        """One more reader, for as long as it reads."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    @property
    def piece_bytes(self) -> int:
        """What one reader may take now: a multiple of 64 KiB, 1 MiB at most."""
        share = _TOGETHER_BYTES // max(1, self._readers)
        return max(_LEAST_BYTES, min(self._most_bytes, share - share % _LEAST_BYTES))
