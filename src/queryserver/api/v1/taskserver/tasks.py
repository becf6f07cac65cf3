"""Calls for the state and the tasks of the task server, for administrators (Contract platform 10.6)."""

from typing import Annotated

from fastapi import Response

from queryserver.api.dependencies import Admin, BodyDep, NoFields, fields
from queryserver.api.responses import json_response, model_from, utc_text
from queryserver.api.routes import PathGroup, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import platform as requests
from queryserver.api.service_dependencies import EnabledTasksDep, TasksDep, UploadSpaceDep
from queryserver.api.v1.storage.dependencies import FilesWriter, NoStorageFields, storage_group
from queryserver.tasks.instances import Instance
from queryserver.tasks.model import Task, TaskFilter

router = PathGroup("taskserver", prefix="/api/v1/taskserver")
storage_router = storage_group("taskserver", prefix="/api/v1/taskserver")
"""Router of `available_space`, which belongs to storage uploads and therefore has their error format."""


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
    """Cancel a task. A running task ends shortly afterwards; the call has no effect on a task that has ended."""
    return _task_response(await tasks.cancel(user, id))


@storage_router.get("/upload/available_space", response_model=wire.AvailableSpaceResponse, responses=failures(403))
async def get_available_space(caller: FilesWriter, _: NoStorageFields, upload_space: UploadSpaceDep) -> Response:
    """Return the number of bytes that the caller may still upload; -1 if there is no limit. Contract storage 9.3.

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
