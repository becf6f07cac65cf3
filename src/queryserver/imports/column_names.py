"""Shortens column names to the lengths that engines accept (Contract importer 7.3.5)."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from queryserver.formats.cell_types.header import MAX_NAME_CHARACTERS


@dataclass(frozen=True, slots=True)
class NameLimit:
    """The maximum length of a column or table name."""

    most: int
    in_bytes: bool = False
    """Whether to count UTF-8 bytes instead of characters."""

    def __str__(self) -> str:
        return f"{self.most} {'bytes in UTF-8' if self.in_bytes else 'characters'}"

    def has(self, name: str) -> bool:
        return (len(name.encode("utf-8", "replace")) if self.in_bytes else len(name)) <= self.most

    def cut(self, name: str, suffix: str = "") -> str:
        """Shorten the name to fit with the suffix; never separates a character from its combining marks."""
        if self.has(name + suffix):
            return name + suffix
        room = self.most - len(suffix)  # suffixes are ASCII
        end = len(name.encode("utf-8", "replace")[:room].decode("utf-8", "ignore")) if self.in_bytes else room
        while end > 1 and unicodedata.combining(name[end]):
            end -= 1
        return name[:end].rstrip() + suffix


_LIMITS: Mapping[str, NameLimit] = {
    "postgresql": NameLimit(63, in_bytes=True),
    "mysql": NameLimit(64),
    "impala": NameLimit(128),
}
_DEFAULT_LIMIT = NameLimit(MAX_NAME_CHARACTERS)
"""For dialects with a higher limit or none. duckdb and sqlite have no limit, the hive and sparksql metastore allows 767
characters, and phoenix allows more. In trino the limit depends on the catalog.
"""


def name_limit(dialect: str) -> NameLimit:
    return _LIMITS.get(dialect, _DEFAULT_LIMIT)


def engine_names(names: Sequence[str], dialect: str) -> Sequence[str]:
    """Shorten names that are too long for the dialect; the results are distinct ignoring case.

    If shortening makes several names equal, the first keeps the shortened name, and the others get `_2`, `_3` and so
    on. `names` must be distinct.
    """
    limit = name_limit(dialect)
    taken = {name.lower() for name in names if limit.has(name)}
    tried: dict[str, int] = {}
    shortened: list[str] = []
    for name in names:
        if limit.has(name):
            shortened.append(name)
            continue
        short = limit.cut(name)
        number = tried.get(short.lower(), 1)
        candidate = short
        while candidate.lower() in taken:
            number += 1
            candidate = limit.cut(name, f"_{number}")
        tried[short.lower()] = number
        taken.add(candidate.lower())
        shortened.append(candidate)
    return shortened
