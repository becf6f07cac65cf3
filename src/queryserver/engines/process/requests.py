"""Handles an engine process's calls for one session, which access store files and stored results.

The process specifies paths, operations and bytes. For each call, `StatementFiles` and `StatementResults` decide whether
the session may access them.
"""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from queryserver import errors
from queryserver.engines.blocking_drivers import Interrupted
from queryserver.engines.external_data import FileSink, OpenResult, StatementFiles, StatementResults, StoredFile
from queryserver.engines.process.calls import FileMethod, ResultMethod, encode_file
from queryserver.engines.process.channel import MAX_DESCRIPTORS, Content
from queryserver.engines.process.engine_process import Reply
from queryserver.engines.process.messages import encode_columns


class InterruptibleCalls:
    """One session's calls in progress, which `interrupt` cancels."""

    def __init__(self) -> None:
        self._work = set[asyncio.Task[Reply]]()

    async def run(self, work: Coroutine[Any, Any, Reply]) -> Reply:
        """Run `work` and return its reply. Raises the errors of `work`, and Interrupted once `interrupt` is called."""
        task = asyncio.create_task(work, name="call of an engine process")
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        if task.cancelled():
            raise Interrupted
        return task.result()

    def interrupt(self) -> None:
        """Cancel the calls, so that an unresponsive store does not delay the cancellation of a statement."""
        for work in self._work:
            work.cancel()


_CLEANUP_METHODS = frozenset({FileMethod.ABORT, FileMethod.REMOVE})
_WRITE_METHODS = frozenset(
    {FileMethod.BEGIN, FileMethod.SEND, FileMethod.COMMIT, FileMethod.MAKE_DIRECTORY, FileMethod.REMOVE}
)
_FileHandler = Callable[[Mapping[str, Any], bytes], Coroutine[Any, Any, Reply]]


class FileRequests:
    """Handles one session's file calls. Closing this object aborts unfinished writes."""

    def __init__(self, files: StatementFiles) -> None:
        self._files = files
        self.read_only = False
        """Whether the current statement must not write files, whatever the process requests."""
        self._numbers = itertools.count(1)
        self._writes = dict[int, _Write]()
        self._calls = InterruptibleCalls()
        self._handlers: Mapping[str, _FileHandler] = {
            FileMethod.GLOB: self._glob,
            FileMethod.STATUS: self._status,
            FileMethod.LIST: self._list,
            FileMethod.REQUIRE_READABLE: self._require_readable,
            FileMethod.READ: self._read,
            FileMethod.BEGIN: self._begin,
            FileMethod.SEND: self._send,
            FileMethod.COMMIT: self._commit,
            FileMethod.ABORT: self._abort,
            FileMethod.MAKE_DIRECTORY: self._make_directory,
            FileMethod.REMOVE: self._remove,
        }

    async def answer(self, method: str, arguments: Mapping[str, Any], content: Content) -> Reply:
        """Handle a call.

        Raises the errors of `StatementFiles`, InvalidParameter, and Interrupted once `interrupt` is called.
        """
        handler = self._handlers.get(method)
        if handler is None:
            raise errors.InvalidParameter("Unknown file call.")
        if self.read_only and method in _WRITE_METHODS:
            raise errors.PermissionDenied("A read-only statement cannot write files.")
        try:
            if method in _CLEANUP_METHODS:  # allowed even while the statement is being canceled
                return await handler(arguments, b"")
            return await self._calls.run(handler(arguments, memoryview(content).tobytes()))
        except (KeyError, TypeError, ValueError):
            raise errors.InvalidParameter("The file call is incomplete.") from None

    def interrupt(self) -> None:
        """Cancel the calls in progress."""
        self._calls.interrupt()

    async def close(self) -> None:
        """Cancel calls and abort unfinished writes. Idempotent."""
        self.interrupt()
        writes = list(self._writes.values())
        self._writes.clear()
        for write in writes:
            await write.abort()

    async def _glob(self, arguments: Mapping[str, Any], _: bytes) -> Reply:
        return _files(await self._files.glob(_text(arguments, "pattern")))

    async def _status(self, arguments: Mapping[str, Any], _: bytes) -> Reply:
        return _files([await self._files.status(_text(arguments, "path"))])

    async def _list(self, arguments: Mapping[str, Any], _: bytes) -> Reply:
        return _files(await self._files.list_directory(_text(arguments, "path")))

    async def _require_readable(self, arguments: Mapping[str, Any], _: bytes) -> Reply:
        return _files([await self._files.require_readable(_text(arguments, "path"))])

    async def _read(self, arguments: Mapping[str, Any], _: bytes) -> Reply:
        offset, length = int(arguments["offset"]), int(arguments["length"])
        version = _text(arguments, "version")
        content = await self._files.read(_text(arguments, "path"), offset=offset, length=length, version=version)
        return Reply(content=content)

    async def _begin(self, arguments: Mapping[str, Any], _: bytes) -> Reply:
        write = _Write(self._files, _text(arguments, "path"), overwrite=bool(arguments["overwrite"]))
        number = next(self._numbers)
        self._writes[number] = write
        try:
            await write.wait_until_accepted()
        except BaseException:  # the process has not received the number of the write
            self._writes.pop(number, None)
            await write.abort()
            raise
        return Reply({"write": number})

    async def _send(self, arguments: Mapping[str, Any], content: bytes) -> Reply:
        await self._write(arguments).send(content)
        return Reply()

    async def _commit(self, arguments: Mapping[str, Any], _: bytes) -> Reply:
        try:
            await self._write(arguments).commit()
        finally:
            await self._end(arguments)
        return Reply()

    async def _abort(self, arguments: Mapping[str, Any], _: bytes) -> Reply:
        await self._end(arguments)
        return Reply()

    async def _end(self, arguments: Mapping[str, Any]) -> None:
        write = self._writes.pop(int(arguments["write"]), None)
        if write is not None:
            await write.abort()

    def _write(self, arguments: Mapping[str, Any]) -> "_Write":
        write = self._writes.get(int(arguments["write"]))
        if write is None:
            raise errors.InvalidParameter("Unknown file write.")
        return write

    async def _make_directory(self, arguments: Mapping[str, Any], _: bytes) -> Reply:
        await self._files.make_directory(_text(arguments, "path"))
        return Reply()

    async def _remove(self, arguments: Mapping[str, Any], _: bytes) -> Reply:
        await self._files.remove(_text(arguments, "path"))
        return Reply()


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments[name]
    if not isinstance(value, str):
        raise TypeError
    return value


def _files(files: Sequence[StoredFile]) -> Reply:
    return Reply({"files": [encode_file(file) for file in files]})


class _Write:
    """Writes one file over many calls. A separate task stays inside the context of `StatementFiles.write`."""

    def __init__(self, files: StatementFiles, path: str, *, overwrite: bool) -> None:
        self._files = files
        self._path = path
        self._overwrite = overwrite
        self._sink: asyncio.Future[FileSink] = asyncio.get_running_loop().create_future()
        self._may_leave = asyncio.Event()
        self._task = asyncio.create_task(self._write_file(), name="file write")

    async def wait_until_accepted(self) -> None:
        """Wait until the store has accepted the target. Raises the store's errors."""
        await asyncio.wait({self._sink, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not self._sink.done():
            self._require_open()

    async def send(self, content: bytes) -> None:
        """Write bytes and return once the store can accept more. Raises the store's errors."""
        if self._task.done():
            self._require_open()
        await self._sink.result().send(content)

    async def commit(self) -> None:
        """Publish the complete file. If the store raises an error, no file appears."""
        self._may_leave.set()
        await asyncio.wait({self._task})
        self._require_open()

    async def abort(self) -> None:
        """Discard the file unless it has been committed. Idempotent."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # marks it as retrieved: another call has raised it, or it no longer matters

    def _require_open(self) -> None:
        with suppress(asyncio.CancelledError):
            return self._task.result()
        raise Interrupted

    async def _write_file(self) -> None:
        async with self._files.write(self._path, overwrite=self._overwrite) as sink:
            self._sink.set_result(sink)
            await self._may_leave.wait()


_MAX_OPEN_RESULTS = 1000
"""Maximum number of results that one statement may open."""
_MAX_BYTES = 256 * 1024 * 1024
"""Maximum number of bytes in one read call. Every segment is smaller."""

_ResultHandler = Callable[[Mapping[str, Any]], Awaitable[Reply]]


class ResultRequests:
    """Handles one session's result calls.

    Statements run one at a time. `close` must be called at the end of each statement.
    """

    def __init__(self, results: StatementResults) -> None:
        self._results = results
        self._numbers = itertools.count(1)
        self._open = dict[int, tuple[OpenResult, AsyncExitStack]]()
        self._calls = InterruptibleCalls()
        self.warnings = list[str]()
        """Warnings about truncated results, for the statement's log."""
        self._handlers: Mapping[str, _ResultHandler] = {
            ResultMethod.OPEN: self._open_result,
            ResultMethod.FILES: self._files,
            ResultMethod.READ: self._read,
            ResultMethod.CLOSE: self._close_result,
        }

    async def answer(self, method: str, arguments: Mapping[str, Any], content: Content) -> Reply:  # noqa: ARG002
        """Handle a call.

        Raises the errors of `StatementResults` and `OpenResult`, InvalidParameter, and Interrupted once `interrupt` is
        called.
        """
        if method not in self._handlers:
            raise errors.InvalidParameter("Unknown result call.")
        if method == ResultMethod.CLOSE:  # allowed even while the statement is being canceled
            return await self._answered(method, arguments)
        return await self._calls.run(self._answered(method, arguments))

    def interrupt(self) -> None:
        """Cancel the calls in progress."""
        self._calls.interrupt()

    async def close(self) -> None:
        """Close the results that a finished statement has left open. Idempotent."""
        self.interrupt()
        left, self._open = self._open, {}
        for _, stack in left.values():
            await stack.aclose()

    async def _answered(self, method: str, arguments: Mapping[str, Any]) -> Reply:
        try:
            return await self._handlers[method](arguments)
        except (KeyError, TypeError, ValueError, IndexError):
            raise errors.InvalidParameter("The result call is incomplete.") from None

    async def _open_result(self, arguments: Mapping[str, Any]) -> Reply:
        operation_id = arguments["operation_id"]
        if not isinstance(operation_id, str):
            raise TypeError
        if len(self._open) >= _MAX_OPEN_RESULTS:
            raise errors.ResultRefused(f"A statement can read at most {_MAX_OPEN_RESULTS} results.")
        async with AsyncExitStack() as stack:
            opened = await stack.enter_async_context(self._results.open(operation_id))
            number = next(self._numbers)
            self._open[number] = opened, stack.pop_all()
        if opened.warning:
            self.warnings.append(f"result://{operation_id}: {opened.warning}")
        pieces = [[piece.rows, piece.size_bytes] for piece in opened.pieces]
        return Reply({"result": number, "columns": encode_columns(opened.columns), "pieces": pieces})

    async def _files(self, arguments: Mapping[str, Any]) -> Reply:
        opened, _ = self._opened(arguments)
        first, count = int(arguments["first"]), min(int(arguments["count"]), MAX_DESCRIPTORS)
        numbers = range(len(opened.pieces))[first : first + count]
        opening = [asyncio.create_task(opened.descriptor(number), name="result file") for number in numbers]
        try:
            descriptors = await asyncio.gather(*opening)
        except BaseException:  # the process has not received the descriptors
            for task in opening:
                task.cancel()
            for descriptor in await asyncio.gather(*opening, return_exceptions=True):
                if isinstance(descriptor, int):
                    os.close(descriptor)
            raise
        return Reply(descriptors=[descriptor for descriptor in descriptors if descriptor is not None])

    async def _read(self, arguments: Mapping[str, Any]) -> Reply:
        opened, _ = self._opened(arguments)
        piece, start, stop = (int(arguments[name]) for name in ("piece", "start", "stop"))
        if not (0 <= piece < len(opened.pieces) and 0 <= start <= stop <= start + _MAX_BYTES):
            raise ValueError
        return Reply(content=await opened.read(piece, start, stop))

    async def _close_result(self, arguments: Mapping[str, Any]) -> Reply:
        result = self._open.pop(int(arguments["result"]), None)
        if result is not None:
            await result[1].aclose()
        return Reply()

    def _opened(self, arguments: Mapping[str, Any]) -> tuple[OpenResult, AsyncExitStack]:
        return self._open[int(arguments["result"])]


_FILE_METHODS, _RESULT_METHODS = frozenset(FileMethod), frozenset(ResultMethod)


class SessionRequests:
    """Handles the calls of one session, whose statements run one at a time.

    `files` or `results` is None if the session may not use them.
    """

    def __init__(self, *, files: StatementFiles | None = None, results: StatementResults | None = None) -> None:
        self._files = None if files is None else FileRequests(files)
        self._results = None if results is None else ResultRequests(results)

    async def answer(self, method: str, arguments: Mapping[str, Any], content: Content) -> Reply:
        """Handle a call. Raises domain errors, and Interrupted once `interrupt` is called."""
        if self._files is not None and method in _FILE_METHODS:
            return await self._files.answer(method, arguments, content)
        if self._results is not None and method in _RESULT_METHODS:
            return await self._results.answer(method, arguments, content)
        raise errors.PermissionDenied("This session cannot access storage files or stored results.")

    def begin(self, *, read_only: bool) -> None:
        """Discard the previous statement's warnings. Must be called when a statement starts.

        If `read_only` is set, file writes are refused until the next statement starts.
        """
        if self._files is not None:
            self._files.read_only = read_only
        if self._results is not None:
            self._results.warnings = []

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings for the statement's log."""
        return () if self._results is None else self._results.warnings

    def interrupt(self) -> None:
        """Cancel the calls in progress, except cleanup calls."""
        for requests in (self._files, self._results):
            if requests is not None:
                requests.interrupt()

    async def close(self) -> None:
        """Close the results and abort the writes that a finished statement has left open. Idempotent."""
        for requests in (self._files, self._results):
            if requests is not None:
                await requests.close()
