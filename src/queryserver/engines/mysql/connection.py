"""Implements an asyncmy connection that returns raw values, and adds flow control and session reset.

asyncmy reads from its socket continuously, so with a slow reader the whole result would accumulate in memory. The
transport is therefore paused while no rows are requested. asyncmy also reads packets of any size, so a packet above the
row limit is rejected as soon as its header arrives.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import pyarrow as pa
from asyncmy import errors as driver
from asyncmy.cursors import SSCursor

from queryserver import errors
from queryserver.engines.connections import connection_failure_message
from queryserver.engines.engine_messages import NEAR_POSITIONS, find_location
from queryserver.engines.mysql import prepared
from queryserver.engines.mysql.asyncmy_internals import Packet, RawConnection
from queryserver.engines.mysql.values import (
    Spec,
    binary_reader,
    column_reader,
    declare,
    long_binary_value,
    long_text_value,
    row_specs,
)
from queryserver.engines.protocol import StatementContext
from queryserver.engines.record_batches import BATCH_BYTES, ColumnReader, Rows, record_batch
from queryserver.engines.sessions import DriverStatement
from queryserver.engines.statement_tags import leading_comment
from queryserver.formats.arrow import ROW_SIZE_FACTOR
from queryserver.sql.effects import read_only_transaction_refusal
from queryserver.sql.literals import MYSQL
from queryserver.sql.markers import BoundStatement, sql_text
from queryserver.sql.scanner import first_word

QUERY_INTERRUPTED = 1317
"""ER_QUERY_INTERRUPTED, the error number for a statement canceled by KILL QUERY."""

LOGIN_REFUSED = 2059
"""The driver's own error number for an unsupported login method."""

DRIVER_ERRORS = (driver.MySQLError, OSError, RuntimeError)
"""The driver's errors. asyncmy raises RuntimeError when a server requests a local file."""

# Refused logins: 1045 access denied, 1130 host not allowed, 1251 authentication protocol, 1698 access denied without
# password, 1820 and 1862 password expired, 3118 and 4151 account locked.
_LOGIN_ERRORS = frozenset({1045, 1130, 1251, 1698, 1820, 1862, LOGIN_REFUSED, 3118, 4151})
# Server not ready: 1040 and 1203 too many connections, 1053 shutdown, 1226 resource limit, 1129 host blocked.
_NOT_READY = frozenset({1040, 1053, 1129, 1203, 1226})
_WANTS_TLS = 3159
# Time limits: 1969 MariaDB's max_statement_time, 3024 MySQL's max_execution_time, 1205 lock wait timeout.
_TIME_LIMITS = frozenset({1205, 1969, 3024})
# Connection lost: 1053 shutdown, 1927 and 3169 connection killed, 1152 to 1161 broken packets, 4031 idle too long.
_CONNECTION_LOST = frozenset({1053, 1152, 1153, 1154, 1155, 1156, 1157, 1158, 1159, 1160, 1161, 1927, 3169, 4031})
# Access denied to this login: 1044 database, 1142 table, 1143 column, 1227 privilege, 1370 routine.
_DENIED = frozenset({1044, 1142, 1143, 1227, 1370})
_CLIENT_NUMBERS = range(2000, 3000)
# Errors that can occur during preparation although the statement can be prepared.
_OTHER_PREPARE_ERRORS = frozenset({QUERY_INTERRUPTED}) | _TIME_LIMITS | _CONNECTION_LOST
_NUMBER_BYTES = 8
_NEAR = re.compile(r" near '.*' at line (?=\d+\s*\Z)", re.DOTALL)
_CLIENT_HOST = re.compile(r"'@'[^']*'")


@contextmanager
def connect_errors() -> Generator[None]:
    """Translate connection errors into EngineUnavailable, CredentialsRequired or StatementRejected."""
    try:
        yield
    except DRIVER_ERRORS as error:
        number = number_of(error)
        kind: type[errors.EngineError] = errors.StatementRejected
        if number in _LOGIN_ERRORS:
            kind = errors.CredentialsRequired
        elif number == _WANTS_TLS:
            kind = errors.EngineUnavailable
        elif number in _NOT_READY or _is_driver_error(error):
            raise errors.EngineUnavailable(connection_failure_message("MySQL", error)) from error
        raise kind(_server_message(error)) from error


@contextmanager
def statement_errors(*, started: bool, shows_text: bool = True) -> Generator[None]:
    """Translate statement errors. `started` is True if the server may have begun to execute the statement.

    If `shows_text` is False, statement excerpts are removed from messages, because they may contain parameters. Raises
    SessionLost or OutcomeUnknown if the connection is lost, EngineTimeout if one of the server's time limits ended the
    statement, and otherwise StatementRejected or StatementDenied with the server's message.
    """
    try:
        yield
    except DRIVER_ERRORS as error:
        known = _statement_error(error, started=started)
        if not shows_text and isinstance(known, errors.StatementRejected):
            known = type(known)(_NEAR.sub(" at line ", known.message)).at(known.location).with_sqlstate(known.sqlstate)
        raise known from error


def number_of(error: BaseException | None) -> int:
    """Return the error number from the server or the driver (2000 to 2999); 0 if there is none."""
    if isinstance(error, driver.MySQLError) and error.args and isinstance(error.args[0], int):
        return error.args[0]
    return 0


def _statement_error(error: Exception, *, started: bool) -> errors.EngineError:
    number = number_of(error)
    if number in _TIME_LIMITS:
        return errors.EngineTimeout(_server_message(error))
    if isinstance(error, RuntimeError):
        return errors.StatementRejected("LOAD DATA LOCAL is not allowed.")
    if number in _CONNECTION_LOST or _is_driver_error(error):
        if started:
            return errors.OutcomeUnknown("The connection to MySQL was lost while the statement ran.")
        return errors.SessionLost("The MySQL session no longer exists; the statement was not started.")
    text = _server_message(error)
    known = (errors.StatementDenied if number in _DENIED else errors.StatementRejected)(text)
    return known.at(find_location(text, NEAR_POSITIONS)).with_sqlstate(_sqlstate_of(error))


# asyncmy drops the server's SQLSTATE and chooses the exception class from the error number.
_SQLSTATES: Mapping[type[Exception], str] = {
    driver.IntegrityError: "23000",
    driver.DataError: "22000",
    driver.NotSupportedError: "0A000",
    driver.ProgrammingError: "42000",
}


def _sqlstate_of(error: Exception) -> str | None:
    return next((state for kind, state in _SQLSTATES.items() if isinstance(error, kind)), None)


def _is_driver_error(error: Exception) -> bool:
    """Return whether the driver itself raised the error, because the connection is broken or out of sync."""
    number = number_of(error)
    return number == 0 or (number in _CLIENT_NUMBERS and number not in _LOGIN_ERRORS)


def _server_message(error: Exception) -> str:
    """Return the server's message without the client's address."""
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    return _CLIENT_HOST.sub("'", text) or "MySQL returned no error message."


_READS_AS_LITERALS = "SELECT @@character_set_client = 'utf8mb4' AND @@collation_connection = COLLATION(_utf8mb4 X'61')"
_CLEAN_UP_S = 5
_PACKET_HEADER_BYTES = 4
_ROW_START_BYTES = 4096
_IN_CLEAR_TEXT = (b"mysql_clear_password", b"mysql_old_password", b"dialog")


class _RefusedLogin:
    """Replaces a login method that would send the password in clear text."""

    def __init__(self, connection: object) -> None:
        pass

    def authenticate(self, packet: object) -> None:  # noqa: ARG002 asyncmy calls it so
        raise driver.OperationalError(
            LOGIN_REFUSED, "The server requests the password in clear text over an unencrypted connection."
        )


class MysqlConnection(RawConnection):
    """A connection that returns the server's raw bytes and reads results in chunks.

    If `is_private` is set, the connection is safe from eavesdropping, so the server may request the password in clear
    text.
    """

    cell_max_bytes: int | None = None
    """Maximum size of a single value in a row; None for no limit."""

    def __init__(self, *, is_private: bool, **options: Any) -> None:
        methods = {} if is_private else dict.fromkeys(_IN_CLEAR_TEXT, _RefusedLogin)
        fixed: dict[str, Any] = {"use_unicode": False, "conv": {}, "autocommit": None, "local_infile": False}
        super().__init__(auth_plugin_map=methods, **fixed, **options)
        self._database = options.get("database")
        self._cursor: Any = None
        self._prepared: Any = None
        self._specs: tuple[Spec, ...] = ()
        """Column specs if the result has binary rows; empty for text rows."""
        self._binary_rows: list[tuple[Any, ...]] = []
        """Unpacked rows that have not been returned yet."""
        self._warnings: list[str] = []
        self._warning_count = 0
        self._packet_bytes = 0
        self._row_count = 0
        self.has_ended = True
        self.may_read_otherwise = True
        """Whether a statement may have changed the session's character set or collation for strings."""

    async def set_up(self) -> None:
        """Enable autocommit and select UTF-8 in a new or reset session."""
        await self.run("SET NAMES utf8mb4, autocommit = 1")
        self.may_read_otherwise = False

    async def run(self, sql: str) -> None:
        """Run a statement and discard its result."""
        await self.start(sql)
        await self.drain()

    async def start(self, sql: str) -> None:
        """Run a statement up to its first result set or its completion."""
        cursor = await self._begin()
        await cursor.execute(sql)
        if not self.fields:
            await self._drop_further_results()

    async def prepare_bound(self, statement: BoundStatement, comment: str = "") -> bool:
        """Prepare a statement with parameter markers. Return False if the server does not accept the markers.

        `comment` is sent before the statement.
        """
        await self._begin()
        text = comment.encode() + statement.render(prepared.mark).encode(errors="surrogateescape")
        try:
            self._prepared = await self.prepare(text)
        except driver.MySQLError as error:
            if _is_driver_error(error) or number_of(error) in _OTHER_PREPARE_ERRORS:
                raise
            return False
        return self._prepared.parameter_count == sum(map(prepared.is_bound, statement.values_in_order))

    async def start_prepared(self, statement: BoundStatement) -> None:
        """Run the last prepared statement as `start` does. The driver's own method would read all rows at once."""
        await self.execute_prepared(self._prepared, prepared.encode_values(statement.values_in_order), self._cursor)
        self._specs = row_specs(self.fields)
        if not self._specs:
            await self._drop_further_results()

    async def reads_texts_as_literals(self) -> bool:
        """Return whether a bound string has the same character set and collation as a literal."""
        if self.may_read_otherwise:
            await self.start(_READS_AS_LITERALS)
            self.may_read_otherwise = await self.rows(2) != [(b"1",)]
            await self.drain()
        return not self.may_read_otherwise

    async def _begin(self) -> Any:
        """Discard the state of the last statement and return a cursor for the next one."""
        self.resume()
        self._warnings, self._warning_count = [], 0
        self._row_count, self.has_ended = 0, False
        self._specs, self._binary_rows = (), []
        former, self._prepared = self._prepared, None
        if former is not None:
            await former.close()
        cursor: Any = self.cursor(SSCursor)
        self._cursor = cursor
        return cursor

    async def take_warnings(self) -> list[str]:
        """Return and clear the last statement's warnings. Its results must have been read completely."""
        if self._warning_count and not self._warnings:
            await self.show_warnings()
        taken, self._warnings, self._warning_count = self._warnings, [], 0
        return taken

    async def show_warnings(self) -> None:
        """Store the warnings. asyncmy calls this method and would log them, although they contain user data."""
        for level, code, message in await super().show_warnings():
            self._warnings.append(f"{_text(level)} {_text(code)}: {_text(message)}")

    async def rows(self, count: int) -> list[tuple[Any, ...]]:
        """Return up to `count` more rows, and at most a few MiB. `has_ended` is set after the last row.

        Values are bytes or None; binary rows also contain numbers. A procedure's further result sets are discarded.
        Raises cell_too_large, RowTooLarge.
        """
        if self._cursor is None:
            self.has_ended = True
            return []
        self.resume()
        chunk: list[tuple[Any, ...]] = []
        size = 0
        while len(chunk) < count and size < BATCH_BYTES:
            part = await (self._next_binary_rows if self._specs else self._next_rows)(count - len(chunk))
            if not part:
                self.has_ended = True
                await self._drop_further_results()
                return chunk
            chunk += part
            self._row_count += len(part)
            size += _size_of(part)
        self.pause()
        return chunk

    async def _next_rows(self, count: int) -> list[tuple[bytes | None, ...]]:
        """Return the next row and the rows already received after it; empty after the last row."""
        part = await self._cursor.fetchmany(1)
        return part + self.take_received_rows(count - 1) if part else part

    async def _next_binary_rows(self, count: int) -> list[tuple[Any, ...]]:
        if not self._binary_rows:
            self._binary_rows = await self.next_binary_rows(self._specs)
        part = self._binary_rows[:count]
        del self._binary_rows[:count]
        return part

    async def read_packet(self, packet_type: Any = Packet) -> Any:
        self._packet_bytes = 0
        try:
            return await super().read_packet(packet_type)
        except UnicodeDecodeError:
            # A column name cannot be decoded, and only part of the response has been read.
            self.close()
            message = "The response cannot be read: a column name is not UTF-8 (character_set_results)."
            raise errors.OutcomeUnknown(message) from None

    async def check_size(self, need: int) -> None:
        """Reject a value or row above the limit. `need` is at most 16 MiB - 1, the maximum size of a packet part."""
        if self.cell_max_bytes is None or need <= _PACKET_HEADER_BYTES:
            return
        try:
            await self._check_row(need, self.cell_max_bytes)
        except errors.EngineError:
            self.close()
            raise
        self._packet_bytes += need

    async def _check_row(self, need: int, limit: int) -> None:
        if need > limit and self._packet_bytes == 0 and self.fields:
            # The first bytes of a row include the lengths of its first values.
            row = await self.received(min(need, _ROW_START_BYTES))
            specs = self._specs
            column = long_binary_value(row, limit, specs) if specs else long_text_value(row, limit)
            if column is not None and column < len(self.fields):
                raise errors.cell_too_large(
                    limit_bytes=limit, row=self._row_count, column=_text(self.fields[column].name)
                )
        if self._packet_bytes + need > ROW_SIZE_FACTOR * limit:
            raise errors.RowTooLarge(limit_bytes=ROW_SIZE_FACTOR * limit, row=self._row_count if self.fields else None)

    async def drain(self) -> None:
        """Read and discard the last statement's remaining results."""
        self.resume()
        if self._cursor is not None and self.fields and not self._specs:
            while await self._cursor.fetchmany(1000):
                pass
        await self._drop_further_results()

    async def clean(self) -> bool:
        """Reset the session to its state after login. Return False if that may have failed."""
        if self.is_closed():
            return False
        try:
            async with asyncio.timeout(_CLEAN_UP_S):
                await self.drain()
                self._prepared = None  # the reset also closes prepared statements
                await self.reset_session()
                await self.set_up()
                # A reset keeps the database that a statement may have selected. It can be changed but not unset.
                if self._database is not None:
                    await self.select_db(self._database)
                    return True
                await self.start("SELECT DATABASE()")
                return await self.rows(2) == [(None,)]
        except DRIVER_ERRORS:
            return False

    async def disconnect(self) -> None:
        """Close the connection, forcibly if the server does not respond."""
        with suppress(*DRIVER_ERRORS):
            if not self.is_closed():
                self.resume()
                async with asyncio.timeout(_CLEAN_UP_S):
                    await self.ensure_closed()
        self.close()

    async def _drop_further_results(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            self._warning_count = self.warning_count
            await cursor.close()


def _size_of(rows: Sequence[Sequence[Any]]) -> int:
    values = filter(None, chain.from_iterable(rows))
    return sum(len(value) if isinstance(value, bytes) else _NUMBER_BYTES for value in values)


def _text(value: bytes | str | None) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else " ".join(value.decode(errors="replace").splitlines())


_DROPPED_ROWS = 1000
_CHANGES_ROWS = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD"})
"""Statements that change rows. With `RETURNING` (MariaDB), their result rows are the changed rows."""


class MysqlStatement(DriverStatement):
    """A statement on a MySQL connection. `interrupt_thread` cancels the statement that the given server thread runs."""

    def __init__(
        self,
        connection: MysqlConnection,
        sql: str | BoundStatement,
        context: StatementContext,
        *,
        interrupt_thread: Callable[[int], Awaitable[None]],
        tags: bool = True,
        read_only: bool = False,
    ) -> None:
        self._connection = connection
        self._sql = sql
        self._text = sql if isinstance(sql, str) else sql.statement
        self._keyword = first_word(self._text, line_comments=("--", "#"))
        self._interrupt_thread = interrupt_thread
        self._read_only = read_only or context.read_only
        self._comment = leading_comment(context) if tags else ""
        self._in_own_transaction = False
        self._readers: list[ColumnReader] = []
        self._rows_read = 0

    async def execute(self, raise_if_stopped: Callable[[], None]) -> None:
        if isinstance(self._sql, BoundStatement) and self._sql.rows:
            await self._run_rows(self._sql, raise_if_stopped)
        else:
            await self._run_once()

    async def _run_rows(self, statement: BoundStatement, raise_if_stopped: Callable[[], None]) -> None:
        """Run the statement once per parameter row, in the open transaction or, if there is none, in a new one.

        Rows from RETURNING are discarded.
        """
        connection, changed = self._connection, 0
        is_own = connection.get_autocommit() and not connection.get_transaction_status()
        try:
            if is_own:
                with statement_errors(started=False):
                    await connection.run("START TRANSACTION")
            for number, row in enumerate(statement.rows):
                statement.row, self._sql = number, row
                raise_if_stopped()
                await self._run_once()
                while await self.fetch(_DROPPED_ROWS):
                    pass
                changed += self.modified_rows or 0
            if is_own:
                with statement_errors(started=True):
                    await connection.run("COMMIT")
        except BaseException:
            if is_own and not connection.is_closed():
                with suppress(errors.EngineError), statement_errors(started=True):
                    await connection.run("ROLLBACK")
            raise
        self.columns, self.modified_rows = (), changed

    async def _run_once(self) -> None:
        if self._connection.is_closed():
            raise errors.SessionLost("The MySQL session no longer exists; the statement was not started.")
        if not self._read_only:
            await self._start()
            return
        await self._begin_read_only()
        try:
            await self._start()
        except errors.EngineError:
            await self._end_read_only()
            raise

    async def _begin_read_only(self) -> None:
        """Begin a read-only transaction for the statement.

        A mode of the session could be lifted by a statement. In an open transaction there is no such mode: savepoints
        have none, and beginning another transaction would commit the open one.
        """
        if refusal := read_only_transaction_refusal(self._text, "mysql"):
            raise errors.StatementRejected(refusal)
        if self._connection.get_transaction_status():
            raise errors.StatementRejected(
                "The statement is read-only, but the session has an open transaction: end it first."
            )
        with statement_errors(started=False):
            await self._connection.run("START TRANSACTION READ ONLY")
            self._in_own_transaction = True

    async def _end_read_only(self) -> None:
        """End the statement's own transaction, if there is one. It has nothing to commit."""
        if self._in_own_transaction and not self._connection.is_closed():
            self._in_own_transaction = False
            with statement_errors(started=True):
                await self._connection.run("ROLLBACK")

    async def _start(self) -> None:
        """Send the statement, and read its answer up to the first row."""
        bound = await self._prepared()
        if self._keyword not in prepared.PREPARABLE_KEYWORDS or "/*" in self._text:
            self._connection.may_read_otherwise = True
        with statement_errors(started=True, shows_text=isinstance(self._sql, str)):
            if bound is not None:
                await self._connection.start_prepared(bound)
            else:
                await self._connection.start(self._comment + sql_text(self._sql, MYSQL.write))
            fields = self._connection.fields
            declared = list(map(declare, fields))
            self.columns = tuple(one.column for one in declared)
            readers = map(binary_reader, fields, declared) if bound else map(column_reader, declared)
            self._readers = list(readers)
            self.is_open = bool(declared)
            if not declared:
                await self._finish(self._connection.affected_rows())

    async def _prepared(self) -> BoundStatement | None:
        """Prepare the statement for bound values and return it; None if its values must be sent as literals."""
        sql = self._sql
        if isinstance(sql, str) or not prepared.may_be_prepared(sql, self._keyword):
            return None
        with statement_errors(started=False, shows_text=False):
            has_texts = any(isinstance(one.value, str) for one in sql.values)
            is_read_right = not has_texts or await self._connection.reads_texts_as_literals()
            return sql if is_read_right and await self._connection.prepare_bound(sql, self._comment) else None

    async def fetch(self, count: int) -> Rows:
        if not self.is_open:
            return ()
        with statement_errors(started=True):
            rows = await self._connection.rows(count)
            self._rows_read += len(rows)
            if self._connection.has_ended:
                self.is_open = False
                await self._finish(self._rows_read)
        return rows

    def size_bytes(self, rows: Rows) -> int:
        return _size_of(rows)

    def read(self, rows: Rows) -> pa.RecordBatch:
        return record_batch(rows, [column.name for column in self.columns], [one.read for one in self._readers])

    async def interrupt(self) -> None:
        if not self._connection.is_closed():
            await self._interrupt_thread(self._connection.thread_id())

    def was_interrupted(self, error: errors.EngineError) -> bool:
        return number_of(error.__cause__) == QUERY_INTERRUPTED

    async def end(self, *, keep: bool) -> None:  # noqa: ARG002 a change is complete before its first row arrives
        if not self.is_open:
            return
        self.is_open = False
        await self.interrupt()
        try:
            with statement_errors(started=True):
                await self._connection.drain()
                # A late interrupt cancels this statement instead of the next one.
                await self._connection.run("DO 0")
        except errors.EngineError as error:
            if not self.was_interrupted(error):
                raise
        await self._end_read_only()

    async def _finish(self, rows: int) -> None:
        """Record the row count and the warnings after the last row."""
        if self._keyword in _CHANGES_ROWS or (self._keyword == "WITH" and not self.columns):
            self.modified_rows = rows
        self.log_lines = await self._connection.take_warnings()
        await self._end_read_only()
