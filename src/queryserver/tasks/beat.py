"""Fires schedules. Each fire happens exactly once, no matter how many beats are running (Contract platform 10.4)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import structlog

from queryserver import errors
from queryserver.connectors.registry import Connectors
from queryserver.identity.callers import CallerRepository
from queryserver.identity.model import User
from queryserver.platform.metrics import Metrics
from queryserver.platform.threads import background, every
from queryserver.statements.submission import Submission, Submissions
from queryserver.tasks.model import DueRun, RunEnd, RunStatus, ScheduleKind
from queryserver.tasks.schedule_repository import ScheduleRuns

log = structlog.get_logger(__name__)

_FIRE_EVERY_S = 0.5
_ENDS_EVERY_S = 1.0
_CLEAN_UP_EVERY_S = 3600.0
_SUBMIT_TIMEOUT_S = 30.0
_SCHEDULE_PRIORITY = 1


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
        user = await self.callers.user(run.owner_id)
        if user is None:
            raise _PermanentFailure("The owner of the schedule is disabled.")
        if run.job["kind"] == ScheduleKind.TASK:
            if not user.is_admin:
                raise _PermanentFailure("The owner of the schedule is no longer an administrator.")
            if await self.runs.queue_task(run):
                self._count("submitted")
            return
        await self._require_connector(user, run.job["connector"])
        if not await self.runs.may_submit(run.fire_id):
            raise errors.Conflict("The run could not be submitted within a day.")
        recorded = await self.submissions.submit(
            user,
            Submission(
                connector=run.job["connector"],
                script=run.job["statement"],
                database=run.job["database"],
                idempotency_key=run.fire_id,
                priority=_SCHEDULE_PRIORITY,
                run_all=True,
            ),
        )
        # False if another beat has already recorded and counted the run.
        if await self.runs.record_statement(run.fire_id, recorded.record.status.id):
            self._count("submitted")

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
            log.warning("run failed", fire_id=run.fire_id, reason=reason, schedule_disabled=disables_schedule)

    def _count(self, outcome: str) -> None:
        self.metrics.schedules_fired.labels(outcome).inc()
