"""Imports of files into tables. The application has its own databases."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.api.driving import Api, Caller, open_api
from tests.api.importer.conftest import uploaded
from tests.api.storage.conftest import storage_settings
from tests.fakes.loading import FakeLoadingEngine

CONTENT = b"id,name,price,day\n1,anna,1.50,2025-01-15\n2,,2.25,\n3,carl,,2025-01-17\n"


@dataclass(frozen=True, slots=True)
class Tables:
    """An application, and the directory that serves as its local root."""

    api: Api
    root: Path

    @property
    def slow(self) -> FakeLoadingEngine:
        connector = self.api.services.connectors.find("slow")
        assert connector is not None
        engine = self.api.services.connectors.engine(connector)
        assert isinstance(engine, FakeLoadingEngine)
        return engine

    def shared_file(self, name: str, content: bytes) -> str:
        """Create a file that all users may read; return its path."""
        (self.root / "shared" / name).write_bytes(content)
        return f"file:///shared/{name}"


def table_settings(directory: Path, database_dsn: str, users_url: str, **editor: Any) -> Any:
    """Return settings with three databases that are always available, one that is read-only, one that is restricted to
    a group, and one that is unusable.
    """
    databases = directory / "databases"
    databases.mkdir(exist_ok=True)
    (databases / "tables.sqlite").touch()
    duckdb = {"interface": "duckdb", "options": {"path": "tables.duckdb"}}
    interpreters = {
        "duckdb": duckdb,
        "sqlite": {"interface": "sqlite", "options": {"path": "tables.sqlite"}},
        "postgresql": {"interface": "sqlalchemy", "options": {"url": users_url}},
        "frozen": {
            "interface": "sqlalchemy",
            "dialect": "postgresql",
            "options": {"url": users_url},
            "read_only": True,
        },
        "closed": {
            "interface": "sqlalchemy",
            "dialect": "postgresql",
            "options": {"url": users_url},
            "groups": ("analysts",),
        },
        "login": {
            "interface": "sqlalchemy",
            "dialect": "postgresql",
            "options": {"url": users_url.replace("api_tests:planted-secret@", "${USER}:${PASSWORD}@")},
        },
        "odd": {"interface": "fake", "dialect": "impala"},
        "hive": {"interface": "fake", "dialect": "hive", "options": {"tables": True}, "groups": ("analysts",)},
        "slow": {"interface": "fake", "dialect": "hive", "options": {"tables": True}},
    }
    settings = storage_settings(
        directory,
        database_dsn,
        tables={
            "notebook": {"interpreters": interpreters, "default_interpreter": "duckdb"},
            "editor": {"cancel_wait_s": 30, "lease_timeout_s": 600, **editor},
        },
    )
    return settings.model_copy(
        update={
            "desktop": settings.desktop.model_copy(
                update={
                    "connector_policy": settings.desktop.connector_policy.model_copy(
                        update={"local_database_dir": databases}
                    )
                }
            )
        }
    )


async def open_tables(directory: Path, database_dsn: str, users_url: str, **editor: Any) -> AsyncIterator[Tables]:
    async with open_api(table_settings(directory, database_dsn, users_url, **editor)) as api:
        yield Tables(api, directory / "files")


async def ask(caller: Caller, connector: str, table: str, **fields: Any) -> httpx.Response:
    """Call create_table; return the response. By default, the file is an upload of CONTENT."""
    given: dict[str, Any] = {
        "import_type": "local",
        "file_type": "csv",
        "has_header": "true",
        "connector": connector,
        "table": table,
        **fields,
    }
    if "file_path" not in given:
        given["file_path"] = await uploaded(caller, CONTENT)
    if isinstance(given.get("columns"), list):
        given["columns"] = json.dumps(given["columns"])
    return await caller.post("importer/create_table", **given)


async def started(caller: Caller, connector: str, table: str, **fields: Any) -> str:
    """Start an import, which must be accepted; return the operation id."""
    answer = await ask(caller, connector, table, **fields)
    assert answer.status_code == 202, answer.text
    return answer.json()["history_uuid"]


async def imported(caller: Caller, connector: str, table: str, **fields: Any) -> Mapping[str, Any]:
    """Run an import that must succeed. Return the row of its result by column name, together with `operation` and
    `log`.
    """
    operation = await started(caller, connector, table, **fields)
    end = await caller.ended(operation)
    assert (end["status"], end["query_status"]["state"]) == (0, "available"), end
    page = await caller.page(operation)
    names = [column["name"] for column in page["meta"]]
    assert len(page["data"]) == 1
    return {
        **dict(zip(names, page["data"][0], strict=True)),
        "operation": operation,
        "log": await log_of(caller, operation),
    }


async def failed(caller: Caller, connector: str, table: str, **fields: Any) -> tuple[str, str, str]:
    """Run an import that must fail; return its code, message and log."""
    operation = await started(caller, connector, table, **fields)
    end = await caller.ended(operation)
    assert end["query_status"]["state"] == "failed", end
    return end["code"], end["message"], await log_of(caller, operation)


async def log_of(caller: Caller, operation: str) -> str:
    return (await caller.on(operation, "get_logs"))["logs"]


def quoted(name: str) -> str:
    """Quote an identifier for statements on these databases."""
    return '"' + name.replace('"', '""') + '"'


async def rows(caller: Caller, connector: str, table: str, columns: str = "*", order: str = "1") -> list[list[Any]]:
    sql = f"SELECT {columns} FROM {quoted(table)} ORDER BY {order}"
    return (await caller.result(connector, sql))["data"]


async def tables_like(caller: Caller, connector: str, part: str) -> list[str]:
    """Return the names of the tables and views that contain `part`. Staging tables are included."""
    sql = (
        "SELECT name FROM sqlite_master"
        if connector == "sqlite"
        else "SELECT table_name FROM information_schema.tables"
    )
    found = (await caller.result(connector, sql, rows=5000))["data"]
    return sorted(row[0] for row in found if part in row[0])
