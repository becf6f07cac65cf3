"""Files of this service itself, which nobody else may read (Contract platform 10.3: `local`)."""

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Self

from queryserver.domain.disk_floor import NO_FLOOR, DiskFloor
from queryserver.domain.errors.files import PathNotFound
from queryserver.domain.files import StorageUser
from queryserver.storages.local import sweeping
from queryserver.storages.local.access import AccessMap
from queryserver.storages.local.storage import LocalStorage
from queryserver.storages.local.threads import FileThreads
from queryserver.storages.local.tree import Tree

_SERVICE = AccessMap(StorageUser("", is_admin=True))


class PrivateStorage(LocalStorage):
    """Files below `root`, which is made when missing. Files get mode 0600, directories 0700.

    All work on files is done by `max_threads` threads of its own; a call that the file system does not answer within
    `timeout_s` raises StorageUnavailable. To be closed by its owner.
    """

    def __init__(self, root: Path, *, max_threads: int = 4, timeout_s: float = 60, floor: DiskFloor = NO_FLOOR) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().__init__(Tree(root, floor=floor), FileThreads(max_threads=max_threads, timeout_s=timeout_s), _SERVICE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let calls under way end, and the threads with them. Idempotent. Raises StorageUnavailable if one hangs."""
        await self._threads.close()

    async def sweep_everywhere(self, older_than: timedelta, *, dry_run: bool = False) -> int:
        """As `sweep_leftovers`, in all directories; or count only."""
        waiting, removed = [""], 0
        while waiting:
            # One short call per directory: a store of 100,000 directories holds up no other caller.
            with suppress(PathNotFound):
                path = waiting.pop()
                waiting += await self._threads.run(sweeping.directories_in, self._tree, path)
                older_than_s = older_than.total_seconds()
                removed += await self._threads.run(sweeping.sweep, self._tree, path, older_than_s, dry_run)
        return removed
