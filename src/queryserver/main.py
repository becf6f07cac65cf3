"""Runs the web server in one process, or in several under a supervisor. Also manages memory and shutdown."""

import gc

is_gc_enabled = gc.isenabled()
gc.disable()  # garbage collection takes a third of the import time and frees next to nothing

import asyncio
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from functools import partial
from multiprocessing import Pipe, parent_process
from socket import SocketType, socket
from threading import Thread
from types import FrameType
from typing import cast

import structlog
import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from queryserver.api.application import create_application, middlewares
from queryserver.api.connections.admission import limits_of
from queryserver.api.connections.http_connection import guard_connections, http_config
from queryserver.errors.base import ConfigurationError, DatabaseUnavailable, QueryServerError, SchemaMismatch
from queryserver.identity.build import ensure_administrator
from queryserver.platform.logs import configure_logging
from queryserver.platform.machine_limits import raise_file_limit
from queryserver.platform.memory import freeze_present_objects, hide_pandas, trim_heap_regularly, use_one_heap
from queryserver.platform.metrics import ConnectionCounts, shared_counts
from queryserver.platform.migrations import migrate, require_usable
from queryserver.platform.settings.desktop import DesktopSettings
from queryserver.platform.settings.loader import load_settings
from queryserver.platform.settings.tree import Settings
from queryserver.platform.shutdown import CALLS_ANSWERED_WITHIN_S, REST_S, THREADS_END_WITHIN_S, StopClock, stop_step
from queryserver.platform.threads import background, restart_pause_s
from queryserver.services import Services
from queryserver.wiring import open_services

gc.freeze()  # exempts imported objects from garbage collection; collecting them later would cost the saved time
if is_gc_enabled:
    gc.enable()

log = structlog.get_logger(__name__)

Serve = Callable[[list[socket], Callable[[], None]], None]
"""Serves on the sockets until the stop signal. Calls its second argument once it is serving.

Must be a module-level function, because a new process runs it. Raises ConfigurationError, SchemaMismatch or
DatabaseUnavailable if it cannot start.
"""

_SUCCESSOR_S = 60.0
_TERMINATION_S = 10.0
_CHECK_EVERY_S = 0.1
_STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
# Further signals within this time do not count as a second signal: a service manager may signal all processes of the
# service, and the parent then signals its workers again.
_ONE_SIGNAL_S = 2.0
_BACKLOG = 2048


class Worker(Process):
    """A serving process. It reports to its parent that it is serving, or why it cannot start."""

    def __init__(self, config: Config, sockets: list[socket], serve: Serve, *, failures: int = 0) -> None:
        super().__init__(config, sockets)
        self._serve = serve
        self._reports, self._report = Pipe(duplex=False)
        self._serves = False
        self._refusal: QueryServerError | None = None
        self.failures = failures  # number of consecutive failed starts
        self.replace_at: float | None = None  # None while the process is running
        self.is_logged = False  # whether it was logged that the process is serving

    def target(self, sockets: list[socket] | None = None) -> None:
        """Run as the main function of the new process."""
        signal.signal(signal.SIGTERM, self._give_up)
        # `_give_up` needs it, and shells start background commands of scripts with SIGINT ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        Thread(target=self.always_pong, daemon=True).start()
        Thread(target=_end_with_parent, daemon=True).start()
        try:
            self._serve(sockets or [], self._begin)
        except (ConfigurationError, SchemaMismatch, DatabaseUnavailable) as error:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process is already stopping
            self._report.send(_error_factory(error))
            sys.exit(STARTUP_FAILURE)

    def _begin(self) -> None:
        self._serves = True
        self._report.send(None)

    def _give_up(self, *_: object) -> None:
        """Stop, and close services that are being opened. Once the worker is serving, uvicorn handles the signal."""
        if not self._serves:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the signal is often sent twice, for example by the parent
            # An exception raised here could end up in an event loop callback, where it would only be logged. On SIGINT,
            # asyncio cancels the main task.
            signal.raise_signal(signal.SIGINT)

    def serves(self) -> bool:
        """Return whether the process has reported that it is serving."""
        self._read_reports()
        return self._serves

    def refusal(self) -> QueryServerError | None:
        """Return the reported reason why the process could not start, or None."""
        self._read_reports()
        return self._refusal

    def is_healthy(self, timeout_s: float) -> bool:
        """Return whether the process is running and, if serving, responds. A starting process is busy with imports."""
        return self.is_alive(timeout_s) if self.serves() else self.process.is_alive()

    def _read_reports(self) -> None:
        try:
            while self._reports.poll():
                made = self._reports.recv()
                self._serves = self._serves or made is None
                self._refusal = made and made()
        except (EOFError, OSError):  # the process died in the middle of a report
            return


class Supervisor(Multiprocess):
    """Keeps `config.workers` processes serving on one socket. Must run in the main thread.

    `began` is called once, when the first process is serving.
    """

    def __init__(self, config: Config, listener: socket, serve: Serve, began: Callable[[], None]) -> None:
        super().__init__(config, [listener])
        self._serve = serve
        self._began = began
        self._has_served = False
        self._failed: Worker | None = None
        self._workers: list[Worker] = []
        # the list of the base class, which contains only these workers
        self.processes = cast("list[Process]", self._workers)

    def run(self) -> None:
        """Run until the stop signal. If the first workers cannot start, raise their refusal or SystemExit."""
        try:
            super().run()
        except BaseException:  # the workers must not outlive their parent
            self.terminate_all()
            self.join_all()
            raise
        if self._failed is None:
            return
        if (refusal := self._failed.refusal()) is not None:
            raise refusal
        # A process that was ended by a signal has a negative exit code, which `sys.exit` cannot pass on.
        sys.exit(max(self._failed.exitcode or 0, 1))

    def init_processes(self) -> None:
        for _ in range(self.processes_num):
            self._workers.append(self._start())

    def join_all(self) -> None:
        """Wait for all workers. A further stop signal is forwarded to them, and ends the delay before the shutdown."""
        self.signal_queue.clear()
        # If the parent's listener stayed open, it would accept connections that no worker serves any longer.
        for listener in self.sockets:
            listener.close()
        while any(worker.process.is_alive() for worker in self._workers):
            signals, self.signal_queue = self.signal_queue, []
            if not _STOP_SIGNALS.isdisjoint(signals):
                self.terminate_all()
            time.sleep(_CHECK_EVERY_S)
        super().join_all()

    def keep_subprocess_alive(self) -> None:
        """Check the workers, and restart those whose restart is due. Does not wait for restart pauses."""
        if self.should_exit.is_set():
            return
        for worker in self._workers:
            if not worker.is_logged and worker.serves():
                worker.is_logged = True
                if not self._has_served:
                    self._has_served = True
                    self._began()
                log.info("worker_serves", pid=worker.pid, failed_starts=worker.failures)
        for index, worker in enumerate(self._workers):
            if worker.replace_at is None:
                self._check(worker)
            if self.should_exit.is_set():
                return
            if worker.replace_at is not None and worker.replace_at <= time.monotonic():
                try:
                    self._workers[index] = self._start(worker.failures)
                except OSError as error:  # out of memory or processes: temporary, like an unavailable database
                    self._schedule_restart(worker, f"The process could not be started: {error.strerror}.")

    def restart_all(self) -> None:
        """Replace the workers one by one. Each stops once its successor is serving. A signal aborts the replacement."""
        for index, old in enumerate(self._workers):
            if self.should_exit.is_set():
                return
            new = self._start()
            if not self._wait_until_serving(new):
                new.terminate()  # gives it time to release rows that it may have claimed
                new.process.join(_TERMINATION_S)
                new.kill()
                new.join()
                log.error("workers_not_replaced", pid=new.pid, kept=old.pid, reason=_reason(new))
                return
            old.terminate()
            old.join()
            self._workers[index] = new

    def handle_ttin(self) -> None:
        self.processes_num += 1
        self._workers.append(self._start())

    def _start(self, failures: int = 0) -> Worker:
        worker = Worker(self.config, self.sockets, self._serve, failures=failures)
        worker.start()
        return worker

    def _check(self, worker: Worker) -> None:
        if worker.is_healthy(self.config.timeout_worker_healthcheck):
            return
        worker.kill()  # the process may be hanging
        worker.join()
        if worker.serves():
            log.warning("worker_ended", pid=worker.pid, exit_code=worker.exitcode)
            worker.failures = 0
            worker.replace_at = time.monotonic()
        elif self._has_served:
            self._schedule_restart(worker, _reason(worker))
        else:
            self._failed = worker
            if worker.refusal() is None:  # otherwise `run` raises the refusal
                log.error("worker_not_started", pid=worker.pid, reason=_reason(worker))
            self.should_exit.set()

    def _schedule_restart(self, worker: Worker, reason: str) -> None:
        worker.failures += 1
        wait = restart_pause_s(worker.failures)
        worker.replace_at = time.monotonic() + wait
        log.error("worker_not_started", pid=worker.pid, reason=reason, again_in_s=wait)

    def _wait_until_serving(self, worker: Worker) -> bool:
        end = time.monotonic() + _SUCCESSOR_S
        while not worker.serves():
            if time.monotonic() >= end or not worker.process.is_alive() or self.signal_queue:
                return False
            time.sleep(0.1)
        return True


def _reason(worker: Worker) -> str:
    refusal = worker.refusal()
    return refusal.message if refusal else f"Exit code {worker.exitcode}."


def _end_with_parent() -> None:
    """Stop this worker if its parent is killed. Otherwise, it would run unsupervised and keep the port in use."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _error_factory(error: ConfigurationError | SchemaMismatch | DatabaseUnavailable) -> Callable[[], QueryServerError]:
    """Return a factory for the error, because exceptions with their own constructor arguments cannot be pickled."""
    match error:
        case ConfigurationError():
            return partial(ConfigurationError, error.problems)
        case SchemaMismatch():
            return partial(SchemaMismatch, error.message)
        case DatabaseUnavailable():
            return DatabaseUnavailable


class _Server(uvicorn.Server):
    """A server that returns on the stop signal. Uvicorn would raise the signal again before the services close."""

    def __init__(
        self,
        config: uvicorn.Config,
        services: Services,
        began: Callable[[], None],
        clock: StopClock,
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._services = services
        self._began = began
        self._clock = clock
        self._signaled_at: float | None = None
        self.failure: SystemExit | None = None
        """Set if the server could not start, for example because its address is in use."""
        desktop = services.settings.desktop
        self._delay_s = float(desktop.shutdown_delay_s)
        self._grace_s = float(desktop.shutdown_grace_s)
        guard_connections(config, limits_of(desktop), ConnectionCounts(services.registry))

    async def startup(self, sockets: list[socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit as error:  # in a task, SystemExit would end the event loop before the services are closed
            self.failure, self.should_exit = error, True
        if self.started:
            self._began()

    def _log_started_message(self, listeners: Sequence[SocketType]) -> None:
        _log_address(self._services.settings.desktop, listeners[0])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Continue to serve for `desktop.shutdown_delay_s`, unless a second signal is received."""
        now = time.monotonic()
        if self._signaled_at is None:
            self._signaled_at = now
            self._services.readiness.stopping = True
            self._clock.set(self._delay_s + self._grace_s + REST_S)
            asyncio.get_running_loop().call_later(self._delay_s, self._end_delay)
        in_delay = not self.should_exit and now - self._signaled_at < self._delay_s
        if not in_delay or (now - self._signaled_at >= _ONE_SIGNAL_S):
            super().handle_exit(sig, frame)

    def _end_delay(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Serve calls during the statements' grace period, so that clients see the outcome (Contract platform 9.5)."""
        self._services.readiness.stopping = True
        self._stopping()
        self._clock.set(self._grace_s + REST_S)
        grace_ends_at = time.monotonic() + self._grace_s
        await self._services.statements.runner.shutdown.drain()
        within_s = math.ceil(max(grace_ends_at - time.monotonic(), CALLS_ANSWERED_WITHIN_S))
        self.config.timeout_graceful_shutdown = within_s
        with stop_step("calls may finish", within_s=within_s, connections=len(self.server_state.connections)):
            await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def create_app(settings: Settings, *, services: Services) -> ASGIApp:
    """Create the application. The services must stay open as long as it is used."""
    app = create_application(
        docs_enabled=settings.desktop.docs_enabled, middleware=middlewares(settings, services.registry)
    )
    app.state.services = services
    return app


def server(settings: Settings, app: ASGIApp | str) -> uvicorn.Config:
    desktop = settings.desktop
    return http_config(
        app,
        desktop,
        host=desktop.http_host,
        port=desktop.http_port,
        workers=desktop.workers,
        loop="uvloop",
        lifespan="on",
        backlog=_BACKLOG,
        timeout_graceful_shutdown=math.ceil(CALLS_ANSWERED_WITHIN_S),
    )


def serve(settings: Settings, *, embedded: bool, announce: Callable[[str], None], with_workers: bool = False) -> None:
    """Serve until the stop signal. `announce` receives the password of a newly created administrator for the operator.

    If `with_workers` is set, also run a broker, a worker and a beat, which is only possible in embedded mode. Raises
    ConfigurationError, SchemaMismatch, DatabaseUnavailable or EmbeddedPostgresError if the server cannot start.
    """
    use_one_heap()
    hide_pandas()
    is_embedded = embedded or settings.desktop.database.embedded
    if with_workers and not (is_embedded and settings.desktop.database.dsn is None):
        problem = "serve --with-workers requires --embedded. Otherwise run `queryserver worker` and `queryserver beat`."
        raise ConfigurationError([problem])
    if with_workers:
        from queryserver.platform.embedded.companions import fleet_problems  # noqa: PLC0415 rare

        if problems := fleet_problems(settings):
            raise ConfigurationError(problems)
    if not is_embedded:
        if settings.desktop.workers > 1:
            _serve_in_workers(settings)
        else:
            uvloop.run(_serve_with_deadline(partial(_serve_alone, settings)))
        return
    if settings.desktop.workers > 1:
        problem = "desktop.workers: embedded mode has only one server process. Set desktop.database.url to run more."
        raise ConfigurationError([problem])
    if settings.desktop.database.dsn is None:
        serve_embedded = _serve_fleet if with_workers else _serve_embedded
        uvloop.run(_serve_with_deadline(partial(serve_embedded, settings, announce)))
    else:
        uvloop.run(_serve_with_deadline(partial(_serve_alone, settings, auto_migrate=True, announce=announce)))


async def _serve_with_deadline(serve_until_stopped: Callable[[StopClock], Awaitable[None]]) -> None:
    """Serve until stopped. The shutdown has a deadline, and threads that do not end do not block the exit."""
    clock = StopClock()
    await serve_until_stopped(clock)
    clock.set(THREADS_END_WITHIN_S)


async def _serve_embedded(settings: Settings, announce: Callable[[str], None], clock: StopClock) -> None:
    """Serve with a private PostgreSQL, which stops with the server."""
    from queryserver.platform.embedded.postgres import with_embedded_resources  # noqa: PLC0415 only `serve --embedded` needs it
    from queryserver.platform.embedded.sample_server import prepare, sample_limits  # noqa: PLC0415 as above

    async with prepare(settings.desktop.data_dir, limits=sample_limits(settings)) as defaults:
        settings = with_embedded_resources(settings, defaults)
        await _serve_alone(settings, clock, auto_migrate=True, alone=True, announce=announce)


async def _serve_fleet(settings: Settings, announce: Callable[[str], None], clock: StopClock) -> None:
    """Serve with a private PostgreSQL, Valkey, worker and beat. PostgreSQL stops last."""
    from queryserver.platform.embedded.companions import Companions, embedded_valkey, fleet_environment, with_fleet  # noqa: PLC0415 rare
    from queryserver.platform.embedded.postgres import with_embedded_resources  # noqa: PLC0415 as above
    from queryserver.platform.embedded.sample_server import prepare, sample_limits  # noqa: PLC0415 as above

    preparing = prepare(settings.desktop.data_dir, limits=sample_limits(settings))
    async with preparing as defaults, embedded_valkey() as broker_url:
        settings = with_fleet(with_embedded_resources(settings, defaults), broker_url)
        end_within_s = settings.desktop.shutdown_grace.total_seconds() + REST_S + THREADS_END_WITHIN_S
        companions = Companions(fleet_environment(os.environ, broker_url), end_within_s=end_within_s)
        await _serve_alone(
            settings,
            clock,
            auto_migrate=True,
            alone=True,
            announce=announce,
            background=companions.running,
            stopping=companions.begin_stop,
        )


async def _serve_alone(
    settings: Settings,
    clock: StopClock,
    *,
    auto_migrate: bool = False,
    alone: bool = False,
    announce: Callable[[str], None] | None = None,
    background: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Migrate the database if configured, check it, and serve in this process.

    If the first administrator is created, `announce` receives the password.
    """
    await _prepare_database(settings, auto_migrate=auto_migrate)
    async with open_services(settings, alone=alone) as services:
        if announce is not None:
            given = settings.sources.admin_password
            await ensure_administrator(
                services.accounts.accounts, given.get_secret_value() if given else None, announce
            )
        async with background():
            await _serve_with(services, clock, stopping=stopping)


async def _serve_in_worker(
    settings: Settings, sockets: list[socket], began: Callable[[], None], clock: StopClock
) -> None:
    async with open_services(settings) as services:
        await _serve_with(services, clock, sockets, began)


async def _serve_with(
    services: Services,
    clock: StopClock,
    sockets: list[socket] | None = None,
    began: Callable[[], None] = lambda: None,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve until the stop signal. `stopping` is called when the shutdown begins.

    If `sockets` is None, the server creates its own.
    """
    settings = services.settings
    raise_file_limit(settings.desktop.max_connections)
    freeze_present_objects()
    config = server(settings, create_app(settings, services=services))
    try:
        async with background(trim_heap_regularly(), "return-memory"):
            serving = _Server(config, services, began, clock, stopping)
            # Uvicorn runs in its own task, because it wakes up ten times a second, and each wake-up would pass through
            # all frames that await it.
            await asyncio.create_task(serving.serve(sockets), name="uvicorn")
            if serving.failure is not None:
                raise serving.failure
    finally:
        # Native modules that count their objects at exit would report frozen objects as leaks.
        gc.unfreeze()


async def _prepare_database(settings: Settings, *, auto_migrate: bool = False) -> None:
    """Migrate the database if configured, then check it.

    Raises ConfigurationError, SchemaMismatch or DatabaseUnavailable unless the database is usable.
    """
    dsn = settings.desktop.database.dsn
    if dsn is None:
        raise ConfigurationError(
            ["desktop.database.url: a PostgreSQL database is required, unless the server runs with `serve --embedded`."]
        )
    if auto_migrate or settings.desktop.database.auto_migrate:
        await migrate(dsn)
    await require_usable(dsn)


def _serve_in_workers(settings: Settings) -> None:
    """Serve in several processes, which read their settings from the environment and are restarted when they end."""
    # done once here instead of in each worker
    asyncio.run(_prepare_database(settings))
    # this process does not serve; each worker creates its own application
    config = server(settings, "")
    uvicorn_log = logging.getLogger("uvicorn.error")
    level = uvicorn_log.level
    uvicorn_log.setLevel(logging.WARNING)  # uvicorn's message would show the address a second time
    try:
        listener = config.bind_socket()
    finally:
        uvicorn_log.setLevel(level)
    with shared_counts():
        Supervisor(config, listener, serve_as_worker, partial(_log_address, settings.desktop, listener)).run()


def _log_address(desktop: DesktopSettings, listener: SocketType) -> None:
    host, port = listener.getsockname()[:2]
    index = f"[{host}]" if ":" in host else host
    scheme = "https" if desktop.ssl_certificate else "http"
    url = f"{scheme}://{index}:{port}{desktop.url_prefix.rstrip('/')}/"
    page = {"api_page": f"{url}api/docs"} if desktop.docs_enabled else {}
    log.info("queryserver listens", url=url, **page, docs="README.md and docs/ in the source directory")


def serve_as_worker(sockets: list[socket], began: Callable[[], None]) -> None:
    """Run one of several serving processes until the stop signal. Calls `began` once it is serving.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    use_one_heap()
    hide_pandas()
    settings = load_settings(None, os.environ)
    configure_logging(settings.desktop.logging)
    uvloop.run(_serve_with_deadline(partial(_serve_in_worker, settings, sockets, began)))
