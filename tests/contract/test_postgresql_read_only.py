"""Read-only statements on PostgreSQL: known ways around its read-only transactions, and what is left of a session."""

from typing import Any

import asyncpg
import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import ended, failure, run
from tests.contract.postgresql_basis import EmbeddedBasis, Release15Basis
from tests.contract.read_only_contract import READ_ONLY, Bypass, ReadOnlyContract, ReadOnlyFacts
from tests.contract.test_postgresql_engine import FACTS

from queryserver.engines.postgresql.engine import PostgresqlEngine
from queryserver.engines.protocol import Engine, EngineSession

_OBJECTS = """
SELECT relname, relkind::text FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY relname"""
_FUNCTION = "CREATE FUNCTION {t}_f() RETURNS integer LANGUAGE plpgsql %s AS $$BEGIN %s; RETURN 1; END$$"
_PROCEDURE = "CREATE PROCEDURE {t}_p() LANGUAGE plpgsql AS $$BEGIN COMMIT; DELETE FROM {t}; END$$"
_DROP_FUNCTION = ("DROP FUNCTION {t}_f",)
_DROP_PROCEDURE = ("DROP PROCEDURE {t}_p",)
_LARGE_OBJECTS = "SELECT count(*) FROM pg_largeobject_metadata"
_LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
_SETS_MODE = "SELECT set_config('transaction_read_only', 'off', true)"
_SETS_DEFAULT = "SELECT set_config('default_transaction_read_only', 'off', false)"


def _calls(name: str, options: str, body: str, *more: str) -> Bypass:
    before = (_FUNCTION % (options, body),)
    return Bypass(name, ("SELECT {t}_f()", *more), before=before, after=_DROP_FUNCTION)


_DO = "DO $$BEGIN %s; END$$"

BYPASSES = (
    Bypass("with_delete_unread", ("WITH d AS (DELETE FROM {t}) SELECT 1",)),
    Bypass("with_insert", ("WITH d AS (INSERT INTO {t} VALUES (8) RETURNING a) TABLE d",)),
    Bypass("with_in_parentheses", ("(WITH d AS (DELETE FROM {t} RETURNING a) SELECT a FROM d) ORDER BY 1",)),
    Bypass("explain_analyze_options", ("EXPLAIN (ANALYZE, FORMAT JSON) DELETE FROM {t}",)),
    # The server creates the table, also in a read-only transaction. The rollback drops it again.
    Bypass("explain_analyze_create", ("EXPLAIN ANALYZE CREATE TABLE {t}_x AS SELECT 1 AS a",), is_refused=False),
    Bypass("select_into_temporary", ("SELECT * INTO TEMP {t}_x FROM {t}",)),
    Bypass("select_for_update", ("SELECT a FROM {t} FOR UPDATE",)),
    Bypass(
        "next_value",
        ("SELECT nextval('{t}_s')",),
        before=("CREATE SEQUENCE {t}_s",),
        after=("DROP SEQUENCE {t}_s",),
    ),
    Bypass(
        "set_value",
        ("SELECT setval('{t}_s', 100)",),
        before=("CREATE SEQUENCE {t}_s",),
        after=("DROP SEQUENCE {t}_s",),
    ),
    Bypass("set_config", (_SETS_MODE, "DELETE FROM {t}")),
    Bypass("set_config_session", (_SETS_DEFAULT, "DELETE FROM {t}")),
    Bypass("set_config_in_one", (f"WITH s AS ({_SETS_MODE}) SELECT * FROM s, {{t}}",)),
    Bypass("set_transaction", ("SET TRANSACTION READ WRITE", "DELETE FROM {t}")),
    Bypass("session_characteristics", ("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", "DELETE FROM {t}")),
    Bypass(
        "session_characteristics_before",
        ("DELETE FROM {t}",),
        before=("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", "SET default_transaction_read_only = off"),
    ),
    Bypass("begin_read_write", ("BEGIN READ WRITE", "DELETE FROM {t}", "COMMIT")),
    Bypass("commit_and_chain", ("COMMIT AND CHAIN", "DELETE FROM {t}")),
    Bypass("open_transaction", ("DELETE FROM {t}", "COMMIT"), before=("BEGIN",)),
    Bypass(
        "open_transaction_set_mode",
        (_SETS_MODE, "SET TRANSACTION READ WRITE", "DELETE FROM {t}", "COMMIT"),
        before=("BEGIN", "SELECT 1"),
    ),
    Bypass(
        "release_savepoint",
        ("RELEASE SAVEPOINT queryserver_read_only", "DELETE FROM {t}", "COMMIT"),
        before=("BEGIN",),
    ),
    Bypass("do_delete", (_DO % "DELETE FROM {t}",)),
    Bypass("do_commit", (_DO % "COMMIT; DELETE FROM {t}",)),
    Bypass("do_set_commit", (_DO % "SET TRANSACTION READ WRITE; DELETE FROM {t}; COMMIT",)),
    Bypass("do_set_default_commit", (_DO % "SET default_transaction_read_only = off; COMMIT; DELETE FROM {t}",)),
    Bypass("call_with_commit", ("CALL {t}_p()",), before=(_PROCEDURE,), after=_DROP_PROCEDURE),
    Bypass("call_in_transaction", ("CALL {t}_p()",), before=(_PROCEDURE, "BEGIN"), after=_DROP_PROCEDURE),
    _calls("function", "", "INSERT INTO {t} VALUES (5)"),
    _calls("function_security_definer", "SECURITY DEFINER", "DELETE FROM {t}"),
    _calls("function_sets_mode", "", "PERFORM set_config('transaction_read_only', 'off', true); DELETE FROM {t}"),
    _calls("function_with_setting", "SET default_transaction_read_only = off", "DELETE FROM {t}"),
    _calls("function_executes_text", "", "EXECUTE 'DEL' || 'ETE FROM {t}'"),
    _calls("function_creates", "", "CREATE TABLE {t}_x (a integer)"),
    _calls("function_volatile_declared_stable", "IMMUTABLE", "PERFORM nextval('{t}_s')"),
    Bypass(
        "view_of_function",
        ("SELECT * FROM {t}_v",),
        before=(_FUNCTION % ("", "DELETE FROM {t}"), "CREATE VIEW {t}_v AS SELECT {t}_f()"),
        after=("DROP VIEW {t}_v", *_DROP_FUNCTION),
    ),
    Bypass("prepared_before", ("EXECUTE gone",), before=("PREPARE gone AS DELETE FROM {t}",)),
    Bypass("explain_analyze_prepared", ("EXPLAIN ANALYZE EXECUTE gone",), before=("PREPARE gone AS DELETE FROM {t}",)),
    Bypass("prepare", ("PREPARE gone AS DELETE FROM {t}", "EXECUTE gone")),
    Bypass("cursor", ("DECLARE c CURSOR WITH HOLD FOR SELECT 1", "FETCH c", "DELETE FROM {t} WHERE CURRENT OF c")),
    Bypass(
        "cursor_of_changing_function",
        ("FETCH ALL FROM c", "COMMIT"),
        before=(_FUNCTION % ("", "DELETE FROM {t}"), "BEGIN", "DECLARE c CURSOR FOR SELECT {t}_f()"),
        after=_DROP_FUNCTION,
    ),
    Bypass("copy_from", ("COPY {t} FROM '/dev/null'",)),
    Bypass("copy_from_stdin", ("COPY {t} FROM STDIN",)),
    Bypass("copy_to_program", ("COPY {t} TO PROGRAM 'cat > /tmp/{t}'",)),
    Bypass("copy_to_file", ("COPY {t} TO '/tmp/{t}'",)),
    Bypass("lo_create", ("SELECT lo_create(0)",), probes=(_LARGE_OBJECTS,)),
    Bypass("lo_from_bytea", ("SELECT lo_from_bytea(0, '\\x00')",), probes=(_LARGE_OBJECTS,)),
    Bypass(
        "lo_create_in_a_function",
        ("SELECT {t}_f()",),
        before=(_FUNCTION % ("", "PERFORM lo_create(0)"),),
        after=_DROP_FUNCTION,
        probes=(_LARGE_OBJECTS,),
        is_refused=False,
    ),
    Bypass("notify", ("NOTIFY {t}",)),
    Bypass("pg_notify", ("SELECT pg_notify('{t}', 'x')",)),
    Bypass("pg_notify_quoted", ("SELECT pg_catalog . \"pg_notify\" /* */ ('{t}', 'x')",)),
    Bypass("pg_notify_escaped", ("SELECT U&\"pg\\005fnotify\"('{t}', 'x')",)),
    Bypass("advisory_lock", ("SELECT pg_advisory_lock(37)",), probes=(_LOCKS,)),
    Bypass("terminate", ("SELECT pg_terminate_backend(pg_backend_pid())",)),
    Bypass("text_as_query", ("SELECT query_to_xml('DELETE FROM {t} RETURNING a', true, true, '')",)),
    Bypass("text_with_effect", ("SELECT query_to_xml('SELECT pg_' || 'notify(''{t}'', '''')', true, true, '')",)),
    Bypass("ts_stat", ("SELECT * FROM ts_stat('SELECT pg_notify(''{t}'', '''')::text::tsvector')",)),
    Bypass("listen", ("LISTEN {t}",)),
    Bypass("lock", ("LOCK TABLE {t}",)),
    Bypass("analyze", ("ANALYZE {t}",), probes=("SELECT count(*) FROM pg_stats WHERE tablename = '{t}'",)),
    Bypass("vacuum", ("VACUUM {t}",)),
    Bypass("comment", ("COMMENT ON TABLE {t} IS 'x'",), probes=("SELECT obj_description('{t}'::regclass)",)),
    Bypass(
        "grant",
        ("GRANT ALL ON {t} TO PUBLIC",),
        probes=("SELECT relacl::text FROM pg_class WHERE oid = '{t}'::regclass",),
    ),
    Bypass("refresh", ("REFRESH MATERIALIZED VIEW {t}",)),
    Bypass("import", ("IMPORT FOREIGN SCHEMA public FROM SERVER s INTO public",)),
    Bypass("temporary_table", ("INSERT INTO {t}_t VALUES (1)",), before=("CREATE TEMP TABLE {t}_t (a integer)",)),
    Bypass("markers_in_function", ("SELECT {t}_f() WHERE 1 = ?",), values=(1,),
           before=(_FUNCTION % ("", "DELETE FROM {t}"),), after=_DROP_FUNCTION),
)  # fmt: skip

READ_ONLY_FACTS = ReadOnlyFacts(
    probes=("SELECT a FROM {t} ORDER BY a", _OBJECTS),
    bypasses=BYPASSES,
    reads=(
        "SELECT a, current_setting('transaction_read_only') FROM {t} WHERE a > 1",
        "WITH x AS (SELECT a FROM {t}) SELECT count(*) FROM x",
        "(SELECT 1) UNION (SELECT 2)",
        "VALUES (1)",
        "TABLE {t}",
        "SHOW TimeZone",
        "EXPLAIN DELETE FROM {t}",
        "EXPLAIN ANALYZE SELECT * FROM {t}",
        "-- comment\n/* DELETE */ SELECT 'delete', now(), random()",
        "SELECT column_default FROM (VALUES ('nextval(''s'')')) AS v (column_default)",
    ),
)


class TestPostgresqlReadOnly(EmbeddedBasis, ReadOnlyContract):
    """The embedded release."""

    adapter = PostgresqlEngine
    facts = FACTS
    read_only = READ_ONLY_FACTS

    async def test_notification_within_a_function_is_not_sent(self, engine: Engine, users_dsn: str) -> None:
        received = list[Any]()
        listener = await asyncpg.connect(users_dsn)
        try:
            await listener.add_listener("news", lambda _connection, _pid, _channel, payload: received.append(payload))
            async with engine.session(USER, NO_OPTIONS) as session:
                await run(session, _FUNCTION.replace("{t}", "n") % ("", "PERFORM pg_notify('news', 'x')"))
                await self.run_read_only(engine, session, "SELECT n_f()")
                await run(session, "SELECT pg_notify('news', 'last')")
            while "last" not in received:
                await listener.execute("SELECT 1")
        finally:
            await listener.close()
        assert received == ["last"]

    async def test_setting_within_a_function_is_undone(self, engine: Engine, session: EngineSession) -> None:
        body = "PERFORM set_config('work_mem', '77MB', false)"
        await run(session, _FUNCTION.replace("{t}", "n") % ("", body))
        await self.run_read_only(engine, session, "SELECT n_f()")
        assert (await run(session, "SHOW work_mem")).cell != "77MB"

    async def test_open_transaction_goes_on_after_read_only_statements(
        self, engine: Engine, session: EngineSession, filled: str
    ) -> None:
        """The mode ends with the savepoint: later statements change data, earlier changes are kept, and committed."""
        await run(session, "BEGIN")
        await run(session, f"INSERT INTO {filled} VALUES (4)")
        assert len((await self.run_read_only(engine, session, f"SELECT a FROM {filled}")).rows) == 4
        handle = await session.submit("SELECT generate_series(1, 1000000)", READ_ONLY)
        await ended(session, handle)
        await session.close(handle)
        error = await self.refused(engine, session, f"DELETE FROM {filled} RETURNING a")
        assert error == "The statement is read-only, and DELETE is not a query."
        error = await self.refused(engine, session, f"WITH d AS (DELETE FROM {filled} RETURNING a) TABLE d")
        assert error == "cannot execute SELECT in a read-only transaction"
        await run(session, f"INSERT INTO {filled} VALUES (5)")
        await run(session, "COMMIT")
        async with engine.session(USER, NO_OPTIONS) as other:
            assert (await run(other, f"SELECT count(*) FROM {filled}")).cell == 5

    async def test_aborted_transaction_stays_aborted(self, engine: Engine, session: EngineSession) -> None:
        await run(session, "BEGIN")
        await failure(session, "SELECT 1/0")
        assert "current transaction is aborted" in await self.refused(engine, session, "SELECT 1")
        await run(session, "ROLLBACK")
        assert (await self.run_read_only(engine, session, "SELECT 1")).cell == 1

    async def test_read_only_statement_has_position_of_its_error(self, engine: Engine, session: EngineSession) -> None:
        assert (await self.refused(engine, session, "SELECT\n nope")).splitlines()[-1] == "Position: 9"


@pytest.mark.engine("postgresql15")
class TestPostgresql15ReadOnly(Release15Basis, ReadOnlyContract):
    """An older release as a superuser: with large objects that its read-only transactions permit, and dblink."""

    adapter = PostgresqlEngine
    facts = FACTS
    read_only = ReadOnlyFacts(
        probes=READ_ONLY_FACTS.probes,
        reads=READ_ONLY_FACTS.reads,
        bypasses=(
            *BYPASSES,
            Bypass(
                "dblink",
                ("SELECT dblink_exec('dbname=postgres', 'DELETE FROM {t}')",),
                before=("CREATE EXTENSION IF NOT EXISTS dblink",),
            ),
            Bypass("alter_system", ("ALTER SYSTEM SET work_mem = '77MB'",)),
            Bypass("reload", ("SELECT pg_reload_conf()",)),
        ),
    )
