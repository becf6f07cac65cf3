"""Real database servers for the tests: started on a free loopback port with fresh data, stopped by their own pid."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
_LOG_TAIL = 3000


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A test server's address, and its administrator."""

    host: str
    port: int
    user: str
    password: str


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """A test server's HTTP address."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The URL without a trailing slash."""
        return f"http://{self.host}:{self.port}"


def require(program: Path | None, engine: str) -> Path:
    """Return the program; if missing, skip the test, or fail it if QUERYSERVER_ENGINES names the engine."""
    if program is None or not program.exists():
        unavailable(engine, "its server program is not installed")
    return program


def unavailable(engine: str, reason: str) -> NoReturn:
    """Skip the test, or fail it if QUERYSERVER_ENGINES names the engine."""
    if engine in os.environ.get("QUERYSERVER_ENGINES", "").split(","):
        pytest.fail(f"{engine}: {reason}")
    pytest.skip(f"{engine}: {reason}")


def listens(port: int) -> bool:
    """Return whether a loopback port accepts connections."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def unprivileged_user() -> str | None:
    """Return the user that servers run as; None if the caller is not root. Database servers refuse to run as root."""
    return "nobody" if os.geteuid() == 0 else None


@contextmanager
def data_directory() -> Generator[Path]:
    """Create a short, empty directory that the server's user may write to; remove it afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="qs-"))
    give_to_server(directory)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def give_to_server(path: Path) -> None:
    """Make the server's user the owner of a file or directory."""
    user = unprivileged_user()
    if user is not None:
        account = pwd.getpwnam(user)
        os.chown(path, account.pw_uid, account.pw_gid)


def as_server_user() -> Mapping[str, object]:
    """Return `subprocess` arguments that drop root rights."""
    user = unprivileged_user()
    if user is None:
        return {}
    account = pwd.getpwnam(user)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def run(command: Sequence[str | Path], directory: Path, **options: object) -> None:
    """Run a setup program to completion as the server's user; on failure, its output is in the error."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, **as_server_user(), **options)
    if done.returncode:
        pytest.fail(f"{command[0]} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")


@contextmanager
def serving(
    command: Sequence[str | Path],
    directory: Path,
    ready: Callable[[], bool],
    stop_signal: int,
    *,
    options: Mapping[str, object] | None = None,
    start_timeout_s: float = START_TIMEOUT_S,
) -> Generator[subprocess.Popen[bytes]]:
    """Run the server as a process and wait until it is ready; stop it with `stop_signal`, or kill it if that takes too
    long.

    `options` are for `subprocess.Popen`; by default it runs as the server's user.
    """
    log = directory / "server.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=directory, stdout=output, stderr=output, **(options or as_server_user())
        )
    try:
        deadline = time.monotonic() + start_timeout_s
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command[0]} did not start: {log.read_text(errors='replace')[-_LOG_TAIL:]}")
            time.sleep(0.05)
        yield process
        if process.poll() is not None:
            pytest.fail(f"{command[0]} ended by itself: {log.read_text(errors='replace')[-_LOG_TAIL:]}")
    finally:
        _stop(process, stop_signal)


def _stop(process: subprocess.Popen[bytes], stop_signal: int) -> None:
    process.send_signal(stop_signal)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # Kill remaining processes if the server led a process group.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
