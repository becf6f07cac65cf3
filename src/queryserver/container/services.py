"""Settings to services."""

import os
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry

from queryserver.container.accounts import open_accounts
from queryserver.container.connectors import build_engine, configured_connectors
from queryserver.container.importing import (
    ImportFiles,
    ImportGround,
    import_janitor,
    import_services,
    imports_of,
    open_import_files,
)
from queryserver.container.interfaces.context import BuildContext
from queryserver.container.metadata import Ground, metadata_cache, metadata_services
from queryserver.container.records import Kept, open_records
from queryserver.container.storage import BUILDERS, Builder, StorageGround, open_storage
from queryserver.db.migrations import require_newest
from queryserver.db.notices import PostgresNotices, listening
from queryserver.db.statements.leases import Leases
from queryserver.domain.connector import Connector
from queryserver.domain.files import Scheme
from queryserver.interfaces.engine import Engine
from queryserver.services.connectors import Connectors
from queryserver.services.credentials import CredentialBook
from queryserver.services.everything import AccountServices, Services, StorageServices
from queryserver.services.importing.leftovers import ImportJanitor
from queryserver.services.metadata.cache import MetadataCache
from queryserver.services.readiness import Readiness
from queryserver.services.running.runner import Runner, RunnerLimits, RunnerParts
from queryserver.services.running.tools import ExecutionSettings
from queryserver.services.sessions import SessionLimits, Sessions
from queryserver.services.signals import StateSignals
from queryserver.services.statements.access import Access
from queryserver.services.statements.downloading import Downloads
from queryserver.services.statements.ending import Ending
from queryserver.services.statements.following import Following
from queryserver.services.statements.looking_back import History
from queryserver.services.statements.reading import Reading, ReadingParts
from queryserver.services.statements.submission import SubmissionLimits, SubmissionParts, Submissions
from queryserver.services.streams import Streams
from queryserver.settings import Settings
from queryserver.tasks.inline import InlineQueue

_THREADS = 4


@dataclass(frozen=True, slots=True)
class _Foundation:
    """What everything else stands on."""

    settings: Settings
    kept: Kept
    leases: Leases
    accounts: AccountServices
    connectors: Connectors
    credentials: CredentialBook
    signals: StateSignals
    metadata: MetadataCache
    storage: StorageServices
    import_files: ImportFiles
    streams: Streams
    threads: Executor


@asynccontextmanager
async def open_services(
    settings: Settings,
    *,
    registry: CollectorRegistry | None = None,
    alone: bool = False,
    engines: Callable[[Connector, BuildContext], Engine] = build_engine,
    stores: Mapping[Scheme, Builder] = BUILDERS,
) -> AsyncGenerator[Services]:
    """All services, running; closed in the opposite order.

    `alone`: no other process can be using this database, so nothing waits for dead ones' leases.
    `engines` makes the engine of a connector, `stores` the file system of a scheme.
    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    async with AsyncExitStack() as stack:
        base = await _foundation(settings, engines, stores, stack)
        runner = Runner(_owner(), _runner_parts(base))
        notices = PostgresNotices(base.kept.database)
        queue = InlineQueue(runner, notices)
        services = _services(base, runner, queue, notices, registry or CollectorRegistry())
        await stack.enter_async_context(services.retention.running())
        await stack.enter_async_context(services.metadata.lookups.running())
        await stack.enter_async_context(runner.running(take_over_all=alone))
        await stack.enter_async_context(_janitor(base, runner).running())
        await stack.enter_async_context(queue.listening())
        await stack.enter_async_context(listening(base.kept.dsn, partial(_hear, services, queue)))
        yield services


async def _foundation(
    settings: Settings,
    engines: Callable[[Connector, BuildContext], Engine],
    stores: Mapping[Scheme, Builder],
    stack: AsyncExitStack,
) -> _Foundation:
    kept = await stack.enter_async_context(open_records(settings))
    accounts = await stack.enter_async_context(open_accounts(settings, kept.database))
    context = BuildContext.of(settings)
    connectors = Connectors(
        configured_connectors(settings),
        build=lambda connector: engines(connector, context),
        default=settings.notebook.default_interpreter,
    )
    stack.push_async_callback(connectors.aclose)
    threads = stack.enter_context(ThreadPoolExecutor(_THREADS, thread_name_prefix="encoding"))
    streams = Streams(settings.editor.max_streams_per_user)
    ground = StorageGround(settings, kept.database, streams, threads)
    storage = await stack.enter_async_context(open_storage(ground, stores))
    kept.retention.include(storage.uploading.leftovers.clean_up)
    import_files = await stack.enter_async_context(open_import_files(settings, kept.database, storage.stores))
    kept.retention.include(import_files.area.clean_up)
    return _Foundation(
        settings=settings,
        kept=kept,
        leases=Leases(kept.database, accounts.sealer),
        accounts=accounts,
        connectors=connectors,
        credentials=CredentialBook(kept.sessions, connectors, accounts.sealer),
        signals=StateSignals(),
        metadata=metadata_cache(kept.database, threads, settings.editor),
        storage=storage,
        import_files=import_files,
        streams=streams,
        threads=threads,
    )


def _runner_parts(base: _Foundation) -> RunnerParts:
    editor = base.settings.editor
    return RunnerParts(
        leases=base.leases,
        sessions=base.kept.sessions,
        results=base.kept.results,
        users=base.accounts.directory,
        connectors=base.connectors,
        credentials=base.credentials,
        signals=base.signals,
        execution=ExecutionSettings(
            result_max_bytes=editor.result_max_bytes,
            log_max_bytes=editor.log_max_bytes,
            retention=editor.result_retention,
            cancel_wait=editor.cancel_wait,
            lease=editor.lease_timeout,
        ),
        limits=RunnerLimits(shutdown_grace=base.settings.desktop.shutdown_grace),
        objects_changed=base.metadata.objects_changed,
        imports=imports_of(base.import_files).session,
        import_lost=base.import_files.import_lost.set,
    )


def _janitor(base: _Foundation, runner: Runner) -> ImportJanitor:
    janitor = import_janitor(
        base.import_files, base.accounts.directory, base.connectors, base.credentials, runner.may_run
    )
    base.kept.retention.include(janitor.clean_up)
    return janitor


def _services(
    base: _Foundation, runner: Runner, queue: InlineQueue, notices: PostgresNotices, registry: CollectorRegistry
) -> Services:
    settings, editor = base.settings, base.settings.editor
    access = Access(base.kept.records, base.connectors)
    following = Following(base.kept.records, access, base.signals, base.streams)
    reading = Reading(
        ReadingParts(base.kept.records, base.kept.results, access, base.signals, base.threads, editor.batch_max_bytes)
    )
    ending = Ending(
        records=base.kept.records,
        access=access,
        following=following,
        queue=queue,
        signals=base.signals,
        cancel_wait=editor.cancel_wait,
    )
    parts = _submission_parts(base, queue, access)
    submissions = Submissions(parts)
    metadata = metadata_services(_ground(base), runner, notices, submissions)
    return Services(
        settings=settings,
        accounts=base.accounts,
        connectors=base.connectors,
        access=access,
        submissions=submissions,
        following=following,
        reading=reading,
        downloads=Downloads(access, reading, enabled=settings.desktop.enable_download),
        ending=ending,
        history=History(base.kept.records, base.connectors),
        sessions=_sessions(base, runner, notices),
        metadata=metadata,
        storage=base.storage,
        importing=import_services(
            ImportGround(base.import_files, base.threads, base.connectors, base.credentials, metadata, parts)
        ),
        streams=base.streams,
        retention=base.kept.retention,
        readiness=_readiness(base),
        runner=runner,
        threads=base.threads,
        registry=registry,
    )


def _submission_parts(base: _Foundation, queue: InlineQueue, access: Access) -> SubmissionParts:
    editor = base.settings.editor
    limits = SubmissionLimits(
        default_limit=editor.default_limit,
        result_max_rows=editor.result_max_rows,
        statement_max_bytes=editor.statement_max_bytes,
        max_statements_per_user=editor.max_statements_per_user,
        spool_max_bytes_per_user=editor.spool_max_bytes_per_user,
        lease=editor.lease_timeout,
        allowed_settings=_allowed_settings(base.settings),
    )
    return SubmissionParts(
        base.kept.records, base.leases, base.kept.sessions, base.connectors, base.credentials, queue, access, limits
    )


def _sessions(base: _Foundation, runner: Runner, notices: PostgresNotices) -> Sessions:
    return Sessions(
        records=base.kept.sessions,
        statements=base.kept.records,
        connectors=base.connectors,
        credentials=base.credentials,
        runner=runner,
        notices=notices,
        limits=SessionLimits(
            max_per_user=base.settings.editor.max_sessions_per_user,
            lease=base.settings.editor.lease_timeout,
            allowed_settings=_allowed_settings(base.settings),
        ),
    )


def _ground(base: _Foundation) -> Ground:
    return Ground(
        editor=base.settings.editor,
        database=base.kept.database,
        users=base.accounts.directory,
        connectors=base.connectors,
        credentials=base.credentials,
        sessions=base.kept.sessions,
        cache=base.metadata,
        threads=base.threads,
    )


def _hear(services: Services, queue: InlineQueue, kind: str, subject: str) -> None:
    if not services.metadata.elsewhere.heard(kind, subject):
        queue.heard(kind, subject)


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
