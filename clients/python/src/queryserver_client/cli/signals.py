"""SIGTERM and SIGHUP end `qs` as Ctrl-C does: what runs is canceled, also at the engine."""

import signal
import time

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
        raise Terminated(128 + number)


_END_WITHIN_S = 20.0
_last = float("-inf")
