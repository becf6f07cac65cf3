"""Reports the failure of a command with a message on stderr and an exit code."""

import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from queryserver_client.cli.login import NotLoggedIn
from queryserver_client.errors import (
    ApiError,
    AuthenticationError,
    ConfigurationError,
    ConnectionLost,
    QueryserverError,
    ServerUnavailable,
    StatementError,
    TooManyRequests,
)

FAILED = 1
"""The statement failed, or the server rejected the call."""
WRONG_USE = 2
"""Options or arguments are invalid. Typer uses the same code."""
NOT_LOGGED_IN = 3
INCOMPLETE = 4
"""All stored rows were written, but the server truncated the result."""
UNAVAILABLE = 5
"""The server is unreachable, temporarily unavailable, or limits the user's requests."""
INTERRUPTED = 128 + signal.SIGINT
_PIPE_CLOSED = 128 + 13


_EXCERPT = re.compile(r"\s*\n\s*(LINE \d+:.*|Position: \d+\s*)\Z", re.DOTALL)
"""What DuckDB, or PostgreSQL's drivers, append to the message of an error."""


class WrongUse(Exception):
    """The command line is invalid. Nothing was sent."""


def carried_out(command: Callable[[], int | None]) -> int:
    """Run a command and return its exit code. If the command fails, print the error."""
    try:
        code = command() or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return _PIPE_CLOSED
    except (QueryserverError, WrongUse, OSError, ValueError) as error:
        say(text_of(error))
        return code_of(error)
    return code


def code_of(error: BaseException) -> int:
    match error:
        case NotLoggedIn() | AuthenticationError():
            return NOT_LOGGED_IN
        case WrongUse() | ConfigurationError():
            return WRONG_USE
        case ConnectionLost() | ServerUnavailable() | TooManyRequests():
            return UNAVAILABLE
        case _:
            return FAILED


def text_of(error: BaseException) -> str:
    """Return the message to print for an error."""
    if isinstance(error, AuthenticationError):
        return f"the server rejected the credentials: {visible(error.message)}"
    if isinstance(error, ApiError):
        number = f" (request {error.request_id})" if error.request_id and error.status >= 500 else ""
        return visible(error.message) + "".join(f"\n  {field}" for field in _fields(error)) + number
    if isinstance(error, StatementError):
        return visible(error.message, keep="\n\t")
    return visible(str(error), keep="\n") or type(error).__name__


def report(error: StatementError, place: str) -> None:
    """Print a failed statement, with the statement line that `place_of` returned.

    The engine's own excerpt of the statement is omitted then, because it would repeat the line.
    """
    text = text_of(error)
    say(_EXCERPT.sub("", text) if place else text)
    if place:
        print(place, file=sys.stderr)


def place_of(error: StatementError, statement: str, first_line: int = 1) -> str:
    """Return the statement line that contains the error, with a `^` below the column; empty if the position is unknown.

    `first_line` is the line number of the statement's first line in the submitted script.
    """
    lines = statement.splitlines()
    if error.line is None or not 1 <= error.line <= len(lines):
        return ""
    head, line = f"line {first_line + error.line - 1}: ", lines[error.line - 1].expandtabs(1)
    if error.column is None:
        return f"{head}{visible(line)}"
    before = visible(line[: error.column - 1])
    from rich.cells import cell_len  # noqa: PLC0415

    return f"{head}{visible(line)}\n{' ' * (len(head) + cell_len(before))}^"


def say(text: str) -> None:
    """Print a line to stderr."""
    with suppress(BrokenPipeError):  # the exit code stays the same if stderr is closed
        print(f"qs: {text}", file=sys.stderr)


def _drop_output() -> None:
    """Redirect broken output streams to the null device after their reader (e.g. `head`) has exited.

    Otherwise Python would fail again when it flushes them on exit.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # noqa: PERF203
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def visible(text: str, keep: str = "") -> str:
    """Escape the unprintable characters of untrusted text for a terminal, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else _escape(character) for character in text
    )


def _escape(character: str) -> str:
    # isprintable() also rejects Unicode spaces, which are harmless, and direction marks, which are not.
    if character in _BLANKS:
        return " "
    return character.encode("unicode_escape").decode("ascii")


def _fields(error: ApiError) -> list[str]:
    found = error.body.get("errors")
    if not isinstance(found, dict):
        return []
    return [f"{visible(str(name))}: {visible(str(what))}" for name, what in found.items()]


_BLANKS = frozenset("\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000")
