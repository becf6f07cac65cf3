"""Builds all services from the settings, and opens them in one exit stack."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from queryserver.administration.build import configuration_services
from queryserver.administration.readiness import Readiness, ping_broker
from queryserver.catalog.build import MetadataServices, metadata_cache, metadata_services
from queryserver.catalog.lookups import MetadataCache
from queryserver.connectors.connection_tests import ConnectionTests
from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.instances import StoredConnectors
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.connectors.repository import CHANGED as CONNECTORS_CHANGED
from queryserver.connectors.repository import ConnectorRepository, matching_keys
from queryserver.connectors.sources import configured_connectors, read_stored
from queryserver.connectors.types import TYPES
from queryserver.documents.build import document_service, trash_sweep
from queryserver.documents.documents import Documents
from queryserver.engines.protocol import Engine
from queryserver.exports import tables
from queryserver.exports.build import ExportServices, export_services
from queryserver.exports.files import FileRows
from queryserver.exports.model import FILES
from queryserver.exports.session import Exports
from queryserver.files.build import BUILDERS, Builder, StorageServices, open_storage
from queryserver.files.model import Scheme
from queryserver.identity.build import AccountServices, open_accounts
from queryserver.identity.limits import RequestCounts, RequestLimits, Streams
from queryserver.identity.model import User
from queryserver.identity.users import Users
from queryserver.imports.build import ImportFiles, ImportServices, import_services, open_import_files
from queryserver.platform.computation_pool import computation_pool
from queryserver.platform.database import Database, Notices, listening
from queryserver.platform.fair_queue import ByteBudget
from queryserver.platform.metrics import NO_METRICS, Metrics, MetricsPage
from queryserver.platform.migrations import require_usable
from queryserver.platform.ownership import Load, Ownership
from queryserver.platform.roles import Role
from queryserver.platform.settings.sections import TaskServerSettings
from queryserver.platform.settings.tree import Settings
from queryserver.platform.shutdown import ENGINES_CLOSED_WITHIN_S, stop_step
from queryserver.platform.threads import open_threads
from queryserver.search.build import SearchServices, index_feed, index_refresh, search_services
from queryserver.search.refresh import IndexFeed
from queryserver.services import Services
from queryserver.statements.build import (
    FleetMember,
    SharedResources,
    StatementBuilder,
    StatementServices,
    StoredRecords,
    open_records,
)
from queryserver.statements.model import Assignment
from queryserver.statements.runner import RunnerHooks
from queryserver.statements.traces import NO_TRACES, StatementTraces
from queryserver.tasks.build import ScheduleServices, TaskServices, schedule_services, task_services
from queryserver.tasks.execution import TaskJobs
from queryserver.tasks.instances import Instances, examine_fleet

if TYPE_CHECKING:
    from queryserver.tasks.broker import RedisBroker


@asynccontextmanager
async def open_services(
    settings: Settings,
    *,
    role: Role = Role.SERVER,
    registry: CollectorRegistry | None = None,
    alone: bool = False,
    engines: Callable[[EngineBuilder, Connector], Engine] = EngineBuilder.build,
    stores: Mapping[Scheme, Builder] = BUILDERS,
) -> AsyncGenerator[Services]:
    """Open all services and start their background work. They are closed in reverse order.

    `alone` means that no other process can use this database, so the work of ended processes is taken over
    immediately. `engines` creates the engine of a connector, `stores` the file system of a scheme. Raises
    ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    async with AsyncExitStack() as stack:
        registry = registry or CollectorRegistry()
        metrics = _metrics(settings, registry)
        traces = await stack.enter_async_context(_open_traces(settings, role))
        records = await stack.enter_async_context(open_records(settings, metrics, traces))
        database = records.database
        ownership = _ownership(settings, database)
        accounts = await stack.enter_async_context(open_accounts(settings, database, metrics))
        engine_builder, stored = EngineBuilder(settings), ConnectorRepository(database, accounts.sealer)
        connectors = _connectors(settings, partial(engines, engine_builder), stored, metrics)
        stack.push_async_callback(_close_engines, connectors, engine_builder)
        await connectors.refresh()
        threads = stack.enter_context(open_threads())
        computations = await stack.enter_async_context(computation_pool(settings.desktop))
        streams = Streams(settings.editor.max_streams_per_user, accounts.directory, every=settings.desktop.auth.recheck)
        rendering, notices = ByteBudget(settings.editor.rendering_max_bytes), Notices(database)
        storage = await stack.enter_async_context(open_storage(settings, database, ownership, streams, threads, stores))
        import_files = await stack.enter_async_context(open_import_files(settings, database, storage.stores))
        services = _ServiceBuilder(
            settings=settings,
            role=role,
            registry=registry,
            records=records,
            ownership=ownership,
            accounts=accounts,
            engines=engines,
            engine_builder=engine_builder,
            connectors=connectors,
            stored_connectors=StoredConnectors(stored, engine_builder, connectors.refresh),
            resources=SharedResources(
                notices, streams, threads, rendering, computations, storage.statement_files, metrics
            ),
            storage=storage,
            import_files=import_files,
        ).build()
        for clean_up in (storage.orphans.clean_up, import_files.area.clean_up, services.importing.janitor.clean_up):
            records.retention.add_clean_up_step(clean_up)
        records.retention.add_clean_up_step(trash_sweep(settings, database))
        for running in _running(services, role, dsn=records.dsn, alone=alone):
            await stack.enter_async_context(running())
        await stack.enter_async_context(import_files.area.running(alone=alone))
        yield services


@dataclass(frozen=True, kw_only=True)
class _ServiceBuilder:
    """Builds the services of each package from the opened resources and from the services of lower packages."""

    settings: Settings
    role: Role
    registry: CollectorRegistry
    records: StoredRecords
    ownership: Ownership
    accounts: AccountServices
    engines: Callable[[EngineBuilder, Connector], Engine]
    engine_builder: EngineBuilder
    connectors: Connectors
    stored_connectors: StoredConnectors
    resources: SharedResources
    storage: StorageServices
    import_files: ImportFiles

    def build(self) -> Services:
        settings, database, resources = self.settings, self.records.database, self.resources
        try_acquire, calls_per_minute = self.statements.runner.data.try_acquire, settings.limits.api_requests_per_minute
        return Services(
            settings=settings,
            accounts=self.accounts,
            users=Users(database),
            connectors=self.connectors,
            stored_connectors=self.stored_connectors,
            connection_tests=ConnectionTests(self.engine_builder, self.engines, self.stored_connectors, try_acquire),
            statements=self.statements,
            metadata=self.metadata,
            documents=self.documents,
            searching=self.searching,
            storage=self.storage,
            importing=self._importing(),
            exporting=self.exporting,
            configuration=configuration_services(
                settings, database, self.connectors, self.storage.stores, self.documents, self.readiness, examine_fleet
            ),
            streams=resources.streams,
            request_limits=RequestLimits(RequestCounts(database), limit=calls_per_minute),
            readiness=self.readiness,
            threads=resources.threads,
            registry=self.registry,
            metrics=resources.metrics,
            metrics_text=self._metrics_page() if settings.desktop.metrics.enable_prometheus else None,
            broker=self.broker,
            ownership=self.ownership,
            instances=self.instances,
            tasks=self.tasks,
            scheduling=self._scheduling(),
        )

    @cached_property
    def broker(self) -> "RedisBroker | None":
        return _broker(self.settings.desktop.task_server)

    @cached_property
    def readiness(self) -> Readiness:
        return _readiness(self.settings, self.records)

    @cached_property
    def instances(self) -> Instances:
        heartbeat = timedelta(seconds=self.settings.desktop.task_server.heartbeat_s)
        return Instances(self.records.database, heartbeat=heartbeat)

    @cached_property
    def metadata_cache(self) -> MetadataCache:
        threads = self.resources.threads.metadata
        return metadata_cache(self.records.database, self.connectors, threads, self.settings.editor)

    @cached_property
    def statements(self) -> StatementServices:
        files = self.import_files
        exports = Exports({FILES: self._open_files, tables.KIND: self._open_table})
        hooks = RunnerHooks(
            self.metadata_cache.objects_changed, files.imports.session, files.import_lost.set, exports.session
        )
        return StatementBuilder(
            self.settings,
            self.records,
            self.accounts,
            self.connectors,
            hooks,
            self.resources,
            FleetMember(self.role, self.ownership, self.broker),
        ).build()

    def _open_files(self, assignment: Assignment, user: User) -> AbstractAsyncContextManager[FileRows]:
        # Called when statements run, because exports use the services of statements.
        return self.exporting.files.open(assignment, user)

    def _open_table(self, assignment: Assignment, user: User) -> AbstractAsyncContextManager[tables.TableSink]:
        return self.exporting.tables.open(assignment, user)

    @cached_property
    def index_feed(self) -> IndexFeed | None:
        return index_feed(self.settings.metadata, self.records.database, self.connectors)

    @cached_property
    def metadata(self) -> MetadataServices:
        return metadata_services(
            editor=self.settings.editor,
            connectors=self.connectors,
            sessions=self.records.sessions,
            cache=self.metadata_cache,
            resources=self.resources,
            statements=self.statements,
            on_result=self.index_feed.add if self.index_feed else None,
        )

    @cached_property
    def documents(self) -> Documents:
        return document_service(self.settings, self.records.database, self.connectors, self.statements.access)

    @cached_property
    def searching(self) -> SearchServices:
        refresh = index_refresh(
            self.settings.metadata,
            self.records.database,
            self.connectors,
            self.metadata.lookups,
            ownership=self.ownership,
            metrics=self.resources.metrics,
        )
        return search_services(
            settings=self.settings,
            database=self.records.database,
            connectors=self.connectors,
            stores=self.storage.stores,
            resources=self.resources,
            feed=self.index_feed,
            refresh=refresh,
        )

    @cached_property
    def exporting(self) -> ExportServices:
        return export_services(
            self.settings,
            storage=self.storage,
            users=self.accounts.directory,
            connectors=self.connectors,
            statements=self.statements,
            metadata=self.metadata,
            import_files=self.import_files,
            threads=self.resources.threads,
        )

    def _importing(self) -> ImportServices:
        return import_services(
            self.import_files,
            ownership=self.ownership,
            threads=self.resources.threads.importing,
            computations=self.resources.computations,
            users=self.accounts.directory,
            connectors=self.connectors,
            metadata=self.metadata,
            statements=self.statements,
        )

    @cached_property
    def tasks(self) -> TaskServices:
        settings, database = self.settings, self.records.database
        jobs = TaskJobs(
            retention=self.statements.retention,
            orphans=self.storage.orphans,
            area=self.import_files.area,
            refresh=self.searching.refresh,
            connectors=self.connectors,
            users=self.accounts.directory,
            matching_keys=partial(matching_keys, settings, database),
        )
        return task_services(
            settings,
            database,
            jobs=jobs,
            statements=self.statements,
            instances=self.instances,
            ownership=self.ownership,
            resources=self.resources,
            broker=self.broker,
        )

    def _scheduling(self) -> ScheduleServices:
        return schedule_services(
            self.settings,
            self.records.database,
            self.accounts.directory,
            self.connectors,
            self.statements,
            self.instances,
            self.ownership,
            self.resources,
            documents=self.documents,
            exports=self.exporting,
        )

    def _metrics_page(self) -> MetricsPage:
        resources, gauges = self.resources, self.tasks.service.gauges
        return MetricsPage(self.registry, resources.metrics, self.records.database, resources.threads.upkeep, gauges)


def _running(
    services: Services, role: Role, *, dsn: str, alone: bool
) -> Iterator[Callable[[], AbstractAsyncContextManager[object]]]:
    """Yield the background work of the services, in start order."""
    statements, connectors = services.statements, services.connectors
    yield partial(services.ownership.running, role, partial(_load, services), alone=alone)
    yield services.storage.transfers.running
    yield services.storage.operations.running
    if services.metrics_text:
        yield services.metrics_text.running
    if services.broker:
        yield services.broker.running
        if role is Role.SERVER:
            yield partial(services.broker.listening, statements.signals.notify)
    yield services.request_limits.running
    yield statements.changed_states.running
    yield statements.retention.running
    yield services.connection_tests.running
    yield statements.forwarding.running
    yield services.metadata.lookups.running
    yield statements.runner.running
    yield partial(services.storage.orphans.running, alone=alone)
    yield services.importing.janitor.running
    yield services.searching.running
    yield statements.dispatcher.listening
    if role is Role.WORKER:
        yield services.tasks.runner.running
    if role is Role.BEAT:
        yield services.scheduling.beat.running
    if role is (Role.WORKER if services.settings.desktop.task_server.enabled else Role.SERVER):
        yield services.scheduling.deliveries.running
    yield connectors.watching
    yield partial(listening, dsn, partial(_notified, services), connectors.may_have_changed)


def _ownership(settings: Settings, database: Database) -> Ownership:
    heartbeat = timedelta(seconds=settings.desktop.task_server.heartbeat_s)
    return Ownership(database, lease=settings.editor.lease_timeout, heartbeat=heartbeat)


def _metrics(settings: Settings, registry: CollectorRegistry) -> Metrics:
    if not settings.desktop.metrics.enable_prometheus:
        return NO_METRICS
    return Metrics(registry, dialects=[one.dialect for one in TYPES])


@asynccontextmanager
async def _open_traces(settings: Settings, role: Role) -> AsyncGenerator[StatementTraces]:
    if not settings.tracing.otlp_endpoint:
        yield NO_TRACES
        return
    # The SDK is loaded only if tracing is on, because loading it takes 0.1 s.
    from queryserver.platform.spans import open_span_recorder  # noqa: PLC0415
    from queryserver.statements.recorded_traces import RecordedTraces  # noqa: PLC0415

    async with open_span_recorder(settings.tracing, role=role.value) as recorder:
        yield RecordedTraces(recorder)


def _connectors(
    settings: Settings, build: Callable[[Connector], Engine], stored: ConnectorRepository, metrics: Metrics
) -> Connectors:
    return Connectors(
        configured_connectors(settings),
        build=build,
        wheel=settings.notebook.interpreters_shown_on_wheel,
        default=settings.notebook.default_interpreter,
        read_stored=partial(read_stored, stored, settings),
        metrics=metrics,
    )


def _readiness(settings: Settings, records: StoredRecords) -> Readiness:
    return Readiness(
        database=partial(records.database.value, "select 1"),
        schema=partial(require_usable, records.dsn),
        result_store=records.results.ping,
        broker=partial(ping_broker, settings) if settings.desktop.task_server.enabled else None,
    )


async def _close_engines(connectors: Connectors, builder: EngineBuilder) -> None:
    """Close the engines within a time limit: a driver may never return its thread, which would delay other services."""
    with stop_step("engines are closed", within_s=ENGINES_CLOSED_WITHIN_S):
        with suppress(TimeoutError):
            async with asyncio.timeout(ENGINES_CLOSED_WITHIN_S):
                await connectors.aclose()
        await builder.aclose()


def _broker(settings: TaskServerSettings) -> "RedisBroker | None":
    if not settings.enabled:
        return None
    from queryserver.tasks.broker import RedisBroker  # noqa: PLC0415 arq is loaded only if the task server is enabled

    return RedisBroker(settings)


def _load(services: Services) -> Load:
    runner = services.statements.runner
    return Load(running=runner.statements.active + services.tasks.runner.active, capacity=runner.limits.capacity)


def _notified(services: Services, kind: str, subject: str) -> None:
    if kind == CONNECTORS_CHANGED:
        services.connectors.may_have_changed()
        return
    statements = services.statements
    if not statements.forwarding.notified(kind, subject) and not services.tasks.runner.notified(kind, subject):
        statements.dispatcher.notified(kind, subject)
