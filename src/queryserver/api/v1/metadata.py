"""The metadata search (Contract platform 8)."""

from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import Annotated

from fastapi import Request, Response

from queryserver.api.dependencies import ConnectorsDep, MetadataSearchDep, ReadUser, ThreadsDep, fields
from queryserver.api.responses import json_response, utc_text_without_zone, while_connected
from queryserver.api.routes import PathGroup, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests.platform import SearchRequest
from queryserver.connectors.types import TYPES
from queryserver.errors.base import InvalidParameter, known_names
from queryserver.search.model import MAX_REACH, Record, SourceName
from queryserver.search.query_language import Term, folded
from queryserver.search.search import SearchParameters, SearchResult

router = PathGroup("metadata")

_MAX_LOOP_RECORDS = 50  # more are encoded in a thread: highlighting matches in 1,000 long comments takes 0.1 s
_SOURCES = {source.value: source for source in SourceName} | {"s3a": SourceName.S3}
_DIALECTS = frozenset(one.dialect for one in TYPES)
_DESCRIPTION_CHARACTERS = 200
_EXCERPT_LEAD = 60  # characters before the first match in the excerpt of a long description


@router.post("/metadata/search/entities_interactive", response_model=wire.SearchResponse, responses=failures(403, 501))
async def search_metadata(
    http: Request,
    user: ReadUser,
    request: Annotated[SearchRequest, fields(SearchRequest)],
    connectors: ConnectorsDep,
    search: MetadataSearchDep,
    threads: ThreadsDep,
) -> Response:
    """Search the sources and return the matches, best matches first. Contract platform 8.1."""
    visible = connectors.visible(user)
    sources, dialects = _sources(request.sources, _DIALECTS | {one.dialect for one in visible})
    parameters = SearchParameters(
        text=request.query_s,
        sources=sources,
        dialects=dialects,
        facets=request.field_facets,
        interface=request.interface,
        limit=max(1, min(request.limit, MAX_REACH - request.offset)),
        offset=request.offset,
        prefix=request.prefix,
    )
    found = await while_connected(http, search.search(user, parameters))
    if len(found.records) <= _MAX_LOOP_RECORDS:
        return json_response(_response(found))
    return await threads.searching.run(user.id, lambda _: json_response(_response(found)))


def _sources(names: Iterable[str], dialects: Collection[str]) -> tuple[tuple[SourceName, ...], frozenset[str]]:
    """Return the requested sources, and the dialects to which the SQL source is limited (empty: no limit).

    Raises InvalidParameter.
    """
    chosen: dict[SourceName, None] = {}
    limited: set[str] = set()
    has_sql = False
    for name in (one.strip().lower() for one in names):
        source = _SOURCES.get(name)
        if source is None and name not in dialects:
            usable = known_names([*(source.value for source in SourceName), *sorted(dialects)], word="Known")
            raise InvalidParameter(f"sources: unknown source {name[:100]}.{usable}")
        chosen[source or SourceName.SQL] = None
        has_sql = has_sql or source is SourceName.SQL
        if source is None:
            limited.add(name)
    return tuple(chosen), frozenset() if has_sql else frozenset(limited)


def _response(found: SearchResult) -> wire.SearchResponse:
    search = found.search
    return wire.SearchResponse(
        results=[_record(record, found) for record in found.records],
        facets={facet.value: dict(counts) for facet, counts in found.facets.items()},
        count=len(found.records),
        totalMatched=found.total,
        limit=search.limit,
        offset=search.offset,
        sources={
            name.value: wire.SearchSource(ok=one.ok, matched=one.matched, truncated=one.truncated, message=one.message)
            for name, one in found.sources.items()
        },
        warnings=list(found.warnings),
        status=0,
    )


def _record(record: Record, found: SearchResult) -> wire.SearchRecord:
    terms = found.search.query.terms
    return wire.SearchRecord(
        originalName=record.original_name,
        name=record.name,
        selectionName=record.name,
        hue_name=highlighted(record.original_name, terms),
        hue_description=_description_of(record, terms),
        description=record.description,
        originalDescription=record.description,
        type=record.type,
        sourceType=record.source_type,
        parentPath=record.parent_path,
        owner=record.owner,
        tags=list(record.tags),
        identity=record.identity,
        created=utc_text_without_zone(record.created),
        lastModified=utc_text_without_zone(record.last_modified),
        connector=record.connector,
        dialect=record.dialect,
        properties=dict(record.properties),
        customProperties=dict(record.custom_properties),
        link=record.link,
        doc_type=record.doc_type,
        uuid=record.uuid,
        parentUuid=record.parent_uuid,
        last_modified=utc_text_without_zone(record.last_modified) if record.doc_type else None,
        **dict(record.further),
    )


def highlighted(text: str, terms: Sequence[Term]) -> str:
    """Return the HTML-escaped text with `<em>` around every match of a term."""
    plain = folded(text)
    spans: list[tuple[int, int]] = []
    for term in terms:
        at = 0
        while (found := term.find_in(plain, at)) is not None and found[1] > found[0]:
            spans.append(found)
            at = found[1]
    pieces: list[str] = []
    end = 0
    for begin, until in _merged(sorted(spans)):
        pieces += [escape(text[end:begin]), "<em>", escape(text[begin:until]), "</em>"]
        end = until
    return "".join([*pieces, escape(text[end:])])


def _merged(spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Merge adjacent and overlapping spans."""
    merged: list[tuple[int, int]] = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _description_of(record: Record, terms: Sequence[Term]) -> str:
    """Return the matched tags, or else an excerpt of the description or of the text, with the matches highlighted.

    The excerpt has at most 200 characters before highlighting.
    """
    tags = [tag for tag in record.tags if any(term.find_in(folded(tag)) for term in terms)]
    if tags:
        return f"tags:{highlighted(', '.join(tags)[:_DESCRIPTION_CHARACTERS], terms)}"
    if record.description:
        return highlighted(_excerpt(record.description, terms), terms)
    return highlighted(_excerpt(record.text, terms), terms)


def _excerpt(text: str, terms: Sequence[Term]) -> str:
    """Return an excerpt of at most 200 characters that includes the first match, if there is one."""
    if len(text) <= _DESCRIPTION_CHARACTERS:
        return text
    plain = folded(text)
    begin = min((found[0] for term in terms if (found := term.find_in(plain))), default=0)
    start = max(begin - _EXCERPT_LEAD, 0)
    return text[start : start + _DESCRIPTION_CHARACTERS]
