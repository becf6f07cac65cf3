"""The metadata search (Contract platform 8)."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from fastapi import Response

from queryserver.api.answers import answer, while_connected
from queryserver.api.calls import Call, PathGroup
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests.platform import SearchRequest
from queryserver.connectors.types import TYPES
from queryserver.errors.base import InvalidParameter, configured
from queryserver.search.atlas import description_of, highlighted
from queryserver.search.model import Record, SourceName
from queryserver.search.search import Asked, SearchResult

router = PathGroup()


_AT_ONCE = 50
"""Records that are answered on the event loop."""
_OTHER_NAMES = {"s3a": SourceName.S3}
_DIALECTS = frozenset(one.dialect for one in TYPES)


@router.operation("search_metadata")
async def entities_interactive(call: Call) -> Response:
    """What matches in all sources, best first. Contract platform 8.1."""
    fields = await call.read(SearchRequest)
    visible = call.services.connectors.visible(call.user)
    sources, dialects = _sources(fields.sources, _DIALECTS | {one.dialect for one in visible})
    asked = Asked(
        text=fields.query_s,
        sources=sources,
        dialects=dialects,
        facets=fields.field_facets,
        interface=fields.interface,
        limit=fields.limit,
        offset=fields.offset,
        prefix=fields.prefix,
    )
    found = await while_connected(call.request, call.services.searching.search.search(call.user, asked))
    if len(found.records) <= _AT_ONCE:
        return answer(_response(found))
    # Marking what matched in a thousand long comments takes a tenth of a second.
    return await call.services.threads.searching.run(call.user.id, lambda _: answer(_response(found)))


def _sources(names: Iterable[str], dialects: Collection[str]) -> tuple[tuple[SourceName, ...], frozenset[str]]:
    """The sources that are meant, and the dialects that sql is limited to. Raises InvalidParameter."""
    known = {source.value: source for source in SourceName} | _OTHER_NAMES
    chosen: dict[SourceName, None] = {}
    limited: set[str] = set()
    for name in (one.strip().lower() for one in names):
        if name not in known and name not in dialects:
            usable = configured([*(source.value for source in SourceName), *sorted(dialects)], word="Known")
            raise InvalidParameter(f"sources: there is no source {name[:100]}.{usable}")
        chosen[known.get(name, SourceName.SQL)] = None
        if name not in known:
            limited.add(name)
    everything = SourceName.SQL in {known.get(name.strip().lower()) for name in names}
    return tuple(chosen), frozenset() if everything else frozenset(limited)


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
        hue_description=description_of(record, terms),
        description=record.description,
        originalDescription=record.description,
        type=record.type,
        sourceType=record.source_type,
        parentPath=record.parent_path,
        owner=record.owner,
        tags=list(record.tags),
        identity=record.identity,
        created=_moment(record.created),
        lastModified=_moment(record.last_modified),
        connector=record.connector,
        dialect=record.dialect,
        properties=dict(record.properties),
        customProperties=dict(record.custom_properties),
        link=record.link,
        doc_type=record.doc_type,
        uuid=record.uuid,
        parentUuid=record.parent_uuid,
        last_modified=_moment(record.last_modified) if record.doc_type else None,
        **dict(record.further),
    )


def _moment(moment: datetime | None) -> str | None:
    """ISO 8601 in UTC without zone; milliseconds when they are not zero (Contract platform 1.3)."""
    if moment is None:
        return None
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    return utc.isoformat(timespec="milliseconds" if utc.microsecond >= 1000 else "seconds")
