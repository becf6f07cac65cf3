"""Value types of statements: handle, status, record, history entry, end, claim, assignment (Contract editor 2, 3)."""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from queryserver.formats.arrow import Column
from queryserver.identity.model import ApiTokenLimits, SealedToken
from queryserver.platform.settings.editor import EditorSettings
from queryserver.results.segments import Segment
from queryserver.sql.markers import StatementParameters
from queryserver.sql.positions import Position
from queryserver.statements.states import LimitSource, StatementState, Truncation, TruncationReason


@dataclass(frozen=True, slots=True)
class StatementTimes:
    """The times when a statement was recorded, sent and ended, according to the service database's clock."""

    submitted: datetime
    started: datetime | None
    """The time just before the statement was sent to the engine, or None if it was not sent."""
    ended: datetime | None
    queued: timedelta
    """Time from submission until the statement was sent, or until now if it is still waiting."""
    elapsed: timedelta
    """Time from sending until the end, or until now if the statement is running. Zero if it was never sent."""


@dataclass(frozen=True, slots=True)
class StatementHandle:
    """The handle that clients receive: position in the script, opaque identifiers, session (Contract editor 2.1)."""

    statement: str
    statement_index: int
    statements_count: int
    position: tuple[int, int, int, int]
    statement_hash: str
    guid: str
    secret: str
    session_id: int
    session_guid: str


@dataclass(frozen=True, slots=True)
class FailureDetails:
    """Details returned with the status of a statement that ended without a result (Contract editor 3.4)."""

    handle: StatementHandle
    error_position: Position | None
    """The error's position in the statement, as reported by the engine."""
    error_sqlstate: str | None


@dataclass(frozen=True, slots=True)
class ReusedResult:
    """The origin of the rows of a statement that was answered without the engine (Contract editor 4.8)."""

    statement_id: UUID
    """The statement whose rows the engine returned."""
    sent_at: datetime
    """When that statement was sent to the engine. The rows are not older."""


@dataclass(frozen=True, slots=True)
class StatementStatus:
    """The part of the statement record that check_status returns."""

    id: UUID
    history_id: int
    user_id: int
    connector: str
    dialect: str
    state: StatementState
    has_result_set: bool
    rows: int
    truncated_reason: TruncationReason | None
    modified_row_count: int | None
    error_code: str | None
    message: str
    progress: int
    expires_at: datetime | None
    owner: str | None
    times: StatementTimes
    limit_source: LimitSource | None = None
    outcome: tuple[int, str] | None = None
    """`status` and `code` of a statement that ended without a result, otherwise None (Contract editor 3.2)."""
    failure: FailureDetails | None = None
    """Set together with `outcome`, except for long statements, for which `StatementReader.with_failure` adds it."""
    queue_position: int | None = None
    """Position in the queue, starting at 1. Set only on request, while the statement waits for a slot."""
    runs_all: bool = False
    """Whether the call set `run_all`. If so, `parts` contains the started statements."""
    is_script: bool = False
    """Whether this is the operation of a whole script. The results belong to the script's statements."""
    operation_id: UUID | None = None
    """The script's operation, if this is a statement of a script that runs as a whole."""
    reused: ReusedResult | None = None
    """Set if the rows come from the stored result of an earlier statement."""
    estimated_bytes: int | None = None
    """The bytes that the engine expected the statement to read, if it was estimated."""
    scanned_bytes: int | None = None
    """The bytes that the statement has read, if the engine reports them."""
    parts: Sequence["StatementPart"] = ()

    @property
    def part(self) -> "StatementPart | None":
        """The script's active or last started statement. In a failed script, this is the statement that failed."""
        return self.parts[-1] if self.parts else None

    @property
    def truncation(self) -> Truncation | None:
        """The limit that truncated the stored result, or None if the result is complete (Contract editor 6.4)."""
        return Truncation(self.truncated_reason, self.limit_source) if self.truncated_reason else None

    @property
    def is_truncated_by_server(self) -> bool:
        """Whether rows were dropped because of a limit that the caller did not set."""
        return (cut := self.truncation) is not None and not cut.is_requested


NO_HANDLE = StatementHandle("", 0, 1, (0, 0, 0, 0), "", "", "", 0, "")
"""Stands for the handle of a statement that the caller may not see."""


def without_statement(status: StatementStatus) -> StatementStatus:
    """Return the status without the statement, its handle, its cost, and messages that may quote it or its rows."""
    status = replace(status, estimated_bytes=None, scanned_bytes=None)
    if status.outcome is None and not status.parts:
        return status
    is_deleted = status.state in {StatementState.EXPIRED, StatementState.CLOSED}
    return replace(
        status,
        message=status.message if status.outcome is None or is_deleted else _NO_RESULT,
        failure=None if status.outcome is None else FailureDetails(NO_HANDLE, None, None),
        parts=[
            replace(part, message=_NO_RESULT, error_position=None, error_sqlstate=None) if part.outcome else part
            for part in status.parts
        ],
    )


_NO_RESULT = "The statement ended without a result."


@dataclass(frozen=True, slots=True)
class StatementPart:
    """A started statement of a `run_all` script (Contract editor 5.5)."""

    id: UUID
    statement_index: int
    position: tuple[int, int, int, int]
    state: StatementState
    has_result_set: bool
    rows: int
    modified_row_count: int | None
    times: StatementTimes
    outcome: tuple[int, str] | None
    message: str
    truncated_reason: TruncationReason | None
    limit_source: LimitSource | None
    error_position: Position | None
    error_sqlstate: str | None
    estimated_bytes: int | None = None
    scanned_bytes: int | None = None

    @property
    def truncation(self) -> Truncation | None:
        """The limit that truncated the stored result, or None if the result is complete (Contract editor 6.4)."""
        return Truncation(self.truncated_reason, self.limit_source) if self.truncated_reason else None


@dataclass(frozen=True, slots=True)
class StatementRecord:
    """A complete statement record."""

    status: StatementStatus
    handle: StatementHandle
    script_id: int | None
    database: str | None
    settings: Mapping[str, str]
    row_limit: int
    timeout_s: int
    in_named_session: bool
    in_history: bool
    parent_uuid: str
    columns: tuple[Column, ...] | None
    size_bytes: int
    cancel_requested: bool
    canceled_by: str | None
    text_is_cut: bool = False
    """Whether only the beginning of the statement is still stored."""
    sealed_parameters: bytes | None = field(default=None, repr=False)
    """The parameter values of the whole script, encrypted by `ParameterSealer`."""
    parameter_count: int = 0
    read_only: bool = False
    max_estimated_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RecordedStatement:
    """The record that execute created, or the existing record with the same idempotency key."""

    record: StatementRecord
    is_replay: bool


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The client's idempotency key and a digest of the request (Contract editor 4.4)."""

    key: str
    fingerprint: bytes

    @classmethod
    def of(cls, key: str, *request: object) -> "IdempotencyKey":
        """Create a key whose fingerprint is the digest of `request`, the values that identify the request."""
        return cls(key, hashlib.sha256(json.dumps(request).encode()).digest())


@dataclass(frozen=True, slots=True)
class NewStatement:
    """A statement about to be recorded."""

    id: UUID
    user_id: int
    connector: str
    dialect: str
    handle: StatementHandle
    row_limit: int
    timeout: timedelta
    has_result_set: bool
    owner: str | None
    limits: EditorSettings
    """The user's limits."""
    idempotency: IdempotencyKey | None
    script: str | None = None
    script_id: int | None = None
    database: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    in_history: bool = True
    in_named_session: bool = False
    keeps_session: bool = False
    """Whether the session stays open for later statements."""
    parent_uuid: str = ""
    import_plan: Mapping[str, Any] | None = None
    """Set for an import. `statement` is then only a description of the import (Contract importer 13)."""
    source_operation: UUID | None = None
    """Set if the rows are those of this operation's stored result, so that the engine is not asked."""
    destination: Mapping[str, Any] | None = None
    """Where the rows go if not into this statement's own result, which is then a summary (`exports/model.py`)."""
    token: SealedToken | None = None
    """The caller's encrypted token. Set if the engine authenticates with it (Contract platform 3.9)."""
    api_token: ApiTokenLimits | None = None
    """Limits of the API token used for the call. They also apply to files and results that the statement reads."""
    limit_source: LimitSource = LimitSource.MAXIMUM
    priority: int = 0
    """0 for interactive statements, which run first; 1 for scheduled statements."""
    notify: Mapping[str, Any] | None = None
    """The notification to send when the statement ends, or None if none was requested."""
    parameters: StatementParameters | None = field(default=None, repr=False)
    sealed_parameters: bytes | None = field(default=None, repr=False)
    parameter_count: int = 0
    """Number of parameter markers in this statement."""
    log_lines: Sequence[str] = ()
    """The first log lines, after the line that reports the submission."""
    runs_all: bool = False
    is_script: bool = False
    operation_id: UUID | None = None
    needs_session: bool = False
    """Whether an earlier statement ran in the session, so that this statement can run only there."""
    sent_ahead: bool = False
    """Whether to record the statement as sent from the start, because its owner is about to send it (ADR 81)."""
    lapses: int = 0
    """The owner's `Ownership.lapses` before it recorded the statement."""
    commits_early: bool = False
    """Whether the record need not be on disk before the statement is sent (ADR 89)."""
    reuse_key: bytes | None = None
    """Digest of what determines the rows (`ResultReuse.key`), or None if the result cannot answer other statements."""
    reused: ReusedResult | None = None
    """Set if the rows come from the stored result of `source_operation`, and the engine need not be asked."""
    read_only: bool = False
    """Whether the statement must not change anything, as the call or its token requires (Contract editor 4.9)."""
    traceparent: str | None = None
    """The caller's trace in W3C form."""
    max_estimated_bytes: int | None = None
    """The most bytes that the engine may expect the statement to read; None if the call sets no limit."""


def opaque_token() -> str:
    """Create an unguessable identifier: 16 random bytes, Base64-encoded."""
    return base64.b64encode(secrets.token_bytes(16)).decode()


def new_session_guid() -> str:
    """Create a session GUID in Hue's format: two random hexadecimal strings joined by a colon."""
    return f"{secrets.token_hex(8)}:{secrets.token_hex(8)}"


def effective_row_limit(
    limits: EditorSettings, limit: int | None, literal_limit: int | None
) -> tuple[int, LimitSource]:
    """Return the maximum number of rows to store, and which setting or request determined it.

    If the statement itself has a LIMIT above the enforced default, the default does not apply.
    """
    default, maximum = limits.default_limit if limits.enforce_default_limit else 0, limits.result_max_rows
    if limit is not None:
        # A huge limit means "all rows". If the maximum then truncates the result, the client must know that.
        return (limit, LimitSource.CALLER) if limit <= maximum else (maximum, LimitSource.MAXIMUM)
    if default in {0, maximum} or (literal_limit or 0) > default:
        return maximum, LimitSource.MAXIMUM
    return default, LimitSource.DEFAULT


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A statement's stored rows, either in the statement record (`inline`) or in segments of the result store."""

    status: StatementStatus
    columns: tuple[Column, ...]
    size_bytes: int
    cursor_row: int
    inline: bytes | None
    segments: Sequence[Segment]
    is_taken: bool = False
    """Whether the query that read the record has also moved the cursor to the end of the result."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """Log lines [start, start + len(lines)); earlier lines may have been dropped."""

    start: int
    lines: Sequence[str]
    progress: int
    jobs: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One entry of the get_history response."""

    id: UUID
    history_id: int
    connector: str
    dialect: str
    statement: str
    state: StatementState
    times: StatementTimes
    parent_uuid: str
    message: str
    database: str | None
    rows: int
    queue_position: int | None = None
    error_position: Position | None = None
    parameter_count: int = 0
    reused: ReusedResult | None = None


@dataclass(frozen=True, slots=True)
class StatementEnd:
    """A record of one statement's end, without the statement text."""

    id: UUID
    user: str
    connector: str
    dialect: str
    state: StatementState
    outcome: str
    """`ok`, or the error code that clients receive."""
    rows: int
    size_bytes: int
    queued_ms: int
    """Time from recording until sending, or until the end if the statement was never sent."""
    elapsed_ms: int
    """Time from sending until the end, or 0 if the statement was never sent."""
    canceled_by: str | None
    is_import: bool
    is_script: bool
    """Whether this is the operation of a whole script."""
    operation_id: UUID | None
    """The script's operation, if this is a statement of a script that runs as a whole."""
    traceparent: str | None
    lasted_s: float
    """Time from recording until the end."""


EndListener: TypeAlias = Callable[[StatementEnd], None]
"""Called once per statement, by the process that commits the statement's end."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run one statement.

    Every write carries the fence number. A write with an older number is rejected.
    """

    statement_id: UUID
    owner: str
    fence: int
    is_claimed: bool = field(default=False, compare=False)
    """Whether another process recorded the statement. The calls that wait for it then usually run in that process."""
    operation_id: UUID | None = field(default=None, compare=False)
    """The operation whose status clients request, if the statement belongs to a script that runs as a whole."""


@dataclass(frozen=True, slots=True)
class ClaimScope:
    """The statements that a runner may claim: statements of its connectors, and statements of its open sessions."""

    connectors: Sequence[str]
    sessions: Sequence[int] = ()
    bound: Sequence[str] = ()
    """Those of `connectors` whose statements no other process can run, whatever the destination of their rows."""
    resumes: bool = True
    """Whether to include statements that a lost server left running on an engine."""


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """Limits on concurrent statements across all workers: per connector, and per user of a connector."""

    per_connector: int
    per_user: int


@dataclass(frozen=True, slots=True)
class EngineCheckpoint:
    """The position from which reading on the engine can resume. All earlier rows and log lines are stored."""

    token: str = field(repr=False)
    """The argument for `ResumableEngine.reattach`."""
    log_lines: int = 0
    """Number of stored engine log lines."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The progress stored by a lost runner, from which another runner resumes the statement."""

    checkpoint: EngineCheckpoint
    rows: int = 0
    size_bytes: int = 0
    segments: int = 0
    log_lines: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """A claimed statement, with everything that a runner needs to run it."""

    claim: Claim
    user_id: int
    connector: str
    dialect: str
    statement: str
    database: str | None
    settings: Mapping[str, str]
    session_id: int
    in_named_session: bool
    keeps_session: bool
    row_limit: int
    ends_at: float
    """Deadline on the `time.monotonic()` clock, computed from the remaining time according to the database clock."""
    sent: bool = False
    cancel_requested: bool = False
    history_id: int = 0
    resumption: Resumption | None = None
    """The stored progress. Set if the engine is running the statement and this runner can resume it."""
    import_plan: Mapping[str, Any] | None = None
    source_operation: UUID | None = None
    """The same as `NewStatement.source_operation`."""
    reused_from: UUID | None = None
    """The statement that was sent to the engine for the rows of `source_operation`. Set if the engine can answer this
    statement, too, in case `source_operation` cannot be read."""
    destination: Mapping[str, Any] | None = None
    """The same as `NewStatement.destination`."""
    token: SealedToken | None = None
    api_token: ApiTokenLimits | None = None
    """The same as `NewStatement.api_token`."""
    limit_source: LimitSource | None = None
    log_lines: int = 0
    """Number of lines in the log. At least 1, because the first line is written with the record."""
    parameters: StatementParameters | None = field(default=None, repr=False)
    lacks_parameters: bool = False
    """Whether the parameter values can no longer be decrypted, so that the statement cannot be sent."""
    session_guid: str = ""
    statement_index: int = 0
    statements_count: int = 1
    needs_session: bool = False
    """The same as `NewStatement.needs_session`."""
    rows: int = 0
    """Number of rows that the previous runner stored."""
    was_retried: bool = False
    """Whether the statement was already requeued after its process died. If so, it is not sent again."""
    sent_ahead: bool = False
    """Whether this process has recorded the statement as sent, but has not sent it yet (ADR 81)."""
    lapses: int = 0
    """The same as `NewStatement.lapses`."""
    read_only: bool = False
    traceparent: str | None = None
    max_estimated_bytes: int | None = None
    recorded_at: float = 0.0
    """When the statement was recorded, on the `time.time()` clock of this process, which may differ from that of the
    database."""

    @property
    def client_operation_id(self) -> UUID:
        """The operation id that clients use. For a statement of a script, this is the script's operation."""
        return self.claim.operation_id or self.claim.statement_id

    @property
    def is_repeatable(self) -> bool:
        """Whether the rows come from a stored result, so that the statement may run again until it has published them.

        The record decides, because `destination` may be older.
        """
        return self.source_operation is not None and self.claim.operation_id is None

    @property
    def time_limit_s(self) -> int:
        """Seconds from the submission to `ends_at`. Of a later part of a script, those that the script had left."""
        return round(self.ends_at - time.monotonic() + time.time() - self.recorded_at)


def new_assignment(new: NewStatement, claim: Claim, *, history_id: int, ends_at: float) -> Assignment:
    """Create the assignment for a statement that this process has just recorded."""
    return Assignment(
        claim=claim,
        user_id=new.user_id,
        connector=new.connector,
        dialect=new.dialect,
        statement=new.handle.statement,
        database=new.database,
        settings=new.settings,
        session_id=new.handle.session_id,
        in_named_session=new.in_named_session,
        keeps_session=new.keeps_session,
        row_limit=new.row_limit,
        ends_at=ends_at,
        history_id=history_id,
        import_plan=new.import_plan,
        source_operation=new.source_operation,
        reused_from=new.reused.statement_id if new.reused else None,
        destination=new.destination,
        token=new.token,
        api_token=new.api_token,
        parameters=new.parameters,
        limit_source=new.limit_source,
        log_lines=1 + len(new.log_lines),
        session_guid=new.handle.session_guid,
        statement_index=new.handle.statement_index,
        statements_count=new.handle.statements_count,
        needs_session=new.needs_session,
        sent_ahead=new.sent_ahead,
        lapses=new.lapses,
        read_only=new.read_only,
        traceparent=new.traceparent,
        max_estimated_bytes=new.max_estimated_bytes,
        recorded_at=time.time(),
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a statement, stored in a single transaction."""

    state: StatementState
    error_code: str | None = None
    message: str = ""
    has_result_set: bool = False
    columns: tuple[Column, ...] | None = None
    rows: int = 0
    size_bytes: int = 0
    truncated_reason: TruncationReason | None = None
    modified_row_count: int | None = None
    inline_result: bytes | None = None
    error_position: Position | None = None
    error_sqlstate: str | None = None
    estimated_bytes: int | None = None
    """The bytes that the engine expected the statement to read, if it was estimated."""
    scanned_bytes: int | None = None
    """The bytes that the statement has read, if the engine reports them."""


@dataclass(frozen=True, slots=True)
class PartEnd:
    """The records written at the end of a script's statement."""

    next_statement: StatementRecord | None
    """The next statement, recorded for the same runner, or None if the script has ended."""
