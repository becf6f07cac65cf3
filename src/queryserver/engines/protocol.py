"""The Protocols of an SQL engine (sessions, catalog, loader) and the values they exchange."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import pyarrow as pa

from queryserver.engines.reach import StatementFiles, StatementResults
from queryserver.errors.statements import EngineError
from queryserver.formats.columns import Column, ColumnType
from queryserver.identity.model import User
from queryserver.sql.markers import BoundStatement
from queryserver.sql.parameters import NO_PARAMETERS, ParameterSupport


class TableKind(StrEnum):
    """`details.properties.table_type` of describe."""

    MANAGED = "MANAGED_TABLE"
    EXTERNAL = "EXTERNAL_TABLE"
    VIEW = "VIRTUAL_VIEW"
    MATERIALIZED_VIEW = "MATERIALIZED_VIEW"

    @classmethod
    def of(cls, *, is_view: bool) -> "TableKind":
        """The kind for an engine that only distinguishes tables from views."""
        return cls.VIEW if is_view else cls.MANAGED

    @property
    def is_view(self) -> bool:
        """Whether this is a view, plain or materialized, whose rows cannot be updated."""
        return self in {TableKind.VIEW, TableKind.MATERIALIZED_VIEW}


@dataclass(frozen=True, slots=True)
class DatabaseDescription:
    """A database, or a schema where that is the unit (Contract editor 10: `<DB>`)."""

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
    """A column of a table. `type` is the engine's own name of the type, as its DESCRIBE shows it."""

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
    """`to` is `database.table.column`."""

    name: str
    to: str


@dataclass(frozen=True, slots=True)
class TableProperty:
    name: str
    value: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table or view. Columns are in table order, partition columns included."""

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
    """UTC, `2025-01-31T10:20:30Z`."""
    format: str = ""
    """`parquet`, `orc`, `text`, `kudu`, `iceberg`."""
    foreign_keys: tuple[ForeignKey, ...] = ()
    properties: tuple[TableProperty, ...] = ()
    statistics: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Only statistics the engine has already stored: `numRows`, `totalSize`, `numFiles`, `rawDataSize`."""

    def column(self, name: str) -> TableColumn | None:
        """The column with exactly this name, else the only one whose name matches without regard to case."""
        exact = [one for one in self.columns if one.name == name]
        folded = [one for one in self.columns if one.name.casefold() == name.casefold()]
        matches = exact or folded
        return matches[0] if len(matches) == 1 else None


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of a column that the engine has already stored; `message` says why there are none."""

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
    """A function. Overloads are joined in `signature` by line breaks."""

    name: str
    signature: str = ""
    return_type: str = ""
    is_builtin: str = ""
    """`BUILTIN` or the engine's own term."""
    is_persistent: str = ""
    """`true`, `false`, or empty if unknown."""
    description: str = ""


class SampleKind(StrEnum):
    """Values of `operation` for a sample, except the connection test (Contract editor 10.3)."""

    DEFAULT = "default"
    DISTINCT = "distinct"
    MAX = "max"
    MIN = "min"


SAMPLE_ROWS = 100
"""Largest number of rows of a sample."""


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """Facts about an engine. Services test these and never compare dialect names."""

    one_process: bool = False
    """The data can be open in one process at a time, and only that process may claim statements."""
    data_name: str = ""
    """With `one_process`: a name shared by all connectors to the same data; empty if no other connector uses them."""
    can_explain: bool = True
    explain_prefix: str = "EXPLAIN "
    explain_column: str | None = None
    """The result column that holds the text of the plan; None if all columns belong to it."""
    explain_failure: re.Pattern[str] | None = None
    """Matches the start of a plan that is really an error; the engine's message follows the match."""
    reports_progress: bool = False
    endpoints: tuple[tuple[str, int], ...] = ()
    """Hosts and ports of which a session connects to one; empty if there are none or only the driver knows them."""
    wants_credentials: bool = False
    """Callers log in to the data source with credentials of their own, through create_session."""
    wants_external_token: bool = False
    """The only login the engine accepts is the external token that authenticated the request."""
    acts_as_caller: bool = False
    """Sessions run under the caller's name without the caller's credentials, so users may see different objects."""
    parameters: ParameterSupport = NO_PARAMETERS
    """Which bound parameters statements may have."""
    reads_files: bool = False
    """Statements may name files of the configured stores; sessions receive `SessionOptions.files`."""
    writes_files: bool = False
    """With `reads_files`: statements may also write such files, unless the connector is read-only."""
    reads_results: bool = False
    """Statements may read stored results as tables; sessions receive `SessionOptions.results`."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Login at the data source that the caller passed to create_session. Never logged."""

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
    """Seconds since 1970, after which the session accepts no further statement."""
    files: StatementFiles | None = field(default=None, repr=False, compare=False)
    """The files that statements may name; None without `reads_files`."""


@dataclass(frozen=True, slots=True)
class OperationHandle:
    """One statement at its engine. `token` is opaque text from which a resumable engine can re-attach."""

    token: str


class OperationState(StrEnum):
    """The state of a statement at its engine."""

    PENDING = "pending"
    """In the engine's own queue."""
    RUNNING = "running"
    FINISHED = "finished"
    """Done, or its rows can already be read with `batches` while the engine still produces them."""
    CANCELED = "canceled"
    FAILED = "failed"

    is_terminal: bool
    """The state is final."""

    def __init__(self, value: str) -> None:
        self.is_terminal = value in {"finished", "canceled", "failed"}


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """The status of a statement. `progress` is 0..100, None if unknown; `error` is set if and only if FAILED.

    `modified_rows` is None until known; with a result set it is final once `batches` is exhausted.
    """

    state: OperationState
    has_result_set: bool = False
    progress: int | None = None
    modified_rows: int | None = None
    error: EngineError | None = None


class EngineSession(Protocol):
    """One engine session or connection; `SET` and `USE` state lives here.

    One statement at a time. Used by one task, except that `poll`, `logs` and `cancel` may be called while another
    task waits in `poll` or reads `batches`.
    """

    async def submit(self, statement: str | BoundStatement) -> OperationHandle:
        """Start a statement and return before it ends. A `Bound` carries parameters that `capabilities.parameters`
        permits.

        Raises StatementRejected (the engine refused the text; StatementDenied, here and wherever a statement fails,
        where the engine names a missing right), EngineUnavailable (never sent), OutcomeUnknown.
        """
        ...

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        """The current status, after waiting up to `wait_s` for a terminal one. A failure at the engine is not raised.

        A `ResumableSession` returns early when its resume token has changed.
        """
        ...

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        """Columns of the result, in order; only after FINISHED with a result set."""
        ...

    def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        """The rows, forward only and once; each batch is bounded in bytes and has one field per column, in order.

        Raises StatementRejected if the engine fails while producing rows, OutcomeUnknown if the connection is lost.
        """
        ...

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        """The engine's log lines from index `start` on; empty for an engine without logs."""
        ...

    async def cancel(self, handle: OperationHandle) -> None:
        """Stop the statement at the engine; returns once the request is sent. Idempotent, limited in time."""
        ...

    async def close(self, handle: OperationHandle) -> None:
        """Free what the engine holds for the statement. Idempotent, limited in time, never raises EngineError."""
        ...

    async def is_alive(self) -> bool:
        """Whether the session can accept another statement. Need not contact the engine."""
        ...


class Engine(Protocol):
    """The running engine of one connector; owns its connection pool and is shared between tasks."""

    dialect: str
    """The SQL dialect of its statements."""
    capabilities: EngineCapabilities

    def session(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[EngineSession]:
        """Open a session for `user`; leaving the context stops its work at the engine.

        Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database, refused setting).
        """
        ...

    async def ping(self) -> None:
        """Check that statements can be sent. Raises EngineUnavailable or CredentialsRequired if not."""
        ...

    async def close(self) -> None:
        """Close the pool. Idempotent."""
        ...


@runtime_checkable
class ResumableEngine(Protocol):
    """An engine whose statements keep running when their client is lost; its sessions are ResumableSessions."""

    def reattach(
        self, user: User, options: SessionOptions, token: str, *, rows_read: int
    ) -> AbstractAsyncContextManager[tuple[EngineSession, OperationHandle]]:
        """Continue a statement that another process started; `batches` skips its first `rows_read` rows.

        `token` is the last `resume_token`, or the token of the handle. Leaving the context ends the statement and its
        session at the engine, unless `detach` was called. Raises EngineUnavailable, and OutcomeUnknown (message begins
        `Results have expired`) if the engine no longer knows the statement or cannot resume at that row.
        """
        ...


@runtime_checkable
class ResumableSession(Protocol):
    """A session whose statement another process can continue."""

    def resume_token(self, handle: OperationHandle) -> str:
        """The token from which to continue after what `poll` and `batches` last returned.

        Either call may change it. The previous token stays valid until the next call, so a caller that stores rows and
        token together before it continues neither loses rows nor reads them twice.
        """
        ...

    def detach(self) -> None:
        """Leave the statement running at the engine when the session's context is left."""
        ...


@runtime_checkable
class LiteralSession(Protocol):
    """A ResumableSession that writes parameters into the text as literals, which the engine's log may show."""

    def written(self, statement: BoundStatement) -> str:
        """The text that the engine received from the process that started `statement`."""
        ...


@runtime_checkable
class RowsSession(Protocol):
    """An EngineSession that may run a statement once for each row of a `Bound` in one call of `submit`.

    On an engine with transactions all executions share one, or join the one already open; `modified_rows` is their
    sum. `Bound.row` is the number of the row that failed.
    """

    @property
    def takes_rows(self) -> bool: ...


class Catalog(Protocol):
    """The metadata as one user sees it; used by one task, one call at a time. No method reads table data.

    Names are matched exactly first, then folded as the engine folds unquoted names. They are quoted or bound, never
    inserted into SQL as they are. `database=""` is the session's default database, except on an engine that has a
    schema with an empty name. Cancelling the waiting task also stops the engine's work.
    All methods raise EngineUnavailable, CredentialsRequired, EngineForbidden (the user lacks the right),
    EngineTimeout, and StatementRejected for any other refusal by the engine.
    """

    async def databases(self) -> Sequence[str]:
        """Names of all databases that the user may see, in any order."""
        ...

    async def database(self, database: str) -> DatabaseDescription:
        """Raises database_not_found."""
        ...

    async def tables(self, database: str) -> Sequence[TableSummary]:
        """Tables and views, in any order, in a constant number of round trips. Raises database_not_found."""
        ...

    async def table(self, database: str, table: str) -> TableDescription:
        """Raises database_not_found, TableNotFound."""
        ...

    async def column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:
        """Statistics that the engine has already stored for a column of `table`; computes nothing."""
        ...

    async def functions(self, database: str | None) -> Sequence[FunctionDescription]:
        """The functions defined in `database`; with None, the built-in ones and those visible by default.

        Each name occurs once. Raises database_not_found.
        """
        ...

    async def function(self, database: str | None, name: str) -> FunctionDescription | None:
        """The function, or None if there is none of that name."""
        ...

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        """The query for a sample of at most `SAMPLE_ROWS` rows (Contract editor 10.3).

        Without `column` it selects rows, the newest partitions first for partitioned tables of the Hive family. With
        `column`, or the path `nested` inside it: its distinct values sorted with NULL last, or its maximum or minimum.
        Raises NotSupported for a nested path that the engine cannot read.
        """
        ...

    def analyze_statement(self, table: TableDescription, column: str | None) -> str:
        """The statement that makes the engine compute statistics (table in Contract editor 10.5).

        Raises NotSupported.
        """
        ...


@runtime_checkable
class CatalogEngine(Protocol):
    lists_functions: bool
    """Whether the engine's catalog lists functions at all (Contract editor 10.2)."""

    def catalog(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[Catalog]:
        """Open what is needed to read metadata as `user`. Raises EngineUnavailable, CredentialsRequired."""
        ...


@dataclass(frozen=True, slots=True)
class TableName:
    """The unquoted name of a table. `database=None` means the session's current database."""

    database: str | None
    name: str


@dataclass(frozen=True, slots=True)
class LoadColumn:
    """One column of a table to create. `declared` is its SQL type in the dialect, with precision and scale."""

    name: str
    type: ColumnType
    declared: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class TableLoad:
    """One table to create or, with `append`, to add rows to.

    With `replace` the new table takes the place of an existing one, if that is a plain table. `staging` names a table
    in the same database that belongs to this load alone and holds rows that are not visible yet.
    """

    target: TableName
    staging: TableName
    columns: tuple[LoadColumn, ...]
    append: bool = False
    replace: bool = False


class LoadLedger(Protocol):
    """Records which tables must be dropped if the server dies; each call is durable when it returns."""

    async def made(self, table: TableName) -> None:
        """Record a table that must be dropped: a staging table before it is created, one with the target's name after.

        So a table that another client creates in the meantime is never dropped. A table that vanishes with its
        transaction is not recorded.
        """
        ...

    async def settled(self, table: TableName) -> None:
        """Remove a table from the ledger because it was dropped or is now the finished table."""
        ...


class TableLoader(Protocol):
    """Creates and fills tables in one session with an engine. One call at a time."""

    async def exists(self, table: TableName) -> bool:
        """Whether a table or view with that name exists. Raises EngineError."""
        ...

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        """Create the table with all rows, or append them all; returns the number of rows. Values are bound or escaped.

        Reads the batches as fast as the engine accepts them. On any failure (a refusal, an exception from the batches,
        a cancellation, which also stops the engine's work) the staging table is dropped or in the ledger, no new table
        exists, and an existing one is unchanged, even if it was to be replaced. Raises EngineError (StatementRejected
        also if another client created the table in the meantime) and whatever the batches raise.
        """
        ...

    async def drop(self, table: TableName) -> None:
        """Drop a table of the ledger if it exists. Raises EngineError."""
        ...


@runtime_checkable
class LoadingEngine(Protocol):
    def loader(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[TableLoader]:
        """A session for one import, as `Engine.session`; leaving the context stops its work at the engine."""
        ...
