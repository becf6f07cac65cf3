"""Recognition of the service's own database, even if its server reports only a part of the identity."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import asyncpg
import pytest

from queryserver.engines.postgresql.engine import OwnDatabase
from queryserver.errors.statements import EngineUnavailable
from queryserver.platform.addresses import HostRefused
from queryserver.platform.threads import Tasks

pytestmark = pytest.mark.security("T8")


class Server:
    """A server that replies with scripted rows or errors, like a PostgreSQL-compatible product or a server on which the
    login has fewer privileges.
    """

    def __init__(self, *answers: Mapping[str, Any] | Exception) -> None:
        self.answers = list(answers)

    async def fetchrow(self, query: str, *, timeout: float | None = None) -> Any:
        del query, timeout
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


_DENIED = asyncpg.InsufficientPrivilegeError("permission denied for function pg_control_system")
_UNKNOWN = asyncpg.UndefinedTableError("no such catalog")


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    tasks = Tasks()
    async with tasks.running():
        yield tasks


@pytest.fixture
async def own(database_dsn: str, tasks: Tasks) -> OwnDatabase:
    """Return the object that protects this test's service database."""
    return OwnDatabase(database_dsn, tasks)


@pytest.fixture
async def inside(database_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Connect to the service database."""
    connection = await asyncpg.connect(database_dsn)
    yield connection
    await connection.close()


async def test_service_database_is_refused_on_any_server(own, inside) -> None:
    for on_own_server in (True, False):
        with pytest.raises(HostRefused, match="the service's own database"):
            await own.require_other(inside, on_own_server=on_own_server)


async def test_other_database_on_service_server_is_permitted(own: OwnDatabase, sample_dsn: str) -> None:
    connection = await asyncpg.connect(sample_dsn)
    await own.require_other(connection, on_own_server=True)
    await connection.close()


async def test_other_server_may_have_database_with_same_name_and_oid(own, inside) -> None:
    found = await inside.fetchrow("select datname, oid::bigint from pg_database where datname = current_database()")
    assert found is not None
    name, number = found
    await own.require_other(Server({"name": name, "number": number, "cluster": 1}), on_own_server=False)
    silent = {"name": name, "number": number, "cluster": None}
    await own.require_other(Server(_DENIED, silent), on_own_server=False)
    with pytest.raises(HostRefused):
        await own.require_other(Server(_DENIED, silent), on_own_server=True)
    with pytest.raises(HostRefused):
        await own.require_other(Server(_DENIED, {**silent, "name": "renamed"}), on_own_server=True)


async def test_unidentified_database_is_refused_only_on_service_server(own: OwnDatabase) -> None:
    await own.require_other(Server(_UNKNOWN, _UNKNOWN), on_own_server=False)
    with pytest.raises(HostRefused, match="does not identify itself"):
        await own.require_other(Server(_UNKNOWN, _UNKNOWN), on_own_server=True)


@pytest.mark.parametrize("failure", [TimeoutError(), ConnectionResetError(), asyncpg.QueryCanceledError("timeout")])
async def test_unresponsive_database_is_unavailable(own: OwnDatabase, failure: Exception) -> None:
    with pytest.raises(EngineUnavailable):
        await own.require_other(Server(failure), on_own_server=False)


async def test_unavailable_service_database_blocks_all_connections(sample_dsn: str, tasks: Tasks) -> None:
    connection = await asyncpg.connect(sample_dsn)
    with pytest.raises(EngineUnavailable, match="The service's own database"):
        await OwnDatabase("postgresql://u:p@127.0.0.1:1/own", tasks).require_other(connection, on_own_server=False)
    await connection.close()


class Outage:
    """A replacement for the driver's connect function.

    It connects only if `is_over` is set; `attempts` counts the attempts that failed or hung.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_over, self.hangs, self.attempts, self.now = True, False, 0, 0.0
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self._connect = asyncpg.connect
        monkeypatch.setattr(asyncpg, "connect", self.connect)

    async def connect(self, *args: Any, **options: Any) -> Any:
        if self.is_over:
            return await self._connect(*args, **options)
        self.attempts += 1
        self.begun.set()
        if self.hangs:
            await self.goes_on.wait()
            return await self._connect(*args, **options)
        raise ConnectionRefusedError

    def clock(self) -> float:
        return self.now


_ELSEWHERE = {"name": "other", "number": 1, "cluster": 1}


async def test_other_servers_are_permitted_during_service_database_outage(
    database_dsn: str, tasks: Tasks, inside: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canceling a statement needs a new connection, which must not depend on the availability of the
    service database.
    """
    outage = Outage(monkeypatch)
    own = OwnDatabase(database_dsn, tasks, clock=outage.clock)
    await own.require_other(Server(_ELSEWHERE), on_own_server=False)
    outage.is_over, outage.now = False, 100.0
    await own.require_other(Server(_ELSEWHERE), on_own_server=False)
    with pytest.raises(HostRefused, match="the service's own database"):
        await own.require_other(inside, on_own_server=False)
    with pytest.raises(EngineUnavailable, match="did not respond"):
        await own.require_other(Server(_ELSEWHERE), on_own_server=True)
    assert outage.attempts == 1
    outage.is_over, outage.now = True, 200.0
    await own.require_other(Server(_ELSEWHERE), on_own_server=True)


async def test_connections_waiting_for_service_database_share_one_attempt(database_dsn, tasks, monkeypatch) -> None:
    outage = Outage(monkeypatch)
    outage.is_over = False
    own = OwnDatabase(database_dsn, tasks, clock=outage.clock)
    calls = (own.require_other(Server(_ELSEWHERE), on_own_server=False) for _ in range(20))
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in found] == [EngineUnavailable] * 20
    assert outage.attempts == 1
    outage.is_over, outage.now = True, 10.0
    await own.require_other(Server(_ELSEWHERE), on_own_server=False)


async def test_canceled_waiter_does_not_abort_shared_attempt(database_dsn, tasks, monkeypatch) -> None:
    """A worker cancels a statement that it has lost, but its other statements may be waiting for the same attempt."""
    outage = Outage(monkeypatch)
    outage.is_over, outage.hangs = False, True
    own = OwnDatabase(database_dsn, tasks, clock=outage.clock)
    first, other = (asyncio.create_task(own.require_other(Server(_ELSEWHERE), on_own_server=True)) for _ in range(2))
    await outage.begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    outage.goes_on.set()
    await other
    await own.require_other(Server(_ELSEWHERE), on_own_server=True)
    assert outage.attempts == 1


async def test_shutdown_aborts_attempt_and_fails_its_waiters(database_dsn, monkeypatch) -> None:
    outage, tasks = Outage(monkeypatch), Tasks()
    outage.is_over, outage.hangs = False, True
    own = OwnDatabase(database_dsn, tasks, clock=outage.clock)
    waiting = asyncio.create_task(own.require_other(Server(_ELSEWHERE), on_own_server=False))
    await outage.begun.wait()
    async with asyncio.timeout(10):
        await tasks.aclose()
        with pytest.raises(EngineUnavailable, match="did not respond"):
            await waiting
