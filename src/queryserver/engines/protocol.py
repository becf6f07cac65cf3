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
from queryserver.formats.arrow import Column, ColumnType
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
        """Return VIEW or MANAGED, for engines that distinguish only tables from views."""
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
    """A table column. `type` is the engine's own type name, as shown by DESCRIBE."""

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
    """A table or view. `columns` is in table order and includes partition columns."""

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
        """Return the column with this name, or None if there is none.

        An exact match takes precedence over a case-insensitive match, which must be unique.
        """
        exact = [one for one in self.columns if one.name == name]
        folded = [one for one in self.columns if one.name.casefold() == name.casefold()]
        matches = exact or folded
        return matches[0] if len(matches) == 1 else None


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Column statistics already stored by the engine. If there are none, `message` explains why."""

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
    """An SQL function. In `signature`, line breaks separate the overloads."""

    name: str
    signature: str = ""
    return_type: str = ""
    is_builtin: str = ""
    """`BUILTIN`, the engine's own term, or empty."""
    is_persistent: str = ""
    """`true`, `false`, or empty if the engine does not report whether the function is persistent."""
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
    """Only one process at a time can open the data, so only that process may claim statements for this engine."""
    data_name: str = ""
    """If `one_process` is set, a name that all connectors to the same data share; empty if there is only one connector.
    """
    can_explain: bool = True
    explain_prefix: str = "EXPLAIN "
    explain_column: str | None = None
    """The result column that contains the plan text; None if the plan spans all columns."""
    explain_failure: re.Pattern[str] | None = None
    """Matches the start of a plan that is actually an error. The engine's message follows the match."""
    reports_progress: bool = False
    endpoints: tuple[tuple[str, int], ...] = ()
    """Hosts and ports, one of which a session connects to. Empty if there are none or only the driver knows them."""
    wants_credentials: bool = False
    """Callers log in to the data source with their own credentials, which they pass to create_session."""
    wants_external_token: bool = False
    """The engine accepts no login except the external token that authenticated the request."""
    acts_as_caller: bool = False
    """Sessions run under the caller's name but without the caller's credentials, so visible objects may differ by user.
    """
    parameters: ParameterSupport = NO_PARAMETERS
    """The kinds of bound parameters that statements may use."""
    reads_files: bool = False
    """Statements may reference files in the configured stores; sessions receive `SessionOptions.files`."""
    writes_files: bool = False
    """Statements may also write these files, unless the connector is read-only. Requires `reads_files`."""
    reads_results: bool = False
    """Statements may read stored results as tables; sessions receive `SessionOptions.results`."""
    enforces_read_only: bool = False
    """The engine itself refuses changes by a statement whose context is `read_only`."""
    estimates_bytes: bool = False
    """Sessions are `engines.estimates.EstimatingSession`s that estimate `CostEstimate.scanned_bytes`."""
    estimates_cost: bool = False
    """Sessions are `engines.estimates.EstimatingSession`s that estimate `CostEstimate.cost`."""

    @property
    def differs_by_user(self) -> bool:
        """Whether the data source may show different objects and rows to different callers."""
        return self.wants_credentials or self.wants_external_token or self.acts_as_caller


@dataclass(frozen=True, slots=True)
class Credentials:
    """The data source login that the caller passed to create_session. Never logged."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options with which a session, catalog or loader is opened."""

    database: str | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    credentials: Credentials | None = None
    results: StatementResults | None = field(default=None, repr=False)
    """The stored results that statements can read as tables; None unless the engine has `reads_results`."""
    external_token: str | None = field(default=None, repr=False)
    """The caller's own token, for engines that accept a token instead of a login (Contract platform 3.9)."""
    token_expires_at: int | None = None
    """Unix time in seconds after which the session accepts no further statements."""
    files: StatementFiles | None = field(default=None, repr=False, compare=False)
    """The files that statements may reference; None unless the engine has `reads_files`."""


@dataclass(frozen=True, slots=True)
class StatementContext:
    """For whom, and how, an engine runs one statement. Engines show what they can of it in their own views."""

    user: str = ""
    """The caller's user name."""
    operation_id: str = ""
    """The id of the operation that clients use."""
    connector: str = ""
    """The connector's key."""
    traceparent: str = ""
    """The trace of the call in W3C form; empty if the caller sent none."""
    read_only: bool = False
    """Whether the engine must refuse changes by this statement, by its own means if it `enforces_read_only`."""
    max_scanned_bytes: int | None = None
    """The most bytes that the statement may read, for engines that can end it above this limit; None for no limit."""


NO_CONTEXT = StatementContext()
"""The context of this service's own statements."""


@dataclass(frozen=True, slots=True)
class OperationHandle:
    """Identifies a statement on its engine. `token` is an opaque string that a resumable engine uses to re-attach."""

    token: str


class OperationState(StrEnum):
    """The state of a statement on its engine."""

    PENDING = "pending"
    """Waiting in the engine's own queue."""
    RUNNING = "running"
    FINISHED = "finished"
    """Completed, or still producing rows; `batches` can already read rows."""
    CANCELED = "canceled"
    FAILED = "failed"

    is_terminal: bool
    """Whether the state is final."""

    def __init__(self, value: str) -> None:
        self.is_terminal = value in {"finished", "canceled", "failed"}


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """A statement's status.

    `progress` is 0 to 100, or None if unknown. `error` is set if and only if the state is FAILED. `modified_rows` is
    None until known. If there is a result set, the count is final only once `batches` is exhausted.
    """

    state: OperationState
    has_result_set: bool = False
    progress: int | None = None
    modified_rows: int | None = None
    error: EngineError | None = None
    scanned_bytes: int | None = None
    """The bytes that the statement has read so far, as the engine reports them; None if it does not."""


class EngineSession(Protocol):
    """One engine session or connection, whose `SET` and `USE` state persists between statements.

    Runs one statement at a time. Only one task uses the session, except that `poll`, `logs` and `cancel` may be called
    while another task waits in `poll` or reads `batches`.
    """

    async def submit(self, statement: str | BoundStatement, context: StatementContext = NO_CONTEXT) -> OperationHandle:
        """Start a statement and return without waiting for it to complete.

        A `BoundStatement` carries parameters, of the kinds that `capabilities.parameters` permits. If the context is
        `read_only`, an engine that `enforces_read_only` refuses changes, whatever earlier statements have set. Raises
        StatementRejected if the engine refuses the statement, EngineUnavailable if the statement was never sent, and
        OutcomeUnknown if it may have been sent. A failure that the engine reports as a missing privilege is raised as
        StatementDenied.
        """
        ...

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        """Wait up to `wait_s` for a terminal status and return the current status.

        Engine failures are reported in the status, not raised. A `ResumableSession` returns early when its resume token
        has changed.
        """
        ...

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        """Return the result columns in order. Must be called only after FINISHED with a result set."""
        ...

    def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        """Read the rows in order, once. Batches are limited in size and have one field per result column, in order.

        Raises StatementRejected if the engine fails while producing rows, and OutcomeUnknown if the connection is lost.
        """
        ...

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        """Return the engine's log lines from index `start` on; empty if the engine has no logs."""
        ...

    async def cancel(self, handle: OperationHandle) -> None:
        """Cancel the statement on the engine and return once the request is sent. Idempotent, limited in time."""
        ...

    async def close(self, handle: OperationHandle) -> None:
        """Free the statement's resources on the engine. Idempotent, limited in time, never raises EngineError."""
        ...

    async def is_alive(self) -> bool:
        """Return whether the session can accept another statement. Implementations need not contact the engine."""
        ...


class Engine(Protocol):
    """A connector's running engine. Owns the connection pool and is shared by all tasks."""

    dialect: str
    """The SQL dialect in which statements are written."""
    capabilities: EngineCapabilities

    def session(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[EngineSession]:
        """Open a session for `user`. Leaving the context cancels the session's work on the engine.

        Raises EngineUnavailable, CredentialsRequired, and StatementRejected (unknown database or refused setting).
        """
        ...

    async def ping(self) -> None:
        """Check that the engine accepts statements. Raises EngineUnavailable or CredentialsRequired if it does not."""
        ...

    async def close(self) -> None:
        """Close the connection pool. Idempotent."""
        ...


@runtime_checkable
class ResumableEngine(Protocol):
    """An engine whose statements keep running after their client disconnects. Its sessions are ResumableSessions."""

    def reattach(
        self, user: User, options: SessionOptions, token: str, *, rows_read: int
    ) -> AbstractAsyncContextManager[tuple[EngineSession, OperationHandle]]:
        """Attach to a statement that another process started. `batches` skips the first `rows_read` rows.

        `token` is the last `resume_token`, or else the handle's token. Leaving the context ends the statement and its
        session on the engine, unless `detach` was called. Raises EngineUnavailable. Raises OutcomeUnknown, with a
        message that begins with `Results have expired`, if the engine no longer knows the statement or cannot resume at
        that row.
        """
        ...


@runtime_checkable
class ResumableSession(Protocol):
    """A session whose statement can be continued by another process."""

    def resume_token(self, handle: OperationHandle) -> str:
        """Return the token with which another process can resume the statement.

        The other process continues after the latest status from `poll` and the latest rows from `batches`.

        Each `poll` or `batches` step may change the token. The previous token stays valid until the next step, so a
        caller that stores rows and token together before it continues neither loses rows nor reads them twice.
        """
        ...

    def detach(self) -> None:
        """Let the statement keep running on the engine after the session's context is left."""
        ...


@runtime_checkable
class LiteralSession(Protocol):
    """A ResumableSession that inlines parameters into the statement as literals, which the engine may log."""

    def written(self, statement: BoundStatement) -> str:
        """Return the SQL text that was sent to the engine by the process that started `statement`."""
        ...


@runtime_checkable
class RowsSession(Protocol):
    """An EngineSession that may run a `BoundStatement` once per parameter row in a single `submit` call.

    On an engine with transactions, all executions run in one transaction: the open transaction if there is one, or else
    a new one. `modified_rows` is the total over all executions. `BoundStatement.row` is the number of the failed row.
    """

    @property
    def takes_rows(self) -> bool: ...


class Catalog(Protocol):
    """The metadata visible to one user. Used by one task, one call at a time. No method reads table data.

    An exact match of a name takes precedence over a match after folding, as the engine folds unquoted names. Generated
    SQL always quotes or binds names. `database=""` is the session's default database, except on an engine that has a
    schema with an empty name. Canceling the waiting task also cancels the query on the engine.

    All methods raise EngineUnavailable, CredentialsRequired, EngineForbidden (the user lacks the privilege),
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
        """Return the stored statistics for a column of `table`. Does not compute new statistics."""
        ...

    async def functions(self, database: str | None) -> Sequence[FunctionDescription]:
        """List the functions defined in `database`; for None, the built-in functions and those visible by default.

        Each name occurs once. Raises database_not_found.
        """
        ...

    async def function(self, database: str | None, name: str) -> FunctionDescription | None:
        """Return the function with this name, or None if it does not exist."""
        ...

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        """Return the query for a sample of at most `SAMPLE_ROWS` rows (Contract editor 10.3).

        If `column` is None, the query selects rows, newest partitions first for partitioned tables in the Hive family.
        Otherwise, it selects values of the column, or of the path `nested` inside it: the sorted distinct values (NULL
        last), the maximum, or the minimum, depending on `kind`. Raises NotSupported for a nested path that the engine
        cannot read.
        """
        ...

    def analyze_statement(self, table: TableDescription, column: str | None) -> str:
        """Return the statement that makes the engine compute statistics (table in Contract editor 10.5).

        Raises NotSupported if the engine has no such statement.
        """
        ...


@runtime_checkable
class CatalogEngine(Protocol):
    """An engine that provides metadata."""

    lists_functions: bool
    """Whether the engine's catalog can list functions (Contract editor 10.2)."""

    def catalog(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[Catalog]:
        """Open a catalog that reads metadata as `user`. Raises EngineUnavailable, CredentialsRequired."""
        ...


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name, not quoted. `database=None` means the session's current database."""

    database: str | None
    name: str


@dataclass(frozen=True, slots=True)
class LoadColumn:
    """A column to create. `declared` is its SQL type in the engine's dialect, including precision and scale."""

    name: str
    type: ColumnType
    declared: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class TableLoad:
    """A table to create, or an existing table to append rows to if `append` is set.

    If `replace` is set, the new table replaces an existing plain table. `staging` is a table in the same database that
    only this load uses. It holds the rows until they are published.
    """

    target: TableName
    staging: TableName
    columns: tuple[LoadColumn, ...]
    append: bool = False
    replace: bool = False
    context: StatementContext = NO_CONTEXT
    """The operation that loads the table, for engines that show it in their own views."""


class LoadLedger(Protocol):
    """Records the tables that must be dropped if the server dies. The effect of a call is durable once it returns."""

    async def add(self, table: TableName) -> None:
        """Record a table that must be dropped.

        A staging table is recorded before its creation. A table that is created under the target's name is recorded
        only after its creation, so that another client's table of that name is never dropped. A table that disappears
        when its transaction rolls back is not recorded.
        """
        ...

    async def remove(self, table: TableName) -> None:
        """Remove a table from the ledger because it was dropped or has become the finished table."""
        ...


class TableLoader(Protocol):
    """Creates and fills tables in one engine session. One call at a time."""

    async def exists(self, table: TableName) -> bool:
        """Return whether a table or view with this name exists. Raises EngineError."""
        ...

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        """Create the table with all rows, or append all rows, and return the number of rows.

        Values are bound or escaped. The batches are read as fast as the engine accepts the rows. The load fails if the
        engine refuses it, the batches raise, or the caller is canceled. Cancellation also cancels the work on the
        engine. After any failure, the staging table is dropped or in the ledger, no new table exists, and an existing
        table is unchanged, even if it was to be replaced. Raises EngineError and any error from the batches. If another
        client has created the table in the meantime, the error is StatementRejected.
        """
        ...

    async def drop(self, table: TableName) -> None:
        """Drop a table listed in the ledger, if it exists. Raises EngineError."""
        ...


@runtime_checkable
class LoadingEngine(Protocol):
    """An engine that can create and fill tables with imported rows."""

    def loader(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[TableLoader]:
        """Open a loader for one import, with the same errors as `Engine.session`.

        Leaving the context cancels the loader's work on the engine.
        """
        ...
