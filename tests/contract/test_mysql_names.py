"""What MariaDB's process list shows of a statement, and that the comment with it disturbs nothing."""

from collections.abc import AsyncGenerator

import pytest
from tests.contract.engine_basis import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, read, run
from tests.contract.test_mysql_engine import engine_on
from tests.engines.servers import ServerAddress
from tests.timing import until

from queryserver.engines.mysql.engine import MysqlAddress, MysqlEngine
from queryserver.engines.protocol import StatementContext
from queryserver.engines.sessions import StreamedSession
from queryserver.engines.statement_tags import leading_comment
from queryserver.errors.statements import EngineTimeout, StatementRejected
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import read_parameters
from queryserver.sql.positions import Position, position_of

pytestmark = pytest.mark.engine("mariadb")

CONTEXT = StatementContext(
    user="ana",
    operation_id="0b5f6a2e-8a39-4f0e-9d53-3c3a4d6f7e21",
    connector="shop",
    traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
)
_OWN_TEXT = "SELECT info FROM information_schema.processlist WHERE id = CONNECTION_ID()"


@pytest.fixture
async def engine(mariadb: ServerAddress) -> AsyncGenerator[MysqlEngine]:
    engine = engine_on(mariadb)
    yield engine
    await engine.close()


@pytest.fixture
async def session(engine: MysqlEngine) -> AsyncGenerator[StreamedSession]:
    async with engine.session(USER, NO_OPTIONS) as session:
        yield session


async def completed(session: StreamedSession, sql: str | BoundStatement, context: StatementContext = CONTEXT) -> list:
    """Run a statement in the context and return its rows. Raises its error."""
    handle = await session.submit(sql, context)
    try:
        status = await ended(session, handle)
        if status.error is not None:
            raise status.error
        return await read(session, handle) if status.has_result_set else []
    finally:
        await session.close(handle)


def bound(sql: str, *values: object) -> BoundStatement:
    return BoundStatement(sql, "mysql", StatementParameters(read_parameters(list(values))))


@pytest.mark.item(114)
@pytest.mark.parametrize("sql", ["SELECT SLEEP(30)", "DO SLEEP(30)"])
async def test_running_statement_shows_operation_and_user(engine, session, sql):
    handle = await session.submit(sql, CONTEXT)
    async with engine.session(USER, NO_OPTIONS) as other:

        async def is_shown() -> bool:
            query = "SELECT info FROM information_schema.processlist WHERE info LIKE '%SLEEP(30)' AND command = 'Query'"
            return (leading_comment(CONTEXT) + sql,) in (await run(other, query)).rows

        await until(is_shown)
    await session.cancel(handle)
    await session.close(handle)


@pytest.mark.parametrize("read_only", [False, True])
async def test_prepared_statement_shows_them_too(session, read_only):
    statement = bound(f"{_OWN_TEXT} AND ? <> 'x'", "y")
    context = StatementContext(user="ana", operation_id="7", read_only=read_only)
    [(text,)] = await completed(session, statement, context)
    assert text.startswith("/*operation_id='7',user='ana'*/ SELECT info FROM")


async def test_connection_names_the_program(session):
    await run(session, "SELECT 1")
    rows = await completed(
        session,
        "SELECT attr_value FROM performance_schema.session_connect_attrs"
        " WHERE attr_name = 'program_name' AND processlist_id = CONNECTION_ID()",
    )
    assert rows in ([("queryserver",)], [])  # the schema may be switched off on the server


async def test_comments_can_be_switched_off(mariadb):
    address = MysqlAddress(mariadb.host, mariadb.port, "users", mariadb.user, mariadb.password)
    engine = MysqlEngine(address, tags=False)
    async with engine.session(USER, NO_OPTIONS) as session:
        assert await completed(session, _OWN_TEXT) == [(_OWN_TEXT,)]
    await engine.close()


@pytest.mark.parametrize(
    "user", ["*/ DROP TABLE t; /*", "o'brien", "!50000 x", "a\n\0b", "Zoë 日本", "x" * 300, "%s ? :a"]
)
async def test_odd_names_are_harmless(session, user):
    context = StatementContext(user=user)
    [(text,)] = await completed(session, _OWN_TEXT, context)
    assert text == leading_comment(context) + _OWN_TEXT
    assert await completed(session, bound("SELECT ?, '%s ? :a'", "v"), context) == [("v", "%s ? :a")]


async def test_hints_work_after_the_comment(session):
    """MariaDB's SET STATEMENT, an executable comment, and an optimizer hint."""
    with pytest.raises(EngineTimeout):
        await completed(session, "SET STATEMENT max_statement_time = 0.1 FOR SELECT SLEEP(30), SLEEP(30)")
    assert await completed(session, "SELECT /*! 7 */ /*+ NO_ICP(t) */") == [(7,)]


@pytest.mark.parametrize(
    ("sql", "position"),
    [("SELECT 1 AS a,\n 2 AS b )", Position(2, 9)), ("SELECT 'é' 1 x y", Position(1, 12)), ("SELEC 1", Position(1, 1))],
)
async def test_errors_have_positions_in_the_statement_without_the_comment(session, sql, position):
    with pytest.raises(StatementRejected) as caught:
        await completed(session, sql)
    assert position_of(caught.value.location, sql) == position
    assert "operation_id" not in caught.value.message
