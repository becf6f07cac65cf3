"""The API description, and a page that shows it with assets of our own (Contract platform 9.4)."""

import asyncio
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any

import orjson
import yaml
from fastapi import APIRouter, FastAPI, Request, Response

from queryserver.api.answers import gives
from queryserver.api.dependencies import services_of
from queryserver.api.document.whole import whole_document
from queryserver.api.errors import failure

router = APIRouter(include_in_schema=True, tags=["description"])

_PAGE = files("queryserver.api").joinpath("page")
_ASSETS = {"page.js": "text/javascript", "page.css": "text/css"}
Write = Callable[[dict[str, Any]], bytes]

_FORMAT: dict[str, Any] = {
    "name": "format",
    "in": "query",
    "required": False,
    "schema": {"type": "string", "enum": ["json", "yaml"], "default": "json"},
    "example": "json",
}


class _Written:
    """The document as bytes, written once per process and form: nobody needs a login to ask for it."""

    def __init__(self) -> None:
        self._bytes: dict[Write, bytes] = {}
        self._writing = asyncio.Lock()

    async def get(self, request: Request, write: Write) -> bytes:
        """The form that `write` gives."""
        async with self._writing:
            if write not in self._bytes:
                services = services_of(request)
                told = partial(_told, request.app, services.settings.desktop.url_prefix, write)
                self._bytes[write] = await asyncio.get_running_loop().run_in_executor(services.threads.upkeep, told)
            return self._bytes[write]


def describe(app: FastAPI) -> None:
    """Make `app.openapi()` give the whole document. The first time it takes about half a second."""
    app.openapi = partial(_kept, app)  # type: ignore[method-assign]
    app.state.description = _Written()


@router.get(
    "/api/schema",
    responses=gives("application/json", "application/yaml"),
    openapi_extra={"parameters": [_FORMAT]},
    summary="This document as JSON or YAML",
    response_class=Response,
)
async def schema(request: Request) -> Response:
    """OpenAPI 3.1; as YAML with `format=yaml`, or when `Accept` names it."""
    wants_yaml = request.query_params.get("format") == "yaml" or "yaml" in request.headers.get("accept", "")
    if wants_yaml:
        return Response(await _written(request, _as_yaml), media_type="application/yaml")
    return Response(await _written(request, orjson.dumps), media_type="application/json")


@router.get(
    "/api/v1/openapi.json",
    responses=gives("application/json"),
    summary="This document as JSON",
    response_class=Response,
)
async def openapi_json(request: Request) -> Response:
    """OpenAPI 3.1."""
    return Response(await _written(request, orjson.dumps), media_type="application/json")


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


def _kept(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = whole_document(app)
    return app.openapi_schema


async def _written(request: Request, write: Write) -> bytes:
    written: _Written = request.app.state.description
    return await written.get(request, write)


def _told(app: FastAPI, prefix: str, write: Write) -> bytes:
    """The document with the prefix of this server before its paths."""
    document: dict[str, Any] = app.openapi()
    (server,) = document["servers"]
    return write({**document, "servers": [{**server, "url": prefix.rstrip("/") or "/"}]})


def _as_yaml(document: dict[str, Any]) -> bytes:
    return yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, encoding="utf-8")
