"""Apache Atlas by its REST API, version 2 (Contract platform 8.5)."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import orjson
import structlog

from queryserver.errors.statements import CatalogDenied, CatalogOutOfReach, CatalogUnavailable, EngineUnavailable
from queryserver.platform.outbound import Answered, Asked, Exchanges
from queryserver.search.model import (
    FacetName,
    Match,
    Record,
    Search,
    SourceAnswer,
    SourceName,
    count_facets,
    position_of,
)
from queryserver.search.query_language import Query, Term, folded

JsonObject = dict[str, Any]

ENTITY_TYPES: Mapping[SourceName, tuple[str, ...]] = {
    SourceName.SQL: ("hive_db", "hive_table", "hive_column"),
    SourceName.HDFS: ("hdfs_path",),
    SourceName.S3: ("aws_s3_v2_bucket", "aws_s3_v2_directory", "aws_s3_v2_object"),
}
"""Types of entities that stand for the objects of a source."""

_BY_FILTER: Mapping[str, str] = {
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
"""What records are made of; Atlas tells no other."""
_ANYWHERE = ("name", "description")
_OF_SQL = ("db", "table")


def search_body(query: Query, source: SourceName, *, cluster: str, offset: int, limit: int) -> JsonObject | None:
    """The question for one source; None when nothing there can match."""
    types = _types(query, source)
    criteria = _criteria(query, source, cluster)
    if not types or criteria is None:
        return None
    body: JsonObject = {
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
        # Several of one name are OR-ed; Atlas takes a list of classifications so.
        body["classification"] = ",".join(_wildcards(tag, written=True) for tag in tags)
    if criteria:
        body["entityFilters"] = {"condition": "AND", "criterion": criteria}
    return body


def _types(query: Query, source: SourceName) -> Sequence[str]:
    """Types of the source that the filter `type` leaves."""
    wanted = query.filters.get("type")
    if wanted is None:
        return ENTITY_TYPES[source]
    named = {entity for word, entity in _BY_FILTER.items() if any(term.is_whole(word) for term in wanted)}
    return [entity for entity in ENTITY_TYPES[source] if entity in named]


def _criteria(query: Query, source: SourceName, cluster: str) -> list[JsonObject] | None:
    """All of them must hold; None: nothing can match."""
    found = [_any_of([_contains(name, term) for name in _ANYWHERE]) for term in query.terms]
    if owners := query.filters.get("owner"):
        found.append(_any_of([_is("owner", term) for term in owners]))
    for name, terms in query.filters.items():
        if name in _OF_SQL:
            if source is not SourceName.SQL:
                return None
            found.append(_any_of([_place(name, term) for term in terms]))
        elif name == "source" and not any(term.is_whole(source) or _is_type_of(term, source) for term in terms):
            return None
    if cluster and source is SourceName.SQL:
        found.append({"attributeName": "qualifiedName", "operator": "endsWith", "attributeValue": f"@{cluster}"})
    return found


def _is_type_of(term: Term, source: SourceName) -> bool:
    return source is SourceName.SQL and term.is_whole("hive")


def _contains(attribute: str, term: Term) -> JsonObject:
    if term.is_literal:
        return {"attributeName": attribute, "operator": "contains", "attributeValue": "".join(term.literals)}
    return {"attributeName": attribute, "operator": "like", "attributeValue": f"*{_wildcards(term)}*"}


def _is(attribute: str, term: Term) -> JsonObject:
    if term.is_literal:
        return {"attributeName": attribute, "operator": "eq", "attributeValue": term.head}
    return {"attributeName": attribute, "operator": "like", "attributeValue": _wildcards(term)}


def _place(name: str, term: Term) -> JsonObject:
    """Qualified names are `db@cluster`, `db.table@cluster` and `db.table.column@cluster`."""
    value = _wildcards(term)
    names = [f"{value}@*", f"{value}.*"] if name == "db" else [f"*.{value}@*", f"*.{value}.*"]
    return _any_of([{"attributeName": "qualifiedName", "operator": "like", "attributeValue": one} for one in names])


def _any_of(criteria: list[JsonObject]) -> JsonObject:
    return criteria[0] if len(criteria) == 1 else {"condition": "OR", "criterion": criteria}


def _wildcards(term: Term, *, written: bool = False) -> str:
    """With the signs that Atlas takes, which are ours. `written`: a literal one in its own case."""
    if written and term.is_literal:
        return term.head
    return "".join(piece if isinstance(piece, str) else piece.sign for piece in term.pieces)


_TYPES = {
    "hive_db": "DATABASE",
    "hive_table": "TABLE",
    "hive_column": "FIELD",
    "aws_s3_v2_bucket": "S3BUCKET",
    "aws_s3_v2_directory": "DIRECTORY",
    "aws_s3_v2_object": "FILE",
}
_SOURCE_TYPES = {SourceName.SQL: "HIVE", SourceName.HDFS: "HDFS", SourceName.S3: "S3"}
_VIEW = "VIRTUAL_VIEW"

AtlasRecordsJsonObject = Mapping[str, Any]


def record_of(entity: AtlasRecordsJsonObject, source: SourceName) -> Record:
    """One entity header of a search. What Atlas leaves out is empty."""
    attributes: AtlasRecordsJsonObject = entity.get("attributes") or {}
    name = _text(attributes.get("name")) or _text(entity.get("displayText"))
    place = _atlas_records_place(entity, attributes, name, source)
    return Record(
        original_name=place,
        name=name,
        type=_type(entity, attributes),
        source_type=_SOURCE_TYPES[source],
        identity=_text(entity.get("guid")) or place,
        parent_path=_parent(place, source),
        description=_text(attributes.get("description")) or _text(attributes.get("comment")),
        owner=_text(attributes.get("owner")),
        tags=_texts(entity.get("classificationNames")),
        created=_moment(attributes.get("createTime")),
        last_modified=_moment(attributes.get("modifiedTime") or attributes.get("lastModifiedTime")),
        dialect="hive" if source is SourceName.SQL else None,
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


def _type(entity: AtlasRecordsJsonObject, attributes: AtlasRecordsJsonObject) -> str:
    if attributes.get("tableType") == _VIEW:
        return "VIEW"
    kind = _text(entity.get("typeName"))
    if kind == "hdfs_path":
        return "FILE" if attributes.get("isFile") is True else "DIRECTORY"
    return _TYPES.get(kind, kind.upper())


def _atlas_records_place(
    entity: AtlasRecordsJsonObject, attributes: AtlasRecordsJsonObject, name: str, source: SourceName
) -> str:
    """The dotted path of an SQL object, the path of a file."""
    qualified = _text(attributes.get("qualifiedName"))
    if source is SourceName.SQL:
        return qualified.rpartition("@")[0] or name
    path = _text(attributes.get("path")) or qualified.rpartition("@")[0]
    return path or _text(entity.get("displayText"))


def _parent(place: str, source: SourceName) -> str:
    if source is SourceName.SQL:
        parents = place.split(".")[:-1]
        return f"/{'/'.join(parents)}" if parents else ""
    return place.rstrip("/").rpartition("/")[0]


def _moment(milliseconds: object) -> datetime | None:
    if not isinstance(milliseconds, int) or isinstance(milliseconds, bool) or milliseconds <= 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(values: object) -> tuple[str, ...]:
    found: Sequence[object] = values if isinstance(values, list) else ()
    return tuple(value for value in found if isinstance(value, str))


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


class EmptyCatalog:
    """See `interfaces.search.Catalog`."""

    async def page(self, search: Search, source: SourceName, *, offset: int, limit: int) -> SourceAnswer:
        """Nothing, whatever is asked."""
        del search, source, offset, limit
        return SourceAnswer()


_MOST_CHARACTERS = 200
_BEFORE = 60  # characters that are shown before the place that matched


def highlighted(text: str, terms: Sequence[Term]) -> str:
    """Escaped, with `<em>` around everything that a term matches; there is no other markup in it."""
    pieces: list[str] = []
    end = 0
    for begin, until in _merged(_spans(folded(text), terms)):
        pieces += [escape(text[end:begin]), "<em>", escape(text[begin:until]), "</em>"]
        end = until
    return "".join([*pieces, escape(text[end:])])


def description_of(record: Record, terms: Sequence[Term]) -> str:
    """Matched tags, else the description, else the place in the text that matched; at most 200 characters of it."""
    tags = [tag for tag in record.tags if any(term.found_in(folded(tag)) for term in terms)]
    if tags:
        return f"tags:{highlighted(', '.join(tags)[:_MOST_CHARACTERS], terms)}"
    if record.description:
        return highlighted(_around(record.description, terms), terms)
    return highlighted(_around(record.text, terms), terms)


def _around(text: str, terms: Sequence[Term]) -> str:
    """At most 200 characters, with the first match in them."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    plain = folded(text)
    begin = min((found[0] for term in terms if (found := term.found_in(plain))), default=0)
    start = max(begin - _BEFORE, 0)
    return text[start : start + _MOST_CHARACTERS]


def _spans(plain: str, terms: Sequence[Term]) -> Iterator[tuple[int, int]]:
    for term in terms:
        at = 0
        while (found := term.found_in(plain, at)) is not None and found[1] > found[0]:
            yield found
            at = found[1]


def _merged(spans: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """In order; those that touch each other are one."""
    begin = end = -1
    for first, last in sorted(spans):
        if first > end:
            if end >= 0:
                yield begin, end
            begin, end = first, last
        else:
            end = max(end, last)
    if end >= 0:
        yield begin, end
