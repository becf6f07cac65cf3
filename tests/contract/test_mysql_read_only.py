"""Read-only statements on MariaDB: known ways around the read-only transactions of MySQL."""

from dataclasses import replace

import pytest
from tests.contract.engine_contract import NO_OPTIONS, USER
from tests.contract.engine_driving import run
from tests.contract.mariadb_basis import MariadbBasis
from tests.contract.read_only_contract import Bypass, ReadOnlyContract, ReadOnlyFacts
from tests.contract.test_mysql_engine import FACTS, engine_on
from tests.contract.test_sqlalchemy_engine import FACTS as SQLALCHEMY_FACTS
from tests.contract.test_sqlalchemy_engine import engine_on as sqlalchemy_engine_on

from queryserver.engines.protocol import Engine, EngineSession

_OBJECTS = """
SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'users' AND table_name LIKE '{t}%'
 ORDER BY table_name"""
_FUNCTION = "CREATE FUNCTION {t}_f() RETURNS int BEGIN %s; RETURN 1; END"
_PROCEDURE = "CREATE PROCEDURE {t}_p() BEGIN %s; END"
_DROP_FUNCTION = ("DROP FUNCTION {t}_f",)
_DROP_PROCEDURE = ("DROP PROCEDURE {t}_p",)
_LOCK_IS_FREE = "SELECT IS_FREE_LOCK('{t}')"


def _calls(name: str, body: str) -> Bypass:
    return Bypass(name, ("SELECT {t}_f()",), before=(_FUNCTION % body,), after=_DROP_FUNCTION)


def _procedure(name: str, body: str) -> Bypass:
    return Bypass(name, ("CALL {t}_p()",), before=(_PROCEDURE % body,), after=_DROP_PROCEDURE)


BYPASSES = (
    Bypass("hash_comment_first", ("# SELECT 1\nDELETE FROM {t}",)),
    Bypass("comment_ends_early", ("/* /* */ DELETE FROM {t} -- */",)),
    Bypass("executable_comment", ("/*! DELETE FROM {t} */",)),
    Bypass("executable_comment_with_version", ("/*!50000 DELETE FROM {t} */",)),
    Bypass("executable_comment_of_mariadb", ("/*M! DELETE FROM {t} */",)),
    Bypass("comment_of_later_version", ("/*!999999 SELECT */ DELETE FROM {t}",)),
    Bypass("executable_comment_inside", ("SELECT 1 /*! INTO OUTFILE '/tmp/{t}' */",)),
    Bypass("into_outfile", ("SELECT a FROM {t} INTO OUTFILE '/tmp/{t}'",)),
    Bypass("into_dumpfile", ("SELECT a INTO DUMPFILE '/tmp/{t}' FROM {t} LIMIT 1",)),
    Bypass("into_variable", ("SELECT a INTO @a FROM {t} LIMIT 1",), is_refused=False),
    Bypass("replace", ("REPLACE INTO {t} VALUES (7)",)),
    Bypass("insert_ignore", ("INSERT IGNORE INTO {t} VALUES (7)",)),
    Bypass("delete_of_join", ("DELETE x FROM {t} x JOIN {t} y",)),
    Bypass("handler", ("HANDLER {t} OPEN", "HANDLER {t} READ FIRST")),
    Bypass("lock", ("SELECT GET_LOCK('{t}', 1)",), probes=(_LOCK_IS_FREE,)),
    Bypass("lock_quoted", ("SELECT GET_LOCK/**/('{t}', 1)",), probes=(_LOCK_IS_FREE,)),
    Bypass("lock_tables", ("LOCK TABLES {t} WRITE", "DELETE FROM {t}", "UNLOCK TABLES")),
    Bypass("analyze_delete", ("ANALYZE DELETE FROM {t}",)),
    Bypass("analyze_format", ("ANALYZE FORMAT=JSON DELETE FROM {t}",)),
    Bypass("set_mode", ("SET SESSION TRANSACTION READ WRITE", "DELETE FROM {t}")),
    Bypass("set_mode_before", ("DELETE FROM {t}",), before=("SET SESSION TRANSACTION READ WRITE",)),
    Bypass("set_variable_before", ("DELETE FROM {t}",), before=("SET SESSION tx_read_only = 0",)),
    Bypass("set_next_mode_before", ("DELETE FROM {t}",), before=("SET TRANSACTION READ WRITE",)),
    Bypass("set_global", ("SET GLOBAL max_connections = 7",), probes=("SELECT @@global.max_connections",)),
    Bypass("set_statement", ("SET STATEMENT tx_read_only = 0 FOR DELETE FROM {t}",)),
    Bypass("start_transaction", ("START TRANSACTION READ WRITE", "DELETE FROM {t}", "COMMIT")),
    Bypass("open_transaction", ("DELETE FROM {t}", "COMMIT"), before=("START TRANSACTION",)),
    Bypass("no_autocommit", ("DELETE FROM {t}", "COMMIT"), before=("SET autocommit = 0",)),
    Bypass("implicit_commit", ("CREATE TABLE {t}_x (a int)", "DELETE FROM {t}")),
    Bypass("implicit_commit_of_a_grant", ("CREATE USER {t}@localhost",)),
    Bypass("temporary_table", ("CREATE TEMPORARY TABLE {t}_t (a int)",)),
    Bypass("prepared", ("PREPARE gone FROM 'DELETE FROM {t}'", "EXECUTE gone")),
    Bypass("prepared_before", ("EXECUTE gone",), before=("PREPARE gone FROM 'DELETE FROM {t}'",)),
    Bypass("immediately", ("EXECUTE IMMEDIATE 'DELETE FROM {t}'",)),
    _calls("function", "INSERT INTO {t} VALUES (5)"),
    _calls("function_deletes", "DELETE FROM {t}"),
    _calls("function_sets_mode", "SET SESSION tx_read_only = 0; DELETE FROM {t}"),
    _procedure("procedure", "DELETE FROM {t}"),
    _procedure("procedure_commits", "COMMIT; DELETE FROM {t}"),
    _procedure("procedure_sets_mode", "COMMIT; SET SESSION TRANSACTION READ WRITE; DELETE FROM {t}"),
    _procedure("procedure_implicit_commit", "CREATE TABLE {t}_x (a int); DELETE FROM {t}"),
    Bypass("compound", ("BEGIN NOT ATOMIC COMMIT; DELETE FROM {t}; END",)),
    Bypass(
        "next_value",
        ("SELECT NEXT VALUE FOR {t}_s",),
        before=("CREATE SEQUENCE {t}_s",),
        after=("DROP SEQUENCE {t}_s",),
        probes=("SELECT next_not_cached_value FROM {t}_s",),
    ),
    Bypass(
        "nextval",
        ("SELECT NEXTVAL({t}_s)",),
        before=("CREATE SEQUENCE {t}_s",),
        after=("DROP SEQUENCE {t}_s",),
        probes=("SELECT next_not_cached_value FROM {t}_s",),
    ),
    Bypass(
        "setval",
        ("SELECT SETVAL({t}_s, 100)",),
        before=("CREATE SEQUENCE {t}_s",),
        after=("DROP SEQUENCE {t}_s",),
        probes=("SELECT next_not_cached_value FROM {t}_s",),
    ),
    Bypass("load_data", ("LOAD DATA INFILE '/etc/hostname' INTO TABLE {t}",)),
    Bypass("do", ("DO GET_LOCK('{t}', 1)",), probes=(_LOCK_IS_FREE,)),
    Bypass("kill", ("KILL QUERY 1",)),
    Bypass("flush", ("FLUSH TABLES",)),
    Bypass("optimize", ("OPTIMIZE TABLE {t}",)),
    Bypass("text_of_a_marker", ("DELETE FROM {t} WHERE a = ? OR ? = 'x'",), values=(1, "x")),
    Bypass("text_of_a_function", ("SELECT {t}_f() WHERE ? = 'x'",), values=("x",),
           before=(_FUNCTION % "DELETE FROM {t}",), after=_DROP_FUNCTION),
)  # fmt: skip


READ_ONLY_FACTS = ReadOnlyFacts(
    setup=("CREATE TABLE {t} (a int) ENGINE = InnoDB", "INSERT INTO {t} VALUES (1), (2), (3)"),
    probes=("SELECT a FROM {t} ORDER BY a", _OBJECTS),
    bypasses=BYPASSES,
    reads=(
        "SELECT /*+ NO_ICP({t}) */ a FROM {t} WHERE a > 1",
        "WITH x AS (SELECT a FROM {t}) SELECT count(*) FROM x",
        "(SELECT 1) UNION (SELECT 2)",
        "VALUES (1)",
        "SHOW TABLES",
        "SHOW CREATE TABLE {t}",
        "DESCRIBE {t}",
        "EXPLAIN SELECT * FROM {t}",
        "# comment\n/* DELETE */ SELECT 'delete', now(), @@tx_read_only",
    ),
)


@pytest.mark.engine("mariadb")
class TestMariadbReadOnly(MariadbBasis, ReadOnlyContract):
    """MariaDB through asyncmy, as an administrator."""

    facts = FACTS
    engine_on = staticmethod(engine_on)
    read_only = READ_ONLY_FACTS

    async def test_read_only_statement_is_refused_in_an_open_transaction(
        self, engine: Engine, session: EngineSession, filled: str
    ) -> None:
        """MySQL would commit the open transaction when another one begins."""
        await run(session, "START TRANSACTION")
        await run(session, f"INSERT INTO {filled} VALUES (4)")
        assert "open transaction" in await self.refused(engine, session, f"SELECT a FROM {filled}")
        await run(session, "ROLLBACK")
        assert len((await self.run_read_only(engine, session, f"SELECT a FROM {filled}")).rows) == 3
        async with engine.session(USER, NO_OPTIONS) as other:
            assert (await run(other, f"SELECT count(*) FROM {filled}")).cell == 3

    async def test_warnings_of_read_only_statement_are_kept(self, session: EngineSession, engine: Engine) -> None:
        assert (await self.run_read_only(engine, session, "SELECT 1/0, CAST('x' AS signed)")).rows == [(None, 0)]
        assert (await self.run_read_only(engine, session, "SELECT 1")).rows == [(1,)]


_BY_FUNCTIONS = frozenset({"function", "function_deletes", "function_sets_mode", "text_of_a_function"})
"""What the text of a statement does not show: the effects of functions defined in the database."""


@pytest.mark.engine("mariadb")
class TestSqlalchemyReadOnly(MariadbBasis, ReadOnlyContract):
    """PyMySQL, where the kind of a statement alone decides."""

    facts = SQLALCHEMY_FACTS
    engine_on = staticmethod(sqlalchemy_engine_on)
    read_only = replace(READ_ONLY_FACTS, bypasses=tuple(one for one in BYPASSES if one.name not in _BY_FUNCTIONS))
