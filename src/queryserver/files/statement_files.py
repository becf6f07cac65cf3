"""Gives SQL statements access to files in stores, with the permissions of their callers (Contract editor 4.7)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from queryserver import errors
from queryserver.engines.external_data import FileSink, StoredFile
from queryserver.files.access import OBJECT_STORES, AuditDetails, Caller, Location, StorageAudit, Stores
from queryserver.files.downloads import entity_tag
from queryserver.files.globs import MAX_FOUND, GlobSearch, Pattern, is_pattern
from queryserver.files.model import EntryKind, FileStatus, PathSpelling, StoragePath, checked_new_name
from queryserver.files.protocol import PIECE_BYTES, CheckedWrites
from queryserver.files.trash import check_new_parents
from queryserver.files.upload_repository import OrphanSweep
from queryserver.files.uploads import UploadRules
from queryserver.identity.model import Scope, User
from queryserver.platform.caches import LruCache
from queryserver.platform.fair_queue import ByteBudget

MAX_READ_BYTES = 16 * 1024 * 1024
"""Maximum number of bytes per read call."""
MAX_OPEN_WRITES = 32
"""Maximum number of open writes per statement. Object stores buffer one part of each open write in memory."""
_MAX_OPEN_WRITES_PER_PROCESS = 64
_MAX_CONCURRENT_READ_BYTES = 64 * 1024 * 1024
"""Limit on the bytes that all statements in this process read concurrently."""
_READ_WAIT_S = 3600.0
_MAX_CONCURRENT_CALLS = 16
"""Maximum number of concurrent store calls per statement."""
_MAX_CACHED = 10_000
_BATCH = 5000
# Number of chunks that are buffered for the store before a writer has to wait.
_PIECES_AHEAD = 2

_READ, _LIST, _WRITE, _MKDIR, _REMOVE = (f"statement.{kind}" for kind in ("read", "list", "write", "mkdir", "remove"))
_ENDED = "The statement has ended."
_RETRY_AFTER = timedelta(seconds=10)


class StatementFileAccess:
    """Creates the file access of engine sessions. There must be only one instance per process, because it enforces
    process-wide limits.
    """

    def __init__(
        self, stores: Stores, rules: UploadRules, orphans: OrphanSweep, audit: StorageAudit, *, max_scanned: int
    ) -> None:
        """`max_scanned` limits the entries listed per glob pattern."""
        self.stores = stores
        self.rules = rules
        self.orphans = orphans
        self.audit = audit
        self.max_scanned = max_scanned
        # The wait is effectively unlimited, because the waiting statements have their own timeouts.
        self.reads = ByteBudget(_MAX_CONCURRENT_READ_BYTES, wait_s=_READ_WAIT_S)
        self.open_writes = 0

    def of_session(self, *, may_write: bool, on_read: Callable[[], Awaitable[object]]) -> "SessionFiles":
        """Return the file access of one session. `may_write` is set if both the engine and the connector permit
        writing. `on_read` is awaited before each read of a name or a file.
        """
        return SessionFiles(self, may_write=may_write, on_read=on_read)


class SessionFiles:
    """Implements `StatementFiles` for one session. The session runs one statement at a time, each with the permissions
    of its caller.
    """

    def __init__(
        self, access: StatementFileAccess, *, may_write: bool, on_read: Callable[[], Awaitable[object]]
    ) -> None:
        self.schemes = access.stores.spellings
        self._access = access
        self._may_write = may_write
        self._on_read = on_read
        self._statement: CallerFiles | None = None

    @asynccontextmanager
    async def acting(self, user: User, *, operation_id: str = "") -> AsyncGenerator[None]:
        """Inside the context, file calls belong to a statement of `user`. On exit, unfinished writes are aborted."""
        statement = CallerFiles(self._access, user, operation_id, may_write=self._may_write)
        self._statement = statement
        try:
            yield
        finally:
            self._statement = None
            await statement.end()

    @property
    def _current(self) -> "CallerFiles":
        if self._statement is None:
            raise errors.PermissionDenied("Files can be read and written only while a statement is running.")
        return self._statement

    async def _reading(self) -> "CallerFiles":
        current = self._current
        await self._on_read()
        return current

    async def glob(self, pattern: str) -> Sequence[StoredFile]:
        return await (await self._reading()).glob(pattern)

    async def status(self, path: str) -> StoredFile:
        return await (await self._reading()).status(path)

    async def list_directory(self, path: str) -> Sequence[StoredFile]:
        return await (await self._reading()).list_directory(path)

    async def require_readable(self, path: str) -> StoredFile:
        return await (await self._reading()).require_readable(path)

    async def read(self, path: str, *, offset: int, length: int, version: str = "") -> bytes:
        return await (await self._reading()).read(path, offset=offset, length=length, version=version)

    @asynccontextmanager
    async def write(self, path: str, *, overwrite: bool) -> AsyncGenerator[FileSink]:
        async with self._current.write(path, overwrite=overwrite) as sink:
            yield sink

    async def make_directory(self, path: str) -> None:
        await self._current.make_directory(path)

    async def remove(self, path: str) -> None:
        await self._current.remove(path)


@dataclass(frozen=True, slots=True)
class RequestedPath:
    """A path, and the form in which the statement wrote it."""

    path: StoragePath
    spelling: PathSpelling

    @property
    def text(self) -> str:
        return self.spelling.of(self.path)

    def stored(self, status: FileStatus) -> StoredFile:
        text = self.spelling.of(StoragePath(self.path.scheme, status.path))
        if status.is_directory:
            return StoredFile(text, 0, status.modified_at, is_directory=True)
        return StoredFile(text, status.size_bytes, status.modified_at, version=entity_tag(status))


class CallerFiles:
    """The file access of one statement. The statuses of up to 10,000 entries are cached, so that the statement sees
    only one version of each file.
    """

    def __init__(self, access: StatementFileAccess, user: User, operation_id: str, *, may_write: bool) -> None:
        self._access = access
        self._user = user
        self._caller = Caller.of(user)
        self._may_write = may_write
        self._max_bytes = access.rules.max_bytes
        self._facts: Mapping[str, str] = MappingProxyType({"operation_id": operation_id} if operation_id else {})
        self._calls = asyncio.Semaphore(_MAX_CONCURRENT_CALLS)
        self._statuses = LruCache[StoragePath, FileStatus](_MAX_CACHED)
        self._readable = LruCache[StoragePath, FileStatus](_MAX_CACHED)
        self._written: dict[StoragePath, FileStatus] = {}
        self._pending_directories: set[StoragePath] = set()
        self._writes: set[asyncio.Task[FileStatus]] = set()
        self._has_ended = False

    async def end(self) -> None:
        """Abort unfinished writes and reject all later calls."""
        self._has_ended = True
        for write in self._writes:
            write.cancel()
        if self._writes:
            await asyncio.wait(self._writes)

    async def glob(self, pattern: str) -> Sequence[StoredFile]:
        requested = self._requested_path(pattern)
        with self._failures(_LIST, requested):
            location = self._location(requested, Scope.FILES_READ)
            if not is_pattern(requested.path.path):
                found = await self._file_or_none(location)
                return [requested.stored(found)] if found is not None else []
            async with self._calls:
                search = GlobSearch(
                    location.storage,
                    Pattern(requested.path.names),
                    location.file_system.traits.container_levels,
                    self._access.max_scanned,
                )
                matches = await search.run()
            if not matches and (found := await self._file_or_none(location)) is not None:
                matches = [found]
            for status in matches if len(matches) <= _MAX_CACHED else ():
                self._statuses.put(StoragePath(requested.path.scheme, status.path), status)
            return sorted(map(requested.stored, matches), key=lambda file: file.path)

    async def status(self, path: str) -> StoredFile:
        requested = self._requested_path(path)
        with self._failures(_LIST, requested):
            # Before writing, engines call this method for the target, so the write permission suffices.
            is_writer = self._user.has_scope(Scope.FILES_WRITE)
            location = self._location(
                requested, Scope.FILES_WRITE if is_writer and self._may_write else Scope.FILES_READ
            )
            if requested.path in self._pending_directories:
                return StoredFile(requested.text, 0, None, is_directory=True)
            found = _reject_link(requested.path, await self._stat(location))
            if not (found.is_file or found.is_directory):
                raise errors.NotAFile(f"{requested.text} is neither a file nor a directory.")
            return requested.stored(found)

    async def list_directory(self, path: str) -> Sequence[StoredFile]:
        requested = self._requested_path(path)
        with self._failures(_LIST, requested):
            location, found = self._location(requested, Scope.FILES_READ), list[StoredFile]()
            listing = location.storage.list_directory(requested.path.path, batch_size=_BATCH)
            try:
                async with self._calls, aclosing(listing) as batches:
                    async for batch in batches:
                        found += [
                            requested.stored(entry) for entry in batch.entries if entry.is_file or entry.is_directory
                        ]
                        if len(found) > MAX_FOUND:
                            raise errors.too_many_entries(f"The directory has more than {MAX_FOUND} entries.")
            except errors.PathNotFound:
                if requested.path not in self._pending_directories:
                    raise
            return sorted(found, key=lambda file: file.path)

    async def require_readable(self, path: str) -> StoredFile:
        requested = self._requested_path(path)
        return requested.stored(await self._readable_file(requested))

    async def read(self, path: str, *, offset: int, length: int, version: str = "") -> bytes:
        if offset < 0 or not 0 <= length <= MAX_READ_BYTES:
            raise errors.InvalidParameter(
                f"A read must have an offset of at least 0 and a length of at most {MAX_READ_BYTES} bytes."
            )
        requested = self._requested_path(path)
        status = await self._readable_file(requested)
        if version and version != entity_tag(status):
            raise errors.EntryChanged(f"{requested.text} was modified concurrently.")
        wanted_bytes = min(length, status.size_bytes - offset)
        if wanted_bytes <= 0:
            return b""
        with self._failures(_READ, requested):
            location = self._location(requested, Scope.FILES_READ)
            async with self._calls:
                reservation = await self._access.reads.reserve(self._user.id, wanted_bytes)
                try:
                    return await _read_exactly(location, offset, wanted_bytes, status)
                finally:
                    reservation.release()

    @asynccontextmanager
    async def write(self, path: str, *, overwrite: bool) -> AsyncGenerator[FileSink]:
        requested = self._requested_path(path)
        with self._event(_WRITE, requested) as details:
            location = await self._target(requested, overwrite=overwrite)
            async with self._storing(location, requested.text, overwrite=overwrite) as body:
                yield body
            details.size_bytes = body.size_bytes
            self._forget(requested.path)
            self._written[requested.path] = body.stored

    async def make_directory(self, path: str) -> None:
        requested = self._requested_path(path)
        with self._event(_MKDIR, requested):
            location = self._location(requested, Scope.FILES_WRITE)
            found = await location.find()
            if found is not None:
                if not found.is_directory:
                    raise errors.PathExists(f"{requested.text} exists and is not a directory.")
                return
            require_new_name(requested.path, is_directory=True)
            await check_new_parents(location)
            if requested.path.scheme in OBJECT_STORES and len(requested.path.names) > 1:
                # The first file creates the directory. A marker object per partition would remain forever.
                self._pending_directories.add(requested.path)
                return
            async with self._access.orphans.recorded_write(self._caller, requested.path):
                await location.storage.mkdir(requested.path.path)

    async def remove(self, path: str) -> None:
        requested = self._requested_path(path)
        with self._event(_REMOVE, requested):
            location = self._location(requested, Scope.FILES_WRITE)
            written = self._written.get(requested.path)
            if written is None:
                raise errors.PermissionDenied("Statements can delete only files that they have written.")
            if not (await location.storage.stat(requested.path.path)).is_same_content(written):
                raise errors.EntryChanged(f"{requested.text} was modified concurrently.")
            await location.storage.delete(requested.path.path, recursive=False)
            self._forget(requested.path)
            del self._written[requested.path]

    def _requested_path(self, text: str) -> RequestedPath:
        stores = self._access.stores
        try:
            path = stores.path(text)
        except errors.QueryServerError as error:
            raise error_about(text, stores.with_available_stores(error, self._caller)) from None
        return RequestedPath(path, PathSpelling.read(text, path))

    def _location(self, requested: RequestedPath, scope: Scope) -> Location:
        """Return the path together with its store. Raises PermissionDenied if the API token, the connector or the user
        does not permit the access.
        """
        self._require_running()
        if not self._user.has_scope(scope):
            raise errors.PermissionDenied(f"The API token of this statement lacks the scope {scope}.")
        if scope is Scope.FILES_WRITE and not self._may_write:
            raise errors.PermissionDenied("The connector is read-only; its statements cannot write files.")
        return self._access.stores.location(self._caller, requested.path)

    def _require_running(self) -> None:
        if self._has_ended:
            raise errors.PermissionDenied(_ENDED)

    async def _stat(self, location: Location) -> FileStatus:
        """Return the entry as it was when this statement first accessed it (unless evicted from the cache)."""
        status = self._statuses.get(location.path)
        if status is None:
            async with self._calls:
                status = await location.storage.stat(location.path.path)
            self._statuses.put(location.path, status)
        return status

    async def _file_or_none(self, location: Location) -> FileStatus | None:
        """Return the file at a path, or None if there is no file. Raises SymlinkNotFollowed."""
        try:
            found = _reject_link(location.path, await self._stat(location))
        except (errors.PathNotFound, errors.NotADirectory):
            return None
        return found if found.is_file else None

    async def _readable_file(self, requested: RequestedPath) -> FileStatus:
        """Return the file if the caller may read it. The first check of each path records an audit event."""
        readable = self._readable.get(requested.path)
        if readable is not None:
            return readable
        with self._event(_READ, requested):
            location = self._location(requested, Scope.FILES_READ)
            status = _reject_link(requested.path, await self._stat(location))
            if not status.is_file:
                raise errors.NotAFile(f"{requested.text} is not a file.")
            if location.file_system.traits.acts_as_user and status.size_bytes:
                # On HDFS, a user may see a file in a listing without being allowed to read it, so read one byte.
                async with self._calls:
                    await _read_exactly(location, 0, 1, status)
            self._readable.put(requested.path, status)
            return status

    async def _target(self, requested: RequestedPath, *, overwrite: bool) -> Location:
        """Check the target of a write as for an upload (Contract storage 9.1). Raises PathExists, InvalidName, and the
        errors of `UploadRules.admit` and `UploadRules.target`.
        """
        self._location(requested, Scope.FILES_WRITE)
        self._access.rules.admit()
        path = requested.path
        if path.is_root:
            raise errors.PathExists(f"{requested.text} already exists.")
        require_new_name(path, is_directory=False)
        return await self._access.rules.target(self._caller, path.parent, path.name, overwrite=overwrite)

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[None]:
        """Count the block as an open write of this process. Raises TooManyRequests above the limits."""
        if len(self._writes) >= MAX_OPEN_WRITES or self._access.open_writes >= _MAX_OPEN_WRITES_PER_PROCESS:
            raise errors.TooManyRequests(
                f"At most {MAX_OPEN_WRITES} files can be open for writing per statement, and"
                f" {_MAX_OPEN_WRITES_PER_PROCESS} per process.",
                retry_after=_RETRY_AFTER,
            )
        self._access.open_writes += 1
        try:
            yield
        finally:
            self._access.open_writes -= 1

    @asynccontextmanager
    async def _storing(self, location: Location, text: str, *, overwrite: bool) -> AsyncGenerator["FileBody"]:
        """Store the bytes sent in the block as one file. `text` is the path in error messages."""
        async with self._writing(), self._access.orphans.recorded_write(self._caller, location.path):
            body = FileBody(text, self._max_bytes)
            task = self._stored(location, body, overwrite=overwrite)
            body.attach(task)
            try:
                yield body
                await self._complete(body, task)
            finally:
                await self._abort(task)

    async def _complete(self, body: "FileBody", task: "asyncio.Task[FileStatus]") -> None:
        """Send the end of the content, and wait until the store has accepted the file."""
        await body.finish()
        self._require_running()
        await task

    def _stored(self, location: Location, body: "FileBody", *, overwrite: bool) -> "asyncio.Task[FileStatus]":
        """Start a task that stores the body. The target has just been checked."""
        storage = location.storage
        write = storage.write_checked if isinstance(storage, CheckedWrites) else storage.write
        task = asyncio.create_task(
            write(location.path.path, body.pieces(), overwrite=overwrite), name="statement write"
        )
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return task

    async def _abort(self, task: "asyncio.Task[FileStatus]") -> None:
        """Cancel a write that is still running. The store then discards what it has received."""
        if not task.done():
            task.cancel()
            await asyncio.wait({task})

    def _forget(self, path: StoragePath) -> None:
        self._statuses.pop(path)
        self._readable.pop(path)

    @contextmanager
    def _event(self, operation: str, requested: RequestedPath) -> Generator[AuditDetails]:
        """Record one audit event for the block, and add the path to the messages of its errors."""
        with (
            self._access.audit.event(self._caller, operation, requested.path, facts=self._facts) as details,
            _errors_about(requested),
        ):
            yield details

    @contextmanager
    def _failures(self, operation: str, requested: RequestedPath) -> Generator[None]:
        """Add the path to the messages of the block's errors. Record an audit event only if access is denied."""
        try:
            with _errors_about(requested):
                yield
        except errors.PermissionDenied as error:
            self._access.audit.record(self._caller, operation, requested.path, error.code, facts=self._facts)
            raise


class FileBody:
    """Implements `FileSink`: a queue between the statement, which sends chunks, and the task that stores them."""

    def __init__(self, path: str, max_bytes: int | None) -> None:
        """`path` is added to error messages, because errors may be raised outside the context of the write."""
        self._path = path
        self._max_bytes = max_bytes
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_PIECES_AHEAD)
        self._writer: asyncio.Task[FileStatus] | None = None
        self._failure: BaseException | None = None
        """The error that left the content incomplete; None while the content is intact."""
        self.size_bytes = 0

    def attach(self, writer: "asyncio.Task[FileStatus]") -> None:
        self._writer = writer

    @property
    def stored(self) -> FileStatus:
        """The stored file, once the store has accepted it."""
        if self._writer is None:
            raise errors.StorageError("The file has not been written.")
        return self._writer.result()

    async def send(self, data: bytes) -> None:
        """Send bytes to the store. Raises file_too_large and the store's errors."""
        self.size_bytes += len(data)
        if self._max_bytes is not None and self.size_bytes > self._max_bytes:
            raise self._broken(errors.file_too_large(self._max_bytes))
        for start in range(0, len(data), PIECE_BYTES):
            await self._put(data[start : start + PIECE_BYTES])

    async def finish(self) -> None:
        """Signal the end of the content. If `send` failed earlier, raises the same error again."""
        if self._failure is not None:
            raise self._failure
        await self._put(None)

    async def pieces(self) -> AsyncGenerator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def _put(self, piece: bytes | None) -> None:
        writer = self._writer
        if writer is None or writer.done():
            raise self._broken(_end_error(writer))
        if not self._pieces.full():
            self._pieces.put_nowait(piece)
            return
        putting = asyncio.create_task(self._pieces.put(piece), name="piece of a file")
        try:
            await asyncio.wait({putting, writer}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:  # canceled: the content would lack this chunk
            self._broken(errors.StorageError("Not all bytes of the file were written."))
            raise
        finally:
            is_taken = putting.done()
            putting.cancel()
        # The chunk may have been queued even if the store's task has ended as well.
        if not is_taken:
            raise self._broken(_end_error(writer))

    def _broken(self, failure: BaseException) -> BaseException:
        self._failure = error_about(self._path, failure) if isinstance(failure, errors.QueryServerError) else failure
        return self._failure


def _end_error(writer: "asyncio.Task[FileStatus] | None") -> BaseException:
    """Return the error that explains why the store's task accepts no more bytes."""
    if writer is None or writer.cancelled():
        return errors.PermissionDenied(_ENDED)
    return writer.exception() or errors.StorageError("The store did not accept the whole file.")


async def _read_exactly(location: Location, offset: int, length: int, version: FileStatus) -> bytes:
    """Read exactly `length` bytes of the given version. Raises EntryChanged, StorageError."""
    stored = location.storage.read(location.path.path, offset=offset, length=length, version=version)
    async with aclosing(stored) as pieces:
        taken = [piece async for piece in pieces]
    content = taken[0] if len(taken) == 1 else b"".join(taken)
    if len(content) != length:
        raise errors.StorageError("The number of bytes returned by the store does not match the size of the file.")
    return content


def _reject_link(path: StoragePath, status: FileStatus) -> FileStatus:
    """Return the entry unchanged. Raises SymlinkNotFollowed for a link."""
    if status.kind is EntryKind.LINK:
        raise errors.SymlinkNotFollowed(f"{path} is a symbolic link; symbolic links are not followed.")
    return status


def require_new_name(path: StoragePath, *, is_directory: bool) -> None:
    """Check a new entry's name. Surrounding whitespace also raises InvalidName, because the statement would use the
    name exactly as written.
    """
    if checked_new_name(path.name, is_directory=is_directory) != path.name:
        raise errors.InvalidName("A new name must not begin or end with whitespace.")


@contextmanager
def _errors_about(requested: RequestedPath) -> Generator[None]:
    try:
        yield
    except errors.QueryServerError as error:
        raise error_about(requested.text, error) from error


def error_about(path: str, error: errors.QueryServerError) -> errors.QueryServerError:
    """Return the error to report to a statement: its message contains the path, and all denials become
    `permission_denied`. Errors of engines are not about the path: a statement may fail while its rows are written.
    """
    if isinstance(error, errors.EngineError):
        return error
    message = error.message if path in error.message else f"{path}: {error.message}"
    if isinstance(error, errors.PermissionDenied):
        return errors.PermissionDenied(message if message.startswith(path) else f"{path}: {message}")
    if isinstance(error, errors.PathNotFound) and not error.details:
        return errors.PathNotFound(f"{path} does not exist.", details={"path": path})
    if message == error.message or isinstance(error, errors.TooManyRequests):
        return error
    return errors.recreate_error(type(error), error.code, message, error.details)
