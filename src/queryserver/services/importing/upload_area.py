"""The end of what lies in the upload area (Contract importer 3.2; platform 12.2)."""

import re
from collections.abc import Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import structlog

from queryserver.domain.errors.base import QueryServerError
from queryserver.domain.errors.files import PathNotFound
from queryserver.domain.files import FileStatus
from queryserver.interfaces.import_uploads import ImportUploadRecords, UploadArea

log = structlog.get_logger(__name__)

_BATCH = 500
_OURS = re.compile(r"[0-9a-f]{64}")
# No record is inserted that long after its file came, and files that are used without one are touched all the time.
_ABANDONED_AFTER = timedelta(hours=1)


class UploadAreaKeeping:
    """Removes what nobody can use any more."""

    def __init__(
        self, records: ImportUploadRecords, area: UploadArea, *, abandoned_after: timedelta = _ABANDONED_AFTER
    ) -> None:
        self._records = records
        self._area = area
        self._abandoned_after = abandoned_after

    async def clean_up(self, *, dry_run: bool = False) -> Mapping[str, int]:
        """Remove expired uploads, and files that belong to none; kind to number."""
        abandoned = await self._area.sweep_everywhere(self._abandoned_after, dry_run=dry_run)
        expired = await self._records.count_expired() if dry_run else await self._remove_expired()
        abandoned += await self._remove_unknown(dry_run=dry_run)
        return {"expired import files": expired, "abandoned import files": abandoned}

    async def _remove_expired(self) -> int:
        """Records go first: a file without a record cannot be read, and the next clean-up finds it."""
        removed = 0
        while digests := await self._records.take_expired(limit=_BATCH):
            for digest in digests:
                await self._removed(digest.hex())
            removed += len(digests)
        return removed

    async def _remove_unknown(self, *, dry_run: bool) -> int:
        before, removed = datetime.now(UTC) - self._abandoned_after, 0
        async with aclosing(self._area.list_directory("")) as batches:
            async for batch in batches:
                old = {bytes.fromhex(entry.name) for entry in batch.entries if _is_old_file(entry, before)}
                for digest in old.difference(await self._records.known(old)) if old else ():
                    removed += dry_run or await self._removed(digest.hex())
        return removed

    async def _removed(self, name: str) -> bool:
        """Whether it was removed. One file that cannot be must not keep all others."""
        try:
            await self._area.delete(name, recursive=False)
        except PathNotFound:
            return False
        except QueryServerError as error:
            log.warning("import file not removed", code=error.code)
            return False
        return True


def _is_old_file(entry: FileStatus, before: datetime) -> bool:
    """Whether it is a plain file with a name such as we give, untouched since that time."""
    return (
        entry.is_file
        and _OURS.fullmatch(entry.name) is not None
        and entry.modified_at is not None
        and entry.modified_at < before
    )
