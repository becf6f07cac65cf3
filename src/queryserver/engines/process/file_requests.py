"""Calls of an engine process about files, answered with the rights of the session that makes them.

The process names paths and bytes; whether its session may use them is decided by `StatementFiles`, at each call.
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
    """The calls of one session. To be closed when the session ends: what it still writes is given up."""

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
        """Raises what `StatementFiles` raises, InvalidParameter, and Interrupted after `interrupt`."""
        handler = self._handlers.get(method)
        if handler is None:
            raise errors.InvalidParameter("There is no such call about files.")
        try:
            if method in _CLEANING:  # also of a statement that is stopped
                return await handler(arguments, b"")
            return await self._calls.answered(handler(arguments, memoryview(content).tobytes()))
        except (KeyError, TypeError, ValueError):
            raise errors.InvalidParameter("The call about files is not complete.") from None

    def interrupt(self) -> None:
        """End the calls under way."""
        self._calls.interrupt()

    async def close(self) -> None:
        """Give up what is under way. Idempotent."""
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
        found = await self._files.read(_text(arguments, "path"), offset=offset, length=length, version=version)
        return Reply(content=found)

    async def _begin(self, arguments: Mapping[str, Any], _: bytes) -> Reply:
        write = _Write(self._files, _text(arguments, "path"), overwrite=bool(arguments["overwrite"]))
        number = next(self._numbers)
        self._writes[number] = write
        try:
            await write.begun()
        except BaseException:  # the process does not learn the number
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
    """One file that is written, in a task of its own: the block of `StatementFiles.write` lasts over many calls."""

    def __init__(self, files: StatementFiles, path: str, *, overwrite: bool) -> None:
        self._files = files
        self._path = path
        self._overwrite = overwrite
        self._sink: asyncio.Future[FileSink] = asyncio.get_running_loop().create_future()
        self._may_leave = asyncio.Event()
        self._task = asyncio.create_task(self._stored(), name="file write")

    async def begun(self) -> None:
        """The target is checked. Raises what the store raises."""
        await asyncio.wait({self._sink, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not self._sink.done():
            self._require()

    async def send(self, content: bytes) -> None:
        """Returns when the store can take more. Raises what the store raises."""
        if self._task.done():
            self._require()
        await self._sink.result().send(content)

    async def commit(self) -> None:
        """The file is there, complete. Raises what the store raises; then it is not."""
        self._may_leave.set()
        await asyncio.wait({self._task})
        self._require()

    async def abort(self) -> None:
        """Nothing is left of it, unless it is committed. Idempotent."""
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # raised where the file was written, else of no interest

    def _require(self) -> None:
        with suppress(asyncio.CancelledError):
            return self._task.result()
        raise Interrupted

    async def _stored(self) -> None:
        async with self._files.write(self._path, overwrite=self._overwrite) as sink:
            self._sink.set_result(sink)
            await self._may_leave.wait()
