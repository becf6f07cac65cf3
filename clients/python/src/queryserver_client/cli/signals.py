"""SIGTERM and SIGHUP end `qs` as Ctrl-C does: what runs is canceled, also at the engine."""

import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

_NAMES = ("SIGTERM", "SIGHUP")
"""Windows has no SIGHUP."""


class Terminated(SystemExit):
    """Raised in the main thread by such a signal; its code is the exit code that shells expect.

    A SystemExit passes through asyncio and prompt_toolkit, and no `except Exception` stops it.
    """


def end_in_order() -> None:
    """A signal that the starter of this program ignores, as nohup does, is left alone."""
    for name in _NAMES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, _frame: object) -> None:
    # timeout(1) and service managers send it to the program and to its group: once is enough, and must not end the end.
    # Later it counts again: the first one may have come within a finalizer, where Python drops exceptions.
    global _last
    before, _last = _last, time.monotonic()
    if _last - before > _END_WITHIN_S:
        error = Terminated(128 + number)
        if not _takers:
            raise error
        _takers[-1](error)


_takers: list[Callable[[Terminated], None]] = []


@contextmanager
def passed_to(take: Callable[[Terminated], None]) -> Generator[None]:
    """Inside, such a signal calls `take` with what is raised at the end.

    For a loop that has tasks besides the one that is waited for: any of them could get what is raised at once.
    """
    came: list[Terminated] = []

    def note(error: Terminated) -> None:
        came.append(error)
        take(error)

    _takers.append(note)
    try:
        yield
    finally:
        _takers.pop()
        if came:
            raise came[0]


_END_WITHIN_S = 20.0
_last = float("-inf")
