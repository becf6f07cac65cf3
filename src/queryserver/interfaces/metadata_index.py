"""The index of databases, tables and columns that the metadata search reads (Contract platform 8.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

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
