"""Real servers for the tests. They start on free loopback ports with empty data directories, and are stopped by PID."""

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
    """A test server's address, and its administrator's login."""

    host: str
    port: int
    user: str
    password: str


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """The HTTP address of a test server."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The URL without a trailing slash."""
        return f"http://{self.host}:{self.port}"


def require(program: Path | None, engine: str) -> Path:
    """Return the program. If it is missing, skip the test, or fail if QUERYSERVER_ENGINES names the engine."""
    if program is None or not program.exists():
        unavailable(engine, "its server program is not installed")
    return program


def unavailable(engine: str, reason: str) -> NoReturn:
    """Skip the test, or fail if QUERYSERVER_ENGINES names the engine."""
    if engine in os.environ.get("QUERYSERVER_ENGINES", "").split(","):
        pytest.fail(f"{engine}: {reason}")
    pytest.skip(f"{engine}: {reason}")


def listens(port: int) -> bool:
    """Return whether a port on the loopback interface accepts connections."""
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def unprivileged_user() -> str | None:
    """Return the user that servers run as; None if the caller is not root. Database servers refuse to run as root."""
    return "nobody" if os.geteuid() == 0 else None


@contextmanager
def data_directory() -> Generator[Path]:
    """Create an empty directory with a short path that the server's user may write to; delete it on exit."""
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
    """Return arguments for `subprocess` that drop root privileges."""
    user = unprivileged_user()
    if user is None:
        return {}
    account = pwd.getpwnam(user)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def run(command: Sequence[str | Path], directory: Path, **options: object) -> None:
    """Run a setup program as the server's user and wait for it; if it fails, the error contains its output."""
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
    """Run a server process and wait until it is ready. On exit, stop it with `stop_signal`, or kill it if it does not
    stop in time.

    `options` are for `subprocess.Popen`; by default, the process runs as the server's user.
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
    # Kill the remaining processes of the group if the server was a group leader.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
