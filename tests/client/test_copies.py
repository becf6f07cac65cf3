"""`db.copy` and `qs copy`: rows of a statement go into a table or a file (Contract exports 9)."""

import asyncio

import pytest
from tests.client.conftest import QUICK, Server
from tests.client.shell import Qs

from queryserver_client import ApiError, Connection, StatementError, connect_sync

ROWS = "SELECT generate_series(1, 3) AS n, 'é' AS s"


async def rows(db: Connection, connector: str, table: str) -> list[tuple[object, ...]]:
    return await (await db.query(connector, f"SELECT * FROM {table} ORDER BY 1")).rows()


@pytest.mark.exports(25)
async def test_rows_go_into_a_table_of_another_connector(db: Connection):
    lines: list[str] = []
    done = await db.copy("postgresql", ROWS, "duckdb.copied", on_log=lines.append, on_progress=lambda _: None)
    assert (done.rows, done.table, done.path, done.bytes, done.files) == (3, "copied", None, None, None)
    assert done.schema == (("n", "INTEGER"), ("s", "VARCHAR"))
    assert any("Wrote 3 rows" in line for line in lines)
    assert await rows(db, "duckdb", "copied") == [(1, "é"), (2, "é"), (3, "é")]
    with pytest.raises(ApiError) as caught:
        await db.copy("postgresql", ROWS, "duckdb.copied")
    assert (caught.value.code, caught.value.status) == ("table_exists", 400)
    await db.copy("duckdb", "SELECT ?, 'x'", ("duckdb", "main", "copied"), [7], if_exists="append", columns=["n", "s"])
    assert (await rows(db, "duckdb", "copied"))[-1] == (7, "x")
    assert (await db.copy("duckdb", "FROM copied", "duckdb.main.copied", if_exists="replace", limit=2)).rows == 2


@pytest.mark.exports(25)
async def test_rows_go_into_a_file(db: Connection, folder: str):
    done = await db.copy("postgresql", ROWS, f"{folder}/rows.csv")
    assert (done.rows, done.table, done.path, done.files) == (3, None, f"{folder}/rows.csv", 1)
    content = await db.files.read(f"{folder}/rows.csv")
    assert done.bytes == len(content)
    assert content.decode().split() == ["n,s", "1,é", "2,é", "3,é"]


@pytest.mark.exports(25)
async def test_failed_copy_raises_the_error_of_the_statement(db: Connection):
    with pytest.raises(StatementError, match="division by zero"):
        await db.copy("postgresql", "SELECT 1 / 0 AS n", "duckdb.never")
    with pytest.raises(ValueError, match="never"):
        await db.copy("postgresql", ROWS, "never")


@pytest.mark.exports(25)
async def test_sync_copy(server: Server):
    token = await server.token()

    def run() -> list[tuple[object, ...]]:
        with connect_sync(server.url, token=token, retries=QUICK) as db:
            assert db.copy("postgresql", ROWS, "duckdb.copied_sync").rows == 3
            assert db.submit("postgresql", ROWS).copy("duckdb.copied_sync", if_exists="append").rows == 3
            return db.query("duckdb", "SELECT count(*) FROM copied_sync").rows()

    assert await asyncio.to_thread(run) == [(6,)]


@pytest.mark.exports(25)
async def test_stored_result_goes_into_a_table(db: Connection):
    statement = await db.submit("postgresql", f"SELECT pg_sleep(0.2)::text AS p, * FROM ({ROWS}) AS rows")
    done = await statement.copy("duckdb.main.copied_result", columns=["p", "n", "s"])
    assert (done.rows, done.table) == (3, "main.copied_result")
    assert await rows(db, "duckdb", "copied_result") == [("", 1, "é"), ("", 2, "é"), ("", 3, "é")]


@pytest.mark.exports(26)
async def test_qs_copies_between_connectors(qs: Qs):
    made = await qs("copy", f"postgresql:{ROWS}", "duckdb:main.qs_copied")
    assert (made.code, made.text) == (0, "main.qs_copied: 3 rows\n"), made.err
    again = await qs("copy", "postgresql:-", "duckdb:qs_copied", "--if-exists", "append", "--limit", "1", stdin=ROWS)
    assert (again.code, again.text) == (0, "qs_copied: 1 row\n"), again.err
    shown = await qs("sql", "duckdb", "SELECT count(*) AS n FROM qs_copied")
    assert shown.text == "n\n4\n"
    source = "postgresql:SELECT ? + 1, 'é'"
    named = await qs("copy", source, "duckdb:qs_named", "--column", "a", "--column", "b", "-p", "2")
    assert named.code == 0, named.err
    assert (await qs("sql", "duckdb", "SELECT max(a) AS a FROM qs_named")).text == "a\n3\n"
    there = await qs("copy", f"postgresql:{ROWS}", "duckdb:qs_copied")
    assert (there.code, "already exists" in there.err) == (1, True)


@pytest.mark.exports(26)
async def test_qs_copies_a_stored_result(qs: Qs):
    kept = await qs("sql", "postgresql", ROWS, "--keep")
    operation = kept.err.strip().removeprefix("kept: ")
    made = await qs("copy", operation[:8], "duckdb:qs_stored")
    assert (made.code, made.text) == (0, "qs_stored: 3 rows\n"), made.err
    assert (await qs("copy", operation[:8], "duckdb:qs_stored", "--limit", "1")).code == 2


@pytest.mark.exports(26)
async def test_qs_copies_into_a_file(qs: Qs, folder: str):
    made = await qs("copy", f"postgresql:{ROWS}", f"{folder}/rows.ndjson")
    assert (made.code, made.text.startswith(f"{folder}/rows.ndjson: 3 rows, ")) == (0, True), made.err
    assert (await qs("cat", f"{folder}/rows.ndjson")).text.startswith('{"n":1,"s":"é"}\n')


@pytest.mark.exports(26)
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("duckdb:", "duckdb:t"), 2, "CONNECTOR:"),
        (("12345678", "duckdb:t"), 2, "0 recent statements"),
        (("duckdb:SELECT 1", "somewhere"), 2, "is not a target"),
        (("duckdb:SELECT 1", "duckdb:"), 2, "is not a target"),
        (("nothing:SELECT 1", "duckdb:t"), 1, "nothing"),
        (("postgresql:SELECT nothing", "duckdb:t"), 1, "line 1: SELECT nothing"),
    ],
)
async def test_qs_explains_what_is_wrong(qs: Qs, words: tuple[str, ...], code: int, message: str):
    ended = await qs("copy", *words)
    assert (ended.code, message in ended.err) == (code, True), ended.err
