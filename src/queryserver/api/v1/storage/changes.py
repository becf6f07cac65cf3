"""Calls that create, change, move, copy and delete entries, and calls for the trash (Contract storage 6 to 8).

Also reports the status of calls that responded with 202.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import Response

from queryserver.api.bodies import parse_in_thread_if_large
from queryserver.api.dependencies import (
    AttributesDep,
    CreationsDep,
    DeletionsDep,
    LongOperationsDep,
    MovesDep,
    StoresDep,
    ThreadsDep,
    TrashDep,
    dependency,
)
from queryserver.api.errors import http_status
from queryserver.api.responses import json_response
from queryserver.api.routes import failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import storage as requests
from queryserver.api.v1.storage.dependencies import (
    MIB,
    FilesReader,
    FilesWriter,
    IsBulk,
    NoStorageFields,
    mode_of,
    storage_fields,
    storage_group,
)
from queryserver.errors.base import NotSupported, PayloadTooLarge, QueryServerError
from queryserver.files.access import Caller, Stores
from queryserver.files.model import StoragePath, TransferKind, checked_new_name, repaired_path
from queryserver.files.moves import Moves, TransferRequest, final_body, item_body
from queryserver.files.operations import (
    ContinuedOperation,
    LongOperations,
    Outcomes,
    Progress,
    Work,
    distinct_items,
    failure_body,
    process_each,
)
from queryserver.formats.delimited.encodings import encoded

router = storage_group()

CONTINUES: dict[int | str, dict[str, Any]] = {202: {"model": wire.RunningOperation}}
"""The value of `responses=` for calls that may respond with 202 before their work has ended."""


@router.get("/operation", response_model=wire.OperationProgress, responses=failures(404))
async def get_storage_operation(
    caller: FilesWriter,
    request: Annotated[requests.OperationStatusParameters, storage_fields(requests.OperationStatusParameters)],
    operations: LongOperationsDep,
) -> Response:
    """Return the state, progress and outcome of a call that responded with 202. Contract storage 7.6."""
    status = await operations.status(caller, request.id)
    return json_response(
        wire.OperationProgress(
            status=0,
            operation_id=str(status.operation_id),
            state=status.state.value,
            done=status.done,
            total=status.total,
            result=status.result if isinstance(status.result, str) or status.result is None else dict(status.result),
        )
    )


@dataclass(frozen=True, slots=True)
class FinalResponse:
    """The content of the response after the work has ended."""

    body: Mapping[str, Any] | str
    http_status: int = 200


@dataclass(frozen=True, slots=True)
class LongCall:
    """A call that responds with 202 if its work has not ended after `wait_s`. If `wait_s` is None, the call waits.

    The 202 response contains `path`. `kind` is a name such as `storage.move`.
    """

    operations: LongOperations
    caller: Caller
    kind: str
    path: str
    wait_s: int | None

    async def json_response(self, run: Callable[[Progress], Awaitable[FinalResponse]]) -> Response:
        """Run the work and return its final response, or 202 if the work continues in the background.

        Raises the errors of `run`.
        """
        work = Work(self.kind, self.path, run, lambda final: final.body)
        outcome = await self.operations.run(self.caller, work, wait_s=self.wait_s)
        if isinstance(outcome, ContinuedOperation):
            running = wire.RunningOperation(
                status=0, path=outcome.path, operation_id=str(outcome.operation_id), state="running"
            )
            return json_response(running, status=202)
        return _json_response(outcome)


def _json_response(final: FinalResponse) -> Response:
    return Response(orjson.dumps(final.body), final.http_status, media_type="application/json")


ItemWork = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Processes one item and returns the body of its successful response. Raises QueryServerError."""


async def respond_for_each(
    sent: Sequence[str], each: ItemWork, *, always_bulk: bool, long: LongCall | None = None
) -> Response:
    """Process each item. The response is a bulk response if there are several items or `always_bulk` is set.

    If `long` is set, the work may continue after a 202 response. Raises MissingParameter, too_many_entries and, for a
    single item without `always_bulk`, the errors of `each`.
    """
    items = distinct_items(sent)

    async def run(progress: Progress) -> FinalResponse:
        if len(sent) == 1 and not always_bulk:
            progress.expect(1)
            body = await each(items[0])
            progress.advance()
            return FinalResponse(body)
        return _combined_response(await process_each(items, each, progress))

    return await long.json_response(run) if long else _json_response(await run(Progress()))


def _combined_response(outcomes: Outcomes[Mapping[str, Any]]) -> FinalResponse:
    """Combine the bodies of all items. If items failed, the HTTP status is the highest of their statuses."""
    failed = [outcome for outcome in outcomes.values() if isinstance(outcome, QueryServerError)]
    results = {
        item: failure_body(outcome) if isinstance(outcome, QueryServerError) else outcome
        for item, outcome in outcomes.items()
    }
    if not failed:
        return FinalResponse({"status": 0, "results": results})
    message = f"{len(failed)} of {len(outcomes)} items failed."
    body = {"status": -1, "code": "partial_failure", "message": message, "results": results}
    return FinalResponse(body, max(map(http_status, failed)))


_MAX_TEXT_BYTES = 10 * MIB
_MAX_SAVE_BYTES = 12 * MIB
"""Larger than _MAX_TEXT_BYTES, because text takes more space in a form or in JSON than in the file."""

_NewEntry = Annotated[requests.NewEntryRequest, storage_fields(requests.NewEntryRequest)]
_NamedEntry = Annotated[requests.NamedEntryRequest, storage_fields(requests.NamedEntryRequest)]
_ChmodRequest = Annotated[requests.ChmodRequest, storage_fields(requests.ChmodRequest)]
_ChownRequest = Annotated[requests.ChownRequest, storage_fields(requests.ChownRequest)]
_ReplicationRequest = Annotated[requests.ReplicationRequest, storage_fields(requests.ReplicationRequest)]
_DeleteRequest = Annotated[requests.DeleteRequest, storage_fields(requests.DeleteRequest)]
_PathsRequest = Annotated[requests.PathsRequest, storage_fields(requests.PathsRequest)]
_CREATION = failures(403, 404, 409, 501, 502, 507)
_CHANGE = failures(403, 404, 409, 501, 502)
_DELETION = CONTINUES | _CHANGE


@router.post("/mkdir", status_code=201, response_model=wire.PathResponse, responses=_CREATION)
async def make_directory(
    caller: FilesWriter, request: _NewEntry, stores: StoresDep, creations: CreationsDep
) -> Response:
    """Create a directory at a path, or under a name in a parent directory. Spec §4, Contract storage 6."""
    return _created(await creations.mkdir(caller, _new_path(stores, request, is_directory=True)))


@router.post("/create/directory", status_code=201, response_model=wire.PathResponse, responses=_CREATION)
async def create_directory(
    caller: FilesWriter, request: _NamedEntry, stores: StoresDep, creations: CreationsDep
) -> Response:
    """Create a directory in a parent directory. Contract storage 6."""
    return _created(await creations.mkdir(caller, _new_path(stores, request, is_directory=True)))


@router.post("/touch", status_code=201, response_model=wire.PathResponse, responses=_CREATION)
async def touch(caller: FilesWriter, request: _NewEntry, stores: StoresDep, creations: CreationsDep) -> Response:
    """Create an empty file at a path, or under a name in a directory. Spec §4, Contract storage 6."""
    return _created(await creations.touch(caller, _new_path(stores, request, is_directory=False)))


@router.post("/create/file", status_code=201, response_model=wire.PathResponse, responses=_CREATION)
async def create_file(
    caller: FilesWriter, request: _NamedEntry, stores: StoresDep, creations: CreationsDep
) -> Response:
    """Create an empty file in a directory. Contract storage 6."""
    return _created(await creations.touch(caller, _new_path(stores, request, is_directory=False)))


def _new_path(
    stores: Stores, request: requests.NewEntryRequest | requests.NamedEntryRequest, *, is_directory: bool
) -> StoragePath:
    path = stores.path(request.path)
    return path if request.name is None else path.child(checked_new_name(request.name, is_directory=is_directory))


def _created(path: StoragePath) -> Response:
    return json_response(wire.PathResponse(status=0, path=str(path)), status=201)


@router.post("/save", response_model=wire.SaveResponse, responses=_CREATION)
async def save_file(
    caller: FilesWriter,
    request: Annotated[requests.SaveRequest, storage_fields(requests.SaveRequest, max_body_bytes=_MAX_SAVE_BYTES)],
    stores: StoresDep,
    creations: CreationsDep,
    threads: ThreadsDep,
) -> Response:
    """Replace the content of a file atomically. Contract storage 6."""
    path = stores.path(request.path)
    # Encoding megabytes of text is slow for some encodings, so it runs in a thread.
    content, _ = await parse_in_thread_if_large(
        threads, caller.user.id, partial(encoded, request.contents, request.encoding), len(request.contents)
    )
    if len(content) > _MAX_TEXT_BYTES:
        raise PayloadTooLarge(f"The text exceeds the limit of {_MAX_TEXT_BYTES} bytes.")
    saved = await creations.save(caller, path, content)
    return json_response(wire.SaveResponse(status=0, path=str(path), size=saved.size_bytes))


@router.post("/chmod", response_model=wire.ChmodResponse | wire.BulkResponse, responses=_CHANGE)
@router.post("/chmod/bulk", name="chmod_bulk", response_model=wire.BulkResponse, responses=_CHANGE)
async def chmod(
    caller: FilesWriter, request: _ChmodRequest, is_bulk: IsBulk, stores: StoresDep, attributes: AttributesDep
) -> Response:
    """Set the permissions of an entry or of a whole directory tree. Contract storage 6."""
    permissions = request.permissions()

    async def change(text: str) -> dict[str, Any]:
        path = stores.path(text)
        changed = await attributes.chmod(caller, path, permissions, recursive=request.recursive)
        return wire.ChmodResponse(status=0, path=str(path), mode=f"{mode_of(changed):o}").model_dump()

    return await respond_for_each(request.path, change, always_bulk=is_bulk)


@router.post("/chown", response_model=wire.ChownResponse | wire.BulkResponse, responses=_CHANGE)
@router.post("/chown/bulk", name="chown_bulk", response_model=wire.BulkResponse, responses=_CHANGE)
async def chown(
    caller: FilesWriter, request: _ChownRequest, is_bulk: IsBulk, stores: StoresDep, attributes: AttributesDep
) -> Response:
    """Set the owner, the group or both of an entry or of a whole directory tree. Contract storage 6."""
    owner, group = request.chosen()

    async def change(text: str) -> dict[str, Any]:
        path = stores.path(text)
        await attributes.chown(caller, path, owner, group, recursive=request.recursive)
        return wire.ChownResponse(status=0, path=str(path), user=owner, group=group).model_dump()

    return await respond_for_each(request.path, change, always_bulk=is_bulk)


@router.post("/set_replication", response_model=wire.ReplicationResponse, responses=_CHANGE)
@router.post("/replication", name="change_replication", response_model=wire.ReplicationResponse, responses=_CHANGE)
async def set_replication(
    caller: FilesWriter, request: _ReplicationRequest, stores: StoresDep, attributes: AttributesDep
) -> Response:
    """Set the replication factor of a file. Spec §4, Contract storage 6."""
    path = stores.path(request.path)
    await attributes.set_replication(caller, path, request.replication_factor)
    return json_response(wire.ReplicationResponse(status=0, path=str(path), replication=request.replication_factor))


@router.post("/rmtree", response_model=wire.DeleteResponse | wire.BulkResponse, responses=_DELETION)
@router.post(
    "/delete", name="delete_entry", response_model=wire.DeleteResponse | wire.BulkResponse, responses=_DELETION
)
@router.post("/delete/bulk", name="delete_bulk", response_model=wire.BulkResponse, responses=_DELETION)
async def remove_tree(
    caller: FilesWriter,
    request: _DeleteRequest,
    is_bulk: IsBulk,
    stores: StoresDep,
    deletions: DeletionsDep,
    operations: LongOperationsDep,
) -> Response:
    """Delete entries, or move them to the trash if the store has one. Spec §4, Contract storage 7.7."""

    async def each(text: str) -> dict[str, Any]:
        path = stores.path(text)
        deleted = await deletions.delete(caller, path, skip_trash=request.skip_trash)
        trash_path = None if deleted.trash_path is None else str(deleted.trash_path)
        return wire.DeleteResponse(
            status=0, path=str(path), trashed=trash_path is not None, trash_path=trash_path
        ).model_dump()

    long = LongCall(operations, caller, "storage.delete", _normalized_path(stores, request.path[0]), request.wait)
    return await respond_for_each(request.path, each, always_bulk=is_bulk, long=long)


def _normalized_path(stores: Stores, text: str) -> str:
    """Return the path for a 202 response. A malformed path is returned unchanged, because only its own item fails."""
    try:
        return str(stores.path(text))
    except QueryServerError:
        return text


@router.post("/extract_archive", status_code=501, responses=failures(501))
async def extract_archive(_caller: FilesWriter, _: NoStorageFields) -> Response:
    """Return 501, because this server does not extract archives. Contract storage 1."""
    raise NotSupported("This server does not extract archives.")


@router.post("/compress", status_code=501, responses=failures(501))
async def compress(_caller: FilesWriter, _: NoStorageFields) -> Response:
    """Return 501, because this server does not create archives. Contract storage 1."""
    raise NotSupported("This server does not create archives.")


@router.get("/trash/path", response_model=wire.TrashPathResponse, responses=failures(403, 404, 409, 415, 501, 502))
async def get_trash_path(
    caller: FilesReader,
    request: Annotated[requests.PathRequest, storage_fields(requests.PathRequest)],
    stores: StoresDep,
    trash: TrashDep,
) -> Response:
    """Return the trash directory for a path, or null if it does not exist yet. Contract storage 8."""
    path = stores.path(repaired_path(request.path))
    found = await trash.find(caller, path)
    return json_response(
        wire.TrashPathResponse(status=0, path=str(path), trash_path=None if found is None else str(found))
    )


@router.post("/trash/restore", response_model=wire.RestoreResponse | wire.BulkResponse, responses=_CHANGE)
@router.post("/trash/restore/bulk", name="restore_bulk", response_model=wire.BulkResponse, responses=_CHANGE)
async def restore(
    caller: FilesWriter, request: _PathsRequest, is_bulk: IsBulk, stores: StoresDep, trash: TrashDep
) -> Response:
    """Restore an entry from the trash to its original path. Spec §4, Contract storage 8."""

    async def each(text: str) -> dict[str, Any]:
        path = stores.path(text)
        restored = await trash.restore(caller, path)
        return wire.RestoreResponse(status=0, path=str(restored), source=str(path)).model_dump()

    return await respond_for_each(request.path, each, always_bulk=is_bulk)


@router.post("/trash/purge", response_model=wire.PurgeResponse, responses=_CHANGE)
async def purge_trash(
    caller: FilesWriter,
    request: Annotated[requests.OptionalPathRequest, storage_fields(requests.OptionalPathRequest)],
    stores: StoresDep,
    trash: TrashDep,
) -> Response:
    """Permanently delete all entries in the caller's trash. Spec §4, Contract storage 8."""
    path = stores.path(request.path) if request.path else stores.default_home(caller)
    root, purged = await trash.purge(caller, path)
    return json_response(wire.PurgeResponse(status=0, path=str(root), purged=purged))


_MoveRequest = Annotated[requests.MoveRequest, storage_fields(requests.MoveRequest)]
_TRANSFER_RESPONSES = CONTINUES | failures(403, 404, 409, 422, 501, 502, 507)


@dataclass(frozen=True, slots=True)
class _Transfers:
    """Renames, moves and copies entries. The work may continue after a 202 response."""

    moves: Moves
    stores: Stores
    operations: LongOperations

    async def transfer(self, caller: Caller, transfer: TransferRequest, wait_s: int | None) -> Response:
        prepared = await self.moves.prepare(caller, transfer)

        async def run(progress: Progress) -> FinalResponse:
            return FinalResponse(final_body(await self.moves.perform(caller, prepared, progress)))

        return await self._long_call(caller, transfer.kind, str(prepared.target), wait_s).json_response(run)

    async def transfer_items(
        self, caller: Caller, kind: TransferKind, request: requests.MoveRequest, *, is_bulk: bool
    ) -> Response:
        sources, overwrite = request.src_path, request.overwrite
        if len(sources) == 1 and not is_bulk:
            transfer = TransferRequest(kind, sources[0], request.dest_path, overwrite=overwrite)
            return await self.transfer(caller, transfer, request.wait)
        several = len(set(sources)) > 1
        if several:
            destination = await self.moves.directory(caller, request.dest_path)
        else:
            destination = self.stores.path(request.dest_path, parameter="dest_path")

        async def each(source: str) -> Mapping[str, Any]:
            transfer = TransferRequest(kind, source, request.dest_path, overwrite=overwrite, is_one_of_several=several)
            prepared = await self.moves.prepare(caller, transfer)
            return item_body(await self.moves.perform(caller, prepared, Progress()))

        long = self._long_call(caller, kind, str(destination), request.wait)
        return await respond_for_each(sources, each, always_bulk=True, long=long)

    def _long_call(self, caller: Caller, kind: TransferKind, path: str, wait_s: int | None) -> LongCall:
        return LongCall(self.operations, caller, f"storage.{kind}", path, wait_s)


async def _transfers(moves: MovesDep, stores: StoresDep, operations: LongOperationsDep) -> _Transfers:
    return _Transfers(moves, stores, operations)


TransfersDep = Annotated[_Transfers, dependency(_transfers)]


@router.post("/rename", response_model=wire.TransferResponse, responses=_TRANSFER_RESPONSES)
async def rename(
    caller: FilesWriter,
    request: Annotated[requests.RenameRequest, storage_fields(requests.RenameRequest)],
    transfers: TransfersDep,
) -> Response:
    """Rename an entry within its directory, or to a full path in the same store. Spec §4, Contract storage 7.2."""
    transfer = TransferRequest(TransferKind.RENAME, request.src_path, request.dest_path, overwrite=request.overwrite)
    return await transfers.transfer(caller, transfer, request.wait)


@router.post("/move", response_model=wire.TransferResponse | wire.BulkResponse, responses=_TRANSFER_RESPONSES)
@router.post("/move/bulk", name="move_bulk", response_model=wire.BulkResponse, responses=_TRANSFER_RESPONSES)
async def move(caller: FilesWriter, request: _MoveRequest, is_bulk: IsBulk, transfers: TransfersDep) -> Response:
    """Move entries into a directory, or one entry to a new path, even between stores. Spec §4, Contract storage 7.3."""
    return await transfers.transfer_items(caller, TransferKind.MOVE, request, is_bulk=is_bulk)


@router.post(
    "/copy", response_model=wire.TransferResponse | wire.SkippedFiles | wire.BulkResponse, responses=_TRANSFER_RESPONSES
)
@router.post("/copy/bulk", name="copy_bulk", response_model=wire.BulkResponse, responses=_TRANSFER_RESPONSES)
async def copy(caller: FilesWriter, request: _MoveRequest, is_bulk: IsBulk, transfers: TransfersDep) -> Response:
    """Copy entries and their contents. On Ozone, the response lists skipped files. Spec §4, Contract storage 7.3."""
    return await transfers.transfer_items(caller, TransferKind.COPY, request, is_bulk=is_bulk)
