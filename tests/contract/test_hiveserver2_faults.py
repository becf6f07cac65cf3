"""Sessions and statements on a misbehaving HiveServer2 fail with the right error, and in time.

The peer is a scripted server that speaks the Impala dialect; all three dialects share the client's transports and
errors.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, operation, run
from tests.engines.scripted_hs2.server import Fault, ScriptedServer
from tests.engines.scripted_hs2.wire import Passwords
from tests.ports import free_port

from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.variants import IMPALA, Hs2Address, Limits, Mechanism, Member
from queryserver.engines.protocol import OperationState
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
)

pytestmark = [pytest.mark.slow, pytest.mark.capability("A broken connection is reported in time")]
DIALECTS = ("hive", "sparksql", "impala")
TESTED_WITH = "scripted peer"
"""The server's name in the support table."""

SLOW = "SELECT SLEEP(30000)"
LIMITS = Limits(connect_s=60, execute_s=60, status_s=60, fetch_s=60, other_s=60, end_s=60, retry_s=1.0, settle_s=0.05)
MAX_S = 30.0
"""Time limit in seconds: long enough for a busy machine, but shorter than each call timeout in LIMITS."""

TRANSPORTS = ("sasl", "nosasl", "http")
BROKEN = (Fault.GARBAGE, Fault.HALF, Fault.RESET, Fault.CLOSE, Fault.HANG)


Peers = tuple[ScriptedServer, Hs2Engine]


@asynccontextmanager
async def scripted(
    transport: str, passwords: Passwords | None = None, limits: Limits = LIMITS
) -> AsyncGenerator[Peers]:
    """Start a correctly behaving server, in which tests can inject faults, and an engine that connects to it."""
    async with ScriptedServer(transport, passwords or Passwords({})).serving() as server:
        engine = Hs2Engine(_address(server.port, transport, limits), IMPALA)
        try:
            async with asyncio.timeout(4 * MAX_S):
                yield server, engine
        finally:
            server.faults.clear()
            await engine.close()


def _address(port: int, transport: str, limits: Limits = LIMITS) -> Hs2Address:
    mechanism = Mechanism.NOSASL if transport == "nosasl" else Mechanism.NONE
    path = "cliservice" if transport == "http" else None
    return Hs2Address((Member("127.0.0.1", port),), mechanism=mechanism, http_path=path, limits=limits)


@pytest.fixture(params=TRANSPORTS)
async def peers(request: pytest.FixtureRequest) -> AsyncGenerator[Peers]:
    async with scripted(request.param) as both:
        yield both


def limits_with(fault: Fault, **short: float) -> Limits:
    """Return LIMITS, but with shorter timeouts if the fault is a call that is never answered."""
    return replace(LIMITS, **short) if fault is Fault.HANG else LIMITS


def assert_tidy(error: EngineError) -> None:
    for word in ("Traceback", "object at 0x", "127.0.0.1", "struct", "Thrift"):
        assert word not in error.message
    assert error.message.strip() == error.message != ""


async def test_each_transport_carries_statements(peers: Peers) -> None:
    server, engine = peers
    async with engine.session(USER, NO_OPTIONS) as session:
        answer = await run(session, "SELECT range AS n FROM range(5000)")
        assert [row[0] for row in answer.rows] == list(range(5000))
    assert server.service.seen[-1] == "CloseSession"
    assert server.service.sessions == {}
    assert server.service.operations == {}


@pytest.mark.item(70)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_missing_listener_is_unavailable(transport: str) -> None:
    engine = Hs2Engine(_address(free_port(), transport), IMPALA)
    with pytest.raises(EngineUnavailable) as caught:
        async with asyncio.timeout(MAX_S), engine.session(USER, NO_OPTIONS):
            pass
    assert_tidy(caught.value)
    await engine.close()


@pytest.mark.item(59)
@pytest.mark.parametrize("transport", ["sasl", "http"])
async def test_refused_user_needs_credentials(transport: str) -> None:
    async with scripted(transport, Passwords({"somebody": "else"})) as (_, engine):
        with pytest.raises(CredentialsRequired) as caught:
            async with engine.session(USER, NO_OPTIONS):
                pass
        assert_tidy(caught.value)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("fault", BROKEN)
async def test_failed_session_opening_is_unavailable(transport: str, fault: Fault) -> None:
    async with scripted(transport, limits=limits_with(fault, execute_s=3)) as (server, engine):
        server.faults["OpenSession"] = fault
        begun = time.monotonic()
        with pytest.raises(EngineUnavailable) as caught:
            async with engine.session(USER, NO_OPTIONS):
                pass
        assert time.monotonic() - begun < MAX_S
        assert_tidy(caught.value)
        server.faults.clear()
        async with engine.session(USER, NO_OPTIONS) as session:
            assert (await run(session, "SELECT 1 AS a")).rows == [(1,)]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("fault", BROKEN)
async def test_possibly_sent_statement_has_unknown_outcome(transport: str, fault: Fault) -> None:
    async with scripted(transport, limits=limits_with(fault, execute_s=3)) as (server, engine):
        async with engine.session(USER, NO_OPTIONS) as session:
            server.faults["ExecuteStatement"] = fault
            begun = time.monotonic()
            with pytest.raises(OutcomeUnknown) as caught:
                await session.submit("SELECT 1 AS a")
            assert time.monotonic() - begun < MAX_S
            assert_tidy(caught.value)
            server.faults.clear()
        async with engine.session(USER, NO_OPTIONS) as session:
            assert (await run(session, "SELECT 1 AS a")).rows == [(1,)]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("fault", BROKEN)
async def test_untrackable_statement_ends_with_unknown_outcome(transport: str, fault: Fault) -> None:
    async with (
        scripted(transport, limits=limits_with(fault, status_s=3)) as (server, engine),
        engine.session(USER, NO_OPTIONS) as session,
        operation(session, SLOW) as handle,
    ):
        server.faults["GetOperationStatus"] = fault
        status = await ended(session, handle, within_s=MAX_S)
        assert status.state is OperationState.FAILED
        assert isinstance(status.error, OutcomeUnknown)
        assert_tidy(status.error)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("fault", BROKEN)
async def test_connection_lost_between_rows_is_reported(transport: str, fault: Fault) -> None:
    async with (
        scripted(transport, limits=limits_with(fault, fetch_s=3)) as (server, engine),
        engine.session(USER, NO_OPTIONS) as session,
        operation(session, "SELECT range AS n FROM range(5000000)") as handle,
    ):
        await ended(session, handle)
        server.faults["FetchResults"], server.skip["FetchResults"] = fault, 2
        async with asyncio.timeout(MAX_S):
            with pytest.raises(OutcomeUnknown) as caught:
                async for _ in session.batches(handle):
                    pass
        assert_tidy(caught.value)


async def test_server_crash_during_query_is_reported(peers: Peers) -> None:
    server, engine = peers
    async with engine.session(USER, NO_OPTIONS) as session, operation(session, SLOW) as handle:
        assert not (await session.poll(handle)).state.is_terminal
        server.service.sessions.clear()
        server.service.operations.clear()
        server.drop_connections()
        status = await ended(session, handle, within_s=MAX_S)
        assert status.state is OperationState.FAILED
        assert isinstance(status.error, OutcomeUnknown)


async def test_expired_session_starts_no_statement(peers: Peers) -> None:
    server, engine = peers
    async with engine.session(USER, NO_OPTIONS) as session:
        server.faults["ExecuteStatement"] = Fault.EXPIRE
        with pytest.raises(SessionLost):
            await session.submit("SELECT 1 AS a")
        assert not await session.is_alive()
        server.faults.clear()
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT 1 AS a")).rows == [(1,)]


async def test_statement_expired_on_the_server_has_an_unknown_outcome(peers: Peers) -> None:
    server, engine = peers
    async with engine.session(USER, NO_OPTIONS) as session, operation(session, SLOW) as handle:
        server.faults["GetOperationStatus"] = Fault.EXPIRE
        status = await ended(session, handle)
        assert isinstance(status.error, OutcomeUnknown)
        assert status.error.message.startswith("Results have expired")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("call", ["CancelOperation", "CloseOperation", "CloseImpalaOperation", "CloseSession"])
async def test_unanswered_close_is_not_awaited(transport: str, call: str) -> None:
    async with scripted(transport, limits=replace(LIMITS, end_s=0.5)) as (server, engine):
        begun = time.monotonic()
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, SLOW):
            server.faults[call] = Fault.HANG
        assert time.monotonic() - begun < MAX_S


async def test_server_without_impala_calls_still_works(peers: Peers) -> None:
    """An unknown call raises TApplicationException; progress and log are then unavailable, but the rows can be read."""
    server, engine = peers
    server.service.lacks = frozenset({"GetExecSummary", "GetLog"})
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT SLEEP(300)")).rows == [(True,)]
