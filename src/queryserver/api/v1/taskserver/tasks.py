"""State of the task server, and its tasks, for administrators (Contract platform 10.6)."""

from fastapi import Response

from queryserver.api.answers import answer, like, moment
from queryserver.api.bodies import Call
from queryserver.api.calls import PathGroup
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas import requests
from queryserver.api.v1.storage.calls import StorageCall, StorageRoute
from queryserver.tasks.instances import Instance
from queryserver.tasks.model import Task, TaskFilter
from queryserver.tasks.submission import TaskService

router = PathGroup()


@router.operation("get_task_server_status")
async def status(call: Call) -> Response:
    """Answers with the task server off, too."""
    found = await call.services.tasks.service.status()
    workers = [_worker(one) for one in found.workers]
    return answer(like(wire.TaskServerStatus, found, workers=workers, status=0))


@router.operation("list_tasks")
async def list_tasks(call: Call) -> Response:
    """Tasks and the jobs of statements, newest first. Jobs of statements are without their texts."""
    service = _service(call)
    asked = await call.read(requests.TaskListParameters)
    page, count = await service.page(TaskFilter(asked.state, asked.name), page=asked.page, limit=asked.limit)
    return answer(wire.TaskListResponse(tasks=[_task(one) for one in page], count=count, status=0))


@router.operation("show_task")
async def show_task(call: Call, id: str) -> Response:  # noqa: A002 the name in the path
    """One task, or the job of one statement, whose id is its history_uuid."""
    return _one(await _service(call).show(id))


@router.operation("submit_task")
async def submit_task(call: Call) -> Response:
    """A worker runs it as soon as one is free."""
    service = _service(call)
    asked = await call.read(requests.TaskRequest)
    return _one(await service.submit(call.user, asked.name, asked.params))


@router.operation("cancel_task")
async def cancel_task(call: Call, id: str) -> Response:  # noqa: A002 the name in the path
    """A task that runs ends a little later. No effect on one that has ended."""
    return _one(await _service(call).cancel(call.user, id))


@router.operation("get_available_space", kind=StorageRoute)
async def available_space(call: StorageCall) -> Response:
    """The smallest limit on an upload of this caller; -1: none is known. Contract storage 9.3.

    Served without a task server, too.
    """
    space = await call.services.storage.upload_space.available(call.caller.user)
    return answer(wire.AvailableSpaceResponse(status=0, upload_available_space=space))


def _service(call: Call) -> TaskService:
    """Raises task_server_disabled."""
    service = call.services.tasks.service
    service.require_enabled()
    return service


def _one(task: Task) -> Response:
    return answer(wire.TaskResponse(task=_task(task), status=0))


def _task(task: Task) -> wire.Task:
    return like(
        wire.Task,
        task,
        id=str(task.id),
        params=dict(task.params),
        state=task.state.value,
        created=moment(task.created) or "",
        started=moment(task.started),
        ended=moment(task.ended),
        result=None if task.result is None else dict(task.result),
    )


def _worker(worker: Instance) -> wire.Worker:
    return like(
        wire.Worker,
        worker,
        id=worker.name,
        started=moment(worker.started_at) or "",
        heartbeat=moment(worker.heartbeat_at) or "",
    )
