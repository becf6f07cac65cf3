"""Implements an asyncpg connection and its statements, with error translation, inexpensive codecs and notices."""

import asyncio
import itertools
import re
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import asyncpg
import pyarrow as pa
from asyncpg.prepared_stmt import PreparedStatement

from queryserver import errors
from queryserver.engines.engine_messages import LogLines
from queryserver.engines.postgresql.catalog import literal
from queryserver.engines.postgresql.errors import replace_cancellation, statement_errors
from queryserver.engines.postgresql.parameters import PostgresqlValues, run_rows
from queryserver.engines.postgresql.records import RECORD, read_records, record_text
from queryserver.engines.postgresql.rows import UTF_8, WireFormat, WireRows, wire_batch, wire_format
from queryserver.engines.postgresql.transactions import Brackets, brackets, name_command, statement_name
from queryserver.engines.postgresql.values import (
    NESTED,
    DeclaredType,
    UnrepresentableValue,
    ValueKind,
    arrow_type,
    columns,
    declare,
    dimensions_of,
    native_as_text,
    read_native,
    read_nested,
)
from queryserver.engines.postgresql.wire import (
    NO_MODIFIER,
    CompletionTap,
    Field,
    RefusalTap,
    RowDescriptionTap,
    RowReceiver,
)
from queryserver.engines.protocol import SessionOptions, StatementContext
from queryserver.engines.record_batches import ColumnReader
from queryserver.engines.sessions import CANCEL_INTERVAL_S, DriverStatement
from queryserver.engines.statement_tags import trace_comment
from queryserver.platform.asyncpg_internals import Portal, TappedConnection
from queryserver.sql.effects import read_only_transaction_refusal
from queryserver.sql.markers import BoundStatement
from queryserver.sql.scanner import first_word

_DRIVER_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

_NATIVE = frozenset({16, 17, 19, 20, 21, 23, 25, 26, 114, 700, 701, 705, 1042, 1043})
"""bool, bytea, name, integers, oid, floats and text types, which asyncpg requests in the format of `wire_format`."""
_AS_INTEGERS = {1082: "int4", 1114: "int8", 1184: "int8"}
"""Codecs that request date, timestamp and timestamptz as days or microseconds since 2000, which preserves infinity."""

_COMMAND_TAG = re.compile(r"(?:INSERT \d+|UPDATE|DELETE|MERGE|SELECT) (\d+)")
_COPY_STREAM = re.compile(r"\b(?:FROM\s+STDIN|TO\s+STDOUT)\b", re.IGNORECASE)
_CHANGES_ROWS = ("INSERT", "UPDATE", "DELETE", "MERGE")


class PostgresqlConnection(TappedConnection):
    """A connection that returns complete column descriptions and passes notices to `on_notice`."""

    clean_up_s: float = 5
    """How long the server may take to confirm that a transaction has ended or the connection is closed."""

    def __init__(self, protocol: asyncio.Protocol, transport: asyncio.Transport, *rest: Any) -> None:
        super().__init__(protocol, transport, *rest)
        self.rows = RowReceiver(protocol, transport)
        self.receive_by(self.rows)
        self._names = itertools.count(1)
        self._as_text = set[int]()
        self.usual_name: str | None = None
        """The value of `application_name` after the login."""
        self._given_names = set[str]()
        """Values that this service gave it, to one of which the end of an open transaction may return it."""
        self.on_notice: Callable[[str], None] | None = None
        self.add_log_listener(self._notice)
        for oid, codec in _AS_INTEGERS.items():
            self.decode_as(codec, oid)

    def keeps_own_name(self) -> bool:
        """Return whether a user has set `application_name` in this session. Servers report each change of it."""
        name = self.current_name
        if not self.is_in_transaction():
            self._given_names &= {name}
        return name not in {self.usual_name, None} and name not in self._given_names

    @property
    def current_name(self) -> str | None:
        """The current value of `application_name`, or None if the server does not report it."""
        return getattr(self.get_settings(), "application_name", None)

    def name_ahead(self, name: str) -> None:
        """Set `application_name` together with the next request, until the session is reset."""
        self._given_names.add(name)
        self.send_ahead(name_command(name))

    async def prepare_described(self, sql: str) -> tuple[PreparedStatement, tuple[Field, ...]]:
        """Prepare a statement without executing it. Return it and its columns, if it has a result set.

        The statement is named, so that the server detects table changes made before the rows are read.
        """
        known = _NATIVE | _AS_INTEGERS.keys() | self._as_text
        with self.tapped(RowDescriptionTap(self.receiver, known, self._read_as_text)) as tap:
            statement = await self.prepare(sql, name=f"queryserver_{next(self._names)}")
        columns = statement.get_attributes()
        described = tap.described or [(column.type.oid, NO_MODIFIER) for column in columns]
        return statement, tuple(
            Field(column.name, oid, modifier) for column, (oid, modifier) in zip(columns, described, strict=True)
        )

    async def type_names(self, oids: Sequence[int]) -> Sequence[str]:
        """Return type names for casts that do not truncate, such as `bpchar` (`character` would mean length 1)."""
        rows = await self.fetch(
            "SELECT pg_catalog.format_type(number, -1) AS name"
            " FROM unnest($1::text::oid[]) WITH ORDINALITY AS wanted (number, place) ORDER BY place",
            f"{{{','.join(map(str, oids))}}}",
        )
        return [row["name"] for row in rows]

    @contextmanager
    def watched(self) -> Generator["RefusalTap"]:
        """Wrap a COPY to detect a rejected row immediately; asyncpg detects it only when the COPY completes.

        Writing to a lost connection raises ConnectionResetError instead of the event loop's RuntimeError.
        """
        with self.tapped(RefusalTap(self.receiver)) as tap:
            try:
                yield tap
            except RuntimeError as error:
                if not tap.is_lost:
                    raise
                lost = "the server has closed the connection"
                raise ConnectionResetError(lost) from error

    def counted(self) -> AbstractContextManager["CompletionTap"]:
        """Wrap `executemany` to count changed rows, which asyncpg does not report."""
        return self.tapped(CompletionTap(self.receiver))

    def keep_alive(self, *, idle_s: int, interval_s: int, count: int) -> None:
        """Let the operating system detect a lost server; otherwise a statement would wait for it forever."""
        connected: socket.socket | None = self.transport.get_extra_info("socket")
        if connected is None or connected.family == socket.AF_UNIX:
            return
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)

    async def clean(self) -> bool:
        self.on_notice = None
        if self.is_closed():
            return False
        is_clean = not self.is_in_transaction() or await self.end_transaction()
        return is_clean and await self._confirms("DISCARD ALL")

    async def end_transaction(self) -> bool:
        """Roll back the open transaction, if any. Return False if the server did not confirm."""
        return await self._confirms("ROLLBACK")

    async def _confirms(self, command: str) -> bool:
        try:
            async with asyncio.timeout(self.clean_up_s):
                await self.execute(command)
        except _DRIVER_ERRORS:
            return False
        return True

    async def disconnect(self) -> None:
        """Close the connection, forcibly if the server does not respond."""
        self.on_notice = None
        self.rows.drop_rest()
        with suppress(*_DRIVER_ERRORS):
            await self.close(timeout=self.clean_up_s)

    def _read_as_text(self, oids: set[int]) -> None:
        """Receive values of these types in the server's text format (records in binary), for this module to convert.

        asyncpg would query the catalog for these types, and it cannot decode all of them.
        """
        if RECORD in oids:
            self.decode_as("bytea", RECORD)
        for oid in oids - {RECORD}:
            self.decode_as("text", oid, text=True)
        self._as_text |= oids

    def _notice(self, _connection: object, message: Any) -> None:
        if self.on_notice is not None:
            for line in f"{message.severity}:  {message.message}".splitlines():
                self.on_notice(line)


async def prepare_session(options: SessionOptions, role: str | None, connection: PostgresqlConnection) -> None:
    """Apply role, schema and settings, with one round trip for each that is set.

    The role must be set again because DISCARD ALL resets it.
    """
    connection.forget_statements()
    if role is not None:
        await connection.execute(f"SET ROLE {role}")
    if options.settings:
        calls = [f"set_config({literal(k)}, {literal(v)}, false)" for k, v in options.settings.items()]
        await connection.execute(f"SELECT {', '.join(calls)}")
    if options.database is not None:
        schema = literal(options.database)
        tag = await connection.execute(
            f"SELECT set_config('search_path', quote_ident({schema}), false)"  # noqa: S608 the name is quoted
            f" FROM pg_catalog.pg_namespace WHERE nspname = {schema}"
        )
        if tag != "SELECT 1":
            raise errors.StatementRejected(f'schema "{options.database}" does not exist')


@dataclass(frozen=True, slots=True)
class Plan:
    """How the text of a statement becomes one that the server only plans."""

    prefix: str = ""
    skipped: int = 0
    """How many characters are left out at the start of the statement."""


class PostgresqlStatement(DriverStatement):
    """A statement whose portal is open from `execute` until the last row is read or `end` is called.

    `interrupt_process` cancels the statement that a server process is running, given its PID. If `tags` is set, the
    server's views show the context. `plan` lets the server plan the statement in place of executing it.
    """

    def __init__(
        self,
        connection: PostgresqlConnection,
        sql: str | BoundStatement,
        context: StatementContext,
        *,
        interrupt_process: Callable[[int], Awaitable[None]],
        tags: bool = True,
        read_only: bool = False,
        plan: Plan | None = None,
        canceled: Callable[[], errors.EngineError] | None = None,
    ) -> None:
        self._canceled = canceled
        self.log_lines = notices = LogLines()
        self._connection = connection
        self._values: PostgresqlValues | None = None
        self._sent: Sequence[str] = ()
        self._parameter_rows: BoundStatement | None = None
        if isinstance(sql, BoundStatement):
            self._parameter_rows = sql if sql.rows else None
            self._values = PostgresqlValues(sql.rows[0] if sql.rows else sql)
            self._sent, sql = self._values.texts, self._values.sql()
        self._sql = sql
        self._keyword = first_word(self._sql)
        self._interrupt_process = interrupt_process
        self._read_only = read_only or context.read_only or plan is not None
        self._plan = plan
        self._name = statement_name(context) if tags and not connection.keeps_own_name() else ""
        # Hints of the extension pg_hint_plan are read only from the first comment.
        self._before = plan.prefix if plan else trace_comment(context) if tags and "/*+" not in sql else ""
        self._readers: Sequence[ColumnReader] = ()
        self._names: Sequence[str] = ()
        self._prepared: PreparedStatement | None = None
        self._formats = tuple[WireFormat, ...]()
        self._encoding = UTF_8
        self._portal: _CollectingPortal | None = None
        self._brackets: Brackets | None = None
        self._in_use = asyncio.Lock()
        self._rows_read = 0
        self._whole = WireRows()
        connection.on_notice = notices.add_line

    async def execute(self, raise_if_stopped: Callable[[], None]) -> None:
        if self._keyword == "COPY" and _COPY_STREAM.search(self._sql):
            raise errors.StatementRejected("COPY FROM STDIN and COPY TO STDOUT are not supported: there is no stream")
        connection = self._connection
        if self._read_only:
            if self._plan is None and (refusal := read_only_transaction_refusal(self._sql, "postgresql")):
                raise errors.StatementRejected(refusal)
            await self._begin()
        with self._errors(started=False):
            prepared, fields = await self._prepare(self._sql, self._values)
            declared = await declare(connection, fields) if fields else ()
            if self._parameter_rows is None:
                self.columns = columns(fields, declared)
        self._names = [field.name for field in fields]
        self._readers = list(map(column_reader, self._names, declared))
        self._formats = tuple(wire_format(field.type_oid) for field in fields)
        self._encoding = connection.text_encoding
        if self._parameter_rows is not None:
            raise_if_stopped()
            self._send_name()
            with self._errors(started=True):
                self.modified_rows = await run_rows(connection, self._parameter_rows, self._prepare)
            return
        if not fields or self._keyword == "CALL":
            raise_if_stopped()
            # No transaction is opened here, because the server would then refuse a COMMIT inside a procedure. A
            # procedure's result is a single row.
            connection.rows.collect(in_chunks=False)
            if not fields:
                connection.rows.drop_rest()
            self._send_name()
            with (
                replace_cancellation(self._canceled),
                refusals(connection.rows, self._names),
                self._errors(started=True),
            ):
                try:
                    await prepared.fetch(*self._sent)
                finally:
                    self._whole = connection.rows.take_rest()
            if tag := _COMMAND_TAG.match(prepared.get_statusmsg() or ""):
                self.modified_rows = int(tag[1])
            await self.end(keep=True)
            return
        self._prepared = prepared
        await self._begin()

    async def _begin(self) -> None:
        """Open the transaction or savepoint of the statement, unless it is open or the session has a transaction."""
        self.is_open = True
        is_in_transaction = self._connection.is_in_transaction()
        if self._brackets is not None or (is_in_transaction and not self._read_only):
            self._send_name()
            return
        around = brackets(read_only=self._read_only, is_in_transaction=is_in_transaction, name=self._name)
        if not is_in_transaction:
            self._brackets = around  # a cancel request may arrive after BEGIN, before the name is set
        with self._errors(started=False):
            await self._connection.execute(around.begin)
        self._brackets = around

    def _send_name(self) -> None:
        """Name the statement if no transaction does."""
        if self._name and self._brackets is None:
            self._connection.name_ahead(self._name)

    def _errors(self, *, started: bool) -> AbstractContextManager[None]:
        return statement_errors(started=started, before=len(self._before))

    async def _prepare(self, sql: str, values: PostgresqlValues | None) -> tuple[PreparedStatement, tuple[Field, ...]]:
        connection = self._connection
        prepared, fields = await connection.prepare_described(self._text(sql))
        wanted = prepared.get_parameters()
        if values is not None and values.has_other_types(wanted):
            names = await connection.type_names([one.oid for one in wanted])
            prepared, fields = await connection.prepare_described(self._text(values.sql(names)))
            wanted = prepared.get_parameters()
        sent = len(values.texts) if values is not None else 0
        if len(wanted) != sent:
            raise errors.StatementRejected(f"there is no parameter ${sent + 1}")
        return prepared, fields

    def _text(self, sql: str) -> str:
        return self._before + (sql if self._plan is None else sql[self._plan.skipped :])

    async def fetch(self, count: int) -> WireRows:
        """Return more rows, at most a few MiB. After the last row, the transaction is committed.

        Raises cell_too_large, RowTooLarge.
        """
        if self._prepared is None:
            rows, self._whole = self._whole, WireRows()
            return rows
        receiver = self._connection.rows
        async with self._in_use:
            if not self.is_open:
                return WireRows()
            refused = refusals(receiver, self._names, self._rows_read)
            with replace_cancellation(self._canceled), refused, self._errors(started=True):
                if self._portal is None:
                    self._portal = _CollectingPortal(self._connection, self._prepared, self._sent)
                rows = await self._portal.rows(count)
            self._rows_read += len(rows)
            if self._portal.is_exhausted and not self._portal.is_busy:
                await self._end(keep=True)
            return rows

    def size_bytes(self, rows: WireRows) -> int:
        return rows.size

    def read(self, rows: WireRows) -> pa.RecordBatch:
        return wire_batch(rows, self._names, self._formats, self._readers, encoding=self._encoding)

    async def interrupt(self) -> None:
        if not self._connection.is_closed():
            await self._interrupt_process(self._connection.get_server_pid())

    def was_interrupted(self, error: errors.EngineError) -> bool:
        return isinstance(error.__cause__, asyncpg.QueryCanceledError)

    async def end(self, *, keep: bool) -> None:
        async with self._in_use:
            if self.is_open:
                await self._end(keep=keep)

    async def _end(self, *, keep: bool) -> None:
        self.is_open = False
        if self._keyword in _CHANGES_ROWS:
            # asyncpg does not expose a portal's command tag, but every changed row was returned.
            self.modified_rows = self._rows_read
        try:
            if self._portal is not None:
                await self._portal.drop_rest(None if keep else self.interrupt)
            if self._connection.is_closed():
                return
            with self._errors(started=True):
                if self._brackets is not None:
                    await self._connection.execute(self._brackets.keep if keep else self._brackets.undo)
                elif self._portal is not None:
                    await self._portal.close()
        except BaseException:
            # Otherwise the next statements of the session would run in this transaction, which is never committed.
            is_busy = self._portal is not None and self._portal.is_busy
            if is_busy or (self._brackets is not None and self._connection.is_in_transaction()):
                self._connection.terminate()
            raise


class _CollectingPortal(Portal):
    """A portal whose rows are collected from the connection instead of being decoded by asyncpg."""

    def __init__(self, connection: PostgresqlConnection, prepared: PreparedStatement, values: Sequence[str]) -> None:
        super().__init__(connection, prepared, values)
        self._receiver = connection.rows
        self._request: asyncio.Task[None] | None = None
        self._had_chunk = False  # whether the current request has yielded a chunk

    @property
    def is_busy(self) -> bool:
        """Whether more rows of the current request follow."""
        return self._request is not None

    async def rows(self, count: int) -> WireRows:
        """Return the rows of the current request that have arrived, or else request at most `count` rows."""
        if self._request is None:
            self._receiver.collect(in_chunks=True)
            self._had_chunk = False
            self._request = asyncio.create_task(self._send(count), name="rows-request")
            self._request.add_done_callback(self._receiver.end_request)
        try:
            chunk = await self._receiver.full_chunk()
        except asyncio.CancelledError:
            self._request.cancel()
            raise
        if chunk is not None:
            self._had_chunk = True
            return chunk
        request, self._request = self._request, None
        rest = self._receiver.take_rest()
        await request
        if rest or self.is_exhausted:
            return rest
        if not self._had_chunk:
            raise asyncpg.InternalClientError("the server sent neither rows nor the end of the result")
        return await self.rows(count)  # the last requested row filled a chunk

    async def drop_rest(self, interrupt: Callable[[], Awaitable[None]] | None) -> None:
        """Wait for the end of the current request, whose rows and error are no longer of interest.

        `interrupt` cancels the request, which may take long to send its further rows. The call is repeated, because it
        is lost if it arrives before the server has begun the request.
        """
        if self._request is not None:
            self._receiver.drop_rest()
            while not self._request.done():
                if interrupt is not None:
                    await interrupt()
                await asyncio.wait({self._request}, timeout=None if interrupt is None else CANCEL_INTERVAL_S)
            self._receiver.take_rest()
            self._request = None

    async def _send(self, count: int) -> None:
        await self.request(count)


def column_reader(name: str, declared: DeclaredType) -> ColumnReader:
    """Return a reader for a column. Array dimensions and record fields are determined by the first values."""
    convert: Callable[[pa.Array], pa.Array] | None = None

    def read(wanted: pa.DataType, values: pa.Array) -> pa.Array:
        nonlocal convert
        if wanted == pa.string():
            if declared.kind is ValueKind.RECORD:
                texts = [None if one is None else record_text(one) for one in values.to_pylist()]
                return pa.array(texts, pa.string())
            return native_as_text(declared, values)
        convert = convert or _converter_for(declared, values)
        return convert(values)

    refusal = (
        f'column "{name}" contains a value that type {declared.name} cannot represent'
        f" (different array dimensions) after rows without such values: cast the column to text"
    )
    is_nested = declared.kind in NESTED or declared.kind is ValueKind.RECORD
    return ColumnReader(
        pa.null() if is_nested else arrow_type(declared), read, refusal, misfits=(UnrepresentableValue,)
    )


def _converter_for(declared: DeclaredType, first: pa.Array) -> Callable[[pa.Array], pa.Array]:
    if declared.kind is ValueKind.RECORD:
        return lambda values: read_records(values.to_pylist())
    if declared.kind not in NESTED:
        return partial(read_native, declared)
    dimensions = dimensions_of(declared, first.to_pylist()) if declared.kind is ValueKind.ARRAY else 1
    return lambda values: read_nested(declared, values.to_pylist(), dimensions=dimensions)


@contextmanager
def refusals(receiver: RowReceiver, columns: Sequence[str], rows_read: int = 0) -> Generator[None]:
    """If the receiver has closed the connection, replace the resulting error with one that states the reason.

    `rows_read` is the number of rows in earlier chunks.
    """
    try:
        yield
    except errors.EngineError as error:
        if (refusal := receiver.refusal) is None:
            raise
        if refusal.row is None:
            message = "PostgreSQL sent a message that is too large; the statement may have taken effect."
            raise errors.OutcomeUnknown(message) from error
        row = rows_read + refusal.row
        if refusal.column is None:
            raise errors.RowTooLarge(limit_bytes=refusal.limit_bytes, row=row) from error
        name = columns[refusal.column] if refusal.column < len(columns) else None
        raise errors.cell_too_large(limit_bytes=refusal.limit_bytes, row=row, column=name) from error
