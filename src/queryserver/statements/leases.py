"""Leases of statements: claims, heartbeats, and the writes of runners.

Every write names owner and fence: a runner whose lease ran out and that continues later changes nothing.
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
from queryserver.formats.columns import Column
from queryserver.identity.model import ApiTokenLimits, SealedToken
from queryserver.platform.database import Connection, Database, NamedQuery, Row
from queryserver.platform.sealer import Sealer
from queryserver.results.model import Segment
from queryserver.statements import lease_queries as queries
from queryserver.statements import script_repository
from queryserver.statements.assignments import Assignment, ClaimScope, EngineMark, Lease, Outcome, PartEnd, Resumption
from queryserver.statements.intake import SlotLimits
from queryserver.statements.model import NewStatement, OnEnd
from queryserver.statements.parameters import ParameterSealer
from queryserver.statements.rows import end_of
from queryserver.statements.truncation import LimitSource

log = structlog.get_logger(__name__)


class StatementLeases:
    """What runners read and write of statements. Writes return False when the lease was lost: the runner stops then.

    Marks are sealed like credentials: their tokens open operations at the engine.
    """

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        on_end: OnEnd = lambda _end: None,
        notifies_ends: Callable[[], bool] = lambda: True,
    ) -> None:
        """`notifies_ends`: whether the ends of statements that other processes recorded are notified by the database.

        Commits with notifications are serialized by PostgreSQL (ADR 9).
        """
        self._notifies_ends = notifies_ends
        self._database = database
        self._on_end = on_end
        self._sealer = sealer
        self._parameters = ParameterSealer(sealer)

    async def claim(
        self, statement_id: UUID, *, owner: str, lease: timedelta, within: ClaimScope
    ) -> Sequence[Assignment]:
        """Take a waiting statement within reach that has no live owner, and whose session no other process holds.

        Those that wait before it in its session come first.
        """
        connectors, sessions = list(within.connectors), list(within.sessions)
        found = await self._database.fetch(queries.CLAIM, statement_id, owner, lease, connectors, sessions)
        return sorted(map(self._assignment_of, found), key=lambda one: one.history_id)

    async def claim_orphans(
        self, *, owner: str, lease: timedelta, within: ClaimScope, everything: bool
    ) -> Sequence[Assignment]:
        """Take at most 200 statements within reach without a live owner, in the order in which they were recorded.

        Not those whose session another process holds. Those that were sent, or are past their deadline, are taken of
        any connector: they need no engine to end. `everything` ignores leases: no other instance is alive.
        """
        found = await self._database.fetch(
            queries.ORPHANS, owner, lease, list(within.connectors), everything, list(within.sessions), within.resumes
        )
        return sorted(map(self._assignment_of, found), key=lambda one: one.history_id)

    async def claim_waiting(
        self,
        *,
        owner: str,
        lease: timedelta,
        connectors: Sequence[str],
        slots: SlotLimits,
        most: int,
        most_of_busy: int,
    ) -> Sequence[Assignment]:
        """Take up to `most` unsent statements from the queue of all workers, in the order of their turns.

        Once there are `most_of_busy`, which is no larger, only the first ones of people who run nothing.
        """
        reachable = list(connectors)
        if not await self._database.value(queries.ANY_WAITS if most_of_busy else queries.ANY_IS_FIRST, reachable):
            return ()
        async with self._database.transaction() as connection:
            await connection.execute(queries.CLAIM_ALONE)
            found = await connection.fetch(
                queries.WAITING, owner, lease, reachable, slots.per_connector, slots.per_user, most, most_of_busy
            )
        return sorted(map(self._assignment_of, found), key=lambda one: one.history_id)

    async def expire_all(self) -> None:
        """End all leases: no process that holds one is alive."""
        await self._database.execute(queries.EXPIRE_ALL)

    async def renew(self, statement_ids: Sequence[UUID], *, owner: str, lease: timedelta) -> Mapping[UUID, bool]:
        """Extend leases of `owner`; for each statement still its own, whether a cancel is requested."""
        renewed = await self._database.fetch(
            """update statements set lease_until = now() + $2
            where owner = $1 and id = any($3::uuid[]) and state in ('waiting', 'running')
            returning id, cancel_requested_at is not null as canceled""",
            owner,
            lease,
            list(statement_ids),
        )
        return {row["id"]: row["canceled"] for row in renewed}

    async def release(self, lease: Lease) -> bool:
        """Give back a statement that was not sent; False when it was sent, or ended."""
        return await self._updated(queries.RELEASE, lease)

    async def hand_over(self, lease: Lease) -> bool:
        """Give a statement that the engine continues to another runner; False when it has no mark, or ended."""
        return await self._updated(queries.HAND_OVER, lease)

    async def retry(self, lease: Lease, *, line: str) -> bool:
        """Let a statement wait again that was sent, has no rows yet, and only reads; once. False when it must not.

        It has no owner then: `claim` takes it.
        """
        return await self._changed(queries.RETRY, lease, lines=[line])

    async def mark_sent(self, lease: Lease) -> bool:
        """Commit that the statement is about to reach the engine; False also when a cancel was requested."""
        if lease.operation_id is not None:
            async with self._database.transaction() as connection:
                if not await script_repository.begin(connection, lease.operation_id):
                    return False
                sent = await connection.execute(queries.SENT.sql, *queries.SENT.arguments(_fenced(lease)))
            return sent == "UPDATE 1"
        return await self._updated(queries.SENT, lease)

    async def mark_running(self, lease: Lease, *, mark: EngineMark | None = None) -> bool:
        """The engine has accepted it; `mark` when another runner could follow it."""
        return await self._updated(queries.RUNNING, lease, mark=self._sealed(mark))

    async def report(
        self,
        lease: Lease,
        *,
        progress: int | None,
        lines: Sequence[str],
        start_line: int,
        jobs: Sequence[Mapping[str, Any]] = (),
        mark: EngineMark | None = None,
    ) -> bool:
        """Progress and further log lines, numbered from `start_line`. No `mark`: the stored one stays."""
        return await self._changed(
            queries.REPORT,
            lease,
            progress=progress,
            jobs=list(jobs),
            mark=self._sealed(mark),
            start_line=start_line,
            lines=list(lines),
        )

    async def trim_logs(self, lease: Lease, *, before_line: int) -> None:
        """Drop log lines numbered below `before_line`, in whole pieces."""
        await self._database.execute(
            "delete from statement_logs where statement_id = $1 and start_line + cardinality(lines) <= $2",
            lease.operation_id or lease.statement_id,
            before_line,
        )

    async def add_segment(
        self, lease: Lease, segment: Segment, *, columns: Sequence[Column], mark: EngineMark | None = None
    ) -> bool:
        """Make durable rows visible, also in place of those of an older fence. No `mark`: the stored one stays."""
        return await self._changed(
            queries.SEGMENT,
            lease,
            number=segment.number,
            start_row=segment.start_row,
            rows=segment.rows,
            size_bytes=segment.size_bytes,
            columns=_stored_columns(columns),
            mark=self._sealed(mark),
        )

    async def finish(
        self, lease: Lease, outcome: Outcome, *, retention: timedelta, lines: Sequence[str], start_line: int | None
    ) -> bool:
        """Set the terminal state and all that is stored with it; log lines without a number come last."""
        if lease.operation_id is not None:
            ended = await self.finish_part(
                lease, outcome, retention=retention, lines=lines, start_line=start_line, next_statement=None
            )
            return ended is not None
        async with self._database.connection() as connection:
            changed = await self._finish(connection, lease, outcome, retention, lines, start_line)
        if changed is None:
            return False
        self._on_end(end_of(changed))
        return True

    async def finish_part(
        self,
        lease: Lease,
        outcome: Outcome,
        *,
        retention: timedelta,
        lines: Sequence[str],
        start_line: int | None,
        next_statement: NewStatement | None,
    ) -> PartEnd | None:
        """`finish` for a statement of a script, which continues with `next_statement` or ends; None: the lease is lost.

        The end of a statement and the next one are one transaction: a script always has a statement that ends it.
        """
        operation_id = lease.operation_id or lease.statement_id
        if next_statement is not None and next_statement.parameters is not None:
            next_statement = replace(
                next_statement, sealed_parameters=self._parameters.sealed(next_statement.parameters)
            )
        async with self._database.transaction() as connection:
            script = await script_repository.locked(connection, operation_id)
            changed = await self._finish(connection, lease, outcome, retention, lines, start_line)
            if changed is None or script is None:
                return None
            recorded, ended = await script_repository.go_on(connection, script, outcome, next_statement, retention)
            if ended is not None and lease.is_claimed and self._notifies_ends():
                await connection.execute(queries.NOTIFY_END, str(operation_id))
        if ended is not None:
            self._on_end(end_of(ended))
        return PartEnd(recorded)

    async def end_broken_scripts(self) -> None:
        """End the scripts without a running statement: a server of a version without scripts has ended it."""
        async with self._database.transaction() as connection:
            ended = await script_repository.end_broken(connection)
        for row in ended:
            self._on_end(end_of(row))

    async def script(self, operation_id: UUID) -> str:
        """The text of a script whose statements all run. Raises OperationNotFound."""
        text = await self._database.value("select statement from statements where id = $1", operation_id)
        if text is None:
            raise OperationNotFound(str(operation_id))
        return text

    async def _finish(
        self,
        connection: Connection,
        lease: Lease,
        outcome: Outcome,
        retention: timedelta,
        lines: Sequence[str],
        start_line: int | None,
    ) -> Row | None:
        position, reason = outcome.error_position, outcome.truncated_reason
        values = _fenced(
            lease,
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
            start_line=start_line,
            lines=list(lines),
            error_line=position.line if position else None,
            error_column=position.column if position else None,
            error_sqlstate=outcome.error_sqlstate,
            notifies=lease.is_claimed and lease.operation_id is None and self._notifies_ends(),
        )
        return await connection.fetchrow(queries.FINISH.sql, *queries.FINISH.arguments(values))

    async def _updated(self, update: NamedQuery, lease: Lease, **values: object) -> bool:
        return await self._database.execute(update.sql, *update.arguments(_fenced(lease, **values))) == 1

    async def _changed(self, query: NamedQuery, lease: Lease, **values: object) -> bool:
        """The query counts the rows that it changed."""
        return await self._database.value(query.sql, *query.arguments(_fenced(lease, **values))) == 1

    def _sealed(self, mark: EngineMark | None) -> str | None:
        """The stored form; a few microseconds, because it is written with each page."""
        if mark is None:
            return None
        return b64encode(self._sealer.seal(f"{mark.log_lines} {mark.token}".encode())).decode()

    def _assignment_of(self, row: Row) -> Assignment:
        """A row with the columns queries.ASSIGNMENT. A mark that cannot be read counts as none."""
        resumption = None
        if row["engine_handle"] is not None:
            try:
                unsealed = self._sealer.unseal(b64decode(row["engine_handle"], validate=True)).decode()
                log_lines, _, token = unsealed.partition(" ")
                mark = EngineMark(token, int(log_lines))
                resumption = Resumption(mark, row["rows"], row["size_bytes"], row["segments"], row["log_lines"])
            except ValueError as error:  # it was changed, or its key is unknown
                log.warning("mark of a statement cannot be read", operation_id=str(row["id"]), reason=str(error))
        token = None
        if row["sealed_token"] is not None:
            token = SealedToken(row["sealed_token"], int(row["token_expires_at"].timestamp()))
        parameters, lacks_parameters = None, False
        if (sealed := row["sealed_parameters"]) is not None:
            try:
                parameters = self._parameters.unsealed(sealed)
            except ValueError as error:
                lacks_parameters = True
                log.warning("parameters of a statement cannot be read", operation_id=str(row["id"]), reason=str(error))
        return Assignment(
            **{name: row[name] for name in queries.ASSIGNMENT_FIELDS},
            ends_at=time.monotonic() + row["left"].total_seconds(),
            lease=Lease(row["id"], row["owner"], row["fence"], is_claimed=True, operation_id=row["operation_id"]),
            sent=row["sent_at"] is not None,
            cancel_requested=row["cancel_requested_at"] is not None,
            resumption=resumption,
            token=token,
            api_token=ApiTokenLimits.of_stored(row["api_token"]) if row["api_token"] is not None else None,
            parameters=parameters,
            lacks_parameters=lacks_parameters,
            limit_source=LimitSource(row["limit_source"]) if row["limit_source"] else None,
        )


def _fenced(lease: Lease, **values: object) -> dict[str, object]:
    """The parameters of `queries.FENCED`, and others."""
    return {"id": lease.statement_id, "owner": lease.owner, "fence": lease.fence, **values}


def _stored_columns(columns: Sequence[Column] | None) -> list[list[str]] | None:
    """Lists of name, type, native type, comment."""
    if columns is None:
        return None
    return [[column.name, column.type.value, column.native_type, column.comment] for column in columns]
