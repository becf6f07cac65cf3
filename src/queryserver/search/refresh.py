"""Fills the index with metadata that the editor reads anyway, and refreshes it from data sources.

Only one server at a time reads each data source (Contract platform 8.4).
"""

import asyncio
import hashlib
import random
import re
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import orjson
import structlog

from queryserver import errors
from queryserver.catalog.lookups import Lookups
from queryserver.catalog.queries import CatalogQuery, TableList
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines.protocol import Catalog, CatalogEngine, DatabaseDescription, TableDescription, TableKind
from queryserver.errors.base import QueryServerError
from queryserver.identity.model import User
from queryserver.platform.metrics import Metrics
from queryserver.platform.ownership import Ownership
from queryserver.platform.threads import Progress, background, no_progress
from queryserver.search.model import DATABASE, TABLE, VIEW, IndexedColumn, IndexedObject, ScopeClaim, ScopeKey
from queryserver.search.repository import SCOPES, MetadataIndexRecords, claim_lost_error

log = structlog.get_logger(__name__)

_PASSWORD = re.compile(r"://[^/@]*@")
_SECRET = re.compile(r"(?i)passw|passphrase|secret|token|private_key|credentials_json|access_key|api_key")
_QUEUED = 200  # maximum number of pending responses; the next refresh reads dropped metadata again
_CHANGED = "transient_lastDdlTime"  # table property in the Hive family

T = TypeVar("T")

_CHECK_EVERY_S = 30.0
_COUNT_EVERY_S = 300.0
_SWEEP_EVERY_S = 3600.0
_UNUSED_FOR = timedelta(days=30)
_TABLES_PER_CATALOG = 200  # after this many tables, the catalog is reopened, so that no session stays open for hours
_WRITE_EVERY = 500
_CONNECTORS_AT_ONCE = 2
_TRY_EVERY_S = 2.0
_TRY_FOR_S = 180.0
_SERVICE = User(id=0, username="metadata-index", is_admin=True)
# The object does not exist, or is not visible to this user.
_MISSING_OBJECT = (errors.MetadataNotFound, errors.EngineForbidden, errors.StatementDenied)
# An unreadable object must not prevent other objects from being indexed.
_UNREADABLE_OBJECT = (*_MISSING_OBJECT, errors.StatementRejected)


def scope_key(connectors: Connectors, user: User, connector: Connector) -> ScopeKey | None:
    """Return the scope that the user's lookups belong to; None if the connector has no metadata.

    The address excludes secrets, because they could be guessed from its digest. It includes the engine's endpoints,
    because connectors without options take them from other settings sections.
    """
    try:
        engine = connectors.engine(connector)
    except QueryServerError:  # the connector cannot run on this server
        return None
    if not isinstance(engine, CatalogEngine):
        return None
    capabilities = engine.capabilities
    options = {
        name: _PASSWORD.sub("://", value) if isinstance(value, str) else value
        for name, value in connector.options.items()
        if not _SECRET.search(name)
    }
    location = [sorted(options.items()), sorted(capabilities.endpoints)]
    address = hashlib.sha256(orjson.dumps([connector.dialect, connector.interface, connector.version, *location]))
    user_id = user.id if capabilities.differs_by_user else None
    return ScopeKey(connector.key, user_id, address.digest(), connector.is_stored)


@dataclass(eq=False, repr=False)
class IndexFeed:
    """Collects metadata returned by engines, and writes it to the index in the background, inside `running()`."""

    records: MetadataIndexRecords
    connectors: Connectors
    max_tables: int
    max_columns: int
    _waiting: deque[tuple[ScopeKey, CatalogQuery[Any], Any]] = field(
        default_factory=lambda: deque[tuple[ScopeKey, CatalogQuery[Any], Any]](maxlen=_QUEUED), init=False
    )
    _has_work: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _idle: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self._idle.set()

    def running(self) -> AbstractAsyncContextManager[None]:
        """Write in the background while the context is open."""
        return background(self._write(), name="metadata-index-feed")

    def add(self, user: User, connector: Connector, query: CatalogQuery[Any], answer: object) -> None:
        """Queue a response from an engine, without waiting. If 200 responses are queued, the oldest is dropped."""
        key = scope_key(self.connectors, user, connector)
        if key is not None and query.kind in ("databases", "database", "tables", "table"):
            self._waiting.append((key, query, answer))
            self._idle.clear()
            self._has_work.set()

    async def wait_until_idle(self) -> None:
        await self._idle.wait()

    async def _write(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            while self._waiting:
                key, query, answer = self._waiting.popleft()
                try:
                    scope = await self.records.scope(key)
                    objects = await asyncio.to_thread(_objects_of, query, answer, self.max_columns)
                    await self.records.put(scope.id, objects, max_tables=self.max_tables)
                except QueryServerError as error:
                    log.warning("metadata not indexed", connector=key.connector, code=error.code)
                except Exception:  # last resort of a task: later responses must still be indexed
                    log.exception("metadata not indexed", connector=key.connector)
            self._idle.set()


def _objects_of(query: CatalogQuery[Any], answer: Any, max_columns: int) -> Sequence[IndexedObject]:
    if query.kind == "databases":
        return [IndexedObject(DATABASE, name, "") for name in answer]
    if isinstance(answer, DatabaseDescription):
        return [IndexedObject(DATABASE, answer.name, "", answer.comment, answer.owner_name)]
    if isinstance(answer, TableList):
        database = str(query.names[0] or "")
        if not database:
            # The list of the default database does not name it. Its tables would be indexed a second time.
            return []
        return [
            IndexedObject(kind_of(TableKind(kind)), database, name, comment or None)
            for name, kind, comment in zip(answer.names, answer.kinds, answer.comments, strict=True)
        ]
    return [indexed_table(answer, max_columns)] if isinstance(answer, TableDescription) else []


def indexed_table(table: TableDescription, max_columns: int) -> IndexedObject:
    """Return the index object for a table, with its first `max_columns` columns."""
    return IndexedObject(
        kind_of(table.kind),
        table.database,
        table.name,
        table.comment,
        table.owner,
        _modified_at(table),
        [IndexedColumn(one.name, one.comment) for one in table.columns[:max_columns]],
        columns_cut=len(table.columns) > max_columns,
    )


def kind_of(kind: TableKind) -> str:
    return VIEW if kind.is_view else TABLE


def _modified_at(table: TableDescription) -> datetime | None:
    """Return the time of the last change, which only the Hive family reports, or the creation time if it is unknown."""
    text = next((one.value for one in table.properties if one.name.strip() == _CHANGED), "").strip()
    try:
        if text.isdecimal():
            return datetime.fromtimestamp(int(text), UTC)
        return datetime.fromisoformat(table.create_time) if table.create_time else None
    except (ValueError, OverflowError, OSError):
        return None


@dataclass(frozen=True, slots=True)
class RefreshLimits:
    """Limits for refreshes. `first_after_s` delays the first one, because a starting server has other work to do."""

    interval: timedelta
    max_tables: int
    max_columns: int
    first_after_s: float = 15.0


@dataclass(eq=False, repr=False)
class IndexRefresh:
    """Refreshes the index in the background.

    Data sources that are read with a service login are refreshed regularly, others when one of their users searches.
    """

    ownership: Ownership
    records: MetadataIndexRecords
    connectors: Connectors
    lookups: Lookups
    metrics: Metrics
    limits: RefreshLimits
    _tasks: dict[ScopeKey, asyncio.Task[None]] = field(default_factory=dict[ScopeKey, asyncio.Task[None]], init=False)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_CONNECTORS_AT_ONCE), init=False)

    def __post_init__(self) -> None:
        self.ownership.watch(SCOPES)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Refresh while the context is open. A refresh interrupted on exit starts over on another server."""
        keeper = asyncio.create_task(self._keep(), name="metadata-index")
        try:
            yield
        finally:
            tasks = [keeper, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def start(self, user: User, connector: Connector, key: ScopeKey) -> None:
        """Start to refresh the user's view in the background if it is due and the user has a valid login."""
        if key in self._tasks:
            return
        task = self._tasks[key] = asyncio.create_task(self.refresh(user, connector, key), name="metadata-refresh")
        task.add_done_callback(lambda ended: self._ended(key, ended))

    def _ended(self, key: ScopeKey, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(key, None)
        if not task.cancelled() and (error := task.exception()):
            log.error("metadata refresh failed", connector=key.connector, exc_info=error)

    async def refresh(self, user: User, connector: Connector, key: ScopeKey) -> None:
        """Read a data source as the user if it is due and no other process is reading it.

        Never raises QueryServerError.
        """
        try:
            if await self.lookups.can_run_here(connector):
                await self._read(user, connector, key, interval=self.limits.interval)
        except errors.QueryServerError as error:
            log.info("metadata not read", connector=connector.key, code=error.code)

    async def refresh_now(self, user: User, connector: Connector, progress: Progress = no_progress) -> int:
        """Read a data source even if it is not due. Return the number of tables and views.

        Reads as the user if the engine acts with its callers' rights, otherwise with the service login. While another
        server is reading the data source, waits for at most three minutes. Raises QueryServerError.
        """
        key = scope_key(self.connectors, user, connector)
        if key is None:
            raise errors.NotSupported("This connector has no metadata or cannot run on this server.")
        if not await self.lookups.can_run_here(connector):
            raise errors.EngineUnavailable("Another server is using this connector's database.")
        reader = _SERVICE if key.user_id is None else user
        clock = asyncio.get_running_loop().time
        give_up = clock() + _TRY_FOR_S
        while True:
            tables = await self._read(reader, connector, key, interval=timedelta(0), progress=progress)
            if tables is not None:
                return tables
            if clock() > give_up:
                raise claim_lost_error()
            progress(0, "Waiting for another server that is reading this data source.")
            await asyncio.sleep(_TRY_EVERY_S)

    async def _read(
        self, user: User, connector: Connector, key: ScopeKey, *, interval: timedelta, progress: Progress = no_progress
    ) -> int | None:
        """Read the data source, and return the number of tables.

        Returns None if the refresh is not due or another server is reading the data source.

        Raises QueryServerError.
        """
        async with self._slots:
            await self.ownership.require_current()
            if not self.ownership.may_take_over:
                return None
            claim = await self.records.claim(key, owner=self.ownership.id, interval=interval)
            if claim is None:
                return None
            with self.ownership.holding(SCOPES, claim.scope_id, claim.fence):
                try:
                    reading = _Refresh(self, user, connector, claim, progress).read()
                    return await self.ownership.run(reading, partial(self.records.require, claim))
                except (errors.QueryServerError, asyncio.CancelledError) as error:
                    # Retry soon: a user may provide a login at any time, and after a shutdown another server may take
                    # over.
                    soon = isinstance(
                        error, errors.CredentialsRequired | errors.EngineJwtRequired | asyncio.CancelledError
                    )
                    await asyncio.shield(self.records.give_up(claim, soon=soon))
                    raise

    async def _keep(self) -> None:
        clock = asyncio.get_running_loop().time
        swept, counted = clock() - _SWEEP_EVERY_S, clock() - _COUNT_EVERY_S
        await asyncio.sleep(self.limits.first_after_s * random.uniform(0.5, 1.0))  # noqa: S311 no secret
        while True:
            try:
                if clock() - swept >= _SWEEP_EVERY_S:
                    await self.records.sweep(unused_for=_UNUSED_FOR)
                    swept = clock()
                self._start_due()
                if clock() - counted >= _COUNT_EVERY_S:
                    for kind, objects in (await self.records.counts()).items():
                        self.metrics.index_objects.labels(kind).set(objects)
                    counted = clock()
            except errors.QueryServerError as error:
                log.warning("metadata index maintenance failed", code=error.code)
            except Exception:  # last resort of a task: refreshes must continue
                log.exception("metadata index maintenance failed")
            wait_s = min(_CHECK_EVERY_S, self.limits.interval.total_seconds())
            await asyncio.sleep(wait_s * random.uniform(0.8, 1.0))  # noqa: S311 no secret

    def _start_due(self) -> None:
        for connector in self.connectors.visible(_SERVICE):
            key = scope_key(self.connectors, _SERVICE, connector)
            if key is not None and key.user_id is None:
                self.start(_SERVICE, connector, key)


class _Refresh:
    """One refresh of a claimed scope, with sequential lookups and batched writes."""

    def __init__(
        self,
        refresh: IndexRefresh,
        user: User,
        connector: Connector,
        claim: ScopeClaim,
        progress: Progress = no_progress,
    ) -> None:
        self._progress = progress
        self._records, self._lookups, self._limits = refresh.records, refresh.lookups, refresh.limits
        self._user, self._connector, self._claim = user, connector, claim
        self._timeout_s = connector.limits.metadata_timeout.total_seconds()
        self._indexed: Mapping[str, int] = {}
        self._listed: dict[str, list[str]] = {}
        self._unread: set[str] = set()
        self._tables = 0
        self._truncated = False
        self._found_no_room = False
        self._waiting: list[IndexedObject] = []

    async def read(self) -> int:
        """Read all objects, and return the number of tables. An error ends the refresh without removing objects."""
        started_at = await self._records.now()
        self._indexed = await self._records.tables_by_database(self._claim.scope_id)
        await self._read_databases()
        if self._unread:
            log.info("some databases could not be read", connector=self._connector.key, number=len(self._unread))
        await self._records.complete(
            self._claim,
            listed=self._listed,
            unread=self._unread,
            started_at=started_at,
            truncated=self._truncated or self._found_no_room,
            # Objects removed now free capacity for objects that were omitted.
            again=self._found_no_room,
        )
        return self._tables

    async def _read_databases(self) -> None:
        async with self._lookups.catalog(self._user, self._connector) as catalog:
            databases = list(await self._limited(catalog.databases()))
            databases += await self._unlisted(catalog, databases)
        for number, database in enumerate(databases):
            self._progress(number / len(databases), f"{self._tables} tables read.")
            await self._read_database(database)
        await self._write()

    async def _unlisted(self, catalog: Catalog, listed: Sequence[str]) -> Sequence[str]:
        """Return indexed databases that still exist but are not listed: Trino omits catalogs that are down.

        Unreadable databases are kept as indexed. Lookups end once the failed ones have taken as long as one timeout.
        """
        clock = asyncio.get_running_loop().time
        unlisted: list[str] = []
        missing = sorted(self._indexed.keys() - set(listed))
        # Shuffled, so that one slow catalog does not always prevent the same databases from being checked.
        waiting = random.sample(missing, k=len(missing))
        left_s = self._timeout_s
        while waiting and left_s > 0:
            database = waiting.pop()
            started_at = clock()
            try:
                described_database = await self._limited(catalog.database(database))
            except _MISSING_OBJECT:
                continue
            except errors.StatementRejected:  # the other databases may be in a working catalog
                self._keep_as_indexed([database])
                left_s -= clock() - started_at
                continue
            except errors.QueryServerError:  # each remaining database may take as long to fail
                self._keep_as_indexed([database])
                break
            if described_database.name == database:  # otherwise it is another spelling of a listed database
                unlisted.append(database)
        self._keep_as_indexed(waiting)
        return sorted(unlisted)

    def _keep_as_indexed(self, databases: Sequence[str]) -> None:
        """Keep the indexed rows of unreadable databases, and count their tables."""
        self._unread.update(databases)
        self._tables += sum(self._indexed.get(database, 0) for database in databases)

    async def _read_database(self, database: str) -> None:
        async with self._lookups.catalog(self._user, self._connector) as catalog:
            try:
                described_database = await self._limited(catalog.database(database))
                comment, owner = described_database.comment, described_database.owner_name
            except _UNREADABLE_OBJECT:
                comment = owner = None
            await self._put(IndexedObject(DATABASE, database, "", comment, owner))
            try:
                tables = await self._limited(catalog.tables(database))
            except _MISSING_OBJECT:
                tables = []
            except errors.StatementRejected:
                self._keep_as_indexed([database])
                tables = []
        room = self._limits.max_tables - self._tables
        self._truncated = self._truncated or len(tables) > room
        tables = tables[: max(room, 0)]
        self._tables += len(tables)
        names = self._listed[database] = [table.name for table in tables]
        for one in tables:
            await self._put(IndexedObject(kind_of(one.kind), database, one.name, one.comment or None))
        for start in range(0, len(tables), _TABLES_PER_CATALOG):
            async with self._lookups.catalog(self._user, self._connector) as catalog:
                for name in names[start : start + _TABLES_PER_CATALOG]:
                    await self._read_table(catalog, database, name)

    async def _read_table(self, catalog: Catalog, database: str, name: str) -> None:
        try:
            table = await self._limited(catalog.table(database, name))
        except _UNREADABLE_OBJECT:
            return
        indexed = indexed_table(table, self._limits.max_columns)
        # The object gets the name from the listing, because `complete` compares indexed names with listed names.
        await self._put(replace(indexed, database=database, name=name, comment=indexed.comment or None))

    async def _limited(self, lookup: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await lookup
        except TimeoutError:
            raise errors.EngineTimeout("The data source did not respond in time.") from None

    async def _put(self, indexed: IndexedObject) -> None:
        self._waiting.append(indexed)
        if len(self._waiting) >= _WRITE_EVERY:
            await self._write()

    async def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            # Twice the limit: removed tables are deleted only at the end, and new tables must fit in addition to them.
            # There must be a limit, because a refresh that always fails never reaches the end.
            bound = 2 * self._limits.max_tables
            scope_id, claim = self._claim.scope_id, self._claim
            is_whole = await self._records.put(scope_id, waiting, max_tables=bound, claim=claim)
            self._found_no_room = self._found_no_room or not is_whole
