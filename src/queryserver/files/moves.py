"""rename, move and copy (Contract storage 7.1 to 7.6)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from queryserver import errors
from queryserver.files.access import Caller, Location, StorageAudit, Stores
from queryserver.files.model import (
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
from queryserver.files.protocol import RenamingStorage
from queryserver.files.transfer_steps import Moved
from queryserver.files.transfers import Transfers
from queryserver.files.upload_repository import OrphanSweep

_SKIPPED = "Following files were skipped due to file size limitations:"
_DONE = {TransferKind.RENAME: "Renamed", TransferKind.MOVE: "Moved", TransferKind.COPY: "Copied"}


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """A rename, move or copy as requested by the caller, with unparsed paths."""

    kind: TransferKind
    source: str
    destination: str
    overwrite: bool = False
    several: bool = False
    """Whether this is one of several sources. Their destination must be a directory."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A request's parsed paths, before any store call."""

    request: TransferRequest
    source: Location
    given: Location
    must_be_directory: bool

    @property
    def possible_targets(self) -> Sequence[StoragePath]:
        """The possible targets. A move into an existing directory appends the source's name."""
        if self.request.kind is TransferKind.RENAME:
            return [self.given.path]
        return [self.given.path, self.given.path.child(self.source.path.name)]


@dataclass(frozen=True, slots=True)
class PreparedTransfer:
    """A checked transfer, to be started or finished by `work`."""

    kind: TransferKind
    source: StoragePath
    target: StoragePath
    work: Callable[[Progress], Awaitable[Moved]]


class Moves:
    """Renames, moves and copies entries in two steps, so that a client that does not wait still receives the first
    step's errors.
    """

    def __init__(
        self,
        stores: Stores,
        extensions: ExtensionRules,
        transfers: Transfers,
        orphans: OrphanSweep,
        audit: StorageAudit,
    ) -> None:
        self._stores = stores
        self._extensions = extensions
        self._transfers = transfers
        self._orphans = orphans
        self._audit = audit

    async def prepare(self, caller: Caller, request: TransferRequest) -> PreparedTransfer:
        """Check everything without changing anything. Raises the errors of Contract storage 7.1,
        OperationInProgress.
        """
        try:
            destination = self._destination(caller, request)
            source = destination.source.path
            if request.kind is TransferKind.COPY or not _is_one_step(destination.source, destination.given):
                targets = destination.possible_targets
                claimed = await self._transfers.unfinished(caller.user.id, request.kind, source, targets)
                if claimed is not None:
                    work = partial(self._transfers.resume, claimed)
                    return PreparedTransfer(request.kind, source, claimed.transfer.target, work)
            entry, target, existing = await self._checked(destination)
            transfer = Transfer(
                caller.user.id, caller.acting, request.kind, source, target.path, overwrite=existing is not None
            )
            work = partial(self._begin, caller, transfer, (destination.source, target), entry)
            return PreparedTransfer(request.kind, source, target.path, work)
        except errors.QueryServerError as error:
            self._audit.record(caller, f"storage.{request.kind}", request.source, error.code)
            raise

    async def perform(self, caller: Caller, prepared: PreparedTransfer, progress: Progress) -> Moved:
        """Perform the transfer. A failed copy leaves nothing behind; after a failed move, the source or the target is
        complete.
        """
        with self._audit.event(caller, f"storage.{prepared.kind}", prepared.source):
            return await prepared.work(progress)

    async def directory(self, caller: Caller, destination: str) -> StoragePath:
        """Return the destination directory for several sources. Raises NotADirectory, even if it does not exist."""
        given = self._stores.location(caller, self._stores.path(destination, parameter="dest_path"))
        if not given.path.is_root:
            entry = await given.find()
            if entry is None:
                raise errors.NotADirectory(f"Several sources need an existing directory, and {given.path} is none.")
            given.check_directory(entry)
        return given.path

    def _destination(self, caller: Caller, request: TransferRequest) -> Destination:
        """Parse and check the paths without calling the stores."""
        is_rename = request.kind is TransferKind.RENAME
        source = self._stores.location(caller, self._stores.path(request.source, parameter="src_path"))
        given = self._stores.location(caller, self._given(request, source.path))
        if len(source.path.names) <= source.file_system.traits.container_levels or source.path.is_root:
            if request.kind is TransferKind.COPY:
                raise errors.NotSupported("Roots, buckets, containers and volumes are not copied.")
            raise errors.root_not_allowed("Roots, buckets, containers and volumes stay where they are.")
        if is_rename and source.path.scheme is not given.path.scheme:
            raise errors.NotSupported("A rename stays in its store; move can go to another one.")
        if given.path in ({source.path} if is_rename else {source.path, source.path.parent}):
            raise errors.same_path("Source and target are the same.")
        is_directory = request.several or (not is_rename and request.destination.strip().endswith("/"))
        return Destination(request, source, given, is_directory)

    async def _checked(self, destination: Destination) -> tuple[FileStatus, Location, FileStatus | None]:
        """Check the stores. Return the source's status, the target, and the entry that currently exists there."""
        source = destination.source
        entry = await source.storage.stat(source.path.path)
        if destination.given.path.is_inside(source.path):
            raise errors.TargetInsideSource("The target lies inside the source.")
        target, existing = await self._target(destination)
        if target.path == source.path:
            # Names may be equal after spaces around the new name are stripped.
            raise errors.same_path("Source and target are the same.")
        if target.path.name != source.path.name:  # unchanged names are not checked
            new_name(target.path.name, is_directory=entry.is_directory)
        if existing is None:
            if len(target.path.names) <= target.file_system.traits.container_levels:
                # Moves do not create buckets.
                raise target.missing()
            if not target.path.parent.is_root:
                await target.at(target.path.parent).require_directory()
        elif not (destination.request.overwrite and existing.is_file and entry.is_file):
            raise errors.PathExists(f"{target.path} exists.")
        if entry.is_file:
            self._extensions.check(target.path.name, former=source.path.name)
        if entry.kind is EntryKind.LINK and destination.request.kind is TransferKind.COPY:
            raise errors.SymlinkNotFollowed("A symbolic link is not copied.")
        return entry, target, existing

    def _given(self, request: TransferRequest, source: StoragePath) -> StoragePath:
        """Parse the destination. In a rename, a name without a slash stays in the source's directory."""
        if not request.destination or request.destination.isspace():
            raise errors.MissingParameter("dest_path is required.")
        if request.kind is TransferKind.RENAME and "/" not in request.destination:
            return source.parent.child(new_name(request.destination))
        given = self._stores.path(request.destination, parameter="dest_path")
        if request.kind is TransferKind.RENAME:
            return given.parent.child(new_name(given.name))
        return given

    async def _target(self, destination: Destination) -> tuple[Location, FileStatus | None]:
        """Return the target and the entry that currently exists there."""
        given = destination.given
        existing = None if given.path.is_root else await given.find()
        if destination.request.kind is TransferKind.RENAME:
            return given, existing
        if given.path.is_root or (existing is not None and existing.is_directory):
            inside = given.at(given.path.child(destination.source.path.name))
            return inside, await inside.find()
        if destination.must_be_directory:
            if existing is None:
                raise given.missing()
            given.check_directory(existing)
        if existing is not None:
            return given, existing
        name = new_name(given.path.name) if given.path.name != destination.source.path.name else given.path.name
        trimmed = given.at(given.path.parent.child(name))
        return trimmed, None if name == given.path.name else await trimmed.find()

    async def _begin(
        self,
        caller: Caller,
        transfer: Transfer,
        locations: tuple[Location, Location],
        entry: FileStatus,
        progress: Progress,
    ) -> Moved:
        source, target = locations
        storage = source.storage
        is_one_step = transfer.kind is not TransferKind.COPY and _is_one_step(source, target)
        if is_one_step and isinstance(storage, RenamingStorage):
            progress.expect(1)
            if transfer.overwrite:
                # If a store cannot replace files atomically, a crash may leave the old file under another name.
                async with self._orphans.recorded(caller, target.path):
                    await storage.rename(source.path.path, target.path.path, overwrite=True)
            else:
                await storage.rename(source.path.path, target.path.path)
            progress.advance()
            return Moved(transfer.kind, source.path, target.path)
        transfer = replace(transfer, operation_id=progress.operation_id)
        async with self._orphans.recorded(caller, target.path):
            return await self._transfers.begin(transfer, locations, entry, progress)


def _is_one_step(source: Location, target: Location) -> bool:
    return (
        source.path.scheme is target.path.scheme
        and isinstance(source.storage, RenamingStorage)
        and source.storage.can_rename(source.path.path, target.path.path)
    )


def moved_body(moved: Moved) -> Mapping[str, Any]:
    """Return the response body of a successful call (Contract storage 7.1), which is also used for items in bulk
    calls.
    """
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
    """Return the response body of a call with one source. For copies on Ozone it is a text (Contract storage 7.3)."""
    return _skipped_text(moved) if _is_ozone_copy(moved) else moved_body(moved)


def _is_ozone_copy(moved: Moved) -> bool:
    return moved.kind is TransferKind.COPY and moved.source.scheme is moved.target.scheme is Scheme.OFS


def _skipped_text(moved: Moved) -> str:
    return "\n- ".join((_SKIPPED, *moved.skipped_files)) if moved.skipped_files else ""
