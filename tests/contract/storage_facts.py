"""What a storage adapter declares about itself before the contract suite runs over it."""

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
"""Names that every store must keep as they are; the two dots are look-alikes (Contract storage 2.2.6)."""


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What the suite must know of a store."""

    name: str
    """As it stands in the support table: `HDFS (WebHDFS)`."""
    place: str = ""
    """An existing directory in which the tests may make theirs: `bucket`, `user/alice`, `service/volume/bucket`."""
    has_directories: bool = True
    """Whether a directory is more than a prefix of names: then a file cannot have anything below it."""
    reads_parts: bool = True
    """Whether parts can be read before they are joined (`ReadableParts`)."""
    excludes_writers: bool = True
    """Whether of several writers of one new file exactly one succeeds, also when they write at the same moment."""
    excludes_makers: bool = True
    """Whether of several that make one directory at a time exactly one succeeds."""
    awkward_names: tuple[str, ...] = AWKWARD_NAMES
    unnameable: tuple[bytes, ...] = ()
    """Names of files, relative to a directory, that the store can have and no path can hold."""
    default_permissions: tuple[int, int] = (0o755, 0o644)
    """Of new directories and files."""
    server_words: tuple[str, ...] = ()
    """What a message must not hold: addresses, paths of the server, words of its implementation."""
    owner_change: tuple[str, str] | None = None
    """Owner and group that the user of these tests may set; None: a superuser is needed."""
    patience_s: float = 30
    """How long one test waits for something at most."""
