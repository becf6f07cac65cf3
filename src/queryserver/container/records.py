"""What this service keeps: its database, and results on disk. Commands of the operator need nothing more."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from queryserver.container.auditing import AUDIT
from queryserver.container.disk import disk_floor
from queryserver.container.service_database import pool_limits, required_dsn
from queryserver.db.database import Database, open_database
from queryserver.db.migrations import require_newest
from queryserver.db.sessions import Sessions
from queryserver.db.statements.records import StatementRecords
from queryserver.db.statements.retention import StatementRetention, alone_in_cleaning
from queryserver.domain.errors.base import ConfigurationError
from queryserver.domain.statement_end import OnEnd
from queryserver.interfaces.metrics import UNMEASURED, Metrics
from queryserver.interfaces.results import ResultStore
from queryserver.results.segments import SegmentStore
from queryserver.services.auditing import AuditTrail
from queryserver.services.retention import RetentionSettings, RetentionSweep
from queryserver.services.statements.administering import StatementEnds
from queryserver.settings import Settings
from queryserver.settings.task_server import LocalResults
from queryserver.storages.local.private import PrivateStorage


@dataclass(frozen=True, slots=True)
class Kept:
    """Records and results."""

    dsn: str = field(repr=False)
    database: Database
    records: StatementRecords
    sessions: Sessions
    results: ResultStore
    retention: RetentionSweep


@asynccontextmanager
async def open_records(settings: Settings, metrics: Metrics = UNMEASURED) -> AsyncGenerator[Kept]:
    """Records and results, closed at the end. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    dsn = required_dsn(settings)
    await require_newest(dsn)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(dsn, pool_limits(settings), metrics))
        records = StatementRecords(database, statement_ends(settings))
        stack.push_async_callback(records.aclose)
        files = PrivateStorage(results_location(settings), floor=disk_floor(settings))
        storage = await stack.enter_async_context(files)
        results = await stack.enter_async_context(SegmentStore(storage))
        sessions = Sessions(database)
        sweep = RetentionSweep(
            StatementRetention(database),
            records,
            sessions,
            results,
            _retention(settings),
            sweep_leftovers=storage.sweep_everywhere,
            alone=partial(alone_in_cleaning, dsn),
            metrics=metrics,
        )
        yield Kept(dsn, database, records, sessions, results, sweep)


def results_location(settings: Settings) -> Path:
    """The directory of results. Raises ConfigurationError when they are to be kept elsewhere."""
    chosen = settings.desktop.task_server.result_file_storage
    if chosen is None:
        return settings.results_dir
    if isinstance(chosen, LocalResults):
        return Path(chosen.location)
    key = "desktop.task_server.result_file_storage"
    raise ConfigurationError([f"{key}: results can be kept in local directories only, not in {chosen.backend}."])


def statement_ends(settings: Settings) -> OnEnd:
    """Writes the ends of statements down."""
    has_file = settings.desktop.logging.audit_file is not None
    return StatementEnds(AuditTrail(AUDIT), with_log_line=has_file).record


def _retention(settings: Settings) -> RetentionSettings:
    editor = settings.editor
    return RetentionSettings(
        logs=editor.log_retention,
        history=editor.history_retention,
        run_every=settings.retention.run_every,
        texts=editor.statement_text_retention,
        kept_text_bytes=editor.statement_text_kept_bytes,
    )
