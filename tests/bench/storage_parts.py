"""File transfers through the server, compared with direct transfers between curl and the store, in the same run.

The stores are the real stores of `make test-engines`: HDFS through WebHDFS, versitygw for S3, and a local root.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import httpx
from aiobotocore.session import get_session
from tests.bench.setting import Bench, Measured, bench_server, peak_mib
from tests.engines.hdfs import SERVICE_USER, HdfsCluster, hdfs_cluster
from tests.engines.versitygw import S3Address, s3_server

_MIB = 1024 * 1024
_GIB = 1024 * _MIB
_ENTRIES = 100_000
_DOWNLOADS = 100
_ROUNDS = 3
_USER = "user0"


@dataclass(frozen=True)
class Store:
    """A store under measurement."""

    name: str
    directory: str
    """The API path of the directory for files."""
    upload: Callable[[Path, str], list[str]]
    """Returns the curl arguments that upload a file directly to the store under a name."""
    download: Callable[[str], list[str]]
    """Returns the curl arguments that download a file directly from the store."""


@dataclass(frozen=True)
class Stores:
    """The server and all the stores that it uses."""

    bench: Bench
    hdfs: HdfsCluster
    s3: S3Address
    local: Path
    stores: tuple[Store, ...] = field(default=())

    async def upload(self, store: Store, source: Path, name: str) -> None:
        """Upload a file into a store's directory as the first user."""
        await run_curl(*_our_upload(self, store, source, name))


async def transfers(folder: Path) -> list[Measured]:
    """Measure 1 GiB uploads and downloads, alternating with direct curl transfers, and the delay of other calls
    meanwhile.
    """
    async with open_stores(folder) as setting:
        source = folder / "1gib"
        await asyncio.to_thread(write_random_file, source, _GIB)
        measured: list[Measured] = []
        for store in setting.stores:
            measured += await _transfers(setting, store, source)
    return measured


async def listings(folder: Path) -> list[Measured]:
    """Measure the first page of a directory with 100,000 entries, sorted by name and by size."""
    async with open_stores(folder) as setting:
        await asyncio.to_thread(_many_objects, setting.s3.directory / "bench" / "many")
        await _many_directories(setting.hdfs)
        return [
            *await _listing(setting, "HDFS", f"/user/{_USER}/many", _hdfs_page(setting.hdfs)),
            *await _listing(setting, "S3, one page", "s3a://bench/many", _s3_page(setting.s3, counted=False), calls=2),
            *await _listing(setting, "S3, with its count", "s3a://bench/many", _s3_page(setting.s3), calls=1),
        ]


async def downloads(folder: Path) -> list[Measured]:
    """Measure 100 concurrent downloads of 10 MiB."""
    async with open_stores(folder) as setting:
        source = folder / "10mib"
        await asyncio.to_thread(write_random_file, source, 10 * _MIB)
        measured: list[Measured] = []
        for store in setting.stores:
            await setting.upload(store, source, "ten")
            memory = await _while_watched(setting, lambda store=store: _download_together(setting, store))
            measured.append(Measured(f"{store.name}: {_DOWNLOADS} x 10 MiB, process", f"{memory:.0f} MiB", "< 300 MiB"))
    return measured


async def _transfers(setting: Stores, store: Store, source: Path) -> list[Measured]:
    before = setting.bench.resident_mib
    waits: list[float] = []
    ups, downs, bare_ups, bare_downs = [], [], [], []

    async def all_rounds() -> None:
        for number in range(_ROUNDS):
            name = f"gib{number}"
            bare_ups.append(await run_curl(*store.upload(source, f"bare{number}")))
            ups.append(await run_curl(*_our_upload(setting, store, source, name)))
            bare_downs.append(await run_curl(*store.download(f"bare{number}")))
            downs.append(await run_curl(*_our_download(setting, store, name)))
            await _delete(setting, store, name, f"bare{number}")

    watch = asyncio.create_task(_others(setting, waits))
    memory = await _while_watched(setting, all_rounds)
    watch.cancel()
    p99 = sorted(waits)[int(len(waits) * 0.99)] * 1000
    return [
        Measured(f"{store.name}: curl straight, 1 GiB up, down", f"{_rate(bare_ups)}, {_rate(bare_downs)} MiB/s"),
        Measured(f"{store.name}: 1 GiB up through us / straight", f"{min(bare_ups) / min(ups):.2f}", ">= 0.7"),
        Measured(f"{store.name}: 1 GiB down through us / straight", f"{min(bare_downs) / min(downs):.2f}", ">= 0.7"),
        Measured(f"{store.name}: growth of the process meanwhile", f"{memory - before:.0f} MiB", "< 64 MiB"),
        Measured(f"{store.name}: other calls meanwhile, p99", f"{p99:.0f} ms", "< 100 ms"),
    ]


def _rate(seconds: list[float]) -> str:
    return f"{1024 / min(seconds):.0f}"


async def _others(setting: Stores, waits: list[float]) -> None:
    async with setting.bench.client() as client:
        while True:
            begun = time.perf_counter()
            await client.get("/api/v1/storage/filesystems")
            waits.append(time.perf_counter() - begun)
            await asyncio.sleep(0.02)


async def _while_watched(setting: Stores, work: Callable[[], Awaitable[object]]) -> float:
    """Return the server's peak memory in MiB during `work`."""
    async with peak_mib(setting.bench) as peak:
        await work()
    return peak.mib


async def _listing(
    setting: Stores, name: str, path: str, straight: Callable[[httpx.AsyncClient], Awaitable[object]], calls: int = 10
) -> list[Measured]:
    before = setting.bench.resident_mib
    async with httpx.AsyncClient(timeout=120) as http, setting.bench.client() as client:
        bare = min([await _timed(lambda: straight(http)) for _ in range(calls)])

        async def page(order: str, size: int = 30) -> None:
            status, body = await client.get(f"/api/v1/storage/list?path={quote(path)}&pagesize={size}&sortby={order}")
            assert status == 200, body[:300]

        by_name = min([await _timed(lambda: page("name")) for _ in range(calls)])
        large = min([await _timed(lambda: page("name", 1000)) for _ in range(calls)])
        async with peak_mib(setting.bench) as peak:
            by_size = await _timed(lambda: page("size"))
    return [
        Measured(f"{name}: one page of 1000 straight from the store", f"{bare * 1000:.0f} ms"),
        Measured(f"{name}: first page of 100,000 by name / straight", f"{by_name / bare:.2f}", "< 1.5"),
        Measured(f"{name}: the same with pagesize 1000 / straight", f"{large / bare:.2f}"),
        Measured(f"{name}: by size, whole listing read", f"{by_size:.1f} s"),
        Measured(f"{name}: growth of the process by it", f"{peak.mib - before:.0f} MiB", "< 60 MiB"),
    ]


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


async def _download_together(setting: Stores, store: Store) -> None:
    path = f"{store.directory}/ten"

    async def one(number: int) -> None:
        async with setting.bench.client(number) as client:
            status, body = await client.get(f"/api/v1/storage/download={quote(path, safe='')}")
            assert (status, len(body)) == (200, 10 * _MIB), body[:300]

    await asyncio.gather(*(one(number) for number in range(_DOWNLOADS)))


def _our_upload(setting: Stores, store: Store, source: Path, name: str) -> list[str]:
    url = f"{setting.bench.server.base_url}/api/v1/storage/upload/file?dest={quote(store.directory)}&overwrite=true"
    return ["-F", f"local_file=@{source};filename={name}", *_login(setting), url]


def _our_download(setting: Stores, store: Store, name: str) -> list[str]:
    path = quote(f"{store.directory}/{name}", safe="")
    return ["-o", os.devnull, *_login(setting), f"{setting.bench.server.base_url}/api/v1/storage/download={path}"]


def _login(setting: Stores) -> list[str]:
    return ["-H", f"Authorization: Bearer {setting.bench.tokens[0]}"]


async def _delete(setting: Stores, store: Store, *names: str) -> None:
    async with setting.bench.client() as client:
        for name in names:
            fields = {"path": f"{store.directory}/{name}", "skip_trash": "true"}
            status, body = await client.post("/api/v1/storage/rmtree", fields)
            assert status in {200, 404}, body[:300]


async def run_curl(*arguments: str) -> float:
    """Run curl, which must succeed; return the seconds it took."""
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        "curl", "-sS", "--fail-with-body", "-o", os.devnull, *arguments, stdin=asyncio.subprocess.DEVNULL
    )
    if await process.wait():
        message = f"curl ended with {process.returncode}: {arguments[-1]}"
        raise AssertionError(message)
    return time.perf_counter() - begun


def write_random_file(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.writelines(os.urandom(_MIB) for _ in range(size // _MIB))


@asynccontextmanager
async def open_stores(folder: Path, *, settings: Mapping[str, str] | None = None) -> AsyncIterator[Stores]:
    """Start the real stores, and a server that is configured with all of them."""
    local = folder / "files"
    (local / "shared").mkdir(parents=True)
    with ExitStack() as stack:
        hdfs = await asyncio.to_thread(stack.enter_context, hdfs_cluster(listing_limit=1000))
        s3 = await asyncio.to_thread(stack.enter_context, s3_server())
        (s3.directory / "bench").mkdir()
        for op, parameters in (("MKDIRS", {}), ("SETOWNER", {"owner": _USER})):
            await asyncio.to_thread(hdfs.call, "PUT", f"/user/{_USER}", op, **parameters)
        async with bench_server(folder, settings={**_settings(hdfs, s3, local), **(settings or {})}) as bench:
            stores = (_hdfs(hdfs), _s3(s3), _local(local))
            yield Stores(bench, hdfs, s3, local, stores)


def _settings(hdfs: HdfsCluster, s3: S3Address, local: Path) -> Mapping[str, str]:
    cluster = {
        "fs_defaultfs": f"hdfs://127.0.0.1:{hdfs.rpc_port}",
        "webhdfs_url": hdfs.webhdfs_url,
        "service_user": SERVICE_USER,
    }
    return {
        "QUERYSERVER__HADOOP__HDFS_CLUSTERS": json.dumps({"default": cluster}),
        "QUERYSERVER__FILEBROWSER__LOCAL_ROOT": str(local),
        **s3_settings(s3),
    }


def s3_settings(s3: S3Address) -> Mapping[str, str]:
    """Return the settings that configure this store as the server's `s3a` store."""
    account = {
        "access_key_id": s3.access_key_id,
        "secret_access_key": s3.secret_access_key,
        "endpoint": s3.url,
        "region": s3.region,
        "path_style": True,
        "is_secure": False,
    }
    return {"QUERYSERVER__AWS__AWS_ACCOUNTS": json.dumps({"default": account})}


def _hdfs(cluster: HdfsCluster) -> Store:
    def url(name: str, op: str) -> str:
        return f"{cluster.webhdfs_url}/user/{_USER}/{name}?op={op}&user.name={SERVICE_USER}&doas={_USER}"

    return Store(
        "HDFS",
        f"/user/{_USER}",
        lambda source, name: ["-L", "-T", str(source), url(name, "CREATE") + "&overwrite=true"],
        lambda name: ["-L", url(name, "OPEN")],
    )


def _s3(address: S3Address) -> Store:
    login = [
        *("--aws-sigv4", f"aws:amz:{address.region}:s3"),
        *("--user", f"{address.access_key_id}:{address.secret_access_key}"),
        # Not every version of curl sends this header automatically.
        *("-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"),
    ]
    return Store(
        "S3",
        "s3a://bench",
        lambda source, name: [*login, "-T", str(source), f"{address.url}/bench/{name}"],
        lambda name: [*login, f"{address.url}/bench/{name}"],
    )


def _local(root: Path) -> Store:
    return Store(
        "local",
        "file:///shared",
        lambda source, name: ["-T", str(source), (root / "shared" / name).as_uri()],
        lambda name: [(root / "shared" / name).as_uri()],
    )


def _many_objects(directory: Path) -> None:
    directory.mkdir(parents=True)
    for number in range(_ENTRIES):
        (directory / f"f{number:06}").touch()


async def _many_directories(cluster: HdfsCluster) -> None:
    """Create many empty directories, which count as entries but occupy no blocks."""
    limit = asyncio.Semaphore(16)
    async with httpx.AsyncClient(timeout=60) as http:

        async def make(number: int) -> None:
            async with limit:
                query = {"op": "MKDIRS", "user.name": SERVICE_USER, "doas": _USER}
                path = f"{cluster.webhdfs_url}/user/{_USER}/many/f{number:06}"
                (await http.put(path, params=query)).raise_for_status()

        for start in range(0, _ENTRIES, 1000):
            await asyncio.gather(*(make(number) for number in range(start, start + 1000)))


def _hdfs_page(cluster: HdfsCluster) -> Callable[[httpx.AsyncClient], Awaitable[object]]:
    query = {"op": "LISTSTATUS_BATCH", "user.name": SERVICE_USER, "doas": _USER}

    async def page(http: httpx.AsyncClient) -> None:
        answer = await http.get(f"{cluster.webhdfs_url}/user/{_USER}/many", params=query)
        assert len(answer.raise_for_status().json()["DirectoryListing"]["partialListing"]["FileStatuses"]) > 0

    return page


def _s3_page(address: S3Address, *, counted: bool = True) -> Callable[[httpx.AsyncClient], Awaitable[object]]:
    """Return a function that requests one page. If `counted` is set, it also requests all later pages, which are needed
    for the total (Contract storage 5.2).
    """

    async def page(http: httpx.AsyncClient) -> None:
        del http
        async with get_session().create_client(
            "s3",
            endpoint_url=address.url,
            region_name=address.region,
            aws_access_key_id=address.access_key_id,
            aws_secret_access_key=address.secret_access_key,
        ) as client:
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket="bench", Prefix="many/", Delimiter="/", PaginationConfig={"PageSize": 1000}
            )
            async for _ in pages:
                if not counted:
                    break

    return page
