"""What runners do with records.

Every write names owner and fence: a runner that was taken for dead and wakes up later changes nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from queryserver.formats.columns import Column, Segment
from queryserver.platform.database import Database
from queryserver.platform.deployment import Sealer
from queryserver.statements import rows
from queryserver.statements.model import Assignment, EngineMark, Lease, OnEnd, Outcome, unobserved
from queryserver.statements.rows import Reach, SealedMarks

_MINE = "id = $1 and owner = $2 and fence = $3"

# Sent while its connector was being deleted: nobody else would end it before its time is over.
_HAS_NO_CONNECTOR = """exists (
    select from connectors where id::text = orphan.connector and deleted_at is not null
)"""

_CLAIM = f"""
update statements as orphan set owner = $2, fence = fence + 1, lease_until = now() + $3
where id = $1 and state = 'waiting' and (owner is null or lease_until < now())
    and (connector = any($4::text[]) or session_id = any($5::bigint[]))
    and not exists (
        select from sessions
        where sessions.id = orphan.session_id and closed_at is null
            and sessions.owner <> $2 and sessions.lease_until > now()
    )
returning {rows.ASSIGNMENT}
"""

_ORPHANS = f"""
update statements set owner = $1, fence = fence + 1, lease_until = now() + $2
where id in (
    select id from statements as orphan
    where state in ('waiting', 'running')
        and (
            connector = any($3::text[]) or session_id = any($5::bigint[])
            or sent_at is not null or deadline_at < now() or {_HAS_NO_CONNECTOR}
        )
        and ($4 or lease_until is null or lease_until < now())
        and ($4 or not exists (
            select from sessions
            where sessions.id = orphan.session_id and closed_at is null
                and sessions.owner <> $1 and sessions.lease_until > now()
        ))
    order by history_id limit 200 for update skip locked
)
returning {rows.ASSIGNMENT}
"""

_LOGGED = """
logged as (
    insert into statement_logs as known (statement_id, start_line, lines)
    select id, coalesce({start}::integer, (
            select coalesce(max(start_line + cardinality(lines)), 0) from statement_logs where statement_id = $1
        )), {lines}::text[]
    from changed where cardinality({lines}::text[]) > 0
    on conflict (statement_id, start_line) do update set lines = excluded.lines
        where cardinality(known.lines) < cardinality(excluded.lines)
)
"""

_REPORT = f"""
with changed as (
    update statements set progress = greatest($4, progress), jobs = $5, engine_handle = coalesce($6, engine_handle)
    where {_MINE} and state in ('waiting', 'running') returning id
), {_LOGGED.format(start="$7", lines="$8")}
select count(*) from changed
"""

# Columns that are there stay untouched: large ones would be written anew with each change.
_FINAL_COLUMNS = "case when $8::jsonb is not null then coalesce(columns, $8::jsonb) end"
# Descriptions of many columns and long messages count as text of the statement, until they are removed with it.
_COLUMNS_BYTES = "case when octet_length($8::jsonb::text) > 16384 then octet_length($8::jsonb::text) else 0 end"
_MESSAGE_BYTES = "case when octet_length($6::text) > 16384 then octet_length($6::text) else 0 end"

_SEGMENT = f"""
with changed as (
    update statements set rows = $5::bigint + $6::bigint, size_bytes = size_bytes + $7::bigint,
        columns = coalesce(columns, $8::jsonb),
        engine_handle = coalesce($9, engine_handle)
    where {_MINE} and state = 'running' returning id
), stored as (
    insert into result_segments as known (statement_id, number, fence, start_row, rows, size_bytes)
    select id, $4::integer, $3::bigint, $5::bigint, $6::bigint, $7::bigint from changed
    on conflict (statement_id, number) do update
        set fence = excluded.fence, start_row = excluded.start_row, rows = excluded.rows,
            size_bytes = excluded.size_bytes
        where known.fence < excluded.fence
)
select count(*) from changed
"""

# A runner that died may have left bytes that no record tells of: what was sent and came to nothing is always cleared.
_FINISH = f"""
with changed as (
    update statements set state = $4::text, ended_at = now(), error_code = $5, message = $6::text, has_result_set = $7,
        columns = {_FINAL_COLUMNS}, text_bytes = text_bytes + {_COLUMNS_BYTES} + {_MESSAGE_BYTES},
        rows = $9, size_bytes = $10, truncated_reason = $11, modified_row_count = $12,
        inline_result = $13, engine_handle = null,
        sealed_token = null, token_expires_at = null, error_line = $17, error_column = $18,
        progress = case when $4::text in ('available', 'success') then 100 else progress end,
        expires_at = case when $4::text = 'available' then now() + $14::interval end
    where {_MINE} and state in ('waiting', 'running') returning {rows.END}
), doomed as (
    insert into doomed_results (statement_id)
    select id from changed where $4::text not in ('available', 'success')
    on conflict do nothing
), {_LOGGED.format(start="$15", lines="$16")}
select * from changed
"""


class Leases:
    """Claims, heartbeats and fenced writes."""

    def __init__(self, database: Database, sealer: Sealer, on_end: OnEnd = unobserved) -> None:
        self._database = database
        self._on_end = on_end
        self._marks = SealedMarks(sealer)

    async def claim(self, statement_id: UUID, *, owner: str, lease: timedelta, within: Reach) -> Assignment | None:
        reach = list(within.connectors), list(within.sessions)
        row = await self._database.row(_CLAIM, statement_id, owner, lease, *reach)
        return rows.assignment_of(row, self._marks) if row else None

    async def claim_orphans(
        self, *, owner: str, lease: timedelta, within: Reach, everything: bool
    ) -> Sequence[Assignment]:
        """In order of recording, at most 200 at once."""
        found = await self._database.fetch(
            _ORPHANS, owner, lease, list(within.connectors), everything, list(within.sessions)
        )
        return sorted((rows.assignment_of(row, self._marks) for row in found), key=lambda one: one.history_id)

    async def renew(self, statement_ids: Sequence[UUID], *, owner: str, lease: timedelta) -> Mapping[UUID, bool]:
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
        return await self._changed(
            f"""update statements set owner = null, lease_until = null
            where {_MINE} and state = 'waiting' and sent_at is null""",
            lease,
        )

    async def hand_over(self, lease: Lease) -> bool:
        return await self._changed(
            f"""update statements set owner = null, lease_until = null
            where {_MINE} and state = 'running' and engine_handle is not null""",
            lease,
        )

    async def mark_sent(self, lease: Lease) -> bool:
        return await self._changed(
            f"""update statements set sent_at = coalesce(sent_at, now())
            where {_MINE} and state = 'waiting' and cancel_requested_at is null""",
            lease,
        )

    async def mark_running(self, lease: Lease, *, mark: EngineMark | None = None) -> bool:
        return await self._changed(
            f"""update statements set state = 'running', engine_handle = $4
            where {_MINE} and state in ('waiting', 'running')""",
            lease,
            self._marks.stored(mark),
        )

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
        changed = await self._database.value(
            _REPORT, *_named(lease), progress, list(jobs), self._marks.stored(mark), start_line, list(lines)
        )
        return changed == 1

    async def trim_logs(self, lease: Lease, *, before_line: int) -> None:
        await self._database.execute(
            "delete from statement_logs where statement_id = $1 and start_line + cardinality(lines) <= $2",
            lease.statement_id,
            before_line,
        )

    async def add_segment(
        self, lease: Lease, segment: Segment, *, columns: Sequence[Column], mark: EngineMark | None = None
    ) -> bool:
        """A successor's segment replaces the same one of a runner that lost its lease."""
        changed = await self._database.value(
            _SEGMENT,
            *_named(lease),
            segment.number,
            segment.start_row,
            segment.rows,
            segment.size_bytes,
            rows.stored_columns(columns),
            self._marks.stored(mark),
        )
        return changed == 1

    async def finish(
        self, lease: Lease, outcome: Outcome, *, retention: timedelta, lines: Sequence[str], start_line: int | None
    ) -> bool:
        changed = await self._database.row(
            _FINISH,
            *_named(lease),
            outcome.state.value,
            outcome.error_code,
            outcome.message,
            outcome.has_result_set,
            rows.stored_columns(outcome.columns),
            outcome.rows,
            outcome.size_bytes,
            outcome.truncated_reason.value if outcome.truncated_reason else None,
            outcome.modified_row_count,
            outcome.inline_result,
            retention,
            start_line,
            list(lines),
            outcome.error_position.line if outcome.error_position else None,
            outcome.error_position.column if outcome.error_position else None,
        )
        if changed is None:
            return False
        self._on_end(rows.end_of(changed))
        return True

    async def _changed(self, sql: str, lease: Lease, *arguments: object) -> bool:
        return await self._database.execute(sql, *_named(lease), *arguments) == 1


def _named(lease: Lease) -> tuple[UUID, str, int]:
    return lease.statement_id, lease.owner, lease.fence
