"""A caller that is canceled at any moment leaves no session or statement on HiveServer2, and no open connection.

The peer is a scripted server that speaks the Impala dialect. In tests that set `keeps_sessions`, its sessions outlive
their connection, as in Hive.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, operation, run
from tests.contract.test_hiveserver2_faults import LIMITS, MAX_S, SLOW, TRANSPORTS, Peers, scripted
from tests.engines.scripted_hs2.server import Fault, ScriptedServer

from queryserver.engines.hiveserver2.connection import Hs2Connection, Wire, connect
from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.errors import ConnectionLost
from queryserver.engines.hiveserver2.messages import CLOSE_SESSION
from queryserver.engines.hiveserver2.structs import TCloseSessionReq, THandleIdentifier, TSessionHandle
from queryserver.engines.hiveserver2.variants import Hs2Address, Hs2Login, Member
from queryserver.errors.statements import EngineUnavailable, OutcomeUnknown

pytestmark = pytest.mark.capability("Abandoned statements are stopped")

TO_THE_END = replace(LIMITS, end_s=60)
"""A long timeout, because a session that does not close in time remains on the server."""
UNKNOWN = TCloseSessionReq(
    session_handle=TSessionHandle(session_id=THandleIdentifier(guid=b"g" * 16, secret=b"s" * 16))
)
"""A request that has no effect: the peer answers "no such session"."""


@pytest.fixture(params=["sasl", "nosasl", "http"])
async def peers(request: pytest.FixtureRequest) -> AsyncGenerator[Peers]:
    async with scripted(request.param, limits=TO_THE_END) as both:
        both[0].service.keeps_sessions = True
        yield both


async def visit(engine: Hs2Engine) -> None:
    async with engine.session(USER, NO_OPTIONS):
        pass


async def read_all(rows: AsyncIterator[pa.RecordBatch]) -> None:
    async for _ in rows:
        pass


async def left_while_it_opens(server: ScriptedServer, engine: Hs2Engine) -> None:
    """Cancel a caller after the peer has opened the session but before it has responded."""
    server.faults["OpenSession"] = Fault.HOLD
    visiting = asyncio.create_task(visit(engine))
    await server.until(lambda: server.held == 1)
    visiting.cancel()
    await asyncio.wait({visiting}, timeout=10)
    assert visiting.cancelled(), "a caller who is canceled waits for the server"
    assert len(server.service.sessions) == 1


async def test_session_of_caller_who_left_during_opening_is_closed(peers: Peers) -> None:
    server, engine = peers
    await left_while_it_opens(server, engine)
    server.let_go.set()
    await server.until(lambda: not server.service.sessions)
    assert server.service.seen == ["OpenSession", "CloseSession"]
    server.faults.clear()
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT 1 AS a")).rows == [(1,)]
    assert not server.service.sessions


async def test_engine_close_closes_sessions_being_opened(peers: Peers) -> None:
    server, engine = peers
    await left_while_it_opens(server, engine)
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    server.let_go.set()
    await closing
    assert not server.service.sessions
    await server.until(lambda: not server.connections)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_engine_close_does_not_wait_forever_for_opening(transport: str) -> None:
    async with scripted(transport, limits=replace(TO_THE_END, end_s=0.5)) as (server, engine):
        server.service.keeps_sessions = True
        await left_while_it_opens(server, engine)
        async with asyncio.timeout(MAX_S):
            await engine.close()
        server.let_go.set()
        await server.until(lambda: not server.connections)


async def test_session_with_lost_connection_is_closed_over_another(peers: Peers) -> None:
    server, engine = peers
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT 1 AS a")).rows == [(1,)]
        server.drop_connections()
        await server.until(lambda: not server.connections)
        assert len(server.service.sessions) == 1
    assert not server.service.sessions


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_session_with_blocked_connection_is_closed_over_another(transport: str) -> None:
    async with scripted(transport, limits=replace(TO_THE_END, end_s=4)) as (server, engine):
        server.service.keeps_sessions = True
        server.faults["ExecuteStatement"] = Fault.HOLD
        async with engine.session(USER, NO_OPTIONS) as session:
            submitting = asyncio.create_task(session.submit("SELECT 1 AS a"))
            await server.until(lambda: server.held == 1)
            submitting.cancel()
            await asyncio.wait({submitting})
        assert not server.service.sessions
        server.let_go.set()


async def test_session_of_outdated_server_is_closed(peers: Peers) -> None:
    server, engine = peers
    server.service.protocol = 4
    with pytest.raises(EngineUnavailable, match="too old"):
        await visit(engine)
    assert not server.service.sessions


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("moments", range(12))
async def test_caller_canceled_at_any_moment_leaves_no_session(transport: str, moments: int) -> None:
    """Each moment is one event loop iteration, so the cancels occur before, during and after the session opens."""
    async with scripted(transport, limits=TO_THE_END) as (server, engine):

        async def work() -> None:
            async with engine.session(USER, NO_OPTIONS) as session, operation(session, SLOW):
                pass

        working = asyncio.create_task(work())
        for _ in range(3 * moments):
            await asyncio.sleep(0)
        working.cancel()
        await asyncio.wait({working})
        await engine.close()
        await server.until(lambda: not (server.service.sessions or server.service.operations or server.connections))


async def test_reader_of_rows_closed_by_another_task_gets_an_error(peers: Peers) -> None:
    """The reader gets an error instead of a cancellation, because the reader itself was not canceled."""
    server, engine = peers
    async with engine.session(USER, NO_OPTIONS) as session:
        handle = await session.submit("SELECT range AS n FROM range(5000000)")
        await ended(session, handle)
        rows = session.batches(handle)
        await anext(rows)
        server.faults["FetchResults"] = Fault.HOLD
        reading = asyncio.create_task(read_all(rows))
        await server.until(lambda: server.held == 1)
        await session.close(handle)
        with pytest.raises(OutcomeUnknown):
            await reading
        server.let_go.set()


async def test_connection_established_for_a_closed_session_is_closed() -> None:
    async with ScriptedServer().serving() as server, asyncio.timeout(MAX_S):
        member = Member("127.0.0.1", server.port)
        another = partial(connect, Hs2Address((member,), limits=TO_THE_END), Hs2Login(member, USER.username))
        opener = await another()
        wire = Wire(opener, another, TO_THE_END)
        server.faults["CloseSession"] = Fault.HOLD
        first = asyncio.create_task(wire.call(CLOSE_SESSION, UNKNOWN, limit_s=MAX_S))
        await server.until(lambda: server.held == 1)
        server.door.clear()
        second = asyncio.create_task(wire.call(CLOSE_SESSION, UNKNOWN, limit_s=MAX_S))
        await server.until(lambda: server.connections == 2)
        released = wire.release()
        server.door.set()
        with pytest.raises(ConnectionLost) as caught:
            await second
        assert not caught.value.sent
        assert released == [opener]
        await opener.disconnect()
        with pytest.raises(ConnectionLost):
            await first
        server.let_go.set()
        await server.until(lambda: not server.connections)


async def test_released_connection_makes_no_calls() -> None:
    async with ScriptedServer().serving() as server, asyncio.timeout(MAX_S):
        member = Member("127.0.0.1", server.port)
        another = partial(connect, Hs2Address((member,), limits=TO_THE_END), Hs2Login(member, USER.username))
        wire = Wire(await another(), another, TO_THE_END)
        (opener,) = wire.release()
        for call in (wire.call, wire.call_opener):
            with pytest.raises(ConnectionLost):
                await call(CLOSE_SESSION, UNKNOWN, limit_s=1)
        assert await opener.clean()
        assert (server.service.seen, server.connections) == ([], 1)
        await opener.disconnect()


async def test_call_time_limit_applies_to_its_connection_too() -> None:
    async with ScriptedServer().serving() as server, asyncio.timeout(MAX_S):
        member = Member("127.0.0.1", server.port)
        another = partial(connect, Hs2Address((member,)), Hs2Login(member, USER.username))
        opener: Hs2Connection = await another()
        wire = Wire(opener, another, TO_THE_END)
        server.faults["CloseSession"] = Fault.HOLD
        first = asyncio.create_task(wire.call(CLOSE_SESSION, UNKNOWN, limit_s=MAX_S))
        await server.until(lambda: server.held == 1)
        server.door.clear()
        with pytest.raises(ConnectionLost) as caught:
            await wire.call(CLOSE_SESSION, UNKNOWN, limit_s=0.2)
        assert not caught.value.sent
        await opener.disconnect()
        await asyncio.wait({first})
        server.door.set()
        server.let_go.set()
        await server.until(lambda: not server.connections)
