"""What the server says of a statement: its state, its logs, and the events of its life."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from queryserver_client.errors import StatementError, statement_error

if TYPE_CHECKING:
    from queryserver_client.generated import Job, QueryStatus, ScriptStatement

ACTIVE = frozenset({"waiting", "running"})


@dataclass(frozen=True)
class Status:
    """A statement at one moment (Contract editor 2.2)."""

    state: str
    """waiting, running, available, success, failed, canceled, timed_out, expired, closed."""
    message: str
    rows: int
    """Rows stored so far."""
    has_result_set: bool
    truncated_by: str | None
    """What cut the result: default_limit, limit, result_max_rows, result_max_bytes."""
    modified_row_count: int | None
    queue_position: int | None
    submitted: dt.datetime | None
    started: dt.datetime | None
    ended: dt.datetime | None
    expires_at: dt.datetime | None
    elapsed_ms: int
    queued_ms: int
    error: StatementError | None
    """Why it did not end well; it is not raised here."""
    statements: "tuple[ScriptStatement, ...]" = ()
    """Of what was started with `run_all`: the statements that were begun, in their order (Contract editor 5.5)."""

    @property
    def is_terminal(self) -> bool:
        return self.state not in ACTIVE

    @property
    def is_truncated(self) -> bool:
        return self.truncated_by is not None


@dataclass(frozen=True)
class Progress:
    """How far a statement is (Contract editor 7.1)."""

    percent: int
    rows: int
    jobs: "tuple[Job, ...]" = ()


@dataclass(frozen=True)
class Logs:
    """Lines of the log of a statement."""

    lines: tuple[str, ...]
    next_from: int
    """The number of lines known now; give it to get only later ones."""
    progress: int = 0
    jobs: "tuple[Job, ...]" = ()


@dataclass(frozen=True)
class Event:
    """One event of `Statement.events`: exactly one of its fields is set."""

    status: Status | None = None
    progress: Progress | None = None
    log: Logs | None = None


def status_of(body: Mapping[str, Any], *, request_id: str | None = None) -> Status:
    """From any answer with `query_status`."""
    said = cast("QueryStatus | None", body.get("query_status"))
    if said is None:
        raise statement_error(body, request_id=request_id)
    return Status(
        state=said["state"],
        message=said["message"],
        rows=said["rows"],
        has_result_set=said["has_result_set"],
        truncated_by=said["truncated_by"],
        modified_row_count=said["modified_row_count"],
        queue_position=said["queue_position"],
        submitted=moment(said["submitted"]),
        started=moment(said["started"]),
        ended=moment(said["ended"]),
        expires_at=moment(said["expires_at"]),
        elapsed_ms=said["elapsed_ms"],
        queued_ms=said["queued_ms"],
        error=statement_error(body, request_id=request_id) if body.get("status") else None,
        statements=tuple(said.get("statements", ())),
    )


def logs_of(body: Mapping[str, Any]) -> Logs:
    """From an answer of get_logs, or the data of an event `log`."""
    text = body["logs"]
    return Logs(
        tuple(text.split("\n")) if text else (), body["next_from"], body.get("progress", 0), tuple(body.get("jobs", ()))
    )


def moment(text: str | None) -> dt.datetime | None:
    """A time of the contract, `2025-01-31T10:20:30Z`."""
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
