"""Answers of catalogues that are kept for a short time, for all instances together."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Whose answer it is, of which connector; `digest` stands for what was asked."""

    user_id: int
    connector: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class CacheLook:
    """What is kept under a key, if anything, and the moment of the look.

    `changed_at` is the last change of objects that the user made there: two looks with different ones must not share
    an answer. All times are the database's.
    """

    value: bytes | None
    looked_at: datetime
    changed_at: datetime | None


class MetadataCacheRecords(Protocol):
    """Each method is one transaction. All raise DatabaseUnavailable."""

    async def look(self, key: CacheKey, *, max_age: timedelta) -> CacheLook:
        """An answer that is not older than `max_age`, nor than the user's last change of objects."""
        ...

    async def keep(self, key: CacheKey, value: bytes, *, looked_at: datetime, max_bytes: int) -> bool:
        """Keep an answer; `looked_at` comes from the look that found none, before the engine was asked.

        False when the user's answers fill `max_bytes`: then nothing is kept.
        """
        ...

    async def objects_changed(self, user_id: int, connector: str) -> None:
        """Forget the user's answers of a connector, those under way included."""
        ...

    async def sweep(self, *, older_than: timedelta) -> int:
        """Delete what nobody can be given any more."""
        ...
