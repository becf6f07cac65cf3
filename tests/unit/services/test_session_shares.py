"""Shares of the named sessions of a connector."""

from collections import Counter
from contextlib import ExitStack

import pytest
from tests.refusals import raises_code

from queryserver.errors.base import TooManyRequests
from queryserver.platform.settings.editor import EditorSettings
from queryserver.statements.engine_sessions import HeldSessions, SessionShares

ANA, BOB, EVE = 1, 2, 3


class Openings:
    """Sessions that stay in opening until the test ends; `open_ones` are open already."""

    def __init__(self, stack: ExitStack, *, per_connector: int, open_ones: Counter[tuple[str, int]]) -> None:
        self._stack = stack
        held = HeldSessions(forget=_forget)
        held.named = lambda: open_ones  # type: ignore[method-assign]
        self._shares = SessionShares(held, per_connector=per_connector)

    def begin(self, user_id: int, connector: str = "c", *, max_open: int = 50) -> None:
        self._stack.enter_context(self._shares.opening(connector, user_id, max_open=max_open))

    def count(self, user_id: int, *, max_open: int = 50) -> int:
        """How many more sessions the user gets."""
        for count in range(1000):
            try:
                self.begin(user_id, max_open=max_open)
            except TooManyRequests:
                return count
        raise AssertionError


async def _forget(session_id: int) -> None:
    del session_id


def openings(stack: ExitStack, per_connector: int, **open_ones: int) -> Openings:
    users = {"ana": ANA, "bob": BOB, "eve": EVE}
    return Openings(
        stack,
        per_connector=per_connector,
        open_ones=Counter({("c", users[name]): count for name, count in open_ones.items()}),
    )


def test_by_default_a_user_may_open_all_sessions_of_a_user_on_one_connector() -> None:
    defaults = EditorSettings()
    with ExitStack() as stack:
        shares = openings(stack, defaults.max_sessions_per_connector, bob=45)
        assert shares.count(EVE, max_open=defaults.max_sessions_per_user) == defaults.max_sessions_per_user == 50


def test_one_user_gets_half_and_leaves_the_rest_to_others() -> None:
    with ExitStack() as stack:
        shares = openings(stack, 16)
        assert shares.count(EVE) == 8
        assert shares.count(ANA) == 5
        assert shares.count(BOB) == 3


def test_of_the_last_places_a_user_with_many_gets_none_while_another_gets_some() -> None:
    with ExitStack() as stack:
        shares = openings(stack, 100, eve=40, bob=35)
        for user_id in (EVE, BOB):
            with raises_code("too_many_sessions", match="sessions of yours are open on this connector"):
                shares.begin(user_id)
        assert shares.count(ANA) == 25
        with raises_code("too_many_sessions", match="All 100"):
            shares.begin(4)


def test_sessions_of_other_connectors_count_for_the_user_only() -> None:
    with ExitStack() as stack:
        shares = openings(stack, 2)
        shares.begin(EVE, "other")
        shares.begin(EVE, "other2", max_open=2)
        with raises_code("too_many_sessions", match="2 sessions of yours are open"):
            shares.begin(EVE, max_open=2)
        shares.begin(ANA, max_open=2)


def test_an_opening_that_fails_leaves_nothing() -> None:
    shares = SessionShares(HeldSessions(forget=_forget), per_connector=2)
    for _ in range(3):
        with pytest.raises(OSError, match="refused"), shares.opening("c", EVE, max_open=1):
            raise OSError("refused")
    assert not shares._opening
