"""One DuckDB connection, its result limits and its error translation. All calls block."""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

import duckdb
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType

from queryserver import errors
from queryserver.engines.catalog_queries import identifier
from queryserver.engines.duckdb.binding import alike, joined, marked, marks_of, only_stores_values, row_start
from queryserver.engines.duckdb.failures import (
    domain_error,
    location_of,
    may_have_ended,
    sqlstate_of,
    statement_errors,
    with_lines,
    without_excerpt,
)
from queryserver.engines.duckdb.guard import Token, kind_of, refuse_reach, tokens_of
from queryserver.engines.duckdb.named_results import NamedResults
from queryserver.engines.duckdb.session_files import SessionStatements
from queryserver.engines.duckdb.temporary import TemporaryRoom
from queryserver.engines.duckdb.values import (
    arrives_as_text,
    has_own_size,
    readable,
    require_shallow,
    require_small,
    result_type,
    sound,
)
from queryserver.engines.process.calls import CalledResults
from queryserver.engines.statement_texts import BATCH_BYTES, pieces
from queryserver.engines.storage_watch import StorageWatch
from queryserver.engines.threaded import DriverAnswer, Interrupted
from queryserver.errors.statements import disk_below_floor
from queryserver.formats.columns import Column
from queryserver.sql.literals import DUCKDB
from queryserver.sql.markers import BoundStatement

# DuckDB works in vectors of 2048 rows, which count against its memory limit. Several vectors are copied into one batch
# only if their size is known: reading numbers in batches of 16,384 rows is 1.3 times as fast.
_VECTOR_ROWS, _ROWS_OF_KNOWN_SIZE = 2048, 16_384

_MAX_JOINED_ROWS = 2_000
"""Maximum number of parameters in a statement that combines several rows."""

_SMALL_BYTES = 1024 * 1024
"""Batches up to this average size are concatenated, which copies them."""

_NOTHING = (["Success"], ["BOOLEAN"])
_COUNT = (["Count"], ["BIGINT"])
_TRANSACTION = "SELECT txid_current()"
_GROWING = frozenset({"ALTER", "CREATE", "CREATE_FUNC", "INSERT", "MERGE_INTO", "UPDATE"})
_OCCUPIED = """
    SELECT coalesce(sum(used_blocks * block_size), 0)::BIGINT FROM pragma_database_size()
    WHERE database_name = current_database()
"""
_QUERIES = frozenset({"SELECT", "EXPLAIN", "EXECUTE", "CALL", "PRAGMA", "MULTI", "RELATION"})
_NUMBERED = re.compile(r"(.+)_\d+", re.DOTALL)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _CheckedRow:
    """A checked statement with markers, which the guard need not check again for other values."""

    statement: duckdb.Statement
    returns_rows: bool
    lines_before: int
    start: int | None = None
    """The position of its row in the text with markers; None if no further rows may follow."""


class _RowsRefused(Exception):
    """The combined statement for several rows has failed; the rows must run one by one."""


_Planned: TypeAlias = tuple[duckdb.DuckDBPyRelation, list[str]]
"""The relation that yields a statement's rows, and its column names."""


class DuckdbConnection:
    """A cursor of a database. DuckDB treats it as a separate connection with its own temporary tables, USE and SET."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        root: Path | None,
        owned: duckdb.DuckDBPyConnection | None = None,
        *,
        cell_max_bytes: int = 16 * 1024 * 1024,
        room: TemporaryRoom | None = None,
        watch: StorageWatch | None = None,
        has_ended: Callable[[], bool] = lambda: False,
        files: "Callable[[Callable[[], None]], SessionStatements] | None" = None,
        results: CalledResults | None = None,
    ) -> None:
        """`has_ended` is called after an internal error and returns whether the error has invalidated the database for
        all connections.

        `files` creates the statements' file access; its argument is a function that interrupts them. `results` are the
        stored results that statements may read as tables.
        """
        self.native = connection
        """The driver's connection, for the server's own statements."""
        self._files = files(self.interrupt) if files is not None else None
        self._has_ended = has_ended
        self._watch = watch
        self._root = root
        self._owned = owned
        self._cell_max_bytes = cell_max_bytes
        self._room = room
        self._results = None if results is None else NamedResults(connection, results)
        self._closed = self._is_stopped = False
        self.is_usable = True

    takes_rows = True

    def run(self, statement: str | BoundStatement) -> DriverAnswer:
        """Run a text that contains at most one statement (Contract security T23)."""
        if self._files is not None:
            return self._files.run(lambda: self._with_results(statement))
        return self._with_results(statement)

    def _with_results(self, statement: str | BoundStatement) -> "DuckdbAnswer":
        results = self._results
        if results is None:
            return self._answered(statement)
        try:
            answer = self._answered(statement)
        except BaseException:
            results.end()
            raise
        if answer.columns is None:
            results.end()
        else:
            answer.on_close = results.end
        return answer

    def _answered(self, statement: str | BoundStatement) -> "DuckdbAnswer":
        if not isinstance(statement, BoundStatement):
            return self._begin(statement)
        with without_excerpt():
            if statement.rows:
                return self._run_rows(statement)
            answer = self._begin(statement.render(DUCKDB.write), statement)
        answer.hide_excerpts()
        return answer

    def _begin(self, text: str, bound: BoundStatement | None = None) -> "DuckdbAnswer":
        """Run a statement. `text` contains the values of `bound` as literals, for the guard (ADR 61)."""
        if self._room is not None:
            self._room.apply(self.native)
        with self.engine_errors():
            return self._run(text, bound)

    @contextmanager
    def engine_errors(self) -> Generator[None]:
        """Translate database errors into statement errors, and classify our own refusals, which are worded like
        DuckDB's.
        """
        with statement_errors(self._root, self._known_error):
            try:
                yield
            except (duckdb.Error, errors.QueryServerError) as error:
                self._check_end(str(error))
                if isinstance(error, errors.StatementRejected) and error.sqlstate is None:
                    error.classed(sqlstate_of(error.message))  # our own refusal, worded like DuckDB's
                raise

    def _run_rows(self, statement: BoundStatement) -> "DuckdbAnswer":
        """Run the statement once per parameter row, in the open transaction or in its own transaction."""
        self._is_stopped = False
        if self._room is not None:
            self._room.apply(self.native)
        with self._watched_rows(statement):
            if self._in_transaction():
                return DuckdbAnswer(modified_rows=self._changed_in_turn(statement))
            with suppress(_RowsRefused):  # rolled back; the retry row by row reports which row failed
                return DuckdbAnswer(modified_rows=self._in_own_transaction(self._changed_together, statement))
            return DuckdbAnswer(modified_rows=self._in_own_transaction(self._changed_in_turn, statement))

    def _in_own_transaction(self, change: Callable[[BoundStatement], int], statement: BoundStatement) -> int:
        self.prepare("BEGIN TRANSACTION")
        try:
            changed = change(statement)
            self.prepare("COMMIT")
        except BaseException:
            with suppress(errors.EngineError):  # an invalidated database has already rolled back
                self.prepare("ROLLBACK")
            raise
        return changed

    def _changed_in_turn(self, statement: BoundStatement) -> int:
        changed, known = 0, dict[str, _CheckedRow]()
        for number, row in enumerate(statement.rows):
            statement.row = number
            with self.engine_errors():
                changed += self._run_row(row, known)
        return changed

    def _changed_together(self, statement: BoundStatement) -> int:
        """Run the statement with rows of the same types combined, which takes a tenth of the time.

        Raises _RowsRefused.
        """
        changed, known, at = 0, dict[str, _CheckedRow](), 0
        together = dict[tuple[str, int], _CheckedRow]()
        while at < len(rows := statement.rows):
            text, values = marks_of(rows[at])
            if not values or (one := known.get(text)) is None or one.start is None:
                statement.row = at
                with self.engine_errors():
                    changed += self._run_row(rows[at], known)
                at += 1
                continue
            first, kind, size = rows[at], alike(text, values), max(len(values), 1)
            while (at := at + 1) < len(rows) and len(values) + size <= _MAX_JOINED_ROWS:
                other, more = marks_of(rows[at])
                if alike(other, more) != kind:
                    break
                values += more
            with self._row_refused():
                number = len(values) // size
                if (text, number) not in together:
                    together[text, number] = self._together(first, one, one.start, number, len(values))
                changed += self._changed_by(together[text, number], values)
        return changed

    @contextmanager
    def _row_refused(self) -> Generator[None]:
        if self._is_stopped:
            raise Interrupted
        try:
            with self.engine_errors():
                yield
        except Interrupted:
            raise
        except errors.StatementRejected as error:
            raise _RowsRefused from error

    def _together(self, row: BoundStatement, one: "_CheckedRow", start: int, rows: int, values: int) -> "_CheckedRow":
        statements = self.native.extract_statements(joined(row, start, rows))
        names = {str(number) for number in range(1, values + 1)}
        if [kind_of(parsed) for parsed in statements] != ["INSERT"] or statements[0].named_parameters != names:
            raise _RowsRefused
        return replace(one, statement=statements[0])

    def _watched_rows(self, statement: BoundStatement) -> AbstractContextManager[None]:
        """Watch the storage once for all rows, because a check per row would take longer than running the row."""
        text = statement.rows[0].render(DUCKDB.write)
        tokens = tokens_of(text)
        with self.engine_errors():
            checked = self._checked(text, tokens)
        return nullcontext() if checked is None else self._watched(kind_of(checked[0]), tokens)

    def _run_row(self, row: BoundStatement, known: "dict[str, _CheckedRow]") -> int:
        """Run one row and return the number of changed rows; rows from RETURNING are discarded.

        `known` maps texts with markers to statements that the guard has already checked.
        """
        if self._is_stopped:
            raise Interrupted
        if known:
            text, values = marks_of(row)
            if (one := known.get(text)) is not None:
                return self._changed_by(one, values)
        text = row.render(DUCKDB.write)
        tokens, values = tokens_of(text), None
        if (checked := self._checked(text, tokens)) is None:
            return 0
        statement, lines_before = checked
        stores = only_stores_values(tokens, row)
        bound = marked(self.native, row, statement, tokens)
        if bound is not None:
            statement, _ = self._without_comments_before(bound.statement, bound.text)
            values = bound.values
        checked_row = _CheckedRow(statement, _returns_rows(tokens), lines_before)
        if bound is not None and stores:
            start = row_start(tokens_of(bound.text), bound.text)
            known[bound.text] = replace(checked_row, start=start)
        return self._changed_by(checked_row, values)

    def _changed_by(self, row: "_CheckedRow", values: Sequence[Any] | None) -> int:
        with statement_errors(self._root, self._known_error, lines_before=row.lines_before):
            # `sql` would first create a relation, which takes another 0.7 ms.
            cursor = self.native.execute(row.statement, values)
            if row.returns_rows:
                return sum(iter(lambda: len(cursor.fetchmany(_VECTOR_ROWS)), 0))
            count = cursor.fetchone()
        return count[0] if count and isinstance(count[0], int) else 0

    def _in_transaction(self) -> bool:
        """Whether a transaction is open. Without one, two statements have different transaction numbers."""
        with self.engine_errors():
            return self.native.sql(_TRANSACTION).fetchall() == self.native.sql(_TRANSACTION).fetchall()

    def prepare(self, setting: str) -> None:
        """Run a statement that the server itself has written, without the guard."""
        with self.engine_errors():
            self.native.execute(setting)

    def interrupt(self) -> None:
        self._is_stopped = True
        self.native.interrupt()

    def progress(self) -> int | None:
        return min(max(int(self.native.query_progress()), 0), 100)

    def close(self) -> None:
        if not self._closed:
            self._closed, self.is_usable = True, False
            self.native.close()
            if self._owned is not None:
                self._owned.close()

    @contextmanager
    def writing(self) -> Generator[None]:
        """Wrap work that writes; it is stopped above the database's quota or below the disk floor."""
        if self._watch is None:
            yield
            return
        self._watch.require_room(self._occupied)
        try:
            with self._watch.over(self.native.interrupt):
                yield
        except errors.EngineError as error:
            if error.code == disk_below_floor.code:
                self._give_back()
            raise

    def _watched(self, kind: str, tokens: Sequence[Token]) -> AbstractContextManager[None]:
        if kind in _GROWING:
            return self.writing()
        may_grow = kind == "EXECUTE" or (kind == "EXPLAIN" and any(token.name == "analyze" for token in tokens))
        return self._watch.over(self.native.interrupt) if may_grow and self._watch is not None else nullcontext()

    def _occupied(self) -> int:
        """Return the bytes in use, without the free blocks inside the file, which new rows fill first."""
        with self.native.cursor() as connection:
            with suppress(duckdb.Error):  # frees the blocks of dropped tables
                connection.execute("CHECKPOINT")
            ((blocks,),) = connection.execute(_OCCUPIED).fetchall()
        return blocks

    def _give_back(self) -> None:
        """Shrink the file after a stopped statement.

        Its blocks are free, but DuckDB truncates the file only after the next change.
        """
        name = identifier(f"queryserver_{uuid4().hex}")
        with suppress(duckdb.Error), self.native.cursor() as connection:
            connection.execute(f"CREATE SCHEMA {name}")
            connection.execute(f"DROP SCHEMA {name}")
            connection.execute("CHECKPOINT")  # refused while others write; a later checkpoint then shrinks the file

    def _check_end(self, text: str) -> None:
        if may_have_ended(text) and self._has_ended():
            self.is_usable = False

    def _checked(
        self, text: str, tokens: Sequence[Token], *, copies_files: bool = False
    ) -> tuple[duckdb.Statement, int] | None:
        """Parse and check a text. Raises StatementRejected.

        Returns the statement and the number of lines before it; None for an empty text.
        """
        statements = self.native.extract_statements(text)
        if not statements:
            return None
        if len(statements) > 1:
            raise errors.StatementRejected("Parser Error: one statement at a time.")
        statement, lines_before = self._without_comments_before(statements[0], text)
        refuse_reach(self.native, statement, tokens, copies_files=copies_files)
        if self._results is not None:
            self._results.begin(tokens)
        return statement, lines_before

    def _run(self, text: str, bound: BoundStatement | None) -> "DuckdbAnswer":
        tokens = tokens_of(text)
        copying = self._files.rewritten(text, tokens) if self._files is not None else None
        text, tokens = copying or (text, tokens)
        if (checked := self._checked(text, tokens, copies_files=copying is not None)) is None:
            return DuckdbAnswer()
        statement, lines_before = checked
        kind = kind_of(statement)
        # A query yields a relation that runs when it is read; any other statement runs here.
        with self._watched(kind, tokens):
            planned = self._planned_bound(bound, statement, tokens, lines_before) if bound is not None else None
            relation, names = planned or self._planned(statement, lines_before)
        types = relation.types
        require_shallow(types)
        shape = (names, list(map(str, types)) if len(types) == 1 else [])
        if kind != "SELECT" and shape == _NOTHING:
            return DuckdbAnswer()
        # DuckDB returns the number of changed rows as a result set.
        if kind not in _QUERIES and shape == _COUNT and not _returns_rows(tokens):
            with statement_errors(self._root, self._known_error, lines_before=lines_before):
                counted = relation.fetchall()
            return DuckdbAnswer(modified_rows=counted[0][0] if counted else None)
        return self._open_rows(relation, names, types, lines_before)

    def _planned_bound(
        self, bound: BoundStatement, literal: duckdb.Statement, tokens: Sequence[Token], lines_before: int
    ) -> "_Planned | None":
        """Plan the statement with bound values; return None if nothing has run and `literal` must run instead."""
        statement_with_markers = marked(self.native, bound, literal, tokens)
        if statement_with_markers is None:
            return None
        values = statement_with_markers.values
        statement, _ = self._without_comments_before(statement_with_markers.statement, statement_with_markers.text)
        with statement_errors(self._root, self._known_error, lines_before=lines_before):
            try:
                return self._named(self.native.sql(statement, params=values), statement, values)
            except duckdb.Error as error:
                # Planning fails, for instance, because ORDER BY accepts a number but no parameter. Other error classes
                # may come from a query that already runs, because one of its functions has side effects.
                if kind_of(literal) != "SELECT" or type(error) not in {duckdb.Error, duckdb.BinderException}:
                    raise
                bound.render(DUCKDB.write)
                return None

    def _planned(self, statement: duckdb.Statement, lines_before: int) -> "_Planned":
        with statement_errors(self._root, self._known_error, lines_before=lines_before):
            try:
                return self._named(self.native.sql(statement), statement)
            except (duckdb.BinderException, duckdb.CatalogException) as error:
                if (ours := self._known_error(str(error))) is not None:
                    raise ours from error
                known = domain_error(error, self._root, lines_before)
                if known.location is None and kind_of(statement) == "SELECT":
                    known.location = self._unbound(statement, lines_before)
                raise known from error

    def _named(
        self, relation: duckdb.DuckDBPyRelation, statement: duckdb.Statement, values: list[Any] | None = None
    ) -> "_Planned":
        """Return the relation with its column names as DuckDB reports them.

        If a statement has already returned its rows, the relation over them numbers duplicate names: `i, i_1`.
        """
        names = relation.columns
        known = {name.casefold() for name in names}
        if any((match := _NUMBERED.fullmatch(name)) and match[1].casefold() in known for name in names):
            # Private API: the driver has no public call that binds a statement without running it.
            names = self.native._bind(statement, with_writes=True, values=values)[0]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return relation, names

    def _unbound(self, statement: duckdb.Statement, lines_before: int) -> errors.ErrorLocation | None:
        """Locate a binding error in a query. Only EXPLAIN reports its position.

        Other statements report the position themselves. Returns None inside a transaction, because a failed EXPLAIN
        would abort it, unlike the query's binding error.
        """
        try:
            if self._in_transaction():
                return None
            self.native.execute(f"EXPLAIN\n{statement.query}")
        except duckdb.Error as error:
            return location_of(with_lines(str(error), lines_before - 1))
        return None

    def _without_comments_before(self, statement: duckdb.Statement, text: str) -> tuple[duckdb.Statement, int]:
        """Return the statement without preceding comments, and the number of lines before it.

        DuckDB reports error positions only if the statement is the whole text.
        """
        query = statement.query
        if len(query) == len(text) or not text.endswith(query):
            return statement, 0
        alone = self.native.extract_statements(query)
        return (alone[0], text.count("\n", 0, len(text) - len(query))) if len(alone) == 1 else (statement, 0)

    def _known_error(self, text: str) -> errors.QueryServerError | None:
        if self._files is not None and (error := self._files.error_of(text)) is not None:
            return error
        if self._results is not None and (error := self._results.error_of(text)) is not None:
            return error
        return self._room.error_of(text) if self._room is not None else None

    def _open_rows(
        self, relation: duckdb.DuckDBPyRelation, names: Sequence[str], types: Sequence[DuckDBPyType], lines_before: int
    ) -> "DuckdbAnswer":
        columns = tuple(Column(name, result_type(one), str(one)) for name, one in zip(names, types, strict=True))

        def error_of(text: str) -> errors.QueryServerError | None:
            self._check_end(text)
            return self._known_error(text)

        around = partial(statement_errors, self._root, error_of, lines_before=lines_before)
        with around():
            reader = readable(relation).to_arrow_reader(
                _ROWS_OF_KNOWN_SIZE if all(map(has_own_size, types)) else _VECTOR_ROWS
            )
        natives = [one if arrives_as_text(one) else None for one in types]
        return DuckdbAnswer(
            columns=columns, reader=reader, natives=natives, around=around, cell_max_bytes=self._cell_max_bytes
        )


def _returns_rows(tokens: Sequence[Token]) -> bool:
    return any(token.kind == "keyword" and token.name == "returning" for token in tokens)


class DuckdbAnswer:
    """Reads a statement's rows through Arrow. One batch is read ahead, so that errors appear early.

    `around` wraps each driver call. `natives` is passed on to `sound`.
    """

    def __init__(
        self,
        *,
        columns: tuple[Column, ...] | None = None,
        modified_rows: int | None = None,
        reader: pa.RecordBatchReader | None = None,
        natives: Sequence[DuckDBPyType | None] = (),
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        cell_max_bytes: int = 0,
    ) -> None:
        self.columns = columns
        self.modified_rows = modified_rows
        self._reader = reader
        self._natives = natives
        self._around = around
        self._cell_max_bytes = cell_max_bytes
        self._rows = 0
        self.on_close: Callable[[], None] = lambda: None
        self._ahead: pa.RecordBatch | None = None
        try:
            with around():
                self._ahead = self._next()
        except BaseException:  # the connection accepts no statement while a reader is open
            self.close()
            raise

    def hide_excerpts(self) -> None:
        """Omit the statement excerpt from later batches' errors too, because it contains parameter values."""
        around = self._around

        @contextmanager
        def hidden() -> Generator[None]:
            with without_excerpt(), around():
                yield

        self._around = hidden

    def next_batches(self) -> Sequence[pa.RecordBatch]:
        with self._around():
            batches, size = list[pa.RecordBatch](), 0
            while self._ahead is not None:
                size += self._ahead.nbytes
                if batches and size > BATCH_BYTES:
                    break
                batches.append(self._ahead)
                self._ahead = self._next()
            return [
                piece
                for batch in _joined(batches, size)
                for piece in pieces(sound(batch, self.columns or (), self._natives))
            ]

    def close(self) -> None:
        """Close the reader, which would otherwise block the connection's next statement."""
        reader, self._reader, self._ahead = self._reader, None, None
        if reader is not None:
            reader.close()
        self.on_close()

    def _next(self) -> pa.RecordBatch | None:
        if self._reader is None:
            return None
        for batch in self._reader:
            if batch.num_rows:
                require_small(batch, self.columns or (), self._cell_max_bytes, self._rows)
                self._rows += batch.num_rows
                return batch
        return None


def _joined(batches: Sequence[pa.RecordBatch], size_bytes: int) -> Sequence[pa.RecordBatch]:
    """Concatenate small batches, each of which costs some 50 µs downstream; Arrow cannot do so with sparse unions."""
    if len(batches) < 2 or size_bytes > _SMALL_BYTES * len(batches):
        return batches
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowNotImplementedError:
        return batches
