"""Calls for the task server, its tasks and schedules, and the test email (Contract platform 10.6 to 10.8)."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Response

from queryserver.api.dependencies import (
    Admin,
    BodyDep,
    EnabledTasksDep,
    MailsDep,
    NoFields,
    SchedulesDep,
    TasksDep,
    UploadSpaceDep,
    UsersDep,
    fields,
)
from queryserver.api.responses import json_response, model_from, utc_text
from queryserver.api.routes import PathGroup, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import platform as requests
from queryserver.api.v1.storage.dependencies import FilesWriter, NoStorageFields, storage_group
from queryserver.errors.base import InsufficientScope, MissingParameter, schedule_not_found, smtp_not_configured
from queryserver.exports.model import FILES
from queryserver.identity.model import Scope, User
from queryserver.tasks.instances import Instance
from queryserver.tasks.model import Schedule, ScheduleKind, ScheduleRun, Task, TaskFilter
from queryserver.tasks.schedules import Author, Schedules

router = PathGroup("taskserver", prefix="/api/v1/taskserver")
storage_router = storage_group("taskserver", prefix="/api/v1/taskserver")
"""Router of `available_space`, which belongs to storage uploads and therefore has their error format."""

_MAX_ID = 2**63 - 1


@router.get("/status", response_model=wire.TaskServerStatus)
async def get_task_server_status(_user: Admin, _: NoFields, tasks: TasksDep) -> Response:
    """Return the state of the task server and its workers. The call also works if the task server is disabled."""
    found = await tasks.status()
    workers = [_worker(one) for one in found.workers]
    return json_response(model_from(wire.TaskServerStatus, found, workers=workers, status=0))


@router.get("/tasks", response_model=wire.TaskListResponse, responses=failures(501))
async def list_tasks(
    _user: Admin,
    _body: BodyDep,
    tasks: EnabledTasksDep,
    request: Annotated[requests.TaskListParameters, fields(requests.TaskListParameters)],
) -> Response:
    """List tasks and statement jobs, newest first, without the SQL of the statements."""
    chosen = TaskFilter(request.state, request.name)
    page, count = await tasks.page(chosen, page=request.page, limit=request.limit)
    return json_response(wire.TaskListResponse(tasks=[_task(one) for one in page], count=count, status=0))


@router.get("/tasks/{id:task}", response_model=wire.TaskResponse, responses=failures(501))
async def show_task(
    id: str,  # noqa: A002 the name in the path
    _user: Admin,
    _: NoFields,
    tasks: EnabledTasksDep,
) -> Response:
    """Return a task by its id, or a statement job by its `history_uuid`."""
    return _task_response(await tasks.show(id))


@router.post("/tasks/submit", response_model=wire.TaskResponse, responses=failures(501))
async def submit_task(
    user: Admin,
    _body: BodyDep,
    tasks: EnabledTasksDep,
    request: Annotated[requests.TaskRequest, fields(requests.TaskRequest)],
) -> Response:
    """Submit a task. The next free worker runs it."""
    return _task_response(await tasks.submit(user, request.name, request.params))


@router.post("/tasks/{id:task}/cancel", response_model=wire.TaskResponse, responses=failures(501))
async def cancel_task(
    id: str,  # noqa: A002 the name in the path
    user: Admin,
    _: NoFields,
    tasks: EnabledTasksDep,
) -> Response:
    """Cancel a task. A running task ends shortly afterward. The call has no effect on a task that has ended."""
    return _task_response(await tasks.cancel(user, id))


@storage_router.get("/upload/available_space", response_model=wire.AvailableSpaceResponse, responses=failures(403))
async def get_available_space(caller: FilesWriter, _: NoStorageFields, upload_space: UploadSpaceDep) -> Response:
    """Return the number of bytes that the caller may still upload, or -1 if there is no limit. Contract storage 9.3.

    The call also works if the task server is disabled.
    """
    space = await upload_space.available(caller.user)
    return json_response(wire.AvailableSpaceResponse(status=0, upload_available_space=space))


def _task_response(task: Task) -> Response:
    return json_response(wire.TaskResponse(task=_task(task), status=0))


def _task(task: Task) -> wire.Task:
    return model_from(
        wire.Task,
        task,
        id=str(task.id),
        params=dict(task.params),
        state=task.state.value,
        created=utc_text(task.created) or "",
        started=utc_text(task.started),
        ended=utc_text(task.ended),
        result=None if task.result is None else dict(task.result),
    )


def _worker(worker: Instance) -> wire.Worker:
    return model_from(
        wire.Worker,
        worker,
        id=worker.name,
        started=utc_text(worker.started_at) or "",
        heartbeat=utc_text(worker.heartbeat_at) or "",
    )


@router.get("/schedules", response_model=wire.ScheduleListResponse)
async def list_schedules(
    _user: Admin,
    request: Annotated[requests.ScheduleListParameters, fields(requests.ScheduleListParameters)],
    schedules: SchedulesDep,
) -> Response:
    """List schedules, sorted by name. The call also works if no process runs the schedules."""
    count, found = await schedules.page(
        enabled=request.enabled, owner=request.owner, page=request.page, limit=request.limit
    )
    return json_response(
        wire.ScheduleListResponse(
            schedules=[schedule_body(one) for one in found],
            count=count,
            beat_running=await schedules.beat_is_running(),
            status=0,
        )
    )


@router.get("/schedules/{id:schedule}", response_model=wire.ScheduleResponse, responses=failures(404))
async def get_schedule(
    id: str,  # noqa: A002 the path's own name
    _user: Admin,
    _: NoFields,
    schedules: SchedulesDep,
) -> Response:
    """Return a schedule with the outcome of its last run."""
    return _schedule_response(await schedules.get(_number(id)))


@router.get("/schedules/{id:schedule}/runs", response_model=wire.ScheduleRunListResponse, responses=failures(404))
async def list_schedule_runs(
    id: str,  # noqa: A002 the path's own name
    _user: Admin,
    request: Annotated[requests.ScheduleRunListParameters, fields(requests.ScheduleRunListParameters)],
    schedules: SchedulesDep,
) -> Response:
    """List the runs of a schedule, newest first, as long as their records are kept (`retention.tasks_days`)."""
    count, found = await schedules.runs(_number(id), page=request.page, limit=request.limit)
    return json_response(wire.ScheduleRunListResponse(runs=[run_body(one) for one in found], count=count, status=0))


@router.post("/schedules/new", response_model=wire.ScheduleResponse, responses=failures(409))
async def new_schedule(
    user: Admin, request: Annotated[requests.ScheduleRequest, fields(requests.ScheduleRequest)], schedules: SchedulesDep
) -> Response:
    """Create a schedule. It first fires at its next scheduled time, or after its interval."""
    given = request.schedule.given
    await _require_scope(user, schedules, given)
    return _schedule_response(await schedules.create(Author(user.username), given))


@router.post("/schedules/update", response_model=wire.ScheduleResponse, responses=failures(404, 409))
async def update_schedule(
    user: Admin, request: Annotated[requests.ScheduleRequest, fields(requests.ScheduleRequest)], schedules: SchedulesDep
) -> Response:
    """Change a schedule. The change takes effect within a second.

    Omitted members stay unchanged, and null removes a member.
    """
    change = request.schedule
    if change.id is None:
        raise MissingParameter("schedule.id is required.")
    await _require_scope(user, schedules, change.given, change.id)
    return _schedule_response(
        await schedules.update(Author(user.username), change.id, change.given, version=change.version)
    )


@router.post("/schedules/delete", response_model=wire.ScheduleDeleteResponse, responses=failures(404))
async def delete_schedule(
    user: Admin,
    request: Annotated[requests.ScheduleIdRequest, fields(requests.ScheduleIdRequest)],
    schedules: SchedulesDep,
) -> Response:
    """Delete a schedule. Runs that have already started continue."""
    schedule_id = request.schedule.id
    await schedules.delete(Author(user.username), schedule_id)
    return json_response(wire.ScheduleDeleteResponse(id=schedule_id, status=0))


@router.post("/schedules/run", response_model=wire.ScheduleRunResponse, responses=failures(404, 409, 501))
async def run_schedule(
    user: Admin,
    request: Annotated[requests.ScheduleIdRequest, fields(requests.ScheduleIdRequest)],
    schedules: SchedulesDep,
) -> Response:
    """Fire a schedule once, immediately, regardless of its scheduled times."""
    schedule_id = request.schedule.id
    await _require_scope(user, schedules, {}, schedule_id)
    fire_id = await schedules.run(Author(user.username), schedule_id)
    return json_response(wire.ScheduleRunResponse(fire_id=fire_id, status=0))


@router.post("/email/test", response_model=wire.EmailTestResponse, responses=failures(501))
async def test_email(
    user: Admin,
    request: Annotated[requests.EmailTestRequest, fields(requests.EmailTestRequest)],
    mails: MailsDep,
    users: UsersDep,
) -> Response:
    """Send a test email immediately, and return the response of the mail server."""
    if not mails.are_configured:
        raise smtp_not_configured("desktop.smtp.host is not set.")
    to = request.to or next((one.email for one in await users.with_ids([user.id])), "")
    if not to:
        raise MissingParameter("to is required because your user has no email address.")
    reason = await mails.test(to)
    return json_response(wire.EmailTestResponse(ok=not reason, message=reason, status=0))


async def _require_scope(
    user: User, schedules: Schedules, given: Mapping[str, Any], schedule_id: int | None = None
) -> None:
    """Raise InsufficientScope if the call concerns a scheduled statement and the API token lacks `Scope.QUERY`.

    Scheduled statements run as their owner, without the restrictions of the API token. So an export to files also
    requires `Scope.FILES_WRITE`.
    """
    if user.has_scope(Scope.QUERY) and user.has_scope(Scope.FILES_WRITE):
        return
    kinds, destinations = {given.get("kind")}, [given.get("into")]
    if schedule_id is not None:
        definition = (await schedules.get(schedule_id)).definition
        kinds.add(definition.kind)
        destinations.append(definition.into)
    if ScheduleKind.STATEMENT in kinds and not user.has_scope(Scope.QUERY):
        raise InsufficientScope(Scope.QUERY)
    to_files = any(into and into["destination"]["kind"] == FILES for into in destinations)
    if to_files and not user.has_scope(Scope.FILES_WRITE):
        raise InsufficientScope(Scope.FILES_WRITE)


def _number(text: str) -> int:
    """Return the number of a schedule in a path. Raises schedule_not_found."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
    if not 0 < number <= _MAX_ID:
        raise schedule_not_found(text[:20])
    return number


def _schedule_response(found: Schedule) -> Response:
    return json_response(wire.ScheduleResponse(schedule=schedule_body(found), status=0))


def run_body(run: ScheduleRun) -> wire.ScheduleRun:
    return model_from(
        wire.ScheduleRun,
        run,
        due=utc_text(run.due) or "",
        status=run.status.value,
        history_uuid=str(run.history_uuid) if run.history_uuid else None,
        task_id=str(run.task_id) if run.task_id else None,
        started=utc_text(run.started) or "",
        ended=utc_text(run.ended),
    )


def schedule_body(found: Schedule) -> wire.Schedule:
    definition = found.definition
    notify = wire.ScheduleNotice.model_validate(definition.notify.stored()) if definition.notify else None
    return model_from(
        wire.Schedule,
        found,
        next_run=utc_text(found.next_run),
        last_run=utc_text(found.last_run),
        last_history_uuid=str(found.last_history_uuid) if found.last_history_uuid else None,
        name=definition.name,
        enabled=definition.enabled,
        owner=definition.owner,
        kind=definition.kind.value,
        connector=definition.connector,
        database=definition.database,
        statement=definition.statement,
        document=definition.document,
        parameters=definition.parameters,
        into=definition.into and definition.into["given"],
        task=definition.task,
        params=dict(definition.params),
        cron=definition.cron,
        interval_s=definition.interval_s,
        timezone=definition.timezone,
        overlap=definition.overlap.value,
        expires_at=utc_text(definition.expires_at),
        notify=notify,
    )
