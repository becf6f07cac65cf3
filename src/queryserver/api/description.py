"""The API description as files and as a page, and the page that browsers get at the root (Contract platform 9.4)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import yaml
from fastapi import APIRouter, FastAPI, Request, Response

from queryserver.api.answers import gives
from queryserver.api.document.whole import whole_document
from queryserver.api.errors import failure
from queryserver.api.pages import Kept, Pages, wants_page

router = APIRouter(include_in_schema=True, tags=["description"])

_UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "The caller has this version."}}
_FORMAT: dict[str, Any] = {
    "name": "format",
    "in": "query",
    "required": False,
    "schema": {"type": "string", "enum": ["json", "yaml"], "default": "json"},
    "example": "json",
}


def describe(app: FastAPI) -> None:
    """Make `app.openapi()` give the whole document. The first time it takes about half a second."""
    app.openapi = partial(_kept, app)  # type: ignore[method-assign]
    app.state.pages = Pages()
    app.state.json_document = partial(_document, app, "application/json", orjson.dumps)
    app.state.yaml_document = partial(_document, app, "application/yaml", _as_yaml)


@router.get(
    "/api/schema",
    responses={**gives("application/json", "application/yaml"), **_UNCHANGED},
    openapi_extra={"parameters": [_FORMAT]},
    summary="This document as JSON or YAML",
    response_class=Response,
)
async def schema(request: Request) -> Response:
    """OpenAPI 3.1; as YAML with `format=yaml`, or when `Accept` names it."""
    wants_yaml = request.query_params.get("format") == "yaml" or "yaml" in request.headers.get("accept", "")
    state = request.app.state
    response = await _described(request, state.yaml_document if wants_yaml else state.json_document)
    response.headers["Vary"] = "Accept, Accept-Encoding"
    return response


@router.get(
    "/api/v1/openapi.json",
    responses={**gives("application/json"), **_UNCHANGED},
    summary="This document as JSON",
    response_class=Response,
)
async def openapi_json(request: Request) -> Response:
    """OpenAPI 3.1."""
    # As all answers below /api/v1 (Contract platform 1.3).
    return await _described(request, request.app.state.json_document, cached="no-store")


@router.get("/api/docs", responses={**gives("text/html"), **_UNCHANGED}, summary="The document as a page",
            response_class=Response)  # fmt: skip
@router.get("/api/swagger", responses={**gives("text/html"), **_UNCHANGED}, summary="The document as a page",
            response_class=Response)  # fmt: skip
async def page(request: Request) -> Response:
    """The API reference; its scripts and styles come from this server only."""
    return await _shown(request, "docs.html")


@router.get("/api/docs/{asset}", include_in_schema=False)
async def asset(request: Request, asset: str) -> Response:
    """Script, style or picture of a page."""
    return await _shown(request, "" if asset.endswith(".html") else asset)


@router.get("/", include_in_schema=False)
async def root(request: Request) -> Response:
    """For browsers, a page that says what this is; for programs the path is unknown."""
    if not wants_page(request.headers.get("accept", "")):
        return failure(404, "not_found", "Not found.", {"Vary": "Accept"})
    response = await _shown(request, "root.html")
    response.headers["Vary"] = "Accept, Accept-Encoding"
    return response


async def _shown(request: Request, name: str) -> Response:
    pages: Pages = request.app.state.pages
    return await pages.file(request, name) or failure(404, "not_found", "Not found.")


def _kept(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = whole_document(app)
    return app.openapi_schema


async def _described(request: Request, make: Callable[[], Kept], *, cached: str = "no-cache") -> Response:
    pages: Pages = request.app.state.pages
    return (await pages.kept(request, make)).answer(request, {"Cache-Control": cached})


def _document(app: FastAPI, media_type: str, write: Callable[[dict[str, Any]], bytes]) -> Kept:
    """The document with the prefix of this server before its paths."""
    document: dict[str, Any] = app.openapi()
    prefix: str = app.state.services.settings.desktop.url_prefix
    (server,) = document["servers"]
    return Kept.of(write({**document, "servers": [{**server, "url": prefix.rstrip("/") or "/"}]}), media_type)


def _as_yaml(document: dict[str, Any]) -> bytes:
    return yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, encoding="utf-8")
