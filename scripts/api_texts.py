"""What the description of the API is made of beside routes and models: rows of the table, texts, error codes."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from queryserver.api.errors import STATUS
from queryserver.errors.base import KINDS, ConfigurationError, NotAuthenticated, QueryServerError, SchemaMismatch

TABLES = Path(__file__).resolve().parent.parent / "openapi"
_TEXTS = TABLES / "texts"
_CITED = re.compile(r"\s*\((?:Spec|Contract) [^)]*\)")
_SOURCE = re.compile(r"\s*(?:Spec §|Contract [a-z]+ \d).*$", re.DOTALL)  # the last sentence of a docstring


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """A row of operations.yaml; its head describes the fields."""

    id: str
    method: str
    path: str
    rights: str
    scope: str
    source: str
    also: Sequence[str] = ()
    summary: str = ""
    description: str = ""
    example: Mapping[str, Any] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    takes: Sequence[str] = ()
    headers: Sequence[str] = ()
    body: Mapping[str, Any] | None = None
    query: Sequence[Mapping[str, Any]] = ()
    same_as: str = ""
    hidden: bool = False


@cache
def rows() -> Mapping[str, Row]:
    """By their ids."""
    table = yaml.load(TABLES.joinpath("operations.yaml").read_bytes(), Loader=yaml.CSafeLoader)["operations"]
    return {row["id"]: Row(**row) for row in table}


@dataclass(frozen=True, slots=True)
class Texts:
    """The files of `texts/`.

    `words`: about the service, its tags, fields, headers and failures. `samples`: a body of each answer, by its schema.
    `guide`: for beginners, in Markdown. `codes`: the meaning of each error code; with `http` where the error classes do
    not say the status.
    """

    words: Mapping[str, Any]
    samples: Mapping[str, Any]
    guide: str
    codes: Mapping[str, str | Mapping[str, Any]]


def without_citations(text: str) -> str:
    """A docstring without the sections that it cites: readers of the description do not have them."""
    return _SOURCE.sub("", _CITED.sub("", text)).strip()


@cache
def texts() -> Texts:
    """Read once per process."""
    samples = {name: json.loads(text) for name, text in _read("samples.yaml").items()}
    guide = _TEXTS.joinpath("guide.md").read_text(encoding="utf-8")
    return Texts(_read("words.yaml"), samples, guide, _read("codes.yaml"))


def _read(name: str) -> dict[str, Any]:
    return yaml.load(_TEXTS.joinpath(name).read_bytes(), Loader=yaml.CSafeLoader)


_OF_STATEMENTS = (200, 409)
"""A statement that failed: the calls that follow it answer 200, a download of its result 409."""
_NEVER_SHOWN = {error.code for error in (NotAuthenticated, SchemaMismatch, ConfigurationError)}
"""Codes that no answer has; the subclasses of NotAuthenticated have codes of their own."""


def error_codes(meanings: Mapping[str, str | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`code`, `http` and `meaning` of every code that an answer may have, by name."""
    statuses = statuses_by_code()
    found: list[dict[str, Any]] = []
    for code, text in sorted(meanings.items()):
        meaning, more = (text, ()) if isinstance(text, str) else (text["meaning"], text["http"])
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
