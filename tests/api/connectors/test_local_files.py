"""Stored DuckDB and SQLite connectors can access only their own file (Contract platform 5.11)."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.api.conftest import ApiOpener
from tests.api.connectors.driving import ConnectorAdmin, listed
from tests.api.driving import Caller

_numbers = count(1)
_PLANTED = "planted-outside"


@dataclass(frozen=True, slots=True)
class FileServer:
    """A server with local databases, its administrator, and its database directory."""

    admin: ConnectorAdmin
    databases: Path

    @property
    def caller(self) -> Caller:
        """The administrator as a caller, who may use the connectors of these tests."""
        return self.admin.caller

    async def new(self, dialect: str, path: str, **settings: Any) -> str:
        name = f"Files {next(_numbers)}"
        return (await self.admin.create(name, dialect, dialect, path=path, **settings))["id"]

    async def fails(self, connector: str, statement: str) -> str:
        """Run a statement that must fail; return its message."""
        body = await self.caller.run(connector, statement)
        assert body["status"] != 0, body
        assert _PLANTED not in str(body)
        return body["message"]

    async def rows(self, connector: str, statement: str) -> list[list[Any]]:
        return (await self.caller.result(connector, statement))["data"]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory outside the database directory. Responses may contain its path only where they repeat a statement."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="beside") as directory:
        (Path(directory) / "secret.csv").write_text(f"a\n{_PLANTED}\n")
        yield Path(directory)


def names_in(directory: Path) -> list[str]:
    return sorted(one.name for one in directory.iterdir())


@pytest.fixture
async def place(small_api: ApiOpener, tmp_path: Path) -> AsyncIterator[FileServer]:
    async with small_api(lease_timeout_s=3) as api:
        yield FileServer(await ConnectorAdmin.of(api), tmp_path / "databases")


@pytest.mark.platform(77)
@pytest.mark.security("T7")
@pytest.mark.parametrize("dialect", ["duckdb", "sqlite"])
@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../secret.csv",
        "a/../../secret.csv",
        "./x.db",
        "a//b.db",
        "file:x.db?mode=memory",
        "a\\..\\x.db",
        "md:cloud",
        "https://example.org/x.db",
        "~/x.db",
        "~",
        "no-such-folder/x.db",
    ],
)
async def test_paths_outside_the_directory_are_not_stored(admin: ConnectorAdmin, dialect: str, path: str) -> None:
    status, code, errors = await admin.refused(
        {
            "nice_name": "Elsewhere",
            "dialect": dialect,
            "interface": dialect,
            "settings": [{"name": "path", "value": path}],
        }
    )
    assert (status, code, list(errors)) == (400, "validation_failed", ["path"])


@pytest.mark.platform(77)
@pytest.mark.parametrize("dialect", ["duckdb", "sqlite"])
async def test_links_are_not_followed(place: FileServer, directory: Path, dialect: str) -> None:
    (place.databases / f"{dialect}.linked").symlink_to(directory / "secret.csv")
    (place.databases / f"{dialect}-dir").symlink_to(directory)
    for path in (f"{dialect}.linked", f"{dialect}-dir/new.db"):
        message = await place.fails(await place.new(dialect, path), "SELECT 1")
        assert str(directory) not in message
    assert names_in(directory) == ["secret.csv"]


@pytest.mark.platform(77)
@pytest.mark.security("T24")
@pytest.mark.parametrize(
    ("dialect", "statements"),
    [
        (
            "duckdb",
            [
                "SELECT * FROM read_csv('{outside}')",
                "SELECT * FROM '{outside}'",
                "SELECT content FROM read_text('{outside}')",
                "SELECT * FROM read_blob('../secret.csv')",
                "SELECT * FROM glob('/*')",
                "CREATE TABLE t AS SELECT * FROM read_csv_auto('{outside}')",
                "COPY (SELECT 1) TO '{outside}.out'",
                "EXPORT DATABASE '{outside}.dir'",
                "IMPORT DATABASE '{outside}.dir'",
                "ATTACH '{outside}.db' AS other",
                "ATTACH 'beside.db' AS other",
                "INSTALL httpfs",
                "LOAD '{outside}'",
                "SET enable_external_access = true",
                "SET allowed_directories = ['/']",
                "RESET lock_configuration",
                "SET temp_directory = '/tmp'",
                "CREATE SECRET (TYPE s3)",
            ],
        ),
        (
            "sqlite",
            [
                "ATTACH '{outside}' AS other",
                "ATTACH 'file:{outside}?mode=ro' AS other",
                "ATTACH 'beside.db' AS other",
                "VACUUM INTO '{outside}.out'",
                "SELECT load_extension('{outside}')",
                "SELECT readfile('{outside}')",
                "SELECT writefile('{outside}.out', 'x')",
                "PRAGMA temp_store_directory = '/tmp'",
                "PRAGMA writable_schema = 1",
                "CREATE VIRTUAL TABLE v USING csv(filename='{outside}')",
            ],
        ),
    ],
)
async def test_statements_cannot_reach_another_file(place, directory, dialect, statements):
    for path in (f"own.{dialect}", ":memory:"):
        if dialect == "sqlite" and path != ":memory:":
            (place.databases / path).touch()
        connector = await place.new(dialect, path)
        for statement in statements:
            await place.fails(connector, statement.format(outside=directory / "secret.csv"))
    assert names_in(directory) == ["secret.csv"]


@pytest.mark.platform(73)
@pytest.mark.parametrize("dialect", ["duckdb", "sqlite"])
async def test_connection_test_creates_no_file(place: FileServer, dialect: str) -> None:
    file = f"unborn.{dialect}"
    given = {"dialect": dialect, "interface": dialect, "settings": listed({"path": file})}
    body = await place.caller.post_ok("connector/instance/test", connector=json.dumps(given))
    assert body["ok"]
    assert "does not exist yet" in body["warnings"]
    assert file not in names_in(place.databases)
    connector = await place.new(dialect, file)
    assert (await place.caller.run(connector, "CREATE TABLE t (a int)"))["status"] == 0
    body = await place.caller.post_ok("connector/instance/test", connector=json.dumps({"id": connector}))
    assert (body["ok"], body["warnings"]) == (True, "")


async def test_connectors_sharing_a_duckdb_file_see_the_same_tables(place: FileServer) -> None:
    one, other = await place.new("duckdb", "shared.db"), await place.new("duckdb", "shared.db")
    assert (await place.caller.run(one, "CREATE TABLE t AS SELECT range AS a FROM range(10)"))["status"] == 0
    assert await place.rows(other, "SELECT count(*) FROM t") == [[10]]
    statements = [(one if number % 2 else other, f"INSERT INTO t VALUES ({100 + number})") for number in range(8)]
    done = await asyncio.gather(*(place.caller.run(connector, statement) for connector, statement in statements))
    assert [body["status"] for body in done] == [0] * 8
    assert await place.rows(one, "SELECT count(*) FROM t") == [[18]]


async def test_connectors_sharing_a_duckdb_file_with_different_settings_alternate(place: FileServer) -> None:
    writer = await place.new("duckdb", "turns.db")
    reader = await place.new("duckdb", "turns.db", read_only=True)
    assert (await place.caller.run(writer, "CREATE TABLE t (a int)"))["status"] == 0
    for number in range(3):
        assert (await place.caller.run(writer, f"INSERT INTO t VALUES ({number})"))["status"] == 0
        assert await place.rows(reader, "SELECT count(*) FROM t") == [[number + 1]]
        assert (await place.caller.run(reader, "DROP TABLE t"))["status"] != 0
    long = "SELECT count(*) FROM range(3000000000) r WHERE hash(range) = 1"
    under_way = (await place.caller.execute(writer, long))["history_uuid"]
    await place.caller.running(under_way)
    waiting = (await place.caller.execute(reader, "SELECT count(*) FROM t"))["history_uuid"]
    await asyncio.sleep(0.3)
    assert await place.caller.state(waiting) in {"waiting", "running"}
    await place.caller.on(under_way, "cancel_statement")
    assert (await place.caller.ended(waiting))["query_status"]["state"] == "available"
    assert (await place.caller.page(waiting))["data"] == [[3]]


async def test_changed_duckdb_connector_opens_the_new_file_while_the_old_file_is_in_use(place: FileServer) -> None:
    connector = await place.new("duckdb", "old.db")
    assert (await place.caller.run(connector, "CREATE TABLE t AS SELECT 1 AS a"))["status"] == 0
    session = (await place.caller.post_json("editor/create_session", session={"type": connector})).json()["session"][
        "id"
    ]
    shown = await place.admin.shown(connector)
    shown["settings"] = [{**one, "value": "new.db"} if one["name"] == "path" else one for one in shown["settings"]]
    await place.admin.send(shown)
    await place.fails(connector, "SELECT * FROM t")
    assert (await place.caller.run(connector, "CREATE TABLE n AS SELECT 2 AS a"))["status"] == 0
    kept = await place.caller.run(connector, "SELECT * FROM t", session_id=session)
    assert (await place.caller.page(kept["history_uuid"]))["data"] == [[1]]
    assert await place.rows(connector, "SELECT * FROM n") == [[2]]


async def test_server_holding_a_stored_duckdb_file_runs_its_statements(small_api, place):
    async with small_api(lease_timeout_s=3) as second:
        there = Caller(second, place.caller.username, place.caller.headers)
        connector = await place.new("duckdb", "held.db")
        assert (await place.caller.run(connector, "CREATE TABLE t AS SELECT 7 AS a"))["status"] == 0
        assert (await there.result(connector, "SELECT * FROM t"))["data"] == [[7]]
        owners = "select count(*) from engine_owners where connector = 'duckdb:held.db'"
        assert await second.database.value(owners) == 1
        assert [row[0] for row in (await there.result(connector, "SHOW TABLES"))["data"]] == ["t"]
