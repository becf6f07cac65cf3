"""One SQLite connection: its permissions, conversion of its rows to Arrow, and error translation. All calls block."""

import re
import sys
import time as clock
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa

from queryserver import errors
from queryserver.engines.blocking_drivers import DriverAnswer, Interrupted
from queryserver.engines.protocol import NO_CONTEXT, StatementContext
from queryserver.engines.record_batches import BATCH_BYTES
from queryserver.engines.sqlite.authorizer import SqliteAuthorizer, read_only_error
from queryserver.engines.storage_watch import StorageLimits, StorageWatch, above_quota, below_floor, size_of
from queryserver.errors.statements import EngineError
from queryserver.formats.arrow import Column, ResultType
from queryserver.sql.markers import BoundStatement, sql_text
from queryserver.sql.parameters import Parameter

LOG_BYTES = 16 * 1024 * 1024
"""A write-ahead log above this size is truncated after the statement."""

_OPEN_FILES = Path("/proc/self/fd")


class SqliteWatch:
    """Watches the disk use of one database file, its log and its temporary files.

    `full` creates the error for a statement that SQLite rejected because storage is full.
    """

    def __init__(self, file: Path, temporary: Path, limits: StorageLimits) -> None:
        self._log = (file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-journal"))
        self._temporary = temporary
        self._file = StorageWatch(file.parent, lambda: size_of((file,)), limits)
        self._beside = StorageWatch(file.parent, self._extra_bytes, limits)

    def require_room(self, used_bytes: Callable[[], int] | None = None) -> None:
        self._file.require_room(used_bytes)

    @contextmanager
    def over(self, interrupt: Callable[[], None], *, watches_floor: Callable[[], bool]) -> Generator[None]:
        """Interrupt the block's work once it exceeds the limits.

        Below the disk floor, a query is interrupted only if it may be writing, that is, if temporary files exist.
        """

        def may_write() -> bool:
            return watches_floor() or temporary_bytes(self._temporary) > 0

        with self._beside.over(interrupt, watches_floor=may_write):
            yield

    def full(self) -> EngineError:
        return below_floor() if self._file.is_below_floor() else above_quota(self._file.quota_bytes)

    def has_long_log(self) -> bool:
        return size_of(self._log) > LOG_BYTES

    def _extra_bytes(self) -> int:
        """Return the size of the log or of the temporary files, whichever is larger.

        The sizes are not added, because each may use the full quota.
        """
        return max(size_of(self._log), temporary_bytes(self._temporary))


def temporary_bytes(directory: Path) -> int:
    """Return the disk use of this process's open temporary files; 0 if the system does not list them (macOS)."""
    total, within = 0, f"{directory}/"
    with suppress(OSError):
        for descriptor in _OPEN_FILES.iterdir():
            with suppress(OSError):  # the file may have been closed since it was listed
                if str(descriptor.readlink()).startswith(within):
                    total += descriptor.stat().st_blocks * 512
    return total


def keep_temporary_files_in(directory: Path, connection: apsw.Connection) -> None:
    """Set the directory for temporary files.

    The setting applies to the whole process. By default, SQLite uses the system's temporary directory.
    """
    if connection.execute("PRAGMA temp_store_directory").get != str(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection.execute(f"PRAGMA temp_store_directory = {apsw.format_sql_value(str(directory))}")


_LOST = (
    apsw.ConnectionClosedError,
    apsw.ConnectionNotClosedError,
    apsw.CursorClosedError,
    apsw.ForkingViolationError,
    apsw.ThreadingViolationError,
)


@contextmanager
def opening_errors() -> Generator[None]:
    """Translate errors on opening a database. SQLite's messages contain no path."""
    try:
        yield
    except apsw.Error as error:
        raise errors.EngineUnavailable(f"The database cannot be opened: {error}.") from error


@contextmanager
def statement_errors(*, cell_max_bytes: int | None = None) -> Generator[None]:
    """Translate statement errors. `cell_max_bytes` is the limit to report for a value that is too large."""
    try:
        yield
    except apsw.Error as error:
        if isinstance(error, apsw.TooBigError) and cell_max_bytes is not None:
            raise errors.cell_too_large(limit_bytes=cell_max_bytes) from error
        raise _domain_error(error) from error
    except UnicodeDecodeError as error:
        raise errors.StatementRejected("A text value in the result is not valid UTF-8. Use CAST(… AS BLOB).") from error
    except ValueError as error:  # raised before the text reaches SQLite
        raise errors.StatementRejected("A statement must not contain U+0000 or an unpaired surrogate.") from error


def _domain_error(error: apsw.Error) -> errors.EngineError:
    if isinstance(error, apsw.InterruptError):
        return Interrupted()
    if isinstance(error, _LOST):
        return errors.SessionLost("Invalid session Id: the connection to the database is closed.")
    if isinstance(error, apsw.NoMemError):
        return errors.StatementRejected("out of memory: the statement exceeds this server's memory limit for SQLite")
    offset = getattr(error, "error_offset", -1)  # in bytes; -1 if unknown
    known = errors.StatementRejected(str(error).strip() or "The statement failed.").with_sqlstate(_sqlstate_of(error))
    return known.at(errors.Octet(offset) if offset >= 0 else None)


# SQLite has its own result codes. Only constraint errors and errors with a standard SQLSTATE class are mapped.
_CONSTRAINTS = {
    apsw.SQLITE_CONSTRAINT_NOTNULL: "23502",
    apsw.SQLITE_CONSTRAINT_FOREIGNKEY: "23503",
    apsw.SQLITE_CONSTRAINT_UNIQUE: "23505",
    apsw.SQLITE_CONSTRAINT_PRIMARYKEY: "23505",
    apsw.SQLITE_CONSTRAINT_ROWID: "23505",
    apsw.SQLITE_CONSTRAINT_CHECK: "23514",
}
_KINDS: Sequence[tuple[type[apsw.Error], str]] = (
    (apsw.ConstraintError, "23000"),
    (apsw.MismatchError, "22000"),
    (apsw.BusyError, "40001"),
)


def _sqlstate_of(error: apsw.Error) -> str | None:
    known = _CONSTRAINTS.get(getattr(error, "extendedresult", 0))
    return known or next((state for kind, state in _KINDS if isinstance(error, kind)), None)


Cell = int | float | str | bytes | None


def _bound_value(one: Parameter) -> Cell:
    """Return the value to bind.

    SQLite has neither decimals nor times. Decimals become numbers, as they do in SQL text. Times become strings.
    """
    match one.value:
        case None | bool() | int() | float() | str() | bytes():
            return one.value
        case Decimal() if not one.value.is_finite():
            return float(one.value)
        case Decimal():
            whole = int(one.value)
            fits = whole == one.value and -(2**63) <= whole < 2**63 and one.value.as_tuple().exponent == 0
            return whole if fits else float(one.value)
        case datetime():
            return (one.value if one.value.tzinfo is None else one.value.astimezone(UTC)).isoformat(" ")
        case date() | time():
            return one.value.isoformat()
        case tuple():
            raise TypeError("SQLite has no arrays")


# Checked in the contract's order.
_TYPES_BY_WORD = (
    (("BOOL",), ResultType.BOOLEAN),
    (("DATETIME", "TIMESTAMP"), ResultType.TIMESTAMP),
    (("DATE",), ResultType.DATE),
    (("TIME",), ResultType.STRING),
    (("INT",), ResultType.BIGINT),
    (("CHAR", "CLOB", "TEXT"), ResultType.STRING),
    (("BLOB",), ResultType.BINARY),
    (("REAL", "FLOA", "DOUB", "NUM", "DEC"), ResultType.DOUBLE),
)
_TYPES_BY_VALUE: dict[type, ResultType] = {int: ResultType.BIGINT, float: ResultType.DOUBLE, bytes: ResultType.BINARY}


def _column(name: str, declared: str | None, values: Iterable[Cell]) -> Column:
    """Describe a result column.

    The result type depends on words in the declared type; the default is a string. If there is no declared type, as for
    an expression, the first value that is not NULL determines the result type.
    """
    if declared:
        upper = declared.upper()
        kind = next((kind for words, kind in _TYPES_BY_WORD if any(word in upper for word in words)), ResultType.STRING)
        return Column(name, kind, declared)
    first = next((value for value in values if value is not None), None)
    return Column(name, _TYPES_BY_VALUE.get(type(first), ResultType.STRING), "")


_ARROW: dict[type, pa.DataType] = {
    bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary(),
}  # fmt: skip
_WHEN_EMPTY: dict[ResultType, pa.DataType] = {
    ResultType.BOOLEAN: pa.bool_(),
    ResultType.BIGINT: pa.int64(),
    ResultType.DOUBLE: pa.float64(),
    ResultType.BINARY: pa.binary(),
}


def record_batch(rows: Sequence[Sequence[Cell]], columns: Sequence[Column]) -> pa.RecordBatch:
    """Convert rows to one batch.

    A column whose values all have one class gets a plain type; a mixed column becomes a dense union.
    """
    by_column = zip(*rows, strict=True) if rows else [()] * len(columns)
    arrays = [_array(values, column.type) for values, column in zip(by_column, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _array(values: Sequence[Cell], declared: ResultType) -> pa.Array:
    if declared is ResultType.BOOLEAN:
        values = [bool(value) if type(value) is int and value in (0, 1) else value for value in values]
    classes = set(map(type, values)) - {type(None)}
    if len(classes) > 1:
        return _dense_union(values, sorted(classes, key=list(_ARROW).index))
    plain = _ARROW[classes.pop()] if classes else _WHEN_EMPTY.get(declared, pa.string())
    return pa.array(values, plain)


def _dense_union(values: Sequence[Cell], classes: list[type]) -> pa.Array:
    """Build a dense union with one member per class; NULLs belong to the first member."""
    members: list[list[Any]] = [[] for _ in classes]
    number = {kind: index for index, kind in enumerate(classes)} | {type(None): 0}
    codes, offsets = list[int](), list[int]()
    for value in values:
        code = number[type(value)]
        codes.append(code)
        offsets.append(len(members[code]))
        members[code].append(value)
    children = [pa.array(member, _ARROW[kind]) for member, kind in zip(members, classes, strict=True)]
    names = [kind.__name__ for kind in classes]
    return pa.UnionArray.from_dense(pa.array(codes, pa.int8()), pa.array(offsets, pa.int32()), children, names)


_CHUNK_ROWS = 10_000
_CHUNK_S = 0.2
"""Time after which the available rows of a slow query are returned."""

_BUSY_PAUSE_S = 0.02
_ROWS = "queryserver_rows"
_BLANK = re.compile(r"(?:\s|;|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)


class SqliteConnection:
    """A connection with an authorizer that confines its statements to the database.

    Statements wait up to `busy_timeout_s` for a lock on the database.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        *,
        busy_timeout_s: float,
        cell_max_bytes: int | None = None,
        watch: SqliteWatch | None = None,
    ) -> None:
        self._watch = watch
        self.native = connection
        """The driver's connection, also used for the server's own statements, which are confined like user
        statements.
        """
        self._cell_max_bytes = cell_max_bytes
        self._authorizer = SqliteAuthorizer()
        self._busy_timeout_s = busy_timeout_s
        self._busy_since = 0.0
        self._interrupted = self._is_watched = self._has_room = False
        self.is_usable = True
        connection.authorizer = self._authorizer
        connection.set_busy_handler(self._wait_for_lock)

    takes_rows = True

    def run(self, statement: str | BoundStatement, context: StatementContext = NO_CONTEXT) -> "SqliteAnswer":
        """Run SQL text that contains at most one statement (Contract security T23)."""
        self._interrupted = False
        if isinstance(statement, BoundStatement) and statement.rows:
            return self._run_rows(statement, read_only=context.read_only)
        return self._run_once(statement, read_only=context.read_only)

    def estimate(self, statement: str | BoundStatement) -> None:  # noqa: ARG002 SQLite stores no sizes of tables
        return None

    def _run_once(self, statement: str | BoundStatement, *, read_only: bool = False) -> "SqliteAnswer":
        values = tuple(map(_bound_value, statement.values)) if isinstance(statement, BoundStatement) else None
        text = sql_text(statement, lambda number, _: f"?{number + 1}")
        self._authorizer.next_statement(read_only=read_only)
        answer = SqliteAnswer(self, self._authorizer, self._cell_max_bytes)
        try:
            with self.watched(), statement_errors(cell_max_bytes=self._cell_max_bytes):
                answer.start(text, values)
        except errors.EngineError as error:
            answer.close()
            if self._interrupted and isinstance(error, errors.StatementRejected):
                raise Interrupted from error
            if self._authorizer.refuses_change:
                raise read_only_error() from error
            raise
        except BaseException:  # the cursor must not stay open after any failure
            answer.close()
            raise
        return answer

    @contextmanager
    def watched(self, *, grows: bool = False) -> Generator[None]:
        """Interrupt the block's work once the log, the temporary files or the disk exceed their limits.

        `grows` means that the work needs more storage, regardless of its statements.
        """
        if self._watch is None or self._is_watched:
            yield
            return
        if grows:
            self._watch.require_room()
        try:
            with self._watch.over(self.native.interrupt, watches_floor=lambda: grows or self._authorizer.grows):
                yield
        except errors.StatementRejected as error:
            if isinstance(error.__cause__, apsw.FullError):
                raise self._watch.full() from error
            raise

    def require_room(self) -> None:
        """Check the free storage before the prepared statement runs. Raises EngineError `insufficient_storage`."""
        if self._watch is not None and self._authorizer.grows and not (self._is_watched and self._has_room):
            self._watch.require_room(self._used_bytes)
            self._has_room = True

    def shrink_log(self) -> None:
        """Truncate the log after a large change, even a canceled one. Does not wait for other connections."""
        if self._watch is not None and self._watch.has_long_log() and not self.native.in_transaction:
            was_interrupted, self._interrupted = self._interrupted, True  # the busy handler then gives up at once
            # If other connections are reading, a later statement truncates the log.
            with suppress(apsw.Error):
                # A pending interrupt meant for the previous statement hits this first attempt, which clears it.
                with suppress(apsw.InterruptError):
                    self.native.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self.native.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._interrupted = was_interrupted

    def _used_bytes(self) -> int:
        pages, free, page_bytes = (self.native.pragma(name) for name in ("page_count", "freelist_count", "page_size"))
        return (pages - free) * page_bytes

    def _run_rows(self, statement: BoundStatement, *, read_only: bool) -> "SqliteAnswer":
        """Run the statement once per parameter row, within one savepoint.

        The savepoint belongs to the open transaction. If there is none, the savepoint starts a new transaction.
        """
        with self.watched():
            # The storage is watched once for all rows, because a watch per row would take longer than running the row.
            self._is_watched, self._has_room = True, False
            try:
                changed = self._run_row(statement, read_only=read_only)
            finally:
                self._is_watched = False
        ended = SqliteAnswer(self, self._authorizer)
        ended.modified_rows = changed
        return ended

    def _run_row(self, statement: BoundStatement, *, read_only: bool) -> int:
        changed = 0
        self._control(f"SAVEPOINT {_ROWS}")
        try:
            for number, row in enumerate(statement.rows):
                statement.row = number
                self._check_interrupted()
                answer = self._run_once(row, read_only=read_only)
                while answer.next_batches():
                    pass  # discards rows from RETURNING
                answer.close()
                changed += answer.modified_rows or 0
            self._control(f"RELEASE {_ROWS}")
        except BaseException:
            with suppress(errors.EngineError):  # some failures end the transaction
                self._control(f"ROLLBACK TO {_ROWS}")
                self._control(f"RELEASE {_ROWS}")
            raise
        return changed

    def _check_interrupted(self) -> None:
        """Raise Interrupted if an interrupt was requested between two rows."""
        if self._interrupted:
            raise Interrupted

    def _control(self, statement: str) -> None:
        self._run_once(statement).close()

    def forget_interrupt(self) -> None:
        """Clear an earlier interrupt, so that statements wait for locks again."""
        self._interrupted = False

    def interrupt(self) -> None:
        self._interrupted = True
        self.native.interrupt()

    def progress(self) -> int | None:
        return None

    def close(self) -> None:
        if self.is_usable:
            self.is_usable = False
            self.native.close()

    def _wait_for_lock(self, tries: int) -> bool:
        """Wait while another connection holds a lock, until an interrupt or the timeout.

        SQLite calls this before each retry.
        """
        now = clock.monotonic()
        if tries == 0:
            self._busy_since = now
        if self._interrupted or now - self._busy_since > self._busy_timeout_s:
            return False
        clock.sleep(_BUSY_PAUSE_S)
        return True


class SqliteAnswer(DriverAnswer):
    """Reads the rows of one statement.

    The first chunk is read in advance, because it determines the types of expressions.
    """

    def __init__(
        self, owner: SqliteConnection, authorizer: SqliteAuthorizer, cell_max_bytes: int | None = None
    ) -> None:
        self._owner = owner
        self._connection = connection = owner.native
        self._authorizer = authorizer
        self._cell_max_bytes = cell_max_bytes
        self._cursor = connection.cursor()
        self._statement = ""
        self._described: tuple[tuple[str, str | None], ...] = ()
        self._ahead: list[tuple[Cell, ...]] = []
        self._is_prepared = False
        self._counts_rows = False
        self._ended = self._is_closed = False

    def start(self, statement: str, values: "tuple[Cell, ...] | None" = None) -> None:
        """Run the statement until its first rows are available. Raises the driver's errors."""
        self._statement = statement
        self._cursor.exec_trace = self._check_prepared
        # SQLite would not call the authorizer again for a cached statement.
        self._cursor.execute(statement, values, can_cache=False)
        self._ahead = self._chunk()
        if self._described:
            self.columns = tuple(
                _column(name, declared, [row[number] for row in self._ahead])
                for number, (name, declared) in enumerate(self._described)
            )

    def next_batches(self) -> Sequence[pa.RecordBatch]:
        with self._owner.watched(), statement_errors(cell_max_bytes=self._cell_max_bytes):
            rows, self._ahead = self._ahead or self._chunk(), []
            return [record_batch(rows, self.columns or ())] if rows else []

    def close(self) -> None:
        """Close the cursor. An open cursor would keep its database snapshot and prevent truncation of the log."""
        self._ahead, self._ended = [], True
        self._cursor.close(True)
        if not self._is_closed:
            self._is_closed = True
            self._owner.shrink_log()

    def _check_prepared(self, cursor: apsw.Cursor, statement: str, _bindings: object) -> bool:
        """Check the prepared statement before it runs.

        The driver also calls this for a comment after the statement.
        """
        if self._is_prepared:
            return True
        self._is_prepared = True
        if not _BLANK.fullmatch(self._statement, len(statement)):
            raise errors.StatementRejected("Only one statement is allowed at a time.")
        if self._authorizer.read_only and not (cursor.is_readonly or cursor.is_explain):
            raise read_only_error()
        self._owner.require_room()
        self._described = cursor.get_description()
        self._counts_rows = self._authorizer.counts_rows and not cursor.is_explain
        return True

    def _chunk(self) -> list[tuple[Cell, ...]]:
        rows, size, deadline = list[tuple[Any, ...]](), 0, clock.monotonic() + _CHUNK_S
        if self._ended:
            return rows
        for row in self._cursor:
            rows.append(row)
            size += sum(map(sys.getsizeof, row))
            if size >= BATCH_BYTES or len(rows) >= _CHUNK_ROWS or clock.monotonic() > deadline:
                return rows
        self._ended = True
        if self._counts_rows:
            self.modified_rows = self._connection.changes()
        return rows
