"""The API description, and a page that shows it with assets of our own (Contract platform 9.4)."""

from functools import partial
from importlib.resources import files
from typing import Any

import orjson
import yaml
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from queryserver.api.answers import gives
from queryserver.api.errors import failure
from queryserver.schemas import requests

router = APIRouter(include_in_schema=True, tags=["description"])

_PAGE = files("queryserver.api").joinpath("page")
_ASSETS = {"page.js": "text/javascript", "page.css": "text/css"}
_REF = "#/components/schemas/{model}"


def describe(app: FastAPI) -> None:
    """Make `app.openapi()` give the whole document: bodies in all their encodings, the bearer scheme."""
    app.openapi = partial(_document, app)  # type: ignore[method-assign]


@router.get(
    "/api/schema",
    responses=gives("application/json", "application/yaml"),
    summary="This document as JSON or YAML",
    response_class=Response,
)
async def schema(request: Request) -> Response:
    """OpenAPI 3.1."""
    document = request.app.openapi()
    wants_yaml = request.query_params.get("format") == "yaml" or "yaml" in request.headers.get("accept", "")
    if wants_yaml:
        return Response(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), media_type="application/yaml")
    return Response(orjson.dumps(document), media_type="application/json")


@router.get(
    "/api/v1/openapi.json",
    responses=gives("application/json"),
    summary="This document as JSON",
    response_class=Response,
)
async def openapi_json(request: Request) -> Response:
    """OpenAPI 3.1."""
    return Response(orjson.dumps(request.app.openapi()), media_type="application/json")


@router.get("/api/docs", responses=gives("text/html"), summary="The document as a page", response_class=Response)
@router.get("/api/swagger", responses=gives("text/html"), summary="The document as a page", response_class=Response)
async def page() -> Response:
    """A page whose scripts and styles come from this server only."""
    return _own(_PAGE.joinpath("page.html").read_bytes(), "text/html")


@router.get("/api/docs/{asset}", include_in_schema=False)
async def asset(asset: str) -> Response:
    """Script and style of the page."""
    if asset not in _ASSETS:
        return failure(404, "not_found", "Not found.")
    return _own(_PAGE.joinpath(asset).read_bytes(), _ASSETS[asset])


def _own(content: bytes, media_type: str) -> Response:
    return Response(content, media_type=media_type, headers={"Content-Security-Policy": "default-src 'self'"})


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes, openapi_version="3.1.0"
        )
        _add_request_models(document)
        _add_security(document)
        app.openapi_schema = document
    return app.openapi_schema


def _add_request_models(document: dict[str, Any]) -> None:
    named = {
        operation.pop("x-request-model")
        for path in document["paths"].values()
        for operation in path.values()
        if "x-request-model" in operation
    }
    models = [getattr(requests, name) for name in sorted(named)]
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    document.setdefault("components", {}).setdefault("schemas", {}).update(definitions.get("$defs", {}))


def _add_security(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    for name, path in document["paths"].items():
        if name.startswith("/api/v1/") and not name.startswith(("/api/v1/token/", "/api/v1/openapi.json")):
            for operation in path.values():
                operation["security"] = [{"bearer": []}]
