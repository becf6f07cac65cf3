"""Why a stored result does not have all rows (Contract editor 6.4)."""

from dataclasses import dataclass
from enum import StrEnum


class TruncationReason(StrEnum):
    """Which cap cut the stored result (Contract editor 6.4)."""

    ROW_LIMIT = "row_limit"
    BYTE_LIMIT = "byte_limit"


class LimitSource(StrEnum):
    """Where the row limit of a statement comes from."""

    DEFAULT = "default"
    """The setting `editor.default_limit`, which `editor.enforce_default_limit` puts in force."""
    CALLER = "caller"
    """The field `limit` of the call."""
    MAXIMUM = "maximum"
    """The setting `editor.result_max_rows`."""


@dataclass(frozen=True, slots=True)
class Truncation:
    reason: TruncationReason
    limit_source: LimitSource | None = None
    """None: not known, for statements that an earlier version recorded."""

    @property
    def by(self) -> str:
        """The field or setting that has to be larger for more rows."""
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
    def is_asked_for(self) -> bool:
        """Whether the caller's own `limit` cut the result."""
        return self.by == "limit"

    def message(self, *, rows: int, max_rows: int, max_bytes: int, may_change: bool) -> str:
        """What was cut and why, and how to get more rows.

        `may_change`: the statement may have changed data, so that sending it again may change them again.
        """
        kept = f"Only the first {rows} rows were kept: "
        match self.by:
            case "result_max_bytes":
                kept += f"a result has at most {max_bytes} bytes on this server (editor.result_max_bytes)."
                advice = "select fewer columns or rows."
            case "result_max_rows":
                kept += f"a result has at most {max_rows} rows on this server (editor.result_max_rows)."
                advice = "run several statements, each for a part of them."
            case "default_limit":
                kept += "the default limit of this server (editor.default_limit)."
                advice = f"execute the statement with limit=… (up to {max_rows})."
            case _ if rows >= max_rows:
                return kept + "the limit of the call."
            case _:
                kept += "the limit of the call."
                advice = f"execute the statement with a larger limit (up to {max_rows})."
        if may_change:
            return f"{kept} The statement was carried out in full. If it only reads data, {advice}"
        return f"{kept} To get more, {advice}"
