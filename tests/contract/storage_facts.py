"""The facts about a storage adapter that the contract suite needs."""

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
"""Names that every store must preserve exactly; the two dots are look-alike characters (Contract storage 2.2.6)."""


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """The facts about a store that the suite needs."""

    name: str
    """The name in the support table, such as `HDFS (WebHDFS)`."""
    place: str = ""
    """An existing directory in which the tests create their own directories, such as `bucket` or `user/alice`."""
    has_directories: bool = True
    """Whether directories are real entries rather than name prefixes. If so, nothing can be created below a file."""
    reads_parts: bool = True
    """Whether the parts of an upload can be read before they are joined (`ReadableParts`)."""
    excludes_writers: bool = True
    """Whether only one of several concurrent writers of a new file can succeed."""
    excludes_makers: bool = True
    """Whether only one of several concurrent mkdir calls for the same directory can succeed."""
    awkward_names: tuple[str, ...] = AWKWARD_NAMES
    unnameable: tuple[bytes, ...] = ()
    """File names, relative to a directory, that the store permits but that no path can represent."""
    default_permissions: tuple[int, int] = (0o755, 0o644)
    """The default permissions of new directories and of new files."""
    server_words: tuple[str, ...] = ()
    """Words that no error message may contain: addresses, server paths, implementation terms."""
    owner_change: tuple[str, str] | None = None
    """An owner and a group that the tests' user may set; None if only a superuser may set them."""
    patience_s: float = 30
    """How long a test waits for an event, in seconds."""
