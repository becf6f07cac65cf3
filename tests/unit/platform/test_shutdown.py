"""A process that is stopping ends in time, even if calls or tasks are still running."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from signal import SIGINT, SIGTERM
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from queryserver import main

_SCRIPT = """
import threading, time
from queryserver.platform.shutdown import StopClock
threading.Thread(target=time.sleep, args=(600,), name="a driver that never returns").start()
clock = StopClock()
clock.set(600)
clock.set(0.1)
clock.set(600)
"""


def test_hanging_thread_does_not_keep_process_alive() -> None:
    ended = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert "Shutdown takes too long" in ended.stderr
    assert "a driver that never returns" in ended.stderr


class _Clock:
    def __init__(self) -> None:
        self.bounds: list[float] = []

    def set(self, within_s: float) -> None:
        self.bounds.append(within_s)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Any]:
    """Return a function that builds a server with the given shutdown delay and a clock controlled by the test."""

    def made(delay_s: float) -> Any:
        monkeypatch.setattr(main, "guard_connections", lambda *_: None)
        monkeypatch.setattr(main, "ConnectionCounts", lambda _: None)
        monkeypatch.setattr(main, "limits_of", lambda _: None)
        desktop = SimpleNamespace(shutdown_delay_s=delay_s, shutdown_grace_s=30)
        services: Any = SimpleNamespace(
            settings=SimpleNamespace(desktop=desktop), registry=None, readiness=SimpleNamespace(stopping=False)
        )
        clock: Any = _Clock()
        server = main._Server(uvicorn.Config("x:y", log_config=None), services, lambda: None, clock)
        times = SimpleNamespace(now=100.0)
        monkeypatch.setattr(main, "time", SimpleNamespace(monotonic=lambda: times.now))
        return SimpleNamespace(server=server, readiness=services.readiness, clock=clock, times=times)

    return made


async def test_first_signal_starts_shutdown_without_delay(told: Callable[[float], Any]) -> None:
    one = told(0)
    one.server.handle_exit(SIGTERM, None)
    assert one.server.should_exit
    assert one.readiness.stopping
    assert one.clock.bounds == [30 + 15]


async def test_server_keeps_serving_during_shutdown_delay(told: Callable[[float], Any]) -> None:
    one = told(0.5)
    one.server.handle_exit(SIGTERM, None)
    one.times.now += 0.4
    one.server.handle_exit(SIGTERM, None)  # the parent process forwards the same signal
    assert one.readiness.stopping
    assert not await one.server.on_tick(1)
    assert one.clock.bounds == [0.5 + 30 + 15]
    await asyncio.sleep(0.6)
    assert await one.server.on_tick(2)


async def test_second_signal_ends_shutdown_delay(told: Callable[[float], Any]) -> None:
    one = told(20)
    one.server.handle_exit(SIGTERM, None)
    one.times.now += 3
    one.server.handle_exit(SIGINT, None)
    assert await one.server.on_tick(1)
    assert not one.server.force_exit
