"""Rows of the table `statements` as domain values."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

import structlog

from queryserver.formats.columns import Column, LimitSource, ResultType, Segment, TruncationReason
from queryserver.identity.model import SealedToken
from queryserver.platform.database import Row
from queryserver.platform.deployment import Sealer
from queryserver.sql.positions import Position
from queryserver.statements.model import (
    Assignment,
    EngineMark,
    HistoryEntry,
    Lease,
    Outcome,
    Resumption,
    StatementEnd,
    StatementHandle,
    StatementRecord,
    StatementState,
    StatementStatus,
    StatementTimes,
)


class SealedMarks:
    """Marks of statements to text and back.

    Tokens hold what opens an operation at its engine (secrets of handles, properties of sessions): they are sealed, as
    credentials are.
    """

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def stored(self, mark: EngineMark | None) -> str | None:
        """The stored form; a few microseconds, for it is written with each page."""
        if mark is None:
            return None
        return b64encode(self._sealer.seal(f"{mark.log_lines} {mark.token}".encode())).decode()

    def read(self, stored: str) -> EngineMark:
        """The mark. Raises ValueError when it was changed or its key is unknown."""
        log_lines, _, token = self._sealer.unseal(b64decode(stored, validate=True)).decode().partition(" ")
        return EngineMark(token, int(log_lines))


log = structlog.get_logger(__name__)


_TIMES = "recorded_at, sent_at, ended_at, now() as read_at"

STATUS = f"""id, history_id, user_id, connector, dialect, state, has_result_set, rows, truncated_reason,
    modified_row_count, error_code, message, progress, expires_at, owner, limit_source, {_TIMES}"""

RECORD = f"""{STATUS}, statement, statement_index, statements_count, position, statement_hash, guid, secret,
    session_id, session_guid, script_id, database, settings, row_limit, timeout_s, in_named_session, in_history,
    parent_uuid, deadline_at, columns, size_bytes, cancel_requested_at, canceled_by, text_is_cut,
    error_line, error_column"""

ASSIGNMENT = """id, history_id, owner, fence, user_id, connector, dialect, statement, database, settings, session_id,
    in_named_session, keeps_session, row_limit, deadline_at, sent_at, engine_handle, cancel_requested_at, import_plan,
    sealed_token, token_expires_at, rows, size_bytes, limit_source,
    (select count(*) from result_segments where statement_id = id) as segments,
    (select coalesce(max(start_line + cardinality(lines)), 0) from statement_logs where statement_id = id) as log_lines
"""

HISTORY = f"""id, history_id, dialect, left(statement, 1001) as statement, state, parent_uuid,
    left(message, 1000) as message, database, rows, error_line, error_column, {_TIMES}"""


END = """id, (select username from users where users.id = user_id) as username, connector, dialect, state, error_code,
    rows, size_bytes, canceled_by, import_plan is not null as is_import,
    extract(epoch from coalesce(sent_at, ended_at) - recorded_at)::float8 as queued_s,
    coalesce(extract(epoch from ended_at - sent_at), 0)::float8 as elapsed_s"""


def end_of(row: Row) -> StatementEnd:
    """A row with the columns END."""
    return StatementEnd(
        id=row["id"],
        user=row["username"],
        connector=row["connector"],
        dialect=row["dialect"],
        state=StatementState(row["state"]),
        error_code=row["error_code"],
        rows=row["rows"],
        size_bytes=row["size_bytes"],
        queued_ms=round(row["queued_s"] * 1000),
        elapsed_ms=round(row["elapsed_s"] * 1000),
        canceled_by=row["canceled_by"],
        is_import=row["is_import"],
    )


def status_of(row: Row) -> StatementStatus:
    """A row with the columns STATUS."""
    reason = row["truncated_reason"]
    return StatementStatus(
        id=row["id"],
        history_id=row["history_id"],
        user_id=row["user_id"],
        connector=row["connector"],
        dialect=row["dialect"],
        state=StatementState(row["state"]),
        has_result_set=row["has_result_set"],
        rows=row["rows"],
        truncated_reason=TruncationReason(reason) if reason else None,
        modified_row_count=row["modified_row_count"],
        error_code=row["error_code"],
        message=row["message"],
        progress=row["progress"],
        expires_at=row["expires_at"],
        owner=row["owner"],
        times=times_of(row),
        limit_source=_limit_source_of(row),
    )


def times_of(row: Row) -> StatementTimes:
    """A row with `recorded_at`, `sent_at`, `ended_at` and `read_at`."""
    return StatementTimes(row["recorded_at"], row["sent_at"], row["ended_at"], row["read_at"])


def _limit_source_of(row: Row) -> LimitSource | None:
    return LimitSource(row["limit_source"]) if row["limit_source"] else None


def record_of(row: Row) -> StatementRecord:
    """A row with the columns RECORD."""
    start_row, start_column, end_row, end_column = row["position"]
    return StatementRecord(
        status=status_of(row),
        handle=StatementHandle(
            statement=_shown(row["statement"], is_cut=row["text_is_cut"]),
            statement_index=row["statement_index"],
            statements_count=row["statements_count"],
            position=(start_row, start_column, end_row, end_column),
            statement_hash=row["statement_hash"],
            guid=row["guid"],
            secret=row["secret"],
            session_id=row["session_id"],
            session_guid=row["session_guid"],
        ),
        script_id=row["script_id"],
        database=row["database"],
        settings=row["settings"],
        row_limit=row["row_limit"],
        timeout_s=row["timeout_s"],
        in_named_session=row["in_named_session"],
        in_history=row["in_history"],
        parent_uuid=row["parent_uuid"],
        deadline_at=row["deadline_at"],
        columns=columns_of(row["columns"]),
        size_bytes=row["size_bytes"],
        cancel_requested=row["cancel_requested_at"] is not None,
        canceled_by=row["canceled_by"],
        text_is_cut=row["text_is_cut"],
        error_position=_error_position_of(row),
    )


def _error_position_of(row: Row) -> Position | None:
    return Position(row["error_line"], row["error_column"]) if row["error_line"] else None


def assignment_of(row: Row, marks: SealedMarks) -> Assignment:
    """A row with the columns ASSIGNMENT. A mark that cannot be read counts as none: nobody can go on from it."""
    return Assignment(
        lease=Lease(row["id"], row["owner"], row["fence"]),
        user_id=row["user_id"],
        connector=row["connector"],
        dialect=row["dialect"],
        statement=row["statement"],
        database=row["database"],
        settings=row["settings"],
        session_id=row["session_id"],
        in_named_session=row["in_named_session"],
        keeps_session=row["keeps_session"],
        row_limit=row["row_limit"],
        deadline_at=row["deadline_at"],
        sent=row["sent_at"] is not None,
        cancel_requested=row["cancel_requested_at"] is not None,
        history_id=row["history_id"],
        resumption=_resumption_of(row, marks),
        import_plan=row["import_plan"],
        token=_token_of(row),
        limit_source=_limit_source_of(row),
        log_lines=row["log_lines"],
    )


def _token_of(row: Row) -> SealedToken | None:
    if row["sealed_token"] is None:
        return None
    return SealedToken(row["sealed_token"], int(row["token_expires_at"].timestamp()))


def _resumption_of(row: Row, marks: SealedMarks) -> Resumption | None:
    if row["engine_handle"] is None:
        return None
    try:
        mark = marks.read(row["engine_handle"])
    except ValueError as error:
        log.warning("mark of a statement cannot be read", operation_id=str(row["id"]), reason=str(error))
        return None
    return Resumption(
        mark=mark,
        rows=row["rows"],
        size_bytes=row["size_bytes"],
        segments=row["segments"],
        log_lines=row["log_lines"],
    )


def history_of(row: Row) -> HistoryEntry:
    """A row with the columns HISTORY."""
    return HistoryEntry(
        id=row["id"],
        history_id=row["history_id"],
        dialect=row["dialect"],
        statement=row["statement"],
        state=StatementState(row["state"]),
        times=times_of(row),
        parent_uuid=row["parent_uuid"],
        message=row["message"],
        database=row["database"],
        rows=row["rows"],
        error_position=_error_position_of(row),
    )


def _shown(statement: str, *, is_cut: bool) -> str:
    """A text as clients see it. One that was cut ends with words that no engine takes for a statement."""
    return f"{statement} … [the rest of this text is not stored any more]" if is_cut else statement


def columns_of(stored: Sequence[Sequence[str]] | None) -> tuple[Column, ...] | None:
    """Columns from their stored form: lists of name, type, native type, comment."""
    if stored is None:
        return None
    return tuple(Column(name, ResultType(kind), native, comment) for name, kind, native, comment in stored)


def stored_columns(columns: Sequence[Column] | None) -> list[list[str]] | None:
    """The opposite of `columns_of`."""
    if columns is None:
        return None
    return [[column.name, column.type.value, column.native_type, column.comment] for column in columns]


def text_map(settings: Mapping[str, Any]) -> dict[str, str]:
    """Engine settings as stored."""
    return {key: str(value) for key, value in settings.items()}


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
