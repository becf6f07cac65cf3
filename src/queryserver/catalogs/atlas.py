"""Apache Atlas by its REST API, version 2 (Contract platform 8.5)."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import orjson
import structlog

from queryserver.catalogs.atlas_questions import search_body
from queryserver.catalogs.atlas_records import record_of
from queryserver.domain.errors.statements import CatalogDenied, CatalogOutOfReach, CatalogUnavailable, EngineUnavailable
from queryserver.domain.searching import (
    FacetName,
    Match,
    Record,
    Search,
    SourceAnswer,
    SourceName,
    count_facets,
    position_of,
)
from queryserver.network.exchanges import Answered, Asked, Exchanges

log = structlog.get_logger(__name__)

_API = "/api/atlas"
_MAX_BYTES = 32 * 1024 * 1024
_FACET_REACH = 1000
_DIALECT = "hive"
"""Of all SQL objects that Atlas knows here."""
_REFUSED = frozenset({401, 403})
_NO_SUCH_TYPE = b"ATLAS-404-00-001"


@dataclass(frozen=True, slots=True)
class AtlasServer:
    """Where Atlas is, and our login there. Without `user` none is sent."""

    url: str
    user: str
    password: str = field(repr=False)
    cluster: str
    """Only its SQL objects are found; empty: all."""
    timeout_s: float

    @property
    def api(self) -> str:
        """What the paths of calls are put behind; older settings end in a version, which goes.

        Raises CatalogUnavailable: what was set is no address.
        """
        url = self.url.rstrip("/")
        for version in ("/v1", "/v2"):
            url = url.removesuffix(version)
        if not _is_address(url):
            log.warning("metadata.catalog.api_url is no address of a server")
            raise CatalogUnavailable("The address of the catalogue is malformed.")
        return url if urlsplit(url).path.endswith(_API) else f"{url}{_API}"


class AtlasCatalog:
    """See `interfaces.search.Catalog`. Order and pages are Atlas' own."""

    def __init__(self, server: AtlasServer, exchanges: Exchanges) -> None:
        self._server = server
        self._exchanges = exchanges

    async def page(self, search: Search, source: SourceName, *, offset: int, limit: int) -> SourceAnswer:
        """See the Protocol. Facets are of the first 1000 matches; the tags of an empty query are all there are."""
        if search.lists_tags:
            return SourceAnswer(facets={FacetName.TAGS: await self._classifications()})
        if source is SourceName.SQL and search.dialects and _DIALECT not in search.dialects:
            return SourceAnswer()
        reach = max(limit, _FACET_REACH) if search.facets else limit
        first = 0 if search.facets else offset
        body = search_body(search.query, source, cluster=self._server.cluster, offset=first, limit=max(reach, 1))
        if body is None:
            return SourceAnswer()
        found = await self._found(body)
        records = [record_of(entity, source) for entity in found.entities]
        shown = records
        if search.facets:
            shown = records[offset : offset + limit]
            if limit and offset + limit > reach:
                shown = await self._beyond(search, source, offset, limit)
        # Behind the last page there is nothing, which says nothing of how many are before it.
        total = max(found.total, first + len(records) if records else 0, offset + len(shown) if shown else 0)
        return SourceAnswer(
            matches=tuple(Match(position_of(search.query.terms, one.name), one) for one in shown[:limit]),
            total=total,
            facets=count_facets(records, search),
            truncated=bool(search.facets) and total > len(records),
        )

    async def _beyond(self, search: Search, source: SourceName, offset: int, limit: int) -> list[Record]:
        """A page that ends beyond the matches that facets are counted of."""
        body = search_body(search.query, source, cluster=self._server.cluster, offset=offset, limit=limit)
        return [record_of(entity, source) for entity in (await self._found(body)).entities] if body else []

    async def _found(self, body: Mapping[str, Any]) -> "_Found":
        answer = await self._ask(Asked(f"{self._server.api}/v2/search/basic", "POST", content=orjson.dumps(body)))
        if answer.status != 200 and _NO_SUCH_TYPE in answer.body[:2000]:
            # This Atlas knows no such type: it has none of those objects.
            return _Found((), 0)
        told = _json_object(answer)
        entities = told.get("entities") or []
        if not isinstance(entities, list):
            raise CatalogUnavailable("The catalogue answered something else than a search result.")
        total = told.get("approximateCount")
        kept = tuple(one for one in cast("list[object]", entities) if isinstance(one, dict))
        return _Found(cast("tuple[Mapping[str, Any], ...]", kept), total if isinstance(total, int) else -1)

    async def _classifications(self) -> Mapping[str, int]:
        """All classifications, with the number of entities that have them as far as Atlas tells."""
        api = self._server.api
        told = _json_object(await self._ask(Asked(f"{api}/v2/types/typedefs?type=classification")))
        definitions = told.get("classificationDefs") or []
        names = [one.get("name") for one in definitions if isinstance(one, dict)]
        counts = await self._counts()
        return {name: counts.get(name, 0) for name in names if isinstance(name, str)}

    async def _counts(self) -> Mapping[str, int]:
        """Entities by classification; none where this login may not see the metrics, or they are written otherwise."""
        try:
            told = _json_object(await self._ask(Asked(f"{self._server.api}/admin/metrics")))
        except (CatalogDenied, CatalogUnavailable):
            return {}
        counts = _object(_object(_object(told.get("data", told)).get("tag")).get("tagEntities"))
        return {name: count for name, count in counts.items() if isinstance(count, int)}

    async def _ask(self, asked: Asked) -> Answered:
        """Raises CatalogDenied, CatalogUnavailable."""
        whole = Asked(
            asked.url,
            asked.method,
            headers=self._headers(),
            content=asked.content,
            max_bytes=_MAX_BYTES,
            within_s=self._server.timeout_s,
        )
        try:
            answer = await self._exchanges.send(whole)
        except EngineUnavailable as error:
            # Where it is, is the operator's business.
            log.warning("the catalogue cannot be reached", reason=error.message)
            raise CatalogOutOfReach("The catalogue cannot be reached, or does not answer in time.") from error
        if answer.status in _REFUSED:
            raise CatalogDenied("The catalogue refuses the login of this service.")
        return answer

    def _headers(self) -> Mapping[str, str]:
        headers = {"Accept": "application/json", "Content-Type": "application/json", "X-XSRF-HEADER": "valid"}
        if self._server.user:
            pair = f"{self._server.user}:{self._server.password}".encode()
            headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
        return headers


@dataclass(frozen=True, slots=True)
class _Found:
    """Entities of one page. `total` of all pages; below 0: Atlas does not tell."""

    entities: tuple[Mapping[str, Any], ...]
    total: int


def _is_address(url: str) -> bool:
    """Whether it names a server; both readings are used, and each takes what the other refuses."""
    try:
        parts, parsed = urlsplit(url), httpx.URL(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname and parsed.host) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        return False


def _object(value: object) -> Mapping[str, Any]:
    """Empty for anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _json_object(answer: Answered) -> Mapping[str, Any]:
    """Raises CatalogUnavailable."""
    if answer.status != 200:
        raise CatalogUnavailable(f"The catalogue answered with status {answer.status}.")
    try:
        told = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        told = None
    if not isinstance(told, dict):
        raise CatalogUnavailable("The catalogue answered something else than JSON.")
    return cast("Mapping[str, Any]", told)
