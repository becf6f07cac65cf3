"""Statement parameters on MariaDB, and the equality of rows in the binary and text protocols."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import Answer, ended, failure, operation, run
from tests.contract.engine_facts import TypeFact
from tests.contract.engine_parameters import TEXTS, VALUES
from tests.contract.mariadb_basis import CELL_LIMIT, limited_session
from tests.contract.test_mysql_engine import FACTS, TYPES, engine_on
from tests.engines.servers import ServerAddress
from tests.refusals import raises_code

from queryserver.engines.mysql.engine import MysqlAddress, MysqlEngine
from queryserver.engines.mysql.prepared import may_be_prepared
from queryserver.engines.mysql.values import date_text, datetime_text, long_binary_value, time_text
from queryserver.engines.protocol import EngineSession, OperationState, SessionOptions
from queryserver.errors.statements import OutcomeUnknown, SessionLost, StatementRejected
from queryserver.sql.literals import MYSQL
from queryserver.sql.markers import BoundStatement, StatementParameters
from queryserver.sql.parameters import read_parameters
from queryserver.sql.scanner import first_word

MIB = 1024 * 1024


@pytest.fixture
async def session(mariadb: ServerAddress) -> AsyncGenerator[EngineSession]:
    async with limited_session(mariadb) as session:
        yield session


def bound(statement: str, *values: object) -> BoundStatement:
    return BoundStatement(statement, "mysql", StatementParameters(read_parameters(list(values))))


async def executions(session: EngineSession) -> int:
    """Return how many prepared statements the server has executed in this session."""
    return int((await run(session, "SHOW SESSION STATUS LIKE 'Com_stmt_execute'")).rows[0][1])


async def run_bound(session: EngineSession, statement: str, *values: object) -> Answer:
    before = await executions(session)
    answer = await run(session, bound(statement, *values))
    assert await executions(session) == before + 1
    return answer


@pytest.mark.engine("mariadb")
async def test_all_values_are_bound(session: EngineSession):
    support = MysqlEngine(MysqlAddress("127.0.0.1", 1, None, "", "")).capabilities.parameters
    given = [value for value, _ in VALUES if not isinstance(value, list)]
    support.require(read_parameters(given))
    answer = await run_bound(session, f"SELECT {', '.join('?' * len(given))}", *given)
    assert len(answer.rows[0]) == len(given)


def typed(kind: str, value: object) -> dict[str, object]:
    return {"type": kind, "value": value}


@pytest.mark.engine("mariadb")
@pytest.mark.parametrize(
    "value",
    [
        *(typed("date", "2024-01-31"), typed("time", "10:20:30"), typed("time", "10:20:30.25")),
        *(typed("timestamp", "2024-01-31 10:20:30"), typed("timestamp", "2024-01-31 10:20:30.125")),
        *(typed("timestamp_tz", "2024-01-31 10:20:30+02:00"), typed("timestamp_tz", "2024-01-31 10:20:30.5+02:00")),
        *(typed("decimal", text) for text in ("-12.50", "-0.05", "0.5", "1234567890123.5", "1000", "-7")),
        *(typed("binary", "AP8="), typed("binary", "")),
        *(2.5, -1e-5, "Zoë 🐘", "", 7, -7, 2**31, True, None),
    ],
    ids=repr,
)
async def test_bound_value_has_the_type_of_its_literal(session: EngineSession, value: object):
    columns = ("?", "-?", "CONCAT(?, '')", "JSON_ARRAY(?)", "COALESCE(?, 'x')", "IF(1, ?, 2)", "SUM(?)", "SUM(n * ?)")
    mixed = "SELECT ? AS a UNION ALL SELECT 'xyz'"
    for sql in (f"SELECT {', '.join(columns)} FROM (SELECT 1 AS n) AS t", mixed):
        if sql == mixed and isinstance(value, float):
            continue  # as text, a literal keeps its digits as written
        one = bound(sql, *[value] * sql.count("?"))
        literal = await run(session, one.render(MYSQL.write))
        answer = await run(session, one)
        assert answer.rows == literal.rows
        assert answer.columns[0].native_type == literal.columns[0].native_type


@pytest.mark.engine("mariadb")
@pytest.mark.parametrize(
    ("sql", "values"),
    [
        ("VALUES (?), (2)", ["abc"]),
        ("VALUES (?)", [typed("date", "2024-01-31")]),
        ("SELECT (VALUES (?)) AS a", ["abc"]),
        ("WITH a(x, y) AS (VALUES (?, ?), (?, ?)) SELECT * FROM a", [1, "abc", 2, "abcdef"]),
        ("SELECT ? AS c UNION VALUES (?)", ["abc", "abcdef"]),
        ("SELECT a FROM listed WHERE a IN (VALUES (?), ('v2'))", ["v3zz"]),
        ("INSERT INTO kept SELECT * FROM (VALUES (?), (2)) AS v RETURNING a", ["abc"]),
        ("INSERT INTO kept SELECT ? UNION VALUES (?) RETURNING a", ["a", "longer"]),
        ("INSERT INTO kept VALUES ((VALUES (?))) RETURNING a", ["longer"]),
        ("INSERT INTO kept VALUES (?) ON DUPLICATE KEY UPDATE a = CONCAT(VALUES(a), ?)", ["twice", "longer"]),
        ("SELECT JSON_OBJECT('k', ?, 'l', ?) AS a", [True, "x"]),
        ("INSERT INTO kept SET a = (VALUES (?)) RETURNING a", ["longer"]),
        ("INSERT INTO kept SET a = ? RETURNING (VALUES (?))", ["b", "longer"]),
        ("INSERT INTO kept(a) VALUE ((VALUES (?))) RETURNING a", ["longer"]),
        ("REPLACE INTO kept(a) VALUE (?) RETURNING (VALUES (?))", ["b", "longer"]),
        ("SELECT TIME(?) AS a, TIMESTAMP (?) AS b", ["10:20:30.25", "2024-01-31 10:20:30.25"]),
        ("INSERT INTO kept VALUES (CONCAT(ROW_COUNT(), ?)) RETURNING a", ["é"]),
        ("SELECT CONCAT(?, a), a LIKE ? ESCAPE ? FROM listed ORDER BY a", ["x", "v!_%", "!"]),
        ("SELECT TRIM(LEADING ? FROM a), a REGEXP ?, ? BETWEEN ? AND ? FROM listed", ["v", "^v", "b", "a", "c"]),
        ("SELECT a FROM listed WHERE a > ? GROUP BY a HAVING a <> ? ORDER BY a", ["a", "b"]),
        ("SELECT DATE_ADD(?, INTERVAL ? DAY) AS a", [typed("date", "2024-01-31"), "1"]),
    ],
)
async def test_placeholder_behaves_like_its_literal(session: EngineSession, sql: str, values: list[Any]):
    """MariaDB determines the column types of a VALUES table before it knows the parameter values."""
    await run(session, "CREATE OR REPLACE TABLE listed AS SELECT 'v2' AS a UNION SELECT 'v3zz'")
    answers = list[object]()
    one = bound(sql, *values)
    for statement in (one, one.render(MYSQL.write)):
        await run(session, "CREATE OR REPLACE TABLE kept (a varchar(20) UNIQUE)")
        await run(session, "INSERT INTO kept VALUES ('twice')")
        answer = await run(session, statement)
        kept = await run(session, "SELECT a FROM kept ORDER BY a")
        answers.append((answer.rows, [column.native_type for column in answer.columns], kept.rows))
    assert answers[0] == answers[1]


@pytest.mark.engine("mariadb")
@pytest.mark.parametrize("value", [-1, None, True, "3", 2.0, typed("decimal", "2"), typed("binary", "Mw==")])
async def test_limit_is_a_number_or_refused(session: EngineSession, value: object):
    """MariaDB would interpret -1 in `LIMIT ?` as no limit."""
    await run(session, "CREATE OR REPLACE TABLE limited AS SELECT seq AS a, 'x' AS t FROM seq_1_to_40")
    for sql in ("DELETE FROM limited WHERE t = ? LIMIT ?", "SELECT a FROM limited WHERE t = ? LIMIT 3 OFFSET ?"):
        assert isinstance(await failure(session, bound(sql, "x", value)), StatementRejected)
    assert (await run(session, "SELECT COUNT(*) FROM limited")).cell == 40
    deleted = await run_bound(session, "DELETE FROM limited WHERE t = ? LIMIT ?", "x", 5)
    assert deleted.status.modified_rows == 5


@pytest.mark.engine("mariadb")
@pytest.mark.parametrize(
    "setting",
    [
        *("NAMES latin1", "NAMES utf8", "NAMES cp1251", "character_set_client = latin1"),
        *("character_set_connection = latin1", "collation_connection = latin1_swedish_ci"),
    ],
)
async def test_texts_are_stored_unchanged_in_every_character_set(session: EngineSession, setting: str):
    await run(session, "CREATE OR REPLACE TABLE stored (n int, a varchar(20) CHARACTER SET utf8mb4)")
    await run(session, f"SET {setting}")
    for number, text in enumerate(("é", "🐘", "abc")):
        await run(session, bound("INSERT INTO stored VALUES (?, ?)", number, text))
    found = await run(session, "SELECT HEX(a) FROM stored ORDER BY n")
    assert [bytes.fromhex(row[0]).decode() for row in found.rows] == ["é", "🐘", "abc"]


@pytest.mark.engine("mariadb")
async def test_bound_texts_compare_like_literals_in_every_collation(session: EngineSession):
    for collation in ("utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci"):
        await run(session, f"SET NAMES utf8mb4 COLLATE {collation}")
        one = bound("SELECT ? = ?, COLLATION(?)", "a", "A", "x")
        assert (await run(session, one)).rows == (await run(session, one.render(MYSQL.write))).rows


@pytest.mark.engine("mariadb")
async def test_session_settings_do_not_change_text_parsing(mariadb: ServerAddress):
    engine = engine_on(mariadb)
    async with engine.session(USER, SessionOptions(settings={"character_set_client": "latin1"})) as session:
        assert (await run(session, bound("SELECT HEX(?)", "é"))).cell == "C3A9"
    await engine.close()


@pytest.mark.engine("mariadb")
async def test_session_text_settings_are_queried_once(session: EngineSession):
    async def questions() -> int:
        sql = "SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'com_select'"
        return int((await run(session, sql)).cell)

    for first, asked in (("SELECT 1", 0), ("SET @x = 1", 1), ("SELECT 1 /* */", 1)):
        await run(session, first)
        before = await questions()
        for _ in range(3):
            await run(session, bound("SELECT ?", "x"))
        assert await questions() - before == 3 + asked + 1, first


@pytest.mark.engine("mariadb")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DATE ?",
        "SELECT TIME ?",
        "SELECT MD5 ?",
        "SELECT `MD5` ?",
        "SELECT 'v' IN ?",
        "INSERT INTO kept VALUES ?",
    ],
)
async def test_invalid_literal_syntax_is_invalid_with_placeholder(session: EngineSession, sql: str):
    await run(session, "CREATE OR REPLACE TABLE kept (a varchar(20))")
    for value in ("2024-01-31", 2.5):
        assert isinstance(await failure(session, bound(sql, value)), StatementRejected)


@pytest.mark.engine("mariadb")
async def test_row_starting_with_16_mib_does_not_end_result(mariadb: ServerAddress):
    engine = engine_on(mariadb)
    async with engine.session(USER, NO_OPTIONS) as session:
        for size in (2**24 - 10, 2**24 - 1, 2**24, 2**24 + 1):
            for sql in (
                f"SELECT REPEAT('x', {size}) AS t, 1 AS n",
                bound(f"SELECT REPEAT(?, {size}) AS t, 1 AS n", "x"),
            ):
                answer = await run(session, sql)
                assert [(len(text), n) for text, n in answer.rows] == [(size, 1)]
    await engine.close()


@pytest.mark.engine("mariadb")
async def test_undecodable_name_ends_session(mariadb: ServerAddress):
    engine = engine_on(mariadb)
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, "SET character_set_results = latin1")
        assert isinstance(await failure(session, "SELECT 1 AS 'É', 2"), OutcomeUnknown)
        assert isinstance(await failure(session, "SELECT 1"), SessionLost)
    await engine.close()


@pytest.mark.engine("mariadb")
@pytest.mark.parametrize("fact", TYPES, ids=lambda fact: fact.name)
async def test_binary_rows_equal_text_rows(session: EngineSession, fact: TypeFact):
    for sql in fact.setup:
        await run(session, sql)
    as_text = await run(session, "SELECT a, n FROM typed ORDER BY n")
    as_binary = await run_bound(session, "SELECT a, n FROM typed WHERE n > ? ORDER BY n", "0")
    assert as_binary.rows == as_text.rows == [(fact.value, 1), (None, 2)]
    assert as_binary.columns == as_text.columns


@pytest.mark.engine("mariadb")
@pytest.mark.parametrize("declared", ["datetime(6)", "timestamp(2)", "time(6)", "date", "datetime"])
async def test_out_of_calendar_timestamps_have_equal_texts(session: EngineSession, declared: str):
    texts = ("0000-00-00 00:00:00", "2024-01-31 10:20:30.123456", "2024-00-00", "-838:59:58.999999", "00:00:00")
    await run(session, "SET SESSION sql_mode = ''")
    await run(session, f"CREATE OR REPLACE TEMPORARY TABLE moments (n int, a {declared} NULL DEFAULT NULL)")
    for number, text in enumerate(texts):
        await run_bound(session, "INSERT INTO moments VALUES (?, ?)", number, text)
    as_text = await run(session, "SELECT a FROM moments ORDER BY n")
    as_binary = await run_bound(session, "SELECT a FROM moments WHERE n >= ? ORDER BY n", "0")
    assert (as_binary.rows, as_binary.columns) == (as_text.rows, as_text.columns)


@pytest.mark.engine("mariadb")
async def test_texts_round_trip_in_every_session_mode(session: EngineSession):
    for mode in ("", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,PIPES_AS_CONCAT"):
        await run(session, f"SET SESSION sql_mode = '{mode}'")
        for text in TEXTS:
            assert (await run_bound(session, "SELECT ?", text)).cell == text


@pytest.mark.engine("mariadb")
async def test_unpreparable_statements_use_literals(session: EngineSession):
    before = await executions(session)
    await run(session, "CREATE OR REPLACE TABLE triggered (a varchar(20))")
    for sql in (
        "CREATE OR REPLACE VIEW viewed AS SELECT ? AS a",
        "CREATE OR REPLACE TRIGGER fills BEFORE INSERT ON triggered FOR EACH ROW SET NEW.a = ?",
        "/*! CREATE OR REPLACE TRIGGER more BEFORE UPDATE ON triggered FOR EACH ROW */ INSERT INTO kept VALUES (?)",
        "CREATE OR REPLACE TABLE defaults (a varchar(20) DEFAULT ?)",
        "SET @mine = ?",
    ):
        await run(session, bound(sql, "it's"))
    await run(session, "CREATE OR REPLACE TABLE kept (a varchar(20))")
    for sql in (
        "INSERT INTO triggered VALUES ('x')",
        "UPDATE triggered SET a = a",
        "INSERT INTO defaults VALUES ()",
        "CREATE OR REPLACE TABLE variable AS SELECT @mine AS a",
    ):
        await run(session, sql)
    names = ("viewed", "triggered", "kept", "defaults", "variable")
    assert [(await run(session, f"SELECT a FROM {name}")).cell for name in names] == ["it's"] * 5
    assert await executions(session) == before


@pytest.mark.engine("mariadb")
async def test_changes_report_row_counts_and_warnings(session: EngineSession):
    await run(session, "SET SESSION sql_mode = ''")
    await run(session, "CREATE OR REPLACE TABLE changed (a int, t varchar(3))")
    async with operation(session, bound("INSERT INTO changed SELECT seq, ? FROM seq_1_to_1000", "long")) as handle:
        assert (await ended(session, handle)).modified_rows == 1000
        assert any("Data truncated" in line for line in await session.logs(handle, start=0))
    deleted = await run_bound(session, "DELETE FROM changed WHERE a <= ? RETURNING a", "10")
    assert [row[0] for row in deleted.rows] == list(range(1, 11))
    assert (await run_bound(session, "UPDATE changed SET a = -a WHERE a > ?", "990")).status.modified_rows == 10


@pytest.mark.engine("mariadb")
async def test_procedure_returns_its_first_result(session: EngineSession):
    await run(
        session,
        "CREATE OR REPLACE PROCEDURE two(n int) BEGIN SELECT seq + n AS a FROM seq_1_to_3; SELECT 'b' AS b; END",
    )
    for _ in range(2):
        assert (await run(session, bound("CALL two(?)", "10"))).rows == [(11,), (12,), (13,)]
        assert (await run_bound(session, "SELECT ?", "5")).cell == "5"


@pytest.mark.engine("mariadb")
@pytest.mark.parametrize("width", [10, 5_000, 900_000])
async def test_binary_rows_arrive_complete_and_in_order(session: EngineSession, width: int):
    count = min(20_000, 60_000_000 // width)
    sql = f"SELECT seq, repeat('x', IF(seq < ?, 3, {width})) AS t FROM seq_1_to_{count}"
    handle = await session.submit(bound(sql, str(count // 4)))
    await session.poll(handle, wait_s=60)
    numbers: list[int] = []
    async for batch in session.batches(handle):
        assert batch.nbytes <= 6 * MIB
        numbers += batch.column("seq").to_pylist()
    assert numbers == list(range(1, count + 1))
    await session.close(handle)
    assert (await run_bound(session, "SELECT ?", "1")).cell == "1"


@pytest.mark.engine("mariadb")
async def test_rows_above_16_mib_are_joined(mariadb: ServerAddress):
    engine = engine_on(mariadb)
    async with engine.session(USER, NO_OPTIONS) as session:
        await run(session, "SET SESSION sql_mode = ''")
        for size in (2**24 - 20, 2**24 - 8, 2**24, 2**25 + 7):
            answer = await run_bound(session, "SELECT ? AS n, repeat('x', ?) AS t", "1", size)
            assert [(n, len(text)) for n, text in answer.rows] == [("1", size)]
    await engine.close()


@pytest.mark.engine("mariadb")
@pytest.mark.parametrize(
    ("sql", "values", "row", "column"),
    [
        ("SELECT ? AS a, NULL AS b, repeat('x', 60000000) AS big", ["1"], 0, "big"),
        ("SELECT seq, CURDATE() AS d, repeat('x', IF(seq = ?, 1048577, 1)) AS big FROM seq_0_to_99", ["7"], 7, "big"),
    ],
)
async def test_huge_cell_is_refused_by_its_header(
    session: EngineSession, sql: str, values: list[Any], row: int, column: str
):
    with raises_code(
        "cell_too_large", match=f"in row {row} of column {column} is larger than the limit of {CELL_LIMIT} "
    ):
        await run(session, bound(sql, *values))


@pytest.mark.engine("mariadb")
async def test_bound_statement_is_stopped(session: EngineSession):
    async with operation(session, bound("SELECT SLEEP(?)", 30.0)) as handle:
        while (await session.poll(handle, wait_s=0.1)).state is not OperationState.RUNNING:
            pass
        await session.cancel(handle)
        assert (await ended(session, handle)).state is OperationState.CANCELED
    assert (await run_bound(session, "SELECT ?", "2")).cell == "2"


@pytest.mark.engine("mariadb")
async def test_unread_rows_do_not_reach_next_statement(session: EngineSession):
    for _ in range(3):
        async with operation(session, bound("SELECT seq, ? FROM seq_1_to_1000000", "x")) as handle:
            await session.poll(handle, wait_s=30)
            batches = session.batches(handle)
            assert (await anext(batches)).num_rows > 0
            await batches.aclose()  # pyright: ignore[reportAttributeAccessIssue]
        assert (await run_bound(session, "SELECT ?", "3")).cell == "3"


@pytest.mark.engine("mariadb")
async def test_error_between_rows_fails_statement(session: EngineSession):
    assert FACTS.fails_midway_sql
    sql = FACTS.fails_midway_sql.replace("150000", "?")
    error = await failure(session, bound(sql, "150000"))
    assert isinstance(error, StatementRejected)
    assert "more than 1 row" in error.message
    assert (await run_bound(session, "SELECT ?", "4")).cell == "4"


@pytest.mark.engine("mariadb")
async def test_server_keeps_no_prepared_statements(session: EngineSession, mariadb: ServerAddress):
    for number in range(20):
        await run(session, bound("SELECT ? + 1", str(number)))
        await failure(session, bound("SELECT ? FROM no_such_table", str(number)))
        await run(session, bound("CREATE OR REPLACE VIEW viewed AS SELECT ? AS a", str(number)))
    # The driver closes a prepared statement when it prepares the next one.
    kept = await run(session, "SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'")
    assert int(kept.rows[0][1]) == 0


@pytest.mark.engine("mariadb")
async def test_many_values_are_bound(session: EngineSession):
    await run(session, "CREATE OR REPLACE TABLE many (a int, b varchar(20))")
    values = [value for number in range(5000) for value in (number, f"text {number}")]
    answer = await run_bound(session, f"INSERT INTO many VALUES {', '.join(['(?, ?)'] * 5000)}", *values)
    assert answer.status.modified_rows == 5000
    assert (await run_bound(session, "SELECT b FROM many WHERE a = ?", "4999")).cell == "text 4999"


@pytest.mark.engine("mariadb")
async def test_concurrent_sessions_have_separate_values(mariadb: ServerAddress):
    engine = engine_on(mariadb)

    async def own(number: int) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            for step in range(10):
                assert (
                    await run(session, bound("SELECT ?, SLEEP(0.01)", f"{number} {step}"))
                ).cell == f"{number} {step}"

    await asyncio.gather(*map(own, range(8)))
    await engine.close()


def test_timestamps_are_decoded_from_bytes():
    assert date_text(b"") == "0000-00-00"
    assert date_text(bytes([0xE8, 7, 1, 0])) == "2024-01-00"
    assert datetime_text(b"", 0) == "0000-00-00 00:00:00"
    assert datetime_text(bytes([0xE8, 7, 1, 31]), 3) == "2024-01-31 00:00:00.000"
    assert datetime_text(bytes([0xE8, 7, 1, 31, 10, 20, 30]), 0) == "2024-01-31 10:20:30"
    assert datetime_text(bytes([0xE8, 7, 1, 31, 10, 20, 30, 1, 0, 0, 0]), 6) == "2024-01-31 10:20:30.000001"
    assert time_text(b"", 2) == "00:00:00.00"
    assert time_text(bytes([1, 34, 0, 0, 0, 22, 59, 59]), 0) == "-838:59:59"
    assert time_text(bytes([0, 0, 0, 0, 0, 10, 20, 30, 0x20, 0xA1, 7, 0]), 1) == "10:20:30.5"


def test_first_long_value_is_found_after_numbers_and_nulls():
    specs = ((8, False, 0, None, None), (253, False, 0, None, None), (253, False, 0, None, None))
    head = bytes([0, 0b1000])  # the second value is NULL
    number = (7).to_bytes(8, "little")
    assert long_binary_value(head + number + b"\xfc\x00\x01", 255, specs) == 2
    assert long_binary_value(head + number + b"\xfc\x00\x01", 256, specs) is None
    assert long_binary_value(head + number + b"\xfc\x00", 255, specs) is None
    assert long_binary_value(bytes([0, 0]) + number + b"\x01x\xfd\x00\x00\x01", 255, specs) == 2
    assert long_binary_value(bytes([0, 0]) + number + b"\xfe" + (2**40).to_bytes(8, "little"), 255, specs) == 1
    assert long_binary_value(head, 255, specs) is None


@pytest.mark.parametrize(
    ("sql", "prepared"),
    [
        ("SELECT ?", True),
        ("select 'values', ?", False),
        ("INSERT INTO t VALUES (?), (?)", True),
        (
            "insert into t (a, b) values (?, ?) on duplicate key update a = values(a), b = ?, c = VALUES( `t`.`b` )",
            True,
        ),
        ("REPLACE INTO t SELECT ?", True),
        ("INSERT INTO t VALUES (?) ON DUPLICATE KEY UPDATE a = (VALUES (?))", False),
        ("INSERT INTO t VALUES ((VALUES (?)))", False),
        ("INSERT INTO t SELECT ? UNION VALUES (?)", False),
        ("/*! INSERT */ SELECT ?", False),
        ("CREATE VIEW v AS SELECT ?", False),
        ("CALL p(?)", False),
        ("INSERT INTO t (a, b) VALUE (?, ?)", True),
        ("INSERT INTO t SET a = (VALUES (?))", False),
        ("INSERT INTO t (a) VALUE ((VALUES (?)))", False),
        ("SELECT time (?)", False),
        ("SELECT timestamp, time FROM t WHERE time > ?", True),
        ("SELECT ROW_COUNT(), ?", False),
        ("SELECT DATE ?", False),
        ("SELECT DATE(?)", True),
    ],
)
def test_statements_are_prepared_only_where_placeholders_behave_like_values(sql: str, prepared: bool):
    keyword = first_word(sql)
    assert may_be_prepared(bound(sql, *["x"] * sql.count("?")), keyword) is prepared
    assert not may_be_prepared(bound(sql, *[7] * sql.count("?")), keyword)
