"""Escapes for entry names that a path cannot contain (Contract storage 2.2.8).

`._qs_name_` followed by the bytes of a name in hexadecimal denotes an entry. `._qs_file_` and the bytes denote the
object of exactly that name in a store with flat keys, next to a directory of the same name. Both start with the
reserved prefix, so no client can create an entry with such a name.
"""

import re
from enum import StrEnum

from queryserver.errors.files import AmbiguousName

RESERVED_PREFIX = "._qs_"
"""Prefix of internal files, such as unfinished uploads, which clients cannot use and listings do not show."""

_NAME, _FILE = f"{RESERVED_PREFIX}name_", f"{RESERVED_PREFIX}file_"
_ESCAPED = re.compile(rf"(?:{re.escape(_NAME)}|{re.escape(_FILE)})(?:[0-9a-f]{{2}})*")


class Escapes(StrEnum):
    """Which names of a store need an escape."""

    NONE = "none"
    KEYS = "keys"
    """Segments of flat keys that are empty, dots, too long or contain U+0000; and files next to a directory of that
    name.
    """
    DOTLESS_KEYS = "dotless_keys"
    """As KEYS, except that segments of dots are listed but cannot be accessed."""
    BYTES = "bytes"
    """Names that are not UTF-8."""


def escaped(raw: bytes) -> str:
    """The escaped name, for use in paths, of an entry called `raw`."""
    return _NAME + raw.hex()


def escaped_file(raw: bytes) -> str:
    """The escaped name, for use in paths, of the object `raw` next to a directory of that name."""
    return _FILE + raw.hex()


def is_escaped(name: str) -> bool:
    return name.startswith(RESERVED_PREFIX) and _ESCAPED.fullmatch(name) is not None


def is_escaped_file(name: str) -> bool:
    return name.startswith(_FILE) and is_escaped(name)


def raw_name(name: str) -> bytes:
    """The bytes of the name that is escaped."""
    return bytes.fromhex(name.removeprefix(_NAME).removeprefix(_FILE))


def ambiguous(path: str) -> AmbiguousName:
    """The error for a change to a path that is both a file and a directory. `path` is in normal form."""
    parent, _, name = path.rpartition("/")
    alone = escaped_file(raw_name(name) if is_escaped(name) else name.encode())
    return AmbiguousName(f"{path} is a file and a directory; the file alone is {parent}/{alone}.")


def holds_escapes(path: str) -> bool:
    return any(map(is_escaped, path.split("/")))
