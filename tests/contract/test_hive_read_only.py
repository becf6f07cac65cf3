"""Read-only statements on Hive, the sizes that it estimates, and what its own log shows."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, run
from tests.contract.read_only_contract import COMMON, Bypass, ReadOnlyContract, ReadOnlyFacts
from tests.contract.test_hive_engine import FACTS, statements_at_work
from tests.engines.servers import ServerAddress

from queryserver.engines.estimates import CostEstimate, EstimatingSession
from queryserver.engines.hiveserver2.engine import Hs2Engine
from queryserver.engines.hiveserver2.variants import HIVE, Hs2Address, Member
from queryserver.engines.protocol import Engine, EngineSession, StatementContext
from queryserver.errors.statements import StatementRejected

BYPASSES = (
    Bypass("from_overwrite", ("FROM {t} INSERT OVERWRITE TABLE {t} SELECT 9",)),
    Bypass("directory", ("INSERT OVERWRITE LOCAL DIRECTORY '/tmp/{t}' SELECT a FROM {t}",)),
    Bypass("program", ("SELECT TRANSFORM (a) USING 'touch /tmp/{t}' AS (b) FROM {t}",)),
    Bypass("method", ("SELECT reflect('java.lang.System', 'setProperty', '{t}', 'x')",)),
    Bypass("method_in_back_ticks", ("SELECT `java_method`('java.lang.System', 'gc')",)),
    # When Hive looks for commands, a comment ends only at the line feed.
    Bypass("line_end_of_a_comment", ("-- x\rSELECT 1\nDFS -rm -r /tmp/{t}",)),
    Bypass("nested_comment", ("/* /* */ SELECT 1, ' */ INSERT INTO {t} SELECT 9 -- '",)),
    Bypass("dotless_i", ("WITH d AS (SELECT 9 AS a) \u0131NSERT INTO {t} SELECT a FROM d",)),
    Bypass("variable", ("SELECT 1 ${hiveconf:rest}",), before=("SET hiveconf:rest=AS b",)),
    Bypass("reexecuted", ("EXPLAIN REOPTIMIZATION INSERT INTO {t} SELECT 9",)),
    Bypass("add_jar", ("ADD JAR /tmp/{t}.jar",)),
)
_SENT = {"nested_comment_first", "with_delete", "from_insert", "two_statements", "explain_analyze"}


def _numbers(count: int) -> str:
    return f"SELECT i AS n FROM (SELECT posexplode(split(space({count - 1}), ' ')) AS (i, x)) t"


@pytest.mark.engine("hive")
class TestHiveReadOnly(ReadOnlyContract):
    """Hive with Tez in local mode."""

    facts = replace(FACTS, rows_sql=_numbers)
    read_only = ReadOnlyFacts(
        setup=("CREATE TABLE {t} (a int)", "INSERT INTO {t} VALUES (1), (2), (3)"),
        probes=("SELECT a FROM {t} ORDER BY a", "SHOW TABLES LIKE '{t}*'"),
        bypasses=BYPASSES,
        reads=(
            "WITH x AS (SELECT a FROM {t}) SELECT {t}.a FROM x JOIN {t} USING (a)",
            "SHOW CREATE TABLE {t}",
            "DESCRIBE {t}",
            "EXPLAIN SELECT * FROM {t}",
            "SELECT 'it\\'s', a AS load FROM {t}",
        ),
        lacking={
            one.name: "refused by its first word or a word of change, which tests of the rule cover"
            for one in COMMON
            if one.name not in _SENT
        },
    )

    @pytest.fixture
    async def engine(self, hive_server: ServerAddress) -> AsyncGenerator[Engine]:
        self.port = hive_server.port
        engine = Hs2Engine(Hs2Address((Member(hive_server.host, hive_server.port),)), HIVE)
        yield engine
        await engine.close()

    @pytest.fixture
    async def session(self, engine: Engine) -> AsyncGenerator[EngineSession]:
        async with engine.session(USER, NO_OPTIONS) as session:
            yield session

    async def running_statements(self, engine: Engine) -> int:
        return await statements_at_work(self.port)

    async def test_adapter_itself_refuses_what_is_not_known_to_read(self, session: EngineSession) -> None:
        for text in ("DROP TABLE x", "SELECT reflect('java.lang.System', 'gc')"):
            with pytest.raises(StatementRejected, match="This call must only read"):
                await session.submit(text, StatementContext(read_only=True))

    async def test_estimate_is_the_data_size_of_the_table(self, session: EngineSession, filled: str) -> None:
        assert isinstance(session, EstimatingSession)
        estimate = await session.estimate(f"SELECT count(a) FROM {filled} WHERE a > 1")
        assert estimate == CostEstimate(scanned_bytes=12, rows=3)
        assert await session.estimate("SELECT 1") == CostEstimate(scanned_bytes=0, rows=0)
        assert await session.estimate(f"SELECT a FROM {filled}") is None  # answered without a job
        assert await session.estimate("SET x=1") is None
        with pytest.raises(StatementRejected, match="Table not found"):
            await session.estimate("SELECT a FROM no_such_table")
        assert (await run(session, f"SELECT count(*) FROM {filled}")).rows == [(3,)]

    async def test_log_of_the_server_names_user_and_operation(self, session: EngineSession, filled: str) -> None:
        context = StatementContext(user="ana", operation_id="0b5f6a2e", connector="lake")
        for text, is_job in ((f"SELECT count(*), a FROM {filled} GROUP BY a", True), ("SET x=1", False)):
            handle = await session.submit(text, context)
            status = await ended(session, handle)
            log = "\n".join(await session.logs(handle, start=0))
            await session.close(handle)
            assert status.error is None
            assert ("Dag name: op=0b5f6a2e user=ana connector=lake" in log) is is_job
