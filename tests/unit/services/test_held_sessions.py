"""Engine sessions that outlive a statement: turns, idleness, and nothing left behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from tests.fakes.engine import FakeEngine
from tests.unit.services.driving import ANA, until

from queryserver.engines.protocol import EngineSession, SessionOptions
from queryserver.errors.base import DatabaseUnavailable
from queryserver.errors.statements import EngineUnavailable, SessionLost
from queryserver.identity.model import User
from queryserver.statements.engine_sessions import HeldSession, HeldSessions

pytestmark = pytest.mark.timeout(20)


@dataclass
class Setting:
    """Sessions over a fake engine, and what was forgotten."""

    engine: FakeEngine = field(default_factory=FakeEngine)
    forgotten: list[int] = field(default_factory=list)
    forgetting_s: float = 0
    database_down: bool = False

    def __post_init__(self) -> None:
        self.held = HeldSessions(self._forget)

    async def open(
        self, session_id: int = 1, *, user: User = ANA, named: bool = True, idle_s: float = 60
    ) -> HeldSession:
        session = HeldSession(session_id, "fake", user, named=named, idle=timedelta(seconds=idle_s))
        await self.held.open(session, nullcontext(self.engine), SessionOptions())
        return session

    @property
    def open_at_engine(self) -> int:
        return len(self.engine._sessions)

    async def _forget(self, session_id: int) -> None:
        if self.database_down:
            raise DatabaseUnavailable
        await asyncio.sleep(self.forgetting_s)
        self.forgotten.append(session_id)


async def test_one_statement_at_a_time_in_the_order_of_asking() -> None:
    setting = Setting()
    held = await setting.open()
    order: list[int] = []

    async def statement(number: int) -> None:
        async with setting.held.turn(held):
            order.append(number)
            await asyncio.sleep(0.01)
            order.append(number)

    await asyncio.gather(*(statement(number) for number in range(5)))
    assert order == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    await setting.held.aclose()


async def test_a_dead_session_is_dropped_and_said_to_be_gone() -> None:
    setting = Setting()
    held = await setting.open()
    next(iter(setting.engine._sessions)).is_lost = True
    with pytest.raises(SessionLost, match=r"^Invalid session Id 1"):
        async with setting.held.turn(held):
            pass
    assert setting.held.get(1) is None
    assert setting.forgotten == [1]


async def test_who_waited_for_a_dropped_session_does_not_close_its_successor() -> None:
    setting = Setting()
    old = await setting.open()
    await setting.held.drop(1)
    new = await setting.open()
    with pytest.raises(SessionLost):
        async with setting.held.turn(old):
            pass
    assert setting.held.get(1) is new
    await setting.held.aclose()


async def test_a_session_in_use_is_never_idle() -> None:
    setting = Setting()
    held = await setting.open(idle_s=0.05)
    async with setting.held.turn(held):
        await asyncio.sleep(0.1)
        await setting.held.drop_idle()
        assert setting.held.get(1) is held
    await asyncio.sleep(0.1)
    await setting.held.drop_idle()
    assert setting.held.get(1) is None
    assert setting.open_at_engine == 0


async def test_a_session_that_is_taken_while_others_close_stays_open() -> None:
    setting = Setting(forgetting_s=0.1)
    slow = await setting.open(1, idle_s=0)
    taken = await setting.open(2, idle_s=0)

    async def use() -> None:
        await until(lambda: setting.held.get(slow.id) is None)
        async with setting.held.turn(taken):
            await asyncio.sleep(0.2)
            assert setting.open_at_engine == 1

    user = asyncio.create_task(use())
    await asyncio.sleep(0)
    await setting.held.drop_idle()
    await user
    await setting.held.aclose()


async def test_a_failed_opening_holds_nothing() -> None:
    setting = Setting()
    setting.engine.reachable = False
    with pytest.raises(EngineUnavailable):
        await setting.open()
    assert setting.held.get(1) is None


async def test_an_opening_that_is_broken_off_leaves_no_session() -> None:
    class Slow(FakeEngine):
        @asynccontextmanager
        async def session(self, user: User, options: SessionOptions) -> AsyncIterator[EngineSession]:
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                await asyncio.sleep(0.1)  # a connection that is half open takes its time to close
                raise
            async with super().session(user, options) as session:
                yield session

    setting = Setting(engine=Slow())
    opening = asyncio.create_task(setting.open())
    await asyncio.sleep(0.05)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "session-1"]


async def test_closing_works_while_the_database_is_away() -> None:
    setting = Setting()
    await setting.open(1)
    await setting.open(2)
    setting.database_down = True
    await setting.held.aclose()
    assert setting.open_at_engine == 0


async def test_a_session_without_a_record_yet_survives_the_heartbeat() -> None:
    setting = Setting()
    fresh = await setting.open()
    await setting.held.reconcile(setting.held.recorded(), [])
    assert setting.held.get(1) is fresh
    fresh.is_recorded = True
    await setting.held.reconcile(setting.held.recorded(), [])
    assert setting.held.get(1) is None


async def test_room_is_made_at_the_cost_of_what_was_left_longest() -> None:
    setting = Setting()
    for session_id in range(1, 5):
        await setting.open(session_id, named=False)
        await asyncio.sleep(0.01)
    await setting.open(9, named=True)
    other = await setting.open(10, named=False, user=User(2, "bob"))
    busy = setting.held.get(1)
    assert busy is not None
    async with setting.held.turn(busy):
        await setting.held.make_room(ANA.id, keep=2)
    assert [one for one in range(1, 5) if setting.held.get(one)] == [1, 4]
    assert setting.held.get(9) is not None
    assert setting.held.get(10) is other
    await setting.held.aclose()


async def test_sessions_of_disabled_users_are_closed_side_by_side() -> None:
    setting, started = Setting(), asyncio.Event()
    for session_id, user in ((1, ANA), (2, ANA), (3, User(99, "bob"))):
        await setting.open(session_id, user=user)
    first = setting.held.get(1)
    assert first is not None

    async def never() -> None:
        started.set()
        await asyncio.Event().wait()

    first.close = never  # type: ignore[method-assign]
    dropping = asyncio.create_task(setting.held.drop_owned_by({ANA.id}))
    await started.wait()
    await until(lambda: setting.forgotten == [2])
    assert list(setting.held.ids()) == [3]
    dropping.cancel()
    await HeldSession.close(first)
    await setting.held.aclose()
