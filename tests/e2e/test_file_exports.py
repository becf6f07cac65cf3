"""The server is killed while it exports rows into files (Contract exports 2, 3, 5)."""

import csv
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.installation import TAKEN_OVER_WITHIN_S, Installation, eventually, installed

from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROWS = 800_000
STATEMENT = f"SELECT i AS n, repeat(md5(i::text), 3) AS t FROM generate_series(1, {ROWS}) AS r(i)"
SWEPT_WITHIN_S = 180
"""A process counts as dead 90 s after its last heartbeat, and the sweep runs every 30 s."""


@pytest.fixture
async def place(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path
) -> AsyncIterator[Installation]:
    """An installation for one test, with a local root."""
    async with installed(postgres, migrated_template, tmp_path) as place:
        (tmp_path / "files" / "shared").mkdir(parents=True)
        place.environment["filebrowser__local_root"] = str(tmp_path / "files")  # type: ignore[index]
        yield place


def shared(place: Installation) -> Path:
    return place.directory / "files" / "shared"


def visible(place: Installation) -> list[str]:
    return [entry.name for entry in shared(place).iterdir() if not entry.name.startswith("._qs_")]


async def is_writing(place: Installation) -> bool:
    """Return whether a part of the rows has been written, under a reserved name."""
    found = [path for path in shared(place).rglob("*") if path.is_file()]
    assert visible(place) == []
    return sum(path.stat().st_size for path in found) > 4 * 1024 * 1024


async def is_swept(place: Installation, expected: list[str]) -> bool:
    return [entry.name for entry in shared(place).iterdir()] == expected


def numbers(place: Installation) -> list[int]:
    """Return the first column of all files."""
    files = sorted(path for path in shared(place).rglob("*.csv") if path.is_file())
    return [
        int(row[0])
        for path in files
        for row in list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))[1:]
    ]


@pytest.mark.exports(10)
@pytest.mark.parametrize("options", [{}, {"split_rows": "300000", "format": "csv"}], ids=["file", "parts"])
async def test_export_of_a_stored_result_is_completed_by_another_server(
    place: Installation, options: dict[str, str]
) -> None:
    name = "out" if options else "out.csv"
    async with place.server() as victim:
        source = await victim.finished("postgresql", STATEMENT)
        fields = {"operationId": source, "path": f"file:///shared/{name}", **options}
        answer = await victim.http.post("/api/v1/editor/export_result", data=fields, headers=victim.headers())
        assert answer.status_code == 202, answer.text
        await victim.process.kill9_in(lambda: is_writing(place))
    assert visible(place) == []
    async with place.server() as after:
        body = await after.status(answer.json()["history_uuid"], wait=TAKEN_OVER_WITHIN_S + 30)
        assert body["query_status"]["state"] == "available", body
        assert visible(place) == [name]
        assert numbers(place) == list(range(1, ROWS + 1))
        await eventually(lambda: is_swept(place, [name]), within_s=SWEPT_WITHIN_S)


@pytest.mark.exports(10)
@pytest.mark.parametrize("options", [{}, {"split_rows": 300_000, "format": "csv"}], ids=["file", "parts"])
async def test_statement_with_into_ends_and_leaves_no_file(place: Installation, options: dict[str, Any]) -> None:
    into = {"path": f"file:///shared/{'out' if options else 'out.csv'}", **options}
    async with place.server() as victim:
        operation = await victim.submit("postgresql", STATEMENT, into=json.dumps(into))
        await victim.process.kill9_in(lambda: is_writing(place))
    async with place.server() as after:
        body = await after.status(operation, wait=TAKEN_OVER_WITHIN_S)
        assert (body["query_status"]["state"], body["code"]) == ("failed", "outcome_unknown")
        assert visible(place) == []
        await eventually(lambda: is_swept(place, []), within_s=SWEPT_WITHIN_S)
