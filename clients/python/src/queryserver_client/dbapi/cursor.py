"""PEP 249 cursors, which run scripts and return the rows of their results."""

import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from queryserver_client.dbapi import errors
from queryserver_client.dbapi.types import Description, described
from queryserver_client.encoding import Parameters, batches
from queryserver_client.result import PAGE_ROWS, Result
from queryserver_client.values import Row, decode_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

T = TypeVar("T")


class StatementConnection(Protocol):
    """The part of a connection that its cursors use. Implemented by `dbapi.Connection`."""

    @property
    def closed(self) -> bool: ...

    def cursor(self) -> "Cursor": ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T: ...

    def results_of(self, sql: str, parameters: Parameters | None) -> list[Result]: ...

    def result_of_rows(self, sql: str, rows: Sequence[Parameters]) -> Result | None: ...

    def free(self, results: Iterable[Result]) -> None: ...

    def last_row_id(self) -> int | None: ...


class Cursor:
    """A cursor created by `Connection.cursor`."""

    def __init__(self, connection: StatementConnection) -> None:
        self.connection = connection
        self.arraysize = 1
        """Number of rows that `fetchmany` returns by default. Does not affect the page size of requests."""
        self._results: deque[Result] = deque()
        self._rows: deque[Row] = deque()
        self._position = 0
        self._fetched = 0
        self._rowcount = -1
        self._is_closed = False
        self._last_id: int | None = None
        self._has_last_id = True

    @property
    def description(self) -> list[Description] | None:
        """One item for each column: its name, its type code and, for decimals, its precision and scale.

        None if the statement has no result set.
        """
        result = self._result
        if result is None or not result.has_rows:
            return None
        return [described(column.name, column.type, column.native_type) for column in result.columns]

    @property
    def rowcount(self) -> int:
        """Number of rows in the result, or of changed rows; -1 if unknown."""
        return self._rowcount

    def count_before(self, rows: int) -> None:
        """Add the number of rows changed by earlier statements to `rowcount` (an extension of PEP 249)."""
        self._rowcount += rows

    @property
    def rownumber(self) -> int | None:
        """0-based index of the next row; None if there is no result set."""
        result = self._result
        return self._position if result is not None and result.has_rows else None

    @property
    def lastrowid(self) -> int | None:
        """The id that sqlite or mysql generated for the last inserted row; None for other engines.

        The first access queries the engine, so access it before the next statement of the connection.
        """
        if not self._has_last_id:
            self._last_id, self._has_last_id = self.connection.last_row_id(), True
        return self._last_id

    @property
    def operation_id(self) -> str | None:
        """The operation id of the current statement on the server (an extension of PEP 249)."""
        return self._result.operation_id if self._result is not None else None

    def execute(self, operation: str, parameters: Parameters | None = None) -> "Self":
        """Run a statement, or all statements of a script in order. `nextset` moves to the result of the next statement.

        `parameters` are a sequence for `?` or a mapping for `:name`. If they are None, the text is sent unchanged.
        Otherwise, even if they are empty, `??` outside quotes means a literal `?` for the engine.
        """
        self._start()
        plain = None if parameters is None else _plain(parameters)
        self._results.extend(self.connection.results_of(operation, plain))
        self._show()
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Parameters]) -> "Self":
        """Run a statement once for each set of parameters. `rowcount` is the total; returned rows are discarded.

        Sets for a statement that changes rows are sent in batches of up to some thousands. With autocommit, if the
        engine supports transactions, either all sets of a batch take effect or none.
        """
        self._start()
        total, is_known = 0, True
        for results in self._many(operation, map(_plain, seq_of_parameters)):
            for count in map(_count, results):
                total, is_known = total + max(count, 0), is_known and count >= 0
            self._release(*results)
        self._rowcount, self._has_last_id = total if is_known else -1, False
        return self

    def _many(self, operation: str, rows: Iterable[Parameters]) -> Iterator[Sequence[Result]]:
        is_at_once, done = bool(_CHANGES_ROWS.match(operation)), 0
        for batch in batches(rows, len(operation)) if is_at_once else ([row] for row in rows):
            result = None
            if is_at_once and len(batch) > 1 and all(batch):
                result = self._at_once(operation, batch, done)
                is_at_once = result is not None
            if result is not None:
                yield [result]
            else:
                yield from (self.connection.results_of(operation, row) for row in batch)
            done += len(batch)

    def _at_once(self, operation: str, batch: Sequence[Parameters], done: int) -> Result | None:
        try:
            return self.connection.result_of_rows(operation, batch)
        except errors.Error as error:
            if done:  # the position in the message counts only the rows of this batch
                error.args = (f"{error}\n{done} rows of executemany were already executed in earlier calls.",)
            raise

    def fetchone(self) -> Row | None:
        return self._rows.popleft() if self._has_row() and self._advance(1) else None

    def fetchmany(self, size: int | None = None) -> list[Row]:
        size = self.arraysize if size is None else size
        rows: list[Row] = []
        while len(rows) < size and self._has_row():
            taken = min(size - len(rows), len(self._rows))
            rows += [self._rows.popleft() for _ in range(taken)]
            self._advance(taken)
        return rows

    def fetchall(self) -> list[Row]:
        rows: list[Row] = []
        while self._has_row():
            rows += self._rows
            self._advance(len(self._rows))
            self._rows.clear()
        return rows

    def fetch_arrow_table(self) -> "pa.Table":
        """Return the rows that have not been fetched yet as a pyarrow Table (an extension of PEP 249)."""
        result = self._required()
        table = self.connection.run(result.arrow).slice(self._position)
        self._advance(table.num_rows)
        self._rows.clear()
        self._fetched = result.row_count
        return table

    def nextset(self) -> bool | None:
        """Move to the result of the next statement of the script. Return None if there is none."""
        self._require_open()
        if len(self._results) < 2:
            return None
        self._release(self._results.popleft())
        self._show()
        return True

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Do nothing, because the values determine the parameter types."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing, because column values are always returned in full."""

    def close(self) -> None:
        """Close the cursor, and delete its large results on the server. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._drop_results()

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _result(self) -> Result | None:
        return self._results[0] if self._results else None

    def _start(self) -> None:
        self._require_open()
        self._drop_results()
        self._rowcount, self._last_id, self._has_last_id = -1, None, True

    def _show(self) -> None:
        """Make the first result the current one."""
        result = self._results[0]
        self._rows, self._position, self._fetched = deque(result.first_rows), 0, len(result.first_rows)
        self._rowcount, self._has_last_id, self._last_id = _count(result), result.has_rows, None

    def _required(self) -> Result:
        self._require_open()
        result = self._result
        if result is None or not result.has_rows:
            raise errors.ProgrammingError("no result to fetch from: the last statement returned none")
        return result

    def _has_row(self) -> bool:
        """Return whether there is another row; fetch a page if necessary."""
        result = self._required()
        while not self._rows and self._fetched < result.row_count:
            page = self.connection.run(partial(result.statement.fetch, self._fetched, PAGE_ROWS))
            self._rows.extend(decode_rows(page["data"], result.columns))
            self._fetched += len(self._rows)
        return bool(self._rows)

    def _advance(self, rows: int) -> bool:
        self._position += rows
        return True

    def _drop_results(self) -> None:
        results, self._results = self._results, deque()
        self._release(*results)
        self._rows, self._position, self._fetched = deque(), 0, 0

    def _release(self, *results: Result) -> None:
        if any(result.row_count > len(result.first_rows) for result in results):
            self.connection.free(results)

    def _require_open(self) -> None:
        if self._is_closed:
            raise errors.InterfaceError("the cursor is closed")
        if self.connection.closed:
            raise errors.InterfaceError("the connection is closed")


def _count(result: Result) -> int:
    if result.has_rows and result.modified_row_count is None:
        return result.row_count
    return -1 if result.modified_row_count is None else result.modified_row_count


_CHANGES_ROWS = re.compile(r"\s*(?:INSERT|UPDATE|DELETE|MERGE|REPLACE|UPSERT)\b", re.IGNORECASE)


def _plain(parameters: Parameters) -> Parameters:
    """Return any sequence as a list and any mapping (including SQLAlchemy rows) as a dict. Raises ProgrammingError."""
    if isinstance(parameters, (str, bytes, bytearray, memoryview)):
        raise errors.ProgrammingError("parameters must be a sequence or a mapping; a single value is (value,)")
    if hasattr(parameters, "items"):
        return dict(parameters)
    return list(parameters)
