"""Makes SIGTERM and SIGHUP stop `qs` like Ctrl-C: running statements are canceled on the engine."""

import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

_NAMES = ("SIGTERM", "SIGHUP")
"""The handled signals. Windows has no SIGHUP."""


class SignalExit(SystemExit):
    """Raised in the main thread on SIGTERM or SIGHUP. Its code is the exit code that shells expect.

    It is a SystemExit, which asyncio and prompt_toolkit pass on and `except Exception` does not catch.
    """


def end_in_order() -> None:
    """Install the signal handlers. Signals that are ignored at startup, e.g. because of nohup, stay ignored."""
    for name in _NAMES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, _frame: object) -> None:
    # timeout(1) and service managers send the signal both to the process and to its process group. The second signal
    # must not interrupt the shutdown. Signals after 20 s have an effect again, because the first one may have arrived
    # in a finalizer, where Python ignores exceptions.
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
    """Pass the exception for SIGTERM or SIGHUP to `take` while the block runs, and raise it when the block ends.

    Used for an event loop with several tasks, because an exception raised immediately could end up in any of them.
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
