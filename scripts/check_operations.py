"""Compare openapi/operations.yaml with the routes of the app, both ways; every difference is a line, and exit code 1.

A served row must be a route that declares the row's responses; a route must be a row; a planned row must be no route.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from fastapi import FastAPI
from starlette.routing import Mount, Route

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "openapi" / "operations.yaml"
RESOURCES = ROOT / "openapi" / "resources.yaml"
SERVED = "served"


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

    @property
    def key(self) -> tuple[str, str]:
        """What tells one call from another: the method, and the path without the names of its parameters."""
        return self.method, shape(self.path)


def shape(path: str) -> str:
    """A path template without parameter names and last slash."""
    return re.sub(r"\{[^}]*\}", "{}", path).rstrip("/")


def read_operations(table: Path = TABLE) -> list[Operation]:
    """The rows, in the order of the table."""
    rows: list[dict[str, Any]] = yaml.safe_load(table.read_text(encoding="utf-8"))["operations"]
    return [Operation(**{"http": 200, **row, **_collections(row)}) for row in rows]


def differences(operations: Iterable[Operation], routes: Mapping[tuple[str, str], frozenset[str] | None]) -> list[str]:
    """Where table and app disagree. A route whose responses are None declares none and is only looked up."""
    rows = {operation.key: operation for operation in operations}
    found: list[str] = []
    for key, row in rows.items():
        name = " ".join(key)
        if row.status != SERVED:
            found += [f"{name}: planned in the table, but a route"] if key in routes else []
        elif key not in routes:
            found.append(f"{name}: served in the table, but no route")
        elif (declared := routes[key]) is not None and declared != row.response:
            found.append(f"{name}: the table says {_words(row.response)}, the app {_words(declared)}")
    return found + [f"{method} {path}: a route, but not in the table" for method, path in routes.keys() - rows.keys()]


def routes_of(app: FastAPI) -> dict[tuple[str, str], frozenset[str] | None]:
    """Each route with the schemas or media types that its success declares; None for routes outside the document."""
    described = {
        (method.upper(), shape(path)): _success(operation)
        for path, operations in app.openapi()["paths"].items()
        for method, operation in operations.items()
        if method != "head"
    }
    hidden = {key: None for key in _plain_routes(app) if key not in described}
    return {**described, **hidden}


def _plain_routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    for route in app.routes:
        if isinstance(route, Mount):
            continue  # assets of the API page
        if isinstance(route, Route):
            yield from ((method, shape(route.path)) for method in (route.methods or set()) - {"HEAD", "OPTIONS"})


def _success(operation: Mapping[str, Any]) -> frozenset[str]:
    """Schemas of a JSON answer, else its media types."""
    response = next(answer for status, answer in sorted(operation["responses"].items()) if status.startswith("2"))
    content: Mapping[str, Any] = response.get("content", {})
    schemas = frozenset(_references(content.get("application/json", {}).get("schema", {})))
    return schemas or frozenset(content)


def _references(schema: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2]
    for variant in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _references(variant)


def _collections(row: Mapping[str, Any]) -> dict[str, Any]:
    request = row["request"]
    return {"response": frozenset(row["response"]), "request": request if isinstance(request, str) else tuple(request)}


def _words(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def main() -> int:
    """Exit code 1 when there is a difference."""
    from queryserver.main import create_app  # noqa: PLC0415 the table can be read where the app cannot be built
    from queryserver.settings import Settings  # noqa: PLC0415 as above

    found = differences(read_operations(), routes_of(create_app(Settings())))
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
