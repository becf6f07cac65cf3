"""Handles calls of an engine process about files, with the rights of the calling session.

The process specifies paths and bytes; at each call, `StatementFiles` decides whether its session may use them.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from queryserver import errors
from queryserver.engines.process.channel import Content
from queryserver.engines.process.engine_process import Reply
from queryserver.engines.process.file_calls import FileMethod, file_message
from queryserver.engines.process.interruptible import InterruptibleCalls
from queryserver.engines.reach import FileSink, StatementFiles, StoredFile
from queryserver.engines.threaded import Interrupted

_CLEANING = frozenset({FileMethod.ABORT, FileMethod.REMOVE})
_Handler = Callable[[Mapping[str, Any], bytes], Coroutine[Any, Any, Reply]]


class FileRequests:
    """The file calls of one session. Closing it at the end of the session aborts unfinished writes."""

    def __init__(self, files: StatementFiles) -> None:
        self._files = files
        self._numbers = itertools.count(1)
        self._writes = dict[int, _Write]()
        self._calls = InterruptibleCalls()
        self._handlers: Mapping[str, _Handler] = {
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
        """Handle a call. Raises the errors of `StatementFiles`, InvalidParameter, and Interrupted after `interrupt`."""
        handler = self._handlers.get(method)
        if handler is None:
            raise errors.InvalidParameter("There is no such call about files.")
        try:
            if method in _CLEANING:  # allowed even while the statement is being stopped
                return await handler(arguments, b"")
            return await self._calls.answered(handler(arguments, memoryview(content).tobytes()))
        except (KeyError, TypeError, ValueError):
            raise errors.InvalidParameter("The call about files is not complete.") from None

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
            await write.begun()
        except BaseException:  # the process does not receive the number
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
            raise errors.InvalidParameter("There is no such write.")
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
    return Reply({"files": [file_message(file) for file in files]})


class _Write:
    """One file being written, in a task that stays inside the context of `StatementFiles.write` over many calls."""

    def __init__(self, files: StatementFiles, path: str, *, overwrite: bool) -> None:
        self._files = files
        self._path = path
        self._overwrite = overwrite
        self._sink: asyncio.Future[FileSink] = asyncio.get_running_loop().create_future()
        self._may_leave = asyncio.Event()
        self._task = asyncio.create_task(self._stored(), name="file write")

    async def begun(self) -> None:
        """Wait until the store has accepted the target. Raises what the store raises."""
        await asyncio.wait({self._sink, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not self._sink.done():
            self._require()

    async def send(self, content: bytes) -> None:
        """Write bytes; returns once the store can accept more. Raises what the store raises."""
        if self._task.done():
            self._require()
        await self._sink.result().send(content)

    async def commit(self) -> None:
        """Make the complete file appear. If the store raises an error, it does not."""
        self._may_leave.set()
        await asyncio.wait({self._task})
        self._require()

    async def abort(self) -> None:
        """Discard the file unless it is committed. Idempotent."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # marks it as retrieved; it was already raised by the write, or is irrelevant

    def _require(self) -> None:
        with suppress(asyncio.CancelledError):
            return self._task.result()
        raise Interrupted

    async def _stored(self) -> None:
        async with self._files.write(self._path, overwrite=self._overwrite) as sink:
            self._sink.set_result(sink)
            await self._may_leave.wait()
