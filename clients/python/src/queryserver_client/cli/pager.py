"""Shows output that is longer than the terminal in a pager, as git and psql do.

The pager is `$PAGER`, by default `less`. Without a terminal, with an empty PAGER or with `cat`, output is printed
directly.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_LESS = "FRX"
"""Options of less, unless LESS is set: exit if one screen is enough, keep colors, leave the text on the screen."""


class _Switch:
    is_on = True


def switch(*, is_on: bool) -> None:
    """Switch the pager on or off for this process."""
    _Switch.is_on = is_on


def is_on() -> bool:
    return _Switch.is_on


@contextmanager
def paged(console: "Console") -> Generator[None, None, None]:
    """Collect what is printed on the console inside the block, and then print it, in a pager if it is too long."""
    command = pager_command() if _is_possible(console) else []
    if not command:
        yield
        return
    with console.capture() as captured:
        yield
    text = captured.get()
    if text.count("\n") < console.height or not _has_shown(command, text):
        sys.stdout.write(text)
        sys.stdout.flush()


def _is_possible(console: "Console") -> bool:
    is_terminal = console.is_terminal and not console.is_dumb_terminal
    return _Switch.is_on and is_terminal and sys.stdin.isatty() and sys.stdout.isatty()


def pager_command() -> list[str]:
    """Return the command of the pager; empty if there is none."""
    given = os.environ.get("PAGER")
    if given is None:
        return ["less"] if shutil.which("less") else []
    with suppress(ValueError):  # unbalanced quotes
        words = shlex.split(given)
        return [] if words == ["cat"] else words
    return []


def _has_shown(command: list[str], text: str) -> bool:
    """Run the pager until the user leaves it. Return False if it could not be started."""
    environment = {"LESS": _LESS, **os.environ}
    try:
        process = subprocess.Popen(  # noqa: S603 the command is the user's own
            command, stdin=subprocess.PIPE, env=environment, encoding="utf-8", errors="replace"
        )
    except OSError:
        return False
    try:
        _feed(process, text)
    except BaseException:
        process.terminate()
        raise
    return True


def _feed(process: "subprocess.Popen[str]", text: str) -> None:
    """Write the text to the pager and wait for its end. Ctrl-C is left to the pager, which shares the terminal."""
    assert process.stdin is not None  # noqa: S101
    with suppress(BrokenPipeError, KeyboardInterrupt):  # the user has left the pager before the end of the text
        process.stdin.write(text)
    with suppress(BrokenPipeError, KeyboardInterrupt):
        process.stdin.close()
    while process.poll() is None:
        with suppress(KeyboardInterrupt):
            process.wait()
