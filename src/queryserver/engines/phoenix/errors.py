"""Failures of HTTP, of the protocol and of Phoenix as domain errors: the only place where all are known."""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from enum import Enum, auto

import httpx

from queryserver.engines.phoenix.protocol import Malformed, Missing, ServerError
from queryserver.engines.statement_texts import PHOENIX, place_in
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
    StatementDenied,
    StatementRejected,
)

GONE = "Results have expired: the Query Server no longer knows this statement."
_SESSION_GONE = "The Phoenix session is gone; the statement was not started."
_LOST = "The connection to the Query Server was lost while the statement ran."
_UNREACHABLE = "No connection to the Query Server could be made."

_MESSAGE_CHARS = 10_000
# `org.apache.phoenix.schema.TableNotFoundException: `; the text behind it may name the next one.
_CLASS = re.compile(r"^(?:Caused by: )?(?:[a-z]\w*\.)+[A-Z][\w$]*(?:: ?|$)")
_FRAME = re.compile(r"^\s+(?:at |\.\.\. \d+ more)")
_NO_SUCH_CONNECTION = "NoSuchConnectionException"
# TIM01 is Phoenix's own time limit.
_TIMED_OUT = re.compile(r"\(TIM01\)")
_DENIED = re.compile(r"AccessDeniedException|AccessControlException|Insufficient permissions|\(42000\).*permission")


class Phase(Enum):
    """How far the statement was, if there was one, when something failed."""

    OPENING = auto()
    """A session is being opened, or metadata asked for: nothing has been started."""
    BEFORE = auto()
    """The session was open; the statement has not been sent."""
    SENT = auto()
    """The statement was sent: it may have taken effect."""


class HttpRefusal(Exception):
    """An answer that is no message of Avatica, by its HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class NotConnected(Exception):
    """No connection could be made: nothing was sent."""


class Silent(Exception):
    """No answer in time."""


@contextmanager
def avatica_errors(phase: Phase) -> Generator[None]:
    """Around work with the Query Server: only the EngineError family comes out."""
    try:
        yield
    except NotConnected as error:
        raise _unreachable(phase) from error
    except Silent as error:
        raise _lost(phase, "The Query Server did not answer in time.") from error
    except (httpx.TransportError, httpx.StreamError, httpx.DecodingError) as error:
        raise _lost(phase, _LOST) from error
    except Malformed as error:
        raise _lost(phase, "The Query Server's answer cannot be read.") from error
    except HttpRefusal as error:
        raise _refusal(phase, error.status) from error
    except Missing as error:
        raise OutcomeUnknown(GONE) from error
    except ServerError as error:
        raise _server_error(phase, error) from error


def _unreachable(phase: Phase) -> EngineError:
    if phase is Phase.OPENING:
        return EngineUnavailable(_UNREACHABLE)
    return SessionLost(_SESSION_GONE) if phase is Phase.BEFORE else OutcomeUnknown(_LOST)


def _lost(phase: Phase, text: str) -> EngineError:
    if phase is Phase.OPENING:
        return EngineUnavailable(_UNREACHABLE if text == _LOST else text)
    if phase is Phase.BEFORE:
        return SessionLost(_SESSION_GONE)
    return OutcomeUnknown(f"{text} The statement may or may not have taken effect.")


def _refusal(phase: Phase, status: int) -> EngineError:
    if status in {401, 403}:
        return CredentialsRequired("The Query Server refused the login.")
    return _lost(phase, f"The Query Server answered with HTTP {status}.")


def _server_error(phase: Phase, error: ServerError) -> EngineError:
    if any(trace.partition(":")[0].endswith(_NO_SUCH_CONNECTION) for trace in error.traces):
        return OutcomeUnknown(GONE) if phase is Phase.SENT else SessionLost(_SESSION_GONE)
    text = server_text(error.text, error.traces)
    if _TIMED_OUT.search(text):
        return EngineTimeout(text)
    refused = StatementDenied(text) if any(map(_DENIED.search, error.traces)) else StatementRejected(text)
    return refused.at(place_in(text, PHOENIX))


def server_text(text: str, traces: Sequence[str]) -> str:
    """What Phoenix says, without the names of Java's classes and stacks: of several causes the first that says it."""
    for trace in traces:
        for cause in re.split(r"^(?=Caused by: )", trace, flags=re.MULTILINE):
            if said := _said(cause):
                return said[:_MESSAGE_CHARS]
    without = _said(re.sub(r" -> .*", "", text, flags=re.DOTALL))
    return without[:_MESSAGE_CHARS] or "Phoenix gave no reason."


def _said(cause: str) -> str:
    lines = list[str]()
    for line in cause.splitlines():
        if _FRAME.match(line):
            break
        lines.append(_without_classes(line))
    return "\n".join(lines).strip()


def _without_classes(line: str) -> str:
    while found := _CLASS.match(line):
        line = line[found.end() :].lstrip()
    return line
