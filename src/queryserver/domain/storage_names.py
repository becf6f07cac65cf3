"""Which names entries of stores have, and which ones new entries may have (Contract storage 2.2, 2.3, 2.4; T1)."""

from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from queryserver.domain.errors.files import InvalidName, InvalidPath, extension_not_permitted, extension_restricted

RESERVED_PREFIX = "._qs_"
"""Names of our own, such as files on their way in: nobody can name them and no listing shows them."""

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4096
_DOTS = frozenset({".", ".."})
_BYTE_DOTS = frozenset({b".", b".."})
_DECODINGS = 3


def names_of(path: str) -> tuple[str, ...]:
    """The names of a path relative to a root, outermost first; none for the root, which is the empty text.

    Nothing is normalised away: what is checked here is, name by name, what the store gets to see. Every adapter calls
    it, so that a path that was never checked before gets no further. Raises InvalidPath.
    """
    if not path:
        return ()
    names = tuple(path.split("/"))
    if not all(map(is_name, names)):
        raise InvalidPath("The path holds an empty, relative, reserved or overlong name, or a character it must not.")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise InvalidPath(f"A path has at most {MAX_PATH_BYTES} bytes.")
    return names


def is_name(name: str) -> bool:
    """Whether an entry can be asked for by this name: any text but dots, `/`, U+0000 and names of our own."""
    if not name or name in _DOTS or "/" in name or "\0" in name or name.startswith(RESERVED_PREFIX):
        return False
    try:
        return len(name.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False


def hides_dots(name: str) -> bool:
    """Whether one to three further percent-decodings make `.` or `..` of it, as a careless proxy or store would."""
    raw = name.encode("utf-8", "surrogatepass")
    for _ in range(_DECODINGS):
        if b"%" not in raw:
            return False
        raw = unquote_to_bytes(raw)
        if raw in _BYTE_DOTS:
            return True
    return False


def new_name(given: str, *, is_directory: bool = False) -> str:
    """A name for a new entry, surrounding blanks removed (Contract storage 2.3). Raises InvalidName."""
    name = given.strip()
    if not is_name(name) or hides_dots(name):
        raise InvalidName("The name is empty, relative, reserved, too long, or holds / or U+0000.")
    # Looked for in what was given: a line end at an end is a control character, no blank (Contract storage S6).
    if "\\" in name or any(character < " " or character == "\x7f" for character in given):
        raise InvalidName("A new name holds no backslash and no control character.")
    if is_directory and "#" in name:
        raise InvalidName("The name of a new directory holds no #.")
    return name


def extension_of(name: str) -> str:
    """The text from the last dot, in lower case; empty without a dot, or with only a leading one."""
    stem, dot, extension = name.rpartition(".")
    return f".{extension.lower()}" if dot and stem else ""


class ExtensionRules:
    """Which extensions new files may have (Contract storage 2.4). Leading dots and case do not matter."""

    def __init__(self, *, allowed: Sequence[str] = (), restricted: Sequence[str] = ()) -> None:
        self._allowed = frozenset(map(_extension, allowed))
        self._restricted = frozenset(map(_extension, restricted))

    def check(self, name: str, *, former: str | None = None) -> None:
        """Raises extension_not_permitted, extension_restricted. An entry called `former` may keep its extension."""
        extension = extension_of(name)
        if former is not None and extension_of(former) == extension:
            return
        if self._allowed and extension not in self._allowed:
            raise extension_not_permitted(
                f'File type "{extension}" is not permitted. Modify file extension settings to allow this type.'
            )
        if extension and extension in self._restricted:
            raise extension_restricted(
                f'File type "{extension}" is restricted. Update file extension restrictions to allow this type.'
            )


def _extension(setting: str) -> str:
    return f".{setting.strip().lstrip('.').lower()}"
