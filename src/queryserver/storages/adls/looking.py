"""What both kinds of account do in the same way: looking at entries and reading files."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from queryserver.domain.errors.files import NotAFile, bucket_listing_denied
from queryserver.domain.files import FileStatus
from queryserver.interfaces.storage import Batch
from queryserver.storages.adls import entries
from queryserver.storages.adls.errors import AzureFailure, azure_errors
from queryserver.storages.adls.places import AzurePlace, place_of
from queryserver.storages.adls.transfers import Reader


class AccountTree(Protocol):
    """The entries of an account. Calls raise AzureFailure."""

    async def find(self, place: AzurePlace) -> FileStatus:
        """The entry at a place. Raises PathNotFound."""
        ...

    def list_directory(self, place: AzurePlace, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        """The entries of a directory or container."""
        ...

    def list_containers(self, cursor: str | None, size: int) -> AsyncGenerator[Batch]:
        """The containers of the account."""
        ...


class Looking:
    """Part of a Storage. The same for every user."""

    def __init__(self, tree: AccountTree, reader: Reader) -> None:
        self._entries = tree
        self._contents = reader

    async def stat(self, path: str) -> FileStatus:
        """See the Protocol."""
        place = place_of(path)
        if place is None:
            return entries.directory("")
        with azure_errors(path):
            return await self._entries.find(place)

    async def list_directory(
        self, path: str, *, cursor: str | None = None, batch_size: int = 1000
    ) -> AsyncGenerator[Batch]:
        """See the Protocol. In flat accounts folders come where their marks stand: not in the order of names."""
        place = place_of(path)
        with azure_errors(path):
            if place is not None:
                async with aclosing(self._entries.list_directory(place, cursor, batch_size)) as batches:
                    async for batch in batches:
                        yield batch
                return
            try:
                async with aclosing(self._entries.list_containers(cursor, batch_size)) as batches:
                    async for batch in batches:
                        yield batch
            except AzureFailure as failure:
                if failure.is_denial:
                    raise bucket_listing_denied("the account refuses it.") from None
                raise

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, version: FileStatus | None = None
    ) -> AsyncGenerator[bytes]:
        """See the Protocol."""
        place = place_of(path)
        if place is None or place.is_container:
            raise NotAFile("A container is not a file.")
        with azure_errors(path):
            async with aclosing(self._contents.read(place, offset, length, version)) as pieces:
                async for piece in pieces:
                    yield piece
