"""The status, progress, logs and events of a statement."""

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
    """A snapshot of the status of a statement (Contract editor 2.2)."""

    state: str
    """waiting, running, available, success, failed, canceled, timed_out, expired or closed."""
    message: str
    rows: int
    """Number of rows stored so far."""
    has_result_set: bool
    truncated_by: str | None
    """The limit that truncated the result: default_limit, limit, result_max_rows or result_max_bytes; else None."""
    modified_row_count: int | None
    queue_position: int | None
    submitted: dt.datetime | None
    started: dt.datetime | None
    ended: dt.datetime | None
    expires_at: dt.datetime | None
    elapsed_ms: int
    queued_ms: int
    error: StatementError | None
    """Why the statement did not succeed; None if it succeeded or has not ended. Not raised here."""
    statements: "tuple[ScriptStatement, ...]" = ()
    """If the script was started with `run_all`, the statements started so far, in order (Contract editor 5.5)."""
    reused_from: str | None = None
    """The operation whose stored rows answered the statement (`max_age`); None if the data source was asked."""
    reused_age_s: int | None = None
    """How old those rows were when the statement was submitted, in seconds."""

    @property
    def is_terminal(self) -> bool:
        return self.state not in ACTIVE

    @property
    def is_truncated(self) -> bool:
        return self.truncated_by is not None


@dataclass(frozen=True)
class Progress:
    """The progress of a statement (Contract editor 7.1)."""

    percent: int
    rows: int
    jobs: "tuple[Job, ...]" = ()


@dataclass(frozen=True)
class Logs:
    """Log lines of a statement."""

    lines: tuple[str, ...]
    next_from: int
    """Number of lines so far. Pass it to `logs` as `since` to get only later lines."""
    progress: int = 0
    jobs: "tuple[Job, ...]" = ()


@dataclass(frozen=True)
class Event:
    """An event of `Statement.events`. Exactly one attribute is set."""

    status: Status | None = None
    progress: Progress | None = None
    log: Logs | None = None


def status_of(body: Mapping[str, Any], *, request_id: str | None = None) -> Status:
    """Parse `query_status` of a response. Raises StatementError if the response has none."""
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
        reused_from=said.get("reused_from"),
        reused_age_s=said.get("reused_age_s"),
    )


def logs_of(body: Mapping[str, Any]) -> Logs:
    """Parse the response of get_logs, or the data of a `log` event."""
    text = body["logs"]
    return Logs(
        tuple(text.split("\n")) if text else (), body["next_from"], body.get("progress", 0), tuple(body.get("jobs", ()))
    )


def moment(text: str | None) -> dt.datetime | None:
    """Parse a time in the form `2025-01-31T10:20:30Z`."""
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
