"""Runs each task in the same way as the command of that name (Contract platform 10.6, 12.1, 12.2)."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_never, cast

from queryserver.connectors.registry import Connectors
from queryserver.errors.base import InvalidParameter, NotSupported, unknown_user
from queryserver.files.upload_repository import OrphanSweep
from queryserver.identity.users import UserDirectory
from queryserver.imports.uploads import UploadAreaSweep
from queryserver.platform.threads import Progress
from queryserver.search.refresh import IndexRefresh
from queryserver.statements.retention import CloseReport, RetentionSweep
from queryserver.tasks.model import (
    ClaimedTask,
    CloseQueries,
    CloseSessions,
    DocumentCleanup,
    MetadataRefresh,
    ResultCleanup,
    TaskEnd,
    TaskState,
    UploadCleanup,
    validate_task,
)


@dataclass(frozen=True, slots=True, eq=False)
class TaskJobs:
    """Performs the work of tasks. It may be interrupted at any moment and started again."""

    retention: RetentionSweep
    orphans: OrphanSweep
    area: UploadAreaSweep
    refresh: IndexRefresh | None
    """None if there is no metadata search index."""
    connectors: Connectors
    users: UserDirectory
    matching_keys: Callable[[str], Awaitable[list[str] | None]]
    """Returns the keys of the connectors that a dialect or connector name matches. None means all connectors."""

    async def run(self, task: ClaimedTask, progress: Progress) -> TaskEnd:
        """Run a task. Raises QueryServerError if the work failed or is incomplete."""
        _, params = validate_task(task.name, task.params)
        known = cast(
            "DocumentCleanup | ResultCleanup | UploadCleanup | CloseQueries | CloseSessions | MetadataRefresh", params
        )
        match known:
            case DocumentCleanup():
                return await self._clean_documents(known, progress)
            case ResultCleanup():
                return await self._clean_results(progress)
            case UploadCleanup():
                return await self._clean_uploads(known, progress)
            case CloseQueries():
                age = timedelta(days=known.age_in_days)
                return _close_end("queries", await self.retention.close_queries(age, progress=progress))
            case CloseSessions():
                return await self._close_sessions(known, progress)
            case MetadataRefresh():
                return await self._refresh_metadata(known, task.owner_id, progress)
            case _:
                assert_never(known)

    async def _clean_documents(self, params: DocumentCleanup, progress: Progress) -> TaskEnd:
        counts = await self.retention.clean_up(history=timedelta(days=params.keep_days), progress=progress)
        deleted = counts["history entries"]
        return _finished_end(f"{deleted} documents deleted.", {"documents": deleted})

    async def _clean_results(self, progress: Progress) -> TaskEnd:
        counts = await self.retention.clean_results(progress)
        return _finished_end(f"{counts['results']} results deleted.", counts)

    async def _clean_uploads(self, params: UploadCleanup, progress: Progress) -> TaskEnd:
        age = timedelta(minutes=params.older_than_minutes)
        counts = dict(await self.orphans.clean_up(older_than=age))
        progress(0.5, f"{sum(counts.values())} uploads deleted.")
        counts |= await self.area.clean_up(older_than=age)
        deleted = sum(counts.values())
        return _finished_end(f"{deleted} uploads deleted.", {"uploads": deleted})

    async def _close_sessions(self, params: CloseSessions, progress: Progress) -> TaskEnd:
        connectors = await self.matching_keys(params.dialect)
        if connectors == []:
            raise InvalidParameter(f"Unknown dialect: {params.dialect}")
        age = timedelta(days=params.age_in_days)
        return _close_end("sessions", await self.retention.close_sessions(connectors, age, progress=progress))

    async def _refresh_metadata(self, params: MetadataRefresh, owner_id: int | None, progress: Progress) -> TaskEnd:
        """Refresh the index with the current permissions of the user who submitted the task."""
        if self.refresh is None:
            raise NotSupported("The index of the metadata search is switched off.")
        owner = None if owner_id is None else await self.users.user(owner_id)
        if owner is None:
            raise unknown_user("of the task")
        connector = self.connectors.resolve(owner, params.connector)
        tables = await self.refresh.refresh_now(owner, connector, progress)
        return _finished_end(f"{tables} tables read.", {"tables": tables})


def _finished_end(message: str, result: Mapping[str, Any]) -> TaskEnd:
    return TaskEnd(TaskState.FINISHED, message, result)


def _close_end(kind: str, report: CloseReport) -> TaskEnd:
    """Return the task's end. Its state is `failed` if any statement or session could not be closed."""
    message = f"{report.closed} {kind} closed. {report.already_closed} {kind} already closed."
    result = {kind: report.closed, "already_closed": report.already_closed}
    if report.in_use:
        message += f" {report.in_use} {kind} in use."
        result["in_use"] = report.in_use
    if report.failed:
        message += f" {len(report.failed)} {kind} could not be closed."
        result["failed"] = len(report.failed)
    return TaskEnd(TaskState.FAILED if report.failed else TaskState.FINISHED, message, result)
