"""One DuckDB connection at work. Everything here blocks."""

from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from queryserver.domain.errors import StatementRejected
from queryserver.domain.result import Column
from queryserver.engines.chunks import BATCH_BYTES, pieces
from queryserver.engines.duckdb.errors import FATAL, statement_errors
from queryserver.engines.duckdb.guard import refuse_reach
from queryserver.engines.duckdb.types import exact_projection, result_type
from queryserver.engines.duckdb.values import sound

# DuckDB works in vectors of this many rows; a reader that asks for less only cuts them.
_VECTOR_ROWS = 2048
_NOTHING = (["Success"], ["BOOLEAN"])
_COUNT = (["Count"], ["BIGINT"])
_QUERIES = frozenset({"SELECT", "EXPLAIN", "EXECUTE", "CALL", "PRAGMA", "MULTI", "RELATION"})


class DuckdbConnection:
    """A cursor of a database, which is a connection of its own: temporary tables, USE and SET live in it."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, root: Path | None, owned: duckdb.DuckDBPyConnection | None = None
    ) -> None:
        self._connection = connection
        self._root = root
        self._owned = owned
        self._closed = False
        self.is_usable = True

    def run(self, statement: str) -> "DuckdbAnswer":
        """See DriverConnection. The text must hold one statement at most (Contract security T23)."""
        with statement_errors(self._root):
            try:
                return self._run(statement)
            except FATAL:
                self.is_usable = False
                raise

    def prepare(self, setting: str) -> None:
        """Run a setting of the session, unguarded."""
        with statement_errors(self._root):
            self._connection.execute(setting)

    @property
    def native(self) -> duckdb.DuckDBPyConnection:
        """The driver's own connection, for statements of ours."""
        return self._connection

    def interrupt(self) -> None:
        """See DriverConnection."""
        self._connection.interrupt()

    def progress(self) -> int | None:
        """See DriverConnection."""
        percent = self._connection.query_progress()
        return min(max(int(percent), 0), 100)

    def close(self) -> None:
        """See DriverConnection."""
        if not self._closed:
            self._closed, self.is_usable = True, False
            self._connection.close()
            if self._owned is not None:
                self._owned.close()

    def _run(self, text: str) -> "DuckdbAnswer":
        statements = self._connection.extract_statements(text)
        if not statements:
            return DuckdbAnswer(self._root)
        if len(statements) > 1:
            raise StatementRejected("Parser Error: one statement at a time.")
        statement = statements[0]
        refuse_reach(self._connection, statement)
        # A query gives a relation that runs when it is read; anything else runs here.
        relation = self._connection.sql(statement)
        shape = (relation.columns, [str(native) for native in relation.types])
        kind = statement.type.name
        if kind != "SELECT" and shape == _NOTHING:
            return DuckdbAnswer(self._root)
        if kind not in _QUERIES and shape == _COUNT and not _returns_rows(text):
            counted = relation.fetchall()
            return DuckdbAnswer(self._root, modified_rows=counted[0][0] if counted else None)
        return _open_rows(relation, self._root)


class DuckdbAnswer:
    """The rows of a statement, as an Arrow reader. One vector is read ahead, so that errors show early."""

    def __init__(
        self,
        root: Path | None,
        *,
        columns: tuple[Column, ...] | None = None,
        modified_rows: int | None = None,
        reader: pa.RecordBatchReader | None = None,
    ) -> None:
        self.columns = columns
        self.modified_rows = modified_rows
        self._root = root
        self._reader = reader
        self._ahead = self._next()

    def next_batches(self) -> Sequence[pa.RecordBatch]:
        """See DriverAnswer."""
        with statement_errors(self._root):
            batches, size = list[pa.RecordBatch](), 0
            while self._ahead is not None and size < BATCH_BYTES:
                batches.extend(pieces(self._ahead))
                size += self._ahead.nbytes
                self._ahead = self._next()
            return batches

    def close(self) -> None:
        """See DriverAnswer. A reader left open would block the connection's next statement."""
        reader, self._reader, self._ahead = self._reader, None, None
        if reader is not None:
            reader.close()

    def _next(self) -> pa.RecordBatch | None:
        if self._reader is None:
            return None
        for batch in self._reader:
            if batch.num_rows:
                return sound(batch, self.columns or ())
        return None


def _open_rows(relation: duckdb.DuckDBPyRelation, root: Path | None) -> DuckdbAnswer:
    columns = tuple(
        Column(name, result_type(native), str(native))
        for name, native in zip(relation.columns, relation.types, strict=True)
    )
    projection = exact_projection(relation.types)
    if projection is not None:
        relation = relation.project(projection)
    return DuckdbAnswer(root, columns=columns, reader=relation.to_arrow_reader(_VECTOR_ROWS))


def _returns_rows(text: str) -> bool:
    """Whether the keyword RETURNING stands in the text: DuckDB names the count of changed rows like a result."""
    encoded = text.encode()  # the tokens' places count bytes
    return any(
        kind.name == "keyword" and encoded[place : place + 9].lower() == b"returning"
        for place, kind in duckdb.tokenize(text)
    )
