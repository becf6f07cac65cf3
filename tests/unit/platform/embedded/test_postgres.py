"""The embedded PostgreSQL starts, keeps its data, and stops completely, no matter how its parent process ends."""

import asyncio
import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import asyncpg
import psutil
import pytest
from tests.fixtures.database import execute
from tests.timing import at_best

from queryserver.platform.embedded.cluster import (
    EmbeddedPostgresError,
    PostgresCluster,
    _can_run,
    _copy_programs,
    _create,
    find_processes,
    load_or_create_secrets,
    open_cluster,
    package_directory,
    runnable_programs,
    server_account,
    spawn,
)
from queryserver.platform.embedded.postgres import EmbeddedPostgres, Postmaster, recorded_address

pytestmark = pytest.mark.slow

HOLDER = Path(__file__).with_name("holder.py")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop privileges")


def start(state_dir: Path):
    return EmbeddedPostgres.start(state_dir, durable=False)


async def value(dsn: str, sql: str):
    connection = await asyncpg.connect(dsn, timeout=60)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def cluster_of(state_dir: Path) -> PostgresCluster:
    return open_cluster(state_dir / "postgresql", durable=False)


@contextlib.contextmanager
def holder(state_dir: Path):
    """Run the server of the state directory in another process; kill that process at the end."""
    with subprocess.Popen(
        [sys.executable, str(HOLDER), str(state_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def runs(pid: int) -> bool:
    """Return whether the process is still running; a zombie process is not."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def eventually(condition: Callable[[], bool]) -> bool:
    """Return whether the condition becomes true within 15 s."""
    for _ in range(150):
        if condition():
            return True
        await asyncio.sleep(0.1)
    return False


async def test_rows_persist_across_restart(tmp_path: Path):
    async with start(tmp_path) as server:
        await execute(server.admin_dsn(), "CREATE TABLE kept AS SELECT 42 AS answer")
    async with start(tmp_path) as server:
        assert await value(server.admin_dsn(), "SELECT answer FROM kept") == 42


async def test_stop_leaves_no_process_and_no_socket(tmp_path: Path):
    async with start(tmp_path) as server:
        socket_directory = Path(server.address.socket_directory)
    assert not find_processes(cluster_of(tmp_path).name)
    assert not await asyncio.to_thread(socket_directory.exists)
    assert recorded_address(tmp_path / "postgresql") is None


async def test_restart_answers_first_query_within_three_seconds(tmp_path: Path):
    async def first_answer() -> tuple[float, None]:
        began = time.monotonic()
        async with start(tmp_path) as server:
            await execute(server.admin_dsn(), "SELECT 1")
            return time.monotonic() - began, None

    async with start(tmp_path):
        pass
    await at_best(first_answer, below_s=3)


async def test_server_is_durable_by_default(tmp_path: Path):
    async with EmbeddedPostgres.start(tmp_path) as server:
        assert await value(server.admin_dsn(), "SHOW fsync") == "on"
        assert await value(server.admin_dsn(), "SHOW synchronous_commit") == "on"
        assert await value(server.admin_dsn(), "SHOW listen_addresses") == "127.0.0.1"


async def test_servers_in_two_directories_are_independent(tmp_path: Path):
    async with start(tmp_path / "a") as a, start(tmp_path / "b") as b:
        await execute(a.admin_dsn(), "CREATE TABLE only_in_a (x integer)")
        assert await value(b.admin_dsn(), "SELECT to_regclass('only_in_a')") is None


async def test_second_server_on_same_directory_is_refused(tmp_path: Path):
    async with start(tmp_path) as server:
        with pytest.raises(EmbeddedPostgresError, match="Another server uses"):
            async with start(tmp_path):
                pass
        await execute(server.admin_dsn(), "SELECT 1")


async def test_directory_path_may_exceed_socket_path_limit(tmp_path: Path):
    async with start(tmp_path / ("long" * 40)) as server:
        await execute(server.admin_dsn(), "SELECT 1")


async def test_server_stops_when_its_owner_is_killed(tmp_path: Path):
    with holder(tmp_path) as process:
        await asyncio.to_thread(process.stdout.readline)
        cluster = cluster_of(tmp_path)
        assert find_processes(cluster.name).postmasters
        address = recorded_address(tmp_path / "postgresql")
        process.kill()
    assert await eventually(lambda: not find_processes(cluster.name))
    assert await eventually(lambda: not Path(address.socket_directory).exists())


async def test_next_start_stops_orphaned_server_and_keeps_committed_rows(tmp_path: Path):
    with holder(tmp_path) as process:
        dsn = (await asyncio.to_thread(process.stdout.readline)).strip()
        await execute(dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
        cluster = cluster_of(tmp_path)
        (postmaster,) = find_processes(cluster.name).postmasters
        for guard in psutil.Process(process.pid).children():
            if guard.pid != postmaster:
                guard.kill()
        process.kill()
        process.wait()
    assert runs(postmaster)
    async with start(tmp_path) as server:
        assert await value(server.admin_dsn(), "SELECT answer FROM kept") == 42
        assert postmaster not in find_processes(cluster.name).postmasters
    assert not runs(postmaster)


async def test_orphaned_backends_without_postmaster_are_ended(tmp_path: Path):
    """A busy backend does not notice immediately that its postmaster has ended."""
    with holder(tmp_path) as process:
        dsn = (await asyncio.to_thread(process.stdout.readline)).strip()
        cluster = cluster_of(tmp_path)
        (postmaster,) = find_processes(cluster.name).postmasters
        busy = asyncio.create_task(execute(dsn, "SELECT count(*) FROM generate_series(1, 10000000000)"))
        await asyncio.sleep(0.5)
        process.kill()
        os.kill(postmaster, signal.SIGKILL)
        process.wait()
        async with start(tmp_path) as server:
            await execute(server.admin_dsn(), "SELECT 1")
            with pytest.raises((asyncpg.PostgresError, OSError)):
                await busy


async def test_stale_pid_file_does_not_affect_unrelated_process(tmp_path: Path):
    async with start(tmp_path):
        pass
    account = server_account()
    stranger = spawn(
        ["/bin/sleep", "60"],
        account=account,
        cwd=Path("/"),
        environment={},
        stdin=subprocess.DEVNULL,
        output=subprocess.DEVNULL,
    )
    try:
        stale = tmp_path / "postgresql" / "data" / "postmaster.pid"
        stale.write_text(f"{stranger.pid}\n{stale.parent}\n1\n5432\n/nowhere\n\n0 0\nready   \n")
        if account:
            account.own(stale)
        async with start(tmp_path) as server:
            await execute(server.admin_dsn(), "SELECT 1")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_crashed_server_restarts_at_same_address(tmp_path: Path):
    async with start(tmp_path) as server:
        dsn = server.admin_dsn()
        (postmaster,) = find_processes(cluster_name(server)).postmasters
        os.kill(postmaster, signal.SIGKILL)
        async with asyncio.timeout(60):
            while True:
                await asyncio.sleep(0.1)
                with contextlib.suppress(OSError, asyncpg.PostgresError):
                    if await value(dsn, "SELECT pg_postmaster_start_time() IS NOT NULL") and find_processes(
                        cluster_name(server)
                    ).postmasters != (postmaster,):
                        break
        assert server.admin_dsn() == dsn


def cluster_name(server: EmbeddedPostgres) -> str:
    return server.cluster.name


async def test_deleted_state_directory_leaves_nothing_running(tmp_path: Path):
    state = tmp_path / "state"
    async with start(state) as server:
        name, socket_directory = cluster_name(server), Path(server.address.socket_directory)
        await asyncio.to_thread(shutil.rmtree, state)
    assert not find_processes(name)
    assert not await asyncio.to_thread(socket_directory.exists)


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2, 0.5])
async def test_canceled_start_leaves_nothing_running(tmp_path: Path, after_s: float):
    async def run() -> None:
        async with start(tmp_path):
            await asyncio.sleep(60)

    running = asyncio.create_task(run())
    await asyncio.sleep(after_s)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with start(tmp_path) as server:
        assert len(find_processes(cluster_name(server)).postmasters) == 1


@pytest.mark.parametrize("after_s", [0.3, 0.6])
async def test_killed_first_start_does_not_prevent_next_start(tmp_path: Path, after_s: float):
    with holder(tmp_path) as process:
        await asyncio.sleep(after_s)
        process.kill()
    async with start(tmp_path) as server:
        await execute(server.admin_dsn(), "SELECT 1")
        assert not list((tmp_path / "postgresql").glob("new-*"))


async def test_incomplete_cluster_is_deleted(tmp_path: Path):
    half = tmp_path / "postgresql" / "new-abcd"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    async with start(tmp_path) as server:
        await execute(server.admin_dsn(), "SELECT 1")
    assert not half.exists()


def test_late_files_of_killed_start_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The initdb process of the killed start may continue to write files for a moment."""

    def make(data: Path, *_: object, **__: object) -> None:
        (data.parent / "new-late" / "base").mkdir(parents=True)

    monkeypatch.setattr("queryserver.platform.embedded.cluster._create", make)
    open_cluster(tmp_path, durable=False)
    assert not list(tmp_path.glob("new-*"))


async def test_stored_files_are_private_to_owner(tmp_path: Path):
    state = tmp_path / "state"
    async with start(state) as server:
        for path in (state, state / "postgresql", state / "postgresql" / "data", Path(server.address.socket_directory)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
        for name in ("secrets.json", "log", "lock", "address.json"):
            assert stat.S_IMODE((state / "postgresql" / name).stat().st_mode) == 0o600, name


@AS_ROOT
async def test_root_runs_server_unprivileged_within_private_home(tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    places = [home, *home.parents]
    before = [place.stat().st_mode for place in places]
    async with start(home / "state") as server:
        (postmaster,) = find_processes(cluster_name(server)).postmasters
        assert 0 not in psutil.Process(postmaster).uids()
        assert psutil.Process(postmaster).gids().effective != 0
    assert [place.stat().st_mode for place in places] == before


async def test_uncreatable_state_directory_is_reported(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedPostgresError, match="cannot be used"):
        async with start(tmp_path / "file" / "state"):
            pass


async def test_missing_secrets_file_is_reported(tmp_path: Path):
    async with start(tmp_path):
        pass
    (tmp_path / "postgresql" / "secrets.json").unlink()
    with pytest.raises(EmbeddedPostgresError, match="Restore it"):
        async with start(tmp_path):
            pass


async def test_failed_start_reports_postgresql_error(tmp_path: Path):
    async with start(tmp_path):
        pass
    with (tmp_path / "postgresql" / "data" / "postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = 1\n")
    with pytest.raises(EmbeddedPostgresError, match="no_such_setting"):
        async with start(tmp_path):
            pass
    assert not find_processes(cluster_of(tmp_path).name)


async def test_older_cluster_runs_with_its_postgresql_version(tmp_path: Path):
    home = tmp_path / "postgresql"
    home.mkdir()
    account = server_account()
    secrets = load_or_create_secrets(home / "secrets.json", may_create=True)
    _create(home / "data", account, runnable_programs(16, account), secrets, durable=False)
    async with start(tmp_path) as server:
        assert (await value(server.admin_dsn(), "SHOW server_version")).startswith("16.")


async def test_cluster_of_unknown_version_is_refused(tmp_path: Path):
    async with start(tmp_path):
        pass
    (tmp_path / "postgresql" / "data" / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedPostgresError, match="created by PostgreSQL 12"):
        async with start(tmp_path):
            pass


async def test_large_log_is_rotated_at_start(tmp_path: Path):
    async with start(tmp_path):
        pass
    log = tmp_path / "postgresql" / "log"
    log.write_bytes(b"x" * 5 * 2**20)
    async with start(tmp_path):
        assert log.stat().st_size < 2**20
    assert log.with_name("log.old").stat().st_size == 5 * 2**20


async def test_stop_without_start_does_nothing(tmp_path: Path):
    async with start(tmp_path):
        pass
    Postmaster(cluster_of(tmp_path), durable=False).stop()


@AS_ROOT
def test_programs_are_copied_where_the_server_account_can_run_them():
    cache = Path("/var/cache") / f"queryserver-test-{os.getpid()}"
    account = server_account()
    try:
        installed = package_directory() / "pginstall18"
        copy = _copy_programs(installed, cache / "postgresql")
        assert copy is not None
        assert _can_run(copy, account)
        assert _copy_programs(installed, cache / "postgresql") == copy
        cache.chmod(0o777)
        assert _copy_programs(installed, cache / "postgresql") is None, "anybody could have put programs there"
    finally:
        subprocess.run(["/bin/rm", "-rf", str(cache)], check=True)
