"""The connection pool, retries after network failures, and TLS error messages."""

import asyncio
import ssl
from collections.abc import AsyncGenerator

import pytest
from tests.timing import until

from queryserver.engines.connections import RETRY_S, ConnectionPool, Retries, connection_failure_message
from queryserver.engines.hiveserver2.variants import Limits
from queryserver.engines.trino.protocol import TrinoTimeouts
from queryserver.errors.statements import EngineUnavailable


class Line:
    """A connection whose cleanup lasts until the test sets `cleaned`."""

    def __init__(self) -> None:
        self.is_gone = False
        self.shuts = 0
        self.cleaned = asyncio.Event()
        self.cleaned.set()

    def is_closed(self) -> bool:
        return self.is_gone

    async def clean(self) -> bool:
        await self.cleaned.wait()
        return not self.is_gone

    async def disconnect(self) -> None:
        self.shuts += 1


class Lines:
    """A factory that records the connections it has made."""

    def __init__(self) -> None:
        self.made: list[Line] = []

    async def connect(self, login: str) -> Line:
        self.made.append(Line())
        return self.made[-1]


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
async def pool(lines: Lines) -> AsyncGenerator[ConnectionPool[str, Line]]:
    pool = ConnectionPool(lines.connect, max_idle=2, idle_s=60)
    yield pool
    await pool.close()
    assert all(line.shuts for line in lines.made)


Pool = ConnectionPool[str, Line]


async def giving_back(pool: Pool, line: Line) -> asyncio.Task[None]:
    """Start returning a connection to the pool; return the task, which waits for the connection's cleanup."""
    line.cleaned.clear()
    task = asyncio.create_task(pool.give_back("ana", line))
    await asyncio.sleep(0)
    return task


async def test_idle_connection_is_reused_only_for_its_login(pool: Pool) -> None:
    first, second = await pool.take("ana"), await pool.take("ana")
    await pool.give_back("ana", first)
    await pool.give_back("ana", second)
    other = await pool.take("bob")
    assert other not in {first, second}
    assert await pool.take("ana") is second
    assert await pool.take("ana") is first
    for line in (first, second, other):
        await line.disconnect()


async def test_connections_above_idle_limit_are_closed(pool: Pool, lines: Lines) -> None:
    for _ in range(3):
        await pool.take("ana")
    for line in lines.made:
        await pool.give_back("ana", line)
    assert [line.shuts for line in lines.made] == [0, 0, 1]


async def test_spare_connections_are_reused_and_soon_closed(lines: Lines) -> None:
    pool = ConnectionPool(lines.connect, max_idle=1, max_spare=2, idle_s=3600, spare_s=0.05)
    for _ in range(2):
        for line in [await pool.take("ana") for _ in range(3)]:
            await pool.give_back("ana", line)
    assert len(lines.made) == 3
    await until(lambda: sum(line.shuts for line in lines.made) == 2)
    assert not (await pool.take("ana")).shuts
    assert len(lines.made) == 3
    await pool.close()


async def test_connection_lost_while_idle_is_closed_and_replaced(pool: Pool) -> None:
    line = await pool.take("ana")
    await pool.give_back("ana", line)
    line.is_gone = True
    fresh = await pool.take("ana")
    assert fresh is not line
    assert line.shuts == 1
    await pool.give_back("ana", fresh)


async def test_connection_being_cleaned_while_pool_closes_is_closed(pool: Pool) -> None:
    line = await pool.take("ana")
    back = await giving_back(pool, line)
    await pool.close()
    assert not line.shuts
    line.cleaned.set()
    await back
    assert line.shuts == 1
    with pytest.raises(EngineUnavailable):
        await pool.take("ana")


async def test_connection_with_canceled_cleanup_is_closed(pool: Pool) -> None:
    line = await pool.take("ana")
    back = await giving_back(pool, line)
    back.cancel()
    await asyncio.wait({back})
    assert back.cancelled()
    assert line.shuts == 1


async def test_idle_limit_applies_to_concurrently_cleaned_connections(pool: Pool, lines: Lines) -> None:
    for _ in range(4):
        await pool.take("ana")
    backs = [await giving_back(pool, line) for line in lines.made]
    for line in lines.made:
        line.cleaned.set()
    await asyncio.gather(*backs)
    assert sum(line.shuts for line in lines.made) == 2


async def test_call_is_not_retried_without_remaining_time() -> None:
    assert not await Retries(0).pause()


async def test_pause_is_skipped_when_minimum_exceeds_remaining_time() -> None:
    assert not await Retries(1).pause(min_s=2)
    begun = asyncio.get_running_loop().time()
    assert await Retries(1).pause(min_s=0.2)
    assert asyncio.get_running_loop().time() - begun >= 0.2


async def test_pauses_grow_until_time_limit() -> None:
    loop = asyncio.get_running_loop()
    now, slept = loop.time(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    # Patched only within this block; otherwise, background tasks of shared applications would loop without any pause.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "time", lambda: now + sum(slept))
        patched.setattr("queryserver.engines.connections.asyncio.sleep", sleep)
        retries = Retries(10)
        while await retries.pause():
            pass
    assert slept == sorted(slept)
    assert slept[0] < 0.1
    assert slept[-1] == 1
    assert 9 <= sum(slept) <= 10


def test_engines_with_resumable_statements_share_one_retry_limit() -> None:
    assert Limits().retry_s == TrinoTimeouts().retry_s == RETRY_S == 60


def _refused(message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] failed (_ssl.c:1002)")
    error.verify_message = message
    return error


def _failed(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "[SSL] failed (_ssl.c:1002)")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (_refused("certificate has expired"), ": certificate verification failed (certificate has expired)."),
        (_refused("not valid for 'db'."), ": certificate verification failed (not valid for 'db')."),
        (_failed("WRONG_VERSION_NUMBER"), ": the server does not support TLS."),
        (_failed("NO_SHARED_CIPHER"), ": the TLS handshake failed."),
        (ConnectionRefusedError(111, "refused by 10.0.0.7"), "."),
    ],
)
def test_connection_error_reason_excludes_driver_messages(error: OSError, reason: str) -> None:
    assert connection_failure_message("Shop", error) == f"Could not connect to Shop{reason}"
    outer = RuntimeError("a driver's own")
    outer.__cause__ = error
    assert connection_failure_message("Shop", outer) == f"Could not connect to Shop{reason}"


def test_circular_error_context_terminates() -> None:
    first, second = OSError("first"), OSError("second")
    first.__context__, second.__context__ = second, first
    assert connection_failure_message("Shop", first) == "Could not connect to Shop."
