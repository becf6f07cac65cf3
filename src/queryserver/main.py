"""The web server: settings in, a serving process out. Nothing happens at import time."""

import asyncio
import ctypes
import gc
import logging
import math
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from socket import SocketType, socket
from types import FrameType

import structlog
import uvicorn
import uvloop
from starlette.types import ASGIApp

from queryserver.api.application import create_application, framed
from queryserver.api.auth import AddressShares
from queryserver.api.connections.guard import ConnectionCounts, limits_of, raise_file_limit
from queryserver.api.connections.protocol import guard_connections
from queryserver.api.frame import AccessLog, CorsPolicy, RequestMetrics
from queryserver.container.services import open_services
from queryserver.db.migrations import migrate, require_newest
from queryserver.domain.errors.base import ConfigurationError
from queryserver.domain.stopping import CALLS_ANSWERED_WITHIN_S, REST_S
from queryserver.embedded.administrator import ensure_administrator
from queryserver.embedded.defaults import prepare
from queryserver.embedded.settings import with_defaults
from queryserver.logs import configure_logging
from queryserver.metrics.workers import shared_counts
from queryserver.services.everything import Services
from queryserver.services.stopping import stop_step
from queryserver.settings import Settings, load_settings
from queryserver.settings.desktop import DesktopSettings
from queryserver.stopping import StopClock
from queryserver.supervision import Supervisor

log = structlog.get_logger(__name__)

# A service manager may signal each process of the service, and the parent then signals its workers once more.
_ONE_SIGNAL_S = 2.0
# For the threads of the process, once all else is closed.
_THREADS_END_WITHIN_S = 2.0
_KEEP_ALIVE_S = 75
_BACKLOG = 2048
# Calls make little that only the search for cycles can free: by default it would run at every tenth call.
_GARBAGE_THRESHOLDS = (20_000, 10, 10)
_TRIM_EVERY_S = 15.0
_M_ARENA_MAX = -8  # malloc.h of glibc


class _Server(uvicorn.Server):
    """Returns when it is told to stop. Uvicorn's own raises the signal again at its end, before services are closed."""

    def __init__(self, config: uvicorn.Config, services: Services, began: Callable[[], None], clock: StopClock) -> None:
        super().__init__(config)
        self._services = services
        self._began = began
        self._clock = clock
        self._told_at: float | None = None
        desktop = services.settings.desktop
        self._delay_s = float(desktop.shutdown_delay_s)
        self._grace_s = float(desktop.shutdown_grace_s)
        counts = ConnectionCounts(services.registry)
        guard_connections(config, limits_of(services.settings.desktop), counts)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        if self.started:
            self._began()

    def _log_started_message(self, listeners: Sequence[SocketType]) -> None:
        _log_address(self._services.settings.desktop, listeners[0])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See uvicorn. Calls and statements go on for `desktop.shutdown_delay_s`, unless a second signal comes."""
        now = time.monotonic()
        if self._told_at is None:
            self._told_at = now
            self._services.readiness.stopping = True
            self._clock.set(self._delay_s + self._grace_s + REST_S)
        in_delay = not self.should_exit and now - self._told_at < self._delay_s
        if not in_delay or (now - self._told_at >= _ONE_SIGNAL_S):
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn."""
        if self._told_at is not None and time.monotonic() - self._told_at >= self._delay_s:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Calls are answered while statements get their grace: clients see how they end (Contract platform 9.5)."""
        self._services.readiness.stopping = True
        self._clock.set(self._grace_s + REST_S)
        grace_ends_at = time.monotonic() + self._grace_s
        await self._services.runner.drain()
        within_s = math.ceil(max(grace_ends_at - time.monotonic(), CALLS_ANSWERED_WITHIN_S))
        self.config.timeout_graceful_shutdown = within_s
        with stop_step("calls may finish", within_s=within_s, connections=len(self.server_state.connections)):
            await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """See uvicorn."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def create_app(settings: Settings, *, services: Services) -> ASGIApp:
    """The application on services that are open for as long as it is used."""
    app = create_application(docs_enabled=settings.desktop.docs_enabled)
    app.state.services = services
    return framed(
        app,
        metrics=RequestMetrics(services.registry),
        prefix=settings.desktop.url_prefix,
        allowed_hosts=settings.desktop.allowed_hosts,
        cors=_cors(settings.desktop) if settings.desktop.cors_enabled else None,
        access_log=AccessLog(settings.desktop.trusted_proxies) if settings.desktop.logging.access_log else None,
        shares=AddressShares(settings.desktop.trusted_proxies, settings.desktop.max_connections_per_address),
        # Long calls have a limit of their own: however many are open, that many short ones go on.
        calls_per_user=settings.limits.calls_per_user + settings.editor.max_streams_per_user,
    )


def _cors(desktop: DesktopSettings) -> CorsPolicy:
    return CorsPolicy(frozenset(desktop.cors_allowed_origins), desktop.cors_allow_credentials)


def server(settings: Settings, app: ASGIApp | str) -> uvicorn.Config:
    """How the application is served."""
    desktop = settings.desktop
    return uvicorn.Config(
        app,
        host=desktop.http_host,
        port=desktop.http_port,
        workers=desktop.workers,
        loop="uvloop",
        http="httptools",
        lifespan="auto",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(CALLS_ANSWERED_WITHIN_S),
        ssl_certfile=desktop.ssl_certificate or None,
        ssl_keyfile=desktop.ssl_private_key or None,
    )


def serve(settings: Settings, *, embedded: bool, announce: Callable[[str], None]) -> None:
    """Serve until told to stop. `announce` shows a person the password of a new administrator.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable, EmbeddedPostgresError: then nothing was served.
    """
    use_one_heap()
    if not embedded and not settings.desktop.database.embedded:
        if settings.desktop.workers > 1:
            _serve_in_workers(settings)
        else:
            uvloop.run(_timely(partial(_serve_prepared, settings)))
        return
    if settings.desktop.workers > 1:
        problem = "desktop.workers: the embedded mode serves in one process; set desktop.database.url for more."
        raise ConfigurationError([problem])
    if settings.desktop.database.dsn is None:
        uvloop.run(_timely(partial(_serve_embedded, settings, announce)))
    else:
        uvloop.run(_timely(partial(_serve_prepared, settings, auto_migrate=True, announce=announce)))


async def _timely(serve_until_stopped: Callable[[StopClock], Awaitable[None]]) -> None:
    """Serve; a stop takes no longer than its bound, and threads that do not end do not hold the process."""
    clock = StopClock()
    await serve_until_stopped(clock)
    clock.set(_THREADS_END_WITHIN_S)


async def _serve_embedded(settings: Settings, announce: Callable[[str], None], clock: StopClock) -> None:
    """Everything from nothing but a directory; the private PostgreSQL stops with the server."""
    async with prepare(settings.desktop.data_dir) as defaults:
        settings = with_defaults(settings, defaults)
        await _serve_prepared(settings, clock, auto_migrate=True, alone=True, announce=announce)


async def _serve_prepared(
    settings: Settings,
    clock: StopClock,
    *,
    auto_migrate: bool = False,
    alone: bool = False,
    announce: Callable[[str], None] | None = None,
) -> None:
    """Bring the database up to date where that is wanted, check it, and serve in this process.

    `announce` is told the password of the first administrator, if there is to be one.
    """
    await _prepare_database(settings, auto_migrate=auto_migrate)
    async with open_services(settings, alone=alone) as services:
        if announce is not None:
            given = settings.sources.admin_password
            await ensure_administrator(
                services.accounts.accounts, given.get_secret_value() if given else None, announce
            )
        await _serve_with(services, clock)


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
) -> None:
    """Until told to stop. Without `sockets` the server makes its own."""
    settings = services.settings
    raise_file_limit(settings.desktop.max_connections)
    _settle_memory()
    config = server(settings, create_app(settings, services=services))
    try:
        async with _memory_returned():
            await _Server(config, services, began, clock).serve(sockets)
    finally:
        # What stays frozen looks leaked to native modules that count their objects at the end.
        gc.unfreeze()


async def _prepare_database(settings: Settings, *, auto_migrate: bool = False) -> None:
    """Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable unless the database can be served from."""
    dsn = settings.desktop.database.dsn
    if dsn is None:
        raise ConfigurationError(["desktop.database.url: a PostgreSQL database is needed, or `serve --embedded`."])
    if auto_migrate or settings.desktop.database.auto_migrate:
        await migrate(dsn)
    await require_newest(dsn)


def use_one_heap() -> None:
    """Let all threads take memory from one heap. To be called before they begin.

    glibc gives each thread a heap of its own, up to eight for each core, and gives little of them back: the pieces of a
    hundred downloads at once, which wander through a dozen threads, cost three times their size. Without glibc nothing
    happens.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)


@asynccontextmanager
async def _memory_returned() -> AsyncGenerator[None]:
    """While inside, free pages inside the heap go back to the system; by itself glibc returns its end only.

    After a preview of 20,000 columns they are 150 MiB. Without glibc nothing happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    async def go_on() -> None:
        while trim is not None:
            await asyncio.sleep(_TRIM_EVERY_S)
            await asyncio.to_thread(trim, 0)

    task = asyncio.create_task(go_on(), name="return-memory")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _settle_memory() -> None:
    """Leave what lives as long as the process out of every later search for garbage: those searches stop the loop."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


def _serve_in_workers(settings: Settings) -> None:
    """Serve in several processes, started again when they end. They read their settings from the environment."""
    # Asked here once: here alone is the database migrated where that is wanted.
    asyncio.run(_prepare_database(settings))
    # Nothing is served here: each worker makes an application of its own.
    config = server(settings, "")
    with _without_messages("uvicorn.error"):
        listener = config.bind_socket()
    with shared_counts():
        Supervisor(config, listener, serve_as_worker, partial(_log_address, settings.desktop, listener)).run()


def _log_address(desktop: DesktopSettings, listener: SocketType) -> None:
    """The log line that says where the server, its page and its documentation are."""
    host, port = listener.getsockname()[:2]
    place = f"[{host}]" if ":" in host else host
    scheme = "https" if desktop.ssl_certificate else "http"
    url = f"{scheme}://{place}:{port}{desktop.url_prefix.rstrip('/')}/"
    page = {"api_page": f"{url}api/docs"} if desktop.docs_enabled else {}
    log.info("queryserver listens", url=url, **page, docs="README.md and docs/ beside the source")


@contextmanager
def _without_messages(logger: str) -> Generator[None]:
    """While inside, only its warnings and errors are logged."""
    chosen = logging.getLogger(logger)
    level = chosen.level
    chosen.setLevel(logging.WARNING)
    try:
        yield
    finally:
        chosen.setLevel(level)


def serve_as_worker(sockets: list[socket], began: Callable[[], None]) -> None:
    """What one of several processes does, until told to stop; `began` is called when it serves.

    Raises ConfigurationError, SchemaMismatch, DatabaseUnavailable.
    """
    use_one_heap()
    settings = load_settings(None, os.environ)
    configure_logging(settings.desktop.logging)
    uvloop.run(_timely(partial(_serve_in_worker, settings, sockets, began)))
