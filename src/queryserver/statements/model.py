"""Values of statements: states, record, lease, outcome, end (Contract editor 2, 3)."""

import base64
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from queryserver.formats.columns import Column
from queryserver.identity.model import ApiTokenLimits, SealedToken
from queryserver.platform.settings.editor import EditorSettings
from queryserver.results.model import Segment
from queryserver.sql.markers import StatementParameters
from queryserver.sql.positions import Position
from queryserver.statements.states import StatementState
from queryserver.statements.truncation import LimitSource, Truncation, TruncationReason


@dataclass(frozen=True, slots=True)
class StatementTimes:
    """When a statement was recorded, sent and ended; all by the clock of the service database."""

    submitted: datetime
    started: datetime | None
    """The moment before the engine got it; None: the engine has not seen it."""
    ended: datetime | None
    queued: timedelta
    """How long it waited, or had waited when the record was read, before it was sent."""
    elapsed: timedelta
    """From the moment it was sent to its end, or to the reading of the record; zero for what was never sent."""


@dataclass(frozen=True, slots=True)
class StatementHandle:
    """The handle that the client receives: position in the script, opaque names, session (Contract editor 2.1)."""

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
    """What the answer about a statement without a result shows beside its status (Contract editor 3.4)."""

    handle: StatementHandle
    error_position: Position | None
    """Where in the statement the engine found its error."""
    error_sqlstate: str | None


@dataclass(frozen=True, slots=True)
class StatementStatus:
    """The part of the record that check_status answers, and that is read most."""

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
    """`status` and `code` of a statement that has no result to give, else None (Contract editor 3.2)."""
    failure: FailureDetails | None = None
    """Read with the status once `outcome` is set, unless the text is long: see `StatementReader.with_failure`."""
    queue_position: int | None = None
    """1: it is the next one. Only where it was requested, and only while it waits for a free slot of its connector."""
    runs_all: bool = False
    """The call sent `run_all`: `parts` are its statements."""
    is_script: bool = False
    """The operation of a whole script: results are those of its statements."""
    operation_id: UUID | None = None
    """Of a statement of such a script: its operation."""
    parts: Sequence["StatementPart"] = ()

    @property
    def part(self) -> "StatementPart | None":
        """The statement of a script that runs, or that was begun last: of a failed script the one that failed."""
        return self.parts[-1] if self.parts else None

    @property
    def truncation(self) -> Truncation | None:
        """What cut the stored result (Contract editor 6.4)."""
        return Truncation(self.truncated_reason, self.limit_source) if self.truncated_reason else None

    @property
    def is_cut_by_server(self) -> bool:
        """Whether the query has rows that were not kept, by a limit that its caller had not set."""
        return (cut := self.truncation) is not None and not cut.is_asked_for


@dataclass(frozen=True, slots=True)
class StatementPart:
    """One statement of a script of which all statements run, once it was begun (Contract editor 5.5)."""

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

    @property
    def truncation(self) -> Truncation | None:
        """What cut the stored result (Contract editor 6.4)."""
        return Truncation(self.truncated_reason, self.limit_source) if self.truncated_reason else None


@dataclass(frozen=True, slots=True)
class StatementRecord:
    """A whole record as the read path needs it."""

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
    """Only the beginning of the statement is still stored."""
    sealed_parameters: bytes | None = field(default=None, repr=False)
    """The values of the whole script, as `ParameterSealer` seals them."""
    parameter_count: int = 0


@dataclass(frozen=True, slots=True)
class RecordedStatement:
    """The record that execute made, or found under the same idempotency key."""

    record: StatementRecord
    replayed: bool


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The caller's key and the digest of what it was used for (Contract editor 4.4)."""

    key: str
    fingerprint: bytes

    @classmethod
    def of(cls, key: str, *request: object) -> "IdempotencyKey":
        """The key of a request, whose content is compared as JSON."""
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
    """How much one user may have of what, and how long the lease of `owner` lasts."""
    idempotency: IdempotencyKey | None
    script: str | None = None
    script_id: int | None = None
    database: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    in_history: bool = True
    in_named_session: bool = False
    keeps_session: bool = False
    """The session stays open for further statements."""
    parent_uuid: str = ""
    import_plan: Mapping[str, Any] | None = None
    """Set: the runner makes a table from a file, and `statement` only describes it (Contract importer 13)."""
    token: SealedToken | None = None
    """Set: the engine takes the caller's own token (Contract platform 3.9)."""
    api_token: ApiTokenLimits | None = None
    """That of the call: what the statement reaches when it runs, such as files and results, is within its limits."""
    limit_source: LimitSource = LimitSource.MAXIMUM
    priority: int = 0
    """1: of a schedule; those with 0 come first."""
    notify: Mapping[str, Any] | None = None
    """What is sent at its end; None: nothing."""
    parameters: StatementParameters | None = field(default=None, repr=False)
    sealed_parameters: bytes | None = field(default=None, repr=False)
    parameter_count: int = 0
    """How many places this statement has, of those of its script."""
    log_lines: Sequence[str] = ()
    """The first lines of the log, after the one with the time of submission."""
    runs_all: bool = False
    is_script: bool = False
    operation_id: UUID | None = None
    needs_session: bool = False
    """A statement before it was begun in its session: it runs there or not at all."""


def opaque_token() -> str:
    """A name that cannot be guessed: 16 random bytes."""
    return base64.b64encode(secrets.token_bytes(16)).decode()


def new_session_guid() -> str:
    """Two opaque halves, in the form of Hue."""
    return f"{secrets.token_hex(8)}:{secrets.token_hex(8)}"


def kept_rows(limits: EditorSettings, limit: int | None, literal_limit: int | None) -> tuple[int, LimitSource]:
    """How many rows are kept at most. A default in force gives way to a larger LIMIT of the statement itself."""
    default, most = limits.default_limit if limits.enforce_default_limit else 0, limits.result_max_rows
    if limit is not None:
        # A client that writes a huge number means "all": what is cut then is not what it wanted to have cut.
        return (limit, LimitSource.CALLER) if limit <= most else (most, LimitSource.MAXIMUM)
    if default in {0, most} or (literal_limit or 0) > default:
        return most, LimitSource.MAXIMUM
    return default, LimitSource.DEFAULT


@dataclass(frozen=True, slots=True)
class StoredResult:
    """Where the rows of a statement are: in the record, or in segments of the result store."""

    status: StatementStatus
    columns: tuple[Column, ...]
    size_bytes: int
    cursor_row: int
    inline: bytes | None
    segments: Sequence[Segment]


@dataclass(frozen=True, slots=True)
class LogPage:
    """Log lines [start, start + len(lines)); earlier lines may have been dropped."""

    start: int
    lines: Sequence[str]
    progress: int
    jobs: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One line of get_history."""

    id: UUID
    history_id: int
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


@dataclass(frozen=True, slots=True)
class StatementEnd:
    """The end of one statement; never its text."""

    id: UUID
    user: str
    connector: str
    dialect: str
    state: StatementState
    outcome: str
    """`ok`, or the code of the failure as clients see it."""
    rows: int
    size_bytes: int
    queued_ms: int
    """From the record to the engine; of a statement that was never sent, to its end."""
    elapsed_ms: int
    """From the moment it was sent to its end; 0 when it was never sent."""
    canceled_by: str | None
    is_import: bool


OnEnd: TypeAlias = Callable[[StatementEnd], None]
"""Called once for each statement, when its end is committed, by the process that committed it."""
