"""What makes tables from rows (Contract importer 13.4, 13.5).

An optional power of an `Engine`: `LoadingEngine`. Its loaders make one table at a time, all or nothing. Rows cross
this seam as Arrow record batches with one field per column, in the order of `TableLoad.columns`, of the types of
`domain.import_types.arrow_type`; no batch holds more than about 4 MiB.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from queryserver.domain.importing import ColumnType
from queryserver.domain.user import User
from queryserver.interfaces.engine import SessionOptions


@dataclass(frozen=True, slots=True)
class TableName:
    """Where a table is. Names are data: the loader quotes them. `database` None: where the session is."""

    database: str | None
    name: str


@dataclass(frozen=True, slots=True)
class LoadColumn:
    """One column of a table to be made. `declared` is its SQL type with precision and scale, as the dialect has it."""

    name: str
    type: ColumnType
    declared: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class TableLoad:
    """One table to be made, or, with `append`, to be added to.

    With `replace`, a table that is there makes way for the new one, which takes its name; nothing but a table does.
    `staging` names a table in the same database that nobody else uses: rows that are not visible yet may lie there.
    """

    target: TableName
    staging: TableName
    columns: tuple[LoadColumn, ...]
    append: bool = False
    replace: bool = False


class LoadLedger(Protocol):
    """Remembers which tables must go if the server dies; durable before each call returns."""

    async def made(self, table: TableName) -> None:
        """This table is, or is about to be, in the database, and must not stay there.

        Told before a staging table is made. Of a table of the target's own name it is told only after it was made:
        one that somebody else made meanwhile is never dropped.
        """
        ...

    async def settled(self, table: TableName) -> None:
        """It is gone, or it is the finished table and stays."""
        ...


class TableLoader(Protocol):
    """Makes tables in one session with an engine. One call at a time."""

    async def exists(self, table: TableName) -> bool:
        """Whether there is a table or view of that name. Raises EngineError."""
        ...

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        """Make the table with all rows, or add all rows to it; the number of rows.

        Reads the batches as fast as the engine takes them, and waits for the engine. When anything fails (an engine
        that refuses, batches that raise, a cancel) the staging table is gone or in the ledger, a new table is not
        there, and an old one is as it was, also one that was to be replaced. Values are bound, or escaped by the
        driver. The engine's work is stopped when the call is canceled. Raises EngineError (StatementRejected where the
        engine refuses, also a table that another made meanwhile), and what the batches raise.
        """
        ...

    async def drop(self, table: TableName) -> None:
        """Drop a table that the ledger named, if it is there. Raises EngineError."""
        ...


@runtime_checkable
class LoadingEngine(Protocol):
    """An engine that tables can be made in."""

    def loader(self, user: User, options: SessionOptions) -> AbstractAsyncContextManager[TableLoader]:
        """A session for one import, as `Engine.session`; leaving it ends the engine's work for it."""
        ...
