"""Keys of flat stores and the names that paths have for their segments."""

from queryserver import errors
from queryserver.files.escapes import RESERVED_PREFIX, escaped, escaped_file, is_escaped, is_escaped_file, raw_name
from queryserver.files.model import is_name

MARKER = escaped_file(b"")
"""The name of what a key holds that ends with a slash; an empty one is the marker of its directory."""


def has_marker(segment: str) -> bool:
    """Whether a directory of that name gets a marker; one without exists as long as keys lie below it.

    Gateways and Azure take the marker of an empty name or of dots for that of another directory, or for none.
    """
    return segment not in {"", ".", ".."}


def name_of(segment: str) -> str | None:
    """The name of a segment of a key; None for names of our own, which are not shown."""
    if is_name(segment):
        return segment
    return None if segment.startswith(RESERVED_PREFIX) else escaped(segment.encode(errors="surrogatepass"))


def path_below(rest: str) -> str | None:
    """The path of the key `rest`, relative to a directory; of a directory with its slash. None: not shown."""
    names = [name_of(segment) for segment in rest.removesuffix("/").split("/")]
    shown = [name for name in names if name is not None]
    return "/".join(shown) if len(shown) == len(names) else None


def segment_of(name: str, *, is_last: bool = True) -> str:
    """The segment of a key that `name` stands for. Raises InvalidPath: an escape of no such segment."""
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
