"""Runs the server as a separate process, as an operator would. Used by end-to-end tests."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import httpx
from tests.fixtures.program import ForkedProcess
from tests.ports import free_port

ALIVE_WITHIN_S = 120
STOP_WITHIN_S = 60
PROGRAM = Path(sys.executable).with_name("queryserver")

_SLICE_S = 0.005
_LONGER_EVERY_S = 10.0
_numbers = count(1)


@dataclass(frozen=True)
class ServerProcess:
    """A running server. Its output is written to files, so it never blocks because a pipe is full."""

    process: asyncio.subprocess.Process | ForkedProcess
    base_url: str
    stdout_file: Path
    stderr_file: Path

    @property
    def pid(self) -> int:
        """PID of the process that was started."""
        return self.process.pid

    @property
    def stdout(self) -> str:
        """The server's standard output so far."""
        return self.stdout_file.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """The server's standard error output so far."""
        return self.stderr_file.read_text(errors="replace")

    async def kill9(self) -> None:
        """Send SIGKILL, and wait until the process has exited. Like a power failure, this leaves it no time to clean
        up.
        """
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await asyncio.wait_for(self.process.wait(), STOP_WITHIN_S)

    async def kill9_in(self, middle: Callable[[], Awaitable[object]], *, within_s: float = 60) -> None:
        """Kill the process when `middle` returns true.

        The process is paused (SIGSTOP) while `middle` is evaluated, so that the condition still holds when the process
        is killed.
        """
        began, seconds = time.monotonic(), _SLICE_S
        try:
            async with asyncio.timeout(within_s):
                self.process.send_signal(signal.SIGSTOP)
                while not await middle():
                    self._go_on(seconds)
                    # On a busy machine, the process may not get the CPU at all within so short a time.
                    seconds = _SLICE_S * (1 + (time.monotonic() - began) // _LONGER_EVERY_S)
        except TimeoutError as error:
            message = f"it did not get to the middle within {within_s:g} s:\n{self.stdout}\n{self.stderr}"
            raise AssertionError(message) from error
        finally:
            await self.kill9()

    def _go_on(self, seconds: float) -> None:
        """Resume the paused process for this time. Blocks the event loop, because other tasks could otherwise delay the
        next pause.
        """
        self.process.send_signal(signal.SIGCONT)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGSTOP)

    async def terminate(self) -> int:
        """Send SIGTERM, as a service manager does; return the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), STOP_WITHIN_S)

    async def wait_until_alive(self) -> None:
        """Wait until the server responds. Fails with the server's output if it exits or is too slow."""
        async with httpx.AsyncClient(base_url=self.base_url, timeout=2) as client:
            for _ in range(ALIVE_WITHIN_S * 20):
                if self.process.returncode is not None:
                    break
                try:
                    if (await client.get("/desktop/debug/is_alive")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
        message = f"the server is not alive (exit code {self.process.returncode}):\n{self.stdout}\n{self.stderr}"
        raise AssertionError(message)


@asynccontextmanager
async def running_server(
    data_dir: Path,
    *,
    database_dsn: str | None = None,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> AsyncIterator[ServerProcess]:
    """Run `queryserver serve` on the database `database_dsn`, or with `--embedded` if that is None. Stop it on exit.

    `settings` are environment variables, such as `QUERYSERVER__EDITOR__LEASE_TIMEOUT_S`.
    """
    port = port or free_port()
    command = [str(PROGRAM), "serve", "--port", str(port), *arguments]
    environment = {"QUERYSERVER__DESKTOP__DATA_DIR": str(data_dir)}
    if database_dsn is None:
        command.append("--embedded")
    else:
        environment["QUERYSERVER__DESKTOP__DATABASE__URL"] = database_dsn
    async with started(command, port, data_dir.parent, environment | dict(settings or {})) as server:
        await server.wait_until_alive()
        yield server


@asynccontextmanager
async def started(
    command: Sequence[str], port: int, output_dir: Path, environment: Mapping[str, str], *, cwd: Path | None = None
) -> AsyncIterator[ServerProcess]:
    """Start a command that serves on `port`. Does not wait until it is ready.

    The QUERYSERVER variables of this process are removed from the command's environment.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("QUERYSERVER")}
    number = next(_numbers)
    stdout_file, stderr_file = output_dir / f"server-{number}.out", output_dir / f"server-{number}.err"
    with stdout_file.open("wb") as stdout, stderr_file.open("wb") as stderr:
        environment = inherited | dict(environment)
        cwd = cwd or output_dir
        if _may_be_forked(command):
            process = await ForkedProcess.start(command[1:], cwd=cwd, env=environment, files=(stdout, stderr))
        else:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd,
                env=environment,
                start_new_session=True,
            )
    server = ServerProcess(process, f"http://127.0.0.1:{port}", stdout_file, stderr_file)
    try:
        yield server
    finally:
        try:
            await server.terminate()
        finally:
            await server.kill9()


def _may_be_forked(command: Sequence[str]) -> bool:
    """Return whether a process that has already imported the program may be forked to run this command. Only servers
    without worker processes may be forked, and only in tests.
    """
    return command[0] == str(PROGRAM) and "--workers" not in command and "PYTEST_VERSION" in os.environ
