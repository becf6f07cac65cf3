"""An installation with any number of servers and workers, for measurements."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.processes import postgres_pid
from tests.bench.setting import login_without_limit
from tests.e2e.installation import SECRET_KEY, Installation, Node, WorkerProcess, signed_in
from tests.fixtures.valkey import running_valkey

from queryserver.platform.embedded.sample_server import prepare
from queryserver.platform.migrations import migrate


@dataclass(frozen=True)
class Fleet:
    """Running processes that share one installation."""

    servers: Sequence[Node]
    workers: Sequence[WorkerProcess]
    postgres: int
    """PID of the main PostgreSQL process. This server is both the service database and the data source."""

    @property
    def addresses(self) -> list[str]:
        """The servers' base URLs."""
        return [node.process.base_url for node in self.servers]

    @property
    def pids(self) -> list[int]:
        """PIDs of the servers and workers."""
        return [one.process.pid for one in (*self.servers, *self.workers)]


@asynccontextmanager
async def bench_installation(folder: Path, users: Sequence[str]) -> AsyncIterator[Installation]:
    """Prepare the private PostgreSQL with fsync enabled, the sample data, a local root, and users with tokens."""
    async with prepare(folder / "state") as defaults:
        await migrate(defaults.service_dsn)
        users_dsn = await login_without_limit(defaults)
        (folder / "queryserver.toml").write_text(
            f'[notebook.interpreters.postgresql]\ninterface = "sqlalchemy"\noptions = {{url = "{users_dsn}"}}\n'
        )
        environment = {
            "desktop__secret_key": SECRET_KEY,
            "filebrowser__local_root": str(defaults.files_dir),
            # The measurements' 64 clients share eight users, so each user needs a higher limit.
            "editor__max_statements_per_user": "200",
            "editor__max_streams_per_user": "200",
        }
        tokens = await signed_in(defaults.service_dsn, folder, users)
        yield Installation(folder, defaults.service_dsn, users_dsn, tokens, environment)


@asynccontextmanager
async def running_fleet(
    installation: Installation, *, servers: int = 1, workers: int = 0, lease_s: int = 30
) -> AsyncIterator[Fleet]:
    """Run servers. If `workers` is set, also run a broker and workers, which then run the statements; otherwise, the
    servers run statements themselves.
    """
    async with AsyncExitStack() as stack:
        if workers:
            broker = await stack.enter_async_context(running_valkey())
            installation = installation.with_task_server(broker.url, lease_s=lease_s)
        nodes = [await stack.enter_async_context(installation.server()) for _ in range(servers)]
        started = [await stack.enter_async_context(installation.worker()) for _ in range(workers)]
        yield Fleet(nodes, started, postgres_pid(installation.directory / "state"))
