"""The table of operations, from which routes are made; `scripts/describe_api.py` makes the API description of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from queryserver.api.schemas import requests
from queryserver.api.schemas.fields import Fields
from queryserver.identity.model import Scope


@dataclass(frozen=True, slots=True)
class Operation:
    """What serves a row of operations.yaml; its head describes the fields."""

    id: str
    method: str
    path: str
    group: str
    rights: str
    scope: str
    error_style: str
    request: str | Sequence[str]
    also: Sequence[str] = ()

    @property
    def is_public(self) -> bool:
        """Whether it requires no credentials."""
        return self.rights in {"public", "network"}

    @property
    def needed_scope(self) -> Scope | None:
        """The scope that an API token needs for it."""
        return None if self.scope == "none" else Scope(self.scope)

    @property
    def request_model(self) -> type[Fields] | None:
        return getattr(requests, self.request) if isinstance(self.request, str) else None


@cache
def operations() -> Mapping[str, Operation]:
    """By their ids, in the order in which routes are tried."""
    known = [one.name for one in fields(Operation)]
    return {row["id"]: Operation(**{name: row[name] for name in known if name in row}) for row in served_rows()}


def served_rows() -> Iterator[dict[str, Any]]:
    text = files("queryserver.api").joinpath("operations.yaml").read_bytes()
    return (row for row in yaml.load(text, Loader=yaml.CSafeLoader)["operations"] if row["status"] == "served")
