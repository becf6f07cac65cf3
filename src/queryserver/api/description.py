"""The API description as files and as a page, and the page that browsers get at the root (Contract platform 9.4)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import yaml
from fastapi import FastAPI, Request, Response

from queryserver.api.calls import PathGroup, PublicCall, PublicRoute
from queryserver.api.document.whole import whole_document
from queryserver.api.errors import failure
from queryserver.api.pages import Kept, Pages, wants_page

router = PathGroup(PublicRoute)


def describe(app: FastAPI) -> None:
    """Make `app.openapi()` give the whole document. The first time it takes about half a second."""
    app.openapi = partial(_kept, app)  # type: ignore[method-assign]
    app.state.pages = Pages()
    app.state.json_document = partial(_document, app, "application/json", orjson.dumps)
    app.state.yaml_document = partial(_document, app, "application/yaml", _as_yaml)


@router.operation("get_schema")
async def schema(call: PublicCall) -> Response:
    """OpenAPI 3.1; as YAML with `format=yaml`, or when `Accept` names it."""
    wants_yaml = call.request.query_params.get("format") == "yaml" or "yaml" in call.request.headers.get("accept", "")
    state = call.request.app.state
    response = await _described(call.request, state.yaml_document if wants_yaml else state.json_document)
    response.headers["Vary"] = "Accept, Accept-Encoding"
    return response


@router.operation("get_openapi_json")
async def openapi_json(call: PublicCall) -> Response:
    """OpenAPI 3.1."""
    # As all answers below /api/v1 (Contract platform 1.3).
    return await _described(call.request, call.request.app.state.json_document, cached="no-store")


@router.operation("get_swagger_page", "get_docs_page")
async def page(call: PublicCall) -> Response:
    """The API reference; its scripts and styles come from this server only."""
    return await _shown(call.request, "docs.html")


@router.operation("get_api_docs_asset")
async def asset(call: PublicCall, asset: str) -> Response:
    """Script, style or picture of a page."""
    return await _shown(call.request, "" if asset.endswith(".html") else asset)


@router.operation("get")
async def root(call: PublicCall) -> Response:
    """For browsers, a page that says what this is; for programs the path is unknown."""
    if not wants_page(call.request.headers.get("accept", "")):
        return failure(404, "not_found", "Not found.", {"Vary": "Accept"})
    response = await _shown(call.request, "root.html")
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
