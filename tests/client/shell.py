"""Runs `qs` as a separate process, with its own configuration."""

import asyncio
import csv
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.client import forking


@dataclass(frozen=True)
class CommandOutput:
    """The output and exit code of a command."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode().replace("\r\n", "\n")

    @property
    def records(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.text)))


@dataclass(frozen=True)
class RunningCommand:
    """A command that is still running."""

    pid: int
    _out: asyncio.Task[bytes]
    _err: asyncio.Task[bytes]
    _code: asyncio.Task[bytes]

    async def end(self) -> CommandOutput:
        async with asyncio.timeout(60):
            out, err, code = await asyncio.gather(self._out, self._err, self._code)
        return CommandOutput(int(code), out, err.decode())


@dataclass(frozen=True)
class Qs:
    """The command line of one user, which has its own configuration directory."""

    environment: Mapping[str, str]
    directory: Path
    requests: socket.socket

    async def start(self, *words: str, stdin: str = "") -> RunningCommand:
        (command_in, to_in), (from_out, command_out), (from_err, command_err) = (os.pipe() for _ in range(3))
        pid, code = await self.start_at([command_in, command_out, command_err], *words)
        with os.fdopen(to_in, "w") as file:
            file.write(stdin)
        return RunningCommand(pid, _reading(os.fdopen(from_out, "rb")), _reading(os.fdopen(from_err, "rb")), code)

    async def start_at(self, standard: list[int], *words: str) -> "tuple[int, asyncio.Task[bytes]]":
        """Start a command whose stdin, stdout and stderr are these descriptors, which are then closed in this process.

        Returns the command's PID and a task that returns its exit code.
        """
        from_report, report = os.pipe()
        message = json.dumps({"words": words, "environment": dict(self.environment)}).encode()
        socket.send_fds(self.requests, [message], [*standard, report])
        for descriptor in {*standard, report}:
            os.close(descriptor)
        lines: IO[bytes] = os.fdopen(from_report, "rb")
        pid = int(await asyncio.to_thread(lines.readline))
        return pid, _reading(lines)

    async def __call__(self, *words: str, stdin: str = "") -> CommandOutput:
        return await (await self.start(*words, stdin=stdin)).end()


Make = Callable[..., Qs]


@contextmanager
def forker() -> Iterator[socket.socket]:
    """Run the process that starts commands; yield the socket for requests to it."""
    parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with parent_end, child_end:
        command = [sys.executable, forking.__file__, str(child_end.fileno())]
        with subprocess.Popen(command, pass_fds=[child_end.fileno()]) as process:
            child_end.close()
            yield parent_end
            parent_end.close()
            process.wait(10)


def maker(directory: Path, requests: socket.socket) -> Make:
    """Return a function that builds command lines. They share a configuration directory, and only the given QUERYSERVER
    variables are set for them.
    """

    def made(**variables: str) -> Qs:
        environment = clean_environment() | {"QUERYSERVER_CONFIG_DIR": str(directory / "config"), **variables}
        return Qs(environment, directory, requests)

    return made


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("QUERYSERVER_")}


def _reading(file: IO[bytes]) -> asyncio.Task[bytes]:
    def read() -> bytes:
        with file:
            return file.read()

    return asyncio.create_task(asyncio.to_thread(read))
