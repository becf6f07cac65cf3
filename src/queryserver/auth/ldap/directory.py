"""What a login needs of a directory. The calls block: they run in threads."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: its distinguished name, and the attributes that were asked for, named in lower case."""

    dn: str
    attributes: dict[str, tuple[str, ...]]

    def values(self, attribute: str) -> tuple[str, ...]:
        """Of an attribute, none when the entry lacks it."""
        return self.attributes.get(attribute.lower(), ())


@dataclass(frozen=True, slots=True)
class Search:
    """Which entries are wanted. `most`: how many at most; what is asked of only one entry looks at `base` alone."""

    base: str
    filter: str
    attributes: tuple[str, ...]
    most: int
    only_base: bool = False


class DirectorySession(Protocol):
    """One connection. Every call ends by the deadline of the session, and raises LoginBackendUnavailable then."""

    def bind(self, name: str, password: str) -> bool:
        """Log in; False when the directory refuses this login. Raises ValueError for an empty password."""
        ...

    def entries(self, search: Search) -> Sequence[Entry]:
        """What is found; references to other servers are not followed, and no entries."""
        ...

    def abort(self) -> None:
        """End the connection under the feet of another thread that waits for it."""
        ...


class Directory(Protocol):
    """A directory server."""

    def session(self) -> AbstractContextManager[DirectorySession]:
        """A connection whose peer has proved its name. Opened by its first use."""
        ...
