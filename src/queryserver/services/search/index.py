"""The source sql: databases, tables, views and columns of the connectors that the caller may use."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from queryserver.db.search import MetadataIndexRecords
from queryserver.domain.connector import Connector
from queryserver.domain.errors.base import PermissionDenied
from queryserver.domain.errors.statements import SourceNotConfigured
from queryserver.domain.searching import FacetName, Match, Record, Search, SourceAnswer
from queryserver.domain.user import METADATA, User
from queryserver.interfaces.metadata_index import DATABASE, Scope, ScopeKey
from queryserver.services.connectors import Connectors
from queryserver.services.search.index_matching import Found, Hit, View
from queryserver.services.search.index_refresh import IndexRefresh
from queryserver.services.search.index_segment import FIELD
from queryserver.services.search.index_views import IndexViews
from queryserver.services.search.scoping import Scoping
from queryserver.services.threads import FairThreads, Stop


@dataclass(frozen=True, slots=True)
class IndexParts:
    """What the source works with; `refresh` None: the index is switched off."""

    records: MetadataIndexRecords
    connectors: Connectors
    scoping: Scoping
    views: IndexViews
    refresh: IndexRefresh | None
    threads: FairThreads


class IndexSource:
    """See `interfaces.search.SearchSource`."""

    def __init__(self, parts: IndexParts) -> None:
        self._parts = parts

    async def search(self, user: User, search: Search) -> SourceAnswer:
        """See the Protocol. Rows of connectors that the caller may not use any more are not looked at."""
        if not user.may(METADATA):
            raise PermissionDenied("You may not search metadata.")
        if self._parts.refresh is None:
            raise SourceNotConfigured("The metadata index is switched off.")
        wanted: dict[ScopeKey, Connector] = {}
        for connector in self._parts.connectors.visible(user):
            if search.dialects and connector.dialect not in search.dialects:
                continue
            key = self._parts.scoping.key(user, connector)
            if key is not None:
                wanted[key] = connector
                if key.user_id is not None:
                    self._parts.refresh.wanted_by(user, connector, key)
        scopes = await self._parts.records.scopes(list(wanted))
        return await self._searched(user, search, scopes, {key: one.dialect for key, one in wanted.items()})

    async def _searched(
        self, user: User, search: Search, scopes: Sequence[Scope], dialects: dict[ScopeKey, str]
    ) -> SourceAnswer:
        views: list[View] = []
        for scope in scopes:
            views += await self._parts.views.of(scope, dialects[scope.key])
        truncated = any(scope.truncated for scope in scopes)
        return await self._parts.threads.run(user.id, partial(_search, search, views, truncated))


def _search(search: Search, views: Sequence[View], truncated: bool, stop: Stop) -> SourceAnswer:
    found = [Found(view, search, stop) for view in views]
    facets: dict[FacetName, dict[str, int]] = {facet: {} for facet in search.facets}
    for facet, counts in facets.items():
        for one in found:
            stop.check()
            for value, number in one.facet(facet).items():
                counts[value] = counts.get(value, 0) + number
    firsts = heapq.merge(*(one.first(search.reach, number) for number, one in enumerate(found)))
    hits = [hit for hit, _ in zip(firsts, range(search.reach), strict=False)]
    return SourceAnswer(
        matches=[Match(hit.position, _record(hit, views[hit.view].dialect)) for hit in hits],
        total=sum(one.total for one in found),
        facets=facets,
        truncated=truncated,
        message="Some data sources hold more than is indexed." if truncated else "",
    )


def _record(hit: Hit, dialect: str) -> Record:
    row = hit.row
    parts = [part for part in (row.database, row.name, hit.column) if part]
    path, name = ".".join(parts), parts[-1] if parts else ""
    is_database = row.kind == DATABASE
    return Record(
        original_name=path,
        name=name,
        type=FIELD if hit.column else row.kind,
        source_type=dialect.upper(),
        identity=f"{hit.connector}:{path}",
        parent_path="" if is_database else "/" + "/".join(parts[:-1]),
        description=hit.comment,
        owner=row.owner,
        last_modified=row.modified_at,
        connector=hit.connector,
        dialect=dialect,
    )
