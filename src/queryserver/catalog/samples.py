"""Returns some rows of a table, or some values of a column (Contract editor 10.3)."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from queryserver.catalog.lookups import Lookups
from queryserver.catalog.queries import column_of, nested_type
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines.protocol import SAMPLE_ROWS, SampleKind
from queryserver.engines.sessions import run
from queryserver.errors.base import InvalidParameter
from queryserver.errors.statements import EngineForbidden, PageRowTooLarge, StatementDenied
from queryserver.formats.arrow import CellForm, Column, ResultType
from queryserver.formats.cells import RenderedRows, render_page, rendering_memory
from queryserver.identity.model import User
from queryserver.platform.byte_budget import ByteBudget
from queryserver.statements.model import RecordedStatement
from queryserver.statements.submission import Submission, Submissions

HELLO = "SELECT 'Hello World!'"
NOT_SAMPLED = "Views cannot be sampled with this connector."
_ROWS = "sample"
_STATEMENT = "sample-statement"
_THREAD_ABOVE_BYTES = 1024 * 1024
_THREAD_ABOVE_COLUMNS = 40


@dataclass(frozen=True, slots=True)
class SampleTarget:
    """The object to sample: a table, one of its columns, or the values at the path `nested` within the column."""

    database: str
    table: str
    column: str | None = None
    nested: Sequence[str] = ()
    kind: SampleKind = SampleKind.DEFAULT


@dataclass(frozen=True, slots=True)
class TableSample:
    """Sampled rows as JSON. `message` explains why rows are missing."""

    columns: Sequence[Column] = ()
    rows_json: bytes = b"[]"
    message: str = ""


@dataclass(slots=True, eq=False)
class Samples:
    """Reads table data with the caller's rights, within `sample_timeout_s`. Stores nothing.

    All methods raise UnknownDialect, NotSupported, CredentialsRequired, EngineError, database_not_found,
    TableNotFound, column_not_found, nested_path_not_found.
    """

    lookups: Lookups
    connectors: Connectors
    submissions: Submissions
    threads: Executor
    budget: ByteBudget
    max_bytes: int

    def __post_init__(self) -> None:
        self.lookups.forwarding.register(_ROWS, self._rows_here)
        self.lookups.forwarding.register(_STATEMENT, self._statement_here)

    async def read(self, user: User, connector: str | None, target: SampleTarget, form: CellForm) -> TableSample:
        _require_column(target)
        return await self._sample(user, self.connectors.resolve(user, connector), _arguments(target), form)

    async def hello(self, user: User, connector: str | None, form: CellForm) -> TableSample:
        """Run a constant query on the engine and return its row, as a connection test. Raises EngineTimeout."""
        return await self._sample(user, self.connectors.resolve(user, connector), None, form)

    async def start(
        self, user: User, connector: str | None, target: SampleTarget | None, *, timeout_s: int | None
    ) -> RecordedStatement | None:
        """Start the sample as an operation outside the history. Return None for a view if views are not sampled.

        Raises too_many_statements, quota_exceeded.
        """
        source = self.connectors.resolve(user, connector)
        statement: str | None = HELLO
        if target is not None:
            _require_column(target)
            budget = source.limits.metadata_timeout
            found = await self.lookups.run_at_holder(user, source, _STATEMENT, _arguments(target), budget=budget)
            statement = found.decode() or None
        if statement is None:
            return None
        submission = Submission(
            connector=source.key, script=statement, limit=SAMPLE_ROWS, timeout_s=timeout_s, in_history=False
        )
        return await self.submissions.submit(user, submission)

    async def _sample(self, user: User, source: Connector, target: list[Any] | None, form: CellForm) -> TableSample:
        budget = source.limits.sample_timeout
        arguments = [target, form.is_escaped, form.big_numbers_as_text]
        packed = await self.lookups.run_at_holder(user, source, _ROWS, arguments, budget=budget)
        head, _, rows = packed.partition(b"\n")
        columns, message = orjson.loads(head)
        return TableSample([Column(name, ResultType(kind), *more) for name, kind, *more in columns], rows, message)

    async def _rows_here(self, user: User, source: Connector, arguments: Sequence[Any]) -> bytes:
        """Return a line of JSON that describes the rows, followed by the rows."""
        target, *form_flags = arguments
        form = CellForm(*form_flags)
        statement = HELLO if target is None else (await self._statement_here(user, source, target)).decode()
        sample = await self._rows(user, source, statement, form) if statement else TableSample(message=NOT_SAMPLED)
        columns = [[one.name, one.type.value, one.native_type, one.comment] for one in sample.columns]
        return orjson.dumps([columns, sample.message]) + b"\n" + sample.rows_json

    async def _statement_here(self, user: User, source: Connector, arguments: Sequence[Any]) -> bytes:
        """Return the statement that samples the table. Empty for a view if views are not sampled."""
        database, name, column, nested, kind = arguments
        async with self.lookups.catalog(user, source) as catalog:
            table = await catalog.table(database, name)
            if column is not None:
                found = column_of(table, column)
                nested_type(found, nested)
                column = found.name
            if table.kind.is_view and not source.limits.sample_views:
                return b""
            return (await catalog.sample_statement(table, column, nested, SampleKind(kind))).encode()

    async def _rows(self, user: User, source: Connector, statement: str, form: CellForm) -> TableSample:
        try:
            async with self.lookups.session(user, source) as session:
                answer = await run(session, statement, max_rows=SAMPLE_ROWS, max_bytes=self.max_bytes)
        except StatementDenied as error:
            # A sample request names an object instead of a statement, so the error for objects applies.
            raise EngineForbidden(error.message) from error
        render = partial(
            render_page,
            answer.rows,
            columns=answer.columns,
            escape=form.is_escaped,
            max_bytes=self.max_bytes,
            big_numbers_as_text=form.big_numbers_as_text,
        )
        loop, is_narrow = asyncio.get_running_loop(), len(answer.columns) <= _THREAD_ABOVE_COLUMNS

        def measure() -> int:
            return sum(map(rendering_memory, answer.rows))

        size_bytes = measure() if is_narrow else await loop.run_in_executor(self.threads, measure)
        if is_narrow and size_bytes <= _THREAD_ABOVE_BYTES:
            return _sample(answer.columns, render(), self.max_bytes)
        reservation = await self.budget.reserve(user.id, size_bytes)
        try:
            rendered = await loop.run_in_executor(self.threads, render)
        finally:
            reservation.release()
        return _sample(answer.columns, rendered, self.max_bytes)


def _sample(columns: Sequence[Column], rendered: RenderedRows, max_bytes: int) -> TableSample:
    if not rendered.is_cut:
        return TableSample(columns, rendered.json)
    if not rendered.rows:
        raise PageRowTooLarge(row=None, limit_bytes=max_bytes)
    message = f"The sample ends before row {rendered.rows}, because it is limited to {max_bytes} bytes."
    return TableSample(columns, rendered.json, message)


def _arguments(target: SampleTarget) -> list[Any]:
    return [target.database, target.table, target.column, list(target.nested), target.kind.value]


def _require_column(target: SampleTarget) -> None:
    if target.column is None and target.kind is not SampleKind.DEFAULT:
        raise InvalidParameter(f"operation: {target.kind.value} requires a column.")
