"""One DuckDB connection, with its result limits and error translation. All calls block."""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import duckdb
from duckdb.sqltypes import DuckDBPyType

from queryserver import errors
from queryserver.engines.blocking_drivers import DriverAnswer, Interrupted
from queryserver.engines.duckdb.binding import (
    bind_markers,
    multi_row_text,
    only_stores_values,
    row_offset,
    text_with_markers,
    type_key,
)
from queryserver.engines.duckdb.estimates import ESTIMATED_KINDS, scanned_bytes
from queryserver.engines.duckdb.failures import (
    domain_error,
    location_of,
    may_invalidate_database,
    sqlstate_of,
    statement_errors,
    with_shifted_lines,
    without_excerpt,
)
from queryserver.engines.duckdb.guard import Token, refuse_outside_access, statement_kind, tokenize
from queryserver.engines.duckdb.read_only import ReadTransaction, explained_text, is_analyzed, refuse_changes
from queryserver.engines.duckdb.result_views import ResultViews
from queryserver.engines.duckdb.session_files import SessionFileAccess
from queryserver.engines.duckdb.storage import shrink_file, used_bytes
from queryserver.engines.duckdb.temporary_files import TemporaryFilesLimit
from queryserver.engines.duckdb.values import (
    DuckdbAnswer,
    has_own_size,
    is_read_as_text,
    readable,
    require_shallow,
    result_type,
)
from queryserver.engines.estimates import CostEstimate
from queryserver.engines.external_data import StoredFile
from queryserver.engines.process.calls import RemoteResults
from queryserver.engines.protocol import NO_CONTEXT, StatementContext
from queryserver.engines.storage_watch import StorageWatch
from queryserver.errors.statements import disk_below_floor
from queryserver.formats.arrow import Column
from queryserver.sql.literals import DUCKDB
from queryserver.sql.markers import BoundStatement

# DuckDB processes vectors of 2048 rows, which count against its memory limit. Several vectors are copied into one batch
# only if the values have a fixed size: reading numbers in batches of 16,384 rows is 1.3 times as fast.
_VECTOR_ROWS, _ROWS_OF_KNOWN_SIZE = 2048, 16_384

_MAX_JOINED_ROWS = 2_000
"""Maximum number of parameters in a statement that combines several rows."""

_NO_RESULT_SHAPE = (["Success"], ["BOOLEAN"])
_COUNT_SHAPE = (["Count"], ["BIGINT"])
_TRANSACTION_NUMBER_QUERY = "SELECT txid_current()"
_GROWING_KINDS = frozenset({"ALTER", "CREATE", "CREATE_FUNC", "INSERT", "MERGE_INTO", "UPDATE"})
_QUERY_KINDS = frozenset({"SELECT", "EXPLAIN", "EXECUTE", "CALL", "PRAGMA", "MULTI", "RELATION"})
_NUMBERED_NAME = re.compile(r"(.+)_\d+", re.DOTALL)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _CheckedRow:
    """A statement with markers that passed the guard, so it need not be checked again for other values."""

    statement: duckdb.Statement
    returns_rows: bool
    lines_before: int
    start: int | None = None
    """Offset of the row in the text with markers; None if no further rows can be appended."""


class _CombinedRowsRejected(Exception):
    """Raised if the statement that combines several rows fails, so that the rows must be run one by one."""


_Plan: TypeAlias = tuple[duckdb.DuckDBPyRelation, list[str]]
"""The relation that yields a statement's rows, and its column names."""


@dataclass(frozen=True, slots=True)
class StatementLimits:
    """Limits on the statements of one database.

    `temporary_files` is None if the database has no temporary files. `storage` is None if it has no file of its own.
    """

    cell_max_bytes: int = 16 * 1024 * 1024
    temporary_files: TemporaryFilesLimit | None = None
    storage: StorageWatch | None = None


_DEFAULT_LIMITS = StatementLimits()


class DuckdbConnection:
    """A cursor on a database. DuckDB treats it as a connection with its own temporary tables, USE and SET."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        root: Path | None,
        owned: duckdb.DuckDBPyConnection | None = None,
        *,
        limits: StatementLimits = _DEFAULT_LIMITS,
        has_ended: Callable[[], bool] = lambda: False,
        files: "Callable[[Callable[[], None]], SessionFileAccess] | None" = None,
        results: RemoteResults | None = None,
    ) -> None:
        """Connect the cursor to the database's limits and to the session's files and results.

        `has_ended` is called after an internal error and returns whether the error has invalidated the database for all
        connections. `files` creates the statements' file access; its argument is a function that interrupts them.
        `results` are the stored results that statements may read as tables.
        """
        self.native = connection
        """The driver's connection, also used for the server's own statements."""
        self._files = files(self.interrupt) if files is not None else None
        self._has_ended = has_ended
        self._root = root
        self._owned = owned
        self._cell_max_bytes = limits.cell_max_bytes
        self._temporary_files = limits.temporary_files
        self._watch = limits.storage
        self._results = None if results is None else ResultViews(connection, results)
        self._reading = ReadTransaction(connection, self._in_transaction)
        self._closed = self._is_stopped = self._read_only = False
        self.is_usable = True

    takes_rows = True

    def run(self, statement: str | BoundStatement, context: StatementContext = NO_CONTEXT) -> DriverAnswer:
        """Run SQL text that contains at most one statement (Contract security T23)."""
        self._read_only = context.read_only
        if self._files is not None:
            return self._files.run(lambda: self._run_to_rows(statement))
        return self._run_to_rows(statement)

    def _run_to_rows(self, statement: str | BoundStatement) -> "DuckdbAnswer":
        if self._read_only:
            with self.engine_errors():
                self._reading.begin()
        self._reading.may_follow_writes |= not self._read_only
        try:
            answer = self._run_and_mask(statement)
        except BaseException:
            self._end_statement()
            raise
        if answer.columns is None:
            self._end_statement()
        else:
            answer.on_close = self._end_statement
        return answer

    def _end_statement(self) -> None:
        """End the read-only transaction, then release the results: a failed transaction would keep them. Idempotent."""
        if not self._reading.end():
            self.is_usable = False
        if self._results is not None:
            self._results.end()

    def estimate(self, statement: str | BoundStatement) -> CostEstimate | None:
        """Return what the statement would read, or None if this is unknown.

        A statement that cannot be planned has no estimate: running it reports the error. Raises Interrupted,
        SessionLost.
        """
        self._read_only = False
        first = statement.rows[0] if isinstance(statement, BoundStatement) and statement.rows else statement
        text = first.render(DUCKDB.write) if isinstance(first, BoundStatement) else first
        try:
            if self._files is not None:
                return self._files.plan(partial(self._estimated, text))
            return self._estimated(text, {})
        except (Interrupted, errors.SessionLost):
            raise
        except errors.EngineError:
            return None
        finally:
            self._end_statement()

    def _estimated(self, text: str, listed: Mapping[str, Sequence[StoredFile]]) -> CostEstimate | None:
        with self.engine_errors():
            text, tokens, copies_files = self._with_file_targets(text)
            if (checked := self._parse_checked(text, tokens, copies_files=copies_files)) is None:
                return None
            statement, _ = checked
            if statement_kind(statement) == "EXPLAIN":
                if not is_analyzed(tokens):
                    return CostEstimate(scanned_bytes=0)
                explained = self.native.extract_statements(explained_text(statement.query, tokenize(statement.query)))
                statement = explained[0] if len(explained) == 1 else statement
            if statement_kind(statement) not in ESTIMATED_KINDS or not self._may_explain(statement):
                return None
            size = scanned_bytes(self.native, statement.query, listed)
            in_results = 0 if self._results is None else self._results.size_bytes
            return None if size is None else CostEstimate(scanned_bytes=size + in_results)

    def _may_explain(self, statement: duckdb.Statement) -> bool:
        """Return whether a failed EXPLAIN would leave the session unchanged, or cannot fail while it is planned.

        A failed EXPLAIN aborts an open transaction, whereas a failure to bind the statement does not.
        """
        if not self._reading.may_follow_writes or not self._in_transaction():
            return True
        with suppress(duckdb.Error):
            self.native._bind(statement, with_writes=True)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            return True
        return False

    def _run_and_mask(self, statement: str | BoundStatement) -> "DuckdbAnswer":
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
        if self._temporary_files is not None:
            self._temporary_files.apply(self.native)
        with self.engine_errors():
            return self._run(text, bound)

    @contextmanager
    def engine_errors(self) -> Generator[None]:
        """Translate database errors into statement errors.

        Also adds the SQLSTATE to refusals that the server itself raises.
        """
        with statement_errors(self._root, self._known_error):
            try:
                yield
            except (duckdb.Error, errors.QueryServerError) as error:
                self._check_invalidated(str(error))
                if isinstance(error, errors.StatementRejected) and error.sqlstate is None:
                    error.with_sqlstate(sqlstate_of(error.message))  # our own refusal, worded like DuckDB's
                raise

    def _run_rows(self, statement: BoundStatement) -> "DuckdbAnswer":
        """Run the statement once per parameter row, in the open transaction or else in a transaction of its own."""
        self._is_stopped = False
        if self._temporary_files is not None:
            self._temporary_files.apply(self.native)
        with self._watched_rows(statement):
            if self._in_transaction():
                return DuckdbAnswer(modified_rows=self._run_rows_separately(statement))
            with suppress(_CombinedRowsRejected):  # rolled back; running the rows one by one reports which row fails
                return DuckdbAnswer(modified_rows=self._in_own_transaction(self._run_rows_combined, statement))
            return DuckdbAnswer(modified_rows=self._in_own_transaction(self._run_rows_separately, statement))

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

    def _run_rows_separately(self, statement: BoundStatement) -> int:
        changed, known = 0, dict[str, _CheckedRow]()
        for number, row in enumerate(statement.rows):
            statement.row = number
            with self.engine_errors():
                changed += self._run_row(row, known)
        return changed

    def _run_rows_combined(self, statement: BoundStatement) -> int:
        """Run the statement for many rows at once, which takes a tenth of the time.

        Consecutive rows whose values have the same types are combined. Raises _CombinedRowsRejected if a combined
        statement fails.
        """
        changed, known, at = 0, dict[str, _CheckedRow](), 0
        together = dict[tuple[str, int], _CheckedRow]()
        while at < len(rows := statement.rows):
            text, values = text_with_markers(rows[at])
            if not values or (one := known.get(text)) is None or one.start is None:
                statement.row = at
                with self.engine_errors():
                    changed += self._run_row(rows[at], known)
                at += 1
                continue
            first, kind, size = rows[at], type_key(text, values), max(len(values), 1)
            while (at := at + 1) < len(rows) and len(values) + size <= _MAX_JOINED_ROWS:
                other, more = text_with_markers(rows[at])
                if type_key(other, more) != kind:
                    break
                values += more
            with self._row_refused():
                number = len(values) // size
                if (text, number) not in together:
                    together[text, number] = self._combined_statement(first, one, one.start, number, len(values))
                changed += self._execute_row(together[text, number], values)
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
            raise _CombinedRowsRejected from error

    def _combined_statement(
        self, row: BoundStatement, one: "_CheckedRow", start: int, rows: int, values: int
    ) -> "_CheckedRow":
        statements = self.native.extract_statements(multi_row_text(row, start, rows))
        names = {str(number) for number in range(1, values + 1)}
        if [statement_kind(parsed) for parsed in statements] != ["INSERT"] or statements[0].named_parameters != names:
            raise _CombinedRowsRejected
        return replace(one, statement=statements[0])

    def _watched_rows(self, statement: BoundStatement) -> AbstractContextManager[None]:
        """Watch the storage once for all rows, because a check per row would take longer than running the row."""
        text = statement.rows[0].render(DUCKDB.write)
        tokens = tokenize(text)
        with self.engine_errors():
            checked = self._parse_checked(text, tokens)
        return nullcontext() if checked is None else self._watched(statement_kind(checked[0]), tokens)

    def _run_row(self, row: BoundStatement, known: "dict[str, _CheckedRow]") -> int:
        """Run one row and return the number of changed rows. Rows from RETURNING are discarded.

        `known` maps texts with markers to statements that the guard has already checked.
        """
        if self._is_stopped:
            raise Interrupted
        if known:
            text, values = text_with_markers(row)
            if (one := known.get(text)) is not None:
                return self._execute_row(one, values)
        text = row.render(DUCKDB.write)
        tokens, values = tokenize(text), None
        if (checked := self._parse_checked(text, tokens)) is None:
            return 0
        statement, lines_before = checked
        stores = only_stores_values(tokens, row)
        bound = bind_markers(self.native, row, statement, tokens)
        if bound is not None:
            statement, _ = self._without_comments_before(bound.statement, bound.text)
            values = bound.values
        checked_row = _CheckedRow(statement, _returns_rows(tokens), lines_before)
        if bound is not None and stores:
            start = row_offset(tokenize(bound.text), bound.text)
            known[bound.text] = replace(checked_row, start=start)
        return self._execute_row(checked_row, values)

    def _execute_row(self, row: "_CheckedRow", values: Sequence[Any] | None) -> int:
        with statement_errors(self._root, self._known_error, lines_before=row.lines_before):
            # `sql` would first create a relation, which takes another 0.7 ms.
            cursor = self.native.execute(row.statement, values)
            if row.returns_rows:
                return sum(iter(lambda: len(cursor.fetchmany(_VECTOR_ROWS)), 0))
            count = cursor.fetchone()
        return count[0] if count and isinstance(count[0], int) else 0

    def _in_transaction(self) -> bool:
        """Return whether a transaction is open.

        Outside a transaction, two statements get different transaction numbers.
        """
        with self.engine_errors():
            return (
                self.native.sql(_TRANSACTION_NUMBER_QUERY).fetchall()
                == self.native.sql(_TRANSACTION_NUMBER_QUERY).fetchall()
            )

    def prepare(self, setting: str) -> None:
        """Run a statement written by the server itself, bypassing the guard."""
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
        """Interrupt the block's writes once they exceed the database's quota or free disk space reaches the floor."""
        if self._watch is None:
            yield
            return
        self._watch.require_room(partial(used_bytes, self.native))
        try:
            with self._watch.over(self.native.interrupt):
                yield
        except errors.EngineError as error:
            if error.code == disk_below_floor.code:
                shrink_file(self.native)
            raise

    def _watched(self, kind: str, tokens: Sequence[Token]) -> AbstractContextManager[None]:
        if kind in _GROWING_KINDS:
            return self.writing()
        may_grow = kind == "EXECUTE" or (kind == "EXPLAIN" and any(token.name == "analyze" for token in tokens))
        return self._watch.over(self.native.interrupt) if may_grow and self._watch is not None else nullcontext()

    def _check_invalidated(self, text: str) -> None:
        if may_invalidate_database(text) and self._has_ended():
            self.is_usable = False

    def _parse_checked(
        self, text: str, tokens: Sequence[Token], *, copies_files: bool = False
    ) -> tuple[duckdb.Statement, int] | None:
        """Parse SQL text and check it against the guard's rules. Raises StatementRejected.

        Returns the statement and the number of lines before it; None if the text is empty.
        """
        statements = self.native.extract_statements(text)
        if not statements:
            return None
        if len(statements) > 1:
            raise errors.StatementRejected("Parser Error: only one statement is allowed at a time.")
        statement, lines_before = self._without_comments_before(statements[0], text)
        refuse_outside_access(self.native, statement, tokens, copies_files=copies_files)
        if self._read_only:
            refuse_changes(self.native, statement, tokens)
        if self._results is not None:
            self._results.begin(tokens)
        return statement, lines_before

    def _with_file_targets(self, text: str) -> tuple[str, Sequence[Token], bool]:
        """Return the text and its tokens, with the target that DuckDB writes, and whether it copies store files."""
        tokens = tokenize(text)
        if self._files is None or (copying := self._files.rewritten(text, tokens)) is None:
            return text, tokens, False
        return *copying, True

    def _run(self, text: str, bound: BoundStatement | None) -> "DuckdbAnswer":
        text, tokens, copies_files = self._with_file_targets(text)
        if (checked := self._parse_checked(text, tokens, copies_files=copies_files)) is None:
            return DuckdbAnswer()
        statement, lines_before = checked
        kind = statement_kind(statement)
        # A query yields a relation that executes only when it is read; any other statement executes here.
        with self._watched(kind, tokens):
            planned = self._plan_bound(bound, statement, tokens, lines_before) if bound is not None else None
            relation, names = planned or self._plan(statement, lines_before)
        types = relation.types
        require_shallow(types)
        shape = (names, list(map(str, types)) if len(types) == 1 else [])
        if kind != "SELECT" and shape == _NO_RESULT_SHAPE:
            return DuckdbAnswer()
        # DuckDB returns the number of changed rows as a result set.
        if kind not in _QUERY_KINDS and shape == _COUNT_SHAPE and not _returns_rows(tokens):
            with statement_errors(self._root, self._known_error, lines_before=lines_before):
                counted = relation.fetchall()
            return DuckdbAnswer(modified_rows=counted[0][0] if counted else None)
        return self._open_rows(relation, names, types, lines_before)

    def _plan_bound(
        self, bound: BoundStatement, literal: duckdb.Statement, tokens: Sequence[Token], lines_before: int
    ) -> "_Plan | None":
        """Plan the statement with bound values. Return None if nothing was executed and `literal` must run instead."""
        statement_with_markers = bind_markers(self.native, bound, literal, tokens)
        if statement_with_markers is None:
            return None
        values = statement_with_markers.values
        statement, _ = self._without_comments_before(statement_with_markers.statement, statement_with_markers.text)
        with statement_errors(self._root, self._known_error, lines_before=lines_before):
            try:
                return self._with_column_names(self.native.sql(statement, params=values), statement, values)
            except duckdb.Error as error:
                # Planning can fail because a parameter is not allowed; for example, ORDER BY accepts a number but no
                # parameter. Other error classes may come from a query that already executes, because one of its
                # functions has side effects.
                if statement_kind(literal) != "SELECT" or type(error) not in {duckdb.Error, duckdb.BinderException}:
                    raise
                bound.render(DUCKDB.write)
                return None

    def _plan(self, statement: duckdb.Statement, lines_before: int) -> "_Plan":
        with statement_errors(self._root, self._known_error, lines_before=lines_before):
            try:
                return self._with_column_names(self.native.sql(statement), statement)
            except (duckdb.BinderException, duckdb.CatalogException) as error:
                if (ours := self._known_error(str(error))) is not None:
                    raise ours from error
                known = domain_error(error, self._root, lines_before)
                if known.location is None and statement_kind(statement) == "SELECT":
                    known.location = self._binding_error_location(statement, lines_before)
                raise known from error

    def _with_column_names(
        self, relation: duckdb.DuckDBPyRelation, statement: duckdb.Statement, values: list[Any] | None = None
    ) -> "_Plan":
        """Return the relation with the column names that DuckDB reports for the statement.

        If the statement has already been executed, the relation over its rows numbers duplicate names: `i, i_1`.
        """
        names = relation.columns
        known = {name.casefold() for name in names}
        if any((match := _NUMBERED_NAME.fullmatch(name)) and match[1].casefold() in known for name in names):
            # Private API: the driver has no public call that binds a statement without executing it.
            names = self.native._bind(statement, with_writes=True, values=values)[0]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return relation, names

    def _binding_error_location(self, statement: duckdb.Statement, lines_before: int) -> errors.ErrorLocation | None:
        """Return the position of a query's binding error, which only EXPLAIN reports.

        Errors in other statements already contain the position. Returns None inside a transaction, because a failed
        EXPLAIN would abort the transaction, whereas the query's binding error does not.
        """
        try:
            if not self._reading.is_open and self._in_transaction():
                return None
            self.native.execute(f"EXPLAIN\n{statement.query}")
        except duckdb.Error as error:
            return location_of(with_shifted_lines(str(error), lines_before - 1))
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
        return self._temporary_files.error_of(text) if self._temporary_files is not None else None

    def _open_rows(
        self, relation: duckdb.DuckDBPyRelation, names: Sequence[str], types: Sequence[DuckDBPyType], lines_before: int
    ) -> "DuckdbAnswer":
        columns = tuple(Column(name, result_type(one), str(one)) for name, one in zip(names, types, strict=True))

        def error_of(text: str) -> errors.QueryServerError | None:
            self._check_invalidated(text)
            return self._known_error(text)

        around = partial(statement_errors, self._root, error_of, lines_before=lines_before)
        with around():
            reader = readable(relation).to_arrow_reader(
                _ROWS_OF_KNOWN_SIZE if all(map(has_own_size, types)) else _VECTOR_ROWS
            )
        natives = [one if is_read_as_text(one) else None for one in types]
        return DuckdbAnswer(
            columns=columns, reader=reader, natives=natives, around=around, cell_max_bytes=self._cell_max_bytes
        )


def _returns_rows(tokens: Sequence[Token]) -> bool:
    return any(token.kind == "keyword" and token.name == "returning" for token in tokens)
