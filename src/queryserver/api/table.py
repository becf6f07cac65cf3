"""The table of operations, from which routes are made, and how path parameters are read.

Routes are matched against the percent-encoded path in one normal form, so that `%2F` stays part of a name; a path
parameter declared `{database:segment}` or `{table:name}` is decoded when it is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import unquote_to_bytes

import yaml
from starlette.convertors import Convertor, register_url_convertor

from queryserver.api.schemas import requests
from queryserver.api.schemas.fields import Fields


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of operations.yaml; its head describes the fields."""

    id: str
    method: str
    path: str
    group: str
    rights: str
    error_style: str
    source: str
    status: str
    request: str | Sequence[str]
    response: Sequence[str]
    http: int = 200
    tag: str = ""
    summary: str = ""
    description: str = ""
    failures: Sequence[int] = ()
    example: Mapping[str, Any] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    takes: Sequence[str] = ()
    headers: Sequence[str] = ()
    answers: Mapping[int, str] = field(default_factory=dict[int, str])
    failing: Mapping[int, str] = field(default_factory=dict[int, str])
    body: Mapping[str, Any] | None = None
    query: Sequence[Mapping[str, Any]] = ()
    same_as: str = ""
    fails: bool = False
    hidden: bool = False

    @property
    def is_public(self) -> bool:
        """Whether it requires no credentials."""
        return self.rights in {"public", "network"}

    @property
    def request_model(self) -> type[Fields] | None:
        return getattr(requests, self.request) if isinstance(self.request, str) else None


@cache
def operations() -> Mapping[str, Operation]:
    """The served rows by their ids, in the order in which routes are tried."""
    text = files("queryserver.api").joinpath("operations.yaml").read_bytes()
    rows: list[dict[str, Any]] = yaml.load(text, Loader=yaml.CSafeLoader)["operations"]
    return {row["id"]: Operation(**row) for row in rows if row["status"] == "served"}


class RawConvertor(Convertor[str]):
    """A part of the path as it stands there, still encoded: `%2F` is part of a name."""

    def __init__(self, regex: str) -> None:
        self.regex = regex  # pyright: ignore[reportAttributeAccessIssue] Starlette reads it from the instance

    def convert(self, value: str) -> str:
        return value


class NameConvertor(RawConvertor):
    """One path segment, decoded once. Invalid UTF-8 and U+0000 never match: 404."""

    def convert(self, value: str) -> str:
        return unquote_to_bytes(value).decode()


# The interface of a context, the optimizer calls of Hue (Contract platform 7.8); any other text is an unknown path.
register_url_convertor("interface", RawConvertor("(?!status$)[A-Za-z0-9_-]+"))
_CALLS = "query_risk|query_compatibility|similar_queries|predict"
register_url_convertor("optimizer", RawConvertor(f"top_(?:databases|tables|columns|filters|joins|aggs)|{_CALLS}"))
# What stands behind `=` in storage calls.
register_url_convertor("raw", RawConvertor(".*"))
# One segment or more that are not empty: `names_of` takes them apart.
register_url_convertor("rest", RawConvertor("[^/]+(?:/[^/]+)*"))
register_url_convertor("segment", NameConvertor("[^/]*"))
register_url_convertor("name", NameConvertor("[^/]+"))


def names_of(rest: str) -> tuple[str, ...]:
    """The decoded names of the segments that a parameter `{…:rest}` took."""
    return tuple(unquote_to_bytes(part).decode() for part in rest.split("/"))
