"""Read-only statements on Spark, the sizes that it estimates, and what its own pages show."""

import asyncio
from collections.abc import AsyncGenerator

import httpx
import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, run
from tests.contract.read_only_contract import Bypass, ReadOnlyContract, ReadOnlyFacts
from tests.contract.spark_basis import SparkBasis
from tests.contract.test_spark_engine import FACTS, spark_engine
from tests.engines.sparksql import SparkAddress

from queryserver.engines.estimates import CostEstimate, EstimatingSession
from queryserver.engines.protocol import NO_CONTEXT, Engine, EngineSession, StatementContext
from queryserver.errors.statements import EngineError, StatementRejected

CONTEXT = StatementContext(
    user="ana", operation_id="0b5f6a2e-1111-4222-8333-944445555666", connector="lake", traceparent="00-ab-cd-01"
)

BYPASSES = (
    Bypass("overwrite", ("INSERT OVERWRITE TABLE {t} SELECT 9",)),
    Bypass("from_overwrite", ("FROM {t} INSERT OVERWRITE TABLE {t} SELECT 9",)),
    Bypass("insert_in_with", ("WITH d AS (SELECT 9 AS a) FROM d INSERT INTO {t} SELECT a",)),
    Bypass("directory", ("INSERT OVERWRITE DIRECTORY '/tmp/{t}' USING csv SELECT a FROM {t}",)),
    Bypass("program", ("SELECT TRANSFORM (a) USING 'touch /tmp/{t}' AS (b) FROM {t}",)),
    Bypass("program_of_map", ("FROM {t} MAP a USING 'touch /tmp/{t}' AS b",)),
    Bypass("method", ("SELECT reflect('java.lang.System', 'setProperty', '{t}', 'x')",)),
    Bypass("java_method", ("SELECT java_method('java.lang.System', 'setProperty', '{t}', 'x')",)),
    Bypass("method_in_back_ticks", ("SELECT `reflect`('java.lang.System', 'setProperty', '{t}', 'x')",)),
    Bypass("computed_name", ("SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'setProperty', '{t}', 'x')",)),
    Bypass("comment_that_goes_on", ("WITH d AS (SELECT 9 AS a) -- \\\n'\n INSERT INTO {t} SELECT a FROM d --'",)),
    Bypass("raw_literal", ("WITH d AS (SELECT r'\\' AS b) INSERT INTO {t} SELECT 9 --'",)),
    Bypass("dotless_i", ("WITH d AS (SELECT 9 AS a) \u0131NSERT \u0131NTO {t} SELECT a FROM d",)),
    Bypass("variable", ("SELECT 1 ${rest}",), before=("SET rest=AS b",)),
    Bypass("cache", ("CACHE TABLE {t}_c AS SELECT * FROM {t}",)),
    Bypass("add_jar", ("ADD JAR /tmp/{t}.jar",)),
    Bypass("function", ("CREATE TEMPORARY FUNCTION {t}_f AS 'x.Y'",)),
    Bypass("database", ("USE default",)),
    Bypass("setting", ("SET spark.sql.shuffle.partitions=9",)),
    Bypass("analyze", ("ANALYZE TABLE {t} COMPUTE STATISTICS",)),
    Bypass("refresh", ("REFRESH TABLE {t}",)),
    Bypass("explained", ("EXPLAIN INSERT INTO {t} VALUES (9)",)),
    Bypass("described", ("DESCRIBE QUERY FROM {t} INSERT INTO {t} SELECT 9",)),
)


@pytest.mark.engine("sparksql")
class TestSparkReadOnly(SparkBasis, ReadOnlyContract):
    """Spark through its Thrift server."""

    facts = FACTS
    read_only = ReadOnlyFacts(
        setup=("CREATE TABLE {t} USING parquet AS SELECT * FROM VALUES (1), (2), (3) AS v (a)",),
        probes=("SELECT a FROM {t} ORDER BY a", "SHOW TABLES LIKE '{t}*'"),
        bypasses=BYPASSES,
        reads=(
            "SELECT /*+ REPARTITION(2) */ transform(array(a), x -> x + 1) FROM {t}",
            "WITH x AS (SELECT a FROM {t}) SELECT count(*) FROM x JOIN {t} USING (a)",
            "VALUES (1)",
            "FROM {t} SELECT a AS comment, a AS set",
            "SHOW TABLES",
            "SHOW CREATE TABLE {t}",
            "DESCRIBE {t}",
            "EXPLAIN SELECT * FROM {t}",
            "-- comment\n/* DELETE */ SELECT 'delete; it''s', {t}.a FROM {t}",
            "SELECT 'it\\'s', a AS load FROM {t}",
        ),
    )

    @pytest.fixture
    async def engine(self, spark_server: SparkAddress) -> AsyncGenerator[Engine]:
        engine = spark_engine(spark_server)
        yield engine
        await engine.close()

    @pytest.fixture
    async def session(self, engine: Engine) -> AsyncGenerator[EngineSession]:
        async with engine.session(USER, NO_OPTIONS) as session:
            yield session

    async def test_adapter_itself_refuses_what_is_not_known_to_read(self, session: EngineSession, filled: str) -> None:
        for text in (f"DELETE FROM {filled}", "SELECT reflect('java.lang.System', 'gc')"):
            with pytest.raises(StatementRejected, match="This call must only read"):
                await session.submit(text, StatementContext(read_only=True))

    async def test_estimate_is_the_size_of_the_partitions_that_are_read(
        self, session: EngineSession, filled: str
    ) -> None:
        parts = f"{filled}_p"
        await run(session, f"CREATE TABLE {parts} (a int, d string) USING parquet PARTITIONED BY (d)")
        try:
            await run(session, f"INSERT INTO {parts} SELECT id, CAST(id % 4 AS string) FROM range(1000)")
            assert isinstance(session, EstimatingSession)
            assert await session.estimate(f"SELECT a FROM {parts}") is None  # Spark has no size for all partitions
            one = await self.bytes(session, f"FROM {parts} WHERE d = '1'")
            await run(session, f"ANALYZE TABLE {parts} COMPUTE STATISTICS")
            every = await self.bytes(session, f"FROM {parts}")
            assert 0 < one < every < 100_000
            assert await self.bytes(session, f"FROM {parts} JOIN {filled} USING (a)") > every
        finally:
            await run(session, f"DROP TABLE {parts}")
        assert await self.bytes(session, "") == 0

    async def test_statements_without_an_estimate_have_none(self, session: EngineSession) -> None:
        assert isinstance(session, EstimatingSession)
        for text in ("SET x=1", "SELECT * FROM no_such_table", "CACHE TABLE x AS SELECT 1", "USE default"):
            assert await session.estimate(text) is None
        assert (await run(session, "SHOW TABLES LIKE 'x'")).rows == []

    async def test_page_of_the_server_names_user_and_operation(self, session: EngineSession) -> None:
        for text in (self.facts.slow_sql, f"{self.facts.slow_sql} -- slow"):
            handle = await session.submit(text, CONTEXT)
            try:
                shown = await self.shown_texts()
                assert f"operation_id='{CONTEXT.operation_id}',traceparent='00-ab-cd-01',user='ana'*/" in shown
            finally:
                await session.cancel(handle)
                await session.close(handle)

    async def test_tag_moves_no_error_and_is_not_quoted(self, session: EngineSession) -> None:
        for text in ("SELECT 1,\n nope FROM range(1)", "SELECT 1 +", "SELECT 'a\n"):
            tagged, plain = await self.failure(session, text, CONTEXT), await self.failure(session, text)
            assert "ana" not in tagged.message
            if text.endswith("range(1)"):
                assert (tagged.message.split(";")[0], tagged.location) == (plain.message.split(";")[0], plain.location)

    async def test_commands_stay_as_they_are(self, session: EngineSession) -> None:
        handle = await session.submit("SET spark.sql.session.timeZone=Asia/Tokyo", CONTEXT)
        await ended(session, handle)
        await session.close(handle)
        assert (await run(session, "SELECT current_timezone()")).rows == [("Asia/Tokyo",)]

    async def bytes(self, session: EngineSession, source: str) -> int:
        """Return the estimate for a query of the source."""
        assert isinstance(session, EstimatingSession)
        estimate = await session.estimate(f"SELECT count(*) {source}")
        assert estimate is not None
        assert estimate == CostEstimate(scanned_bytes=estimate.scanned_bytes)
        assert estimate.scanned_bytes is not None
        return estimate.scanned_bytes

    async def failure(self, session: EngineSession, text: str, context: StatementContext = NO_CONTEXT) -> EngineError:
        """Return the error of a statement, which Spark reports at once or while the statement runs."""
        try:
            handle = await session.submit(text, context)
            status = await ended(session, handle)
            await session.close(handle)
        except EngineError as error:
            return error
        assert status.error is not None
        return status.error

    async def shown_texts(self) -> str:
        """Return the descriptions of the running jobs in Spark's REST API, once there is one."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            (application,) = (await client.get(self.ui)).json()
            for _ in range(100):
                jobs = (await client.get(f"{self.ui}/{application['id']}/jobs?status=running")).json()
                if jobs:
                    return "\n".join(job["description"] for job in jobs)
                await asyncio.sleep(0.1)
        raise AssertionError("no job is running")
