"""The Protocols of an SQL engine (sessions, catalogue, loader), and the values that cross them."""

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
from queryserver.formats.column_types import ColumnType
from queryserver.formats.columns import Column
from queryserver.identity.model import User
from queryserver.sql.parameters import NO_PARAMETERS, ParameterSupport
from queryserver.sql.places import Bound


class TableKind(StrEnum):
    """`details.properties.table_type` of describe."""

    MANAGED = "MANAGED_TABLE"
    EXTERNAL = "EXTERNAL_TABLE"
    VIEW = "VIRTUAL_VIEW"
    MATERIALIZED_VIEW = "MATERIALIZED_VIEW"

    @classmethod
    def of(cls, *, is_view: bool) -> "TableKind":
        """Where an engine distinguishes no more than tables and views."""
        return cls.VIEW if is_view else cls.MANAGED

    @property
    def is_view(self) -> bool:
        """It has no rows of its own that could be updated."""
        return self in {TableKind.VIEW, TableKind.MATERIALIZED_VIEW}


@dataclass(frozen=True, slots=True)
class DatabaseDescription:
    """A database, or a schema where that is the unit (Contract editor 10: `<DB>`)."""

    name: str
    comment: str = ""
    location: str = ""
    """Address in a storage, such as `hdfs://nn/warehouse/shop.db`."""
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
    """A column of a table. `type` is the engine's own type text, as its DESCRIBE shows it."""

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
    """Only what the engine already has: `numRows`, `totalSize`, `numFiles`, `rawDataSize`."""

    def column(self, name: str) -> TableColumn | None:
        """The column of exactly that name, else the only one of that name without regard to case."""
        exact = [one for one in self.columns if one.name == name]
        folded = [one for one in self.columns if one.name.casefold() == name.casefold()]
        found = exact or folded
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of a column that the engine already has; `message` says why there are none."""

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
    """`true`, `false` or unknown."""
    description: str = ""


class SampleKind(StrEnum):
    """`operation` of a sample, without the connection test (Contract editor 10.3)."""

    DEFAULT = "default"
    DISTINCT = "distinct"
    MAX = "max"
    MIN = "min"


SAMPLE_ROWS = 100
"""Largest number of rows of a sample."""


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """Facts about an engine; services never compare dialect names."""

    one_process: bool = False
    """The data belong to one process at a time: only the process that holds them may claim statements."""
    data_name: str = ""
    """With `one_process`: names those data among all connectors; empty: no other connector has them."""
    can_explain: bool = True
    explain_prefix: str = "EXPLAIN "
    explain_column: str | None = None
    """The column of the plan's text, where the answer has others beside it; None: all columns."""
    explain_failure: re.Pattern[str] | None = None
    """The beginning of a plan that is a refusal; the engine's message follows it."""
    reports_progress: bool = False
    places: tuple[tuple[str, int], ...] = ()
    """Hosts and ports, to one of which a session connects; empty: none, or known to the driver alone."""
    wants_credentials: bool = False
    """Callers log in at the data source themselves, through create_session."""
    wants_external_token: bool = False
    """The engine takes the token of another issuer that the call came with, and no other login."""
    acts_as_caller: bool = False
    """Sessions run under the name of the caller, without a login of theirs: what one sees another may not."""
    parameters: ParameterSupport = NO_PARAMETERS
    """Which values statements may have in their places."""
    reads_files: bool = False
    """Statements may name files of the configured stores: sessions get `SessionOptions.files`."""
    writes_files: bool = False
    """With `reads_files`: statements may write such files, too; not where the connector is read-only."""
    reads_results: bool = False
    """Statements may read stored results as tables: sessions get `SessionOptions.results`."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Login at the data source, given by the caller through create_session. Never logged."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    database: str | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    credentials: Credentials | None = None
    results: StatementResults | None = field(default=None, repr=False)
    """Which results statements can read as tables, where the engine can; None: none."""
    external_token: str | None = field(default=None, repr=False)
    """The caller's own token, for engines that take it instead of a login (Contract platform 3.9)."""
    token_expires_at: int | None = None
    """Seconds since 1970; from then on the session takes no further statement."""
    files: StatementFiles | None = field(default=None, repr=False, compare=False)
    """The files that statements may name; None: none, as for engines without `reads_files`."""


@dataclass(frozen=True, slots=True)
class OperationHandle:
    """One statement within its engine. `token` is opaque text that a re-attaching engine can read back."""

    token: str


class OperationState(StrEnum):
    """The state of a statement at its engine."""

    PENDING = "pending"
    """In the engine's own queue."""
    RUNNING = "running"
    FINISHED = "finished"
    """Done, or its rows can be read with `batches` while the engine still produces them."""
    CANCELED = "canceled"
    FAILED = "failed"

    is_terminal: bool
    """The state does not change any more."""

    def __init__(self, value: str) -> None:
        self.is_terminal = value in {"finished", "canceled", "failed"}


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """The status of a statement. `progress` is 0..100 or unknown; `error` is set exactly in FAILED.

    `modified_rows` is None until known; after a result set it is final once `batches` has ended.
    """

    state: OperationState
    has_result_set: bool = False
    progress: int | None = None
    modified_rows: int | None = None
    error: EngineError | None = None


class EngineSession(Protocol):
    """One engine session or connection; `SET` and `USE` state lives here.

    One statement at a time. Not shared between tasks, but for `poll`, `logs` and `cancel`, which may be called
    while another task waits in `poll` or reads `batches`.
    """

    async def submit(self, statement: str | Bound) -> OperationHandle:
        """Start a statement and return before it ends. A `Bound` has values that `capabilities.parameters` permits.

        Raises StatementRejected (the engine refused the text; StatementDenied, here and wherever a statement fails,
        where the engine names a missing right), EngineUnavailable (never sent), OutcomeUnknown.
        """
        ...

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        """The present status; waits up to `wait_s` for a terminal one. An engine's failure is FAILED, not raised.

        A `ResumableSession` returns early when its token has moved.
        """
        ...

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        """Columns of the result, in order; after FINISHED with a result set."""
        ...

    def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        """The rows, forward only, read once; each batch is bounded in bytes and has one field per column, in order.

        Raises StatementRejected when the engine fails on the way, OutcomeUnknown when the connection is lost.
        """
        ...

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        """The engine's log lines from number `start` on; empty where the engine has none."""
        ...

    async def cancel(self, handle: OperationHandle) -> None:
        """Stop the statement at the engine; returns once the stop is sent. Idempotent, limited in time."""
        ...

    async def close(self, handle: OperationHandle) -> None:
        """Free what the engine holds for the statement. Idempotent, limited in time, never raises EngineError."""
        ...

    async def is_alive(self) -> bool:
        """Whether the session can take another statement. No round trip to the engine is needed."""
        ...


class Engine(Protocol):
    """One connector at work; owns its pool; shared between tasks."""

    dialect: str
    """The one that statements are written in."""
    capabilities: EngineCapabilities

    def session(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[EngineSession]:
        """Open a session for `user`; leaving it ends the engine's work for it.

        Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database, refused setting).
        """
        ...

    async def ping(self) -> None:
        """Raises EngineUnavailable or CredentialsRequired when statements could not be sent now."""
        ...

    async def close(self) -> None:
        """Close the pool. Idempotent."""
        ...


@runtime_checkable
class ResumableEngine(Protocol):
    """An engine whose running statements survive the loss of their client; its sessions are ResumableSession."""

    def reattach(
        self, user: User, options: SessionOptions, token: str, *, rows_read: int
    ) -> AbstractAsyncContextManager[tuple[EngineSession, OperationHandle]]:
        """Follow a statement that another process started; `batches` goes on after its first `rows_read` rows.

        `token` is the last `resume_token`, or the token of the handle. Leaving it ends the statement and its session at
        the engine, unless `detach` was called. Raises EngineUnavailable, and OutcomeUnknown (message begins `Results
        have expired`) when the engine no longer knows the statement or those rows cannot be read again.
        """
        ...


@runtime_checkable
class ResumableSession(Protocol):
    """A session whose statement another process can go on following."""

    def resume_token(self, handle: OperationHandle) -> str:
        """The token by which to go on from what `poll` and `batches` gave last.

        Each of them may change it. The former one stays valid until the next call: a caller that stores rows and token
        together before going on loses nothing and reads nothing twice.
        """
        ...

    def detach(self) -> None:
        """Leave the statement running at the engine when the session is left."""
        ...


@runtime_checkable
class LiteralSession(Protocol):
    """A ResumableSession whose engine gets values as literals of the text, which its log may show."""

    def written(self, statement: Bound) -> str:
        """The text that the engine got from the process that started it, which `statement` notes as written last."""
        ...


@runtime_checkable
class RowsSession(Protocol):
    """An EngineSession that may run a statement once for each row of a `Bound` in one call of `submit`.

    Where the engine has transactions all of it is one, or part of the one that is open; the changed rows are their sum.
    `Bound.row` is the number of the row that failed.
    """

    @property
    def takes_rows(self) -> bool: ...


class Catalog(Protocol):
    """The metadata as one user sees it; used by one task, one call after the other. No method reads table data.

    Names are matched exactly first, then folded as the engine folds unquoted names; they are quoted or bound, never
    pasted. `database` `""` is the default database of the session, except on an engine that has a schema without name.
    Cancelling the task that waits ends the engine's work too.

    All raise EngineUnavailable, CredentialsRequired, EngineForbidden (the user lacks the right), EngineTimeout, and
    StatementRejected for anything else that the engine refuses.
    """

    async def databases(self) -> Sequence[str]:
        """Names of all databases that the user may see; any order."""
        ...

    async def database(self, database: str) -> DatabaseDescription:
        """Raises database_not_found."""
        ...

    async def tables(self, database: str) -> Sequence[TableSummary]:
        """Tables and views; any order. One round trip or few, whatever their number. Raises database_not_found."""
        ...

    async def table(self, database: str, table: str) -> TableDescription:
        """Raises database_not_found, TableNotFound."""
        ...

    async def column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:
        """What the engine already has about a column of `table`; nothing is computed."""
        ...

    async def functions(self, database: str | None) -> Sequence[FunctionDescription]:
        """None: built-in functions and those visible by default; else exactly those defined in that database.

        Each name occurs once. Raises database_not_found.
        """
        ...

    async def function(self, database: str | None, name: str) -> FunctionDescription | None:
        """None: unknown."""
        ...

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        """The query of at most `SAMPLE_ROWS` rows (Contract editor 10.3).

        A table: rows; partitioned tables of the hive family give the newest partitions first. A column, or the path
        `nested` below it: distinct values sorted with NULL last, or one row with the largest or smallest.
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
    """Whether the engine's catalogue has functions at all (Contract editor 10.2)."""

    def catalog(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[Catalog]:
        """Open what is needed to read metadata as `user`. Raises EngineUnavailable, CredentialsRequired."""
        ...


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of a table, without quotes. `database` None: that of the session."""

    database: str | None
    name: str


@dataclass(frozen=True, slots=True)
class LoadColumn:
    """One column of a table to be made. `declared` is its SQL type in the dialect, with precision and scale."""

    name: str
    type: ColumnType
    declared: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class TableLoad:
    """One table to be made, or, with `append`, to be added to.

    With `replace` the new table takes the name of an old one, if that is a plain table. `staging` names a table of
    this load alone in the same database, for rows that are not visible yet.
    """

    target: TableName
    staging: TableName
    columns: tuple[LoadColumn, ...]
    append: bool = False
    replace: bool = False


class LoadLedger(Protocol):
    """Records which tables must be dropped if the server dies; durable before each call returns."""

    async def made(self, table: TableName) -> None:
        """Enter a table that must not stay: a staging table before it is made, one of the target's own name after.

        So a table that another client made meanwhile is never dropped. One that ends with its transaction is not
        entered.
        """
        ...

    async def settled(self, table: TableName) -> None:
        """Remove it: it is dropped, or it is the finished table."""
        ...


class TableLoader(Protocol):
    """Makes tables in one session with an engine. One call at a time."""

    async def exists(self, table: TableName) -> bool:
        """Whether there is a table or view of that name. Raises EngineError."""
        ...

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        """Make the table with all rows, or add all rows to it; the number of rows. Values are bound, or escaped.

        Reads the batches as fast as the engine takes them. When anything fails (a refusal, batches that raise, a
        cancel, which also stops the engine's work) the staging table is gone or in the ledger, a new table is not
        there, and an old one is as it was, also one that was to be replaced. Raises EngineError (StatementRejected
        also for a table that another client made meanwhile), and what the batches raise.
        """
        ...

    async def drop(self, table: TableName) -> None:
        """Drop a table of the ledger, if it is there. Raises EngineError."""
        ...


@runtime_checkable
class LoadingEngine(Protocol):
    def loader(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[TableLoader]:
        """A session for one import, as `Engine.session`; leaving it ends the engine's work for it."""
        ...
