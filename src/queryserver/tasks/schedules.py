"""Schedule administration: list, create, update, delete, fire (Contract platform 10.7)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from queryserver import errors
from queryserver.connectors.registry import Connectors
from queryserver.identity.callers import CallerRepository
from queryserver.identity.model import UsernameRule
from queryserver.platform.logs import AUDIT
from queryserver.platform.roles import Role
from queryserver.platform.settings.sections import TaskServerSettings
from queryserver.tasks.instances import Instances
from queryserver.tasks.mail import Recipients
from queryserver.tasks.model import validate_task
from queryserver.tasks.schedule_model import Plan, Schedule, ScheduleKind, require_cron, require_zone
from queryserver.tasks.schedule_repository import ScheduleRecords

_MAX_NAME_CHARACTERS = 100
_LEAST_INTERVAL_S = 10
_LONGEST_INTERVAL_S = 365 * 24 * 3600
_CHANGE_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Author:
    """Who changes schedules: a user, who owns the new schedules, or the system account that runs a command."""

    name: str
    is_user: bool = True

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts for audit events."""
        return {} if self.is_user else {"by": "command"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    """Schedule operations for calls and commands. All raise DatabaseUnavailable."""

    records: ScheduleRecords
    callers: CallerRepository
    connectors: Connectors
    recipients: Recipients
    instances: Instances
    usernames: UsernameRule
    settings: TaskServerSettings
    time_zone: str
    statement_max_bytes: int

    async def page(
        self, *, enabled: bool | None = None, owner: str | None = None, page: int = 1, limit: int = 1000
    ) -> tuple[int, Sequence[Schedule]]:
        """Return the number of matches, and one page of them sorted by name."""
        try:
            owner_key = self.usernames.read(owner).key if owner else None
        except errors.InvalidUsername:
            return 0, ()
        offset = min((page - 1) * limit, 2**62)
        return await self.records.page(enabled=enabled, owner_key=owner_key, offset=offset, limit=limit)

    async def beat_is_running(self) -> bool:
        return bool(await self.instances.living(Role.BEAT))

    async def get(self, schedule_id: int) -> Schedule:
        """Return a schedule. Raises schedule_not_found."""
        return await self.records.read(schedule_id)

    async def create(self, by: Author, fields: Mapping[str, Any]) -> Schedule:
        """Create a schedule from `fields`, which are named like Plan's fields.

        Raises MissingParameter, InvalidParameter, UnknownDialect, NameTaken.
        """
        with AUDIT.event(by.name, "schedule.new", str(fields.get("name") or ""), facts=by.facts):
            for name in ("name", "kind"):
                if not fields.get(name):
                    raise errors.MissingParameter(f"schedule.{name} is required.")
            if not fields.get("owner") and not by.is_user:
                raise errors.MissingParameter("schedule.owner is required.")
            members: dict[str, Any] = {"owner": by.name, "timezone": self.time_zone}
            members |= {name: value for name, value in fields.items() if value is not None}
            plan, owner_id = await self._checked(Plan(**members))
            now = await self.records.now()
            schedule_id = await self.records.insert(plan, owner_id, plan.next_time(now))
            return await self.records.read(schedule_id)

    async def update(
        self, by: Author, schedule_id: int, changes: Mapping[str, Any], *, version: int | None = None
    ) -> Schedule:
        """Apply `changes` and keep other members unchanged. None resets an optional member.

        Raises schedule_not_found, VersionConflict, and the errors of `create`.
        """
        with AUDIT.event(by.name, "schedule.update", str(schedule_id), facts=by.facts):
            for _ in range(_CHANGE_ATTEMPTS):
                stored = await self.records.read(schedule_id)
                if version is not None and version != stored.version:
                    raise errors.VersionConflict(stored.version)
                if await self._apply_changes(stored, changes):
                    return await self.records.read(schedule_id)
            raise errors.VersionConflict((await self.records.read(schedule_id)).version)

    async def delete(self, by: Author, schedule_id: int) -> None:
        """Delete a schedule. Runs in progress continue. Raises schedule_not_found."""
        with AUDIT.event(by.name, "schedule.delete", str(schedule_id), facts=by.facts):
            await self.records.delete(schedule_id)

    async def run(self, by: Author, schedule_id: int) -> str:
        """Fire the schedule now, and return the fire id.

        Raises schedule_not_found, schedule_running, task_server_disabled.
        """
        with AUDIT.event(by.name, "schedule.run", str(schedule_id), facts=by.facts):
            if not (self.settings.enabled and self.settings.beat_enabled):
                raise errors.task_server_disabled("The task server or its scheduler is switched off.")
            return await self.records.fire_now(schedule_id)

    async def _apply_changes(self, stored: Schedule, changes: Mapping[str, Any]) -> bool:
        """Apply the changes. Return False if the version is outdated."""
        before = stored.plan
        plan = _merge(before, changes, self.time_zone)
        owner_id = stored.owner_id
        # A schedule whose owner or connector no longer exists can still be disabled and renamed.
        if plan.enabled or changes.keys() & {"owner", "connector", "kind"}:
            plan, owner_id = await self._checked(plan)
        else:
            await self._require_rules(plan)
            if changes.keys() & {"task", "params"}:
                plan = _with_parameters(plan)
        new_times = plan.times() != before.times()
        next_run = plan.next_time(await self.records.now()) if new_times else None
        return await self.records.update(stored.id, stored.version, plan, owner_id, next_run, new_times=new_times)

    async def _checked(self, plan: Plan) -> tuple[Plan, int]:
        """Return the plan in its stored form, and its owner's id. Raises the errors of `create`."""
        await self._require_rules(plan)
        try:
            owner = await self.records.active_user(self.usernames.read(plan.owner).key)
        except errors.InvalidUsername:
            owner = None
        user = await self.callers.user(owner[0]) if owner else None
        if owner is None or user is None:
            raise errors.InvalidParameter("schedule.owner must be an active user.")
        plan = replace(plan, owner=owner[1])
        if plan.kind is ScheduleKind.STATEMENT:
            if not plan.connector:
                raise errors.MissingParameter("schedule.connector is required.")
            await self.connectors.at_least(user.connectors_version)
            try:
                key = self.connectors.resolve(user, plan.connector).key
            except errors.UnknownDialect:
                raise errors.InvalidParameter("schedule.connector must be one that the owner may use.") from None
            return _with_parameters(replace(plan, connector=key)), owner[0]
        if not user.is_admin:
            raise errors.InvalidParameter("schedule.owner must be an administrator, for tasks are theirs alone.")
        return _with_parameters(replace(plan, connector=None, database=None, statement=None)), owner[0]

    async def _require_rules(self, plan: Plan) -> None:
        """Check the rules that do not involve other objects."""
        if not plan.name.strip() or len(plan.name) > _MAX_NAME_CHARACTERS or not plan.name.isprintable():
            raise errors.InvalidParameter(
                f"schedule.name must have 1 to {_MAX_NAME_CHARACTERS} characters that print, and no line break."
            )
        if (plan.cron is None) == (plan.interval_s is None):
            raise errors.InvalidParameter("schedule must have exactly one of cron and interval_s.")
        if plan.interval_s is not None and not _LEAST_INTERVAL_S <= plan.interval_s <= _LONGEST_INTERVAL_S:
            raise errors.InvalidParameter(f"schedule.interval_s must be {_LEAST_INTERVAL_S} to {_LONGEST_INTERVAL_S}.")
        require_zone(plan.timezone)
        if plan.cron is not None:
            require_cron(plan.cron)
        if plan.kind is ScheduleKind.STATEMENT and not (plan.statement or "").strip():
            raise errors.MissingParameter("schedule.statement is required.")
        if len((plan.statement or "").encode()) > self.statement_max_bytes:
            raise errors.PayloadTooLarge(f"schedule.statement: above the limit of {self.statement_max_bytes} bytes.")
        if plan.notify is not None:
            if not plan.notify.on or not (plan.notify.to or plan.notify.url):
                raise errors.InvalidParameter("schedule.notify must name at least one of `on`, and `to` or `url`.")
            await self.recipients.require_addresses(plan.notify.to, "schedule.notify.to")
            if plan.notify.url is not None:
                await self.recipients.require_url(plan.notify.url, "schedule.notify.url")


def _with_parameters(plan: Plan) -> Plan:
    """Return the plan with all of its task's parameters, if it has a task. Raises InvalidParameter."""
    if plan.kind is not ScheduleKind.TASK:
        return replace(plan, task=None, params={})
    return replace(plan, params=validate_task(plan.task or "", plan.params)[1].model_dump())


_MAY_BE_ABSENT = {"connector", "database", "statement", "task", "cron", "interval_s", "expires_at", "notify"}


def _merge(before: Plan, changes: Mapping[str, Any], time_zone: str) -> Plan:
    """Return the plan with `changes` applied. None resets optional members and keeps others unchanged."""
    members = {name: value for name, value in changes.items() if value is not None or name in _MAY_BE_ABSENT}
    if "timezone" in changes and changes["timezone"] is None:
        members["timezone"] = time_zone
    return replace(before, **members)
