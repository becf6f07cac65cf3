"""Key segments in stores with flat keys, and their names in paths."""

from queryserver import errors
from queryserver.files.model import (
    RESERVED_PREFIX,
    escaped_file_name,
    escaped_name,
    is_escaped,
    is_escaped_file,
    is_name,
    raw_name,
)

MARKER_NAME = escaped_file_name(b"")
"""The last name in the path of an object whose key ends with a slash. If empty, the object marks a directory."""


def has_marker(segment: str) -> bool:
    """Return whether a directory with this name gets a marker object.

    Without a marker, the directory exists only while it contains other keys. Gateways and Azure mishandle markers whose
    directory name is empty or consists of dots.
    """
    return segment not in {"", ".", ".."}


def path_name(segment: str) -> str | None:
    """Return a key segment's path name, or None for reserved names, which are not path_names."""
    if is_name(segment):
        return segment
    return None if segment.startswith(RESERVED_PREFIX) else escaped_name(segment.encode(errors="surrogatepass"))


def relative_path(rest: str) -> str | None:
    """Return the path of a key relative to a directory, or None if a name in it is reserved.

    `rest` is the key after the directory's prefix. Directories end with a slash.
    """
    names = [path_name(segment) for segment in rest.removesuffix("/").split("/")]
    path_names = [name for name in names if name is not None]
    return "/".join(path_names) if len(path_names) == len(names) else None


def key_segment(name: str, *, is_last: bool = True) -> str:
    """Return the key segment for a name in a path. Raises InvalidPath for an invalid escape."""
    if not is_escaped(name):
        return name
    try:
        segment = raw_name(name).decode()
    except UnicodeDecodeError:
        raise _unknown_name(name) from None
    is_file = is_escaped_file(name)
    if "/" in segment or segment.startswith(RESERVED_PREFIX) or (is_file and not is_last):
        raise _unknown_name(name)
    if is_name(segment) and not is_file:
        raise _unknown_name(name)
    return segment


def _unknown_name(name: str) -> errors.InvalidPath:
    return errors.InvalidPath(f"{name} is not an escaped name of this store.")
