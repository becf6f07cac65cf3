"""`db.documents` and `qs documents`: saved queries (Contract documents)."""

import asyncio
import datetime as dt
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.client.conftest import Server
from tests.client.shell import Make

from queryserver_client import ApiError, Conflict, Connection, NotFound, StatementError, connect, connect_sync

pytestmark = pytest.mark.documents(25)

DAY = {"name": "day", "type": "date", "default": "2026-01-05"}


async def names(db: Connection, text: str = "", **filters: Any) -> list[str]:
    return [entry["name"] async for entry in db.documents.list(text, **filters)]


async def test_document_is_saved_changed_and_restored(db: Connection):
    made = await db.documents.save("Daily", "SELECT 1", connector="duckdb", tags=["a"], folder="/x", parameters=[DAY])
    assert (made["version"], made["parameters"]) == (1, [DAY])
    changed = await db.documents.save(uuid=made["uuid"], version=1, statement="SELECT 2")
    assert (changed["version"], changed["name"], changed["tags"]) == (2, "Daily", ["a"])
    with pytest.raises(Conflict) as caught:
        await db.documents.save(uuid=made["uuid"], version=1, statement="SELECT 3")
    assert caught.value.code == "version_conflict"
    assert [one["version"] for one in await db.documents.versions(made["uuid"])] == [2, 1]
    assert (await db.documents.version(made["uuid"], 1))["statement"] == "SELECT 1"
    again = await db.documents.restore_version(made["uuid"], 1, version=2)
    assert (again["version"], again["statement"]) == (3, "SELECT 1")
    assert (await db.documents.move(made["uuid"], "/y"))["folder"] == "/y"
    assert await names(db, folder="/y") == ["Daily"]
    await db.documents.delete(made["uuid"])
    assert await names(db) == []
    assert [one["name"] async for one in db.documents.list(in_trash=True)] == ["Daily"]
    assert (await db.documents.restore(made["uuid"]))["is_trashed"] is False
    await db.documents.delete(made["uuid"], skip_trash=True)
    with pytest.raises(NotFound):
        await db.documents.get(made["uuid"])


async def test_lists_read_all_pages(db: Connection):
    await asyncio.gather(*(db.documents.save(f"listed {number}") for number in range(7)))
    assert len(await names(db, "listed")) == 7
    assert len([one async for one in db.documents.list("listed", limit=5)]) == 5


async def test_document_runs_with_defaults_and_values(db: Connection):
    made = await db.documents.save("day", "SELECT :day AS day", connector="duckdb", parameters=[DAY])
    result = await db.documents.run(made["uuid"])
    assert await result.rows() == [(dt.date(2026, 1, 5),)]
    result = await db.documents.run(made["uuid"], {"day": dt.date(2026, 2, 3)}, on_log=lambda _: None)
    assert await result.rows() == [(dt.date(2026, 2, 3),)]
    statement = await db.documents.submit(made["uuid"], {"day": "2026-02-04"}, idempotency_key=str(uuid4()))
    assert await (await statement.result()).rows() == [(dt.date(2026, 2, 4),)]
    with pytest.raises(ApiError) as caught:
        await db.documents.run(made["uuid"], {"day": "monday"})
    assert caught.value.code == "invalid_parameter"
    broken = await db.documents.save("broken", "SELECT wrong", connector="duckdb")
    with pytest.raises(StatementError):
        await db.documents.run(broken["uuid"])


async def test_rows_of_a_document_go_into_a_file(db: Connection, folder: str):
    made = await db.documents.save("into", "SELECT :day AS day", connector="duckdb", parameters=[DAY])
    result = await db.documents.run(made["uuid"], {"day": "2026-02-03"}, into=f"{folder}/a.csv")
    assert (await result.dicts())[0]["rows"] == 1
    assert await db.files.read(f"{folder}/a.csv") == b"day\r\n2026-02-03\r\n"
    statement = await db.documents.submit(made["uuid"], into={"path": f"{folder}/b.csv", "header": False})
    assert (await (await statement.result()).dicts())[0]["path"] == f"{folder}/b.csv"
    assert await db.files.read(f"{folder}/b.csv") == b"2026-01-05\r\n"


async def test_stored_rows_of_a_document_are_used_again(db: Connection):
    made = await db.documents.save("again", "SELECT 7 AS n", connector="duckdb")
    first = await db.documents.run(made["uuid"])
    again = await db.documents.run(made["uuid"], max_age=3600)
    assert (await again.statement.status()).reused_from == first.operation_id


async def test_shared_document_runs_for_others(server: Server, db: Connection):
    made = await db.documents.save("shared", "SELECT 7 AS n", connector="duckdb")
    reader = await server.api.user("reader", groups=("readers",))
    async with connect(server.url, token=reader.headers["Authorization"].removeprefix("Bearer ")) as theirs:
        with pytest.raises(NotFound):
            await theirs.documents.run(made["uuid"])
        shared = await db.documents.share(made["uuid"], "run", users=[reader.username], groups=["readers"])
        assert len(shared["grants"]) == 2
        assert await (await theirs.documents.run(made["uuid"])).scalar() == 7
        await db.documents.share(made["uuid"], "none", users=[reader.username], groups=["readers"])
        with pytest.raises(NotFound):
            await theirs.documents.get(made["uuid"])


async def test_documents_change_their_owner(server: Server, db: Connection):
    made = [await db.documents.save(f"gift {number}", "SELECT 1") for number in range(3)]
    reader = await server.api.user("reader")
    async with connect(server.url, token=reader.headers["Authorization"].removeprefix("Bearer ")) as theirs:
        assert await db.documents.change_owner(made[0]["uuid"], reader.username, keep="view") == 1
        assert (await db.documents.get(made[0]["uuid"]))["permission"] == "view"
        assert await db.documents.change_owner_of_all(made[0]["owner"], reader.username) == 2
        assert len(await names(theirs, "gift", owner=reader.username)) == 3


async def test_statement_of_the_history_is_saved(db: Connection):
    result = await db.query("duckdb", "SELECT 5 AS five")
    made = await db.documents.save("five", operation_id=result.operation_id)
    assert (made["statement"], made["connector"]) == ("SELECT 5 AS five", "duckdb")


async def test_synchronous_documents(server: Server):
    token = await server.token()

    def work() -> None:
        with connect_sync(server.url, token=token) as db:
            made = db.documents.save("sync", "SELECT :day AS day", connector="duckdb", parameters=[DAY])
            assert [entry["name"] for entry in db.documents.list()] == ["sync"]
            with db.documents.run(made["uuid"], {"day": "2026-02-03"}) as result:
                assert result.rows() == [(dt.date(2026, 2, 3),)]
            assert db.documents.submit(made["uuid"]).result().row_count == 1
            db.documents.delete(made["uuid"])
            assert list(db.documents.list()) == []

    await asyncio.to_thread(work)


async def test_qs_saves_runs_shares_and_deletes(server: Server, make: Make, tmp_path: Path):
    qs = make(QUERYSERVER_URL=server.url, QUERYSERVER_TOKEN=await server.token())
    reader = await server.api.user("reader")
    saved = await qs(
        "documents", "save", "Daily sales", "SELECT :day AS day, :n AS n", "-c", "duckdb", "-p", "day:date=2026-01-05",
        "-p", "n", "--folder", "/reports", "--tag", "sales",
    )  # fmt: skip
    assert saved.code == 0, saved.err
    uuid, _, version = saved.text.partition("  ")
    assert version == "version 1\n"
    ran = await qs("documents", "run", "Daily sales", "-p", "n=7")
    assert ran.text == "day,n\n2026-01-05,7\n", ran.err
    missing = await qs("documents", "run", "Daily sales")
    assert (missing.code, ":n is required" in missing.err) == (1, True)
    to = tmp_path / "out.csv"
    assert (await qs("documents", "run", uuid, "-p", "n=8", "-p", "day=2026-02-03", "--to", str(to))).code == 0
    assert to.read_text() == "day,n\n2026-02-03,8\n"

    (tmp_path / "new.sql").write_text("SELECT 1 AS one")
    changed = await qs("documents", "save", "Daily sales", "-f", str(tmp_path / "new.sql"))
    assert changed.text == f"{uuid}  version 2\n", changed.err
    assert (await qs("documents", "show", "Daily sales")).text == "SELECT 1 AS one\n"
    assert (await qs("documents", "show", uuid, "--version", "1")).text == "SELECT :day AS day, :n AS n\n"
    shown = json.loads((await qs("documents", "show", uuid, "--json")).text)
    assert (shown["folder"], shown["tags"], shown["parameters"][0]) == ("/reports", ["sales"], DAY)

    listed = json.loads((await qs("documents", "list", "daily", "--folder", "/reports", "-o", "json")).text)
    assert [(one["uuid"], one["version"]) for one in listed] == [(uuid, 2)]
    shared = await qs("documents", "share", "Daily sales", "-u", reader.username, "-m", "edit")
    assert shared.text == f"edit  {reader.username}\n"
    assert (await qs("documents", "share", "Daily sales", "-u", reader.username, "-m", "none")).text == ""
    assert (await qs("documents", "share", "Daily sales")).code == 2

    twice = await qs("documents", "give", reader.username, "Daily sales", "--from", reader.username)
    assert (twice.code, (await qs("documents", "give", reader.username)).code) == (2, 2)
    away = await qs("documents", "save", "Away", "SELECT 1")
    given = await qs("documents", "give", reader.username, "Away", "--keep", "run")
    assert given.text == f"1 document now belongs to {reader.username}.\n", given.err
    assert away.code == 0
    assert json.loads((await qs("documents", "show", "Away", "--json")).text)["permission"] == "run"

    assert (await qs("documents", "delete", "Daily sales")).code == 0
    gone = await qs("documents", "show", "Daily sales")
    assert (gone.code, "no document named Daily sales" in gone.err) == (2, True)
    assert (await qs("documents", "restore", "Daily sales")).code == 0
    assert (await qs("documents", "delete", uuid, "--skip-trash")).code == 0
    assert (await qs("documents", "show", uuid)).code == 1


async def test_qs_moves_reverts_and_writes_into_files(server: Server, make: Make, folder: str):
    qs = make(QUERYSERVER_URL=server.url, QUERYSERVER_TOKEN=await server.token())
    for number in (1, 2):
        assert (await qs("saved", "save", "old", f"SELECT {number} AS n", "-c", "duckdb")).code == 0
    assert [one["version"] for one in (await qs("saved", "versions", "old")).records] == ["2", "1"]
    reverted = await qs("saved", "revert", "old", "1")
    assert reverted.text.endswith("  version 3\n"), reverted.err
    assert (await qs("saved", "show", "old")).text == "SELECT 1 AS n\n"
    assert (await qs("saved", "revert", "old", "9")).code == 1
    assert (await qs("saved", "move", "old", "/x/y")).code == 0
    listed = (await qs("saved", "list", "--folder", "/x/y", "--type", "duckdb")).records
    assert [one["name"] for one in listed] == ["old"]
    assert (await qs("saved", "list", "--type", "hive")).records == []

    wrote = await qs("saved", "run", "old", "--into", f"{folder}/a.csv")
    assert (wrote.code, wrote.text.startswith(f"{folder}/a.csv: 1 row")) == (0, True), wrote.err
    assert (await qs("cat", f"{folder}/a.csv")).text == "n\n1\n"
    again = await qs("saved", "run", "old", "--into", f"{folder}/a.csv")
    assert (again.code, "exists" in again.err) == (1, True)
    assert (await qs("saved", "run", "old", "--into", f"{folder}/a.csv", "--if-exists", "replace")).code == 0
    for wrong in (["--if-exists", "replace"], ["--into", "here.csv"], ["--into", f"{folder}/b.csv", "-o", "csv"]):
        assert (await qs("saved", "run", "old", *wrong)).code == 2


async def test_qs_reads_stdin_and_the_history(server: Server, make: Make):
    qs = make(QUERYSERVER_URL=server.url, QUERYSERVER_TOKEN=await server.token())
    piped = await qs("documents", "save", "piped", "-", "-c", "duckdb", stdin="SELECT 2 AS two")
    assert piped.code == 0, piped.err
    assert (await qs("documents", "run", "piped")).text == "two\n2\n"
    assert (await qs("sql", "duckdb", "SELECT 3 AS three")).code == 0
    entry = json.loads((await qs("history", "-n", "1", "-o", "json")).text)[0]
    assert (await qs("documents", "save", "kept", "--from", entry["id"])).code == 0
    assert (await qs("documents", "show", "kept")).text == "SELECT 3 AS three\n"
    assert (await qs("documents", "save", "odd", "SELECT :b", "-p", "b:boolean=ja")).code == 2
    for _ in range(2):
        await qs("documents", "save", "twin", "SELECT 1")
    assert json.loads((await qs("documents", "list", "twin", "-o", "json")).text)[0]["version"] == 1
    wrong = await qs("documents", "save", "wrong", "SELECT wrong", "-c", "duckdb")
    assert wrong.code == 0
    failed = await qs("documents", "run", "wrong")
    assert (failed.code, "wrong" in failed.err) == (1, True)


async def test_own_documents_come_before_shared_ones_of_the_same_name(server: Server, make: Make, db: Connection):
    reader = await server.api.user("reader")
    token = reader.headers["Authorization"].removeprefix("Bearer ")
    qs = make(QUERYSERVER_URL=server.url, QUERYSERVER_TOKEN=token)
    theirs = await db.documents.save("Report", "SELECT 'theirs' AS text", connector="duckdb")
    await db.documents.share(theirs["uuid"], "edit", users=[reader.username])
    assert (await qs("documents", "run", "Report")).text == "text\ntheirs\n"
    second = await db.documents.save("Report", "SELECT 2 AS n", connector="duckdb")
    await db.documents.share(second["uuid"], "edit", users=[reader.username])
    several = await qs("documents", "run", "Report")
    assert (several.code, "several documents are named Report" in several.err) == (2, True)
    async with connect(server.url, token=token) as mine:
        await mine.documents.save("Report", "SELECT 'own' AS text", connector="duckdb")
    assert (await qs("documents", "run", "Report")).text == "text\nown\n"
    assert (await qs("documents", "save", "Report", "SELECT 3 AS n")).text.endswith("version 2\n")
    assert (await db.documents.get(theirs["uuid"]))["version"] == 1


async def test_run_may_be_answered_with_a_stored_result(server: Server, make: Make, db: Connection):
    made = await db.documents.save("random", "SELECT random() AS n", connector="duckdb")
    first = await db.documents.run(made["uuid"], max_age=3600)
    again = await db.documents.run(made["uuid"], max_age=3600)
    assert (await again.statement.status()).reused_from == first.operation_id
    qs = make(QUERYSERVER_URL=server.url, QUERYSERVER_TOKEN=await server.token())
    await qs("documents", "save", "chance", "SELECT random() AS n", "-c", "duckdb")
    printed = [(await qs("documents", "run", "chance", "--max-age", "3600")).text for _ in range(2)]
    assert (printed[0], printed[0][:2]) == (printed[1], "n\n")
    assert (await qs("documents", "run", "chance")).text != printed[0]
