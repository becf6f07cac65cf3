"""The contract of every `OwnedStatements` implementation; each has a test class that inherits it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from queryserver.formats.arrow import Column, ResultType
from queryserver.results.segments import Segment
from queryserver.statements.model import Claim, ClaimScope, EngineCheckpoint, Outcome, Resumption, SlotLimits
from queryserver.statements.owned_statements import OwnedStatements
from queryserver.statements.states import StatementState

ME, OTHER, DEAD = "me", "other", "dead"
"""Two processes that are alive unless the test calls `die`, and one whose heartbeat is too old."""
HELD = 10**12
RETENTION = timedelta(seconds=30)
ROOMY = SlotLimits(per_connector=100, per_user=100)
COLUMNS = (Column("n", ResultType.INT, "integer"),)
FAILED = Outcome(StatementState.FAILED, error_code="engine_error", message="no")
SUCCESS = Outcome(StatementState.SUCCESS)
_HERE = ClaimScope(["here"])


@dataclass(frozen=True, slots=True)
class Seen:
    """The fields of a statement record that the tests compare."""

    state: StatementState
    owner: str | None
    lines: Sequence[str]


class ClaimDesk(ABC):
    """The implementation under test, with the operations that the tests need."""

    owned: OwnedStatements
    within = ClaimScope(["here"], [HELD])
    """The scope within which the tests claim statements."""

    @abstractmethod
    async def add(
        self,
        *,
        owner: str | None = ME,
        connector: str = "here",
        session: int | None = None,
        timeout_s: int = 60,
        user: int = 0,
        priority: int = 0,
        keeps_session: bool = False,
        sent_ahead: bool = False,
        source_operation: UUID | None = None,
        target: str | None = None,
    ) -> Claim:
        """Add a waiting statement for the user number `user`. `target` is the connector of its destination."""

    @abstractmethod
    async def look(self, statement_id: UUID) -> Seen:
        """Return the current record of a statement."""

    @abstractmethod
    async def ask_to_cancel(self, statement_id: UUID) -> None:
        """Request cancellation as an API call does."""

    @abstractmethod
    async def die(self, owner: str) -> None:
        """Let the last heartbeat of a process become too old."""

    async def claim(self, claim: Claim, *, owner: str = ME) -> Claim | None:
        """Claim the statement as a process that runs the connector `here` and holds the session HELD."""
        found = await self.owned.claim(claim.statement_id, owner=owner, within=self.within)
        return found[-1].claim if found else None

    async def orphans(self, *, owner: str = ME) -> dict[UUID, Claim]:
        """Claim orphaned statements as a process with the scope `within`."""
        found = await self.owned.claim_orphans(owner=owner, within=self.within)
        return {one.claim.statement_id: one.claim for one in found}

    async def taken(
        self,
        limit: int = 100,
        *,
        max_for_busy_users: int | None = None,
        owner: str = ME,
        slots: SlotLimits = ROOMY,
        within: ClaimScope = _HERE,
    ) -> list[UUID]:
        """Claim statements from the queue that the workers share; return their ids in start order."""
        found = await self.owned.claim_waiting(
            owner=owner,
            within=within,
            slots=slots,
            limit=limit,
            max_for_busy_users=limit if max_for_busy_users is None else max_for_busy_users,
        )
        return [one.claim.statement_id for one in found]

    async def resumptions(self) -> dict[UUID, Resumption | None]:
        """Claim the statements of the process ME, which dies, and return the resumption of each."""
        await self.die(ME)
        found = await self.owned.claim_orphans(owner=OTHER, within=self.within)
        return {one.claim.statement_id: one.resumption for one in found}

    async def finish(
        self, claim: Claim, outcome: Outcome, lines: Sequence[str] = (), *, start_line: int | None = 0
    ) -> bool:
        """Finish the statement with the given outcome and log lines."""
        return await self.owned.finish(claim, outcome, retention=RETENTION, lines=lines, start_line=start_line)


class OwnedStatementsContract:
    """The tests of claims and of writes by owners.

    Each implementation has a test class that inherits them and provides the fixture `desk`.
    """

    async def test_free_statement_is_claimed_once(self, desk: ClaimDesk) -> None:
        free = await desk.add(owner=None)
        mine = await desk.claim(free)
        assert mine is not None
        assert (mine.owner, mine.fence > 0) == (ME, True)
        assert await desk.claim(free, owner=OTHER) is None

    @pytest.mark.exports(23)
    async def test_publication_needs_the_claim_and_no_cancel_request(self, desk: ClaimDesk) -> None:
        claim = await desk.add()
        assert await desk.owned.begin_publishing(claim)
        await desk.die(ME)
        taken_over = await desk.claim(claim, owner=OTHER)
        assert taken_over is not None
        assert not await desk.owned.begin_publishing(claim)
        assert await desk.owned.begin_publishing(taken_over)
        await desk.ask_to_cancel(claim.statement_id)
        assert not await desk.owned.begin_publishing(taken_over)

    @pytest.mark.exports(24)
    async def test_statement_is_claimed_by_a_process_that_has_its_target_too(self, desk: ClaimDesk) -> None:
        free = await desk.add(owner=None, target="elsewhere")
        assert await desk.claim(free) is None
        assert await desk.orphans() == {}
        assert await desk.taken() == []
        assert await desk.taken(within=ClaimScope(["here", "elsewhere"])) == [free.statement_id]

    @pytest.mark.exports(24)
    async def test_statement_that_no_other_process_can_run_is_claimed_without_its_target(self, desk: ClaimDesk) -> None:
        bound = ClaimScope(["here"], bound=["here"])
        waiting = [await desk.add(owner=None, target="elsewhere") for _ in range(3)]
        [first, second, third] = [one.statement_id for one in waiting]
        assert [one.claim.statement_id for one in await desk.owned.claim(first, owner=ME, within=bound)] == [first]
        assert await desk.taken(1, within=bound) == [second]
        orphans = await desk.owned.claim_orphans(owner=ME, within=bound)
        assert [one.claim.statement_id for one in orphans] == [third]

    async def test_queue_hands_out_each_statement_once(self, desk: ClaimDesk) -> None:
        added = {(await desk.add(owner=None)).statement_id for _ in range(7)}
        await desk.add(owner=None, connector="elsewhere")
        await desk.add(owner=OTHER)
        taken = await asyncio.gather(*(desk.taken(2, owner=f"worker {number}") for number in range(6)))
        assert sorted(one for some in taken for one in some) == sorted(added)

    async def test_queue_alternates_between_users_regardless_of_backlog(self, desk: ClaimDesk) -> None:
        many = [(await desk.add(owner=None, user=0)).statement_id for _ in range(50)]
        one = (await desk.add(owner=None, user=1)).statement_id
        other = (await desk.add(owner=None, user=2)).statement_id
        assert await desk.taken(1) == many[:1]
        # The first user already has a running statement.
        assert [await desk.taken(1) for _ in range(3)] == [[one], [other], many[1:2]]

    async def test_interactive_statements_precede_scheduled_ones(self, desk: ClaimDesk) -> None:
        later = (await desk.add(owner=None, priority=1, user=1)).statement_id
        sooner = [(await desk.add(owner=None)).statement_id for _ in range(3)]
        assert [one for _ in range(4) for one in await desk.taken(1)] == [*sooner, later]

    async def test_user_and_connector_slots_count_across_workers(self, desk: ClaimDesk) -> None:
        for user in (0, 1, 2):
            for _ in range(4):
                await desk.add(owner=None, user=user)
        slots = SlotLimits(per_connector=5, per_user=2)
        first = await desk.taken(4, owner="one", slots=slots)
        second = await desk.taken(100, owner="two", slots=slots)
        assert (len(first), len(second)) == (4, 1)
        assert await desk.taken(owner="three", slots=slots) == []

    async def test_last_slots_are_reserved_for_users_without_running_statements(self, desk: ClaimDesk) -> None:
        many = [(await desk.add(owner=None, user=0)).statement_id for _ in range(5)]
        # A busy user may use only two slots; the third is reserved.
        assert await desk.taken(3, max_for_busy_users=2) == many[:2]
        assert await desk.taken(1, max_for_busy_users=0) == []
        late = [(await desk.add(owner=None, user=1)).statement_id for _ in range(2)]
        assert await desk.taken(2, max_for_busy_users=0) == late[:1]
        assert await desk.taken(2, max_for_busy_users=0) == []
        assert await desk.taken(2, max_for_busy_users=1) == late[1:]

    async def test_statement_on_another_connector_counts_as_running(self, desk: ClaimDesk) -> None:
        await desk.add(owner="one", user=0, connector="elsewhere")
        await desk.add(owner=None, user=0)
        assert await desk.taken(1, max_for_busy_users=0) == []
        other = await desk.add(owner=None, user=1)
        assert await desk.taken(2, max_for_busy_users=0) == [other.statement_id]

    async def test_scheduled_statements_neither_get_nor_count_for_the_reserved_slot(self, desk: ClaimDesk) -> None:
        await desk.add(owner=None, user=0, priority=1)
        assert await desk.taken(1, max_for_busy_users=0) == []
        await desk.add(owner=OTHER, user=0, priority=1)
        own = await desk.add(owner=None, user=0)
        assert await desk.taken(2, max_for_busy_users=0) == [own.statement_id]

    async def test_user_with_statements_on_other_workers_keeps_turn_but_gets_no_reserved_slot(
        self, desk: ClaimDesk
    ) -> None:
        await desk.add(owner=OTHER, user=0, connector="elsewhere")
        older = [(await desk.add(owner=None, user=0)).statement_id for _ in range(2)]
        first = [(await desk.add(owner=None, user=user)).statement_id for user in (1, 2)]
        assert await desk.taken(1, slots=SlotLimits(per_connector=1, per_user=1)) == older[:1]
        slots = SlotLimits(per_connector=2, per_user=2)
        assert await desk.taken(1, slots=slots, max_for_busy_users=0) == first[:1]
        assert await desk.taken(2, max_for_busy_users=1) == first[1:]
        assert await desk.taken(1) == older[1:]

    async def test_first_statement_gets_reserved_slot_after_any_backlog(self, desk: ClaimDesk) -> None:
        await desk.add(owner=OTHER, user=0, connector="elsewhere")
        for connector in ("here", "third") * 3:
            await desk.add(owner=None, user=0, connector=connector)
        first = (await desk.add(owner=None, user=1)).statement_id
        taken = await desk.taken(3, within=ClaimScope(["here", "third"]), max_for_busy_users=2)
        assert (len(taken), taken[-1]) == (3, first)

    async def test_statements_of_full_connector_use_no_slots(self, desk: ClaimDesk) -> None:
        for user in (0, 1):
            await desk.add(owner=None, user=user)
        elsewhere = (await desk.add(owner=None, user=2, connector="elsewhere")).statement_id
        slots, both = SlotLimits(per_connector=1, per_user=1), ("here", "elsewhere")
        taken = await desk.taken(2, slots=slots, within=ClaimScope(both))
        assert (len(taken), elsewhere in taken) == (2, True)

    async def test_unsent_statements_of_lost_worker_return_to_queue(self, desk: ClaimDesk) -> None:
        lost = await desk.add(owner=DEAD)
        assert await desk.taken() == [lost.statement_id]
        assert not await desk.owned.mark_sent(lost)

    async def test_statements_of_one_session_are_taken_in_sequence(self, desk: ClaimDesk) -> None:
        first, second = [await desk.add(owner=None, session=HELD + 1, keeps_session=True) for _ in range(2)]
        found = await desk.owned.claim_waiting(owner=ME, within=_HERE, slots=ROOMY, limit=10, max_for_busy_users=10)
        assert [one.claim.statement_id for one in found] == [first.statement_id]
        for owner in ("one", "two"):
            assert await desk.taken(owner=owner) == []
        assert await desk.finish(found[0].claim, FAILED)
        assert await desk.taken() == [second.statement_id]

    async def test_statement_is_taken_once_the_operation_whose_result_it_reads_has_ended(self, desk: ClaimDesk) -> None:
        source = await desk.add()
        reader = await desk.add(owner=None, source_operation=source.statement_id)
        assert await desk.taken() == []
        assert await desk.finish(source, FAILED)
        assert await desk.taken() == [reader.statement_id]

    async def test_claim_includes_earlier_statements_of_the_session(self, desk: ClaimDesk) -> None:
        before, given, after = [await desk.add(owner=None, session=HELD, keeps_session=True) for _ in range(3)]
        found = await desk.owned.claim(given.statement_id, owner=ME, within=desk.within)
        assert [one.claim.statement_id for one in found] == [before.statement_id, given.statement_id]
        assert await desk.claim(after) is not None

    async def test_canceled_statement_leaves_queue(self, desk: ClaimDesk) -> None:
        canceled = await desk.add(owner=None)
        await desk.ask_to_cancel(canceled.statement_id)
        assert await desk.taken() == []

    async def test_statements_return_to_the_queue_when_their_owner_dies(self, desk: ClaimDesk) -> None:
        held = await desk.add(owner=OTHER)
        assert await desk.taken() == []
        await desk.die(OTHER)
        assert await desk.taken() == [held.statement_id]

    async def test_server_leaves_resumable_statements_to_workers(self, desk: ClaimDesk) -> None:
        followed, unknown = await desk.add(), await desk.add()
        for claim in (followed, unknown):
            assert await desk.owned.mark_sent(claim)
        assert await desk.owned.mark_running(followed, checkpoint=EngineCheckpoint("token", 0))
        assert await desk.owned.mark_running(unknown)
        await desk.die(ME)
        beside = ClaimScope((), (), resumes=False)
        found = await desk.owned.claim_orphans(owner=OTHER, within=beside)
        assert [one.claim.statement_id for one in found] == [unknown.statement_id]

    async def test_statement_of_another_connector_is_not_claimed(self, desk: ClaimDesk) -> None:
        assert await desk.claim(await desk.add(owner=None, connector="elsewhere")) is None

    async def test_orphan_is_taken_over_and_former_owner_cannot_write(self, desk: ClaimDesk) -> None:
        old = await desk.add(owner=DEAD)
        new = (await desk.orphans())[old.statement_id]
        assert new.fence > old.fence
        assert not await desk.owned.mark_sent(old)
        assert not await desk.owned.mark_running(old)
        assert not await desk.owned.report(old, progress=1, lines=["old"], start_line=0)
        assert not await desk.finish(old, FAILED)
        assert not await desk.owned.release(old)
        assert await desk.finish(new, SUCCESS, ["new"])
        assert await desk.look(old.statement_id) == Seen(StatementState.SUCCESS, ME, ["new"])

    async def test_requeued_statement_blocks_writes_of_former_runners(self, desk: ClaimDesk) -> None:
        old = await desk.add(owner=DEAD)
        new = (await desk.orphans())[old.statement_id]
        assert await desk.owned.mark_sent(new)
        assert await desk.owned.mark_running(new)
        assert not await desk.owned.retry(old, line="again")
        assert await desk.owned.retry(new, line="again")
        assert await desk.look(new.statement_id) == Seen(StatementState.WAITING, None, ["again"])
        assert not await desk.finish(new, FAILED)
        third = await desk.claim(old)
        assert third is not None
        assert await desk.owned.mark_sent(third)
        assert not await desk.owned.retry(third, line="a third time")
        assert await desk.finish(third, SUCCESS, start_line=None)

    async def test_statement_with_requested_cancel_is_not_requeued(self, desk: ClaimDesk) -> None:
        claim = await desk.add()
        assert await desk.owned.mark_sent(claim)
        await desk.ask_to_cancel(claim.statement_id)
        assert not await desk.owned.retry(claim, line="again")

    @pytest.mark.exports(30)
    async def test_statement_that_reads_a_stored_result_is_given_back_until_it_publishes(self, desk: ClaimDesk) -> None:
        claim = await desk.add(source_operation=uuid4(), target="here")
        for _ in range(2):
            assert await desk.owned.mark_sent(claim)
            assert await desk.owned.mark_running(claim)
            assert await desk.owned.give_back(claim, line="later")
            seen = await desk.look(claim.statement_id)
            assert (seen.state, seen.owner, seen.lines[-1]) == (StatementState.WAITING, None, "later")
            assert not await desk.owned.give_back(claim, line="too late")
            assert await desk.taken() == [claim.statement_id]
            claim = replace(claim, fence=claim.fence + 1)
        assert await desk.owned.begin_publishing(claim)
        assert not await desk.owned.give_back(claim, line="published")

    @pytest.mark.exports(30)
    @pytest.mark.parametrize("is_canceled", [False, True])
    async def test_statement_of_the_engine_or_with_requested_cancel_is_not_given_back(
        self, desk: ClaimDesk, is_canceled: bool
    ) -> None:
        claim = await desk.add(source_operation=uuid4() if is_canceled else None)
        assert await desk.owned.mark_sent(claim)
        if is_canceled:
            await desk.ask_to_cancel(claim.statement_id)
        assert not await desk.owned.give_back(claim, line="later")

    async def test_statement_of_a_live_process_is_not_taken_over(self, desk: ClaimDesk) -> None:
        held = await desk.add(owner=OTHER)
        assert held.statement_id not in await desk.orphans()
        assert await desk.claim(held) is None
        await desk.die(OTHER)
        assert held.statement_id in await desk.orphans()

    async def test_unsent_statements_of_other_connectors_are_no_orphans(self, desk: ClaimDesk) -> None:
        unsent = await desk.add(owner=None, connector="elsewhere")
        assert unsent.statement_id not in await desk.orphans()

    async def test_statement_of_held_session_is_within_scope(self, desk: ClaimDesk) -> None:
        """The connector may have been moved to another instance after the session was opened."""
        announced = await desk.add(owner=None, connector="elsewhere", session=HELD)
        assert await desk.claim(announced) is not None
        unheard = await desk.add(owner=None, connector="elsewhere", session=HELD)
        other = await desk.add(owner=None, connector="elsewhere", session=HELD + 1)
        assert await desk.claim(other) is None
        found = await desk.orphans()
        assert unheard.statement_id in found
        assert other.statement_id not in found

    async def test_sent_statements_are_finished_by_any_process(self, desk: ClaimDesk) -> None:
        sent = await desk.add(owner=DEAD, connector="elsewhere")
        assert await desk.owned.mark_sent(sent)
        assert sent.statement_id in await desk.orphans()

    async def test_statements_past_deadline_are_finished_by_any_process(self, desk: ClaimDesk) -> None:
        late = await desk.add(owner=None, connector="elsewhere", timeout_s=-1)
        assert late.statement_id in await desk.orphans()

    async def test_unsent_statement_can_be_returned(self, desk: ClaimDesk) -> None:
        claim = await desk.add()
        assert await desk.owned.release(claim)
        assert (await desk.look(claim.statement_id)).owner is None
        again = await desk.claim(claim, owner=OTHER)
        assert again is not None
        assert again.fence > claim.fence

    async def test_sent_statement_cannot_be_returned(self, desk: ClaimDesk) -> None:
        claim = await desk.add()
        assert await desk.owned.mark_sent(claim)
        assert not await desk.owned.release(claim)
        assert (await desk.look(claim.statement_id)).owner == ME

    async def test_statement_recorded_as_sent_is_never_run_by_another_process(self, desk: ClaimDesk) -> None:
        claim = await desk.add(sent_ahead=True)
        assert not await desk.owned.release(claim)
        await desk.ask_to_cancel(claim.statement_id)
        assert (await desk.look(claim.statement_id)).state is StatementState.WAITING
        await desk.die(ME)
        found = await desk.owned.claim_orphans(owner=OTHER, within=desk.within)
        assert [one.sent for one in found if one.claim.statement_id == claim.statement_id] == [True]
        assert not await desk.owned.take_back(claim)

    async def test_statement_taken_back_is_unsent(self, desk: ClaimDesk) -> None:
        returned, canceled, sent = [await desk.add(sent_ahead=True) for _ in range(3)]
        for claim in (returned, canceled, sent):
            assert await desk.owned.take_back(claim)
        assert await desk.owned.release(returned)
        await desk.ask_to_cancel(canceled.statement_id)
        assert (await desk.look(canceled.statement_id)).state is StatementState.CANCELED
        assert not await desk.owned.mark_sent(canceled)
        assert await desk.owned.take_back(sent), "a lost response is requested again"
        assert await desk.owned.mark_sent(sent)
        assert not await desk.owned.release(sent)

    async def test_marking_as_sent_is_idempotent(self, desk: ClaimDesk) -> None:
        claim = await desk.add()
        assert await desk.owned.mark_sent(claim)
        assert await desk.owned.mark_sent(claim)

    @pytest.mark.item(37)
    async def test_statement_canceled_before_sending_is_never_sent(self, desk: ClaimDesk) -> None:
        claim = await desk.add()
        await desk.ask_to_cancel(claim.statement_id)
        assert not await desk.owned.mark_sent(claim)
        assert (await desk.look(claim.statement_id)).state is StatementState.CANCELED
        assert not await desk.finish(claim, SUCCESS)

    async def test_refused_statement_is_not_resent_after_cancel(self, desk: ClaimDesk) -> None:
        claim = await desk.add()
        assert await desk.owned.mark_sent(claim)
        await desk.ask_to_cancel(claim.statement_id)
        assert not await desk.owned.mark_sent(claim)
        assert await desk.finish(claim, Outcome(StatementState.CANCELED, message="Canceled."))

    async def test_heartbeat_reports_cancels_and_lost_statements(self, desk: ClaimDesk) -> None:
        calm, canceled, lost, ended = [await desk.add(owner=DEAD) for _ in range(4)]
        assert await desk.owned.mark_sent(canceled)
        await desk.ask_to_cancel(canceled.statement_id)
        await desk.orphans(owner=OTHER)
        mine = [await desk.add() for _ in range(2)]
        await desk.finish(mine[1], SUCCESS)
        ids = [one.statement_id for one in (calm, canceled, lost, ended, *mine)]
        assert await desk.owned.still_owned(ids, owner=ME) == {mine[0].statement_id: False}
        assert await desk.owned.still_owned(ids, owner=DEAD) == {}
        others = await desk.owned.still_owned([calm.statement_id, canceled.statement_id], owner=OTHER)
        assert others == {calm.statement_id: False, canceled.statement_id: True}

    async def test_process_keeps_its_unclaimed_statements_after_a_pause(self, desk: ClaimDesk) -> None:
        waiting, sent = await desk.add(), await desk.add()
        assert await desk.owned.mark_sent(sent)
        await desk.die(ME)
        # Its heartbeat is late. Its own sweep must not take its running statements for those of a dead process.
        assert await desk.orphans() == {}
        assert await desk.claim(waiting) is None
        assert await desk.taken() == []
        assert len(await desk.owned.still_owned([waiting.statement_id, sent.statement_id], owner=ME)) == 2
        assert await desk.finish(sent, SUCCESS)
        assert list(await desk.orphans(owner=OTHER)) == [waiting.statement_id]

    async def test_rewritten_log_lines_are_kept_once(self, desk: ClaimDesk) -> None:
        claim = await desk.add()
        assert await desk.owned.report(claim, progress=None, lines=["a", "b"], start_line=0)
        assert await desk.owned.report(claim, progress=None, lines=["a", "b", "c"], start_line=0)
        assert await desk.owned.report(claim, progress=None, lines=["a"], start_line=0)
        assert await desk.finish(claim, FAILED, ["d"], start_line=3)
        assert (await desk.look(claim.statement_id)).lines == ["a", "b", "c", "d"]

    async def test_unnumbered_log_lines_come_last(self, desk: ClaimDesk) -> None:
        claim = await desk.add()
        assert await desk.owned.report(claim, progress=None, lines=["a", "b"], start_line=0)
        assert await desk.finish(claim, FAILED, ["gone"], start_line=None)
        assert (await desk.look(claim.statement_id)).lines == ["a", "b", "gone"]

    async def test_rows_become_visible_only_while_statement_runs(self, desk: ClaimDesk) -> None:
        claim, segment = await desk.add(), Segment(0, 0, 10, 100)
        assert not await desk.owned.add_segment(claim, segment, columns=COLUMNS)
        assert await desk.owned.mark_running(claim)
        assert await desk.owned.add_segment(claim, segment, columns=COLUMNS)
        assert await desk.owned.add_segment(claim, segment, columns=COLUMNS)

    @pytest.mark.item(25)
    async def test_takeover_returns_statement_progress(self, desk: ClaimDesk) -> None:
        old = await desk.add()
        mark, later = EngineCheckpoint("at the engine: 1", 2), EngineCheckpoint("at the engine: 2", 3)
        assert await desk.owned.report(old, progress=1, lines=["a", "b", "c"], start_line=0)
        assert await desk.owned.mark_running(old, checkpoint=mark)
        assert await desk.owned.add_segment(old, Segment(0, 0, 10, 100), columns=COLUMNS, checkpoint=mark)
        assert await desk.owned.add_segment(old, Segment(1, 10, 5, 50), columns=COLUMNS, checkpoint=later)
        assert await desk.owned.report(old, progress=2, lines=["d"], start_line=3)
        assert (await desk.resumptions())[old.statement_id] == Resumption(
            later, rows=15, size_bytes=150, segments=2, log_lines=4
        )

    @pytest.mark.item(25)
    async def test_resumable_statement_can_be_handed_over(self, desk: ClaimDesk) -> None:
        claim = await desk.add()
        assert await desk.owned.mark_sent(claim)
        assert not await desk.owned.hand_over(claim)
        assert await desk.owned.mark_running(claim, checkpoint=EngineCheckpoint("token"))
        assert await desk.owned.hand_over(claim)
        assert (await desk.look(claim.statement_id)).owner is None
        assert not await desk.finish(claim, SUCCESS)
        assert claim.statement_id in await desk.orphans(owner=OTHER)

    async def test_client_bound_statement_cannot_be_handed_over(self, desk: ClaimDesk) -> None:
        claim = await desk.add()
        assert await desk.owned.mark_running(claim)
        assert not await desk.owned.hand_over(claim)
        assert (await desk.resumptions())[claim.statement_id] is None

    @pytest.mark.item(41)
    async def test_outcome_is_final(self, desk: ClaimDesk) -> None:
        claim = await desk.add()
        assert await desk.finish(claim, FAILED)
        assert not await desk.finish(claim, SUCCESS)
        assert not await desk.owned.mark_running(claim)
        assert await desk.claim(claim) is None
        await desk.die(ME)
        assert claim.statement_id not in await desk.orphans(owner=OTHER)
        assert (await desk.look(claim.statement_id)).state is StatementState.FAILED
