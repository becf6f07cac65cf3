"""Runs catalog queries and other metadata lookups, with limits on their number and duration (Contract editor 10).

Results of catalog queries are cached, and concurrent identical queries share one lookup. If another process holds the
data, lookups are forwarded to that process. The service database stores the cache per connector in compressed form, and
per user where the data source may show different objects to different users (ADR 86).
"""

import asyncio
import hashlib
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

import orjson
import structlog

from queryserver import errors
from queryserver.catalog.queries import QUERIES_BY_KIND, CatalogQuery
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines import protocol
from queryserver.errors.base import DatabaseUnavailable
from queryserver.errors.statements import engine_process_lost
from queryserver.identity.model import Scope, User
from queryserver.platform.caches import SingleFlight
from queryserver.platform.database import Database
from queryserver.platform.fair_queue import ConnectorSlots
from queryserver.platform.metrics import Metrics
from queryserver.platform.threads import background, every
from queryserver.statements.external_access import ExternalData
from queryserver.statements.forwarding import WorkForwarder
from queryserver.statements.session_options import SessionCredentials

log = structlog.get_logger(__name__)

T = TypeVar("T")

_THREAD_ABOVE_BYTES = 16 * 1024
_MAX_BYTES = 32 * 1024 * 1024
"""Maximum size of the cached values of one user, or of one connector whose values all users share."""
_ALL_USERS = 0
"""In place of a user's id: the value is the same for all users of the connector."""
_ROW_BYTES = 128  # overhead of a row in addition to its value
_MIN_SWEEP_S = 5.0

PER_CONNECTOR = 8
"""Maximum number of concurrent lookups per connector, in addition to its statements."""
_PER_USER = 4
_TRIES = 4
"""How often a lookup is tried whose session is lost before it starts. The statements of one user can end three
processes in a row before that user must wait.
"""
_CATALOG_QUERY = "question"
_TABLE_EXISTS = "import_table_exists"

ResultListener = Callable[[User, Connector, CatalogQuery[Any], object], None]


def lookup_context(user: User, connector: Connector) -> protocol.StatementContext:
    """Return the context of a sample or plan, which may have effects that some tokens must not have.

    A view may call functions that change data. For a plan, MySQL may call the functions of a subquery, and Trino
    creates the table of CREATE TABLE … AS in some catalogs. The mode is not always set, because in a named session with
    an open transaction, engines refuse a context that is `read_only`, or use a savepoint.
    """
    may_only_read = connector.read_only or not user.has_scope(Scope.QUERY)
    return protocol.StatementContext(user=user.username, connector=connector.key, read_only=may_only_read)


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Identifies a cached value by user, connector and `digest`, a hash of the query.

    `user_id` is 0 if all users of the connector share the value.
    """

    user_id: int
    connector: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The cached value for a key (None if there is none), and the time of the lookup.

    `changed_at` is when the users of the key last changed objects in the data source. Lookups with different
    `changed_at` must not share a result. All times are from the database clock.
    """

    key: CacheKey
    value: bytes | None
    looked_at: datetime
    changed_at: datetime | None


_FIND = """
select now() as looked_at, changed.at as changed_at, kept.value
from (select max(changed_at) as at from metadata_changes where user_id = $1 and connector = $2) as changed
left join metadata_answers as kept
    on kept.user_id = $1 and kept.connector = $2 and kept.digest = $3
    and kept.looked_at > now() - $4::interval and (changed.at is null or kept.looked_at > changed.at)
"""

_PUT = """
insert into metadata_answers as kept (user_id, connector, digest, value, size_bytes, looked_at)
select $1::bigint, $2::text, $3::bytea, $4::bytea, $5::integer, $6::timestamptz
where $5 + (
    select coalesce(sum(size_bytes), 0) from metadata_answers
    where user_id = $1 and (user_id > 0 or connector = $2) and not (connector = $2 and digest = $3)
) <= $7
on conflict (user_id, connector, digest) do update
    set value = excluded.value, size_bytes = excluded.size_bytes, looked_at = excluded.looked_at
    where kept.looked_at < excluded.looked_at
returning true
"""

# Changes count for the values of the user and for shared values, because this process may not know which ones the
# connector has. Two users may change objects at the same time, so rows that are being deleted are skipped.
_CHANGED = """
with gone as (
    delete from metadata_answers where (user_id, connector, digest) in (
        select user_id, connector, digest from metadata_answers
        where user_id in ($1, 0) and connector = $2 for update skip locked
    )
)
insert into metadata_changes (user_id, connector, changed_at)
values ($1, $2, clock_timestamp()), (0, $2, clock_timestamp())
on conflict (user_id, connector) do update set changed_at = greatest(metadata_changes.changed_at, excluded.changed_at)
"""


class MetadataCacheRecords:
    """Reads and writes cached values. Each method is one transaction and raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, key: CacheKey, *, max_age: timedelta) -> CacheEntry:
        """Return the entry for a key.

        Its value is None unless a stored value is younger than `max_age` and newer than the last object change.
        """
        row = await self._database.row(_FIND, key.user_id, key.connector, key.digest, max_age)
        if row is None:
            raise AssertionError("an aggregate always has a row")
        return CacheEntry(key, row["value"], row["looked_at"], row["changed_at"])

    async def put(self, key: CacheKey, value: bytes, *, looked_at: datetime, max_bytes: int) -> bool:
        """Store a query result, and return whether it was stored.

        It is not stored if the cached values would exceed `max_bytes`, or if a newer result is already stored.
        """
        size = len(value) + _ROW_BYTES
        is_stored = await self._database.value(
            _PUT, key.user_id, key.connector, key.digest, value, size, looked_at, max_bytes
        )
        return is_stored is True

    async def objects_changed(self, user_id: int, connector: str) -> None:
        """Delete the user's and the shared values for a connector, and invalidate lookups in progress."""
        await self._database.execute(_CHANGED, user_id, connector)

    async def sweep(self, *, older_than: timedelta) -> int:
        deleted = await self._database.execute(
            "delete from metadata_answers where looked_at < now() - $1::interval", older_than
        )
        await self._database.execute(
            "delete from metadata_changes where changed_at < now() - $1::interval", 2 * older_than
        )
        return deleted


class MetadataCache:
    """Reads and writes cached results. If a result cannot be stored, it is not cached, and no error is raised."""

    def __init__(
        self, records: MetadataCacheRecords, connectors: Connectors, threads: Executor, *, max_age: timedelta
    ) -> None:
        self._records = records
        self._connectors = connectors
        self._threads = threads
        self._max_age = max_age
        self._period_s = max(max_age.total_seconds(), _MIN_SWEEP_S)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Delete expired values periodically while the context is open."""
        return background(every(self._period_s, self._sweep), name="metadata-sweep")

    async def find(self, user: User, connector: Connector, login: str, query: CatalogQuery[Any]) -> CacheEntry:
        """Return the cache entry for a query.

        `login` is the user's name in a data source that requires personal credentials; otherwise empty.
        """
        # The version is included, because another version of a connector may refer to another data source.
        digested = orjson.dumps([query.kind, query.names, login, connector.version])
        capabilities = self._connectors.engine(connector).capabilities
        # Views may read files, which each user reads with their own rights.
        differs = capabilities.differs_by_user or capabilities.reads_files
        user_id = user.id if differs else _ALL_USERS
        key = CacheKey(user_id, connector.key, hashlib.sha256(digested).digest())
        return await self._records.find(key, max_age=self._max_age)

    async def read(self, query: CatalogQuery[T], value: bytes) -> T:
        """Decompress and decode a cached value."""

        def unpack() -> T:
            return query.decode(zlib.decompress(value))

        if len(value) <= _THREAD_ABOVE_BYTES:
            return unpack()
        return await asyncio.get_running_loop().run_in_executor(self._threads, unpack)

    async def put(self, query: CatalogQuery[T], result: T, *, key: CacheKey, looked_at: datetime) -> None:
        """Store the result of a lookup that started at `looked_at`, unless the cache is disabled."""
        if not self._max_age:
            return

        def pack() -> bytes:
            return zlib.compress(query.encode(result), 1)

        value = await asyncio.get_running_loop().run_in_executor(self._threads, pack)
        try:
            await self._records.put(key, value, looked_at=looked_at, max_bytes=_MAX_BYTES)
        except DatabaseUnavailable:
            log.warning("metadata not cached", kind=query.kind)

    async def objects_changed(self, user_id: int, connector: str) -> None:
        """Record that the user has changed objects, so that no process returns earlier values."""
        await self._records.objects_changed(user_id, connector)

    async def _sweep(self) -> None:
        await self._records.sweep(older_than=timedelta(seconds=self._period_s))


@dataclass(slots=True, eq=False)
class Lookups:
    """Runs all engine queries that are not operations, while `running()` is open.

    `can_run` returns whether this process can access a connector's data. `on_result` is called with each result that
    an engine returns; it must not block or raise.
    """

    connectors: Connectors
    credentials: SessionCredentials
    cache: MetadataCache
    can_run: Callable[[Connector], Awaitable[bool]]
    forwarding: WorkForwarder
    external_data: ExternalData
    metrics: Metrics
    on_result: ResultListener | None
    _single_flight: SingleFlight = field(default_factory=SingleFlight, init=False)
    _slots: ConnectorSlots = field(
        default_factory=lambda: ConnectorSlots(per_connector=PER_CONNECTOR, per_user=_PER_USER), init=False
    )

    def __post_init__(self) -> None:
        self.forwarding.register(_CATALOG_QUERY, self._query_for_other_process)
        self.forwarding.register(_TABLE_EXISTS, self._table_exists_here)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with self.cache.running(), self._single_flight.running():
            yield

    async def run(self, user: User, connector: Connector, query: CatalogQuery[T], *, refresh: bool = False) -> T:
        """Return the result of a catalog query for this user, from the cache if possible.

        Concurrent identical queries share one lookup. Raises NotSupported, CredentialsRequired, EngineUnavailable,
        EngineTimeout, EngineForbidden, StatementRejected, and the errors of the query.
        """
        _as_catalog(self.connectors.engine(connector), connector)
        login = await self._login(user, connector)
        found = await self.cache.find(user, connector, login, query)
        if found.value is not None and not refresh:
            return await self.cache.read(query, found.value)

        is_own = False

        async def work() -> T:
            nonlocal is_own
            is_own = True
            result = await self._query_holder(user, connector, query)
            if self.on_result is not None:
                self.on_result(user, connector, query, result)
            await self.cache.put(query, result, key=found.key, looked_at=found.looked_at)
            return result

        # A lookup that started before an object change, or before this `refresh`, must not be shared.
        shared = object() if refresh else found.changed_at
        key, budget = (found.key, shared), connector.limits.metadata_timeout
        try:
            return await self._single_flight.join(key, work, budget=budget)
        except (errors.EngineError, errors.TooManyRequests) as error:
            # The limits and the lost session of the user whose call began the shared lookup do not concern this user.
            is_personal = isinstance(error, errors.TooManyRequests) or _is_lost(error)
            if is_own or found.key.user_id != _ALL_USERS or not is_personal:
                raise
        return await self._single_flight.join((key, user.id), work, budget=budget)

    @asynccontextmanager
    async def catalog(self, user: User, connector: Connector) -> AsyncGenerator[protocol.Catalog]:
        """Open a catalog with the user's rights, once a lookup slot is free. Raises the same errors as `run`."""
        _as_catalog(self.connectors.engine(connector), connector)
        async with (
            self._engine_options(user, connector) as (engine, options),
            _as_catalog(engine, connector).catalog(user, options) as catalog,
        ):
            yield catalog

    @asynccontextmanager
    async def session(
        self, user: User, connector: Connector, database: str | None = None
    ) -> AsyncGenerator[protocol.EngineSession]:
        """Open an engine session for one lookup, once a lookup slot is free. Raises the same errors as `run`."""
        async with (
            self._engine_options(user, connector, database) as (engine, options),
            engine.session(user, options) as session,
        ):
            yield session

    async def table_exists(
        self, user: User, connector: Connector, table: protocol.TableName, *, budget: timedelta
    ) -> bool:
        """Return whether the table currently exists. Raises the same errors as `run`."""
        arguments = [table.database, table.name]
        return orjson.loads(await self.run_at_holder(user, connector, _TABLE_EXISTS, arguments, budget=budget))

    async def _table_exists_here(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        async def look() -> bool:
            async with self._engine_options(user, connector) as (engine, options):
                if not isinstance(engine, protocol.LoadingEngine):
                    raise errors.NotSupported(f"The connector {connector.nice_name} cannot create tables from files.")
                async with engine.loader(user, options) as loader:
                    return await loader.exists(protocol.TableName(*arguments))

        return orjson.dumps(await _repeated(look))

    async def run_at_holder(
        self,
        user: User,
        connector: Connector,
        kind: str,
        arguments: Sequence[Any],
        *,
        budget: timedelta,
        owner: str | None = None,
    ) -> bytes:
        """Run a registered lookup in the process `owner` or, if this is None, in the process that holds the data.

        Raises the errors of the lookup, and EngineTimeout.
        """
        # The token is checked here but not forwarded, because a process that uses its own session needs no token.
        self.credentials.require_token(user, connector)

        async def work() -> bytes:
            target = owner or await self._holder(connector)
            if target == self.forwarding.owner:
                return await self.forwarding.run_here(user, connector, kind, arguments)
            async with self._slots.slot(connector.key, user.id):
                return await self.forwarding.send(target, user, connector, kind, arguments, budget=budget)

        return await self._single_flight.join(object(), work, budget=budget)

    async def can_run_here(self, connector: Connector) -> bool:
        """Return whether this process can access a connector's data.

        Raises EngineUnavailable if no process can access it at present.
        """
        return await self._holder(connector) == self.forwarding.owner

    def lists_functions(self, connector: Connector) -> bool:
        """Return whether the catalog lists functions. Raises NotSupported if the engine has no catalog."""
        return _as_catalog(self.connectors.engine(connector), connector).lists_functions

    async def _query_holder(self, user: User, connector: Connector, query: CatalogQuery[T]) -> T:
        target = await self._holder(connector)
        if target == self.forwarding.owner:
            return await self._query_engine(user, connector, query)
        async with self._slots.slot(connector.key, user.id):
            budget, arguments = connector.limits.metadata_timeout, [query.kind, *query.names]
            return query.decode(
                await self.forwarding.send(target, user, connector, _CATALOG_QUERY, arguments, budget=budget)
            )

    async def _query_engine(self, user: User, connector: Connector, query: CatalogQuery[T]) -> T:
        async def look() -> T:
            async with self.catalog(user, connector) as catalog:
                return await query.run(catalog)

        return await _repeated(look)

    async def _query_for_other_process(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        kind, *names = arguments
        query = QUERIES_BY_KIND[kind](*names)
        return query.encode(await self._query_engine(user, connector, query))

    async def _holder(self, connector: Connector) -> str:
        """Return the process that can access the data: this process, unless another process holds the data."""
        data = self.connectors.data_of(connector)
        if data is not None and not await self.can_run(connector):
            return await self.forwarding.holder(data)
        return self.forwarding.owner

    @asynccontextmanager
    async def _engine_options(
        self, user: User, connector: Connector, database: str | None = None
    ) -> AsyncGenerator[tuple[protocol.Engine, protocol.SessionOptions]]:
        await self._login(user, connector)
        if await self._holder(connector) != self.forwarding.owner:
            raise errors.EngineUnavailable("Another server has taken over this database. Retry the call.")
        async with self._slots.slot(connector.key, user.id):
            options = await self.credentials.options(user, connector, database=database)
            # Lookups change nothing, so they need no write access to files.
            capabilities = self.connectors.engine(connector).capabilities
            external_data = self.external_data.for_session(capabilities, read_only=True)
            try:
                async with self.connectors.using(connector) as engine, external_data.acting(user):
                    try:
                        yield engine, external_data.add_to(options)
                    except (errors.OutcomeUnknown, errors.SessionLost) as error:  # callers can safely repeat a lookup
                        raise errors.EngineUnavailable(error.message) from error
            except errors.EngineError as error:
                self.metrics.engine_failed(connector.dialect, error.code)
                raise

    async def _login(self, user: User, connector: Connector) -> str:
        """Return the caller's name in the data source; empty if the connector has a shared login.

        Raises CredentialsRequired, EngineJwtRequired.
        """
        capabilities = self.connectors.engine(connector).capabilities
        if capabilities.wants_external_token:
            self.credentials.require_token(user, connector)
        if not capabilities.wants_credentials:
            return ""
        credentials = await self.credentials.required(user, connector)
        return credentials.username if credentials else ""


def _as_catalog(engine: protocol.Engine, connector: Connector) -> protocol.CatalogEngine:
    if not isinstance(engine, protocol.CatalogEngine):
        raise errors.NotSupported(f"The connector {connector.nice_name} provides no metadata.")
    return engine


async def _repeated(look: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a lookup. If its session or its database process ends, repeat it in a new one.

    A lookup that was running when the process ended is repeated only once, because it may have been the reason.
    """
    is_suspect = False
    for _ in range(_TRIES - 1):
        try:
            return await look()
        except errors.EngineError as error:
            was_running = error.code == engine_process_lost.code
            if not _is_lost(error) or (was_running and is_suspect):
                raise
            is_suspect = is_suspect or was_running
    return await look()


def _is_lost(error: errors.QueryServerError) -> bool:
    """Return whether a lookup failed because its session or its database process has ended."""
    return error.code == engine_process_lost.code or isinstance(error.__cause__, errors.SessionLost)
