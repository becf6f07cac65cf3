"""nginx and HAProxy as configured in `deploy/`, in front of two servers."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
from tests.deploy.proxies import PROXIES, SERVICE, Proxy
from tests.e2e.installation import Installation, Node, eventually, installed
from tests.ports import free_port

from queryserver.platform.embedded.postgres import EmbeddedPostgres

ADDRESSES = [f"127.0.0.{number}" for number in range(2, 26)]
SENT_BY_CLIENTS = {"X-Forwarded-For": "198.51.100.7", "Forwarded": "for=198.51.100.7"}
SEES_METRICS = (b"/metrics", b"/metrics/", b"/%6detrics")
"""Spellings of the metrics path. The servers would return the metrics to the client address of these tests."""


@dataclass(frozen=True)
class Server:
    """A server and its log files."""

    node: Node
    directory: Path

    @property
    def port(self) -> int:
        return int(self.node.process.base_url.rpartition(":")[2])

    def lines(self, file: str) -> list[dict[str, Any]]:
        """Return the entries of the `access` or `audit` log."""
        path = self.directory / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
async def place(
    postgres: EmbeddedPostgres,
    tcp_open: EmbeddedPostgres,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Installation]:
    directory = tmp_path_factory.mktemp("proxied")
    (directory / "files" / "shared").mkdir(parents=True)
    async with installed(postgres, migrated_template, directory) as place:
        yield place


async def server(stack: AsyncExitStack, place: Installation, name: str, **more: str) -> Server:
    """Start a server with the settings that the proxy files in `deploy/` require."""
    directory = place.directory / name
    directory.mkdir()
    settings = {
        "desktop__trusted_proxies": '["127.0.0.1/32"]',
        "desktop__max_connections_per_address": "500",
        "desktop__allowed_hosts": json.dumps([SERVICE]),
        "desktop__logging__format": "json",
        "desktop__logging__access_log": "true",
        "desktop__logging__access_file": str(directory / "access"),
        "desktop__logging__audit_file": str(directory / "audit"),
        "filebrowser__local_root": str(place.directory / "files"),
        # No statement is taken over in these tests, so the lease can be long enough for a busy machine.
        "editor__lease_timeout_s": "60",
        **more,
    }
    return Server(await stack.enter_async_context(place.server(**settings)), directory)


@pytest.fixture(scope="module")
async def pair(place: Installation) -> AsyncIterator[list[Server]]:
    async with AsyncExitStack() as stack:
        yield [await server(stack, place, "first"), await server(stack, place, "second")]


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.engine(name)) for name in PROXIES])
def name(request: pytest.FixtureRequest) -> str:
    """The proxy under test."""
    return request.param


@pytest.fixture(scope="module")
def proxy(name: str, pair: list[Server]) -> Iterator[Proxy]:
    with PROXIES[name]([one.port for one in pair]) as proxy:
        yield proxy


def headers(place: Installation) -> dict[str, str]:
    """Return headers for a call by ana, with a unique request id."""
    return {"Authorization": f"Bearer {place.tokens['ana']}", "X-Request-Id": uuid4().hex}


async def execute(http: httpx.AsyncClient, place: Installation, statement: str, **fields: Any) -> httpx.Response:
    body = {"statement": statement, **fields}
    return await http.post("/api/v1/editor/execute/postgresql", json=body, headers=headers(place))


async def servers_of(answers: list[httpx.Response], servers: list[Server]) -> list[int]:
    """Return the index of the server that sent each response, according to the access logs."""
    found: dict[str, int] = {}

    async def all_found() -> bool:
        for number, one in enumerate(servers):
            found.update({line["request_id"]: number for line in one.lines("access")})
        return all(answer.headers["X-Request-Id"] in found for answer in answers)

    await eventually(all_found)
    return [found[answer.headers["X-Request-Id"]] for answer in answers]


async def test_statement_with_pages_and_file_passes_through_proxy(proxy: Proxy, place: Installation) -> None:
    async with proxy.client() as http:
        sql = "SELECT n, md5(n::text) FROM generate_series(1, 200000) AS n"
        submitted = await execute(http, place, sql, limit=200_000, wait=60)
        assert submitted.status_code == 200, submitted.text
        operation = submitted.json()["history_uuid"]
        page = await http.post(
            "/api/v1/editor/fetch_result_data",
            data={"operationId": operation, "start_row": 150_000, "rows": 2},
            headers=headers(place),
        )
        assert [row[0] for row in page.json()["result"]["data"]] == [150_001, 150_002]
        file = await http.get(f"/api/v1/editor/download/{operation}", params={"format": "csv"}, headers=headers(place))
        assert file.content.count(b"\n") == 200_001
        # The proxy forwards these calls, because the server itself authenticates users and checks the host.
        assert (await http.get("/api/v1/editor/get_history")).status_code == 401
        refused = await http.get("/api/v1/editor/get_history", headers={**headers(place), "Host": "other.example.org"})
        assert refused.json()["code"] == "invalid_host"


async def test_events_arrive_while_statement_runs(proxy: Proxy, place: Installation) -> None:
    holder = await asyncpg.connect(place.users_dsn, timeout=60)
    try:
        await holder.execute("SELECT pg_advisory_lock(4711)")
        async with proxy.client() as http:
            submitted = await execute(http, place, "SELECT pg_advisory_lock(4711)", wait=0)
            operation = submitted.json()["history_uuid"]
            path = f"/api/v1/editor/events/{operation}"
            async with http.stream("GET", path, headers=headers(place)) as answer:
                lines = answer.aiter_lines()
                # The statement waits for the lock until the first event arrives. A buffering proxy would forward no
                # event before the statement ends.
                while await anext(lines) != "event: status":
                    pass
                await holder.execute("SELECT pg_advisory_unlock(4711)")
                assert [line async for line in lines if line == "event: end"] == ["event: end"]
    finally:
        await holder.close(timeout=60)


async def test_uploads_may_be_larger_than_other_bodies(proxy: Proxy, place: Installation) -> None:
    content = os.urandom(17 * 1024 * 1024)
    async with proxy.client() as http:
        uploaded = await http.post(
            "/api/v1/storage/upload/file",
            params={"dest": "file:///shared"},
            files={"file": (f"{proxy.name}.bin", content)},
            headers=headers(place),
        )
        assert uploaded.status_code == 200, uploaded.text
        path = {"path": f"file:///shared/{proxy.name}.bin"}
        file = await http.get("/api/v1/storage/download", params=path, headers=headers(place))
        assert file.content == content
    async with proxy.client() as http:
        refused = await execute(http, place, "SELECT 1 -- " + "x" * len(content))
        assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")


async def test_each_client_stays_at_one_server_and_clients_are_distributed(
    proxy: Proxy, pair: list[Server], place: Installation
) -> None:
    answers = []
    for address in ADDRESSES * 2:
        async with proxy.client(address) as http:
            answers.append(await http.get("/api/v1/editor/get_history", headers=headers(place)))
    numbers = await servers_of(answers, pair)
    assert numbers[: len(ADDRESSES)] == numbers[len(ADDRESSES) :]
    assert set(numbers) == {0, 1}


@pytest.mark.engine("nginx")
async def test_nginx_without_affinity_line_alternates_servers(pair: list[Server], place: Installation) -> None:
    with PROXIES["nginx"]([one.port for one in pair]) as proxy:
        proxy.change("    hash $remote_addr consistent;\n", "")
        seen = set[int]()
        while seen != {0, 1}:
            async with proxy.client(ADDRESSES[0]) as http:
                answers = [await http.get("/api/v1/editor/get_history", headers=headers(place)) for _ in range(4)]
            assert {answer.status_code for answer in answers} == {200}
            seen = set(await servers_of(answers, pair))


async def test_without_servers_clients_receive_retry_after(name: str, place: Installation) -> None:
    with PROXIES[name]([free_port(), free_port()]) as proxy:
        async with proxy.client() as http:
            answer = await http.get("/api/v1/editor/get_history", headers=headers(place))
    assert (answer.json()["status"], answer.headers["Retry-After"]) == (-1, "2")
    assert (answer.status_code, answer.json()["code"]) == {
        "nginx": (502, "service_unavailable"),
        "haproxy": (503, "not_ready"),
    }[name]


@asynccontextmanager
async def faulty_server(*, answers_late: bool) -> AsyncIterator[int]:
    """Yield the port of a server that reports that it is ready but aborts all other calls. If `answers_late` is set, it
    never responds to them instead.
    """
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError):
            if b"is_ready" in await reader.readuntil(b"\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            if answers_late:
                await ended.wait()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            ended.set()


async def answer_of_proxy(proxy: Proxy, place: Installation) -> httpx.Response:
    async with proxy.client() as http:
        answer = await http.get("/api/v1/editor/get_history", headers=headers(place))
        while answer.status_code == 503:  # the proxy returns 503 until its first health check has succeeded
            answer = await http.get("/api/v1/editor/get_history", headers=headers(place))
    return answer


@pytest.mark.engine("haproxy")
async def test_haproxy_reports_server_that_aborts_calls(place: Installation) -> None:
    async with faulty_server(answers_late=False) as port:
        with PROXIES["haproxy"]([port, free_port()]) as proxy:
            answer = await answer_of_proxy(proxy, place)
    assert (answer.status_code, answer.json()["status"], answer.headers["Retry-After"]) == (502, -1, "2")
    assert answer.json()["code"] == "service_unavailable"


async def test_unresponsive_server_is_reported_to_clients(name: str, place: Installation) -> None:
    limit = {"nginx": "proxy_read_timeout 90s", "haproxy": "timeout server 90s"}[name]
    async with faulty_server(answers_late=True) as port:
        with PROXIES[name]([port, port], {limit: limit.replace("90s", "1s")}) as proxy:
            answer = await answer_of_proxy(proxy, place)
    assert (answer.status_code, answer.json()["status"], answer.headers["Retry-After"]) == (504, -1, "2")
    assert answer.json()["code"] == "service_unavailable"


async def test_client_address_is_correct_despite_forged_headers(proxy: Proxy, pair: list[Server]) -> None:
    username = f"nobody-{proxy.name}"
    async with proxy.client(ADDRESSES[0], **SENT_BY_CLIENTS) as http:
        login = await http.post("/api/v1/token/auth", json={"username": username, "password": "no password"})
        assert login.status_code == 401
    found: list[dict[str, Any]] = []

    async def is_written() -> bool:
        found[:] = [line for one in pair for line in one.lines("audit") if username in json.dumps(line)]
        return bool(found)

    await eventually(is_written)
    assert [line["client"] for line in found] == [ADDRESSES[0]]


async def test_metrics_are_not_forwarded(proxy: Proxy, pair: list[Server]) -> None:
    direct_url = pair[0].node.process.base_url
    async with proxy.client() as http, httpx.AsyncClient(base_url=direct_url, timeout=60) as direct:
        for path in SEES_METRICS:
            there = await direct.get("/", headers={"Host": SERVICE}, extensions={"target": path})
            assert there.status_code == 200, path
            assert (await http.get("/", extensions={"target": path})).status_code == 404, path
        for path in (b"//metrics", b"/./metrics", b"/api/../metrics", b"/METRICS"):
            assert (await http.get("/", extensions={"target": path})).status_code in {400, 404}, path


async def test_paths_arrive_unchanged_and_http_redirects_to_https(
    proxy: Proxy, pair: list[Server], place: Installation
) -> None:
    path = "/api/v1/storage/stat=file:///shared//a%2Fb%20c"
    async with proxy.client() as http:
        sent = headers(place)
        answer = await http.get("/", headers=sent, extensions={"target": path.encode()})
        assert answer.status_code == 404
        await servers_of([answer], pair)
    lines = [line for one in pair for line in one.lines("access") if line["request_id"] == sent["X-Request-Id"]]
    assert [line["path"] for line in lines] == [path]
    async with httpx.AsyncClient(headers={"Host": SERVICE}, timeout=60) as http:
        moved = await http.get(f"http://127.0.0.1:{proxy.plain_port}/api/docs?x=1")
    assert (moved.status_code, moved.headers["Location"]) == (301, f"https://{SERVICE}/api/docs?x=1")
    # RFC 6797, section 7.2, allows this header over HTTPS only.
    assert "Strict-Transport-Security" not in moved.headers


async def test_every_response_binds_browsers_to_https(proxy: Proxy, place: Installation) -> None:
    async with proxy.client() as http:
        answers = [
            await http.get(path, headers=headers(place)) for path in ("/api/docs", "/api/v1/nothing", "/metrics")
        ]
    assert [one.headers.get_list("Strict-Transport-Security") for one in answers] == [["max-age=15768000"]] * 3


async def test_no_call_fails_while_a_server_is_replaced(name: str, pair: list[Server], place: Installation) -> None:
    """For HAProxy, the shutdown delay is enough; nginx must first mark the server as `down`."""
    delay_s = "5" if name == "haproxy" else "0"
    async with AsyncExitStack() as stack:
        leaving = await server(
            stack, place, f"leaving-{name}", desktop__shutdown_delay_s=delay_s, desktop__shutdown_grace_s="10"
        )
        proxy = stack.enter_context(PROXIES[name]([pair[0].port, leaving.port]))
        servers = [pair[0], leaving]

        async def call_from_all() -> set[int]:
            """Make a call from each address; return the indexes of the servers that responded. Every call must
            succeed.
            """
            answers = await asyncio.gather(*(call(address) for address in ADDRESSES[:16]))
            assert [answer.status_code for answer in answers] == [200] * len(answers), [one.text for one in answers]
            assert {answer.json()["query_status"]["state"] for answer in answers} == {"available"}
            return set(await servers_of(answers, servers))

        async def call(address: str) -> httpx.Response:
            async with proxy.client(address) as http:
                return await execute(http, place, "SELECT 1", wait=30)

        while await call_from_all() != {0, 1}:
            pass
        line = f"127.0.0.1:{leaving.port} max_fails=1 fail_timeout=1s"
        if name == "nginx":
            proxy.change(line, f"{line} down")
            while await call_from_all() != {0}:
                pass
        leaving.node.process.process.send_signal(signal.SIGTERM)
        last = set[int]()
        while leaving.node.process.process.returncode is None:
            last = await call_from_all()
        assert leaving.node.process.process.returncode == 0
        # HAProxy may have sent these calls to the stopping server before a health check failed.
        assert name == "haproxy" or last == {0}
        if name == "nginx":
            # `down` may be removed now: nginx sends calls to the other server because this one is unavailable.
            proxy.change(f"{line} down", line)
        for _ in range(5):
            assert await call_from_all() == {0}
