"""Maps the segments of flat object keys to the names that denote them in paths, and back."""

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
"""The last name in the path of an object whose key ends with a slash. An empty object of this kind is a directory
marker.
"""


def has_marker(segment: str) -> bool:
    """Return whether a marker object is created for a directory of this name.

    A directory without a marker exists only as long as it contains other keys. Gateways and Azure mishandle markers of
    directories whose name is empty, `.` or `..`.
    """
    return segment not in {"", ".", ".."}


def path_name(segment: str) -> str | None:
    """Return the name that denotes a key segment in paths, or None if the segment is a reserved name."""
    if is_name(segment):
        return segment
    return None if segment.startswith(RESERVED_PREFIX) else escaped_name(segment.encode(errors="surrogatepass"))


def relative_path(rest: str) -> str | None:
    """Return the relative path for the end of a key, or None if one of its segments is reserved.

    `rest` is the part of the key after the directory's prefix. A directory's key ends with a slash.
    """
    names = [path_name(segment) for segment in rest.removesuffix("/").split("/")]
    path_names = [name for name in names if name is not None]
    return "/".join(path_names) if len(path_names) == len(names) else None


def key_segment(name: str, *, is_last: bool = True) -> str:
    """Return the key segment that a name in a path denotes. Raises InvalidPath if an escaped name is invalid."""
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
