"""What a storage adapter declares about itself for the contract suite."""

from dataclasses import dataclass

AWKWARD_NAMES = (
    "blue pen",
    "100%",
    "%2e%2e",
    "a..b.txt",
    "...",
    "é😀",
    "日本",
    "e\u0301",
    "a#b?c&d=e+f",
    "-rf",
    ".hidden",
    "quote'\"",
    "(x)@[y]{z}",
    "\u2024\u2024",
    "x" * 200,
)
"""Names that every store must keep unchanged; the two dots are look-alikes (Contract storage 2.2.6)."""


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What the suite must know about a store."""

    name: str
    """The store's name in the support table, such as `HDFS (WebHDFS)`."""
    place: str = ""
    """An existing directory in which the tests may create theirs: `bucket`, `user/alice`, `service/volume/bucket`."""
    has_directories: bool = True
    """Whether a directory is more than a name prefix; if so, a file cannot have entries below it."""
    reads_parts: bool = True
    """Whether parts can be read before they are joined (`ReadableParts`)."""
    excludes_writers: bool = True
    """Whether exactly one of several simultaneous writers of a new file succeeds."""
    excludes_makers: bool = True
    """Whether exactly one of several simultaneous mkdir calls for a directory succeeds."""
    awkward_names: tuple[str, ...] = AWKWARD_NAMES
    unnameable: tuple[bytes, ...] = ()
    """File names, relative to a directory, that the store can have and no path can hold."""
    default_permissions: tuple[int, int] = (0o755, 0o644)
    """The permissions of new directories and files."""
    server_words: tuple[str, ...] = ()
    """Words that must not appear in messages: addresses, server paths, implementation terms."""
    owner_change: tuple[str, str] | None = None
    """Owner and group that the tests' user may set; None if that takes a superuser."""
    patience_s: float = 30
    """How long a test waits for an event at most."""
