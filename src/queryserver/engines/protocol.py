"""The Protocols of an SQL engine (sessions, catalog, loader) and the values they exchange."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import pyarrow as pa

from queryserver.engines.external_data import StatementFiles, StatementResults
from queryserver.errors.statements import EngineError
from queryserver.formats.columns import Column, ColumnType
from queryserver.identity.model import User
from queryserver.sql.markers import BoundStatement
from queryserver.sql.parameters import NO_PARAMETERS, ParameterSupport


class TableKind(StrEnum):
    """Values of `details.properties.table_type` in the description of a table."""

    MANAGED = "MANAGED_TABLE"
    EXTERNAL = "EXTERNAL_TABLE"
    VIEW = "VIRTUAL_VIEW"
    MATERIALIZED_VIEW = "MATERIALIZED_VIEW"

    @classmethod
    def of(cls, *, is_view: bool) -> "TableKind":
        """Return the kind for an engine that only distinguishes tables from views."""
        return cls.VIEW if is_view else cls.MANAGED

    @property
    def is_view(self) -> bool:
        """Whether this is a view, plain or materialized, whose rows cannot be updated."""
        return self in {TableKind.VIEW, TableKind.MATERIALIZED_VIEW}


@dataclass(frozen=True, slots=True)
class DatabaseDescription:
    """A database, or a schema on engines where `<DB>` means a schema (Contract editor 10)."""

    name: str
    comment: str = ""
    location: str = ""
    """Storage URL, such as `hdfs://nn/warehouse/shop.db`."""
    owner_name: str = ""
    owner_type: str = ""
    parameters: str = ""


@dataclass(frozen=True, slots=True)
class TableSummary:
    name: str
    kind: TableKind = TableKind.MANAGED
    comment: str = ""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A table column. `type` is the engine's own type name, as shown by its DESCRIBE."""

    name: str
    type: str
    comment: str = ""
    nullable: bool | None = None
    default: str | None = None
    autoincrement: bool | None = None
    primary_key: bool | None = None
    partition_key: bool = False


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key column. `to` names the referenced column as `database.table.column`."""

    name: str
    to: str


@dataclass(frozen=True, slots=True)
class TableProperty:
    name: str
    value: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table or view. Columns are in table order and include partition columns."""

    database: str
    name: str
    columns: tuple[TableColumn, ...]
    kind: TableKind = TableKind.MANAGED
    comment: str = ""
    support_updates: bool | None = None
    """Whether rows can be updated or deleted."""
    location: str = ""
    owner: str = ""
    create_time: str = ""
    """Creation time in UTC, such as `2025-01-31T10:20:30Z`."""
    format: str = ""
    """Storage format: `parquet`, `orc`, `text`, `kudu` or `iceberg`."""
    foreign_keys: tuple[ForeignKey, ...] = ()
    properties: tuple[TableProperty, ...] = ()
    statistics: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Only statistics that the engine has already stored: `numRows`, `totalSize`, `numFiles`, `rawDataSize`."""

    def column(self, name: str) -> TableColumn | None:
        """Return the column with exactly this name, or else the only case-insensitive match."""
        exact = [one for one in self.columns if one.name == name]
        folded = [one for one in self.columns if one.name.casefold() == name.casefold()]
        matches = exact or folded
        return matches[0] if len(matches) == 1 else None


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Column statistics that the engine has already stored. `message` explains why there are none."""

    min: str | None = None
    max: str | None = None
    num_nulls: int | None = None
    distinct_count: int | None = None
    avg_col_len: float | None = None
    max_col_len: int | None = None
    num_trues: int | None = None
    num_falses: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class FunctionDescription:
    """An SQL function. Line breaks separate overloads in `signature`."""

    name: str
    signature: str = ""
    return_type: str = ""
    is_builtin: str = ""
    """`BUILTIN`, the engine's own term, or empty."""
    is_persistent: str = ""
    """Whether the function is persistent: `true`, `false`, or empty if unknown."""
    description: str = ""


class SampleKind(StrEnum):
    """Values of `operation` in a sample request, except for the connection test (Contract editor 10.3)."""

    DEFAULT = "default"
    DISTINCT = "distinct"
    MAX = "max"
    MIN = "min"


SAMPLE_ROWS = 100
"""Maximum number of rows in a sample."""


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """Facts about an engine. Services test these facts instead of comparing dialect names."""

    one_process: bool = False
    """Only one process at a time can open the data, and only that process may claim statements."""
    data_name: str = ""
    """With `one_process`: a name shared by all connectors to the same data; empty if no other connector uses it."""
    can_explain: bool = True
    explain_prefix: str = "EXPLAIN "
    explain_column: str | None = None
    """The result column that contains the plan's text; None if the plan consists of all columns."""
    explain_failure: re.Pattern[str] | None = None
    """Matches the start of a plan that is really an error; the engine's message follows the match."""
    reports_progress: bool = False
    endpoints: tuple[tuple[str, int], ...] = ()
    """Hosts and ports; a session connects to one of them. Empty if there are none or only the driver knows them."""
    wants_credentials: bool = False
    """Callers log in to the data source with their own credentials, which they pass to create_session."""
    wants_external_token: bool = False
    """The only login the engine accepts is the external token that authenticated the request."""
    acts_as_caller: bool = False
    """Sessions run under the caller's name without the caller's credentials, so users may see different objects."""
    parameters: ParameterSupport = NO_PARAMETERS
    """The bound parameters that statements may have."""
    reads_files: bool = False
    """Statements may name files of the configured stores; sessions receive `SessionOptions.files`."""
    writes_files: bool = False
    """With `reads_files`: statements may also write such files, unless the connector is read-only."""
    reads_results: bool = False
    """Statements may read stored results as tables; sessions receive `SessionOptions.results`."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The data source login that the caller passed to create_session. Never logged."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    database: str | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    credentials: Credentials | None = None
    results: StatementResults | None = field(default=None, repr=False)
    """The stored results that statements can read as tables; None without `reads_results`."""
    external_token: str | None = field(default=None, repr=False)
    """The caller's own token, for engines that accept it instead of a login (Contract platform 3.9)."""
    token_expires_at: int | None = None
    """Time in seconds since 1970 after which the session accepts no further statements."""
    files: StatementFiles | None = field(default=None, repr=False, compare=False)
    """The files that statements may name; None without `reads_files`."""


@dataclass(frozen=True, slots=True)
class OperationHandle:
    """Identifies a statement at its engine. `token` is opaque text with which a resumable engine can re-attach."""

    token: str


class OperationState(StrEnum):
    """The state of a statement at its engine."""

    PENDING = "pending"
    """Waiting in the engine's own queue."""
    RUNNING = "running"
    FINISHED = "finished"
    """Completed, or still producing rows that can already be read with `batches`."""
    CANCELED = "canceled"
    FAILED = "failed"

    is_terminal: bool
    """Whether the state is final."""

    def __init__(self, value: str) -> None:
        self.is_terminal = value in {"finished", "canceled", "failed"}


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """A statement's status. `progress` is 0..100 or None if unknown; `error` is set if and only if the state is FAILED.

    `modified_rows` is None until known. With a result set, it is final once `batches` is exhausted.
    """

    state: OperationState
    has_result_set: bool = False
    progress: int | None = None
    modified_rows: int | None = None
    error: EngineError | None = None


class EngineSession(Protocol):
    """One engine session or connection, which keeps the state set by `SET` and `USE`.

    Runs one statement at a time. Used by one task, except that `poll`, `logs` and `cancel` may be called while another
    task waits in `poll` or reads `batches`.
    """

    async def submit(self, statement: str | BoundStatement) -> OperationHandle:
        """Start a statement and return before it completes.

        A `BoundStatement` has parameters that `capabilities.parameters` permits. Raises StatementRejected if the engine
        refused the text, EngineUnavailable if the statement was never sent, and OutcomeUnknown. Any failure caused by a
        missing right, if the engine names it, is a StatementDenied.
        """
        ...

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        """Wait up to `wait_s` for a terminal status and return the current one. Failures at the engine are not raised.

        A `ResumableSession` returns early when its resume token has changed.
        """
        ...

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        """Return the result columns in order. Call this only after FINISHED with a result set."""
        ...

    def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        """Read the rows, forward only and once. Each batch has a limited size and one field per column, in order.

        Raises StatementRejected if the engine fails while producing rows, OutcomeUnknown if the connection is lost.
        """
        ...

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        """Return the engine's log lines from index `start` onwards; empty for an engine without logs."""
        ...

    async def cancel(self, handle: OperationHandle) -> None:
        """Stop the statement at the engine. Returns once the request is sent. Idempotent, limited in time."""
        ...

    async def close(self, handle: OperationHandle) -> None:
        """Free the statement's resources at the engine. Idempotent, limited in time, never raises EngineError."""
        ...

    async def is_alive(self) -> bool:
        """Whether the session can accept another statement. Implementations need not contact the engine."""
        ...


class Engine(Protocol):
    """A connector's running engine. It owns its connection pool, and tasks share it."""

    dialect: str
    """The SQL dialect of the engine's statements."""
    capabilities: EngineCapabilities

    def session(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[EngineSession]:
        """Open a session for `user`. Leaving the context stops the session's work at the engine.

        Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database, refused setting).
        """
        ...

    async def ping(self) -> None:
        """Check that statements can be sent. Raises EngineUnavailable or CredentialsRequired otherwise."""
        ...

    async def close(self) -> None:
        """Close the connection pool. Idempotent."""
        ...


@runtime_checkable
class ResumableEngine(Protocol):
    """An engine whose statements keep running without their client. Its sessions are ResumableSessions."""

    def reattach(
        self, user: User, options: SessionOptions, token: str, *, rows_read: int
    ) -> AbstractAsyncContextManager[tuple[EngineSession, OperationHandle]]:
        """Attach to a statement that another process started. `batches` skips its first `rows_read` rows.

        `token` is the last `resume_token` or the handle's token. Leaving the context ends the statement and its session
        at the engine, unless `detach` was called. Raises EngineUnavailable, and OutcomeUnknown (whose message begins
        with `Results have expired`) if the engine no longer knows the statement or cannot resume at that row.
        """
        ...


@runtime_checkable
class ResumableSession(Protocol):
    """A session whose statement another process can continue."""

    def resume_token(self, handle: OperationHandle) -> str:
        """Return the token for resuming after the last results of `poll` and `batches`.

        Either call may change the token. The previous token stays valid until the next call, so a caller that stores
        rows and token together before it continues neither loses rows nor reads them twice.
        """
        ...

    def detach(self) -> None:
        """Leave the statement running at the engine when the session's context is left."""
        ...


@runtime_checkable
class LiteralSession(Protocol):
    """A ResumableSession that writes parameters into the statement as literals, which the engine may log."""

    def written(self, statement: BoundStatement) -> str:
        """Return the text that the engine received from the process that started `statement`."""
        ...


@runtime_checkable
class RowsSession(Protocol):
    """An EngineSession that may run a `BoundStatement` once per parameter row in a single `submit` call.

    On an engine with transactions, all executions share one transaction or join the open transaction. `modified_rows`
    is their sum. `BoundStatement.row` is the number of the failed row.
    """

    @property
    def takes_rows(self) -> bool: ...


class Catalog(Protocol):
    """The metadata visible to one user. Used by one task, one call at a time. No method reads table data.

    Names are matched exactly first, then folded as the engine folds unquoted names. They are always quoted or bound in
    SQL. `database=""` is the session's default database, except on an engine that has a
    schema with an empty name. Cancelling the waiting task also stops the engine's work.

    All methods raise EngineUnavailable, CredentialsRequired, EngineForbidden (the user lacks the right),
    EngineTimeout, and StatementRejected for any other refusal by the engine.
    """

    async def databases(self) -> Sequence[str]:
        """Return the names of all databases that the user may see, in any order."""
        ...

    async def database(self, database: str) -> DatabaseDescription:
        """Describe a database. Raises database_not_found."""
        ...

    async def tables(self, database: str) -> Sequence[TableSummary]:
        """List tables and views, in any order, in a constant number of round trips. Raises database_not_found."""
        ...

    async def table(self, database: str, table: str) -> TableDescription:
        """Describe a table. Raises database_not_found, TableNotFound."""
        ...

    async def column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:
        """Return the statistics that the engine has already stored for a column of `table`. Computes nothing."""
        ...

    async def functions(self, database: str | None) -> Sequence[FunctionDescription]:
        """List the functions defined in `database`, or with None the built-in functions and those visible by default.

        Each name occurs once. Raises database_not_found.
        """
        ...

    async def function(self, database: str | None, name: str) -> FunctionDescription | None:
        """Return the function with this name, or None if there is none."""
        ...

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        """Return the query for a sample of at most `SAMPLE_ROWS` rows (Contract editor 10.3).

        Without `column` the query selects rows, newest partitions first for partitioned tables in the Hive family. With
        `column`, or the path `nested` inside it, it selects sorted distinct values with NULL last, the maximum or the
        minimum. Raises NotSupported for a nested path that the engine cannot read.
        """
        ...

    def analyze_statement(self, table: TableDescription, column: str | None) -> str:
        """Return the statement that makes the engine compute statistics (table in Contract editor 10.5).

        Raises NotSupported.
        """
        ...


@runtime_checkable
class CatalogEngine(Protocol):
    lists_functions: bool
    """Whether the engine's catalog can list functions (Contract editor 10.2)."""

    def catalog(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[Catalog]:
        """Open a catalog that reads metadata as `user`. Raises EngineUnavailable, CredentialsRequired."""
        ...


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's unquoted name. `database=None` means the session's current database."""

    database: str | None
    name: str


@dataclass(frozen=True, slots=True)
class LoadColumn:
    """A column of a table to create. `declared` is its SQL type in the engine's dialect, with precision and scale."""

    name: str
    type: ColumnType
    declared: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class TableLoad:
    """A table to create or, with `append`, to add rows to.

    With `replace` the new table replaces an existing plain table. `staging` names a table in the same database that
    only this load uses, for rows that are not visible yet.
    """

    target: TableName
    staging: TableName
    columns: tuple[LoadColumn, ...]
    append: bool = False
    replace: bool = False


class LoadLedger(Protocol):
    """Records the tables to drop if the server dies. Each call is durable when it returns."""

    async def add(self, table: TableName) -> None:
        """Record a table that must be dropped.

        A staging table is recorded before its creation. A table with the target's name is recorded after its creation,
        so that another client's table of that name is never dropped. A table that vanishes with its transaction is not
        recorded.
        """
        ...

    async def remove(self, table: TableName) -> None:
        """Remove a table from the ledger because it was dropped or has become the finished table."""
        ...


class TableLoader(Protocol):
    """Creates and fills tables in one engine session. One call at a time."""

    async def exists(self, table: TableName) -> bool:
        """Whether a table or view with that name exists. Raises EngineError."""
        ...

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        """Create the table with all rows, or append all rows, and return their number. Values are bound or escaped.

        Reads the batches as fast as the engine accepts them. A failure is a refusal, an exception from the batches, or
        a cancellation, which also stops the engine's work. After any failure the staging table is dropped or in the
        ledger, no new table exists, and an existing table is unchanged, even if it was to be replaced. Raises
        EngineError (StatementRejected also if another client has since created the table) and any error from the
        batches.
        """
        ...

    async def drop(self, table: TableName) -> None:
        """Drop a table listed in the ledger, if it exists. Raises EngineError."""
        ...


@runtime_checkable
class LoadingEngine(Protocol):
    def loader(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[TableLoader]:
        """Open a loader for one import, like `Engine.session`. Leaving the context stops its work at the engine."""
        ...
