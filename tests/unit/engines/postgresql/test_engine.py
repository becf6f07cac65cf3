"""What tells the service's own database from others, also where a server does not say all of it."""

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
    """Answers as a server of a product that only speaks the protocol, or one with less rights."""

    def __init__(self, *answers: Mapping[str, Any] | Exception) -> None:
        self.answers = list(answers)

    async def fetchrow(self, query: str, *, timeout: float | None = None) -> Any:
        del query, timeout
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


_DENIED = asyncpg.InsufficientPrivilegeError("permission denied for function pg_control_system")
_UNKNOWN = asyncpg.UndefinedTableError("no such catalogue")


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    tasks = Tasks()
    async with tasks.running():
        yield tasks


@pytest.fixture
async def own(database_dsn: str, tasks: Tasks) -> OwnDatabase:
    """The rule for this test's service database."""
    return OwnDatabase(database_dsn, tasks)


@pytest.fixture
async def inside(database_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the service's database."""
    connection = await asyncpg.connect(database_dsn)
    yield connection
    await connection.close()


async def test_the_service_s_database_is_refused_wherever_it_seems_to_be(own, inside) -> None:
    for on_own_server in (True, False):
        with pytest.raises(HostRefused, match="the service's own database"):
            await own.require_other(inside, on_own_server=on_own_server)


async def test_another_database_of_the_server_is_served(own: OwnDatabase, sample_dsn: str) -> None:
    connection = await asyncpg.connect(sample_dsn)
    await own.require_other(connection, on_own_server=True)
    await connection.close()


async def test_another_server_may_have_a_database_of_the_same_name_and_number(own, inside) -> None:
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


async def test_what_does_not_say_which_database_it_is_is_refused_on_the_service_s_server_only(own: OwnDatabase) -> None:
    await own.require_other(Server(_UNKNOWN, _UNKNOWN), on_own_server=False)
    with pytest.raises(HostRefused, match="does not say which one"):
        await own.require_other(Server(_UNKNOWN, _UNKNOWN), on_own_server=True)


@pytest.mark.parametrize("failure", [TimeoutError(), ConnectionResetError(), asyncpg.QueryCanceledError("timeout")])
async def test_a_database_that_does_not_answer_is_not_served(own: OwnDatabase, failure: Exception) -> None:
    with pytest.raises(EngineUnavailable):
        await own.require_other(Server(failure), on_own_server=False)


async def test_a_service_database_out_of_reach_serves_nobody(sample_dsn: str, tasks: Tasks) -> None:
    connection = await asyncpg.connect(sample_dsn)
    with pytest.raises(EngineUnavailable, match="The database of this service"):
        await OwnDatabase("postgresql://u:p@127.0.0.1:1/own", tasks).require_other(connection, on_own_server=False)
    await connection.close()


class Outage:
    """In place of the driver: connects as long as `is_over`; `attempts` counts those that failed or hung."""

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


async def test_while_the_service_database_is_out_of_reach_other_servers_are_served_by_what_it_was(
    database_dsn: str, tasks: Tasks, inside: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement is stopped over a new connection, which must not depend on the service's database."""
    outage = Outage(monkeypatch)
    own = OwnDatabase(database_dsn, tasks, clock=outage.clock)
    await own.require_other(Server(_ELSEWHERE), on_own_server=False)
    outage.is_over, outage.now = False, 100.0
    await own.require_other(Server(_ELSEWHERE), on_own_server=False)
    with pytest.raises(HostRefused, match="the service's own database"):
        await own.require_other(inside, on_own_server=False)
    with pytest.raises(EngineUnavailable, match="did not answer"):
        await own.require_other(Server(_ELSEWHERE), on_own_server=True)
    assert outage.attempts == 1
    outage.is_over, outage.now = True, 200.0
    await own.require_other(Server(_ELSEWHERE), on_own_server=True)


async def test_connections_that_wait_for_the_service_database_share_an_attempt(
    database_dsn, tasks, monkeypatch
) -> None:
    outage = Outage(monkeypatch)
    outage.is_over = False
    own = OwnDatabase(database_dsn, tasks, clock=outage.clock)
    calls = (own.require_other(Server(_ELSEWHERE), on_own_server=False) for _ in range(20))
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in found] == [EngineUnavailable] * 20
    assert outage.attempts == 1
    outage.is_over, outage.now = True, 10.0
    await own.require_other(Server(_ELSEWHERE), on_own_server=False)


async def test_who_gives_up_waiting_does_not_end_the_attempt_of_others(database_dsn, tasks, monkeypatch) -> None:
    """A worker that has lost a statement cancels it, and may run others at the same moment."""
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


async def test_an_attempt_ends_with_its_tasks_and_who_waits_is_told(database_dsn, monkeypatch) -> None:
    outage, tasks = Outage(monkeypatch), Tasks()
    outage.is_over, outage.hangs = False, True
    own = OwnDatabase(database_dsn, tasks, clock=outage.clock)
    waiting = asyncio.create_task(own.require_other(Server(_ELSEWHERE), on_own_server=False))
    await outage.begun.wait()
    async with asyncio.timeout(10):
        await tasks.aclose()
        with pytest.raises(EngineUnavailable, match="did not answer"):
            await waiting
