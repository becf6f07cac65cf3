"""Reads the inputs of the API description besides routes and models: operations.yaml, texts and error codes."""

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
_SOURCE = re.compile(r"\s*(?:Spec §|Contract [a-z]+ \d).*$", re.DOTALL)  # a citation at the end of a docstring


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """A row of operations.yaml, whose header comment describes the fields."""

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
    """Return the rows of operations.yaml by operation id."""
    table = yaml.load(TABLES.joinpath("operations.yaml").read_bytes(), Loader=yaml.CSafeLoader)["operations"]
    return {row["id"]: Row(**row) for row in table}


@dataclass(frozen=True, slots=True)
class Texts:
    """The contents of `openapi/texts/`.

    `words` describes tags, fields, headers and error responses. `samples` contains an example body for each response
    schema. `guide` is the introduction in Markdown. `codes` explains each error code; an entry has `http` if the error
    classes do not define its status.
    """

    words: Mapping[str, Any]
    samples: Mapping[str, Any]
    guide: str
    codes: Mapping[str, str | Mapping[str, Any]]


def without_citations(text: str) -> str:
    """Remove citations of the specification from a docstring; readers of the API description do not have it."""
    return _SOURCE.sub("", _CITED.sub("", text)).strip()


@cache
def texts() -> Texts:
    """Read the texts once per process."""
    samples = {name: json.loads(text) for name, text in _read("samples.yaml").items()}
    guide = _TEXTS.joinpath("guide.md").read_text(encoding="utf-8")
    return Texts(_read("words.yaml"), samples, guide, _read("codes.yaml"))


def _read(name: str) -> dict[str, Any]:
    return yaml.load(_TEXTS.joinpath(name).read_bytes(), Loader=yaml.CSafeLoader)


_STATEMENT_STATUSES = (200, 409)
"""HTTP statuses of calls for a failed statement: 409 for a download of its result, 200 for all other calls."""
_INTERNAL_CODES = {error.code for error in (NotAuthenticated, SchemaMismatch, ConfigurationError)}
"""Codes that no response contains. NotAuthenticated is here because its subclasses have their own codes."""


def error_codes(meanings: Mapping[str, str | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `code`, `http` and `meaning` of each code that a response may contain, sorted by code."""
    statuses = statuses_by_code()
    found: list[dict[str, Any]] = []
    for code, text in sorted(meanings.items()):
        meaning, more = (text, ()) if isinstance(text, str) else (text["meaning"], text["http"])
        found.append({"code": code, "http": sorted({*statuses.get(code, ()), *more}), "meaning": meaning})
    return found


def statuses_by_code() -> dict[str, set[int]]:
    """Return the HTTP statuses of the error codes that clients can receive."""
    found: dict[str, set[int]] = {QueryServerError.code: {500}}
    for code, error in [(error.code, error) for error in _descendants(QueryServerError)] + KINDS:
        if code in _INTERNAL_CODES:
            continue
        status = next((STATUS[kind] for kind in error.__mro__ if kind in STATUS), 500)
        found.setdefault(code, set()).update(_STATEMENT_STATUSES if status == 200 else (status,))
    return found


def _descendants(kind: type[QueryServerError]) -> Iterator[type[QueryServerError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _descendants(child)
