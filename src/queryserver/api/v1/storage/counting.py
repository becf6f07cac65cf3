"""Which store a call is about, and how it ended, as metrics tell it (Contract platform 9.3)."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request

from queryserver.api.dependencies import services_of
from queryserver.domain.errors.base import QueryServerError
from queryserver.schemas.requests.given import PATH_FIELDS, Given

_PREFIX = "/api/v1/storage/"
_NO_PLACE = "none"


def count(request: Request, given: Given | None, outcome: str) -> None:
    """One call was answered; `given` are its fields, as far as they were read."""
    services = services_of(request)
    scheme = _scheme(request, given) if given else _NO_PLACE
    services.metrics.storage_operation(scheme, _operation(request), outcome)


def _operation(request: Request) -> str:
    """The words of the route, never those of the path that was asked for."""
    template: str = getattr(request.scope.get("route"), "path", "")
    return template.removeprefix(_PREFIX).partition("=")[0]


def _scheme(request: Request, given: Given) -> str:
    text = next(iter([*request.path_params.values(), *_paths(given.query), *_paths(given.body)]), None)
    if not isinstance(text, str):
        return _NO_PLACE
    try:
        return services_of(request).storage.stores.path(text).scheme
    except QueryServerError:
        return _NO_PLACE


def _paths(fields: Mapping[str, Sequence[Any]]) -> list[Any]:
    return [fields[name][-1] for name in PATH_FIELDS if fields.get(name)]
