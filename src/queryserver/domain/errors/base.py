"""The root of the error tree."""

from typing import ClassVar


class QueryServerError(Exception):
    """A failure with a stable `code` for programs and a `message` for a person."""

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
