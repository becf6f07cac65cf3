"""What this service keeps: its database, and results on disk. Commands of the operator need nothing more."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from queryserver.db.database import Database, PoolLimits, open_database
from queryserver.db.migrations import require_newest
from queryserver.db.sessions import Sessions
from queryserver.db.statements.records import Records
from queryserver.db.statements.retention import Retention
from queryserver.domain.errors import ConfigurationError
from queryserver.interfaces.results import ResultStore
from queryserver.results.segments import SegmentStore
from queryserver.services.retention import RetentionSettings, RetentionSweep
from queryserver.settings import Settings
from queryserver.settings.task_server import LocalResults
from queryserver.storages.local.private import PrivateStorage


@dataclass(frozen=True, slots=True)
class Kept:
    """Records and results."""

    dsn: str = field(repr=False)
    database: Database
    records: Records
    sessions: Sessions
    results: ResultStore
    retention: RetentionSweep


@asynccontextmanager
async def open_records(settings: Settings) -> AsyncGenerator[Kept]:
    """Records and results, closed at the end. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    dsn = required_dsn(settings)
    await require_newest(dsn)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(dsn, pool_limits(settings)))
        records = Records(database)
        stack.push_async_callback(records.aclose)
        storage = await stack.enter_async_context(PrivateStorage(results_location(settings)))
        results = await stack.enter_async_context(SegmentStore(storage))
        sessions = Sessions(database)
        sweep = RetentionSweep(
            Retention(database),
            records,
            sessions,
            results,
            _retention(settings),
            sweep_leftovers=storage.sweep_everywhere,
        )
        yield Kept(dsn, database, records, sessions, results, sweep)


def required_dsn(settings: Settings) -> str:
    """The address of the service database. Raises ConfigurationError when there is none."""
    dsn = settings.desktop.database.dsn
    if dsn is None:
        raise ConfigurationError(["desktop.database.url: a PostgreSQL database is needed, or `serve --embedded`."])
    return dsn


def pool_limits(settings: Settings) -> PoolLimits:
    """How many connections to the service database one process holds."""
    database = settings.desktop.database
    return PoolLimits(
        min_size=database.pool_min,
        max_size=database.pool_max,
        connect_timeout=database.connect_timeout,
        statement_timeout=database.statement_timeout,
    )


def results_location(settings: Settings) -> Path:
    """The directory of results. Raises ConfigurationError when they are to be kept elsewhere."""
    chosen = settings.desktop.task_server.result_file_storage
    if chosen is None:
        return settings.results_dir
    if isinstance(chosen, LocalResults):
        return Path(chosen.location)
    key = "desktop.task_server.result_file_storage"
    raise ConfigurationError([f"{key}: results can be kept in local directories only, not in {chosen.backend}."])


def _retention(settings: Settings) -> RetentionSettings:
    editor = settings.editor
    return RetentionSettings(
        logs=editor.log_retention,
        history=editor.history_retention,
        run_every=settings.retention.run_every,
    )
