"""Failures of statements, sessions, data sources and their objects, connectors and the metadata search.

The HTTP status of each is that of its base class in `api/errors.py`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Self, TypeAlias

from queryserver.errors.base import (
    Conflict,
    ErrorKind,
    FixedError,
    InvalidRequest,
    NotFound,
    NotSupported,
    PayloadTooLarge,
    PermissionDenied,
    QueryServerError,
    ServiceUnavailable,
    configured,
)


class Unit(Enum):
    """Of the columns of an engine. SCREEN: of a terminal, wide characters count two, control characters none."""

    CHARACTER = auto()
    UTF16 = auto()
    SCREEN = auto()


@dataclass(frozen=True, slots=True)
class Character:
    """The number of a character, from 0."""

    offset: int


@dataclass(frozen=True, slots=True)
class Octet:
    """The number of a byte of the UTF-8 text, from 0."""

    offset: int


@dataclass(frozen=True, slots=True)
class LineColumn:
    """A line from 1, ended by a line feed, and a column from 1, as far as it is known."""

    line: int
    column: int | None = None
    unit: Unit = Unit.CHARACTER


@dataclass(frozen=True, slots=True)
class ErrorExcerpt:
    """A line from 1, the shown part of it, with `...` for cut text, and a mark below it, from 0."""

    line: int
    shown: str
    mark: int
    unit: Unit = Unit.CHARACTER


@dataclass(frozen=True, slots=True)
class Rest:
    """The text from the error on, which may be cut, and a line from 1."""

    line: int
    text: str


ErrorPlace: TypeAlias = Character | Octet | LineColumn | ErrorExcerpt | Rest

_SQLSTATE = re.compile(r"[0-9A-Z]{5}")
_SHOWN = 100  # characters of a name that a client gave


# Outcomes of statements


class EngineError(QueryServerError, code="engine_error"):
    """The outcome of a statement, as the engine reports it: a recorded statement gets state `failed`."""

    place: ErrorPlace | None = None
    """In the statement that the engine got, if known."""
    sqlstate: str | None = None
    """That of the engine; where an engine has none, that of the kind of its error (ISO 9075-2, 24.1), if known."""

    def at(self, place: ErrorPlace | None) -> Self:
        self.place = place
        return self

    def classed(self, sqlstate: object) -> Self:
        """With that SQLSTATE; anything else than five capitals and digits is none."""
        self.sqlstate = sqlstate if isinstance(sqlstate, str) and _SQLSTATE.fullmatch(sqlstate) else None
        return self


class StatementRejected(EngineError):
    """The engine refused or failed the statement; `message` is its own text, first line first, without traces."""


class StatementDenied(StatementRejected):
    """The engine refused the statement because its user lacks a right; as an outcome, like any other rejection."""


class EngineForbidden(EngineError, code="engine_forbidden"): ...


class EngineUnavailable(EngineError, code="engine_unavailable"):
    """No connection to the engine could be made; the statement was not started."""


class EngineTimeout(EngineError, code="engine_timeout"):
    """The engine did not answer in time, or its own time limit ended the statement."""


class SessionLost(EngineError, code="session_lost"):
    """The engine session is gone and the statement was not started."""


class OutcomeUnknown(EngineError, code="outcome_unknown"):
    """After sending, the connection was lost: the statement may or may not have taken effect."""


class CredentialsRequired(EngineError, code="credentials_required"): ...


class ResultRefused(EngineError, code="result_not_available"):
    """A statement names a stored result that its user cannot read: there is none, not yet, or not any more."""


class RowTooLarge(EngineError, code="row_too_large"):
    """The values of one row of the result are together above its limit; the statement ends with it."""

    def __init__(self, *, limit_bytes: int, row: int | None = None) -> None:
        """`row` counts from 0; None: not yet known."""
        which = f"Row {row}" if row is not None else "A row"
        super().__init__(f"{which} is larger than the limit of {limit_bytes} bytes for one row.")


rejected_by_rule = ErrorKind(EngineError, "rejected")
# As the outcome of a statement; of a call they are other classes.
result_not_found = ErrorKind(ResultRefused, "operation_not_found")
result_denied = ErrorKind(ResultRefused, "permission_denied")
result_expired = ErrorKind(ResultRefused, "result_expired")
disk_below_floor = ErrorKind(EngineError, "insufficient_storage")
# Of an engine that has a process of its own: its limit of memory, with or without its end, and any other end.
engine_memory_exceeded = FixedError(
    EngineError,
    "engine_memory_exceeded",
    "The statement needs more memory than the process of the database may have: work on less data at a time. What was"
    " committed is kept.",
)
engine_process_lost = FixedError(
    EngineError,
    "engine_process_lost",
    "The process of the database has ended while the statement ran. What was committed is kept; the next statement"
    " starts a new process.",
)
result_store_failed = ErrorKind(EngineError, "result_store_failed")
_cell_too_large = ErrorKind(EngineError, "cell_too_large")


def cell_too_large(*, limit_bytes: int, row: int | None = None, column: str | None = None) -> EngineError:
    """One value of the result is above `editor.cell_max_bytes`; `row` counts from 0, `column` is a name, if known."""
    place = f" in row {row}" if row is not None else ""
    place += f" of column {column}" if column is not None else ""
    return _cell_too_large(f"A value{place} is larger than the limit of {limit_bytes} bytes for one cell.")


class PageRowTooLarge(PayloadTooLarge, code="row_too_large"):
    """The first row of a page is alone above the limit of a page; downloads have it."""

    def __init__(self, *, row: int | None, limit_bytes: int) -> None:
        """`row` counts from 0; None: rows of a sample, which has no pages."""
        if row is None:
            super().__init__(f"A row is larger than the limit of {limit_bytes} bytes for one page.")
            return
        super().__init__(
            f"Row {row} is larger than the limit of {limit_bytes} bytes for one page. A download of the result has it;"
            f" start_row={row + 1} gives the rows after it.",
            details={"row": row, "limit_bytes": limit_bytes, "next_start_row": row + 1},
        )


class DownloadRefused(Conflict, code="not_finished"):
    """A statement without a finished result cannot be downloaded; `outcome_code` says why (Contract editor 8.2)."""

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
        super().__init__("The script has no further statement.")


previous_not_finished = ErrorKind(Conflict, "previous_not_finished")
idempotency_conflict = FixedError(
    Conflict, "idempotency_conflict", "This idempotency key was used for another request."
)
# Only the beginning of the long text is still stored.
statement_text_expired = FixedError(
    Conflict,
    "statement_text_expired",
    "The text of this script is not stored any more: long texts are kept for"
    " `editor.statement_text_retention_h` hours after their end. Send the script again.",
)
session_not_found = FixedError(NotFound, "session_not_found", "Session {} does not exist.")


# Data sources and their objects


class UnknownDialect(NotFound, code="dialect_not_found"):
    def __init__(self, name: str, usable: Sequence[str]) -> None:
        """`usable`: names that the caller may use instead."""
        super().__init__(f"The connector {name[:_SHOWN]} is not configured.{configured(usable)}")


class MetadataNotFound(NotFound):
    """A metadata object is unknown at the data source: `status` 1 (Contract editor 1.4)."""


class TableNotFound(MetadataNotFound, code="table_not_found"):
    def __init__(self, database: str, table: str) -> None:
        super().__init__(f"Table {database[:_SHOWN]}.{table[:_SHOWN]} does not exist.")


# Of a database, or schema where that is the unit; of table and column; of a path; of a function.
database_not_found = FixedError(MetadataNotFound, "database_not_found", "Database {:.100} does not exist.")
column_not_found = FixedError(MetadataNotFound, "column_not_found", "Column {:.100}.{:.100} does not exist.")
nested_path_not_found = FixedError(MetadataNotFound, "nested_path_not_found", "Invalid nested type path: {:.100}")
function_not_found = FixedError(MetadataNotFound, "function_not_found", "Function {:.100} does not exist.")


# Connectors (Contract platform 1.4)


class ConnectorTypeNotFound(NotFound, code="connector_type_not_found"):
    """The catalogue has no such pair of dialect and interface."""

    def __init__(self, dialect: str, interface: str, known: Iterable[str]) -> None:
        """`known`: dialects of the catalogue, named in the message when this one is not among them."""
        dialects = list(dict.fromkeys(known))
        named = f"There is no connector type {dialect[:_SHOWN]} with interface {interface[:_SHOWN]}."
        super().__init__(named if dialect in dialects else f"{named}{configured(dialects, word='Known dialects')}")


class ConnectorRefused(InvalidRequest, code="validation_failed"):
    """Settings of a connector are not valid; `errors` has the texts by setting."""

    def __init__(self, errors: Mapping[str, Sequence[str]], message: str = "The connector is not valid.") -> None:
        self.errors = {name: list(texts) for name, texts in errors.items()}
        super().__init__(message, beside={"errors": self.errors})


class DriverNotInstalled(NotSupported, code="driver_not_installed"): ...


class EngineJwtRequired(PermissionDenied, code="engine_jwt_required"):
    """The engine takes the caller's external token, and the call came with an own one (Contract platform 3.9)."""


unknown_setting = ErrorKind(ConnectorRefused, "unknown_setting")
driver_not_allowed = ErrorKind(ConnectorRefused, "driver_not_allowed")
option_not_allowed = ErrorKind(ConnectorRefused, "option_not_allowed")
host_not_allowed = ErrorKind(ConnectorRefused, "host_not_allowed")
secret_required = ErrorKind(ConnectorRefused, "secret_required")
immutable_field = ErrorKind(ConnectorRefused, "immutable_field")
connector_in_use = ErrorKind(Conflict, "connector_in_use")
interface_not_supported = ErrorKind(NotSupported, "interface_not_supported")
connector_not_found = FixedError(NotFound, "connector_not_found", "Connector {!s:.100} does not exist.")


# The metadata search


class SourceNotConfigured(NotSupported):
    """A source of the search that this server does not have; a search goes on without it."""

    def __init__(self, message: str = "Not configured.") -> None:
        super().__init__(message)


class CatalogDenied(PermissionDenied, code="catalog_denied"): ...


class CatalogUnavailable(ServiceUnavailable, code="catalog_unavailable"): ...


class CatalogOutOfReach(CatalogUnavailable):
    """The catalogue does not answer: a search of another of its sources would take as long again."""


catalog_not_configured = ErrorKind(NotSupported, "catalog_not_configured")
catalog_not_supported = ErrorKind(NotSupported, "catalog_not_supported")
