"""One DuckDB connection at work, the limits of its results, and what errors mean. All of it blocks."""

import re
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import duckdb
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType

from queryserver import errors
from queryserver.engines.catalog_queries import identifier
from queryserver.engines.duckdb.binding import marked, marks_of, only_stores_values
from queryserver.engines.duckdb.defects import refuse_sizes
from queryserver.engines.duckdb.failures import (
    FATAL,
    domain_error,
    place_of,
    sqlstate_of,
    statement_errors,
    with_lines,
    without_excerpt,
)
from queryserver.engines.duckdb.guard import StoredDefinitions, Token, inner_tokens, kind_of, refuse_reach, tokens_of
from queryserver.engines.duckdb.temporary import TemporaryRoom
from queryserver.engines.duckdb.values import (
    arrives_as_text,
    bounded,
    cell_error,
    is_wide,
    require_shallow,
    result_type,
    sound,
)
from queryserver.engines.duckdb.wide_results import take_wide_place
from queryserver.engines.statement_texts import BATCH_BYTES, pieces
from queryserver.engines.storage_watch import StorageWatch
from queryserver.engines.threaded import NO_USER, STOP_S, Interrupted
from queryserver.errors.statements import disk_below_floor
from queryserver.formats.columns import MANY_COLUMNS, Column
from queryserver.sql.literals import DUCKDB
from queryserver.sql.places import Bound

_ENDING = re.compile(r"\b(?:INTERNAL|FATAL) Error\b")
_INTERRUPT_AGAIN_S = 0.05

# DuckDB works in vectors of 2048 rows; a reader that asks for less copies less of them at once.
_NARROW_ROWS, _WIDE_ROWS = 2048, 256

_SMALL_TOKENS = 2_000
_PLANNING = threading.Lock()
"""Held while a long statement is parsed and planned: the memory for that is not part of `memory_limit`."""

_NOTHING = (["Success"], ["BOOLEAN"])
_COUNT = (["Count"], ["BIGINT"])
_TRANSACTION = "SELECT txid_current()"
_GROWING = frozenset({"ALTER", "CREATE", "CREATE_FUNC", "INSERT", "MERGE_INTO", "UPDATE"})
_OCCUPIED = """
    SELECT coalesce(sum(used_blocks * block_size), 0)::BIGINT FROM pragma_database_size()
    WHERE database_name = current_database()
"""
_QUERIES = frozenset({"SELECT", "EXPLAIN", "EXECUTE", "CALL", "PRAGMA", "MULTI", "RELATION"})


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _KnownRow:
    """A statement with marks whose other values need no look of the guard."""

    statement: duckdb.Statement
    returns_rows: bool
    lines_before: int


class DuckdbConnection:
    """A cursor of a database, which is a connection of its own: temporary tables, USE and SET live in it."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        root: Path | None,
        owned: duckdb.DuckDBPyConnection | None = None,
        *,
        user_id: int = NO_USER,
        cell_max_bytes: int = 16 * 1024 * 1024,
        room: TemporaryRoom | None = None,
        watch: StorageWatch | None = None,
        stored: StoredDefinitions | None = None,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """`has_ended`, called after an internal error, says whether that has ended the database of all connections."""
        self.native = connection
        """The driver's own connection, for statements of ours."""
        self.held = threading.RLock()
        """While the driver is at work on it, or on its answer."""
        self._has_ended = has_ended
        self._stored = stored
        self._watch = watch
        self._answer: DuckdbAnswer | None = None
        self._root = root
        self._owned = owned
        self._user_id = user_id
        self._cell_max_bytes = cell_max_bytes
        self._room = room
        self._closed = self._is_stopped = False
        self.is_usable = True

    takes_rows = True

    def run(self, statement: str | Bound) -> "DuckdbAnswer":
        """The text must hold one statement at most (Contract security T23)."""
        with self.held:
            if not isinstance(statement, Bound):
                answer = self._begin(statement)
            elif statement.rows:
                with without_excerpt():
                    answer = self._run_rows(statement)
            else:
                with without_excerpt():
                    answer = self._begin(statement.written(DUCKDB.write), statement)
                answer.hide_excerpts()
            self._answer = answer
            return answer

    def _begin(self, text: str, bound: Bound | None = None) -> "DuckdbAnswer":
        """`text` has the values of `bound` as literals, for the guard (ADR 61)."""
        if self._room is not None:
            self._room.apply(self.native)
        return self._in_words_of_duckdb(partial(self._run, text, bound))

    def _in_words_of_duckdb(self, call: Callable[[], T]) -> T:
        with statement_errors(self._root, self._room_error):
            try:
                return call()
            except (duckdb.Error, errors.QueryServerError) as error:
                if isinstance(error, FATAL) or isinstance(error.__cause__, FATAL):
                    self._check_end()
                if isinstance(error, errors.StatementRejected) and error.sqlstate is None:
                    error.classed(sqlstate_of(error.message))  # a refusal of ours, in DuckDB's words
                raise

    def _run_rows(self, statement: Bound) -> "DuckdbAnswer":
        """Once for each row of values, in the open transaction, or in one of its own."""
        changed, self._is_stopped = 0, False
        known = dict[str, _KnownRow]()
        if self._room is not None:
            self._room.apply(self.native)
        is_own = not self._in_transaction()
        with self._watched_rows(statement):
            if is_own:
                self.prepare("BEGIN TRANSACTION")
            try:
                for number, row in enumerate(statement.rows):
                    statement.row = number
                    changed += self._in_words_of_duckdb(partial(self._run_row, row, known))
                if is_own:
                    self.prepare("COMMIT")
            except BaseException:
                if is_own:
                    with suppress(errors.EngineError):  # a database that has ended has undone it
                        self.prepare("ROLLBACK")
                raise
        return DuckdbAnswer(modified_rows=changed)

    def _watched_rows(self, statement: Bound) -> AbstractContextManager[None]:
        """Around all rows of values: a look at the database for each would take more time than the row."""
        text = statement.rows[0].written(DUCKDB.write)
        tokens = tokens_of(text)
        checked = self._in_words_of_duckdb(lambda: self._checked(text, tokens))
        return nullcontext() if checked is None else self._watched(kind_of(checked[0]), tokens)

    def _run_row(self, row: Bound, known: "dict[str, _KnownRow]") -> int:
        """How many rows it changed; those of RETURNING are dropped. `known`: by their texts, rows that are checked."""
        if self._is_stopped:
            raise Interrupted
        if known:
            text, values = marks_of(row)
            if (alike := known.get(text)) is not None:
                return self._changed_by(alike, values)
        text = row.written(DUCKDB.write)
        tokens, values = tokens_of(text), None
        with _PLANNING if len(tokens) > _SMALL_TOKENS else nullcontext():
            if (checked := self._checked(text, tokens)) is None:
                return 0
            statement, lines_before = checked
            stores = only_stores_values(tokens, row)
            found = marked(self.native, row, statement, tokens)
            if found is not None:
                statement, _ = self._without_comments_before(found.statement, found.text)
                values = found.values
            alike = _KnownRow(statement, _returns_rows(tokens), lines_before)
            if found is not None and stores:
                known[found.text] = alike
        return self._changed_by(alike, values)

    def _changed_by(self, row: "_KnownRow", values: Sequence[Any] | None) -> int:
        with statement_errors(self._root, self._room_error, lines_before=row.lines_before):
            # Not `sql`, which makes a relation first: that takes another 0.7 ms.
            cursor = self.native.execute(row.statement, values)
            if row.returns_rows:
                return sum(iter(lambda: len(cursor.fetchmany(_NARROW_ROWS)), 0))
            given = cursor.fetchone()
        return given[0] if given and isinstance(given[0], int) else 0

    def _in_transaction(self) -> bool:
        """Outside of a transaction, each statement is one of its own, with another number."""
        with statement_errors(self._root):
            return self.native.sql(_TRANSACTION).fetchall() == self.native.sql(_TRANSACTION).fetchall()

    def prepare(self, setting: str) -> None:
        """Run a setting of the session, unguarded."""
        with statement_errors(self._root):
            try:
                self.native.execute(setting)
            except FATAL as error:
                self._check_end()
                raise errors.EngineUnavailable(
                    "The database is opened anew after an internal error; try again."
                ) from error

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

    def end(self) -> None:
        """Stop what runs and close: its database has ended, and cannot be opened again before. Limited in time."""
        self.is_usable = False
        give_up = time.monotonic() + STOP_S
        while not (is_held := self.held.acquire(timeout=_INTERRUPT_AGAIN_S)) and time.monotonic() < give_up:
            self.interrupt()
        if is_held:
            try:
                if self._answer is not None:
                    self._answer.lose()
                self.close()
            finally:
                self.held.release()

    @contextmanager
    def writing(self) -> Generator[None]:
        """Around what writes: it is ended above the quota of the database, or below the floor of the disk."""
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
        """Without the free blocks within the file, which new rows take first."""
        with self.native.cursor() as connection:
            with suppress(duckdb.Error):  # blocks of dropped tables are free from the next checkpoint on
                connection.execute("CHECKPOINT")
            ((blocks,),) = connection.execute(_OCCUPIED).fetchall()
        return blocks

    def _give_back(self) -> None:
        """The blocks of a statement that was ended are free, but DuckDB truncates the file at the next change only."""
        name = identifier(f"queryserver_{uuid4().hex}")
        with suppress(duckdb.Error), self.native.cursor() as connection:
            connection.execute(f"CREATE SCHEMA {name}")
            connection.execute(f"DROP SCHEMA {name}")
            connection.execute("CHECKPOINT")  # refused, and left to a later one, while others write

    def _check_end(self) -> None:
        if self._has_ended():
            self.is_usable = False

    def _checked(self, text: str, tokens: Sequence[Token]) -> tuple[duckdb.Statement, int] | None:
        """The statement, and the lines before it; None: there is none. Raises StatementRejected."""
        statements = self.native.extract_statements(text)
        if not statements:
            return None
        if len(statements) > 1:
            raise errors.StatementRejected("Parser Error: one statement at a time.")
        statement, lines_before = self._without_comments_before(statements[0], text)
        refuse_reach(self.native, statement, text, tokens)
        if self._stored is not None:
            self._stored.refuse(tokens)
        for part in (tokens, *inner_tokens(tokens)):
            refuse_sizes(part, self._cell_max_bytes)
        return statement, lines_before

    def _run(self, text: str, bound: Bound | None) -> "DuckdbAnswer":
        tokens = tokens_of(text)
        with _PLANNING if len(tokens) > _SMALL_TOKENS else nullcontext():
            if (checked := self._checked(text, tokens)) is None:
                return DuckdbAnswer()
            statement, lines_before = checked
            # A query gives a relation that runs when it is read; anything else runs here.
            with self._watched(kind_of(statement), tokens):
                relation = self._planned_bound(bound, statement, tokens, lines_before) if bound is not None else None
                if relation is None:
                    relation = self._planned(statement, lines_before)
        # Each of the two makes an object for each column, without letting other threads run.
        names, types = relation.columns, relation.types
        require_shallow(types)
        shape = (names, list(map(str, types)) if len(types) == 1 else [])
        kind = kind_of(statement)
        if kind != "SELECT" and shape == _NOTHING:
            return DuckdbAnswer()
        # DuckDB names the count of changed rows like a result.
        if kind not in _QUERIES and shape == _COUNT and not _returns_rows(tokens):
            with statement_errors(self._root, self._room_error, lines_before=lines_before):
                counted = relation.fetchall()
            return DuckdbAnswer(modified_rows=counted[0][0] if counted else None)
        free = take_wide_place(self._user_id) if len(types) > MANY_COLUMNS else lambda: None
        try:
            return self._open_rows(relation, names, types, free, lines_before)
        except BaseException:  # the place must not stay taken, whatever failed
            free()
            raise

    def _planned_bound(
        self, bound: Bound, literal: duckdb.Statement, tokens: Sequence[Token], lines_before: int
    ) -> duckdb.DuckDBPyRelation | None:
        """None: `literal` must run, and nothing has run yet."""
        found = marked(self.native, bound, literal, tokens)
        if found is None:
            return None
        statement, _ = self._without_comments_before(found.statement, found.text)
        with statement_errors(self._root, self._room_error, lines_before=lines_before):
            try:
                return self.native.sql(statement, params=found.values)
            except duckdb.Error as error:
                # Refused while it was planned, as ORDER BY takes a number, but no parameter. Errors of other classes
                # may come from a query that runs already, since some function in it changes something.
                if kind_of(literal) != "SELECT" or type(error) not in {duckdb.Error, duckdb.BinderException}:
                    raise
                bound.written(DUCKDB.write)
                return None

    def _planned(self, statement: duckdb.Statement, lines_before: int) -> duckdb.DuckDBPyRelation:
        with statement_errors(self._root, self._room_error, lines_before=lines_before):
            try:
                return self.native.sql(statement)
            except (duckdb.BinderException, duckdb.CatalogException) as error:
                known = domain_error(error, self._root, lines_before)
                if known.place is None and kind_of(statement) == "SELECT":
                    known.place = self._unbound(statement, lines_before)
                raise known from error

    def _unbound(self, statement: duckdb.Statement, lines_before: int) -> errors.ErrorPlace | None:
        """Where the error of a query is that could not be bound: EXPLAIN, which only binds, gives the place.

        Other statements are not sent again, and give it themselves. None within a transaction: an error of EXPLAIN
        would abort it, which the error of a query that was only bound does not.
        """
        try:
            if self._in_transaction():
                return None
            self.native.execute(f"EXPLAIN\n{statement.query}")
        except FATAL:
            raise
        except duckdb.Error as error:
            return place_of(with_lines(str(error), lines_before - 1))
        return None

    def _without_comments_before(self, statement: duckdb.Statement, text: str) -> tuple[duckdb.Statement, int]:
        """The statement, and how many lines come before it: DuckDB names no place in one that is not the whole text."""
        query = statement.query
        if len(query) == len(text) or not text.endswith(query):
            return statement, 0
        alone = self.native.extract_statements(query)
        return (alone[0], text.count("\n", 0, len(text) - len(query))) if len(alone) == 1 else (statement, 0)

    def _room_error(self, text: str) -> errors.QueryServerError | None:
        return self._room.error_of(text) if self._room is not None else None

    def _open_rows(
        self,
        relation: duckdb.DuckDBPyRelation,
        names: Sequence[str],
        types: Sequence[DuckDBPyType],
        free: Callable[[], None],
        lines_before: int,
    ) -> "DuckdbAnswer":
        columns = tuple(Column(name, result_type(one), str(one)) for name, one in zip(names, types, strict=True))

        def error_of(text: str) -> errors.QueryServerError | None:
            if _ENDING.search(text):
                self._check_end()
            error = cell_error(text, names, self._cell_max_bytes)
            return error or self._room_error(text)

        rows = _WIDE_ROWS if any(map(is_wide, types)) else _NARROW_ROWS
        around = partial(statement_errors, self._root, error_of, lines_before=lines_before)
        with around():
            reader = bounded(relation, self._cell_max_bytes).to_arrow_reader(rows)
        natives = [one if arrives_as_text(one) else None for one in types]
        return DuckdbAnswer(
            columns=columns, reader=reader, natives=natives, around=around, on_close=free, held=self.held
        )


def _returns_rows(tokens: Sequence[Token]) -> bool:
    return any(token.kind == "keyword" and token.name == "returning" for token in tokens)


class DuckdbAnswer:
    """The rows of a statement, as an Arrow reader. One vector is read ahead, so that errors show early.

    `around` is entered around each call of the driver.
    """

    def __init__(
        self,
        *,
        columns: tuple[Column, ...] | None = None,
        modified_rows: int | None = None,
        reader: pa.RecordBatchReader | None = None,
        natives: Sequence[DuckDBPyType | None] = (),
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        on_close: Callable[[], None] = lambda: None,
        held: AbstractContextManager[object] | None = None,
    ) -> None:
        self._held = held or nullcontext()
        self._is_lost = False
        self.columns = columns
        self.modified_rows = modified_rows
        self._reader = reader
        self._natives = natives
        self._around = around
        self._on_close = on_close
        self._ahead: pa.RecordBatch | None = None
        with around():
            self._ahead = self._next()

    def hide_excerpts(self) -> None:
        """Errors of later batches show no part of the statement either: there are values in it."""
        around = self._around

        @contextmanager
        def hidden() -> Generator[None]:
            with without_excerpt(), around():
                yield

        self._around = hidden

    def next_batches(self) -> Sequence[pa.RecordBatch]:
        with self._held, self._around():
            if self._is_lost:
                raise errors.SessionLost("Invalid session Id: the connection to the database is closed.")
            batches, size = list[pa.RecordBatch](), 0
            while self._ahead is not None and size < BATCH_BYTES:
                batches.extend(pieces(self._ahead))
                size += self._ahead.nbytes
                self._ahead = self._next()
            return batches

    def close(self) -> None:
        """A reader left open would block the connection's next statement."""
        with self._held:
            self._close()

    def lose(self) -> None:
        """Close; what has not been read is lost."""
        self._is_lost = True
        self._close()

    def _close(self) -> None:
        reader, self._reader, self._ahead = self._reader, None, None
        if reader is not None:
            reader.close()
        self._on_close()

    def _next(self) -> pa.RecordBatch | None:
        if self._reader is None:
            return None
        for batch in self._reader:
            if batch.num_rows:
                return sound(batch, self.columns or (), self._natives)
        return None
