"""One SQLAlchemy connection: its statements, their cancellation, and error translation. All calls block."""

import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from sys import getsizeof
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Dialect

from queryserver import errors
from queryserver.engines.blocking_drivers import DriverAnswer, DriverConnection, Interrupted
from queryserver.engines.engine_messages import ANY, find_location
from queryserver.engines.protocol import NO_CONTEXT, StatementContext
from queryserver.engines.record_batches import BATCH_BYTES, ChunkSize, ColumnReader, record_batch, slice_batch
from queryserver.engines.sqlalchemy.values import column_reader, declare
from queryserver.platform.addresses import AddressRules, HostRefused
from queryserver.platform.connection_guard import guarded
from queryserver.sql.markers import BoundStatement
from queryserver.sql.parameters import ParameterSupport, ParameterType
from queryserver.sql.scanner import first_word

_INVALID_RESPONSE_ERRORS = (
    OSError,
    EOFError,
    RuntimeError,
    struct.error,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    AssertionError,
)
"""Errors that drivers raise when parsing an invalid response."""

_DRIVER_ERRORS = (exc.SQLAlchemyError, *_INVALID_RESPONSE_ERRORS)
_PROTOCOL_ERROR_CLASSES = ("InterfaceError", "InternalError")
"""PEP 249 error classes that, without a server error number, mean that the driver lost track of the protocol."""

_MYSQL_CLIENT_NUMBERS = range(2000, 3000)
_REFUSED_LOGIN = re.compile(
    r"access denied for user|authentication|password|login failed|logon denied|unauthori[sz]ed|invalid credentials",
    re.IGNORECASE,
)
_CLIENT_HOST = re.compile(r"'@'[^']*'")
_TRACE = re.compile(r"\s*(?:Traceback|File \"|at [\w.$]+\(|\[SQL:|\(Background on this error)")
_MAX_TEXT = 4_000


@contextmanager
def connect_errors(name: str, rules: AddressRules) -> Generator[None]:
    """Translate connection errors to EngineUnavailable, CredentialsRequired or StatementRejected."""
    try:
        with guarded(rules):
            yield
    except _DRIVER_ERRORS as error:
        original = _driver_error(error)
        text = _server_message(original)
        if _REFUSED_LOGIN.search(text):
            raise errors.CredentialsRequired(text) from error
        if _is_server_error(original):
            raise errors.StatementRejected(text) from error
        raise errors.EngineUnavailable(f"Could not connect to {name}.") from error


@contextmanager
def statement_errors(dialect: Dialect, rules: AddressRules) -> Generator[None]:
    """Translate statement errors to OutcomeUnknown if the connection is lost, and otherwise to StatementRejected."""
    try:
        with guarded(rules):
            yield
    except HostRefused as refused:
        # The statement may already have been sent and must not be repeated, even if the guard saw no connection:
        # drivers share open connections (clickhouse-connect), or open them in C or in their own threads.
        raise errors.OutcomeUnknown(refused.message) from refused
    except _driver_errors(dialect) as error:
        if _is_lost(error, dialect):
            raise errors.OutcomeUnknown(
                "The connection to the data source was lost while the statement ran."
            ) from error
        original = _driver_error(error)
        text = _server_message(original)
        rejected = errors.StatementRejected(text).at(find_location(text, ANY))
        raise rejected.with_sqlstate(_sqlstate_of(original)) from error


# Keyed by PEP 249 class name, for drivers that report no SQLSTATE.
_SQLSTATES = {"IntegrityError": "23000", "DataError": "22000", "NotSupportedError": "0A000"}


def _sqlstate_of(error: Exception) -> str | None:
    own = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return own or next((_SQLSTATES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _SQLSTATES), None)


def _driver_errors(dialect: Dialect) -> tuple[type[Exception], ...]:
    """Return SQLAlchemy's errors and the driver's base class, because cursors are partly read without SQLAlchemy."""
    own = getattr(dialect.loaded_dbapi, "Error", None)
    return (*_DRIVER_ERRORS, own) if isinstance(own, type) and issubclass(own, Exception) else _DRIVER_ERRORS


def _is_lost(error: Exception, dialect: Dialect) -> bool:
    original: Any = _driver_error(error)
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(original, _INVALID_RESPONSE_ERRORS):
        return True
    if type(original).__name__ in _PROTOCOL_ERROR_CLASSES and not _is_server_error(original):
        return True
    return type(original).__module__ != "builtins" and bool(dialect.is_disconnect(original, None, None))


def _driver_error(error: Exception) -> Exception:
    inner = error.orig if isinstance(error, exc.DBAPIError) else None
    return inner if isinstance(inner, Exception) else error


def _is_server_error(error: Exception) -> bool:
    """Return whether the server reported the error.

    An error from the server has an error number as its first argument, or an SQLSTATE.
    """
    number = error.args[0] if error.args else None
    if isinstance(number, int):
        return number > 0 and number not in _MYSQL_CLIENT_NUMBERS and not isinstance(error, OSError)
    return bool(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None))


def _server_message(error: Exception) -> str:
    """Return the engine's message, except for leading numbers, stack traces and the client address."""
    texts = [part for part in error.args if isinstance(part, str)] or [str(error)]
    lines = list[str]()
    for line in texts[0].strip().splitlines():
        if _TRACE.match(line):
            break
        lines.append(line.rstrip())
    return _CLIENT_HOST.sub("'", "\n".join(lines))[:_MAX_TEXT].strip() or "The data source returned no error message."


MYSQL_DIALECTS = frozenset({"mysql", "mariadb"})
_CANCEL_S = 3.0
"""How long to keep trying to cancel a call before its connection is cut."""

_KILL_S = 5.0


class ConnectionStopper:
    """Cancels the running call on one DBAPI connection. `current_cursor` returns the cursor in use."""

    def __init__(
        self,
        engine: sa.Engine,
        connection: Any,
        current_cursor: Callable[[], Any],
        executor: Executor,
        rules: AddressRules,
    ) -> None:
        self._engine = engine
        self._rules = rules
        self._connection = connection
        self._current_cursor = current_cursor
        self._executor = executor
        self._stopping: Future[None] | None = None
        self._began = 0.0
        self.is_cut = False

    def request_stop(self) -> None:
        """Cancel the call in progress. Returns immediately and may be called repeatedly."""
        now = time.monotonic()
        self._began = self._began or now
        if now - self._began > _CANCEL_S:
            self.cut()
        elif self._stopping is None or self._stopping.done():
            self._stopping = self._executor.submit(self._stop)

    def settle(self) -> None:
        """Wait until no cancel request is in flight, because it would hit the next statement."""
        if self._stopping is not None:
            with suppress(TimeoutError):
                self._stopping.result(_KILL_S)
        self._stopping, self._began = None, 0.0

    def _stop(self) -> None:
        with guarded(self._rules), suppress(*_DRIVER_ERRORS):
            if self._engine.dialect.name in MYSQL_DIALECTS:
                kill = f"KILL QUERY {int(self._connection.thread_id()):d}"
                with self._engine.connect() as second:
                    second.exec_driver_sql(kill)
                return
            for owner in (self._connection, self._current_cursor()):
                for name in ("cancel", "interrupt"):
                    if callable(method := getattr(owner, name, None)):
                        method()
                        return
            self.cut()

    def cut(self) -> None:
        """Shut down the driver's socket, so that the driver call returns with an error."""
        if self.is_cut:
            return
        self.is_cut = True
        for owner in (self._connection, getattr(self._connection, "connection", None)):
            for name in ("_sock", "sock", "socket"):
                connected = getattr(owner, name, None)
                if isinstance(connected, socket.socket):
                    with suppress(OSError):
                        connected.shutdown(socket.SHUT_RDWR)
                    return


PARAMETERS = ParameterSupport(frozenset(ParameterType) - {ParameterType.ARRAY, ParameterType.TIMESTAMP_TZ})
"""Parameter types that PEP 249 drivers support.

Array support differs between drivers, and some drivers, such as PyMySQL, drop a timestamp's UTC offset.
"""

BoundValues: TypeAlias = "tuple[Any, ...] | dict[str, Any]"


def bound_by_driver(statement: BoundStatement, style: str) -> tuple[str, BoundValues]:
    """Return the text and values in a PEP 249 `paramstyle`, or in SQLAlchemy's `numeric_dollar`."""
    if style in {"named", "pyformat"}:
        named = {f"p{number}": one.value for number, one in enumerate(statement.values)}
        if style == "named":
            return statement.render(lambda number, _: f":p{number}"), named
        return statement.render(lambda number, _: f"%(p{number})s", _doubled), named
    if style in {"numeric", "numeric_dollar"}:
        sign = ":" if style == "numeric" else "$"
        text = statement.render(lambda number, _: f"{sign}{number + 1}")
        return text, tuple(one.value for one in statement.values)
    values = tuple(one.value for one in statement.values_in_order)
    if style == "format":
        return statement.render(lambda _number, _one: "%s", _doubled), values
    return statement.render(lambda _number, _one: "?"), values


def _doubled(text: str) -> str:
    return text.replace("%", "%%")


_STREAMED = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "SHOW"})
_CHANGES_ROWS = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "MERGE"})
_NEEDS_TRANSACTION = frozenset({"postgresql", "redshift", "cockroachdb"})
"""Dialects whose server-side cursors need a transaction, although other statements run in autocommit mode."""

ResultT = TypeVar("ResultT")

# Maximum number of rows to fetch before checking their width, because the driver reads all of them into memory.
_MAX_STEP_ROWS = 16
_DRAIN_S = 3.0
_DRAIN_ROWS = 1_000


class SqlalchemyConnection(DriverConnection):
    """A connection in autocommit mode if the dialect supports it; otherwise, each statement is committed at its end.

    `read_only` is a statement that makes the server reject changes. It is sent before each statement, because an
    earlier statement may have reverted it. `rules` apply to all addresses that the driver connects to.
    """

    def __init__(
        self, connection: sa.Connection, executor: Executor, *, read_only: str | None, rules: AddressRules
    ) -> None:
        self._connection = connection
        self._rules = rules
        self.dialect = connection.dialect
        self._read_only = read_only
        self._answer: SqlalchemyAnswer | None = None
        self._interrupted = False
        self._is_closed = False
        driver = connection.connection.dbapi_connection
        self._stopper = ConnectionStopper(
            connection.engine, driver, lambda: self._answer and self._answer.cursor, executor, rules
        )

    @classmethod
    def opened(
        cls, engine: sa.Engine, name: str, executor: Executor, *, read_only: str | None, rules: AddressRules
    ) -> "SqlalchemyConnection":
        """Open a connection. Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database)."""
        with connect_errors(name, rules):
            connection = engine.connect()
            try:
                driver = connection.connection.dbapi_connection
                levels: Sequence[str] = ()
                with suppress(NotImplementedError):
                    levels = engine.dialect.get_isolation_level_values(driver) if driver is not None else ()
                if "AUTOCOMMIT" in levels:
                    connection = connection.execution_options(isolation_level="AUTOCOMMIT")
                return cls(connection, executor, read_only=read_only, rules=rules)
            except BaseException:  # the connection must not stay open after any failure
                connection.close()
                raise

    def run(self, statement: str | BoundStatement, context: StatementContext = NO_CONTEXT) -> "SqlalchemyAnswer":  # noqa: ARG002 no driver has a use for it
        self._stopper.settle()
        self._interrupted = False
        text, values = statement, None
        if isinstance(statement, BoundStatement):
            text, values = bound_by_driver(statement, self.dialect.paramstyle)
        text = str(text)
        if not text.strip():
            raise errors.StatementRejected("The statement is empty.")
        answer = self._answer = SqlalchemyAnswer(self._connection, self._stopper, self._rules)
        try:
            with statement_errors(self.dialect, self._rules):
                if self._read_only is not None:
                    self._connection.exec_driver_sql(self._read_only)
                answer.start(text, values)
        except errors.EngineError as error:
            if values is not None:
                error.location = None  # the position may count characters inserted by the driver
            answer.close()
            self._note(error)
            raise
        return answer

    def inspected(self, read: Callable[[sa.Inspector], ResultT]) -> ResultT:
        """Return the result of `read` for an Inspector of this connection.

        Raises EngineUnavailable, StatementRejected and the errors of `read`.
        """
        self._stopper.settle()
        self._interrupted = False
        try:
            with statement_errors(self.dialect, self._rules):
                return read(sa.inspect(self._connection))
        except errors.OutcomeUnknown as error:
            raise errors.EngineUnavailable(error.message) from error
        except errors.EngineError as error:
            self._note(error)
            raise

    @property
    def is_usable(self) -> bool:
        return not self._is_closed and not self._connection.invalidated

    def interrupt(self) -> None:
        self._interrupted = True
        self._stopper.request_stop()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._answer is not None and not self._answer.is_left:
                self._stopper.cut()  # otherwise, a thread waiting for data would hold a lock that closing needs
            with guarded(self._rules), suppress(*_DRIVER_ERRORS):
                self._connection.invalidate()
            with guarded(self._rules), suppress(*_DRIVER_ERRORS):
                self._connection.close()

    def _note(self, error: errors.EngineError) -> None:
        """Invalidate a lost connection. Raises Interrupted if the error was caused by an interrupt."""
        if isinstance(error, errors.OutcomeUnknown) and not self._connection.invalidated:
            with guarded(self._rules):
                self._connection.invalidate()
        if self._interrupted:
            raise Interrupted from error


class SqlalchemyAnswer(DriverAnswer):
    """Reads the rows of one statement.

    The first chunk is read in advance, so that types that the driver does not report can be inferred.
    """

    def __init__(self, connection: sa.Connection, stopper: ConnectionStopper, rules: AddressRules) -> None:
        self.cursor: Any = None
        self._connection = connection
        self._dialect = connection.dialect
        self._stopper = stopper
        self._rules = rules
        self._result: sa.CursorResult[Any] | None = None
        self._readers: Sequence[ColumnReader] = ()
        self._chunk = ChunkSize()
        self._step = 1
        self._ahead: Sequence[Sequence[Any]] = ()
        self._keyword = ""
        self._ended = False
        self.is_left = False
        """Whether no thread uses the cursor anymore."""
        self._rows_read = 0

    def start(self, statement: str, values: "BoundValues | None" = None) -> None:
        """Run the statement until its first rows are available. Raises the driver's errors."""
        self._keyword = first_word(statement)
        result = self._result = self._connection.exec_driver_sql(
            statement,
            values,
            execution_options={
                "no_parameters": values is None,
                "stream_results": self._keyword in _STREAMED and self._dialect.name not in _NEEDS_TRANSACTION,
            },
        )
        if not result.returns_rows:
            if self._keyword in _CHANGES_ROWS and result.rowcount >= 0:
                self.modified_rows = result.rowcount
            self._finish()
            return
        self.cursor = result.cursor
        description = self.cursor.description
        # These rows are in SQLAlchemy's buffer. For later rows, the driver's own cursor is faster.
        self._ahead = [tuple(row) for row in result.fetchmany(1)]
        if self._ahead:
            self._ahead = [*self._ahead, *self._fetched()]
            self._rows_read = len(self._ahead)
        declared = [
            declare(field, [row[number] for row in self._ahead], speaks_mysql=self._dialect.name in MYSQL_DIALECTS)
            for number, field in enumerate(description)
        ]
        self._readers = list(map(column_reader, declared))
        self.columns = tuple(one.column for one in declared)

    def next_batches(self) -> Sequence[pa.RecordBatch]:
        with statement_errors(self._dialect, self._rules):
            rows, self._ahead = self._ahead or self._rows(), ()
            if not rows:
                return []
            names = [column.name for column in self.columns or ()]
            batch = record_batch(rows, names, [one.read for one in self._readers])
            self._chunk.adapt(batch)
            return list(slice_batch(batch))

    def close(self) -> None:
        """Cancel a statement that has unread rows, because drivers would read all of them to close the cursor."""
        self._ahead = ()
        if not self._ended:
            self._ended = True
            if self.cursor is not None:
                self._stopper.request_stop()
                self._stopper.settle()
                self._drain()
                _detach_result(self.cursor)
            with guarded(self._rules), suppress(*_DRIVER_ERRORS):
                self._finish()

    def _rows(self) -> Sequence[Sequence[Any]]:
        if self._ended:
            return ()
        rows = self._fetched()
        self._rows_read += len(rows)
        if not rows:
            if self._keyword in _CHANGES_ROWS:
                self.modified_rows = self._rows_read
            self._finish()
        return rows

    def _fetched(self) -> Sequence[Sequence[Any]]:
        """Fetch the next rows a few at a time, so that a chunk ends soon after it reaches BATCH_BYTES."""
        rows: list[Sequence[Any]] = []
        size = 0
        while len(rows) < self._chunk.rows and size < BATCH_BYTES:
            part: Sequence[Sequence[Any]] = self.cursor.fetchmany(min(self._step, self._chunk.rows - len(rows)))
            if not part:
                break
            rows += part
            widths = [sum(map(getsizeof, row)) for row in part]
            size += sum(widths)
            self._step = max(min(self._step * 2, _MAX_STEP_ROWS, BATCH_BYTES // max(widths)), 1)
        return rows

    def _drain(self) -> None:
        """Discard rows still in flight after a cancel request. A connection that does not respond in time is cut."""
        cutting = threading.Timer(_DRAIN_S, self._stopper.cut)  # a silent connection would block forever
        cutting.start()
        try:
            with guarded(self._rules), suppress(*_driver_errors(self._dialect)):
                while self.cursor.fetchmany(_DRAIN_ROWS) and not self._stopper.is_cut:
                    pass
        finally:
            cutting.cancel()
        if self._stopper.is_cut:
            _detach_result(self.cursor)
            with guarded(self._rules), suppress(*_driver_errors(self._dialect)):
                self._connection.invalidate()

    def _finish(self) -> None:
        """Commit the statement after its last row."""
        self._ended = True
        try:
            if self._result is not None:
                self._result.close()
            if self._connection.in_transaction():
                self._connection.commit()
        finally:
            self.is_left = True


def _detach_result(cursor: Any) -> None:
    """Keep PyMySQL from reading the remaining rows of a discarded result over a closed connection."""
    result = getattr(cursor, "_result", None)
    if result is not None and hasattr(result, "unbuffered_active"):
        result.unbuffered_active = False
