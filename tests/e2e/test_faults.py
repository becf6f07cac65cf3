"""Failures of the disk, the network and the databases while a server is running, as users observe them."""

import asyncio
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

import httpx
import psutil
import pytest
from tests.e2e.harness import PROGRAM, running_server, started
from tests.e2e.installation import TAKEN_OVER_WITHIN_S, Installation, Node, at_work, eventually, held, installed
from tests.fixtures.database import execute
from tests.ports import free_port

from queryserver.platform.embedded.cluster import SERVICE_ROLE
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.shutdown import REST_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LASTING = {
    "postgresql": "SELECT pg_sleep(60)",
    "duckdb": "SELECT count(*) FROM range(100000) AS a, range(10000000) AS b WHERE a.range % 7 = b.range % 11",
}

# The text cannot be compressed, so the rows have the same size on disk.
NOISE = "SELECT n, md5(n::text) || md5((n + 1)::text) FROM generate_series(1, {rows}) AS n"


@pytest.fixture
async def place(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path
) -> AsyncIterator[Installation]:
    """An installation for one test. The port of its engine `away` is closed until a test opens it."""
    away = {
        "interface": "sqlalchemy",
        "dialect": "postgresql",
        "options": {"url": f"postgresql://x:x@127.0.0.1:{free_port()}/x"},
    }
    async with installed(postgres, migrated_template, tmp_path, {"away": away}) as place:
        yield place


async def test_kill_during_spooling_and_download_keeps_finished_results_only(place: Installation) -> None:
    async with place.server() as victim:
        kept = await victim.finished("postgresql", NOISE.format(rows=300_000), limit=300_000)
        whole = await victim.file(kept)
        spooling = await victim.submit("postgresql", NOISE.format(rows=50_000_000), limit=1_000_000)
        await victim.until(spooling, lambda status: status["rows"] > 0)
        assert len(place.spooled()) > 1
        path = f"/api/v1/editor/download/{kept}"
        received = b""
        broken_off = False
        try:
            headers = {**victim.headers(), "Accept-Encoding": "identity"}
            async with victim.http.stream("GET", path, headers=headers) as response:
                assert response.status_code == 200
                async for piece in response.aiter_raw(65_536):
                    if not received:
                        await victim.process.kill9()
                    received += piece
        except httpx.RemoteProtocolError:
            broken_off = True
        assert broken_off, "the client must see that the file is not whole"
        assert len(received) < len(whole)
        assert whole.startswith(received)
    async with place.server() as after:
        started_at = time.monotonic()
        body = await after.status(spooling, wait=30)
        assert (body["query_status"]["state"], body["code"]) == ("failed", "outcome_unknown")
        assert time.monotonic() - started_at < TAKEN_OVER_WITHIN_S
        assert await after.file(kept) == whole
        await eventually(lambda: _answer(not [one for one in place.spooled() if spooling in str(one)]))


async def test_embedded_server_recovers_immediately_after_power_cut(tmp_path: Path) -> None:
    """A server that is alone on its database restarts without waiting for its previous lease to expire."""
    password = "a password of the test"
    operations: dict[str, str] = {}
    async with embedded(tmp_path / "state", password) as victim:
        operations["kept"] = await victim.finished("duckdb", "CREATE TABLE cut AS SELECT 6 AS n")
        for dialect in ("postgresql", "duckdb"):
            operations[dialect] = await victim.submit(dialect, LASTING[dialect])
            await victim.until(operations[dialect], lambda status: status["state"] == "running")
        await victim.process.kill9()
    async with embedded(tmp_path / "state", password) as after:
        for dialect in ("postgresql", "duckdb"):
            body = await after.status(operations[dialect])
            assert (body["query_status"]["state"], body["code"]) == ("failed", "outcome_unknown")
        assert await after.state(operations["kept"]) == "success"
        assert await after.value("duckdb", "SELECT n FROM cut") == 6
        assert await after.process.terminate() == 0


async def test_unusable_store_fails_statements_but_not_server(place: Installation) -> None:
    async with place.server() as node:
        before = await node.finished("postgresql", NOISE.format(rows=150_000), limit=200_000)
        aside = place.results.with_name("aside")
        shutil.move(place.results, aside)
        place.results.write_text("a file where the directory was")
        failed = await node.submit("postgresql", NOISE.format(rows=150_001), limit=200_000)
        body = await node.status(failed, wait=30)
        assert (body["query_status"]["state"], body["code"]) == ("failed", "result_store_failed")
        assert str(place.directory) not in body["message"]
        assert await node.value("postgresql", "SELECT 'small results need no store'") == "small results need no store"
        unread = await node.post("editor/fetch_result_data", operationId=before, start_row=149_000)
        download = await node.http.get(f"/api/v1/editor/download/{before}", headers=node.headers())
        for refused in (unread, download):
            assert (refused.status_code, refused.json()["code"]) == (503, "service_unavailable")
            assert int(refused.headers["Retry-After"]) > 0
        assert await node.state(before) == "available"
        ready = await node.http.get("/desktop/debug/is_ready")
        assert (ready.status_code, ready.json()["checks"]["result_store"]["ok"]) == (503, False)
        place.results.unlink()
        shutil.move(aside, place.results)
        assert (await node.file(before)).count(b"\r\n") == 150_001
        await node.finished("postgresql", NOISE.format(rows=150_002), limit=200_000)


async def test_full_disk_fails_statement_with_reason(place: Installation) -> None:
    """A limit on file sizes simulates the full disk, because writes beyond the limit fail in the same way."""
    async with limited(place, kib=512) as node:
        failed = await node.submit("postgresql", NOISE.format(rows=300_000), limit=300_000)
        body = await node.status(failed, wait=30)
        assert (body["query_status"]["state"], body["code"]) == ("failed", "result_store_failed")
        assert body["message"]
        assert await node.value("postgresql", "SELECT 1") == 1
        await node.finished("postgresql", NOISE.format(rows=2_000), limit=2_000)
        await eventually(lambda: _answer(not [one for one in place.spooled() if failed in str(one)]))


@pytest.mark.platform(98, 99)
async def test_database_outage_is_reported_and_survived(place: Installation, postgres: EmbeddedPostgres) -> None:
    async with Cable(postgres.address.port) as cable:
        dsn = _dsn_over(cable, place, postgres)
        async with place.through(dsn).server() as node:
            running = await node.submit("postgresql", "SELECT pg_sleep(8), 'through the outage'")
            lasting = await node.submit("postgresql", "SELECT pg_sleep(60), 'canceled after the outage'")
            await node.until(running, lambda status: status["state"] == "running")
            cable.cut()
            for call, fields in {
                "editor/execute/postgresql": {"statement": "SELECT 1"},
                "editor/check_status": {"operationId": running},
                "editor/cancel_statement": {"operationId": lasting},
                "editor/create_session": {"session": '{"type": "postgresql"}'},
            }.items():
                answer = await node.post(call, **fields)
                assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable"), call
                assert int(answer.headers["Retry-After"]) > 0
                assert answer.json()["status"] == -1
            assert (await node.http.get("/desktop/debug/is_alive")).status_code == 200
            ready = await node.http.get("/desktop/debug/is_ready")
            assert (ready.status_code, ready.json()["checks"]["database"]["ok"]) == (503, False)
            await asyncio.sleep(1)
            cable.mend()
            await eventually(lambda: _is_ready(node))
            assert await node.value("postgresql", "SELECT 1") == 1
            assert await node.state(running, wait=30) == "available"
            await node.post_ok("editor/cancel_statement", operationId=lasting)
            assert await node.state(lasting, wait=30) == "canceled"
            assert await at_work(postgres.admin_dsn(), "canceled after the outage") == 0


async def test_outage_longer_than_lease_leaves_nothing_running(place: Installation, postgres: EmbeddedPostgres) -> None:
    async with Cable(postgres.address.port) as cable:
        dsn = _dsn_over(cable, place, postgres)
        async with place.through(dsn).server(editor__lease_timeout_s="3") as node:
            quick = await node.submit("postgresql", "SELECT pg_sleep(1.5)")
            lasting = await node.submit("postgresql", "SELECT pg_sleep(9), 'longer than the outage'")
            await node.until(lasting, lambda status: status["state"] == "running")
            cable.cut()
            await asyncio.sleep(6)
            cable.mend()
            await eventually(lambda: _is_ready(node))
            assert await node.state(lasting, wait=20) == "available", "who runs it comes before who takes it over"
            body = await node.status(quick, wait=30)
            assert body["query_status"]["state"] in {"available", "failed"}
            assert await at_work(postgres.admin_dsn(), "longer than the outage") == 0
            await node.submit("postgresql", "SELECT pg_sleep(60), 'at the end'")
            cable.cut()
            assert await node.process.terminate() == 0, "a server can be stopped while its database is away"
            assert await at_work(postgres.admin_dsn(), "at the end") == 0


async def test_shutdown_awaits_short_statements_and_stops_long_ones(
    place: Installation, postgres: EmbeddedPostgres
) -> None:
    await execute(place.users_dsn, "CREATE SEQUENCE waiting")
    async with held(place.users_dsn, 1) as release, place.server(desktop__shutdown_grace_s="6") as node:
        short = await node.submit("postgresql", "SELECT 7, pg_advisory_xact_lock(1)")
        longs = [await node.submit("postgresql", f"SELECT pg_sleep(60), 'long {one}'") for one in range(7)]
        queued = await node.submit("postgresql", "SELECT nextval('waiting')")
        for one in (short, *longs):
            await node.until(one, lambda status: status["state"] == "running")
        descendants = psutil.Process(node.process.pid).children(recursive=True)
        began = time.monotonic()
        node.process.process.send_signal(signal.SIGTERM)
        await eventually(lambda: _is_stopping(node))
        assert (await node.http.get("/desktop/debug/is_alive")).status_code == 200
        await release()
        assert await node.state(short, wait=5) == "available"
        assert await node.process.terminate() == 0
        assert time.monotonic() - began < 6 + REST_S
    _, left = await asyncio.to_thread(psutil.wait_procs, descendants, timeout=60)
    assert left == []
    assert await at_work(postgres.admin_dsn(), "long ") == 0
    async with place.server() as after:
        assert (await after.page(short))["data"] == [[7, ""]] or await after.state(short) == "available"
        for long in longs:
            body = await after.status(long)
            assert (body["code"], body["message"]) == ("canceled", "Canceled because the server was shut down.")
        assert await after.state(queued, wait=10) in {"available", "canceled"}
        assert await after.value("postgresql", "SELECT last_value FROM waiting") == 1


@pytest.mark.platform(98)
async def test_workers_respond_while_statements_finish_in_grace_period(place: Installation) -> None:
    async with place.server(desktop__workers="2", desktop__shutdown_grace_s="60") as node:
        last = await node.submit("postgresql", "SELECT 7, pg_sleep(12)")
        await node.until(last, lambda status: status["state"] == "running")
        node.process.process.send_signal(signal.SIGTERM)
        await eventually(lambda: _is_stopping(node))  # the parent process has now notified the workers
        assert (await node.http.get("/desktop/debug/is_alive")).status_code == 200
        assert await node.state(last, wait=30) == "available"
        assert await node.process.terminate() == 0


@pytest.mark.item(70)
async def test_unavailable_engine_fails_statement_and_works_after_return(
    place: Installation, postgres: EmbeddedPostgres
) -> None:
    settings = place.directory / "queryserver.toml"
    port = int(settings.read_text().partition("x:x@127.0.0.1:")[2].partition("/")[0])
    url = place.users_dsn.replace(f":{postgres.address.port}/", f":{port}/")
    settings.write_text(settings.read_text().replace(f"postgresql://x:x@127.0.0.1:{port}/x", url))
    async with place.server() as node:
        down = await node.submit("away", "SELECT 1")
        body = await node.status(down, wait=20)
        assert (body["query_status"]["state"], body["code"]) == ("failed", "engine_unavailable")
        assert "127.0.0.1" not in body["message"]
        async with Cable(postgres.address.port, port=port):
            assert await node.value("away", "SELECT 1") == 1


@pytest.mark.item(16)
@pytest.mark.parametrize(
    ("dialect", "statement"),
    [
        ("duckdb", "SELECT error('a' || chr(0) || 'b')"),
        ("duckdb", "PIVOT (SELECT 'a' || chr(0) || 'b' AS name, 1 AS n) ON name USING sum(n)"),
        ("sqlite", "SELECT 'a' || char(0) || 'b' AS t, zeroblob(3) AS z"),
    ],
)
async def test_odd_characters_from_engine_are_returned(shared_node: Node, dialect: str, statement: str) -> None:
    operation = await shared_node.submit(dialect, statement)
    body = await shared_node.status(operation, wait=10)
    assert body["query_status"]["state"] in {"available", "failed"}
    assert "Traceback" not in str(body)
    if body["query_status"]["state"] == "available":
        assert (await shared_node.page(operation))["data"]


@pytest.fixture(scope="module")
async def shared_node(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path_factory
) -> AsyncIterator[Node]:
    """A server that several tests share. None of them stops it."""
    async with (
        installed(postgres, migrated_template, tmp_path_factory.mktemp("faults")) as place,
        place.server() as node,
    ):
        yield node


class Cable:
    """Simulates the network between two programs: a port whose connections are forwarded to another port until it is
    cut.
    """

    def __init__(self, target: int, *, port: int = 0) -> None:
        self._target = target
        self.port = port or free_port()
        self._whole = True
        self._pipes: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", self.port))
        self._server = await asyncio.start_server(self._connect, sock=listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        self._whole = False
        for pipe in self._pipes:
            pipe.cancel()

    def mend(self) -> None:
        """Accept connections again."""
        self._whole = True

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._whole:
            writer.transport.abort()
            return
        pipe = asyncio.current_task()
        assert pipe is not None
        self._pipes.add(pipe)
        other: asyncio.StreamWriter | None = None
        try:
            answers, other = await asyncio.open_connection("127.0.0.1", self._target)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pour(reader, other))
                group.create_task(_pour(answers, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._pipes.discard(pipe)
            for end in (writer, other):
                if end is not None:
                    end.transport.abort()


async def _pour(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(65_536):
        target.write(piece)
        await target.drain()
    with suppress(OSError):
        target.write_eof()


@asynccontextmanager
async def embedded(data_dir: Path, password: str) -> AsyncIterator[Node]:
    """A server with embedded databases. The user `ana` is its administrator `admin`."""
    environment = {"QUERYSERVER_ADMIN_PASSWORD": password, "QUERYSERVER__DESKTOP__SHUTDOWN_GRACE_S": "1"}
    async with (
        running_server(data_dir, settings=environment) as process,
        httpx.AsyncClient(base_url=process.base_url, timeout=60) as http,
    ):
        login = {"username": "admin", "password": password}
        tokens = (await http.post("/api/v1/token/auth", json=login)).json()
        yield Node(process, http, {"ana": tokens["access"]})


@asynccontextmanager
async def limited(place: Installation, *, kib: int) -> AsyncIterator[Node]:
    """A server whose files are limited to this size."""
    port = free_port()
    config = place.directory / "queryserver.toml"
    serve = f'ulimit -f {2 * kib}; exec "{PROGRAM}" serve --port {port} --config "{config}"'
    environment = place.settings(
        desktop__data_dir=str(place.directory / "data"), desktop__database__url=place.database_dsn
    )
    async with started(["/bin/sh", "-c", serve], port, place.directory, environment) as process:
        await process.wait_until_alive()
        async with httpx.AsyncClient(base_url=process.base_url, timeout=60) as http:
            yield Node(process, http, place.tokens)


def _dsn_over(cable: Cable, place: Installation, postgres: EmbeddedPostgres) -> str:
    """Return a DSN for the service database whose connections pass through the cable."""
    database = place.database_dsn.partition("@/")[2].partition("?")[0]
    password = quote(postgres.cluster.secrets.service, safe="")
    return f"postgresql://{SERVICE_ROLE}:{password}@127.0.0.1:{cable.port}/{database}"


async def _is_ready(node: Node) -> bool:
    return (await node.http.get("/desktop/debug/is_ready")).status_code == 200


async def _is_stopping(node: Node) -> bool:
    return (await node.http.get("/desktop/debug/is_ready")).json().get("code") == "stopping"


async def _answer(value: bool) -> bool:
    return value
