"""Network outages between the adapter and a HiveServer2 whose sessions outlive their connection, as in Hive.

The peer is a scripted server that speaks the Impala dialect.
"""

from collections.abc import AsyncGenerator, Callable

import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_breaks import BreaksContract
from tests.contract.engine_driving import ended, run
from tests.contract.test_hiveserver2_faults import Peers, scripted
from tests.contract.test_impala_engine import FACTS
from tests.engines.scripted_hs2.server import Fault, ScriptedServer

from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.variants import IMPALA, Hs2Address, Member
from queryserver.engines.protocol import Engine
from queryserver.errors.statements import OutcomeUnknown

pytestmark = pytest.mark.slow

DIALECTS = ("hive", "impala")
TESTED_WITH = "scripted peer"
"""The server's name in the support table."""


class TestBreaks(BreaksContract):
    """The network-outage tests. The peer keeps at most 10,000 rows of a result, as many as the client fetches at
    once.
    """

    facts = FACTS
    tested_with = TESTED_WITH
    many_rows = 9_000
    sleep_sql = staticmethod(lambda seconds: f"SELECT SLEEP({seconds * 1000})")

    @pytest.fixture
    async def peer(self) -> AsyncGenerator[ScriptedServer]:
        async with ScriptedServer().serving() as server:
            server.service.keeps_sessions = True
            server.service.batch_rows = 500
            self.service = server.service
            yield server

    @pytest.fixture
    def server(self, peer: ScriptedServer) -> tuple[str, int]:
        return "127.0.0.1", peer.port

    @pytest.fixture
    def engine_at(self) -> Callable[[int], Engine]:
        return lambda port: Hs2Engine(Hs2Address((Member("127.0.0.1", port),)), IMPALA)

    async def running_statements(self, engine: Engine) -> int:
        return sum(one.is_in_flight for one in self.service.operations.values())


@pytest.fixture(params=["sasl", "nosasl", "http"])
async def peers(request: pytest.FixtureRequest) -> AsyncGenerator[Peers]:
    async with scripted(request.param) as both:
        both[0].service.keeps_sessions = True
        yield both


@pytest.mark.capability("A broken connection is reported in time")
@pytest.mark.parametrize("rows", [9_000, 50_000])
async def test_rows_of_interrupted_response_arrive_exactly_once_or_fail(peers: Peers, rows: int) -> None:
    """The peer's cursor has already passed the lost rows.

    The peer can return the result again from its start if it has returned at most 10,000 rows so far; otherwise, it
    refuses, and the results have expired.
    """
    server, engine = peers
    server.service.batch_rows = 1_000
    async with engine.session(USER, NO_OPTIONS) as session:
        handle = await session.submit(f"SELECT range AS n FROM range({rows})")
        await ended(session, handle)
        server.faults["FetchResults"], server.skip["FetchResults"] = Fault.HALF_ONCE, 4 if rows < 10_000 else 20
        given = list[object]()

        async def read() -> None:
            async for batch in session.batches(handle):
                given.extend(batch.column(0).to_pylist())

        if rows < 10_000:
            await read()
            assert given == list(range(rows))
        else:
            with pytest.raises(OutcomeUnknown, match=r"^Results have expired"):
                await read()
            assert given == list(range(len(given)))


@pytest.mark.capability("A broken connection is reported in time")
async def test_result_columns_are_requested_again(peers: Peers) -> None:
    server, engine = peers
    server.faults["GetResultSetMetadata"] = Fault.HALF_ONCE
    async with engine.session(USER, NO_OPTIONS) as session:
        assert (await run(session, "SELECT 1 AS a")).rows == [(1,)]
    assert server.service.seen.count("GetResultSetMetadata") == 2
