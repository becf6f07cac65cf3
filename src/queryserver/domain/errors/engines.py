"""Outcomes of statements, told by engines."""

from typing import Self

from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.positions import Place


class EngineError(QueryServerError):
    """The outcome of a statement, told by the engine: about a recorded statement it becomes state `failed`."""

    code = "engine_error"
    place: Place | None = None
    """Where in the statement that the engine was sent, as far as it says."""

    def at(self, place: Place | None) -> Self:
        """The same error with its place."""
        self.place = place
        return self


class StatementRejected(EngineError):
    """The engine refused or failed the statement; `message` is its own text, first line first, without traces."""


class StatementDenied(StatementRejected):
    """The engine refused the statement because its user lacks a right; as an outcome, a refusal like any other."""


class EngineForbidden(EngineError):
    """The engine denies the user a metadata object."""

    code = "engine_forbidden"


class RejectedByRule(EngineError):
    """A rule of this service refused the statement; the engine never saw it."""

    code = "rejected"


class EngineUnavailable(EngineError):
    """No connection to the engine could be made; the statement was not started."""

    code = "engine_unavailable"


class EngineTimeout(EngineError):
    """The engine did not answer in time, or its own time limit ended the statement."""

    code = "engine_timeout"


class SessionLost(EngineError):
    """The engine session is gone and the statement was not started."""

    code = "session_lost"


class OutcomeUnknown(EngineError):
    """After sending, the connection was lost: the statement may or may not have taken effect."""

    code = "outcome_unknown"


class CredentialsRequired(EngineError):
    """The data source refused the credentials or lacks them."""

    code = "credentials_required"


class CellTooLarge(EngineError):
    """One value of the result is above `editor.cell_max_bytes`; the statement ends with it."""

    code = "cell_too_large"

    def __init__(self, *, limit_bytes: int, row: int | None = None, column: str | None = None) -> None:
        """`row` counts from 0 and `column` is the name, as far as the engine had come to them."""
        place = f" in row {row}" if row is not None else ""
        place += f" of column {column}" if column is not None else ""
        super().__init__(f"A value{place} is larger than the limit of {limit_bytes} bytes for one cell.")


class RowTooLarge(EngineError):
    """The values of one row of the result are together above its limit; the statement ends with it."""

    code = "row_too_large"

    def __init__(self, *, limit_bytes: int, row: int | None = None) -> None:
        """`row` counts from 0, as far as the engine had come to it."""
        which = f"Row {row}" if row is not None else "A row"
        super().__init__(f"{which} is larger than the limit of {limit_bytes} bytes for one row.")


class DiskBelowFloor(EngineError):
    """The statement needed room on a disk of this server that is below its floor (see InsufficientStorage)."""

    code = "insufficient_storage"


class ResultStoreFailed(EngineError):
    """The result could not be stored."""

    code = "result_store_failed"
