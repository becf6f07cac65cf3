"""Runs the task server's processes: workers run statements and tasks, beats fire schedules (Contract platform 10)."""

import asyncio
import gc
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

import structlog
import uvloop

from queryserver.platform.memory import freeze_present_objects, hide_pandas, trim_heap_regularly, use_one_heap
from queryserver.platform.roles import Role
from queryserver.platform.settings.tree import Settings
from queryserver.platform.shutdown import REST_S, THREADS_END_WITHIN_S, StopClock
from queryserver.platform.threads import background
from queryserver.services import Services
from queryserver.wiring import open_services

if TYPE_CHECKING:
    from queryserver.api.monitoring import MetricsListener

log = structlog.get_logger(__name__)

Work = Callable[[Services], Awaitable[None]]
"""The work of a process, which runs until it is canceled."""


def run_worker(settings: Settings, *, with_parent: bool = False) -> None:
    """Run statements and tasks until the stop signal.

    If `with_parent` is set, also stop when the parent closes standard input. Raises ConfigurationError, SchemaMismatch,
    DatabaseUnavailable.
    """
    _run_process(settings, Role.WORKER, work, with_parent=with_parent)


def run_beat(settings: Settings, *, with_parent: bool = False) -> None:
    """Fire schedules until the stop signal. Parameters and errors are those of `run_worker`."""
    _run_process(settings, Role.BEAT, _beat, with_parent=with_parent)


async def work(services: Services) -> None:
    """Take announced jobs from the broker while slots are free. The runners' sweeps find lost jobs."""
    runner = services.statements.runner
    if services.broker is None:
        raise AssertionError

    async def statement(_job: str) -> None:
        # Takes the next statement in the queue, which may not be the announced one.
        runner.queue.wake()

    async def task(_job: str) -> None:
        services.tasks.runner.wake()

    await services.broker.serve(
        {"statement": statement, "task": task}, free_slots=lambda: runner.queue.unreserved_slots
    )


async def _beat(_services: Services) -> None:
    """Wait forever. The schedules are fired by background work that `open_services` has started."""
    await asyncio.Event().wait()


def _run_process(settings: Settings, role: Role, work: Work, *, with_parent: bool) -> None:
    """Run `work` in this process, in the given role, until the stop signal."""
    use_one_heap()
    hide_pandas()
    uvloop.run(_run(settings, role, work, with_parent=with_parent))


async def _run(settings: Settings, role: Role, work: Work, *, with_parent: bool) -> None:
    clock, stopped, orphaned = StopClock(), asyncio.Event(), asyncio.Event()
    grace_s = settings.desktop.shutdown_grace.total_seconds()

    def stop() -> None:
        clock.set(grace_s + REST_S)
        stopped.set()

    def stop_at_once() -> None:
        log.error("parent process exited, and with it the database; stopping")
        orphaned.set()
        clock.set(REST_S)
        stopped.set()

    loop = asyncio.get_running_loop()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, stop)
    with _monitoring(settings) as monitoring:
        async with (
            _watch_parent(stop, stop_at_once) if with_parent else nullcontext(),
            open_services(settings, role=role) as services,
            background(trim_heap_regularly(), "return-memory"),
            monitoring.serving(services.metrics_text) if monitoring else nullcontext(),
        ):
            freeze_present_objects()
            log.info("queryserver runs", role=role.value, instance=services.statements.runner.owner)
            await _run_until(stopped, work(services))
            services.readiness.stopping = True
            drains = (services.statements.runner.shutdown.drain, services.tasks.runner.drain)
            await asyncio.gather(*(drain(at_once=orphaned.is_set()) for drain in drains))
    # Native modules that count their objects at exit would report frozen objects as leaks.
    gc.unfreeze()
    clock.set(THREADS_END_WITHIN_S)


def _monitoring(settings: Settings) -> "AbstractContextManager[MetricsListener | None]":
    """Return the listener for metrics if it is configured. Entering it may raise ConfigurationError."""
    if not settings.desktop.task_server.metrics_port:
        return nullcontext()
    from queryserver.api.monitoring import metrics_listener  # noqa: PLC0415 loading a web server takes 0.3 s

    return metrics_listener(settings.desktop)


async def _run_until(stopped: asyncio.Event, work: Awaitable[None]) -> None:
    """Run the work until the event is set. If the work fails, raise its exception."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


@asynccontextmanager
async def _watch_parent(stop: Callable[[], None], died: Callable[[], None]) -> AsyncGenerator[None]:
    """Watch standard input until the parent closes it.

    Then call `stop` if the parent has sent a byte before. Otherwise the parent has died, so call `died`.
    """

    async def watch() -> None:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        try:
            (stop if await reader.read() else died)()
        finally:
            transport.close()

    async with background(watch(), "parent"):
        yield
