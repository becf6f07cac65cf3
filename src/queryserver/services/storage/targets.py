"""Where rename, move and copy lead, and whether they may (Contract storage 7.1, 7.2, 7.3).

The checks come in the order of the contract, and nothing is changed before all have passed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from queryserver.domain.errors.base import MissingParameter, NotSupported
from queryserver.domain.errors.files import (
    NotADirectory,
    PathExists,
    PathNotFound,
    SymlinkNotFollowed,
    TargetInsideSource,
    root_not_allowed,
    same_path,
)
from queryserver.domain.files import EntryKind, FileStatus, StoragePath
from queryserver.domain.storage_names import ExtensionRules, new_name
from queryserver.domain.transfers import TransferKind
from queryserver.services.storage.creating import refuse_no_directory
from queryserver.services.storage.stores import Caller, Place, Stores


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller asks for; the paths as written."""

    kind: TransferKind
    source: str
    destination: str
    overwrite: bool = False
    several: bool = False
    """Whether it is one of several sources, which need a directory."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination, before any store was asked."""

    kind: TransferKind
    source: Place
    given: Place
    must_be_directory: bool
    overwrite: bool

    @property
    def possible_targets(self) -> Sequence[StoragePath]:
        """What the target may turn out to be: a move goes into a directory that is there."""
        if self.kind is TransferKind.RENAME:
            return [self.given.path]
        return [self.given.path, self.given.path.child(self.source.path.name)]


@dataclass(frozen=True, slots=True)
class Checked:
    """A move or copy that may begin."""

    kind: TransferKind
    source: Place
    target: Place
    entry: FileStatus
    """The source."""
    overwrite: bool
    """Whether there is a file that is replaced."""


class Targets:
    """Reads and checks. All methods raise the errors of Contract storage 7.1."""

    def __init__(self, stores: Stores, extensions: ExtensionRules) -> None:
        self._stores = stores
        self._extensions = extensions

    def destination(self, caller: Caller, asked: Asked) -> Destination:
        """Everything that the paths alone tell."""
        source = self._stores.place(caller, self._stores.path(asked.source, parameter="src_path"))
        given = self._stores.place(caller, self._given(asked, source.path))
        self._check_roots(asked.kind, source)
        if asked.kind is TransferKind.RENAME and source.path.scheme is not given.path.scheme:
            raise NotSupported("A rename stays in its store; move can go to another one.")
        same = {source.path} if asked.kind is TransferKind.RENAME else {source.path, source.path.parent}
        if given.path in same:
            raise same_path("Source and target are the same.")
        is_directory = asked.several or (
            asked.kind is not TransferKind.RENAME and asked.destination.strip().endswith("/")
        )
        return Destination(asked.kind, source, given, is_directory, asked.overwrite)

    async def check(self, destination: Destination) -> Checked:
        """Everything that the stores tell."""
        source = destination.source
        entry = await source.storage.stat(source.path.path)
        if destination.given.path.is_inside(source.path):
            raise TargetInsideSource("The target lies inside the source.")
        target, there = await self._target(destination)
        if target.path == source.path:
            # The blanks around a new name are gone by now.
            raise same_path("Source and target are the same.")
        self._check_name(entry, source.path, target.path)
        if there is None:
            await _check_parent(target)
        elif not (destination.overwrite and there.is_file and entry.is_file):
            raise PathExists(f"{target.path} exists.")
        if entry.is_file:
            self._extensions.check(target.path.name, former=source.path.name)
        if entry.kind is EntryKind.LINK and destination.kind is TransferKind.COPY:
            raise SymlinkNotFollowed("A symbolic link is not copied.")
        return Checked(destination.kind, source, target, entry, overwrite=there is not None)

    async def require_directory(self, caller: Caller, destination: str) -> StoragePath:
        """The directory for several sources. Raises NotADirectory when it is missing, too."""
        given = self._stores.place(caller, self._stores.path(destination, parameter="dest_path"))
        if not given.path.is_root:
            entry = await _found(given)
            if entry is None:
                raise NotADirectory(f"Several sources need an existing directory, and {given.path} is none.")
            refuse_no_directory(given.path, entry)
        return given.path

    def _given(self, asked: Asked, source: StoragePath) -> StoragePath:
        """The destination as a path. A rename without slash stays in its directory."""
        if not asked.destination or asked.destination.isspace():
            raise MissingParameter("dest_path is required.")
        if asked.kind is TransferKind.RENAME and "/" not in asked.destination:
            return source.parent.child(new_name(asked.destination))
        given = self._stores.path(asked.destination, parameter="dest_path")
        if asked.kind is TransferKind.RENAME:
            return given.parent.child(new_name(given.name))
        return given

    @staticmethod
    def _check_roots(kind: TransferKind, source: Place) -> None:
        if len(source.path.names) > source.file_system.traits.container_levels and not source.path.is_root:
            return
        if kind is TransferKind.COPY:
            raise NotSupported("Roots, buckets, containers and volumes are not copied.")
        raise root_not_allowed("Roots, buckets, containers and volumes stay where they are.")

    async def _target(self, destination: Destination) -> tuple[Place, FileStatus | None]:
        """The target, and what is there now."""
        given = destination.given
        there = None if given.path.is_root else await _found(given)
        if destination.kind is TransferKind.RENAME:
            return given, there
        if given.path.is_root or (there is not None and there.is_directory):
            inside = Place(given.path.child(destination.source.path.name), given.file_system, given.storage)
            return inside, await _found(inside)
        if destination.must_be_directory:
            if there is None:
                raise _missing(given.path)
            refuse_no_directory(given.path, there)
        if there is not None:
            return given, there
        name = new_name(given.path.name) if given.path.name != destination.source.path.name else given.path.name
        trimmed = Place(given.path.parent.child(name), given.file_system, given.storage)
        return trimmed, None if name == given.path.name else await _found(trimmed)

    @staticmethod
    def _check_name(entry: FileStatus, source: StoragePath, target: StoragePath) -> None:
        """A name that stays may be as strange as it is."""
        if target.name != source.name:
            new_name(target.name, is_directory=entry.is_directory)


async def _check_parent(target: Place) -> None:
    """Raises PathNotFound with the parent in its details, NotADirectory, SymlinkNotFollowed."""
    if len(target.path.names) <= target.file_system.traits.container_levels:
        # A move makes no bucket.
        raise _missing(target.path)
    parent = target.path.parent
    if parent.is_root:
        return
    entry = await _found(Place(parent, target.file_system, target.storage))
    if entry is None:
        raise _missing(parent)
    refuse_no_directory(parent, entry)


async def _found(place: Place) -> FileStatus | None:
    try:
        return await place.storage.stat(place.path.path)
    except PathNotFound:
        return None


def _missing(path: StoragePath) -> PathNotFound:
    return PathNotFound(f"{path} does not exist.", details={"path": str(path)})
