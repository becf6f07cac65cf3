"""Pages for browsers and their files: read once, kept in memory plain and compressed, under a strict policy."""

import asyncio
import gzip
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import TypeVar

from fastapi import Request, Response

from queryserver.api.auth import services_of

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
"""Nothing comes from another host, nothing stands inline, and no other page may frame ours."""

T = TypeVar("T")
_YEAR_S = 365 * 24 * 3600
_OURS = files("queryserver.api").joinpath("page")
# Swagger UI as its makers release it, in a package of PyPI (ADR 47). Nothing else of that package is used.
_THEIRS = files("fastapi_swagger").joinpath("resources")
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
_PLACE = re.compile(r"\{(?:asset:([a-z.-]+)|prefix)\}")
_NO_GZIP = re.compile(r";\s*q=0(?:\.0*)?\s*$")
_WEIGHT = re.compile(r";\s*q=([01](?:\.\d{0,3})?)")


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes that are served again and again, plain and compressed."""

    content: bytes
    packed: bytes
    media_type: str
    digest: str

    @classmethod
    def of(cls, content: bytes, media_type: str) -> "Kept":
        """Compresses, so it is for a thread."""
        packed = gzip.compress(content, mtime=0)
        return cls(content, packed, media_type, sha256(content).hexdigest()[:16])

    def answer(self, request: Request, headers: Mapping[str, str]) -> Response:
        """200 in the encoding that the client takes, or 304 when it has this version."""
        is_packed = takes_gzip(request.headers.get("accept-encoding", ""))
        etag = f'"{self.digest}-gzip"' if is_packed else f'"{self.digest}"'
        headers = {"Cache-Control": "no-cache", **headers, "ETag": etag, "Vary": "Accept-Encoding"}
        if _names(request.headers.get("if-none-match", ""), etag):
            return Response(status_code=304, headers=headers)
        if is_packed:
            headers["Content-Encoding"] = "gzip"
        return Response(self.packed if is_packed else self.content, media_type=self.media_type, headers=headers)


class Pages:
    """The pages and files of this process, read in a thread when the first of them is requested."""

    def __init__(self) -> None:
        self._files: Mapping[str, Kept] | None = None
        self._made: dict[Callable[[], Kept], Kept] = {}
        self._lock = asyncio.Lock()

    async def file(self, request: Request, name: str) -> Response | None:
        """A page or one of its files; None for another name. A file under its `?v=` never changes."""
        if name not in _ASSETS and name not in _PAGES:
            return None
        found = (await self._read_files(request))[name]
        headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
        if request.query_params.get("v") == found.digest:
            headers["Cache-Control"] = f"public, max-age={_YEAR_S}, immutable"
        return found.answer(request, headers)

    async def _read_files(self, request: Request) -> Mapping[str, Kept]:
        async with self._lock:
            if self._files is None:
                prefix = services_of(request).settings.desktop.url_prefix.rstrip("/")
                self._files = await _in_thread(request, lambda: _read(prefix))
            return self._files

    async def kept(self, request: Request, make: Callable[[], Kept]) -> Kept:
        """What `make` gives; it is called once, in a thread."""
        async with self._lock:
            if make not in self._made:
                self._made[make] = await _in_thread(request, make)
            return self._made[make]


def wants_page(accept: str) -> bool:
    """Whether `Accept` names HTML, and no JSON that it likes better: browsers name it, programs do not."""
    html = max(_weight(accept, "text/html"), _weight(accept, "application/xhtml+xml"))
    return html > 0 and html >= _weight(accept, "application/json")


def takes_gzip(accept_encoding: str) -> bool:
    """Whether `Accept-Encoding` allows gzip (RFC 9110, 12.5.3)."""
    chosen = {part.partition(";")[0].strip().lower(): part for part in accept_encoding.split(",")}
    part = chosen.get("gzip", chosen.get("*"))
    return part is not None and _NO_GZIP.search(part) is None


def _weight(accept: str, media_type: str) -> float:
    """How much a client wants a media type that it names, from 0 to 1; 0 also where it does not name it."""
    for part in accept.lower().split(","):
        name, _, parameters = part.partition(";")
        if name.strip() == media_type:
            found = _WEIGHT.search(f";{parameters}")
            return float(found[1]) if found else 1.0
    return 0.0


def _names(if_none_match: str, etag: str) -> bool:
    given = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return etag in given or given == ["*"]


async def _in_thread(request: Request, work: Callable[[], T]) -> T:
    threads = services_of(request).threads.upkeep
    return await asyncio.get_running_loop().run_in_executor(threads, work)


def _read(prefix: str) -> Mapping[str, Kept]:
    """Everything by name: the pages have the prefix of this server and the versions of their files in their links."""
    found = {name: Kept.of(_bytes_of(name), media_type) for name, media_type in _ASSETS.items()}
    links = {name: f"{prefix}/api/docs/{name}?v={kept.digest}" for name, kept in found.items()}
    for page in _PAGES:
        text = _OURS.joinpath(page).read_text(encoding="utf-8")
        text = _PLACE.sub(lambda place: escape(links[place[1]] if place[1] else prefix), text)
        found[page] = Kept.of(text.encode(), "text/html")
    return found


def _bytes_of(name: str) -> bytes:
    folder = _THEIRS if name.startswith("swagger-ui") else _OURS
    return folder.joinpath(name).read_bytes()
