"""The records of statements. Each method is one transaction of its own (ADR: every repository method is one)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from queryserver.domain.result import Column, Segment
from queryserver.domain.statement import (
    Assignment,
    EngineMark,
    HistoryEntry,
    IdempotencyKey,
    Lease,
    LogPage,
    NewStatement,
    Outcome,
    StatementRecord,
    StatementStatus,
    StoredResult,
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The record that execute made, or found under the same idempotency key."""

    record: StatementRecord
    replayed: bool


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """Which entries get_history shows. Empty tuple of connectors: nothing matches."""

    connectors: tuple[str, ...] | None = None
    dialect: str | None = None
    text: str | None = None


class StatementRecords(Protocol):
    """What callers do with records. All raise DatabaseUnavailable."""

    async def record(self, new: NewStatement) -> Recorded:
        """Store a new statement in state `waiting`, with its idempotency key.

        Raises idempotency_conflict, too_many_statements, quota_exceeded; then nothing is stored.
        """
        ...

    async def find_replay(self, user_id: int, key: IdempotencyKey) -> StatementRecord | None:
        """The statement that was recorded under the key. Raises idempotency_conflict for another request's key."""
        ...

    async def new_session_id(self) -> int:
        """A session number that no other operation has."""
        ...

    async def status(self, statement_id: UUID) -> StatementStatus | None:
        """The present status."""
        ...

    async def queue_position(self, statement_id: UUID) -> int | None:
        """Its place among the statements that wait to be sent to the same connector; 1: the next one.

        Users take turns, in the order in which their statements were recorded. None: it does not wait any more.
        """
        ...

    async def read(self, statement_id: UUID) -> StatementRecord | None:
        """The whole record."""
        ...

    async def id_of_guid(self, guid: str, *, user_id: int | None) -> UUID | None:
        """The operation that an opaque handle names, if it is that user's; None: whosever it is."""
        ...

    async def script(self, script_id: int) -> str:
        """The stored script. Raises statement_text_expired when it was cut."""
        ...

    async def stored_result(self, statement_id: UUID, *, start_row: int | None, rows: int) -> StoredResult | None:
        """Where rows [start_row, start_row + rows) are; None means from the cursor. Marks the record as used."""
        ...

    async def advance_cursor(self, statement_id: UUID, *, expected: int | None, to: int) -> bool:
        """Move the cursor from `expected` (None: from anywhere); False when another call moved it."""
        ...

    async def request_cancel(self, statement_id: UUID, *, by: str) -> StatementStatus | None:
        """Remember the wish to stop. A statement that was never sent becomes `canceled` at once."""
        ...

    async def active_in_session(self, session_id: int) -> Sequence[UUID]:
        """Statements that wait or run in a session."""
        ...

    async def close_result(self, statement_id: UUID) -> bool:
        """`available` becomes `closed` and its bytes are doomed; False in any other state."""
        ...

    async def logs(self, statement_id: UUID, *, start: int, size: int | None) -> LogPage:
        """Log lines from number `start` on."""
        ...

    async def history(
        self, user_id: int, chosen: HistoryFilter, *, offset: int, limit: int
    ) -> tuple[int, Sequence[HistoryEntry]]:
        """How many entries match, and one page of them, newest first."""
        ...


@dataclass(frozen=True, slots=True)
class Reach:
    """What a runner can run: statements of these connectors, of any connector those of the sessions open there."""

    connectors: Sequence[str]
    sessions: Sequence[int] = ()


class StatementLeases(Protocol):
    """What runners do with records. Writes return False when the lease was lost: then the runner stops at once."""

    async def claim(self, statement_id: UUID, *, owner: str, lease: timedelta, within: Reach) -> Assignment | None:
        """Take a waiting statement within reach that nobody holds and whose session is not held elsewhere."""
        ...

    async def claim_orphans(
        self, *, owner: str, lease: timedelta, within: Reach, everything: bool
    ) -> Sequence[Assignment]:
        """Take over statements within reach that nobody holds, but for those of a session held elsewhere.

        Those that were sent, or are past their deadline, are taken of any connector: they need no engine to end.
        `everything` ignores leases: the caller knows that no other instance is alive.
        """
        ...

    async def renew(self, statement_ids: Sequence[UUID], *, owner: str, lease: timedelta) -> Mapping[UUID, bool]:
        """Extend leases of `owner`; tells for each statement still its own whether a cancel is asked for."""
        ...

    async def release(self, lease: Lease) -> bool:
        """Give a statement back that was not sent; False when it was sent, or ended."""
        ...

    async def mark_sent(self, lease: Lease) -> bool:
        """Commit that the statement is about to reach the engine; False also when it was canceled meanwhile."""
        ...

    async def hand_over(self, lease: Lease) -> bool:
        """Leave a statement that the engine goes on with to another runner; False when it has no mark, or ended."""
        ...

    async def mark_running(self, lease: Lease, *, mark: EngineMark | None = None) -> bool:
        """The engine has accepted it; `mark` when another runner could go on following it."""
        ...

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
        """Progress and further log lines, the first of them numbered `start_line`. No `mark`: the former stays."""
        ...

    async def trim_logs(self, lease: Lease, *, before_line: int) -> None:
        """Drop log lines numbered below `before_line`, in whole pieces."""
        ...

    async def add_segment(
        self, lease: Lease, segment: Segment, *, columns: Sequence[Column], mark: EngineMark | None = None
    ) -> bool:
        """Make stored rows visible; their bytes are durable already. No `mark`: the former stays."""
        ...

    async def finish(
        self, lease: Lease, outcome: Outcome, *, retention: timedelta, lines: Sequence[str], start_line: int | None
    ) -> bool:
        """Set the terminal state with everything that belongs to it; log lines without a number come last."""
        ...


class StatementRetention(Protocol):
    """What the sweep does with records whose time is over."""

    async def expire_results(self, *, limit: int) -> int:
        """`available` past `expires_at` becomes `expired`, its bytes doomed."""
        ...

    async def count_expired(self) -> int:
        """How many `expire_results` would change by now."""
        ...

    async def forget_tokens(self) -> int:
        """External tokens past their expiry are erased, whatever becomes of their statements."""
        ...

    async def doomed(self, *, limit: int) -> Sequence[UUID]:
        """Results whose bytes are to be deleted."""
        ...

    async def buried(self, statement_ids: Sequence[UUID]) -> None:
        """Their bytes are gone."""
        ...

    async def delete_logs(self, *, older_than: timedelta, limit: int, dry_run: bool = False) -> int:
        """Logs of statements that ended before that."""
        ...

    async def cut_texts(self, *, older_than: timedelta, limit: int, kept_bytes: int, dry_run: bool = False) -> int:
        """Keep only the beginning of long texts of statements and scripts that ended before that; how many.

        Statements whose result can still be read keep theirs. At most `limit` of each kind at a time.
        """
        ...

    async def delete_history(self, *, older_than: timedelta, limit: int, dry_run: bool = False) -> int:
        """Records of statements that ended before that, with results, logs and scripts."""
        ...

    async def delete_spent(self, *, dry_run: bool = False) -> Mapping[str, int]:
        """Idempotency keys past 24 h, revocations past their tokens, old login counters: kind to number."""
        ...

    async def has_more_entries_than(self, number: int) -> bool:
        """Whether the histories of all users together are longer."""
        ...

    async def closable(self, *, unused_since: timedelta) -> Sequence[UUID]:
        """`available` statements whose last use lies further back."""
        ...
