"""Who may read and change what in the local root (Contract storage 10.5)."""

import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from queryserver.domain.errors.base import PermissionDenied
from queryserver.domain.files import StorageUser
from queryserver.domain.storage_names import is_name, names_of

HOMES = "user"
SHARED = "shared"
_TRASH = ".Trash"


@dataclass(frozen=True, slots=True)
class AccessMap:
    """The map for one user. Paths are compared name by name; links lead nowhere, so that a path is where it says.

    `/user/<name>/**`: that user only. `/shared/**`: everyone. The rest: everyone reads, administrators write.
    """

    user: StorageUser

    @property
    def home(self) -> str:
        """The caller's own directory; empty for a user whose name is none of a file."""
        return f"{HOMES}/{self.user.name}" if is_name(self.user.name) else ""

    @property
    def trash(self) -> str:
        """The root of the caller's trash; empty without a home."""
        return f"{self.home}/{_TRASH}" if self.home else ""

    def is_in_trash(self, path: str) -> bool:
        """Whether a path is the caller's trash, or lies in it."""
        return bool(self.trash) and (path == self.trash or path.startswith(f"{self.trash}/"))

    def shows(self, path: str) -> bool:
        """Whether a listing tells the caller of an entry: not of the homes of others."""
        return self._may_enter(tuple(path.split("/", 2)))

    def check_read(self, path: str) -> None:
        """Raises PermissionDenied, InvalidPath."""
        if not self._may_enter(names_of(path)):
            raise PermissionDenied(f"{path} is another user's.")

    def check_change(self, path: str) -> None:
        """Whether the entry itself may come, go and change. Raises PermissionDenied, InvalidPath."""
        self.check_read(path)
        names = names_of(path)
        if not self.user.is_admin and not (len(names) > 1 and names[0] in {HOMES, SHARED}):
            raise PermissionDenied(f"Only administrators may change {path or 'the root of the store'}.")

    def _may_enter(self, names: tuple[str, ...]) -> bool:
        """Whether a path does not lie in the home of another."""
        if self.user.is_admin or len(names) < 2 or not _is_like_homes(names[0]):
            return True
        return names[0] == HOMES and names[1] == self.user.name


def is_private(names: tuple[str, ...]) -> bool:
    """Whether only their user has business in there: homes and trashes."""
    return names[0] == HOMES and (len(names) == 2 or (len(names) > 2 and names[2] == _TRASH))


@lru_cache(maxsize=1024)
def _is_like_homes(name: str) -> bool:
    """Whether a name is that of the homes, or might lead there: some file systems fold case and forms of characters."""
    return unicodedata.normalize("NFKC", name).casefold() == HOMES
