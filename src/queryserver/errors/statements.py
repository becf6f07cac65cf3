"""Errors for statements, sessions, data sources and their objects, connectors and the metadata search.

Each error has the HTTP status that `api/errors.py` assigns to its base class.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Self, TypeAlias

from queryserver.errors.base import (
    Conflict,
    ErrorKind,
    InvalidRequest,
    NotFound,
    NotSupported,
    PayloadTooLarge,
    PermissionDenied,
    QueryServerError,
    ServiceUnavailable,
    known_names,
)


class Unit(Enum):
    """The unit in which an engine counts columns.

    SCREEN counts terminal cells: 2 for wide characters, 0 for control characters.
    """

    CHARACTER = auto()
    UTF16 = auto()
    SCREEN = auto()


@dataclass(frozen=True, slots=True)
class Character:
    """An error position as a character offset, from 0."""

    offset: int


@dataclass(frozen=True, slots=True)
class Octet:
    """An error position as a byte offset in the UTF-8 text, from 0."""

    offset: int


@dataclass(frozen=True, slots=True)
class LineColumn:
    """An error position as a line and, if known, a column, both counted from 1. Lines end with a line feed."""

    line: int
    column: int | None = None
    unit: Unit = Unit.CHARACTER


@dataclass(frozen=True, slots=True)
class ErrorExcerpt:
    """An error position given by an excerpt of the line with a marker below it, as some engines print it.

    `line` counts from 1. `shown` is part of the line, with `...` for omitted text. `mark` is the marker's offset in
    `shown`.
    """

    line: int
    shown: str
    mark: int
    unit: Unit = Unit.CHARACTER


@dataclass(frozen=True, slots=True)
class Rest:
    """An error position given by the line, counted from 1, and the text from the error onward, possibly truncated."""

    line: int
    text: str


ErrorLocation: TypeAlias = Character | Octet | LineColumn | ErrorExcerpt | Rest

_SQLSTATE = re.compile(r"[0-9A-Z]{5}")
_MAX_SHOWN_CHARACTERS = 100  # of an object name that a client sent


# Outcomes of statements


class EngineError(QueryServerError, code="engine_error"):
    """A statement failed on the engine. A recorded statement changes to the state `failed`."""

    location: ErrorLocation | None = None
    """Position in the statement text that the engine received, if known."""
    sqlstate: str | None = None
    """The SQLSTATE reported by the engine, or the one for this kind of error (ISO 9075-2, 24.1), if known."""

    def at(self, location: ErrorLocation | None) -> Self:
        self.location = location
        return self

    def with_sqlstate(self, sqlstate: object) -> Self:
        """Set the SQLSTATE and return the error. Anything but five upper-case letters and digits sets it to None."""
        self.sqlstate = sqlstate if isinstance(sqlstate, str) and _SQLSTATE.fullmatch(sqlstate) else None
        return self


class StatementRejected(EngineError):
    """The engine rejected the statement, or the statement failed. `message` quotes the engine, without stack traces."""


class StatementDenied(StatementRejected):
    """The engine refused the statement because the user lacks a privilege. Reported like any other rejection."""


class EngineForbidden(EngineError, code="engine_forbidden"): ...


class EngineUnavailable(EngineError, code="engine_unavailable"):
    """Connecting to the engine failed. The statement was not started."""


class EngineTimeout(EngineError, code="engine_timeout"):
    """The engine did not respond in time, or its own time limit ended the statement."""


class SessionLost(EngineError, code="session_lost"):
    """The engine session no longer exists, so the statement was not started."""


class OutcomeUnknown(EngineError, code="outcome_unknown"):
    """The connection was lost after the statement was sent. The statement may or may not have taken effect."""


class CredentialsRequired(EngineError, code="credentials_required"): ...


class ResultRefused(EngineError, code="result_not_available"):
    """The statement refers to a stored result that its user cannot read, or that is unknown, unfinished or deleted."""


class RowTooLarge(EngineError, code="row_too_large"):
    """The values of one row together exceed the row limit, so the statement fails."""

    def __init__(self, *, limit_bytes: int, row: int | None = None) -> None:
        """`row` counts from 0, and is None if the row is unknown."""
        which = f"Row {row}" if row is not None else "A row"
        super().__init__(
            f"{which} is larger than the limit of {limit_bytes} bytes for one row, which `editor.cell_max_bytes`"
            " determines. Select fewer columns."
        )


rejected_by_rule = ErrorKind(EngineError, "rejected")
estimate_exceeded = ErrorKind(EngineError, "estimate_exceeded")
# Used as outcomes of statements. API calls raise other classes with the same codes.
result_not_found = ErrorKind(ResultRefused, "operation_not_found")
result_denied = ErrorKind(ResultRefused, "permission_denied")
result_expired = ErrorKind(ResultRefused, "result_expired")
disk_below_floor = ErrorKind(EngineError, "insufficient_storage")
# The engine process exceeded its memory limit (it may or may not have survived), or ended for another reason.
engine_memory_exceeded = ErrorKind(
    EngineError,
    "engine_memory_exceeded",
    "The statement exceeded the memory limit of the database process. Process less data per statement. Committed"
    " changes are kept.",
)
engine_process_lost = ErrorKind(
    EngineError,
    "engine_process_lost",
    "The database process ended while the statement was running. Committed changes are kept; the next statement starts"
    " a new process.",
)
result_store_failed = ErrorKind(EngineError, "result_store_failed")
_cell_too_large = ErrorKind(EngineError, "cell_too_large")


def cell_too_large(*, limit_bytes: int, row: int | None = None, column: str | None = None) -> EngineError:
    """Create the error for a value larger than `editor.cell_max_bytes`. `row` counts from 0; `column` is a name."""
    location = f" in row {row}" if row is not None else ""
    location += f" of column {column}" if column is not None else ""
    return _cell_too_large(
        f"A value{location} is larger than the limit of {limit_bytes} bytes for one cell (`editor.cell_max_bytes`)."
        " Select a part of the value."
    )


class PageRowTooLarge(PayloadTooLarge, code="row_too_large"):
    """The first row of a page alone exceeds the page limit. Downloads include the row."""

    def __init__(self, *, row: int | None, limit_bytes: int) -> None:
        """`row` counts from 0, and is None for a row of a sample, because samples have no pages."""
        if row is None:
            super().__init__(
                f"A row is larger than the limit of {limit_bytes} bytes for one page (`editor.batch_max_bytes`). Select"
                " some of its columns."
            )
            return
        super().__init__(
            f"Row {row} is larger than the limit of {limit_bytes} bytes for one page (`editor.batch_max_bytes`)."
            f" Download the result to get this row, or continue with start_row={row + 1}.",
            details={"row": row, "limit_bytes": limit_bytes, "next_start_row": row + 1},
        )


class DownloadRefused(Conflict, code="not_finished"):
    """The statement has no finished result to download. `outcome_code` is the reason (Contract editor 8.2)."""

    def __init__(self, code: str, message: str, *, status: int, gone: bool = False) -> None:
        super().__init__(message)
        self.outcome_code = code
        self.status = status
        self.gone = gone


# Recorded statements and sessions


class OperationNotFound(NotFound, code="operation_not_found"):
    def __init__(self, operation_id: str) -> None:
        super().__init__(f"Operation {operation_id} does not exist.")


class NoMoreStatements(Conflict, code="no_more_statements"):
    def __init__(self) -> None:
        super().__init__("The script has no more statements.")


previous_not_finished = ErrorKind(Conflict, "previous_not_finished")
idempotency_conflict = ErrorKind(Conflict, "idempotency_conflict", "This idempotency key was used for another request.")
# Only the beginning of the script is still stored.
statement_text_expired = ErrorKind(
    Conflict,
    "statement_text_expired",
    "The text of this script is no longer stored: long scripts are kept for"
    " `editor.statement_text_retention_h` hours after they end. Submit the script again.",
)
sharing_disabled = ErrorKind(
    PermissionDenied, "sharing_disabled", "Sharing is disabled on this server (`desktop.enable_sharing`)."
)
sharing_not_allowed = ErrorKind(PermissionDenied, "sharing_not_allowed")
no_result_to_share = ErrorKind(Conflict, "no_result_to_share")
too_many_grants = ErrorKind(Conflict, "too_many_grants")
session_not_found = ErrorKind(NotFound, "session_not_found", "Session {} does not exist.")


# Data sources and their objects


class UnknownDialect(NotFound, code="dialect_not_found"):
    def __init__(self, name: str, usable: Sequence[str]) -> None:
        """`usable` lists the connectors that the caller may use instead."""
        super().__init__(f"The connector {name[:_MAX_SHOWN_CHARACTERS]} is not configured.{known_names(usable)}")


class MetadataNotFound(NotFound):
    """The metadata object does not exist in the data source. The response has `status` 1 (Contract editor 1.4)."""


class TableNotFound(MetadataNotFound, code="table_not_found"):
    def __init__(self, database: str, table: str) -> None:
        super().__init__(f"Table {database[:_MAX_SHOWN_CHARACTERS]}.{table[:_MAX_SHOWN_CHARACTERS]} does not exist.")


# The arguments: database (or schema) name; table and column; path; function name.
database_not_found = ErrorKind(MetadataNotFound, "database_not_found", "Database {:.100} does not exist.")
column_not_found = ErrorKind(MetadataNotFound, "column_not_found", "Column {:.100}.{:.100} does not exist.")
nested_path_not_found = ErrorKind(MetadataNotFound, "nested_path_not_found", "Invalid nested type path: {:.100}")
function_not_found = ErrorKind(MetadataNotFound, "function_not_found", "Function {:.100} does not exist.")


# Connectors (Contract platform 1.4)


class ConnectorTypeNotFound(NotFound, code="connector_type_not_found"):
    """The catalog of connector types does not contain this combination of dialect and interface."""

    def __init__(self, dialect: str, interface: str, known: Iterable[str]) -> None:
        """`known` lists the dialects of the catalog. The message includes them if `dialect` is not among them."""
        dialects = list(dict.fromkeys(known))
        shown = (dialect[:_MAX_SHOWN_CHARACTERS], interface[:_MAX_SHOWN_CHARACTERS])
        named = "Connector type {} with interface {} does not exist.".format(*shown)
        super().__init__(named if dialect in dialects else f"{named}{known_names(dialects, word='Known dialects')}")


class ConnectorRefused(InvalidRequest, code="validation_failed"):
    """A connector's settings are invalid. `errors` maps each setting to its messages."""

    def __init__(self, errors: Mapping[str, Sequence[str]], message: str = "The connector is not valid.") -> None:
        self.errors = {name: list(texts) for name, texts in errors.items()}
        super().__init__(message, extra_fields={"errors": self.errors})


class DriverNotInstalled(NotSupported, code="driver_not_installed"): ...


class EngineJwtRequired(PermissionDenied, code="engine_jwt_required"):
    """The engine requires the caller's external token, but the call was made with a token of this service.

    Contract platform 3.9.
    """


unknown_setting = ErrorKind(ConnectorRefused, "unknown_setting")
driver_not_allowed = ErrorKind(ConnectorRefused, "driver_not_allowed")
option_not_allowed = ErrorKind(ConnectorRefused, "option_not_allowed")
host_not_allowed = ErrorKind(ConnectorRefused, "host_not_allowed")
secret_required = ErrorKind(ConnectorRefused, "secret_required")
immutable_field = ErrorKind(ConnectorRefused, "immutable_field")
connector_in_use = ErrorKind(Conflict, "connector_in_use")
interface_not_supported = ErrorKind(NotSupported, "interface_not_supported")
connector_not_found = ErrorKind(NotFound, "connector_not_found", "Connector {!s:.100} does not exist.")


# The metadata search


class SourceNotConfigured(NotSupported):
    """The search source is not configured on this server. The search continues without it."""

    def __init__(self, message: str = "Not configured.") -> None:
        super().__init__(message)


class CatalogDenied(PermissionDenied, code="catalog_denied"): ...


class CatalogUnavailable(ServiceUnavailable, code="catalog_unavailable"): ...


class CatalogUnreachable(CatalogUnavailable):
    """The catalog does not respond. Its remaining sources are not searched, as each would also time out."""


catalog_not_configured = ErrorKind(NotSupported, "catalog_not_configured")
catalog_not_supported = ErrorKind(NotSupported, "catalog_not_supported")
