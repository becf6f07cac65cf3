"""What runners do with records.

Every write names owner and fence: a runner that was taken for dead and wakes up later changes nothing.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog

from queryserver.errors.base import DatabaseUnavailable
from queryserver.formats.columns import Column, Segment
from queryserver.platform.database import Database
from queryserver.platform.deployment import Sealer
from queryserver.platform.logs import AuditTrail
from queryserver.platform.metrics import UNMEASURED, StatementMetrics
from queryserver.statements import rows
from queryserver.statements.model import (
    Assignment,
    EngineMark,
    Lease,
    OnEnd,
    Outcome,
    Resumption,
    StatementEnd,
    StatementState,
    unobserved,
)
from queryserver.statements.rows import Reach, SealedMarks, StatementLeases

log = structlog.get_logger(__name__)

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


class LeaseLost(Exception):
    """Another runner has the statement, or its state is settled: this run writes nothing more."""


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """Limits of what is written, and how long an unreachable database is waited for."""

    log_max_bytes: int
    retention: timedelta
    lease: timedelta


class RunRecord:
    """The record of one statement, for the runner that holds its lease. All writes raise LeaseLost when it is lost."""

    def __init__(
        self,
        assignment: Assignment,
        leases: StatementLeases,
        settings: RecordSettings,
        notify: Callable[[], None],
        before_end: Callable[[], Awaitable[None]] | None = None,
        metrics: StatementMetrics = UNMEASURED,
    ) -> None:
        resumption = assignment.resumption
        self._assignment = assignment
        self._leases = leases
        self._settings = settings
        self._notify = notify
        self._before_end = before_end
        self._metrics = metrics
        self._begun = time.monotonic()
        self._engine_goes_on = False
        self._mark = resumption.mark if resumption else None
        self._running = asyncio.Lock()
        # Where to go on and what is stored are one fact: a write that overtakes another would tell an older one.
        self._writing = asyncio.Lock()
        self.log = Logbook(settings.log_max_bytes, stored=resumption, stored_lines=assignment.log_lines)
        self.is_running = resumption is not None
        """Whether the record tells that the engine has accepted the statement."""
        self.is_settled = False
        """Whether the end is recorded, or somebody else's business."""

    async def mark_sent(self) -> bool:
        """The statement is about to reach the engine; False when a cancel is asked for, or it is no longer ours."""
        return await self._written(lambda: self._leases.mark_sent(self._assignment.lease))

    async def mark_running(self, progress: int, token: str | None) -> None:
        """The engine has accepted the statement; more calls change nothing."""
        async with self._running:
            if self.is_running:
                return
            mark = self._new_mark(token)
            # Before the state, so that nobody sees a running statement without its progress.
            await self.report(progress, token)
            async with self._writing:
                await self._write(lambda: self._leases.mark_running(self._assignment.lease, mark=mark))
                self._mark, self.is_running = mark, True
        self.log.add(f"Running on {self._assignment.connector}.")
        self._notify()

    async def report(self, progress: int, token: str | None) -> None:
        """Progress and the log lines that came since the last report. No `token`: the former stays."""
        lease = self._assignment.lease
        async with self._writing:
            token = token or (self._mark.token if self._mark else None)
            mark = self._new_mark(token) if self.is_running else None
            with self.log.taken() as (start, lines):
                await self._write(
                    lambda: self._leases.report(lease, progress=progress, lines=lines, start_line=start, mark=mark)
                )
            self._mark = mark or self._mark
        before = self.log.overflow()
        if before is not None:
            await self._leases.trim_logs(lease, before_line=before)
        self._notify()

    async def moved(self, progress: int, token: str | None) -> None:
        """Store where to go on at the engine, if that is elsewhere than before."""
        if self._mark is not None and token is not None and token != self._mark.token:
            await self.report(progress, token)

    async def add_segment(self, segment: Segment, columns: Sequence[Column], token: str | None) -> None:
        """Make stored rows visible, together with where the engine goes on after them."""
        lease = self._assignment.lease
        async with self._writing:
            mark = self._stored_mark(token)
            await self._write(lambda: self._leases.add_segment(lease, segment, columns=columns, mark=mark))
            self._mark = mark or self._mark
        self._notify()

    async def finish(self, outcome: Outcome, *, engine_is_done: bool = True) -> None:
        """The terminal state with everything that belongs to it; the first one counts.

        `engine_is_done` False: the engine may still work on it, and `engine_is_done()` is called later.
        """
        async with self._writing:
            if self.is_settled:
                return
            self._engine_goes_on = not engine_is_done
            if self._before_end is not None:
                await self._written(self._ready_to_end)
            if outcome.message and outcome.state is not StatementState.AVAILABLE:
                self.log.add_engine([outcome.message])
            lease, retention = self._assignment.lease, self._settings.retention
            with self.log.taken() as (start, lines):
                await self._write(
                    lambda: self._leases.finish(lease, outcome, retention=retention, lines=lines, start_line=start)
                )
            self.is_settled = True
        seconds = time.monotonic() - self._begun
        self._metrics.statement_ended(self._assignment.dialect, outcome.state.value, seconds)
        self._notify()

    async def engine_is_done(self) -> None:
        """Nothing happens at the engine any more. What happened there after the end was told is told now."""
        if self._engine_goes_on and self._before_end is not None:
            self._engine_goes_on = False
            await self._written(self._ready_to_end)

    def _new_mark(self, token: str | None) -> EngineMark | None:
        return None if token is None else EngineMark(token, self.log.engine_lines)

    def _stored_mark(self, token: str | None) -> EngineMark | None:
        """As `_new_mark`, for a write that brings no log lines."""
        return None if token is None else EngineMark(token, self._mark.log_lines if self._mark else 0)

    async def _write(self, write: Callable[[], Awaitable[bool]]) -> None:
        if not await self._written(write):
            raise LeaseLost

    async def _ready_to_end(self) -> bool:
        if self._before_end is not None:
            await self._before_end()
        return True

    async def _written(self, write: Callable[[], Awaitable[bool]]) -> bool:
        """Write to the record; an unreachable database is tried again while the lease can still be ours."""
        give_up = asyncio.get_running_loop().time() + self._settings.lease.total_seconds()
        wait_s = 0.1
        while True:
            try:
                return await write()
            except DatabaseUnavailable:
                left_s = give_up - asyncio.get_running_loop().time()
                if left_s <= 0:
                    raise LeaseLost from None
            await asyncio.sleep(min(wait_s, left_s))
            wait_s = min(wait_s * 2, 2.0)


# Control characters could forge lines in a terminal; tabs are harmless and common in engine logs.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# PostgreSQL stores neither NUL nor half a pair of surrogates; engines quote both in their messages.
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_SECRET = re.compile(r"(?i)\b(password|passwd|secret|token|credential\w*)(\s*[=:]\s*)('[^']*'|\"[^\"]*\"|\S+)")

_LONGEST = 64 * 1024


def clean(line: str) -> str:
    """A log line without control characters and without what looks like a secret."""
    return _SECRET.sub(r"\1\2********", _CONTROL.sub(" ", shortened(line)))


def storable(text: str) -> str:
    """Text that a record can hold: an engine may answer 10 MB of SQL with 10 MB of complaint."""
    return _UNSTORABLE.sub("\ufffd", shortened(text))


def shortened(text: str) -> str:
    """The first 64 Ki characters."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


class Logbook:
    """Collects lines between two reports and says when old ones must go. Line numbers keep counting.

    `stored_lines` are in the record already, whoever wrote them.
    """

    def __init__(self, max_bytes: int, *, stored: Resumption | None = None, stored_lines: int = 0) -> None:
        self._max_bytes = max_bytes
        self._pending: list[str] = []
        self._pending_bytes = 0
        self._dropped = 0
        self._next_line = stored.log_lines if stored else stored_lines
        self._pieces: deque[tuple[int, int]] = deque()
        self._kept_bytes = 0
        self.engine_lines = stored.mark.log_lines if stored else 0

    def add(self, line: str) -> None:
        """One line of ours."""
        self._pending.append(clean(line))

    def add_engine(self, lines: Iterable[str]) -> None:
        """Lines of the engine; multi-line texts are cut at their line breaks."""
        for text in lines:
            self.engine_lines += 1
            # Characters beyond the limit of the log would be dropped anyway: a text may have 100 MB.
            for line in text[: self._max_bytes].splitlines() or [""]:
                self._add_engine_line(clean(line))

    def _add_engine_line(self, line: str) -> None:
        """Between two reports no more is kept than of the whole log: the first lines, and how many were dropped."""
        size = len(line.encode()) + 1
        if self._pending_bytes + size > self._max_bytes:
            self._dropped += 1
            return
        self._pending.append(line)
        self._pending_bytes += size

    @contextmanager
    def taken(self) -> Generator[tuple[int, list[str]]]:
        """Number of the first new line, and the lines, to be written inside; after a failure they are still new."""
        if self._dropped:
            self._pending.append(f"{self._dropped} log lines were dropped: too many came at once.")
        start, lines, size = self._next_line, self._pending, self._pending_bytes
        self._pending, self._pending_bytes, self._dropped = [], 0, 0
        try:
            yield start, lines
        except BaseException:  # a cancel too: lines that were not written are not lost
            self._pending = lines + self._pending
            self._pending_bytes += size
            raise
        self._next_line += len(lines)
        if lines:
            size = sum(len(line.encode()) + 1 for line in lines)
            self._pieces.append((self._next_line, size))
            self._kept_bytes += size

    def discard(self) -> None:
        """Forget the lines that were not reported."""
        self._pending, self._pending_bytes, self._dropped = [], 0, 0

    @property
    def has_news(self) -> bool:
        """Whether lines wait to be reported."""
        return bool(self._pending or self._dropped)

    def overflow(self) -> int | None:
        """The line before which lines must be dropped to stay within the limit; None while it holds."""
        before = None
        while self._kept_bytes > self._max_bytes and len(self._pieces) > 1:
            before, size = self._pieces.popleft()
            self._kept_bytes -= size
        if before is not None:
            self._pending.append(f"Log lines before number {before} were dropped: the log reached its size limit.")
        return before


class StatementEnds:
    """Writes an audit event for each end, and a line of the log where the audit has a file of its own."""

    def __init__(self, audit: AuditTrail, *, with_log_line: bool) -> None:
        self._audit = audit
        self._with_log_line = with_log_line

    def record(self, end: StatementEnd) -> None:
        """Write the end; `size` of the event is that of the stored rows."""
        facts: dict[str, str | int] = {
            "operation_id": str(end.id),
            "engine": end.dialect,
            "state": end.state.value,
            "rows": end.rows,
            "bytes": end.size_bytes,
            "queued_ms": end.queued_ms,
            "elapsed_ms": end.elapsed_ms,
        }
        if end.canceled_by:
            facts["canceled_by"] = end.canceled_by
        operation = "import.end" if end.is_import else "statement.end"
        self._audit.record(end.user, operation, end.connector, outcome=end.outcome, facts=facts)
        if self._with_log_line:
            log.info(operation, user=end.user, connector=end.connector, outcome=end.outcome, **facts)
