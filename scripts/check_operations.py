"""Compare openapi/operations.yaml with the routes of the app, both ways; every difference is a line, and exit code 1.

A served row must be a route that takes and answers what the row says; a route must be a row; a planned row must be
no route.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from queryserver.api.schemas import requests
from queryserver.identity.model import Scope

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "openapi" / "operations.yaml"
RESOURCES = ROOT / "openapi" / "resources.yaml"
SERVED = "served"
NO_SCOPE = "none"


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table."""

    method: str
    path: str
    group: str
    request: str | tuple[str, ...]
    response: frozenset[str]
    http: int
    rights: str
    error_style: str
    source: str
    status: str
    scope: str = ""
    also: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """What tells one call from another: the method, and the path without the names of its parameters."""
        return self.method, shape(self.path)


def shape(path: str) -> str:
    """A path template without parameter names and last slash."""
    return re.sub(r"\{[^}]*\}", "{}", path).rstrip("/")


@cache
def read_operations(table: Path = TABLE) -> tuple[Operation, ...]:
    """The rows, in the order of the table."""
    rows: list[dict[str, Any]] = yaml.load(table.read_bytes(), Loader=yaml.CSafeLoader)["operations"]
    return tuple(_operation(row) for row in rows)


def _operation(row: Mapping[str, Any]) -> Operation:
    """The columns that are compared; convertors of path parameters and parameters of media types are left out."""
    known = {one.name: row[one.name] for one in fields(Operation) if one.name in row}
    request = row["request"]
    return Operation(
        **{"http": 200, **known}
        | {
            "path": re.sub(r"\{(\w+):\w+\}", r"{\1}", row["path"]),
            "request": request if isinstance(request, str) else tuple(request),
            "response": frozenset(kind.partition(";")[0] for kind in row["response"]),
        }
    )


@dataclass(frozen=True, slots=True)
class Declared:
    """What the app's document says about one route."""

    response: frozenset[str]
    """Schemas of its JSON success, else media types."""
    body: str | None = None
    """Schema of the request body, when it has a name."""
    query: frozenset[str] = frozenset()
    """Names of its query parameters."""


def differences(operations: Iterable[Operation], routes: Mapping[tuple[str, str], Declared | None]) -> list[str]:
    """Where table and app disagree. A route with None stands outside the document and is only looked up."""
    rows = {operation.key: operation for operation in operations}
    found: list[str] = []
    for key, row in rows.items():
        found += [f"{' '.join(key)}: {problem}" for problem in _scope_problems(row)]
        if row.status != SERVED:
            found += [f"{' '.join(key)}: planned in the table, but a route"] if key in routes else []
        elif key not in routes:
            found.append(f"{' '.join(key)}: served in the table, but no route")
        elif (declared := routes[key]) is not None:
            found += [f"{' '.join(key)}: {problem}" for problem in _mismatches(row, declared)]
    aliases = {(row.method, shape(path)) for row in rows.values() for path in row.also}
    found += [f"{method} {path}: a further path in the table, but no route" for method, path in aliases - routes.keys()]
    unknown = routes.keys() - rows.keys() - aliases
    return found + [f"{method} {path}: a route, but not in the table" for method, path in unknown]


def _scope_problems(row: Operation) -> Iterator[str]:
    """Each call needs exactly one scope of an API token, or says that it needs none."""
    if row.scope not in {NO_SCOPE, *Scope}:
        yield f"has the scope {row.scope or 'nothing'}, which is none of {_words([NO_SCOPE, *Scope])}"
    elif row.rights in {"public", "network"} and row.scope != NO_SCOPE:
        yield f"reads no token, but needs the scope {row.scope}"
    elif row.rights == "admin" and row.scope != Scope.ADMIN:
        yield f"is for administrators, but needs the scope {row.scope}"


def _mismatches(row: Operation, declared: Declared) -> Iterator[str]:
    if declared.response != row.response:
        yield f"the table answers {_words(row.response)}, the app {_words(declared.response)}"
    if not isinstance(row.request, str):
        return
    if row.method not in {"GET", "DELETE"}:
        if declared.body != row.request:
            yield f"the table takes {row.request}, the app {declared.body or 'nothing'}"
        return
    names = parameter_names(row.request)
    if declared.query != names:
        yield f"the table takes {_words(names)}, the app {_words(declared.query)}"


def parameter_names(request: str) -> frozenset[str]:
    """Names on the wire of the fields of a model in requests.py."""
    fields = getattr(requests, request).model_fields
    return frozenset(field.alias or name for name, field in fields.items())


def routes_of(app: FastAPI) -> dict[tuple[str, str], Declared | None]:
    """Each route with what the document declares; None for routes outside the document."""
    described = {
        (method.upper(), shape(path)): _declared(operation)
        for path, operations in app.openapi()["paths"].items()
        for method, operation in operations.items()
        if method != "head"
    }
    return {**dict.fromkeys(_plain_routes(app)), **described}


def _plain_routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    for route in iter_route_contexts(app.routes):
        if route.path is not None:
            yield from ((method, shape(route.path)) for method in (route.methods or set()) - {"HEAD", "OPTIONS"})


def _declared(operation: Mapping[str, Any]) -> Declared:
    successes = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
    models = frozenset(name for answer in successes for name in _references(_json_schema(answer)))
    media_types = frozenset(kind for answer in successes for kind in _media_types(answer))
    body = frozenset(_references(_body_schema(operation.get("requestBody", {}))))
    return Declared(
        response=models or media_types,
        body=next(iter(body)) if len(body) == 1 else None,
        query=frozenset(one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"),
    )


def _json_schema(message: Mapping[str, Any]) -> Mapping[str, Any]:
    return message.get("content", {}).get("application/json", {}).get("schema", {})


def _body_schema(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Bodies with a file are multipart and nothing else."""
    return _json_schema(message) or message.get("content", {}).get("multipart/form-data", {}).get("schema", {})


def _media_types(message: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(kind.partition(";")[0] for kind in message.get("content", {}))


def _references(schema: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2]
    for variant in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _references(variant)


def _words(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def main() -> int:
    """Exit code 1 when there is a difference."""
    sys.path.insert(0, str(ROOT))
    from scripts.describe_api import described_application  # noqa: PLC0415 the table is read without the app

    found = differences(read_operations(), routes_of(described_application()))
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
