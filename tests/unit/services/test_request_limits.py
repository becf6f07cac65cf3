"""Calls per minute, within one process and between several (Contract platform 1.6)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from queryserver.errors.base import TooManyRequests
from queryserver.identity.callers import RequestLimits

MINUTE_S = 60.0


@dataclass
class Clock:
    now: float = 1_000_000 * MINUTE_S

    def __call__(self) -> float:
        return self.now


@dataclass
class MemoryCounts:
    """Counts of one process, in place of `RequestCounts`."""

    sums: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])

    async def add(self, minute: int, calls: Mapping[str, int]) -> Mapping[str, int]:
        for caller, number in calls.items():
            self.sums[minute, caller] = self.sums.get((minute, caller), 0) + number
        return {caller: self.sums[minute, caller] for caller in calls}

    async def forget(self, *, before: int) -> None:
        self.sums = {key: number for key, number in self.sums.items() if key[0] >= before}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def allowed(limits: RequestLimits, calls: int, user_id: int = 1) -> int:
    """How many of so many calls pass."""
    passed = 0
    for _ in range(calls):
        try:
            limits.count_user(user_id)
            passed += 1
        except TooManyRequests:
            pass
    return passed


@pytest.mark.security("T30")
def test_the_call_above_the_limit_is_told_when_to_come_back(clock: Clock):
    limits = RequestLimits(MemoryCounts(), most=3, clock=clock)
    clock.now += 12
    assert allowed(limits, 3) == 3
    with pytest.raises(TooManyRequests) as refused:
        limits.count_user(1)
    assert refused.value.retry_after == timedelta(seconds=48)
    assert allowed(limits, 3, user_id=2) == 3
    clock.now += 48
    assert allowed(limits, 9) == 3


def test_without_a_limit_nothing_is_counted(clock: Clock):
    limits = RequestLimits(MemoryCounts(), most=0, clock=clock)
    assert allowed(limits, 1000) == 1000
    limits.count_address("10.0.0.1")
    assert not limits.are_on


@pytest.mark.security("T30")
async def test_processes_keep_one_limit_together(clock: Clock):
    shared = MemoryCounts()
    here, there = (RequestLimits(shared, most=10, clock=clock) for _ in range(2))
    assert allowed(here, 6) == 6
    assert allowed(there, 1) == 1
    await here.tell()
    await there.tell()
    assert allowed(there, 9) == 3
    await there.tell()
    # Who has no news of its own hears of the others with its next call.
    assert allowed(here, 1) == 1
    await here.tell()
    assert allowed(here, 5) == 0


async def test_refused_calls_count_for_nobody(clock: Clock):
    shared = MemoryCounts()
    limits = RequestLimits(shared, most=2, clock=clock)
    allowed(limits, 50)
    await limits.tell()
    await limits.tell()
    assert list(shared.sums.values()) == [2]


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
    ],
)
def test_an_ipv6_caller_has_a_network(clock: Clock, one: str, other: str, together: bool):
    limits = RequestLimits(MemoryCounts(), most=1, clock=clock)
    limits.count_address(one)
    if together:
        with pytest.raises(TooManyRequests):
            limits.count_address(other)
    else:
        limits.count_address(other)


@pytest.mark.security("T30")
def test_a_flood_of_addresses_takes_no_user_s_limit_away(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("queryserver.identity.callers._MOST_ADDRESSES", 3)
    limits = RequestLimits(MemoryCounts(), most=2, clock=clock)
    for number in range(10):
        limits.count_address(f"10.0.0.{number}")
    assert allowed(limits, 5) == 2
    clock.now += MINUTE_S
    limits.count_address("10.0.0.9")
    limits.count_address("10.0.0.9")
    with pytest.raises(TooManyRequests):
        limits.count_address("10.0.0.9")
