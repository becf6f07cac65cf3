"""Keys in flat stores, and the names of key segments in paths."""

from queryserver import errors
from queryserver.files.model import (
    RESERVED_PREFIX,
    escaped,
    escaped_file,
    is_escaped,
    is_escaped_file,
    is_name,
    raw_name,
)

MARKER = escaped_file(b"")
"""The path name of an object whose key ends with a slash. If the object is empty, it is its directory's marker."""


def has_marker(segment: str) -> bool:
    """Return whether a directory with that name gets a marker. Without a marker it only exists while there are keys
    below it.

    Gateways and Azure mishandle markers of directories whose name is empty or consists of dots.
    """
    return segment not in {"", ".", ".."}


def name_of(segment: str) -> str | None:
    """Return a key segment's path name, or None for reserved names, which are not shown."""
    if is_name(segment):
        return segment
    return None if segment.startswith(RESERVED_PREFIX) else escaped(segment.encode(errors="surrogatepass"))


def path_below(rest: str) -> str | None:
    """Return the path of the key `rest` relative to a directory, or None if it is not shown. Directories end with a
    slash.
    """
    names = [name_of(segment) for segment in rest.removesuffix("/").split("/")]
    shown = [name for name in names if name is not None]
    return "/".join(shown) if len(shown) == len(names) else None


def segment_of(name: str, *, is_last: bool = True) -> str:
    """Return the key segment for a path name. Raises InvalidPath for an invalid escape."""
    if not is_escaped(name):
        return name
    try:
        segment = raw_name(name).decode()
    except UnicodeDecodeError:
        raise _none(name) from None
    is_file = is_escaped_file(name)
    if "/" in segment or segment.startswith(RESERVED_PREFIX) or (is_file and not is_last):
        raise _none(name)
    if is_name(segment) and not is_file:
        raise _none(name)
    return segment


def _none(name: str) -> errors.InvalidPath:
    return errors.InvalidPath(f"{name} stands for no name of this store.")
