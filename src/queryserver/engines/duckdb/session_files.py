"""Provides file access for one session's statements, from each statement's start to its last row."""

import re
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from queryserver import errors
from queryserver.engines.blocking_drivers import DriverAnswer
from queryserver.engines.duckdb.file_claims import END_WAIT_S, FileStatement
from queryserver.engines.duckdb.file_system import LOCAL_SCHEME, TARGET_SCHEME, CopyTarget, FileSystems, copy_clause
from queryserver.engines.duckdb.guard import Token, tokenize
from queryserver.engines.external_data import StoredFile
from queryserver.engines.process.calls import RemoteFiles
from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import EngineError, ErrorExcerpt, StatementRejected
from queryserver.formats.arrow import Column, with_members

_INTERRUPT_INTERVAL_S = 0.05
_PER_THREAD = "per_thread_output"
_NOT_FOUND = re.compile(r'No files found that match the pattern "([^"]*)"')
_ACCESS_DENIED = re.compile(r'Cannot access (?:file|directory) "(.*?)" - file system operations are disabled')
_SQLSTATES = {"permission_denied": "42501"}

PlannedT = TypeVar("PlannedT")


class SessionFileAccess:
    """Runs the statements of a DuckDB session one after another, and controls the files that they access.

    If a statement loses its right to a file, it is interrupted from a thread that works for another session.
    """

    def __init__(self, systems: FileSystems, files: RemoteFiles, interrupt: Callable[[], None]) -> None:
        self._systems = systems
        self._files = files
        self._interrupt = interrupt
        self._at_work = threading.RLock()
        """Held while DuckDB works on the statement."""
        self._changing = threading.Lock()
        """Held while the current statement changes, so that an interrupt never hits another statement."""
        self._statement: FileStatement | None = None
        """The latest statement, which may have ended."""
        self._copied: CopyTarget | None = None
        self._rows: DriverAnswer | None = None

    def run(self, work: Callable[[], DriverAnswer]) -> DriverAnswer:
        """Run a statement by calling `work`. Raises EngineError.

        The statement's files stay claimed until all rows are read or the answer is closed.
        """
        with self._at_work, self._changing:  # not while another session ends the previous statement
            self._statement = self._systems.claims.begin(self._files, self._stop)
        try:
            with self._working():
                answer = work()
                if self._copied is not None:
                    self._finish(self._copied)
                if answer.columns is not None:
                    self._rows = answer
        except BaseException:
            self.end()
            raise
        if answer.columns is None:
            self.end()
            return answer
        return FileAnswer(answer, self, self._copied)

    def plan(self, work: Callable[[Mapping[str, Sequence[StoredFile]]], PlannedT]) -> PlannedT:
        """Plan a statement without running it, by calling `work` with the files that DuckDB lists for it meanwhile.

        Raises EngineError.
        """
        with self._at_work, self._changing:
            statement = self._statement = self._systems.claims.begin(self._files, self._stop)
        try:
            with self._working():
                return work(statement.listed)
        finally:
            self.end()

    def rewritten(self, text: str, tokens: Sequence[Token]) -> tuple[str, Sequence[Token]] | None:
        """Prepare a COPY statement that accesses files, and return its text and tokens; None for any other statement.

        The target of COPY … TO is replaced with a `target://` URL. Raises StatementRejected for a computed target, and
        a `permission_denied` error for paths without a known scheme.
        """
        clause = copy_clause(tokens)
        if clause is None:
            return None
        direction, literal = clause
        if literal is None and direction == "from":
            return text, tokens
        if literal is None or literal.string is None:
            raise StatementRejected("Permission Error: the target of COPY must be a plain string literal.")
        scheme = literal.string.partition("://")[0].lower()
        if scheme not in self._systems.schemes or "://" not in literal.string:
            raise self._access_denied(literal.string)
        if direction == "from":
            return text, tokens
        if any(token.is_name and token.name == _PER_THREAD for token in tokens):
            # DuckDB 2.0.0 crashes its process when such a COPY fails.
            raise StatementRejected(
                "Not implemented Error: COPY … (PER_THREAD_OUTPUT) is disabled on this server. Use FILE_SIZE_BYTES to"
                " write several files."
            )
        assert self._statement is not None  # noqa: S101 `run` has set it
        self._copied = self._systems.copy(self._statement, literal.string)
        changed = self._copied.text(text, literal)
        return changed, tokenize(changed)

    def error_of(self, text: str) -> QueryServerError | None:
        """Return the domain error for a DuckDB message that a file has caused; otherwise None."""
        statement = self._statement
        if statement is None:
            return None
        if (error := statement.failure or self._systems.claims.error_of(text)) is not None:
            return _as_engine_error(error)
        if (match := _NOT_FOUND.search(text)) is not None:
            return _as_engine_error(errors.PathNotFound(f"{match[1]} does not exist, or no file matches."))
        if (match := _ACCESS_DENIED.search(text)) is not None:
            return self._access_denied(match[1])
        return None

    def rows(self, read: Callable[[], Sequence[pa.RecordBatch]]) -> Sequence[pa.RecordBatch]:
        """Read the next rows, and release the statement's files after the last row."""
        try:
            with self._working():
                batches = read()
                if not batches:
                    self.end()
                return batches
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the statement even if DuckDB is still working on it. Idempotent."""
        with self._at_work:
            rows, self._rows = self._rows, None
            if rows is not None:
                self._interrupt()  # otherwise closing would wait for all rows read ahead
                rows.close()
            self.end()

    def end(self) -> None:
        """End the statement once DuckDB is done, and discard the files of an unfinished COPY. Idempotent."""
        with self._changing:
            copied, self._copied = self._copied, None
            self._rows = None
            if copied is not None:
                self._systems.copied(copied)
                copied.discard()
            if self._statement is not None:
                self._statement.end()

    def _finish(self, copied: CopyTarget) -> None:
        try:
            copied.finish()
        except QueryServerError as error:
            raise _as_engine_error(error) from error

    @contextmanager
    def _working(self) -> Generator[None]:
        """Wrap DuckDB's work, so that files listed in this thread are attributed to the statement."""
        with self._at_work:
            statement, copied = self._statement, self._copied
            if statement is None or statement.has_ended:
                failure = statement.failure if statement is not None else None
                raise _as_engine_error(failure or errors.SessionLost("Invalid session Id: the statement has ended."))
            try:
                with statement.active():
                    yield
            except EngineError as error:
                copied = copied or self._copied
                raise (error if copied is None else _with_own_target(error, copied)) from error

    def _stop(self, statement: FileStatement) -> None:
        """Interrupt the statement because it has lost its right to a file.

        Called in a thread that works for another session.
        """
        deadline = time.monotonic() + END_WAIT_S
        while not (is_idle := self._at_work.acquire(timeout=_INTERRUPT_INTERVAL_S)) and time.monotonic() < deadline:
            with self._changing:
                if self._statement is statement and not statement.has_ended:
                    self._interrupt()
        if is_idle:
            try:
                if self._statement is statement:
                    self.close()
            finally:
                self._at_work.release()

    def _access_denied(self, path: str) -> EngineError:
        local = f"; use {LOCAL_SCHEME}:///… instead of file:///…" if LOCAL_SCHEME in self._systems.schemes else ""
        error = errors.PermissionDenied(f"{path}: statements can access only files in the configured stores{local}.")
        return _rejected(error, error.message)


class FileAnswer(DriverAnswer):
    """Reads the rows of a statement that may access files."""

    def __init__(self, answer: DriverAnswer, statements: SessionFileAccess, copied: CopyTarget | None) -> None:
        self.columns: tuple[Column, ...] | None = answer.columns
        self._answer = answer
        self._statements = statements
        self._copied = copied
        self._is_over = False

    @property
    def modified_rows(self) -> int | None:  # type: ignore[override]
        return self._answer.modified_rows

    def next_batches(self) -> Sequence[pa.RecordBatch]:
        if self._is_over:
            return ()
        batches = self._statements.rows(self._answer.next_batches)
        self._is_over = not batches
        return batches if self._copied is None else [_with_statement_paths(batch, self._copied) for batch in batches]

    def close(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._statements.close()
        self._answer.close()


def _as_engine_error(error: QueryServerError) -> EngineError:
    """Convert an error to an EngineError with the same code and message."""
    if isinstance(error, EngineError):
        return error
    # The message must use the scheme that statements use.
    return _rejected(error, error.message.replace("file:///", f"{LOCAL_SCHEME}:///"))


def _rejected(error: QueryServerError, message: str) -> EngineError:
    known = errors.recreate_error(StatementRejected, error.code, message, error.details)
    return known.with_sqlstate(_SQLSTATES.get(error.code))


def _with_own_target(error: EngineError, copied: CopyTarget) -> EngineError:
    """Replace the rewritten target in DuckDB's message with the target named in the statement.

    The excerpt is truncated before the rewritten target.
    """
    message = copied.shown(error.message.partition("\n\nLINE ")[0])
    place = error.location
    if isinstance(place, ErrorExcerpt) and (cut := place.shown.find(TARGET_SCHEME)) >= 0:
        place = replace(place, shown=f"{place.shown[:cut]}...") if place.mark < cut else None
    return (
        errors.recreate_error(type(error), error.code, message, error.details).at(place).with_sqlstate(error.sqlstate)
    )


def _with_statement_paths(batch: pa.RecordBatch, copied: CopyTarget) -> pa.RecordBatch:
    """Replace the rewritten target's paths in the rows returned by RETURN_FILES and RETURN_STATS."""
    columns = [_statement_paths(column, copied) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _statement_paths(column: pa.Array, copied: CopyTarget) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        options = pc.ReplaceSubstringOptions(copied.marked, copied.named)
        return pc.call_function("replace_substring", [column], options)
    if pa.types.is_list(kind):

        def shown(members: pa.Array, _: int) -> pa.Array:
            return _statement_paths(members, copied)

        return with_members(column, shown)
    return column
