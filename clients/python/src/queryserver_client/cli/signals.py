"""SIGTERM and SIGHUP end `qs` as Ctrl-C does: what runs is canceled, also at the engine."""

import signal
from typing import NoReturn

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


def _end(number: int, _frame: object) -> NoReturn:
    # timeout(1) and service managers send it to the program and to its group: once is enough, and must not end the end.
    for name in _NAMES:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    raise Terminated(128 + number)
