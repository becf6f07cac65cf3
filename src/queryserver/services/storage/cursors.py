"""Where pages of listings begin at the store, kept for a short time (Contract storage 5.2)."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from queryserver.domain.files import StoragePath
from queryserver.domain.lru import LruCache


@dataclass(frozen=True, slots=True)
class PageStart:
    """The start of a page of one user's listing, as the number of matching entries before it."""

    user: str
    path: StoragePath
    filter: str
    entries_before: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A place at or before the start of a page: `cursor` of the store behind the first `entries_before` entries."""

    entries_before: int
    cursor: str | None


BEGINNING = Mark(0, None)


class Cursors:
    """Marks by the pages that they lead to. One that is gone costs a listing from the beginning, nothing else."""

    def __init__(
        self, *, max_marks: int = 1000, life_s: float = 300, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._marks = LruCache[PageStart, Mark](max_marks, life_s=life_s, clock=clock)

    def mark(self, start: PageStart) -> Mark:
        """The mark from which a page is read."""
        return self._marks.get(start) or BEGINNING

    def keep(self, start: PageStart, mark: Mark) -> None:
        """Keep the mark of a page; the one that was asked for longest ago makes room."""
        if mark == BEGINNING:
            self._marks.pop(start)
        else:
            self._marks.put(start, mark)
