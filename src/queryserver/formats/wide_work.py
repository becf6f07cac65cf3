"""Work on very many columns, one piece at a time in a process: libraries take memory for each column.

DuckDB takes 16 KiB for each column of a result that is being read, Arrow's Parquet reader some 6 KiB. The wait is
bounded: a result that takes long to compute does not keep other users from theirs.
"""

from collections.abc import Callable
from threading import Semaphore

MANY_COLUMNS = 500
"""Of less the memory does not matter."""

_WAIT_S = 10.0
_PLACE = Semaphore()


def begin(*, wait_s: float = _WAIT_S) -> Callable[[], None]:
    """Wait for earlier work, at most so long; call the answer once the work has ended. Further calls do nothing."""
    held = [_PLACE] if _PLACE.acquire(timeout=wait_s) else []

    def end() -> None:
        if held:
            held.pop().release()

    return end
