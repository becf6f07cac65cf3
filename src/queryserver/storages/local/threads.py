"""Bounded threads for calls into the file system, which block."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from queryserver.domain.errors.files import StorageUnavailable
from queryserver.storages.read_sizes import ReadSizes

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class FileThreads:
    """At most `max_threads` calls at a time; who waits longer than `timeout_s` gets StorageUnavailable.

    To be closed by its owner.
    """

    def __init__(self, *, max_threads: int, timeout_s: float) -> None:
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="local-storage")
        self._flushes = ThreadPoolExecutor(1, thread_name_prefix="local-storage-flush")
        self._ended_flushes = 0
        self.read_sizes = ReadSizes()
        self._timeout_s = timeout_s

    async def run(self, call: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """What the call gives. A call that nobody waits for any more goes on."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._threads, call, *arguments)
        except TimeoutError as error:
            raise StorageUnavailable("The file system does not answer.") from error

    async def until_done(self, step: Callable[[], bool]) -> None:
        """Repeat a call until it says that nothing is left; each of them has the whole time."""
        while not await self.run(step):
            pass

    def start_flush(self, flush: Callable[[], None]) -> Future[None]:
        """Run a call that waits for the disk. One at a time, beside all others, which it does not hold up."""
        return self._flushes.submit(self._run_flush, flush)

    async def ended(self, flush: Future[None]) -> None:
        """Wait for a started flush, which may stand behind those of others: each of them has the whole time.

        Raises what it raises.
        """
        waiting, before = asyncio.wrap_future(flush), self._ended_flushes
        try:
            while not (await asyncio.wait({waiting}, timeout=self._timeout_s))[0]:
                if self._ended_flushes == before:
                    raise StorageUnavailable("The file system does not answer.")
                before = self._ended_flushes
            waiting.result()
        finally:
            waiting.cancel()

    def _run_flush(self, flush: Callable[[], None]) -> None:
        try:
            flush()
        finally:
            self._ended_flushes += 1

    def start(self, call: Callable[[], None]) -> Future[None]:
        """Run a call that nobody waits for; closing the threads does."""
        return self._threads.submit(call)

    async def close(self) -> None:
        """Let calls under way end, and the threads with them. Idempotent. Raises StorageUnavailable if one hangs."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.to_thread(self._threads.shutdown)
                await asyncio.to_thread(self._flushes.shutdown)
        except TimeoutError as error:
            raise StorageUnavailable("The file system does not answer.") from error
