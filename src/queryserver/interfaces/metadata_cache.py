"""Answers of catalogues that are kept for a short time, for all instances together."""

from dataclasses import dataclass
from datetime import datetime


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
