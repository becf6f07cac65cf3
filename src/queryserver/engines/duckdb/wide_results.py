"""Results of very many columns: one at a time for each user, for their memory."""

from collections.abc import Callable
from threading import Semaphore
from weakref import WeakValueDictionary

from queryserver import errors
from queryserver.formats.columns import MANY_COLUMNS, begin_wide_work

_WIDE_WAIT_S = 60
_WIDE = WeakValueDictionary[int, Semaphore]()
"""By user. DuckDB takes 16 KiB for each column of a result that is being read, which are no part of `memory_limit`."""


def take_wide_place(user_id: int, *, wait_s: float = _WIDE_WAIT_S) -> Callable[[], None]:
    """The one place of a user for results of many columns; to be freed once, later calls do nothing.

    Raises StatementRejected when the user's other statement takes too long.
    """
    place = _WIDE.setdefault(user_id, Semaphore())
    if not place.acquire(timeout=wait_s):
        raise errors.StatementRejected(
            f"Out of Memory Error: another result of more than {MANY_COLUMNS} columns is being read; try again later."
        )
    held, end = [place], begin_wide_work()

    def free() -> None:
        end()
        if held:
            held.pop().release()

    return free
