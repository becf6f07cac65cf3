"""Serves the web console, whose files are built from `web/` (Contract console 1)."""

import asyncio
import mimetypes
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import Request, Response

from queryserver.api.dependencies import services_of
from queryserver.api.errors import failure
from queryserver.api.pages import POLICY, YEAR_S, StaticContent, in_thread, page_response, prefers_html
from queryserver.api.routes import PathGroup

_FILES = files("queryserver.api").joinpath("console_files")
_INDEX = "index.html"
_HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}


class ConsoleFiles:
    """The files of the console, read and compressed in a thread when first requested."""

    def __init__(self) -> None:
        self._files: Mapping[str, StaticContent] | None = None
        self._lock = asyncio.Lock()

    async def file(self, request: Request, name: str) -> StaticContent | None:
        """Return the file, or None if there is none of that name. The page is `index.html`."""
        async with self._lock:
            if self._files is None:
                prefix = services_of(request).settings.desktop.url_prefix.rstrip("/")
                self._files = await in_thread(request, lambda: _read(prefix))
        return self._files.get(name)


router = PathGroup("console", prefix="")


@router.get("/", include_in_schema=False)
async def get(request: Request) -> Response:
    """Return the console, or a page about this server if it is disabled; 404 to clients other than browsers."""
    desktop = services_of(request).settings.desktop
    if desktop.console.enabled:
        return await _page(request)
    if not desktop.docs_enabled or not prefers_html(request.headers.get("accept", "")):
        return _not_found()
    response = await page_response(request, "root.html")
    response.headers["Vary"] = "Accept, Accept-Encoding"
    return response


@router.get("/{view:view}", include_in_schema=False)
async def get_console_view(view: str, request: Request) -> Response:  # noqa: ARG001 the page reads the address itself
    """Return the console, whose script shows the view of that path; 404 to clients other than browsers."""
    return await _page(request)


@router.get("/console/assets/{asset}", include_in_schema=False)
async def get_console_asset(asset: str, request: Request) -> Response:
    """Return a script, style sheet or image of the console. The name contains a digest of its content."""
    if services_of(request).settings.desktop.console.enabled:
        content = await _console(request).file(request, f"assets/{asset}")
        if content is not None:
            caching = f"public, max-age={YEAR_S}, immutable"
            return content.json_response(request, {**_HEADERS, "Cache-Control": caching})
    return failure(404, "not_found", "Not found.")


async def _page(request: Request) -> Response:
    if not services_of(request).settings.desktop.console.enabled or not prefers_html(request.headers.get("accept", "")):
        return _not_found()
    page = await _console(request).file(request, _INDEX)
    if page is None:
        return _not_found()
    response = page.json_response(request, _HEADERS)
    response.headers["Vary"] = "Accept, Accept-Encoding"
    return response


def _not_found() -> Response:
    return failure(404, "not_found", "Not found.", {"Vary": "Accept"})


def _console(request: Request) -> ConsoleFiles:
    return request.app.state.console


def _read(prefix: str) -> Mapping[str, StaticContent]:
    """Read all files by their path below the folder. The page gets the configured URL prefix."""
    # The build makes the addresses in the page relative, but the page is served at paths of several segments.
    page = _FILES.joinpath(_INDEX).read_text(encoding="utf-8")
    page = page.replace('"./assets/', f'"{escape(prefix)}/console/assets/')
    page = page.replace('name="url-prefix" content=""', f'name="url-prefix" content="{escape(prefix)}"')
    assets = {f"assets/{one.name}": _content(one) for one in _FILES.joinpath("assets").iterdir()}
    return {_INDEX: StaticContent.of(page.encode(), "text/html"), **assets}


def _content(file: Traversable) -> StaticContent:
    media_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return StaticContent.of(file.read_bytes(), media_type)
