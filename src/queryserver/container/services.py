"""Settings to services."""

import os
import secrets
import socket
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from queryserver.container.accounts import AccountServices, open_accounts
from queryserver.container.connectors import build_engine, configured_connectors
from queryserver.db.database import Database, PoolLimits, open_database
from queryserver.db.migrations import require_newest
from queryserver.db.notices import PostgresNotices, listening
from queryserver.db.sessions import Sessions as SessionRepository
from queryserver.db.statements.leases import Leases
from queryserver.db.statements.records import Records
from queryserver.db.statements.retention import Retention
from queryserver.domain.connector import Connector
from queryserver.domain.errors import ConfigurationError
from queryserver.interfaces.engine import Engine
from queryserver.interfaces.results import ResultStore
from queryserver.results.segments import SegmentStore
from queryserver.services.connectors import Connectors
from queryserver.services.credentials import CredentialBook
from queryserver.services.readiness import Readiness
from queryserver.services.retention import RetentionSettings, RetentionSweep
from queryserver.services.running.execution import ExecutionSettings
from queryserver.services.running.runner import Runner, RunnerLimits, RunnerParts
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
from queryserver.settings.task_server import LocalResults
from queryserver.storages.local.storage import LocalStorage
from queryserver.tasks.inline import InlineQueue

_THREADS = 4


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that routes and commands call."""

    settings: Settings
    accounts: AccountServices
    connectors: Connectors
    access: Access
    submissions: Submissions
    following: Following
    reading: Reading
    downloads: Downloads
    ending: Ending
    history: History
    sessions: Sessions
    streams: Streams
    retention: RetentionSweep
    readiness: Readiness
    runner: Runner
    threads: Executor
    registry: CollectorRegistry


@dataclass(frozen=True, slots=True)
class _Foundation:
    """What everything else stands on."""

    settings: Settings
    dsn: str
    database: Database
    records: Records
    leases: Leases
    sessions: SessionRepository
    results: ResultStore
    accounts: AccountServices
    connectors: Connectors
    credentials: CredentialBook
    signals: StateSignals
    threads: Executor


@asynccontextmanager
async def open_services(
    settings: Settings,
    *,
    registry: CollectorRegistry | None = None,
    alone: bool = False,
    engines: Callable[[Connector, Path | None], Engine] = build_engine,
) -> AsyncGenerator[Services]:
    """All services, running; closed in the opposite order.

    `alone`: no other process can be using this database, so nothing waits for dead ones' leases.
    `engines` makes the engine of a connector; its second argument is the directory of local databases.
    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    async with AsyncExitStack() as stack:
        base = await _foundation(settings, engines, stack)
        runner = Runner(_owner(), _runner_parts(base))
        notices = PostgresNotices(base.database)
        queue = InlineQueue(runner, notices)
        stack.push_async_callback(queue.aclose)
        services = _services(base, runner, queue, notices, registry or CollectorRegistry())
        await stack.enter_async_context(services.retention.running())
        await stack.enter_async_context(runner.running(take_over_all=alone))
        await stack.enter_async_context(listening(base.dsn, queue.heard))
        yield services


async def _foundation(
    settings: Settings, engines: Callable[[Connector, Path | None], Engine], stack: AsyncExitStack
) -> _Foundation:
    dsn = settings.desktop.database.dsn
    if dsn is None:
        raise ConfigurationError(["desktop.database.url: a PostgreSQL database is needed, or `serve --embedded`."])
    await require_newest(dsn)
    database = await stack.enter_async_context(open_database(dsn, _pool_limits(settings)))
    records = Records(database)
    stack.push_async_callback(records.aclose)
    storage = await stack.enter_async_context(LocalStorage(_results_location(settings)))
    results = await stack.enter_async_context(SegmentStore(storage))
    accounts = await stack.enter_async_context(open_accounts(settings, database))
    connectors = Connectors(
        configured_connectors(settings),
        build=lambda connector: engines(connector, settings.desktop.connector_policy.local_database_dir),
        default=settings.notebook.default_interpreter,
    )
    stack.push_async_callback(connectors.aclose)
    sessions = SessionRepository(database)
    threads = stack.enter_context(ThreadPoolExecutor(_THREADS, thread_name_prefix="encoding"))
    return _Foundation(
        settings=settings,
        dsn=dsn,
        database=database,
        records=records,
        leases=Leases(database),
        sessions=sessions,
        results=results,
        accounts=accounts,
        connectors=connectors,
        credentials=CredentialBook(sessions, connectors, accounts.sealer),
        signals=StateSignals(),
        threads=threads,
    )


def _runner_parts(base: _Foundation) -> RunnerParts:
    editor = base.settings.editor
    return RunnerParts(
        leases=base.leases,
        sessions=base.sessions,
        results=base.results,
        users=base.accounts.directory,
        connectors=base.connectors,
        credentials=base.credentials,
        signals=base.signals,
        execution=ExecutionSettings(
            result_max_bytes=editor.result_max_bytes,
            log_max_bytes=editor.log_max_bytes,
            retention=timedelta(hours=editor.result_retention_h),
            cancel_wait=timedelta(seconds=editor.cancel_wait_s),
            lease=timedelta(seconds=editor.lease_timeout_s),
        ),
        limits=RunnerLimits(shutdown_grace=timedelta(seconds=base.settings.desktop.shutdown_grace_s)),
    )


def _services(
    base: _Foundation, runner: Runner, queue: InlineQueue, notices: PostgresNotices, registry: CollectorRegistry
) -> Services:
    settings, editor = base.settings, base.settings.editor
    access = Access(base.records, base.connectors)
    streams = Streams(editor.max_streams_per_user)
    following = Following(base.records, access, base.signals, streams)
    reading = Reading(
        ReadingParts(base.records, base.results, access, base.signals, base.threads, editor.batch_max_bytes)
    )
    ending = Ending(
        records=base.records,
        access=access,
        following=following,
        queue=queue,
        signals=base.signals,
        cancel_wait=timedelta(seconds=editor.cancel_wait_s),
    )
    return Services(
        settings=settings,
        accounts=base.accounts,
        connectors=base.connectors,
        access=access,
        submissions=_submissions(base, queue, access),
        following=following,
        reading=reading,
        downloads=Downloads(access, reading, enabled=settings.desktop.enable_download),
        ending=ending,
        history=History(base.records, base.connectors),
        sessions=_sessions(base, runner, notices),
        streams=streams,
        retention=_retention(base),
        readiness=_readiness(base),
        runner=runner,
        threads=base.threads,
        registry=registry,
    )


def _submissions(base: _Foundation, queue: InlineQueue, access: Access) -> Submissions:
    editor = base.settings.editor
    limits = SubmissionLimits(
        default_limit=editor.default_limit,
        result_max_rows=editor.result_max_rows,
        statement_max_bytes=editor.statement_max_bytes,
        max_statements_per_user=editor.max_statements_per_user,
        spool_max_bytes_per_user=editor.spool_max_bytes_per_user,
        lease=timedelta(seconds=editor.lease_timeout_s),
        allowed_settings=_allowed_settings(base.settings),
    )
    return Submissions(
        SubmissionParts(
            base.records, base.leases, base.sessions, base.connectors, base.credentials, queue, access, limits
        )
    )


def _sessions(base: _Foundation, runner: Runner, notices: PostgresNotices) -> Sessions:
    return Sessions(
        records=base.sessions,
        statements=base.records,
        connectors=base.connectors,
        credentials=base.credentials,
        runner=runner,
        notices=notices,
        limits=SessionLimits(
            max_per_user=base.settings.editor.max_sessions_per_user,
            lease=timedelta(seconds=base.settings.editor.lease_timeout_s),
            allowed_settings=_allowed_settings(base.settings),
        ),
    )


def _retention(base: _Foundation) -> RetentionSweep:
    editor = base.settings.editor
    return RetentionSweep(
        Retention(base.database),
        base.records,
        base.sessions,
        base.results,
        RetentionSettings(
            logs=timedelta(days=editor.log_retention_days),
            history=timedelta(days=editor.history_retention_days),
            run_every=timedelta(seconds=base.settings.retention.run_every_s),
        ),
    )


def _readiness(base: _Foundation) -> Readiness:
    return Readiness(
        database=partial(base.database.value, "select 1"),
        schema=partial(require_newest, base.dsn),
        result_store=base.results.ping,
    )


def _allowed_settings(settings: Settings) -> frozenset[str]:
    return frozenset(settings.desktop.connector_policy.session_conf_allowed)


def _pool_limits(settings: Settings) -> PoolLimits:
    database = settings.desktop.database
    return PoolLimits(
        min_size=database.pool_min,
        max_size=database.pool_max,
        connect_timeout=timedelta(seconds=database.connect_timeout_s),
        statement_timeout=timedelta(seconds=database.statement_timeout_s),
    )


def _results_location(settings: Settings) -> Path:
    chosen = settings.desktop.task_server.result_file_storage
    if chosen is None:
        return settings.desktop.data_dir / "results"
    if isinstance(chosen, LocalResults):
        return Path(chosen.location)
    key = "desktop.task_server.result_file_storage"
    raise ConfigurationError([f"{key}: results can be kept in local directories only, not in {chosen.backend}."])


def _owner() -> str:
    """Names this process among all that ever lived, so that a lease is never taken for another's."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}"
