"""Where files wait that were uploaded to be imported (`interfaces.import_uploads.UploadArea`)."""

import os
import stat
from pathlib import Path

from queryserver.domain.disk_floor import NO_FLOOR, DiskFloor
from queryserver.domain.errors.base import ConfigurationError
from queryserver.storages.local.errors import file_errors
from queryserver.storages.local.private import PrivateStorage


class LocalUploadArea(PrivateStorage):
    """The files of one directory, which is made when missing. To be closed by its owner."""

    def __init__(self, root: Path, *, max_threads: int = 4, timeout_s: float = 60, floor: DiskFloor = NO_FLOOR) -> None:
        """Raises ConfigurationError: files cannot be kept there, or not in safety."""
        try:
            super().__init__(root, max_threads=max_threads, timeout_s=timeout_s, floor=floor)
            problem = _problem(root)
        except OSError as error:
            problem = error.strerror or "cannot be used"
        if problem:
            raise ConfigurationError([f"importer.upload_dir: {root}: {problem}."])
        self._root = root

    def place(self, name: str) -> Path:
        """See the Protocol."""
        return self._root / name

    async def touch(self, name: str) -> bool:
        """See the Protocol."""
        return await self._threads.run(self._touch, name)

    def _touch(self, name: str) -> bool:
        with file_errors(name), self._tree.parent(name) as (directory, last):
            try:
                os.utime(last, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                return False
            return True


def _problem(root: Path) -> str:
    """What is wrong with the directory. One that was there keeps its mode: it may be more than ours."""
    mode = root.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return "everybody may rename and delete files there"
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return "this service may not write there"
    return ""
