"""rename, move and copy (Contract storage 7.1 to 7.6)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queryserver.errors.base import MissingParameter, NotSupported, QueryServerError
from queryserver.errors.files import (
    NotADirectory,
    PathExists,
    PathNotFound,
    SymlinkNotFollowed,
    TargetInsideSource,
    root_not_allowed,
    same_path,
)
from queryserver.files.changing import refuse_no_directory
from queryserver.files.model import (
    ClaimedTransfer,
    EntryKind,
    ExtensionRules,
    FileStatus,
    Scheme,
    StoragePath,
    Transfer,
    TransferKind,
    new_name,
)
from queryserver.files.operations import Body, Progress
from queryserver.files.places import Caller, Place, StorageAudit, Stores
from queryserver.files.protocol import RenamingStorage
from queryserver.files.transfer_steps import Moved
from queryserver.files.transfers import Transfers
from queryserver.files.upload_repository import Leftovers


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


_SKIPPED = "Following files were skipped due to file size limitations:"
_DONE = {TransferKind.RENAME: "Renamed", TransferKind.MOVE: "Moved", TransferKind.COPY: "Copied"}


@dataclass(frozen=True, slots=True)
class Prepared:
    """What may begin, or what is to be finished."""

    asked: Asked
    source: StoragePath
    target: StoragePath
    work: Checked | ClaimedTransfer


class Moving:
    """Each call is two steps, so that whoever does not wait for the second hears of the errors of the first."""

    def __init__(self, targets: Targets, transfers: Transfers, leftovers: Leftovers, audit: StorageAudit) -> None:
        self._targets = targets
        self._transfers = transfers
        self._leftovers = leftovers
        self._audit = audit

    async def directory(self, caller: Caller, destination: str) -> StoragePath:
        """The destination of several sources. Raises NotADirectory."""
        return await self._targets.require_directory(caller, destination)

    async def prepare(self, caller: Caller, asked: Asked) -> Prepared:
        """Check everything; nothing is changed. Raises the errors of Contract storage 7.1, OperationInProgress."""
        try:
            return await self._prepared(caller, asked)
        except QueryServerError as error:
            self._audit.record(caller, f"storage.{asked.kind}", asked.source, error.code)
            raise

    async def carry_out(self, caller: Caller, prepared: Prepared, progress: Progress) -> Moved:
        """Do it. A failed copy leaves nothing behind; of a failed move the source is complete, or the target is."""
        with self._audit.event(caller, f"storage.{prepared.asked.kind}", prepared.source):
            if isinstance(prepared.work, ClaimedTransfer):
                return await self._transfers.resume(prepared.work, progress)
            return await self._begin(caller, prepared.work, progress)

    async def take_over(self) -> int:
        """Finish or take back now what processes that are gone left; how many."""
        return await self._transfers.take_over()

    async def _prepared(self, caller: Caller, asked: Asked) -> Prepared:
        destination = self._targets.destination(caller, asked)
        source = destination.source.path
        if asked.kind is TransferKind.COPY or not _is_one_step(destination.source, destination.given):
            targets = destination.possible_targets
            claimed = await self._transfers.unfinished(caller.user.id, asked.kind, source, targets)
            if claimed is not None:
                return Prepared(asked, source, claimed.transfer.target, claimed)
        checked = await self._targets.check(destination)
        return Prepared(asked, source, checked.target.path, checked)

    async def _begin(self, caller: Caller, checked: Checked, progress: Progress) -> Moved:
        source, target = checked.source, checked.target
        storage = source.storage
        is_one_step = checked.kind is not TransferKind.COPY and _is_one_step(source, target)
        if is_one_step and isinstance(storage, RenamingStorage):
            progress.expect(1)
            await self._rename(caller, storage, checked)
            progress.advance()
            return Moved(checked.kind, source.path, target.path)
        transfer = Transfer(
            user_id=caller.user.id,
            acting=caller.acting,
            kind=checked.kind,
            source=source.path,
            target=target.path,
            overwrite=checked.overwrite,
            operation_id=progress.operation_id,
        )
        async with self._leftovers.noted(caller, target.path):
            return await self._transfers.begin(transfer, (source, target), checked.entry, progress)

    async def _rename(self, caller: Caller, storage: RenamingStorage, checked: Checked) -> None:
        source, target = checked.source.path, checked.target.path
        if not checked.overwrite:
            await storage.rename(source.path, target.path)
            return
        # Where a store cannot replace in one step the old file steps aside, and a crash may leave it there.
        async with self._leftovers.noted(caller, target):
            await storage.rename(source.path, target.path, overwrite=True)


def _is_one_step(source: Place, target: Place) -> bool:
    return (
        source.path.scheme is target.path.scheme
        and isinstance(source.storage, RenamingStorage)
        and source.storage.can_rename(source.path.path, target.path.path)
    )


def moved_body(moved: Moved) -> Mapping[str, Any]:
    """The success body (Contract storage 7.1), in the form of the items of bulk calls."""
    body: dict[str, Any] = {
        "status": 0,
        "path": str(moved.target),
        "source": str(moved.source),
        "message": f"{_DONE[moved.kind]} '{moved.source}' to '{moved.target}' successfully",
    }
    if moved.skipped_links:
        body["details"] = {"skipped_links": list(moved.skipped_links)}
    if _is_ozone_copy(moved):
        body["skipped_files"] = _skipped_text(moved)
    return body


def final_body(moved: Moved) -> Body:
    """The success body of a call with one source: a text for copies on Ozone (Contract storage 7.3)."""
    return _skipped_text(moved) if _is_ozone_copy(moved) else moved_body(moved)


def _is_ozone_copy(moved: Moved) -> bool:
    return moved.kind is TransferKind.COPY and moved.source.scheme is moved.target.scheme is Scheme.OFS


def _skipped_text(moved: Moved) -> str:
    if not moved.skipped_files:
        return ""
    return "\n- ".join((_SKIPPED, *moved.skipped_files))
