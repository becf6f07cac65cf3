"""The threads that run blocking plug-in functions (Contract platform 4.1, 4.2)."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from tests.timing import settle

from queryserver.errors.base import LoginBackendUnavailable
from queryserver.identity.model import RequestInfo, UsernameRule
from queryserver.identity.plug_ins import PlugInLogin
from queryserver.identity.threads import LimitedThreads, TooManyWaiting

THREADS = 8
CLIENT = RequestInfo("192.0.2.1")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Provide an event on which threads wait; it is set at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


def pool(limit_s: float = 10, max_waiting: int | None = None) -> LimitedThreads:
    return LimitedThreads(limit_s=limit_s, max_waiting=max_waiting)


async def test_calls_beyond_the_queue_limit_are_rejected_immediately(gate: threading.Event) -> None:
    threads = pool(max_waiting=2)
    calls = [asyncio.create_task(threads.call(gate.wait)) for _ in range(THREADS + 2)]
    await settle()
    for _ in range(3):
        with pytest.raises(TooManyWaiting):
            await threads.call(gate.wait)
    gate.set()
    assert await asyncio.gather(*calls) == [True] * len(calls)
    assert await threads.call(gate.wait) is True
    threads.close()


async def test_canceled_waiters_release_their_slots(gate: threading.Event) -> None:
    threads = pool(limit_s=60, max_waiting=THREADS)
    for _ in range(2):
        calls = [asyncio.wait_for(threads.call(gate.wait), 0.5) for _ in range(2 * THREADS + 1)]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(one) for one in ended} == {TimeoutError, TooManyWaiting}
    gate.set()
    # All threads are free again: these calls can only end if they all run at the same time.
    together = threading.Barrier(THREADS, timeout=30)
    ended = await asyncio.gather(*(threads.call(together.wait) for _ in range(THREADS)))
    assert set(ended) == set(range(THREADS))
    threads.close()


async def test_abandoned_call_keeps_its_slot_until_its_thread_finishes(gate: threading.Event) -> None:
    threads = LimitedThreads(threads=2, limit_s=60)
    inside = threading.Semaphore(0)

    def hang() -> None:
        inside.release()
        gate.wait()

    for _ in range(4):
        calls = [asyncio.wait_for(threads.call(hang), 0.5) for _ in range(THREADS)]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(one) for one in ended} == {TimeoutError}
    gate.set()
    pair = threading.Barrier(2, timeout=30)
    await asyncio.gather(*(threads.call(pair.wait) for _ in range(2)))
    assert [inside.acquire(blocking=False) for _ in range(3)] == [True, True, False]
    threads.close()


async def test_call_times_out_at_the_limit(gate: threading.Event) -> None:
    threads = pool(limit_s=0.05)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(threads.call(gate.wait), 30)
    threads.close()


async def test_async_functions_need_no_thread(gate: threading.Event) -> None:
    async def quick() -> str:
        return "here"

    threads = pool(max_waiting=0)
    calls = [asyncio.create_task(threads.call(gate.wait)) for _ in range(THREADS)]
    await settle()
    assert await threads.call(quick) == "here"
    gate.set()
    await asyncio.gather(*calls)
    threads.close()


async def test_login_beyond_the_limit_is_an_unavailable_backend(gate: threading.Event) -> None:
    class Door:
        def login(self, *_: object) -> None:
            gate.wait()

    threads = pool(max_waiting=0)
    login = PlugInLogin("a.Door", Door(), threads, UsernameRule())
    calls = [asyncio.create_task(login.login("ana", "x", CLIENT)) for _ in range(THREADS)]
    await settle()
    with pytest.raises(LoginBackendUnavailable, match="Too many"):
        await login.login("ana", "x", CLIENT)
    gate.set()
    assert await asyncio.gather(*calls) == [None] * THREADS
    threads.close()


@pytest.mark.platform(36)
@pytest.mark.parametrize(
    ("typed", "rule", "given"),
    [
        (" Ana ", UsernameRule(), ["ana"]),
        ("Ana", UsernameRule(force_lowercase=False, force_uppercase=True), ["ANA"]),
        ("Ana", UsernameRule(ignore_case=False, force_lowercase=False), ["Ana"]),
        ("a b", UsernameRule(), []),
        ("..", UsernameRule(), []),
    ],
)
async def test_plug_ins_receive_valid_names_in_the_configured_case(
    typed: str, rule: UsernameRule, given: list[str]
) -> None:
    asked: list[str] = []

    class Door:
        async def login(self, username: str, *_: object) -> None:
            asked.append(username)

    threads = pool()
    assert await PlugInLogin("a.Door", Door(), threads, rule).login(typed, "x", CLIENT) is None
    assert asked == given
    threads.close()
