"""Where a download is written until it is complete: a hidden file next to its target, which a later process can
resume.
"""

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
except ImportError:  # Windows has different locks, so a later process there starts again
    fcntl = None  # type: ignore[assignment]

_WORTH_KEEPING = 1024 * 1024
"""Smaller parts are downloaded again faster than users would wonder about a hidden file."""
_DIGITS = 24
"""Number of digits in names that a later process finds again. Other names have fewer."""


class Place:
    """The location of one file. A link stays a link, and the replaced file's permissions and group are preserved.

    If the target is not a regular file, such as `/dev/null` or a named pipe, the bytes are written directly. All
    methods block, and may be called by several threads. `leave` also ends an abandoned `open`.
    """

    def __init__(self, target: Path, *, is_kept: bool = False) -> None:
        """`is_kept`: an incomplete file is kept for a later download of the same bytes."""
        self._is_kept = is_kept and fcntl is not None
        try:
            self._facts: os.stat_result | None = target.stat()
        except FileNotFoundError:
            self._facts = None
        mode = None if self._facts is None else self._facts.st_mode
        self.is_direct = mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
        # The target of `/dev/fd/63` has no name that could be opened.
        self._target = target if self.is_direct else Path(os.path.realpath(target))
        self._guard = threading.Lock()
        self._part: Path | None = None
        self._second: BinaryIO | None = None
        """A second handle for the partial file. Its lock lasts until the file has become the target."""
        self._file: BinaryIO | None = None
        """The result of `open`, in case its caller never received it."""
        self._is_left = False

    def open(self, source: str = "") -> tuple[BinaryIO, int]:
        """Return an unbuffered file, and the number of its existing bytes, after which the next byte is appended.

        `source` identifies the expected bytes, not only their origin: an address with an ETag. Users who may not read
        the replaced file may not read the new one.
        """
        kept = 0
        # Opening a target that is not a regular file may wait for a reader.
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
        """Complete the file by moving it to its target."""
        with self._guard:
            if self._part is not None:
                self._give_permissions(self._part)
                self._part.replace(self._target)
                self._part = None
                self._release()
                if self._is_kept and self._target.stat().st_size >= _WORTH_KEEPING:
                    self._forget_others()

    def leave(self, *, is_wrong: bool = False) -> None:
        """Remove or keep an incomplete file. `is_wrong`: the existing bytes are useless."""
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
        """Return the kept file for these bytes, or None if another process is writing it or it cannot be locked."""
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
        """Return the initial mode. A file that will get another file's permissions is only accessible to its owner
        until then.
        """
        return 0o666 if self._facts is None else 0o600

    def _give_permissions(self, part: Path) -> None:
        if self._facts is None:
            return
        mode = stat.S_IMODE(self._facts.st_mode)
        try:
            os.chown(part, -1, self._facts.st_gid, follow_symlinks=False)
        except (OSError, AttributeError):  # a group that the user is not in, or Windows, which has none
            mode &= ~0o070
        with suppress(OSError):  # a file system without permissions
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
        """Remove files kept for other versions of the same target."""
        with suppress(OSError), os.scandir(self._target.parent) as entries:
            for name in [entry.name for entry in entries if entry.name == self._kept_name(Path(entry.name))]:
                part = self._target.with_name(name)
                if (file := _locked(part, 0, 0)) is not None:
                    part.unlink(missing_ok=True)
                    file.close()

    def _beside(self, word: str) -> Path:
        return self._target.with_name(f".{self._target.name}.{word}.part")

    def _kept_name(self, part: Path) -> str:
        """Return the name of this target's kept file with the same digits, or an empty text. It equals the file's
        own name if a later process finds the file again.
        """
        word = part.stem[-_DIGITS:]
        return self._beside(word).name if re.fullmatch("[0-9a-f]+", word) else ""


def _locked(part: Path, flags: int, mode: int) -> BinaryIO | None:
    """Open our own file exclusively. Return None if another process has it, or locks are not supported."""
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
        file.close()  # it has become the target since


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
