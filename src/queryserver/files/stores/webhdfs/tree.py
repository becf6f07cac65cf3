"""WebHDFS operations as one user, and crash-safe writes and renames.

Paths are not checked here, and reserved names are allowed. New files are written under a temporary name and then
renamed.
"""

import asyncio
import codecs
import json
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import Any, TypeVar

import httpx
import orjson

from queryserver import errors
from queryserver.files.model import FileStatus
from queryserver.files.stores.webhdfs.gateway import Gateway, WebHdfsCall, encoded, json_value
from queryserver.files.stores.webhdfs.statuses import ListedStatuses, file_status

_BEGIN = re.compile(r'"FileStatus"\s*:\s*\[')
_NEXT = re.compile(r"[^\s,]")
_OBJECT_SEPARATORS, _SEPARATOR_CHARACTERS = ("},{", "},\n{"), " \t\r\n,"
_REMAINING = re.compile(r'"remainingEntries"\s*:\s*(\d+)')
_MAX_PENDING_CHARACTERS = 1024 * 1024
"""Maximum number of characters in an incomplete entry, whose name has at most a few thousand bytes."""


class ListingScanner:
    """Parses a listing response incrementally and yields the objects in its `FileStatus` array. Keeps at most one chunk
    and one incomplete entry in memory.
    """

    def __init__(self) -> None:
        self._characters = codecs.getincrementaldecoder("utf-8")()
        self._object = json.JSONDecoder().raw_decode
        self._pending = ""
        self._before, self._after = True, False
        self._remaining = 0

    def feed(self, piece: bytes) -> Iterator[Mapping[str, Any]]:
        """Yield the entries that this chunk completes. Raises StorageError if the response is not a listing."""
        try:
            self._pending += self._characters.decode(piece)
        except UnicodeDecodeError as error:
            raise _invalid_listing() from error
        if self._before:
            self._find_remaining()
            if found := _BEGIN.search(self._pending):
                self._pending = self._pending[found.end() :]
                self._before = False
        if not self._before and not self._after:
            yield from self._objects()
        if self._after:
            self._find_remaining()
        if len(self._pending) > _MAX_PENDING_CHARACTERS:
            raise _invalid_listing()

    def end(self) -> int:
        """Return how many entries further calls will list. Raises StorageError if the response is truncated."""
        if not self._after:
            raise _invalid_listing()
        return self._remaining

    def _objects(self) -> Iterator[Mapping[str, Any]]:
        yield from self._many_objects()
        text, end = self._pending, 0
        while (found := _NEXT.search(text, end)) and found[0] == "{":
            try:
                entry, end = self._object(text, found.start())
            except ValueError:
                break
            yield entry
        self._pending = text[found.start() :] if found else ""
        self._after = self._pending.startswith("]")
        if self._pending and self._pending[0] not in "{]":
            raise _invalid_listing()

    def _many_objects(self) -> Sequence[Mapping[str, Any]]:
        """Parse all complete entries but the last in one call, which is several times faster than parsing each one.
        Return an empty list if the text cannot be split between entries.
        """
        cut = max(map(self._pending.rfind, _OBJECT_SEPARATORS))
        if cut < 0:
            return []
        try:
            entries = orjson.loads(f"[{self._pending[: cut + 1].lstrip(_SEPARATOR_CHARACTERS)}]")
        except ValueError:
            return []
        if not all(isinstance(entry, dict) for entry in entries):
            raise _invalid_listing()
        self._pending = self._pending[cut + 1 :]
        return entries

    def _find_remaining(self) -> None:
        if found := _REMAINING.search(self._pending):
            self._remaining = int(found[1])


def _invalid_listing() -> errors.StorageError:
    return errors.StorageError("The store sent an invalid listing.")


ListedEntry = tuple[str, Mapping[str, Any]]
_SIGNED = bytes((byte + 128) % 256 for byte in range(256))
_MAX_QUERY_CHARACTERS = 12_000
"""Maximum number of path characters in one call. Servers reject headers above 64 KiB, proxies above 8 or 16 KiB."""


class RenameOutcome(Enum):
    """The outcome of RENAME, and whether the store applied the rename option (OVERWRITE or NONE)."""

    DONE_WITH_OPTION = "done with the option"
    DONE_WITHOUT_OPTION = "done without the option"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class NewFile:
    """The attributes of a new file. None means the default of the store."""

    permissions: int
    replication: int | None = None
    block_size: int | None = None

    @property
    def parameters(self) -> Mapping[str, str]:
        options = {"replication": self.replication, "blocksize": self.block_size}
        return {"permission": f"{self.permissions:o}", **{name: str(value) for name, value in options.items() if value}}


@dataclass(frozen=True, slots=True)
class Entries:
    """Consecutive entries of a directory listing, including reserved names."""

    listed: Sequence[ListedEntry]
    """The name of each entry, and its `FileStatus` as the store returned it."""
    last: str
    """The name of the last entry, after which the listing continues."""
    remaining: int | None
    """How many entries follow; None if unknown."""

    def statuses(self, path: str, shows: Callable[[str], bool] = bool, *, by_name: bool = False) -> ListedStatuses:
        """Return the statuses of the entries whose names `shows` accepts, sorted by name if `by_name` is set.

        `path` is the path of the directory.
        """
        before, listed = f"{path}/" if path else "", self.listed
        if by_name:
            listed = sorted(listed, key=itemgetter(0))
        return ListedStatuses([(before + name, status) for name, status in listed if shows(name)])


class ListingOperation:
    """How directories are listed: in batches, or in a single response on gateways that do not support batches.

    HDFS compares names as signed bytes, from -128 to 127, so non-ASCII characters sort before ASCII.
    """

    def __init__(self, *, is_signed: bool = True) -> None:
        self._is_signed = is_signed
        self._op = "LISTSTATUS_BATCH"

    def key(self, name: str) -> bytes:
        """Return the key by which the store sorts names."""
        raw = name.encode("utf-8", "surrogatepass")
        return raw.translate(_SIGNED) if self._is_signed else raw

    def call(self, path: str, after: str | None) -> WebHdfsCall:
        """Return the call that lists the entries after the name `after`."""
        parameters = {} if after is None else {"startAfter": after}
        return WebHdfsCall("GET", self._op, path, parameters, is_repeatable=True)

    def give_up_batches(self) -> bool:
        """Switch to listings in a single response. Return False if this has already happened."""
        former, self._op = self._op, "LISTSTATUS"
        return former != self._op


class WebHdfsTree:
    """The files of a cluster, accessed as `user`. Paths are relative to the root."""

    def __init__(self, gateway: Gateway, user: str, features: "ClusterFeatures") -> None:
        self._gateway = gateway
        self.user = user
        self.features = features

    async def request_value(self, op: str, path: str, *keys: str) -> Any:
        """Run a read-only operation, and return the value under `keys` in the response."""
        return await self._gateway.request_value(self.user, WebHdfsCall("GET", op, path, is_repeatable=True), *keys)

    async def stat(self, path: str) -> FileStatus:
        return file_status(await self.request_value("GETFILESTATUS", path, "FileStatus"), path)

    async def find(self, path: str) -> FileStatus | None:
        try:
            return await self.stat(path)
        except errors.PathNotFound:
            return None

    async def make_directory(self, path: str, permissions: int) -> bool:
        """Create a directory and its missing parents. Also succeeds if the directory exists. Return False if the store
        rejects the call.
        """
        made = await self._change_succeeded("PUT", "MKDIRS", path, permission=f"{permissions:o}")
        # HttpFS applies its own umask.
        if made and permissions & 0o022 and self.features.has_attributes:
            await self.set_permissions(path, permissions)
        return made

    async def remove(self, path: str, *, recursive: bool) -> bool:
        """Delete an entry. Return False if it does not exist. Raises DirectoryNotEmpty."""
        return await self._change_succeeded("DELETE", "DELETE", path, recursive=str(recursive).lower())

    async def rename(self, source: str, target: str, *, overwrite: bool) -> RenameOutcome:
        """Run RENAME with the option OVERWRITE or NONE. A store that ignores the option moves the source into the
        target if the target is an existing directory.
        """
        option = "OVERWRITE" if overwrite else "NONE"
        body = await self._change("PUT", "RENAME", source, destination=f"/{target}", renameoptions=option)
        if not body.strip():
            return RenameOutcome.DONE_WITH_OPTION
        return RenameOutcome.DONE_WITHOUT_OPTION if json_value(body, "boolean") is True else RenameOutcome.REFUSED

    async def set_permissions(self, path: str, permissions: int) -> None:
        await self._change("PUT", "SETPERMISSION", path, permission=f"{permissions:o}")

    async def set_owner(self, path: str, owner: str | None, group: str | None) -> None:
        options = {"owner": owner, "group": group}
        await self._change("PUT", "SETOWNER", path, **{name: value for name, value in options.items() if value})

    async def set_replication(self, path: str, factor: int) -> bool:
        """Set the replication factor. Return False if there is no file at the path."""
        return await self._change_succeeded("PUT", "SETREPLICATION", path, replication=str(factor))

    async def concat(self, target: str, sources: Sequence[str]) -> None:
        """Append the source files to the target, and remove them. Uses several calls if the paths are long."""
        batch, length = list[str](), 0
        for source in sources:
            size = len(encoded(source)) + 3
            if batch and length + size > _MAX_QUERY_CHARACTERS:
                await self._change("POST", "CONCAT", target, sources=",".join(batch))
                batch, length = [], 0
            batch.append(f"/{source}")
            length += size
        if batch:
            await self._change("POST", "CONCAT", target, sources=",".join(batch))

    async def upload(self, path: str, body: AsyncIterator[bytes], new: NewFile, *, overwrite: bool = True) -> int:
        """Write a file, creating its missing parents, and return the size of the body. Raises PathExists unless
        `overwrite` is set.
        """
        sent = 0

        async def counted() -> AsyncGenerator[bytes]:
            nonlocal sent
            async for piece in body:
                sent += len(piece)
                yield piece

        call = WebHdfsCall("PUT", "CREATE", path, {"overwrite": str(overwrite).lower(), **new.parameters})
        await self._gateway.upload(self.user, call, counted())
        return sent

    async def content(self, path: str, offset: int, length: int) -> AsyncGenerator[bytes]:
        """Yield bytes [offset, offset + length), which must exist. Raises StorageError if the store returns fewer
        bytes.
        """
        parameters = {"offset": str(offset), "length": str(length)}
        left, chunks, chunk_bytes, sizes = length, list[bytes](), 0, self._gateway.read_sizes
        call = WebHdfsCall("GET", "OPEN", path, parameters, is_repeatable=True)
        with sizes.reader():
            async with self._gateway.open_read(self.user, call) as answer:
                async for piece in answer.aiter_raw():
                    part = piece[:left] if len(piece) > left else piece
                    left -= len(part)
                    chunks.append(part)
                    chunk_bytes += len(part)
                    if chunk_bytes >= sizes.piece_bytes and left:
                        yield b"".join(chunks)
                        chunks, chunk_bytes = [], 0
        if left:
            raise errors.StorageError("The store closed the connection before the end of a file.")
        yield b"".join(chunks)

    async def entries(self, path: str, after: str | None, limit: int) -> AsyncGenerator[Entries]:
        """List the entries after a name with one call, and yield them in groups of at most `limit`. Raises
        NotADirectory.
        """
        scanner, found, last, key = ListingScanner(), list[ListedEntry](), after, self.features.listing.key
        async with self._listed(path, after) as answer:
            async for piece in answer.aiter_bytes():
                for entry in scanner.feed(piece):
                    name = entry.get("pathSuffix")
                    if not isinstance(name, str):
                        raise _invalid_listing()
                    if not name:  # a file is listed as a single entry without a name
                        raise errors.NotADirectory(f"/{path} is not a directory.")
                    # HttpFS ignores `startAfter`, so skip the earlier names here.
                    if after is not None and key(name) <= key(after):
                        continue
                    if len(found) >= limit:
                        yield Entries(found, last or "", None)
                        found = []
                    found.append((name, entry))
                    last = name
            remaining = scanner.end()
        if remaining and last == after:
            raise errors.StorageError("The store did not continue its listing.")
        yield Entries(found, last or "", remaining)

    @asynccontextmanager
    async def _listed(self, path: str, after: str | None) -> AsyncGenerator[httpx.Response]:
        async with AsyncExitStack() as stack:
            answer = None
            while answer is None:
                reading = self._gateway.open_read(self.user, self.features.listing.call(path, after))
                try:
                    answer = await stack.enter_async_context(reading)
                except errors.NotSupported:
                    if not self.features.listing.give_up_batches():
                        raise
            yield answer

    async def all_entries(self, path: str) -> AsyncGenerator[FileStatus]:
        """Yield all entries of a directory, including reserved names."""
        after: str | None = None
        while True:
            remaining: int | None = None
            async with aclosing(self.entries(path, after, 1000)) as batches:
                async for batch in batches:
                    after, remaining = batch.last, batch.remaining
                    for status in batch.statuses(path):
                        yield status
            if not remaining:
                return

    async def _change_succeeded(self, method: str, op: str, path: str, **parameters: str) -> bool:
        return json_value(await self._change(method, op, path, **parameters), "boolean") is True

    async def _change(self, method: str, op: str, path: str, **parameters: str) -> bytes:
        return await self._gateway.request(self.user, WebHdfsCall(method, op, path, parameters))


T = TypeVar("T")


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to completion even if the caller is canceled, and raise the CancelledError only afterward.

    Every call in `work` must have a timeout.
    """
    task, cancel = asyncio.create_task(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancel = error
    if cancel is not None and not task.cancelled():
        task.exception()
        raise cancel
    return task.result()


OLD_PREFIX = "._qs_old_"
_DIRECTORY_PREFIX = "._qs_directory_"
_REMOVE_ATTEMPTS = 3
_PAUSE_S = 0.3


class RenameOperation:
    """Renames entries of one store, and records whether the store supports the options of RENAME."""

    def __init__(self) -> None:
        self._knows_options: bool | None = None

    async def rename(self, tree: WebHdfsTree, source: str, target: str, *, overwrite: bool) -> None:
        if target == source or target.startswith(f"{source}/"):
            await tree.stat(source)
            raise (errors.PathExists if target == source else errors.TargetInsideSource)(
                f"/{target} is the same as or inside /{source}."
            )
        former = await tree.find(target) if overwrite or not self._knows_options else None
        if former is None:
            return await self._rename_new(tree, source, target)
        if not overwrite or not former.is_file or not (await tree.stat(source)).is_file:
            raise errors.PathExists(f"/{target} already exists.")
        return await self._replace(tree, source, target)

    async def publish(self, tree: WebHdfsTree, source: str, target: str, former: FileStatus | None) -> FileStatus:
        """Rename a temporary file to its target, replacing `former` if it is not None. Return its status. Raises
        PathExists.
        """
        if former is None:
            await self._rename_new(tree, source, target)
        else:
            await self._replace(tree, source, target)
        status = await tree.stat(target)
        if status.is_directory:
            # Another client has created a directory of that name, and the store has moved the file into it.
            with suppress(errors.QueryServerError):
                await run_to_completion(tree.remove(f"{target}/{_name_of(source)}", recursive=False))
            raise errors.PathExists(f"/{target} already exists.")
        return status

    async def make_directory(self, tree: WebHdfsTree, path: str, permissions: int) -> None:
        """Create a directory. Raises PathExists, which MKDIRS itself would not report."""
        if await tree.find(path) is not None:
            raise errors.PathExists(f"/{path} already exists.")
        made = child_path(path.rpartition("/")[0], f"{_DIRECTORY_PREFIX}{uuid.uuid4().hex}")
        if not await tree.make_directory(made, permissions):
            raise errors.StorageError("The store did not create the directory.")
        try:
            await self._rename_new(tree, made, path)
        except BaseException:  # includes CancelledError: the directory must not remain
            with suppress(errors.QueryServerError):
                await run_to_completion(tree.remove(made, recursive=False))
            raise
        inside = f"{path}/{_name_of(made)}"
        if not self._knows_options and await tree.find(inside) is not None:
            await run_to_completion(tree.remove(inside, recursive=False))
            raise errors.PathExists(f"/{path} already exists.")

    async def _replace(self, tree: WebHdfsTree, source: str, target: str) -> None:
        if self._knows_options is not False:
            outcome = await tree.rename(source, target, overwrite=True)
            self._knows_options = outcome is RenameOutcome.DONE_WITH_OPTION
            if outcome is not RenameOutcome.REFUSED:
                return
        await run_to_completion(_replace_in_steps(tree, source, target))

    async def _rename_new(self, tree: WebHdfsTree, source: str, target: str) -> None:
        outcome = await tree.rename(source, target, overwrite=False)
        self._knows_options = outcome is RenameOutcome.DONE_WITH_OPTION
        if outcome is RenameOutcome.REFUSED:
            raise await _refusal_reason(tree, source, target)


@dataclass(frozen=True, slots=True)
class ClusterFeatures:
    """The features in which clusters differ. `listing` and `renaming` adapt to the responses of the store."""

    umask: int
    has_attributes: bool = True
    """Whether files have modes, owners and replication factors of their own."""
    listing: ListingOperation = field(default_factory=ListingOperation)
    renaming: RenameOperation = field(default_factory=RenameOperation)


async def _replace_in_steps(tree: WebHdfsTree, source: str, target: str) -> None:
    parent = target.rpartition("/")[0]
    backup = child_path(parent, f"{OLD_PREFIX}{uuid.uuid4().hex}")
    old = f"{backup}/{_name_of(target)}"
    await tree.make_directory(backup, 0o700)
    if await tree.rename(target, old, overwrite=False) is RenameOutcome.REFUSED:
        await tree.remove(backup, recursive=False)
        raise await _refusal_reason(tree, source, target)
    try:
        if await tree.rename(source, target, overwrite=False) is RenameOutcome.REFUSED:
            raise await _refusal_reason(tree, source, target)
    except errors.QueryServerError:
        await tree.rename(old, target, overwrite=False)
        await tree.remove(backup, recursive=False)
        raise
    await tree.remove(backup, recursive=True)


async def restore(tree: WebHdfsTree, parent: str, backup: str) -> None:
    """After a crash, move the file in the `backup` directory back, unless a new file exists, and delete the
    directory.
    """
    async for old in tree.all_entries(backup):
        target = child_path(parent, old.name)
        if await tree.find(target) is None:
            await tree.rename(old.path, target, overwrite=False)
    await tree.remove(backup, recursive=True)


async def _refusal_reason(tree: WebHdfsTree, source: str, target: str) -> errors.QueryServerError:
    if await tree.find(source) is None:
        return errors.PathNotFound(f"/{source} does not exist.")
    parent = target.rpartition("/")[0]
    parent_status = await tree.find(parent)
    if parent_status is None:
        return errors.PathNotFound(f"/{parent} does not exist.")
    if not parent_status.is_directory:
        return errors.NotADirectory(f"/{parent} is not a directory.")
    if await tree.find(target) is not None:
        return errors.PathExists(f"/{target} already exists.")
    return errors.StorageError("The store did not rename the entry.")


def child_path(parent: str, name: str) -> str:
    return f"{parent}/{name}" if parent else name


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]


async def write_verified(
    tree: WebHdfsTree, path: str, body: AsyncIterator[bytes], new: NewFile, *, overwrite: bool = True
) -> FileStatus:
    """Write a file, and check its size. Raises VerificationFailed, and PathExists unless `overwrite` is set."""
    sent = await tree.upload(path, body, new, overwrite=overwrite)
    status = await tree.stat(path)
    if status.size_bytes != sent:
        raise errors.VerificationFailed(f"The store stored {status.size_bytes} of {sent} bytes.")
    if status.permissions == new.permissions or not tree.features.has_attributes:
        return status
    # HttpFS applies its own umask.
    with suppress(errors.PermissionDenied):
        await tree.set_permissions(path, new.permissions)
    return await tree.stat(path)


async def keep_owner(tree: WebHdfsTree, path: str, status: FileStatus, former: FileStatus) -> None:
    """Give a new file the owner and group of the file that it replaces, as far as the user may set them."""
    if not tree.features.has_attributes:
        return
    owner = former.owner if former.owner != status.owner else None
    group = former.group if former.group != status.group else None
    if owner:
        with suppress(errors.PermissionDenied):
            await tree.set_owner(path, owner, group)
            return
    if group:
        with suppress(errors.PermissionDenied):
            await tree.set_owner(path, None, group)


async def remove_broken(tree: WebHdfsTree, path: str) -> None:
    """Delete the file of a failed upload. Try several times, because the store may create the file with a delay."""
    for _ in range(_REMOVE_ATTEMPTS):
        if await tree.remove(path, recursive=False):
            return
        await asyncio.sleep(_PAUSE_S)
