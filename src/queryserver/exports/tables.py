"""Sends the rows of an export into a table of a connector (Contract exports 8).

The rows are converted batch by batch and loaded as an import loads them: into a staging table, which is published once
all rows are in it. The claim of the statement is checked just before that, and the publication is recorded. From then
on, the export is never run again, because the rows may already be in the table.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

import pyarrow as pa

from queryserver import errors
from queryserver.catalog.lookups import Lookups
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines.protocol import LoadingEngine, StatementContext, TableLoad, TableLoader, TableName
from queryserver.errors.files import invalid_columns, invalid_dialect, replacing_not_supported, table_exists
from queryserver.errors.statements import rejected_by_rule
from queryserver.exports.model import ExportSummary, present_rights, require_download
from queryserver.exports.table_columns import TableColumns, check_names, table_columns
from queryserver.formats.arrow import Column, split_batch
from queryserver.identity.model import User
from queryserver.identity.users import UserDirectory
from queryserver.imports.model import REPLACING_DIALECTS, TABLE_DIALECTS, name_limit
from queryserver.imports.plans import is_known_table
from queryserver.imports.repository import StatementLedger, UnfinishedTables
from queryserver.statements.job_session import JobReport
from queryserver.statements.model import Assignment, Claim
from queryserver.statements.result_reader import ResultReader
from queryserver.statements.session_options import SessionCredentials

KIND = "table"
"""The `kind` of the destinations in this module."""

_FIRST_BYTES = 4 * 1024 * 1024
"""How many bytes of rows are read before the types of the columns are chosen."""
_BATCH_BYTES = 4 * 1024 * 1024  # loaders receive batches of about this size (engines/protocol.py)
_REPORT_EVERY_S = 10.0
_UNKNOWN_PROGRESS = 50


class IfExists(StrEnum):
    """What an export does if the table exists."""

    ERROR = "error"
    APPEND = "append"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class TableDestination:
    """The table of an export. `columns` are the names of its columns; None derives them from the result."""

    connector: str
    """The key of the connector; in a request, any of its names."""
    database: str | None
    table: str
    if_exists: IfExists = IfExists.ERROR
    columns: tuple[str, ...] | None = None

    @property
    def target(self) -> TableName:
        return TableName(self.database, self.table)

    @property
    def target_name(self) -> str:
        return self.table if self.database is None else f"{self.database}.{self.table}"

    def exists_error(self) -> errors.QueryServerError:
        return table_exists(f"The table {self.target_name} already exists.")

    def stored(self) -> Mapping[str, Any]:
        return {
            "kind": KIND,
            "connector": self.connector,
            "database": self.database,
            "table": self.table,
            "if_exists": self.if_exists.value,
            "columns": None if self.columns is None else list(self.columns),
        }

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> Self:
        names = stored["columns"]
        return cls(
            stored["connector"],
            stored["database"],
            stored["table"],
            IfExists(stored["if_exists"]),
            None if names is None else tuple(names),
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TableExports:
    """Checks and opens the tables of exports.

    `begin_publishing` checks the claim of a statement and records the publication. `try_acquire` acquires the named
    data, such as an embedded database, for this process if possible, and returns whether this process holds them.
    """

    connectors: Connectors
    users: UserDirectory
    credentials: SessionCredentials
    lookups: Lookups
    reader: ResultReader
    unfinished: UnfinishedTables
    threads: Executor
    try_acquire: Callable[[str], Awaitable[bool]]
    begin_publishing: Callable[[Claim], Awaitable[bool]]
    is_enabled: bool = True

    def target(self, user: User, destination: TableDestination) -> "TableTarget":
        """Return the destination with the key of its connector, checked as far as possible without the engine.

        Raises UnknownDialect, invalid_dialect, replacing_not_supported, InvalidParameter, invalid_columns.
        """
        return self._target(self.connectors.resolve(user, destination.connector), destination)

    def stored_target(self, user: User, destination: TableDestination) -> "TableTarget":
        """Check a stored destination again. Raises the errors of `target`.

        If the user may no longer use its connector, the rows must not go to another connector of the same dialect.
        """
        return self._target(self.connectors.exact(user, destination.connector), destination)

    def _target(self, connector: Connector, destination: TableDestination) -> "TableTarget":
        dialect, limit = connector.dialect, name_limit(connector.dialect)
        if dialect not in TABLE_DIALECTS or not isinstance(self.connectors.engine(connector), LoadingEngine):
            raise invalid_dialect(
                f"{connector.nice_name} ({dialect}) does not support creating tables."
                f" Supported dialects: {', '.join(sorted(TABLE_DIALECTS))}."
            )
        if destination.if_exists is IfExists.REPLACE and dialect not in REPLACING_DIALECTS:
            raise replacing_not_supported(f"Replacing tables is not supported in {dialect}. Drop the table first.")
        if not (destination.table.strip() and limit.allows(destination.table)) or "\0" in destination.table:
            raise errors.InvalidParameter(f"table must be a name of 1 to {limit} in {dialect}.")
        if destination.columns is not None and (reason := check_names(destination.columns, dialect)) is not None:
            raise invalid_columns(f"columns: {reason}")
        return TableTarget(self, connector, replace(destination, connector=connector.key))

    async def check(self, user: User, connector: Connector, destination: TableDestination) -> None:
        """Check, before the statement is recorded, that the user may write the table.

        Raises download_disabled, PermissionDenied, EngineJwtRequired, CredentialsRequired, table_exists.
        """
        self.require_rights(user, connector)
        self.credentials.require_token(user, connector)
        await self.credentials.required(user, connector)
        is_new = destination.if_exists is IfExists.ERROR
        if is_new and await is_known_table(self.lookups, user, connector, destination.target):
            raise destination.exists_error()

    def require_rights(self, user: User, connector: Connector) -> None:
        """Raise download_disabled or PermissionDenied if the user may not write into tables of the connector."""
        require_download(user, is_enabled=self.is_enabled)
        if connector.read_only:
            raise errors.PermissionDenied(f"The connector {connector.nice_name} is read-only.")

    @asynccontextmanager
    async def open(self, assignment: Assignment, user: User) -> AsyncGenerator["TableSink"]:
        """Open the table of a statement, with the rights that the user has now.

        Raises EngineError, rejected_by_rule, and the errors of `target` and `check`.
        """
        user = await present_rights(self.users, user)
        target = self.stored_target(user, TableDestination.of_stored(assignment.destination or {}))
        connector, destination = target.target_connector, target.destination
        claim = assignment.claim
        ledger = StatementLedger(self.unfinished, claim.statement_id, assignment.user_id, connector.key)
        known, total = list[pa.Schema](), None
        if assignment.source_operation is not None:
            status, _, _ = await self.reader.overview(user, assignment.source_operation)
            known = [schema async for schema in self.reader.schemas(status.id, status.rows)]
            total = status.rows
        sink = TableSink(self, assignment, user, destination, connector, ledger, known, total)
        if (data := self.connectors.data_of(connector)) is not None and not await self.try_acquire(data):
            raise rejected_by_rule(
                f"Another server process has the database of {connector.nice_name} open. Run the statement without"
                " `into`, and export its result."
            )
        async with sink.loader() as loader:
            await sink.check(loader)
        yield sink


@dataclass(frozen=True, slots=True)
class TableTarget:
    """Implements `Destination` for a table."""

    exports: TableExports
    target_connector: Connector
    destination: TableDestination

    @property
    def connector(self) -> str:
        return self.target_connector.key

    @property
    def path(self) -> str:
        return self.destination.target_name

    def stored(self) -> Mapping[str, Any]:
        return self.destination.stored()

    async def check(self, user: User) -> None:
        await self.exports.check(user, self.target_connector, self.destination)


@dataclass(frozen=True, slots=True, eq=False)
class TableSink:
    """Implements `RowSink` for one table.

    `known` are the types of all batches, and `total` is the number of rows, if they are known in advance.
    """

    exports: TableExports
    assignment: Assignment
    user: User
    destination: TableDestination
    connector: Connector
    ledger: StatementLedger
    known: Sequence[pa.Schema] = ()
    total: int | None = None

    @asynccontextmanager
    async def loader(self) -> AsyncGenerator[TableLoader]:
        """Open a loader with the rights that the user has now: rows may arrive hours after the sink was opened.

        Raises EngineError, PermissionDenied, UnknownDialect, download_disabled.
        """
        exports = self.exports
        user = await present_rights(exports.users, self.user)
        exports.require_rights(user, exports.stored_target(user, self.destination).target_connector)
        options = await exports.credentials.options(user, self.connector, token=self.assignment.token)
        async with exports.connectors.using(self.connector) as engine:
            if not isinstance(engine, LoadingEngine):
                raise rejected_by_rule(f"Tables of {self.connector.nice_name} cannot be the destination of an export.")
            async with engine.loader(user, options) as loader:
                yield loader

    async def check(self, loader: TableLoader) -> None:
        """Drop what an earlier attempt of this export has left, and refuse a table that exists but must not."""
        for table in await self.exports.unfinished.of_statement(self.assignment.claim.statement_id):
            await loader.drop(table)
            await self.ledger.remove(table)
        if self.destination.if_exists is IfExists.ERROR and await loader.exists(self.destination.target):
            raise self.destination.exists_error()

    async def write(
        self, columns: Sequence[Column], batches: AsyncIterator[pa.RecordBatch], report: JobReport
    ) -> ExportSummary:
        run, names = asyncio.get_running_loop().run_in_executor, self.destination.columns
        first = () if self.known else await _first_batches(batches)
        schemas = self.known or [batch.schema for batch in first]

        def choose() -> TableColumns:
            return table_columns(columns, schemas, self.connector.dialect, names=names)

        made = await run(self.exports.threads, choose)
        name = f"{self.connector.nice_name}, table {self.destination.target_name}"
        report.lines.append(f"Writing rows to {name}.")
        report.lines.extend(f'Column "{source}" is named "{target}" in the table.' for source, target in made.renamed)
        async with self.loader() as loader, aclosing(self._rows(made, first, batches, report)) as rows:
            is_append = self.destination.if_exists is IfExists.APPEND
            load = self._load(made, append=is_append and await loader.exists(self.destination.target))
            loaded = await loader.load(load, rows, self.ledger)
            schema = json.dumps([{"name": one.name, "type": one.declared} for one in load.columns], ensure_ascii=False)
            summary = ExportSummary(loaded, schema, table=self.destination.target_name)
            # Set before the next await: the rows are in the table, so a late cancellation changes nothing.
            report.summary = summary.batch
        report.lines.append(f"Wrote {loaded} rows to {name}.")
        return summary

    def _load(self, made: TableColumns, *, append: bool) -> TableLoad:
        """Return the parameters for the loader. Each attempt of the export has a staging table of its own."""
        claim, destination = self.assignment.claim, self.destination
        return TableLoad(
            target=destination.target,
            staging=TableName(destination.database, f"_qs_import_{claim.statement_id.hex}_{claim.fence}"),
            columns=made.load_columns,
            append=append,
            replace=destination.if_exists is IfExists.REPLACE,
            context=StatementContext(
                self.user.username, str(self.assignment.client_operation_id), self.assignment.connector
            ),
        )

    async def _rows(
        self,
        made: TableColumns,
        first: Sequence[pa.RecordBatch],
        batches: AsyncIterator[pa.RecordBatch],
        report: JobReport,
    ) -> AsyncGenerator[pa.RecordBatch]:
        """Yield the rows for the loader. Before the end, record that they are about to be published."""
        run, rows, reported_at = asyncio.get_running_loop().run_in_executor, 0, time.monotonic()
        async for batch in _joined(first, batches):
            for piece in split_batch(batch, _BATCH_BYTES):
                yield await run(self.exports.threads, made.convert, piece)
            rows += batch.num_rows
            report.progress = _UNKNOWN_PROGRESS if self.total is None else min(99, 100 * rows // max(self.total, 1))
            if time.monotonic() - reported_at >= _REPORT_EVERY_S:
                reported_at = time.monotonic()
                known = "" if self.total is None else f" of {self.total}"
                report.lines.append(f"Read {rows}{known} rows.")
        if not await self.exports.begin_publishing(self.assignment.claim):
            raise errors.OutcomeUnknown("The export was canceled, or another server has taken it over.")


async def _first_batches(batches: AsyncIterator[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """Read the first rows, whose types determine the columns."""
    first, size = list[pa.RecordBatch](), 0
    while size < _FIRST_BYTES and (batch := await anext(batches, None)) is not None:
        first.append(batch)
        size += batch.nbytes
    return first


async def _joined(
    first: Sequence[pa.RecordBatch], rest: AsyncIterator[pa.RecordBatch]
) -> AsyncGenerator[pa.RecordBatch]:
    for batch in first:
        yield batch
    async for batch in rest:
        yield batch
