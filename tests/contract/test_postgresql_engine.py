"""The engine contract for PostgreSQL: always the newest release, and release 15 on request."""

import datetime as dt
from collections import Counter
from contextlib import aclosing
from decimal import Decimal
from typing import Any

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER, EngineContract
from tests.contract.engine_driving import count_rows, ended, operation, run
from tests.contract.engine_facts import Change, EngineFacts, SessionState, TypeFact
from tests.contract.postgresql_basis import EmbeddedBasis, Release15Basis

from queryserver.engines.postgresql.connection import PostgresqlConnection
from queryserver.engines.postgresql.engine import PostgresqlEngine
from queryserver.engines.protocol import Engine, EngineSession
from queryserver.formats.arrow import ResultType

UTC = dt.UTC


def _fact(name: str, expression: str, kind: ResultType, native_type: str, value: object, *setup: str) -> TypeFact:
    return TypeFact(name, f"SELECT {expression} AS a UNION ALL SELECT NULL", kind, native_type, value, setup)


def _typed(name: str, declared: str, literal: str, kind: ResultType, native_type: str, value: object) -> TypeFact:
    sql = f"SELECT a FROM (VALUES ({literal}::{declared}), (NULL::{declared})) AS v(a)"
    return TypeFact(name, sql, kind, native_type, value)


_ENUM = (
    "DO $$BEGIN CREATE TYPE mood AS ENUM ('fine', 'sad'); EXCEPTION WHEN duplicate_object THEN NULL; END$$",
    "DO $$BEGIN CREATE TYPE pair AS (n numeric(5,2), t text); EXCEPTION WHEN duplicate_object THEN NULL; END$$",
)
TYPES = (
    _typed("boolean", "boolean", "true", ResultType.BOOLEAN, "boolean", True),
    _typed("smallint", "smallint", "-7", ResultType.SMALLINT, "smallint", -7),
    _typed("integer", "integer", "7", ResultType.INT, "integer", 7),
    _typed("bigint", "bigint", "9223372036854775807", ResultType.BIGINT, "bigint", 9223372036854775807),
    _typed("oid", "oid", "4294967295", ResultType.BIGINT, "oid", 4294967295),
    _typed("real", "real", "1.5", ResultType.FLOAT, "real", 1.5),
    _typed("double", "double precision", "'Infinity'", ResultType.DOUBLE, "double precision", float("inf")),
    _typed("numeric(10,2)", "numeric(10,2)", "12.5", ResultType.DECIMAL, "numeric(10,2)", Decimal("12.50")),
    _typed("numeric(40,2)", "numeric(40,2)", "12.5", ResultType.DECIMAL, "numeric(40,2)", "12.50"),
    _typed("numeric", "numeric", "1e-7", ResultType.DECIMAL, "numeric", "0.0000001"),
    _typed("numeric NaN", "numeric(4,1)", "'NaN'", ResultType.DECIMAL, "numeric(4,1)", "NaN"),
    _typed("text", "text", "'NULL'", ResultType.STRING, "text", "NULL"),
    _typed("varchar", "varchar", "'v'", ResultType.STRING, "varchar", "v"),
    _typed("varchar(20)", "varchar(20)", "'v'", ResultType.VARCHAR, "varchar(20)", "v"),
    _typed("char(3)", "char(3)", "'c'", ResultType.CHAR, "char(3)", "c  "),
    _typed("name", "name", "'n'", ResultType.STRING, "name", "n"),
    _typed("uuid", "uuid", "'0c0f6d1e-2f0b-4a55-9a53-5d3c8e6c9a10'", ResultType.STRING, "uuid",
           "0c0f6d1e-2f0b-4a55-9a53-5d3c8e6c9a10"),
    _typed("json", "json", "'{\"a\":  1}'", ResultType.STRING, "json", '{"a":  1}'),
    _typed("jsonb", "jsonb", "'{\"a\":  1}'", ResultType.STRING, "jsonb", '{"a": 1}'),
    _typed("xml", "text", "'<a/>'", ResultType.STRING, "text", "<a/>"),
    _typed("inet", "inet", "'10.0.0.0/8'", ResultType.STRING, "inet", "10.0.0.0/8"),
    _typed("money", "money", "'$1,000.50'", ResultType.STRING, "money", "$1,000.50"),
    _typed("bit(3)", "bit(3)", "B'101'", ResultType.STRING, "bit(3)", "101"),
    _typed("bit varying", "bit varying(5)", "B'10'", ResultType.STRING, "bit varying(5)", "10"),
    _typed("int4range", "int4range", "'[1,3)'", ResultType.STRING, "int4range", "[1,3)"),
    _typed("date", "date", "'2024-01-31'", ResultType.DATE, "date", dt.date(2024, 1, 31)),
    _typed("date infinity", "date", "'infinity'", ResultType.DATE, "date", "infinity"),
    _typed("date BC", "date", "'0044-03-15 BC'", ResultType.DATE, "date", "0044-03-15 BC"),
    _typed("time", "time", "'10:20:30.5'", ResultType.STRING, "time without time zone", "10:20:30.5"),
    _typed("time(0)", "time(0)", "'10:20:30'", ResultType.STRING, "time(0) without time zone", "10:20:30"),
    _typed("timetz", "timetz", "'10:20:30+02'", ResultType.STRING, "time with time zone", "10:20:30+02"),
    _typed("timestamp", "timestamp", "'2024-01-31 10:20:30.123456'", ResultType.TIMESTAMP,
           "timestamp without time zone", dt.datetime(2024, 1, 31, 10, 20, 30, 123456)),  # noqa: DTZ001 a naive timestamp
    _typed("timestamp(3)", "timestamp(3)", "'2024-01-31 10:20:30'", ResultType.TIMESTAMP,
           "timestamp(3) without time zone", dt.datetime(2024, 1, 31, 10, 20, 30)),  # noqa: DTZ001 a naive timestamp
    _typed("timestamp 10000", "timestamp", "'10000-01-01 00:00:00.5'", ResultType.TIMESTAMP,
           "timestamp without time zone", "10000-01-01 00:00:00.500000"),
    _typed("timestamptz", "timestamptz", "'2024-01-31 10:20:30+02'", ResultType.TIMESTAMP_TZ,
           "timestamp with time zone", dt.datetime(2024, 1, 31, 8, 20, 30, tzinfo=UTC)),
    _typed("timestamptz -infinity", "timestamptz", "'-infinity'", ResultType.TIMESTAMP_TZ,
           "timestamp with time zone", "-infinity"),
    _typed("interval", "interval", "'1 day 02:03:04'", ResultType.INTERVAL_DAY_TIME, "interval", "1 day 02:03:04"),
    _typed("bytea", "bytea", r"'\x00ff'", ResultType.BINARY, "bytea", b"\x00\xff"),
    _typed("integer[]", "integer[]", "'{1,NULL,3}'", ResultType.ARRAY, "integer[]", [1, None, 3]),
    _typed("integer[][]", "integer[]", "'{{1,2},{3,4}}'", ResultType.ARRAY, "integer[]", [[1, 2], [3, 4]]),
    _typed("text[]", "text[]", """'{"a b",NULL,"NULL","\\"",""}'""", ResultType.ARRAY, "text[]",
           ["a b", None, "NULL", '"', ""]),
    _typed("varchar(5)[]", "varchar(5)[]", "'{x}'", ResultType.ARRAY, "varchar(5)[]", ["x"]),
    _typed("numeric(5,1)[]", "numeric(5,1)[]", "'{1.5}'", ResultType.ARRAY, "numeric(5,1)[]", [Decimal("1.5")]),
    _fact("record", "ROW(1, 'a', NULL)", ResultType.STRUCT, "record", {"field0": 1, "field1": "a", "field2": None}),
    _fact("enum", "'fine'::mood", ResultType.STRING, "mood", "fine", *_ENUM),
    _fact("composite", "ROW(1.5, 'a, \"b\"')::pair", ResultType.STRUCT, "pair",
          {"n": Decimal("1.50"), "t": 'a, "b"'}, *_ENUM),
    _fact("composite[]", "ARRAY[ROW(NULL, '')::pair, NULL]", ResultType.ARRAY, "pair[]",
          [{"n": None, "t": ""}, None], *_ENUM),
    _fact("point", "point(1,2)", ResultType.USER_DEFINED, "point", "(1,2)"),
)  # fmt: skip

FACTS = EngineFacts(
    takes_rows=True,
    slow_sql="SELECT pg_sleep(30)",
    rows_sql=lambda count: f"SELECT generate_series(0, {count - 1}) AS n",
    wide_rows_sql=lambda count, width: f"SELECT repeat('x', {width} + 0 * generate_series(1, {count})) AS t",
    text_sql=lambda text: "SELECT '" + text.replace("'", "''") + "' AS t",
    bad_table_sql="SELECT * FROM no_such_table",
    bad_table_message='relation "no_such_table" does not exist',
    misspelled_at=(2, 9),
    types=TYPES,
    changes=(
        Change("CREATE TABLE {t} (a integer)"),
        Change("INSERT INTO {t} VALUES (1), (2), (3)", rows=3),
        Change("INSERT INTO {t} SELECT n FROM generate_series(4, 1000) AS n RETURNING a", 997, has_result_set=True),
        Change("UPDATE {t} SET a = a + 1 WHERE a < 3", rows=2),
        Change("DELETE FROM {t} WHERE a > 10", rows=990),
        Change("VACUUM {t}"),
        Change("TRUNCATE {t}"),
        Change("DROP TABLE {t}"),
    ),
    session_state=(
        SessionState("temporary table", "CREATE TEMP TABLE mine AS SELECT 5 AS a", "SELECT a FROM mine", 5),
        SessionState("setting", "SET work_mem = '77MB'", "SHOW work_mem", "77MB"),
        SessionState("schema", "SET search_path = pg_catalog", "SELECT current_schema()", "pg_catalog"),
    ),
    unknown_database="no_such_schema",
    known_database="public",
    fails_midway_sql="SELECT 1 / (150000 - generate_series(1, 200000))",
    driver_words=("asyncpg", "127.0.0.1", "Traceback"),
)


class TestPostgresql(EmbeddedBasis, EngineContract):
    """The engine contract on the newest release."""

    adapter = PostgresqlEngine
    facts = FACTS

    @pytest.mark.parametrize("fact", TYPES, ids=lambda fact: fact.name)
    async def test_values_of_many_rows_are_those_of_few(self, engine: Engine, fact: TypeFact) -> None:
        """Columns of many rows are converted in another way than those of a few."""
        async with engine.session(USER, NO_OPTIONS) as session:
            for sql in fact.setup:
                await run(session, sql)
            few = await run(session, fact.sql)
            many = await run(session, f"SELECT few.* FROM ({fact.sql}) AS few, generate_series(1, 150)")
        assert many.columns == few.columns
        assert Counter(map(repr, many.rows)) == dict.fromkeys(map(repr, few.rows), 150)

    @pytest.mark.parametrize("encoding", ["LATIN1", "GBK", "UTF8"])
    async def test_text_is_decoded_with_the_encoding_of_the_session(
        self, session: EngineSession, encoding: str
    ) -> None:
        text = "é" if encoding == "LATIN1" else "通"
        await run(session, f"SET client_encoding = '{encoding}'")
        for count in (1, 300):
            sql = f"SELECT chr({ord(text)}), NULL::text, 7 FROM generate_series(1, {count})"
            assert (await run(session, sql)).rows == [(text, None, 7)] * count

    @pytest.mark.parametrize(("width", "rows"), [(32_760, 1000), (32_880, 1000), (100_000, 1000), (9_000_000, 8)])
    async def test_no_row_is_lost_if_the_last_row_of_a_request_fills_a_chunk(
        self, session: EngineSession, width: int, rows: int
    ) -> None:
        """256 rows, which are requested first, have just over 8 MiB, or a single row has."""
        async with operation(session, f"SELECT repeat('x', {width}) FROM generate_series(1, {rows})") as handle:
            await ended(session, handle)
            assert await count_rows(session, handle) == rows

    async def test_connection_is_used_again_after_a_result_was_left_in_the_middle_of_a_row(
        self, session: EngineSession
    ) -> None:
        process = (await run(session, "SELECT pg_backend_pid()")).rows
        for _ in range(10):
            async with operation(session, "SELECT repeat('x', 300000) FROM generate_series(1, 1000)") as handle:
                await ended(session, handle)
                async with aclosing(session.batches(handle)) as batches:  # type: ignore[type-var]
                    await anext(batches)
            assert (await run(session, "SELECT pg_backend_pid()")).rows == process

    async def test_next_session_does_not_close_the_statements_that_the_previous_one_has_left(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """DISCARD ALL has closed them; a message for each of them would only cost time."""
        calls: list[str] = []
        execute, forget = PostgresqlConnection.execute, PostgresqlConnection.forget_statements

        async def executed(self: PostgresqlConnection, query: str, *rest: Any, **named: Any) -> str:
            calls.append(query)
            return await execute(self, query, *rest, **named)

        def forgotten(self: PostgresqlConnection) -> None:
            calls.append("forget")
            forget(self)

        monkeypatch.setattr(PostgresqlConnection, "execute", executed)
        monkeypatch.setattr(PostgresqlConnection, "forget_statements", forgotten)
        for _ in range(2):
            async with engine.session(USER, NO_OPTIONS) as session:
                await run(session, "SELECT 1")
        assert [call for call in calls if call in {"DISCARD ALL", "forget"}] == 2 * ["forget", "DISCARD ALL"]


@pytest.mark.engine("postgresql15")
class TestPostgresql15(Release15Basis, EngineContract):
    """The engine contract on an older release with its contrib extensions."""

    adapter = PostgresqlEngine
    facts = FACTS

    async def test_hstore_is_read_as_map(self, engine: Engine) -> None:
        async with engine.session(USER, NO_OPTIONS) as session:
            await run(session, "CREATE EXTENSION IF NOT EXISTS hstore")
            answer = await run(session, """SELECT 'a=>1, "b c"=>"x, \\"y\\"", n=>NULL'::hstore UNION ALL SELECT NULL""")
        assert [(column.type, column.native_type) for column in answer.columns] == [(ResultType.MAP, "hstore")]
        assert sorted(answer.rows[0][0]) == [("a", "1"), ("b c", 'x, "y"'), ("n", None)]
        assert answer.rows[1] == (None,)
