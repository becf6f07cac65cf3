"""Implements the source `sql`: databases, tables, views and columns of the connectors that the caller may use."""

import asyncio
import heapq
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from queryserver import errors
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.identity.model import METADATA, User
from queryserver.platform.caches import LruCache
from queryserver.platform.threads import FairThreads, Stop
from queryserver.search import model
from queryserver.search.matches import FIELD, Hit, IndexSegment, View, ViewMatches, build
from queryserver.search.refresh import IndexRefresh, scope_key
from queryserver.search.repository import MetadataIndexRecords

_MAX_BYTES = 256 * 1024 * 1024
_OVERLAY_ROWS = 1000  # or a tenth of the rows, if that is more; above this number of changed rows, the scope is reread


@dataclass(slots=True)
class _LoadedScope:
    """A scope in memory: the rows as first read (`base`), and the rows changed since then (`overlay`)."""

    epoch: int
    version: int
    base: IndexSegment
    changed: dict[int, model.ObjectRow] = field(default_factory=dict[int, model.ObjectRow])
    overlay: IndexSegment | None = None
    alive: pa.Array | None = None

    @property
    def size_bytes(self) -> int:
        overlay = self.overlay.size_bytes if self.overlay else 0
        return self.base.size_bytes + overlay + sum(600 + len(row.columns or "") for row in self.changed.values())


class IndexViews:
    """Caches the views of scopes. Above 256 MiB, drops those least recently used."""

    def __init__(self, records: MetadataIndexRecords, threads: Executor) -> None:
        self._records = records
        self._threads = threads
        self._loaded = LruCache[int, _LoadedScope](_MAX_BYTES, weigh=lambda loaded: loaded.size_bytes, min_values=1)
        self._reading: dict[int, asyncio.Lock] = {}

    async def of(self, scope: model.Scope, dialect: str) -> Sequence[View]:
        """Return views of a scope that are at least as recent as `scope`. Raises DatabaseUnavailable."""
        async with self._reading.setdefault(scope.id, asyncio.Lock()):
            loaded = self._loaded.get(scope.id)
            if loaded is None or loaded.epoch != scope.epoch:
                loaded = await self._read(scope)
            elif loaded.version < scope.version:
                loaded = await self._catch_up(loaded, scope)
            for dropped in self._loaded.put(scope.id, loaded):
                self._reading.pop(dropped, None)
        connector = scope.key.connector
        views = [View(loaded.base, connector, dialect, loaded.alive)]
        return [*views, View(loaded.overlay, connector, dialect)] if loaded.overlay else views

    async def _read(self, scope: model.Scope) -> _LoadedScope:
        rows = [row async for portion in self._records.read(scope.id, after_version=-1) for row in portion]
        segment = await asyncio.get_running_loop().run_in_executor(self._threads, build, rows)
        return _LoadedScope(scope.epoch, scope.version, segment)

    async def _catch_up(self, loaded: _LoadedScope, scope: model.Scope) -> _LoadedScope:
        changed = dict(loaded.changed)
        async for portion in self._records.read(scope.id, after_version=loaded.version):
            changed.update({row.id: row for row in portion})
            if len(changed) > max(_OVERLAY_ROWS, len(loaded.base.rows) // 10):
                return await self._read(scope)
        return await asyncio.get_running_loop().run_in_executor(self._threads, _with_overlay, loaded, scope, changed)


def _with_overlay(loaded: _LoadedScope, scope: model.Scope, changed: dict[int, model.ObjectRow]) -> _LoadedScope:
    dead = {row for one in changed if (row := loaded.base.row_numbers.get(one)) is not None}
    alive = pa.array([place not in dead for place in range(len(loaded.base.rows))], pa.bool_())
    return _LoadedScope(loaded.epoch, scope.version, loaded.base, changed, build(list(changed.values())), alive)


@dataclass(frozen=True, slots=True, eq=False)
class IndexSource:
    """Searches the index. `refresh` is None if the index is disabled."""

    records: MetadataIndexRecords
    connectors: Connectors
    views: IndexViews
    refresh: IndexRefresh | None
    threads: FairThreads

    async def search(self, user: User, search: model.Search) -> model.SourceAnswer:
        """Search the rows of all connectors that the caller may currently use.

        Raises PermissionDenied, SourceNotConfigured, DatabaseUnavailable.
        """
        if not user.may(METADATA):
            raise errors.PermissionDenied("You may not search metadata.")
        if self.refresh is None:
            raise errors.SourceNotConfigured("The metadata index is disabled.")
        connectors_by_key: dict[model.ScopeKey, Connector] = {}
        for connector in self.connectors.visible(user):
            if search.dialects and connector.dialect not in search.dialects:
                continue
            key = scope_key(self.connectors, user, connector)
            if key is not None:
                connectors_by_key[key] = connector
                if key.user_id is not None:
                    self.refresh.start(user, connector, key)
        scopes = await self.records.scopes(list(connectors_by_key))
        views: list[View] = []
        for scope in scopes:
            views += await self.views.of(scope, connectors_by_key[scope.key].dialect)
        truncated = any(scope.truncated for scope in scopes)
        return await self.threads.run(user.id, partial(_search, search, views, truncated))


def _search(search: model.Search, views: Sequence[View], truncated: bool, stop: Stop) -> model.SourceAnswer:
    view_matches = [ViewMatches(view, search, stop) for view in views]
    facets: dict[model.FacetName, dict[str, int]] = {facet: {} for facet in search.facets}
    for facet, counts in facets.items():
        for one in view_matches:
            stop.check()
            for value, number in one.facet(facet).items():
                counts[value] = counts.get(value, 0) + number
    firsts = heapq.merge(*(one.first(search.reach, number) for number, one in enumerate(view_matches)))
    hits = [hit for hit, _ in zip(firsts, range(search.reach), strict=False)]
    return model.SourceAnswer(
        matches=[model.Match(hit.position, _record(hit, views[hit.view].dialect)) for hit in hits],
        total=sum(one.total for one in view_matches),
        facets=facets,
        truncated=truncated,
        message="Some data sources contain more objects than are indexed." if truncated else "",
    )


def _record(hit: Hit, dialect: str) -> model.Record:
    row = hit.row
    parts = [part for part in (row.database, row.name, hit.column) if part]
    path, name = ".".join(parts), parts[-1] if parts else ""
    is_database = row.kind == model.DATABASE
    return model.Record(
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
