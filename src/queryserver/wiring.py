"""Builds all services from the settings and opens them in one exit stack."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from queryserver.administration.broker_check import ping_broker
from queryserver.administration.build import configuration_services
from queryserver.administration.readiness import Readiness
from queryserver.catalog.build import metadata_cache, metadata_services
from queryserver.connectors.connection_tests import ConnectionTests
from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.instances import StoredConnectors
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.connectors.repository import CHANGED as CONNECTORS_CHANGED
from queryserver.connectors.repository import ConnectorRepository
from queryserver.connectors.sources import configured_connectors, read_stored
from queryserver.connectors.types import TYPES
from queryserver.engines.protocol import Engine
from queryserver.files.build import BUILDERS, Builder, open_storage
from queryserver.files.model import Scheme
from queryserver.identity.build import open_accounts
from queryserver.identity.limits import RequestCounts, RequestLimits, Streams
from queryserver.identity.users import Users
from queryserver.imports.build import import_services, open_import_files
from queryserver.platform.byte_budget import ByteBudget
from queryserver.platform.computation_pool import computation_pool
from queryserver.platform.database import Notices, listening
from queryserver.platform.metrics import UNMEASURED, Metrics
from queryserver.platform.migrations import require_usable
from queryserver.platform.prometheus import MetricsPage
from queryserver.platform.roles import Role
from queryserver.platform.settings.sections import TaskServerSettings
from queryserver.platform.settings.tree import Settings
from queryserver.platform.shutdown import ENGINES_CLOSED_WITHIN_S, stop_step
from queryserver.platform.threads import open_threads
from queryserver.search.build import index_feed, search_services
from queryserver.services import Services
from queryserver.statements.build import FleetMember, SharedResources, StatementBuilder, StoredRecords, open_records
from queryserver.statements.runner import RunnerHooks
from queryserver.tasks.build import schedule_services, task_services
from queryserver.tasks.instances import Instances, Load

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
    """All services, running; closed in reverse order.

    `alone`: no other process can use this database, so leases of ended processes are taken over at once. `engines`
    creates the engine of a connector, `stores` the file system of a scheme. Raises ConfigurationError, SchemaMismatch,
    DatabaseUnavailable.
    """
    async with AsyncExitStack() as stack:
        registry = registry or CollectorRegistry()
        metrics = _metrics(settings, registry)
        records = await stack.enter_async_context(open_records(settings, metrics))
        accounts = await stack.enter_async_context(open_accounts(settings, records.database, metrics))
        builder, stored = EngineBuilder(settings), ConnectorRepository(records.database, accounts.sealer)
        connectors = _connectors(settings, partial(engines, builder), stored, metrics)
        stack.push_async_callback(_close_engines, connectors, builder)
        await connectors.refresh()
        threads = stack.enter_context(open_threads())
        computations = await stack.enter_async_context(computation_pool(settings.desktop))
        streams = Streams(settings.editor.max_streams_per_user, accounts.directory, every=settings.desktop.auth.recheck)
        rendering, notices = ByteBudget(settings.editor.rendering_max_bytes), Notices(records.database)
        storage = await stack.enter_async_context(open_storage(settings, records.database, streams, threads, stores))
        import_files = await stack.enter_async_context(open_import_files(settings, records.database, storage.stores))
        broker = _broker(settings.desktop.task_server)
        cache = metadata_cache(records.database, threads.metadata, settings.editor)
        statements = StatementBuilder(
            settings,
            records,
            accounts,
            connectors,
            RunnerHooks(cache.objects_changed, import_files.imports.session, import_files.import_lost.set),
            SharedResources(notices, streams, threads, rendering, computations, storage.statement_files, metrics),
            FleetMember(role, broker),
        ).build()
        feed = index_feed(settings.metadata, records.database, connectors)
        metadata = metadata_services(
            editor=settings.editor,
            connectors=connectors,
            sessions=records.sessions,
            cache=cache,
            threads=threads.rendering,
            rendering=rendering,
            computations=computations,
            metrics=metrics,
            statements=statements,
            on_answer=feed.add if feed else None,
        )
        searching = search_services(
            settings=settings,
            database=records.database,
            connectors=connectors,
            stores=storage.stores,
            threads=threads,
            metrics=metrics,
            feed=feed,
            lookups=metadata.lookups,
            owner=statements.runner.owner,
        )
        importing = import_services(
            import_files,
            threads=threads.importing,
            computations=computations,
            users=accounts.directory,
            connectors=connectors,
            metadata=metadata,
            statements=statements,
        )
        readiness, stored_ones = _readiness(settings, records), StoredConnectors(stored, builder, connectors.refresh)
        instances = Instances(records.database, heartbeat=timedelta(seconds=settings.desktop.task_server.heartbeat_s))
        tasks = task_services(
            settings,
            records.database,
            statements=statements,
            orphans=storage.orphans,
            area=import_files.area,
            refresh=searching.refresh,
            connectors=connectors,
            users=accounts.directory,
            instances=instances,
            notices=notices,
            broker=broker,
            metrics=metrics,
        )
        scheduling = schedule_services(
            settings, records.database, accounts.directory, connectors, statements, instances, threads, metrics
        )
        page = MetricsPage(registry, metrics, records.database, threads.upkeep, tasks.service.gauges)
        services = Services(
            settings=settings,
            accounts=accounts,
            users=Users(records.database),
            connectors=connectors,
            stored_connectors=stored_ones,
            connection_tests=ConnectionTests(builder, engines, stored_ones, statements.runner.data.may_hold),
            statements=statements,
            metadata=metadata,
            searching=searching,
            storage=storage,
            importing=importing,
            configuration=configuration_services(settings, records.database, connectors, storage.stores, readiness),
            streams=streams,
            request_limits=RequestLimits(RequestCounts(records.database), most=settings.limits.api_requests_per_minute),
            readiness=readiness,
            threads=threads,
            registry=registry,
            metrics=metrics,
            metrics_text=page if settings.desktop.metrics.enable_prometheus else None,
            broker=broker,
            instances=instances,
            tasks=tasks,
            scheduling=scheduling,
        )
        for clean_up in (storage.orphans.clean_up, import_files.area.clean_up, importing.janitor.clean_up):
            records.retention.include(clean_up)
        for running in _running(services, role, dsn=records.dsn, alone=alone):
            await stack.enter_async_context(running())
        await stack.enter_async_context(import_files.area.running(alone=alone))
        yield services


def _running(
    services: Services, role: Role, *, dsn: str, alone: bool
) -> Iterator[Callable[[], AbstractAsyncContextManager[object]]]:
    """The background work of the services, in start order."""
    statements, connectors = services.statements, services.connectors
    yield partial(services.instances.present, statements.runner.owner, role, partial(_load, services))
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
    yield partial(statements.runner.running, take_over_all=alone)
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


def _metrics(settings: Settings, registry: CollectorRegistry) -> Metrics:
    if not settings.desktop.metrics.enable_prometheus:
        return UNMEASURED
    return Metrics(registry, dialects=[one.dialect for one in TYPES])


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
    """Time-limited: a driver may never return its thread, and the other services must be closed too."""
    with stop_step("engines are closed", within_s=ENGINES_CLOSED_WITHIN_S):
        with suppress(TimeoutError):
            async with asyncio.timeout(ENGINES_CLOSED_WITHIN_S):
                await connectors.aclose()
        await builder.aclose()


def _broker(settings: TaskServerSettings) -> "RedisBroker | None":
    if not settings.enabled:
        return None
    from queryserver.tasks.broker import RedisBroker  # noqa: PLC0415 arq: not in the memory of a server without it

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
