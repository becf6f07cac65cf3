"""The index read anew from data sources, by one server at a time (Contract platform 8.4)."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import structlog

from queryserver.catalog.lookups import LookUps
from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.engines.protocol import Catalog, TableSummary
from queryserver.errors.base import DatabaseUnavailable, QueryServerError
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineForbidden,
    EngineJwtRequired,
    EngineTimeout,
    MetadataNotFound,
    StatementDenied,
    StatementRejected,
)
from queryserver.identity.model import User
from queryserver.platform.metrics import SearchMetrics
from queryserver.search.feeding import Scoping, described, kind_of
from queryserver.search.model import DATABASE, IndexedObject, Scope, ScopeKey
from queryserver.search.repository import MetadataIndexRecords

log = structlog.get_logger(__name__)

T = TypeVar("T")

_LOOK_EVERY_S = 30.0
_TABLES_PER_CATALOG = 200  # then the look is given back, so that no session lives for hours
_WRITE_EVERY = 500
_COUNT_EVERY_S = 300.0
_SWEEP_EVERY = timedelta(hours=1)
_FORGET_AFTER = timedelta(days=30)
_AT_ONCE = 2  # connectors
_NOBODY = User(id=0, username="metadata-index", is_admin=True)
_GONE = (MetadataNotFound, EngineForbidden, StatementDenied)
"""What is told of an object that is not there, or not for this user."""
# One object that cannot be read must not keep all others out.
_OF_ONE_OBJECT = (*_GONE, StatementRejected)


@dataclass(frozen=True, slots=True)
class RefreshParts:
    """What it works with; `owner` names this process."""

    owner: str
    records: MetadataIndexRecords
    connectors: Connectors
    lookups: LookUps
    scoping: Scoping
    metrics: SearchMetrics


@dataclass(frozen=True, slots=True)
class RefreshLimits:
    """How often, and how much. `first_after_s`: a server that starts has other things to do."""

    interval: timedelta
    max_tables: int
    max_columns: int
    first_after_s: float = 15.0
    lease: timedelta = timedelta(seconds=120)


class IndexRefresh:
    """Reads data sources with a login of their own in the background, others when their user searches."""

    def __init__(self, parts: RefreshParts, limits: RefreshLimits) -> None:
        self._parts = parts
        self._limits = limits
        self._tasks: dict[ScopeKey, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Refresh while inside; at the end refreshes are abandoned, and begin anew elsewhere."""
        keeper = asyncio.create_task(self._keep(), name="metadata-index")
        try:
            yield
        finally:
            tasks = [keeper, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def wanted_by(self, user: User, connector: Connector, key: ScopeKey) -> None:
        """The user searched: read what they see, if that is due and they have a usable login now. Never waits."""
        self._start(key, lambda: self.refresh(user, connector, key))

    async def refresh(self, user: User, connector: Connector, key: ScopeKey) -> None:
        """Read a data source as the user, if it is due and nobody else does. Never raises QueryServerError."""
        try:
            if not await self._parts.lookups.runs_here(connector):
                return
            async with self._places:
                limits = self._limits
                # Of this reading alone: where the connector is changed meanwhile, another one may be under way here.
                owner = f"{self._parts.owner}-{uuid4().hex}"
                scope = await self._parts.records.claim(key, owner=owner, lease=limits.lease, interval=limits.interval)
                if scope is not None:
                    await self._refreshed(_Reading(self._parts, limits, user, connector, _Claim(scope, owner)))
        except QueryServerError as error:
            log.info("metadata not read", connector=connector.key, code=error.code)

    async def _refreshed(self, reading: "_Reading") -> None:
        try:
            await reading.read()
        except (QueryServerError, asyncio.CancelledError) as error:
            # Whoever lacks a login may have one the next moment; a process that stops leaves the work to others.
            soon = isinstance(error, CredentialsRequired | EngineJwtRequired | asyncio.CancelledError)
            claim = reading.claim
            await asyncio.shield(self._parts.records.give_up(claim.scope.id, owner=claim.owner, soon=soon))
            raise

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        swept = loop.time() - _SWEEP_EVERY.total_seconds()
        counted = loop.time() - _COUNT_EVERY_S
        await asyncio.sleep(self._limits.first_after_s * random.uniform(0.5, 1.0))  # noqa: S311 no secret
        while True:
            try:
                if loop.time() - swept >= _SWEEP_EVERY.total_seconds():
                    await self._parts.records.sweep(unused_for=_FORGET_AFTER)
                    swept = loop.time()
                self._start_due()
                if loop.time() - counted >= _COUNT_EVERY_S:
                    self._parts.metrics.index_objects(await self._parts.records.counts())
                    counted = loop.time()
            except QueryServerError as error:
                log.warning("metadata index not kept", code=error.code)
            except Exception:  # the outer wall of a task: without it nothing would be refreshed any more
                log.exception("metadata index not kept")
            wait_s = min(_LOOK_EVERY_S, self._limits.interval.total_seconds())
            await asyncio.sleep(wait_s * random.uniform(0.8, 1.0))  # noqa: S311 no secret

    def _start_due(self) -> None:
        for connector in self._parts.connectors.visible(_NOBODY):
            key = self._parts.scoping.key(_NOBODY, connector)
            if key is not None and key.user_id is None:
                self._start(key, lambda one=connector, key=key: self.refresh(_NOBODY, one, key))

    def _start(self, key: ScopeKey, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if key in self._tasks:
            return
        task = self._tasks[key] = asyncio.create_task(work(), name="metadata-refresh")
        task.add_done_callback(lambda ended: self._ended(key, ended))

    def _ended(self, key: ScopeKey, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(key, None)
        if not task.cancelled() and (error := task.exception()):
            log.error("metadata refresh failed", connector=key.connector, exc_info=error)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A scope, and who may read it anew just now."""

    scope: Scope
    owner: str


class _Reading:
    """One refresh of one scope: one question after the other, written in portions."""

    def __init__(
        self, parts: RefreshParts, limits: RefreshLimits, user: User, connector: Connector, claim: _Claim
    ) -> None:
        self.claim = claim
        self._parts, self._limits = parts, limits
        self._user, self._connector, self._scope = user, connector, claim.scope
        self._indexed: Mapping[str, int] = {}
        self._seen: dict[str, list[str]] = {}
        self._unread: set[str] = set()
        self._tables = 0
        self._truncated = False
        self._found_no_room = False
        self._waiting: list[IndexedObject] = []

    async def read(self) -> None:
        """Raises what ends the refresh; then what is indexed stays."""
        records = self._parts.records
        began = await records.now()
        self._indexed = await records.tables_by_database(self._scope.id)
        await self._while_held()
        if self._unread:
            log.info("databases not read", connector=self._connector.key, number=len(self._unread))
        await records.complete(
            self._scope.id,
            owner=self.claim.owner,
            seen=self._seen,
            unread=self._unread,
            began=began,
            truncated=self._truncated or self._found_no_room,
            # What is removed now, if anything, leaves room for what found none.
            again=self._found_no_room,
        )

    async def _while_held(self) -> None:
        """Read everything; beside it the lease is renewed, for one call may take longer than a lease lasts."""
        try:
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(self._beat(), name="metadata-lease")
                await self._databases()
                beating.cancel()
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            raise first from first.__cause__

    async def _beat(self) -> None:
        """Raises DatabaseUnavailable: somebody else reads by now."""
        while True:
            await asyncio.sleep(self._limits.lease.total_seconds() / 4)
            try:
                is_held = await self._renew()
            except DatabaseUnavailable:
                continue  # it may be back before the lease ends
            if not is_held:
                raise DatabaseUnavailable

    async def _databases(self) -> None:
        async with self._parts.lookups.catalog(self._user, self._connector) as catalog:
            databases = list(await self._answer(catalog.databases()))
            databases += await self._left_out(catalog, databases)
        for database in databases:
            await self._database(database)
        await self._write()

    async def _left_out(self, catalog: Catalog, listed: Sequence[str]) -> Sequence[str]:
        """What is indexed and still there, though not listed: Trino leaves out catalogs that are down.

        What cannot be told is unread. All that fails together may take as long as one look.
        """
        clock = asyncio.get_running_loop().time
        found: list[str] = []
        missing = sorted(self._indexed.keys() - set(listed))
        # In no order: a catalog that is slow to fail must not keep the same ones from being asked each time.
        waiting = random.sample(missing, k=len(missing))
        patience_s = self._connector.limits.metadata_timeout.total_seconds()
        while waiting and patience_s > 0:
            database = waiting.pop()
            asked_at = clock()
            try:
                told = await self._answer(catalog.database(database))
            except _GONE:
                continue
            except StatementRejected:  # says nothing of the others, which may be in a catalog that is well
                self._leave([database])
                patience_s -= clock() - asked_at
                continue
            except QueryServerError:  # the others may take as long to fail
                self._leave([database])
                break
            if told.name == database:  # else it is another spelling of one that is listed
                found.append(database)
        self._leave(waiting)
        return sorted(found)

    def _leave(self, databases: Sequence[str]) -> None:
        """Keep what is indexed of databases that cannot be read; it counts."""
        self._unread.update(databases)
        self._tables += sum(self._indexed.get(database, 0) for database in databases)

    async def _database(self, database: str) -> None:
        async with self._parts.lookups.catalog(self._user, self._connector) as catalog:
            await self._put(await self._itself(catalog, database))
            tables = await self._listed(catalog, database)
        left = self._limits.max_tables - self._tables
        self._truncated = self._truncated or len(tables) > left
        tables = tables[: max(left, 0)]
        self._tables += len(tables)
        self._seen[database] = [one.name for one in tables]
        for one in tables:
            await self._put(IndexedObject(kind_of(one.kind), database, one.name, one.comment or None))
        for start in range(0, len(tables), _TABLES_PER_CATALOG):
            await self._columns(database, self._seen[database][start : start + _TABLES_PER_CATALOG])

    async def _itself(self, catalog: Catalog, database: str) -> IndexedObject:
        try:
            told = await self._answer(catalog.database(database))
        except _OF_ONE_OBJECT:
            return IndexedObject(DATABASE, database, "")
        return IndexedObject(DATABASE, database, "", told.comment, told.owner_name)

    async def _listed(self, catalog: Catalog, database: str) -> Sequence[TableSummary]:
        try:
            return await self._answer(catalog.tables(database))
        except _GONE:
            return []
        except StatementRejected:
            self._leave([database])
            return []

    async def _columns(self, database: str, names: Sequence[str]) -> None:
        async with self._parts.lookups.catalog(self._user, self._connector) as catalog:
            for name in names:
                await self._described(catalog, database, name)

    async def _described(self, catalog: Catalog, database: str, name: str) -> None:
        try:
            table = await self._answer(catalog.table(database, name))
        except _OF_ONE_OBJECT:
            return
        one = described(table, self._limits.max_columns)
        # Under the names by which the list told it: those are compared at the end.
        await self._put(replace(one, database=database, name=name, comment=one.comment or None))

    async def _answer(self, asked: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self._connector.limits.metadata_timeout.total_seconds()):
                return await asked
        except TimeoutError:
            raise EngineTimeout("The data source did not answer in time.") from None

    async def _put(self, one: IndexedObject) -> None:
        self._waiting.append(one)
        if len(self._waiting) >= _WRITE_EVERY:
            await self._write()

    async def _write(self) -> None:
        # First: what was read for a scope that is another's by now must not get into it.
        if not await self._renew():
            raise DatabaseUnavailable
        waiting, self._waiting = self._waiting, []
        if waiting:
            # Twice: until the end removes what is gone, all that is new must find room beside it. Bounded all the same,
            # for refreshes that fail again and again never come to their end.
            bound = 2 * self._limits.max_tables
            is_whole = await self._parts.records.put(self._scope.id, waiting, max_tables=bound)
            self._found_no_room = self._found_no_room or not is_whole

    async def _renew(self) -> bool:
        """Whether the scope is this reading's still."""
        return await self._parts.records.renew(self._scope.id, owner=self.claim.owner, lease=self._limits.lease)
