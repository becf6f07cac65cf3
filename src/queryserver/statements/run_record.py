"""Writes the record of a running statement: rows in segments, log lines, and the outcome."""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

import pyarrow as pa

from queryserver import errors
from queryserver.formats.arrow import (
    ROW_SIZE_FACTOR,
    Column,
    encode,
    first_oversized_row,
    first_oversized_value,
    has_nested_types,
    split_batch,
)
from queryserver.platform.metrics import NO_METRICS, Metrics
from queryserver.platform.settings.editor import EditorSettings
from queryserver.results.segments import ResultStore, Segment
from queryserver.statements.model import Assignment, Claim, EngineCheckpoint, Outcome, Resumption, new_assignment
from queryserver.statements.owned_statements import OwnedStatements
from queryserver.statements.scripts import ScriptRun
from queryserver.statements.states import StatementState, TruncationReason
from queryserver.statements.traces import NO_TRACE, StatementTrace

T = TypeVar("T")


# Control characters could forge lines in a terminal. Tabs are harmless and common in engine logs.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# PostgreSQL stores neither NUL characters nor lone surrogates, but engine messages may contain both.
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_SECRET = re.compile(r"(?i)\b(password|passwd|secret|token|credential\w*)(\s*[=:]\s*)('[^']*'|\"[^\"]*\"|\S+)")

_MAX_TEXT_CHARACTERS = 64 * 1024
_GIVEN_BACK = "The server is being shut down. The stored result will be read again."
_MAX_SENT_AHEAD_S = 1.0
"""An early record of the send is not used after this time (ADR 81)."""


def clean_log_line(line: str) -> str:
    """Truncate a log line, replace control characters with spaces, and mask secrets."""
    return _SECRET.sub(r"\1\2********", _CONTROL.sub(" ", shorten(line)))


def storable_text(text: str) -> str:
    """Truncate a string for a record, and replace characters that cannot be stored.

    Engine messages may quote 10 MB of SQL.
    """
    return _UNSTORABLE.sub("\ufffd", shorten(text))


def shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_CHARACTERS else f"{text[:_MAX_TEXT_CHARACTERS]}…"


class StatementLog:
    """Collects log lines between two reports, and drops the oldest stored lines once they exceed `max_bytes`.

    Line numbers are never reused: the remaining lines keep their numbers.
    """

    def __init__(self, max_bytes: int, *, stored: Resumption | None = None, stored_lines: int = 0) -> None:
        self._max_bytes = max_bytes
        self._pending: list[str] = []
        self._pending_bytes = 0
        self._dropped = 0
        self._next_line = stored.log_lines if stored else stored_lines
        self._pieces: deque[tuple[int, int]] = deque()
        self._kept_bytes = 0
        self.engine_lines = stored.checkpoint.log_lines if stored else 0

    def add(self, line: str) -> None:
        """Add a log line of this service."""
        self._pending.append(clean_log_line(line))

    def add_engine(self, lines: Iterable[str]) -> None:
        """Add log lines of the engine. A text with line breaks becomes several lines."""
        for text in lines:
            self.engine_lines += 1
            # A text may be 100 MB long. Characters beyond the log's limit would be dropped anyway.
            for line in text[: self._max_bytes].splitlines() or [""]:
                cleaned = clean_log_line(line)
                size = len(cleaned.encode()) + 1
                # The size limit also applies to the lines between two reports. Lines beyond it are dropped.
                if self._pending_bytes + size > self._max_bytes:
                    self._dropped += 1
                else:
                    self._pending.append(cleaned)
                    self._pending_bytes += size

    @contextmanager
    def new_lines(self) -> Generator[tuple[int, list[str]]]:
        """Yield the unreported lines and the number of the first one. If the block raises, they remain unreported."""
        if self._dropped:
            self._pending.append(f"{self._dropped} log lines were dropped because too many arrived at once.")
        start, lines, size = self._next_line, self._pending, self._pending_bytes
        self._pending, self._pending_bytes, self._dropped = [], 0, 0
        try:
            yield start, lines
        except BaseException:  # including CancelledError: unwritten lines must not be lost
            self._pending = lines + self._pending
            self._pending_bytes += size
            raise
        self._next_line += len(lines)
        if lines:
            size = sum(len(line.encode()) + 1 for line in lines)
            self._pieces.append((self._next_line, size))
            self._kept_bytes += size

    def discard(self) -> None:
        """Drop lines that were not reported yet."""
        self._pending, self._pending_bytes, self._dropped = [], 0, 0

    @property
    def has_new_lines(self) -> bool:
        return bool(self._pending or self._dropped)

    def drop_overflow(self) -> int | None:
        """Drop the oldest stored lines beyond the limit.

        Return the number of the first remaining line, or None if no line was dropped.
        """
        first_kept = None
        while self._kept_bytes > self._max_bytes and len(self._pieces) > 1:
            first_kept, size = self._pieces.popleft()
            self._kept_bytes -= size
        if first_kept is not None:
            self._pending.append(
                f"Log lines before number {first_kept} were dropped because the log reached its size limit."
            )
        return first_kept


class ClaimLost(Exception):
    """Another runner owns the statement, or its state is final. This run must stop writing."""


@dataclass(eq=False, repr=False)
class RunRecord:
    """Writes one statement's record for the runner that owns the statement.

    Once another process has claimed it, every write raises ClaimLost. While the database is unreachable, writes are
    retried for the duration of a lease. `before_end` runs before users can see that the statement has ended.
    """

    assignment: Assignment
    owned: OwnedStatements
    editor: EditorSettings
    notify: Callable[[], None]
    before_end: Callable[[], Awaitable[None]] | None = None
    metrics: Metrics = NO_METRICS
    script: ScriptRun | None = None
    """Set for a statement of a script that runs as a whole."""
    previous_log: StatementLog | None = None
    """The log of the script's previous statement, which this statement appends to."""
    trace: StatementTrace = NO_TRACE
    next_statement: Assignment | None = field(default=None, init=False)
    """The script's next statement, which was recorded together with the end of this one."""
    engine_continues: bool = field(default=False, init=False)
    """Whether the end was recorded before the engine confirmed it."""
    is_settled: bool = field(default=False, init=False)
    """Whether the end was recorded, or recording it was left to another runner."""
    is_given_back: bool = field(default=False, init=False)
    """Whether the statement has returned to the queue."""
    estimated_bytes: int | None = field(default=None, init=False)
    """The bytes that the engine expected the statement to read. Stored with the next state."""
    scanned_bytes: int | None = field(default=None, init=False)
    """The bytes that the statement has read, as the engine reports them. Stored with the end."""
    _started_at: float = field(default_factory=time.monotonic, init=False)
    _running: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    # Writes are sequential. If one overtook another, an older checkpoint could overwrite a newer one.
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        resumption = self.assignment.resumption
        self._claim = self.assignment.claim
        self._checkpoint = resumption.checkpoint if resumption else None
        self.log = self._opened_log(resumption)
        self.is_running = resumption is not None
        """Whether the recorded state is `running`, because the engine has accepted the statement."""
        self._sent_ahead = self.assignment.sent_ahead
        self._queued = timedelta(0) if self.assignment.sent else None
        """Time from the record to the send, or None if the statement was not sent."""

    def _opened_log(self, resumption: Resumption | None) -> StatementLog:
        assignment, log = self.assignment, self.previous_log
        if log is None:
            log = StatementLog(self.editor.log_max_bytes, stored=resumption, stored_lines=assignment.log_lines)
        else:
            log.engine_lines = 0  # engines number each statement's log lines from 0
        if self.script is not None and resumption is None:
            log.add(f"Statement {assignment.statement_index + 1} of {assignment.statements_count}.")
        return log

    async def mark_sent(self) -> bool:
        """Record that the statement is about to be sent, unless that is already recorded (ADR 81).

        Return False if the claim was lost, a cancel was requested or the end is recorded.
        """
        async with self._writing:
            if self.is_settled:
                return False
            # Only the first attempt uses the early record, and only if no other process can have claimed the statement
            # since. Otherwise, the write checks that, and whether a cancel was requested.
            waited_s = time.monotonic() - self._started_at
            has_lapsed = self.owned.ownership.has_lapsed(self.assignment.lapses)
            may_skip = self._sent_ahead and waited_s < _MAX_SENT_AHEAD_S and not has_lapsed
            recorded, self._sent_ahead = may_skip, False
            if not (recorded or await self._retried(lambda: self.owned.mark_sent(self._claim))):
                return False
            self._queued = timedelta(seconds=time.monotonic() - self._started_at)
            self.trace.sent()
            return True

    async def clear_source(self) -> None:
        """Record that the engine answers the statement, not a stored result. Raises ClaimLost."""
        async with self._writing:
            if not self.is_settled:
                await self._write(lambda: self.owned.clear_source(self._claim))
                self.trace.uses_engine()

    async def take_back(self) -> None:
        """Record that the statement has not been sent yet, if the record says otherwise (ADR 81)."""
        async with self._writing:
            # Reset first: if this write is canceled, `mark_sent` must write the record again.
            recorded, self._sent_ahead = self._sent_ahead, False
            if recorded and not self.is_settled:
                await self._write(lambda: self.owned.take_back(self._claim))

    async def give_back(self) -> bool:
        """Return the statement to the queue, from which it runs again from the start.

        Return False if it must not run again, and True also if the end was recorded. Raises ClaimLost.
        """
        async with self._writing:
            if self.is_settled:
                return True
            given = await self._retried(lambda: self.owned.give_back(self._claim, line=_GIVEN_BACK))
            self.is_settled = self.is_given_back = given
        if given:
            self.notify()
        return given

    async def mark_running(self, progress: int, token: str | None) -> None:
        """Record that the engine has accepted the statement. Further calls have no effect."""
        async with self._running:
            if self.is_running:
                return
            checkpoint = None if token is None else EngineCheckpoint(token, self.log.engine_lines)
            # Progress is stored before the state, so that no client sees a running statement without progress.
            if progress or self.log.has_new_lines:
                await self.report(progress, token)
            async with self._writing:
                queued, estimate = self._queued, self.estimated_bytes
                await self._write(
                    lambda: self.owned.mark_running(
                        self._claim, checkpoint=checkpoint, queued=queued, estimated_bytes=estimate
                    )
                )
                self._checkpoint, self.is_running = checkpoint, True
        self.log.add(f"Running on {self.assignment.connector}.")
        self.notify()

    async def report(self, progress: int, token: str | None) -> None:
        """Store the progress and new log lines. If `token` is None, the stored token is kept."""
        async with self._writing:
            token = token or (self._checkpoint.token if self._checkpoint else None)
            checkpoint = None
            if self.is_running and token is not None:
                checkpoint = EngineCheckpoint(token, self.log.engine_lines)
            with self.log.new_lines() as (start, lines):
                await self._write(
                    lambda: self.owned.report(
                        self._claim, progress=progress, lines=lines, start_line=start, checkpoint=checkpoint
                    )
                )
            self._checkpoint = checkpoint or self._checkpoint
        first_kept = self.log.drop_overflow()
        if first_kept is not None:
            await self.owned.trim_logs(self._claim, before_line=first_kept)

    async def record_token(self, progress: int, token: str | None) -> None:
        """Store the position from which reading on the engine can resume, if it has changed."""
        if self._checkpoint is not None and token is not None and token != self._checkpoint.token:
            await self.report(progress, token)

    async def add_segment(self, segment: Segment, columns: Sequence[Column], token: str | None) -> None:
        """Make stored rows visible, and record the position after them, from which reading on the engine can resume."""
        async with self._writing:
            # This write stores no log lines, so their number stays unchanged.
            log_lines = self._checkpoint.log_lines if self._checkpoint else 0
            checkpoint = None if token is None else EngineCheckpoint(token, log_lines)
            await self._write(
                lambda: self.owned.add_segment(self._claim, segment, columns=columns, checkpoint=checkpoint)
            )
            self._checkpoint = checkpoint or self._checkpoint
        self.notify()

    async def finish(self, outcome: Outcome, *, engine_is_done: bool = True) -> None:
        """Record the terminal state and the outcome. Only the first call has an effect.

        If `engine_is_done` is False, the engine may still be working. In this case, call the method `engine_is_done()`
        once the engine has stopped.
        """
        async with self._writing:
            if self.is_settled:
                return
            self.engine_continues = not engine_is_done
            self.trace.finished(outcome)
            if self.before_end is not None:
                await self._retried(self.before_end)
            if outcome.message and outcome.state is not StatementState.AVAILABLE:
                self.log.add_engine([outcome.message])
            if outcome.truncated_reason:
                self.log.add(outcome.message)
            if outcome.state in {StatementState.AVAILABLE, StatementState.SUCCESS}:
                self.log.add(f"Finished: {outcome.rows} rows stored." if outcome.has_result_set else "Finished.")
            outcome = replace(outcome, estimated_bytes=self.estimated_bytes, scanned_bytes=self.scanned_bytes)
            with self.log.new_lines() as (start, lines):
                await self._write_end(outcome, lines, start)
            self.is_settled = True
        seconds = time.monotonic() - self._started_at
        self.metrics.statement_ended(self.assignment.dialect, outcome.state.value, seconds)
        self.notify()

    async def _write_end(self, outcome: Outcome, lines: Sequence[str], start: int) -> None:
        retention = timedelta(hours=self.editor.result_retention_h)
        if (script := self.script) is None:
            await self._write(
                lambda: self.owned.finish(
                    self._claim, outcome, retention=retention, lines=lines, start_line=start, queued=self._queued
                )
            )
            return
        next_statement = None
        if outcome.state in {StatementState.AVAILABLE, StatementState.SUCCESS}:
            next_statement = await self._retried(lambda: script.next_statement(self.assignment))
        end = await self._retried(
            lambda: self.owned.finish_part(
                self._claim, outcome, retention=retention, lines=lines, start_line=start, next_statement=next_statement
            )
        )
        if end is None:
            raise ClaimLost
        if next_statement is not None and end.next_statement is not None:
            claim = replace(self._claim, statement_id=next_statement.id, fence=1)
            self.next_statement = new_assignment(
                next_statement, claim, history_id=end.next_statement.status.history_id, ends_at=self.assignment.ends_at
            )

    async def engine_is_done(self) -> None:
        """Run `before_end` again if the end was recorded before the engine stopped.

        Must be called once the engine has stopped.
        """
        if self.engine_continues and self.before_end is not None:
            self.engine_continues = False
            await self._retried(self.before_end)

    async def _write(self, write: Callable[[], Awaitable[bool]]) -> None:
        if not await self._retried(write):
            raise ClaimLost

    async def _retried(self, write: Callable[[], Awaitable[T]]) -> T:
        give_up = asyncio.get_running_loop().time() + self.editor.lease_timeout_s
        wait_s = 0.1
        while True:
            try:
                return await write()
            except errors.DatabaseUnavailable:
                left_s = give_up - asyncio.get_running_loop().time()
                if left_s <= 0:
                    raise ClaimLost from None
            await asyncio.sleep(min(wait_s, left_s))
            wait_s = min(wait_s * 2, 2.0)


INLINE_BYTES = 32 * 1024
"""Results up to this size are stored in the record itself, which saves a file and a second query."""
SEGMENT_AGE_S = 1.0
"""Time after which rows of a slow statement become readable."""
_SEGMENT_BYTES = 4 * 1024 * 1024
# Batches with more columns are measured in a thread, because Arrow takes about 6 µs per column.
_MANY_COLUMNS = 200


@dataclass(frozen=True, slots=True)
class ResultLimits:
    """Limits on a stored result and on a single value."""

    rows: int
    size_bytes: int
    cell_bytes: int


@dataclass(frozen=True, slots=True)
class SpoolResult:
    """The stored result. A small result is `inline` and has no segments."""

    rows: int
    size_bytes: int
    truncated_reason: TruncationReason | None
    inline: bytes | None


@dataclass(eq=False, repr=False)
class Spool:
    """Collects batches into segments, and fills the next segment while the previous one is being stored.

    Holds at most two segments and one batch. `make_visible` is called in order, each time a segment is durable.
    """

    results: ResultStore
    claim: Claim
    caps: ResultLimits
    make_visible: Callable[[Segment, str | None], Awaitable[None]]
    stored: Resumption | None = None
    trace: StatementTrace = NO_TRACE
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
        # For rows that another runner stored, only the compressed size is known.
        self._kept_bytes = self._stored_bytes

    async def add(self, batch: pa.RecordBatch, token: str | None = None) -> None:
        """Add the rows that fit within the limits. Once rows have been dropped, `truncated_reason` is set.

        `token` is the position from which reading on the engine can resume after this batch. It is stored with the
        batch's last rows. Raises cell_too_large, RowTooLarge, in which case the whole batch is dropped.
        """
        divide = partial(self._divide, batch, is_one=token is not None)
        pieces = divide() if batch.num_columns <= _MANY_COLUMNS else await asyncio.to_thread(divide)
        for rows, size_bytes in pieces:
            if self._pending and not self._pending[0].schema.equals(rows.schema):
                await self._flush()
            self._token = token
            if not self._pending:
                self._pending_since = time.monotonic()
            self._pending.append(rows)
            self._pending_bytes += size_bytes
            self.rows += rows.num_rows
            if size_bytes > _SEGMENT_BYTES:
                # A huge row is stored before anything else is fetched, to free its memory.
                await self.store()
            elif self._pending_bytes >= _SEGMENT_BYTES or time.monotonic() - self._pending_since >= SEGMENT_AGE_S:
                await self._flush()

    async def flush_if_old(self) -> None:
        """Start storing rows that have waited for `SEGMENT_AGE_S`."""
        if self._pending and time.monotonic() - self._pending_since >= SEGMENT_AGE_S:
            await self._flush()

    async def store(self) -> None:
        """Make all added rows durable and visible."""
        await self._flush()
        await self._stored()

    async def finish(self) -> SpoolResult:
        """Store the remaining rows. All rows of the returned result are then durable or inline."""
        if self._pending and not self._segments and self._pending_bytes <= INLINE_BYTES:
            inline = encode(pa.Table.from_batches(self._pending))
            if len(inline) <= INLINE_BYTES:
                return SpoolResult(self.rows, len(inline), self.truncated_reason, inline)
        await self.store()
        return SpoolResult(self.rows, self._stored_bytes, self.truncated_reason, None)

    async def aclose(self) -> None:
        """Stop storing. Rows that are not visible yet are dropped."""
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)

    def _divide(self, batch: pa.RecordBatch, *, is_one: bool) -> list[tuple[pa.RecordBatch, int]]:
        """Truncate the batch to the limits, and divide it into chunks. Return each chunk with its size in bytes.

        If `is_one` is set, return a single chunk: rows are stored together with the checkpoint that follows them, so a
        batch with a checkpoint must not be divided.
        """
        if self.truncated_reason is not None:
            return []
        room = self.caps.rows - self.rows
        if batch.num_rows > room:
            self.truncated_reason = TruncationReason.ROW_LIMIT
            batch = batch.slice(0, room)
        size_bytes = batch.nbytes
        if self._checked_schema is None or not self._checked_schema.equals(batch.schema):
            self._checked_schema, self._has_nested = batch.schema, has_nested_types(batch.schema)
        if size_bytes > self.caps.cell_bytes or self._has_nested:
            self._check_value_sizes(batch)
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
        return [(piece, piece.nbytes) for piece in split_batch(batch, _SEGMENT_BYTES)]

    def _check_value_sizes(self, batch: pa.RecordBatch) -> None:
        limit = self.caps.cell_bytes
        if (large := first_oversized_value(batch, limit)) is not None:
            row, column = large
            raise errors.cell_too_large(limit_bytes=limit, row=self.rows + row, column=batch.schema.names[column])
        if (large := first_oversized_row(batch, ROW_SIZE_FACTOR * limit)) is not None:
            raise errors.RowTooLarge(limit_bytes=ROW_SIZE_FACTOR * limit, row=self.rows + large)

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
        claim = self.claim
        with self.trace.storing():
            try:
                segment = await self.results.append(
                    claim.statement_id, fence=claim.fence, number=number, start_row=start_row, table=table
                )
            except errors.InsufficientStorage as error:
                raise errors.disk_below_floor(error.message) from error
            except errors.QueryServerError as error:
                raise errors.result_store_failed("The result could not be stored.") from error
            self._stored_bytes += segment.size_bytes
            self.trace.stored(segment)
            await self.make_visible(segment, token)


async def with_pauses(items: AsyncIterator[T], *, pause_s: float) -> AsyncGenerator[T | None]:
    """Yield the items, and None whenever no item arrives within `pause_s`. Closes `items` at the end."""
    pending: asyncio.Future[T] | None = None
    try:
        while True:
            # The next item is fetched only on demand, so a caller that stops after an item does not interrupt a fetch.
            pending = pending or asyncio.ensure_future(anext(items))
            await asyncio.wait({pending}, timeout=pause_s)
            if not pending.done():
                yield None
                continue
            try:
                item = pending.result()
            except StopAsyncIteration:
                return
            pending = None
            yield item
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        if isinstance(items, AsyncGenerator):
            await items.aclose()
