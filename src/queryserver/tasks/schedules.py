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
from queryserver.tasks.model import (
    Schedule,
    ScheduleDefinition,
    ScheduleKind,
    require_cron,
    require_zone,
    validate_task,
)
from queryserver.tasks.notifications import Recipients
from queryserver.tasks.schedule_repository import ScheduleRecords

_MAX_NAME_CHARACTERS = 100
_MIN_INTERVAL_S = 10
_MAX_INTERVAL_S = 365 * 24 * 3600
_CHANGE_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Author:
    """The author of a change: a user, who by default owns new schedules, or the system account that runs a command."""

    name: str
    is_user: bool = True

    @property
    def facts(self) -> Mapping[str, str]:
        """Additional facts for audit events."""
        return {} if self.is_user else {"by": "command"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    """Administers schedules for API calls and administrative commands. All methods raise DatabaseUnavailable."""

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
        """Return the number of matches and one page of them, sorted by name."""
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
        """Create a schedule from `fields`, whose names are those of ScheduleDefinition.

        Raises MissingParameter, InvalidParameter, PayloadTooLarge, UnknownDialect, NameTaken.
        """
        with AUDIT.event(by.name, "schedule.new", str(fields.get("name") or ""), facts=by.facts):
            for name in ("name", "kind"):
                if not fields.get(name):
                    raise errors.MissingParameter(f"schedule.{name} is required.")
            if not fields.get("owner") and not by.is_user:
                raise errors.MissingParameter("schedule.owner is required.")
            members: dict[str, Any] = {"owner": by.name, "timezone": self.time_zone}
            members |= {name: value for name, value in fields.items() if value is not None}
            definition, owner_id = await self._validated(ScheduleDefinition(**members))
            now = await self.records.now()
            schedule_id = await self.records.insert(definition, owner_id, definition.next_time(now))
            return await self.records.read(schedule_id)

    async def update(
        self, by: Author, schedule_id: int, changes: Mapping[str, Any], *, version: int | None = None
    ) -> Schedule:
        """Apply `changes` to the fields of a schedule. None resets an optional field.

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
                raise errors.task_server_disabled("The task server or its scheduler is disabled.")
            return await self.records.fire_now(schedule_id)

    async def _apply_changes(self, stored: Schedule, changes: Mapping[str, Any]) -> bool:
        """Apply the changes. Return False if the stored version has changed since it was read."""
        before = stored.definition
        definition = _with_changes(before, changes, self.time_zone)
        owner_id = stored.owner_id
        # A schedule whose owner or connector no longer exists can still be disabled or renamed.
        if definition.enabled or changes.keys() & {"owner", "connector", "kind"}:
            definition, owner_id = await self._validated(definition)
        else:
            await self._require_rules(definition)
            if changes.keys() & {"task", "params"}:
                definition = _with_parameters(definition)
        new_times = definition.timing() != before.timing()
        next_run = definition.next_time(await self.records.now()) if new_times else None
        return await self.records.update(stored.id, stored.version, definition, owner_id, next_run, new_times=new_times)

    async def _validated(self, definition: ScheduleDefinition) -> tuple[ScheduleDefinition, int]:
        """Return the definition in its stored form and the id of its owner. Raises the errors of `create`."""
        await self._require_rules(definition)
        try:
            owner = await self.records.active_user(self.usernames.read(definition.owner).key)
        except errors.InvalidUsername:
            owner = None
        user = await self.callers.user(owner[0]) if owner else None
        if owner is None or user is None:
            raise errors.InvalidParameter("schedule.owner must be an active user.")
        definition = replace(definition, owner=owner[1])
        if definition.kind is ScheduleKind.STATEMENT:
            if not definition.connector:
                raise errors.MissingParameter("schedule.connector is required.")
            await self.connectors.at_least(user.connectors_version)
            try:
                key = self.connectors.resolve(user, definition.connector).key
            except errors.UnknownDialect:
                raise errors.InvalidParameter(
                    "schedule.connector must be a connector that the owner may use."
                ) from None
            return _with_parameters(replace(definition, connector=key)), owner[0]
        if not user.is_admin:
            raise errors.InvalidParameter(
                "schedule.owner must be an administrator, because only administrators can run tasks."
            )
        return _with_parameters(replace(definition, connector=None, database=None, statement=None)), owner[0]

    async def _require_rules(self, definition: ScheduleDefinition) -> None:
        """Check the rules that do not depend on other objects. Raises the errors of `create`."""
        if (
            not definition.name.strip()
            or len(definition.name) > _MAX_NAME_CHARACTERS
            or not definition.name.isprintable()
        ):
            raise errors.InvalidParameter(
                f"schedule.name must have 1 to {_MAX_NAME_CHARACTERS} printable characters without line breaks."
            )
        if (definition.cron is None) == (definition.interval_s is None):
            raise errors.InvalidParameter("schedule must have exactly one of cron and interval_s.")
        if definition.interval_s is not None and not _MIN_INTERVAL_S <= definition.interval_s <= _MAX_INTERVAL_S:
            raise errors.InvalidParameter(
                f"schedule.interval_s must be between {_MIN_INTERVAL_S} and {_MAX_INTERVAL_S}."
            )
        require_zone(definition.timezone)
        if definition.cron is not None:
            require_cron(definition.cron)
        if definition.kind is ScheduleKind.STATEMENT and not (definition.statement or "").strip():
            raise errors.MissingParameter("schedule.statement is required.")
        if len((definition.statement or "").encode()) > self.statement_max_bytes:
            raise errors.PayloadTooLarge(f"schedule.statement: above the limit of {self.statement_max_bytes} bytes.")
        if definition.notify is not None:
            if not definition.notify.on or not (definition.notify.to or definition.notify.url):
                raise errors.InvalidParameter("schedule.notify requires at least one value in `on`, and `to` or `url`.")
            await self.recipients.require_addresses(definition.notify.to, "schedule.notify.to")
            if definition.notify.url is not None:
                await self.recipients.require_url(definition.notify.url, "schedule.notify.url")


def _with_parameters(definition: ScheduleDefinition) -> ScheduleDefinition:
    """Validate the task's parameters and fill in defaults. For other kinds, clear the task and its parameters.

    Raises InvalidParameter, MissingParameter.
    """
    if definition.kind is not ScheduleKind.TASK:
        return replace(definition, task=None, params={})
    return replace(definition, params=validate_task(definition.task or "", definition.params)[1].model_dump())


_OPTIONAL_FIELDS = {"connector", "database", "statement", "task", "cron", "interval_s", "expires_at", "notify"}


def _with_changes(before: ScheduleDefinition, changes: Mapping[str, Any], time_zone: str) -> ScheduleDefinition:
    """Return the definition with `changes` applied. None resets an optional field; required fields ignore None."""
    members = {name: value for name, value in changes.items() if value is not None or name in _OPTIONAL_FIELDS}
    if "timezone" in changes and changes["timezone"] is None:
        members["timezone"] = time_zone
    return replace(before, **members)
