"""Runs the private PostgreSQL of a state directory while a context is open."""

import asyncio
import fcntl
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import IO, TypeVar
from urllib.parse import quote

from pydantic import SecretStr

from queryserver.platform.embedded.cluster import (
    ENVIRONMENT,
    SAMPLE_DATABASE,
    SAMPLE_ROLE,
    SERVICE_ROLE,
    STORAGE_DIRECTORY,
    SUPERUSER,
    ClusterSecrets,
    EmbeddedPostgresError,
    EmbeddedResources,
    PostgresCluster,
    ServerAccount,
    data_path_argument,
    is_reachable_by_all,
    load_or_create_secrets,
    open_cluster,
    replace_private,
    spawn,
    stop_processes,
)
from queryserver.platform.settings.editor import InterpreterSettings
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import background

LOOPBACK = "127.0.0.1"
SERVICE_HOME, SAMPLE_HOME = "postgresql", "postgresql-sample"
"""The directories of the clusters in the state directory. Earlier versions kept both databases in the first one."""

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_READY_WITHIN_S = 120  # crash recovery replays about `max_wal_size` of WAL
_FAST_STOP_S = 20
_IMMEDIATE_STOP_S = 10
_LOG_BYTES = 4 * 2**20
_ADDRESS_FILE = "address.json"
_SOCKET_PREFIX = "queryserver-"
_SOCKET_PATH_BYTES = 103  # the smallest limit among the supported systems (macOS; Linux permits 107)
_START_ATTEMPTS = 3
_TRIM_EVERY_S = 30
_RESTART_PAUSE_S = 0.5  # limits restarts of a server that dies soon after each start
_RESTART_WAIT_S = (1, 2, 5, 10, 30)

_OPTIONS = {
    "max_connections": "120",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "temp_file_limit": "2GB",  # a single sort must not fill the disk
    "log_min_messages": "log",  # not ERROR: failed statements of users are reported to the users, not logged
    "log_min_error_statement": "panic",
    "log_checkpoints": "off",
}
_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

# Waits until this process ends, even by SIGKILL. Then stops the server, if its PID still belongs to this cluster, and
# removes the empty socket directory.
_GUARD = """\
trap '' INT TERM HUP
read -r clean && exit 0
if [ -d /proc/self ] && ! tr '\\0' ' ' <"/proc/$1/cmdline" | grep -q "$2"; then exit 0; fi
kill -INT "$1"
for tenth in $(seq 300); do kill -0 "$1" || break; sleep 0.1; done
rm -f "$3"/.s.PGSQL.* && rmdir "$3"
"""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server: a socket in a directory that only its account can use, and a loopback port.

    The service database accepts connections only over the socket; the port accepts only logins of the sample roles.
    """

    socket_directory: str
    port: int


class Postmaster:
    """Runs a PostgreSQL server as a child process. Not thread-safe."""

    def __init__(
        self,
        cluster: PostgresCluster,
        *,
        durable: bool,
        options: Mapping[str, str] = MappingProxyType({}),
        address: Address | None = None,
    ) -> None:
        """The server listens at `address`; if None, `start` chooses a new address."""
        self._cluster = cluster
        self._name = cluster.name
        self._options = _OPTIONS | dict(options) | ({} if durable else _NOT_DURABLE)
        self._given_address = address
        self._log_file = cluster.home / "log"
        self._address: Address | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self.ending = Future[int]()
        """Completes with the exit code when the most recently started server exits."""

    @property
    def address(self) -> Address:
        """The address of the server. Restarts do not change it."""
        if self._address is None:
            raise RuntimeError("the server was not started")
        return self._address

    def start(self) -> None:
        """Stop processes of an earlier run, start the server, and wait until it accepts connections.

        Raises EmbeddedPostgresError with the last lines of the server's log.
        """
        stop_processes(self._name, fast_s=_FAST_STOP_S, immediate_s=_IMMEDIATE_STOP_S)
        # No server of this cluster is running, so the file is stale. PostgreSQL would refuse to start if another
        # process happened to have the PID in it.
        (self._cluster.data / "postmaster.pid").unlink(missing_ok=True)
        if self._given_address is not None:
            self._address = self._given_address
            self._launch()
            return
        self._forget_address()
        directory = socket_directory(self._cluster.account)
        for attempt in range(1, _START_ATTEMPTS + 1):
            with socket.socket() as probe:
                probe.bind((LOOPBACK, 0))
                port = probe.getsockname()[1]
            self._address = Address(str(directory), port)
            record_address(self._cluster.home, self._address)
            try:
                self._launch()
            except EmbeddedPostgresError as error:
                # Another program may take the port before the server binds it.
                if "TCP/IP sockets" not in str(error) or attempt == _START_ATTEMPTS:
                    raise
            else:
                return

    def restart(self) -> None:
        """Restart the server at the same address after it has died. Raises EmbeddedPostgresError."""
        stop_processes(self._name, fast_s=0, immediate_s=_IMMEDIATE_STOP_S)
        self._launch()

    def stop(self) -> None:
        """Stop the server by fast shutdown; if that takes more than 20 s, by immediate shutdown. Idempotent.

        A fast shutdown rolls back open transactions and disconnects clients.
        """
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            try:
                self._server.wait(_FAST_STOP_S)
            except subprocess.TimeoutExpired:
                _log.warning("embedded PostgreSQL did not stop in time; stopping without a final checkpoint")
            stop_processes(self._name, fast_s=0, immediate_s=_IMMEDIATE_STOP_S)
            self._server.wait(_IMMEDIATE_STOP_S)
        self._dismiss_guard()
        self._forget_address()

    def trim_log(self) -> None:
        """Truncate the log if it exceeds 4 MiB. Its previous content is kept as `log.old`."""
        with suppress(FileNotFoundError):
            if self._log_file.stat().st_size > _LOG_BYTES:
                shutil.copyfile(self._log_file, self._log_file.with_name("log.old"))
                os.truncate(self._log_file, 0)

    def _launch(self) -> None:
        self._dismiss_guard()
        self.trim_log()
        address = self.address
        command: list[str | Path] = [self._cluster.programs / "bin" / "postgres"]
        command += ["-D", data_path_argument(self._cluster.data, self._cluster.account)]
        command += ["-h", LOOPBACK, "-p", str(address.port), "-k", address.socket_directory]
        command += [f"--cluster_name={self._name}", *(f"--{name}={value}" for name, value in self._options.items())]
        with open(self._log_file, "ab", opener=_open_private) as output:
            self._server = spawn(
                command,
                account=self._cluster.account,
                cwd=self._cluster.data,
                environment=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                output=output,
            )
        # In a thread, because the event loop has no portable way to wait for a process that it did not start.
        self.ending = Future()
        waiting = partial(_wait_for, self._server, self.ending)
        Thread(target=waiting, name="embedded-postgres-ending", daemon=True).start()
        self._guard = spawn(
            ["/bin/sh", "-c", _GUARD, "queryserver-guard", str(self._server.pid), self._name, address.socket_directory],
            account=None,  # runs under the account that created the socket directory and so can remove it
            cwd=Path("/"),
            environment=ENVIRONMENT,
            stdin=subprocess.PIPE,
            output=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _READY_WITHIN_S
        while not self._is_ready(self._server.pid):
            if self._server.poll() is not None:
                raise self._start_error("The embedded PostgreSQL exited during startup.")
            if time.monotonic() > deadline:
                raise self._start_error(f"The embedded PostgreSQL was not ready within {_READY_WITHIN_S} s.")
            time.sleep(0.01)

    def _is_ready(self, pid: int) -> bool:
        """Return whether the server is ready, checked like pg_ctl: line 1 of the file is the PID, line 8 the status."""
        try:
            lines = (self._cluster.data / "postmaster.pid").read_text().split("\n")
        except FileNotFoundError:
            return False
        return lines[0] == str(pid) and len(lines) > 7 and lines[7].startswith("ready")

    def _start_error(self, text: str) -> EmbeddedPostgresError:
        tail = self._log_file.read_text(errors="replace")[-2000:]
        return EmbeddedPostgresError(f"{text} Last lines of {self._log_file}:\n{tail}")

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            pipe: IO[bytes] | None = self._guard.stdin
            if pipe is not None:
                with suppress(BrokenPipeError), pipe:
                    pipe.write(b"clean\n")
            self._guard.wait(10)
            self._guard = None

    def _forget_address(self) -> None:
        forget_address(self._cluster.home, self._address)


def record_address(home: Path, address: Address) -> None:
    """Record the server's address for other processes (`running_resources`) and for the next start."""
    replace_private(home / _ADDRESS_FILE, json.dumps(asdict(address)))


def forget_address(home: Path, address: Address | None = None) -> None:
    """Remove the recorded address and the socket directory of `address`, which defaults to the recorded address."""
    address = address or recorded_address(home)
    if address is not None and Path(address.socket_directory).name.startswith(_SOCKET_PREFIX):
        shutil.rmtree(address.socket_directory, ignore_errors=True)
    (home / _ADDRESS_FILE).unlink(missing_ok=True)


def recorded_address(home: Path) -> Address | None:
    """Return the recorded server address; None after a clean stop. After a SIGKILL, the recorded address is stale."""
    try:
        return Address(**json.loads((home / _ADDRESS_FILE).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def socket_directory(account: ServerAccount | None) -> Path:
    """Create a private directory with a short path, because socket paths in the state directory may be too long."""
    candidates = [Path("/run")] if account else []
    for parent in (*candidates, Path(tempfile.gettempdir()), Path("/tmp")):  # noqa: S108 mkdtemp makes it private
        if not parent.is_dir() or not os.access(parent, os.W_OK) or (account and not is_reachable_by_all(parent)):
            continue
        if len(os.fsencode(parent / f"{_SOCKET_PREFIX}12345678/.s.PGSQL.65535")) <= _SOCKET_PATH_BYTES:
            directory = Path(tempfile.mkdtemp(prefix=_SOCKET_PREFIX, dir=parent))
            if account:
                account.own(directory)
            return directory
    raise EmbeddedPostgresError(
        "There is no directory for the socket of the embedded PostgreSQL: neither TMPDIR nor /tmp is usable."
    )


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


class EmbeddedPostgres:
    """A running server that is restarted at the same address if it dies."""

    def __init__(self, cluster: PostgresCluster, address: Address) -> None:
        self.cluster = cluster
        self.address = address
        """The address of the server. Restarts do not change it."""
        self.defaults = _resources(cluster.home, address, cluster.secrets)

    @classmethod
    @asynccontextmanager
    async def start(cls, state_dir: Path, *, durable: bool = True) -> AsyncGenerator["EmbeddedPostgres"]:
        """Start the server in `state_dir`, which is created (mode 0700) if missing. The server stops on exit.

        `durable=False` is for tests: a power failure may then destroy the data, but a server crash does not. Raises
        EmbeddedPostgresError, also if another server uses the state directory.
        """
        home = await asyncio.to_thread(cluster_home, state_dir)
        with file_lock(home / "lock"):
            cluster = await run_to_completion(lambda: open_cluster(home, durable=durable))
            postmaster = Postmaster(cluster, durable=durable)
            try:
                await run_to_completion(postmaster.start)
                async with background(watch(postmaster), "embedded-postgres-watch"):
                    yield cls(cluster, postmaster.address)
            finally:
                await run_to_completion(postmaster.stop)

    def admin_dsn(self, database: str = "postgres") -> str:
        return _socket_dsn(self.address, SUPERUSER, self.cluster.secrets.superuser, database)

    def service_dsn(self, database: str = SERVICE_ROLE) -> str:
        """Return the DSN of the service database. Its role owns the database and is not a superuser."""
        return _socket_dsn(self.address, SERVICE_ROLE, self.cluster.secrets.service, database)


def _resources(home: Path, address: Address, secrets: ClusterSecrets) -> EmbeddedResources:
    return EmbeddedResources(
        service_dsn=_socket_dsn(address, SERVICE_ROLE, secrets.service, SERVICE_ROLE),
        sample_dsn=_sample_dsn(address, secrets),
        databases_dir=home.parent / "databases",
        files_dir=home.parent / STORAGE_DIRECTORY,
    )


def _socket_dsn(address: Address, role: str, password: str, database: str) -> str:
    login, host = f"{role}:{quote(password, safe='')}", quote(address.socket_directory, safe="")
    return f"postgresql://{login}@/{quote(database, safe='')}?host={host}&port={address.port}"


def cluster_home(state_dir: Path, name: str = SERVICE_HOME) -> Path:
    """Return a cluster's directory in the state directory, created (mode 0700) if missing.

    Raises EmbeddedPostgresError.
    """
    home = state_dir.resolve() / name
    try:
        home.parent.parent.mkdir(parents=True, exist_ok=True)
        home.parent.mkdir(mode=0o700, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise EmbeddedPostgresError(f"The state directory {state_dir} cannot be used: {error.strerror}.") from error
    return home


@contextmanager
def file_lock(file: Path) -> Generator[None]:
    """Hold a file lock while the context is open. The kernel releases it when the process ends, even by SIGKILL.

    Raises EmbeddedPostgresError if another process holds it.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EmbeddedPostgresError(
                f"Another server uses the state directory {file.parent.parent}. Stop it, or choose another directory."
            ) from None
        yield
    finally:
        os.close(descriptor)


def _wait_for(server: subprocess.Popen[bytes], ending: Future[int]) -> None:
    ending.set_result(server.wait())


async def watch(postmaster: Postmaster) -> None:
    """Restart the server whenever it exits, and keep its log small. Runs until canceled."""
    ending, failures = asyncio.wrap_future(postmaster.ending), 0
    while True:
        await asyncio.wait({ending}, timeout=_TRIM_EVERY_S)
        try:
            if ending.done():
                _log.error("embedded PostgreSQL exited; restarting")
                await asyncio.sleep(_RESTART_PAUSE_S)
                try:
                    await run_to_completion(postmaster.restart)
                finally:
                    ending = asyncio.wrap_future(postmaster.ending)
            else:
                await run_to_completion(postmaster.trim_log)
            failures = 0
        except (EmbeddedPostgresError, OSError):
            _log.exception("embedded PostgreSQL could not be restarted or maintained")
            await asyncio.sleep(_RESTART_WAIT_S[min(failures, len(_RESTART_WAIT_S) - 1)])
            failures += 1


async def run_to_completion(work: Callable[[], _T]) -> _T:
    """Run blocking work in a thread. A canceled caller still waits for the work, so that no thread is abandoned."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def running_resources(state_dir: Path) -> EmbeddedResources | None:
    """Return the resources of the server that runs in a state directory; None if none is running.

    After a SIGKILL the recorded address is stale, so connecting fails. Raises EmbeddedPostgresError.
    """
    home, sample_home = (state_dir.resolve() / name for name in (SERVICE_HOME, SAMPLE_HOME))
    address = recorded_address(home)
    if address is None:
        return None
    defaults = _resources(home, address, load_or_create_secrets(home / "secrets.json", may_create=False))
    sample = recorded_address(sample_home)
    if sample is None:
        return defaults
    return with_sample(defaults, sample, load_or_create_secrets(sample_home / "secrets.json", may_create=False))


def with_sample(defaults: EmbeddedResources, address: Address, secrets: ClusterSecrets) -> EmbeddedResources:
    """Return the resources with the sample database of the cluster at `address`."""
    return replace(
        defaults,
        sample_dsn=_sample_dsn(address, secrets),
        sample_admin_dsn=_socket_dsn(address, SERVICE_ROLE, secrets.service, "postgres"),
    )


def _sample_dsn(address: Address, secrets: ClusterSecrets) -> str:
    login = f"{SAMPLE_ROLE}:{quote(secrets.sample, safe='')}"
    return f"postgresql://{login}@{LOOPBACK}:{address.port}/{SAMPLE_DATABASE}"


def with_embedded_resources(settings: Settings, defaults: EmbeddedResources) -> Settings:
    """Return the settings for a server that uses these resources. Configured interpreters replace the sample
    interpreters.
    """
    desktop = settings.desktop
    database = desktop.database.model_copy(
        update={"url": SecretStr(defaults.service_dsn), "embedded": True, "auto_migrate": True}
    )
    policy = desktop.connector_policy.model_copy(
        update={"local_database_dir": desktop.connector_policy.local_database_dir or defaults.databases_dir}
    )
    local_root = settings.filebrowser.local_root or defaults.files_dir
    interpreters = settings.notebook.interpreters or sample_interpreters(defaults)
    admin_dsn = SecretStr(defaults.sample_admin_dsn) if defaults.sample_admin_dsn else None
    settings = settings.read_from(replace(settings.sources, sample_admin_dsn=admin_dsn))
    return settings.model_copy(
        update={
            "desktop": desktop.model_copy(update={"database": database, "connector_policy": policy}),
            "filebrowser": settings.filebrowser.model_copy(update={"local_root": local_root}),
            "notebook": settings.notebook.model_copy(update={"interpreters": interpreters}),
        }
    )


def sample_interpreters(defaults: EmbeddedResources) -> dict[str, InterpreterSettings]:
    """Return the interpreter settings for the three dialects that have sample data."""
    return {
        "duckdb": InterpreterSettings(name="DuckDB", interface="duckdb", options={"path": defaults.duckdb_path}),
        "postgresql": InterpreterSettings(
            name="PostgreSQL", interface="sqlalchemy", options={"url": defaults.sample_dsn}
        ),
        "sqlite": InterpreterSettings(name="SQLite", interface="sqlite", options={"path": defaults.sqlite_path}),
    }
