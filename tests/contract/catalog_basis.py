"""The base class of the catalog suite, which holds the engine's facts and creates tables according to them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
import pytest
from tests.contract.catalog_facts import CatalogFacts
from tests.contract.engine_basis import NO_OPTIONS, STOP_S, USER
from tests.contract.engine_driving import run

from queryserver.engines.protocol import (
    NO_CONTEXT,
    Catalog,
    CatalogEngine,
    Engine,
    EngineSession,
    OperationHandle,
    OperationStatus,
    StatementContext,
    TableDescription,
)
from queryserver.formats.arrow import Column

FEW_ROWS = (("1", "'a'"), ("2", "'bb'"), ("3", "NULL"), ("4", "'bb'"))


class CatalogBasis:
    """The base class of the catalog tests. A subclass declares `catalog_facts`, `running_statements` and the fixture
    `engine`.
    """

    catalog_facts: ClassVar[CatalogFacts]
    tested_with: ClassVar[str] = ""

    async def running_statements(self, engine: Engine) -> int:
        """Return how many statements the engine is running."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize tests over every declared table and nested path."""
        facts: CatalogFacts = metafunc.cls.catalog_facts
        if "described" in metafunc.fixturenames:
            metafunc.parametrize("described", facts.tables, ids=[table.name for table in facts.tables])
        if "nested" in metafunc.fixturenames:
            names = [f"{fact.ddl} {'.'.join(fact.path)}" for fact in facts.nested]
            metafunc.parametrize("nested", facts.nested, ids=names)

    @pytest.fixture
    async def catalog(self, engine: Engine) -> AsyncGenerator[Catalog]:
        assert isinstance(engine, CatalogEngine)
        async with engine.catalog(USER, NO_OPTIONS) as catalog:
            yield catalog

    @pytest.fixture
    async def database(self, engine: Engine) -> AsyncGenerator[str]:
        """Yield the catalog name of a new, empty database, and drop it afterward.

        If the engine cannot create databases, yield the name of the default database.
        """
        facts = self.catalog_facts
        if not facts.create_database:
            yield facts.default_database
            return
        name = facts.database_name(f"qs_{uuid4().hex[:10]}")
        await self.make_database(engine, name)
        yield name
        await self.drop_database(engine, name)

    async def make_database(self, engine: Engine, name: str) -> None:
        await self.execute(engine, self._with_database(self.catalog_facts.create_database, name))

    async def drop_database(self, engine: Engine, name: str) -> None:
        """Drop the database and everything in it."""
        await self.execute(engine, self._with_database(self.catalog_facts.drop_database, name))

    async def execute(self, engine: Engine, statements: Sequence[str]) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            for statement in statements:
                await run(session, statement)

    async def rows(self, engine: Engine, sql: str) -> list[tuple[Any, ...]]:
        async with engine.session(USER, NO_OPTIONS) as session:
            return (await run(session, sql)).rows

    async def make_table(
        self, engine: Engine, database: str, name: str, rows: Sequence[Sequence[str]] = (), *columns: str
    ) -> None:
        """Create a table whose first column is an integer and whose other columns are strings; by default, `id` and
        `name`.
        """
        facts = self.catalog_facts
        first, *others = columns or ("id", "name")
        declared = [(facts.quote(first), facts.int_type.ddl)]
        declared += [(facts.quote(other), facts.text_type.ddl) for other in others]
        table = facts.table(database, name)
        await self.execute(engine, [*facts.create_table(table, declared), *facts.insert(table, rows)])

    async def make_view(self, engine: Engine, database: str, view: str, table: str) -> None:
        template, facts = self.catalog_facts.create_view, self.catalog_facts
        if template is None:
            pytest.skip("the engine has no views")
        text = template.replace("{v}", facts.table(database, view)).replace("{t}", facts.table(database, table))
        await self.execute(engine, [text])

    async def eventually_idle(self, engine: Engine) -> None:
        async with asyncio.timeout(STOP_S):
            while await self.running_statements(engine):  # noqa: ASYNC110 the engine sends no event
                await asyncio.sleep(0.05)

    async def analyze(self, engine: Engine, catalog: Catalog, table: TableDescription) -> None:
        """Run every analyze statement that the engine supports on a table."""
        facts = self.catalog_facts
        statements = [catalog.analyze_statement(table, None)] if facts.analyzes_tables else []
        if facts.analyzes_columns:
            statements += [catalog.analyze_statement(table, column.name) for column in table.columns]
        await self.execute(engine, statements)

    def _with_database(self, templates: Sequence[str], name: str) -> list[str]:
        return [template.replace("{db}", self.catalog_facts.database(name)) for template in templates]


class CountingSession:
    """An EngineSession that counts the statements submitted to it."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self.statements: list[str] = []

    async def submit(self, statement: str, context: StatementContext = NO_CONTEXT) -> OperationHandle:
        self.statements.append(statement)
        return await self._session.submit(statement, context)

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        return await self._session.poll(handle, wait_s=wait_s)

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        return await self._session.columns(handle)

    def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        return self._session.batches(handle)

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        return await self._session.logs(handle, start=start)

    async def cancel(self, handle: OperationHandle) -> None:
        await self._session.cancel(handle)

    async def close(self, handle: OperationHandle) -> None:
        await self._session.close(handle)

    async def is_alive(self) -> bool:
        return await self._session.is_alive()
