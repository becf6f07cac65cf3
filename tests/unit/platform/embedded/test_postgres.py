"""The private PostgreSQL starts, keeps what it was given, and leaves nothing behind, however its owner ends."""

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
    _copied,
    _create,
    _runs,
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
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up rights")


def start(state_dir: Path):
    return EmbeddedPostgres.start(state_dir, durable=False)


async def value(dsn: str, sql: str):
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def cluster_of(state_dir: Path) -> PostgresCluster:
    return open_cluster(state_dir / "postgresql", durable=False)


@contextlib.contextmanager
def holder(state_dir: Path):
    """Another process that runs the server of the directory; killed on leaving."""
    with subprocess.Popen(
        [sys.executable, str(HOLDER), str(state_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def runs(pid: int) -> bool:
    """Whether the process does anything; one that only waits to be collected has ended."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true within 15 s."""
    for _ in range(150):
        if condition():
            return True
        await asyncio.sleep(0.1)
    return False


async def test_rows_are_there_after_a_stop_and_a_start(tmp_path: Path):
    async with start(tmp_path) as server:
        await execute(server.admin_dsn(), "CREATE TABLE kept AS SELECT 42 AS answer")
    async with start(tmp_path) as server:
        assert await value(server.admin_dsn(), "SELECT answer FROM kept") == 42


async def test_nothing_runs_and_no_socket_is_left_after_a_stop(tmp_path: Path):
    async with start(tmp_path) as server:
        socket_directory = Path(server.address.socket_directory)
    assert not find_processes(cluster_of(tmp_path).name)
    assert not await asyncio.to_thread(socket_directory.exists)
    assert recorded_address(tmp_path / "postgresql") is None


async def test_a_second_start_takes_less_than_three_seconds_to_its_first_answer(tmp_path: Path):
    async def first_answer() -> tuple[float, None]:
        began = time.monotonic()
        async with start(tmp_path) as server:
            await execute(server.admin_dsn(), "SELECT 1")
            return time.monotonic() - began, None

    async with start(tmp_path):
        pass
    await at_best(first_answer, below_s=3)


async def test_data_are_flushed_to_disk_unless_the_test_says_otherwise(tmp_path: Path):
    async with EmbeddedPostgres.start(tmp_path) as server:
        assert await value(server.admin_dsn(), "SHOW fsync") == "on"
        assert await value(server.admin_dsn(), "SHOW synchronous_commit") == "on"
        assert await value(server.admin_dsn(), "SHOW listen_addresses") == "127.0.0.1"


async def test_two_directories_live_side_by_side(tmp_path: Path):
    async with start(tmp_path / "a") as a, start(tmp_path / "b") as b:
        await execute(a.admin_dsn(), "CREATE TABLE only_in_a (x integer)")
        assert await value(b.admin_dsn(), "SELECT to_regclass('only_in_a')") is None


async def test_a_second_server_on_a_directory_is_refused(tmp_path: Path):
    async with start(tmp_path) as server:
        with pytest.raises(EmbeddedPostgresError, match="Another server runs"):
            async with start(tmp_path):
                pass
        await execute(server.admin_dsn(), "SELECT 1")


async def test_a_path_longer_than_a_socket_may_have_is_fine(tmp_path: Path):
    async with start(tmp_path / ("long" * 40)) as server:
        await execute(server.admin_dsn(), "SELECT 1")


async def test_postgres_stops_when_its_owner_is_killed(tmp_path: Path):
    with holder(tmp_path) as process:
        await asyncio.to_thread(process.stdout.readline)
        cluster = cluster_of(tmp_path)
        assert find_processes(cluster.name).postmasters
        address = recorded_address(tmp_path / "postgresql")
        process.kill()
    assert await eventually(lambda: not find_processes(cluster.name))
    assert await eventually(lambda: not Path(address.socket_directory).exists())


async def test_an_orphan_is_stopped_by_the_next_start_and_committed_rows_stay(tmp_path: Path):
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


async def test_orphans_without_their_postmaster_are_ended(tmp_path: Path):
    """A busy backend does not see at once that its postmaster is gone."""
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


async def test_a_stale_pid_file_that_names_another_program_is_not_mistaken(tmp_path: Path):
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


async def test_a_server_that_dies_is_started_again_at_the_same_address(tmp_path: Path):
    async with start(tmp_path) as server:
        dsn = server.admin_dsn()
        (postmaster,) = find_processes(cluster_name(server)).postmasters
        os.kill(postmaster, signal.SIGKILL)
        async with asyncio.timeout(20):
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


async def test_a_directory_that_vanishes_under_the_server_leaves_nothing_running(tmp_path: Path):
    state = tmp_path / "state"
    async with start(state) as server:
        name, socket_directory = cluster_name(server), Path(server.address.socket_directory)
        await asyncio.to_thread(shutil.rmtree, state)
    assert not find_processes(name)
    assert not await asyncio.to_thread(socket_directory.exists)


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2, 0.5])
async def test_a_start_that_is_cancelled_leaves_nothing_running(tmp_path: Path, after_s: float):
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
async def test_a_first_start_that_is_killed_does_not_harm_the_next(tmp_path: Path, after_s: float):
    with holder(tmp_path) as process:
        await asyncio.sleep(after_s)
        process.kill()
    async with start(tmp_path) as server:
        await execute(server.admin_dsn(), "SELECT 1")
        assert not list((tmp_path / "postgresql").glob("new-*"))


async def test_a_half_made_cluster_is_thrown_away(tmp_path: Path):
    half = tmp_path / "postgresql" / "new-abcd"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    async with start(tmp_path) as server:
        await execute(server.admin_dsn(), "SELECT 1")
    assert not half.exists()


def test_what_a_killed_start_still_writes_is_thrown_away_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its initdb may outlive it for a moment."""

    def make(data: Path, *_: object, **__: object) -> None:
        (data.parent / "new-late" / "base").mkdir(parents=True)

    monkeypatch.setattr("queryserver.platform.embedded.cluster._create", make)
    open_cluster(tmp_path, durable=False)
    assert not list(tmp_path.glob("new-*"))


async def test_everything_kept_is_closed_to_others(tmp_path: Path):
    state = tmp_path / "state"
    async with start(state) as server:
        for path in (state, state / "postgresql", state / "postgresql" / "data", Path(server.address.socket_directory)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
        for name in ("secrets.json", "log", "lock", "address.json"):
            assert stat.S_IMODE((state / "postgresql" / name).stat().st_mode) == 0o600, name


@AS_ROOT
async def test_as_root_it_runs_unprivileged_below_a_closed_home_and_opens_nothing(tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    places = [home, *home.parents]
    before = [place.stat().st_mode for place in places]
    async with start(home / "state") as server:
        (postmaster,) = find_processes(cluster_name(server)).postmasters
        assert 0 not in psutil.Process(postmaster).uids()
        assert psutil.Process(postmaster).gids().effective != 0
    assert [place.stat().st_mode for place in places] == before


async def test_a_state_directory_that_cannot_be_made_is_told_in_words(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedPostgresError, match="cannot be used"):
        async with start(tmp_path / "file" / "state"):
            pass


async def test_lost_passwords_are_told_in_words(tmp_path: Path):
    async with start(tmp_path):
        pass
    (tmp_path / "postgresql" / "secrets.json").unlink()
    with pytest.raises(EmbeddedPostgresError, match="Restore it"):
        async with start(tmp_path):
            pass


async def test_a_cluster_that_cannot_start_says_why(tmp_path: Path):
    async with start(tmp_path):
        pass
    with (tmp_path / "postgresql" / "data" / "postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = 1\n")
    with pytest.raises(EmbeddedPostgresError, match="no_such_setting"):
        async with start(tmp_path):
            pass
    assert not find_processes(cluster_of(tmp_path).name)


async def test_an_older_cluster_is_served_by_its_own_version(tmp_path: Path):
    home = tmp_path / "postgresql"
    home.mkdir()
    account = server_account()
    secrets = load_or_create_secrets(home / "secrets.json", may_create=True)
    _create(home / "data", account, runnable_programs(16, account), secrets, durable=False)
    async with start(tmp_path) as server:
        assert (await value(server.admin_dsn(), "SHOW server_version")).startswith("16.")


async def test_a_cluster_of_an_unknown_version_is_left_alone(tmp_path: Path):
    async with start(tmp_path):
        pass
    (tmp_path / "postgresql" / "data" / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedPostgresError, match="made by PostgreSQL 12"):
        async with start(tmp_path):
            pass


async def test_the_log_is_bounded(tmp_path: Path):
    async with start(tmp_path):
        pass
    log = tmp_path / "postgresql" / "log"
    log.write_bytes(b"x" * 5 * 2**20)
    async with start(tmp_path):
        assert log.stat().st_size < 2**20
    assert log.with_name("log.old").stat().st_size == 5 * 2**20


async def test_stop_is_harmless_when_nothing_was_started(tmp_path: Path):
    async with start(tmp_path):
        pass
    Postmaster(cluster_of(tmp_path), durable=False).stop()


@AS_ROOT
def test_programs_that_the_account_cannot_reach_are_copied_to_where_it_can():
    cache = Path("/var/cache") / f"queryserver-test-{os.getpid()}"
    account = server_account()
    try:
        installed = package_directory() / "pginstall18"
        copy = _copied(installed, cache / "postgresql")
        assert copy is not None
        assert _runs(copy, account)
        assert _copied(installed, cache / "postgresql") == copy
        cache.chmod(0o777)
        assert _copied(installed, cache / "postgresql") is None, "anybody could have put programs there"
    finally:
        subprocess.run(["/bin/rm", "-rf", str(cache)], check=True)
