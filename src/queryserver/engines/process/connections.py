"""Sessions and loaders of an engine whose databases are opened in separate processes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

import pyarrow as pa

from queryserver.engines.blocking_drivers import NO_USER
from queryserver.engines.loader import deliver_cancel, refuse_target, require_writable, staging_table
from queryserver.engines.process.channel import ChannelClosed, Frame
from queryserver.engines.process.engine_process import EngineProcess
from queryserver.engines.process.messages import BatchWriter, packed, read_count
from queryserver.engines.process.pool import Configuration, EngineProcesses
from queryserver.engines.process.requests import SessionRequests
from queryserver.engines.process.sessions import STOP_S, Connection, ProcessSession, open_connection
from queryserver.engines.protocol import LoadLedger, SessionOptions, TableLoad, TableName
from queryserver.errors.statements import EngineUnavailable, SessionLost
from queryserver.platform.fair_queue import FairSemaphore


class ProcessLoader:
    """Implements `TableLoader` on one connection, which `end` closes."""

    def __init__(self, connection: Connection, *, read_only: bool) -> None:
        self._connection = connection
        self._read_only = read_only
        self._call: asyncio.Task[Frame] | None = None
        self._over = False

    async def exists(self, table: TableName) -> bool:
        return bool((await self._call_for_table("exists", table)).message.get("exists"))

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        require_writable(read_only=self._read_only)
        refuse_target(load, exists=await self.exists(load.target))
        async with staging_table(load.staging, ledger, partial(self.drop, load.staging)) as staging:
            async with self._connection.slots.slot(self._connection.user_id):
                rows, is_late = await self._write(load, batches)
            await staging.publish(asyncio.sleep(0))  # the process has already published the rows
            if is_late:
                deliver_cancel(None)
            return rows

    async def drop(self, table: TableName) -> None:
        require_writable(read_only=self._read_only)
        await self._call_for_table("drop", table)

    async def end(self) -> None:
        """Cancel the running call and close the connection. Limited in time. Idempotent."""
        if not self._over:
            self._over = True
            await self._stop()
            await self._connection.leave()

    async def _write(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch]) -> tuple[int, bool]:
        """Load the batches. Return the row count, and whether a cancellation arrived after the rows were committed."""
        before = self._call
        try:
            call = await self._begin_request("load", load)
            await self._feed(batches, call)
            return read_count(await asyncio.shield(call), "rows") or 0, False
        except BaseException as error:  # cancellation too: the process must not continue
            await asyncio.shield(self._stop())
            call = self._call
            has_succeeded = call is not before and call is not None and not call.cancelled() and not call.exception()
            if not isinstance(error, asyncio.CancelledError) or call is None or not has_succeeded:
                raise
            return read_count(call.result(), "rows") or 0, True

    async def _feed(self, batches: AsyncIterator[pa.RecordBatch], call: "asyncio.Task[Frame]") -> None:
        """Send the batches, followed by `end`, which is sent even if the process fails earlier."""
        writer = BatchWriter()
        async for batch in batches:
            if call.done():
                break
            sizes, contents = writer.parts([batch])
            await self._send({"kind": "batches", "parts": sizes}, *contents)
        await self._send({"kind": "end"})

    async def _send(self, message: dict[str, object], *contents: pa.Buffer) -> None:
        """Send a frame completely, even if the caller is canceled.

        If the process is lost, the error is raised when its reply is read.
        """
        sending = asyncio.ensure_future(self._connection.channel.send(message, *contents))
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        with suppress(ChannelClosed):
            await asyncio.shield(sending)

    async def _call_for_table(self, kind: str, table: TableName) -> Frame:
        return await asyncio.shield(await self._begin_request(kind, table))

    async def _begin_request(self, kind: str, content: TableName | TableLoad) -> "asyncio.Task[Frame]":
        """Start a request once the previous one has ended.

        A cancellation may have left the previous request running. Raises SessionLost if it does not end in time.
        """
        if self._call is not None and not self._call.done():
            await asyncio.wait({self._call}, timeout=STOP_S)
        if self._over or (self._call is not None and not self._call.done()):
            raise SessionLost("Invalid session Id: the session no longer exists.")

        async def request() -> Frame:
            await self._connection.send(kind, packed(content))
            return await self._connection.received()

        call = self._call = asyncio.create_task(request(), name=kind)
        call.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)  # so that the request is sent before the batches
        return call

    async def _stop(self) -> None:
        if self._call is not None and not self._call.done():
            await self._send({"kind": "abort"})
            await self._connection.stop(self._call)


_MIN_SLOTS = 2
"""Minimum value of the per-user slot limit."""

_OPEN_TRIES = 4
"""The statements of one user can end three processes in a row before that user must wait."""

OpenedT = TypeVar("OpenedT", ProcessSession, ProcessLoader)


class ProcessConnections:
    """Opens an engine's connections. The engine must close this object.

    `file_key` identifies the file that one process opens. If it is None, each user gets a separate process. At most
    `max_statements` statements run at a time, and one user may run at most half of them.
    """

    def __init__(
        self,
        processes: EngineProcesses,
        file_key: Hashable | None,
        configuration: Configuration,
        *,
        max_statements: int,
    ) -> None:
        self._processes = processes
        self._file_key = file_key
        self._configuration = configuration
        share = max(max_statements // 2, min(max_statements, _MIN_SLOTS))
        self._slots = FairSemaphore(max_statements, per_user=share, max_waiting=None, wait_s=None)
        self._open = set[ProcessSession | ProcessLoader]()
        self._is_closed = False

    @property
    def busy(self) -> int:
        """Number of statements that the processes are running."""
        return self._slots.held

    @asynccontextmanager
    async def session(self, user_id: int, options: SessionOptions) -> AsyncGenerator[ProcessSession]:
        """Open a session. Raises EngineUnavailable, StatementRejected, TooManyRequests."""
        async with (
            self._open_connection(user_id, options) as (connection, takes_rows),
            self._ending(ProcessSession(connection, takes_rows=takes_rows)) as session,
        ):
            yield session

    @asynccontextmanager
    async def loader(self, user_id: int, options: SessionOptions, *, read_only: bool) -> AsyncGenerator[ProcessLoader]:
        """Open a loader. Raises the same errors as `session`."""
        async with (
            self._open_connection(user_id, options, is_loader=True) as (connection, _),
            self._ending(ProcessLoader(connection, read_only=read_only)) as loader,
        ):
            yield loader

    async def ping(self) -> None:
        """Open and close a session. Raises the same errors as `session`."""
        async with self.session(NO_USER, SessionOptions()):
            pass

    async def close(self) -> None:
        """Cancel running statements and end the sessions. Idempotent."""
        self._is_closed = True
        await asyncio.gather(*(opened.end() for opened in list(self._open)))
        await self._processes.leave(self)

    @asynccontextmanager
    async def _open_connection(
        self, user_id: int, options: SessionOptions, *, is_loader: bool = False
    ) -> AsyncGenerator[tuple[Connection, bool]]:
        """Open a connection. Yield it, and whether it accepts statements with several parameter rows."""
        if self._is_closed:
            raise EngineUnavailable("The engine is closed.")
        losses = self._processes.losses_for(self, self._file_key)
        async with AsyncExitStack() as stack:
            requests = SessionRequests(files=options.files, results=options.results)
            tries = 1
            while True:
                losses.require_admitted(user_id)
                process = await stack.enter_async_context(self._process(user_id))
                losses.require_admitted(user_id)  # the user's statements may have ended processes in the meantime
                session = open_connection(
                    process, user_id, options, slots=self._slots, losses=losses, requests=requests,
                    is_loader=is_loader,
                )  # fmt: skip
                try:
                    connection, first = await stack.enter_async_context(session)
                    break
                except EngineUnavailable:
                    # Another session has ended the process before this session started anything.
                    if not process.has_ended or tries == _OPEN_TRIES or self._is_closed:
                        raise
                    tries += 1
                    await stack.aclose()
            yield connection, first.message.get("takes_rows") is True

    def _process(self, user_id: int) -> AbstractAsyncContextManager[EngineProcess]:
        if self._file_key is None:
            return self._processes.process_for_user(self, user_id, self._configuration)
        return self._processes.process_for_file(self, self._file_key, self._configuration)

    @asynccontextmanager
    async def _ending(self, opened: OpenedT) -> AsyncGenerator[OpenedT]:
        self._open.add(opened)
        try:
            yield opened
        finally:
            await asyncio.shield(opened.end())
            self._open.discard(opened)
