"""The table of operations, from which routes and the API description are made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

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
