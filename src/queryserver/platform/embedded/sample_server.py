"""The PostgreSQL server of the sample database: a separate cluster, which the first connection starts (ADR 5).

What users do in it, such as filling its disk, does not affect the service database. This process listens at the
server's address from the beginning. It holds the first connections until the server is ready and then relays them;
later connections reach the server directly. Statements are canceled when the database exceeds its quota or free disk
space is low.
"""

import asyncio
import logging
import os
import re
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from pathlib import Path

import asyncpg

from queryserver.platform.embedded.cluster import (
    SAMPLE_DATABASE,
    SAMPLE_OWNER,
    SUPERUSER,
    EmbeddedPostgresError,
    EmbeddedResources,
    PostgresCluster,
    load_or_create_secrets,
    open_cluster,
    package_directory,
    server_account,
)
from queryserver.platform.embedded.postgres import (
    LOOPBACK,
    SAMPLE_HOME,
    Address,
    EmbeddedPostgres,
    Postmaster,
    cluster_home,
    file_lock,
    forget_address,
    record_address,
    run_to_completion,
    socket_directory,
    watch,
    with_sample,
)
from queryserver.platform.embedded.sample import (
    LOGINS,
    UNFINISHED,
    Tables,
    connected,
    ensure_sample_database,
    ensure_sample_files,
    ensure_sample_storage,
    ensure_service_database,
    fill_with_tables,
    has_database,
    sample_tables,
)
from queryserver.platform.machine_limits import NO_FLOOR, DiskFloor, disk_floor
from queryserver.platform.settings.tree import Settings

_log = logging.getLogger(__name__)

QUOTA_BYTES = 10 * 1024**3
_CHECK_EVERY_S = 0.2
_MEASURE_EVERY = 5
"""The files are measured on every fifth free-space check, but on each check while statements are being canceled."""
_MAX_CANCELS = 5
"""If a statement has been canceled this often, its session is terminated, because functions can catch cancellation."""
_MAX_GROWTH_BY_REMOVALS = 32 * 1024**2
"""Growth of the files after which statements that delete data are canceled too, because their triggers may write."""

# Read-only queries and their parallel workers can also fill the disk, with temporary files.
_CANCEL_WRITING_STATEMENTS = rf"""
    SELECT pid, query_start, pg_cancel_backend(pid) FROM pg_stat_activity
    WHERE datname = '{SAMPLE_DATABASE}' AND usename <> '{SUPERUSER}' AND state = 'active'
    AND (
        pid IN (SELECT coalesce(leader_pid, pid) FROM pg_stat_activity WHERE pid = ANY ($1::int[]))
        OR ($2 AND backend_xid IS NOT NULL AND ($3 OR query !~* '^\s*(abort|delete|drop|rollback|truncate)\M'))
    )
"""  # noqa: S608 our own names
_TEMPORARY_FILE = re.compile(r"pgsql_tmp(\d+)\.")


@dataclass(frozen=True, slots=True)
class SampleLimits:
    """Disk limits for statements on the sample database: `quota_bytes` in total, and the minimum free space `floor`.

    Temporary files of queries have a separate quota of the same size.
    """

    quota_bytes: int = QUOTA_BYTES
    floor: DiskFloor = NO_FLOOR


@dataclass(slots=True)
class _Files:
    stored_bytes: int = 0
    temporary_bytes: int = 0
    spilling: set[int] = field(default_factory=set[int])
    """PIDs of the processes that have temporary files."""


class SampleGuard:
    """Watches the disk usage of the cluster in the directory `data` and cancels statements that exceed the limits."""

    def __init__(self, server: EmbeddedPostgres, data: Path, limits: SampleLimits) -> None:
        self._server = server
        self._data = data
        self._limits = limits
        self._files = _Files()
        self._min_stored_bytes = 0
        self._canceled = Counter[tuple[int, datetime]]()
        """The number of times that each statement found by the last check has been canceled."""
        self._ends_statements = False

    async def run(self) -> None:
        """Check the limits periodically until canceled."""
        number = 0
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            try:
                await self._check(measures=number % _MEASURE_EVERY == 0)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                _log.exception("limits of the sample database could not be checked")
            number += 1

    async def _check(self, *, measures: bool) -> None:
        is_below_floor = await asyncio.to_thread(self._is_below_floor)
        if measures or is_below_floor or self._ends_statements:
            self._files = await asyncio.to_thread(_measure_files, self._data / "base")
        files, quota = self._files, self._limits.quota_bytes
        ends_writers = is_below_floor or files.stored_bytes > quota
        if not ends_writers:
            self._min_stored_bytes = files.stored_bytes
        self._min_stored_bytes = min(self._min_stored_bytes, files.stored_bytes)
        spilling = files.spilling if is_below_floor or files.temporary_bytes > quota else set[int]()
        self._ends_statements = ends_writers or bool(spilling)
        if not self._ends_statements:
            return
        ends_removals = files.stored_bytes > self._min_stored_bytes + _MAX_GROWTH_BY_REMOVALS
        await self._cancel(spilling, ends_writers=ends_writers, ends_removals=ends_removals)
        if ends_removals:
            self._min_stored_bytes = files.stored_bytes

    async def _cancel(self, spilling: Iterable[int], *, ends_writers: bool, ends_removals: bool) -> None:
        """Cancel the statements of the processes in `spilling`.

        If `ends_writers` is set, also cancel statements that write; those that only delete data are included only if
        `ends_removals` is set. Sessions that ignore cancel requests are terminated.
        """
        async with connected(self._server.admin_dsn()) as connection:
            rows = await connection.fetch(_CANCEL_WRITING_STATEMENTS, list(spilling), ends_writers, ends_removals)
            found = [(row["pid"], row["query_start"]) for row in rows]
            for statement in found:
                if self._canceled[statement] >= _MAX_CANCELS:
                    await connection.execute("SELECT pg_terminate_backend($1)", statement[0])
        self._canceled = Counter({statement: self._canceled[statement] + 1 for statement in found})

    def _is_below_floor(self) -> bool:
        floor = self._limits.floor
        return not floor.is_off and floor.room(self._data, fresh=True) <= 0


def _measure_files(base: Path) -> _Files:
    files = _Files()
    for directory, _, names in os.walk(base):
        of_queries = _TEMPORARY_FILE.search(directory)  # a directory of temporary files that parallel workers share
        is_temporary = "pgsql_tmp" in directory
        for name in names:
            size = 0
            with suppress(OSError):
                size = os.stat(f"{directory}/{name}").st_size  # noqa: PTH116 fast: a thousand calls per second
            if not is_temporary:
                files.stored_bytes += size
                continue
            files.temporary_bytes += size
            if owner := of_queries or _TEMPORARY_FILE.match(name):
                files.spilling.add(int(owner[1]))
    return files


_OPTIONS = {
    "max_wal_size": "256MB",
    "min_wal_size": "32MB",
    "max_notify_queue_pages": "8192",  # limits notifications that no session receives to 64 MiB (default 8 GiB)
    # After an INSERT is canceled for lack of space, all writes are refused until vacuum frees the space. So vacuum runs
    # often and without pauses.
    "autovacuum_naptime": "10s",
    "autovacuum_vacuum_cost_delay": "0",
}
_NO_LIMITS = SampleLimits()
_BACKLOG = 128
_PIECE = 64 * 1024


def sample_limits(settings: Settings) -> SampleLimits:
    return SampleLimits(settings.desktop.connector_policy.local_database_max_bytes, disk_floor(settings))


@asynccontextmanager
async def prepare(
    state_dir: Path, *, durable: bool = True, limits: SampleLimits = _NO_LIMITS
) -> AsyncGenerator[EmbeddedResources]:
    """Start the service's private PostgreSQL, listen at the sample server's address, and create missing sample data.

    Both servers stop on exit. The first start takes two seconds, later starts a third of a second. Raises
    EmbeddedPostgresError; its subclass EmbeddedPostgresNotInstalled is raised before anything is written.
    """
    await asyncio.to_thread(package_directory)
    tables = cache(sample_tables)
    async with EmbeddedPostgres.start(state_dir, durable=durable) as service:
        await asyncio.to_thread(ensure_sample_files, service.defaults.databases_dir, tables)
        await asyncio.to_thread(ensure_sample_storage, service.defaults.files_dir, tables)
        await ensure_service_database(service)
        async with sample_server(state_dir, service, tables, durable=durable, limits=limits) as sample:
            yield sample.defaults


@asynccontextmanager
async def sample_server(
    state_dir: Path, service: EmbeddedPostgres, tables: Tables, *, durable: bool, limits: SampleLimits
) -> AsyncGenerator["SampleServer"]:
    """Listen while the context is open. Raises EmbeddedPostgresError."""
    home = await asyncio.to_thread(cluster_home, state_dir, SAMPLE_HOME)
    with file_lock(home / "lock"):
        server = SampleServer(home, service, tables, durable=durable, limits=limits)
        try:
            await server.listen()
            yield server
        finally:
            await server.close()


class SampleServer:
    """Starts PostgreSQL when the first connection arrives. For a single event loop.

    `defaults` contains the resources of the service, with the sample database at this server's address.
    """

    def __init__(
        self, home: Path, service: EmbeddedPostgres, tables: Tables, *, durable: bool, limits: SampleLimits
    ) -> None:
        self._home = home
        self._service = service
        self._tables = tables
        self._durable = durable
        self._limits = limits
        self._secrets = load_or_create_secrets(home / "secrets.json", may_create=not (home / "data").exists())
        forget_address(home)  # a killed process may have left a record
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            port = probe.getsockname()[1]
        self.address = Address(str(socket_directory(server_account())), port)
        record_address(home, self.address)
        self.defaults = with_sample(service.defaults, self.address, self._secrets)
        self._listeners: list[asyncio.Server] = []
        self._relays = set[asyncio.Task[None]]()
        self._starting: asyncio.Task[None] | None = None
        self._postmaster: Postmaster | None = None
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def is_started(self) -> bool:
        """Whether PostgreSQL has been started."""
        return self._postmaster is not None

    @property
    def cluster_name(self) -> str:
        """The cluster name in the processes' command lines. The cluster must have been created."""
        return PostgresCluster(self._home, server_account(), package_directory(), self._secrets).name

    async def listen(self) -> None:
        path = f"{self.address.socket_directory}/.s.PGSQL.{self.address.port}"
        by_port = partial(self._relay, lambda: asyncio.open_connection(LOOPBACK, self.address.port))
        by_socket = partial(self._relay, lambda: asyncio.open_unix_connection(path))
        self._listeners = [
            await asyncio.start_server(by_port, LOOPBACK, self.address.port, backlog=_BACKLOG),
            await asyncio.start_unix_server(by_socket, path, backlog=_BACKLOG),
        ]

    async def close(self) -> None:
        """Stop listening and stop PostgreSQL. Idempotent."""
        self._stop_listening()
        tasks = [*self._keepers, *self._relays, *([self._starting] if self._starting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._postmaster is not None:
            await run_to_completion(self._postmaster.stop)
            self._postmaster = None
        await asyncio.to_thread(forget_address, self._home, self.address)

    def _stop_listening(self) -> None:
        """Close the listeners. Accepted connections stay open."""
        for listener in self._listeners:
            listener.close()
        self._listeners = []

    async def _relay(
        self,
        connect: Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Hold a connection until the server is ready, then relay bytes in both directions."""
        relay = asyncio.current_task()
        assert relay is not None  # noqa: S101 for the type checker: a server callback always runs in a task
        self._relays.add(relay)
        try:
            await self._started()
            from_server, to_server = await connect()
            try:
                await asyncio.gather(_relay_bytes(reader, to_server), _relay_bytes(from_server, writer))
            finally:
                to_server.close()
        except (EmbeddedPostgresError, OSError, asyncpg.PostgresError, TimeoutError):
            _log.exception("sample PostgreSQL failed to start or closed a connection")
        finally:
            writer.close()
            self._relays.discard(relay)

    async def _started(self) -> None:
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name="sample-postgres-start")
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        try:
            if not await asyncio.to_thread((self._home / "data").exists):
                await self._create_cluster()
            self._stop_listening()
            cluster = await run_to_completion(partial(open_cluster, self._home, durable=self._durable))
            postmaster = Postmaster(cluster, durable=self._durable, options=_OPTIONS, address=self.address)
            self._postmaster = postmaster
            await run_to_completion(postmaster.start)
            server = EmbeddedPostgres(cluster, self.address)
            await self._ensure_sample(server)
        except BaseException:  # after any failure, the next connection retries the start
            self._starting = None
            if (failed := self._postmaster) is not None:
                self._postmaster = None
                await run_to_completion(failed.stop)
                await asyncio.to_thread(self._make_socket_directory)
            if not self._listeners:
                await self.listen()
            raise
        guard = SampleGuard(server, self._home / "data", self._limits)
        self._keepers = [
            asyncio.create_task(watch(postmaster), name="sample-postgres-watch"),
            asyncio.create_task(guard.run(), name="sample-postgres-guard"),
        ]

    def _make_socket_directory(self) -> None:
        """Create the socket directory and the address record again, because stopping the server removes them."""
        directory = Path(self.address.socket_directory)
        directory.mkdir(mode=0o700, exist_ok=True)
        if (account := server_account()) is not None:
            account.own(directory)
        record_address(self._home, self.address)

    async def _create_cluster(self) -> None:
        """Create the cluster at a temporary address, so that connections are held until it is complete."""
        cluster = await run_to_completion(partial(open_cluster, self._home, durable=self._durable))
        directory = await asyncio.to_thread(socket_directory, cluster.account)
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            address = Address(str(directory), probe.getsockname()[1])
        postmaster = Postmaster(cluster, durable=self._durable, options=_OPTIONS, address=address)
        try:
            await run_to_completion(postmaster.start)
            await self._ensure_sample(EmbeddedPostgres(cluster, address))
        finally:
            await run_to_completion(postmaster.stop)
            await asyncio.to_thread(record_address, self._home, self.address)

    async def _ensure_sample(self, server: EmbeddedPostgres) -> None:
        async with connected(self._service.admin_dsn()) as connection:
            has_former = await has_database(connection, SAMPLE_DATABASE)
        is_moved = False

        async def make(filling: asyncpg.Connection) -> None:
            nonlocal is_moved
            if has_former:
                is_moved = await self._copy_former_database(server)
            if not is_moved:
                await fill_with_tables(filling, self._tables)

        await ensure_sample_database(server, make)
        if is_moved:
            async with connected(self._service.admin_dsn()) as connection:
                await connection.execute(f"DROP DATABASE {SAMPLE_DATABASE} WITH (FORCE)")

    async def _copy_former_database(self, server: EmbeddedPostgres) -> bool:
        """Copy the sample database, with users' changes, from the service's cluster, where earlier versions kept it.

        Returns False if copying fails. The old database then stays there, and a new sample database is created.
        """
        async with connected(self._service.admin_dsn(SAMPLE_DATABASE)) as former:
            await former.execute("DROP EVENT TRIGGER IF EXISTS queryserver_refuse")
            for role in await former.fetch("SELECT rolname FROM pg_roles WHERE rolname ~ $1", LOGINS):
                await former.execute(f"REASSIGN OWNED BY {role['rolname']} TO {SAMPLE_OWNER}")
        programs = package_directory() / "pginstall18" / "bin"
        reading, writing = os.pipe()
        try:
            dumping = await asyncio.create_subprocess_exec(
                programs / "pg_dump", "--format=custom", self._service.admin_dsn(SAMPLE_DATABASE), stdout=writing
            )
            restoring = await asyncio.create_subprocess_exec(
                programs / "pg_restore", "--no-owner", "--no-acl", f"--role={SAMPLE_OWNER}", "--single-transaction",
                f"--dbname={server.admin_dsn(UNFINISHED)}", stdin=reading,
            )  # fmt: skip
        finally:
            os.close(reading)
            os.close(writing)
        ends = await asyncio.gather(dumping.wait(), restoring.wait())
        if any(ends):
            _log.error("previous sample database could not be copied; it remains in the cluster of the service")
        return not any(ends)


async def _relay_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
