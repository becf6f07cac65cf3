"""Lets SIGTERM and SIGHUP stop `qs` like Ctrl-C: running statements are canceled, also in the engine."""

import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

_NAMES = ("SIGTERM", "SIGHUP")
"""Windows has no SIGHUP."""


class SignalExit(SystemExit):
    """Raised in the main thread by such a signal. Its code is the exit code that shells expect.

    A SystemExit passes through asyncio and prompt_toolkit, and `except Exception` does not catch it.
    """


def end_in_order() -> None:
    """Install the signal handlers. A signal that the parent process ignores, as with nohup, stays ignored."""
    for name in _NAMES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, _frame: object) -> None:
    # timeout(1) and service managers send the signal to the program and to its group. The second signal must not
    # interrupt the shutdown. Later signals count again, because the first one may have arrived in a finalizer, where
    # Python drops exceptions.
    global _last
    before, _last = _last, time.monotonic()
    if _last - before > _END_WITHIN_S:
        error = SignalExit(128 + number)
        if not _takers:
            raise error
        _takers[-1](error)


_takers: list[Callable[[SignalExit], None]] = []


@contextmanager
def passed_to(take: Callable[[SignalExit], None]) -> Generator[None]:
    """Inside the context, such a signal calls `take` with the exception that is finally raised.

    Used for an event loop with several tasks, any of which could receive an exception raised immediately.
    """
    received: list[SignalExit] = []

    def note(error: SignalExit) -> None:
        received.append(error)
        take(error)

    _takers.append(note)
    try:
        yield
    finally:
        _takers.pop()
        if received:
            raise received[0]


_END_WITHIN_S = 20.0
_last = float("-inf")
