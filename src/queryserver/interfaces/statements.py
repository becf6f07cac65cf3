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
    Lease,
    Outcome,
    StatementRecord,
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
