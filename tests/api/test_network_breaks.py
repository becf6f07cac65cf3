"""Statements, timeouts, cancellations and a server shutdown while the network to a HiveServer2 server is down.

The HiveServer2 server is scripted, and is called the peer. Like Hive, it keeps a session whose connection is lost.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.api.driving import Api, Caller, open_api
from tests.engines.fault_proxy import FaultProxy, fault_proxy
from tests.engines.scripted_hs2.server import ScriptedServer
from tests.timing import until

from queryserver.platform.settings.tree import Settings

pytestmark = pytest.mark.slow

BREAK_S = 3.0
SLOW = "SELECT SLEEP(60000)"
_MAX_S = 30.0
"""The limit in seconds for steps that take a few seconds on an idle machine. Waiting for all retries would take a
minute.
"""


@dataclass(frozen=True, slots=True)
class Line:
    """A user, the peer, and a proxy between the service and the peer that causes network faults."""

    api: Api
    ana: Caller
    peer: ScriptedServer
    proxy: FaultProxy

    @property
    def in_flight(self) -> list[str]:
        """The statements that the peer is executing."""
        return [one.statement for one in self.peer.service.operations.values() if one.is_in_flight]

    async def started(self, statement: str) -> str:
        operation = (await self.ana.execute("impala", statement))["history_uuid"]
        assert await self.has(operation)
        return operation

    async def has(self, operation: str) -> bool:
        """Wait until the peer is executing a statement or the operation has ended. Returns whether the peer is
        executing it.
        """
        is_there: list[bool] = []

        async def is_decided() -> bool:
            ended = await self.ana.begun(operation) != "running"
            is_there.append(bool(self.in_flight) and not ended)
            return ended or is_there[-1]

        await until(is_decided)
        return is_there[-1]


@asynccontextmanager
async def lines(directory: Path, dsn: str) -> AsyncIterator[Line]:
    async with ScriptedServer().serving() as peer, fault_proxy("127.0.0.1", peer.port) as proxy:
        peer.service.keeps_sessions = True
        options = {"server_host": "127.0.0.1", "server_port": proxy.port, "username": "svc", "use_sasl": True}
        settings = Settings.model_validate(
            {
                "desktop": {
                    "data_dir": directory / "data",
                    "secret_key": "k7Qm2vX9pLw4Rt8Zb3Nc6Yf1Hs5Jd0Ge",
                    "shutdown_grace_s": 0,
                    "database": {"url": dsn, "pool_max": 5, "connect_timeout_s": 60},
                },
                "editor": {"cancel_wait_s": 2},
                "notebook": {
                    "interpreters": {"impala": {"interface": "hiveserver2", "options": options}},
                    "default_interpreter": "impala",
                },
            }
        )
        async with open_api(settings) as api:
            yield Line(api, await api.user("ana"), peer, proxy)


async def test_statement_continues_after_a_network_break(tmp_path: Path, database_dsn: str) -> None:
    async with lines(tmp_path, database_dsn) as line:
        operation = await line.started("SELECT SLEEP(5000)")
        await line.proxy.die()
        await asyncio.sleep(BREAK_S)
        assert await line.ana.state(operation) == "running"
        await line.proxy.listen()
        assert (await line.ana.ended(operation))["status"] == 0
        assert (await line.ana.page(operation))["data"] == [[True]]


async def test_statement_timeout_applies_during_a_network_break(tmp_path: Path, database_dsn: str) -> None:
    async with lines(tmp_path, database_dsn) as line:
        for limit_s in (4, 12):  # on a busy machine, the statement may not start within the first limit
            operation = (await line.ana.execute("impala", SLOW, timeout=limit_s))["history_uuid"]
            if await line.has(operation):
                break
            await until(lambda: not line.in_flight)
        else:
            pytest.fail("the statement was always over before the peer was at work on it")
        await line.proxy.die()
        begun = time.monotonic()
        body = await line.ana.ended(operation)
        assert (body["status"], body["code"]) == (-4, "statement_timeout")
        assert time.monotonic() - begun < _MAX_S
        await line.proxy.listen()
        await line.peer.until(lambda: not line.in_flight)


async def test_cancel_during_a_network_break_returns_and_later_reaches_the_engine(tmp_path, database_dsn):
    async with lines(tmp_path, database_dsn) as line:
        operation = await line.started(SLOW)
        await line.proxy.die()
        begun = time.monotonic()
        await line.ana.on(operation, "cancel_statement")
        assert time.monotonic() - begun < _MAX_S
        await line.proxy.listen()
        assert (await line.ana.ended(operation))["query_status"]["state"] == "canceled"
        await line.peer.until(lambda: not line.in_flight)


async def test_network_break_does_not_delay_shutdown(tmp_path: Path, database_dsn: str) -> None:
    async with lines(tmp_path, database_dsn) as line:
        await line.started(SLOW)
        await line.proxy.die()
        await asyncio.sleep(0.5)
        begun = time.monotonic()
    assert time.monotonic() - begun < _MAX_S
