"""Settings to the services of the fleet."""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from queryserver.administration.broker_check import ping_broker
from queryserver.connectors.engines import Connectors
from queryserver.connectors.repository import keys_meant
from queryserver.files.upload_repository import OrphanSweep
from queryserver.identity.users import UserDirectory
from queryserver.imports.uploads import UploadAreaSweep
from queryserver.platform.database import Database, Notices
from queryserver.platform.metrics import Metrics
from queryserver.platform.settings.tree import Settings
from queryserver.search.refresh import IndexRefresh
from queryserver.statements.build import StatementServices
from queryserver.tasks.execution import TaskRunner
from queryserver.tasks.instances import Instances
from queryserver.tasks.jobs import TaskJobs
from queryserver.tasks.repository import TaskRecords
from queryserver.tasks.submission import TaskBroker, TaskService


@dataclass(frozen=True, slots=True)
class TaskServices:
    service: TaskService
    runner: TaskRunner
    """Runs nothing before `run_next` or `running`: only workers run tasks."""


def task_records(settings: Settings, database: Database) -> TaskRecords:
    return TaskRecords(database, keep=timedelta(days=settings.retention.tasks_days))


def task_services(
    settings: Settings,
    database: Database,
    *,
    statements: StatementServices,
    orphans: OrphanSweep,
    area: UploadAreaSweep,
    refresh: IndexRefresh | None,
    connectors: Connectors,
    users: UserDirectory,
    instances: Instances,
    notices: Notices,
    broker: TaskBroker | None,
    metrics: Metrics,
) -> TaskServices:
    """`broker` is there where the task server is on. Old tasks are deleted by the clean-up of `statements`."""
    records = task_records(settings, database)
    statements.retention.include(records.clean_up)
    jobs = TaskJobs(
        retention=statements.retention,
        orphans=orphans,
        area=area,
        refresh=refresh,
        connectors=connectors,
        users=users,
        keys_meant=partial(keys_meant, settings, database),
    )
    runner = TaskRunner(
        statements.runner.owner,
        records,
        jobs.run,
        lease=settings.editor.lease_timeout,
        heartbeat=timedelta(seconds=settings.desktop.task_server.heartbeat_s),
        shutdown_grace=settings.desktop.shutdown_grace,
        metrics=metrics,
    )
    service = TaskService(
        records=records,
        instances=instances,
        notices=notices,
        statements=statements.administration,
        settings=settings.desktop.task_server,
        cancel_wait_s=settings.editor.cancel_wait.total_seconds(),
        broker=broker,
        ping=partial(ping_broker, settings),
        metrics=metrics,
    )
    return TaskServices(service, runner)
