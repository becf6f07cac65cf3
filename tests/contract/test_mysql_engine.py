"""The engine contract for MariaDB, which uses the MySQL protocol."""

import datetime as dt
from decimal import Decimal

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER, EngineContract
from tests.contract.engine_driving import run
from tests.contract.engine_facts import Change, EngineFacts, SessionState, TypeFact
from tests.contract.mariadb_basis import MariadbBasis
from tests.engines.servers import ServerAddress

from queryserver.engines.mysql.engine import MysqlAddress, MysqlEngine
from queryserver.errors.statements import StatementRejected
from queryserver.formats.arrow import ResultType


def _typed(declared: str, literal: str, kind: ResultType, value: object, native_type: str | None = None) -> TypeFact:
    setup = (
        "SET SESSION sql_mode = ''",
        f"CREATE OR REPLACE TEMPORARY TABLE typed (n int, a {declared} NULL DEFAULT NULL)",
        f"INSERT INTO typed VALUES (1, {literal}), (2, NULL)",
    )
    return TypeFact(
        f"{declared} {literal}", "SELECT a FROM typed ORDER BY n", kind, native_type or declared, value, setup
    )


TYPES = (
    _typed("bit(1)", "b'1'", ResultType.BOOLEAN, True),
    _typed("bit(9)", "b'100000001'", ResultType.BINARY, b"\x01\x01"),
    _typed("tinyint", "-128", ResultType.TINYINT, -128),
    _typed("boolean", "true", ResultType.TINYINT, 1, "tinyint"),
    _typed("tinyint unsigned", "255", ResultType.SMALLINT, 255),
    _typed("smallint", "-32768", ResultType.SMALLINT, -32768),
    _typed("smallint unsigned", "65535", ResultType.INT, 65535),
    _typed("mediumint", "-8388608", ResultType.INT, -8388608),
    _typed("mediumint unsigned", "16777215", ResultType.INT, 16777215),
    _typed("int", "-2147483648", ResultType.INT, -2147483648),
    _typed("int unsigned", "4294967295", ResultType.BIGINT, 4294967295),
    _typed("bigint", "9223372036854775807", ResultType.BIGINT, 9223372036854775807),
    _typed("bigint unsigned", "18446744073709551615", ResultType.BIGINT, 18446744073709551615),
    _typed("year", "2024", ResultType.SMALLINT, 2024),
    _typed("float", "1.5", ResultType.FLOAT, 1.5),
    _typed("double", "1e300", ResultType.DOUBLE, 1e300),
    _typed("decimal(10,2)", "12.5", ResultType.DECIMAL, Decimal("12.50")),
    _typed("decimal(38,0) unsigned", "7", ResultType.DECIMAL, Decimal(7)),
    _typed("decimal(65,30)", "12.5", ResultType.DECIMAL, "12.5" + "0" * 29),
    _typed("char(5)", "'ab'", ResultType.CHAR, "ab"),
    _typed("varchar(20)", "'Zoë 🐘'", ResultType.VARCHAR, "Zoë 🐘"),
    _typed("tinytext", "'t'", ResultType.STRING, "t"),
    _typed("text", "'t'", ResultType.STRING, "t"),
    _typed("mediumtext", "'t'", ResultType.STRING, "t"),
    _typed("longtext", "'NULL'", ResultType.STRING, "NULL"),
    _typed("json", "'{\"a\":  1}'", ResultType.STRING, '{"a":  1}', "longtext"),
    _typed("enum('x','yy')", "'yy'", ResultType.STRING, "yy", "enum"),
    _typed("set('x','yy')", "'x,yy'", ResultType.STRING, "x,yy", "set"),
    _typed("binary(3)", "X'01'", ResultType.BINARY, b"\x01\x00\x00"),
    _typed("varbinary(9)", "X'00FF'", ResultType.BINARY, b"\x00\xff"),
    _typed("tinyblob", "X'00'", ResultType.BINARY, b"\x00"),
    _typed("blob", "X'00'", ResultType.BINARY, b"\x00"),
    _typed("mediumblob", "X'00'", ResultType.BINARY, b"\x00"),
    _typed("longblob", "X'00'", ResultType.BINARY, b"\x00"),
    _typed("date", "'2024-01-31'", ResultType.DATE, dt.date(2024, 1, 31)),
    _typed("date", "'0000-00-00'", ResultType.DATE, "0000-00-00"),
    _typed("date", "'2024-01-00'", ResultType.DATE, "2024-01-00"),
    _typed("time", "'-838:59:59'", ResultType.STRING, "-838:59:59"),
    _typed("time(3)", "'10:20:30.5'", ResultType.STRING, "10:20:30.500"),
    _typed("datetime", "'2024-01-31 10:20:30'", ResultType.TIMESTAMP, dt.datetime(2024, 1, 31, 10, 20, 30)),  # noqa: DTZ001 a naive timestamp
    _typed("datetime(6)", "'2024-01-31 10:20:30.123456'", ResultType.TIMESTAMP,
           dt.datetime(2024, 1, 31, 10, 20, 30, 123456)),  # noqa: DTZ001 a naive timestamp
    _typed("datetime", "'0000-00-00 00:00:00'", ResultType.TIMESTAMP, "0000-00-00 00:00:00"),
    _typed("timestamp", "'2024-01-31 10:20:30'", ResultType.TIMESTAMP, dt.datetime(2024, 1, 31, 10, 20, 30)),  # noqa: DTZ001 a naive timestamp
    _typed("point", "point(1, 2)", ResultType.USER_DEFINED,
           bytes.fromhex("000000000101000000000000000000f03f0000000000000040"), "geometry"),
)  # fmt: skip

FACTS = EngineFacts(
    takes_rows=True,
    slow_sql="SELECT SLEEP(30)",
    rows_sql=lambda count: f"SELECT CAST(seq AS signed) AS n FROM seq_0_to_{count - 1}",
    wide_rows_sql=lambda count, width: f"SELECT REPEAT('x', {width}) AS t FROM seq_1_to_{count}",
    text_sql=lambda text: "SELECT '" + text.replace("\\", "\\\\").replace("'", "''") + "' AS t",
    bad_table_sql="SELECT * FROM no_such_table",
    bad_table_message="Table 'users.no_such_table' doesn't exist",
    misspelled_at=(2, 9),
    types=TYPES,
    changes=(
        Change("CREATE TABLE {t} (a int)"),
        Change("INSERT INTO {t} VALUES (1), (2), (3)", rows=3),
        Change("INSERT INTO {t} SELECT seq FROM seq_4_to_1000 RETURNING a", 997, has_result_set=True),
        Change("UPDATE {t} SET a = a + 1 WHERE a < 3", rows=2),
        Change("DELETE FROM {t} WHERE a > 10", rows=990),
        Change("TRUNCATE {t}"),
        Change("DROP TABLE {t}"),
    ),
    session_state=(
        SessionState("temporary table", "CREATE TEMPORARY TABLE mine AS SELECT 5 AS a", "SELECT a FROM mine", 5),
        SessionState("variable", "SET @mine = 7", "SELECT @mine", 7),
        SessionState("setting", "SET SESSION max_join_size = 12345", "SELECT @@max_join_size", 12345),
        SessionState("database", "USE information_schema", "SELECT DATABASE()", "information_schema"),
    ),
    unknown_database="no_such_database",
    known_database="users",
    no_rows_sql="SELECT 1 AS a, 'x' AS b FROM DUAL WHERE 1 = 0",
    fails_midway_sql="SELECT seq, IF(seq = 150000, (SELECT 1 UNION SELECT 2), 0) FROM seq_1_to_200000",
    nothing_sql=("", "  \n", "-- nothing", "/* nothing */", "# nothing"),
    driver_words=("asyncmy", "127.0.0.1", "Traceback"),
)


def engine_on(server: ServerAddress, *, read_only: bool = False) -> MysqlEngine:
    """Return the adapter's engine for the server's database `users`."""
    address = MysqlAddress(server.host, server.port, "users", server.user, server.password)
    return MysqlEngine(address, read_only=read_only)


@pytest.mark.engine("mariadb")
class TestMariadb(MariadbBasis, EngineContract):
    """The engine contract on the MariaDB packaged by Debian."""

    facts = FACTS
    tested_with = "MariaDB 10.11"
    engine_on = staticmethod(engine_on)

    @pytest.mark.parametrize(
        "change",
        [
            "INSERT INTO kept VALUES (2)",
            "CREATE TABLE other (a INTEGER)",
            "SELECT change_kept()",
            "/*! INSERT INTO kept VALUES (2) */",
        ],
    )
    async def test_server_refuses_changes_in_read_only_mode(self, mariadb: ServerAddress, change: str):
        writing, reading = engine_on(mariadb), engine_on(mariadb, read_only=True)
        try:
            async with writing.session(USER, NO_OPTIONS) as session:
                for sql in (
                    "CREATE OR REPLACE TABLE kept (a INTEGER)",
                    (
                        "CREATE OR REPLACE FUNCTION change_kept() RETURNS INTEGER MODIFIES SQL DATA"
                        " BEGIN INSERT INTO kept VALUES (2); RETURN 1; END"
                    ),
                ):
                    await run(session, sql)
            async with reading.session(USER, NO_OPTIONS) as session:
                with pytest.raises(StatementRejected, match="is not a query"):
                    await run(session, "/*! SET SESSION TRANSACTION READ WRITE */")
                with pytest.raises(StatementRejected, match=r"(?i)read.only"):
                    await run(session, change)
                assert (await run(session, "SELECT COUNT(*) FROM kept")).cell == 0
        finally:
            await writing.close()
            await reading.close()
