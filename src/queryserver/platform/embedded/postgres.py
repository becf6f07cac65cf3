"""The private PostgreSQL of one state directory, for the life of a `with`."""

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from pydantic import SecretStr

from queryserver.platform.embedded.cluster import SERVICE_ROLE, SUPERUSER, Cluster, opened_cluster
from queryserver.platform.embedded.postmaster import LOOPBACK, Postmaster, recorded_address
from queryserver.platform.embedded.system import (
    SAMPLE_DATABASE,
    SAMPLE_ROLE,
    STORAGE_DIRECTORY,
    EmbeddedDefaults,
    EmbeddedPostgresError,
    kept_secrets,
)
from queryserver.platform.settings.editor import InterpreterSettings
from queryserver.platform.settings.tree import Settings

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_LOOK_EVERY_S = 0.5
_TRIM_EVERY_LOOKS = 60
_RESTART_WAIT_S = (1, 2, 5, 10, 30)


class EmbeddedPostgres:
    """A running server. It is started again, at the same addresses, when it dies under us."""

    def __init__(self, cluster: Cluster, postmaster: Postmaster) -> None:
        self._cluster = cluster
        self._postmaster = postmaster

    @classmethod
    @asynccontextmanager
    async def start(cls, state_dir: Path, *, durable: bool = True) -> AsyncGenerator["EmbeddedPostgres"]:
        """Start the server of `state_dir`, which is made (0700) if missing; stop it on leaving.

        `durable=False` is for tests: a power cut may destroy the data, a crash of the server does not.
        Raises EmbeddedPostgresError, also where another server runs on the same state directory.
        """
        home = await asyncio.to_thread(_home, state_dir)
        with _locked(home / "lock"):
            cluster = await _to_the_end(lambda: opened_cluster(home, durable=durable))
            postmaster = Postmaster(cluster, durable=durable)
            try:
                await _to_the_end(postmaster.start)
                async with _kept_alive(postmaster):
                    yield cls(cluster, postmaster)
            finally:
                await _to_the_end(postmaster.stop)

    @property
    def state_directory(self) -> Path:
        """Where everything of this server is kept; absolute."""
        return self._cluster.home.parent

    @property
    def socket_directory(self) -> Path:
        """Directory of the server's socket, closed to other accounts. The service's database is reached by it only."""
        return Path(self._postmaster.address.socket_directory)

    @property
    def port(self) -> int:
        """Port on 127.0.0.1 (and number of the socket). It takes logins of the sample role only."""
        return self._postmaster.address.port

    def admin_dsn(self, database: str = "postgres") -> str:
        """For making roles and databases."""
        return self._socket_dsn(SUPERUSER, self._cluster.secrets.superuser, database)

    def service_dsn(self, database: str = SERVICE_ROLE) -> str:
        """For the service's own tables; the role owns its database and is no superuser."""
        return self._socket_dsn(SERVICE_ROLE, self._cluster.secrets.service, database)

    def sample_dsn(self) -> str:
        """For statements of users: a role that can open the sample database and nothing else."""
        password = quote(self._cluster.secrets.sample, safe="")
        return f"postgresql://{SAMPLE_ROLE}:{password}@{LOOPBACK}:{self.port}/{SAMPLE_DATABASE}"

    def role_password(self, role: str) -> str:
        """The password that `role` shall have: of the service role or the sample role."""
        return {SERVICE_ROLE: self._cluster.secrets.service, SAMPLE_ROLE: self._cluster.secrets.sample}[role]

    def _socket_dsn(self, role: str, password: str, database: str) -> str:
        host = quote(str(self.socket_directory), safe="")
        login = f"{role}:{quote(password, safe='')}"
        return f"postgresql://{login}@/{quote(database, safe='')}?host={host}&port={self.port}"


def _home(state_dir: Path) -> Path:
    home = state_dir.resolve() / "postgresql"
    try:
        home.parent.parent.mkdir(parents=True, exist_ok=True)
        home.parent.mkdir(mode=0o700, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        message = f"The state directory {state_dir} cannot be used: {error.strerror}."
        raise EmbeddedPostgresError(message) from error
    return home


@contextmanager
def _locked(file: Path) -> Generator[None]:
    """The kernel lets go of the lock when the process ends, in whatever way."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = (
                f"Another server runs on the state directory {file.parent.parent}. Stop it, or choose another one."
            )
            raise EmbeddedPostgresError(message) from None
        yield
    finally:
        os.close(descriptor)


@asynccontextmanager
async def _kept_alive(postmaster: Postmaster) -> AsyncGenerator[None]:
    watch = asyncio.create_task(_watch(postmaster), name="embedded-postgres-watch")
    try:
        yield
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


async def _watch(postmaster: Postmaster) -> None:
    looks = failures = 0
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        looks += 1
        try:
            if not postmaster.is_running:
                _log.error("the embedded PostgreSQL has died and is started again")
                await _to_the_end(postmaster.restart)
            elif looks % _TRIM_EVERY_LOOKS == 0:
                await _to_the_end(postmaster.trim_log)
            failures = 0
        except (EmbeddedPostgresError, OSError):
            _log.exception("the embedded PostgreSQL is in trouble")
            await asyncio.sleep(_RESTART_WAIT_S[min(failures, len(_RESTART_WAIT_S) - 1)])
            failures += 1


async def _to_the_end(work: Callable[[], _T]) -> _T:
    """Do blocking work in a thread. A cancelled caller leaves only when it is done: nothing runs on unseen."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def running_defaults(state_dir: Path) -> EmbeddedDefaults | None:
    """Where the server of a state directory has its databases; None when none runs there.

    After a kill -9 the answer is stale, and connecting fails. Raises EmbeddedPostgresError.
    """
    home = state_dir.resolve() / "postgresql"
    address = recorded_address(home)
    if address is None:
        return None
    secrets = kept_secrets(home / "secrets.json", may_create=False)
    host = quote(address.socket_directory, safe="")
    service, sample = quote(secrets.service, safe=""), quote(secrets.sample, safe="")
    return EmbeddedDefaults(
        service_dsn=f"postgresql://{SERVICE_ROLE}:{service}@/{SERVICE_ROLE}?host={host}&port={address.port}",
        sample_dsn=f"postgresql://{SAMPLE_ROLE}:{sample}@{LOOPBACK}:{address.port}/{SAMPLE_DATABASE}",
        databases_dir=home.parent / "databases",
        files_dir=home.parent / STORAGE_DIRECTORY,
    )


def with_defaults(settings: Settings, defaults: EmbeddedDefaults) -> Settings:
    """The settings to serve with. Interpreters of the settings file take the place of the sample ones."""
    desktop = settings.desktop
    database = desktop.database.model_copy(
        update={"url": SecretStr(defaults.service_dsn), "embedded": True, "auto_migrate": True}
    )
    policy = desktop.connector_policy.model_copy(
        update={"local_database_dir": desktop.connector_policy.local_database_dir or defaults.databases_dir}
    )
    local_root = settings.filebrowser.local_root or defaults.files_dir
    interpreters = settings.notebook.interpreters or sample_interpreters(defaults)
    return settings.model_copy(
        update={
            "desktop": desktop.model_copy(update={"database": database, "connector_policy": policy}),
            "filebrowser": settings.filebrowser.model_copy(update={"local_root": local_root}),
            "notebook": settings.notebook.model_copy(update={"interpreters": interpreters}),
        }
    )


def sample_interpreters(defaults: EmbeddedDefaults) -> dict[str, InterpreterSettings]:
    """The three dialects that are there at once, with the sample data."""
    return {
        "duckdb": InterpreterSettings(name="DuckDB", interface="duckdb", options={"path": defaults.duckdb_path}),
        "postgresql": InterpreterSettings(
            name="PostgreSQL", interface="sqlalchemy", options={"url": defaults.sample_dsn}
        ),
        "sqlite": InterpreterSettings(name="SQLite", interface="sqlite", options={"path": defaults.sqlite_path}),
    }
