"""Some rows of a table, some values of a column (Contract editor 10.3)."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from queryserver.domain.catalog import SAMPLE_ROWS, SampleKind
from queryserver.domain.connector import Connector
from queryserver.domain.errors import InvalidParameter
from queryserver.domain.result import Column
from queryserver.domain.user import User
from queryserver.formats.cells import render_page
from queryserver.interfaces.statements import Recorded
from queryserver.services.connectors import Connectors
from queryserver.services.metadata import direct, questions
from queryserver.services.metadata.lookups import LookUps
from queryserver.services.statements.submission import Submission, Submissions

HELLO = "SELECT 'Hello World!'"
NOT_SAMPLED = "Rows of views are not sampled on this connector."
_THREAD_ABOVE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Sampled:
    """What to sample: a table, a column of it, or the values at the path `nested` below that."""

    database: str
    table: str
    column: str | None = None
    nested: Sequence[str] = ()
    kind: SampleKind = SampleKind.DEFAULT


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows as JSON; `message` says why there are none where there could be."""

    columns: Sequence[Column] = ()
    rows_json: bytes = b"[]"
    message: str = ""


class Samples:
    """Reads table data as the caller, within `sample_timeout_s`; nothing of it is kept.

    All methods raise UnknownDialect, NotSupported, CredentialsRequired, EngineError, DatabaseNotFound, TableNotFound,
    ColumnNotFound, NestedPathNotFound.
    """

    def __init__(
        self,
        lookups: LookUps,
        connectors: Connectors,
        submissions: Submissions,
        threads: Executor,
        *,
        max_bytes: int,
    ) -> None:
        self._lookups = lookups
        self._connectors = connectors
        self._submissions = submissions
        self._threads = threads
        self._max_bytes = max_bytes

    async def read(self, user: User, connector: str | None, wanted: Sampled, *, escape: bool) -> Sample:
        """The rows. Raises EngineTimeout."""
        _require_column(wanted)
        source = self._connectors.resolve(user, connector)

        async def reading() -> Sample:
            statement = await self._statement(user, source, wanted)
            if statement is None:
                return Sample(message=NOT_SAMPLED)
            return await self._rows(user, source, statement, escape=escape)

        return await self._lookups.within(source.limits.sample_timeout, reading)

    async def hello(self, user: User, connector: str | None, *, escape: bool) -> Sample:
        """One row from the engine, to see that it answers; no table is read. Raises EngineTimeout."""
        source = self._connectors.resolve(user, connector)
        reading = partial(self._rows, user, source, HELLO, escape=escape)
        return await self._lookups.within(source.limits.sample_timeout, reading)

    async def start(
        self, user: User, connector: str | None, wanted: Sampled | None, *, timeout_s: int | None
    ) -> Recorded | None:
        """The same as an operation that is in nobody's history; None for a view that is not sampled.

        `wanted` None: as `hello`. Raises TooManyStatements, QuotaExceeded.
        """
        if wanted is not None:
            _require_column(wanted)
        source = self._connectors.resolve(user, connector)
        if wanted is None:
            statement = HELLO
        else:
            finding = partial(self._statement, user, source, wanted)
            statement = await self._lookups.within(source.limits.metadata_timeout, finding)
        if statement is None:
            return None
        submission = Submission(
            connector=source.key, script=statement, limit=SAMPLE_ROWS, timeout_s=timeout_s, in_history=False
        )
        return await self._submissions.submit(user, submission)

    async def _statement(self, user: User, source: Connector, wanted: Sampled) -> str | None:
        """The engine's query; None for a view where views are not sampled."""
        async with self._lookups.catalog(user, source) as catalog:
            table = await catalog.table(wanted.database, wanted.table)
            if wanted.column is None:
                name = None
            else:
                column = questions.column_of(table, wanted.column)
                questions.nested_type(column, wanted.nested)
                name = column.name
            if table.kind.is_view and not source.limits.sample_views:
                return None
            return await catalog.sample_statement(table, name, wanted.nested, wanted.kind)

    async def _rows(self, user: User, source: Connector, statement: str, *, escape: bool) -> Sample:
        async with self._lookups.session(user, source) as session:
            answer = await direct.run(session, statement, max_rows=SAMPLE_ROWS)
        render = partial(render_page, answer.rows, columns=answer.columns, escape=escape, max_bytes=self._max_bytes)
        if sum(batch.nbytes for batch in answer.rows) <= _THREAD_ABOVE_BYTES:
            return Sample(answer.columns, render().json)
        rendered = await asyncio.get_running_loop().run_in_executor(self._threads, render)
        return Sample(answer.columns, rendered.json)


def _require_column(wanted: Sampled) -> None:
    if wanted.column is None and wanted.kind is not SampleKind.DEFAULT:
        raise InvalidParameter(f"operation: {wanted.kind.value} needs a column.")
