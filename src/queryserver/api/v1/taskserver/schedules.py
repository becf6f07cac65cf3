"""Schedules, and the test of mail, for administrators (Contract platform 10.7, 10.8)."""

from collections.abc import Mapping
from typing import Any

from fastapi import Response

from queryserver.api.answers import answer, like, moment
from queryserver.api.bodies import Call
from queryserver.api.calls import PathGroup
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas import requests
from queryserver.errors.base import InsufficientScope, MissingParameter, schedule_not_found, smtp_not_configured
from queryserver.identity.model import Scope
from queryserver.tasks.schedule_model import Schedule, ScheduleKind
from queryserver.tasks.schedules import Author

router = PathGroup()

_LARGEST_ID = 2**63 - 1


@router.operation("list_schedules")
async def schedules(call: Call) -> Response:
    """By name; also while no process fires them."""
    asked = await call.read(requests.ScheduleListParameters)
    service = call.services.scheduling.schedules
    count, found = await service.page(enabled=asked.enabled, owner=asked.owner, page=asked.page, limit=asked.limit)
    return answer(
        wire.ScheduleListResponse(
            schedules=[shown_schedule(one) for one in found],
            count=count,
            beat_running=await service.beat_is_running(),
            status=0,
        )
    )


@router.operation("get_schedule")
async def schedule(call: Call, id: str) -> Response:  # noqa: A002 the path's own name
    """One schedule with what became of its last run."""
    number = int(id) if id.isascii() and id.isdecimal() and len(id) < 20 else 0
    if not 0 < number <= _LARGEST_ID:
        raise schedule_not_found(id[:20])
    return _one(await call.services.scheduling.schedules.get(number))


@router.operation("new_schedule")
async def new(call: Call) -> Response:
    """It fires for the first time at its next time, or after its interval."""
    fields = (await call.read(requests.ScheduleRequest)).schedule
    await _require_scope(call, fields.given)
    return _one(await call.services.scheduling.schedules.create(Author(call.user.username), fields.given))


@router.operation("update_schedule")
async def update(call: Call) -> Response:
    """Members left out stay, and null takes one away; a change is in force within a second."""
    fields = (await call.read(requests.ScheduleRequest)).schedule
    if fields.id is None:
        raise MissingParameter("schedule.id is required.")
    await _require_scope(call, fields.given, fields.id)
    changed = await call.services.scheduling.schedules.update(
        Author(call.user.username), fields.id, fields.given, version=fields.version
    )
    return _one(changed)


@router.operation("delete_schedule")
async def delete(call: Call) -> Response:
    """Runs that have started go on."""
    schedule_id = (await call.read(requests.ScheduleIdRequest)).schedule.id
    await call.services.scheduling.schedules.delete(Author(call.user.username), schedule_id)
    return answer(wire.ScheduleDeleteResponse(id=schedule_id, status=0))


@router.operation("run_schedule")
async def run(call: Call) -> Response:
    """Fires once, now, whatever its times are."""
    schedule_id = (await call.read(requests.ScheduleIdRequest)).schedule.id
    await _require_scope(call, {}, schedule_id)
    fire_id = await call.services.scheduling.schedules.run(Author(call.user.username), schedule_id)
    return answer(wire.ScheduleRunResponse(fire_id=fire_id, status=0))


@router.operation("test_email")
async def test_email(call: Call) -> Response:
    """Sends one mail now, and says what the mail server answered."""
    asked = await call.read(requests.EmailTestRequest)
    mails = call.services.scheduling.mails
    if not mails.are_configured:
        raise smtp_not_configured("desktop.smtp.host is not set.")
    to = asked.to or next((user.email for user in await call.services.users.with_ids([call.user.id])), "")
    if not to:
        raise MissingParameter("to is required: your user has no email address.")
    reason = await mails.test(to)
    return answer(wire.EmailTestResponse(ok=not reason, message=reason, status=0))


async def _require_scope(call: Call, given: Mapping[str, Any], schedule_id: int | None = None) -> None:
    """A statement of a schedule runs as its owner, and not within the limits of the API token that made it."""
    if call.user.has_scope(Scope.QUERY):
        return
    kinds = {given.get("kind")}
    if schedule_id is not None:
        kinds.add((await call.services.scheduling.schedules.get(schedule_id)).plan.kind)
    if ScheduleKind.STATEMENT in kinds:
        raise InsufficientScope(Scope.QUERY)


def _one(found: Schedule) -> Response:
    return answer(wire.ScheduleResponse(schedule=shown_schedule(found), status=0))


def shown_schedule(found: Schedule) -> wire.Schedule:
    plan = found.plan
    notify = wire.ScheduleNotice.model_validate(plan.notify.stored()) if plan.notify else None
    return like(
        wire.Schedule,
        found,
        next_run=moment(found.next_run),
        last_run=moment(found.last_run),
        last_history_uuid=str(found.last_history_uuid) if found.last_history_uuid else None,
        name=plan.name,
        enabled=plan.enabled,
        owner=plan.owner,
        kind=plan.kind.value,
        connector=plan.connector,
        database=plan.database,
        statement=plan.statement,
        task=plan.task,
        params=dict(plan.params),
        cron=plan.cron,
        interval_s=plan.interval_s,
        timezone=plan.timezone,
        overlap=plan.overlap.value,
        expires_at=moment(plan.expires_at),
        notify=notify,
    )
