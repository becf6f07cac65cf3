"""`Statement.export`, `query(into=…)` and `qs export` (Contract exports)."""

import asyncio
import csv
import io

import pytest
from tests.client.conftest import QUICK, Server
from tests.client.shell import Qs

from queryserver_client import ApiError, Connection, StatementError, connect_sync

pytestmark = pytest.mark.exports(28)

ROWS = "SELECT i AS n, 'row ' || i AS t FROM range({}) AS r(i)"


async def content(db: Connection, path: str) -> str:
    return (await db.files.read(path)).decode()


async def test_result_is_exported_to_a_file_and_to_parts(db: Connection, folder: str):
    statement = await db.submit("duckdb", ROWS.format(10))
    lines: list[str] = []
    exported = await statement.export(f"{folder}/a.csv", on_log=lines.append)
    assert (exported.rows, exported.files, exported.table) == (10, 1, None)
    assert exported.schema == (("n", "BIGINT_TYPE"), ("t", "STRING_TYPE"))
    assert len(list(csv.reader(io.StringIO(await content(db, f"{folder}/a.csv"))))) == 11
    assert any(line.startswith("Wrote 10 rows") for line in lines)
    with pytest.raises(ApiError) as caught:
        await statement.export(f"{folder}/a.csv")
    assert (caught.value.code, caught.value.status) == ("already_exists", 409)
    await statement.export(f"{folder}/a.csv", if_exists="replace", header=False)
    assert len((await content(db, f"{folder}/a.csv")).splitlines()) == 10
    parts = await statement.export(f"{folder}/parts", format="ndjson", split_rows=4)
    assert (parts.files, parts.rows, parts.path) == (3, 10, f"{folder}/parts")


async def test_rows_of_a_query_go_into_a_file(db: Connection, folder: str):
    result = await db.query("duckdb", ROWS.format(5), into=f"{folder}/a.csv")
    assert (await result.dicts())[0]["rows"] == 5
    assert len((await content(db, f"{folder}/a.csv")).splitlines()) == 6
    statement = await db.submit("duckdb", ROWS.format(7), into={"path": f"{folder}/b.csv", "header": False})
    assert (await (await statement.result()).dicts())[0]["rows"] == 7
    assert len((await content(db, f"{folder}/b.csv")).splitlines()) == 7


async def test_failed_export_raises_the_error_of_its_operation(db: Connection, folder: str):
    statement = await db.submit("duckdb", "SELECT 'x'::INT")
    with pytest.raises((ApiError, StatementError)) as caught:
        await statement.export(f"{folder}/a.csv")
    assert caught.value.code in {"engine_error", "result_not_available"}


async def test_synchronous_connection_exports(server: Server, folder: str):
    token = await server.token()

    def work() -> tuple[int, int]:
        with connect_sync(server.url, token=token, retries=QUICK) as db:
            statement = db.submit("duckdb", ROWS.format(3))
            rows = statement.export(f"{folder}/a.parquet").rows
            assert statement.submit_export(f"{folder}/c.csv").result().dicts()[0]["rows"] == rows
            return rows, db.query("duckdb", ROWS.format(3), into=f"{folder}/b.csv").dicts()[0]["files"]

    assert await asyncio.to_thread(work) == (3, 1)


async def test_command_exports_results_and_statements(qs: Qs, folder: str):
    assert (await qs("sql", "duckdb", ROWS.format(3), "--keep")).code == 0
    listed = (await qs("history", "-o", "csv")).records[0]["id"]
    done = await qs("export", listed[:8], f"{folder}/a.csv")
    assert (done.code, done.text.partition(":")[0]) == (0, "file")
    assert "3 rows" in done.text
    assert (await qs("export", listed, f"{folder}/a.csv")).code == 1
    assert (await qs("export", listed, f"{folder}/a.csv", "-f", "--no-header")).code == 0
    assert len((await qs("cat", f"{folder}/a.csv")).text.splitlines()) == 3
    parts = await qs("export", f"duckdb:{ROWS.format(9)}", f"{folder}/p", "--format", "csv", "--split-rows", "4")
    assert (parts.code, "9 rows in 3 files" in parts.text) == (0, True)
    words = ["export", "duckdb:SELECT i AS n FROM range(:most) AS r(i)", f"{folder}/named.csv", "--no-header"]
    assert (await qs(*words, "-p", "most=9", "--limit", "2", "-d", "main", "--timeout", "60")).code == 0
    assert (await qs("cat", f"{folder}/named.csv")).text.splitlines() == ["0", "1"]
    assert (await qs("export", listed, f"{folder}/x.csv", "--limit", "1")).code == 2
    assert (await qs("export", "duckdb:", f"{folder}/x.csv")).code == 2
    assert (await qs("export", listed, "local.csv")).code == 2
    failed = await qs("export", "duckdb:SELECT 'x'::INT", f"{folder}/x.csv")
    assert failed.code == 1
