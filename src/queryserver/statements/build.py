"""From settings to the services of statements; commands need only the records and the results."""

import os
import secrets
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import structlog

from queryserver.connectors.registry import Connectors
from queryserver.files.statement_files import StatementFileAccess
from queryserver.identity.build import AccountServices
from queryserver.identity.limits import Streams
from queryserver.platform.byte_budget import ByteBudget
from queryserver.platform.computing_protocol import Computing
from queryserver.platform.database import Database, Notices, open_database, required_dsn
from queryserver.platform.metrics import UNMEASURED, Metrics
from queryserver.platform.migrations import open_service_database, require_usable
from queryserver.platform.roles import Role
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Threads
from queryserver.results.segments import ResultStore
from queryserver.results.stores import open_results
from queryserver.sql.formatting import Formatting
from queryserver.sql.splitter import Choosing
from queryserver.statements.dispatcher import CANCEL, StatementDispatcher
from queryserver.statements.downloads import Downloads
from queryserver.statements.engine_sessions import CredentialBook, ImportOpener
from queryserver.statements.forwarding import Forwarding
from queryserver.statements.intake import Broker, Intake, RunnerInstance, RunnerLimits
from queryserver.statements.leases import StatementLeases
from queryserver.statements.overview import StatementAdministration
from queryserver.statements.paging import CursorMoves, ResultReader
from queryserver.statements.parameters import ParameterBook
from queryserver.statements.repository import StatementRecords, statement_ends
from queryserver.statements.result_tables import ResultTables
from queryserver.statements.retention import RetentionSweep, alone_in_cleaning
from queryserver.statements.runner import Runner, RunnerHooks
from queryserver.statements.session_reach import Reach
from queryserver.statements.session_repository import SessionRecords
from queryserver.statements.sessions import Sessions
from queryserver.statements.signals import ChangedStates, StateSignals
from queryserver.statements.status import StatementAccess, StatementControl, StatementHistory, StatementReader
from queryserver.statements.submission import Submissions

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """Records and results."""

    dsn: str = field(repr=False)
    database: Database
    records: StatementRecords
    cursors: CursorMoves
    sessions: SessionRecords
    results: ResultStore
    retention: RetentionSweep


@asynccontextmanager
async def open_records(settings: Settings, metrics: Metrics = UNMEASURED) -> AsyncGenerator[Kept]:
    """Records and results, closed at the end. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    dsn = required_dsn(settings)
    await require_usable(dsn)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(dsn, settings.desktop.database, metrics.queries.observe)
        )
        records = StatementRecords(database, statement_ends(settings))
        stack.push_async_callback(records.aclose)
        cursors = CursorMoves(database)
        stack.push_async_callback(cursors.aclose)
        results = await stack.enter_async_context(open_results(settings))
        sessions = SessionRecords(database)
        sweep = RetentionSweep(
            database,
            records,
            sessions,
            results.store,
            results.listing,
            settings.editor,
            run_every=settings.retention.run_every,
            alone=partial(alone_in_cleaning, dsn),
            metrics=metrics,
        )
        yield Kept(dsn, database, records, cursors, sessions, results.store, sweep)


@dataclass(frozen=True, slots=True)
class StatementServices:
    """What the calls about statements, results and engine sessions use."""

    access: StatementAccess
    submissions: Submissions
    reader: StatementReader
    result_reader: ResultReader
    downloads: Downloads
    control: StatementControl
    history: StatementHistory
    sessions: Sessions
    formatting: Formatting
    administration: StatementAdministration
    retention: RetentionSweep
    credentials: CredentialBook
    runner: Runner
    dispatcher: StatementDispatcher
    signals: StateSignals
    changed_states: ChangedStates
    forwarding: Forwarding
    reach: Reach


def statement_services(
    settings: Settings,
    kept: Kept,
    *,
    accounts: AccountServices,
    connectors: Connectors,
    imports: ImportOpener,
    files: StatementFileAccess,
    import_lost: Callable[[], None],
    objects_changed: Callable[[int, str], Awaitable[None]],
    notices: Notices,
    streams: Streams,
    threads: Threads,
    rendering: ByteBudget,
    computing: Computing,
    metrics: Metrics,
    role: Role,
    broker: Broker | None,
) -> StatementServices:
    """All of them; nothing runs before `runner.running` and `dispatcher.listening` are entered.

    `broker` is there where the task server is on. `files` are those of the stores, for statements. `imports` opens the
    session of an import, `import_lost` is called when one has ended with its server; `objects_changed` is called with
    user and connector after statements that may change tables.
    """
    editor, records, signals = settings.editor, kept.records, StateSignals()
    allowed_settings = frozenset(settings.desktop.connector_policy.session_conf_allowed)
    leases = StatementLeases(
        kept.database,
        accounts.sealer,
        statement_ends(settings),
        # The broker signals them for less.
        notifies_ends=lambda: not (broker and broker.is_reachable),
    )
    passes_tokens = settings.desktop.use_thrift_http_jwt
    credentials = CredentialBook(kept.sessions, connectors, accounts.sealer, passes_tokens=passes_tokens)
    access = StatementAccess(records, connectors)
    result_reader = ResultReader(
        records=records,
        cursors=kept.cursors,
        results=kept.results,
        access=access,
        signals=signals,
        threads=threads.rendering,
        batch_max_bytes=editor.batch_max_bytes,
        budget=rendering,
    )
    tables = ResultTables(kept.database, records, kept.results, access, result_reader, editor.lease_timeout)
    reach = Reach(files, tables.open)
    runner = Runner(
        # Names this process among all that ever lived, so that a lease is never taken for another's.
        RunnerInstance(
            f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(6)}",
            _intake(role, has_workers=broker is not None),
        ),
        leases=leases,
        session_records=kept.sessions,
        results=kept.results,
        users=accounts.directory,
        connectors=connectors,
        credentials=credentials,
        signals=signals,
        editor=editor,
        limits=RunnerLimits(
            shutdown_grace=settings.desktop.shutdown_grace,
            recheck_every=settings.desktop.auth.recheck,
            capacity=settings.desktop.task_server.concurrency if role is Role.WORKER else 0,
        ),
        hooks=RunnerHooks(objects_changed, imports, import_lost),
        metrics=metrics,
        reach=reach,
        broker=broker,
    )
    dispatcher = StatementDispatcher(runner, notices, broker)
    forwarding = Forwarding(runner.owner, kept.database, accounts.directory, connectors, notices)
    reader = StatementReader(records, access, signals, streams)
    submissions = Submissions(
        records=records,
        leases=leases,
        sessions=kept.sessions,
        connectors=connectors,
        credentials=credentials,
        dispatcher=dispatcher,
        access=access,
        limits=editor,
        allowed_settings=allowed_settings,
        choosing=Choosing(computing),
        parameters=ParameterBook(accounts.sealer),
        ends_are_mailed=bool(settings.desktop.smtp.host and settings.desktop.task_server.email_after_s),
    )
    control = StatementControl(
        records=records,
        access=access,
        reader=reader,
        dispatcher=dispatcher,
        signals=signals,
        cancel_wait=editor.cancel_wait,
    )
    sessions = Sessions(
        records=kept.sessions,
        statements=records,
        connectors=connectors,
        credentials=credentials,
        runner=runner,
        forwarding=forwarding,
        notices=notices,
        signals=signals,
        max_per_user=editor.max_sessions_per_user,
        allowed_settings=allowed_settings,
    )
    return StatementServices(
        access=access,
        submissions=submissions,
        reader=reader,
        result_reader=result_reader,
        downloads=Downloads(access, result_reader, enabled=settings.desktop.enable_download),
        control=control,
        history=StatementHistory(records, connectors),
        sessions=sessions,
        formatting=Formatting(computing, max_bytes=editor.statement_max_bytes),
        administration=StatementAdministration(
            kept.database, records, lambda statement_id, owner: dispatcher.cancel(statement_id, owner=owner)
        ),
        retention=kept.retention,
        credentials=credentials,
        runner=runner,
        dispatcher=dispatcher,
        signals=signals,
        changed_states=ChangedStates(kept.database, signals, runner.statements.runs),
        forwarding=forwarding,
        reach=reach,
    )


def _intake(role: Role, *, has_workers: bool) -> Intake:
    if role is Role.WORKER:
        return Intake.QUEUED
    return Intake.BOUND if has_workers else Intake.OWN


@asynccontextmanager
async def open_statements(settings: Settings) -> AsyncGenerator[StatementAdministration]:
    """The administration alone, for commands. Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable."""
    async with open_service_database(settings) as database:
        records = StatementRecords(database, statement_ends(settings))
        notices = Notices(database)

        async def notify_cancel(statement_id: UUID, _owner: str | None) -> None:
            await notices.publish(CANCEL, str(statement_id))  # every server receives it

        try:
            yield StatementAdministration(database, records, notify_cancel)
        finally:
            await records.aclose()
