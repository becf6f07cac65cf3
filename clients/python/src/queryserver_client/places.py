"""Writes a download to a hidden file next to its target. A later process can continue an incomplete file."""

import hashlib
import os
import re
import secrets
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

try:
    import fcntl
except ImportError:  # Windows has no fcntl locks, so downloads are not continued by a later process
    fcntl = None  # type: ignore[assignment]

_WORTH_KEEPING = 1024 * 1024
"""Minimum size of a partial file to keep. Smaller files are quickly downloaded again, and would only be clutter."""
_DIGITS = 24
"""Number of hex digits in the name of a file that a later process can continue. Other names have fewer digits."""


class Place:
    """Writes one file next to its target, and then replaces the target.

    If the target is a symbolic link, the file that it points to is replaced. The permissions and the group of the
    replaced file are preserved. A target that is not a regular file, such as `/dev/null` or a named pipe, is written
    directly. All methods block, and may be called by several threads. `leave` also cleans up after an `open` whose
    caller no longer waits for it.
    """

    def __init__(self, target: Path, *, is_kept: bool = False) -> None:
        """If `is_kept` is set, an incomplete file is kept for a later download of the same bytes."""
        self._is_kept = is_kept and fcntl is not None
        try:
            self._facts: os.stat_result | None = target.stat()
        except FileNotFoundError:
            self._facts = None
        mode = None if self._facts is None else self._facts.st_mode
        self.is_direct = mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
        # Not resolved for pipes and devices: the target of `/dev/fd/63` has no name that could be opened.
        self._target = target if self.is_direct else Path(os.path.realpath(target))
        self._guard = threading.Lock()
        self._part: Path | None = None
        self._second: BinaryIO | None = None
        """A duplicate of the partial file's descriptor, which keeps the lock until the file has become the target."""
        self._file: BinaryIO | None = None
        """The file that `open` returned, in case the caller never received it."""
        self._is_left = False

    def open(self, source: str = "") -> tuple[BinaryIO, int]:
        """Open the file for unbuffered writing at its end. Return the file and the number of its existing bytes.

        `source` must identify the bytes, not only their origin, for example by an address with an ETag; an existing
        partial file is continued only if its source was the same. Users without access to the replaced file have no
        access to the new file.
        """
        kept = 0
        # Outside the lock, because opening a named pipe waits for a reader.
        direct = cast("BinaryIO", self._target.open("wb", buffering=0)) if self.is_direct else None
        with self._guard:
            self._forget()
            file = direct or (self._claimed(source) if self._is_kept and source else None) or self._made()
            if self._is_left:
                file.close()
                self._forget()
            elif direct is None:
                kept = file.seek(0, os.SEEK_END)
            self._file = file
        return file, kept

    def take(self) -> None:
        """Replace the target with the completed file."""
        with self._guard:
            if self._part is not None:
                self._give_permissions(self._part)
                self._part.replace(self._target)
                self._part = None
                self._release()
                if self._is_kept and self._target.stat().st_size >= _WORTH_KEEPING:
                    self._forget_others()

    def leave(self, *, is_wrong: bool = False) -> None:
        """Close an incomplete file, and keep or remove it. If `is_wrong` is set, it is always removed."""
        with self._guard:
            self._is_left = True
            if self._file is not None:
                self._file.close()
            if self._part is not None and self._part.name == self._kept_name(self._part) and not is_wrong:
                with suppress(FileNotFoundError):
                    if self._part.stat().st_size >= _WORTH_KEEPING:
                        self._part = None
            self._forget()

    def _claimed(self, source: str) -> BinaryIO | None:
        """Open or create the partial file for these bytes. None if another process has locked it, or locking fails."""
        part = self._beside(hashlib.sha256(source.encode()).hexdigest()[:_DIGITS])
        file = _locked(part, os.O_CREAT, self._first_mode)
        if file is not None:
            self._second = _again(file)
            self._part = part
        return file

    def _made(self) -> BinaryIO:
        part = self._beside(secrets.token_hex(4))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        file = os.fdopen(os.open(part, flags, self._first_mode), "wb", buffering=0)
        self._part = part
        return cast("BinaryIO", file)

    @property
    def _first_mode(self) -> int:
        """The initial mode. A file that will replace another is accessible only to its owner until it is complete."""
        return 0o666 if self._facts is None else 0o600

    def _give_permissions(self, part: Path) -> None:
        if self._facts is None:
            return
        mode = stat.S_IMODE(self._facts.st_mode)
        try:
            os.chown(part, -1, self._facts.st_gid, follow_symlinks=False)
        except (OSError, AttributeError):  # the user is not in the group, or Windows, which has no chown
            mode &= ~0o070
        with suppress(OSError):  # the file system does not support permissions
            part.chmod(mode)

    def _forget(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.unlink(missing_ok=True)
        self._release()

    def _release(self) -> None:
        second, self._second = self._second, None
        if second is not None:
            second.close()

    def _forget_others(self) -> None:
        """Remove partial files of other versions of the same target, unless another process has locked them."""
        with suppress(OSError), os.scandir(self._target.parent) as entries:
            for name in [entry.name for entry in entries if entry.name == self._kept_name(Path(entry.name))]:
                part = self._target.with_name(name)
                if (file := _locked(part, 0, 0)) is not None:
                    part.unlink(missing_ok=True)
                    file.close()

    def _beside(self, word: str) -> Path:
        return self._target.with_name(f".{self._target.name}.{word}.part")

    def _kept_name(self, part: Path) -> str:
        """Return the name under which a later process would find `part`; empty if the name contains no such digits."""
        word = part.stem[-_DIGITS:]
        return self._beside(word).name if re.fullmatch("[0-9a-f]+", word) else ""


def _locked(part: Path, flags: int, mode: int) -> BinaryIO | None:
    """Open and lock a file of this user. None if another process has locked it, or if locks are not supported."""
    assert fcntl is not None  # noqa: S101
    while True:
        try:
            descriptor = os.open(part, os.O_RDWR | os.O_NOFOLLOW | flags, mode)
        except OSError:
            return None
        file = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError:  # the file system does not support locks
            _drop_empty(file, part)
            return None
        if os.fstat(descriptor).st_uid != os.geteuid():  # in /tmp another user may have created it
            file.close()
            return None
        if _is_at(descriptor, part):
            return cast("BinaryIO", file)
        file.close()  # another process has moved or deleted the file in the meantime


def _again(file: BinaryIO) -> BinaryIO:
    try:
        return cast("BinaryIO", os.fdopen(os.dup(file.fileno()), "rb", buffering=0))
    except BaseException:
        file.close()
        raise


def _drop_empty(file: BinaryIO, part: Path) -> None:
    facts = os.fstat(file.fileno())
    if not facts.st_size and facts.st_uid == os.geteuid() and _is_at(file.fileno(), part):
        part.unlink(missing_ok=True)
    file.close()


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except OSError:
        return False
