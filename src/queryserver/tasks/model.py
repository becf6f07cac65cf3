"""Tasks and schedules: names, parameters, states, records, and the times at which schedules fire.

Contract platform 10.6, 10.7.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias
from uuid import UUID

from cronsim import CronSim, CronSimError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from queryserver.errors.base import InvalidParameter, MissingParameter
from queryserver.platform.settings.desktop import time_zone
from queryserver.statements.states import StatementState

STATEMENT = "statement"
"""The name under which statement jobs appear in the task list."""

_CENTURY_DAYS = 36_500
_MAX_SHOWN_CHARACTERS = 100  # maximum length of an unknown name in an error message

_CRON_FIELDS = 5
_MAX_CRON_CHARACTERS = 200
_MINUTE = timedelta(minutes=1)


class TaskState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"


STATEMENT_STATES: Mapping[TaskState, tuple[StatementState, ...]] = {
    TaskState.QUEUED: (StatementState.WAITING,),
    TaskState.RUNNING: (StatementState.RUNNING,),
    # Expired and closed results belong to statements that succeeded.
    TaskState.FINISHED: (
        *(StatementState.AVAILABLE, StatementState.SUCCESS),
        *(StatementState.EXPIRED, StatementState.CLOSED),
    ),
    TaskState.FAILED: (StatementState.FAILED, StatementState.TIMED_OUT),
    TaskState.CANCELED: (StatementState.CANCELED,),
}
"""The statement states that correspond to each task state."""


class TaskName(StrEnum):
    """The tasks that users can submit."""

    DOCUMENT_CLEANUP = "document_cleanup"
    RESULT_CLEANUP = "result_cleanup"
    UPLOAD_CLEANUP = "upload_cleanup"
    CLOSE_QUERIES = "close_queries"
    CLOSE_SESSIONS = "close_sessions"
    METADATA_REFRESH = "metadata_refresh"


def _reject_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("is a boolean")  # noqa: TRY004 pydantic reports it as a problem of the value
    return value


def _integer_as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


# Clients may also send integers as decimal strings (Contract platform 1.2).
Days: TypeAlias = Annotated[int, Field(ge=0, le=_CENTURY_DAYS), BeforeValidator(_reject_boolean)]

Name: TypeAlias = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200), BeforeValidator(_integer_as_text)
]
"""A name, or the id of a connector as an integer."""


class TaskParameters(BaseModel):
    """The parameters of one kind of task."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DocumentCleanup(TaskParameters):
    """Parameters of the command `cleanup`."""

    keep_days: Annotated[int, Field(ge=1, le=_CENTURY_DAYS), BeforeValidator(_reject_boolean)] = 30


class ResultCleanup(TaskParameters):
    """Deletes expired results. Takes no parameters."""


class UploadCleanup(TaskParameters):
    """Deletes orphaned upload files. Uploads in progress have their own expiry time."""

    older_than_minutes: Annotated[int, Field(ge=10, le=_CENTURY_DAYS * 24 * 60), BeforeValidator(_reject_boolean)] = 60


class CloseQueries(TaskParameters):
    """Parameters of the command `close_queries`."""

    age_in_days: Days = 7


class CloseSessions(TaskParameters):
    """Parameters of the command `close_sessions`. `dialect` is a dialect, the key or id of a connector, or `all`."""

    age_in_days: Days
    dialect: Name


class MetadataRefresh(TaskParameters):
    """Refreshes the metadata search index of one connector."""

    connector: Name


PARAMETERS: Mapping[TaskName, type[TaskParameters]] = {
    TaskName.DOCUMENT_CLEANUP: DocumentCleanup,
    TaskName.RESULT_CLEANUP: ResultCleanup,
    TaskName.UPLOAD_CLEANUP: UploadCleanup,
    TaskName.CLOSE_QUERIES: CloseQueries,
    TaskName.CLOSE_SESSIONS: CloseSessions,
    TaskName.METADATA_REFRESH: MetadataRefresh,
}


def validate_task(name: str, params: Mapping[str, Any]) -> tuple[TaskName, TaskParameters]:
    """Validate a task for submission. Null parameters count as absent.

    Raises InvalidParameter (also for an unknown task or parameter) and MissingParameter.
    """
    if name not in set(TaskName):
        raise InvalidParameter(f"Unknown task: {name[:_MAX_SHOWN_CHARACTERS]}. Valid tasks: {', '.join(TaskName)}.")
    task = TaskName(name)
    model = PARAMETERS[task]
    try:
        return task, model.model_validate({key: value for key, value in params.items() if value is not None})
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        parameter = f"params.{str(problem['loc'][0])[:_MAX_SHOWN_CHARACTERS]}"
        match problem["type"]:
            case "missing":
                raise MissingParameter(f"{parameter} is required.") from None
            case "extra_forbidden":
                known = (
                    f" accepts {', '.join(model.model_fields)}." if model.model_fields else " accepts no parameters."
                )
                raise InvalidParameter(f"{parameter} is unknown: {task}{known}") from None
            case _:
                raise InvalidParameter(f"{parameter} {_constraint_text(model, str(problem['loc'][0]))}") from None


def _constraint_text(model: type[TaskParameters], name: str) -> str:
    """Return the parameter's constraint in words."""
    schema = model.model_json_schema()["properties"][name]
    if schema["type"] == "integer":
        return f"must be an integer from {schema['minimum']} to {schema['maximum']}."
    return f"must be a string of {schema['minLength']} to {schema['maxLength']} characters."


@dataclass(frozen=True, slots=True)
class Task:
    """A task or statement job in the task list."""

    id: UUID
    name: str
    params: Mapping[str, Any]
    state: TaskState
    owner: str
    """The name of the user who submitted it. Empty if that user no longer exists."""
    created: datetime
    started: datetime | None
    ended: datetime | None
    progress: int
    message: str
    result: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Selects the tasks to list. A field that is None matches all tasks."""

    state: TaskState | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class NewTask:
    id: UUID
    name: TaskName
    params: Mapping[str, Any]
    owner_id: int


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """One process's right to run a task. Every write carries the fence; writes with an older fence are rejected."""

    id: UUID
    name: TaskName
    params: Mapping[str, Any]
    owner_id: int | None
    owner: str
    """The id of the process."""
    fence: int
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The outcome of a task."""

    state: TaskState
    message: str
    result: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ActiveCounts:
    """Counts of queued and running work across all processes."""

    queued: int
    """Number of queued statements and tasks."""
    running: int
    """Number of running statements and tasks."""
    queued_tasks: int


def job_id(task_id: UUID, fence: int) -> str:
    """Return the id of the broker job that runs the task."""
    return f"task:{task_id}:{fence}"


def require_zone(name: str) -> tzinfo:
    """Return the time zone with this IANA name. Raises InvalidParameter."""
    try:
        return time_zone(name)
    except ValueError as error:
        raise InvalidParameter(f"schedule.timezone {error}") from None


def require_cron(text: str) -> None:
    """Raise InvalidParameter unless the text is a cron expression with five fields that matches some future time."""
    if len(text) > _MAX_CRON_CHARACTERS or len(text.split()) != _CRON_FIELDS:
        raise InvalidParameter("schedule.cron must have five fields: minute, hour, day of month, month, day of week.")
    try:
        next(CronSim(text, datetime(2024, 1, 1)))  # noqa: DTZ001 a local time
    except CronSimError as error:
        raise InvalidParameter(f"schedule.cron is not valid: {error}.") from None
    except StopIteration:
        raise InvalidParameter("schedule.cron never matches a time.") from None


def next_cron_time(text: str, zone: tzinfo, after: datetime) -> datetime | None:
    """Return the first time after `after` that matches the cron expression in the zone. None if there is none.

    The result is in UTC. Each matching local time fires once: at its first occurrence if clocks are set back, and at
    the next existing minute if clocks are set forward and skip it. CronSim itself behaves this way only if neither
    minute nor hour starts with a star, so it is given local times without a zone.
    """
    for local in _local_times(text, after.astimezone(zone).replace(tzinfo=None)):
        moment = _first_utc_time(local, zone)
        if moment > after:
            return moment
    return None


def next_interval_time(due: datetime, interval: timedelta, now: datetime) -> datetime:
    """Return the first time after `now` that is a whole number of intervals after `due`."""
    missed = max((now - due) // interval, 0)
    return due + interval * (missed + 1)


def _local_times(text: str, after: datetime) -> Iterator[datetime]:
    try:
        yield from CronSim(text, after)
    except CronSimError as error:
        raise ValueError(f"{text}: {error}") from None


def _first_utc_time(local: datetime, zone: tzinfo) -> datetime:
    while True:
        moment = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None, fold=0) == local:
            return moment
        local += _MINUTE


class ScheduleKind(StrEnum):
    STATEMENT = "statement"
    TASK = "task"


class Overlap(StrEnum):
    """What happens if a schedule fires while its previous run is still in progress."""

    SKIP = "skip"
    QUEUE = "queue"


class RunStatus(StrEnum):
    """The status of a run, or of a schedule's last run."""

    OPEN = ""
    FINISHED = "finished"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Notify:
    """The recipients of notifications, and the outcomes that they are notified about.

    `to` contains email addresses; `url` receives a signed webhook.
    """

    on: tuple[str, ...] = (RunStatus.FINISHED, RunStatus.FAILED)
    to: tuple[str, ...] = ()
    url: str | None = None
    attach_csv: bool = False

    def stored(self) -> dict[str, Any]:
        return {"on": list(self.on), "to": list(self.to), "url": self.url, "attach_csv": self.attach_csv}

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Notify":
        return cls(tuple(stored["on"]), tuple(stored["to"]), stored["url"], stored["attach_csv"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDefinition:
    """The definition of a schedule, as an administrator has set it."""

    name: str
    owner: str
    kind: ScheduleKind
    enabled: bool = True
    connector: str | None = None
    database: str | None = None
    statement: str | None = None
    document: str | None = None
    """UUID of the saved query that runs in place of `statement`, as of the time of each run."""
    parameters: Any = None
    """Values of the statement's parameters: a list, or an object. None if there are none."""
    into: Mapping[str, Any] | None = None
    """Where the rows go instead of into the result: `given` as sent, and `destination` in its stored form."""
    task: str | None = None
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    cron: str | None = None
    interval_s: int | None = None
    timezone: str = "UTC"
    overlap: Overlap = Overlap.SKIP
    expires_at: datetime | None = None
    notify: Notify | None = None

    def timing(self) -> tuple[object, ...]:
        """Return the values that determine when the schedule fires."""
        return self.enabled, self.cron, self.interval_s, self.timezone, self.expires_at

    def next_time(self, now: datetime, *, due: datetime | None = None) -> datetime | None:
        """Return the first fire time after `now`. Intervals are counted from `due`, or from `now` if that is None.

        Return None if the schedule never fires again. Raises ValueError or InvalidParameter for values that were not
        validated.
        """
        if not self.enabled:
            return None
        if self.cron is not None:
            moment = next_cron_time(self.cron, require_zone(self.timezone), now)
        elif self.interval_s is not None:
            moment = next_interval_time(due or now, timedelta(seconds=self.interval_s), now)
        else:
            raise ValueError("neither cron nor interval_s")
        return None if moment is None or (self.expires_at and moment > self.expires_at) else moment


@dataclass(frozen=True, slots=True)
class Schedule:
    """A stored schedule."""

    id: int
    version: int
    definition: ScheduleDefinition
    owner_id: int
    next_run: datetime | None
    last_run: datetime | None
    last_status: str
    last_history_uuid: UUID | None
    total_runs: int

    def job(self) -> dict[str, Any]:
        """Return a copy of what a run needs, so that later changes to the schedule do not affect the run."""
        definition = self.definition
        return {
            "name": definition.name,
            "kind": definition.kind.value,
            "connector": definition.connector,
            "database": definition.database,
            "statement": definition.statement,
            "document": definition.document,
            "parameters": definition.parameters,
            "into": definition.into and definition.into["destination"],
            "timezone": definition.timezone,
            "task": definition.task,
            "params": dict(definition.params),
            "notify": definition.notify.stored() if definition.notify else None,
        }


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """A run of a schedule."""

    fire_id: str
    due: datetime
    """The time for which the schedule fired."""
    status: RunStatus
    message: str
    history_uuid: UUID | None
    task_id: UUID | None
    started: datetime
    ended: datetime | None


@dataclass(frozen=True, slots=True)
class DueRun:
    """A recorded fire whose statement or task has not been recorded yet."""

    fire_id: str
    schedule_id: int
    owner_id: int
    job: Mapping[str, Any]
    is_late: bool
    """Whether submission has been failing for so long that the next failure is final."""

    @property
    def fired_at(self) -> datetime:
        """The time for which the schedule fired, in the time zone of the schedule."""
        moment = datetime.fromtimestamp(int(self.fire_id.rsplit(":", 1)[1]) / 1000, UTC)
        return moment.astimezone(require_zone(self.job.get("timezone") or "UTC"))


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run. `message` is the failure reason."""

    fire_id: str
    status: RunStatus
    message: str = ""
    state: str = ""
    """The state of the run's statement or task. Empty if there was none."""
    started: datetime | None = None
    duration_ms: int = 0
    rows: int = 0
    disables_schedule: bool = False
    """Whether to disable the schedule, because its owner, connector or permission no longer exists."""
    was_submitted: bool = False
    """Whether the statement or task was submitted and has ended. False if the submission failed."""
