"""The order in which `FairSemaphore` grants slots, compared with a model that searches all waiting users."""

import asyncio
from collections import Counter, deque

from hypothesis import example, given
from hypothesis import strategies as st
from tests.timing import settle

from queryserver.errors.base import TooManyRequests
from queryserver.platform.fair_queue import FairSemaphore

_MAX_WAITING = 3
_USERS = st.integers(0, 3)
_NUMBERS = st.integers(0, 50)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), _USERS, _NUMBERS),
        st.tuples(st.sampled_from(["give back", "leave", "give back, leave", "leave, give back"]), _NUMBERS, _NUMBERS),
    ),
    max_size=60,
)


class _SearchingModel:
    """A model that applies the specified rules literally: every step searches all users. Calls are identified by
    numbers.
    """

    def __init__(self, slots: int, per_user: int) -> None:
        self._free = slots
        self._per_user = per_user
        self._held = Counter[int]()
        self._turns = 0
        self._last_turns: dict[int, int] = {}
        self._lines: dict[int, deque[int]] = {}
        self.users: dict[int, int] = {}
        """Maps each waiting or running call to its user."""
        self.holding: list[int] = []

    @property
    def waiting(self) -> list[int]:
        return [call for call in self.users if call not in self.holding]

    def take(self, user: int, call: int) -> bool:
        """Request a slot; return whether the call gets one or may wait for one."""
        line = self._lines.get(user, deque())
        if len(line) >= _MAX_WAITING:
            return False
        self.users[call] = user
        line.append(call)
        self._lines[user] = line
        self._assign()
        return True

    def end(self, call: int) -> None:
        """Release the call's slot, or cancel its wait."""
        user = self.users.pop(call)
        if call in self.holding:
            self.holding.remove(call)
            self._held[user] -= 1
            self._free += 1
        else:
            self._lines[user].remove(call)
        self._forget()
        self._assign()

    def _assign(self) -> None:
        while self._free:
            waiting = [user for user in self._lines if self._held[user] < self._per_user]
            if not waiting:
                break
            user = min(waiting, key=lambda one: (self._held[one], self._last_turns.get(one, -1)))
            self._free -= 1
            self._held[user] += 1
            self._last_turns[user] = self._turns
            self._turns += 1
            self.holding.append(self._lines[user].popleft())
            self._forget()

    def _forget(self) -> None:
        self._lines = {user: line for user, line in self._lines.items() if line}
        self._last_turns = {
            user: turn for user, turn in self._last_turns.items() if self._held[user] or user in self._lines
        }


class _SemaphoreRun:
    """The same calls on the real semaphore, each in a separate task."""

    def __init__(self, slots: FairSemaphore) -> None:
        self.slots = slots
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ends: dict[int, asyncio.Event] = {}
        self.refused: list[int] = []
        self.holding: list[int] = []

    def take(self, user: int, call: int) -> None:
        self._ends[call] = asyncio.Event()
        self._tasks[call] = asyncio.create_task(self._call(user, call))

    def give_back(self, call: int) -> None:
        self._ends[call].set()

    def leave(self, call: int) -> None:
        self._tasks[call].cancel()

    async def aclose(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _call(self, user: int, call: int) -> None:
        try:
            async with self.slots.slot(user):
                self.holding.append(call)
                try:
                    await self._ends[call].wait()
                finally:
                    self.holding.remove(call)
        except TooManyRequests:
            self.refused.append(call)


# Both users have waiting calls, and the second user holds fewer slots although its last turn was later.
@example(slots=2, per_user=2, steps=[*(("take", user, 0) for user in (0, 1, 0, 1)), ("give back", 1, 0)])
@given(slots=st.integers(1, 4), per_user=st.integers(1, 3), steps=_STEPS)
def test_next_slot_goes_to_the_call_found_by_search(slots: int, per_user: int, steps: list[tuple[str, int, int]]):
    asyncio.run(_same(slots, per_user, steps))


async def _same(slots: int, per_user: int, steps: list[tuple[str, int, int]]) -> None:
    served = _SemaphoreRun(FairSemaphore(slots, per_user=per_user, max_waiting=_MAX_WAITING, wait_s=None))
    searched = _SearchingModel(slots, per_user)
    refused: list[int] = []
    for call, (kind, first, second) in enumerate(steps):
        if kind == "take":
            served.take(first, call)
            if not searched.take(first, call):
                refused.append(call)
        for change, number in zip(kind.split(", "), (first, second), strict=False):
            # Two changes in one step: the second is made before the tasks react to the first.
            if change == "give back" and served.holding and searched.holding:
                given_back = searched.holding[number % len(searched.holding)]
                if given_back in served.holding:
                    served.give_back(given_back)
                    searched.end(given_back)
            elif change == "leave" and searched.waiting:
                left = searched.waiting[number % len(searched.waiting)]
                served.leave(left)
                searched.end(left)
        await settle()
        assert (served.holding, served.refused) == (searched.holding, refused)
    await served.aclose()
    assert served.slots.is_unused
