"""The root of the error tree."""

from collections.abc import Mapping
from typing import Any, ClassVar


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
