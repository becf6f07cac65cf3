"""Runs a statement once per row of parameters (`parameter_rows`), pipelined without waiting for each row."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from typing import Protocol

from asyncpg.prepared_stmt import PreparedStatement

from queryserver.engines.postgresql.parameters import PostgresqlValues
from queryserver.engines.postgresql.wire import CompletionTap, Field
from queryserver.sql.markers import BoundStatement

_MOST_PREPARED = 50
Prepare = Callable[[str, PostgresqlValues | None], Awaitable[tuple[PreparedStatement, tuple[Field, ...]]]]


class Counting(Protocol):
    """The parts of a connection that are needed here."""

    def is_in_transaction(self) -> bool: ...

    async def execute(self, query: str) -> str: ...

    async def end_transaction(self) -> bool: ...

    def counted(self) -> AbstractContextManager[CompletionTap]: ...


async def run_rows(connection: Counting, statement: BoundStatement, prepare: Prepare) -> int:
    """Run the rows, in the open transaction or one of its own, and return the number of changed rows.

    Rows of RETURNING are discarded. Adjacent rows with the same types and NULLs are sent together. Raises asyncpg's
    errors, with the number of the failed row in `statement.row`.
    """
    is_own = not connection.is_in_transaction()
    if is_own:
        await connection.execute("BEGIN")
    try:
        changed = await _run(connection, statement, prepare)
        if is_own:
            await connection.execute("COMMIT")
    except BaseException:
        if is_own:
            await connection.end_transaction()
        raise
    return changed


async def _run(connection: Counting, statement: BoundStatement, prepare: Prepare) -> int:
    prepared, done, changed = dict[str, PreparedStatement](), 0, 0
    for sql, rows in groupby(map(PostgresqlValues, statement.rows), PostgresqlValues.sql):
        alike, statement.row = list(rows), done
        if sql not in prepared:
            if len(prepared) >= _MOST_PREPARED:
                prepared.clear()
            prepared[sql], _ = await prepare(sql, alike[0])
        with _numbered(connection, statement, done) as counts:
            await prepared[sql].executemany([one.texts for one in alike])
        done += len(alike)
        changed += counts.changed_rows
    return changed


@contextmanager
def _numbered(connection: Counting, statement: BoundStatement, done: int) -> Generator[CompletionTap]:
    with connection.counted() as counts:
        try:
            yield counts
        except BaseException:
            statement.row = min(done + counts.commands, len(statement.rows) - 1)
            raise
