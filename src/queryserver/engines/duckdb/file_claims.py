"""Which statements may read which files: DuckDB opens a file in any thread, without a word of whose statement it is.

DuckDB lists the files of a path in the thread of the session whose statement names it. Each file found there is
claimed by that statement until it ends, and only claimed files are opened (ADR 76):

- While one session alone has claims on a file, all its bytes are read with the rights of that session.
- A second session gets its claim when each of them has proved that it may read the file. From then on it does not
  matter in whose name an open comes.
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
from queryserver.engines.duckdb.read_ahead import StoredBytes, StoredReads
from queryserver.engines.process.file_calls import CalledFiles
from queryserver.engines.reach import StoredFile
from queryserver.errors.base import QueryServerError
from queryserver.errors.statements import StatementRejected

END_WAIT_S = 10.0
"""How long a statement that lost its right to a file may take to end until the other one is refused."""
_PROOFS_AT_ONCE = 8
_KEPT_ERRORS = 1_000
"""Of callbacks, until their statements find them: at once, as a rule."""
_MARK = "file callback "
_MARKED = re.compile(rf"{_MARK}([0-9a-f]{{16}})")
_REFUSED = (errors.PermissionDenied, errors.NotFound, errors.Conflict, errors.InvalidRequest)
"""What says that a session may not read a file; other failures say nothing about its rights."""


Stop = Callable[["FileStatement"], None]
"""Makes the statement end soon, from another thread."""


class CallbackFailed(Exception):
    """The error of a callback, by a mark in its text: DuckDB passes on the text only."""


class FileStatement:
    """One statement of a session, from its start to its last row. The thread that runs it is inside `entered`."""

    def __init__(self, claims: "FileClaims", files: CalledFiles, stop: Stop) -> None:
        self.files = files
        self.failure: QueryServerError | None = None
        """What has ended it from outside."""
        self.has_ended = False
        self._claims = claims
        self._stop = stop
        self._found = dict[str, Sequence[StoredFile]]()
        self.claimed = set[ClaimedFile]()

    @contextmanager
    def entered(self) -> Generator[None]:
        """Around each call of DuckDB for the statement: files that it names in this thread are named by it."""
        before = self._claims.of_thread
        self._claims.of_thread = self
        try:
            yield
        finally:
            self._claims.of_thread = before

    def glob(self, pattern: str) -> Sequence[StoredFile]:
        """The files that match, claimed. DuckDB asks up to three times: a statement gets one answer for a pattern."""
        found = self._found.get(pattern)
        if found is None:
            found = self.files.glob(pattern)
            self._claims.claim(self, found)
            self._found[pattern] = found
        return found

    def fail(self, error: QueryServerError) -> None:
        """End it with that error, from the thread of another."""
        self.failure = self.failure or error
        self._stop(self)

    def end(self) -> None:
        """Its claims are void. DuckDB must not be at work for it any more. Idempotent."""
        self._claims.end(self)


@dataclass(eq=False, slots=True)
class ClaimedFile:
    """A file and the statements that may read it."""

    file: StoredFile
    claimants: dict[FileStatement, bool] = field(default_factory=dict[FileStatement, bool])
    """With whether the right to read it is proved."""
    content: StoredBytes = field(init=False)

    @property
    def sessions(self) -> set[int]:
        return {statement.files.session for statement in self.claimants}


class FileClaims:
    """The running statements of one database and the files that they claim. Any thread may call."""

    def __init__(self) -> None:
        self.is_strict = False
        """Some definition in the database may open files that no statement has named: while several statements run,
        DuckDB's own threads open none."""
        self._changed = threading.Condition()
        self._running = set[FileStatement]()
        self._claimed = dict[str, ClaimedFile]()
        self._here = threading.local()
        self._reads = StoredReads()
        self._proofs = ThreadPoolExecutor(_PROOFS_AT_ONCE, thread_name_prefix="proof")
        self._errors = OrderedDict[str, QueryServerError]()

    @property
    def of_thread(self) -> FileStatement | None:
        """The statement that runs in this thread; None in DuckDB's own."""
        return getattr(self._here, "statement", None)

    @of_thread.setter
    def of_thread(self, statement: FileStatement | None) -> None:
        self._here.statement = statement

    def begin(self, files: CalledFiles, stop: Stop) -> FileStatement:
        """A statement that runs from now on. To be ended by its owner."""
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
        """No statement runs any more."""
        self._proofs.shutdown(cancel_futures=True)
        self._reads.close()

    @property
    def is_empty(self) -> bool:
        return not self._running and not self._claimed

    @property
    def held_bytes(self) -> int:
        return self._reads.held_bytes

    def naming(self) -> FileStatement:
        """The statement that names a path in this thread.

        DuckDB lists some paths late, in threads of its own: those behind the first in a list of `parquet_schema` or
        `glob`, and that of `sniff_csv`. They are those of the only statement that runs, else of an unknown one.
        Raises StatementRejected.
        """
        here = self.of_thread
        if here is not None:
            return here
        with self._changed:
            if len(self._running) == 1:
                return next(iter(self._running))
            if not self._running:
                raise errors.PermissionDenied("This session reaches no files of stores.")
        raise StatementRejected(
            "Not implemented Error: while other statements run on this database, sniff_csv, and glob and the functions"
            " of Parquet metadata with a list of paths, read no files; try again."
        )

    def claim(self, statement: FileStatement, files: Iterable[StoredFile]) -> None:
        """Raises what proving the right to read raises, ChangedMeanwhile, StatementRejected."""
        proved, waiting = set[str](), list(files)
        while waiting:
            with self._changed:
                waiting = [file for file in waiting if not self._claim(statement, file, is_proved=file.path in proved)]
            prove = partial(self._prove, statement, proved)
            list(self._proofs.map(prove, waiting))
            proved.update(file.path for file in waiting)

    def opened(self, path: str) -> ClaimedFile:
        """The file, for an open in this thread. Raises PermissionDenied when no statement has named it."""
        here = self.of_thread
        with self._changed:
            claimed = self._claimed.get(path)
            if claimed is None or (here is not None and here not in claimed.claimants):
                raise errors.PermissionDenied(f"{path}: the statement has not named this file.")
            if here is None and self.is_strict and len(self._running) > 1:
                raise errors.PermissionDenied(
                    f"{path}: while other statements run, no files are read on this database, since a view or macro of"
                    " it calls read_single_csv_file or a function like it; drop that."
                )
            return claimed

    def is_claimed(self, path: str) -> bool:
        here = self.of_thread
        with self._changed:
            claimed = self._claimed.get(path)
            return claimed is not None and (here is None or here in claimed.claimants)

    def noted(self, error: QueryServerError) -> CallbackFailed:
        """What a callback raises: DuckDB passes on no more than its text, in which `error_of` finds the error again."""
        mark = token_hex(8)
        with self._changed:
            self._errors[mark] = error
            while len(self._errors) > _KEPT_ERRORS:
                self._errors.popitem(last=False)
        return CallbackFailed(f"{_MARK}{mark}")

    def error_of(self, text: str) -> QueryServerError | None:
        """The error of a callback of which DuckDB has made the text."""
        found = _MARKED.search(text)
        return self._errors.get(found[1]) if found is not None else None

    def _claim(self, statement: FileStatement, file: StoredFile, *, is_proved: bool) -> bool:
        """Whether it has a claim now. The caller has the lock."""
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
        """That `statement` may read it, and each that claims it already; those that may not are ended."""
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
            found = other.files.require_readable(path)
            if found.version != claimed.file.version:
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
        """Returns when it has ended: until then, an open in a thread of DuckDB may be its own."""
        other.fail(error)
        give_up = time.monotonic() + END_WAIT_S
        with self._changed:
            while not other.has_ended:
                if not self._changed.wait(give_up - time.monotonic()):
                    raise StatementRejected(f"{path} is in use by a statement that does not end; try again.")

    def _read(self, claimed: ClaimedFile, offset: int, length: int) -> bytes:
        """With the rights of any that claims it: they are those of one session, or all have proved theirs."""
        file, tried = claimed.file, set[FileStatement]()
        while True:
            with self._changed:
                statement = next((one for one in claimed.claimants if one not in tried), None)
            if statement is None:
                raise errors.PermissionDenied(f"{file.path}: the statement that named this file has ended.")
            tried.add(statement)
            try:
                found = statement.files.read(file.path, offset=offset, length=length, version=file.version)
            except QueryServerError:
                if not statement.has_ended:
                    raise
                continue  # it has ended meanwhile
            if len(found) != length:
                raise _changed(file.path)
            return found


def _changed(path: str) -> errors.ChangedMeanwhile:
    return errors.ChangedMeanwhile(f"{path} was changed while the statement read it.")
