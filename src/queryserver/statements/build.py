"""Builds all statement services. Administrative commands open only the stored records and results."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from uuid import UUID

import structlog

from queryserver.connectors.registry import Connectors
from queryserver.files.statement_files import StatementFileAccess
from queryserver.identity.build import AccountServices
from queryserver.identity.limits import Streams
from queryserver.identity.model import UsernameRule
from queryserver.platform.computation import ComputationExecutor
from queryserver.platform.database import Database, Notices, open_database, required_dsn
from queryserver.platform.fair_queue import ByteBudget
from queryserver.platform.metrics import NO_METRICS, Metrics
from queryserver.platform.migrations import open_service_database, require_usable
from queryserver.platform.ownership import Ownership
from queryserver.platform.roles import Role
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Threads
from queryserver.results.segments import ResultStore
from queryserver.results.stores import open_results
from queryserver.sql.formatter import ScriptFormatter
from queryserver.sql.statements import StatementChooser
from queryserver.statements.budgets import Budgets
from queryserver.statements.downloads import Downloads, ResultTables
from queryserver.statements.external_access import ExternalData
from queryserver.statements.forwarding import WorkForwarder
from queryserver.statements.grant_repository import GrantRecords
from queryserver.statements.grants import Shares
from queryserver.statements.job_submission import JobSubmissions
from queryserver.statements.overview import StatementAdministration
from queryserver.statements.owned_statements import OwnedStatements
from queryserver.statements.repository import StatementRecords, statement_ends
from queryserver.statements.result_reader import CursorMoves, ResultReader
from queryserver.statements.retention import RetentionSweep, clean_up_lock
from queryserver.statements.reuse import ResultReuse
from queryserver.statements.rows import STATEMENTS
from queryserver.statements.runner import CANCEL, Runner, RunnerHooks, StatementDispatcher
from queryserver.statements.running_statements import (
    Broker,
    Intake,
    RunnerInstance,
    RunnerLimits,
    StateChangePoller,
    StateSignals,
)
from queryserver.statements.session_options import ParameterSealer, SessionChooser, SessionCredentials
from queryserver.statements.session_repository import ENGINE_OWNERS, SESSIONS, SessionRecords
from queryserver.statements.sessions import Sessions
from queryserver.statements.status import StatementAccess, StatementControl, StatementHistory, StatementReader
from queryserver.statements.submission import StatementRecorder, Submissions
from queryserver.statements.traces import NO_TRACES, StatementTraces

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredRecords:
    """The open service database and result store, with the services that administrative commands need."""

    dsn: str = field(repr=False)
    database: Database
    records: StatementRecords
    cursors: CursorMoves
    sessions: SessionRecords
    results: ResultStore
    retention: RetentionSweep
    traces: StatementTraces


@asynccontextmanager
async def open_records(
    settings: Settings, metrics: Metrics = NO_METRICS, traces: StatementTraces = NO_TRACES
) -> AsyncGenerator[StoredRecords]:
    """Open the service database and the result store, and close both on exit.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    dsn = required_dsn(settings)
    await require_usable(dsn)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            open_database(dsn, settings.desktop.database, metrics.queries.observe)
        )
        records = StatementRecords(database, statement_ends(settings, traces))
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
            clean_up_lock=partial(clean_up_lock, dsn),
            metrics=metrics,
        )
        yield StoredRecords(dsn, database, records, cursors, sessions, results.store, sweep, traces)


@dataclass(frozen=True, slots=True)
class StatementServices:
    """The services behind API calls that concern statements, results and engine sessions."""

    access: StatementAccess
    submissions: Submissions
    job_submissions: JobSubmissions
    reader: StatementReader
    result_reader: ResultReader
    downloads: Downloads
    control: StatementControl
    history: StatementHistory
    shares: Shares
    sessions: Sessions
    formatting: ScriptFormatter
    administration: StatementAdministration
    budgets: Budgets
    retention: RetentionSweep
    credentials: SessionCredentials
    runner: Runner
    dispatcher: StatementDispatcher
    signals: StateSignals
    changed_states: StateChangePoller
    forwarding: WorkForwarder
    external_data: ExternalData


@dataclass(frozen=True, slots=True)
class SharedResources:
    """Resources that the statement services share with other services of the process."""

    notices: Notices
    streams: Streams
    threads: Threads
    rendering: ByteBudget
    computations: ComputationExecutor
    files: StatementFileAccess
    """Access to storage files for statements that read or write them."""
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class FleetMember:
    """The role of this process in the fleet, its ownership, and the message broker if the task server is enabled."""

    role: Role
    ownership: Ownership
    broker: Broker | None

    @property
    def intake(self) -> Intake:
        """The new statements that this process runs."""
        if self.role is Role.WORKER:
            return Intake.QUEUED
        return Intake.OWN if self.broker is None else Intake.BOUND


@dataclass(frozen=True)
class StatementBuilder:
    """Builds each statement service once.

    The services are idle until `runner.running` and `dispatcher.listening` are entered.
    """

    settings: Settings
    stored: StoredRecords
    accounts: AccountServices
    connectors: Connectors
    hooks: RunnerHooks
    resources: SharedResources
    fleet: FleetMember

    def build(self) -> StatementServices:
        settings, stored, signals, runner = self.settings, self.stored, self._signals, self._runner
        return StatementServices(
            access=self._access,
            submissions=self._submissions,
            job_submissions=JobSubmissions(
                recorder=self._recorder,
                connectors=self.connectors,
                credentials=self._credentials,
                limits=settings.editor,
            ),
            reader=self._reader,
            result_reader=self._result_reader,
            downloads=Downloads(self._access, self._result_reader, enabled=settings.desktop.enable_download),
            control=StatementControl(
                records=stored.records,
                access=self._access,
                reader=self._reader,
                dispatcher=self._dispatcher,
                signals=signals,
                cancel_wait=settings.editor.cancel_wait,
            ),
            history=StatementHistory(stored.records, self.connectors),
            shares=Shares(
                grants=self._grants,
                access=self._access,
                connectors=self.connectors,
                users=self.accounts.directory,
                usernames=UsernameRule.of(settings.desktop.auth),
                limits=settings.editor,
                is_enabled=settings.desktop.enable_sharing,
            ),
            sessions=self._sessions,
            formatting=ScriptFormatter(self.resources.computations, max_bytes=settings.editor.statement_max_bytes),
            administration=StatementAdministration(stored.database, stored.records, self._dispatcher.cancel),
            budgets=self._budgets,
            retention=stored.retention,
            credentials=self._credentials,
            runner=runner,
            dispatcher=self._dispatcher,
            signals=signals,
            changed_states=StateChangePoller(stored.database, signals, runner.statements.runs),
            forwarding=self._forwarding,
            external_data=self._external_data,
        )

    @cached_property
    def _signals(self) -> StateSignals:
        return StateSignals()

    @cached_property
    def _budgets(self) -> Budgets:
        rule = UsernameRule.of(self.settings.desktop.auth)
        return Budgets(self.stored.database, self.settings.editor, rule, self.connectors)

    @cached_property
    def _owned(self) -> OwnedStatements:
        broker, traces = self.fleet.broker, self.stored.traces
        return OwnedStatements(
            self.stored.database,
            self.fleet.ownership,
            self.accounts.sealer,
            statement_ends(self.settings, traces),
            # While the broker is reachable, its messages announce the end of each statement. They are faster than
            # database notifications.
            notifies_ends=lambda: not (broker and broker.is_reachable),
            on_final_status=self._signals.ended,
            on_part_end=traces.ended if traces.is_on else None,
        )

    @cached_property
    def _credentials(self) -> SessionCredentials:
        passes_tokens = self.settings.desktop.use_thrift_http_jwt
        return SessionCredentials(
            self.stored.sessions, self.connectors, self.accounts.sealer, passes_tokens=passes_tokens
        )

    @cached_property
    def _access(self) -> StatementAccess:
        is_enabled = self.settings.desktop.enable_sharing
        return StatementAccess(self.stored.records, self.connectors, self._grants if is_enabled else None)

    @cached_property
    def _grants(self) -> GrantRecords:
        return GrantRecords(self.stored.database)

    @cached_property
    def _reader(self) -> StatementReader:
        return StatementReader(self.stored.records, self._access, self._signals, self.resources.streams)

    @cached_property
    def _result_reader(self) -> ResultReader:
        return ResultReader(
            records=self.stored.records,
            cursors=self.stored.cursors,
            results=self.stored.results,
            access=self._access,
            signals=self._signals,
            threads=self.resources.threads.rendering,
            batch_max_bytes=self.settings.editor.batch_max_bytes,
            budget=self.resources.rendering,
        )

    @cached_property
    def _external_data(self) -> ExternalData:
        stored, ownership = self.stored, self.fleet.ownership
        tables = ResultTables(
            stored.database,
            stored.records,
            stored.results,
            self._access,
            self._grants,
            self._result_reader,
            ownership,
            self._signals,
            self.accounts.directory,
            self.settings.desktop.auth.recheck,
        )
        return ExternalData(self.resources.files, tables.open, tables.wait_until_ended, self._grants.record_sources)

    @cached_property
    def _runner(self) -> Runner:
        desktop, is_worker = self.settings.desktop, self.fleet.role is Role.WORKER
        runner = Runner(
            RunnerInstance(self.fleet.ownership.id, self.fleet.intake),
            owned=self._owned,
            session_records=self.stored.sessions,
            results=self.stored.results,
            users=self.accounts.directory,
            connectors=self.connectors,
            credentials=self._credentials,
            signals=self._signals,
            editor=self.settings.editor,
            limits=RunnerLimits(
                shutdown_grace=desktop.shutdown_grace,
                recheck_every=desktop.auth.recheck,
                capacity=desktop.task_server.concurrency if is_worker else 0,
            ),
            hooks=self.hooks,
            metrics=self.resources.metrics,
            traces=self.stored.traces,
            external_data=self._external_data,
            broker=self.fleet.broker,
        )
        ownership = self.fleet.ownership
        self.stored.retention.owner = ownership.id
        ownership.watch(STATEMENTS, lambda: set(map(str, runner.statements.ids())))
        ownership.watch(SESSIONS, lambda: set(map(str, runner.sessions.ids())))
        ownership.watch(ENGINE_OWNERS, lambda: runner.data.names)
        return runner

    @cached_property
    def _dispatcher(self) -> StatementDispatcher:
        return StatementDispatcher(self._runner, self.resources.notices, self.fleet.broker)

    @cached_property
    def _forwarding(self) -> WorkForwarder:
        return WorkForwarder(
            self._runner.owner, self.stored.database, self.accounts.directory, self.connectors, self.resources.notices
        )

    @cached_property
    def _allowed_settings(self) -> frozenset[str]:
        return frozenset(self.settings.desktop.connector_policy.session_conf_allowed)

    @cached_property
    def _recorder(self) -> StatementRecorder:
        desktop = self.settings.desktop
        return StatementRecorder(
            connectors=self.connectors,
            records=self.stored.records,
            owned=self._owned,
            dispatcher=self._dispatcher,
            budgets=self._budgets,
            ends_are_mailed=bool(desktop.smtp.host and desktop.task_server.email_after_s),
        )

    @cached_property
    def _submissions(self) -> Submissions:
        return Submissions(
            recorder=self._recorder,
            sessions=SessionChooser(self.stored.records, self.stored.sessions),
            connectors=self.connectors,
            credentials=self._credentials,
            access=self._access,
            limits=self.settings.editor,
            allowed_settings=self._allowed_settings,
            chooser=StatementChooser(self.resources.computations),
            parameters=ParameterSealer(self.accounts.sealer),
            reuse=ResultReuse(self.stored.database, self.accounts.sealer),
        )

    @cached_property
    def _sessions(self) -> Sessions:
        return Sessions(
            records=self.stored.sessions,
            statements=self.stored.records,
            connectors=self.connectors,
            credentials=self._credentials,
            runner=self._runner,
            forwarding=self._forwarding,
            notices=self.resources.notices,
            signals=self._signals,
            max_per_user=self.settings.editor.max_sessions_per_user,
            allowed_settings=self._allowed_settings,
        )


@asynccontextmanager
async def open_statements(settings: Settings) -> AsyncGenerator[StatementAdministration]:
    """Open only the statement administration, for administrative commands.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    async with open_service_database(settings) as database:
        records = StatementRecords(database, statement_ends(settings))
        notices = Notices(database)

        async def notify_cancel(statement_id: UUID, _owner: str | None) -> None:
            await notices.publish(CANCEL, str(statement_id))  # every server process receives this notice

        try:
            yield StatementAdministration(database, records, notify_cancel)
        finally:
            await records.aclose()
