"""Serves browser pages and their assets from memory, optionally compressed, with a strict Content Security Policy."""

import asyncio
import gzip
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any, TypeVar

import orjson
import yaml
from fastapi import FastAPI, Request, Response

from queryserver.api.dependencies import ClientDep, services_of
from queryserver.api.errors import failure
from queryserver.api.routes import PAGE, PathGroup, contents
from queryserver.errors.base import InvalidParameter

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
"""Forbids content from other hosts, inline scripts and styles, and embedding of the pages in frames."""
YEAR_S = 365 * 24 * 3600
"""How long clients may cache a file whose address changes with its content."""

T = TypeVar("T")
_HERE = files("queryserver.api")
_PAGE_FOLDER = _HERE.joinpath("page")
# The released files of Swagger UI, from a PyPI package that is used only for them (ADR 47).
_SWAGGER_UI = files("fastapi_swagger").joinpath("resources")
_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "docs.js": "text/javascript",
    "docs.css": "text/css",
    "root.js": "text/javascript",
    "root.css": "text/css",
    "icon.svg": "image/svg+xml",
}
_PAGES = ("docs.html", "root.html")
_PLACEHOLDER = re.compile(r"\{(?:asset:([a-z.-]+)|prefix)\}")
_NO_GZIP = re.compile(r";\s*q=0(?:\.0*)?\s*$")
_WEIGHT = re.compile(r";\s*q=([01](?:\.\d{0,3})?)")


@dataclass(frozen=True, slots=True)
class StaticContent:
    content: bytes
    compressed: bytes
    media_type: str
    digest: str

    @classmethod
    def of(cls, content: bytes, media_type: str) -> "StaticContent":
        """Compress the content. Must be called in a thread."""
        compressed = gzip.compress(content, mtime=0)
        return cls(content, compressed, media_type, sha256(content).hexdigest()[:16])

    def json_response(self, request: Request, headers: Mapping[str, str]) -> Response:
        """Return the content in an encoding that the client accepts, or 304 if the client has this version."""
        is_compressed = accepts_gzip(request.headers.get("accept-encoding", ""))
        etag = f'"{self.digest}-gzip"' if is_compressed else f'"{self.digest}"'
        headers = {"Cache-Control": "no-cache", **headers, "ETag": etag, "Vary": "Accept-Encoding"}
        known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
        if etag in known or known == ["*"]:
            return Response(status_code=304, headers=headers)
        if is_compressed:
            headers["Content-Encoding"] = "gzip"
        return Response(self.compressed if is_compressed else self.content, media_type=self.media_type, headers=headers)


class Pages:
    """The pages and assets of this process, read in a thread when first requested."""

    def __init__(self) -> None:
        self._files: Mapping[str, StaticContent] | None = None
        self._cache: dict[Callable[[], StaticContent], StaticContent] = {}
        self._lock = asyncio.Lock()

    async def file(self, request: Request, name: str) -> Response | None:
        """Return a page or asset, or None if the name is unknown.

        If `?v=` is the current version, clients may cache the response for a year.
        """
        if name not in _ASSETS and name not in _PAGES:
            return None
        async with self._lock:
            if self._files is None:
                prefix = services_of(request).settings.desktop.url_prefix.rstrip("/")
                self._files = await in_thread(request, lambda: _read(prefix))
        found = self._files[name]
        headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
        if request.query_params.get("v") == found.digest:
            headers["Cache-Control"] = f"public, max-age={YEAR_S}, immutable"
        return found.json_response(request, headers)

    async def cached(self, request: Request, make: Callable[[], StaticContent]) -> StaticContent:
        async with self._lock:
            if make not in self._cache:
                self._cache[make] = await in_thread(request, make)
            return self._cache[make]


def prefers_html(accept: str) -> bool:
    """Return whether `Accept` lists HTML with at least the weight of JSON, as browsers do, unlike other programs."""
    html = max(_weight(accept, "text/html"), _weight(accept, "application/xhtml+xml"))
    return html > 0 and html >= _weight(accept, "application/json")


def accepts_gzip(accept_encoding: str) -> bool:
    chosen = {part.partition(";")[0].strip().lower(): part for part in accept_encoding.split(",")}
    part = chosen.get("gzip", chosen.get("*"))
    return part is not None and _NO_GZIP.search(part) is None


def _weight(accept: str, media_type: str) -> float:
    """Return the weight of a media type in `Accept`, from 0 to 1, or 0 if it is not listed."""
    for part in accept.lower().split(","):
        name, _, parameters = part.partition(";")
        if name.strip() == media_type:
            found = _WEIGHT.search(f";{parameters}")
            return float(found[1]) if found else 1.0
    return 0.0


async def in_thread(request: Request, work: Callable[[], T]) -> T:
    """Run blocking work, such as reading and compressing files, in a thread."""
    threads = services_of(request).threads.upkeep
    return await asyncio.get_running_loop().run_in_executor(threads, work)


def _read(prefix: str) -> Mapping[str, StaticContent]:
    """Read all pages and assets by name. Links in the pages get the configured URL prefix and the asset versions."""
    found = {
        name: StaticContent.of(
            (_SWAGGER_UI if name.startswith("swagger-ui") else _PAGE_FOLDER).joinpath(name).read_bytes(), media_type
        )
        for name, media_type in _ASSETS.items()
    }
    links = {name: f"{prefix}/api/docs/{name}?v={file.digest}" for name, file in found.items()}
    for page in _PAGES:
        text = _PAGE_FOLDER.joinpath(page).read_text(encoding="utf-8")
        text = _PLACEHOLDER.sub(lambda match: escape(links[match[1]] if match[1] else prefix), text)
        found[page] = StaticContent.of(text.encode(), "text/html")
    return found


router = PathGroup("description", prefix="")


def describe(app: FastAPI) -> None:
    app.state.pages = Pages()
    app.state.json_document = partial(_document, app, "application/json", orjson.dumps)
    as_yaml = partial(yaml.dump, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, encoding="utf-8")
    app.state.yaml_document = partial(_document, app, "application/yaml", as_yaml)


@router.get(
    "/api/schema", response_class=Response, responses=contents("application/json", "application/yaml", words=PAGE)
)
async def get_schema(request: Request, _client: ClientDep) -> Response:
    """Return this OpenAPI 3.1 document as JSON, or as YAML if `format=yaml` is sent or `Accept` contains `yaml`."""
    wanted = request.query_params.get("format")
    if wanted not in {None, "json", "yaml"}:
        raise InvalidParameter("format must be json or yaml.")
    wants_yaml = wanted == "yaml" or "yaml" in request.headers.get("accept", "")
    state = request.app.state
    response = await _document_response(request, state.yaml_document if wants_yaml else state.json_document)
    response.headers["Vary"] = "Accept, Accept-Encoding"
    return response


@router.get("/api/v1/openapi.json", response_class=Response, responses=contents("application/json", words=PAGE))
async def get_openapi_json(request: Request, _client: ClientDep) -> Response:
    """Return this OpenAPI 3.1 document as JSON."""
    # Like all responses below /api/v1 (Contract platform 1.3).
    return await _document_response(request, request.app.state.json_document, caching="no-store")


@router.get("/api/docs", response_class=Response, responses=contents("text/html", words=PAGE))
@router.get(
    "/api/swagger", name="get_swagger_page", response_class=Response, responses=contents("text/html", words=PAGE)
)
async def get_docs_page(request: Request, _client: ClientDep) -> Response:
    """Return the API reference as a web page. All its scripts and styles come from this server."""
    return await page_response(request, "docs.html")


@router.get("/api/docs/{asset}", include_in_schema=False)
async def get_api_docs_asset(asset: str, request: Request, _client: ClientDep) -> Response:
    """Return a script, style sheet or image of a page, or 404 for any other name."""
    return await page_response(request, "" if asset.endswith(".html") else asset)


async def page_response(request: Request, name: str) -> Response:
    """Return a page or an asset of the pages, or 404 for any other name."""
    pages: Pages = request.app.state.pages
    return await pages.file(request, name) or failure(404, "not_found", "Not found.")


async def _document_response(
    request: Request, make: Callable[[], StaticContent], *, caching: str = "no-cache"
) -> Response:
    pages: Pages = request.app.state.pages
    return (await pages.cached(request, make)).json_response(request, {"Cache-Control": caching})


def _document(app: FastAPI, media_type: str, write: Callable[[dict[str, Any]], bytes]) -> StaticContent:
    """Return the API description with the configured URL prefix as its server URL."""
    document: dict[str, Any] = orjson.loads(_HERE.joinpath("openapi.json").read_bytes())
    prefix: str = app.state.services.settings.desktop.url_prefix
    (server,) = document["servers"]
    return StaticContent.of(write({**document, "servers": [{**server, "url": prefix.rstrip("/") or "/"}]}), media_type)
