"""DuckDB through the server on store files and stored results, compared with plain DuckDB on the same bytes."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from tests.bench.duckdb_parts import CONFIG, compared, paged, queries
from tests.bench.plain_duckdb import plain_duckdb
from tests.bench.setting import Measured, bench_server
from tests.bench.storage_parts import s3_settings
from tests.engines.cache import python_packages
from tests.engines.versitygw import S3Address, s3_server

_FILES = 8
_ON_LINEITEM = (1, 6)
"""The TPC-H queries that read only the table lineitem."""
_ROWS = 10_000_000
_STORED = """SELECT i AS id, i % 1000 AS shop, i / 7.0::DOUBLE AS ratio, 'item ' || i % 5000 AS label
FROM range({rows}) AS r(i)"""
_AGGREGATES = {
    "numbers by number": "SELECT shop, count(*), sum(id), avg(ratio) FROM {rows} GROUP BY shop",
    "numbers by text": "SELECT label, count(*), max(ratio) FROM {rows} GROUP BY label",
}


async def duckdb_s3(folder: Path) -> list[Measured]:
    """Measure queries on Parquet files on S3 (versitygw): TPC-H lineitem at scale 1 in eight files, 230 MB."""
    httpfs = await asyncio.to_thread(python_packages, "duckdb_httpfs", "duckdb-httpfs")
    extension = next(httpfs.glob("duckdb_extension_httpfs/extensions/*/httpfs.duckdb_extension"))
    with s3_server() as s3:
        await asyncio.to_thread(_lineitem, s3.directory / "bench")
        # The external file cache would keep the files between statements; without it, every statement reads from the
        # store.
        first = (f"LOAD '{extension}'", _secret(s3), "SET enable_external_file_cache = false")
        async with (
            bench_server(folder, settings=s3_settings(s3)) as bench,
            plain_duckdb(":memory:", CONFIG, packages=httpfs, first=first) as plain,
            bench.client() as client,
        ):
            found = {}
            for name, sql in _on_lineitem().items():
                ours, others = (
                    sql.format(lineitem=f"'{scheme}://bench/lineitem/*.parquet'") for scheme in ("s3a", "s3")
                )
                found[name] = await compared(
                    bench, lambda ours=ours: paged(client, "duckdb", ours), lambda others=others: plain.run(others)
                )
    return [
        Measured(f"Parquet on S3, {name}, httpfs {one.plain_s * 1000:.0f} ms; rate; of processor", str(one), ">= 0.5")
        for name, one in found.items()
    ]


async def duckdb_results(folder: Path) -> list[Measured]:
    """Measure aggregations of ten million rows of a stored result."""
    settings = {"QUERYSERVER__EDITOR__RESULT_MAX_ROWS": str(_ROWS)}
    async with bench_server(folder, settings=settings) as bench, bench.client() as client:
        made = await client.call("execute/duckdb", statement=_STORED.format(rows=_ROWS), limit=_ROWS, wait=60)
        operation = made["history_uuid"]
        while made["query_status"]["status"] in {"waiting", "running"}:
            made = await client.call("check_status", operationId=operation, wait=60)
        assert made["query_status"]["rows"] == _ROWS, made
        copied = await asyncio.to_thread(_copied, bench.data_dir, operation, folder / "stored.arrow")
        found = {}
        async with plain_duckdb(":memory:", CONFIG, arrow_files={"stored": copied}) as plain:
            for name, sql in _AGGREGATES.items():
                ours, others = sql.format(rows=f"'result://{operation}'"), sql.format(rows="stored")
                found[name] = await compared(
                    bench, lambda ours=ours: paged(client, "duckdb", ours), lambda others=others: plain.run(others)
                )
    return [
        Measured(f"10M stored rows, {name}, plain {one.plain_s * 1000:.0f} ms; rate; of processor", str(one), ">= 0.5")
        for name, one in found.items()
    ]


def _on_lineitem() -> dict[str, str]:
    """Return the queries by name, with a placeholder for their table."""
    found = {"count": "SELECT count(*) FROM {lineitem}"}
    for number in _ON_LINEITEM:
        found[f"TPC-H Q{number}"] = queries()[number].replace("FROM lineitem", "FROM {lineitem}")
    return found


def _secret(s3: S3Address) -> str:
    given = {
        "KEY_ID": s3.access_key_id,
        "SECRET": s3.secret_access_key,
        "REGION": s3.region,
        "ENDPOINT": s3.url.removeprefix("http://"),
        "URL_STYLE": "path",
    }
    written = ", ".join(f"{name} '{value}'" for name, value in given.items())
    return f"CREATE SECRET (TYPE s3, {written}, USE_SSL false)"


def _lineitem(bucket: Path) -> None:
    """Generate the Parquet files directly in the store's directory."""
    generator = Path(sys.executable).with_name("tpchgen-cli")
    options = ["-s", "1", "-q", "--tables", "lineitem", "--parts", str(_FILES), "--output-dir", str(bucket)]
    subprocess.run([str(generator), "parquet", *options], check=True)


def _copied(data_dir: Path, operation: str, target: Path) -> Path:
    """Copy the stored segments, which are Arrow streams, into one Arrow file with the same batches and compression."""
    segments = sorted(data_dir.rglob(f"{operation}/*.arrow"), key=lambda file: int(file.stem.rpartition("-")[2]))
    with pa.ipc.open_stream(segments[0].read_bytes()) as reader:
        schema = reader.schema
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, schema, options=options) as writer:
        for segment in segments:
            with pa.ipc.open_stream(segment.read_bytes()) as reader:
                for batch in reader:
                    writer.write_batch(batch)
    return target
