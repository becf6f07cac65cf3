"""What no code says, as data: words about fields, bodies as they are sent, meanings of error codes."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from queryserver.api.errors import STATUS
from queryserver.errors.base import KINDS, ConfigurationError, NotAuthenticated, QueryServerError, SchemaMismatch

_HERE = files("queryserver.api.document")
_CITED = re.compile(r"\s*\((?:Spec|Contract) [^)]*\)")
_SOURCE = re.compile(r"\s*(?:Spec §|Contract [a-z]+ \d).*$", re.DOTALL)
"""Where the last sentence of a docstring says who decides it."""


@dataclass(frozen=True, slots=True)
class Texts:
    """The files beside this one."""

    words: Mapping[str, Any]
    """About the service, its tags, fields, headers and failures."""
    samples: Mapping[str, Any]
    """A body of each answer, by its schema."""
    guide: str
    """The text for a reader who begins, in Markdown."""
    codes: Mapping[str, str | Mapping[str, Any]]
    """What each error code means; with `http` where the error classes do not say the status."""


def without_citations(text: str) -> str:
    """A docstring without the sections that it cites: readers of the description do not have them."""
    return _SOURCE.sub("", _CITED.sub("", text)).strip()


@cache
def texts() -> Texts:
    """Read once per process, when somebody asks for the document."""
    samples = {name: json.loads(text) for name, text in _read("samples.yaml").items()}
    guide = _HERE.joinpath("guide.md").read_text(encoding="utf-8")
    return Texts(_read("words.yaml"), samples, guide, _read("codes.yaml"))


def _read(name: str) -> dict[str, Any]:
    return yaml.load(_HERE.joinpath(name).read_bytes(), Loader=yaml.CSafeLoader)


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
