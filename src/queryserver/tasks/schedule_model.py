"""Schedules, their runs, and the times at which they fire (Contract platform 10.7)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

from cronsim import CronSim, CronSimError

from queryserver.errors.base import InvalidParameter
from queryserver.platform.settings.desktop import time_zone

_CRON_FIELDS = 5
_MAX_CRON_CHARACTERS = 200
_MINUTE = timedelta(minutes=1)


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

    The result is in UTC. Each local time fires once. If clocks are set back, it fires at its first occurrence. If
    clocks are set forward and skip it, it fires at the next existing minute. CronSim itself behaves this way only if
    neither minute nor hour starts with a star, so it is given local times without a zone.
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
            "task": definition.task,
            "params": dict(definition.params),
            "notify": definition.notify.stored() if definition.notify else None,
        }


@dataclass(frozen=True, slots=True)
class DueRun:
    """A recorded fire whose statement or task has not been recorded yet."""

    fire_id: str
    schedule_id: int
    owner_id: int
    job: Mapping[str, Any]
    is_late: bool
    """Whether submission has been failing for so long that the next failure is final."""


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
