"""A process's background tasks and thread pools, one per purpose, so that no kind of work waits for another."""

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
"""Called between batches of long work with the completed share, from 0 to 1, and the last batch's description."""


def no_progress(share: float, text: str) -> None:
    """Ignore the progress of work."""
    del share, text


@asynccontextmanager
async def background(work: Coroutine[Any, Any, object], name: str) -> AsyncGenerator[None]:
    """Run `work` as a background task, and cancel it on exit. Its exceptions are dropped."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def renewed(renew: Callable[[], Awaitable[bool]], *, every_s: float) -> AbstractAsyncContextManager[None]:
    """Renew an expiring record in the background for the duration of the context, until `renew` reports its loss."""

    async def keep() -> None:
        is_held = True
        while is_held:
            await asyncio.sleep(every_s)
            try:
                is_held = await renew()
            except DatabaseUnavailable:
                log.warning("record not renewed")

    return background(keep(), "renewal")


class Tasks:
    """Owns background tasks that outlive their callers, so that they are not garbage-collected."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Cancel the remaining tasks on exit."""
        try:
            yield
        finally:
            await self.aclose()

    async def aclose(self, *, grace_s: float = 0) -> None:
        """Cancel tasks that still run after `grace_s`, and wait until they end."""
        if self._tasks and grace_s:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def every(seconds: float, action: Callable[[], Awaitable[object]]) -> None:
    """Repeat `action` forever, even after failures. Servers that start together run it at different times."""
    while True:
        await asyncio.sleep(seconds * random.uniform(0.8, 1.0))  # noqa: S311 no secret
        await _round(action)


async def now_and_every(
    seconds: float, action: Callable[[], Awaitable[object]], *, first: Callable[[], Awaitable[object]] | None = None
) -> None:
    """Like `every`, but with an immediate first round, which runs `first` if set."""
    await _round(first or action)
    await every(seconds, action)


async def _round(action: Callable[[], Awaitable[object]]) -> None:
    try:
        await action()
    except QueryServerError as error:
        log.warning("round failed", action=getattr(action, "__name__", ""), code=error.code)
    except Exception:  # the task must survive, as the next round may succeed
        log.exception("round failed", action=getattr(action, "__name__", ""))


def restart_pause_s(failures: int) -> float:
    """Return the pause after consecutive failed starts: 1 s, doubled for each further failure, up to 30 s."""
    return min(2.0 ** min(failures - 1, 10), _MAX_PAUSE_S)


class Restarts:
    """Calculates restart pauses for work that is restarted whenever it ends. A long run makes them short again."""

    def __init__(self) -> None:
        self._failures = 0
        self._began = time.monotonic()

    def begin(self) -> None:
        """Note the start of a run."""
        self._began = time.monotonic()

    def pause_s(self) -> float:
        """Return the pause after a run, whose end counts as a failure."""
        self._failures = 1 if time.monotonic() - self._began > _LONG_RUN_S else self._failures + 1
        return restart_pause_s(self._failures)


class Stop(Event):
    """Stops work in a thread whose caller has left or timed out."""

    def check(self) -> None:
        """Call this between steps of the work. Raises TooComplex if the work should stop."""
        if self.is_set():
            raise TooComplex("The work was stopped.")


class Turn:
    """A user's slot in a pool, which runs one piece of work after the other."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._running: asyncio.Future[Any] | None = None
        self.stop = Stop()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the pool, and return its result.

        A canceled caller returns immediately, but the slot stays occupied until the work ends.
        """
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        self._running = running
        running.add_done_callback(_retrieve)
        return await asyncio.shield(running)

    def when_ended(self, call: Callable[[], None]) -> None:
        """Stop the work, and run `call` once no thread works for this turn, perhaps immediately."""
        self.stop.set()
        if self._running is None or self._running.done():
            call()
        else:
            self._running.add_done_callback(lambda _: call())


def _retrieve(work: "asyncio.Future[Any]") -> None:
    """Retrieve the exception, because asyncio logs exceptions that no caller retrieves."""
    if not work.cancelled():
        work.exception()


class FairThreads:
    """A thread pool in which each user has one thread at a time, and users take turns.

    Abandoned work keeps its slot until it ends, so no user gets more threads by disconnecting.
    """

    def __init__(self, threads: Executor, slots: FairSemaphore) -> None:
        self._threads = threads
        self._slots = slots

    @asynccontextmanager
    async def turn(self, user_id: int) -> AsyncGenerator[Turn]:
        """Wait for the user's turn. Raises TooManyRequests."""
        await self._slots.acquire(user_id)
        turn = Turn(self._threads)
        try:
            yield turn
        finally:
            turn.when_ended(lambda: self._slots.release(user_id))

    async def run(self, user_id: int, work: Callable[[Stop], T]) -> T:
        """Run `work`, which must check the `Stop` between its steps, and return its result. Raises TooManyRequests."""
        async with self.turn(user_id) as turn:
            return await turn.run(lambda: work(turn.stop))


@dataclass(frozen=True, slots=True)
class Threads:
    rendering: Executor
    """Results: pages, samples, downloads; no other work."""
    bodies: FairThreads
    """Large request bodies of users."""
    answers: FairThreads
    """Large responses other than results."""
    upkeep: Executor
    """Metrics and the API description."""
    metadata: Executor
    """Catalog metadata: compressing, decompressing, sorting."""
    uploads: Executor
    """Digests of uploads, free disk space."""
    searching: FairThreads
    """Queries of the metadata search."""
    indexing: Executor
    """Segments of the metadata index."""
    importing: FairThreads
    """Rows of workbooks in import previews."""
    unpacking: FairThreads
    """Compressed files that are viewed."""


@contextmanager
def open_threads() -> Generator[Threads]:
    """Open all pools. On exit, each pool finishes its queued work."""
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
        )
