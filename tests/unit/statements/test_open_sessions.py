"""The open sessions of a process: one statement at a time, closing, and shares per user."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from tests.fakes.engine import FakeEngine
from tests.refusals import raises_code
from tests.tasks import tasks_begun
from tests.unit.statements.driving import ANA, until

from queryserver.engines.protocol import EngineSession, SessionOptions
from queryserver.errors.base import DatabaseUnavailable, TooManyRequests
from queryserver.errors.statements import EngineUnavailable, SessionLost
from queryserver.identity.model import User
from queryserver.platform.settings.editor import EditorSettings
from queryserver.statements.open_sessions import OpenSession, OpenSessions, SessionShares


@dataclass
class Setting:
    """Sessions on a fake engine, and the ids of the sessions that were forgotten."""

    engine: FakeEngine = field(default_factory=FakeEngine)
    forgotten: list[int] = field(default_factory=list)
    forgetting_s: float = 0
    database_down: bool = False

    def __post_init__(self) -> None:
        self.held = OpenSessions(self._forget)

    async def open(
        self, session_id: int = 1, *, user: User = ANA, named: bool = True, idle_s: float = 60
    ) -> OpenSession:
        session = OpenSession(session_id, "fake", user, is_named=named, idle=timedelta(seconds=idle_s))
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


async def test_statements_run_in_request_order() -> None:
    setting = Setting()
    held = await setting.open()
    order: list[int] = []

    async def statement(number: int) -> None:
        async with setting.held.turn(held, ANA):
            order.append(number)
            await asyncio.sleep(0.01)
            order.append(number)

    await asyncio.gather(*(statement(number) for number in range(5)))
    assert order == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    await setting.held.aclose()


async def test_lost_session_is_dropped_and_reported() -> None:
    setting = Setting()
    held = await setting.open()
    next(iter(setting.engine._sessions)).is_lost = True
    with pytest.raises(SessionLost, match=r"^Invalid session Id 1"):
        async with setting.held.turn(held, ANA):
            pass
    assert setting.held.get(1) is None
    assert setting.forgotten == [1]


async def test_waiter_for_a_dropped_session_does_not_close_its_successor() -> None:
    setting = Setting()
    old = await setting.open()
    await setting.held.drop(1)
    new = await setting.open()
    with pytest.raises(SessionLost):
        async with setting.held.turn(old, ANA):
            pass
    assert setting.held.get(1) is new
    await setting.held.aclose()


async def test_session_in_use_is_never_idle() -> None:
    setting = Setting()
    held = await setting.open(idle_s=0.05)
    async with setting.held.turn(held, ANA):
        await asyncio.sleep(0.1)
        await setting.held.drop_idle()
        assert setting.held.get(1) is held
    await asyncio.sleep(0.1)
    await setting.held.drop_idle()
    assert setting.held.get(1) is None
    assert setting.open_at_engine == 0


async def test_session_used_while_others_close_stays_open() -> None:
    setting = Setting(forgetting_s=0.1)
    slow = await setting.open(1, idle_s=0)
    taken = await setting.open(2, idle_s=0)

    async def use() -> None:
        await until(lambda: setting.held.get(slow.id) is None)
        async with setting.held.turn(taken, ANA):
            await asyncio.sleep(0.2)
            assert setting.open_at_engine == 1

    user = asyncio.create_task(use())
    await asyncio.sleep(0)
    await setting.held.drop_idle()
    await user
    await setting.held.aclose()


async def test_failed_opening_keeps_no_session_open() -> None:
    setting = Setting()
    setting.engine.reachable = False
    with pytest.raises(EngineUnavailable):
        await setting.open()
    assert setting.held.get(1) is None


async def test_canceled_opening_leaves_no_session() -> None:
    class Slow(FakeEngine):
        @asynccontextmanager
        async def session(self, user: User, options: SessionOptions) -> AsyncIterator[EngineSession]:
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                await asyncio.sleep(0.1)  # closing a half-open connection takes some time
                raise
            async with super().session(user, options) as session:
                yield session

    setting = Setting(engine=Slow())
    with tasks_begun() as begun:
        opening = asyncio.create_task(setting.open())
        await until(lambda: bool(begun.left("session-1")))
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert not begun.left()


async def test_closing_works_while_the_database_is_unavailable() -> None:
    setting = Setting()
    await setting.open(1)
    await setting.open(2)
    setting.database_down = True
    await setting.held.aclose()
    assert setting.open_at_engine == 0


async def test_session_without_a_record_survives_the_heartbeat() -> None:
    setting = Setting()
    fresh = await setting.open()
    await setting.held.reconcile(setting.held.recorded_ids(), [])
    assert setting.held.get(1) is fresh
    fresh.is_recorded = True
    await setting.held.reconcile(setting.held.recorded_ids(), [])
    assert setting.held.get(1) is None


async def test_longest_idle_sessions_are_closed_to_make_room() -> None:
    setting = Setting()
    for session_id in range(1, 5):
        await setting.open(session_id, named=False)
        await asyncio.sleep(0.01)
    await setting.open(9, named=True)
    other = await setting.open(10, named=False, user=User(2, "bob"))
    busy = setting.held.get(1)
    assert busy is not None
    async with setting.held.turn(busy, ANA):
        await setting.held.make_room(ANA.id, keep=2)
    assert [one for one in range(1, 5) if setting.held.get(one)] == [1, 4]
    assert setting.held.get(9) is not None
    assert setting.held.get(10) is other
    await setting.held.aclose()


async def test_sessions_of_disabled_users_are_closed_concurrently() -> None:
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
    await OpenSession.close(first)
    await setting.held.aclose()


ANAS_ID, BOB, EVE = 1, 2, 3


class Openings:
    """Sessions whose opening lasts until the test ends. `open_ones` counts the sessions that are already open."""

    def __init__(self, stack: ExitStack, *, per_connector: int, open_ones: Counter[tuple[str, int]]) -> None:
        self._stack = stack
        held = OpenSessions(close_record=_forget)
        held.count_named = lambda: open_ones  # type: ignore[method-assign]
        self._shares = SessionShares(held, per_connector=per_connector)

    def begin(self, user_id: int, connector: str = "c", *, max_open: int = 50) -> None:
        self._stack.enter_context(self._shares.opening(connector, user_id, max_open=max_open))

    def count(self, user_id: int, *, max_open: int = 50) -> int:
        """Return how many more sessions the user may open."""
        for count in range(1000):
            try:
                self.begin(user_id, max_open=max_open)
            except TooManyRequests:
                return count
        raise AssertionError


async def _forget(session_id: int) -> None:
    del session_id


def openings(stack: ExitStack, per_connector: int, **open_ones: int) -> Openings:
    users = {"ana": ANAS_ID, "bob": BOB, "eve": EVE}
    return Openings(
        stack,
        per_connector=per_connector,
        open_ones=Counter({("c", users[name]): count for name, count in open_ones.items()}),
    )


def test_default_limits_allow_all_sessions_of_a_user_on_one_connector() -> None:
    defaults = EditorSettings()
    with ExitStack() as stack:
        shares = openings(stack, defaults.max_sessions_per_connector, bob=45)
        assert shares.count(EVE, max_open=defaults.max_sessions_per_user) == defaults.max_sessions_per_user == 50


def test_first_user_gets_half_of_the_sessions_and_later_users_share_the_rest() -> None:
    with ExitStack() as stack:
        shares = openings(stack, 16)
        assert shares.count(EVE) == 8
        assert shares.count(ANAS_ID) == 5
        assert shares.count(BOB) == 3


def test_last_sessions_are_reserved_for_users_with_few_sessions() -> None:
    with ExitStack() as stack:
        shares = openings(stack, 100, eve=40, bob=35)
        for user_id in (EVE, BOB):
            with raises_code("too_many_sessions", match="of your sessions are open on this connector"):
                shares.begin(user_id)
        assert shares.count(ANAS_ID) == 25
        with raises_code("too_many_sessions", match="All 100 .*`editor.max_sessions_per_connector`"):
            shares.begin(4)


def test_sessions_of_other_connectors_count_for_the_user_only() -> None:
    with ExitStack() as stack:
        shares = openings(stack, 2)
        shares.begin(EVE, "other")
        shares.begin(EVE, "other2", max_open=2)
        with raises_code("too_many_sessions", match="2 of your sessions are open"):
            shares.begin(EVE, max_open=2)
        shares.begin(ANAS_ID, max_open=2)


def test_failed_opening_does_not_count_as_open() -> None:
    shares = SessionShares(OpenSessions(close_record=_forget), per_connector=2)
    for _ in range(3):
        with pytest.raises(OSError, match="refused"), shares.opening("c", EVE, max_open=1):
            raise OSError("refused")
    assert not shares._opening
