"""Which stores there are, who may use them, and where people are at home (Contract storage 2.5, 5.1, 10.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from queryserver.domain.errors.base import (
    InvalidParameter,
    InvalidUsername,
    MissingParameter,
    QueryServerError,
    configured,
)
from queryserver.domain.errors.files import (
    ImpersonationNotAllowed,
    InvalidPath,
    StorageNotConfigured,
    UnknownScheme,
    storage_access_denied,
)
from queryserver.domain.files import Scheme, StoragePath, StorageUser
from queryserver.domain.storage_paths import PathReader
from queryserver.domain.user import User
from queryserver.domain.usernames import UsernameRule
from queryserver.interfaces.storage import FileSystem, Storage

IMPERSONATE = "security.impersonate"

# Users of a store need not be users of this service, so its case rule does not hold for them.
_AS_WRITTEN = UsernameRule(ignore_case=False, force_lowercase=False)

_RIGHTS: Mapping[Scheme, str] = {
    Scheme.S3A: "filebrowser.s3_access",
    Scheme.ABFS: "filebrowser.abfs_access",
    Scheme.OFS: "filebrowser.ofs_access",
    Scheme.FILE: "filebrowser.file_access",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and as whom the stores are used: the same, unless `doas` names another."""

    user: User
    acting: StorageUser

    @classmethod
    def of(cls, user: User) -> "Caller":
        """A caller who acts as himself."""
        return cls(user, StorageUser(user.username, is_admin=user.is_admin))


@dataclass(frozen=True, slots=True)
class Place:
    """A path with the store that it lies in, as the caller sees it."""

    path: StoragePath
    file_system: FileSystem
    storage: Storage


class Stores:
    """The configured stores, in the order of Contract storage 5.1. `homes` are paths in which `${USER}` is replaced."""

    def __init__(
        self, file_systems: Sequence[FileSystem], reader: PathReader, homes: Mapping[Scheme, str] | None = None
    ) -> None:
        self._file_systems = {file_system.scheme: file_system for file_system in file_systems}
        self._reader = reader
        self._homes = homes or {}

    def caller(self, user: User, doas: str | None = None) -> Caller:
        """Raises ImpersonationNotAllowed, InvalidParameter (no user name)."""
        if not doas or doas == user.username:
            return Caller.of(user)
        if not user.may(IMPERSONATE):
            raise ImpersonationNotAllowed("You may not act as another user.")
        try:
            name = _AS_WRITTEN.read_exact(doas).shown
        except InvalidUsername as error:
            raise InvalidParameter(f"doas: {error.message}") from None
        return Caller(user, StorageUser(name))

    def path(self, text: str | None, *, parameter: str = "path") -> StoragePath:
        """The place that a text names; nothing is asked. Raises as `PathReader.read`."""
        if not text or text.isspace():
            raise MissingParameter(f"{parameter} is required.")
        return self._reader.read(text, parameter=parameter)

    def path_or_root(self, text: str | None) -> StoragePath:
        """As `path`, with the root of the default store for an absent or empty text."""
        return self._reader.read(text or "/")

    def place(self, caller: Caller, path: StoragePath) -> Place:
        """The store of `path` as the caller sees it. Raises StorageNotConfigured, storage_access_denied."""
        file_system = self._file_systems.get(path.scheme)
        if file_system is None:
            raise StorageNotConfigured(f"The store {path.scheme} is not configured.")
        if not may_use(caller.user, path.scheme):
            raise storage_access_denied(f"You have no access to the store {path.scheme}.")
        return Place(path, file_system, file_system.as_user(caller.acting))

    def require(self, caller: Caller, user: User, scheme: Scheme) -> None:
        """Raises storage_access_denied, ImpersonationNotAllowed when the user of now lacks what the call needs."""
        if not may_use(user, scheme) or (caller.acting.is_admin and not user.is_admin):
            raise storage_access_denied(f"You have no access to the store {scheme}.")
        if caller.acting.name != caller.user.username and not user.may(IMPERSONATE):
            raise ImpersonationNotAllowed("You may not act as another user.")

    def as_user(self, scheme: Scheme, user: StorageUser) -> Storage:
        """A store as it was seen when a work began that is ended now. Raises StorageNotConfigured."""
        file_system = self._file_systems.get(scheme)
        if file_system is None:
            raise StorageNotConfigured(f"The store {scheme} is not configured.")
        return file_system.as_user(user)

    def place_of(self, path: StoragePath, user: StorageUser) -> Place:
        """As `as_user`, with the store itself."""
        storage = self.as_user(path.scheme, user)
        return Place(path, self._file_systems[path.scheme], storage)

    def with_configured(self, error: QueryServerError, caller: Caller) -> QueryServerError:
        """The same error; one about a store that is not there names those that the caller may use."""
        if not isinstance(error, UnknownScheme | StorageNotConfigured):
            return error
        return type(error)(f"{error.message}{configured([one.scheme.value for one in self.permitted(caller)])}")

    def permitted(self, caller: Caller) -> Sequence[FileSystem]:
        """The stores that the caller may use."""
        return [self._file_systems[s] for s in Scheme if s in self._file_systems and may_use(caller.user, s)]

    def home(self, caller: Caller, scheme: Scheme) -> StoragePath:
        """The caller's home on a store; it need not exist."""
        name = caller.acting.name
        if scheme in {Scheme.HDFS, Scheme.FILE}:
            return StoragePath(scheme, f"user/{name}")
        text = self._homes.get(scheme, "").replace("${USER}", name)
        try:
            return self._reader.read(text) if text else StoragePath(scheme, "")
        except InvalidPath:
            # Names of users may be longer than those of files.
            return StoragePath(scheme, "")

    def default_home(self, caller: Caller) -> StoragePath:
        """The caller's home on the default store. Raises StorageNotConfigured."""
        return self.home(caller, self._reader.read("/").scheme)


def may_use(user: User, scheme: Scheme) -> bool:
    """Whether the caller may use a store at all; HDFS decides itself."""
    right = _RIGHTS.get(scheme)
    return right is None or user.may(right)
