"""Trino's client protocol over a real socket, with scripted responses."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, failure, operation, read, rows_of, run
from tests.engines.scripted_trino import (
    Reply,
    ScriptedTrino,
    column,
    error,
    inline_segment,
    page,
    scripted_trino,
    segment_bytes,
    spooled_segment,
)

from queryserver.engines.protocol import Credentials, EngineSession, OperationState, SessionOptions
from queryserver.engines.trino.engine import TrinoEngine
from queryserver.engines.trino.protocol import PRESTO, TRINO, TrinoAddress, TrinoAuthentication, TrinoTimeouts
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineTimeout,
    EngineUnavailable,
    OutcomeUnknown,
    StatementDenied,
    StatementRejected,
)

PATIENT = TrinoTimeouts(connect_s=30, answer_s=30, retry_s=30, stop_s=30, open_s=30)
SHORT = replace(PATIENT, retry_s=1.5)
# Short timeouts, for responses that never arrive.
NEVER = replace(PATIENT, answer_s=3, stop_s=0.3)
NUMBERS = (column("n", "bigint"),)
ONE_ROW = (page(1), page(rows=[[7]], columns=NUMBERS, state="FINISHED"))
SERVER_FAILS = Reply(status=503, body=b"starting")


@asynccontextmanager
async def session_at(
    server: ScriptedTrino, options: SessionOptions = NO_OPTIONS, timeouts: TrinoTimeouts = PATIENT, **address: object
) -> AsyncGenerator[EngineSession]:
    engine = TrinoEngine(TrinoAddress(server.url, timeouts=timeouts, **address))  # type: ignore[arg-type]
    try:
        async with engine.session(USER, options) as session:
            yield session
    finally:
        await engine.close()


async def answered(*script: Reply, timeouts: TrinoTimeouts = PATIENT) -> list[tuple[object, ...]]:
    async with scripted_trino(*script) as server, session_at(server, timeouts=timeouts) as session:
        return (await run(session, "SELECT n")).rows


async def refused(*script: Reply, timeouts: TrinoTimeouts = PATIENT) -> Exception:
    async with scripted_trino(*script) as server, session_at(server, timeouts=timeouts) as session:
        return await failure(session, "SELECT n")


async def test_rows_from_all_pages_arrive_in_order() -> None:
    pages = [page(1), page(2, rows=[[1], [2]], columns=NUMBERS), page(3), page(rows=[[3]], columns=NUMBERS)]
    assert await answered(*pages) == [(1,), (2,), (3,)]


async def test_next_page_is_requested_only_when_rows_are_needed() -> None:
    pages = [page(1), page(2, rows=[[1]], columns=NUMBERS), page(rows=[[2]], columns=NUMBERS)]
    async with (
        scripted_trino(*pages) as server,
        session_at(server) as session,
        operation(session, "SELECT n") as handle,
    ):
        await ended(session, handle)
        await session.poll(handle)
        batches = session.batches(handle)
        await anext(batches)
        assert len(server.asked("GET")) == 1
        await anext(batches)
        assert len(server.asked("GET")) == 2


@pytest.mark.item(25)
async def test_completely_read_page_is_not_requested_after_reattach() -> None:
    given = page(2, rows=[[1], [2]], columns=NUMBERS)
    asked_by_both = page(rows=[[3]], columns=NUMBERS, state="FINISHED")
    async with scripted_trino(page(1), given, asked_by_both) as server:
        engine = TrinoEngine(TrinoAddress(server.url, timeouts=PATIENT))
        async with engine.session(USER, NO_OPTIONS) as session:
            handle = await session.submit("SELECT n")
            await ended(session, handle)
            batches = session.batches(handle)
            assert rows_of(await anext(batches)) == [(1,), (2,)]
            token = session.resume_token(handle)
            await anext(batches)
            session.detach()
        async with engine.reattach(USER, NO_OPTIONS, token, rows_read=2) as (again, found):
            await ended(again, found)
            assert await read(again, found) == [(3,)]
        await engine.close()
        assert [path.rpartition("/")[2] for path in server.asked("GET")] == ["1", "2", "2"]


@pytest.mark.item(25)
async def test_reattach_after_last_row_requests_nothing() -> None:
    async with scripted_trino(*ONE_ROW) as server:
        engine = TrinoEngine(TrinoAddress(server.url, timeouts=PATIENT))
        async with engine.session(USER, NO_OPTIONS) as session:
            handle = await session.submit("SELECT n")
            await ended(session, handle)
            assert rows_of(await anext(session.batches(handle))) == [(7,)]
            token = session.resume_token(handle)
            session.detach()
        async with engine.reattach(USER, NO_OPTIONS, token, rows_read=1) as (again, found):
            status = await ended(again, found)
            assert (status.state, status.has_result_set) == (OperationState.FINISHED, True)
            assert [one.name for one in await again.columns(found)] == ["n"]
            assert await read(again, found) == []
        await engine.close()
        assert len(server.asked("GET")) == 1


WRONG_MEMBERS: tuple[dict[str, object], ...] = (
    {"stats": [1]}, {"error": "no"}, {"warnings": ["w"]}, {"columns": ["c"]},
    {"columns": [{"name": "c", "type": "t", "typeSignature": {"rawType": "row", "arguments": [1]}}]},
    {"updateCount": "x"}, {"data": {"encoding": "json", "segments": [{}]}},
)  # fmt: skip


@pytest.mark.parametrize("members", WRONG_MEMBERS, ids=repr)
async def test_response_members_of_wrong_type_fail_statement(members: dict[str, object]) -> None:
    async with scripted_trino(page(1), page(2, **members)) as server, session_at(server) as session:
        assert isinstance(await failure(session, "SELECT n"), OutcomeUnknown)
        assert len(server.asked("GET")) < 20


async def test_non_numeric_splits_report_zero_progress() -> None:
    odd = page(2, stats={"state": "RUNNING", "totalSplits": "many", "completedSplits": 1})
    async with scripted_trino(page(1), odd) as server, session_at(server) as session:
        handle = await session.submit("SELECT n")
        status = await session.poll(handle, wait_s=2.0)
        assert (status.state, status.progress) == (OperationState.RUNNING, 0)
        await session.cancel(handle)


@pytest.mark.security("T11")
async def test_next_uri_with_other_host_goes_to_configured_coordinator() -> None:
    elsewhere = page(1, next_host="http://coordinator.internal:1")
    async with scripted_trino(elsewhere, ONE_ROW[1]) as server, session_at(server) as session:
        assert (await run(session, "SELECT n")).rows == [(7,)]
        assert len(server.asked("GET")) == 1


@pytest.mark.security("T11")
@pytest.mark.parametrize("uri", ["{url}/ui/api/kill", "{url}/v1/statement/../query/x", "http://x/", "nonsense"])
async def test_invalid_next_uri_is_not_followed(uri: str) -> None:
    found = Reply(b'{"id": "q", "stats": {}, "nextUri": "%s"}' % uri.encode())
    async with scripted_trino(found) as server, session_at(server) as session:
        assert isinstance(await failure(session, "SELECT n"), OutcomeUnknown)
        assert server.asked("GET") == []


@pytest.mark.security("T11")
async def test_redirects_are_not_followed() -> None:
    async with scripted_trino(*ONE_ROW) as other:
        away = Reply(status=307, headers={"Location": f"{other.url}/v1/statement"})
        assert isinstance(await refused(away), StatementRejected)
        assert other.requests == []


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_retryable_status_is_retried(status: int) -> None:
    busy = Reply(status=status)
    assert await answered(busy, busy, ONE_ROW[0], busy, ONE_ROW[1]) == [(7,)]


async def test_coordinator_that_never_accepts_statement_is_unavailable() -> None:
    assert isinstance(await refused(SERVER_FAILS, timeouts=SHORT), EngineUnavailable)


BROKEN: dict[str, Callable[[], Reply]] = {
    "half a body": lambda: Reply(ONE_ROW[1].body, cut=20),
    "no answer": lambda: Reply(hangs=True),
    "closed": lambda: Reply(raw=b""),
    "not HTTP": lambda: Reply(raw=b"\x00\x01\x02garbage\r\n\r\n"),
    "not JSON": lambda: Reply(b"<html>welcome</html>"),
    "JSON of another kind": lambda: Reply(b"[1, 2]"),
    "unavailable": lambda: SERVER_FAILS,
}


def patience(broken: str) -> TrinoTimeouts:
    return NEVER if broken == "no answer" else PATIENT


async def side_by_side(attempt: Callable[[str], Awaitable[object]], kinds: Iterable[str]) -> dict[str, object]:
    """Run the attempt for each kind of response; return the results and errors by kind.

    The attempts run concurrently, because they spend most of their time waiting.
    """
    kinds = list(kinds)
    return dict(zip(kinds, await asyncio.gather(*map(attempt, kinds), return_exceptions=True), strict=True))


async def test_broken_response_is_requested_again(subtests: pytest.Subtests) -> None:
    async def attempt(broken: str) -> object:
        return await answered(ONE_ROW[0], BROKEN[broken](), ONE_ROW[1], timeouts=patience(broken))

    for broken, rows in (await side_by_side(attempt, BROKEN)).items():
        with subtests.test(broken):
            assert rows == [(7,)]


async def test_persistently_broken_responses_leave_outcome_unknown(subtests: pytest.Subtests) -> None:
    async def attempt(broken: str) -> object:
        timeouts = replace(patience(broken), retry_s=4 if broken == "no answer" else 1.5)
        return await refused(ONE_ROW[0], BROKEN[broken](), timeouts=timeouts)

    for broken, outcome in (await side_by_side(attempt, BROKEN)).items():
        with subtests.test(broken):
            assert isinstance(outcome, OutcomeUnknown)


async def test_statement_with_lost_response_is_not_resubmitted(subtests: pytest.Subtests) -> None:
    async def attempt(broken: str) -> object:
        answers, timeouts = (BROKEN[broken](), *ONE_ROW), patience(broken)
        async with scripted_trino(*answers) as server, session_at(server, timeouts=timeouts) as session:
            return await failure(session, "INSERT"), len(server.asked("POST"))

    kinds = ["half a body", "no answer", "closed", "not HTTP", "not JSON"]
    for broken, outcome in (await side_by_side(attempt, kinds)).items():
        with subtests.test(broken):
            assert isinstance(outcome, tuple), outcome
            lost, submissions = outcome
            assert isinstance(lost, OutcomeUnknown)
            assert submissions == 1


@pytest.mark.parametrize("status", [404, 410])
async def test_statement_unknown_to_the_coordinator_has_expired(status: int) -> None:
    lost = await refused(ONE_ROW[0], Reply(status=status))
    assert isinstance(lost, OutcomeUnknown)
    assert str(lost).startswith("Results have expired")


async def test_refused_login_is_reported_before_any_statement() -> None:
    async with scripted_trino(*ONE_ROW) as server:
        server.login = Reply(status=401, body=b"Invalid credentials")
        with pytest.raises(CredentialsRequired, match="Invalid credentials"):
            async with session_at(server):
                pass
        assert server.requests == []


async def test_login_without_impersonation_privilege_is_refused() -> None:
    async with scripted_trino(*ONE_ROW) as server:
        server.login = Reply(status=403, body=b"Access Denied: User etl cannot impersonate user ada")
        with pytest.raises(StatementRejected, match="cannot impersonate"):
            async with session_at(server):
                pass


async def test_engine_error_message_is_reported() -> None:
    wrong = await refused(page(1), page(state="FAILED", error=error("line 1:8: Column 'n' cannot be resolved\nmore")))
    assert isinstance(wrong, StatementRejected)
    assert wrong.message.startswith("line 1:8: Column 'n' cannot be resolved")


async def test_missing_permission_is_statement_denied() -> None:
    denied = error("Access Denied: Cannot select from table t", "PERMISSION_DENIED")
    assert isinstance(await refused(page(1), page(state="FAILED", error=denied)), StatementDenied)


async def test_engine_time_limit_is_a_timeout() -> None:
    limit = error("Query exceeded the maximum execution time limit of 1.00s", "EXCEEDED_TIME_LIMIT")
    assert isinstance(await refused(page(1), page(state="FAILED", error=limit)), EngineTimeout)


async def test_externally_canceled_statement_is_canceled() -> None:
    stopped = page(state="FAILED", error=error("Query was canceled", "USER_CANCELED"))
    async with (
        scripted_trino(page(1), stopped) as server,
        session_at(server) as session,
        operation(session, "SELECT n") as handle,
    ):
        assert (await ended(session, handle)).state is OperationState.CANCELED


async def test_close_cancels_partially_read_statement() -> None:
    async with scripted_trino(page(1), page(2, rows=[[1]], columns=NUMBERS)) as server, session_at(server) as session:
        handle = await session.submit("SELECT n")
        await ended(session, handle)
        await session.close(handle)
        assert [path[-2:] for path in server.asked("DELETE")] == ["/2"]


async def test_queued_statement_is_pending_and_progress_comes_from_engine() -> None:
    queued, half = page(1, state="QUEUED"), page(2)
    half = Reply(half.body.replace(b'"state":"RUNNING"', b'"state":"RUNNING","progressPercentage":50.7'))
    stopping = replace(PATIENT, stop_s=0.3)
    async with (
        scripted_trino(queued, half, Reply(hangs=True)) as server,
        session_at(server, timeouts=stopping) as session,
    ):
        handle = await session.submit("SELECT n")
        assert (await session.poll(handle)).state is OperationState.PENDING
        status = await session.poll(handle, wait_s=20)
        assert (status.state, status.progress) == (OperationState.RUNNING, 50)
        await session.close(handle)


@pytest.mark.parametrize(
    ("update", "columns", "rows", "modified", "has_rows"),
    [
        ({"updateType": "INSERT", "updateCount": 3}, [column("rows", "bigint")], [[3]], 3, False),
        ({"updateType": "CREATE TABLE"}, [column("result", "boolean")], [[True]], None, False),
        ({"updateType": "SET SESSION"}, [], None, None, False),
        ({"updateType": "ALTER TABLE EXECUTE"}, [column("metric_name", "varchar")], [["files"]], None, True),
    ],
)
async def test_only_changes_that_report_rows_have_result_set(update, columns, rows, modified, has_rows) -> None:
    async with (
        scripted_trino(page(1), page(rows=rows, columns=columns, state="FINISHED", **update)) as server,
        session_at(server) as session,
    ):
        answer = await run(session, "CHANGE")
    assert (answer.status.has_result_set, answer.status.modified_rows) == (has_rows, modified)
    assert answer.rows == ([("files",)] if has_rows else [])


async def test_session_state_is_sent_with_next_statement() -> None:
    told = {
        "X-Trino-Set-Catalog": "tpch",
        "X-Trino-Set-Schema": "tiny",
        "X-Trino-Set-Session": "query_priority=1%2C2",
        "X-Trino-Set-Role": "system=ROLE%7Badmin%7D",
        "X-Trino-Added-Prepare": "mine=SELECT+5",
        "X-Trino-Started-Transaction-Id": "tx1",
    }
    done = page(state="FINISHED", updateType="USE")
    script = (Reply(done.body, headers=told), *ONE_ROW)
    async with scripted_trino(*script) as server, session_at(server) as session:
        await run(session, "USE tpch.tiny")
        await run(session, "SELECT n")
        sent = server.requests[1].headers
    assert (sent["x-trino-catalog"], sent["x-trino-schema"]) == ("tpch", "tiny")
    assert sent["x-trino-session"] == "query_priority=1%2C2"
    assert sent["x-trino-role"] == "system=ROLE%7Badmin%7D"
    assert sent["x-trino-prepared-statement"] == "mine=SELECT+5"
    assert sent["x-trino-transaction-id"] == "tx1"


async def test_open_transaction_is_rolled_back_when_session_closes() -> None:
    begun = Reply(page(state="FINISHED", updateType="START TRANSACTION").body,
                  headers={"X-Trino-Started-Transaction-Id": "tx1"})  # fmt: skip
    async with scripted_trino(begun, page(state="FINISHED")) as server:
        async with session_at(server) as session:
            await run(session, "START TRANSACTION")
        assert [request.body for request in server.requests] == [b"START TRANSACTION", b"ROLLBACK"]


async def test_login_is_sent_as_configured() -> None:
    by_token = SessionOptions(external_token="abc")
    own = SessionOptions(credentials=Credentials("bob", "pw"))
    cases = [
        ({}, NO_OPTIONS, "ada", None),
        ({"username": "etl"}, NO_OPTIONS, "etl", None),
        ({"username": "etl", "has_impersonation": True}, NO_OPTIONS, "ada", None),
        ({"username": "etl", "password": "pw", "authentication": TrinoAuthentication.BASIC, "has_impersonation": True},
         NO_OPTIONS, "ada", "Basic ZXRsOnB3"),
        ({"username": None, "authentication": TrinoAuthentication.BASIC}, own, "bob", "Basic Ym9iOnB3"),
        # Encoded as Latin-1, which Trino expects, or as UTF-8 if Latin-1 lacks a character.
        ({"username": "etl", "password": "p\u00fc", "authentication": TrinoAuthentication.BASIC}, NO_OPTIONS, "etl",
         "Basic ZXRsOnD8"),
        ({"username": "etl", "password": "p\u20ac", "authentication": TrinoAuthentication.BASIC}, NO_OPTIONS, "etl",
         "Basic ZXRsOnDigqw="),
        ({"authentication": TrinoAuthentication.JWT}, by_token, "ada", "Bearer abc"),
    ]  # fmt: skip
    for address, options, user, authorization in cases:
        async with scripted_trino(*ONE_ROW) as server, session_at(server, options, **address) as session:
            await run(session, "SELECT n")
            sent = server.requests[0].headers
        assert (sent["x-trino-user"], sent.get("authorization")) == (user, authorization)


@pytest.mark.security("T11")
async def test_unverified_user_name_is_refused() -> None:
    async with scripted_trino(*ONE_ROW) as server:
        with pytest.raises(CredentialsRequired):
            async with session_at(server, SessionOptions(credentials=Credentials("root", ""))):
                pass


@pytest.mark.parametrize("address", [{"username": None}, {"authentication": TrinoAuthentication.JWT}])
async def test_missing_login_requires_credentials(address) -> None:
    async with scripted_trino(*ONE_ROW) as server:
        with pytest.raises(CredentialsRequired):
            async with session_at(server, **address):
                pass


async def test_presto_uses_its_own_header_prefix() -> None:
    async with scripted_trino(*ONE_ROW) as server:
        engine = TrinoEngine(TrinoAddress(server.url, catalog="hive"), PRESTO)
        async with engine.session(USER, NO_OPTIONS) as session:
            assert (await run(session, "SELECT n")).rows == [(7,)]
        await engine.close()
        sent = server.requests[0].headers
    assert (sent["x-presto-user"], sent["x-presto-catalog"]) == ("ada", "hive")
    assert not [name for name in sent if name.startswith(TRINO.header_prefix.lower())]


PAIR = (column("n", "bigint"), column("t", "varchar"))


@pytest.mark.parametrize("encoding", ["json", "json+zstd"])
async def test_inline_and_spooled_segments_form_one_result(encoding: str) -> None:
    rows = [[number, f'x"],[{number}'] for number in range(60_000)]
    segments = [
        inline_segment(rows[:10], encoding),
        spooled_segment("one", len(rows) - 20, {"x-key": ["k1"]}),
        inline_segment(rows[-10:], encoding),
    ]
    script = [
        page(1),
        page(2, columns=PAIR, rows={"encoding": encoding, "segments": segments}),
        Reply(segment_bytes(rows[10:-10], encoding)),
        Reply(),
        page(state="FINISHED", columns=PAIR),
    ]
    async with (
        scripted_trino(*script) as server,
        session_at(server, username="etl", password="pw", authentication=TrinoAuthentication.BASIC) as session,
        operation(session, "SELECT") as handle,
    ):
        await ended(session, handle)
        assert await read(session, handle) == [tuple(row) for row in rows]
        download = next(request for request in server.requests if "/download/" in request.path)
        assert server.requests[0].headers["x-trino-query-data-encoding"] == "json+zstd,json"
        assert download.headers["x-key"] == "k1"
        assert "authorization" not in download.headers
        assert [path for path in server.asked("GET") if "spooled" in path] == [
            "/v1/spooled/download/one",
            "/v1/spooled/ack/one",
        ]


async def test_invalid_segments_leave_outcome_unknown() -> None:
    segment = {"type": "inline", "data": "AAAA", "metadata": {"rowOffset": 0, "rowsCount": 1}}
    for encoding in ("json", "json+zstd", "json+lz4"):
        broken = page(2, columns=PAIR, rows={"encoding": encoding, "segments": [segment]})
        assert isinstance(await refused(page(1), broken), OutcomeUnknown)


async def test_segment_with_invalid_address_leaves_outcome_unknown() -> None:
    segment = {"type": "spooled", "uri": "https://here:nowhere/", "metadata": {"rowOffset": 0, "rowsCount": 1}}
    broken = page(2, columns=PAIR, rows={"encoding": "json", "segments": [segment]})
    assert isinstance(await refused(page(1), broken), OutcomeUnknown)
