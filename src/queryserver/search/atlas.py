"""Searches Apache Atlas through version 2 of its REST API (Contract platform 8.5)."""

import asyncio
from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import urlsplit

import orjson
import structlog

from queryserver.errors.statements import CatalogDenied, CatalogUnavailable, CatalogUnreachable, EngineUnavailable
from queryserver.platform.http_client import HttpClient, HttpRequest, HttpResponse
from queryserver.platform.settings.sections import CatalogSettings
from queryserver.search import model
from queryserver.search.query_language import Query, Term

log = structlog.get_logger(__name__)

JsonObject = Mapping[str, Any]

ENTITY_TYPES: Mapping[model.SourceName, tuple[str, ...]] = {
    model.SourceName.SQL: ("hive_db", "hive_table", "hive_column"),
    model.SourceName.HDFS: ("hdfs_path",),
    model.SourceName.S3: ("aws_s3_v2_bucket", "aws_s3_v2_directory", "aws_s3_v2_object"),
}
"""The Atlas entity types that correspond to the objects of each source."""

_API = "/api/atlas"
_MAX_BYTES = 32 * 1024 * 1024
_FACET_REACH = 1000
_DIALECT = "hive"  # the dialect of all SQL objects in Atlas
_NO_SUCH_TYPE = b"ATLAS-404-00-001"
_BY_FILTER = {
    "table": "hive_table",
    "database": "hive_db",
    "field": "hive_column",
    "file": "hdfs_path",
    "directory": "hdfs_path",
}
_ATTRIBUTES = (
    "description", "owner", "createTime", "modifiedTime", "lastModifiedTime", "qualifiedName", "comment", "tableType",
    "path", "isFile",
)  # fmt: skip
"""Atlas returns only the attributes that a search names."""
_TYPES = {
    "hive_db": "DATABASE",
    "hive_table": "TABLE",
    "hive_column": "FIELD",
    "aws_s3_v2_bucket": "S3BUCKET",
    "aws_s3_v2_directory": "DIRECTORY",
    "aws_s3_v2_object": "FILE",
}
_SOURCE_TYPES = {model.SourceName.SQL: "HIVE", model.SourceName.HDFS: "HDFS", model.SourceName.S3: "S3"}


def search_body(query: Query, source: model.SourceName, *, cluster: str, offset: int, limit: int) -> JsonObject | None:
    types = ENTITY_TYPES[source]
    if type_terms := query.filters.get("type"):
        named = {entity for word, entity in _BY_FILTER.items() if any(term.is_whole(word) for term in type_terms)}
        types = [entity for entity in types if entity in named]
    criteria = _criteria(query, source, cluster)
    if not types or criteria is None:
        return None
    body: dict[str, Any] = {
        "typeName": ",".join(types),
        "excludeDeletedEntities": True,
        "includeSubTypes": False,
        "includeClassificationAttributes": False,
        "attributes": list(_ATTRIBUTES),
        "sortBy": "qualifiedName",
        "sortOrder": "ASCENDING",
        "offset": offset,
        "limit": limit,
    }
    if tags := query.filters.get("tag"):
        # An object with any of the tags matches. Atlas treats a list of classifications the same way.
        body["classification"] = ",".join(tag.head if tag.is_literal else _wildcards(tag) for tag in tags)
    if criteria:
        body["entityFilters"] = {"condition": "AND", "criterion": criteria}
    return body


def _criteria(query: Query, source: model.SourceName, cluster: str) -> list[JsonObject] | None:
    """Return the criteria, all of which must match; None if nothing can match."""
    criteria = [_any_of([_contains(name, term) for name in ("name", "description")]) for term in query.terms]
    if owners := query.filters.get("owner"):
        criteria.append(
            _any_of(
                _criterion("owner", "eq", owner.head)
                if owner.is_literal
                else _criterion("owner", "like", _wildcards(owner))
                for owner in owners
            )
        )
    for name, terms in query.filters.items():
        if name in ("db", "table"):
            if source is not model.SourceName.SQL:
                return None
            criteria.append(_any_of(_in_database_or_table(name, term) for term in terms))
        elif name == "source":
            names = ("sql", "hive") if source is model.SourceName.SQL else (source.value,)
            if not any(term.is_whole(one) for term in terms for one in names):
                return None
    if cluster and source is model.SourceName.SQL:
        criteria.append(_criterion("qualifiedName", "endsWith", f"@{cluster}"))
    return criteria


def _criterion(attribute: str, operator: str, value: str) -> JsonObject:
    return {"attributeName": attribute, "operator": operator, "attributeValue": value}


def _contains(attribute: str, term: Term) -> JsonObject:
    if term.is_literal:
        return _criterion(attribute, "contains", "".join(term.literals))
    return _criterion(attribute, "like", f"*{_wildcards(term)}*")


def _in_database_or_table(name: str, term: Term) -> JsonObject:
    """Return the criterion for a database or table filter.

    Qualified names have the forms `db@cluster`, `db.table@cluster` and `db.table.column@cluster`.
    """
    value = _wildcards(term)
    names = [f"{value}@*", f"{value}.*"] if name == "db" else [f"*.{value}@*", f"*.{value}.*"]
    return _any_of(_criterion("qualifiedName", "like", one) for one in names)


def _any_of(criteria: Iterable[JsonObject]) -> JsonObject:
    alternatives = list(criteria)
    return alternatives[0] if len(alternatives) == 1 else {"condition": "OR", "criterion": alternatives}


def _wildcards(term: Term) -> str:
    """Return the term with its wildcards `*` and `?`, which have the same meaning in Atlas."""
    return "".join(piece if isinstance(piece, str) else piece.sign for piece in term.pieces)


def record_of(entity: JsonObject, source: model.SourceName) -> model.Record:
    """Convert an entity header from a search result. Attributes that Atlas omits become empty."""
    attributes: JsonObject = entity.get("attributes") or {}
    name = _text(attributes.get("name")) or _text(entity.get("displayText"))
    qualified = _text(attributes.get("qualifiedName")).rpartition("@")[0]
    if source is model.SourceName.SQL:
        path = qualified or name
        parents = path.split(".")[:-1]
        parent_path = f"/{'/'.join(parents)}" if parents else ""
    else:
        path = _text(attributes.get("path")) or qualified or _text(entity.get("displayText"))
        parent_path = path.rstrip("/").rpartition("/")[0]
    tags = entity.get("classificationNames")
    return model.Record(
        original_name=path,
        name=name,
        type=_type(entity, attributes),
        source_type=_SOURCE_TYPES[source],
        identity=_text(entity.get("guid")) or path,
        parent_path=parent_path,
        description=_text(attributes.get("description")) or _text(attributes.get("comment")),
        owner=_text(attributes.get("owner")),
        tags=tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
        created=_moment(attributes.get("createTime")),
        last_modified=_moment(attributes.get("modifiedTime") or attributes.get("lastModifiedTime")),
        dialect="hive" if source is model.SourceName.SQL else None,
        properties={key: value for key, value in attributes.items() if isinstance(value, str | int | float | bool)},
        custom_properties=entity.get("customAttributes") or {},
        further={
            "internalType": _text(entity.get("typeName")),
            "meanings": entity.get("meanings") or [],
            "meaningNames": entity.get("meaningNames") or [],
            "classifications": entity.get("classifications") or [],
            "original_name": name,
        },
    )


def _type(entity: JsonObject, attributes: JsonObject) -> str:
    if attributes.get("tableType") == "VIRTUAL_VIEW":
        return "VIEW"
    kind = _text(entity.get("typeName"))
    if kind == "hdfs_path":
        return "FILE" if attributes.get("isFile") is True else "DIRECTORY"
    return _TYPES.get(kind, kind.upper())


def _moment(milliseconds: object) -> datetime | None:
    if not isinstance(milliseconds, int) or isinstance(milliseconds, bool) or milliseconds <= 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def api_of(address: str) -> str:
    """Return the URL prefix of all API paths. Strips the version that older settings contain.

    Raises CatalogUnavailable if the setting is not a server address.
    """
    import httpx  # noqa: PLC0415 only servers with a catalog need it

    url = address.rstrip("/")
    for version in ("/v1", "/v2"):
        url = url.removesuffix(version)
    try:  # both parsers are used, because each accepts addresses that the other rejects
        parts, parsed = urlsplit(url), httpx.URL(url)
        is_server = parts.scheme in ("http", "https") and parts.hostname and parsed.host and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        is_server = False
    if not is_server:
        log.warning("metadata.catalog.api_url is not a valid url")
        raise CatalogUnavailable("The catalog's url is malformed.")
    return url if urlsplit(url).path.endswith(_API) else f"{url}{_API}"


class AtlasCatalog:
    """Searches Atlas in place of the sources sql, hdfs and s3, using `v2/search/basic`.

    Atlas determines the order and the pages.
    """

    def __init__(self, settings: CatalogSettings, exchanges: HttpClient) -> None:
        self._settings = settings
        self._exchanges = exchanges

    async def page(
        self, search: model.Search, source: model.SourceName, *, offset: int, limit: int
    ) -> model.SourceAnswer:
        """Return a source's matches [offset, offset + limit). `limit=0` only counts.

        Ignores offset and limit in `search`. Facets cover the first 1000 matches. An empty query for the tag facet
        returns all existing tags. Raises CatalogDenied if Atlas refuses this server's login, CatalogUnavailable.
        """
        if search.lists_tags:
            return model.SourceAnswer(facets={model.FacetName.TAGS: await self._classifications()})
        if source is model.SourceName.SQL and search.dialects and _DIALECT not in search.dialects:
            return model.SourceAnswer()
        reach = max(limit, _FACET_REACH) if search.facets else limit
        first = 0 if search.facets else offset
        counted = await self._page(search.query, source, offset=first, limit=max(reach, 1))
        if counted is None:
            return model.SourceAnswer()
        records, total = counted
        shown = records
        if search.facets:
            shown = records[offset : offset + limit]
            if limit and offset + limit > reach:  # the page ends after the matches that the facets cover
                beyond = await self._page(search.query, source, offset=offset, limit=limit)
                shown = beyond[0] if beyond else []
        # An empty page after the last match does not reveal how many matches precede it.
        total = max(total, first + len(records) if records else 0, offset + len(shown) if shown else 0)
        return model.SourceAnswer(
            matches=tuple(model.Match(model.position_of(search.query.terms, one.name), one) for one in shown[:limit]),
            total=total,
            facets=model.count_facets(records, search),
            truncated=bool(search.facets) and total > len(records),
        )

    async def _page(
        self, query: Query, source: model.SourceName, *, offset: int, limit: int
    ) -> tuple[list[model.Record], int] | None:
        """Return a page's records and the total (negative if Atlas does not count); None if nothing can match."""
        body = search_body(query, source, cluster=self._settings.search_cluster, offset=offset, limit=limit)
        if body is None:
            return None
        response = await self._send("/v2/search/basic", "POST", orjson.dumps(body))
        if response.status != 200 and _NO_SUCH_TYPE in response.body[:2000]:
            return [], 0  # Atlas does not know the type, so it has no such objects
        answer = _json_object(response)
        entities = answer.get("entities") or []
        if not isinstance(entities, list):
            raise CatalogUnavailable("The catalog's response is not a search result.")
        total = answer.get("approximateCount")
        records = [record_of(_object(one), source) for one in cast("list[object]", entities) if isinstance(one, dict)]
        return records, total if isinstance(total, int) else -1

    async def _classifications(self) -> Mapping[str, int]:
        """Return each classification with its number of entities, or with 0 if this login may not read the metrics."""
        answer = _json_object(await self._send("/v2/types/typedefs?type=classification"))
        names = [one.get("name") for one in answer.get("classificationDefs") or [] if isinstance(one, dict)]
        try:
            metrics = _json_object(await self._send("/admin/metrics"))
        except (CatalogDenied, CatalogUnavailable):
            metrics = {}
        counts = _object(_object(_object(metrics.get("data", metrics)).get("tag")).get("tagEntities"))
        numbers = {name: count for name, count in counts.items() if isinstance(count, int)}
        return {name: numbers.get(name, 0) for name in names if isinstance(name, str)}

    async def _send(self, path: str, method: str = "GET", content: bytes = b"") -> HttpResponse:
        headers = {"Accept": "application/json", "Content-Type": "application/json", "X-XSRF-HEADER": "valid"}
        if self._settings.server_user:
            pair = f"{self._settings.server_user}:{self._settings.server_password.get_secret_value()}".encode()
            headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
        api = await asyncio.to_thread(api_of, self._settings.api_url)  # the first call imports httpx, which is slow
        request = HttpRequest(
            f"{api}{path}", method, headers=headers, content=content, max_bytes=_MAX_BYTES,
            within_s=self._settings.timeout_s,
        )  # fmt: skip
        try:
            answer = await self._exchanges.send(request)
        except EngineUnavailable as error:
            # The catalog's address must not be revealed to callers.
            log.warning("catalog unreachable", reason=error.message)
            raise CatalogUnreachable("The catalog is unreachable or did not respond in time.") from error
        if answer.status in (401, 403):
            raise CatalogDenied("The catalog rejected the service's login.")
        return answer


def _object(value: object) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _json_object(answer: HttpResponse) -> JsonObject:
    if answer.status != 200:
        raise CatalogUnavailable(f"The catalog returned HTTP status {answer.status}.")
    try:
        value = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise CatalogUnavailable("The catalog's response is not a JSON object.")
    return cast("JsonObject", value)
