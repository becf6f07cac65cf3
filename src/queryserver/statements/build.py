"""The service database and the result store: all that administrative commands need."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

import structlog

from queryserver.errors.base import ConfigurationError
from queryserver.files.stores.local.storage import PrivateStorage
from queryserver.platform.database import Database, Notices, open_database, required_dsn
from queryserver.platform.limits import disk_floor
from queryserver.platform.logs import AUDIT, AuditTrail
from queryserver.platform.metrics import UNMEASURED, Metrics
from queryserver.platform.migrations import require_newest
from queryserver.platform.settings.sections import LocalResults
from queryserver.platform.settings.tree import Settings
from queryserver.results.segments import ResultStore, SegmentStore
from queryserver.statements.leases import statement_ends
from queryserver.statements.overview import CancelNotifier, StatementAdministration
from queryserver.statements.repository import StatementRecords
from queryserver.statements.retention import RetentionSweep, RetentionTimes, alone_in_cleaning
from queryserver.statements.runner import CANCEL
from queryserver.statements.session_repository import SessionRepository

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """Records and results."""

    dsn: str = field(repr=False)
    database: Database
    records: StatementRecords
    sessions: SessionRepository
    results: ResultStore
    retention: RetentionSweep


@asynccontextmanager
async def open_records(settings: Settings, metrics: Metrics = UNMEASURED) -> AsyncGenerator[Kept]:
    """Records and results, closed at the end. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    dsn = required_dsn(settings)
    await require_newest(dsn)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(dsn, settings.desktop.database, metrics.query))
        records = StatementRecords(database, statement_ends(settings))
        stack.push_async_callback(records.aclose)
        files = PrivateStorage(results_location(settings), floor=disk_floor(settings))
        storage = await stack.enter_async_context(files)
        results = await stack.enter_async_context(SegmentStore(storage))
        sessions = SessionRepository(database)
        editor = settings.editor
        sweep = RetentionSweep(
            database,
            records,
            sessions,
            results,
            RetentionTimes(
                logs=editor.log_retention,
                history=editor.history_retention,
                run_every=settings.retention.run_every,
                texts=editor.statement_text_retention,
                kept_text_bytes=editor.statement_text_kept_bytes,
            ),
            sweep_orphans=storage.sweep_everywhere,
            alone=partial(alone_in_cleaning, dsn),
            metrics=metrics,
        )
        yield Kept(dsn, database, records, sessions, results, sweep)


def results_location(settings: Settings) -> Path:
    """The directory of results. Raises ConfigurationError when another store is configured."""
    chosen = settings.desktop.task_server.result_file_storage
    if chosen is None:
        return settings.results_dir
    if isinstance(chosen, LocalResults):
        return Path(chosen.location)
    key = "desktop.task_server.result_file_storage"
    raise ConfigurationError([f"{key}: results can be kept in local directories only, not in {chosen.backend}."])


def statement_administration(
    database: Database, records: StatementRecords, notify_cancel: CancelNotifier
) -> StatementAdministration:
    return StatementAdministration(database, records, notify_cancel, AuditTrail(AUDIT))


@asynccontextmanager
async def open_statements(settings: Settings) -> AsyncGenerator[StatementAdministration]:
    """The administration alone, for commands. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    dsn = required_dsn(settings)
    await require_newest(dsn)
    async with open_database(dsn, settings.desktop.database) as database:
        records = StatementRecords(database, statement_ends(settings))
        notices = Notices(database)

        async def notify_cancel(statement_id: UUID, _owner: str | None) -> None:
            await notices.publish(CANCEL, str(statement_id))  # every server receives it

        try:
            yield statement_administration(database, records, notify_cancel)
        finally:
            await records.aclose()
