"""Calls that change entries: create, save, permissions, delete, rename, move, copy, trash (Contract storage 6 to 8)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import Response

from queryserver.api.answers import answer
from queryserver.api.bodies import parsed_aside
from queryserver.api.calls import PathGroup
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas import requests
from queryserver.api.v1.storage.calls import MIB, Final, LongCall, StorageCall, StorageRoute, answer_each
from queryserver.api.v1.storage.shapes import mode_of
from queryserver.errors.base import NotSupported, PayloadTooLarge, QueryServerError
from queryserver.files.model import TransferKind, new_name, repaired
from queryserver.files.moves import TransferRequest, final_body, moved_body
from queryserver.files.operations import Progress
from queryserver.formats.delimited.encodings import encoded

router = PathGroup(StorageRoute)

_MAX_TEXT_BYTES = 10 * MIB


class SaveRoute(StorageRoute):
    """Text takes more room in a form or in JSON than in the file."""

    max_body_bytes = 12 * MIB


@router.operation("make_directory")
async def mkdir(call: StorageCall) -> Response:
    """Make a directory, named by its full path or by directory and name. Spec §4, Contract storage 6."""
    return await _create(call, call.read(requests.NewEntryRequest), is_directory=True)


@router.operation("create_directory")
async def create_directory(call: StorageCall) -> Response:
    """Make a directory in another one. Contract storage 6."""
    return await _create(call, call.read(requests.NamedEntryRequest), is_directory=True)


@router.operation("touch")
async def touch(call: StorageCall) -> Response:
    """Make an empty file, named by its full path or by directory and name. Spec §4, Contract storage 6."""
    return await _create(call, call.read(requests.NewEntryRequest), is_directory=False)


@router.operation("create_file")
async def create_file(call: StorageCall) -> Response:
    """Make an empty file in a directory. Contract storage 6."""
    return await _create(call, call.read(requests.NamedEntryRequest), is_directory=False)


@router.operation("save_file", kind=SaveRoute)
async def save(call: StorageCall) -> Response:
    """Replace the content of a file in one step. Contract storage 6."""
    asked = call.read(requests.SaveRequest)
    path = call.services.storage.stores.path(asked.path)
    # Some encodings take a thread's time for megabytes.
    content, _ = await parsed_aside(
        call.services, call.caller.user.id, partial(encoded, asked.contents, asked.encoding), len(asked.contents)
    )
    if len(content) > _MAX_TEXT_BYTES:
        raise PayloadTooLarge(f"Text of more than {_MAX_TEXT_BYTES} bytes is not saved.")
    saved = await call.services.storage.creations.save(call.caller, path, content)
    return answer(wire.SaveResponse(status=0, path=str(path), size=saved.size_bytes))


async def _create(
    call: StorageCall, asked: requests.NewEntryRequest | requests.NamedEntryRequest, *, is_directory: bool
) -> Response:
    path = call.services.storage.stores.path(asked.path)
    if asked.name is not None:
        path = path.child(new_name(asked.name, is_directory=is_directory))
    creations = call.services.storage.creations
    made = await (creations.mkdir if is_directory else creations.touch)(call.caller, path)
    return answer(wire.PathResponse(status=0, path=str(made)), status=201)


@router.operation("chmod", "chmod_bulk")
async def chmod(call: StorageCall) -> Response:
    """Set the permissions of an entry, or of a tree. Contract storage 6."""
    asked = call.read(requests.ChmodRequest)
    permissions = asked.permissions()

    async def change(text: str) -> dict[str, Any]:
        path = call.services.storage.stores.path(text)
        changed = await call.services.storage.attributes.chmod(
            call.caller, path, permissions, recursive=asked.recursive
        )
        return wire.ChmodResponse(status=0, path=str(path), mode=f"{mode_of(changed):o}").model_dump()

    return await answer_each(asked.path, change, always_bulk=call.is_bulk)


@router.operation("chown", "chown_bulk")
async def chown(call: StorageCall) -> Response:
    """Set owner, group, or both, of an entry or of a tree. Contract storage 6."""
    asked = call.read(requests.ChownRequest)
    owner, group = asked.chosen()

    async def change(text: str) -> dict[str, Any]:
        path = call.services.storage.stores.path(text)
        await call.services.storage.attributes.chown(call.caller, path, owner, group, recursive=asked.recursive)
        return wire.ChownResponse(status=0, path=str(path), user=owner, group=group).model_dump()

    return await answer_each(asked.path, change, always_bulk=call.is_bulk)


@router.operation("set_replication", "change_replication")
async def set_replication(call: StorageCall) -> Response:
    """Set how many copies of a file the store keeps. Spec §4, Contract storage 6."""
    asked = call.read(requests.ReplicationRequest)
    path = call.services.storage.stores.path(asked.path)
    await call.services.storage.attributes.set_replication(call.caller, path, asked.replication_factor)
    return answer(wire.ReplicationResponse(status=0, path=str(path), replication=asked.replication_factor))


@router.operation("remove_tree", "delete_entry", "delete_bulk")
async def delete(call: StorageCall) -> Response:
    """Delete entries, to the trash where the store has one. Spec §4, Contract storage 7.7."""
    asked = call.read(requests.DeleteRequest)

    async def each(text: str) -> dict[str, Any]:
        path = call.services.storage.stores.path(text)
        deleted = await call.services.storage.deletions.delete(call.caller, path, skip_trash=asked.skip_trash)
        trash_path = None if deleted.trash_path is None else str(deleted.trash_path)
        return wire.DeleteResponse(
            status=0, path=str(path), trashed=trash_path is not None, trash_path=trash_path
        ).model_dump()

    long = LongCall(call, "storage.delete", _shown(call, asked.path[0]), asked.wait)
    return await answer_each(asked.path, each, always_bulk=call.is_bulk, long=long)


def _shown(call: StorageCall, text: str) -> str:
    """The path of the answer 202; a malformed one is an item that fails, and does not stop the others."""
    try:
        return str(call.services.storage.stores.path(text))
    except QueryServerError:
        return text


@router.operation("extract_archive")
async def extract_archive(call: StorageCall) -> Response:
    """Always 501. Contract storage 1."""
    del call
    raise NotSupported("Archives are not unpacked by this server.")


@router.operation("compress")
async def compress(call: StorageCall) -> Response:
    """Always 501. Contract storage 1."""
    del call
    raise NotSupported("Archives are not made by this server.")


async def _one(call: StorageCall, asked: TransferRequest, wait_s: int | None) -> Response:
    moving = call.services.storage.moving
    prepared = await moving.prepare(call.caller, asked)

    async def run(progress: Progress) -> Final:
        return Final(final_body(await moving.perform(call.caller, prepared, progress)))

    return await LongCall(call, f"storage.{asked.kind}", str(prepared.target), wait_s).answer(run)


async def _one_or_many(call: StorageCall, kind: TransferKind) -> Response:
    asked = call.read(requests.MoveRequest)
    if len(asked.src_path) == 1 and not call.is_bulk:
        item = TransferRequest(kind, asked.src_path[0], asked.dest_path, overwrite=asked.overwrite)
        return await _one(call, item, asked.wait)
    moving, several = call.services.storage.moving, len(set(asked.src_path)) > 1
    if several:
        shown = await moving.directory(call.caller, asked.dest_path)
    else:
        shown = call.services.storage.stores.path(asked.dest_path, parameter="dest_path")

    async def each(source: str) -> Mapping[str, Any]:
        item = TransferRequest(kind, source, asked.dest_path, overwrite=asked.overwrite, several=several)
        prepared = await moving.prepare(call.caller, item)
        return moved_body(await moving.perform(call.caller, prepared, Progress()))

    long = LongCall(call, f"storage.{kind}", str(shown), asked.wait)
    return await answer_each(asked.src_path, each, always_bulk=True, long=long)


@router.operation("rename")
async def rename(call: StorageCall) -> Response:
    """Rename an entry beside itself, or to a full path of the same store. Spec §4, Contract storage 7.2."""
    asked = call.read(requests.RenameRequest)
    item = TransferRequest(TransferKind.RENAME, asked.src_path, asked.dest_path, overwrite=asked.overwrite)
    return await _one(call, item, asked.wait)


@router.operation("move", "move_bulk")
async def move(call: StorageCall) -> Response:
    """Move entries into a directory, or one to a new path; also to another store. Spec §4, Contract storage 7.3."""
    return await _one_or_many(call, TransferKind.MOVE)


@router.operation("copy", "copy_bulk")
async def copy(call: StorageCall) -> Response:
    """Copy entries with all they hold; on Ozone the answer names what was skipped. Spec §4, Contract storage 7.3."""
    return await _one_or_many(call, TransferKind.COPY)


@router.operation("get_trash_path")
async def trash_path(call: StorageCall) -> Response:
    """The trash folder for a path; null when there is none yet. Contract storage 8."""
    storage = call.services.storage
    path = storage.stores.path(repaired(call.read(requests.PathRequest).path))
    found = await storage.trash.where(call.caller, path)
    return answer(wire.TrashPathResponse(status=0, path=str(path), trash_path=None if found is None else str(found)))


@router.operation("restore", "restore_bulk")
async def restore(call: StorageCall) -> Response:
    """Bring an entry back to where it was. Spec §4, Contract storage 8."""

    async def each(text: str) -> dict[str, Any]:
        path = call.services.storage.stores.path(text)
        restored = await call.services.storage.trash.restore(call.caller, path)
        return wire.RestoreResponse(status=0, path=str(restored), source=str(path)).model_dump()

    return await answer_each(call.read(requests.PathsRequest).path, each, always_bulk=call.is_bulk)


@router.operation("purge_trash")
async def purge(call: StorageCall) -> Response:
    """Delete every entry of the caller's trash for good. Spec §4, Contract storage 8."""
    storage = call.services.storage
    text = call.read(requests.OptionalPathRequest).path
    path = storage.stores.path(text) if text else storage.stores.default_home(call.caller)
    root, purged = await storage.trash.purge(call.caller, path)
    return answer(wire.PurgeResponse(status=0, path=str(root), purged=purged))
