"""Databases, tables and columns of a connector, for completion and `\\d`. Each list is fetched once a minute."""

import time
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from queryserver_client.errors import ApiError
from queryserver_client.transport import segment

if TYPE_CHECKING:
    from queryserver_client.sync import Connection

_KEPT_S = 60.0
_USUAL = ("main", "public", "default")
"""The databases in which engines look for a name that stands alone."""
_SYSTEM = frozenset({"information_schema", "pg_catalog", "sys", "performance_schema", "system"})


@dataclass(frozen=True)
class TableColumn:
    """A column of a table."""

    name: str
    type: str
    is_nullable: bool | None
    is_primary_key: bool
    comment: str


class Catalog:
    """Safe to use from the thread of the prompt and that of its completion."""

    def __init__(self, db: "Connection", connector: str, database: str | None) -> None:
        self._db = db
        self._connector = connector
        self.chosen = database
        """The database of `-d`, or of the last USE."""
        self._kept: dict[str, tuple[float, dict[str, Any]]] = {}
        self._lock = Lock()

    def databases(self) -> list[str]:
        """Without those of the engine itself."""
        return [name for name in self._get("")["databases"] if name.lower() not in _SYSTEM]

    def current(self) -> str | None:
        """The database of a name that stands alone, as far as can be said."""
        if self.chosen:
            return self.chosen
        names = self.databases()
        usual = [name for name in names if name.lower() in _USUAL]
        return usual[0] if usual else names[0] if len(names) == 1 else None

    def tables(self, database: str) -> list[tuple[str, str]]:
        """Names and kinds."""
        return [(item["name"], item["type"]) for item in self._get(f"/{segment(database)}")["tables_meta"]]

    def columns(self, name: str) -> list[TableColumn]:
        """Of `table` or `database.table`. Raises NotFound."""
        database, _, table = name.rpartition(".")
        body = self._get(f"/{segment(database or self.current() or '')}/{segment(table)}")
        return [
            TableColumn(
                item["name"], item["type"], item["nullable"], bool(item["primary_key"]), str(item["comment"] or "")
            )
            for item in body["extended_columns"]
        ]

    def forget(self) -> None:
        """After a statement that may have changed what there is."""
        with self._lock:
            self._kept.clear()

    def _get(self, path: str) -> dict[str, Any]:
        with self._lock:
            kept_at, kept = self._kept.get(path, (-_KEPT_S, {}))
        if time.monotonic() - kept_at < _KEPT_S:
            return kept
        fields = {"snippet": {"type": self._connector}}
        transport = self._db.core.transport
        body = self._db.loop.run(
            lambda: transport.call("POST", f"editor/autocomplete{path}", fields, is_repeatable=True, wait_s=30.0)
        )
        if body.get("status"):
            raise ApiError(str(body.get("message", "")), status=200, code=str(body.get("code", "")), body=body)
        with self._lock:
            self._kept[path] = (time.monotonic(), body)
        return body
