"""Tracks which statements may read which files, because DuckDB opens files in any thread without naming the statement.

DuckDB lists a path's files in the thread of the session whose statement names the path. That statement claims each
listed file until it ends, and only claimed files can be opened (ADR 76):

- While only one session has claims on a file, the file is read with that session's rights.
- A second session gets a claim once both sessions have proved that they may read the file. From then on, it does not
matter for which session DuckDB opens the file.
"""

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex

from queryserver import errors
from queryserver.engines.duckdb.read_ahead import FileContent, ReadBuffers
from queryserver.engines.external_data import StoredFile
from queryserver.engines.process.calls import RemoteFiles
from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import StatementRejected

END_WAIT_S = 10.0
"""Maximum time to wait for the end of a statement that has lost its right to a file.

After that, the waiting statement is refused.
"""
_MAX_PROOF_THREADS = 8
_MAX_ERRORS = 1_000
"""Maximum number of callback errors that are kept until their statements retrieve them, usually immediately."""
_MARK = "file callback "
_MARKED = re.compile(rf"{_MARK}([0-9a-f]{{16}})")
_REFUSED = (errors.PermissionDenied, errors.NotFound, errors.Conflict, errors.InvalidRequest)
"""Errors that prove that a session may not read a file. Other errors reveal nothing about its permissions."""


Stop = Callable[["FileStatement"], None]
"""Cancels a statement from another thread."""


class CallbackFailed(Exception):
    """Raised in DuckDB callbacks in place of the original error, because DuckDB passes on only an exception's text.

    The text contains a marker that identifies the original error.
    """


class FileStatement:
    """One statement of a session, from its start to its last row. The session's thread runs it inside `active`."""

    def __init__(self, claims: "FileClaims", files: RemoteFiles, stop: Stop) -> None:
        self.files = files
        self.failure: QueryServerError | None = None
        """The error with which another statement has canceled this statement."""
        self.has_ended = False
        self._claims = claims
        self._stop = stop
        self.listed = dict[str, Sequence[StoredFile]]()
        """The files of each pattern that DuckDB has listed for the statement."""
        self.claimed = set[ClaimedFile]()

    @contextmanager
    def active(self) -> Generator[None]:
        """Wrap each DuckDB call for the statement, so that paths listed in this thread are attributed to it."""
        before = self._claims.thread_statement
        self._claims.thread_statement = self
        try:
            yield
        finally:
            self._claims.thread_statement = before

    def glob(self, pattern: str) -> Sequence[StoredFile]:
        """Claim and return the matching files.

        DuckDB may call this up to three times for a pattern, and always gets the same files.
        """
        files = self.listed.get(pattern)
        if files is None:
            files = self.files.glob(pattern)
            self._claims.claim(self, files)
            self.listed[pattern] = files
        return files

    def fail(self, error: QueryServerError) -> None:
        """Cancel the statement with `error`. Called in a thread that works for another statement."""
        self.failure = self.failure or error
        self._stop(self)

    def end(self) -> None:
        """Release the statement's claims. DuckDB must have finished working on the statement. Idempotent."""
        self._claims.end(self)


@dataclass(eq=False, slots=True)
class ClaimedFile:
    """A file, and the statements that may read it."""

    file: StoredFile
    claimants: dict[FileStatement, bool] = field(default_factory=dict[FileStatement, bool])
    """The statements that claim the file, and whether each has proved that it may read it."""
    content: FileContent = field(init=False)

    @property
    def sessions(self) -> set[int]:
        return {statement.files.session for statement in self.claimants}


class FileClaims:
    """The running statements of one database, and the files that they have claimed. Callable from any thread."""

    def __init__(self) -> None:
        self.is_strict = False
        """Whether a stored definition, such as a view, may open files that no statement has named.

        If so, DuckDB's own threads cannot open files while several statements are running.
        """
        self._changed = threading.Condition()
        self._running = set[FileStatement]()
        self._claimed = dict[str, ClaimedFile]()
        self._here = threading.local()
        self._reads = ReadBuffers()
        self._proofs = ThreadPoolExecutor(_MAX_PROOF_THREADS, thread_name_prefix="proof")
        self._errors = OrderedDict[str, QueryServerError]()

    @property
    def thread_statement(self) -> FileStatement | None:
        """The statement that runs in this thread; None in DuckDB's own threads."""
        return getattr(self._here, "statement", None)

    @thread_statement.setter
    def thread_statement(self, statement: FileStatement | None) -> None:
        self._here.statement = statement

    def begin(self, files: RemoteFiles, stop: Stop) -> FileStatement:
        """Register a statement that is about to start. The caller must call `FileStatement.end`."""
        statement = FileStatement(self, files, stop)
        with self._changed:
            self._running.add(statement)
        return statement

    def end(self, statement: FileStatement) -> None:
        with self._changed:
            statement.has_ended = True
            self._running.discard(statement)
            for claimed in statement.claimed:
                claimed.claimants.pop(statement, None)
                if not claimed.claimants:
                    claimed.content.forget()
                    del self._claimed[claimed.file.path]
            statement.claimed.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the threads and free the memory. No statement may be running."""
        self._proofs.shutdown(cancel_futures=True)
        self._reads.close()

    @property
    def is_empty(self) -> bool:
        return not self._running and not self._claimed

    @property
    def held_bytes(self) -> int:
        return self._reads.held_bytes

    def listing_statement(self) -> FileStatement:
        """Return the statement to which a path listed in the current thread is attributed.

        DuckDB lists some paths late, in its own threads: all but the first path in a list passed to `parquet_schema` or
        `glob`, and the path passed to `sniff_csv`. Such a path can be attributed only if a single statement is running.
        Raises StatementRejected if several are running, PermissionDenied if none is.
        """
        here = self.thread_statement
        if here is not None:
            return here
        with self._changed:
            if len(self._running) == 1:
                return next(iter(self._running))
            if not self._running:
                raise errors.PermissionDenied("This session cannot access storage files.")
        raise StatementRejected(
            "Not implemented Error: while other statements are running on this database, files cannot be read by"
            " sniff_csv, or by glob and the Parquet metadata functions with a list of paths. Retry later."
        )

    def claim(self, statement: FileStatement, files: Iterable[StoredFile]) -> None:
        """Claim files for a statement. Raises EntryChanged, StatementRejected, and the errors of `require_readable`."""
        proved, waiting = set[str](), list(files)
        while waiting:
            with self._changed:
                waiting = [file for file in waiting if not self._claim(statement, file, is_proved=file.path in proved)]
            prove = partial(self._prove, statement, proved)
            list(self._proofs.map(prove, waiting))
            proved.update(file.path for file in waiting)

    def opened(self, path: str) -> ClaimedFile:
        """Return the claimed file for a path that DuckDB opens in the current thread.

        Raises PermissionDenied if no statement has named the file.
        """
        here = self.thread_statement
        with self._changed:
            claimed = self._claimed.get(path)
            if claimed is None or (here is not None and here not in claimed.claimants):
                raise errors.PermissionDenied(f"{path}: the statement does not name this file.")
            if here is None and self.is_strict and len(self._running) > 1:
                raise errors.PermissionDenied(
                    f"{path}: files cannot be read while other statements are running, because a view or macro in this"
                    " database calls read_single_csv_file or a similar function. Drop that view or macro."
                )
            return claimed

    def is_claimed(self, path: str) -> bool:
        here = self.thread_statement
        with self._changed:
            claimed = self._claimed.get(path)
            return claimed is not None and (here is None or here in claimed.claimants)

    def record_error(self, error: QueryServerError) -> CallbackFailed:
        """Record a callback's error and return the exception to raise instead.

        DuckDB passes on only the exception's text, from which `error_of` restores `error`.
        """
        mark = token_hex(8)
        with self._changed:
            self._errors[mark] = error
            while len(self._errors) > _MAX_ERRORS:
                self._errors.popitem(last=False)
        return CallbackFailed(f"{_MARK}{mark}")

    def error_of(self, text: str) -> QueryServerError | None:
        """Return the callback error that caused a DuckDB message; None if there is none."""
        match = _MARKED.search(text)
        return self._errors.get(match[1]) if match is not None else None

    def _claim(self, statement: FileStatement, file: StoredFile, *, is_proved: bool) -> bool:
        """Try to claim a file, and return whether the statement now has the claim. The caller holds the lock."""
        claimed = self._claimed.get(file.path)
        if claimed is None:
            claimed = self._claimed[file.path] = ClaimedFile(file)
            claimed.content = self._reads.content(file.size, lambda offset, length: self._read(claimed, offset, length))
        if claimed.file.version != file.version:
            if statement in claimed.claimants:
                raise _changed(file.path)
            return False
        others = claimed.sessions - {statement.files.session}
        if others and not (is_proved and all(claimed.claimants.values())):
            return False
        claimed.claimants[statement] = claimed.claimants.get(statement, False) or is_proved
        statement.claimed.add(claimed)
        return True

    def _prove(self, statement: FileStatement, proved: AbstractSet[str], file: StoredFile) -> None:
        """Check that `statement` and all current claimants may read the file.

        Claimants without permission are canceled.
        """
        if file.path not in proved and statement.files.require_readable(file.path).version != file.version:
            raise _changed(file.path)
        with self._changed:
            claimed = self._claimed.get(file.path)
            if claimed is None:
                return
            others = [one for one in claimed.claimants.items() if one[0] is not statement]
            is_older = claimed.file.version != file.version
        for other, is_proved in others:
            if is_older:
                self._end_other(other, _changed(file.path), file.path)
            elif not is_proved:
                self._prove_other(other, claimed)

    def _prove_other(self, other: FileStatement, claimed: ClaimedFile) -> None:
        path = claimed.file.path
        try:
            entry = other.files.require_readable(path)
            if entry.version != claimed.file.version:
                raise _changed(path)
        except QueryServerError as error:
            if other.has_ended:
                return
            if not isinstance(error, _REFUSED):
                raise
            self._end_other(other, error, path)
        else:
            with self._changed:
                if other in claimed.claimants:
                    claimed.claimants[other] = True

    def _end_other(self, other: FileStatement, error: QueryServerError, path: str) -> None:
        """Cancel another statement and wait for its end, because DuckDB's threads may open files for it until then."""
        other.fail(error)
        deadline = time.monotonic() + END_WAIT_S
        with self._changed:
            while not other.has_ended:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise StatementRejected(f"{path} is in use by another statement. Retry later.")

    def _read(self, claimed: ClaimedFile, offset: int, length: int) -> bytes:
        """Read part of a file with the rights of any claimant.

        This is safe, because all claimants belong to one session, or all have proved their rights.
        """
        file, tried = claimed.file, set[FileStatement]()
        while True:
            with self._changed:
                statement = next((one for one in claimed.claimants if one not in tried), None)
            if statement is None:
                raise errors.PermissionDenied(f"{file.path}: the statement that named this file has ended.")
            tried.add(statement)
            try:
                content = statement.files.read(file.path, offset=offset, length=length, version=file.version)
            except QueryServerError:
                if not statement.has_ended:
                    raise
                continue  # the statement has ended in the meantime, so another claimant's rights are used
            if len(content) != length:
                raise _changed(file.path)
            return content


def _changed(path: str) -> errors.EntryChanged:
    return errors.EntryChanged(f"{path} was changed while the statement read it.")
