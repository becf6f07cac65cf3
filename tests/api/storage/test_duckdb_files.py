"""DuckDB reads and writes files in stores (Contract editor 4.7). Its process cannot access the files directly."""

import asyncio
import random
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import duckdb
import pytest
from tests.api.driving import Caller, open_api
from tests.api.storage.conftest import Files, storage_settings
from tests.api.storage.test_statement_files import program_of, session_of, with_home
from tests.api.storage.worlds import memory_stores

from queryserver.files.build import BUILDERS
from queryserver.files.protocol import FileSystem
from queryserver.platform.settings.tree import Settings


def _given(store: FileSystem, _: Settings) -> FileSystem:
    return store


@pytest.fixture(scope="module")
async def files(tmp_path_factory: pytest.TempPathFactory, module_database_dsn: str) -> AsyncIterator[Files]:
    directory = tmp_path_factory.mktemp("duckdb-files")
    databases = directory / "databases"
    databases.mkdir()
    duckdb.connect(databases / "other.duckdb").close()
    tables: dict[str, Any] = {
        "notebook": {
            "interpreters": {
                "duck": {"interface": "duckdb", "options": {"path": "own.duckdb", "threads": 4}},
                "pond": {"interface": "duckdb", "options": {"path": ":memory:"}},
                "frozen": {"interface": "duckdb", "options": {"path": "other.duckdb"}, "read_only": True},
            }
        },
        "editor": {"cancel_wait_s": 30},
    }
    settings = storage_settings(
        directory,
        module_database_dsn,
        tables=tables,
        ozone={"default": {"fs_defaultfs": "ofs://service"}},
        desktop={"connector_policy": {"local_database_dir": databases}},
    )
    stores = {**BUILDERS, **{scheme: partial(_given, store) for scheme, store in memory_stores().items()}}
    async with open_api(settings, stores=stores) as api:
        yield Files(api, directory / "files")


@pytest.fixture
async def ana(files: Files) -> Caller:
    return await owner(files, "ana")


@pytest.fixture
async def bob(files: Files) -> Caller:
    return await owner(files, "bob")


async def owner(files: Files, name: str) -> Caller:
    """Create a user whose home directory contains a table in several files. Each row contains the username."""
    caller = await with_home(files, name)
    home = files.root / "user" / caller.username
    for number in range(3):
        (home / f"{number}.csv").write_text("owner,n\n" + "".join(f"{caller.username},{n}\n" for n in range(2_000)))
    return caller


def home(caller: Caller, scheme: str = "local") -> str:
    return f"{scheme}:///user/{caller.username}"


async def rows(caller: Caller, statement: str, dialect: str = "duck", **fields: Any) -> list[list[Any]]:
    body = await caller.run(dialect, statement, **fields)
    assert body["status"] == 0, body
    return (await caller.page(body["history_uuid"], rows=10_000))["data"]


async def refusal(caller: Caller, statement: str, dialect: str = "duck", **fields: Any) -> str:
    body = await caller.run(dialect, statement, **fields)
    assert body["status"] == 1, body
    return f"{body['code']} {body['message']}"


@pytest.mark.parametrize("dialect", ["duck", "pond"])
async def test_statements_read_and_write_files(ana: Caller, dialect: str) -> None:
    assert await rows(ana, f"SELECT count(*), min(owner) FROM '{home(ana)}/*.csv'", dialect) == [[6000, ana.username]]
    made = f"{home(ana)}/{dialect}.parquet"
    assert await ana.run(dialect, f"COPY (FROM '{home(ana)}/0.csv') TO '{made}'")
    assert await rows(ana, f"SELECT count(*), sum(n)::INT FROM '{made}'", dialect) == [[2000, 1999000]]
    assert (await refusal(ana, f"FROM '{home(ana)}/nothing.csv'", dialect)).startswith(
        f"path_not_found {home(ana)}/nothing.csv"
    )
    assert await rows(
        ana, f"SELECT DISTINCT filename FROM read_csv('{home(ana)}/0.csv', filename = true)", dialect
    ) == [[f"{home(ana)}/0.csv"]]


async def test_users_sharing_a_database_read_only_their_own_files(ana: Caller, bob: Caller):
    async def reads(caller: Caller, other: Caller, seed: int, **fields: Any) -> int:
        chance, refused = random.Random(seed), 0
        for _ in range(12):
            who = chance.choice([caller, caller, other])
            path = f"{home(who)}/{chance.choice(['*', '0', '1', '[02]'])}.csv"
            statement = chance.choice([
                f"SELECT DISTINCT owner FROM '{path}'",
                f"SELECT owner FROM read_csv(['{path}', '{path}']) WHERE n = 7 GROUP BY owner",
                f"SELECT DISTINCT left(split(content, chr(10))[2], {len(who.username)}) FROM read_text('{path}')",
            ])  # fmt: skip
            if who is caller:
                assert await rows(caller, statement, **fields) == [[caller.username]]
            else:
                assert (await refusal(caller, statement, **fields)).startswith("permission_denied local:///user/")
                refused += 1
        return refused

    sessions = [await session_of(caller, "duck") for caller in (ana, bob)]
    refused = await asyncio.gather(
        reads(ana, bob, 1),
        reads(bob, ana, 2),
        reads(ana, bob, 3, session_id=sessions[0]),
        reads(bob, ana, 4, session_id=sessions[1]),
    )
    assert sum(refused) > 8


async def test_views_and_macros_read_files_with_the_callers_rights(ana: Caller, bob: Caller):
    name = f"v{ana.username}".replace("-", "_")
    await rows(ana, f"CREATE VIEW {name} AS FROM '{home(ana)}/*.csv'")
    await rows(ana, f"CREATE MACRO m{name}(path) AS TABLE FROM read_csv(path)")
    assert await rows(ana, f"SELECT count(*) FROM {name}") == [[6000]]
    assert (await refusal(bob, f"FROM {name}")).startswith("permission_denied ")
    assert (await refusal(bob, f"FROM m{name}('{home(ana)}/0.csv')")).startswith("permission_denied ")
    assert await rows(bob, f"SELECT count(*) FROM m{name}('{home(bob)}/0.csv')") == [[2000]]


async def test_api_tokens_need_file_scopes(ana: Caller):
    reader = await program_of(ana, "query", "files:read")
    assert await rows(reader, f"SELECT count(*) FROM '{home(ana)}/0.csv'") == [[2000]]
    refused = await refusal(reader, f"COPY (SELECT 1) TO '{home(ana)}/new.csv'")
    assert refused == (
        f"permission_denied {home(ana)}/new.csv: The API token of this statement lacks the scope files:write."
    )
    blind = await program_of(ana, "query")
    assert "lacks the scope files:read" in await refusal(blind, f"FROM '{home(ana)}/0.csv'")


async def test_storage_calls_see_files_written_by_statements(files: Files, ana: Caller, bob: Caller):
    path = f"user/{ana.username}/parts"
    await rows(
        ana, f"COPY (SELECT range n, range % 3 AS k FROM range(9)) TO 'local:///{path}' (FORMAT csv, PARTITION_BY (k))"
    )
    listed = await ana.get("storage/list", path=f"file:///{path}/k=1")
    assert [entry["name"] for entry in listed.json()["files"]] == ["data_0.csv"]
    assert (files.root / path / "k=1/data_0.csv").read_text() == "n\n1\n4\n7\n"
    assert await rows(ana, f"SELECT sum(n)::INT, k FROM 'local:///{path}/**/*.csv' GROUP BY k ORDER BY k") == [
        [9, 0],
        [12, 1],
        [15, 2],
    ]
    denied = await refusal(bob, f"COPY (SELECT 1) TO '{home(ana)}/new.csv'")
    assert denied.startswith(f"permission_denied {home(ana)}/new.csv: ")
    assert not (files.root / "user" / ana.username / "new.csv").exists()


async def test_read_only_connector_reads_but_never_writes_files(ana: Caller):
    assert await rows(ana, f"SELECT count(*) FROM '{home(ana)}/0.csv'", "frozen") == [[2000]]
    assert (await refusal(ana, f"COPY (SELECT 1) TO '{home(ana)}/new.csv'", "frozen")).startswith("rejected ")


async def test_canceled_copy_leaves_no_files(files: Files, ana: Caller):
    rows_without_end = "SELECT a.range, hash(a.range, b.range) FROM range(1_000_000_000) a, range(100) b"
    endless = f"COPY ({rows_without_end}) TO '{home(ana)}/big.csv'"
    operation = (await ana.execute("duck", endless))["history_uuid"]
    unfinished = "select count(*) from unfinished_writes where directory = $1"
    while not await files.api.database.value(unfinished, f"user/{ana.username}"):  # noqa: ASYNC110 no event
        await asyncio.sleep(0.05)
    await ana.on(operation, "cancel_statement")
    assert (await ana.ended(operation))["query_status"]["state"] == "canceled"
    assert sorted(one.name for one in (files.root / "user" / ana.username).iterdir()) == [
        "0.csv",
        "1.csv",
        "2.csv",
        "own",
    ]
    assert await rows(ana, "SELECT 1") == [[1]]


async def test_audit_log_names_the_files(ana: Caller, bob: Caller, audited: list[dict[str, Any]]):
    audited.clear()
    await rows(ana, f"SELECT count(*) FROM '{home(ana)}/[01].csv'")
    await refusal(bob, f"FROM '{home(ana)}/0.csv'")
    await rows(ana, f"COPY (SELECT 1) TO '{home(ana)}/new.csv'")
    found = [event for event in audited if event["operation"].startswith("statement.") and "path" in event]
    events = {(event["operation"], event["user"], event["path"], event["outcome"]) for event in found}
    mine = home(ana, "file")
    assert ("statement.read", ana.username, f"{mine}/0.csv", "ok") in events
    assert ("statement.read", ana.username, f"{mine}/1.csv", "ok") in events
    assert ("statement.write", ana.username, f"{mine}/new.csv", "ok") in events
    assert {outcome for _, user, _, outcome in events if user == bob.username} == {"permission_denied"}


async def test_files_of_every_store_are_read_and_written(ana: Caller):
    for number, folder in enumerate(("s3a://lake", "s3://lake", "abfs://box", "ofs://service/volume/bucket")):
        path = f"{folder}/t{number}.parquet"
        await rows(ana, f"COPY (SELECT range n FROM range(1000)) TO '{path}'")
        assert await rows(ana, f"SELECT count(*), sum(n)::INT FROM '{path}'") == [[1000, 499500]]
        assert (await rows(ana, f"FROM glob('{folder}/t{number}.*')")) == [[path]]
    await rows(ana, f"COPY (SELECT 5 n) TO 'hdfs:///{ana.username}.csv'")
    assert await rows(ana, f"FROM 'hdfs:///{ana.username}.csv'") == [[5]]


@pytest.mark.sharing(21)
@pytest.mark.parametrize("dialect", ["duck", "pond"])
async def test_results_with_rows_of_files_cannot_be_shared(ana: Caller, bob: Caller, dialect: str):
    async def code(statement: str, **fields: Any) -> str | None:
        """Run a statement, share its result, and return the code of the response."""
        body = await ana.run(dialect, statement, **fields)
        answer = await ana.post("editor/share_result", operationId=body["history_uuid"], users=bob.username)
        return answer.json().get("code")

    session = await session_of(ana, dialect)
    assert await code("SELECT 1 AS n", session_id=session) is None
    assert await code(f"FROM '{home(ana)}/0.csv'") == "sharing_not_allowed"
    assert await code(f"FROM glob('{home(ana)}/*')") == "sharing_not_allowed"
    await rows(ana, f"SELECT count(*) FROM '{home(ana)}/0.csv'", dialect, session_id=session)
    assert await code("SELECT 1 AS n", session_id=session) == "sharing_not_allowed"
    assert await code("SELECT 1 AS n") is None
