"""Names that no path can hold, written so that a path holds them (Contract storage 2.2.8).

`._qs_name_` and the bytes of the name in hexadecimal digits stand for an entry. `._qs_file_` and the bytes stand for
the object of exactly that name where keys are flat, beside a directory of the same name. Both begin with the reserved
prefix: no client can give such a name to a new entry.
"""

import re
from enum import StrEnum

from queryserver.errors.files import AmbiguousName

RESERVED_PREFIX = "._qs_"
"""Prefix of our own files, such as unfinished uploads: clients cannot use such names, and no listing shows them."""

_NAME, _FILE = f"{RESERVED_PREFIX}name_", f"{RESERVED_PREFIX}file_"
_ESCAPED = re.compile(rf"(?:{re.escape(_NAME)}|{re.escape(_FILE)})(?:[0-9a-f]{{2}})*")


class Escapes(StrEnum):
    """Which names of a store need an escape."""

    NONE = "none"
    KEYS = "keys"
    """Segments of flat keys: empty, dots, U+0000, or longer than a name; and files beside a directory of their name."""
    DOTLESS_KEYS = "dotless_keys"
    """As KEYS; segments of dots are shown and cannot be used."""
    BYTES = "bytes"
    """Names that are not UTF-8."""


def escaped(raw: bytes) -> str:
    """The name by which paths hold an entry called `raw`."""
    return _NAME + raw.hex()


def escaped_file(raw: bytes) -> str:
    """The name by which paths hold the object `raw` beside a directory of that name."""
    return _FILE + raw.hex()


def is_escaped(name: str) -> bool:
    return name.startswith(RESERVED_PREFIX) and _ESCAPED.fullmatch(name) is not None


def is_escaped_file(name: str) -> bool:
    return name.startswith(_FILE) and is_escaped(name)


def raw_name(name: str) -> bytes:
    """The bytes that an escaped name stands for."""
    return bytes.fromhex(name.removeprefix(_NAME).removeprefix(_FILE))


def ambiguous(path: str) -> AmbiguousName:
    """The refusal to change what is a file and a directory of one name. `path` is in normal form."""
    parent, _, name = path.rpartition("/")
    alone = escaped_file(raw_name(name) if is_escaped(name) else name.encode())
    return AmbiguousName(f"{path} is a file and a directory; the file alone is {parent}/{alone}.")


def holds_escapes(path: str) -> bool:
    return any(map(is_escaped, path.split("/")))
