"""What a run writes about its statement: under its lease, again while the database is away, with its log lines."""

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from queryserver.errors.base import DatabaseUnavailable
from queryserver.formats.columns import Column, Segment
from queryserver.platform.metrics import UNMEASURED, StatementMetrics
from queryserver.statements.model import Assignment, EngineMark, Outcome, Resumption, StatementState
from queryserver.statements.rows import StatementLeases


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
