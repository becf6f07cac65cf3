"""Statement states, state filters and truncation reasons.

Imports no other modules, because the command line loads this one.
"""

from dataclasses import dataclass
from enum import StrEnum

MAX_AGE_S = 10 * 365 * 86400
"""Upper limit for `OverviewFilter.older_than`."""


class StatementState(StrEnum):
    """States of a statement, the same for all engines. Each state change is one transaction."""

    WAITING = "waiting"
    RUNNING = "running"
    AVAILABLE = "available"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMED_OUT = "timed_out"
    EXPIRED = "expired"
    CLOSED = "closed"

    is_terminal: bool
    """Whether no further work will be done."""
    wire_status: str
    """The value of `query_status.status`. `success` is sent as `available`, and `timed_out` as `failed`.

    Clients stop polling on these two values.
    """

    def __init__(self, value: str) -> None:
        self.is_terminal = value not in {"waiting", "running"}
        self.wire_status = {"success": "available", "timed_out": "failed"}.get(value, value)


ACTIVE = frozenset({StatementState.WAITING, StatementState.RUNNING})


class StateFilter(StrEnum):
    """Values of the list parameter `state`: the states, and two values that match several states."""

    ACTIVE = "active"
    ALL = "all"
    vars().update({state.name: state.value for state in StatementState})

    @property
    def states(self) -> tuple[StatementState, ...] | None:
        """The matching states, or None if every state matches."""
        if self is StateFilter.ALL:
            return None
        return tuple(ACTIVE) if self is StateFilter.ACTIVE else (StatementState(self.value),)


class TruncationReason(StrEnum):
    """The limit that truncated the stored result (Contract editor 6.4)."""

    ROW_LIMIT = "row_limit"
    BYTE_LIMIT = "byte_limit"


class LimitSource(StrEnum):
    """The source of a statement's row limit."""

    DEFAULT = "default"
    """The setting `editor.default_limit`, enforced by `editor.enforce_default_limit`."""
    CALLER = "caller"
    """The field `limit` of the call."""
    MAXIMUM = "maximum"
    """The setting `editor.result_max_rows`."""


_INTO = "execute the statement with `into`, which has no such limit: its rows go to a file or a table."


@dataclass(frozen=True, slots=True)
class Truncation:
    reason: TruncationReason
    limit_source: LimitSource | None = None
    """None if unknown, as for statements recorded by an earlier version."""

    @property
    def limit_name(self) -> str:
        """The field or setting that must be raised to get more rows."""
        if self.reason is TruncationReason.BYTE_LIMIT:
            return "result_max_bytes"
        match self.limit_source:
            case LimitSource.DEFAULT:
                return "default_limit"
            case LimitSource.MAXIMUM:
                return "result_max_rows"
            case _:
                return "limit"

    @property
    def is_requested(self) -> bool:
        """Whether the caller's own `limit` truncated the result."""
        return self.limit_name == "limit"

    def message(self, *, rows: int, max_rows: int, max_bytes: int, may_change: bool) -> str:
        """Explain the truncation and how to get more rows.

        If `may_change` is set, point out that the statement was executed in full, because running it again may change
        data again.
        """
        prefix = f"Only the first {rows} rows were kept: "
        match self.limit_name:
            case "result_max_bytes":
                prefix += f"a result has at most {max_bytes} bytes on this server (editor.result_max_bytes)."
                advice = f"{_INTO} Or select fewer columns or rows."
            case "result_max_rows":
                prefix += f"a result has at most {max_rows} rows on this server (editor.result_max_rows)."
                advice = _INTO
            case "default_limit":
                prefix += "the default limit of this server (editor.default_limit)."
                advice = f"execute the statement with limit=… (up to {max_rows})."
            case _ if rows >= max_rows:
                return prefix + "the limit of the call."
            case _:
                prefix += "the limit of the call."
                advice = f"execute the statement with a larger limit (up to {max_rows})."
        if may_change:
            return f"{prefix} The statement was executed completely. If it only reads data, {advice}"
        return f"{prefix} To get more, {advice}"
