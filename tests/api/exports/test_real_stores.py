"""Exports into files of real stores (Contract exports 2 to 6)."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from tests.api.documents.calls import save
from tests.api.driving import Api, Caller, open_api, until
from tests.api.exports.test_files import ROWS, exported, refused, unpacked, written
from tests.api.exports.test_scheduled_exports import fired, scheduled
from tests.api.storage.conftest import storage_settings
from tests.api.test_download import PLAIN, finished, rows_of
from tests.contract.store_accounts import flat_account, s3_options
from tests.engines.hdfs import HdfsCluster
from tests.engines.servers import HttpAddress
from tests.engines.store_tables import flat_azure_tables, hdfs_tables, s3_tables
from tests.engines.versitygw import S3Address

from queryserver.files.folder_writes import SUCCESS_NAME
from queryserver.files.stores.adls.flat import BlobCalls
from queryserver.files.stores.adls.http import AzureCall, AzureClient
from queryserver.files.stores.s3.connection import S3Connection

_BUCKET = "exports"
_ENDLESS = "SELECT i, md5(i::VARCHAR) AS t FROM range(100000000000) r(i)"
_numbers = count(1)

Listing = Callable[[str], Awaitable[list[str]]]


async def _none(_folder: str) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Site:
    """An application with one real store. `ana` may write below `home`.

    `stored` returns the names of all files below a directory, relative to it, as an external program finds them: also
    files with reserved names. `unfinished` returns the names of multipart uploads that have not ended.
    """

    ana: Caller
    home: str
    stored: Listing
    denied: tuple[str, str]
    """The path of a file that the user cannot write, and the code of an export to it."""
    unfinished: Listing = _none
    uncommitted: Listing = _none
    """Like `unfinished`, for uploads that the store itself removes a week later."""
    shows_parts: bool = False
    """Whether the parts of a folder appear one by one, so that a marker follows them."""

    async def folder(self) -> str:
        """Create a directory; return its path in normal form."""
        path = f"{self.home}/folder{next(_numbers)}"
        made = await self.ana.post("storage/mkdir", path=path)
        assert made.status_code == 201, made.text
        return path

    async def content(self, path: str) -> bytes:
        answer = await self.ana.get("storage/download", path=path)
        assert answer.status_code == 200, answer.text
        return answer.content

    def parts(self, folder: str, extension: str, number: int) -> list[str]:
        """Return the names of the files in a complete folder of parts."""
        marker = [f"{folder}/{SUCCESS_NAME}"] if self.shows_parts else []
        return [*marker, *(f"{folder}/part-{one:05}.{extension}" for one in range(number))]


async def denial(caller: Caller, call: str, **fields: str) -> str:
    """Make a call that starts an export, which must fail; return the code.

    Stores that check permissions themselves, such as HDFS, deny the access only when the export begins to write.
    """
    answer = await caller.post(call, **fields)
    if answer.status_code in {200, 202}:
        return (await caller.ended(answer.json()["history_uuid"]))["code"]
    return answer.json()["code"]


class FormatsContract:
    """The formats of files on one store. A subclass provides the fixture `site`."""

    @pytest.mark.exports(1, 2)
    async def test_every_format_equals_the_download(self, site: Site):
        folder, operation = await site.folder(), await finished(site.ana, "duckdb", ROWS.format(2_000))
        names = ["a.csv", "b.tsv.gz", "c.ndjson.zst", "d.xlsx", "e.parquet", "f.arrow", "g.feather"]
        for name in names:
            found = await exported(site.ana, operation, f"{folder}/{name}")
            content, kind = await site.content(f"{folder}/{name}"), name.split(".")[1]
            assert (found["rows"], found["files"], found["bytes"]) == (2_000, 1, len(content))
            download = await site.ana.get(f"editor/download/{operation}", format=kind, headers=PLAIN)
            if kind == "xlsx":
                assert rows_of(kind, content) == rows_of(kind, download.content)
            else:
                assert unpacked(name, content) == download.content
        assert await site.stored(folder) == names


class RealStoreContract:
    """The targets of exports on one store. A subclass provides the fixture `site`."""

    @pytest.mark.exports(3, 14)
    async def test_parts_of_a_statement_are_read_by_its_engine(self, site: Site):
        folder = await site.folder()
        into = {"path": f"{folder}/out", "format": "parquet", "split_rows": 3_000}
        found = await written(site.ana, ROWS.format(10_000), into)
        assert (found["rows"], found["files"]) == (10_000, 4)
        assert await site.stored(folder) == site.parts("out", "parquet", 4)
        assert await site.unfinished(folder) == []
        url = folder if "://" in folder else f"hdfs://{folder}"
        sources = (f"({ROWS.format(10_000)})", f"read_parquet('{url}/out/*.parquet')")
        totals = "SELECT count(*), sum(n), count(t), sum(d) FROM {}"
        expected, read = [await site.ana.result("duckdb", totals.format(source)) for source in sources]
        assert read["data"] == expected["data"]

    @pytest.mark.exports(2, 3, 14)
    async def test_compressed_parts_of_a_stored_result(self, site: Site):
        folder, operation = await site.folder(), await finished(site.ana, "duckdb", ROWS.format(2_000))
        found = await exported(site.ana, operation, f"{folder}/logs.csv.gz", split_rows=900, header="false")
        assert (found["rows"], found["files"]) == (2_000, 3)
        names = site.parts("logs.csv.gz", "csv.gz", 3)
        assert await site.stored(folder) == names
        content = [unpacked(name, await site.content(f"{folder}/{name}")) for name in names if SUCCESS_NAME not in name]
        download = await site.ana.get(f"editor/download/{operation}", format="csv", headers=PLAIN)
        assert b"".join(content) == download.content.partition(b"\r\n")[2]

    @pytest.mark.exports(4)
    async def test_existing_targets_are_refused_or_replaced(self, site: Site):
        folder, ana = await site.folder(), site.ana
        first, second = await finished(ana, "duckdb", "SELECT 1 AS n"), await finished(ana, "duckdb", "SELECT 22 AS n")
        await exported(ana, first, f"{folder}/a.csv")
        exists = (409, -1, "already_exists")
        assert await refused(ana, operationId=second, path=f"{folder}/a.csv") == exists
        into = {"path": f"{folder}/a.csv"}
        assert await ana.refused("editor/execute/duckdb", statement="SELECT 3", into=json.dumps(into)) == exists
        assert await site.content(f"{folder}/a.csv") == b"n\r\n1\r\n"
        await exported(ana, second, f"{folder}/a.csv", if_exists="replace")
        assert await site.content(f"{folder}/a.csv") == b"n\r\n22\r\n"
        await written(ana, "SELECT 333 AS n", {**into, "if_exists": "replace"})
        assert await site.content(f"{folder}/a.csv") == b"n\r\n333\r\n"
        parts = {"path": f"{folder}/parts.csv", "split_rows": "1"}
        await exported(ana, first, **parts)
        assert await refused(ana, operationId=second, **parts) == exists
        assert await site.content(f"{folder}/parts.csv/part-00000.csv") == b"n\r\n1\r\n"
        assert await site.stored(folder) == ["a.csv", *site.parts("parts.csv", "csv", 1)]

    @pytest.mark.exports(12)
    async def test_target_that_cannot_be_written_is_refused(self, site: Site):
        path, code = site.denied
        operation = await finished(site.ana, "duckdb", "SELECT 1 AS n")
        for split in ({}, {"split_rows": "1"}):
            assert await denial(site.ana, "editor/export_result", operationId=operation, path=path, **split) == code
        into = json.dumps({"path": path})
        assert await denial(site.ana, "editor/execute/duckdb", statement="SELECT 1", into=into) == code

    @pytest.mark.exports(8)
    @pytest.mark.parametrize("split", [{}, {"split_rows": 100_000}], ids=["file", "parts"])
    async def test_canceled_export_leaves_nothing(self, site: Site, split: dict[str, int]):
        folder = await site.folder()
        into = json.dumps({"path": f"{folder}/a.csv", **split})
        operation = (await site.ana.execute("duckdb", _ENDLESS, into=into))["history_uuid"]

        async def is_writing() -> bool:
            listings = (site.stored, site.unfinished, site.uncommitted)
            return any([await listing(folder) for listing in listings])

        await until(is_writing)
        await site.ana.on(operation, "cancel_statement")
        assert (await site.ana.ended(operation))["query_status"]["state"] == "canceled"
        assert await site.stored(folder) == []
        assert await site.unfinished(folder) == []
        # The target is free again.
        await written(site.ana, "SELECT 1 AS n", {"path": f"{folder}/a.csv"})


Opener = Callable[..., AbstractAsyncContextManager[Api]]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, module_database_dsn: str) -> Opener:
    """A function that opens an application with a DuckDB connector and a store's tables of settings."""
    engines = {"duckdb": {"interface": "duckdb", "options": {"path": ":memory:"}}}

    def opener(tables: Mapping[str, Any]) -> AbstractAsyncContextManager[Api]:
        tables = {
            **tables,
            "notebook": {"interpreters": engines, "default_interpreter": "duckdb"},
            "editor": {"cancel_wait_s": 30, "lease_timeout_s": 600},
        }
        directory = tmp_path_factory.mktemp("exports")
        return open_api(storage_settings(directory, module_database_dsn, tables=tables, allow_bucket_creation=True))

    return opener


async def _with_bucket(api: Api, path: str) -> str:
    """Create a bucket through the API; return its path."""
    made = await (await api.user("admin")).post("storage/mkdir", path=path)
    assert made.status_code in {201, 409}, made.text
    return path


def _prefix(folder: str) -> str:
    """Return the prefix of the keys in a folder of a bucket."""
    return f"{folder.partition('://')[2].partition('/')[2]}/".lstrip("/")


@pytest.fixture(scope="module")
async def s3_site(s3_server: S3Address, opened: Opener) -> AsyncIterator[Site]:
    connection = S3Connection(s3_options(s3_server))
    client = await connection._open_client()

    async def stored(folder: str) -> list[str]:
        prefix = _prefix(folder)
        found = (await client.list_objects_v2(Bucket=_BUCKET, Prefix=prefix)).get("Contents", ())
        return [entry["Key"].removeprefix(prefix) for entry in found if not entry["Key"].endswith("/")]

    async def unfinished(_folder: str) -> list[str]:
        found = (await client.list_multipart_uploads(Bucket=_BUCKET)).get("Uploads", ())
        return [upload["Key"] for upload in found]

    async with opened(s3_tables(s3_server)) as api:
        home = await _with_bucket(api, f"s3a://{_BUCKET}")
        denied = ("s3a://no-such-bucket/a.csv", "path_not_found")
        yield Site(await api.user("ana"), home, stored, denied, unfinished, shows_parts=True)
    await connection.close()


@pytest.fixture(scope="module")
async def azure_site(azurite: HttpAddress, opened: Opener) -> AsyncIterator[Site]:
    client = AzureClient(flat_account(azurite.port))
    calls = BlobCalls(client)

    async def stored(folder: str) -> list[str]:
        prefix = _prefix(folder)
        found = [item async for page, _ in calls.pages(_BUCKET, prefix) for item in page]
        return [item.name.removeprefix(prefix) for item in found if not item.is_folder]

    async def uncommitted(folder: str) -> list[str]:
        query = {"comp": "list", "restype": "container", "prefix": _prefix(folder), "include": "uncommittedblobs"}
        answer = (await client.read(AzureCall("GET", (_BUCKET,), query))).body.decode()
        return re.findall(r"<Name>(.*?\.csv)</Name>", answer)

    async with opened(flat_azure_tables(azurite, _BUCKET)) as api:
        home = await _with_bucket(api, f"abfs://{_BUCKET}")
        denied = ("abfs://no-such-container/a.csv", "path_not_found")
        yield Site(await api.user("ana"), home, stored, denied, uncommitted=uncommitted, shows_parts=True)
    await client.close()


def _hadoop_files(call: Callable[..., Any]) -> Listing:
    """Return a function that lists files below a directory by WebHDFS calls."""

    def below(path: str, prefix: str) -> list[str]:
        names: list[str] = []
        for entry in call("GET", path, "LISTSTATUS").json()["FileStatuses"]["FileStatus"]:
            name = f"{prefix}{entry['pathSuffix']}"
            is_directory = entry["type"] == "DIRECTORY"
            names += below(f"{path}/{entry['pathSuffix']}", f"{name}/") if is_directory else [name]
        return sorted(names)

    async def stored(folder: str) -> list[str]:
        return below(folder, "")

    return stored


async def _hdfs_site(api: Api, cluster: HdfsCluster) -> Site:
    ana = await api.user("ana")
    home = f"/user/{ana.username}"
    cluster.call("PUT", home, "MKDIRS")
    cluster.call("PUT", home, "SETOWNER", owner=ana.username, group=ana.username)
    denied = ("/user/alice/a.csv", "permission_denied")
    return Site(ana, home, _hadoop_files(cluster.call), denied)


@pytest.fixture(scope="module")
async def webhdfs_site(hdfs_cluster: HdfsCluster, opened: Opener) -> AsyncIterator[Site]:
    async with opened(hdfs_tables(hdfs_cluster, hdfs_cluster.webhdfs_url)) as api:
        yield await _hdfs_site(api, hdfs_cluster)


@pytest.fixture(scope="module")
async def httpfs_site(hdfs_cluster: HdfsCluster, httpfs_gateway: HttpAddress, opened: Opener) -> AsyncIterator[Site]:
    async with opened(hdfs_tables(hdfs_cluster, f"{httpfs_gateway.url}/webhdfs/v1")) as api:
        yield await _hdfs_site(api, hdfs_cluster)


@pytest.mark.engine("s3")
class TestS3(FormatsContract, RealStoreContract):
    @pytest.fixture
    def site(self, s3_site: Site) -> Site:
        return s3_site

    @pytest.mark.exports(29)
    async def test_nightly_report_by_one_call(self, site: Site):
        """A schedule runs a saved query, and writes its rows to a path with the date of the run."""
        folder, ana, api = await site.folder(), site.ana, site.ana.api
        root = await api.user("root", admin=True)
        statement = "SELECT range AS n, :word AS word FROM range(3)"
        parameters = [{"name": "word", "type": "varchar"}]
        document = await save(ana, name="Nightly", statement=statement, connector="duckdb", parameters=parameters)
        into = {"path": f"{folder}/orders-{{date}}.csv.gz"}
        schedule = await scheduled(
            root, "nightly", owner=ana.username, document=document["uuid"], parameters={"word": "x"}, into=into
        )
        # 02:30 in Auckland
        for due in ("2025-01-31T13:30:00+00:00", "2025-02-01T13:30:00+00:00"):
            run = await fired(api, schedule["id"], due)
            assert (run["status"], run["message"]) == ("finished", "")
        names = ["orders-2025-02-01.csv.gz", "orders-2025-02-02.csv.gz"]
        assert await site.stored(folder) == names
        for name in names:
            content = unpacked(name, await site.content(f"{folder}/{name}"))
            assert content == b"n,word\r\n0,x\r\n1,x\r\n2,x\r\n"

    @pytest.mark.exports(12)
    async def test_bucket_that_denies_access(self, site: Site, s3_server: S3Address, opened: Opener):
        async with opened(s3_tables(s3_server, as_guest=True)) as api:
            eve = await api.user("eve")
            operation, path = await finished(eve, "duckdb", "SELECT 1 AS n"), f"s3a://{_BUCKET}/eve.csv"
            into = json.dumps({"path": path})
            codes = {
                await denial(eve, "editor/export_result", operationId=operation, path=path),
                await denial(eve, "editor/execute/duckdb", statement="SELECT 1", into=into),
            }
            assert codes == {"permission_denied"}
        assert "eve.csv" not in await site.stored(site.home)


@pytest.mark.engine("azurite")
class TestFlatAzure(FormatsContract, RealStoreContract):
    @pytest.fixture
    def site(self, azure_site: Site) -> Site:
        return azure_site


@pytest.mark.engine("hdfs")
class TestWebHdfs(FormatsContract, RealStoreContract):
    @pytest.fixture
    def site(self, webhdfs_site: Site) -> Site:
        return webhdfs_site


@pytest.mark.engine("hdfs")
@pytest.mark.engine("httpfs")
class TestHttpFs(RealStoreContract):
    @pytest.fixture
    def site(self, httpfs_site: Site) -> Site:
        return httpfs_site
