"""In-memory versions of the statement and session records that runners use.

Every call raises DatabaseUnavailable while `down` is set.
"""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from queryserver.errors.base import DatabaseUnavailable
from queryserver.formats.arrow import Column
from queryserver.identity.model import User
from queryserver.results.segments import Segment
from queryserver.statements.model import (
    Assignment,
    Claim,
    ClaimScope,
    EngineCheckpoint,
    NewStatement,
    Outcome,
    PartEnd,
    Resumption,
    SlotLimits,
    StatementRecord,
    StatementStatus,
    StatementTimes,
    new_assignment,
)
from queryserver.statements.session_repository import SessionRecord
from queryserver.statements.states import StatementState

OWNER = "this-process"
_numbers = count(1)


@dataclass
class Entry:
    """A statement's record."""

    assignment: Assignment
    owner: str | None
    fence: int
    owner_dies_at: float
    """When the heartbeat of the owner becomes too old, on the monotonic clock."""
    state: StatementState = StatementState.WAITING
    sent: bool = False
    cancel_requested: bool = False
    outcome: Outcome | None = None
    queued: timedelta | None = None
    log: dict[int, list[str]] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    checkpoint: EngineCheckpoint | None = None
    priority: int = 0

    @property
    def resumption(self) -> Resumption | None:
        if self.checkpoint is None:
            return None
        stored = self.segments
        return Resumption(
            checkpoint=self.checkpoint,
            rows=sum(one.rows for one in stored),
            size_bytes=sum(one.size_bytes for one in stored),
            segments=len(stored),
            log_lines=len(self.lines),
        )

    @property
    def lines(self) -> list[str]:
        return [line for start in sorted(self.log) for line in self.log[start]]


class MemoryStatements:
    """Implements `statements.owned_statements.OwnedStatements`.

    `before` maps a method name to an action that runs once, before the method is next called. `dead` are the owners
    whose heartbeat is too old.
    """

    def __init__(self) -> None:
        self.entries: dict[UUID, Entry] = {}
        self.dead: set[str] = set()
        self.heartbeat_is_late = False
        self.before: dict[str, Callable[[], None]] = {}
        self.lose_answer_of: set[str] = set()
        self.refuse: Callable[[Outcome], None] = lambda _: None
        self.down = False
        self.past_lapses = 0
        self.expired_soon: list[UUID] = []

    def add(
        self, statement: str, *, owner: str | None = OWNER, owner_dies_in_s: float = 3600, **more: Any
    ) -> Assignment:
        """Add a waiting statement and return its assignment; `more` overrides fields of the assignment."""
        statement_id = uuid4()
        assignment = Assignment(
            **{
                "claim": Claim(statement_id, owner or "", 1),
                "user_id": 1,
                "connector": "fake",
                "dialect": "fake",
                "statement": statement,
                "database": None,
                "settings": {},
                "session_id": next(_numbers),
                "in_named_session": False,
                "keeps_session": False,
                "row_limit": 5000,
                "ends_at": time.monotonic() + 60,
                "sent": False,
                "cancel_requested": False,
                "history_id": next(_numbers),
                **more,
            }
        )
        self.entries[statement_id] = Entry(assignment, owner, 1, time.monotonic() + owner_dies_in_s)
        self.entries[statement_id].sent = assignment.sent or assignment.sent_ahead
        return assignment

    def of(self, assignment: Assignment) -> Entry:
        """Return the entry of an assignment."""
        return self.entries[assignment.claim.statement_id]

    def ask_to_cancel(self, statement_id: UUID) -> None:
        """Request cancellation like `StatementRecords.request_cancel`. A statement that was not yet sent is canceled at
        once.
        """
        entry = self.entries[statement_id]
        entry.cancel_requested = True
        if not entry.sent and not entry.state.is_terminal:
            entry.state, entry.fence = StatementState.CANCELED, entry.fence + 1

    @property
    def ownership(self) -> "MemoryStatements":
        return self

    @property
    def lapses(self) -> int:
        return self.past_lapses

    @property
    def may_take_over(self) -> bool:
        return not self.heartbeat_is_late

    def has_lapsed(self, since: int) -> bool:
        return self.heartbeat_is_late or since != self.lapses

    async def claim(self, statement_id: UUID, *, owner: str, within: ClaimScope) -> Sequence[Assignment]:
        await self._reached("claim")
        assignment = self.entries[statement_id].assignment
        before = [
            one
            for one in self.entries.values()
            if (assignment.keeps_session or assignment.in_named_session)
            and one.assignment.session_id == assignment.session_id
            and one.assignment.history_id < assignment.history_id
        ]
        return [
            _taken(one, owner)
            for one in [*before, self.entries[statement_id]]
            if one.state is StatementState.WAITING and self._is_claimable(one, owner) and _is_within(one, within)
        ]

    async def claim_orphans(self, *, owner: str, within: ClaimScope) -> Sequence[Assignment]:
        await self._reached("claim_orphans")
        found = [
            entry
            for entry in self.entries.values()
            if not entry.state.is_terminal
            and (
                _is_within(entry, within)
                or (entry.sent and (within.resumes or entry.checkpoint is None))
                or _is_late(entry)
            )
            and self._is_claimable(entry, owner)
        ]
        return [_taken(entry, owner) for entry in found]

    async def claim_waiting(
        self, *, owner: str, within: ClaimScope, slots: SlotLimits, limit: int, max_for_busy_users: int
    ) -> Sequence[Assignment]:
        await self._reached("claim_waiting")
        active = [one for one in self.entries.values() if not one.state.is_terminal]
        busy = Counter(_place(one) for one in active if not self._is_free(one))
        on = Counter(connector for connector, _ in busy.elements())
        running = {one.assignment.user_id for one in active if not self._is_free(one) and one.priority == 0}
        waiting = [
            one
            for one in active
            if not one.sent
            and self._is_claimable(one, owner)
            and _reaches(one.assignment, within)
            and not any(other.assignment.claim.statement_id == one.assignment.source_operation for other in active)
            and not any(
                before.assignment.session_id == one.assignment.session_id
                and before.assignment.history_id < one.assignment.history_id
                for before in active
            )
        ]
        taken: list[Entry] = []
        while waiting and len(taken) < limit:
            waiting.sort(
                key=lambda one: (
                    max_for_busy_users == 0 and not _is_first(one, running),
                    one.priority,
                    busy[_place(one)],
                    one.assignment.history_id,
                )
            )
            free = [
                one
                for one in waiting
                if busy[_place(one)] < slots.per_user
                and on[_place(one)[0]] < slots.per_connector
                and (len(taken) < max_for_busy_users or _is_first(one, running))
            ]
            if not free:
                break
            taken.append(free[0])
            waiting.remove(free[0])
            busy[_place(free[0])] += 1
            on[_place(free[0])[0]] += 1
            running.add(_place(free[0])[1])
        found = [_taken(entry, owner) for entry in taken]
        return sorted(found, key=lambda one: one.history_id)

    async def still_owned(self, statement_ids: Sequence[UUID], *, owner: str) -> Mapping[UUID, bool]:
        await self._reached("still_owned")
        entries = {statement_id: self.entries[statement_id] for statement_id in statement_ids}
        return {
            statement_id: entry.cancel_requested
            for statement_id, entry in entries.items()
            if entry.owner == owner and not entry.state.is_terminal
        }

    async def release(self, claim: Claim) -> bool:
        entry = await self._mine("release", claim)
        if entry is None or entry.sent:
            return False
        entry.owner = None
        return True

    def expire_soon(self, claim: Claim) -> None:
        self.expired_soon.append(claim.statement_id)

    async def retry(self, claim: Claim, *, line: str) -> bool:
        entry = await self._mine("retry", claim)
        if entry is None or entry.segments or entry.cancel_requested or entry.assignment.was_retried:
            return False
        entry.assignment = replace(entry.assignment, sent=False, was_retried=True)
        entry.sent, entry.owner, entry.state = False, None, StatementState.WAITING
        _write_lines(entry, len(entry.lines), [line])
        return self._answered("retry")

    async def give_back(self, claim: Claim, *, line: str) -> bool:
        entry = await self._mine("give_back", claim)
        if entry is None or entry.segments or entry.cancel_requested or entry.assignment.source_operation is None:
            return False
        if (entry.assignment.destination or {}).get("is_published"):
            return False
        entry.assignment = replace(entry.assignment, sent=False)
        entry.sent, entry.owner, entry.state = False, None, StatementState.WAITING
        _write_lines(entry, len(entry.lines), [line])
        return self._answered("give_back")

    async def may_publish(self, claim: Claim) -> bool:
        entry = await self._mine("may_publish", claim)
        return entry is not None and not entry.cancel_requested and self._answered("may_publish")

    async def begin_publishing(self, claim: Claim) -> bool:
        entry = await self._mine("begin_publishing", claim)
        if entry is None or entry.cancel_requested:
            return False
        entry.assignment = replace(
            entry.assignment, destination={**(entry.assignment.destination or {}), "is_published": True}
        )
        return self._answered("begin_publishing")

    async def mark_sent(self, claim: Claim) -> bool:
        entry = await self._mine("mark_sent", claim)
        if entry is None or entry.cancel_requested:
            return False
        entry.sent = True
        return self._answered("mark_sent")

    async def clear_source(self, claim: Claim) -> bool:
        entry = await self._mine("clear_source", claim)
        if entry is None:
            return False
        entry.assignment = replace(entry.assignment, source_operation=None, reused_from=None)
        return self._answered("clear_source")

    async def take_back(self, claim: Claim) -> bool:
        entry = await self._mine("take_back", claim)
        if entry is None:
            return False
        entry.sent = False
        return self._answered("take_back")

    async def hand_over(self, claim: Claim) -> bool:
        entry = await self._mine("hand_over", claim)
        if entry is None or entry.checkpoint is None or entry.state is not StatementState.RUNNING:
            return False
        entry.owner = None
        return True

    async def mark_running(
        self,
        claim: Claim,
        *,
        checkpoint: EngineCheckpoint | None = None,
        queued: timedelta | None = timedelta(0),
        estimated_bytes: int | None = None,
    ) -> bool:
        entry = await self._mine("mark_running", claim)
        if entry is None:
            return False
        entry.state, entry.checkpoint = StatementState.RUNNING, checkpoint
        return self._answered("mark_running")

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
        entry = await self._mine("report", claim)
        if entry is None:
            return False
        entry.checkpoint = checkpoint or entry.checkpoint
        _write_lines(entry, start_line, lines)
        return self._answered("report")

    async def trim_logs(self, claim: Claim, *, before_line: int) -> None:
        entry = await self._mine("trim_logs", claim)
        if entry is not None:
            entry.log = {start: lines for start, lines in entry.log.items() if start + len(lines) > before_line}

    async def add_segment(
        self, claim: Claim, segment: Segment, *, columns: Sequence[Column], checkpoint: EngineCheckpoint | None = None
    ) -> bool:
        entry = await self._mine("add_segment", claim)
        if entry is None or entry.state is not StatementState.RUNNING:
            return False
        if segment.number not in {one.number for one in entry.segments}:
            entry.segments.append(segment)
        entry.checkpoint = checkpoint or entry.checkpoint
        return self._answered("add_segment")

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
        entry = await self._mine("finish", claim)
        if entry is None:
            return False
        self.refuse(outcome)
        entry.state, entry.outcome, entry.queued = outcome.state, outcome, queued
        _write_lines(entry, len(entry.lines) if start_line is None else start_line, lines)
        return self._answered("finish")

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
        if not await self.finish(claim, outcome, retention=retention, lines=lines, start_line=start_line):
            return None
        if next_statement is None:
            return PartEnd(None)
        next_claim = Claim(next_statement.id, claim.owner, 1, operation_id=claim.operation_id)
        number = next(_numbers)
        assignment = new_assignment(next_statement, next_claim, history_id=number, ends_at=time.monotonic() + 60)
        self.entries[next_statement.id] = Entry(assignment, claim.owner, 1, float("inf"))
        return PartEnd(_recorded(next_statement, number))

    async def end_broken_scripts(self) -> None:
        await self._reached("end_broken_scripts")

    async def script(self, operation_id: UUID) -> str:
        return self.entries[operation_id].assignment.statement

    def _is_free(self, entry: Entry) -> bool:
        return entry.owner is None or entry.owner in self.dead or entry.owner_dies_at < time.monotonic()

    def _is_claimable(self, entry: Entry, owner: str) -> bool:
        return entry.owner != owner and self._is_free(entry)

    async def _mine(self, call: str, claim: Claim) -> Entry | None:
        await self._reached(call)
        entry = self.entries[claim.statement_id]
        if entry.state.is_terminal or (entry.owner, entry.fence) != (claim.owner, claim.fence):
            return None
        entry.writes.append(call)
        return entry

    async def _reached(self, call: str) -> None:
        await asyncio.sleep(0)
        self.before.pop(call, lambda: None)()
        if self.down:
            raise DatabaseUnavailable

    def _answered(self, call: str) -> bool:
        if call in self.lose_answer_of:
            self.lose_answer_of.discard(call)
            raise DatabaseUnavailable
        return True


class MemorySessions:
    """Implements `statements.session_repository.SessionRecords`. Sessions may have different owners."""

    def __init__(self) -> None:
        self.open_records: dict[int, SessionRecord] = {}
        self.shared_sessions: dict[tuple[int, str, str], tuple[int, str]] = {}
        self.engines: dict[str, str] = {}
        self.before: dict[str, Callable[[], None]] = {}
        self.down = False

    async def open(self, session: SessionRecord, *, max_open: int) -> bool:
        await self._reached("open")
        mine = [one for one in self.open_records.values() if one.named and one.user_id == session.user_id]
        if session.named and len(mine) >= max_open:
            return False
        self.open_records[session.id] = session
        return True

    async def find_shared(
        self, user_id: int, connector: str, purpose: str, proposed: tuple[int, str]
    ) -> tuple[int, str]:
        await self._reached("shared")
        return self.shared_sessions.setdefault((user_id, connector, purpose), proposed)

    async def read(self, session_id: int) -> SessionRecord | None:
        await self._reached("read")
        return self.open_records.get(session_id)

    async def find_named(self, session_id: int) -> tuple[int, str] | None:
        await self._reached("named")
        found = self.open_records.get(session_id)
        return (found.user_id, found.connector) if found else None

    async def open_sessions(
        self,
        *,
        user_id: int | None = None,
        connectors: Sequence[str] | None = None,
        unused_since: timedelta | None = None,
    ) -> Sequence[SessionRecord]:
        await self._reached("open_sessions")
        return [one for one in self.open_records.values() if user_id in (None, one.user_id)]

    async def used_connectors(self, user_id: int) -> Sequence[tuple[str, str]]:
        await self._reached("used_connectors")
        return [(one.connector, one.dialect) for one in self.open_records.values() if one.user_id == user_id]

    async def credentials(self, user_id: int, connector: str) -> bytes | None:
        await self._reached("credentials")
        return None

    async def touch(self, session_id: int) -> None:
        await self._reached("touch")

    async def close(self, session_id: int, *, owner: str | None = None) -> bool:
        await self._reached("close")
        found = self.open_records.get(session_id)
        if found is None or owner not in (None, found.owner):
            return False
        del self.open_records[session_id]
        return True

    async def close_unused(self, session_id: int, *, unused_since: timedelta) -> bool:
        await self._reached("close_unused")
        return self.open_records.pop(session_id, None) is not None

    async def still_owned(self, recorded: Sequence[int], *, owner: str) -> Sequence[int]:
        await self._reached("still_owned")
        return [one.id for one in self.open_records.values() if one.owner == owner]

    async def close_lost(self, *, owner: str) -> int:
        await self._reached("close_lost")
        return 0

    async def hold_engine(self, connector: str, *, owner: str) -> bool:
        await self._reached("hold_engine")
        return self.engines.setdefault(connector, owner) == owner

    async def engines_of(self, owner: str) -> Sequence[str]:
        await self._reached("engines_of")
        return [connector for connector, holder in self.engines.items() if holder == owner]

    async def release_engines(self, *, owner: str) -> None:
        await self._reached("release_engines")
        self.engines = {key: holder for key, holder in self.engines.items() if holder != owner}

    async def _reached(self, call: str) -> None:
        await asyncio.sleep(0)
        self.before.pop(call, lambda: None)()
        if self.down:
            raise DatabaseUnavailable


class MemoryUsers:
    """Implements `identity.users.UserDirectory`. All users are active except those in `disabled`."""

    def __init__(self) -> None:
        self.disabled: set[int] = set()

    async def user(self, user_id: int) -> User | None:
        return None if user_id in self.disabled else User(user_id, f"user{user_id}")

    async def active(self, user_ids: Collection[int]) -> AbstractSet[int]:
        return set(user_ids) - self.disabled


class PlainSealer:
    """Implements `platform.sealer.Sealer` without encryption."""

    def seal(self, secret: bytes) -> bytes:
        return secret

    def unseal(self, sealed: bytes) -> bytes:
        return sealed

    def digest(self, content: bytes) -> bytes:
        return hashlib.sha256(content).digest()[:16]


def _is_within(entry: Entry, within: ClaimScope) -> bool:
    one = entry.assignment
    return _reaches(one, within) or one.session_id in within.sessions


def _reaches(one: Assignment, within: ClaimScope) -> bool:
    """Return whether the statement's connector, and that of its destination, are in scope."""
    target = (one.destination or {}).get("connector", one.connector)
    return one.connector in within.connectors and (target in within.connectors or one.connector in within.bound)


def _place(entry: Entry) -> tuple[str, int]:
    return entry.assignment.connector, entry.assignment.user_id


def _is_first(entry: Entry, running: Collection[int]) -> bool:
    """Return whether a person submitted the statement and this user has no running statements."""
    return entry.priority == 0 and entry.assignment.user_id not in running


def _is_late(entry: Entry) -> bool:
    return entry.assignment.ends_at < time.monotonic()


def _recorded(new: NewStatement, history_id: int) -> StatementRecord:
    """Return a record that contains the fields that a runner reads."""
    now = datetime.now(UTC)
    status = StatementStatus(
        id=new.id,
        history_id=history_id,
        user_id=new.user_id,
        connector=new.connector,
        dialect=new.dialect,
        state=StatementState.WAITING,
        has_result_set=new.has_result_set,
        rows=0,
        truncated_reason=None,
        modified_row_count=None,
        error_code=None,
        message="",
        progress=0,
        expires_at=None,
        owner=new.owner,
        times=StatementTimes(now, None, None, timedelta(0), timedelta(0)),
    )
    return StatementRecord(
        status=status,
        handle=new.handle,
        script_id=None,
        database=new.database,
        settings=new.settings,
        row_limit=new.row_limit,
        timeout_s=60,
        in_named_session=new.in_named_session,
        in_history=new.in_history,
        parent_uuid="",
        columns=None,
        size_bytes=0,
        cancel_requested=False,
        canceled_by=None,
    )


def _taken(entry: Entry, owner: str) -> Assignment:
    entry.owner, entry.fence, entry.owner_dies_at = owner, entry.fence + 1, float("inf")
    claim = replace(entry.assignment.claim, owner=owner, fence=entry.fence)
    return replace(entry.assignment, claim=claim, sent=entry.sent, resumption=entry.resumption)


def _write_lines(entry: Entry, start: int, lines: Sequence[str]) -> None:
    if lines and len(entry.log.get(start, ())) < len(lines):
        entry.log[start] = list(lines)
