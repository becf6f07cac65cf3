"""The account that PostgreSQL runs under, and the places that it can reach."""

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True, slots=True)
class Account:
    """An unprivileged account, for PostgreSQL refuses to run as root."""

    uid: int
    gid: int

    def own(self, path: Path) -> None:
        """Make the account the owner of one file or directory that we have just made."""
        os.chown(path, self.uid, self.gid, follow_symlinks=False)


def server_account() -> Account | None:
    """The account to switch to; None for a normal user, who runs PostgreSQL as himself."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return Account(entry.pw_uid, entry.pw_gid)


def open_to_all(directory: Path) -> bool:
    """Whether any account can reach into the directory: it and its parents are searchable by others."""
    absolute = directory.resolve()
    return all(place.stat().st_mode & 0o001 for place in (absolute, *absolute.parents))


def spawn(
    command: Sequence[str | Path],
    *,
    account: Account | None,
    cwd: Path,
    environment: Mapping[str, str],
    stdin: int | IO[bytes],
    output: int | IO[bytes],
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, so that Ctrl-C in our terminal reaches us alone.

    `cwd` is entered before root's rights are given up: it may lie where the account could not walk to.
    """
    return subprocess.Popen(  # noqa: S603 the programs are ours or of the wheel, and no shell splits the arguments
        command,
        cwd=cwd,
        env=environment,
        stdin=stdin,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
    )
