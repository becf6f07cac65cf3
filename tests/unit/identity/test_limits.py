"""Limits on calls: requests per minute, and long calls (Contract editor 13)."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from queryserver.errors.base import (
    DatabaseUnavailable,
    InvalidToken,
    PermissionDenied,
    TooManyRequests,
    TooManyStreams,
    UserInactive,
    UserNotFound,
)
from queryserver.identity.callers import TokenKey, TokenOwner
from queryserver.identity.limits import RequestLimits, Streams
from queryserver.identity.model import User

MINUTE_S = 60.0


@dataclass
class Clock:
    now: float = 1_000_000 * MINUTE_S

    def __call__(self) -> float:
        return self.now


@dataclass
class MemoryCounts:
    """An in-memory implementation of `RequestCounts` with a test clock."""

    clock: Clock = field(default_factory=Clock)
    """The clock of the simulated database."""
    sums: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])

    async def add(self, minute: int, calls: Mapping[str, int]) -> Mapping[str, int]:
        for caller, number in calls.items():
            self.sums[minute, caller] = self.sums.get((minute, caller), 0) + number
        return {caller: self.sums[minute, caller] for caller in calls}

    async def forget(self) -> float:
        minute = self.clock() // MINUTE_S
        self.sums = {key: number for key, number in self.sums.items() if key[0] >= minute}
        return self.clock()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def allowed(limits: RequestLimits, calls: int, user_id: int = 1) -> int:
    """Return how many of the calls are permitted."""
    passed = 0
    for _ in range(calls):
        try:
            limits.count_user(user_id)
            passed += 1
        except TooManyRequests:
            pass
    return passed


@pytest.mark.security("T30")
def test_call_above_the_limit_gets_a_retry_time(clock: Clock):
    limits = RequestLimits(MemoryCounts(), limit=3, clock=clock)
    clock.now += 12
    assert allowed(limits, 3) == 3
    with pytest.raises(TooManyRequests) as refused:
        limits.count_user(1)
    assert refused.value.retry_after == timedelta(seconds=48)
    assert allowed(limits, 3, user_id=2) == 3
    clock.now += 48
    assert allowed(limits, 9) == 3


def test_limit_of_zero_disables_counting(clock: Clock):
    limits = RequestLimits(MemoryCounts(), limit=0, clock=clock)
    assert allowed(limits, 1000) == 1000
    limits.count_address("10.0.0.1")
    assert not limits.are_on


@pytest.mark.security("T30")
async def test_processes_share_one_limit(clock: Clock):
    shared = MemoryCounts()
    here, there = (RequestLimits(shared, limit=10, clock=clock) for _ in range(2))
    assert allowed(here, 6) == 6
    assert allowed(there, 1) == 1
    await here.exchange()
    await there.exchange()
    assert allowed(there, 9) == 3
    await there.exchange()
    # A process learns about the calls of other processes only when it exchanges a new call of its own.
    assert allowed(here, 1) == 1
    await here.exchange()
    assert allowed(here, 5) == 0


@pytest.mark.security("T30")
@pytest.mark.parametrize("second", [5, 30, 55])
async def test_processes_with_different_clocks_count_in_the_same_minutes(second: int):
    shared = MemoryCounts()
    shared.clock.now += second
    early, late = (RequestLimits(shared, limit=10, clock=Clock(shared.clock.now + ahead)) for ahead in (10, -10))
    for limits in (early, late):
        await limits.follow_clock()
    assert allowed(early, 6) == 6
    await early.exchange()
    assert allowed(late, 1) == 1
    await late.exchange()
    assert allowed(late, 9) == 3
    with pytest.raises(TooManyRequests) as refused:
        late.count_user(1)
    assert refused.value.retry_after == timedelta(seconds=60 - second)


async def test_rejected_calls_are_not_counted(clock: Clock):
    shared = MemoryCounts()
    limits = RequestLimits(shared, limit=2, clock=clock)
    allowed(limits, 50)
    await limits.exchange()
    await limits.exchange()
    assert list(shared.sums.values()) == [2]


@pytest.mark.parametrize(("one", "other", "together"),
    [("10.0.0.1", "10.0.0.2", False), ("10.0.0.1", "::ffff:10.0.0.1", True), ("2001:db8::1", "2001:db8::ffff:1", True),
    ("2001:db8::1", "2001:db8:0:1::1", False)])  # fmt: skip
def test_ipv6_caller_is_counted_by_network(clock: Clock, one: str, other: str, together: bool):
    limits = RequestLimits(MemoryCounts(), limit=1, clock=clock)
    limits.count_address(one)
    if together:
        with pytest.raises(TooManyRequests):
            limits.count_address(other)
    else:
        limits.count_address(other)


@pytest.mark.security("T30")
def test_address_flood_does_not_affect_user_limits(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("queryserver.identity.limits._MAX_ADDRESSES", 3)
    limits = RequestLimits(MemoryCounts(), limit=2, clock=clock)
    for number in range(10):
        limits.count_address(f"10.0.0.{number}")
    assert allowed(limits, 5) == 2
    clock.now += MINUTE_S
    limits.count_address("10.0.0.9")
    limits.count_address("10.0.0.9")
    with pytest.raises(TooManyRequests):
        limits.count_address("10.0.0.9")


ANA = User(1, "ana", rights=frozenset({"download"}), token_ids=("family", "jti"), token_epoch=3)


@dataclass
class Records:
    """The part of `CallerRepository` that returns the token's `owner`, with a test clock."""

    owner_now: TokenOwner | None
    is_down: bool = False
    now: float = 0
    asked: list[TokenKey] = field(default_factory=list)

    async def owner(self, token: TokenKey) -> TokenOwner | None:
        self.asked.append(token)
        if self.is_down:
            raise DatabaseUnavailable
        return self.owner_now

    def clock(self) -> float:
        return self.now


def owner(
    *, is_active: bool = True, epoch: int = 3, is_revoked: bool = False, rights: tuple[str, ...] = ()
) -> TokenOwner:
    return TokenOwner(User(1, "ana", rights=frozenset(rights)), is_active, epoch, is_revoked)


def streams_of(records: Records, most: int = 2) -> Streams:
    return Streams(most, records, every=timedelta(seconds=5), clock=records.clock)  # type: ignore[arg-type]


def require_download(user: User) -> None:
    if not user.may("download"):
        raise PermissionDenied("no")


async def test_user_is_read_once_per_interval() -> None:
    records = Records(owner(rights=("download",)))
    with streams_of(records).slot(ANA) as slot:
        for records.now in (0, 4.9, 5, 5.1, 9.9, 10):
            await slot.recheck(require_download)
    assert records.asked == [TokenKey(1, "family", "jti")] * 2


@pytest.mark.parametrize(("now", "error"),
    [(None, UserNotFound), (owner(is_active=False), UserInactive), (owner(is_revoked=True), InvalidToken),
    (owner(epoch=4), InvalidToken), (owner(rights=()), PermissionDenied)])  # fmt: skip
async def test_call_stops_when_its_user_loses_access(now: TokenOwner | None, error: type[Exception]) -> None:
    records = Records(now)
    with streams_of(records).slot(ANA) as slot:
        records.now = 5
        with pytest.raises(error):
            await slot.recheck(require_download)


@pytest.mark.parametrize("is_down", [False, True])
async def test_permission_may_be_read_from_the_database(*, is_down: bool) -> None:
    async def permits(user: User) -> None:
        raise DatabaseUnavailable if is_down else PermissionDenied("no")

    records = Records(owner())
    with streams_of(records).slot(ANA) as slot:
        records.now = 5
        if is_down:
            await slot.recheck(permits)
        else:
            with pytest.raises(PermissionDenied):
                await slot.recheck(permits)


async def test_caller_without_our_token_ignores_the_epoch() -> None:
    records = Records(owner(epoch=9))
    with streams_of(records).slot(User(1, "ana")) as slot:
        records.now = 5
        await slot.recheck()
    assert records.asked == [TokenKey(1, "", "")]


async def test_call_continues_while_the_database_is_unavailable() -> None:
    records = Records(None, is_down=True)
    with streams_of(records).slot(ANA) as slot:
        records.now = 5
        await slot.recheck(require_download)
    assert len(records.asked) == 1


async def test_stream_stops_and_its_source_is_closed() -> None:
    records = Records(owner(is_active=False))
    is_closed = False

    async def source() -> AsyncGenerator[bytes]:
        nonlocal is_closed
        try:
            while True:
                yield b"piece"
                records.now += 3
        finally:
            is_closed = True

    seen: list[bytes] = []
    with streams_of(records).slot(ANA) as slot, pytest.raises(UserInactive):
        seen.extend([piece async for piece in slot.rechecked(source())])
    assert is_closed


async def test_slots_are_limited_and_released() -> None:
    streams = streams_of(Records(owner()), most=1)
    for _ in range(2):
        with streams.slot(ANA), pytest.raises(TooManyStreams), streams.slot(ANA):
            pass
