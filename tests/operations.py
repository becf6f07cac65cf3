"""The operations of the service: the rows of operations.yaml, combined with their routes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import get_args

from fastapi.routing import APIRoute
from scripts.api_texts import Row, rows
from scripts.describe_api import request_model

from queryserver.api.application import create_application, routes_of
from queryserver.api.schemas.fields import Fields
from queryserver.api.v1.storage.dependencies import StorageRoute

NO_SCOPE = "none"


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    """The path template, in which parameters have no types."""
    also: Sequence[str]
    rights: str
    scope: str
    group: str
    request: type[Fields] | None
    response: frozenset[str]
    """Names of the models of all successful responses."""
    http: int
    """The default status of a successful response."""
    other_statuses: frozenset[int]
    """All further statuses of successful responses."""

    @property
    def key(self) -> tuple[str, str]:
        return self.method, shape(self.path)


def shape(path: str) -> str:
    """Replace each parameter of a path template with `{}`, and remove a trailing slash."""
    return re.sub(r"\{[^}]*\}", "{}", path).rstrip("/")


@cache
def read_operations() -> tuple[Operation, ...]:
    """Return the operations in the order of operations.yaml."""
    routes = {(route.name, route.path): route for route in routes_of(create_application())}
    return tuple(_operation(row, routes[name, row.path]) for name, row in rows().items())


def _operation(row: Row, route: APIRoute) -> Operation:
    further = {int(status): one.get("model") for status, one in route.responses.items() if int(status) < 400}
    models = (route.response_model, *further.values())
    choices = [choice for model in models for choice in (get_args(model) if isinstance(model, UnionType) else (model,))]
    http = route.status_code or 200
    return Operation(
        method=row.method,
        path=re.sub(r"\{(\w+):\w+\}", r"{\1}", row.path),
        also=row.also,
        rights=row.rights,
        scope=row.scope,
        group="storage" if isinstance(route, StorageRoute) else str(route.tags[0]),
        request=request_model(route),
        response=frozenset(one.__name__ for one in choices if one is not None),
        http=http,
        other_statuses=frozenset(further.keys() - {http}),
    )
