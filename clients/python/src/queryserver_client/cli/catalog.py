"""A connector's databases, tables and columns for completion and `\\d`. Each list is fetched at most once a minute."""

import time
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from queryserver_client.metadata import TableColumn, TableName
    from queryserver_client.sync import Connection

_KEPT_S = 60.0
_USUAL = ("main", "public", "default")
"""The databases in which engines look up unqualified names."""
_SYSTEM = frozenset({"information_schema", "pg_catalog", "sys", "performance_schema", "system"})


T = TypeVar("T")


class Catalog:
    """Can be used from both the prompt's thread and the completion's thread."""

    def __init__(self, db: "Connection", connector: str, database: str | None) -> None:
        self._db = db
        self._connector = connector
        self.chosen = database
        """The database from `-d`, or from the last USE."""
        self._kept: dict[tuple[str, ...], tuple[float, Any]] = {}
        self._lock = Lock()

    def databases(self) -> list[str]:
        """Return the databases except the engine's own ones."""
        names = self._get((), lambda: list(self._db.metadata.databases(self._connector)))
        return [name for name in names if name.lower() not in _SYSTEM]

    def current(self) -> str | None:
        """Return the database of unqualified names, if known."""
        if self.chosen:
            return self.chosen
        names = self.databases()
        usual = [name for name in names if name.lower() in _USUAL]
        return usual[0] if usual else names[0] if len(names) == 1 else None

    def tables(self, database: str) -> "list[TableName]":
        """Return tables and views."""
        return self._get((database,), lambda: list(self._db.metadata.tables(self._connector, database)))

    def columns(self, name: str) -> "tuple[TableColumn, ...]":
        """Return the columns of `table` or `database.table`. Raises NotFound."""
        database, _, table = name.rpartition(".")
        database = database or self.current() or ""
        return self._get((database, table), lambda: self._db.metadata.columns(self._connector, database, table))

    def forget(self) -> None:
        """Clear the cache after a statement that may have changed tables or databases."""
        with self._lock:
            self._kept.clear()

    def _get(self, names: tuple[str, ...], fetch: "Callable[[], T]") -> T:
        with self._lock:
            kept_at, kept = self._kept.get(names, (-_KEPT_S, None))
        if time.monotonic() - kept_at < _KEPT_S:
            return kept  # pyright: ignore[reportReturnType]
        found = fetch()
        with self._lock:
            self._kept[names] = (time.monotonic(), found)
        return found
