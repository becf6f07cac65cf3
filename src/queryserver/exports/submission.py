"""Checks and records exports of stored results, which `exports/session.py` executes (Contract exports 2)."""

from dataclasses import dataclass
from uuid import UUID

from queryserver.connectors.registry import Connectors
from queryserver.errors.statements import DownloadRefused
from queryserver.exports.model import Destination
from queryserver.identity.model import User
from queryserver.statements.downloads import Downloads
from queryserver.statements.job_submission import JobSubmissions, NewJob
from queryserver.statements.model import RecordedStatement, StatementRecord
from queryserver.statements.result_reader import ResultReader
from queryserver.statements.status import StatementAccess


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """A request to export the result of an operation."""

    operation_id: UUID
    destination: Destination
    statement_id: int | None = None
    allow_truncated: bool = False
    idempotency_key: str | None = None
    notify_url: str | None = None


@dataclass(frozen=True, slots=True)
class ExportSubmissions:
    """Records exports of stored results, and starts them as statements."""

    access: StatementAccess
    reader: ResultReader
    downloads: Downloads
    connectors: Connectors
    submissions: JobSubmissions

    async def submit(self, user: User, request: ExportRequest) -> RecordedStatement:
        """Check the request as far as possible without writing, and record the export as a statement.

        Raises download_disabled, OperationNotFound, PermissionDenied, UnknownDialect, DownloadRefused, the errors of
        the destination's `check`, and those of `JobSubmissions`.
        """
        source = await self._source(user, request)
        destination = request.destination
        connector = self.connectors.resolve(user, destination.connector or source.status.connector)
        is_own = source.status.user_id == user.id
        job = NewJob(
            text=_history_text(destination.path, source, is_own=is_own),
            database=source.database if destination.connector is None and is_own else None,
            source_operation=source.status.id,
            destination={**destination.stored(), "allow_truncated": request.allow_truncated},
            idempotency_key=request.idempotency_key,
            notify_url=request.notify_url,
        )
        if (recorded := await self.submissions.replay(user, connector, job)) is not None:
            return recorded
        await self._require_rows(user, request)
        await destination.check(user)
        return await self.submissions.submit(user, connector, job)

    async def _source(self, user: User, request: ExportRequest) -> StatementRecord:
        """Return the record of the operation, or of the requested statement of its script, if the user may read it."""
        record = await self.access.result_record(user, request.operation_id)
        if request.statement_id is None:
            return record
        part = await self.reader.part_of(record.status, request.statement_id)
        if part is None:
            raise DownloadRefused("not_finished", "The statement has not started yet.", status=1)
        return await self.access.result_record(user, part)

    async def _require_rows(self, user: User, request: ExportRequest) -> None:
        """Check that the operation has a result or is still running. Raises DownloadRefused."""
        try:
            await self.downloads.open(
                user, request.operation_id, statement_id=request.statement_id, allow_truncated=request.allow_truncated
            )
        except DownloadRefused as error:
            if error.outcome_code != "not_finished":
                raise


def _history_text(shown: str, source: StatementRecord, *, is_own: bool) -> str:
    """Return the text for the history: a comment with the destination, followed by the statement of the source.

    A user to whom the source is granted may not see its statement. The id of the operation stands for it.
    """
    # The name must stay on one line, without characters that end a line or comment in any dialect.
    name = "".join(one if one.isprintable() else " " for one in shown)
    statement = source.handle.statement if is_own else f"-- Shared result {source.status.id}"
    return f"-- Export to {name}\n{statement}"
