"""Where a download is written until it is whole: a hidden file beside its target, which a later process continues."""

import hashlib
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

try:
    import fcntl
except ImportError:  # Windows has other locks: there a later process begins anew
    fcntl = None  # type: ignore[assignment]

_WORTH_KEEPING = 1024 * 1024
"""Less comes again sooner than somebody wonders about a hidden file."""


class Place:
    """The place of one file. A link stays a link, and what is replaced gives its permissions.

    Into what is no file, such as `/dev/null` or a named pipe, the bytes go at once. All methods block.
    """

    def __init__(self, target: Path, *, is_kept: bool = False) -> None:
        """`is_kept`: what is not whole stays for a later download of the same bytes."""
        self._is_kept = is_kept
        try:
            self._facts: os.stat_result | None = target.stat()
        except FileNotFoundError:
            self._facts = None
        mode = None if self._facts is None else self._facts.st_mode
        self.is_direct = mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
        # What `/dev/fd/63` leads to has no name that could be opened.
        self._target = target if self.is_direct else Path(os.path.realpath(target))
        self._part = self._target
        self._lock: int | None = None

    def open(self, source: str = "") -> tuple[BinaryIO, int]:
        """A file without a buffer, and how many of its bytes are there already; the next one goes behind them.

        `source` names the bytes that are to come, and not only where they come from: an address with an ETag. Nobody
        may read it who might not read what it replaces.
        """
        self._forget()
        if self.is_direct:
            return cast("BinaryIO", self._part.open("wb", buffering=0)), 0
        if self._is_kept and source and fcntl is not None:
            self._part = self._beside(hashlib.sha256(source.encode()).hexdigest()[:24])
            if (file := self._locked()) is not None:
                self._lock = os.dup(file.fileno())
                return file, file.seek(0, os.SEEK_END)
        self._part = self._beside(secrets.token_hex(4))
        return cast("BinaryIO", os.fdopen(self._opened(os.O_EXCL), "wb", buffering=0)), 0

    def take(self) -> None:
        """It is whole."""
        if not self.is_direct:
            self._part.replace(self._target)
            self._part = self._target
        self._free()

    def leave(self, *, is_wrong: bool = False) -> None:
        """Remove what is not whole, or keep it. `is_wrong`: what is there is of no use."""
        if not is_wrong and self._lock is not None:
            with suppress(FileNotFoundError):
                if self._part.stat().st_size >= _WORTH_KEEPING:
                    self._free()
                    return
        self._forget()

    def _forget(self) -> None:
        if not self.is_direct and self._part != self._target:
            self._part.unlink(missing_ok=True)
        self._free()

    def _beside(self, word: str) -> Path:
        return self._target.with_name(f".{self._target.name}.{word}.part")

    def _opened(self, flags: int) -> int:
        flags |= os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        if self._facts is None:
            return os.open(self._part, flags, 0o666)
        mode = stat.S_IMODE(self._facts.st_mode)
        descriptor = os.open(self._part, flags, mode & 0o700)
        try:
            os.chown(self._part, -1, self._facts.st_gid)
        except (OSError, AttributeError):  # a group that we are not in, or Windows, which has none
            mode &= ~0o070
        with suppress(OSError):  # a file system without permissions
            self._part.chmod(mode)
        return descriptor

    def _locked(self) -> BinaryIO | None:
        """None when another process writes it, it is not ours, or the file system has no locks."""
        assert fcntl is not None  # noqa: S101
        while True:
            try:
                descriptor = self._opened(os.O_NOFOLLOW)
            except OSError:
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_ours = os.fstat(descriptor).st_uid == os.geteuid()  # in /tmp somebody else may have made it
            except OSError:
                is_ours = False
            if is_ours and _is_at(descriptor, self._part):
                return cast("BinaryIO", os.fdopen(descriptor, "r+b", buffering=0))
            os.close(descriptor)
            if not is_ours:
                return None
            # It has become the target meanwhile.

    def _free(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
