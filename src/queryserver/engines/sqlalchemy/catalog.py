"""Reads the metadata of any data source that SQLAlchemy's Inspector can read.

The Inspector provides neither functions nor statistics. Types have the dialect's names, which may differ from the
engine's.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import CompileError, NoSuchTableError, UnsupportedCompilationError

from queryserver import errors
from queryserver.engines import protocol
from queryserver.engines.blocking_drivers import DriverThreads, stop_call
from queryserver.engines.catalog_queries import Folding, match_name
from queryserver.engines.sqlalchemy.connection import ResultT, SqlalchemyConnection


class SqlalchemyCatalog:
    """Implements `Catalog`. Each call runs in one of the engine's threads, on one connection."""

    def __init__(self, connection: SqlalchemyConnection, threads: DriverThreads, *, user_id: int) -> None:
        self._connection = connection
        self._threads = threads
        self._user_id = user_id

    async def end(self) -> None:
        await self._threads.control(self._connection.close)

    async def databases(self) -> Sequence[str]:
        return await self._inspect(sa.Inspector.get_schema_names)

    async def database(self, database: str) -> protocol.DatabaseDescription:
        """Return a description with only the database's name, because the Inspector provides nothing else."""
        return protocol.DatabaseDescription(await self._inspect(partial(_schema, database)))

    async def tables(self, database: str) -> Sequence[protocol.TableSummary]:
        """List tables without comments, because most dialects would query the comments table by table."""
        return await self._inspect(partial(_tables, database))

    async def table(self, database: str, table: str) -> protocol.TableDescription:
        return await self._inspect(partial(_table, database, table))

    async def column_statistics(self, table: protocol.TableDescription, column: str) -> protocol.ColumnStatistics:  # noqa: ARG002 there are no statistics
        return protocol.ColumnStatistics(message="This data source's driver provides no statistics.")

    async def functions(self, database: str | None) -> Sequence[protocol.FunctionDescription]:
        if database is not None:
            await self.database(database)
        return []

    async def function(self, database: str | None, name: str) -> protocol.FunctionDescription | None:  # noqa: ARG002 there are no functions
        if database is not None:
            await self.database(database)
        return None

    async def sample_statement(
        self, table: protocol.TableDescription, column: str | None, nested: Sequence[str], kind: protocol.SampleKind
    ) -> str:
        if nested:
            raise errors.NotSupported("Nested values cannot be sampled with this data source.")
        source = sa.table(_exact(table.name), schema=_exact(table.database) if table.database else None)
        if column is None:
            return self._written(sa.select(sa.text("*")).select_from(source).limit(protocol.SAMPLE_ROWS))
        value: sa.ColumnClause[Any] = sa.column(_exact(column), _selectable=source)
        nulls_last_key = sa.case((value.is_(None), sa.literal_column("1")), else_=sa.literal_column("0"))
        if kind in (protocol.SampleKind.MAX, protocol.SampleKind.MIN):
            order = value.desc() if kind is protocol.SampleKind.MAX else value.asc()
            return self._written(sa.select(value).order_by(nulls_last_key, order).limit(1))
        return self._written(
            sa.select(value).group_by(value).order_by(nulls_last_key, value).limit(protocol.SAMPLE_ROWS)
        )

    def analyze_statement(self, table: protocol.TableDescription, column: str | None) -> str:  # noqa: ARG002 no statement exists
        raise errors.NotSupported("Statistics cannot be computed with this data source.")

    def _written(self, query: sa.Select[Any]) -> str:
        """Return the query in the dialect's SQL. A `%` is not doubled, because the driver receives no parameters."""
        plain: Any = type(self._connection.dialect)
        dialect: sa.Dialect = plain(paramstyle="named")
        return str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))

    async def _inspect(self, read: Callable[[sa.Inspector], ResultT]) -> ResultT:
        running = self._threads.start(partial(self._connection.inspected, read), user_id=self._user_id)
        try:
            return await asyncio.shield(asyncio.wrap_future(running))
        except asyncio.CancelledError:
            await stop_call(running, self._connection.interrupt)
            raise


def _exact(name: str) -> sa.quoted_name:
    return sa.quoted_name(name, quote=True)


def _schema(database: str, inspector: sa.Inspector) -> str:
    """Return the schema that `database` refers to. An empty name means the connection's schema.

    Raises database_not_found.
    """
    if not database:
        return inspector.default_schema_name or ""
    found = match_name(database, inspector.get_schema_names(), Folding.CASELESS)
    if found is None:
        raise errors.database_not_found(database)
    return found


def _tables(database: str, inspector: sa.Inspector) -> list[protocol.TableSummary]:
    schema = _schema(database, inspector) or None
    views = set(_optional(partial(inspector.get_view_names, schema=schema), list[str]()))
    materialized = set(_optional(partial(inspector.get_materialized_view_names, schema=schema), list[str]()))
    kinds = dict.fromkeys(inspector.get_table_names(schema=schema), protocol.TableKind.MANAGED)
    kinds |= dict.fromkeys(views, protocol.TableKind.VIEW) | dict.fromkeys(
        materialized, protocol.TableKind.MATERIALIZED_VIEW
    )
    return [protocol.TableSummary(name, kind) for name, kind in kinds.items()]


def _table(database: str, table: str, inspector: sa.Inspector) -> protocol.TableDescription:
    schema = _schema(database, inspector)
    listed = {one.name: one.kind for one in _tables(schema, inspector)}
    name = match_name(table, listed, Folding.CASELESS)
    if name is None:
        raise errors.TableNotFound(schema, table)
    within = schema or None
    try:
        columns = inspector.get_columns(name, schema=within)
    except NoSuchTableError:
        raise errors.TableNotFound(schema, table) from None
    primary_key: Any = _optional(partial(inspector.get_pk_constraint, name, schema=within), {})
    comment: Any = _optional(partial(inspector.get_table_comment, name, schema=within), {})
    keys = set[str](primary_key.get("constrained_columns") or ())
    return protocol.TableDescription(
        database=schema,
        name=name,
        columns=tuple(_column(column, keys, inspector.dialect) for column in columns),
        kind=listed[name],
        comment=comment.get("text") or "",
        foreign_keys=tuple(
            protocol.ForeignKey(column, f"{key.get('referred_schema') or schema}.{key['referred_table']}.{target}")
            for key in _optional(partial(inspector.get_foreign_keys, name, schema=within), [])
            for column, target in zip(key["constrained_columns"], key["referred_columns"], strict=False)
        ),
    )


def _column(column: Any, keys: set[str], dialect: sa.Dialect) -> protocol.TableColumn:
    increments, native = column.get("autoincrement"), ""
    with suppress(CompileError, UnsupportedCompilationError):
        native = column["type"].compile(dialect=dialect)
    return protocol.TableColumn(
        name=column["name"],
        type=native,
        comment=column.get("comment") or "",
        nullable=column.get("nullable"),
        default=column.get("default"),
        autoincrement=increments if isinstance(increments, bool) else None,
        primary_key=column["name"] in keys,
    )


def _optional(read: Callable[[], Any], otherwise: Any) -> Any:
    """Return the result of `read`, or `otherwise` if the dialect does not implement it."""
    try:
        return read()
    except NotImplementedError:
        return otherwise
