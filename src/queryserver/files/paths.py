"""Which names entries of stores have, and which ones new entries may have (Contract storage 2.2, 2.3, 2.4; T1)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from queryserver.errors.base import MissingParameter
from queryserver.errors.files import (
    InvalidName,
    InvalidPath,
    StorageNotConfigured,
    UnknownAuthority,
    UnknownScheme,
    extension_not_permitted,
    extension_restricted,
)
from queryserver.files.model import Scheme, StoragePath

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


_SCHEMES: Mapping[str, Scheme] = {
    "hdfs": Scheme.HDFS,
    "s3a": Scheme.S3A,
    "s3": Scheme.S3A,
    "s3n": Scheme.S3A,
    "abfs": Scheme.ABFS,
    "abfss": Scheme.ABFS,
    "adls": Scheme.ABFS,
    "adl": Scheme.ABFS,
    "ofs": Scheme.OFS,
    "file": Scheme.FILE,
}
_WITH_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/+)(.*)", re.DOTALL)
_ENCODED_START = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?%2F", re.IGNORECASE)
_ENCODED_SLASH = re.compile(r"%2F", re.IGNORECASE)
_MAX_KEY_BYTES = 1024
_OBJECT_STORES = frozenset({Scheme.S3A})


def decoded_path(raw: str) -> str:
    """The value of a `=<path>` form: percent-decoded once, and repaired (Contract storage 2.2 points 1 and 2).

    Raises InvalidPath: not UTF-8.
    """
    try:
        return repaired(unquote_to_bytes(raw).decode())
    except UnicodeDecodeError:
        raise InvalidPath("The path is not valid UTF-8.") from None


def repaired(path: str) -> str:
    """A path of a GET call that was encoded twice: every `%2F` becomes a slash, other escapes stay."""
    return _ENCODED_SLASH.sub("/", path) if _ENCODED_START.match(path) else path


@dataclass(frozen=True, slots=True)
class PathReader:
    """Reads paths for the stores that this server has."""

    configured: Sequence[Scheme]
    """In the order in which the first of them serves paths without a scheme."""
    name_nodes: frozenset[str] = frozenset()
    """`host:port` and `host` of the configured HDFS."""
    azure_account: str = ""
    """Host of the account, `<account>.dfs.core.windows.net`."""
    ozone_services: Sequence[str] = field(default_factory=tuple[str, ...])
    """Names of the services, the default one first."""

    def read(self, text: str, *, parameter: str = "path") -> StoragePath:
        """The place that `text` names.

        Raises MissingParameter (blank text), InvalidPath, UnknownScheme, StorageNotConfigured, UnknownAuthority.
        """
        if not text:
            raise MissingParameter(f"The parameter {parameter} is required.")
        scheme, rest = self._scheme(text)
        if scheme is None:
            if not self.configured:
                raise StorageNotConfigured("This server has no file store.")
            scheme = self.configured[0]
        names = [name for name in rest.split("/") if name not in {"", "."}]
        if scheme is Scheme.OFS and names and names[0] not in self.ozone_services:
            raise UnknownAuthority("The path names another Ozone service than the configured ones.")
        _check(scheme, names)
        return StoragePath(scheme, "/".join(names))

    def _scheme(self, text: str) -> tuple[Scheme | None, str]:
        """The store, and the path within it."""
        if not (match := _WITH_SCHEME.fullmatch(text)):
            return None, text
        word, slashes, rest = match.groups()
        scheme = _SCHEMES.get(word.lower())
        if scheme is None:
            raise UnknownScheme(f"No store has the scheme {word[:20]}.")
        if scheme not in self.configured:
            raise StorageNotConfigured(f"The store {scheme} is not configured.")
        # One slash is what a proxy leaves of two; with three the authority is empty.
        has_authority = len(slashes) <= 2
        match scheme:
            case Scheme.HDFS:
                return scheme, self._below_name_node(rest, slashes) if has_authority else rest
            case Scheme.FILE:
                if len(slashes) == 2 and rest:
                    raise UnknownAuthority("Paths of the local root have no host: file:///<path>.")
                return scheme, rest
            case Scheme.ABFS:
                return scheme, self._below_account(rest)
            case Scheme.OFS:
                return scheme, rest if has_authority else self._below_default_service(rest)
            case Scheme.S3A:
                return scheme, rest

    def _below_name_node(self, rest: str, slashes: str) -> str:
        first, _, path = rest.partition("/")
        if first.lower() in self.name_nodes:
            return path
        if len(slashes) == 2 and first:
            raise UnknownAuthority("The path names another name node than the configured one.")
        return rest

    def _below_account(self, rest: str) -> str:
        first, slash, path = rest.partition("/")
        container, at, account = first.partition("@")
        if not at:
            return rest
        if account.lower() != self.azure_account.lower():
            raise UnknownAuthority("The path names another account than the configured one.")
        return f"{container}{slash}{path}"

    def _below_default_service(self, rest: str) -> str:
        return f"{self.ozone_services[0]}/{rest}" if rest and self.ozone_services else rest


def _check(scheme: Scheme, names: list[str]) -> None:
    names_of("/".join(names))
    if any(map(hides_dots, names)):
        raise InvalidPath("The path holds encoded dots.")
    if scheme in _OBJECT_STORES and len("/".join(names[1:]).encode()) > _MAX_KEY_BYTES:
        raise InvalidPath(f"An object key has at most {_MAX_KEY_BYTES} bytes.")
    if scheme is Scheme.HDFS and names and names[0] == ".reserved":
        raise InvalidPath("/.reserved is closed.")
