"""The root of the error tree."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

_MOST_NAMES = 20
_MOST_NAME_CHARACTERS = 100


class QueryServerError(Exception):
    """A failure with a stable `code` for programs and a `message` for a person."""

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        """Facts about the failure that a client may use; None: there are none to tell."""

    @property
    def beside(self) -> Mapping[str, Any]:
        """Keys that the body of the answer has beside the usual ones (Contract platform 1.4)."""
        return {}


def configured(names: Sequence[str], *, word: str = "Configured") -> str:
    """The end of a message about something that is not there: what is there instead, at most 20 names of it."""
    if not names:
        return f" {word}: nothing that you may use."
    shown = ", ".join(name[:_MOST_NAME_CHARACTERS] for name in islice(names, _MOST_NAMES))
    more = len(names) - _MOST_NAMES
    return f" {word}: {shown} and {more} more." if more > 0 else f" {word}: {shown}."
