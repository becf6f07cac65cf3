"""Values that a statement's runner receives and returns: lease, assignment, outcome (Contract editor 3.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from queryserver.formats.columns import Column
from queryserver.identity.model import ApiTokenLimits, SealedToken
from queryserver.sql.markers import StatementParameters
from queryserver.sql.positions import Position
from queryserver.statements.model import NewStatement, StatementRecord
from queryserver.statements.states import LimitSource, StatementState, TruncationReason


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run one statement.

    Every write carries the fence number; writes with an older number are rejected.
    """

    statement_id: UUID
    owner: str
    fence: int
    is_claimed: bool = field(default=False, compare=False)
    """Whether another process recorded the statement, and serves the calls that wait for it."""
    operation_id: UUID | None = field(default=None, compare=False)
    """The operation whose status clients request, if the statement belongs to a script that runs as a whole."""


@dataclass(frozen=True, slots=True)
class ClaimScope:
    """The statements that a runner can run: statements of its connectors and of its open sessions."""

    connectors: Sequence[str]
    sessions: Sequence[int] = ()
    resumes: bool = True
    """Whether to include statements that a lost server left running at an engine."""


@dataclass(frozen=True, slots=True)
class EngineCheckpoint:
    """The position from which to resume reading at the engine; committed with all rows and log lines read before."""

    token: str = field(repr=False)
    """The argument for `ResumableEngine.reattach`."""
    log_lines: int = 0
    """Number of stored engine log lines."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The data stored by a statement's lost runner, from which another runner resumes."""

    checkpoint: EngineCheckpoint
    rows: int = 0
    size_bytes: int = 0
    segments: int = 0
    log_lines: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """A claimed statement with everything that a runner needs."""

    lease: Lease
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
    """Deadline in terms of `time.monotonic()`, computed from the remaining time by the database clock."""
    sent: bool = False
    cancel_requested: bool = False
    history_id: int = 0
    resumption: Resumption | None = None
    """Set if the engine is running the statement and this runner can take it over."""
    import_plan: Mapping[str, Any] | None = None
    token: SealedToken | None = None
    api_token: ApiTokenLimits | None = None
    """As in `NewStatement`."""
    limit_source: LimitSource | None = None
    log_lines: int = 0
    """Number of lines in the log, at least one, which is written with the record."""
    parameters: StatementParameters | None = field(default=None, repr=False)
    lacks_parameters: bool = False
    """Whether the parameter values are no longer readable, so that the statement cannot be sent."""
    session_guid: str = ""
    statement_index: int = 0
    statements_count: int = 1
    needs_session: bool = False
    """As in `NewStatement`."""
    rows: int = 0
    """Rows stored by the previous runner."""
    was_retried: bool = False
    """Whether two processes sent the statement and died, so that it is not sent again."""


def assignment_of(new: NewStatement, lease: Lease, *, history_id: int, ends_at: float) -> Assignment:
    """Create the assignment for a statement that this process has just recorded."""
    return Assignment(
        lease=lease,
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
        token=new.token,
        api_token=new.api_token,
        parameters=new.parameters,
        limit_source=new.limit_source,
        log_lines=1 + len(new.log_lines),
        session_guid=new.handle.session_guid,
        statement_index=new.handle.statement_index,
        statements_count=new.handle.statements_count,
        needs_session=new.needs_session,
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a statement; stored in one transaction."""

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


@dataclass(frozen=True, slots=True)
class PartEnd:
    """The result of ending a statement of a script."""

    next_statement: StatementRecord | None
    """The next statement, recorded for the same runner; None if the script has ended."""
