"""The threads of one process, a pool for each purpose: no kind of work waits behind another; and background tasks."""

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
from queryserver.platform.fair_queue import FairPlaces

log = structlog.get_logger(__name__)

T = TypeVar("T")

_LONGEST_PAUSE_S = 30.0
_LASTED_S = 60.0

Progress: TypeAlias = Callable[[float, str], None]
"""Called between the batches of long work: the share that is done, 0 to 1, and what was done last."""


def no_progress(share: float, text: str) -> None:
    """Where no one follows the work."""
    del share, text


@asynccontextmanager
async def background(work: Coroutine[Any, Any, object], name: str) -> AsyncGenerator[None]:
    """The work runs in a task of its own while inside, and is canceled at the end. What it raises is dropped."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def renewed(renew: Callable[[], Awaitable[bool]], *, every_s: float) -> AbstractAsyncContextManager[None]:
    """Inside, a record that would expire is renewed in the background, until `renew` answers that it is lost."""

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
    """Tasks that go on when their callers have left; each is kept until it ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """What is left at the end is canceled."""
        try:
            yield
        finally:
            await self.aclose()

    async def aclose(self, *, grace_s: float = 0) -> None:
        """Cancel all that still run after `grace_s`, and wait for their ends."""
        if self._tasks and grace_s:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def every(seconds: float, action: Callable[[], Awaitable[object]]) -> None:
    """Repeat for ever, also after a failed round. Servers that were started together do not act at the same moments."""
    while True:
        await asyncio.sleep(seconds * random.uniform(0.8, 1.0))  # noqa: S311 no secret
        await _round(action)


async def once_and_every(
    seconds: float, action: Callable[[], Awaitable[object]], *, first: Callable[[], Awaitable[object]] | None = None
) -> None:
    """As `every`, with a round at the beginning: that of `first` where it is given."""
    await _round(first or action)
    await every(seconds, action)


async def _round(action: Callable[[], Awaitable[object]]) -> None:
    try:
        await action()
    except QueryServerError as error:
        log.warning("round failed", action=getattr(action, "__name__", ""), code=error.code)
    except Exception:  # the outer wall of a task: the next round may do better
        log.exception("round failed", action=getattr(action, "__name__", ""))


def restart_pause_s(failures: int) -> float:
    """How long to wait after so many starts in a row that failed: 1 s, then twice as long each time, up to 30 s."""
    return min(2.0 ** min(failures - 1, 10), _LONGEST_PAUSE_S)


class Restarts:
    """The pauses of something that is begun again whenever it ends; a run that lasted makes them short again."""

    def __init__(self) -> None:
        self._failures = 0
        self._began = time.monotonic()

    def begin(self) -> None:
        """A run begins."""
        self._began = time.monotonic()

    def pause_s(self) -> float:
        """How long to wait after the end of that run, which counts as a failure."""
        self._failures = 1 if time.monotonic() - self._began > _LASTED_S else self._failures + 1
        return restart_pause_s(self._failures)


class Stop(Event):
    """Stops the work of a thread whose caller has left or whose time is over."""

    def check(self) -> None:
        """To be called between pieces of work. Raises TooComplex."""
        if self.is_set():
            raise TooComplex("The work was stopped.")


class Turn:
    """A place of a user in a pool: one piece of work after the other."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._running: asyncio.Future[Any] | None = None
        self.stop = Stop()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives. A cancelled caller does not wait for the thread, the place does."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        self._running = running
        running.add_done_callback(_retrieve)
        return await asyncio.shield(running)

    def when_ended(self, call: Callable[[], None]) -> None:
        """Stop the work, and call when no thread works for this turn any more: at once if none does."""
        self.stop.set()
        if self._running is None or self._running.done():
            call()
        else:
            self._running.add_done_callback(lambda _: call())


def _retrieve(work: "asyncio.Future[Any]") -> None:
    """The caller may have left; asyncio would report an error as lost."""
    if not work.cancelled():
        work.exception()


class FairThreads:
    """A pool in which a user has one thread at a time, and users take turns. Abandoned work keeps its place until its
    thread has ended: no user gets more threads by leaving.
    """

    def __init__(self, threads: Executor, places: FairPlaces) -> None:
        self._threads = threads
        self._places = places

    @asynccontextmanager
    async def turn(self, user_id: int) -> AsyncGenerator[Turn]:
        """A turn of the user. Raises TooManyRequests."""
        await self._places.take(user_id)
        turn = Turn(self._threads)
        try:
            yield turn
        finally:
            turn.when_ended(lambda: self._places.give_back(user_id))

    async def run(self, user_id: int, work: Callable[[Stop], T]) -> T:
        """What `work` gives; it checks the `Stop` between its pieces. Raises TooManyRequests."""
        async with self.turn(user_id) as turn:
            return await turn.run(lambda: work(turn.stop))


@dataclass(frozen=True, slots=True)
class Threads:
    rendering: Executor
    """Results: pages, samples, downloads. No other work runs here."""
    bodies: FairThreads
    """Large request bodies of users."""
    answers: FairThreads
    """Large answers to users that are no results."""
    upkeep: Executor
    """Metrics, the description of the API."""
    metadata: Executor
    """Answers of catalogues: packed, unpacked, sorted."""
    uploads: Executor
    """Digests of uploads, free space."""
    searching: FairThreads
    """Queries of the metadata search."""
    indexing: Executor
    """Segments of the metadata index."""
    importing: FairThreads
    """Rows of workbooks that are shown before an import."""
    unpacking: FairThreads
    """Compressed files that are shown."""


@contextmanager
def open_threads() -> Generator[Threads]:
    """All pools. At the end each finishes its work."""
    with ExitStack() as stack:

        def pool(name: str, threads: int = 2) -> Executor:
            return stack.enter_context(ThreadPoolExecutor(threads, thread_name_prefix=name))

        def fair(name: str, threads: int = 2) -> FairThreads:
            return FairThreads(pool(name, threads), FairPlaces(threads))

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
