"""A fake engine with readable metadata. Tests set its databases and tables, the duration of lookups, and their
errors.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.fakes.engine import FakeEngine

from queryserver.engines.protocol import (
    Catalog,
    ColumnStatistics,
    DatabaseDescription,
    EngineCapabilities,
    FunctionDescription,
    SampleKind,
    SessionOptions,
    TableColumn,
    TableDescription,
    TableKind,
    TableSummary,
)
from queryserver.errors.base import NotSupported
from queryserver.errors.statements import EngineError, TableNotFound, database_not_found
from queryserver.identity.model import User

TAGS = "array<struct<k:string,v:map<string,int>>>"


def table(database: str, name: str, **more: object) -> TableDescription:
    """Return a table with a primary key, an array column and a partition column."""
    columns = (
        TableColumn("id", "int", comment="a key", nullable=False, primary_key=True),
        TableColumn("tags", TAGS),
        TableColumn("dt", "string", partition_key=True),
    )
    return replace(TableDescription(database, name, columns), **more)


class FakeCatalogEngine(FakeEngine):
    """A FakeEngine whose catalog serves `content` and `functions`.

    Each lookup is recorded in `looks`. It takes `look_s` seconds, waits for the event `may_look`, and then raises
    `failure` if that is set. Every table has the sample statement `sample` and the analyze statement `ddl`. EXPLAIN
    returns the statement itself, but fails if the statement starts with `no plan:`.
    """

    def __init__(self, *, dialect: str = "fake", lists_functions: bool = True) -> None:
        capabilities = EngineCapabilities(explain_prefix="text ", explain_failure=re.compile("no plan:"))
        super().__init__(capabilities=capabilities, dialect=dialect)
        self.lists = lists_functions
        self.content: dict[str, dict[str, TableDescription]] = {
            "default": {},
            "shop": {
                name: table("shop", name, location=f"hdfs://nn/warehouse/{name}") for name in ("t10", "T2", "items")
            },
        }
        self.content["shop"]["cheap"] = table("shop", "cheap", kind=TableKind.VIEW)
        self.functions = [FunctionDescription("abs", "(int)", "int", "BUILTIN", "true", "without sign")]
        self.sample = "rows 3"
        self.looks: list[str] = []
        self.look_s = 0.0
        self.may_look = asyncio.Event()
        self.may_look.set()
        self.failure: EngineError | None = None
        self.unreadable: dict[str, EngineError] = {}
        self.abandoned = 0

    @property
    def lists_functions(self) -> bool:
        return self.lists

    def act_as_caller(self, acts: bool) -> None:
        """Set the capability `acts_as_caller`, which states whether each user may see different metadata."""
        self._capabilities = replace(self.capabilities, acts_as_caller=acts)

    def give_files(self) -> None:
        """Set the capabilities for reading and writing files, so that statements may refer to files."""
        self._capabilities = replace(self.capabilities, reads_files=True, writes_files=True)

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        await self.ping()
        yield FakeCatalog(self)


class FakeCatalog:
    """Reads the metadata of a FakeCatalogEngine."""

    def __init__(self, engine: FakeCatalogEngine) -> None:
        self._engine = engine

    async def databases(self) -> Sequence[str]:
        await self._look("databases")
        return list(self._engine.content)

    async def database(self, database: str) -> DatabaseDescription:
        await self._look(f"database {database}")
        self._known(database)
        return DatabaseDescription(database or "default", "goods", "hdfs://nn/warehouse/shop.db", "etl", "USER", "{}")

    async def tables(self, database: str) -> Sequence[TableSummary]:
        await self._look(f"tables {database}")
        return [TableSummary(one.name, one.kind, one.comment) for one in self._known(database).values()]

    async def table(self, database: str, table: str) -> TableDescription:
        await self._look(f"table {database} {table}")
        if table in self._engine.unreadable:
            raise self._engine.unreadable[table]
        found = self._known(database).get(table)
        if found is None:
            raise TableNotFound(database, table)
        return found

    async def column_statistics(self, table: TableDescription, column: str) -> ColumnStatistics:
        await self._look(f"statistics {table.name} {column}")
        return ColumnStatistics(min="1", max="99", num_nulls=0, avg_col_len=4.0)

    async def functions(self, database: str | None) -> Sequence[FunctionDescription]:
        await self._look(f"functions {database}")
        if database is not None:
            self._known(database)
            return []
        return self._engine.functions

    async def function(self, database: str | None, name: str) -> FunctionDescription | None:
        await self._look(f"function {database} {name}")
        return next((one for one in self._engine.functions if one.name == name and database is None), None)

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        if nested:
            raise NotSupported("The fake engine reads no nested values.")
        return self._engine.sample

    def analyze_statement(self, table: TableDescription, column: str | None) -> str:
        if column == "dt":
            raise NotSupported("The fake engine has no statistics of partition columns.")
        return "ddl"

    async def _look(self, what: str) -> None:
        self._engine.looks.append(what)
        try:
            await asyncio.sleep(self._engine.look_s)
            await self._engine.may_look.wait()
        except asyncio.CancelledError:
            self._engine.abandoned += 1
            raise
        if self._engine.failure is not None:
            raise self._engine.failure

    def _known(self, database: str) -> dict[str, TableDescription]:
        found = self._engine.content.get(database or "default")
        if found is None:
            raise database_not_found(database)
        return found
