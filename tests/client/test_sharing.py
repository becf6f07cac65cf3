"""Results shared with other users: `share`, `shared_with_me`, `open_shared`, `qs share` (Contract sharing)."""

import asyncio
import datetime as dt
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from tests.client.conftest import QUICK, Server
from tests.client.shell import Make, Qs
from tests.client.test_readme import blocks, run

from queryserver_client import Connection, NotFound, PermissionDenied, connect, connect_sync

pytestmark = pytest.mark.sharing(23)


@dataclass(frozen=True)
class Reader:
    name: str
    group: str
    token: str
    db: Connection


@pytest.fixture
async def reader(server: Server) -> AsyncIterator[Reader]:
    group = f"analysts-{uuid4()}"  # other tests must not share results with this reader
    caller = await server.api.user("reader", groups=(group,))
    token = caller.headers["Authorization"].removeprefix("Bearer ")
    async with connect(server.url, token=token, retries=QUICK) as db:
        yield Reader(caller.username, group, token, db)


async def test_readme_example_runs(db: Connection, reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("python sharing")
    names = {"db": db, "other": reader.db, "reader": reader.name, "group": reader.group}
    await run(example.replace('"analysts"', "group"), names)
    printed = capsys.readouterr().out
    assert "Sales of May" in printed
    assert printed.endswith("[(7,)]\n")


async def test_shared_result_is_read_in_pages_and_as_a_file(db: Connection, reader: Reader, target) -> None:
    statement = await db.submit("duckdb", "SELECT i AS n FROM range(25000) AS r(i)")
    await statement.wait()
    until = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(hours=5)
    found = await statement.share(users=[reader.name], until=until, title="Numbers")
    assert (found.changed, found.share_results) == (1, "users_of_connector")
    assert [(one.user, one.title, one.until) for one in found.entries] == [(reader.name, "Numbers", until)]
    (shared,) = [one async for one in reader.db.shared_with_me()]
    assert (shared.operation_id, shared.title, shared.rows) == (statement.operation_id, "Numbers", 25000)
    result = await (await reader.db.open_shared(found.link)).result()
    assert [row[0] for row in await result.rows()] == list(range(25000))
    assert (await result.download(target / "n.csv")).read_text().count("\n") == 25001
    assert [one.user for one in (await statement.shares()).entries] == [reader.name]
    async with result:
        pass
    assert (await statement.result()).row_count == 25000, "a reader deletes nothing"
    assert (await statement.unshare()).changed == 1
    for call in (reader.db.open_shared(found.link), reader.db.open_shared(statement.operation_id)):
        with pytest.raises(NotFound):
            await call
    assert [one async for one in reader.db.shared_with_me()] == []


async def test_what_the_connector_does_not_permit_is_refused(db: Connection, reader: Reader) -> None:
    stranger = connect(db.transport.url, token=reader.token)
    async with stranger:
        statement = await db.submit("duckdb", "SELECT 1")
        with pytest.raises(NotFound):
            await stranger.statement(statement.operation_id).share(users=["x"])
        with pytest.raises(NotFound, match="does not exist"):
            await statement.share(groups=["no such group"])
        source = await statement.result()
        await statement.share(users=[reader.name])
        derived = await stranger.submit("duckdb", "FROM {x}", results={"x": source.operation_id})
        await derived.wait()
        with pytest.raises(PermissionDenied, match="another user"):
            await derived.share(groups=[reader.group])


async def test_synchronous_connection_shares_and_opens(server: Server, reader: Reader) -> None:
    token = await server.token()

    def shared() -> list[tuple[int, ...]]:
        with connect_sync(server.url, token=token) as db, connect_sync(server.url, token=reader.token) as other:
            statement = db.submit("duckdb", "SELECT 5 AS n")
            link = statement.share(users=[reader.name]).link
            assert [one.operation_id for one in other.shared_with_me(limit=1)] == [statement.operation_id]
            rows = other.open_shared(link).result().rows()
            assert [one.user for one in statement.shares().entries] == [reader.name]
            assert statement.unshare(users=[reader.name]).changed == 1
            return rows

    assert await asyncio.to_thread(shared) == [(5,)]


async def test_qs_prints_stored_and_shared_results(
    server: Server, qs: Qs, make: Make, reader: Reader, tmp_path: Path
) -> None:
    theirs = make(QUERYSERVER_URL=server.url, QUERYSERVER_TOKEN=reader.token)
    kept = (await qs("sql", "duckdb", "SELECT 7 AS n", "--keep")).err.strip().removeprefix("kept: ")
    for _ in range(2):
        assert (await qs("result", kept[:8])).text == "n\n7\n"
    assert (await theirs("result", kept)).code == 1
    link = (await qs("share", kept, "-u", reader.name)).text.strip()
    file = tmp_path / "shared.csv"
    written = await theirs("result", link, "--to", str(file))
    assert (written.code, file.read_bytes()) == (0, b"n\r\n7\r\n"), written.err
    assert json.loads((await theirs("result", kept, "-o", "json")).text) == [{"n": 7}]
    assert (await qs("sql", "duckdb", "CREATE OR REPLACE TABLE no_rows (n INT)")).code == 0
    entry = (await qs("history", "-n", "1")).records[0]["id"]
    assert (await qs("result", entry)).code == 2


async def test_qs_shares_lists_and_ends(server: Server, qs: Qs, make: Make, reader: Reader) -> None:
    theirs = make(QUERYSERVER_URL=server.url, QUERYSERVER_TOKEN=reader.token)
    kept = (await qs("sql", "duckdb", "SELECT 7 AS n", "--keep")).err.strip().removeprefix("kept: ")
    printed = await qs("share", kept[:8], "-u", reader.name, "--until", "12h", "-t", "Seven")
    assert (printed.code, printed.text) == (0, f"{server.url}/api/v1/editor/results/{kept}\n"), printed.err
    (listed,) = (await theirs("shares")).records
    assert (listed["id"], listed["title"], listed["rows"]) == (kept, "Seven", "1")
    for given in (kept, kept[:8]):  # a list on a terminal shows eight characters
        read = await theirs("sql", "duckdb", "SELECT n + 1 AS n FROM {x}", "-r", f"x={given}")
        assert (read.code, read.text) == (0, "n\n8\n"), read.err
    for given in (kept, kept[:8], printed.text.strip()):
        for caller in (qs, theirs):
            shown = await caller("result", given)
            assert (shown.code, shown.text) == (0, "n\n7\n"), shown.err
    assert "0 recent statements or shared results" in (await theirs("result", "0000-0000")).err
    (reading,) = (await qs("shares", kept)).records
    assert (reading["user"], reading["group"]) == (reader.name, "")
    ended = await qs("unshare", kept, "-u", reader.name)
    assert (ended.code, ended.text) == (0, "1 share ended\n")
    gone = await theirs("result", kept)
    assert (gone.code, f"Operation {kept} does not exist" in gone.err) == (1, True), gone.err
    assert (await theirs("shares")).records == []
    for words in (("share", kept), ("share", kept, "-u", reader.name, "--until", "soon")):
        assert (await qs(*words)).code == 2
    assert (await qs("share", kept, "-u", "nobody-here")).code == 1
