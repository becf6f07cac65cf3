"""Exports of a table of PostgreSQL with `into`, compared with a bare reader and writer in the same run."""

import asyncio
import os
import resource
import sys
import time
from pathlib import Path

import asyncpg
import psutil
from tests.bench import plain_export
from tests.bench.client import Client
from tests.bench.setting import Bench, Measured, bench_server
from tests.bench.storage_parts import s3_settings
from tests.engines.versitygw import s3_server

_ROWS = int(os.environ.get("EXPORT_ROWS", "2000000"))
_TABLE = "export_rows"
_SELECT = f"SELECT id, shop, ratio, label FROM {_TABLE}"
_TARGETS = (("csv", "local root"), ("parquet", "local root"), ("parquet", "S3"))


async def exports(folder: Path) -> list[Measured]:
    """Measure 2,000,000 rows x 4 from PostgreSQL into files of the local root and S3 (EXPORT_ROWS=50000000 for more).

    The reference on S3 is a local file: what it leaves out, the upload, counts for us.
    """
    root = folder / "root"
    (root / "shared").mkdir(parents=True)
    with s3_server() as s3:
        (s3.directory / "bench").mkdir(exist_ok=True)
        settings = {**s3_settings(s3), "QUERYSERVER__FILEBROWSER__LOCAL_ROOT": str(root)}
        async with bench_server(folder, settings=settings) as bench:
            await _fill(bench)
            measured: list[Measured] = []
            bare = {form: await _bare(bench, form, folder / f"bare.{form}") for form in ("csv", "parquet")}
            for form, store in _TARGETS:
                parent = "s3a://bench" if store == "S3" else "file:///shared"
                path = f"{parent}/rows.{form}"
                measured += await _compared(bench, f"{_ROWS:,} rows x 4 to {form} on {store}", path, bare[form])
    return measured


async def _fill(bench: Bench) -> None:
    connection = await asyncpg.connect(bench.sample_dsn)
    try:
        await connection.execute(
            f"""CREATE TABLE {_TABLE} AS SELECT i::bigint AS id, (i % 1000)::integer AS shop, i / 7.0::float8 AS ratio,
            'item ' || i % 5000 AS label FROM generate_series(1, {_ROWS}) AS i""",
            timeout=3600,
        )
        await connection.execute(f"VACUUM ANALYZE {_TABLE}", timeout=3600)
    finally:
        await connection.close()


async def _compared(bench: Bench, what: str, path: str, bare: tuple[float, float]) -> list[Measured]:
    bare_s, bare_cpu_s = bare
    memory = _Memory(bench.server.pid)
    watcher = asyncio.create_task(memory.watch())
    try:
        processor_s, began = bench.processor_s, time.perf_counter()
        # The server closes connections that were idle while the bare program ran.
        async with bench.client() as client:
            await _export(client, path)
        took_s, processor_s = time.perf_counter() - began, bench.processor_s - processor_s
    finally:
        watcher.cancel()
    return [
        Measured(f"{what}: bare; with into", f"{bare_s:.1f} s; {took_s:.1f} s"),
        Measured(f"{what}: rate / bare", f"{bare_s / took_s:.2f}", ">= 0.5"),
        Measured(f"{what}: CPU time, bare; server", f"{bare_cpu_s:.1f} s; {processor_s:.1f} s"),
        Measured(
            f"{what}: memory of the server before, after a third, at its peak",
            f"{memory.first:.0f}; {memory.early:.0f}; {memory.peak:.0f} MiB",
            "flat",
        ),
    ]


async def _export(client: Client, path: str) -> None:
    into = f'{{"path": "{path}", "if_exists": "replace"}}'
    body = await client.call("execute/postgresql", statement=_SELECT, into=into, wait=60, timeout=7200)
    operation = body["history_uuid"]
    while body["query_status"]["state"] in {"waiting", "running"}:
        body = await client.call("check_status", operationId=operation, wait=60)
    status = body["query_status"]
    assert status["state"] == "available", status


async def _bare(bench: Bench, form: str, file: Path) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of the bare reader and writer, in a process of its own."""
    program = str(Path(plain_export.__file__))
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = await asyncio.create_subprocess_exec(sys.executable, program, bench.sample_dsn, _TABLE, form, str(file))
    assert await process.wait() == 0
    await asyncio.to_thread(file.unlink)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


class _Memory:
    """Resident memory of the server process in MiB, sampled while an export runs."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._samples = [self._now()]

    def _now(self) -> float:
        return self._process.memory_info().rss / 2**20

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self._samples.append(self._now())

    @property
    def first(self) -> float:
        return self._samples[0]

    @property
    def early(self) -> float:
        """The peak of the first third of the export."""
        return max(self._samples[: max(len(self._samples) // 3, 1)])

    @property
    def peak(self) -> float:
        return max(self._samples)
