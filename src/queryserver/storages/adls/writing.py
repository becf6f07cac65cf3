"""What both kinds of account do in the same way: files on their way in."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Protocol

from queryserver.domain.errors.files import NotAFile
from queryserver.domain.files import FileStatus
from queryserver.interfaces.storage import PartPlan, StoredPart
from queryserver.storages.adls.errors import azure_errors
from queryserver.storages.adls.looking import AccountTree, Looking
from queryserver.storages.adls.places import AzurePlace, file_place, place_of, unfinished
from queryserver.storages.adls.transfers import Reader, same_size


class AccountUploads(Protocol):
    """How an account takes files. Calls raise AzureFailure besides domain errors."""

    async def write(
        self, place: AzurePlace, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None
    ) -> FileStatus:
        """See `Storage.write`."""
        ...

    async def begin_parts(self, place: AzurePlace) -> str:
        """See `Storage.begin_parts`."""
        ...

    async def write_part(
        self, plan: PartPlan, staged: AzurePlace, index: int, body: AsyncIterator[bytes]
    ) -> StoredPart:
        """See `Storage.write_part`."""
        ...

    async def join_parts(
        self, plan: PartPlan, place: AzurePlace, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """See `Storage.join_parts`."""
        ...

    async def complete_parts(self, plan: PartPlan, staged: AzurePlace, parts: Sequence[StoredPart]) -> None:
        """Make the parts a file under its reserved name. Raises VerificationFailed."""
        ...

    async def discard(self, staged: AzurePlace) -> None:
        """See `Storage.discard_parts`."""
        ...

    async def sweep(self, folder: AzurePlace, before: datetime) -> int:
        """See `Storage.sweep_leftovers`."""
        ...


class Writing(Looking):
    """Part of a Storage. The same for every user."""

    def __init__(self, tree: AccountTree, reader: Reader, uploads: AccountUploads) -> None:
        super().__init__(tree, reader)
        self._uploads = uploads

    async def write(
        self, path: str, body: AsyncIterator[bytes], *, overwrite: bool, size_bytes: int | None = None
    ) -> FileStatus:
        """See the Protocol."""
        place = file_place(path)
        with azure_errors(path):
            return await self._uploads.write(place, body, overwrite=overwrite, size_bytes=size_bytes)

    async def copy(self, source: str, target: str, *, overwrite: bool = False) -> FileStatus:
        """See the Protocol. Streamed through this service."""
        from_place, to_place = file_place(source), file_place(target)
        with azure_errors(source):
            found = await self._entries.find(from_place)
        if not found.is_file:
            raise NotAFile(f"abfs://{source} is not a file.")
        async with aclosing(self.read(source, version=found)) as body:
            with azure_errors(target):
                copied = await self._uploads.write(to_place, body, overwrite=overwrite, size_bytes=found.size_bytes)
        return same_size(found, copied)

    async def begin_parts(self, plan: PartPlan) -> str:
        """See the Protocol."""
        place = file_place(plan.path)
        with azure_errors(plan.path):
            return await self._uploads.begin_parts(place)

    async def write_part(self, plan: PartPlan, staging: str, index: int, body: AsyncIterator[bytes]) -> StoredPart:
        """See the Protocol."""
        staged = unfinished(file_place(plan.path), staging)
        with azure_errors(plan.path):
            return await self._uploads.write_part(plan, staged, index, body)

    async def join_parts(
        self, plan: PartPlan, staging: str, parts: Sequence[StoredPart], *, overwrite: bool
    ) -> FileStatus:
        """See the Protocol."""
        place = file_place(plan.path)
        with azure_errors(plan.path):
            return await self._uploads.join_parts(plan, place, staging, parts, overwrite=overwrite)

    async def read_parts(self, plan: PartPlan, staging: str, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes]:
        """See `ReadableParts`. The parts are committed under the reserved name first: then they can be read."""
        staged = unfinished(file_place(plan.path), staging)
        with azure_errors(plan.path):
            await self._uploads.complete_parts(plan, staged, parts)
            async with aclosing(self._contents.read(staged, 0, None, None)) as pieces:
                async for piece in pieces:
                    yield piece

    async def discard_parts(self, plan: PartPlan, staging: str) -> None:
        """See the Protocol."""
        staged = unfinished(file_place(plan.path), staging)
        with azure_errors(plan.path):
            await self._uploads.discard(staged)

    async def sweep_leftovers(self, path: str, older_than_s: float) -> int:
        """See the Protocol."""
        place = place_of(path)
        if place is None:
            return 0
        with azure_errors(path):
            return await self._uploads.sweep(place, datetime.now(UTC) - timedelta(seconds=older_than_s))
