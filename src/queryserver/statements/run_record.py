"""What a run writes: its rows in segments, its log, its end."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

import pyarrow as pa

from queryserver import errors
from queryserver.formats.arrow import encode
from queryserver.formats.columns import Column
from queryserver.formats.value_sizes import ROW_CELLS, first_large_row, first_large_value, has_nested, parts
from queryserver.platform.metrics import UNMEASURED, Metrics
from queryserver.platform.settings.editor import EditorSettings
from queryserver.results.model import Segment
from queryserver.results.segments import ResultStore
from queryserver.statements.assignments import Assignment, EngineMark, Lease, Outcome, Resumption, assignment_of
from queryserver.statements.leases import StatementLeases
from queryserver.statements.logbook import Logbook
from queryserver.statements.scripts import ScriptRun
from queryserver.statements.states import StatementState
from queryserver.statements.truncation import TruncationReason

T = TypeVar("T")


class LeaseLost(Exception):
    """Another runner has the statement, or its state is final: this run writes nothing more."""


@dataclass(eq=False, repr=False)
class RunRecord:
    """The record of one statement, for the runner that holds its lease. All writes raise LeaseLost when it is lost.

    `before_end` is done before any user can see that the statement has ended. An unreachable database is retried while
    the lease can still be ours.
    """

    assignment: Assignment
    leases: StatementLeases
    editor: EditorSettings
    notify: Callable[[], None]
    before_end: Callable[[], Awaitable[None]] | None = None
    metrics: Metrics = UNMEASURED
    script: ScriptRun | None = None
    """Set for a statement of a script whose statements all run."""
    next_statement: Assignment | None = field(default=None, init=False)
    """The next statement of the script, recorded with the end of this one."""
    engine_continues: bool = field(default=False, init=False)
    """The end was recorded before the engine confirmed it."""
    is_settled: bool = field(default=False, init=False)
    """The end is recorded, or is recorded by another runner."""
    _begun: float = field(default_factory=time.monotonic, init=False)
    _running: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    # The mark and the stored rows and lines are one fact: a write that overtakes another would store an older mark.
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        resumption = self.assignment.resumption
        self._lease = self.assignment.lease
        self._mark = resumption.mark if resumption else None
        self.log = self._logbook(resumption)
        self.is_running = resumption is not None
        """Whether the recorded state is `running`: the engine has accepted the statement."""

    def _logbook(self, resumption: Resumption | None) -> Logbook:
        script, assignment = self.script, self.assignment
        if script is not None and script.log is not None:
            log, log.engine_lines = script.log, 0
        else:
            log = Logbook(self.editor.log_max_bytes, stored=resumption, stored_lines=assignment.log_lines)
        if script is not None:
            script.log = log
            if resumption is None:
                log.add(f"Statement {assignment.statement_index + 1} of {assignment.statements_count}.")
        return log

    async def mark_sent(self) -> bool:
        """The statement is about to reach the engine; False when a cancel is requested, or it is no longer ours."""
        return await self._retried(lambda: self.leases.mark_sent(self._lease))

    async def mark_running(self, progress: int, token: str | None) -> None:
        """The engine has accepted the statement; more calls change nothing."""
        async with self._running:
            if self.is_running:
                return
            mark = None if token is None else EngineMark(token, self.log.engine_lines)
            # Before the state, so that no client sees a running statement without its progress.
            await self.report(progress, token)
            async with self._writing:
                await self._write(lambda: self.leases.mark_running(self._lease, mark=mark))
                self._mark, self.is_running = mark, True
        self.log.add(f"Running on {self.assignment.connector}.")
        self.notify()

    async def report(self, progress: int, token: str | None) -> None:
        """Progress and the log lines since the last report. No `token`: the stored one stays."""
        async with self._writing:
            token = token or (self._mark.token if self._mark else None)
            mark = EngineMark(token, self.log.engine_lines) if self.is_running and token is not None else None
            with self.log.taken() as (start, lines):
                await self._write(
                    lambda: self.leases.report(self._lease, progress=progress, lines=lines, start_line=start, mark=mark)
                )
            self._mark = mark or self._mark
        before = self.log.overflow()
        if before is not None:
            await self.leases.trim_logs(self._lease, before_line=before)

    async def moved(self, progress: int, token: str | None) -> None:
        """Store where to continue at the engine, if that has changed."""
        if self._mark is not None and token is not None and token != self._mark.token:
            await self.report(progress, token)

    async def add_segment(self, segment: Segment, columns: Sequence[Column], token: str | None) -> None:
        """Make stored rows visible, together with where the engine continues after them."""
        async with self._writing:
            # This write brings no log lines.
            mark = None if token is None else EngineMark(token, self._mark.log_lines if self._mark else 0)
            await self._write(lambda: self.leases.add_segment(self._lease, segment, columns=columns, mark=mark))
            self._mark = mark or self._mark
        self.notify()

    async def finish(self, outcome: Outcome, *, engine_is_done: bool = True) -> None:
        """The terminal state with everything that belongs to it; the first one counts.

        `engine_is_done` False: the engine may still work on it, and `engine_is_done()` is called later.
        """
        async with self._writing:
            if self.is_settled:
                return
            self.engine_continues = not engine_is_done
            if self.before_end is not None:
                await self._retried(self.before_end)
            if outcome.message and outcome.state is not StatementState.AVAILABLE:
                self.log.add_engine([outcome.message])
            if outcome.truncated_reason:
                self.log.add(outcome.message)
            if outcome.state in {StatementState.AVAILABLE, StatementState.SUCCESS}:
                self.log.add(f"Finished: {outcome.rows} rows stored." if outcome.has_result_set else "Finished.")
            with self.log.taken() as (start, lines):
                await self._write_end(outcome, lines, start)
            self.is_settled = True
        seconds = time.monotonic() - self._begun
        self.metrics.statement_ended(self.assignment.dialect, outcome.state.value, seconds)
        self.notify()

    async def _write_end(self, outcome: Outcome, lines: Sequence[str], start: int) -> None:
        retention = timedelta(hours=self.editor.result_retention_h)
        if (script := self.script) is None:
            await self._write(
                lambda: self.leases.finish(self._lease, outcome, retention=retention, lines=lines, start_line=start)
            )
            return
        next_statement = None
        if outcome.state in {StatementState.AVAILABLE, StatementState.SUCCESS}:
            next_statement = await self._retried(lambda: script.next_statement(self.assignment))
        end = await self._retried(
            lambda: self.leases.finish_part(
                self._lease, outcome, retention=retention, lines=lines, start_line=start, next_statement=next_statement
            )
        )
        if end is None:
            raise LeaseLost
        if next_statement is not None and end.next_statement is not None:
            lease = replace(self._lease, statement_id=next_statement.id, fence=1)
            self.next_statement = assignment_of(
                next_statement, lease, history_id=end.next_statement.status.history_id, ends_at=self.assignment.ends_at
            )

    async def engine_is_done(self) -> None:
        """The engine has stopped. If the end was recorded before that, `before_end` is repeated for later changes."""
        if self.engine_continues and self.before_end is not None:
            self.engine_continues = False
            await self._retried(self.before_end)

    async def _write(self, write: Callable[[], Awaitable[bool]]) -> None:
        if not await self._retried(write):
            raise LeaseLost

    async def _retried(self, write: Callable[[], Awaitable[T]]) -> T:
        give_up = asyncio.get_running_loop().time() + self.editor.lease_timeout_s
        wait_s = 0.1
        while True:
            try:
                return await write()
            except errors.DatabaseUnavailable:
                left_s = give_up - asyncio.get_running_loop().time()
                if left_s <= 0:
                    raise LeaseLost from None
            await asyncio.sleep(min(wait_s, left_s))
            wait_s = min(wait_s * 2, 2.0)


INLINE_BYTES = 32 * 1024
"""Results up to this size are stored inside the record itself: no file, no second query."""
SEGMENT_AGE_S = 1.0
"""Rows of a slow statement can be read after this time."""
_SEGMENT_BYTES = 4 * 1024 * 1024
# Batches with more columns are measured in a thread: Arrow takes some 6 µs for the size of each column.
_MANY_COLUMNS = 200


@dataclass(frozen=True, slots=True)
class Caps:
    """How much of a result is kept, and how large one value may be."""

    rows: int
    size_bytes: int
    cell_bytes: int


@dataclass(frozen=True, slots=True)
class SpoolResult:
    """What was kept; a small result is `inline` and has no segments."""

    rows: int
    size_bytes: int
    truncated_reason: TruncationReason | None
    inline: bytes | None


@dataclass(eq=False, repr=False)
class Spool:
    """Collects batches into segments; while one is being stored the next one fills.

    Holds at most two segments and one batch. `make_visible` is called in order, each time bytes are durable.
    """

    results: ResultStore
    lease: Lease
    caps: Caps
    make_visible: Callable[[Segment, str | None], Awaitable[None]]
    stored: Resumption | None = None
    truncated_reason: TruncationReason | None = field(default=None, init=False)
    _pending: list[pa.RecordBatch] = field(default_factory=list[pa.RecordBatch], init=False)
    _pending_bytes: int = field(default=0, init=False)
    _pending_since: float = field(default_factory=time.monotonic, init=False)
    _storing: "asyncio.Task[None] | None" = field(default=None, init=False)
    _token: str | None = field(default=None, init=False)
    _checked_schema: pa.Schema | None = field(default=None, init=False)
    _has_nested: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        stored = self.stored
        self.rows = stored.rows if stored else 0
        self._segments = stored.segments if stored else 0
        self._stored_bytes = stored.size_bytes if stored else 0
        # Of what another runner stored only the packed size is known.
        self._kept_bytes = self._stored_bytes

    async def add(self, batch: pa.RecordBatch, token: str | None = None) -> None:
        """Keep what the caps allow; `truncated_reason` is set once something was dropped.

        `token` is where the engine continues after this batch; it is stored together with the last rows of the batch.
        Raises cell_too_large, RowTooLarge; then nothing of the batch is kept.
        """
        divide = partial(self._divided, batch, is_one=token is not None)
        pieces = divide() if batch.num_columns <= _MANY_COLUMNS else await asyncio.to_thread(divide)
        for kept, size_bytes in pieces:
            if self._pending and not self._pending[0].schema.equals(kept.schema):
                await self._flush()
            self._token = token
            if not self._pending:
                self._pending_since = time.monotonic()
            self._pending.append(kept)
            self._pending_bytes += size_bytes
            self.rows += kept.num_rows
            if size_bytes > _SEGMENT_BYTES:
                # One huge row: nothing else is fetched until its memory is free again.
                await self.store()
            elif self._pending_bytes >= _SEGMENT_BYTES or time.monotonic() - self._pending_since >= SEGMENT_AGE_S:
                await self._flush()

    async def flush_if_old(self) -> None:
        """Begin to store rows that have waited for `SEGMENT_AGE_S`."""
        if self._pending and time.monotonic() - self._pending_since >= SEGMENT_AGE_S:
            await self._flush()

    async def store(self) -> None:
        """Make everything durable and visible that was added."""
        await self._flush()
        await self._stored()

    async def finish(self) -> SpoolResult:
        """Store the rest; everything that the answer counts is durable, or inline."""
        if self._pending and not self._segments and self._pending_bytes <= INLINE_BYTES:
            inline = encode(pa.Table.from_batches(self._pending))
            if len(inline) <= INLINE_BYTES:
                return SpoolResult(self.rows, len(inline), self.truncated_reason, inline)
        await self.store()
        return SpoolResult(self.rows, self._stored_bytes, self.truncated_reason, None)

    async def aclose(self) -> None:
        """Stop storing; what is not visible yet never will be."""
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)

    def _divided(self, batch: pa.RecordBatch, *, is_one: bool) -> list[tuple[pa.RecordBatch, int]]:
        """What the caps allow of the batch, in pieces for segments, each with its bytes; one piece if `is_one`.

        Rows and the mark after them are stored together, so only a batch without a mark may be divided.
        """
        if self.truncated_reason is not None:
            return []
        room = self.caps.rows - self.rows
        if batch.num_rows > room:
            self.truncated_reason = TruncationReason.ROW_LIMIT
            batch = batch.slice(0, room)
        size_bytes = batch.nbytes
        if self._checked_schema is None or not self._checked_schema.equals(batch.schema):
            self._checked_schema, self._has_nested = batch.schema, has_nested(batch.schema)
        if size_bytes > self.caps.cell_bytes or self._has_nested:
            self._require_small_cells(batch)
        if self._kept_bytes + size_bytes > self.caps.size_bytes:
            self.truncated_reason = TruncationReason.BYTE_LIMIT
            share = (self.caps.size_bytes - self._kept_bytes) / max(size_bytes, 1)
            batch = batch.slice(0, int(batch.num_rows * share))
            size_bytes = batch.nbytes
        self._kept_bytes += size_bytes
        if batch.num_rows == 0:
            return []
        if is_one or size_bytes <= _SEGMENT_BYTES:
            return [(batch, size_bytes)]
        return [(piece, piece.nbytes) for piece in parts(batch, _SEGMENT_BYTES)]

    def _require_small_cells(self, batch: pa.RecordBatch) -> None:
        limit = self.caps.cell_bytes
        if (found := first_large_value(batch, limit)) is not None:
            row, column = found
            raise errors.cell_too_large(limit_bytes=limit, row=self.rows + row, column=batch.schema.names[column])
        if (large := first_large_row(batch, ROW_CELLS * limit)) is not None:
            raise errors.RowTooLarge(limit_bytes=ROW_CELLS * limit, row=self.rows + large)

    async def _flush(self) -> None:
        if not self._pending:
            return
        await self._stored()
        table = pa.Table.from_batches(self._pending)
        start_row = self.rows - table.num_rows
        self._pending, self._pending_bytes = [], 0
        self._storing = asyncio.create_task(self._store_segment(self._segments, start_row, table, self._token))
        self._segments += 1

    async def _stored(self) -> None:
        if self._storing is not None:
            storing, self._storing = self._storing, None
            await storing

    async def _store_segment(self, number: int, start_row: int, table: pa.Table, token: str | None) -> None:
        lease = self.lease
        try:
            segment = await self.results.append(
                lease.statement_id, fence=lease.fence, number=number, start_row=start_row, table=table
            )
        except errors.InsufficientStorage as error:
            raise errors.disk_below_floor(error.message) from error
        except errors.QueryServerError as error:
            raise errors.result_store_failed("The result could not be stored.") from error
        self._stored_bytes += segment.size_bytes
        await self.make_visible(segment, token)
