"""Storage paths as names that cannot lead out of a root (Contract security T1)."""

import unicodedata

from queryserver.domain.errors import InvalidPath

RESERVED_PREFIX = "._qs_"
"""Names of our own, such as files on their way in: nobody can name them and no listing shows them."""

_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 4096
_FORBIDDEN = frozenset("/\\\0")
_DOTS = frozenset({".", ".."})


def names_of(path: str) -> tuple[str, ...]:
    """The names of a path, outermost first; none for the root, which is written as the empty text.

    Nothing is normalised away: what is checked here is, name by name, what the file system gets to see.
    Raises InvalidPath.
    """
    if not path:
        return ()
    names = tuple(path.split("/"))
    if len(path) > _MAX_PATH_BYTES or not all(map(is_name, names)):
        raise InvalidPath("The path holds an empty, relative, reserved or overlong name, a backslash or a NUL.")
    return names


def is_name(name: str) -> bool:
    """Whether an entry can be asked for by this name."""
    # Some stores fold compatibility characters; a name that turns into dots there must not get that far.
    folded = unicodedata.normalize("NFKC", name)
    if not name or folded in _DOTS or not _FORBIDDEN.isdisjoint(name) or name.startswith(RESERVED_PREFIX):
        return False
    try:
        return len(name.encode()) <= _MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False
