"""Clients call the service while all processes behind a proxy from `deploy/` are restarted one after another."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import httpx
import pytest
from tests.deploy.proxies import PROXIES, SERVICE, Proxy
from tests.e2e.installation import USERS, Installation, Node, WorkerProcess, eventually, installed
from tests.fixtures.valkey import running_valkey
from tests.ports import free_port

from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = pytest.mark.timeout(300)

AFFINITY = "    hash $remote_addr consistent;\n"
CLIENTS = 4
"""Number of clients that retry failed calls; the number of clients that do not retry is the same."""
ADDRESSES = [f"127.0.0.{number}" for number in range(2, 2 + 2 * CLIENTS)]
LEASE_S = 6
REPEATED = {502, 503}
MAX_REPEATS = 10


@dataclass
class Member:
    """A process that is stopped with SIGTERM and started again at the same address."""

    open: Callable[[], AbstractAsyncContextManager[Node | WorkerProcess]]
    is_server: bool = False
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _opened: Node | WorkerProcess | None = None

    async def start(self) -> None:
        """Start the process and wait until it is ready."""
        self._opened = await self._stack.enter_async_context(self.open())

    async def restart(self) -> None:
        """Stop the process with SIGTERM, start it again and wait until it is ready."""
        assert self._opened is not None
        assert await self._opened.process.terminate() == 0
        await self.stop()
        await self.start()

    async def stop(self) -> None:
        await self._stack.aclose()


@dataclass(frozen=True)
class Fleet:
    """Two processes of each kind: servers, workers and beats."""

    place: Installation
    ports: Sequence[int]
    members: Sequence[Member]

    @property
    def servers(self) -> Sequence[Member]:
        return [member for member in self.members if member.is_server]


Fleets: TypeAlias = Callable[[int], Awaitable[Fleet]]
"""Starts a fleet. The argument is its `desktop.shutdown_delay_s`."""


@dataclass
class Client:
    """A client that repeatedly runs a statement and reads its rows. If `repeats` is set, it retries failed calls after
    the delay in `Retry-After`.
    """

    http: httpx.AsyncClient
    token: str
    repeats: bool
    done: int = 0
    failed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Calls that a stopping server refused during its grace period."""
    stopped: bool = False

    async def run(self) -> None:
        """Run statements until `stopped` is set."""
        while not self.stopped:
            if (operation := await self._submitted()) is None or not await self._is_available(operation):
                continue
            page = await self._call("fetch_result_data", operationId=operation)
            if page is not None:
                assert page["result"]["data"] == [[self.done]]
                self.done += 1

    async def _submitted(self) -> str | None:
        body = await self._call("execute/postgresql", uuid4().hex, statement=f"SELECT {self.done} AS n", wait=10)
        return body and body["history_uuid"]

    async def _is_available(self, operation: str) -> bool:
        """Wait for the statement's end; return False if a call failed. Fails if the statement itself did."""
        while (body := await self._call("check_status", operationId=operation, wait=10)) is not None:
            if (state := body["query_status"]["state"]) not in {"waiting", "running"}:
                assert state == "available", body
                return True
        return False

    async def _call(self, path: str, key: str = "", **body: Any) -> dict[str, Any] | None:
        """Make a call; return the response body, or None if the call failed."""
        headers = {"Authorization": f"Bearer {self.token}", **({"Idempotency-Key": key} if key else {})}
        for _ in range(MAX_REPEATS):
            answer = await self.http.post(f"/api/v1/editor/{path}", json=body, headers=headers)
            if answer.status_code == 200:
                return answer.json()
            assert answer.status_code in REPEATED, answer.text
            assert "Retry-After" in answer.headers
            if not self.repeats:
                break
            await asyncio.sleep(float(answer.headers["Retry-After"]))
        is_stopping = answer.json()["code"] == "stopping"
        (self.refused if is_stopping else self.failed).append(f"{path} {answer.status_code} {answer.text}")
        return None


@pytest.fixture
async def fleets(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path
) -> AsyncIterator[Fleets]:
    """Starts fleets of two servers, two workers and two beats that share one PostgreSQL and one Valkey."""
    members: list[Member] = []
    async with running_valkey() as broker, installed(postgres, migrated_template, tmp_path) as plain:
        place = plain.with_task_server(broker.url, lease_s=LEASE_S)
        settings = {
            "desktop__task_server__beat_enabled": "true",
            "desktop__trusted_proxies": '["127.0.0.1/32"]',
            "desktop__allowed_hosts": json.dumps([SERVICE]),
            "desktop__shutdown_grace_s": "10",
        }
        place = replace(place, environment={**place.environment, **settings})

        async def started(delay_s: int) -> Fleet:
            ports = [free_port(), free_port()]
            delay = {"desktop__shutdown_delay_s": str(delay_s)}
            servers = [Member(partial(place.server, port=port, **delay), is_server=True) for port in ports]
            members.extend([*servers, *(Member(kind) for kind in (place.worker, place.beat) for _ in range(2))])
            await asyncio.gather(*(member.start() for member in members))
            return Fleet(place, ports, members)

        try:
            yield started
        finally:
            await asyncio.gather(*(member.stop() for member in members))


async def restarted(fleet: Fleet, members: Sequence[Member], proxy: Proxy) -> None:
    """Restart the members one after another while clients call the service. Calls of clients that retry must not
    fail.
    """
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as running:
        clients = list[Client]()
        for number in range(2 * CLIENTS):
            http = await stack.enter_async_context(proxy.client(ADDRESSES[number]))
            clients.append(Client(http, fleet.place.tokens[USERS[number % len(USERS)]], repeats=number < CLIENTS))
            running.create_task(clients[-1].run())
        try:
            await all_go_on(clients)
            for member in members:
                known = [len(client.failed) for client in clients]
                refused = [len(client.refused) for client in clients]
                await member.restart()
                await all_go_on(clients)
                lost = [client.failed[start:] for client, start in zip(clients, known, strict=True)]
                assert not any(lost[:CLIENTS]), [*filter(None, lost)]
                max_lost = 1 if member.is_server else 0
                assert max(len(one) for one in lost) <= max_lost, [*filter(None, lost)]
                turned_away = [client.refused[start:] for client, start in zip(clients, refused, strict=True)]
                assert not any(turned_away[:CLIENTS]), turned_away
                assert member.is_server or not any(turned_away), turned_away
        finally:
            for client in clients:
                client.stopped = True


async def all_go_on(clients: Sequence[Client]) -> None:
    """Wait until each client has read the rows of a statement that it submitted after this function was called."""
    before = [client.done for client in clients]

    async def have() -> bool:
        return all(client.done >= done + 2 for client, done in zip(clients, before, strict=True))

    await eventually(have, within_s=60)


@pytest.mark.engine("nginx")
async def test_restarting_everything_behind_nginx_loses_no_call(fleets: Fleets) -> None:
    fleet = await fleets(3)
    with PROXIES["nginx"](fleet.ports) as proxy:
        await restarted(fleet, fleet.members, proxy)
        proxy.change(AFFINITY, "")
        await restarted(fleet, fleet.servers, proxy)


@pytest.mark.engine("haproxy")
async def test_restarting_servers_behind_haproxy_loses_no_call(fleets: Fleets) -> None:
    fleet = await fleets(5)
    with PROXIES["haproxy"](fleet.ports) as proxy:
        await restarted(fleet, fleet.servers, proxy)
