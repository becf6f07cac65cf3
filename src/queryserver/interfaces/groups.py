"""Groups: who is in them, and what they may."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupGrants:
    """A group with its rights and how many users are in it."""

    name: str
    rights: tuple[str, ...]
    """In order."""
    members: int
