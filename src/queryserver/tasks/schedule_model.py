"""Values of schedules and their runs (Contract platform 10.7)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

from queryserver.tasks.fire_times import next_cron_time, next_interval_time, require_zone


class ScheduleKind(StrEnum):
    STATEMENT = "statement"
    TASK = "task"


class Overlap(StrEnum):
    """What a fire does while the last run has not ended."""

    SKIP = "skip"
    QUEUE = "queue"


class RunStatus(StrEnum):
    """Of a run, and of the last one of a schedule."""

    OPEN = ""
    FINISHED = "finished"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Notify:
    """Who gets a message about which ends of runs. `to`: mail; `url`: a signed call."""

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
class Plan:
    """What an administrator says about a schedule."""

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

    def times(self) -> tuple[object, ...]:
        """What decides when it fires."""
        return self.enabled, self.cron, self.interval_s, self.timezone, self.expires_at

    def next_time(self, now: datetime, *, due: datetime | None = None) -> datetime | None:
        """The first fire after `now`; of an interval the grid goes through the fire that was due, else through now.

        None: it never fires again. Raises ValueError, InvalidParameter for times that no check has passed.
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
    plan: Plan
    owner_id: int
    next_run: datetime | None
    last_run: datetime | None
    last_status: str
    last_history_uuid: UUID | None
    total_runs: int

    def job(self) -> dict[str, Any]:
        """What one fire runs, whatever becomes of the schedule."""
        plan = self.plan
        return {
            "name": plan.name,
            "kind": plan.kind.value,
            "connector": plan.connector,
            "database": plan.database,
            "statement": plan.statement,
            "task": plan.task,
            "params": dict(plan.params),
            "notify": plan.notify.stored() if plan.notify else None,
        }


@dataclass(frozen=True, slots=True)
class DueRun:
    """A fire that is recorded and whose statement or task is not."""

    fire_id: str
    schedule_id: int
    owner_id: int
    job: Mapping[str, Any]
    is_late: bool
    """It could not be submitted for so long that it is given up at the next failure."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended. `message` is why, where it failed."""

    fire_id: str
    status: RunStatus
    message: str = ""
    state: str = ""
    """Of its statement or task; empty: there was none."""
    started: datetime | None = None
    duration_ms: int = 0
    rows: int = 0
    switches_off: bool = False
    """The schedule fires no more: it has no owner, connector or right."""
    was_submitted: bool = False
    """It is the end of its statement or task; else of the tries to submit one."""
