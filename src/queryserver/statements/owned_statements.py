"""Claims statements for runners, and stores what runners write.

Every write checks the owner and the fence number, so a runner that continues after another process has claimed its
statement cannot change anything (ADR 84).
"""

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog

from queryserver.errors.statements import OperationNotFound
from queryserver.formats.arrow import Column
from queryserver.identity.keys import Sealer
from queryserver.identity.model import ApiTokenLimits, SealedToken
from queryserver.platform.database import Connection, Database, NamedQuery, Row
from queryserver.platform.ownership import Ownership
from queryserver.results.segments import Segment
from queryserver.statements import rows as queries
from queryserver.statements import script_repository
from queryserver.statements.model import (
    Assignment,
    Claim,
    ClaimScope,
    EndListener,
    EngineCheckpoint,
    NewStatement,
    Outcome,
    PartEnd,
    Resumption,
    SlotLimits,
    StatementStatus,
)
from queryserver.statements.rows import end_from_row, status_from_row
from queryserver.statements.session_options import ParameterSealer
from queryserver.statements.states import LimitSource

log = structlog.get_logger(__name__)


# For a statement that is sent to the engine after all, because the result that it was to reuse is gone.
_CLEAR_SOURCE = NamedQuery.of(f"""
update statements set source_operation = null, reused_from = null, reused_sent_at = null
where {queries.FENCED} and state = 'waiting'
""")  # noqa: S608 built from a constant


class OwnedStatements:
    """Reads and writes statement records for runners.

    Writes return False if another process has claimed the statement. The runner must then stop.

    Checkpoints are encrypted like credentials, because their tokens grant access to operations on the engine.
    """

    def __init__(
        self,
        database: Database,
        ownership: Ownership,
        sealer: Sealer,
        on_end: EndListener = lambda _end: None,
        notifies_ends: Callable[[], bool] = lambda: True,
        on_final_status: Callable[[StatementStatus], None] = lambda _status: None,
        on_part_end: EndListener | None = None,
    ) -> None:
        """Initialize the repository. `on_end` receives the end of each statement that this process finishes.

        For a script, this is only the end of its operation. `on_part_end` receives the ends of its statements.

        `on_final_status` receives the status of each finished statement, except statements of scripts.

        While `notifies_ends()` is true, the database also sends a notification when a claimed statement ends.
        Notifications have a cost: PostgreSQL serializes commits that send them (ADR 9).
        """
        self._notifies_ends = notifies_ends
        self._database = database
        self._on_end = on_end
        self._on_final_status = on_final_status
        self._on_part_end = on_part_end
        self.ownership = ownership
        self._sealer = sealer
        self._parameters = ParameterSealer(sealer)

    async def claim(self, statement_id: UUID, *, owner: str, within: ClaimScope) -> Sequence[Assignment]:
        """Claim a waiting statement and the earlier waiting statements of its session, in recording order.

        Claims only statements in scope that have no live owner and whose session no other process holds.
        """
        connectors, sessions, bound = list(within.connectors), list(within.sessions), list(within.bound)
        rows = await self._database.fetch(queries.CLAIM, owner, statement_id, connectors, sessions, bound)
        return sorted(map(self._assignment_from_row, rows), key=lambda one: one.history_id)

    async def claim_orphans(self, *, owner: str, within: ClaimScope) -> Sequence[Assignment]:
        """Claim up to 200 statements that are in scope and have no live owner, in recording order.

        Skips statements whose session another process holds. Statements that were sent, or whose deadline has passed,
        are claimed for any connector, because ending them needs no engine.
        """
        connectors, sessions, bound = list(within.connectors), list(within.sessions), list(within.bound)
        rows = await self._database.fetch(queries.ORPHANS, owner, connectors, sessions, within.resumes, bound)
        return sorted(map(self._assignment_from_row, rows), key=lambda one: one.history_id)

    async def claim_waiting(
        self, *, owner: str, within: ClaimScope, slots: SlotLimits, limit: int, max_for_busy_users: int
    ) -> Sequence[Assignment]:
        """Claim up to `limit` unsent statements from the queue that all workers share. Users take turns. Of the scope,
        only the connectors count.

        The first `max_for_busy_users` are claimed for any user. All others are the first interactive statements of
        users who have no interactive statement running (ADR 66).
        """
        reachable, bound = list(within.connectors), list(within.bound)
        is_any_waiting = queries.ANY_STATEMENT_WAITS if max_for_busy_users else queries.ANY_FIRST_STATEMENT_WAITS
        if not await self._database.value(is_any_waiting, owner, reachable, bound):
            return ()
        async with self._database.transaction() as connection:
            await connection.execute(queries.LOCK_QUEUE)
            per_connector, per_user = slots.per_connector, slots.per_user
            rows = await connection.fetch(
                queries.WAITING, owner, reachable, per_connector, per_user, limit, max_for_busy_users, bound
            )
        return sorted(map(self._assignment_from_row, rows), key=lambda one: one.history_id)

    async def still_owned(self, statement_ids: Sequence[UUID], *, owner: str) -> Mapping[UUID, bool]:
        """Return the ids that `owner` still owns, mapped to whether a cancel was requested."""
        rows = await self._database.fetch(queries.STILL_OWNED, owner, list(statement_ids))
        return {row["id"]: row["canceled"] for row in rows}

    async def release(self, claim: Claim) -> bool:
        """Release a statement that was not sent. Return False if it was sent or has ended."""
        return await self._update(queries.RELEASE, claim)

    async def hand_over(self, claim: Claim) -> bool:
        """Release a running statement to another runner. Return False if it has no checkpoint or has ended."""
        return await self._update(queries.HAND_OVER, claim)

    def expire_soon(self, claim: Claim) -> None:
        """Leave a statement to other processes if this process still owns it (`Ownership.expire_soon`)."""
        self.ownership.expire_soon(queries.STATEMENTS, claim.statement_id, claim.fence)

    async def retry(self, claim: Claim, *, line: str) -> bool:
        """Return a sent statement to the queue and log `line`.

        Return False if the statement has rows, a checkpoint or a cancel request, or was already retried.
        """
        return await self._update_counted(queries.RETRY, claim, lines=[line])

    async def give_back(self, claim: Claim, *, line: str) -> bool:
        """Return a statement that has stopped to the queue and log `line`. It will run again from the start.

        Return False if it does not read a stored result, has rows, may have published them, or is to be canceled.
        """
        return await self._update_counted(queries.GIVE_BACK, claim, lines=[line])

    async def may_publish(self, claim: Claim) -> bool:
        """Return whether the rows of an export may become visible: the claim was not lost, and no cancel requested."""
        return await self._update(queries.PUBLISHING, claim, mark=dict[str, bool]())

    async def begin_publishing(self, claim: Claim) -> bool:
        """Record that the rows of an export are about to become visible, so that no process runs it again.

        Return False if the claim was lost or a cancel was requested. Nothing may be published then.
        """
        return await self._update(queries.PUBLISHING, claim, mark={"is_published": True})

    async def mark_sent(self, claim: Claim) -> bool:
        """Record that the statement is about to be sent.

        Return False if the claim was lost or a cancel was requested.
        """
        if claim.operation_id is not None:
            async with self._database.transaction() as connection:
                if not await script_repository.begin(connection, claim.operation_id):
                    return False
                sent = await connection.execute(queries.SENT.sql, *queries.SENT.arguments(_fenced(claim)))
            return sent == "UPDATE 1"
        return await self._update(queries.SENT, claim)

    async def take_back(self, claim: Claim) -> bool:
        """Record that a statement that was recorded as sent from the start has not been sent yet."""
        return await self._update(queries.TAKE_BACK, claim)

    async def clear_source(self, claim: Claim) -> bool:
        """Record that the engine answers the statement, because the result that it was to reuse cannot be read."""
        return await self._update(_CLEAR_SOURCE, claim)

    async def mark_running(
        self,
        claim: Claim,
        *,
        checkpoint: EngineCheckpoint | None = None,
        queued: timedelta | None = timedelta(0),
        estimated_bytes: int | None = None,
    ) -> bool:
        """Record that the engine has accepted the statement. If `checkpoint` is set, another runner can resume it.

        If the statement was recorded as sent from the start, `queued` corrects the recorded time, as in `finish`.
        """
        mark, estimate = self._sealed_checkpoint(checkpoint), _bigint(estimated_bytes)
        return await self._update(queries.RUNNING, claim, mark=mark, queued=queued, estimated_bytes=estimate)

    async def report(
        self,
        claim: Claim,
        *,
        progress: int | None,
        lines: Sequence[str],
        start_line: int,
        jobs: Sequence[Mapping[str, Any]] = (),
        checkpoint: EngineCheckpoint | None = None,
    ) -> bool:
        """Store progress and new log lines, numbered from `start_line`.

        If `checkpoint` is None, the stored checkpoint is kept.
        """
        return await self._update_counted(
            queries.REPORT,
            claim,
            progress=progress,
            jobs=list(jobs),
            mark=self._sealed_checkpoint(checkpoint),
            start_line=start_line,
            lines=list(lines),
        )

    async def trim_logs(self, claim: Claim, *, before_line: int) -> None:
        """Delete stored blocks of log lines in which every line number is below `before_line`."""
        await self._database.execute(
            "delete from statement_logs where statement_id = $1 and start_line + cardinality(lines) <= $2",
            claim.operation_id or claim.statement_id,
            before_line,
        )

    async def add_segment(
        self, claim: Claim, segment: Segment, *, columns: Sequence[Column], checkpoint: EngineCheckpoint | None = None
    ) -> bool:
        """Make stored rows visible to readers, and replace rows with an older fence number.

        If `checkpoint` is None, the stored checkpoint is kept.
        """
        return await self._update_counted(
            queries.SEGMENT,
            claim,
            number=segment.number,
            start_row=segment.start_row,
            rows=segment.rows,
            size_bytes=segment.size_bytes,
            columns=_stored_columns(columns),
            mark=self._sealed_checkpoint(checkpoint),
        )

    async def finish(
        self,
        claim: Claim,
        outcome: Outcome,
        *,
        retention: timedelta,
        lines: Sequence[str],
        start_line: int | None,
        queued: timedelta | None = timedelta(0),
    ) -> bool:
        """Store the terminal state and the outcome. If `start_line` is None, the log lines are appended.

        If the statement was recorded as sent from the start, `queued` is the time until it was really sent, or None if
        it never was.
        """
        if claim.operation_id is not None:
            end = await self.finish_part(
                claim, outcome, retention=retention, lines=lines, start_line=start_line, next_statement=None
            )
            return end is not None
        async with self._database.connection() as connection:
            row = await self._write_end(connection, claim, outcome, retention, lines, start_line, queued)
        if row is None:
            return False
        self._on_end(end_from_row(row))
        if not row["runs_all"]:  # the status of a script's operation also contains its statements
            self._on_final_status(status_from_row(row))
        return True

    async def finish_part(
        self,
        claim: Claim,
        outcome: Outcome,
        *,
        retention: timedelta,
        lines: Sequence[str],
        start_line: int | None,
        next_statement: NewStatement | None,
    ) -> PartEnd | None:
        """Finish a statement of a script. The script continues with `next_statement`, or ends if it is None.

        Return None if the claim was lost. The end of a statement and the record of the next one are written in the same
        transaction, so an active script always has an active statement.
        """
        operation_id = claim.operation_id or claim.statement_id
        if next_statement is not None and next_statement.parameters is not None:
            next_statement = replace(next_statement, sealed_parameters=self._parameters.seal(next_statement.parameters))
        async with self._database.transaction() as connection:
            script = await script_repository.lock_operation(connection, operation_id)
            row = await self._write_end(connection, claim, outcome, retention, lines, start_line)
            if row is None or script is None:
                return None
            recorded, operation = await script_repository.continue_or_end(
                connection, script, outcome, next_statement, retention
            )
            if operation is not None and claim.is_claimed and self._notifies_ends():
                await connection.execute(queries.NOTIFY_END, str(operation_id))
        if self._on_part_end is not None:
            self._on_part_end(end_from_row(row))
        if operation is not None:
            self._on_end(end_from_row(operation))
        return PartEnd(recorded)

    async def end_broken_scripts(self) -> None:
        """End scripts without an active statement, which server versions without script support have left behind."""
        async with self._database.transaction() as connection:
            operations = await script_repository.end_broken(connection)
        for row in operations:
            self._on_end(end_from_row(row))

    async def script(self, operation_id: UUID) -> str:
        """Return the script text of a `run_all` operation. Raises OperationNotFound."""
        text = await self._database.value("select statement from statements where id = $1", operation_id)
        if text is None:
            raise OperationNotFound(str(operation_id))
        return text

    async def _write_end(
        self,
        connection: Connection,
        claim: Claim,
        outcome: Outcome,
        retention: timedelta,
        lines: Sequence[str],
        start_line: int | None,
        queued: timedelta | None = timedelta(0),
    ) -> Row | None:
        position, reason = outcome.error_position, outcome.truncated_reason
        values = _fenced(
            claim,
            state=outcome.state.value,
            error_code=outcome.error_code,
            message=outcome.message,
            has_result_set=outcome.has_result_set,
            columns=_stored_columns(outcome.columns),
            rows=outcome.rows,
            size_bytes=outcome.size_bytes,
            truncated_reason=reason.value if reason else None,
            modified_row_count=outcome.modified_row_count,
            inline_result=outcome.inline_result,
            retention=retention,
            queued=queued,
            start_line=start_line,
            lines=list(lines),
            error_line=position.line if position else None,
            error_column=position.column if position else None,
            error_sqlstate=outcome.error_sqlstate,
            estimated_bytes=_bigint(outcome.estimated_bytes),
            scanned_bytes=_bigint(outcome.scanned_bytes),
            notifies=claim.is_claimed and claim.operation_id is None and self._notifies_ends(),
        )
        return await connection.fetchrow(queries.FINISH.sql, *queries.FINISH.arguments(values))

    async def _update(self, update: NamedQuery, claim: Claim, **values: object) -> bool:
        return await self._database.execute(update.sql, *update.arguments(_fenced(claim, **values))) == 1

    async def _update_counted(self, query: NamedQuery, claim: Claim, **values: object) -> bool:
        """Run an update that returns the number of changed rows. Return whether it changed the statement."""
        return await self._database.value(query.sql, *query.arguments(_fenced(claim, **values))) == 1

    def _sealed_checkpoint(self, checkpoint: EngineCheckpoint | None) -> str | None:
        """Encrypt a checkpoint for storage. Must be fast, because a checkpoint is written with each page."""
        if checkpoint is None:
            return None
        return b64encode(self._sealer.seal(f"{checkpoint.log_lines} {checkpoint.token}".encode())).decode()

    def _assignment_from_row(self, row: Row) -> Assignment:
        """Build the assignment from a row with the columns `queries.ASSIGNMENT`. Omits an unreadable checkpoint."""
        resumption = None
        if row["engine_handle"] is not None:
            try:
                unsealed = self._sealer.unseal(b64decode(row["engine_handle"], validate=True)).decode()
                log_lines, _, token = unsealed.partition(" ")
                checkpoint = EngineCheckpoint(token, int(log_lines))
                resumption = Resumption(checkpoint, row["rows"], row["size_bytes"], row["segments"], row["log_lines"])
            except ValueError as error:  # the checkpoint was tampered with, or its key is unknown
                log.warning(
                    "checkpoint of a statement could not be decrypted", operation_id=str(row["id"]), reason=str(error)
                )
        token = None
        if row["sealed_token"] is not None:
            token = SealedToken(row["sealed_token"], int(row["token_expires_at"].timestamp()))
        parameters, lacks_parameters = None, False
        if (sealed := row["sealed_parameters"]) is not None:
            try:
                parameters = self._parameters.unseal(sealed)
            except ValueError as error:
                lacks_parameters = True
                log.warning(
                    "parameters of a statement could not be decrypted", operation_id=str(row["id"]), reason=str(error)
                )
        return Assignment(
            **{name: row[name] for name in queries.ASSIGNMENT_FIELDS},
            ends_at=time.monotonic() + row["left"].total_seconds(),
            recorded_at=time.time() - row["age"].total_seconds(),
            claim=Claim(row["id"], row["owner"], row["fence"], is_claimed=True, operation_id=row["operation_id"]),
            sent=row["sent_at"] is not None,
            cancel_requested=row["cancel_requested_at"] is not None,
            resumption=resumption,
            token=token,
            api_token=ApiTokenLimits.of_stored(row["api_token"]) if row["api_token"] is not None else None,
            parameters=parameters,
            lacks_parameters=lacks_parameters,
            limit_source=LimitSource(row["limit_source"]) if row["limit_source"] else None,
        )


def _bigint(count: int | None) -> int | None:
    """Return the number as a column can hold it. Estimates of planners may be larger."""
    return None if count is None else min(max(count, 0), 2**63 - 1)


def _fenced(claim: Claim, **values: object) -> dict[str, object]:
    """Return the parameters that `queries.FENCED` names, together with `values`."""
    return {"id": claim.statement_id, "owner": claim.owner, "fence": claim.fence, **values}


def _stored_columns(columns: Sequence[Column] | None) -> list[list[str]] | None:
    """Return each column as a list: name, type, native type, comment."""
    if columns is None:
        return None
    return [[column.name, column.type.value, column.native_type, column.comment] for column in columns]
