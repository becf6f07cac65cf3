"""Schedules: administration (list, create, update, delete, fire; Contract platform 10.7), and the beat that fires them.

Each fire happens exactly once, no matter how many beats are running (Contract platform 10.4).
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Any
from uuid import UUID

import structlog

from queryserver import errors
from queryserver.connectors.registry import Connectors
from queryserver.documents.documents import Documents
from queryserver.documents.model import Runnable
from queryserver.exports.build import ExportServices
from queryserver.exports.model import Destination
from queryserver.identity.callers import CallerRepository
from queryserver.identity.model import User, UsernameRule
from queryserver.platform.logs import AUDIT
from queryserver.platform.metrics import Metrics
from queryserver.platform.roles import Role
from queryserver.platform.settings.sections import TaskServerSettings
from queryserver.platform.threads import background, every
from queryserver.sql.parameters import read_parameters
from queryserver.statements.submission import Submission, Submissions
from queryserver.tasks.instances import Instances
from queryserver.tasks.model import (
    DueRun,
    RunEnd,
    RunStatus,
    Schedule,
    ScheduleDefinition,
    ScheduleKind,
    ScheduleRun,
    require_cron,
    require_zone,
    validate_task,
)
from queryserver.tasks.notifications import Recipients
from queryserver.tasks.schedule_repository import ScheduleRecords, ScheduleRuns

_MAX_NAME_CHARACTERS = 100
_MIN_INTERVAL_S = 10
_MAX_INTERVAL_S = 365 * 24 * 3600
_CHANGE_ATTEMPTS = 5

log = structlog.get_logger(__name__)

_FIRE_EVERY_S = 0.5
_ENDS_EVERY_S = 1.0
_CLEAN_UP_EVERY_S = 3600.0
_SUBMIT_TIMEOUT_S = 30.0
_SCHEDULE_PRIORITY = 1


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
    documents: Documents
    settings: TaskServerSettings
    time_zone: str
    statement_max_bytes: int

    async def page(
        self, *, enabled: bool | None = None, owner: str | None = None, page: int = 1, limit: int = 1000
    ) -> tuple[int, Sequence[Schedule]]:
        """Return the number of matching schedules and one page of them, sorted by name."""
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

    async def runs(self, schedule_id: int, *, page: int, limit: int) -> tuple[int, Sequence[ScheduleRun]]:
        """Return the number of recorded runs of a schedule and one page of them, newest first.

        Raises schedule_not_found.
        """
        await self.records.read(schedule_id)
        return await self.records.runs(schedule_id, offset=min((page - 1) * limit, 2**62), limit=limit)

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
            definition, owner_id = await self._validated(definition, before)
        else:
            await self._require_rules(definition)
            if changes.keys() & {"task", "params"}:
                definition = _with_parameters(definition)
        new_times = definition.timing() != before.timing()
        next_run = definition.next_time(await self.records.now()) if new_times else None
        return await self.records.update(stored.id, stored.version, definition, owner_id, next_run, new_times=new_times)

    async def _validated(
        self, definition: ScheduleDefinition, before: ScheduleDefinition | None = None
    ) -> tuple[ScheduleDefinition, int]:
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
            if definition.document:
                await self._require_document(user, definition, before)
            elif not definition.connector:
                raise errors.MissingParameter("schedule.connector is required.")
            return _with_parameters(await self._with_keys(user, definition, before)), owner[0]
        if not user.is_admin:
            raise errors.InvalidParameter(
                "schedule.owner must be an administrator, because only administrators can run tasks."
            )
        no_statement = replace(definition, connector=None, database=None, statement=None, document=None, into=None)
        return _with_parameters(replace(no_statement, parameters=None)), owner[0]

    async def _with_keys(
        self, owner: User, definition: ScheduleDefinition, before: ScheduleDefinition | None
    ) -> ScheduleDefinition:
        """Return the definition with the keys of its connectors. Raises InvalidParameter, NotSupported.

        A stored key is not resolved again, because it may be the name of a dialect, and then mean another connector.
        """
        await self.connectors.at_least(owner.connectors_version)

        def key(field: str, name: str, *, is_stored: bool) -> str:
            find = self.connectors.exact if is_stored else self.connectors.resolve
            try:
                return find(owner, name).key
            except errors.UnknownDialect:
                raise errors.InvalidParameter(f"{field} must be a connector that the owner may use.") from None

        if definition.connector:
            is_stored = before is not None and before.connector == definition.connector
            definition = replace(
                definition, connector=key("schedule.connector", definition.connector, is_stored=is_stored)
            )
        into = definition.into
        if into is not None and (name := into["destination"].get("connector")):
            is_stored = before is not None and before.into == into
            named = {"connector": key("schedule.into.connector", name, is_stored=is_stored)}
            definition = replace(definition, into={**into, "destination": {**into["destination"], **named}})
        return definition

    async def _require_document(
        self, owner: User, definition: ScheduleDefinition, before: ScheduleDefinition | None
    ) -> None:
        """Check that the owner may run the saved query with these parameter values.

        If the schedule is new or runs another query, also check the connector of the query if that is the one that will
        be used. Raises InvalidParameter, MissingParameter, NotSupported.
        """
        try:
            found = await self.documents.runnable(owner, definition.document or "", definition.parameters)
            checks_connector = not definition.connector and _runs_another_query(definition, before)
            if found.connector is not None and checks_connector:
                await self.connectors.at_least(owner.connectors_version)
                self.connectors.exact(owner, found.connector)
        except (errors.NotFound, errors.PermissionDenied, errors.InvalidRequest, errors.Conflict) as error:
            raise errors.InvalidParameter(f"schedule.document: {error.message}") from None
        if found.connector is None and checks_connector:
            raise errors.MissingParameter("schedule.connector is required, because the saved query names no connector.")

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
        if definition.kind is ScheduleKind.STATEMENT:
            _require_statement(definition)
        if len((definition.statement or "").encode()) > self.statement_max_bytes:
            raise errors.PayloadTooLarge(
                f"schedule.statement: above the limit of {self.statement_max_bytes} bytes"
                " (`editor.statement_max_bytes`)."
            )
        if definition.notify is not None:
            if not definition.notify.on or not (definition.notify.to or definition.notify.url):
                raise errors.InvalidParameter("schedule.notify requires at least one value in `on`, and `to` or `url`.")
            await self.recipients.require_addresses(definition.notify.to, "schedule.notify.to")
            if definition.notify.url is not None:
                await self.recipients.require_url(definition.notify.url, "schedule.notify.url")


def _require_statement(definition: ScheduleDefinition) -> None:
    """Raise MissingParameter, InvalidParameter or conflicting_parameters unless there is exactly one thing to run."""
    has_statement = bool((definition.statement or "").strip())
    if has_statement and definition.document:
        raise errors.conflicting_parameters("schedule.document cannot be combined with schedule.statement.")
    if not (has_statement or definition.document):
        raise errors.MissingParameter("schedule.statement or schedule.document is required.")
    if definition.parameters is not None and has_statement:
        read_parameters(definition.parameters)


def _runs_another_query(definition: ScheduleDefinition, before: ScheduleDefinition | None) -> bool:
    members = attrgetter("owner", "document", "connector")
    return before is None or members(definition) != members(before)


def _with_parameters(definition: ScheduleDefinition) -> ScheduleDefinition:
    """Return the definition with validated task parameters, including defaults.

    The task and the parameters of other kinds of schedules are cleared. Raises InvalidParameter, MissingParameter.
    """
    if definition.kind is not ScheduleKind.TASK:
        return replace(definition, task=None, params={})
    return replace(definition, params=validate_task(definition.task or "", definition.params)[1].model_dump())


_OPTIONAL_FIELDS = {
    "connector", "database", "statement", "document", "parameters", "into", "task", "cron", "interval_s", "expires_at",
    "notify",
}  # fmt: skip


def _with_changes(before: ScheduleDefinition, changes: Mapping[str, Any], time_zone: str) -> ScheduleDefinition:
    """Return the definition with `changes` applied. None resets an optional field; required fields ignore None."""
    members = {name: value for name, value in changes.items() if value is not None or name in _OPTIONAL_FIELDS}
    if "timezone" in changes and changes["timezone"] is None:
        members["timezone"] = time_zone
    return replace(before, **members)


class _PermanentFailure(Exception):
    """Later fires would fail too: the owner, the connector or the permission to use it no longer exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Claims due schedules, submits their runs, and records when the runs end.

    A run is committed before its statement is submitted, and the fire id serves as the idempotency key. If a beat dies
    before the submission, any beat submits the run. If it dies after the submission, the retry finds the same
    statement.
    """

    runs: ScheduleRuns
    submissions: Submissions
    callers: CallerRepository
    connectors: Connectors
    documents: Documents
    exports: ExportServices
    metrics: Metrics
    run_retention: timedelta

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Fire schedules and record the ends of runs while the context is open."""
        async with (
            background(every(_FIRE_EVERY_S, self.fire), "schedule-fires"),
            background(every(_ENDS_EVERY_S, self.record_ends), "schedule-ends"),
            background(every(_CLEAN_UP_EVERY_S, self.delete_ended_runs), "schedule-runs-clean-up"),
        ):
            yield

    async def fire(self) -> None:
        """Claim due schedules, and submit every run that has no statement or task yet. Raises DatabaseUnavailable."""
        for status in await self.runs.claim_due():
            if status is RunStatus.SKIPPED:
                self._count("skipped")
        async with asyncio.TaskGroup() as group:
            for run in await self.runs.unsubmitted():
                group.create_task(self._start(run), name=run.fire_id)

    async def record_ends(self) -> None:
        """Record the ends of finished runs. Raises DatabaseUnavailable."""
        for end in await self.runs.find_ended():
            try:
                await self.runs.end(end)
            except errors.DatabaseUnavailable:
                raise
            except Exception:  # a row written by a newer version must not prevent other runs from ending
                log.exception("end of a run not recorded", fire_id=end.fire_id)

    async def delete_ended_runs(self) -> None:
        await self.runs.delete_ended(older_than=self.run_retention)

    async def _start(self, run: DueRun) -> None:
        """Submit one run. A permanent failure ends the run. After a temporary failure, the next round tries again."""
        try:
            async with asyncio.timeout(_SUBMIT_TIMEOUT_S):
                await self._submit(run)
        except _PermanentFailure as error:
            await self._fail(run, str(error), disables_schedule=True)
        except errors.DatabaseUnavailable as error:
            log.warning("run not submitted yet", fire_id=run.fire_id, code=error.code)
        except (errors.TooManyRequests, errors.ServiceUnavailable, errors.EngineUnavailable) as error:
            log.warning("run not submitted yet", fire_id=run.fire_id, code=error.code)
            if run.is_late:
                await self._fail(run, error.message)
        except errors.QueryServerError as error:
            await self._fail(run, error.message)
        except TimeoutError:
            log.warning("run not submitted in time", fire_id=run.fire_id)
            if run.is_late:
                await self._fail(run, "The run could not be submitted in time.")
        except Exception:  # last resort of a task: a bug in one run must not prevent other runs from starting
            log.exception("run failed", fire_id=run.fire_id)
            await self._fail(run, "Internal error.")

    async def _submit(self, run: DueRun) -> None:
        """Submit the run's statement or task. Raises _PermanentFailure and the errors of `Submissions.submit`."""
        recorded_id = await self.submissions.recorder.records.find_recorded(run.owner_id, run.fire_id)
        if recorded_id is not None:  # by a beat that has died; a saved query or a right may have changed since then
            await self._record(run, recorded_id)
            return
        user = await self.callers.user(run.owner_id)
        if user is None:
            raise _PermanentFailure("The owner of the schedule is disabled.")
        if run.job["kind"] == ScheduleKind.TASK:
            if not user.is_admin:
                raise _PermanentFailure("The owner of the schedule is no longer an administrator.")
            if await self.runs.queue_task(run):
                self._count("submitted")
            return
        submission, document = await self._submission(user, run)
        target = await self._target(user, run)
        if not await self.runs.may_submit(run.fire_id):
            raise errors.Conflict("The run could not be submitted within a day.")
        if target is not None:
            submission = replace(submission, destination=target.stored(), run_all=False)
        check = None if target is None else partial(target.check, user)
        recorded = await self.submissions.submit(user, submission, check_destination=check)
        if document is not None and not recorded.is_replay:
            self.documents.record_run(user, document, recorded.record.status.id)
        await self._record(run, recorded.record.status.id)

    async def _record(self, run: DueRun, statement_id: UUID) -> None:
        """Record and count the run's statement, unless another beat has already done so."""
        if await self.runs.record_statement(run.fire_id, statement_id):
            self._count("submitted")

    async def _submission(self, user: User, run: DueRun) -> tuple[Submission, Runnable | None]:
        """Return the statement of the run, and its saved query if it has one, as the owner may run it now.

        Raises _PermanentFailure, MissingParameter, NotSupported, and the errors of `Documents.runnable`.
        """
        job = run.job
        submission = Submission(
            connector=job["connector"],
            script=job["statement"],
            database=job["database"],
            idempotency_key=run.fire_id,
            priority=_SCHEDULE_PRIORITY,
            run_all=True,
        )
        given = job.get("parameters")
        if job.get("document") is None:
            await self._require_connector(user, job["connector"])
            return replace(submission, parameters=None if given is None else read_parameters(given)), None
        document = await self.documents.runnable(user, job["document"], given)
        connector = job["connector"] or document.connector
        if connector is None:
            raise errors.MissingParameter("Neither the schedule nor its saved query names a connector.")
        await self._require_connector(user, connector)
        return replace(
            submission,
            connector=connector,
            script=document.statement,
            database=job["database"] or document.database,
            parameters=document.parameters,
            parent_uuid=str(document.uuid),
        ), document

    async def _target(self, user: User, run: DueRun) -> Destination | None:
        """Return the destination of the rows, in whose path `{date}` and `{time}` are those of the fire."""
        stored = run.job.get("into")
        if stored is None:
            return None
        fired = run.fired_at
        values = {"{date}": f"{fired:%Y-%m-%d}", "{time}": f"{fired:%H%M%S}"}
        if (key := stored.get("connector")) is not None:
            await self._require_connector(user, key)
        return self.exports.stored_target(user, stored, path_values=values)

    async def _require_connector(self, user: User, key: str) -> None:
        """Raise _PermanentFailure unless the owner may use exactly this connector.

        `resolve` is not used, because it may resolve the name to another connector of the same dialect. Raises
        NotSupported if this server cannot run the connector.
        """
        await self.connectors.at_least(user.connectors_version)
        if self.connectors.known(key) is None:
            raise _PermanentFailure("The connector of the schedule no longer exists.")
        try:
            self.connectors.require_permission(user, key)
        except errors.PermissionDenied:
            raise _PermanentFailure(
                "The owner of the schedule no longer has permission to use its connector."
            ) from None
        if self.connectors.find(key) is None:
            raise errors.NotSupported("The connector of the schedule cannot run on this server.")

    async def _fail(self, run: DueRun, reason: str, *, disables_schedule: bool = False) -> None:
        if await self.runs.end(RunEnd(run.fire_id, RunStatus.FAILED, reason, disables_schedule=disables_schedule)):
            self._count("failed")
            log.warning("run failed", fire_id=run.fire_id, reason=reason, switched_off=disables_schedule)

    def _count(self, outcome: str) -> None:
        self.metrics.schedules_fired.labels(outcome).inc()
