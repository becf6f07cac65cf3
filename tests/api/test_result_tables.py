"""Statements read results as tables: permissions, and how long results are kept (Contract editor 6.5)."""

import os
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from tests.api.conftest import ApiOpener
from tests.api.driving import Caller, until

from queryserver.engines.external_data import OpenResult
from queryserver.errors.statements import ResultRefused
from queryserver.identity.model import ApiTokenLimits, Scope, User
from queryserver.statements.external_access import SessionReads, SessionResults

INLINE, STORED = "rows 5", "rows 9000"


async def user_of(caller: Caller) -> User:
    number = await caller.api.database.value("select id from users where username = $1", caller.username)
    user = await caller.api.running.accounts.directory.user(number)
    assert user is not None
    return user


def session_of(caller: Caller) -> SessionResults:
    opener = caller.api.running.statements.external_data.open_result
    assert opener is not None
    return SessionResults(opener, SessionReads())


async def all_rows(result: OpenResult) -> list[int]:
    found: list[int] = []
    for number, piece in enumerate(result.pieces):
        content = await result.read(number, 0, piece.size_bytes)
        assert len(content) == piece.size_bytes
        table = pa.ipc.open_stream(content).read_all()
        assert table.num_rows == piece.rows
        found += table.column(0).to_pylist()
        descriptor = await result.descriptor(number)
        if descriptor is not None:
            try:
                assert os.pread(descriptor, piece.size_bytes + 1, 0) == content
            finally:
                os.close(descriptor)
    return found


async def refused(caller: Caller, operation: str) -> ResultRefused:
    results = session_of(caller)
    with results.acting(await user_of(caller)), pytest.raises(ResultRefused) as found:
        async with results.open(operation):
            pass
    return found.value


async def is_stored(caller: Caller, operation: str) -> bool:
    """Return whether the result store contains any data of the operation."""
    listing = caller.api.services.statements.retention.listing
    found = [stored.id async for batch in listing.statements() for stored in batch]
    return UUID(operation) in found


@pytest.mark.parametrize(
    ("statement", "rows", "in_files"), [(INLINE, 5, False), (STORED, 9000, True), ("rows 0", 0, False)]
)
async def test_own_result_is_read_completely(ana: Caller, statement: str, rows: int, in_files: bool) -> None:
    operation = (await ana.run("mysql", statement))["history_uuid"]
    results = session_of(ana)
    with results.acting(await user_of(ana)):
        async with results.open(operation) as opened:
            assert await all_rows(opened) == list(range(rows))
            assert [column.name for column in opened.columns] == ["n"]
            assert opened.warning == ""
            if opened.pieces:
                descriptor = await opened.descriptor(0)
                assert (descriptor is not None) == in_files
                if descriptor is not None:
                    os.close(descriptor)


async def test_truncated_result_is_marked(ana: Caller, small_api: ApiOpener) -> None:
    async with small_api(default_limit=3, enforce_default_limit=True) as api:
        ada = await api.user("ada")
        cut, wanted = [(await ada.run("mysql", "rows 9", **more))["history_uuid"] for more in ({}, {"limit": 2})]
        results = session_of(ada)
        with results.acting(await user_of(ada)):
            async with results.open(cut) as opened:
                assert "Only the first 3 rows were kept" in opened.warning
            async with results.open(wanted) as opened:
                assert opened.warning == ""


async def test_unreadable_results_are_refused_with_their_code(ana: Caller, bob: Caller) -> None:
    theirs = (await bob.run("mysql", INLINE))["history_uuid"]
    for unknown in (theirs, str(uuid4()), "no-id", ""):
        assert (await refused(ana, unknown)).code == "operation_not_found"
    running = (await ana.execute("mysql", "sleep 600"))["history_uuid"]
    await ana.running(running)
    error = await refused(ana, running)
    assert (error.code, "has not ended" in error.message) == ("result_not_available", True)
    await ana.on(running, "cancel_statement")
    ended = [running, *[(await ana.run("mysql", text))["history_uuid"] for text in ("change 3", "rows 3 then fail x")]]
    for operation in ended:
        assert (await refused(ana, operation)).code == "result_not_available"
    closed, expired = [(await ana.run("mysql", INLINE))["history_uuid"] for _ in range(2)]
    await ana.on(closed, "close_statement")
    await ana.api.database.execute("update statements set expires_at = now() where id = $1", UUID(expired))
    await ana.api.services.statements.retention.expire()
    assert "was closed" in (await refused(ana, closed)).message
    assert "has expired" in (await refused(ana, expired)).message
    assert {(await refused(ana, one)).code for one in (closed, expired)} == {"result_expired"}


async def test_results_cannot_be_read_outside_a_statement(ana: Caller) -> None:
    operation = (await ana.run("mysql", INLINE))["history_uuid"]
    results = session_of(ana)
    with results.acting(await user_of(ana)):
        pass
    with pytest.raises(ResultRefused) as found:
        async with results.open(operation):
            pass
    assert found.value.code == "permission_denied"


async def test_current_user_and_token_rights_apply(ana: Caller) -> None:
    """If the token excludes the result's connector, the operation is reported as unknown, as by fetch_result_data."""
    operation = (await ana.run("mysql", "rows 2"))["history_uuid"]
    user, results = await user_of(ana), session_of(ana)
    for connectors, may in ((frozenset({"mysql"}), True), (frozenset({"duckdb"}), False)):
        limits = ApiTokenLimits(uuid4(), "program", frozenset({Scope.QUERY}), connectors, b"")
        with results.acting(user.narrowed(limits)):
            if may:
                async with results.open(operation) as opened:
                    assert len(opened.pieces) == 1
                continue
            with pytest.raises(ResultRefused) as found:
                async with results.open(operation):
                    pass
            assert found.value.code == "operation_not_found"


async def test_script_results_are_readable(ana: Caller) -> None:
    body = await ana.run("mysql", "rows 2; change 1; rows 3", run_all="true")
    operation, results = body["history_uuid"], session_of(ana)
    with results.acting(await user_of(ana)):
        parts = (await ana.on(operation, "check_status"))["query_status"]["statements"]
        for one, rows in ((operation, 3), (parts[2]["operationId"], 3), (parts[0]["operationId"], 2)):
            async with results.open(one) as opened:
                assert await all_rows(opened) == list(range(rows))
    assert (await refused(ana, parts[1]["operationId"])).code == "result_not_available"
    nothing = (await ana.run("mysql", "change 1; change 2", run_all="true"))["history_uuid"]
    assert (await refused(ana, nothing)).code == "result_not_available"


async def test_result_being_read_is_kept(ana: Caller) -> None:
    """A result does not expire while it is being read. If it is closed meanwhile, its data is kept until the read
    ends.
    """
    retention, database = ana.api.services.statements.retention, ana.api.database
    operation = (await ana.run("mysql", STORED))["history_uuid"]
    results = session_of(ana)
    with results.acting(await user_of(ana)):
        async with results.open(operation) as opened:
            await database.execute("update statements set expires_at = now() where id = $1", UUID(operation))
            await retention.expire()
            assert await ana.state(operation) == "available"
            await ana.on(operation, "close_statement")
            await retention.expire()
            await retention.clean_up()
            assert await is_stored(ana, operation)
            assert await all_rows(opened) == list(range(9000))
    assert await database.value("select count(*) from result_reads where statement_id = $1", UUID(operation)) == 0
    await retention.expire()
    assert not await is_stored(ana, operation)


@pytest.mark.parametrize(("owner", "lease"), [("killed", "infinity"), (None, "2026-01-01")])
async def test_read_of_a_dead_process_does_not_keep_the_result(ana: Caller, owner: str | None, lease: str) -> None:
    """Processes of older versions have no owner in the row, but a lease that expires."""
    retention, database = ana.api.services.statements.retention, ana.api.database
    operation = (await ana.run("mysql", STORED))["history_uuid"]
    await database.execute(
        """with killed as (
            insert into instances (id, kind, name, version, heartbeat_at, alive_until)
            values ('killed', 'server', 'host-1', '1', now() - interval '32 s', now() - interval '2 s')
            on conflict do nothing
        )
        insert into result_reads (id, statement_id, owner, lease_until) values ($1, $2, $3, $4::text::timestamptz)""",
        uuid4(),
        UUID(operation),
        owner,
        lease,
    )
    await database.execute("update statements set expires_at = now() where id = $1", UUID(operation))
    await retention.expire()
    assert await ana.state(operation) == "expired"

    async def is_gone() -> bool:
        return not await is_stored(ana, operation)

    await until(is_gone)
    reads = "select count(*) from result_reads where statement_id = $1"
    await retention.clean_up()  # the killed process might be paused, and continue
    assert await database.value(reads, UUID(operation)) == (1 if owner else 0)
    await database.execute("delete from instances where id = 'killed'")  # as after a day without heartbeats
    await retention.clean_up()
    assert await database.value(reads, UUID(operation)) == 0
