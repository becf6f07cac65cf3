"""The main workflow on real data: CSV files from the package vega-datasets."""

import csv
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
import vega_datasets
from tests.e2e.harness import running_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PASSWORD = "a password for real data"
DIALECTS = ("duckdb", "sqlite", "postgresql")
DATA = Path(vega_datasets.__file__).parent / "_data"


@dataclass(frozen=True)
class Source:
    """A CSV file and the SQL types of its columns."""

    name: str
    types: Sequence[str]

    @property
    def rows(self) -> list[list[str]]:
        with (DATA / f"{self.name}.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file))[1:]

    @property
    def columns(self) -> list[str]:
        with (DATA / f"{self.name}.csv").open(newline="", encoding="utf-8") as file:
            return [f"c_{name}" for name in next(csv.reader(file))]

    @property
    def table(self) -> str:
        return self.name.replace("-", "_")


WEATHER = Source("seattle-weather", ["varchar(10)", *["decimal(6, 1)"] * 4, "varchar(20)"])
AIRPORTS = Source("airports", [*["varchar(100)"] * 5, "double precision", "double precision"])
STOCKS = Source("stocks", ["varchar(10)", "varchar(20)", "decimal(10, 2)"])


class Session:
    """A client that is logged in as the administrator."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def run(self, dialect: str, statement: str) -> str:
        answer = await self.http.post(
            f"/api/v1/editor/execute/{dialect}", json={"statement": statement, "wait": 30, "limit": 100_000}
        )
        body = answer.json()
        assert body["status"] == 0, body
        assert body["query_status"]["status"] == "available", body
        return body["history_uuid"]

    async def rows(self, operation_id: str) -> list[list[object]]:
        rows: list[list[object]] = []
        has_more = True
        while has_more:
            answer = await self.http.post(
                "/api/v1/editor/fetch_result_data", data={"operationId": operation_id, "rows": 1000}
            )
            result = answer.json()["result"]
            rows += result["data"]
            has_more = result["has_more"]
        return rows

    async def download(self, operation_id: str) -> bytes:
        answer = await self.http.get(f"/api/v1/editor/download/{operation_id}")
        assert answer.status_code == 200
        return answer.content


@asynccontextmanager
async def session(data_dir: Path) -> AsyncIterator[Session]:
    settings = {"QUERYSERVER_ADMIN_PASSWORD": PASSWORD}
    async with (
        running_server(data_dir, settings=settings) as server,
        httpx.AsyncClient(base_url=server.base_url, timeout=60) as http,
    ):
        login = await http.post("/api/v1/token/auth", data={"username": "admin", "password": PASSWORD})
        http.headers["Authorization"] = f"Bearer {login.json()['access']}"
        yield Session(http)


async def load(client: Session, dialect: str, source: Source) -> None:
    """Load a file into a new table with batches of INSERT statements through the API, as a script would."""
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(source.columns, source.types, strict=True))
    await client.run(dialect, f"CREATE TABLE {source.table} ({columns})")
    rows = source.rows
    for start in range(0, len(rows), 500):
        values = ", ".join("(" + ", ".join(map(_literal, row)) + ")" for row in rows[start : start + 500])
        await client.run(dialect, f"INSERT INTO {source.table} VALUES {values}")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'" if text else "NULL"


@pytest.mark.item(24)
async def test_real_files_are_loaded_queried_paged_downloaded_and_survive_restart(tmp_path):
    kept: dict[str, tuple[str, bytes]] = {}
    async with session(tmp_path / "data") as client:
        for dialect in DIALECTS:
            for source in (WEATHER, AIRPORTS, STOCKS):
                await load(client, dialect, source)
            await check_weather(client, dialect)
            await check_stocks(client, dialect)
            everything = await client.run(dialect, "SELECT c_iata, c_name, c_city, c_state FROM airports")
            await check_airports(client, everything)
            kept[dialect] = everything, await client.download(everything)
    async with session(tmp_path / "data") as client:
        for dialect, (operation_id, file) in kept.items():
            assert await client.download(operation_id) == file
            await check_weather(client, dialect)


async def check_weather(client: Session, dialect: str) -> None:
    statement = "SELECT c_weather, count(*), max(c_temp_max) FROM seattle_weather GROUP BY c_weather ORDER BY c_weather"
    rows = await client.rows(await client.run(dialect, statement))
    found = {weather: (number, Decimal(str(warmest))) for weather, number, warmest in rows}
    wanted: dict[str, tuple[int, Decimal]] = {}
    for row in WEATHER.rows:
        number, warmest = wanted.get(row[5], (0, Decimal(-100)))
        wanted[row[5]] = number + 1, max(warmest, Decimal(row[2]))
    assert found == wanted


async def check_stocks(client: Session, dialect: str) -> None:
    rows = await client.rows(await client.run(dialect, "SELECT c_symbol, c_date, c_price FROM stocks"))
    assert [[symbol, date, Decimal(str(price))] for symbol, date, price in rows] == [
        [symbol, date, Decimal(price)] for symbol, date, price in STOCKS.rows
    ]


async def check_airports(client: Session, operation_id: str) -> None:
    """Check that names with quotes, commas and apostrophes are the same in the result pages and in the downloaded
    file.
    """
    wanted = [[text or None for text in row[:4]] for row in AIRPORTS.rows]
    assert await client.rows(operation_id) == wanted
    downloaded = csv.reader(io.StringIO((await client.download(operation_id)).decode(), newline=""))
    assert next(downloaded) == ["c_iata", "c_name", "c_city", "c_state"]
    assert [[text or None for text in row] for row in downloaded] == wanted
