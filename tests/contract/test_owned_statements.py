"""The contract of `OwnedStatements` for PostgreSQL and for the in-memory implementation that service tests use."""

import asyncio
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs
from tests.contract.owned_statements_contract import (
    COLUMNS,
    DEAD,
    FAILED,
    ME,
    OTHER,
    RETENTION,
    SUCCESS,
    ClaimDesk,
    OwnedStatementsContract,
    Seen,
)
from tests.contract.test_signatures import members, shape
from tests.fakes.statements import MemorySessions, MemoryStatements
from tests.fixtures.database import PATIENT
from tests.fixtures.owners import AFTER_LOCK, NEW, result_of_late_claim

from queryserver.identity.keys import AesSealer, Keyring, SecretKey
from queryserver.identity.model import ApiTokenLimits, Scope, Username
from queryserver.identity.repository import AccountRepository, NewAccount
from queryserver.platform.database import Database, open_database
from queryserver.platform.ownership import Load, Ownership
from queryserver.platform.roles import Role
from queryserver.platform.settings.editor import EditorSettings
from queryserver.results.segments import Segment
from queryserver.statements import rows, script_repository
from queryserver.statements.model import Claim, EngineCheckpoint, NewStatement, Outcome, SlotLimits, StatementHandle
from queryserver.statements.owned_statements import OwnedStatements
from queryserver.statements.repository import StatementRecords
from queryserver.statements.retention import EXPIRE
from queryserver.statements.session_repository import SessionRecords
from queryserver.statements.states import StatementState

_numbers = count(1)


class MemoryDesk(ClaimDesk):
    """The in-memory implementation under test."""

    def __init__(self) -> None:
        self.owned: MemoryStatements = MemoryStatements()
        self.owned.dead.add(DEAD)

    async def die(self, owner: str) -> None:
        self.owned.dead.add(owner)

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
        ends_at = time.monotonic() + timeout_s
        more: dict[str, Any] = {"connector": connector, "ends_at": ends_at, "source_operation": source_operation}
        more |= {"session_id": session} if session else {}
        more |= {"destination": {"kind": "table", "connector": target}} if target else {}
        assignment = self.owned.add(
            "x", owner=owner, user_id=user, keeps_session=keeps_session, sent_ahead=sent_ahead, **more
        )
        self.owned.of(assignment).priority = priority
        return assignment.claim

    async def look(self, statement_id: UUID) -> Seen:
        entry = self.owned.entries[statement_id]
        return Seen(entry.state, entry.owner, entry.lines)

    async def ask_to_cancel(self, statement_id: UUID) -> None:
        self.owned.ask_to_cancel(statement_id)


def owned_statements(database: Database, key: str) -> OwnedStatements:
    return OwnedStatements(database, Ownership(database, lease=RETENTION, name=ME), sealer_of(key))


class DatabaseDesk(ClaimDesk):
    """The PostgreSQL implementation under test."""

    def __init__(self, database: Database, user_id: int) -> None:
        self.database = database
        self.records = StatementRecords(database)
        self.owned = owned_statements(database, "first key")
        self.users = {0: user_id}

    async def _user(self, number: int) -> int:
        if number not in self.users:
            name = Username(f"user{number}", f"user{number}")
            new = NewAccount(name, is_admin=False, groups=())
            self.users[number] = await AccountRepository(self.database).create(new, default_group="default")
        return self.users[number]

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
        warnings: Sequence[str] = (),
    ) -> Claim:
        number = next(_numbers)
        guids = f"g{number}", f"s{number}"
        handle = StatementHandle("SELECT 1", 0, 1, (0, 0, 0, 7), "hash", *guids, session or number, "a:b")
        new = NewStatement(
            id=uuid4(),
            user_id=await self._user(user),
            connector=connector,
            dialect="fake",
            handle=handle,
            script=None,
            script_id=None,
            database=None,
            settings={},
            row_limit=10,
            timeout=timedelta(seconds=timeout_s),
            has_result_set=True,
            in_history=True,
            in_named_session=False,
            keeps_session=keeps_session,
            sent_ahead=sent_ahead,
            source_operation=source_operation,
            destination={"kind": "table", "connector": target} if target else None,
            parent_uuid="",
            owner=owner,
            limits=EditorSettings.model_construct(max_statements_per_user=10_000),
            idempotency=None,
            log_lines=warnings,
        )
        await self.records.record(new)
        await self.database.execute("UPDATE statements SET priority = $2 WHERE id = $1", new.id, priority)
        return Claim(new.id, owner or "", 1 if owner else 0)

    async def look(self, statement_id: UUID) -> Seen:
        record = await self.records.read(statement_id)
        assert record is not None
        log = await self.records.logs(statement_id, start=0, size=None)
        written = [line for line in log.lines if not line.endswith("Z Submitted to here; waiting for a free slot.")]
        return Seen(record.status.state, record.status.owner, written)

    async def die(self, owner: str) -> None:
        await self.database.execute("UPDATE instances SET alive_until = now() - interval '1 ms' WHERE id = $1", owner)

    async def ask_to_cancel(self, statement_id: UUID) -> None:
        await self.records.request_cancel(statement_id, by="ana")


def sealer_of(secret: str) -> AesSealer:
    """Return a sealer whose only key is derived from `secret`."""
    return AesSealer(Keyring(SecretKey.derive(SecretStr(secret))))


class TestMemoryStatements(OwnedStatementsContract):
    @pytest.fixture
    def desk(self) -> MemoryDesk:
        return MemoryDesk()


class TestDatabaseStatements(OwnedStatementsContract):
    @pytest.fixture
    async def desk(self, database_dsn: str) -> AsyncIterator[DatabaseDesk]:
        async with open_database(database_dsn, PATIENT) as database:
            accounts = AccountRepository(database)
            await accounts.ensure_group("default", ())
            name = Username("ana", "ana")
            user_id = await accounts.create(NewAccount(name, is_admin=False, groups=()), default_group="default")
            desk = DatabaseDesk(database, user_id)
            workers = [f"{kind} {number}" for kind in ("worker", "instance") for number in range(6)]
            for owner in (ME, OTHER, "one", "two", "three", *workers):
                await Ownership(database, lease=timedelta(hours=1), name=owner).beat(Role.SERVER, Load())
            yield desk
            await desk.records.aclose()

    @pytest.mark.parametrize("is_deleted", [True, False])
    async def test_statement_whose_rows_go_to_a_deleted_connector_is_claimed_to_end_it(
        self, desk: DatabaseDesk, is_deleted: bool
    ) -> None:
        connector = await desk.database.value(
            """insert into connectors (nice_name, dialect, interface, deleted_at)
            values ('Gone', 'sqlite', 'sqlite', case when $1::boolean then now() end) returning id::text""",
            is_deleted,
        )
        waiting = await desk.add(owner=None, target=connector)
        assert (waiting.statement_id in await desk.orphans()) is is_deleted

    @pytest.mark.parametrize(("outcome", "doomed"), [(FAILED, 1), (SUCCESS, 0), (Outcome(StatementState.AVAILABLE), 0)])
    async def test_invisible_bytes_of_failed_statement_are_deleted(
        self, desk: DatabaseDesk, outcome: Outcome, doomed: int
    ) -> None:
        assert await desk.finish(await desk.add(), outcome)
        assert await desk.database.value("SELECT count(*) FROM doomed_results") == doomed

    @pytest.mark.parametrize("way", ["close", "close if available", "expire"])
    @pytest.mark.parametrize(("left_by", "doomed"), [("nobody", 0), ("a former runner", 1), ("the statement", 1)])
    async def test_only_results_that_may_have_bytes_are_deleted_from_store(
        self, desk: DatabaseDesk, way: str, left_by: str, doomed: int
    ) -> None:
        claim = await desk.add(owner=DEAD)
        if left_by == "a former runner":
            claim = (await desk.orphans())[claim.statement_id]
        if left_by == "the statement":
            assert await desk.owned.mark_running(claim)
            assert await desk.owned.add_segment(claim, Segment(0, 0, 10, 100), columns=COLUMNS)
        assert await desk.finish(claim, Outcome(StatementState.AVAILABLE))
        if way == "close":
            assert await desk.records.close_result(claim.statement_id)
        elif way == "close if available":
            found = await desk.records.close_available(claim.statement_id, user_id=desk.users[0], connectors=["here"])
            assert found is not None
            assert (found[0].state, found[1]) == (StatementState.AVAILABLE, True)
        else:
            await desk.database.execute("UPDATE statements SET expires_at = now() - interval '1 s'")
            assert await desk.database.value(EXPIRE, 10, "") == 1
        assert len(await desk.database.fetch("DELETE FROM doomed_results RETURNING 1")) == doomed

    async def test_rest_of_a_result_is_taken_once_with_the_query_that_reads_it(self, desk: DatabaseDesk) -> None:
        claim, owner = await desk.add(), desk.users[0]
        inline = Outcome(StatementState.AVAILABLE, has_result_set=True, columns=COLUMNS, rows=3, inline_result=b"rows")
        assert await desk.finish(claim, inline)

        async def take(rows: int, *, start_row: int | None = None, by: int = owner) -> tuple[bool, int]:
            found = await desk.records.stored_result(claim.statement_id, start_row=start_row, rows=rows, taken_by=by)
            assert found is not None
            assert found.inline == b"rows"
            return found.is_taken, found.cursor_row

        assert await take(2) == (False, 0), "the page ends before the result"
        assert await take(3, by=owner + 1) == (False, 0)
        taken = await asyncio.gather(*(take(3) for _ in range(8)))
        assert sorted(is_taken for is_taken, _ in taken) == [False] * 7 + [True]
        assert (True, 0) in taken
        assert await take(3) == (False, 3), "no rows are left"
        assert await take(3, start_row=0) == (True, 3)
        assert await desk.records.close_result(claim.statement_id)
        found = await desk.records.stored_result(claim.statement_id, start_row=0, rows=3, taken_by=owner)
        assert found is not None
        assert not found.is_taken

    async def test_result_is_closed_in_one_query_only_with_rights_on_it(self, desk: DatabaseDesk) -> None:
        claim = await desk.add()
        assert await desk.finish(claim, Outcome(StatementState.AVAILABLE))
        for user_id, connectors in ((desk.users[0] + 1, None), (None, []), (desk.users[0], ["another"])):
            found = await desk.records.close_available(claim.statement_id, user_id=user_id, connectors=connectors)
            assert found is not None
            assert not found[1]
            assert (await desk.look(claim.statement_id)).state is StatementState.AVAILABLE
        for is_closed in (True, False):
            found = await desk.records.close_available(claim.statement_id, user_id=None, connectors=None)
            assert found is not None
            assert found[1] is is_closed
        assert await desk.records.close_available(uuid4(), user_id=None, connectors=None) is None

    @pytest.mark.parametrize("way", ["announced", "orphans", "queue"])
    async def test_statement_claimed_by_a_process_that_starts_is_not_claimed_by_an_earlier_query(
        self, desk: DatabaseDesk, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        statement_id = (await desk.add(owner=None)).statement_id
        late: Coroutine[Any, Any, Sequence[object]]
        if way == "announced":
            late = desk.owned.claim(statement_id, owner=OTHER, within=desk.within)
        elif way == "queue":
            late = desk.taken(owner=OTHER)
        else:
            waits = AFTER_LOCK.format(limit=200)
            monkeypatch.setattr(rows, "ORPHANS", rows.ORPHANS.replace("limit 200", f"limit {waits}"))
            late = desk.owned.claim_orphans(owner=OTHER, within=desk.within)
        assert not await result_of_late_claim(desk.database, rows.STATEMENTS, late, locks_rows=way != "orphans")
        assert (await desk.look(statement_id)).owner == NEW

    async def test_script_row_is_neither_claimed_nor_counted(self, desk: DatabaseDesk) -> None:
        operation, part = await self._script(desk)
        assert await desk.records.queue_position(operation) == 1
        assert list(await desk.orphans()) == [part]
        await desk.die(ME)
        assert await desk.taken(owner=OTHER) == [part]
        await desk.die(OTHER)
        (claimed,) = (await desk.orphans(owner="one")).values()
        assert claimed.operation_id == operation
        # The script operation occupies no slot of the session and user; only its current statement does.
        await desk.die("one")
        assert await desk.taken(owner="two", slots=SlotLimits(1, 1)) == [part]

    async def test_statement_outcome_and_successor_are_recorded_atomically(self, desk: DatabaseDesk) -> None:
        operation, part = await self._script(desk)
        claim = (await desk.orphans())[part]
        assert await desk.owned.mark_sent(claim)
        assert (await desk.look(operation)).state is StatementState.RUNNING
        next_statement = self._statement(desk, operation_id=operation, owner=ME, needs_session=True)
        end = await desk.owned.finish_part(
            claim, SUCCESS, retention=RETENTION, lines=["one"], start_line=None, next_statement=next_statement
        )
        assert end is not None
        assert end.next_statement is not None
        assert (await desk.look(operation)).state is StatementState.RUNNING
        assert await desk.finish(
            Claim(next_statement.id, ME, 1, operation_id=operation), FAILED, ["two"], start_line=None
        )
        seen = await desk.look(operation)
        assert (seen.state, seen.lines) == (StatementState.FAILED, ["one", "two"])
        # An owner that has lost its claim can record neither an outcome nor the next statement.
        late = await desk.owned.finish_part(
            claim,
            SUCCESS,
            retention=RETENTION,
            lines=[],
            start_line=None,
            next_statement=replace(next_statement, id=uuid4()),
        )
        assert late is None
        assert await desk.database.value("SELECT count(*) FROM statements WHERE operation_id = $1", operation) == 2

    async def test_no_next_statement_is_recorded_after_cancel(self, desk: DatabaseDesk) -> None:
        operation, part = await self._script(desk)
        claim = (await desk.orphans())[part]
        assert await desk.owned.mark_sent(claim)
        await desk.ask_to_cancel(operation)
        next_statement = self._statement(desk, operation_id=operation, owner=ME)
        # The statement finished before the cancel request reached it.
        end = await desk.owned.finish_part(
            claim, SUCCESS, retention=RETENTION, lines=[], start_line=None, next_statement=next_statement
        )
        assert end is not None
        assert end.next_statement is None
        assert (await desk.look(operation)).state is StatementState.CANCELED

    async def test_statement_of_a_script_is_logged_while_the_script_is_changed(self, desk: DatabaseDesk) -> None:
        operation, part = await self._script(desk)
        claim = (await desk.orphans())[part]
        async with desk.database.transaction() as connection:
            # The log belongs to the operation. If its lines waited for this lock, a cancel request, which then waits
            # for the statement, would cause a deadlock.
            await script_repository.lock_operation(connection, operation)
            async with asyncio.timeout(30):
                assert await desk.owned.report(claim, progress=None, lines=["one"], start_line=1)
        assert (await desk.look(operation)).lines[-1:] == ["one"]

    async def test_token_limits_are_stored_with_statement(self, desk: DatabaseDesk) -> None:
        token = ApiTokenLimits(uuid4(), "nightly", frozenset({Scope.QUERY, Scope.FILES_READ}), frozenset({"a"}), b"x")
        for given in (token, replace(token, connectors=None), None):
            new = self._statement(desk, owner=None, api_token=given)
            await desk.records.record(new)
            (claimed,) = await desk.owned.claim(new.id, owner=ME, within=desk.within)
            assert claimed.api_token == given
            assert await desk.finish(claimed.claim, SUCCESS)

    async def _script(self, desk: DatabaseDesk) -> tuple[UUID, UUID]:
        """Add a script operation and its first statement, which has no owner yet."""
        operation = self._statement(desk, is_script=True, runs_all=True, owner="script")
        part = self._statement(desk, operation_id=operation.id, owner=None, in_history=False)
        await desk.records.record(operation, part)
        return operation.id, part.id

    def _statement(self, desk: DatabaseDesk, **more: Any) -> NewStatement:
        number = next(_numbers)
        return NewStatement(
            id=uuid4(),
            user_id=desk.users[0],
            connector="here",
            dialect="fake",
            handle=StatementHandle("SELECT 1", 0, 2, (0, 0, 0, 7), "hash", f"g{number}", f"s{number}", 999_999, "a:b"),
            row_limit=10,
            timeout=timedelta(seconds=60),
            has_result_set=True,
            limits=EditorSettings.model_construct(max_statements_per_user=1),
            idempotency=None,
            **more,
        )

    @pytest.mark.parametrize("runs_long", [False, True])
    async def test_time_of_statement_recorded_as_sent_is_corrected(
        self, desk: DatabaseDesk, *, runs_long: bool
    ) -> None:
        after = timedelta(milliseconds=120)
        for sent_ahead, queued, started in ((True, after, after), (True, None, None), (False, after, None)):
            claim = await desk.add(sent_ahead=sent_ahead)
            waiting = await desk.records.read(claim.statement_id)
            assert waiting is not None
            assert waiting.status.times.started is None
            if runs_long and queued is not None:
                assert await desk.owned.mark_running(claim, queued=queued)
            assert await desk.owned.finish(
                claim,
                SUCCESS,
                retention=RETENTION,
                lines=[],
                start_line=None,
                queued=timedelta(1) if runs_long and queued else queued,
            )
            record = await desk.records.read(claim.statement_id)
            assert record is not None
            times = record.status.times
            assert (times.started and times.started - times.submitted) == started

    async def test_runner_log_lines_follow_record_log_line(self, desk: DatabaseDesk) -> None:
        for lines in ([], ["one"]):
            claim = await desk.add(owner=DEAD)
            assert await desk.owned.report(claim, progress=1, lines=lines, start_line=1)
            found = await desk.owned.claim_orphans(owner=ME, within=desk.within)
            (claimed,) = [one for one in found if one.claim.statement_id == claim.statement_id]
            assert claimed.log_lines == 1 + len(lines)
            assert await desk.owned.finish(
                claimed.claim, SUCCESS, retention=RETENTION, lines=["end"], start_line=claimed.log_lines
            )
            first, *others = (await desk.records.logs(claim.statement_id, start=0, size=None)).lines
            assert first.endswith("Z Submitted to here; waiting for a free slot.")
            assert others == [*lines, "end"]

    @pytest.mark.parametrize("warnings", [[], ["a warning"]])
    async def test_first_log_line_is_stored_only_with_warnings(self, desk: DatabaseDesk, warnings: list[str]) -> None:
        claim = await desk.add(warnings=warnings)

        async def log(start: int = 0, size: int | None = None) -> tuple[int, Sequence[str]]:
            page = await desk.records.logs(claim.statement_id, start=start, size=size)
            return page.start, [line[-3:] for line in page.lines]

        rows = "select count(*) from statement_logs where statement_id = $1"
        assert await desk.database.value(rows, claim.statement_id) == len(warnings)
        assert await log() == (0, ["ot.", *(["ing"] if warnings else [])])
        next_line = 1 + len(warnings)
        assert await log(start=next_line) == (next_line, [])
        assert await desk.owned.report(claim, progress=1, lines=["one"], start_line=next_line)
        assert (await log())[1][0] == "ot."
        assert await log(start=next_line) == (next_line, ["one"])
        assert await log(size=1) == (0, ["ot."])
        assert await desk.finish(claim, SUCCESS)
        await desk.database.execute("delete from statement_logs where statement_id = $1", claim.statement_id)
        assert await log() == (0, []), "logs of ended statements are deleted after some time"

    async def test_successor_segment_replaces_the_same_segment(self, desk: DatabaseDesk) -> None:
        old = await desk.add(owner=DEAD)
        assert await desk.owned.mark_running(old)
        assert await desk.owned.add_segment(old, Segment(0, 0, 10, 100), columns=COLUMNS)
        new = (await desk.orphans())[old.statement_id]
        assert await desk.owned.add_segment(new, Segment(0, 0, 20, 200), columns=COLUMNS)
        assert not await desk.owned.add_segment(old, Segment(0, 0, 30, 300), columns=COLUMNS)
        stored = await desk.records.stored_result(old.statement_id, start_row=0, rows=100)
        assert stored is not None
        assert [(one.rows, one.fence) for one in stored.segments] == [(20, new.fence)]

    @pytest.mark.item(25)
    @pytest.mark.parametrize("write", ["mark_running", "report", "add_segment"])
    async def test_resume_token_is_unreadable_in_database(self, desk: DatabaseDesk, write: str) -> None:
        claim = await desk.add()
        mark = EngineCheckpoint("handle 1, its secret, é", 7)
        assert await desk.owned.mark_sent(claim)
        assert await desk.owned.mark_running(
            claim, checkpoint=mark if write == "mark_running" else EngineCheckpoint("before")
        )
        if write == "report":
            assert await desk.owned.report(claim, progress=1, lines=[], start_line=0, checkpoint=mark)
        elif write == "add_segment":
            assert await desk.owned.add_segment(claim, Segment(0, 0, 10, 100), columns=COLUMNS, checkpoint=mark)
        stored = await desk.database.value("SELECT engine_handle FROM statements")
        assert "secret" not in stored + b64decode(stored).decode("latin-1")
        resumption = (await desk.resumptions())[claim.statement_id]
        assert resumption is not None
        assert resumption.checkpoint == mark

    @pytest.mark.item(25)
    @pytest.mark.parametrize("spoiled", ["by another key", "cut", "not sealed at all"])
    async def test_unreadable_resume_token_counts_as_missing(self, desk: DatabaseDesk, spoiled: str) -> None:
        claim = await desk.add()
        assert await desk.owned.mark_sent(claim)
        assert await desk.owned.mark_running(claim, checkpoint=EngineCheckpoint("handle"))
        if spoiled == "by another key":
            desk.owned = owned_statements(desk.database, "second key")
        elif spoiled == "cut":
            await desk.database.execute("UPDATE statements SET engine_handle = left(engine_handle, 12)")
        else:
            await desk.database.execute("UPDATE statements SET engine_handle = '7 handle'")
        with capture_logs() as logs:
            assert await desk.resumptions() == {claim.statement_id: None}
        # Other events, such as a slow query, may also be logged.
        assert [line["event"] for line in logs].count("checkpoint of a statement could not be decrypted") == 1
        assert "handle" not in str(logs)

    async def test_concurrent_sweeps_share_orphans(self, desk: DatabaseDesk) -> None:
        lost = {(await desk.add(owner=None)).statement_id for _ in range(20)}
        shares = await asyncio.gather(*(desk.orphans(owner=f"instance {number}") for number in range(4)))
        taken = [statement_id for share in shares for statement_id in share]
        assert sorted(taken) == sorted(lost)


PAIRS = [
    (fake, records, name)
    for records, fake in {OwnedStatements: MemoryStatements, SessionRecords: MemorySessions}.items()
    for name in members(records)
]


@pytest.mark.parametrize(("fake", "records", "name"), PAIRS)
def test_fake_signatures_match_records(fake: type, records: type, name: str) -> None:
    assert shape(vars(fake)[name]) == shape(vars(records)[name])


def test_contract_is_not_empty() -> None:
    assert len([name for name in vars(OwnedStatementsContract) if name.startswith("test_")]) >= 18
