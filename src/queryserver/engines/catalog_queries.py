"""What the catalogues of all engines share: names in SQL, the name that was meant, reading a few rows, samples."""

import asyncio
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any

from queryserver import errors
from queryserver.engines.protocol import (
    SAMPLE_ROWS,
    EngineSession,
    FunctionDescription,
    SampleKind,
    TableColumn,
    TableDescription,
    TableSummary,
)
from queryserver.engines.sessions import ended, submitted

MAX_ROWS = 200_000
"""More than any list of names may hold, so that a caller that cuts it knows that there was more."""

MAX_BYTES = 128 * 1024 * 1024
_SLICE_ROWS = 2_000
"""Turning so many rows into Python's values takes a few milliseconds of the event loop."""

Row = tuple[Any, ...]
"""Cells as Arrow's `to_pylist` gives them."""


class Folding(Enum):
    """What an engine makes of a name without quotes."""

    LOWER = auto()
    UPPER = auto()
    CASELESS = auto()
    """Kept as written, found without regard to case."""


def spellings(wanted: str, folding: Folding) -> tuple[str, ...]:
    """The names to search, the exact one first; with CASELESS the engine or `choose` must compare."""
    folded = {Folding.LOWER: wanted.lower(), Folding.UPPER: wanted.upper(), Folding.CASELESS: wanted}[folding]
    return (wanted,) if folded == wanted else (wanted, folded)


def choose(wanted: str, names: Iterable[str], folding: Folding) -> str | None:
    """The one of `names` that is meant: exactly that, else folded; None when there is none, or more than one."""
    present: Collection[str] = names if isinstance(names, (set, frozenset, dict)) else list(names)
    for spelling in spellings(wanted, folding):
        if spelling in present:
            return spelling
    if folding is not Folding.CASELESS:
        return None
    alike = {name for name in present if name.casefold() == wanted.casefold()}
    return alike.pop() if len(alike) == 1 else None


async def summaries(rows: Sequence[Row], make: Callable[[Row], TableSummary]) -> list[TableSummary]:
    """A summary of each row; other tasks run after each few thousand."""
    made = list[TableSummary]()
    for start in range(0, len(rows), _SLICE_ROWS):
        made += map(make, rows[start : start + _SLICE_ROWS])
        await asyncio.sleep(0)
    return made


async def read_rows(session: EngineSession, statement: str, *, max_rows: int = MAX_ROWS) -> list[Row]:
    """The rows of a query by position, at most the first `max_rows`; none for a statement without result set.

    When the caller is cancelled, the statement is stopped at the engine. Raises EngineUnavailable also for a connection
    that is lost on the way, StatementRejected also for an answer of more than `MAX_BYTES`.
    """
    try:
        handle = await session.submit(statement)
        async with submitted(session, handle):
            if not (await ended(session, handle)).has_result_set:
                return []
            rows, size = list[Row](), 0
            async for batch in session.batches(handle):
                size += batch.nbytes
                if size > MAX_BYTES:
                    raise errors.StatementRejected("The engine's answer about its metadata is too large.")
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
    """The functions of rows `name, arguments, return type, whether it is built in, description`, in order.

    Each different list of arguments is a line of the signature; the rest is that of the first overload.
    """
    found = dict[str, list[Row]]()
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return [
        FunctionDescription(
            name=name,
            signature="\n".join(dict.fromkeys(f"{name}({arguments})" for _, arguments, *_ in same)),
            return_type=same[0][2] or "",
            is_builtin="BUILTIN" if same[0][3] else "",
            is_persistent=is_persistent,
            description=same[0][4] or "",
        )
        for name, same in found.items()
    ]


def table_columns(rows: Iterable[Row], *, is_view: bool) -> tuple[TableColumn, ...]:
    """Of rows `name, type, comment, nullable, default, is numbered, is in the primary key, is in the partition key`.

    A default from a sequence numbers a column too. Whether a view's column is numbered, or may be NULL, is not known.
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


def nulls_last(value: str, direction: str) -> str:
    """Sort keys, as standard SQL says it."""
    return f"{value} {direction} NULLS LAST"


def sample_query(
    source: str, value: str | None, kind: SampleKind, *, order: Callable[[str, str], str] = nulls_last
) -> str:
    """Rows of `source`, or values of one of its columns; both are quoted already.

    `order` makes the sort keys of a value and ASC or DESC, with NULL last.
    """
    if value is None:
        return f"SELECT * FROM {source} LIMIT {SAMPLE_ROWS}"
    if kind in (SampleKind.MAX, SampleKind.MIN):
        direction = "DESC" if kind is SampleKind.MAX else "ASC"
        return f"SELECT {value} FROM {source} ORDER BY {order(value, direction)} LIMIT 1"
    return f"SELECT DISTINCT {value} FROM {source} ORDER BY {order(value, 'ASC')} LIMIT {SAMPLE_ROWS}"


class SessionCatalog:
    """What the catalogs share that query a session. `no_nested`: why values within a column are not sampled."""

    no_nested = ""
    mark = '"'
    """Around names."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session

    async def sample_statement(
        self, table: TableDescription, column: str | None, nested: Sequence[str], kind: SampleKind
    ) -> str:
        if nested:
            raise errors.NotSupported(self.no_nested)
        value = None if column is None else identifier(column, mark=self.mark)
        return sample_query(self._full_name(table), value, kind, order=self._order)

    def _full_name(self, table: TableDescription) -> str:
        """In quotes."""
        return qualified(*filter(None, (table.database, table.name)), mark=self.mark)

    def _order(self, value: str, direction: str) -> str:
        return nulls_last(value, direction)

    async def _rows(self, query: str) -> list[Row]:
        with metadata_errors():
            return await read_rows(self._session, query)


def identifier(name: str, *, mark: str = '"') -> str:
    """The name between quote characters; those within it are doubled."""
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"


def qualified(*names: str, mark: str = '"') -> str:
    """Quoted names joined by points: `"shop"."items"`."""
    return ".".join(identifier(name, mark=mark) for name in names)


def backquoted(*names: str) -> str:
    """As `qualified`, for MySQL and the family of Hive."""
    return qualified(*names, mark="`")


def literal(text: str) -> str:
    """A string constant where a backslash is a character like any other (standard SQL)."""
    return "'" + text.replace("'", "''") + "'"


def escaped_literal(text: str) -> str:
    r"""A string constant where a backslash escapes the next character: `'` becomes `\'`, a backslash two."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@contextmanager
def metadata_errors() -> Generator[None]:
    """Around queries on metadata: StatementDenied, a right that the user lacks, becomes EngineForbidden."""
    try:
        yield
    except errors.StatementDenied as error:
        raise errors.EngineForbidden(error.message) from error
