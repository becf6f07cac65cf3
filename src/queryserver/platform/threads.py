"""Background tasks and thread pools. There is one pool per purpose, so that no kind of work waits for another."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any, TypeAlias, TypeVar

import structlog

from queryserver.errors.base import DatabaseUnavailable, QueryServerError, TooComplex
from queryserver.platform.fair_queue import FairSemaphore

log = structlog.get_logger(__name__)

T = TypeVar("T")

_MAX_PAUSE_S = 30.0
_LONG_RUN_S = 60.0

Progress: TypeAlias = Callable[[float, str], None]
"""Called between batches of long work with the completed fraction (0 to 1) and a description of the last batch."""


def no_progress(share: float, text: str) -> None:
    """Ignore progress: a `Progress` for callers that do not report it."""
    del share, text


@asynccontextmanager
async def background(work: Coroutine[Any, Any, object], name: str) -> AsyncGenerator[None]:
    """Run `work` as a background task while the context is open; cancel it on exit. Its exceptions are discarded."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def renewed(renew: Callable[[], Awaitable[bool]], *, every_s: float) -> AbstractAsyncContextManager[None]:
    """Call `renew` periodically in the background while the context is open.

    `renew` returns whether the record still exists; the calls end when it returns False. If the database is
    unavailable, the next call tries again.
    """

    async def keep() -> None:
        is_held = True
        while is_held:
            await asyncio.sleep(every_s)
            try:
                is_held = await renew()
            except DatabaseUnavailable:
                log.warning("record could not be renewed")

    return background(keep(), "renewal")


async def settled(work: "asyncio.Task[T]") -> T:
    """Return the result of work that must not be interrupted, because it could then be half done or done unnoticed.

    If the caller is canceled, wait for the end of the work, and ignore the cancellation if the work has succeeded. A
    second cancellation also cancels the work.
    """
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            work.cancel()
            raise
        if work.cancelled() or work.exception() is not None:
            raise
        return work.result()


class Tasks:
    """Keeps references to background tasks that outlive their callers, so that they are not garbage-collected."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Cancel the remaining tasks when the context ends."""
        try:
            yield
        finally:
            await self.aclose()

    async def aclose(self, *, grace_s: float = 0) -> None:
        """Cancel tasks that are still running after `grace_s`, and wait until all have ended."""
        if self._tasks and grace_s:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def every(seconds: float, action: Callable[[], Awaitable[object]]) -> None:
    """Repeat `action` forever, even after failures. The interval varies, so that servers do not run it at the same
    time.
    """
    while True:
        await asyncio.sleep(seconds * random.uniform(0.8, 1.0))  # noqa: S311 no secret
        await _round(action)


async def now_and_every(
    seconds: float, action: Callable[[], Awaitable[object]], *, first: Callable[[], Awaitable[object]] | None = None
) -> None:
    """Run `first` (by default, `action`) immediately, then repeat `action` as `every` does."""
    await _round(first or action)
    await every(seconds, action)


async def _round(action: Callable[[], Awaitable[object]]) -> None:
    try:
        await action()
    except QueryServerError as error:
        log.warning("round failed", action=getattr(action, "__name__", ""), code=error.code)
    except Exception:  # the task must not end, because the next round may succeed
        log.exception("round failed", action=getattr(action, "__name__", ""))


def restart_pause_s(failures: int) -> float:
    """Return the pause after this many consecutive failures: 1 s, doubled for each further failure, up to 30 s."""
    return min(2.0 ** min(failures - 1, 10), _MAX_PAUSE_S)


class Restarts:
    """Computes the pauses before restarts of work that has ended. A run longer than 60 s resets them."""

    def __init__(self) -> None:
        self._failures = 0
        self._began = time.monotonic()

    def begin(self) -> None:
        """Record the start of a run."""
        self._began = time.monotonic()

    def pause_s(self) -> float:
        """Return the pause before the next run. The end of a run counts as a failure."""
        self._failures = 1 if time.monotonic() - self._began > _LONG_RUN_S else self._failures + 1
        return restart_pause_s(self._failures)


class Stop(Event):
    """Signals work in a thread to stop after its caller has left or timed out."""

    def check(self) -> None:
        """Raise TooComplex if the work should stop. Call this between steps of the work."""
        if self.is_set():
            raise TooComplex("The work was stopped.")


class Turn:
    """A user's slot in a thread pool. Work in one slot runs sequentially."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._running: asyncio.Future[Any] | None = None
        self.stop = Stop()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the pool and return its result.

        If the caller is canceled, this returns immediately, but the slot stays occupied until the work ends.
        """
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        self._running = running
        running.add_done_callback(_retrieve)
        return await asyncio.shield(running)

    def when_ended(self, call: Callable[[], None]) -> None:
        """Request the work to stop, and run `call` as soon as no thread works for this slot, perhaps immediately."""
        self.stop.set()
        if self._running is None or self._running.done():
            call()
        else:
            self._running.add_done_callback(lambda _: call())


def _retrieve(work: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of abandoned work, because asyncio logs exceptions that are never retrieved."""
    if not work.cancelled():
        work.exception()


class FairThreads:
    """A thread pool in which each user has at most one thread at a time, and users take turns.

    Abandoned work keeps its slot until it ends, so a user cannot get more threads by disconnecting.
    """

    def __init__(self, threads: Executor, slots: FairSemaphore) -> None:
        self._threads = threads
        self._slots = slots

    @asynccontextmanager
    async def turn(self, user_id: int) -> AsyncGenerator[Turn]:
        """Hold the user's slot while the context is open. Raises TooManyRequests."""
        await self._slots.acquire(user_id)
        turn = Turn(self._threads)
        try:
            yield turn
        finally:
            turn.when_ended(lambda: self._slots.release(user_id))

    async def run(self, user_id: int, work: Callable[[Stop], T]) -> T:
        """Run `work` in the user's slot and return its result. `work` must check `Stop`. Raises TooManyRequests."""
        async with self.turn(user_id) as turn:
            return await turn.run(lambda: work(turn.stop))


@dataclass(frozen=True, slots=True)
class Threads:
    rendering: Executor
    """Rendering of results only: pages, samples, downloads."""
    bodies: FairThreads
    """Parsing of large request bodies."""
    answers: FairThreads
    """Rendering of large responses other than results."""
    upkeep: Executor
    """Rendering of metrics and of the API description."""
    metadata: Executor
    """Compressing, decompressing and sorting catalog metadata."""
    uploads: Executor
    """Digests of uploads, and measuring free disk space."""
    searching: FairThreads
    """Running queries of the metadata search."""
    indexing: Executor
    """Building segments of the metadata index."""
    importing: FairThreads
    """Reading workbook rows for import previews."""
    unpacking: FairThreads
    """Decompressing files that are viewed."""
    exporting: Executor
    """Encoding the files of exports."""


@contextmanager
def open_threads() -> Generator[Threads]:
    """Open all pools. On exit, each pool finishes the work in its queue."""
    with ExitStack() as stack:

        def pool(name: str, threads: int = 2) -> Executor:
            return stack.enter_context(ThreadPoolExecutor(threads, thread_name_prefix=name))

        def fair(name: str, threads: int = 2) -> FairThreads:
            return FairThreads(pool(name, threads), FairSemaphore(threads))

        yield Threads(
            rendering=pool("rendering", 4),
            bodies=fair("bodies"),
            answers=fair("answers"),
            upkeep=pool("upkeep"),
            metadata=pool("metadata"),
            uploads=pool("uploads"),
            searching=fair("searching"),
            indexing=pool("indexing"),
            importing=fair("import-previews"),
            unpacking=fair("unpacking", 4),
            exporting=pool("exporting"),
        )
