"""Previews and imports of files, compared with loading the files directly into the database, in the same run."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

import asyncpg
import duckdb
import httpx
from tests.bench.setting import Bench, Measured, bench_server, peak_mib
from tests.bench.storage_parts import open_stores

_MIB = 1024 * 1024
_ROWS = 1_000_000
_ROUNDS = 5
_CALLS_S = 4.0
_AT_ONCE = 8
_ALONE = 21
_HEADER = "id,customer,country,amount,quantity,paid,day,moment\n"
_COLUMNS = (
    "id INTEGER, customer TEXT, country TEXT, amount DOUBLE PRECISION, quantity INTEGER, paid BOOLEAN, day DATE,"
    " moment TIMESTAMP"
)
_CSV = {"file_type": "csv", "has_header": "true"}
# Raised because the large file exceeds the usual upload limit, and many files are uploaded.
_SETTINGS = {
    "QUERYSERVER__IMPORTER__MAX_LOCAL_FILE_SIZE_UPLOAD_LIMIT": str(2048 * _MIB),
    "QUERYSERVER__IMPORTER__MAX_BYTES_PER_USER": str(8192 * _MIB),
    "QUERYSERVER__IMPORTER__MAX_FILES_PER_USER": "100",
}


@dataclass(frozen=True)
class _Place:
    """The location of a file, in the fields that importer calls use."""

    name: str
    file_path: str
    import_type: str

    @property
    def fields(self) -> Mapping[str, str]:
        return {"file_path": self.file_path, "import_type": self.import_type}


async def previews(folder: Path) -> list[Measured]:
    """Measure previews of a 1 GiB file in each location, and the rate of previews of a 1 MB file."""
    large, small = folder / "large.csv", folder / "small.csv"
    await asyncio.to_thread(_write_csv, large, 1024 * _MIB)
    await asyncio.to_thread(_write_csv, small, 1_000_000)
    async with open_stores(folder, settings=_SETTINGS) as stores:
        places = [_Place("upload", await _upload(stores.bench, large), "local")]
        for store in stores.stores:
            path = f"{store.directory}/large.csv"
            await stores.upload(store, large, "large.csv")
            places.append(_Place(store.name, path, "remote"))
        measured: list[Measured] = []
        for place in places:
            measured += await _looks(stores.bench, place)
        return measured + await _calls_per_second(stores.bench, small)


async def imports(folder: Path) -> list[Measured]:
    """Measure imports of a table of 1,000,000 rows from an upload, compared with COPY and read_csv of the same file."""
    source = folder / "rows.csv"
    await asyncio.to_thread(_write_csv, source, None)
    async with bench_server(folder, settings=_SETTINGS) as bench:
        reference = await _upload(bench, source)
        copy = [await _copied(bench.sample_dsn, source) for _ in range(3)]
        read = [await asyncio.to_thread(_read_by_duckdb, folder / f"bare{one}.duckdb", source) for one in range(3)]
        before = bench.resident_mib
        async with peak_mib(bench) as peak:
            postgresql = [await _imported(bench, reference, "postgresql", f"p{one}") for one in range(3)]
        growth = peak.mib - before
        embedded = [await _imported(bench, reference, "duckdb", f"d{one}") for one in range(3)]
    size = source.stat().st_size / _MIB
    return [
        Measured(f"{_ROWS:,} rows, {size:.0f} MiB: COPY, ours", f"{min(copy):.2f}, {min(postgresql):.2f} s"),
        Measured("PostgreSQL: ours / bare COPY", f"{min(copy) / min(postgresql):.2f}", ">= 0.6"),
        Measured("PostgreSQL: growth of the process meanwhile", f"{growth:.0f} MiB", "< 64 MiB"),
        Measured(f"{_ROWS:,} rows, {size:.0f} MiB: read_csv, ours", f"{min(read):.2f}, {min(embedded):.2f} s"),
        Measured("DuckDB: ours / read_csv", f"{min(read) / min(embedded):.2f}", ">= 0.6"),
    ]


async def _looks(bench: Bench, place: _Place) -> list[Measured]:
    calls = {"guess_metadata": {}, "guess_header": {"file_type": "csv"}, "preview": {**_CSV, "sql_dialect": "hive"}}
    first: list[float] = []
    before = bench.resident_mib
    async with peak_mib(bench) as peak:
        for name, more in calls.items():
            seconds = await _timed(lambda name=name, more=more: _look(bench, name, {**place.fields, **more}))
            first.append(seconds * 1000)
        for name, more in list(calls.items()) * _ROUNDS:
            await _look(bench, name, {**place.fields, **more})
    shown = ", ".join(f"{one:.0f}" for one in first)
    return [
        Measured(f"{place.name}: metadata, header, preview of 1 GiB, first call", f"{shown} ms", "< 400 ms each"),
        Measured(f"{place.name}: growth of the process meanwhile", f"{peak.mib - before:.0f} MiB", "< 32 MiB"),
    ]


async def _calls_per_second(bench: Bench, source: Path) -> list[Measured]:
    """Measure the rate of repeated previews of the same upload, and of previews of fresh uploads."""
    known = [await _upload(bench, source)]
    fresh = [await _upload(bench, source) for _ in range(45)]
    await _preview_all(bench, known)
    again = await _rate(bench, known * 4000)
    once = await _rate(bench, fresh)
    alone = [await _upload(bench, source) for _ in range(_ALONE)]
    seconds = [await _timed(lambda one=one: _look(bench, "preview", _preview(one))) for one in alone]
    return [
        Measured("1 MB csv: previews, the same again", f"{again:.0f} /s", ">= 250 /s"),
        Measured("1 MB csv: previews, each for the first time", f"{once:.0f} /s"),
        Measured("1 MB csv: first preview, one client, median", f"{median(seconds) * 1000:.1f} ms", "<= 12 ms"),
    ]


async def _rate(bench: Bench, references: list[str]) -> float:
    left, done, until = iter(references), 0, time.perf_counter() + _CALLS_S

    async def some() -> None:
        nonlocal done
        async with bench.client() as client:
            for reference in left:
                if time.perf_counter() > until:
                    return
                status, _ = await client.get(f"/api/v1/importer/file/preview/?{urlencode(_preview(reference))}")
                assert status == 200
                done += 1

    begun = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(_AT_ONCE)))
    return done / (time.perf_counter() - begun)


async def _preview_all(bench: Bench, references: list[str]) -> None:
    for reference in references:
        await _look(bench, "preview", _preview(reference))


def _preview(reference: str) -> dict[str, str]:
    return {"file_path": reference, "import_type": "local", **_CSV, "sql_dialect": "hive"}


async def _look(bench: Bench, name: str, fields: Mapping[str, str]) -> None:
    async with bench.client() as client:
        status, body = await client.get(f"/api/v1/importer/file/{name}/?{urlencode(fields)}")
    if status != 200:
        message = f"{name}: {status} {body[:500]!r}"
        raise AssertionError(message)


async def _upload(bench: Bench, source: Path) -> str:
    """Upload a file as the first user, who is also the user of `bench.client()`; return its reference."""
    headers = {"Authorization": f"Bearer {bench.tokens[0]}"}
    async with httpx.AsyncClient(base_url=bench.server.base_url, headers=headers, timeout=120) as http:
        with source.open("rb") as file:
            answer = await http.post("/api/v1/importer/upload/file/", files={"file": (source.name, file)})
        return answer.raise_for_status().json()["file_path"]


async def _imported(bench: Bench, reference: str, connector: str, table: str) -> float:
    """Import an uploaded file; return the seconds from the call to the operation's completion."""
    fields = {"file_path": reference, "import_type": "local", **_CSV, "connector": connector, "table": table}
    async with bench.client() as client:
        begun = time.perf_counter()
        status, body = await client.post("/api/v1/importer/create_table", fields)
        assert status == 202, body
        operation = json.loads(body)["history_uuid"]
        while True:
            answer = await client.call("check_status", operationId=operation, wait=30)
            state = answer["query_status"]["status"]
            if state not in {"waiting", "running"}:
                break
        taken = time.perf_counter() - begun
        assert state == "available", answer
        rows = (await client.call("fetch_result_data", operationId=operation))["result"]["data"]
        assert rows[0][:2] == [_ROWS, _ROWS]
    return taken


async def _copied(dsn: str, source: Path) -> float:
    """Return the seconds of a plain COPY of the file, including table creation and commit."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("DROP TABLE IF EXISTS bare")
        begun = time.perf_counter()
        async with connection.transaction():
            await connection.execute(f"CREATE TABLE bare ({_COLUMNS})")
            await connection.copy_to_table("bare", source=source, format="csv", header=True)
        return time.perf_counter() - begun
    finally:
        await connection.close()


def _read_by_duckdb(database: Path, source: Path) -> float:
    with duckdb.connect(database, config={"threads": 2}) as connection:
        begun = time.perf_counter()
        connection.execute("CREATE TABLE bare AS SELECT * FROM read_csv(?)", [str(source)])
        return time.perf_counter() - begun


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


def _write_csv(path: Path, size_bytes: int | None) -> None:
    """Write orders of a shop until the file has `size_bytes`; a million orders if None."""
    chosen = random.Random(1)
    block = [_row(chosen) for _ in range(10_000)]
    with path.open("w") as file:
        file.write(_HEADER)
        number = 0
        while (file.tell() < size_bytes) if size_bytes is not None else number < _ROWS:
            count = 10_000 if size_bytes is None or size_bytes - file.tell() > 2 * _MIB else 100
            file.writelines(f"{number + one},{block[one]}" for one in range(count))
            number += count


def _row(chosen: random.Random) -> str:
    """Return a row without its first cell, the number."""
    cells = (
        f"customer {chosen.randrange(10**6)}",
        chosen.choice(("Portugal", "Chile", "Japan")),
        f"{chosen.random() * 900:.2f}",
        str(chosen.randrange(1, 90)),
        chosen.choice(("true", "false")),
        f"2026-0{chosen.randrange(1, 10)}-1{chosen.randrange(10)}",
        f"2026-01-15 10:{chosen.randrange(10, 60)}:00",
    )
    return ",".join(cells) + "\n"
