"""Access control for metrics, and the metrics port of processes that do not serve the API: workers and beats.

Contract platform 9.3. Does not import the routes, which workers and beats do not need.
"""

import asyncio
import errno
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from hmac import compare_digest

import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queryserver.api.addresses import client_address
from queryserver.api.connections.admission import ConnectionLimits
from queryserver.api.connections.http_connection import guard_connections, http_config
from queryserver.api.errors import failure
from queryserver.errors.base import ConfigurationError
from queryserver.platform.metrics import ConnectionCounts, MetricsPage
from queryserver.platform.networks import contains
from queryserver.platform.settings.desktop import DesktopSettings, MetricsSettings
from queryserver.platform.settings.sections import Networks
from queryserver.platform.threads import Restarts, Tasks

log = structlog.get_logger(__name__)

_PORT, _HOST = "desktop.task_server.metrics_port", "desktop.task_server.metrics_host"
_BACKLOG = 16
_ANSWERED_WITHIN_S = 1
_STOPPED_WITHIN_S = 2.0
# Enough for a few Prometheus servers and probes. A metrics page is about 10 KiB long.
_MAX_CONNECTIONS = 32
_MAX_PER_ADDRESS = 16
_HEAD_WITHIN_S = 5.0
_STALL_S = 10.0
_UNSENT_BYTES = 8 * 1024 * 1024


async def metrics_response(request: Request, desktop: DesktopSettings, page: MetricsPage | None) -> Response:
    """Return the metrics if the call has the metrics token or comes from an allowed network (Contract platform 9.3)."""
    if page is None:
        return failure(404, "not_found", "Not found.")
    if not may_read_metrics(request, desktop.metrics, desktop.trusted_proxies):
        return failure(403, "permission_denied", "Metrics are not available to this address.")
    return Response(await page.text(), media_type=CONTENT_TYPE_LATEST)


def may_read_metrics(request: Request, settings: MetricsSettings, trusted: Networks) -> bool:
    token = settings.token.get_secret_value()
    given = request.headers.get("authorization", "")
    if token and compare_digest(given.encode(), f"Bearer {token}".encode()):
        return True
    return contains(settings.allowed_networks, client_address(request, trusted))


class MetricsListener:
    """Serves `/metrics` and `/desktop/debug/is_alive` of this process on a separate port."""

    def __init__(self, listener: socket.socket, desktop: DesktopSettings) -> None:
        self._listener = listener
        self._desktop = desktop

    @asynccontextmanager
    async def serving(self, page: MetricsPage | None) -> AsyncGenerator[None]:
        """Serve requests inside the block, including those that have queued since the port was bound.

        If the server fails, it is restarted, because the other work of the process continues. Raises
        ConfigurationError.
        """
        stopped, tasks = asyncio.Event(), Tasks()
        tasks.start(self._keep(self._config(page), stopped), "monitoring")
        host, port = self._listener.getsockname()[:2]
        log.info("metrics listener started", host=host, port=port)
        try:
            yield
        finally:
            stopped.set()
            await tasks.aclose(grace_s=_STOPPED_WITHIN_S)

    async def _keep(self, config: uvicorn.Config, stopped: asyncio.Event) -> None:
        restarts = Restarts()
        while not stopped.is_set():
            restarts.begin()
            try:
                # The server gets a duplicate, because it closes its socket. The original stays open, so that requests
                # queue until the next server starts.
                await _Server(config, stopped).serve([self._listener.dup()])
            except Exception:  # keeps the task alive: the next server may succeed
                pause_s = restarts.pause_s()
                log.exception("metrics listener failed", again_in_s=pause_s)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await stopped.wait()

    def _config(self, page: MetricsPage | None) -> uvicorn.Config:
        async def metrics(request: Request) -> Response:
            return await metrics_response(request, self._desktop, page)

        async def is_alive(_request: Request) -> Response:
            return Response(b"", media_type="text/plain")

        desktop, prefix = self._desktop, self._desktop.url_prefix.rstrip("/")
        routes = [Route(f"{prefix}/metrics", metrics), Route(f"{prefix}/desktop/debug/is_alive", is_alive)]
        app, within_s = Starlette(routes=routes), _ANSWERED_WITHIN_S
        config = http_config(app, desktop, lifespan="off", backlog=_BACKLOG, timeout_graceful_shutdown=within_s)
        limits = ConnectionLimits(
            request_head_s=_HEAD_WITHIN_S,
            response_stall_s=_STALL_S,
            in_all=_MAX_CONNECTIONS,
            per_address=_MAX_PER_ADDRESS,
            unsent_bytes=_UNSENT_BYTES,
            trusted_proxies=desktop.trusted_proxies,
        )
        try:
            # A separate registry, because the connection metrics of the service count only API clients.
            guard_connections(config, limits, ConnectionCounts(CollectorRegistry()))
        except OSError as error:  # also raised for OpenSSL errors
            problem = f"desktop.ssl_certificate: cannot be used with its key: {error.strerror or error}."
            raise ConfigurationError([problem]) from error
        return config


class _Server(uvicorn.Server):
    """A uvicorn server without signal handlers: the process has its own, and stops this server through `stopped`."""

    def __init__(self, config: uvicorn.Config, stopped: asyncio.Event) -> None:
        super().__init__(config)
        self._stopped = stopped

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stopped` is set. After a failure, close open connections and raise the error."""
        try:
            await super().serve(sockets)
        except Exception:
            if self.started:
                await self.shutdown(sockets)
            raise
        finally:
            for one in sockets or ():
                one.close()

    async def on_tick(self, counter: int) -> bool:
        return self._stopped.is_set() or await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@contextmanager
def metrics_listener(desktop: DesktopSettings) -> Generator[MetricsListener]:
    """Bind the metrics port, so that a port conflict is reported before any slow work. Raises ConfigurationError."""
    tasks = desktop.task_server
    host, port = tasks.metrics_host.strip("[]"), tasks.metrics_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigurationError([_problem(error, host, port)]) from error
    with listener:
        yield MetricsListener(listener, desktop)


def _problem(error: OSError, host: str, port: int) -> str:
    if isinstance(error.__context__, socket.gaierror):  # `create_server` replaces the original error
        return f"{_HOST}: {host} is not an address of this machine."
    match error.errno:
        case errno.EADDRINUSE:
            other = "Choose a different port for each process, for example with --metrics-port."
            return f"{_PORT}: {port} is already in use by another process. {other}"
        case errno.EACCES:
            return f"{_PORT}: permission denied for port {port}."
        case errno.EADDRNOTAVAIL:
            return f"{_HOST}: {host} is not an address of this machine."
        case _:
            return f"{_PORT}: {error.strerror}."
