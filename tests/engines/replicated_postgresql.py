"""PostgreSQL with a synchronous standby that can replace the primary when it dies."""

import os
import signal
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engines.postgresql import BINARIES, accepts
from tests.engines.servers import ServerAddress, as_server_user, data_directory, require, run, serving
from tests.ports import free_port

_PASSWORD = "secret"
_SETTINGS = {"fsync": "off", "shared_buffers": "64MB", "unix_socket_directories": "", "listen_addresses": "127.0.0.1"}
_STARTED_WITHIN_S = 60


@dataclass
class ServerPair:
    """A primary (`first`) and a standby (`second`), which has every transaction that the primary has committed."""

    first: ServerAddress
    second: ServerAddress
    _directory: Path
    _first: "subprocess.Popen[bytes]"

    def dsn(self, database: str) -> str:
        """Return a DSN that connects to whichever server is writable."""
        login = f"{self.first.user}:{self.first.password}"
        hosts = f"127.0.0.1:{self.first.port},127.0.0.1:{self.second.port}"
        return f"postgresql://{login}@{hosts}/{database}?target_session_attrs=read-write"

    def kill_first(self) -> None:
        """Stop the primary permanently through an immediate shutdown (SIGQUIT)."""
        self._first.send_signal(signal.SIGQUIT)
        self._first.wait(_STARTED_WITHIN_S)

    def promote_second(self) -> None:
        """Promote the standby and wait until it is writable."""
        run([BINARIES / "pg_ctl", "promote", "-w", "-D", self._directory / "second"], self._directory)

    def execute(self, statement: str) -> str:
        """Execute a statement on the primary as its administrator; return the output."""
        return _psql(self.first, statement)


@contextmanager
def replicated() -> Generator[ServerPair]:
    """Start a primary and a standby with PostgreSQL 15 from the system's packages (Debian: postgresql-15)."""
    require(BINARIES / "postgres", "postgresql15")
    with data_directory() as directory, ExitStack() as stack:
        first, second = [ServerAddress("127.0.0.1", free_port(), "admin", _PASSWORD) for _ in range(2)]
        password_file = directory / "password"
        password_file.write_text(_PASSWORD)
        login = ["-U", "admin", "--pwfile", password_file, "-A", "scram-sha-256"]
        initdb = [BINARIES / "initdb", "-D", directory / "first", *login, "-E", "UTF8", "--locale=C", "--no-sync"]
        run(initdb, directory, env={**os.environ, "LC_ALL": "C"})
        with (directory / "first.log").open("wb") as log:
            process = subprocess.Popen(
                _command(directory / "first", first), cwd=directory, stdout=log, stderr=log, **as_server_user()
            )
        stack.callback(_end, process)
        deadline = time.monotonic() + _STARTED_WITHIN_S
        while not accepts(first):
            assert time.monotonic() < deadline, (directory / "first.log").read_text()
            time.sleep(0.05)
        address = ["-h", first.host, "-p", str(first.port), "-U", first.user]
        copy = [BINARIES / "pg_basebackup", *address, "-D", directory / "second", "-R", "-X", "stream", "--no-sync"]
        run([*copy, "--checkpoint=fast"], directory, env={**os.environ, "PGPASSWORD": _PASSWORD})
        stack.enter_context(
            serving(_command(directory / "second", second), directory, lambda: accepts(second), signal.SIGINT)
        )
        _psql(first, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        _psql(first, "SELECT pg_reload_conf()")
        while "sync" not in _psql(first, "SELECT sync_state FROM pg_stat_replication").split():
            assert time.monotonic() < deadline, "the standby does not follow"
            time.sleep(0.05)
        yield ServerPair(first, second, directory, process)


def _command(data: Path, address: ServerAddress) -> Sequence[str | Path]:
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    return [BINARIES / "postgres", "-D", data, "-p", str(address.port), *settings]


def _psql(address: ServerAddress, statement: str) -> str:
    to = ["-h", address.host, "-p", str(address.port), "-U", address.user, "-d", "postgres", "-At", "-c", statement]
    environment = {**os.environ, "PGPASSWORD": address.password}
    return subprocess.run(
        [BINARIES / "psql", *to], env=environment, check=True, timeout=30, capture_output=True, text=True
    ).stdout


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGQUIT)
    process.wait(_STARTED_WITHIN_S)
