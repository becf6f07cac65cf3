"""Builds the services for tasks, schedules and deliveries from the settings."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from queryserver.administration.readiness import ping_broker
from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.registry import Connectors
from queryserver.connectors.repository import ConnectorRepository
from queryserver.connectors.sources import configured_connectors, read_stored
from queryserver.documents.build import document_service
from queryserver.documents.documents import Documents
from queryserver.exports.build import ExportServices
from queryserver.identity.callers import CallerRepository
from queryserver.identity.keys import AesSealer, open_keyring
from queryserver.identity.model import UsernameRule
from queryserver.platform.addresses import webhook_rules
from queryserver.platform.database import Database
from queryserver.platform.migrations import open_service_database
from queryserver.platform.ownership import Ownership
from queryserver.platform.settings.tree import Settings
from queryserver.statements.build import SharedResources, StatementServices
from queryserver.statements.repository import StatementRecords
from queryserver.statements.status import StatementAccess
from queryserver.tasks.deliveries import Deliveries, DeliveryKind, Outbox
from queryserver.tasks.execution import TaskJobs, TaskRunner, TaskTimes
from queryserver.tasks.instances import Instances
from queryserver.tasks.notifications import CsvAttachments, MailSender, Recipients, WebhookSender
from queryserver.tasks.repository import TaskRecords
from queryserver.tasks.schedule_repository import ScheduleRecords, ScheduleRuns
from queryserver.tasks.schedules import Beat, Schedules
from queryserver.tasks.submission import TaskBroker, TaskService


@dataclass(frozen=True, slots=True)
class TaskServices:
    service: TaskService
    runner: TaskRunner
    """Idle until `run_next` or `running` is called, which only workers do."""


def task_records(settings: Settings, database: Database) -> TaskRecords:
    return TaskRecords(database, keep=timedelta(days=settings.retention.tasks_days))


def task_services(
    settings: Settings,
    database: Database,
    *,
    jobs: TaskJobs,
    statements: StatementServices,
    instances: Instances,
    ownership: Ownership,
    resources: SharedResources,
    broker: TaskBroker | None,
) -> TaskServices:
    """Build the task services. `broker` is None if the task server is disabled.

    Also adds the deletion of old tasks to the clean-up in `statements`.
    """
    records = task_records(settings, database)
    statements.retention.add_clean_up_step(records.clean_up)
    times = TaskTimes(
        heartbeat=timedelta(seconds=settings.desktop.task_server.heartbeat_s),
        shutdown_grace=settings.desktop.shutdown_grace,
    )
    runner = TaskRunner(ownership, records, jobs.run, times, metrics=resources.metrics)
    service = TaskService(
        records=records,
        instances=instances,
        notices=resources.notices,
        statements=statements.administration,
        settings=settings.desktop.task_server,
        cancel_wait_s=settings.editor.cancel_wait.total_seconds(),
        broker=broker,
        ping=partial(ping_broker, settings),
        metrics=resources.metrics,
    )
    return TaskServices(service, runner)


@dataclass(frozen=True, slots=True)
class ScheduleServices:
    """The services for schedules, for the beat that fires them, and for notifications about runs and statements."""

    schedules: Schedules
    beat: Beat
    deliveries: Deliveries
    mails: MailSender
    recipients: Recipients


def schedule_services(
    settings: Settings,
    database: Database,
    callers: CallerRepository,
    connectors: Connectors,
    statements: StatementServices,
    instances: Instances,
    ownership: Ownership,
    resources: SharedResources,
    *,
    documents: Documents,
    exports: ExportServices,
) -> ScheduleServices:
    """Build the services. Background work starts once `beat.running` and `deliveries.running` are entered."""
    tasks, metrics = settings.desktop.task_server, resources.metrics
    outbox, rules = Outbox(database), webhook_rules(settings)
    recipients = Recipients(database, tasks, rules)
    attachments = CsvAttachments(
        downloads=statements.downloads, callers=callers, threads=resources.threads.rendering, settings=tasks
    )
    mails = MailSender(settings.desktop.smtp, recipients, attachments)
    beat = Beat(
        runs=ScheduleRuns(database, outbox),
        submissions=statements.submissions,
        callers=callers,
        connectors=connectors,
        documents=documents,
        exports=exports,
        metrics=metrics,
        run_retention=timedelta(days=settings.retention.tasks_days),
    )
    deliveries = Deliveries(
        outbox,
        ownership,
        {DeliveryKind.EMAIL: mails, DeliveryKind.WEBHOOK: WebhookSender(rules, tasks.webhook_secret)},
        {DeliveryKind.EMAIL: metrics.emails, DeliveryKind.WEBHOOK: metrics.webhooks},
        mailed_after=timedelta(seconds=tasks.email_after_s) if mails.are_configured and tasks.email_after_s else None,
    )
    schedules = _schedules(settings, database, callers, connectors, recipients, instances, documents)
    return ScheduleServices(schedules, beat, deliveries, mails, recipients)


@asynccontextmanager
async def open_schedules(settings: Settings) -> AsyncGenerator[Schedules]:
    """Open schedule administration for administrative commands.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_service_database(settings))
        sealer = AesSealer(await open_keyring(settings.desktop, database))
        connectors = Connectors(
            configured_connectors(settings),
            build=EngineBuilder(settings).build,
            wheel=settings.notebook.interpreters_shown_on_wheel,
            default=settings.notebook.default_interpreter,
            read_stored=partial(read_stored, ConnectorRepository(database, sealer), settings),
        )
        stack.push_async_callback(connectors.aclose)
        callers = CallerRepository(database)
        stack.push_async_callback(callers.aclose)
        recipients = Recipients(database, settings.desktop.task_server, webhook_rules(settings))
        heartbeat = timedelta(seconds=settings.desktop.task_server.heartbeat_s)
        instances = Instances(database, heartbeat=heartbeat)
        statements = StatementRecords(database)
        stack.push_async_callback(statements.aclose)
        access = StatementAccess(statements, connectors, grants=None)
        documents = document_service(settings, database, connectors, access)
        yield _schedules(settings, database, callers, connectors, recipients, instances, documents)


def _schedules(
    settings: Settings,
    database: Database,
    callers: CallerRepository,
    connectors: Connectors,
    recipients: Recipients,
    instances: Instances,
    documents: Documents,
) -> Schedules:
    return Schedules(
        records=ScheduleRecords(database),
        callers=callers,
        connectors=connectors,
        recipients=recipients,
        instances=instances,
        usernames=UsernameRule.of(settings.desktop.auth),
        settings=settings.desktop.task_server,
        time_zone=settings.desktop.time_zone,
        documents=documents,
        statement_max_bytes=settings.editor.statement_max_bytes,
    )
