"""Tasks: names, parameters, states, records (Contract platform 10.6)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, TypeAlias
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from queryserver.errors.base import InvalidParameter, MissingParameter
from queryserver.statements.states import StatementState

STATEMENT = "statement"
"""The name under which statement jobs appear in the task list."""

_CENTURY_DAYS = 36_500
_MAX_SHOWN_CHARACTERS = 100  # of an unknown name in an error message


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
    """One process's right to run a task. Every write carries the fence; writes with an older one are rejected."""

    id: UUID
    name: TaskName
    params: Mapping[str, Any]
    owner_id: int | None
    fence: int
    worker: str
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
