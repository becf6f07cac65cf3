"""Databases, tables and columns of a connector, for completion and `\\d`. Each list is cached for a minute."""

import time
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from queryserver_client.metadata import TableColumn, TableName
    from queryserver_client.sync import Connection

_KEPT_S = 60.0
_USUAL = ("main", "public", "default")
"""Databases in which engines look up unqualified names by default."""
_SYSTEM = frozenset({"information_schema", "pg_catalog", "sys", "performance_schema", "system"})


T = TypeVar("T")


class Catalog:
    """A thread-safe metadata cache for one connector. The prompt thread and the completion thread use it."""

    def __init__(self, db: "Connection", connector: str, database: str | None) -> None:
        self._db = db
        self._connector = connector
        self.chosen = database
        """The database from the last USE statement, or else from `-d`."""
        self._kept: dict[tuple[str, ...], tuple[float, Any]] = {}
        self._lock = Lock()

    def databases(self) -> list[str]:
        """Return the names of all databases except the engine's system databases."""
        names = self._get((), lambda: list(self._db.metadata.databases(self._connector)))
        return [name for name in names if name.lower() not in _SYSTEM]

    def current(self) -> str | None:
        """Return the database in which unqualified names are looked up; None if unknown."""
        if self.chosen:
            return self.chosen
        names = self.databases()
        usual = [name for name in names if name.lower() in _USUAL]
        return usual[0] if usual else names[0] if len(names) == 1 else None

    def tables(self, database: str) -> "list[TableName]":
        """Return the tables and views of a database."""
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
