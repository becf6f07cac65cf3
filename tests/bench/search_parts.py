"""Searches in a million columns, compared with a plain query on the same database, and the time for a refresh."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from statistics import quantiles
from typing import Any

import asyncpg
import psutil
from tests.api.conftest import make_settings
from tests.api.driving import Api, Caller, open_api
from tests.bench.setting import Measured
from tests.fakes.catalog import FakeCatalog, FakeCatalogEngine

from queryserver.engines.protocol import (
    Catalog,
    DatabaseDescription,
    SessionOptions,
    TableColumn,
    TableDescription,
    TableSummary,
)
from queryserver.identity.model import User
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.migrations import migrate
from queryserver.search.refresh import IndexRefresh, RefreshLimits, scope_key
from queryserver.search.repository import MetadataIndexRecords

_DATABASES, _TABLES, _COLUMNS = 50, 600, 34
_ROUNDS = 40
_CALL = "metadata/search/entities_interactive"
_WORDS = ("customer", "order", "price", "amount", "id", "name", "date", "status", "country", "net")
_QUERIES = {
    "one name": ["name_{0} type:field", "price_{0} type:field", "table_{0}"],
    "one table": ["db_{1}.table_{0}", "table_{0} type:table"],
    "one word, a tenth of all": ["customer", "status", "country"],
    "half of all": ["r", "at", "e type:field"],
    "two letters": ["id", "na", "da"],
    "two terms": ["db_{1} price", "amount table_{0}"],
    "wildcards": ["cust*_{0}", "p?ice_{0}"],
    "everything": ["", "type:field"],
}


class _Large(FakeCatalog):
    """A catalog that generates its metadata on demand, so that it uses no memory itself."""

    async def databases(self) -> Sequence[str]:
        return [f"db_{number}" for number in range(_DATABASES)]

    async def database(self, database: str) -> DatabaseDescription:
        return DatabaseDescription(database)

    async def tables(self, database: str) -> Sequence[TableSummary]:
        return [TableSummary(f"table_{number}") for number in range(_TABLES)]

    async def table(self, database: str, table: str) -> TableDescription:
        chance = random.Random(f"{database}.{table}")
        columns = tuple(
            TableColumn(f"{chance.choice(_WORDS)}_{chance.randrange(3000)}", "int", comment="of the source")
            for _ in range(_COLUMNS)
        )
        made = f"2025-{chance.randrange(1, 13):02}-{chance.randrange(1, 28):02}T10:00:00Z"
        return TableDescription(database, table, columns, owner=chance.choice(("ana", "bob")), create_time=made)


class _LargeEngine(FakeCatalogEngine):
    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        yield _Large(self)


async def search(folder: Path) -> list[Measured]:
    """Measure a refresh of 30,000 tables, then searches over HTTP."""
    async with EmbeddedPostgres.start(folder / "state") as server:
        plain = await asyncpg.connect(server.admin_dsn())
        await plain.execute("create database bench")
        await plain.close()
        dsn = server.admin_dsn("bench")
        await migrate(dsn)
        settings = make_settings(folder, dsn, server.defaults.sample_dsn, index=True)
        async with open_api(settings) as api:
            measured = [await _refreshed(api)]
            caller = await api.user("bench")
            measured.append(await _first(caller))
            for name, patterns in _QUERIES.items():
                measured.append(await _measure_search(caller, name, patterns))
            measured.append(await _measure_search(caller, "half of all, all facets", ["r", "at"], facets=True))
            return [*measured, *await _bare(dsn)]


async def _refreshed(api: Api) -> Measured:
    shelf = api.services.connectors.find("shelf")
    assert shelf is not None
    api.shelf.__class__ = _LargeEngine
    key = scope_key(api.services.connectors, User(0, "bench"), shelf)
    assert key is not None
    refresh = IndexRefresh(
        ownership=api.services.ownership,
        records=MetadataIndexRecords(api.database),
        connectors=api.services.connectors,
        lookups=api.services.metadata.lookups,
        metrics=api.services.metrics,
        limits=RefreshLimits(timedelta(hours=1), 50_000, 500),
    )
    before, peak = _resident_mib(), 0.0
    began = time.perf_counter()
    task = asyncio.create_task(refresh.refresh(User(0, "bench"), shelf, key))
    while not (await asyncio.wait({task}, timeout=0.05))[0]:
        peak = max(peak, _resident_mib())
    seconds = time.perf_counter() - began
    return Measured(
        f"refresh of {_DATABASES * _TABLES:,} tables, growth of the process",
        f"{seconds:.0f} s, {peak - before:.0f} MiB",
        "< 400 MiB",
    )


async def _first(caller: Caller) -> Measured:
    before = _resident_mib()
    seconds, body = await _timed(caller, "customer")
    return Measured(
        f"first search after the start, {body['totalMatched']:,} matches",
        f"{seconds:.1f} s, {_resident_mib() - before:.0f} MiB",
    )


async def _measure_search(caller: Caller, name: str, patterns: Sequence[str], *, facets: bool = False) -> Measured:
    chance = random.Random(7)
    times: list[float] = []
    matches = 0
    for number in range(_ROUNDS):
        text = patterns[number % len(patterns)].format(chance.randrange(_TABLES), chance.randrange(_DATABASES))
        more = {"field_facets": '["type", "owner", "lastModified"]'} if facets else {}
        seconds, body = await _timed(caller, text, **more)
        times.append(seconds * 1000)
        matches = max(matches, body["totalMatched"])
    cuts = quantiles(times, n=20)
    return Measured(f"search: {name}, {matches:,} matches: p50, p95", f"{cuts[9]:.0f}, {cuts[18]:.0f} ms", "< 100 ms")


async def _timed(caller: Caller, text: str, **more: Any) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    response = await caller.api.http.post(
        f"/api/v1/{_CALL}", data={"query_s": text, "sources": '["sql"]', **more}, headers=dict(caller.headers)
    )
    return time.perf_counter() - began, response.json()


async def _bare(dsn: str) -> list[Measured]:
    """Measure the same search as SQL on a table with one row per column."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "create table flat as select database, name, split_part(one, chr(31), 1) as field from metadata_objects,"
        " unnest(string_to_array(columns, chr(30))) as one"
    )
    await connection.execute("analyze flat")
    measured: list[Measured] = []
    for text in ("name_77", "r"):
        times: list[float] = []
        for _ in range(10):
            began = time.perf_counter()
            await connection.fetch(
                "select count(*) from flat where database || '.' || name || '.' || field like $1", f"%{text}%"
            )
            await connection.fetch(
                "select * from flat where database || '.' || name || '.' || field like $1"
                " order by field not like $2, database, name, field limit 25",
                f"%{text}%",
                f"{text}%",
            )
            times.append((time.perf_counter() - began) * 1000)
        cuts = quantiles(times, n=20)
        measured.append(
            Measured(f"bare SQL, rows of columns, like '%{text}%': p50, p95", f"{cuts[9]:.0f}, {cuts[18]:.0f} ms")
        )
    await connection.close()
    return measured


def _resident_mib() -> float:
    return psutil.Process().memory_info().rss / 2**20
