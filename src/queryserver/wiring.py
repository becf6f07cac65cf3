"""Settings to services: opens every capability, in one stack."""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from prometheus_client import CollectorRegistry

from queryserver.administration.build import ConfigurationServices, configuration_services, metrics_of, metrics_page
from queryserver.administration.readiness import Readiness
from queryserver.catalog.build import MetadataServices, metadata_cache, metadata_services
from queryserver.catalog.cache import MetadataCache
from queryserver.catalog.lookups import Lookups
from queryserver.connectors.build import stored_connectors
from queryserver.connectors.connection_tests import ConnectionTests
from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.connectors.repository import CHANGED as CONNECTORS_CHANGED
from queryserver.connectors.repository import ConnectorRepository
from queryserver.connectors.sources import configured_connectors, read_stored
from queryserver.engines.protocol import Engine
from queryserver.files.build import BUILDERS, Builder, StorageServices, open_storage
from queryserver.files.model import Scheme
from queryserver.identity.build import AccountServices, open_accounts
from queryserver.identity.callers import RequestLimits, Streams
from queryserver.identity.users import Users
from queryserver.imports.build import ImportFiles, ImportServices, import_janitor, import_services, open_import_files
from queryserver.imports.repository import ImportJanitor
from queryserver.platform.computing import computing_of
from queryserver.platform.computing_protocol import Computing
from queryserver.platform.database import Notices, listening
from queryserver.platform.deployment import RequestCounts
from queryserver.platform.limits import ByteBudget
from queryserver.platform.logs import AUDIT, AuditTrail
from queryserver.platform.metrics import Metrics
from queryserver.platform.migrations import require_newest
from queryserver.platform.settings.tree import Settings
from queryserver.platform.stopping import ENGINES_CLOSED_WITHIN_S, stop_step
from queryserver.platform.threads import Threads, open_threads
from queryserver.search.build import SearchServices, index_feed, search_services
from queryserver.search.feeding import IndexFeed
from queryserver.services import Services
from queryserver.sql.formatting import Formatting
from queryserver.sql.splitter import Choosing
from queryserver.statements.build import Kept, open_records, statement_administration
from queryserver.statements.downloads import Downloads
from queryserver.statements.execution import ExecutionSettings
from queryserver.statements.leases import Leases, statement_ends
from queryserver.statements.model import TextLimits
from queryserver.statements.paging import ResultReader
from queryserver.statements.runner import Runner, RunnerLimits, StatementQueue, StateSignals
from queryserver.statements.session_repository import CredentialBook
from queryserver.statements.sessions import Sessions
from queryserver.statements.status import Access, Ending, Following, History
from queryserver.statements.submission import SubmissionLimits, Submissions


@dataclass(frozen=True, slots=True)
class _Foundation:
    """The services that all others are built from."""

    settings: Settings
    metrics: Metrics
    kept: Kept
    leases: Leases
    accounts: AccountServices
    builder: EngineBuilder
    engines: Callable[[EngineBuilder, Connector], Engine]
    connectors: Connectors
    credentials: CredentialBook
    signals: StateSignals
    metadata: MetadataCache
    storage: StorageServices
    import_files: ImportFiles
    streams: Streams
    threads: Threads
    rendering: ByteBudget
    computing: Computing


@asynccontextmanager
async def open_services(
    settings: Settings,
    *,
    registry: CollectorRegistry | None = None,
    alone: bool = False,
    engines: Callable[[EngineBuilder, Connector], Engine] = EngineBuilder.build,
    stores: Mapping[Scheme, Builder] = BUILDERS,
) -> AsyncGenerator[Services]:
    """All services, running; closed in the opposite order.

    `alone`: no other process can be using this database, so leases of ended processes are taken over at once.
    `engines` makes the engine of a connector, `stores` the file system of a scheme.
    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    async with AsyncExitStack() as stack:
        registry = registry or CollectorRegistry()
        base = await _foundation(settings, engines, stores, metrics_of(settings.desktop.metrics, registry), stack)
        runner = _runner(base)
        notices = Notices(base.kept.database)
        queue = StatementQueue(runner, notices)
        page = metrics_page(registry, base.metrics, base.kept.database, base.threads.upkeep)
        services = replace(_services(base, runner, queue, notices, registry), metrics_text=page)
        if page is not None:
            await stack.enter_async_context(page.running())
        await stack.enter_async_context(services.request_limits.running())
        await stack.enter_async_context(services.retention.running())
        await stack.enter_async_context(services.connection_tests.running())
        await stack.enter_async_context(services.metadata.lookups.running())
        await stack.enter_async_context(runner.running(take_over_all=alone))
        await stack.enter_async_context(_janitor(base, runner).running())
        await stack.enter_async_context(services.searching.running())
        await stack.enter_async_context(queue.listening())
        await stack.enter_async_context(base.connectors.watching())
        await stack.enter_async_context(
            listening(base.kept.dsn, partial(_notified, services, queue), base.connectors.may_have_changed)
        )
        yield services


async def _foundation(
    settings: Settings,
    engines: Callable[[EngineBuilder, Connector], Engine],
    stores: Mapping[Scheme, Builder],
    metrics: Metrics,
    stack: AsyncExitStack,
) -> _Foundation:
    kept = await stack.enter_async_context(open_records(settings, metrics))
    accounts = await stack.enter_async_context(open_accounts(settings, kept.database, metrics))
    builder = EngineBuilder(settings)
    connectors = Connectors(
        configured_connectors(settings),
        build=partial(engines, builder),
        wheel=settings.notebook.interpreters_shown_on_wheel,
        default=settings.notebook.default_interpreter,
        read_stored=partial(read_stored, ConnectorRepository(kept.database, accounts.sealer), settings),
        metrics=metrics,
    )
    stack.push_async_callback(_close_engines, connectors)
    await connectors.refresh()
    threads = stack.enter_context(open_threads())
    streams = _streams(settings, accounts)
    storage = await stack.enter_async_context(open_storage(settings, kept.database, streams, threads, stores))
    kept.retention.include(storage.orphans.clean_up)
    import_files = await stack.enter_async_context(open_import_files(settings, kept.database, storage.stores))
    kept.retention.include(import_files.area.clean_up)
    return _Foundation(
        settings=settings,
        metrics=metrics,
        kept=kept,
        leases=Leases(kept.database, accounts.sealer, statement_ends(settings)),
        accounts=accounts,
        builder=builder,
        engines=engines,
        connectors=connectors,
        credentials=CredentialBook(
            kept.sessions, connectors, accounts.sealer, passes_tokens=settings.desktop.use_thrift_http_jwt
        ),
        signals=StateSignals(),
        metadata=metadata_cache(kept.database, threads.metadata, settings.editor),
        storage=storage,
        import_files=import_files,
        streams=streams,
        threads=threads,
        rendering=ByteBudget(settings.editor.rendering_max_bytes),
        computing=await stack.enter_async_context(computing_of(settings.desktop)),
    )


async def _close_engines(connectors: Connectors) -> None:
    """Limited in time: a driver may never return its thread, and the rest must be closed."""
    with stop_step("engines are closed", within_s=ENGINES_CLOSED_WITHIN_S), suppress(TimeoutError):
        async with asyncio.timeout(ENGINES_CLOSED_WITHIN_S):
            await connectors.aclose()


def _streams(settings: Settings, accounts: AccountServices) -> Streams:
    return Streams(settings.editor.max_streams_per_user, accounts.directory, every=settings.desktop.auth.recheck)


def _runner(base: _Foundation) -> Runner:
    editor = base.settings.editor
    return Runner(
        _owner(),
        leases=base.leases,
        sessions=base.kept.sessions,
        results=base.kept.results,
        users=base.accounts.directory,
        connectors=base.connectors,
        credentials=base.credentials,
        signals=base.signals,
        execution=ExecutionSettings(
            result_max_rows=editor.result_max_rows,
            result_max_bytes=editor.result_max_bytes,
            cell_max_bytes=editor.cell_max_bytes,
            log_max_bytes=editor.log_max_bytes,
            retention=editor.result_retention,
            cancel_wait=editor.cancel_wait,
            lease=editor.lease_timeout,
        ),
        limits=RunnerLimits(
            sessions_per_connector=editor.max_sessions_per_connector,
            shutdown_grace=base.settings.desktop.shutdown_grace,
            recheck_every=base.settings.desktop.auth.recheck,
        ),
        objects_changed=base.metadata.objects_changed,
        metrics=base.metrics,
        imports=base.import_files.imports.session,
        import_lost=base.import_files.import_lost.set,
    )


def _janitor(base: _Foundation, runner: Runner) -> ImportJanitor:
    janitor = import_janitor(
        base.import_files, base.accounts.directory, base.connectors, base.credentials, runner.may_hold
    )
    base.kept.retention.include(janitor.clean_up)
    return janitor


def _services(
    base: _Foundation, runner: Runner, queue: StatementQueue, notices: Notices, registry: CollectorRegistry
) -> Services:
    settings = base.settings
    access = Access(base.kept.records, base.connectors)
    following = Following(base.kept.records, access, base.signals, base.streams)
    reading = _reading(base, access)
    submissions = _submissions(base, queue, access)
    feed = index_feed(settings.metadata, base.kept.database, base.connectors)
    metadata = _metadata(base, runner, notices, submissions, feed)
    readiness = _readiness(base)
    connector_records = ConnectorRepository(base.kept.database, base.accounts.sealer)
    stored = stored_connectors(connector_records, base.builder, base.connectors.refresh)
    return Services(
        settings=settings,
        accounts=base.accounts,
        users=Users(base.kept.database),
        connectors=base.connectors,
        stored_connectors=stored,
        connection_tests=ConnectionTests(base.builder, base.engines, stored, runner.may_hold),
        access=access,
        submissions=submissions,
        following=following,
        reading=reading,
        formatting=Formatting(base.computing, max_bytes=settings.editor.statement_max_bytes),
        downloads=Downloads(access, reading, enabled=settings.desktop.enable_download, audit=AuditTrail(AUDIT)),
        ending=_ending(base, access, following, queue),
        history=History(base.kept.records, base.connectors),
        statement_administration=statement_administration(
            base.kept.database, base.kept.records, lambda statement_id, owner: queue.cancel(statement_id, owner=owner)
        ),
        sessions=_sessions(base, runner, notices),
        metadata=metadata,
        searching=_searching(base, feed, metadata.lookups, runner.owner),
        storage=base.storage,
        importing=_importing(base, metadata, submissions),
        configuration=_configuration(base, readiness),
        streams=base.streams,
        request_limits=_request_limits(base),
        retention=base.kept.retention,
        readiness=readiness,
        runner=runner,
        threads=base.threads,
        registry=registry,
        metrics=base.metrics,
        metrics_text=None,
    )


def _reading(base: _Foundation, access: Access) -> ResultReader:
    return ResultReader(
        records=base.kept.records,
        results=base.kept.results,
        access=access,
        signals=base.signals,
        threads=base.threads.rendering,
        batch_max_bytes=base.settings.editor.batch_max_bytes,
        budget=base.rendering,
    )


def _importing(base: _Foundation, metadata: MetadataServices, submissions: Submissions) -> ImportServices:
    return import_services(
        base.import_files,
        threads=base.threads.importing,
        computing=base.computing,
        connectors=base.connectors,
        credentials=base.credentials,
        metadata=metadata,
        submissions=submissions,
    )


def _configuration(base: _Foundation, readiness: Readiness) -> ConfigurationServices:
    return configuration_services(base.settings, base.kept.database, base.connectors, base.storage.stores, readiness)


def _ending(base: _Foundation, access: Access, following: Following, queue: StatementQueue) -> Ending:
    return Ending(
        records=base.kept.records,
        access=access,
        following=following,
        queue=queue,
        signals=base.signals,
        cancel_wait=base.settings.editor.cancel_wait,
    )


def _submissions(base: _Foundation, queue: StatementQueue, access: Access) -> Submissions:
    editor = base.settings.editor
    limits = SubmissionLimits(
        default_limit=editor.default_limit,
        result_max_rows=editor.result_max_rows,
        statement_max_bytes=editor.statement_max_bytes,
        max_statements_per_user=editor.max_statements_per_user,
        spool_max_bytes_per_user=editor.spool_max_bytes_per_user,
        lease=editor.lease_timeout,
        allowed_settings=_allowed_settings(base.settings),
        texts=TextLimits(editor.statement_text_max_bytes_per_user, editor.statement_text_kept_bytes),
    )
    return Submissions(
        records=base.kept.records,
        leases=base.leases,
        sessions=base.kept.sessions,
        connectors=base.connectors,
        credentials=base.credentials,
        queue=queue,
        access=access,
        limits=limits,
        audit=AuditTrail(AUDIT),
        choosing=Choosing(base.computing),
    )


def _sessions(base: _Foundation, runner: Runner, notices: Notices) -> Sessions:
    return Sessions(
        records=base.kept.sessions,
        statements=base.kept.records,
        connectors=base.connectors,
        credentials=base.credentials,
        runner=runner,
        notices=notices,
        signals=base.signals,
        max_per_user=base.settings.editor.max_sessions_per_user,
        allowed_settings=_allowed_settings(base.settings),
    )


def _metadata(
    base: _Foundation, runner: Runner, notices: Notices, submissions: Submissions, feed: IndexFeed | None
) -> MetadataServices:
    return metadata_services(
        editor=base.settings.editor,
        database=base.kept.database,
        users=base.accounts.directory,
        connectors=base.connectors,
        credentials=base.credentials,
        sessions=base.kept.sessions,
        cache=base.metadata,
        threads=base.threads.rendering,
        rendering=base.rendering,
        computing=base.computing,
        metrics=base.metrics,
        runner=runner,
        notices=notices,
        submissions=submissions,
        on_answer=feed.add if feed else None,
    )


def _searching(base: _Foundation, feed: IndexFeed | None, lookups: Lookups, owner: str) -> SearchServices:
    return search_services(
        settings=base.settings,
        database=base.kept.database,
        connectors=base.connectors,
        stores=base.storage.stores,
        threads=base.threads,
        metrics=base.metrics,
        feed=feed,
        lookups=lookups,
        owner=owner,
    )


def _notified(services: Services, queue: StatementQueue, kind: str, subject: str) -> None:
    if kind == CONNECTORS_CHANGED:
        services.connectors.may_have_changed()
    elif not services.metadata.forwarding.notified(kind, subject):
        queue.notified(kind, subject)


def _request_limits(base: _Foundation) -> RequestLimits:
    return RequestLimits(RequestCounts(base.kept.database), most=base.settings.limits.api_requests_per_minute)


def _readiness(base: _Foundation) -> Readiness:
    return Readiness(
        database=partial(base.kept.database.value, "select 1"),
        schema=partial(require_newest, base.kept.dsn),
        result_store=base.kept.results.ping,
    )


def _allowed_settings(settings: Settings) -> frozenset[str]:
    return frozenset(settings.desktop.connector_policy.session_conf_allowed)


def _owner() -> str:
    """Names this process among all that ever lived, so that a lease is never taken for another's."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}"
