"""Gives engine sessions' statements access to store files, with their callers' rights (Contract editor 4.7)."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from queryserver import errors
from queryserver.engines.external_data import FileSink, StoredFile
from queryserver.files.access import OBJECT_STORES, AuditDetails, Caller, Location, StorageAudit, Stores
from queryserver.files.changes import check_new_parents
from queryserver.files.downloads import entity_tag
from queryserver.files.globs import MAX_FOUND, GlobSearch, Pattern, is_pattern
from queryserver.files.model import EntryKind, FileStatus, PathSpelling, StoragePath, checked_new_name
from queryserver.files.protocol import PIECE_BYTES, CheckedWrites
from queryserver.files.upload_repository import OrphanSweep
from queryserver.files.uploads import UploadRules
from queryserver.identity.model import Scope, User
from queryserver.platform.byte_budget import ByteBudget
from queryserver.platform.lru_cache import LruCache

MAX_READ_BYTES = 16 * 1024 * 1024
"""Maximum number of bytes per read call."""
MAX_OPEN_WRITES = 32
"""Maximum number of open writes per statement, because object stores buffer a part of each write in memory."""
_MAX_OPEN_WRITES_HERE = 64
_READ_AT_ONCE_BYTES = 64 * 1024 * 1024
"""Bytes that all statements in this process may read concurrently."""
_READ_WAIT_S = 3600.0
_CALLS_AT_ONCE = 16
"""Maximum number of concurrent calls per statement."""
_KNOWN = 10_000
_BATCH = 5000
# Number of chunks that a writer may be ahead of the store.
_PIECES_AHEAD = 2

_READ, _LIST, _WRITE, _MKDIR, _REMOVE = (f"statement.{kind}" for kind in ("read", "list", "write", "mkdir", "remove"))
_ENDED = "The statement has ended."
_RETRY_AFTER = timedelta(seconds=10)


class StatementFileAccess:
    """Creates the sessions' file access. There is one object per process."""

    def __init__(
        self, stores: Stores, rules: UploadRules, orphans: OrphanSweep, audit: StorageAudit, *, max_scanned: int
    ) -> None:
        """`max_scanned` limits the entries visited per pattern."""
        self.stores = stores
        self.rules = rules
        self.orphans = orphans
        self.audit = audit
        self.max_scanned = max_scanned
        # Waiting callers have their own timeout.
        self.reads = ByteBudget(_READ_AT_ONCE_BYTES, wait_s=_READ_WAIT_S)
        self.open_writes = 0

    def of_session(self, *, may_write: bool) -> "SessionFiles":
        """Return one session's files. `may_write` is set if engine and connector permit writing."""
        return SessionFiles(self, may_write=may_write)


class SessionFiles:
    """Implements `StatementFiles` for one session, whose statements run one at a time, each with its caller's
    rights.
    """

    def __init__(self, access: StatementFileAccess, *, may_write: bool) -> None:
        self.schemes = access.stores.spellings
        self._access = access
        self._may_write = may_write
        self._statement: CallerFiles | None = None

    @asynccontextmanager
    async def acting(self, user: User, *, operation_id: str = "") -> AsyncGenerator[None]:
        """Run a user's statement inside the context. On exit, unfinished writes are aborted."""
        statement = CallerFiles(self._access, user, operation_id, may_write=self._may_write)
        self._statement = statement
        try:
            yield
        finally:
            self._statement = None
            await statement.end()

    @property
    def _now(self) -> "CallerFiles":
        if self._statement is None:
            raise errors.PermissionDenied("No statement runs that could read or write files.")
        return self._statement

    async def glob(self, pattern: str) -> Sequence[StoredFile]:
        return await self._now.glob(pattern)

    async def status(self, path: str) -> StoredFile:
        return await self._now.status(path)

    async def list_directory(self, path: str) -> Sequence[StoredFile]:
        return await self._now.list_directory(path)

    async def require_readable(self, path: str) -> StoredFile:
        return await self._now.require_readable(path)

    async def read(self, path: str, *, offset: int, length: int, version: str = "") -> bytes:
        return await self._now.read(path, offset=offset, length=length, version=version)

    @asynccontextmanager
    async def write(self, path: str, *, overwrite: bool) -> AsyncGenerator[FileSink]:
        async with self._now.write(path, overwrite=overwrite) as sink:
            yield sink

    async def make_directory(self, path: str) -> None:
        await self._now.make_directory(path)

    async def remove(self, path: str) -> None:
        await self._now.remove(path)


@dataclass(frozen=True, slots=True)
class _Named:
    """A path and its spelling in the statement."""

    path: StoragePath
    spelling: PathSpelling

    @property
    def shown(self) -> str:
        return self.spelling.of(self.path)

    def stored(self, status: FileStatus) -> StoredFile:
        shown = self.spelling.of(StoragePath(self.path.scheme, status.path))
        if status.is_directory:
            return StoredFile(shown, 0, status.modified_at, is_directory=True)
        return StoredFile(shown, status.size_bytes, status.modified_at, version=entity_tag(status))


class CallerFiles:
    """One statement's files. The statement sees the same version of an entry until it ends."""

    def __init__(self, access: StatementFileAccess, user: User, operation_id: str, *, may_write: bool) -> None:
        self._access = access
        self._user = user
        self._caller = Caller.of(user)
        self._may_write = may_write
        self._facts: Mapping[str, str] = MappingProxyType({"operation_id": operation_id} if operation_id else {})
        self._calls = asyncio.Semaphore(_CALLS_AT_ONCE)
        self._known = LruCache[StoragePath, FileStatus](_KNOWN)
        self._readable = LruCache[StoragePath, FileStatus](_KNOWN)
        self._written: dict[StoragePath, FileStatus] = {}
        self._made: set[StoragePath] = set()
        self._writes: set[asyncio.Task[FileStatus]] = set()
        self._has_ended = False

    async def end(self) -> None:
        """Abort unfinished writes."""
        self._has_ended = True
        for write in self._writes:
            write.cancel()
        if self._writes:
            await asyncio.wait(self._writes)

    async def glob(self, pattern: str) -> Sequence[StoredFile]:
        named = self._named(pattern)
        with self._failures(_LIST, named):
            location = self._location(named, Scope.FILES_READ)
            if not is_pattern(named.path.path):
                found = await self._file_or_none(location)
                return [named.stored(found)] if found is not None else []
            async with self._calls:
                search = GlobSearch(
                    location.storage,
                    Pattern(named.path.names),
                    location.file_system.traits.container_levels,
                    self._access.max_scanned,
                )
                matches = await search.run()
            if not matches and (found := await self._file_or_none(location)) is not None:
                matches = [found]
            for status in matches if len(matches) <= _KNOWN else ():
                self._known.put(StoragePath(named.path.scheme, status.path), status)
            return sorted(map(named.stored, matches), key=lambda file: file.path)

    async def status(self, path: str) -> StoredFile:
        named = self._named(path)
        with self._failures(_LIST, named):
            # Writing also calls this method for the target first.
            is_writer = self._user.has_scope(Scope.FILES_WRITE)
            location = self._location(named, Scope.FILES_WRITE if is_writer and self._may_write else Scope.FILES_READ)
            if named.path in self._made:
                return StoredFile(named.shown, 0, None, is_directory=True)
            found = _refused_link(named.path, await self._stat(location))
            if not (found.is_file or found.is_directory):
                raise errors.NotAFile(f"{named.shown} is neither a file nor a directory.")
            return named.stored(found)

    async def list_directory(self, path: str) -> Sequence[StoredFile]:
        named = self._named(path)
        with self._failures(_LIST, named):
            location, found = self._location(named, Scope.FILES_READ), list[StoredFile]()
            listing = location.storage.list_directory(named.path.path, batch_size=_BATCH)
            try:
                async with self._calls, aclosing(listing) as batches:
                    async for batch in batches:
                        found += [named.stored(entry) for entry in batch.entries if entry.is_file or entry.is_directory]
                        if len(found) > MAX_FOUND:
                            raise errors.too_many_entries(f"The directory has more than {MAX_FOUND} entries.")
            except errors.PathNotFound:
                if named.path not in self._made:
                    raise
            return sorted(found, key=lambda file: file.path)

    async def require_readable(self, path: str) -> StoredFile:
        named = self._named(path)
        return named.stored(await self._opened(named))

    async def read(self, path: str, *, offset: int, length: int, version: str = "") -> bytes:
        if offset < 0 or not 0 <= length <= MAX_READ_BYTES:
            raise errors.InvalidParameter(f"A read is of at most {MAX_READ_BYTES} bytes from an offset of 0 or more.")
        named = self._named(path)
        status = await self._opened(named)
        if version and version != entity_tag(status):
            raise errors.EntryChanged(f"{named.shown} was changed meanwhile.")
        wanted = min(length, status.size_bytes - offset)
        if wanted <= 0:
            return b""
        with self._failures(_READ, named):
            location = self._location(named, Scope.FILES_READ)
            async with self._calls:
                held = await self._access.reads.reserve(self._user.id, wanted)
                try:
                    return await _all_of(location, offset, wanted, status)
                finally:
                    held.release()

    @asynccontextmanager
    async def write(self, path: str, *, overwrite: bool) -> AsyncGenerator[FileSink]:
        named = self._named(path)
        with self._event(_WRITE, named) as noted:
            location = await self._target(named, overwrite=overwrite)
            async with self._writing(), self._access.orphans.recorded_write(self._caller, named.path):
                body = _Body(named.shown, self._access.rules.max_bytes)
                task = self._stored(location, body, overwrite=overwrite)
                body.follow(task)
                try:
                    yield body
                    await body.finish()
                    self._require_running()
                    status = await task
                finally:
                    await self._abort(task)
            noted.size_bytes = body.size_bytes
            self._forget(named.path)
            self._written[named.path] = status

    async def make_directory(self, path: str) -> None:
        named = self._named(path)
        with self._event(_MKDIR, named):
            location = self._location(named, Scope.FILES_WRITE)
            found = await location.find()
            if found is not None:
                if not found.is_directory:
                    raise errors.PathExists(f"{named.shown} exists and is no directory.")
                return
            _require_new_name(named.path, is_directory=True)
            await check_new_parents(location)
            if named.path.scheme in OBJECT_STORES and len(named.path.names) > 1:
                # The directory is created with its first file. Otherwise each partition's marker would remain forever.
                self._made.add(named.path)
                return
            async with self._access.orphans.recorded_write(self._caller, named.path):
                await location.storage.mkdir(named.path.path)

    async def remove(self, path: str) -> None:
        named = self._named(path)
        with self._event(_REMOVE, named):
            location = self._location(named, Scope.FILES_WRITE)
            written = self._written.get(named.path)
            if written is None:
                raise errors.PermissionDenied("Statements delete no files but those that they have written themselves.")
            if not (await location.storage.stat(named.path.path)).is_same_content(written):
                raise errors.EntryChanged(f"{named.shown} was changed meanwhile.")
            await location.storage.delete(named.path.path, recursive=False)
            self._forget(named.path)
            del self._written[named.path]

    def _named(self, text: str) -> _Named:
        stores = self._access.stores
        try:
            path = stores.path(text)
        except errors.QueryServerError as error:
            raise about(text, stores.with_available_stores(error, self._caller)) from None
        return _Named(path, PathSpelling.read(text, path))

    def _location(self, named: _Named, scope: Scope) -> Location:
        """Return the path with its store. Raises PermissionDenied if the token, connector or user lacks the
        permission.
        """
        self._require_running()
        if not self._user.has_scope(scope):
            raise errors.PermissionDenied(f"The API token of this statement lacks the scope {scope}.")
        if scope is Scope.FILES_WRITE and not self._may_write:
            raise errors.PermissionDenied("The connector is read-only: its statements write no files.")
        return self._access.stores.location(self._caller, named.path)

    def _require_running(self) -> None:
        if self._has_ended:
            raise errors.PermissionDenied(_ENDED)

    async def _stat(self, location: Location) -> FileStatus:
        """Return the entry as the statement saw it for the first time."""
        known = self._known.get(location.path)
        if known is None:
            async with self._calls:
                known = await location.storage.stat(location.path.path)
            self._known.put(location.path, known)
        return known

    async def _file_or_none(self, location: Location) -> FileStatus | None:
        """Return the file at a path, or None if it does not exist. Raises SymlinkNotFollowed."""
        try:
            found = _refused_link(location.path, await self._stat(location))
        except (errors.PathNotFound, errors.NotADirectory):
            return None
        return found if found.is_file else None

    async def _opened(self, named: _Named) -> FileStatus:
        """Return the file if the caller may read it. The first time a path is read, an audit event is recorded."""
        readable = self._readable.get(named.path)
        if readable is not None:
            return readable
        with self._event(_READ, named):
            location = self._location(named, Scope.FILES_READ)
            status = _refused_link(named.path, await self._stat(location))
            if not status.is_file:
                raise errors.NotAFile(f"{named.shown} is not a file.")
            if location.file_system.traits.acts_as_user and status.size_bytes:
                # On HDFS, the permission to list a directory does not include reading its files.
                async with self._calls:
                    await _all_of(location, 0, 1, status)
            self._readable.put(named.path, status)
            return status

    async def _target(self, named: _Named, *, overwrite: bool) -> Location:
        """Run an upload's checks (Contract storage 9.1). Raises the errors of `UploadRules.admit` and
        `UploadRules.target`.
        """
        self._location(named, Scope.FILES_WRITE)
        self._access.rules.admit()
        path = named.path
        if path.is_root:
            raise errors.PathExists(f"{named.shown} exists.")
        _require_new_name(path, is_directory=False)
        return await self._access.rules.target(self._caller, path.parent, path.name, overwrite=overwrite)

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[None]:
        """Count one more of this process's open writes inside the block."""
        if len(self._writes) >= MAX_OPEN_WRITES or self._access.open_writes >= _MAX_OPEN_WRITES_HERE:
            raise errors.TooManyRequests(
                f"A statement writes at most {MAX_OPEN_WRITES} files at a time, all together {_MAX_OPEN_WRITES_HERE}.",
                retry_after=_RETRY_AFTER,
            )
        self._access.open_writes += 1
        try:
            yield
        finally:
            self._access.open_writes -= 1

    def _stored(self, location: Location, body: "_Body", *, overwrite: bool) -> "asyncio.Task[FileStatus]":
        """Start the task that stores a body. The target has already been checked."""
        storage = location.storage
        write = storage.write_checked if isinstance(storage, CheckedWrites) else storage.write
        task = asyncio.create_task(
            write(location.path.path, body.pieces(), overwrite=overwrite), name="statement write"
        )
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return task

    async def _abort(self, task: "asyncio.Task[FileStatus]") -> None:
        """Cancel a write. The store keeps nothing of it."""
        if not task.done():
            task.cancel()
            await asyncio.wait({task})

    def _forget(self, path: StoragePath) -> None:
        self._known.pop(path)
        self._readable.pop(path)

    @contextmanager
    def _event(self, operation: str, named: _Named) -> Generator[AuditDetails]:
        """Record one audit event for the block, and add the path to error messages."""
        with self._access.audit.event(self._caller, operation, named.path, facts=self._facts) as noted, _naming(named):
            yield noted

    @contextmanager
    def _failures(self, operation: str, named: _Named) -> Generator[None]:
        """Add the path to error messages, and record denied calls as audit events."""
        try:
            with _naming(named):
                yield
        except errors.PermissionDenied as error:
            self._access.audit.record(self._caller, operation, named.path, error.code, facts=self._facts)
            raise


class _Body:
    """Implements `FileSink`. The store's task consumes its bytes."""

    def __init__(self, path: str, max_bytes: int | None) -> None:
        """`path` is used in error messages, which may be raised outside the write's context."""
        self._path = path
        self._max_bytes = max_bytes
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_PIECES_AHEAD)
        self._taker: asyncio.Task[FileStatus] | None = None
        self._failure: BaseException | None = None
        """Why the content is incomplete."""
        self.size_bytes = 0

    def follow(self, taker: "asyncio.Task[FileStatus]") -> None:
        self._taker = taker

    async def send(self, data: bytes) -> None:
        """Write bytes. Raises file_too_large and the store's errors."""
        self.size_bytes += len(data)
        if self._max_bytes is not None and self.size_bytes > self._max_bytes:
            raise self._broken(errors.file_too_large(self._max_bytes))
        for start in range(0, len(data), PIECE_BYTES):
            await self._put(data[start : start + PIECE_BYTES])

    async def finish(self) -> None:
        """Signal the end of the content. An earlier error of `send` is raised again."""
        if self._failure is not None:
            raise self._failure
        await self._put(None)

    async def pieces(self) -> AsyncGenerator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def _put(self, piece: bytes | None) -> None:
        taker = self._taker
        if taker is None or taker.done():
            raise self._broken(_end_of(taker))
        if not self._pieces.full():
            self._pieces.put_nowait(piece)
            return
        putting = asyncio.create_task(self._pieces.put(piece), name="piece of a file")
        try:
            await asyncio.wait({putting, taker}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:  # cancelled, so the following content would lack a chunk
            self._broken(errors.StorageError("Not all bytes of the file were written."))
            raise
        finally:
            is_taken = putting.done()
            putting.cancel()
        # Both may be done if the store consumed this chunk and then finished.
        if not is_taken:
            raise self._broken(_end_of(taker))

    def _broken(self, failure: BaseException) -> BaseException:
        self._failure = about(self._path, failure) if isinstance(failure, errors.QueryServerError) else failure
        return self._failure


def _end_of(taker: "asyncio.Task[FileStatus] | None") -> BaseException:
    """Return the error for a store that accepts no more bytes."""
    if taker is None or taker.cancelled():
        return errors.PermissionDenied(_ENDED)
    return taker.exception() or errors.StorageError("The store did not take the whole file.")


async def _all_of(location: Location, offset: int, length: int, version: FileStatus) -> bytes:
    """Read exactly `length` bytes of a version. Raises EntryChanged, StorageError."""
    stored = location.storage.read(location.path.path, offset=offset, length=length, version=version)
    async with aclosing(stored) as pieces:
        taken = [piece async for piece in pieces]
    content = taken[0] if len(taken) == 1 else b"".join(taken)
    if len(content) != length:
        raise errors.StorageError("The store gave another number of bytes than the file has.")
    return content


def _refused_link(path: StoragePath, status: FileStatus) -> FileStatus:
    """Return the entry unchanged. Raises SymlinkNotFollowed for a link."""
    if status.kind is EntryKind.LINK:
        raise errors.SymlinkNotFollowed(f"{path} is a symbolic link, which is not followed.")
    return status


def _require_new_name(path: StoragePath, *, is_directory: bool) -> None:
    """Check a new name. Raises InvalidName even for surrounding spaces, because the statement uses the name as
    written.
    """
    if checked_new_name(path.name, is_directory=is_directory) != path.name:
        raise errors.InvalidName("A new name begins and ends with no blank.")


@contextmanager
def _naming(named: _Named) -> Generator[None]:
    try:
        yield
    except errors.QueryServerError as error:
        raise about(named.shown, error) from error


def about(path: str, error: errors.QueryServerError) -> errors.QueryServerError:
    """Return the error for a statement. Its message contains the path, and every denial becomes `permission_denied`."""
    message = error.message if path in error.message else f"{path}: {error.message}"
    if isinstance(error, errors.PermissionDenied):
        return errors.PermissionDenied(message if message.startswith(path) else f"{path}: {message}")
    if isinstance(error, errors.PathNotFound) and not error.details:
        return errors.PathNotFound(f"{path} does not exist.", details={"path": path})
    if message == error.message or isinstance(error, errors.TooManyRequests):
        return error
    return errors.recreate_error(type(error), error.code, message, error.details)
