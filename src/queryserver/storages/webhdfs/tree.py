"""The operations of WebHDFS as one user makes them. Nothing is checked here: names of our own are welcome."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import Any

import httpx

from queryserver.domain.errors.base import NotSupported
from queryserver.domain.errors.files import NotADirectory, PathNotFound, StorageError
from queryserver.domain.files import FileStatus
from queryserver.storages.webhdfs.gateway import Call, Gateway, encoded
from queryserver.storages.webhdfs.listing import ListingScanner
from queryserver.storages.webhdfs.statuses import ToldStatuses, file_status

Told = tuple[str, Mapping[str, Any]]
_SIGNED = bytes((byte + 128) % 256 for byte in range(256))
_LONGEST_QUERY = 12_000
"""Characters of paths in one call; servers refuse headers above 64 KiB, proxies above 8 or 16."""


class Renamed(Enum):
    """What RENAME answered."""

    AS_ASKED = "the store knows the option, and has done it"
    WITHOUT_OPTION = "done, but the option was passed over"
    REFUSED = "not done"


@dataclass(frozen=True, slots=True)
class NewFile:
    """With what a file is made; None: the store's own."""

    permissions: int
    replication: int | None = None
    block_size: int | None = None

    @property
    def parameters(self) -> Mapping[str, str]:
        """Of CREATE."""
        given = {"replication": self.replication, "blocksize": self.block_size}
        return {"permission": f"{self.permissions:o}", **{name: str(value) for name, value in given.items() if value}}


@dataclass(frozen=True, slots=True)
class Entries:
    """Consecutive entries of a directory, names of our own among them."""

    told: Sequence[Told]
    """Names, and what the store says of them."""
    last: str
    """The last name, where the listing goes on."""
    remaining: int | None
    """How many follow; None: some, perhaps."""

    def statuses(self, path: str, shows: Callable[[str], bool] = bool, *, by_name: bool = False) -> ToldStatuses:
        """The entries of the directory at `path`, but for names that are not shown."""
        before, told = f"{path}/" if path else "", self.told
        if by_name:
            told = sorted(told, key=itemgetter(0))
        return ToldStatuses([(before + name, status) for name, status in told if shows(name)])


class ListingOperation:
    """How directories are listed: in batches, and on gateways that do not know these, at once.

    HDFS compares the bytes of names as numbers from -128 to 127, so that other letters come before those of ASCII.
    """

    def __init__(self, *, is_signed: bool = True) -> None:
        self._is_signed = is_signed
        self._op = "LISTSTATUS_BATCH"

    def key(self, name: str) -> bytes:
        """By which the store orders names."""
        raw = name.encode("utf-8", "surrogatepass")
        return raw.translate(_SIGNED) if self._is_signed else raw

    def call(self, path: str, after: str | None) -> Call:
        """For the entries behind a name, if the store lets it choose where to begin."""
        parameters = {} if after is None else {"startAfter": after}
        return Call("GET", self._op, path, parameters, is_repeatable=True)

    def give_up_batches(self) -> bool:
        """The store does not support the call. Whether there is another one."""
        former, self._op = self._op, "LISTSTATUS"
        return former != self._op


class Tree:
    """Files of a cluster as `user` sees them. Paths are relative to the root."""

    def __init__(self, gateway: Gateway, user: str, listing: ListingOperation, *, has_attributes: bool = True) -> None:
        """`has_attributes`: whether files have modes, owners and replication factors of their own."""
        self._gateway = gateway
        self._listing = listing
        self.user = user
        self.has_attributes = has_attributes

    async def told(self, op: str, path: str, *keys: str) -> Any:
        """The answer to a question, below those keys."""
        return await self._gateway.told(self.user, Call("GET", op, path, is_repeatable=True), *keys)

    async def stat(self, path: str) -> FileStatus:
        """Raises PathNotFound, NotADirectory."""
        return file_status(await self.told("GETFILESTATUS", path, "FileStatus"), path)

    async def find(self, path: str) -> FileStatus | None:
        """As `stat`; None: there is nothing."""
        try:
            return await self.stat(path)
        except PathNotFound:
            return None

    async def make_directory(self, path: str, permissions: int) -> bool:
        """Make it and its parents; what is there already counts as made."""
        made = await self._agreed("PUT", "MKDIRS", path, {"permission": f"{permissions:o}"})
        # HttpFS takes bits away that its own umask names.
        if made and permissions & 0o022 and self.has_attributes:
            await self.set_permissions(path, permissions)
        return made

    async def remove(self, path: str, *, recursive: bool) -> bool:
        """False: there is nothing. Raises DirectoryNotEmpty."""
        return await self._agreed("DELETE", "DELETE", path, {"recursive": str(recursive).lower()})

    async def rename(self, source: str, target: str, *, overwrite: bool) -> Renamed:
        """RENAME with one of its options. Where they are passed over, the target may be a directory it moves into."""
        option = "OVERWRITE" if overwrite else "NONE"
        parameters = {"destination": f"/{target}", "renameoptions": option}
        body = await self._gateway.answer(self.user, Call("PUT", "RENAME", source, parameters))
        if not body.strip():
            return Renamed.AS_ASKED
        return Renamed.WITHOUT_OPTION if _boolean(body) else Renamed.REFUSED

    async def set_permissions(self, path: str, permissions: int) -> None:
        """SETPERMISSION."""
        await self._done("PUT", "SETPERMISSION", path, {"permission": f"{permissions:o}"})

    async def set_owner(self, path: str, owner: str | None, group: str | None) -> None:
        """SETOWNER."""
        given = {"owner": owner, "group": group}
        await self._done("PUT", "SETOWNER", path, {name: value for name, value in given.items() if value})

    async def set_replication(self, path: str, factor: int) -> bool:
        """False: it is no file, or there is nothing."""
        return await self._agreed("PUT", "SETREPLICATION", path, {"replication": str(factor)})

    async def concat(self, target: str, sources: Sequence[str]) -> None:
        """Append files to one; they are gone afterwards. In several calls when their names are long."""
        batch, length = list[str](), 0
        for source in sources:
            size = len(encoded(source)) + 3
            if batch and length + size > _LONGEST_QUERY:
                await self._concat(target, batch)
                batch, length = [], 0
            batch.append(source)
            length += size
        if batch:
            await self._concat(target, batch)

    async def _concat(self, target: str, sources: Sequence[str]) -> None:
        await self._done("POST", "CONCAT", target, {"sources": ",".join(f"/{source}" for source in sources)})

    async def upload(self, path: str, body: AsyncIterator[bytes], new: NewFile, *, overwrite: bool = True) -> int:
        """Write a file; how many bytes the body had. Parents are made. Raises PathExists without `overwrite`."""
        sent = 0

        async def counted() -> AsyncGenerator[bytes]:
            nonlocal sent
            async for piece in body:
                sent += len(piece)
                yield piece

        call = Call("PUT", "CREATE", path, {"overwrite": str(overwrite).lower(), **new.parameters})
        await self._gateway.upload(self.user, call, counted())
        return sent

    async def content(self, path: str, offset: int, length: int) -> AsyncGenerator[bytes]:
        """Bytes [offset, offset + length), which the file has. Raises StorageError when fewer come."""
        parameters = {"offset": str(offset), "length": str(length)}
        left, held, held_bytes, sizes = length, list[bytes](), 0, self._gateway.read_sizes
        call = Call("GET", "OPEN", path, parameters, is_repeatable=True)
        with sizes.reader():
            async with self._gateway.reading(self.user, call) as answer:
                async for piece in answer.aiter_raw():
                    taken = piece[:left] if len(piece) > left else piece
                    left -= len(taken)
                    held.append(taken)
                    held_bytes += len(taken)
                    if held_bytes >= sizes.piece_bytes and left:
                        yield b"".join(held)
                        held, held_bytes = [], 0
        if left:
            raise StorageError("The store ended a file before its end.")
        yield b"".join(held)

    async def entries(self, path: str, after: str | None, most: int) -> AsyncGenerator[Entries]:
        """One call for entries behind a name. Raises NotADirectory."""
        scanner, found, last, key = ListingScanner(), list[Told](), after, self._listing.key
        async with self._listed(path, after) as answer:
            async for piece in answer.aiter_bytes():
                for told in scanner.feed(piece):
                    name = _name(told, path)
                    # HttpFS passes over where to begin.
                    if after is not None and key(name) <= key(after):
                        continue
                    if len(found) >= most:
                        yield Entries(found, last or "", None)
                        found = []
                    found.append((name, told))
                    last = name
            remaining = scanner.end()
        if remaining and last == after:
            raise StorageError("The store does not go on with its listing.")
        yield Entries(found, last or "", remaining)

    @asynccontextmanager
    async def _listed(self, path: str, after: str | None) -> AsyncGenerator[httpx.Response]:
        async with AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(
                    self._gateway.reading(self.user, self._listing.call(path, after))
                )
            except NotSupported:
                if not self._listing.give_up_batches():
                    raise
                answer = await stack.enter_async_context(
                    self._gateway.reading(self.user, self._listing.call(path, after))
                )
            yield answer

    async def all_entries(self, path: str) -> AsyncGenerator[FileStatus]:
        """Every entry of a directory, names of our own too."""
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

    async def _agreed(self, method: str, op: str, path: str, parameters: Mapping[str, str]) -> bool:
        return _boolean(await self._gateway.answer(self.user, Call(method, op, path, parameters)))

    async def _done(self, method: str, op: str, path: str, parameters: Mapping[str, str]) -> None:
        await self._gateway.answer(self.user, Call(method, op, path, parameters))


def _boolean(body: bytes) -> bool:
    try:
        agreed = json.loads(body)["boolean"]
    except (ValueError, LookupError, TypeError) as error:
        raise StorageError("The store gave an answer that is none.") from error
    return agreed is True


def _name(told: Mapping[str, Any], path: str) -> str:
    """Of an entry; a file tells itself as its only entry, without a name."""
    name = told.get("pathSuffix")
    if not isinstance(name, str):
        raise StorageError("The store told something else than a listing.")
    if not name:
        raise NotADirectory(f"/{path} is no directory.")
    return name
