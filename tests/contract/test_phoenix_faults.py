"""Phoenix when the connection breaks or the Query Server misbehaves."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, failure, operation, run, started
from tests.contract.engine_faults import FaultsContract
from tests.contract.phoenix_basis import PhoenixBasis
from tests.contract.test_phoenix_engine import FACTS, make_tables
from tests.engines.scripted_avatica import Peer, scripted_avatica
from tests.engines.servers import HttpAddress
from tests.timing import until

from queryserver.engines.phoenix.connection import PhoenixAddress, PhoenixAuthentication, PhoenixTimeouts
from queryserver.engines.phoenix.engine import PhoenixEngine
from queryserver.engines.protocol import Credentials, Engine, OperationState, SessionOptions
from queryserver.errors.statements import CredentialsRequired, OutcomeUnknown, SessionLost, StatementRejected

pytestmark = pytest.mark.slow

TIMEOUTS = PhoenixTimeouts(connect_s=2, answer_s=3, stop_s=1, beat_s=0.5, silence_s=2)


def _engine_at(port: int) -> PhoenixEngine:
    return PhoenixEngine(PhoenixAddress(f"http://127.0.0.1:{port}/", timeouts=TIMEOUTS))


@pytest.fixture
async def peer() -> AsyncGenerator[Peer]:
    async with scripted_avatica() as peer:
        yield peer


class TestScriptedFaults(FaultsContract):
    """The broken-connection tests on a scripted server behind the proxy."""

    facts = replace(FACTS, slow_sql="SLOW", rows_sql=lambda count: f"ROWS {count}")
    tested_with = "scripted peer"

    @pytest.fixture
    def server(self, peer: Peer) -> tuple[str, int]:
        return "127.0.0.1", peer.port

    @pytest.fixture
    def engine_at(self) -> Callable[[int], Engine]:
        return _engine_at


@pytest.fixture(scope="module")
def phoenix(phoenix_server: HttpAddress) -> HttpAddress:
    """Yield a Phoenix that has the engine tests' tables."""
    asyncio.run(make_tables(phoenix_server.url))
    return phoenix_server


@pytest.mark.engine("phoenix")
@pytest.mark.timeout(400)
class TestPhoenixFaults(PhoenixBasis, FaultsContract):
    """The broken-connection tests on a real Query Server."""

    facts = FACTS
    limit_s = 40.0
    tested_with = "Phoenix 5.2.1 on HBase 2.5, Query Server 6.0.0"

    @pytest.fixture
    def server(self, phoenix: HttpAddress) -> tuple[str, int]:
        return phoenix.host, phoenix.port

    @pytest.fixture
    def engine_at(self) -> Callable[[int], Engine]:
        timeouts = PhoenixTimeouts(connect_s=2, answer_s=15, stop_s=2, beat_s=2, silence_s=10)
        return lambda port: PhoenixEngine(PhoenixAddress(f"http://127.0.0.1:{port}", timeouts=timeouts))


class TestQueryServer:
    """Unusual but permitted responses of a Query Server, tested without a proxy."""

    @pytest.fixture
    async def engine(self, peer: Peer) -> AsyncGenerator[PhoenixEngine]:
        engine = _engine_at(peer.port)
        yield engine
        await engine.close()

    async def test_connection_expired_between_statements_raises_session_lost(self, engine: Engine, peer: Peer) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            await run(session, "ROWS 1")
            peer.connections.clear()
            assert isinstance(await failure(session, "ROWS 1"), SessionLost)
            assert peer.asked.count("PrepareAndExecute") == 1
            assert not await session.is_alive()

    async def test_idle_connection_is_kept_alive(self, engine: Engine, peer: Peer) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            before = peer.asked.count("ConnectionSync")
            async with asyncio.timeout(10):  # the default timeout is 20 s
                await until(lambda: peer.asked.count("ConnectionSync") > before)
            peer.connections.clear()

            async def is_lost() -> bool:
                return not await session.is_alive()

            async with asyncio.timeout(10):
                await until(is_lost)

    async def test_connection_expired_during_statement_leaves_outcome_unknown(self, engine: Engine, peer: Peer) -> None:
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, "SLOW") as handle:
            await started(session, handle)
            peer.connections.clear()
            error = (await ended(session, handle, within_s=10)).error
            assert isinstance(error, OutcomeUnknown)
            assert error.message.startswith("Results have expired")

    async def test_results_expired_during_fetch_leave_outcome_unknown(self, engine: Engine, peer: Peer) -> None:
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, "ROWS 100000") as handle:
            await ended(session, handle)
            peer.connections.clear()
            with pytest.raises(OutcomeUnknown, match="Results have expired"):
                async for _ in session.batches(handle):
                    pass

    async def test_hanging_server_is_abandoned(self, engine: Engine, peer: Peer) -> None:
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, "SLOW") as handle:
            await started(session, handle)
            peer.mute = frozenset({"ConnectionSync", "CloseStatement", "CloseConnection"})
            error = (await ended(session, handle, within_s=20)).error
            assert isinstance(error, OutcomeUnknown)

    async def test_long_statement_is_awaited_while_server_lives(self, engine: Engine, peer: Peer) -> None:
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, "SLOW") as handle:
            status = await session.poll(handle, wait_s=TIMEOUTS.silence_s + TIMEOUTS.answer_s + 2)
            assert status.state is OperationState.RUNNING

    async def test_rows_after_stop_are_dropped(self, engine: Engine, peer: Peer) -> None:
        """The server answers a canceled statement with a row, as Phoenix may do with a partial count."""
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, "SLOW") as handle:
            await started(session, handle)
            await session.cancel(handle)
            assert (await ended(session, handle, within_s=30)).state is OperationState.CANCELED

    async def test_unanswered_stop_still_counts_as_stopped(self, engine: Engine, peer: Peer) -> None:
        peer.mute = frozenset({"PrepareAndExecute"})
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, "SELECT 1") as handle:
            await started(session, handle)
            async with asyncio.timeout(30):
                await session.cancel(handle)
            assert (await ended(session, handle, within_s=30)).state is OperationState.CANCELED
            peer.mute = frozenset()
            assert (await run(session, "ROWS 2")).rows == [(0,), (1,)]
        assert not peer.connections

    async def test_session_keeps_its_schema_after_stop(self, engine: Engine, peer: Peer) -> None:
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, "SLOW") as handle:
            await started(session, handle)
            (first,) = peer.connections
            peer.schemas[first] = "SALES"
            await session.cancel(handle)
            assert (await ended(session, handle, within_s=30)).state is OperationState.CANCELED
            await run(session, "ROWS 1")
            (second,) = peer.connections
            assert second != first
            assert peer.schemas[second] == "SALES"

    async def test_session_that_cannot_reopen_after_stop_is_lost(self, engine: Engine, peer: Peer) -> None:
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, "SLOW") as handle:
            await started(session, handle)
            await session.cancel(handle)
            peer.status = 503
            assert isinstance(await failure(session, "ROWS 1"), SessionLost)
            assert not await session.is_alive()

    async def test_half_reopened_connection_is_not_leaked(self, engine: Engine, peer: Peer) -> None:
        async with engine.session(USER, NO_OPTIONS) as session, operation(session, "SLOW") as handle:
            await started(session, handle)
            await session.cancel(handle)
            assert not peer.connections
            peer.mute = frozenset({"ConnectionSync"})
            assert isinstance(await failure(session, "ROWS 1"), SessionLost)
            assert not peer.connections

    async def test_unstoppable_change_is_not_reported_as_canceled(self, engine: Engine, peer: Peer) -> None:
        peer.mute = frozenset({"PrepareAndExecute"})
        async with (
            engine.session(USER, NO_OPTIONS) as session,
            operation(session, "UPSERT INTO t VALUES (1)") as handle,
        ):
            await started(session, handle)
            async with asyncio.timeout(30):
                await session.cancel(handle)
            assert isinstance((await ended(session, handle, within_s=30)).error, OutcomeUnknown)

    @pytest.mark.parametrize("status", [401, 403])
    async def test_refused_login_is_reported_as_refused(self, engine: Engine, peer: Peer, status: int) -> None:
        peer.status = status
        with pytest.raises(CredentialsRequired):
            async with engine.session(USER, NO_OPTIONS):
                pass
        with pytest.raises(CredentialsRequired):
            await engine.ping()

    async def test_caller_login_is_sent(self, peer: Peer) -> None:
        engine = PhoenixEngine(
            PhoenixAddress(f"http://127.0.0.1:{peer.port}", None, authentication=PhoenixAuthentication.BASIC)
        )
        assert engine.capabilities.wants_credentials
        with pytest.raises(CredentialsRequired):
            async with engine.session(USER, NO_OPTIONS):
                pass
        async with engine.session(USER, SessionOptions(credentials=Credentials("ada", "secret"))) as session:
            assert (await run(session, "ROWS 3")).rows == [(0,), (1,), (2,)]
        await engine.close()

    async def test_session_stays_on_the_node_chosen_by_proxy(self, engine: Engine, peer: Peer) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            await run(session, "ROWS 1")
        first, *others = peer.cookies
        assert first == ""
        assert set(others) == {"node=a1"}
        async with engine.session(USER, NO_OPTIONS):
            assert peer.cookies[len(others) + 1] == ""

    @pytest.mark.item(16)
    async def test_messages_contain_no_java(self, engine: Engine, peer: Peer) -> None:
        peer.refusal = (
            "java.lang.RuntimeException: org.apache.phoenix.schema.TableNotFoundException",
            "ERROR 1012 (42M03): Table undefined. tableName=X",
        )
        async with engine.session(USER, NO_OPTIONS) as session:
            error = await failure(session, "SELECT * FROM x")
        assert isinstance(error, StatementRejected)
        assert error.message == "ERROR 1012 (42M03): Table undefined. tableName=X"

    async def test_sessions_leave_nothing_on_server(self, engine: Engine, peer: Peer) -> None:
        for _ in range(5):
            async with engine.session(USER, NO_OPTIONS) as session:
                await run(session, "ROWS 20")
        assert not peer.connections
        assert all(closed.is_set() for closed in peer.statements.values())
