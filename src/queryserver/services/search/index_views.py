"""What this process holds of the index in memory: as new as the service database at each search."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import pyarrow as pa

from queryserver.db.search import MetadataIndexRecords
from queryserver.domain.lru import LruCache
from queryserver.interfaces.metadata_index import ObjectRow, Scope
from queryserver.services.search.index_matching import View
from queryserver.services.search.index_segment import Segment, build

_MAX_BYTES = 256 * 1024 * 1024
_OVERLAY_ROWS = 1000


@dataclass(slots=True)
class _Held:
    """A scope: what was read at first, and above it what changed since."""

    epoch: int
    version: int
    base: Segment
    changed: dict[int, ObjectRow] = field(default_factory=dict[int, ObjectRow])
    overlay: Segment | None = None
    alive: pa.Array | None = None

    @property
    def size_bytes(self) -> int:
        """About the memory that it takes."""
        above = self.overlay.size_bytes if self.overlay else 0
        return self.base.size_bytes + above + sum(600 + len(row.columns or "") for row in self.changed.values())


class IndexViews:
    """Views of scopes. Above 256 MiB those that were not used for longest are dropped, to be read again."""

    def __init__(self, records: MetadataIndexRecords, threads: Executor) -> None:
        self._records = records
        self._threads = threads
        self._held = LruCache[int, _Held](_MAX_BYTES, weigh=lambda held: held.size_bytes, least=1)
        self._reading: dict[int, asyncio.Lock] = {}

    async def of(self, scope: Scope, dialect: str) -> Sequence[View]:
        """The views that make up a scope, not older than it. Raises DatabaseUnavailable."""
        async with self._reading.setdefault(scope.id, asyncio.Lock()):
            held = self._held.get(scope.id)
            if held is None or held.epoch != scope.epoch:
                held = await self._read(scope)
            elif held.version < scope.version:
                held = await self._caught_up(held, scope)
            for dropped in self._held.put(scope.id, held):
                self._reading.pop(dropped, None)
        connector = scope.key.connector
        views = [View(held.base, connector, dialect, held.alive)]
        return [*views, View(held.overlay, connector, dialect)] if held.overlay else views

    async def _read(self, scope: Scope) -> _Held:
        rows = [row async for portion in self._records.read(scope.id, after_version=-1) for row in portion]
        segment = await asyncio.get_running_loop().run_in_executor(self._threads, build, rows)
        return _Held(scope.epoch, scope.version, segment)

    async def _caught_up(self, held: _Held, scope: Scope) -> _Held:
        changed = dict(held.changed)
        async for portion in self._records.read(scope.id, after_version=held.version):
            changed.update({row.id: row for row in portion})
            if len(changed) > max(_OVERLAY_ROWS, len(held.base.rows) // 10):
                return await self._read(scope)
        return await asyncio.get_running_loop().run_in_executor(self._threads, _with_overlay, held, scope, changed)


def _with_overlay(held: _Held, scope: Scope, changed: dict[int, ObjectRow]) -> _Held:
    dead = {place for one in changed if (place := held.base.places.get(one)) is not None}
    alive = pa.array([place not in dead for place in range(len(held.base.rows))], pa.bool_())
    return _Held(held.epoch, scope.version, held.base, changed, build(list(changed.values())), alive)
