"""The index of databases, tables and columns that the metadata search reads (Contract platform 8.4)."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

DATABASE, TABLE, VIEW = "DATABASE", "TABLE", "VIEW"
UNIT, RECORD = "\x1f", "\x1e"
"""Between name and comment of a column, and between columns."""


@dataclass(frozen=True, slots=True)
class ScopeKey:
    """Whose view of which data source. `user_id` None: all callers see the same.

    `address` stands for where objects are read: what was read elsewhere, under another address, does not count.
    """

    connector: str
    user_id: int | None
    address: bytes
    is_stored: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """A view that is indexed. `version` counts changes of objects, `epoch` removals."""

    id: int
    key: ScopeKey
    version: int
    epoch: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class IndexedColumn:
    """A column as it is searched."""

    name: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class IndexedObject:
    """A database (`name` empty), table or view. None stands for what a look did not tell: it stays as it was."""

    kind: str
    database: str
    name: str
    comment: str | None = None
    owner: str | None = None
    modified_at: datetime | None = None
    columns: Sequence[IndexedColumn] | None = None
    columns_cut: bool = False


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """An object as it is read back.

    `columns` are `name U+001F comment` by name, joined by U+001E, None when not known.
    """

    id: int
    kind: str
    database: str
    name: str
    comment: str
    owner: str
    modified_at: datetime | None
    columns: str | None


class MetadataIndexRecords(Protocol):
    """Each call is one transaction, but for `read`. All raise DatabaseUnavailable."""

    async def scope(self, key: ScopeKey) -> Scope:
        """The scope of that key, made when there is none; one of another address loses its objects first."""
        ...

    async def scopes(self, keys: Sequence[ScopeKey]) -> Sequence[Scope]:
        """Those that exist, with the same address; noted as used."""
        ...

    async def put(self, scope_id: int, objects: Sequence[IndexedObject], *, max_tables: int) -> bool:
        """Add or change objects; those that say nothing new touch nothing. False: something was left out.

        That is new tables above `max_tables`, all of the scope counted, and as many databases. The scope is truncated
        from then on, until the end of a refresh, when something was left out, or an object has columns that were cut.
        """
        ...

    async def tables_by_database(self, scope_id: int) -> Mapping[str, int]:
        """The databases that have objects, and how many tables of each are indexed."""
        ...

    def read(self, scope_id: int, *, after_version: int) -> AsyncIterator[Sequence[ObjectRow]]:
        """Objects that were changed after that version, in portions."""
        ...

    async def claim(self, key: ScopeKey, *, owner: str, lease: timedelta, interval: timedelta) -> Scope | None:
        """The scope, to be refreshed by `owner` alone for a while; None when it is not due, or somebody has it.

        None also while another scope of the same connector is refreshed: a data source is read once at a time.
        """
        ...

    async def renew(self, scope_id: int, *, owner: str, lease: timedelta) -> bool:
        """False when the lease is lost."""
        ...

    async def complete(
        self,
        scope_id: int,
        *,
        owner: str,
        seen: Mapping[str, Sequence[str]],
        unread: Collection[str],
        began: datetime,
        truncated: bool,
        again: bool,
    ) -> None:
        """End a refresh: what was not seen and did not come meanwhile is removed.

        `again`: the next one is due at once if anything was. `seen`: database to its tables. Of
        the databases in `unread` nobody knows what they hold: their rows stay.
        """
        ...

    async def give_up(self, scope_id: int, *, owner: str, soon: bool) -> None:
        """End a refresh that failed: objects stay; it is due again at once if `soon`, else after some minutes."""
        ...

    async def now(self) -> datetime:
        """The time of the database."""
        ...

    async def sweep(self, *, unused_for: timedelta) -> int:
        """Delete scopes of connectors that are gone, and what nobody used or refreshed for so long."""
        ...

    async def counts(self) -> Mapping[str, int]:
        """How many objects of each kind there are, columns not counted."""
        ...
