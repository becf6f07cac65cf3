"""Small files and names that must survive a power cut."""

import os
from pathlib import Path

from queryserver.embedded.account import Account


def write_private(file: Path, text: str, *, account: Account | None = None) -> None:
    """Make a new file, 0600 and on disk when this returns; it belongs to `account` if one is given."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as stream:  # noqa: PTH123 a descriptor has no path
        if account:
            os.fchown(descriptor, account.uid, account.gid)
        stream.write(text)
        stream.flush()
        os.fsync(descriptor)


def replace_private(file: Path, text: str) -> None:
    """Give a file a new content at once: readers see the old one or the new one."""
    partial = file.with_name(f"{file.name}.new")
    partial.unlink(missing_ok=True)
    write_private(partial, text)
    partial.rename(file)
    sync(file.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
