"""Shared code for engine catalogs: quoting and matching names, reading small results, and building sample queries."""

import asyncio
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any

from queryserver import errors
from queryserver.engines.protocol import (
    NO_CONTEXT,
    SAMPLE_ROWS,
    EngineSession,
    FunctionDescription,
    SampleKind,
    StatementContext,
    TableColumn,
    TableDescription,
    TableSummary,
)
from queryserver.engines.sessions import ended, submitted

MAX_ROWS = 200_000
"""Row limit for metadata queries. It exceeds every list limit, so a caller that truncates a list can detect that more
names exist.
"""

MAX_BYTES = 128 * 1024 * 1024
_SLICE_ROWS = 2_000
"""Number of rows that can be converted to Python values without blocking the event loop for more than a few
milliseconds.
"""

Row = tuple[Any, ...]
"""A row's cells, as returned by Arrow's `to_pylist`."""


class Folding(Enum):
    """How an engine folds unquoted names."""

    LOWER = auto()
    UPPER = auto()
    CASELESS = auto()
    """The engine stores names as written and matches them case-insensitively."""


def name_candidates(wanted: str, folding: Folding) -> tuple[str, ...]:
    """Return the stored names that `wanted` may refer to, exact name first.

    For CASELESS, returns only `wanted`, which the caller must compare with stored names case-insensitively.
    """
    folded = {Folding.LOWER: wanted.lower(), Folding.UPPER: wanted.upper(), Folding.CASELESS: wanted}[folding]
    return (wanted,) if folded == wanted else (wanted, folded)


def match_name(wanted: str, names: Iterable[str], folding: Folding) -> str | None:
    """Return the stored name that `wanted` refers to, or None if there is no unique match.

    An exact match takes precedence over a match after folding.
    """
    present: Collection[str] = names if isinstance(names, (set, frozenset, dict)) else list(names)
    for spelling in name_candidates(wanted, folding):
        if spelling in present:
            return spelling
    if folding is not Folding.CASELESS:
        return None
    alike = {name for name in present if name.casefold() == wanted.casefold()}
    return alike.pop() if len(alike) == 1 else None


async def build_summaries(rows: Sequence[Row], make: Callable[[Row], TableSummary]) -> list[TableSummary]:
    """Build one summary per row, yielding to the event loop after every few thousand rows."""
    result = list[TableSummary]()
    for start in range(0, len(rows), _SLICE_ROWS):
        result += map(make, rows[start : start + _SLICE_ROWS])
        await asyncio.sleep(0)
    return result


async def read_rows(
    session: EngineSession, statement: str, *, max_rows: int = MAX_ROWS, context: StatementContext = NO_CONTEXT
) -> list[Row]:
    """Run a query and return at most its first `max_rows` rows as tuples; empty if the statement has no result set.

    If the caller is canceled, the query is canceled on the engine. Besides the query's own errors, raises
    EngineUnavailable if the connection is lost during the query, and StatementRejected if the result exceeds
    `MAX_BYTES`.
    """
    try:
        handle = await session.submit(statement, context)
        async with submitted(session, handle):
            if not (await ended(session, handle)).has_result_set:
                return []
            rows, size = list[Row](), 0
            async for batch in session.batches(handle):
                size += batch.nbytes
                if size > MAX_BYTES:
                    raise errors.StatementRejected("The engine's metadata response is too large.")
                for start in range(0, batch.num_rows, _SLICE_ROWS):
                    part = batch.slice(start, min(_SLICE_ROWS, max_rows - len(rows)))
                    rows += zip(*(column.to_pylist() for column in part.columns), strict=True)
                    if len(rows) >= max_rows:
                        return rows
                    await asyncio.sleep(0)
            return rows
    except (errors.OutcomeUnknown, errors.SessionLost) as error:
        raise errors.EngineUnavailable(error.message) from error


def merged_functions(rows: Iterable[Row], *, is_persistent: str = "") -> list[FunctionDescription]:
    """Build function descriptions, in row order.

    The rows contain `name, arguments, return type, whether it is built in, description`. Each distinct argument list of
    a function becomes a signature line. The other fields come from the function's first row.
    """
    overloads = dict[str, list[Row]]()
    for row in rows:
        overloads.setdefault(row[0], []).append(row)
    return [
        FunctionDescription(
            name=name,
            signature="\n".join(dict.fromkeys(f"{name}({arguments})" for _, arguments, *_ in same)),
            return_type=same[0][2] or "",
            is_builtin="BUILTIN" if same[0][3] else "",
            is_persistent=is_persistent,
            description=same[0][4] or "",
        )
        for name, same in overloads.items()
    ]


def table_columns(rows: Iterable[Row], *, is_view: bool) -> tuple[TableColumn, ...]:
    """Build columns from rows of `name, type, comment, nullable, default, autoincrement, primary key, partition key`.

    A `nextval(...)` default also counts as autoincrement. For a view, `autoincrement` and `nullable` are None, because
    they are unknown.
    """
    return tuple(
        TableColumn(
            name=name,
            type=kind,
            comment=comment or "",
            nullable=None if is_view else nullable,
            default=default,
            autoincrement=None if is_view else is_numbered or (default or "").startswith("nextval("),
            primary_key=is_key,
            partition_key=is_partition_key,
        )
        for name, kind, comment, nullable, default, is_numbered, is_key, is_partition_key in rows
    )


def nulls_last_key(value: str, direction: str) -> str:
    """Return a standard SQL sort key that puts NULL last."""
    return f"{value} {direction} NULLS LAST"


def sample_query(
    source: str, value: str | None, kind: SampleKind, *, order: Callable[[str, str], str] = nulls_last_key
) -> str:
    """Return a query that samples rows of `source` or values of its column `value`. Both must already be quoted.

    `order` builds the sort key for a value and a direction (ASC or DESC), and must put NULL last.
    """
    if value is None:
        return f"SELECT * FROM {source} LIMIT {SAMPLE_ROWS}"
    if kind in (SampleKind.MAX, SampleKind.MIN):
        direction = "DESC" if kind is SampleKind.MAX else "ASC"
        return f"SELECT {value} FROM {source} ORDER BY {order(value, direction)} LIMIT 1"
    return f"SELECT DISTINCT {value} FROM {source} ORDER BY {order(value, 'ASC')} LIMIT {SAMPLE_ROWS}"


class SessionCatalog:
    """Base class for catalogs that run metadata queries in a session. `context` applies to each of them."""

    nested_refusal = ""
    """The error message for a request to sample values nested in a column; empty if the engine supports this."""
    mark = '"'
    """The quote character for names."""

    def __init__(self, session: EngineSession, context: StatementContext = NO_CONTEXT) -> None:
        self._session = session
        self._context = context

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        if nested:
            raise errors.NotSupported(self.nested_refusal)
        value = None if column is None else identifier(column, mark=self.mark)
        return sample_query(self._full_name(table), value, kind, order=self._order)

    def _full_name(self, table: TableDescription) -> str:
        """Return the table's quoted name, including its database."""
        return qualified(*filter(None, (table.database, table.name)), mark=self.mark)

    def _order(self, value: str, direction: str) -> str:
        return nulls_last_key(value, direction)

    async def _rows(self, query: str) -> list[Row]:
        with metadata_errors():
            return await read_rows(self._session, query, context=self._context)


def identifier(name: str, *, mark: str = '"') -> str:
    """Quote a name, doubling the quote characters inside it."""
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"


def qualified(*names: str, mark: str = '"') -> str:
    """Quote names and join them with dots: `"shop"."items"`."""
    return ".".join(identifier(name, mark=mark) for name in names)


def backquoted(*names: str) -> str:
    """Like `qualified`, with the backticks of MySQL and the Hive family."""
    return qualified(*names, mark="`")


def literal(text: str) -> str:
    """Return a string literal for engines that treat a backslash as an ordinary character (standard SQL)."""
    return "'" + text.replace("'", "''") + "'"


def escaped_literal(text: str) -> str:
    r"""Return a string literal for engines where a backslash is the escape character.

    `'` becomes `\'`, and `\` becomes `\\`.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@contextmanager
def metadata_errors() -> Generator[None]:
    """Convert StatementDenied (the user lacks a privilege) to EngineForbidden if the block raises it."""
    try:
        yield
    except errors.StatementDenied as error:
        raise errors.EngineForbidden(error.message) from error
