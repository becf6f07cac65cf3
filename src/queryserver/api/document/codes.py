"""The stable codes of failures: what each means, and the HTTP statuses that it comes with."""

from collections.abc import Iterator, Mapping
from typing import Any

from queryserver.api.errors import STATUS
from queryserver.domain.errors.base import KINDS, ConfigurationError, NotAuthenticated, QueryServerError, SchemaMismatch

_OF_STATEMENTS = (200, 409)
"""A statement that failed: the calls that follow it answer 200, a download of its result 409."""
_NEVER_SHOWN = {error.code for error in (NotAuthenticated, SchemaMismatch, ConfigurationError)}
"""Codes that no answer has; the subclasses of NotAuthenticated have codes of their own."""


def error_codes(meanings: Mapping[str, str | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`code`, `http` and `meaning` of every code that an answer may have, by name."""
    statuses = statuses_by_code()
    found: list[dict[str, Any]] = []
    for code, told in sorted(meanings.items()):
        meaning, more = (told, ()) if isinstance(told, str) else (told["meaning"], told["http"])
        found.append({"code": code, "http": sorted({*statuses.get(code, ()), *more}), "meaning": meaning})
    return found


def statuses_by_code() -> dict[str, set[int]]:
    """The codes of the errors that clients see, with their HTTP statuses."""
    found: dict[str, set[int]] = {QueryServerError.code: {500}}
    for code, error in [(error.code, error) for error in _descendants(QueryServerError)] + KINDS:
        if code in _NEVER_SHOWN:
            continue
        status = next((STATUS[kind] for kind in error.__mro__ if kind in STATUS), 500)
        found.setdefault(code, set()).update(_OF_STATEMENTS if status == 200 else (status,))
    return found


def _descendants(kind: type[QueryServerError]) -> Iterator[type[QueryServerError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _descendants(child)
