"""The DB-API 2.0 module (issue 20, section 5)."""

import datetime as dt
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from functools import partial
from unittest.mock import AsyncMock, Mock
from uuid import uuid4

import pytest
from tests.api.test_field_values import statement
from tests.client.conftest import Server
from tests.client.threads import in_thread

from queryserver_client import dbapi
from queryserver_client.encoding import batches
from queryserver_client.errors import NotFound, TooManyRequests

Connect = Callable[..., dbapi.Connection]
ENGINES = ("duckdb", "postgresql", "sqlite")


@pytest.fixture
async def connect(server: Server) -> Connect:
    """Connect as a new user."""
    return partial(dbapi.connect, server.url, token=await server.token())


@pytest.fixture
def table() -> str:
    """A table name that no other test uses."""
    return f"t_{uuid4().hex[:12]}"


def test_module_conforms_to_pep_249():
    assert (dbapi.apilevel, dbapi.paramstyle, dbapi.threadsafety) == ("2.0", "qmark", 2)
    assert issubclass(dbapi.IntegrityError, dbapi.DatabaseError)
    assert issubclass(dbapi.DatabaseError, dbapi.Error)
    assert issubclass(dbapi.InterfaceError, dbapi.Error)
    assert dbapi.Connection.IntegrityError is dbapi.IntegrityError
    assert dbapi.NUMBER == "INT_TYPE" != dbapi.STRING
    assert dbapi.Binary(b"x") == b"x"


@pytest.mark.parametrize("engine", ENGINES)
@in_thread
def test_rows_are_fetched_singly_in_batches_and_all(connect: Connect, engine: str):
    with connect(engine) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 AS n, 'a' AS t UNION ALL SELECT 2, 'b' UNION ALL SELECT 3, NULL ORDER BY n")
        assert [column[0] for column in cursor.description or ()] == ["n", "t"]
        assert (cursor.description or ())[0][1] == dbapi.NUMBER
        assert (cursor.description or ())[1][1] == dbapi.STRING
        assert cursor.rowcount == 3
        assert cursor.fetchone() == (1, "a")
        assert cursor.rownumber == 1
        assert cursor.fetchmany() == [(2, "b")]
        assert cursor.fetchall() == [(3, None)]
        assert cursor.fetchone() is None
        assert cursor.fetchmany(5) == cursor.fetchall() == []


@in_thread
def test_large_result_is_read_in_pages_and_as_arrow(connect: Connect):
    with connect("duckdb") as connection:
        cursor = connection.execute("SELECT i FROM range(23456) AS r(i)")
        assert cursor.fetchmany(1500) == [(n,) for n in range(1500)]
        assert sum(1 for _ in cursor) == 23456 - 1500
        cursor.execute("SELECT i FROM range(23456) AS r(i)")
        cursor.fetchone()
        table = cursor.fetch_arrow_table()
        assert table.column("i").to_pylist() == list(range(1, 23456))
        assert cursor.fetchall() == []


@pytest.mark.parametrize("engine", ENGINES)
@in_thread
def test_values_round_trip_exactly(connect: Connect, engine: str):
    with connect(engine) as connection:
        cursor = connection.execute("SELECT ?, ?, ?, ?", [7, "it's ?", 2**60, b"\x00\xff"])
        assert cursor.fetchone() == (7, "it's ?", 2**60, b"\x00\xff")
        assert connection.execute("SELECT :a, :b, :a", {"a": 1, "b": None}).fetchone() == (1, None, 1)
        assert connection.execute("SELECT 'a?b'").fetchone() == ("a?b",)


@pytest.mark.parametrize("engine", ["duckdb", "postgresql"])
@in_thread
def test_dates_and_decimals_keep_their_types(connect: Connect, engine: str):
    values = [Decimal("12.50"), dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 1, 2, 3, 4), dt.time(1, 2, 3)]  # noqa: DTZ001
    with connect(engine) as connection:
        assert connection.execute("SELECT ?, ?, ?, ?", values).fetchone() == tuple(values)


@pytest.mark.parametrize("engine", ENGINES)
@in_thread
def test_rollback_discards_and_commit_persists(connect: Connect, engine: str, table: str):
    with connect(engine) as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name VARCHAR(20))")
        connection.commit()
        cursor.executemany(f"INSERT INTO {table} VALUES (?, ?)", [(1, "a"), (2, "b")])
        assert cursor.rowcount == 2
        assert connection.in_transaction
        connection.rollback()
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        cursor.execute(f"INSERT INTO {table} VALUES (3, 'c')")
        connection.commit()
    with connect(engine) as other:
        assert other.execute(f"SELECT * FROM {table}").fetchall() == [(3, "c")]


@pytest.mark.parametrize("engine", ENGINES)
@in_thread
def test_executemany_is_one_call_for_thousands_of_rows(connect: Connect, engine: str, table: str):
    rows = [(n, f"row {n}", n / 4 if n % 5 else None) for n in range(6_000)]
    with connect(engine) as connection:
        cursor = connection.execute(f"CREATE TABLE {table} (n INTEGER PRIMARY KEY, t VARCHAR(20), f DOUBLE PRECISION)")
        cursor.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)
        assert cursor.rowcount == 6_000
        assert cursor.execute(f"SELECT n, t, f FROM {table} ORDER BY n").fetchall() == rows
        named = [{"n": n, "t": "x"} for n in range(10)] + [{"n": 10_000, "t": "y"}]
        assert cursor.executemany(f"UPDATE {table} SET t = :t WHERE n = :n", named).rowcount == 10
        cursor.executemany(f"DELETE FROM {table} WHERE n = ?", iter([[1], [2]]))
        assert cursor.rowcount == 2
        assert cursor.executemany(f"DELETE FROM {table} WHERE n = ?", []).rowcount == 0

        async def statements() -> list[str]:
            return [entry.statement.split()[0] async for entry in connection.client.history.search()]

        history = connection.run(statements)
        assert (history.count("INSERT"), history.count("UPDATE"), history.count("DELETE")) == (2, 1, 1)
        connection.rollback()


@pytest.mark.parametrize("engine", ENGINES)
@in_thread
def test_executemany_error_names_failing_row(connect: Connect, engine: str, table: str):
    with connect(engine, autocommit=True) as connection:
        cursor = connection.execute(f"CREATE TABLE {table} (n INTEGER PRIMARY KEY)")
        with pytest.raises(dbapi.IntegrityError, match=r"Row 3 of 3 of parameter_rows\."):
            cursor.executemany(f"INSERT INTO {table} VALUES (?)", [[1], [2], [1]])
        assert cursor.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        rows = [[n] for n in range(5_002)]
        with pytest.raises(dbapi.IntegrityError) as failed:
            cursor.executemany(f"INSERT INTO {table} VALUES (?)", [*rows, [7]])
        assert str(failed.value).endswith(
            "\nRow 3 of 3 of parameter_rows.\n5000 rows of executemany were already executed in earlier calls."
        )
        assert cursor.execute(f"SELECT count(*) FROM {table}").fetchone() == (5_000,)


@in_thread
def test_statement_unsupported_for_batches_runs_row_by_row(connect: Connect, table: str):
    with connect("sqlite") as connection:
        cursor = connection.execute(f"CREATE TABLE {table} (n INTEGER)")
        script = f"INSERT INTO {table} VALUES (?); INSERT INTO {table} VALUES (? + 10)"
        assert cursor.executemany(script, [(1, 1), (2, 2)]).rowcount == 4
        cursor.executemany("SELECT ?", [[1], [2]])
        cursor.executemany(f"INSERT INTO {table} VALUES (0)", [[], []])
        assert cursor.execute(f"SELECT n FROM {table} ORDER BY n").fetchall() == [(0,), (0,), (1,), (2,), (11,), (12,)]


def test_executemany_calls_respect_server_row_limit():
    assert [len(batch) for batch in batches([(n,) for n in range(12_000)], 30)] == [5_000, 5_000, 2_000]
    assert [len(batch) for batch in batches([("x" * 300_000,)] * 3, 30)] == [1, 1, 1]
    assert [len(batch) for batch in batches([(1,) * 100] * 1_200, 30)] == [*[163] * 7, 59]
    assert [len(batch) for batch in batches([(1,), {"n": 1}, {"n": 2}, (2,)], 30)] == [1, 2, 1]
    assert [len(batch) for batch in batches([(1,)] * 3, 16 * 1024 * 1024)] == [1, 1, 1]


@in_thread
def test_infinity_and_nan_reach_engines_that_support_them(connect: Connect):
    field = statement("10_sqlite_parameters_inf.py.txt")
    assert 'execute("select ?", [float("inf")])' in field
    with connect("sqlite") as connection:
        assert connection.execute("select ?", [float("inf")]).fetchone() == (float("inf"),)
        assert connection.execute("select ?, ?", [float("nan"), Decimal("-Infinity")]).fetchone() == (
            None,
            -float("inf"),
        )
    for engine in ("duckdb", "postgresql"):
        with connect(engine) as connection:
            assert connection.execute("select ?", [-float("inf")]).fetchone() == (-float("inf"),)
            assert str(connection.execute("select ?", [float("nan")]).fetchone()) == "(nan,)"


@pytest.mark.parametrize("engine", ENGINES)
@in_thread
def test_unexecuted_commit_leaves_transaction_open(connect: Connect, engine: str, table: str):
    with connect(engine) as connection:
        connection.execute(f"CREATE TABLE {table} (id INTEGER)")
        connection.commit()
        connection.execute(f"INSERT INTO {table} VALUES (1)")
        refused = TooManyRequests("too many", status=429, code="too_many_requests")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection.client.transport, "call", AsyncMock(side_effect=refused))
            with pytest.raises(dbapi.OperationalError):
                connection.commit()
        assert connection.in_transaction
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "run", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                connection.commit()
        assert connection.in_transaction
        connection.rollback()
        assert not connection.in_transaction
        connection.execute(f"INSERT INTO {table} VALUES (2)")
        connection.commit()
        assert connection.execute(f"SELECT id FROM {table}").fetchall() == [(2,)]


@in_thread
def test_commit_refused_by_engine_ends_transaction(connect: Connect, table: str):
    with connect("postgresql") as connection:
        connection.execute(f"CREATE TABLE {table} (id INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        connection.commit()
        connection.execute(f"INSERT INTO {table} VALUES (1), (1)")
        with pytest.raises(dbapi.IntegrityError):
            connection.commit()
        connection.execute(f"INSERT INTO {table} VALUES (2)")
        connection.rollback()
        assert connection.execute(f"SELECT id FROM {table}").fetchall() == []


@pytest.mark.parametrize("engine", ENGINES)
@in_thread
def test_leaving_with_exception_rolls_back(connect: Connect, engine: str, table: str):
    with connect(engine, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (id INTEGER)")
    with suppress(ZeroDivisionError), connect(engine) as connection:
        connection.execute(f"INSERT INTO {table} VALUES (1)")
        raise ZeroDivisionError
    with connect(engine) as connection:
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


@pytest.mark.parametrize("engine", ENGINES)
@in_thread
def test_temporary_tables_live_as_long_as_connection(connect: Connect, engine: str, table: str):
    with connect(engine, autocommit=True) as connection:
        connection.execute(f"CREATE TEMPORARY TABLE {table} AS SELECT 1 AS n")
        assert connection.execute(f"SELECT n FROM {table}").fetchall() == [(1,)]
    with connect(engine, autocommit=True) as other, pytest.raises(dbapi.ProgrammingError):
        other.execute(f"SELECT n FROM {table}")


@pytest.mark.parametrize("engine", ENGINES)
@in_thread
def test_all_script_statements_run_and_nextset_returns_each_result(connect: Connect, engine: str, table: str):
    with connect(engine) as connection:
        cursor = connection.execute(
            f"CREATE TABLE {table} (n INTEGER); INSERT INTO {table} VALUES (?), (?);"
            f" SELECT n FROM {table}; SELECT 'x;y'",
            [1, 2],
        )
        assert cursor.description is None
        with pytest.raises(dbapi.ProgrammingError, match="no result"):
            cursor.fetchone()
        assert cursor.nextset()
        assert cursor.rowcount == 2
        assert cursor.nextset()
        assert cursor.fetchone() == (1,)
        assert cursor.nextset()
        assert cursor.fetchall() == [("x;y",)]
        assert cursor.nextset() is None


@pytest.mark.parametrize("engine", ENGINES)
@in_thread
def test_failures_raise_pep_249_errors(connect: Connect, engine: str, table: str):
    with connect(engine, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY NOT NULL, n INTEGER CHECK (n < 5))")
        connection.execute(f"INSERT INTO {table} VALUES (1, 1)")
        for statement in (f"INSERT INTO {table} VALUES (1, 2)", f"INSERT INTO {table} VALUES (2, 7)"):
            with pytest.raises(dbapi.IntegrityError) as broken:
                connection.execute(statement)
            assert (broken.value.sqlstate or "")[:2] == "23"
        with pytest.raises(dbapi.ProgrammingError) as caught:
            connection.execute("SELECT nothing FROM nowhere")
        assert caught.value.code == "engine_error"
        assert caught.value.operation_id
        with pytest.raises(dbapi.ProgrammingError, match="1"):
            connection.execute("SELECT ?, ?", [1])
        with pytest.raises(dbapi.ProgrammingError, match="cannot be"):
            connection.execute("SELECT ?", [object()])
    with pytest.raises(dbapi.InterfaceError, match="closed"):
        connection.cursor()
    with pytest.raises(dbapi.OperationalError, match="not configured"):
        connect("nowhere").execute("SELECT 1")


@in_thread
def test_truncated_result_is_an_error_unless_limited(connect: Connect):
    with connect("duckdb", limit=10) as connection:
        assert len(connection.execute("SELECT * FROM range(6000)").fetchall()) == 10
    with connect("duckdb") as connection:
        assert len(connection.execute("SELECT * FROM range(6000)").fetchall()) == 6000
        with pytest.raises(dbapi.OperationalError, match="Only the first"):
            connection.execute("SELECT * FROM range(1000001)")


@in_thread
def test_id_of_new_row_is_known(connect: Connect, table: str):
    with connect("sqlite") as connection:
        cursor = connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT)")
        cursor.execute(f"INSERT INTO {table} (id, name) VALUES (41, 'a')")
        cursor.execute(f"INSERT INTO {table} (name) VALUES ('b')")
        assert cursor.lastrowid == 42


@in_thread
def test_abandoned_large_results_are_deleted(connect: Connect):
    large = "SELECT i FROM range(3000) AS r(i) WHERE i >= ?"
    with connect("duckdb", autocommit=True) as connection, connection.cursor() as cursor:
        with pytest.raises(dbapi.ProgrammingError):
            cursor.execute(f"{large}; SELECT nothing", [0])
        cursor.executemany(large, [[0], [1]])
        history = connection.client.history

        async def states() -> list[str]:
            return [entry.state async for entry in history.search()]

        assert connection.run(states) == ["closed", "closed", "failed", "closed"]


@in_thread
def test_threads_share_a_connection(connect: Connect, table: str):
    with connect("duckdb") as connection:
        connection.execute(f"CREATE TABLE {table} (n INTEGER)")

        def insert(start: int) -> None:
            for n in range(start, start + 5):
                connection.execute(f"INSERT INTO {table} VALUES (?)", [n])

        threads = [threading.Thread(target=insert, args=(start,)) for start in (0, 5, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert connection.execute(f"SELECT count(DISTINCT n) FROM {table}").fetchone() == (15,)


@in_thread
def test_lost_session_is_replaced_only_if_stateless(connect: Connect):
    with connect("duckdb") as connection:
        connection.execute("SELECT 1")
        connection.commit()
        close_sessions(connection)
        connection.forget_state()
        assert connection.execute("SELECT 2").fetchone() == (2,)
        connection.commit()
        close_sessions(connection)
        with pytest.raises(dbapi.OperationalError) as caught:
            connection.execute("SELECT 3")
        assert caught.value.is_disconnect
        assert connection.execute("SELECT 4").fetchone() == (4,)


def run_program(text: str) -> str:
    """Run a Python program; return its output. It must exit successfully and must not write to stderr."""
    command = [sys.executable, "-c", textwrap.dedent(text)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def close_sessions(connection: dbapi.Connection) -> None:
    """Close all sessions of the user on the server, without using the connection's own methods."""
    transport = connection.client.transport
    connection.run(partial(transport.call, "POST", "editor/close_session", {"session": {"type": "duckdb"}}))


@in_thread
def test_script_is_not_repeated_after_one_statement_ran(connect: Connect, table: str):
    with connect("duckdb", autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (n INTEGER)")
        connection.forget_state()
        gone = NotFound("it is gone", status=404, code="session_not_found")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection.client, "next", AsyncMock(side_effect=gone))
            with pytest.raises(dbapi.OperationalError) as caught:
                connection.execute(f"INSERT INTO {table} VALUES (1); SELECT 1")
        assert caught.value.is_disconnect
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,)


@in_thread
def test_forked_child_exits_and_opens_own_connections(server: Server, connect: Connect):
    token = connect.keywords["token"]  # pyright: ignore[reportFunctionMemberAccess]
    program = f"""
        import os, signal, sys
        from queryserver_client import connect_sync, dbapi
        def connected():
            return dbapi.connect({server.url!r}, "duckdb", token={token!r})
        db = connect_sync({server.url!r}, token={token!r})
        connection, dropped = connected(), connected()
        connection.execute("SELECT 1"), dropped.execute("SELECT 1")
        child = os.fork()
        if child:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), connection.execute("SELECT 3").fetchone())
            sys.exit()
        signal.alarm(30)
        del dropped
        try:
            connection.execute("SELECT 2")
        except dbapi.InterfaceError as error:
            print(error)
        print(connected().execute("SELECT 2").fetchone(), flush=True)
        db.close()
    """
    assert run_program(program) == (
        "the connection was opened before this process was forked; open a new one in this process\n(2,)\n0 (3,)\n"
    )


@pytest.mark.parametrize("opened", ["connect_sync(url, token=token)", "dbapi.connect(url, 'duckdb', token=token)"])
@in_thread
def test_program_does_not_wait_for_daemon_thread_calls(server: Server, connect: Connect, opened: str):
    token = connect.keywords["token"]  # pyright: ignore[reportFunctionMemberAccess]
    program = f"""
        import threading
        from concurrent.futures import CancelledError
        import anyio
        from queryserver_client import connect_sync, dbapi
        url, token, started = {server.url!r}, {token!r}, threading.Event()
        connection = {opened}
        async def forever():
            started.set()
            await anyio.sleep_forever()
        def call():
            try:
                if isinstance(connection, dbapi.Connection):
                    connection._in_session(forever)
                else:
                    connection.loop.run(forever)
            except CancelledError:
                pass
        threading.Thread(target=call, daemon=True).start()
        started.wait()
        print("ended")
    """
    assert run_program(program) == "ended\n"


@in_thread
def test_program_waits_for_closes_by_the_client_thread(server: Server, connect: Connect):
    """The garbage collector may also run in the client's thread. Objects that are then still open are closed later."""
    token = connect.keywords["token"]  # pyright: ignore[reportFunctionMemberAccess]
    program = f"""
        import anyio
        from queryserver_client import dbapi
        from queryserver_client.dbapi import session
        close_session = session.close_session
        async def close_slowly(*arguments):
            await anyio.sleep(0.5)
            await close_session(*arguments)
            print("closed")
        session.close_session = close_slowly
        left, found = (dbapi.connect({server.url!r}, name, token={token!r}) for name in ("duckdb", "sqlite"))
        left.execute("SELECT 1"), found.execute("SELECT 1")
        async def close():
            found.close()
        left.run(close)
    """
    assert run_program(program) == "closed\nclosed\n"


@in_thread
def test_exiting_program_closes_session_of_open_connection(server: Server, connect: Connect):
    keywords = connect.keywords  # pyright: ignore[reportFunctionMemberAccess]
    program = f"""
        import atexit
        from queryserver_client import dbapi
        atexit.register(lambda: connection.rollback())
        connection = dbapi.connect({server.url!r}, "duckdb", token={keywords["token"]!r})
        print(connection.execute("SELECT 42").fetchone()[0])
    """
    assert run_program(program) == "42\n"
    with connect("duckdb") as connection:
        transport = connection.client.transport
        fields = {"session": {"type": "duckdb"}}
        answer = connection.run(partial(transport.call, "POST", "editor/close_session", fields))
        assert answer["session"]["session"] is None
