"""Escapes for entry names that a path cannot contain (Contract storage 2.2.8).

`._qs_name_` followed by a name's bytes in hexadecimal denotes an entry. `._qs_file_` followed by the bytes denotes the
object with exactly that name in a flat-key store, next to a directory of the same name. Both start with the reserved
prefix, so no client can create an entry with such a name.
"""

import re
from enum import StrEnum

from queryserver.errors.files import AmbiguousName

RESERVED_PREFIX = "._qs_"
"""Prefix of internal files such as unfinished uploads. Clients cannot use them, and listings do not show them."""

_NAME, _FILE = f"{RESERVED_PREFIX}name_", f"{RESERVED_PREFIX}file_"
_ESCAPED = re.compile(rf"(?:{re.escape(_NAME)}|{re.escape(_FILE)})(?:[0-9a-f]{{2}})*")


class Escapes(StrEnum):
    """Which of a store's names need an escape."""

    NONE = "none"
    KEYS = "keys"
    """Flat-key segments that are empty, dots, too long or contain U+0000, and files next to a directory of the same
    name.
    """
    DOTLESS_KEYS = "dotless_keys"
    """Like KEYS, except that dot segments are listed but cannot be accessed."""
    BYTES = "bytes"
    """Names that are not UTF-8."""


def escaped(raw: bytes) -> str:
    """Return the escaped name of an entry called `raw`, for use in paths."""
    return _NAME + raw.hex()


def escaped_file(raw: bytes) -> str:
    """Return the escaped name of the object `raw` next to a directory of the same name, for use in paths."""
    return _FILE + raw.hex()


def is_escaped(name: str) -> bool:
    return name.startswith(RESERVED_PREFIX) and _ESCAPED.fullmatch(name) is not None


def is_escaped_file(name: str) -> bool:
    return name.startswith(_FILE) and is_escaped(name)


def raw_name(name: str) -> bytes:
    """Return the bytes of the escaped name."""
    return bytes.fromhex(name.removeprefix(_NAME).removeprefix(_FILE))


def ambiguous(path: str) -> AmbiguousName:
    """Return the error for changing a path that is both a file and a directory. `path` is in normal form."""
    parent, _, name = path.rpartition("/")
    alone = escaped_file(raw_name(name) if is_escaped(name) else name.encode())
    return AmbiguousName(f"{path} is a file and a directory; the file alone is {parent}/{alone}.")


def holds_escapes(path: str) -> bool:
    return any(map(is_escaped, path.split("/")))
