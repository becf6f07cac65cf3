"""One SQLite connection at work. Everything here blocks."""

import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import apsw
import pyarrow as pa

from queryserver.domain.errors.statements import StatementRejected
from queryserver.domain.result import Column
from queryserver.engines.chunks import BATCH_BYTES
from queryserver.engines.sqlite.authorizer import Authorizer
from queryserver.engines.sqlite.errors import statement_errors
from queryserver.engines.sqlite.types import Cell, declared_type, type_of_first
from queryserver.engines.sqlite.values import batch_of
from queryserver.engines.threaded_session import Interrupted

_CHUNK_ROWS = 10_000
_CHUNK_S = 0.2
"""Rows of a slow query are handed on after this time."""

_BUSY_PAUSE_S = 0.02
_BLANK = re.compile(r"(?:\s|;|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)


class SqliteConnection:
    """A confined connection. A statement that finds the database locked waits up to `busy_timeout_s`."""

    def __init__(
        self, connection: apsw.Connection, *, busy_timeout_s: float, cell_max_bytes: int | None = None
    ) -> None:
        self._connection = connection
        self._cell_max_bytes = cell_max_bytes
        self._authorizer = Authorizer()
        self._busy_timeout_s = busy_timeout_s
        self._busy_since = 0.0
        self._interrupted = False
        self.is_usable = True
        connection.authorizer = self._authorizer
        connection.set_busy_handler(self._keep_waiting)

    def run(self, statement: str) -> "SqliteAnswer":
        """See DriverConnection. The text must hold one statement at most (Contract security T23)."""
        self._interrupted = False
        self._authorizer.next_statement()
        answer = SqliteAnswer(self._connection, self._authorizer, self._cell_max_bytes)
        try:
            with statement_errors(cell_max_bytes=self._cell_max_bytes):
                answer.start(statement)
        except StatementRejected as error:
            answer.close()
            if self._interrupted:
                raise Interrupted from error
            raise
        except BaseException:  # the cursor must not stay open, whatever failed
            answer.close()
            raise
        return answer

    @property
    def native(self) -> apsw.Connection:
        """The driver's own connection, for statements of ours; confined like the others."""
        return self._connection

    def forget_interrupt(self) -> None:
        """From now on locks are waited for again."""
        self._interrupted = False

    def interrupt(self) -> None:
        """See DriverConnection."""
        self._interrupted = True
        self._connection.interrupt()

    def progress(self) -> int | None:
        """SQLite tells none."""
        return None

    def close(self) -> None:
        """See DriverConnection."""
        if self.is_usable:
            self.is_usable = False
            self._connection.close()

    def _keep_waiting(self, tries: int) -> bool:
        """Called by SQLite while another connection holds a lock; a stop ends the wait."""
        now = time.monotonic()
        if tries == 0:
            self._busy_since = now
        if self._interrupted or now - self._busy_since > self._busy_timeout_s:
            return False
        time.sleep(_BUSY_PAUSE_S)
        return True


class SqliteAnswer:
    """The rows of one statement. The first chunk is read at the start: it names the types of expressions."""

    def __init__(self, connection: apsw.Connection, authorizer: Authorizer, cell_max_bytes: int | None = None) -> None:
        self.columns: tuple[Column, ...] | None = None
        self.modified_rows: int | None = None
        self._connection = connection
        self._authorizer = authorizer
        self._cell_max_bytes = cell_max_bytes
        self._cursor = connection.cursor()
        self._statement = ""
        self._described: tuple[tuple[str, str | None], ...] = ()
        self._ahead: list[tuple[Cell, ...]] = []
        self._is_prepared = False
        self._counts_rows = False
        self._ended = False

    def start(self, statement: str) -> None:
        """Run up to the first rows. Raises what the driver raises."""
        self._statement = statement
        self._cursor.exec_trace = self._before
        # A cached statement would not be shown to the authorizer again.
        self._cursor.execute(statement, can_cache=False)
        self._ahead = self._chunk()
        if self._described:
            self.columns = tuple(
                _column(name, declared, [row[place] for row in self._ahead])
                for place, (name, declared) in enumerate(self._described)
            )

    def next_batches(self) -> Sequence[pa.RecordBatch]:
        """See DriverAnswer."""
        with statement_errors(cell_max_bytes=self._cell_max_bytes):
            rows, self._ahead = self._ahead or self._chunk(), []
            return [batch_of(rows, self.columns or ())] if rows else []

    def close(self) -> None:
        """See DriverAnswer. An open cursor would hold its view of the database, and keep the log from shrinking."""
        self._ahead, self._ended = [], True
        self._cursor.close(True)

    def _before(self, cursor: apsw.Cursor, statement: str, _bindings: object) -> bool:
        """Called when the statement is prepared and before it does anything; again for a comment behind it."""
        if self._is_prepared:
            return True
        self._is_prepared = True
        if not _BLANK.fullmatch(self._statement, len(statement)):
            raise StatementRejected("One statement at a time.")
        self._described = cursor.get_description()
        self._counts_rows = self._authorizer.counts_rows and not cursor.is_explain
        return True

    def _chunk(self) -> list[tuple[Cell, ...]]:
        rows, size, give_up = list[tuple[Any, ...]](), 0, time.monotonic() + _CHUNK_S
        if self._ended:
            return rows
        for row in self._cursor:
            rows.append(row)
            size += sum(map(sys.getsizeof, row))
            if size >= BATCH_BYTES or len(rows) >= _CHUNK_ROWS or time.monotonic() > give_up:
                return rows
        self._ended = True
        if self._counts_rows:
            self.modified_rows = self._connection.changes()
        return rows


def _column(name: str, declared: str | None, values: Sequence[Cell]) -> Column:
    return Column(name, declared_type(declared) if declared else type_of_first(values), declared or "")
