"""Loads over a blocking driver: batches go from the event loop to a thread of the engine, a few at a time."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any

import pyarrow as pa

from queryserver.engines.loading import Staging, deliver_cancel, refuse_changes, refuse_target, staged
from queryserver.engines.protocol import LoadLedger, TableLoad, TableName
from queryserver.engines.threaded import STOP_S, Answered, DriverConnection, DriverThreads, stop_call
from queryserver.errors.statements import SessionLost

_BATCHES_AHEAD = 2


class TableWriter(ABC):
    """Makes tables over one connection. Called in a thread, one call at a time; raises EngineError only.

    A stop has an effect only while `allow_interrupt` says so.
    """

    def __init__(self, connection: DriverConnection) -> None:
        self._driver = connection
        self._ending = threading.Lock()
        self._may_interrupt = False

    @abstractmethod
    def exists(self, table: TableName) -> bool:
        """Whether there is a table or view of that name."""
        ...

    @abstractmethod
    def write(self, load: TableLoad, batches: Iterator[pa.RecordBatch]) -> int:
        """Make the table, or append. When it fails nothing is visible but, maybe, the staging table."""
        ...

    @abstractmethod
    def drop(self, table: TableName) -> None:
        """Drop a table if it is there."""
        ...

    def interrupt(self) -> None:
        """Stop `write`, unless it is already at its last step or undoes what it did. From any thread, at once."""
        with self._ending:
            if self._may_interrupt:
                self._driver.interrupt()

    def close(self) -> None:
        """Close the connection. Called once nothing runs. Idempotent."""
        self._driver.close()

    def allow_interrupt(self, *, is_allowed: bool) -> None:
        with self._ending:
            self._may_interrupt = is_allowed


class FeedStopped(Exception):
    """Raised into the thread that waits for batches of a load that has ended."""


class _Feed:
    """Batches on their way to a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(_BATCHES_AHEAD)
        self._ready: SimpleQueue[pa.RecordBatch | FeedStopped | None] = SimpleQueue()
        self._is_left = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """In the thread: waits for each. Raises FeedStopped."""
        while (batch := self._ready.get()) is not None:
            if isinstance(batch, FeedStopped):
                raise batch
            self._loop.call_soon_threadsafe(self._room.release)
            yield batch

    async def fill(self, batches: AsyncIterator[pa.RecordBatch]) -> None:
        """Hand all batches over, or as many as the thread takes before it ends."""
        async for batch in batches:
            await self._room.acquire()
            if self._is_left:
                return
            self._ready.put(batch)
        self._ready.put(None)

    def leave(self) -> None:
        """The thread takes no more."""
        self._is_left = True
        self._room.release()

    def stop(self) -> None:
        """No more will come: the thread must undo what it did."""
        self._ready.put(FeedStopped("the load has ended"))


class ThreadedLoader:
    """A TableLoader. Ended by the engine's `ThreadedSessions`."""

    def __init__(self, writer: TableWriter, threads: DriverThreads, *, read_only: bool, user_id: int) -> None:
        self._writer = writer
        self._threads = threads
        self._user_id = user_id
        self._read_only = read_only
        self._stop: Callable[[], None] | None = None
        self._call: Future[int] | None = None
        self._short: asyncio.Future[Any] | None = None
        self._over = False

    async def exists(self, table: TableName) -> bool:
        return await self._control(partial(self._writer.exists, table))

    async def load(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], ledger: LoadLedger) -> int:
        refuse_changes(read_only=self._read_only)
        refuse_target(load, exists=await self.exists(load.target))
        async with staged(load.staging, ledger, partial(self.drop, load.staging)) as staging:
            return await self._write(load, batches, staging)

    async def drop(self, table: TableName) -> None:
        refuse_changes(read_only=self._read_only)
        await self._control(partial(self._writer.drop, table))

    async def end(self) -> None:
        """Stop what runs and close the connection. Idempotent."""
        if self._over:
            return
        self._over = True
        await self._stop_call()
        await self._short_ended()
        call = self._call
        if call is not None and not call.done():
            # The thread that is still inside the driver closes the connection when it comes out.
            call.add_done_callback(lambda _: self._writer.close())
        else:
            await self._threads.control(self._writer.close)

    async def _write(self, load: TableLoad, batches: AsyncIterator[pa.RecordBatch], staging: Staging) -> int:
        feed, loop = _Feed(), asyncio.get_running_loop()
        call = self._call = self._threads.start(
            partial(self._writer.write, load, feed.batches()), user_id=self._user_id
        )
        self._stop = feed.stop
        call.add_done_callback(lambda _: loop.call_soon_threadsafe(feed.leave))
        is_late = False
        try:
            await feed.fill(batches)
            rows = await asyncio.shield(asyncio.wrap_future(call))
        except BaseException as error:  # a cancel too: the thread must not go on
            await asyncio.shield(self._stop_call())
            has_succeeded = call.done() and not call.cancelled() and call.exception() is None
            if not isinstance(error, asyncio.CancelledError) or not has_succeeded:
                raise
            rows, is_late = call.result(), True
        await staging.publish(asyncio.sleep(0))  # the thread has already taken the last step
        if is_late:
            deliver_cancel(None)
        return rows

    async def _stop_call(self) -> None:
        call = self._call
        if call is None or call.done() or call.cancel():
            return
        if self._stop is not None:
            self._stop()
        await stop_call(call, self._writer.interrupt)

    async def _control(self, call: Callable[[], Answered]) -> Answered:
        """A short call. One that a cancel left behind comes to its end before: the connection serves one at a time."""
        await self._short_ended()
        is_busy = self._call is not None and not self._call.done()
        if self._over or is_busy:
            raise SessionLost("Invalid session Id: the session is gone.")
        running = self._short = asyncio.ensure_future(self._threads.control(call))
        return await asyncio.shield(running)

    async def _short_ended(self) -> None:
        if self._short is not None and not self._short.done():
            await asyncio.wait({self._short}, timeout=STOP_S)
