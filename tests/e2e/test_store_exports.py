"""The server is killed while it exports rows into files of real stores (Contract exports 2, 3, 5)."""

import csv
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.contract.store_accounts import s3_options
from tests.e2e.installation import TAKEN_OVER_WITHIN_S, Installation, Node, eventually, installed, query
from tests.engines.hdfs import HdfsCluster
from tests.engines.store_tables import hdfs_tables, s3_tables
from tests.engines.versitygw import S3Address

from queryserver.files.stores.s3.connection import S3Connection
from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROWS = 400_000
STATEMENT = f"SELECT i AS n, repeat(md5(i::text), 3) AS t FROM generate_series(1, {ROWS}) AS r(i)"
# In the list of columns, the series is not stored first.
ENDLESS = "SELECT i AS n, repeat(md5(i::text), 3) AS t FROM (SELECT generate_series(1, 100000000000) AS i) AS r"


@dataclass(frozen=True, slots=True)
class Store:
    """A directory on a real store."""

    home: str
    tables: Mapping[str, Any]
    names: Callable[[], list[str]]
    """Returns the names of all visible files, relative to the directory."""
    content: Callable[[str], bytes]
    writing: Callable[[], Awaitable[int]]
    """Returns the number of files that are being written."""

    def numbers(self) -> list[int]:
        """Return the first column of all files, sorted by name."""
        texts = [self.content(name).decode() for name in self.names()]
        return [int(row[0]) for text in texts for row in list(csv.reader(io.StringIO(text, newline="")))[1:]]


@pytest.fixture
async def place(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path
) -> AsyncIterator[Installation]:
    async with installed(postgres, migrated_template, tmp_path, {}) as place:
        yield place


@pytest.fixture
async def s3_store(s3_server: S3Address) -> AsyncIterator[Store]:
    bucket, connection = f"killed-{uuid4().hex}", S3Connection(s3_options(s3_server))
    client = await connection._open_client()
    await client.create_bucket(Bucket=bucket)

    async def writing() -> int:
        return len((await client.list_multipart_uploads(Bucket=bucket)).get("Uploads", ()))

    # The server keeps objects as files. Those that are being written are below directories that begin with a dot.
    top = s3_server.directory / bucket

    def names() -> list[str]:
        found = [str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()]
        return sorted(name for name in found if not name.startswith("."))

    yield Store(f"s3a://{bucket}", s3_tables(s3_server), names, lambda name: (top / name).read_bytes(), writing)
    await connection.close()


@pytest.fixture
def hdfs_store(hdfs_cluster: HdfsCluster) -> Store:
    home = f"/user/killed-{uuid4().hex}"
    hdfs_cluster.call("PUT", home, "MKDIRS")
    hdfs_cluster.call("PUT", home, "SETOWNER", owner="ana", group="ana")

    def all_names() -> list[str]:
        listed = hdfs_cluster.call("GET", home, "LISTSTATUS").json()["FileStatuses"]["FileStatus"]
        return [entry["pathSuffix"] for entry in listed]

    async def writing() -> int:
        return len([name for name in all_names() if name.startswith("._qs_")])

    def names() -> list[str]:
        return [name for name in all_names() if not name.startswith("._qs_")]

    def content(name: str) -> bytes:
        query = {"op": "OPEN", "user.name": "ana"}
        url = f"{hdfs_cluster.webhdfs_url}{home}/{name}"
        return httpx.get(url, params=query, follow_redirects=True, timeout=60).raise_for_status().content

    return Store(home, hdfs_tables(hdfs_cluster, hdfs_cluster.webhdfs_url), names, content, writing)


async def killed_during_exports(place: Installation, store: Store) -> None:
    """Kill a server while it writes the rows of a statement and of a stored result, and start another one."""
    place.add_tables(store.tables)
    async with place.server() as victim:
        source = await victim.finished("postgresql", STATEMENT)
        endless = await victim.submit("postgresql", ENDLESS, into=json.dumps({"path": f"{store.home}/into.csv"}))

        async def one_is_written() -> bool:
            return await store.writing() == 1

        async def both_are_written() -> bool:
            return await store.writing() == 2

        await eventually(one_is_written)
        stored = await begun(victim, source, path=f"{store.home}/stored.csv")
        await victim.process.kill9_in(both_are_written)
    assert store.names() == []
    async with place.server() as after:
        body = await after.status(stored, wait=TAKEN_OVER_WITHIN_S + 30)
        assert body["query_status"]["state"] == "available", body
        body = await after.status(endless, wait=TAKEN_OVER_WITHIN_S)
        assert (body["query_status"]["state"], body["code"]) == ("failed", "outcome_unknown"), body
        assert store.names() == ["stored.csv"]
        assert store.numbers() == list(range(1, ROWS + 1))
        # The sweep removes the remains of the killed server later.
        left = "select array_agg(distinct name) from unfinished_writes"
        assert set(await query(place.database_dsn, left)) == {"into.csv", "stored.csv"}


async def begun(node: Node, source: str, **fields: str) -> str:
    """Start an export of a stored result; return its operation id."""
    sent = {"operationId": source, **fields}
    answer = await node.http.post("/api/v1/editor/export_result", data=sent, headers=node.headers())
    assert answer.status_code == 202, answer.text
    return answer.json()["history_uuid"]


@pytest.mark.engine("s3")
@pytest.mark.exports(10, 29)
async def test_killed_exports_to_s3_leave_a_whole_file_or_none(place: Installation, s3_store: Store) -> None:
    await killed_during_exports(place, s3_store)


@pytest.mark.engine("hdfs")
@pytest.mark.exports(10, 29)
async def test_killed_exports_to_hdfs_leave_a_whole_file_or_none(place: Installation, hdfs_store: Store) -> None:
    await killed_during_exports(place, hdfs_store)


@pytest.mark.engine("s3")
@pytest.mark.exports(10, 14)
async def test_folder_whose_parts_were_being_moved_becomes_whole(place: Installation, s3_store: Store) -> None:
    place.add_tables(s3_store.tables)
    parts = 100

    async def shows_some_parts() -> bool:
        return 0 < len(s3_store.names()) < parts

    async with place.server() as victim:
        source = await victim.finished("postgresql", STATEMENT)
        fields = {"path": f"{s3_store.home}/out", "format": "csv", "split_rows": str(ROWS // parts)}
        operation = await begun(victim, source, **fields)
        await victim.process.kill9_in(shows_some_parts)
    assert "out/_SUCCESS" not in s3_store.names()
    async with place.server() as after:
        body = await after.status(operation, wait=60)
        assert body["query_status"]["state"] == "available", body
        names = [f"out/part-{number:05}.csv" for number in range(parts)]
        assert s3_store.names() == ["out/_SUCCESS", *names]
        assert s3_store.content("out/_SUCCESS") == b""
        assert s3_store.numbers() == list(range(1, ROWS + 1))
