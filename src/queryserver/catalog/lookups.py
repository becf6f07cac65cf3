"""Runs catalog and sample queries: from the cache, or on the engine within limits (Contract editor 10).

Concurrent identical lookups share one query. If another process holds the data, lookups are forwarded to it.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import orjson
import structlog

from queryserver import errors
from queryserver.catalog.cache import MetadataCache
from queryserver.catalog.queries import QUERIES_BY_KIND, CatalogQuery
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines import protocol
from queryserver.errors.statements import engine_process_lost
from queryserver.identity.model import User
from queryserver.platform.caches import SingleFlight
from queryserver.platform.fair_queue import ConnectorSlots
from queryserver.platform.metrics import Metrics
from queryserver.statements.forwarding import WorkForwarder
from queryserver.statements.open_sessions import ExternalData
from queryserver.statements.session_options import SessionCredentials

log = structlog.get_logger(__name__)

T = TypeVar("T")

PER_CONNECTOR = 8
"""Maximum number of concurrent lookups per connector, in addition to its statements."""
_PER_USER = 4
_CATALOG_QUERY = "question"
_TABLE_EXISTS = "import_table_exists"

ResultListener = Callable[[User, Connector, CatalogQuery[Any], object], None]


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

        Concurrent identical queries share one lookup.

        Raises NotSupported, CredentialsRequired, EngineUnavailable, EngineTimeout, EngineForbidden, StatementRejected,
        and the errors of the query.
        """
        _as_catalog(self.connectors.engine(connector), connector)
        login = await self._login(user, connector)
        found = await self.cache.find(user, connector, login, query)
        if found.value is not None and not refresh:
            return await self.cache.read(query, found.value)

        async def work() -> T:
            result = await self._query_holder(user, connector, query)
            if self.on_result is not None:
                self.on_result(user, connector, query, result)
            await self.cache.put(query, result, key=found.key, looked_at=found.looked_at)
            return result

        # A lookup that started before an object change, or before this `refresh`, must not be shared.
        shared = object() if refresh else found.changed_at
        return await self._single_flight.join((found.key, shared), work, budget=connector.limits.metadata_timeout)

    @asynccontextmanager
    async def catalog(self, user: User, connector: Connector) -> AsyncGenerator[protocol.Catalog]:
        """Open a catalog with the user's rights, within the limits. Raises the same errors as `run`."""
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
        """Open an engine session for a single lookup, within the limits. Raises the same errors as `run`."""
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
        async with self._engine_options(user, connector) as (engine, options):
            if not isinstance(engine, protocol.LoadingEngine):
                raise errors.NotSupported(f"The connector {connector.nice_name} cannot create tables from files.")
            async with engine.loader(user, options) as loader:
                return orjson.dumps(await loader.exists(protocol.TableName(*arguments)))

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
        """Run a registered lookup in the process `owner`. If that is None, run it in the process that holds the data.

        Raises the errors of the lookup, and EngineTimeout.
        """
        # The token is not forwarded, because a process that uses its own session needs none.
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
            try:
                return await self._query_engine(user, connector, query)
            except errors.EngineError as error:
                # Another statement ended the database process. Retry once, in a new process.
                if error.code != engine_process_lost.code and not isinstance(error.__cause__, errors.SessionLost):
                    raise
            return await self._query_engine(user, connector, query)
        async with self._slots.slot(connector.key, user.id):
            budget, arguments = connector.limits.metadata_timeout, [query.kind, *query.names]
            return query.decode(
                await self.forwarding.send(target, user, connector, _CATALOG_QUERY, arguments, budget=budget)
            )

    async def _query_engine(self, user: User, connector: Connector, query: CatalogQuery[T]) -> T:
        async with self.catalog(user, connector) as catalog:
            return await query.run(catalog)

    async def _query_for_other_process(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        kind, *names = arguments
        query = QUERIES_BY_KIND[kind](*names)
        return query.encode(await self._query_engine(user, connector, query))

    async def _holder(self, connector: Connector) -> str:
        """Return the process that can access the data: this process, unless another one holds it."""
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
        """Return the caller's name in the data source. Empty if the connector has a shared login.

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
