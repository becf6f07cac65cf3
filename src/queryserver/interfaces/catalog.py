"""Metadata of a data source, read as one user (Contract editor 10). An optional power of an engine."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from queryserver.domain.catalog import (
    ColumnStatistics,
    DatabaseDescription,
    FunctionDescription,
    SampleKind,
    TableDescription,
    TableSummary,
)
from queryserver.domain.user import User
from queryserver.interfaces.engine import SessionOptions


class Catalog(Protocol):
    """One look at the metadata; used by one task, one call after the other.

    Names are looked up exactly first, then folded as the engine folds unquoted names; they are quoted or bound, never
    pasted. `database` `""` is the default database of the session, except on an engine that has a schema without name.
    Cancelling the task that waits ends the engine's work too. No method reads table data.

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
        """What the engine already knows of a column of `table`; nothing is computed."""
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
    """An engine whose metadata can be read."""

    @property
    def lists_functions(self) -> bool:
        """Whether the engine's catalogue has functions at all (Contract editor 10.2)."""
        ...

    def catalog(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[Catalog]:
        """Open what is needed to read metadata as `user`. Raises EngineUnavailable, CredentialsRequired."""
        ...
