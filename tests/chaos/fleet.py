"""The fleet under test. Each component is a process that can be killed, paused and restarted."""

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tests.e2e.harness import PROGRAM
from tests.e2e.installation import SECRET_KEY, signed_in
from tests.engines.servers import as_server_user, data_directory, listens, serving
from tests.fixtures.database import ensure_databases, execute
from tests.fixtures.valkey import running_valkey
from tests.ports import free_port

from queryserver.platform.embedded.cluster import SERVICE_ROLE
from queryserver.platform.embedded.companions import ValkeyServer
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.embedded.sample import sample_tables
from queryserver.platform.migrations import migrate

SERVERS, WORKERS = 3, 2
LEASE_S = 10
STATEMENT_LIMIT_S = 90
TARGET = "target"
_GRACE_S = 10
_READY_WITHIN_S = 120
_STOP_WITHIN_S = 60
_NGINX_CONF = Path(__file__).resolve().parents[2] / "deploy" / "nginx" / "nginx.conf"
_PROGRAMS = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"


@dataclass(eq=False)
class Member:
    """One process of the fleet. It writes to the same log file after a restart."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    base_url: str = ""
    """The URL of a server. Other processes have none."""
    taken: bool = False
    """Whether a disturbance currently affects the process."""
    process: asyncio.subprocess.Process | None = None
    starts_again: int = 0
    """How often the process was restarted because it exited during startup."""
    _said_before: int = 0

    async def start(self) -> None:
        """Start the process without waiting until it works."""
        self._said_before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self.environment,
                start_new_session=True,
            )

    async def ready(self) -> None:
        """Wait until the process works. Raises AssertionError with the end of its log on timeout."""
        async with httpx.AsyncClient(timeout=5) as http:
            try:
                await until(lambda: self._works(http), _READY_WITHIN_S)
            except TimeoutError:
                raise AssertionError(f"{self.name} is not ready:\n{self.log.read_text()[-3000:]}") from None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process unless it has exited."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def kill(self) -> None:
        """Send SIGKILL, and wait until the process has exited."""
        self.send(signal.SIGKILL)
        if self.process is not None:
            await asyncio.wait_for(self.process.wait(), _STOP_WITHIN_S)

    async def stop(self) -> bool:
        """Send SIGTERM. Returns whether the process exited in time; otherwise it is killed."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        if self.process is None:
            return True
        try:
            await asyncio.wait_for(self.process.wait(), _STOP_WITHIN_S)
        except TimeoutError:
            await self.kill()
            return False
        return True

    async def _works(self, http: httpx.AsyncClient) -> bool:
        assert self.process is not None
        if self.process.returncode is not None:
            # Restart the process, as a service manager would. It may have exited because a dependency was unavailable.
            await self.start()
            self.starts_again += 1
            await asyncio.sleep(1)
        if not self.base_url:
            with self.log.open("rb") as said:
                said.seek(self._said_before)
                return b"queryserver runs" in said.read()
        try:
            return (await http.get(f"{self.base_url}/desktop/debug/is_ready")).status_code == 200
        except httpx.TransportError:
            return False


@dataclass
class Fleet:
    """All processes of the fleet, and the addresses that clients call."""

    directory: Path
    postgres: EmbeddedPostgres
    valkey: ValkeyServer
    service_dsn: str
    target_dsn: str
    """The superuser's DSN of the target database, for checking the effects of statements."""
    tokens: Mapping[str, str]
    servers: list[Member] = field(default_factory=list)
    workers: list[Member] = field(default_factory=list)
    beat: list[Member] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    """The URL of nginx if it is installed, and otherwise the URLs of all servers."""

    @property
    def members(self) -> list[Member]:
        return [*self.servers, *self.workers, *self.beat]

    @property
    def results(self) -> Path:
        """The path at which the processes store results. It is a symbolic link, which can disappear like a mount."""
        return self.directory / "data" / "results"


@asynccontextmanager
async def running_fleet(logs: Path, users: Sequence[str]) -> AsyncGenerator[Fleet]:
    """Run 3 servers, 2 workers, 1 beat, PostgreSQL, Valkey, and nginx if it is installed. All of them are stopped on
    exit.
    """
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="queryserver-chaos-")))
        postgres = await stack.enter_async_context(EmbeddedPostgres.start(directory / "postgres"))
        valkey = await stack.enter_async_context(running_valkey())
        service_dsn, users_dsn = await _databases(postgres)
        (directory / "data").mkdir()
        (directory / "store").mkdir(mode=0o700)
        (directory / "data" / "results").symlink_to(directory / "store")
        tokens = await signed_in(service_dsn, directory, users)
        fleet = Fleet(directory, postgres, valkey, service_dsn, postgres.admin_dsn(TARGET), tokens)
        environment = _environment(fleet, users_dsn)
        for number in range(SERVERS):
            port = free_port()
            command = [str(PROGRAM), "serve", "--port", str(port)]
            url = f"http://127.0.0.1:{port}"
            fleet.servers.append(Member(f"server-{number}", command, environment, logs / f"server-{number}.log", url))
        for number in range(WORKERS):
            name = f"worker-{number}"
            command = [str(PROGRAM), "worker", "--with-parent"]
            fleet.workers.append(Member(name, command, environment, logs / f"{name}.log"))
        command = [str(PROGRAM), "beat", "--with-parent"]
        fleet.beat.append(Member("beat", command, environment, logs / "beat.log"))
        stack.push_async_callback(_end, fleet.members)
        for member in fleet.members:
            await member.start()
        await asyncio.gather(*(member.ready() for member in fleet.members))
        fleet.addresses = stack.enter_context(_front([member.base_url for member in fleet.servers]))
        yield fleet


async def until(holds: Callable[[], object], within_s: float) -> None:
    """Wait until the condition is true, checking it every 0.1 s. Raises TimeoutError after `within_s` seconds."""
    give_up = time.monotonic() + within_s
    while True:
        answer = holds()
        if await answer if asyncio.iscoroutine(answer) else answer:
            return
        if time.monotonic() > give_up:
            raise TimeoutError
        await asyncio.sleep(0.1)


async def _databases(postgres: EmbeddedPostgres) -> tuple[str, str]:
    """Create the service database and the target database.

    Returns the DSN of the migrated service database, and a DSN with which statements reach the target database over
    loopback with a role of its own.
    """
    await ensure_databases(postgres, sample_tables)
    admin = postgres.admin_dsn()
    await execute(admin, f"CREATE DATABASE chaos OWNER {SERVICE_ROLE}")
    service_dsn = postgres.service_dsn("chaos")
    await migrate(service_dsn)
    await execute(admin, f"CREATE ROLE {TARGET} LOGIN PASSWORD '{TARGET}'")
    await execute(admin, f"CREATE DATABASE {TARGET} TEMPLATE template0 OWNER {TARGET}")
    # The table has no unique key, so a statement that is executed twice leaves two rows.
    table = "CREATE TABLE done (token text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())"
    await execute(postgres.admin_dsn(TARGET), f"{table}; ALTER TABLE done OWNER TO {TARGET}")
    rules = postgres.cluster.data / "pg_hba.conf"
    rules.write_text("host all all 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    await execute(admin, "SELECT pg_reload_conf()")
    return service_dsn, f"postgresql://{TARGET}:{TARGET}@127.0.0.1:{postgres.address.port}/{TARGET}"


def _environment(fleet: Fleet, users_dsn: str) -> dict[str, str]:
    given = {
        "desktop__secret_key": SECRET_KEY,
        "desktop__data_dir": str(fleet.directory / "data"),
        "desktop__database__url": fleet.service_dsn,
        "desktop__database__pool_max": "8",
        "desktop__shutdown_grace_s": str(_GRACE_S),
        "desktop__trusted_proxies": "127.0.0.1/32",
        "desktop__task_server__enabled": "true",
        "desktop__task_server__beat_enabled": "true",
        "desktop__task_server__broker_url": fleet.valkey.url,
        "desktop__task_server__heartbeat_s": str(LEASE_S // 3),
        "editor__lease_timeout_s": str(LEASE_S),
        "editor__statement_timeout_s": str(STATEMENT_LIMIT_S),
        "editor__cancel_wait_s": "5",
        "notebook__interpreters": json.dumps(
            {"postgresql": {"interface": "sqlalchemy", "options": {"url": users_dsn}}}
        ),
    }
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("QUERYSERVER")}
    return inherited | {f"QUERYSERVER__{name.upper()}": value for name, value in given.items()}


async def _end(members: Sequence[Member]) -> None:
    await asyncio.gather(*(member.stop() for member in members))


@contextmanager
def _front(servers: Sequence[str]) -> Generator[list[str]]:
    """Yield the address of nginx with the configuration in `deploy/`, but without TLS and with round-robin balancing.

    If nginx is not installed, yield the addresses of the servers.
    """
    program = shutil.which("nginx", path=_PROGRAMS)
    if program is None:
        yield list(servers)
        return
    with data_directory() as directory:
        port = free_port()
        settings = directory / "nginx.conf"
        settings.write_text(_plain_nginx(_NGINX_CONF.read_text(), directory, port, servers))
        command = [program, "-p", directory, "-e", "stderr", "-c", settings, "-g"]
        options = as_server_user()
        with serving(
            [*command, f"daemon off; pid {directory}/nginx.pid;"],
            directory,
            lambda: listens(port),
            signal.SIGQUIT,
            options=options,
        ):
            yield [f"http://127.0.0.1:{port}"]


def _plain_nginx(text: str, directory: Path, port: int, servers: Sequence[str]) -> str:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"  {kind}_temp_path {directory}/{kind};\n" for kind in kinds)
    old = "server queryserver-1:8888"
    line = next(line for line in text.splitlines() if old in line)
    replaced = {
        "http {\n": f"http {{\n{temporary}",
        line: "\n".join(line.replace(old, f"server {url.removeprefix('http://')}") for url in servers),
        "listen 80;": f"listen 127.0.0.1:{free_port()};",
        "listen 443 ssl http2;": f"listen 127.0.0.1:{port};",
    }
    for found, new in replaced.items():
        assert text.count(found) == 1, f"nginx.conf has {text.count(found)} times: {found}"
        text = text.replace(found, new)
    dropped = ("ssl_", "hash $remote_addr", "server queryserver-2:8888")
    return "\n".join(one for one in text.splitlines() if not one.strip().startswith(dropped)) + "\n"
