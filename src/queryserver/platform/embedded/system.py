"""Accounts, files and processes of the private PostgreSQL."""

import json
import os
import pwd
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
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


class EmbeddedPostgresError(Exception):
    """The private PostgreSQL does not start; the text says why and what a person can do."""


class EmbeddedPostgresNotInstalled(EmbeddedPostgresError):
    """The programs of PostgreSQL are an extra of the package, and it was installed without."""


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


DUCKDB_FILE = "sample.duckdb"
SQLITE_FILE = "sample.sqlite"
STORAGE_DIRECTORY = "files"


@dataclass(frozen=True, slots=True)
class EmbeddedDefaults:
    """Where the embedded default keeps its databases and files. The DSNs hold passwords: never log them."""

    service_dsn: str = field(repr=False)
    """The service's own database (over a socket); empty at the first start, to be migrated by the caller."""
    sample_dsn: str = field(repr=False)
    """The users' PostgreSQL database, on loopback; its role cannot open the service's database."""
    databases_dir: Path
    """Holds the files of the duckdb and sqlite connectors and nothing else."""
    files_dir: Path
    """The local root: the store `file`, with sample files from the first start on."""
    duckdb_path: str = DUCKDB_FILE
    """Relative to `databases_dir`."""
    sqlite_path: str = SQLITE_FILE
    """Relative to `databases_dir`."""


SAMPLE_DATABASE = "sample"

SAMPLE_OWNER = "sample_owner"
"""Owns the objects and has the rights. Sessions act as this role; it cannot log in."""

SAMPLE_ROLE = "sample_user"
"""The login of the connector itself: for checks, not for statements of users."""


def sample_login(user_id: int) -> str:
    """The role that one user's sessions log in as."""
    return f"{SAMPLE_ROLE}_{user_id:d}"


_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ClusterProcesses:
    """The live processes of one cluster."""

    postmasters: tuple[int, ...]
    children: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.postmasters or self.children)


def processes_of(cluster_name: str) -> ClusterProcesses:
    """Each process carries the name of its cluster in its command line, which everybody may read.

    The number in `postmaster.pid` proves nothing: after a crash it may belong to another program.
    """
    named = {process.pid: process for process in _processes() if cluster_name in process.command}
    # A child that was forked this instant still has the command line of its parent.
    postmasters = tuple(
        pid for pid, process in named.items() if "/postgres -D " in process.command and process.parent not in named
    )
    children = tuple(
        pid
        for pid, process in named.items()
        if process.command.startswith("postgres: ") or process.parent in postmasters
    )
    return ClusterProcesses(postmasters, children)


def end_processes(cluster_name: str, *, fast_s: float, immediate_s: float) -> None:
    """End what an earlier server left running: by fast shutdown, then at once, then by force. Committed data are safe.

    Children get no SIGINT: to the checkpointer it is the postmaster's own word for "write the last record".
    """
    if processes_of(cluster_name).postmasters and _signal(cluster_name, signal.SIGINT, wait_s=fast_s):
        return
    if not _signal(cluster_name, signal.SIGQUIT, wait_s=immediate_s):
        _signal(cluster_name, signal.SIGKILL, wait_s=10)


def _signal(cluster_name: str, number: signal.Signals, *, wait_s: float) -> bool:
    """Send a signal to the postmaster, to all where there is none or by force; whether all are gone in time."""
    found = processes_of(cluster_name)
    everybody = number is signal.SIGKILL or not found.postmasters
    for pid in (*found.postmasters, *(found.children if everybody else ())):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    deadline = time.monotonic() + wait_s
    while processes_of(cluster_name) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not processes_of(cluster_name)


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    command: str


def _processes() -> Iterator[_Process]:
    if not (_PROC / "self" / "cmdline").exists():
        yield from _processes_by_ps()
        return
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has just ended
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                yield _Process(int(entry.name), int(after_name[1]), command)


def _processes_by_ps() -> Iterator[_Process]:
    """macOS has no /proc."""
    listing = subprocess.run(
        ["/bin/ps", "-axww", "-o", "pid=,ppid=,command="], check=True, capture_output=True, text=True, timeout=10
    )
    for line in listing.stdout.splitlines():
        pid, parent, *command = line.split(maxsplit=2)
        yield _Process(int(pid), int(parent), "".join(command))


@dataclass(frozen=True, slots=True)
class ClusterSecrets:
    """Random at the first start and kept; nobody types them."""

    superuser: str = field(repr=False)
    service: str = field(repr=False)
    sample: str = field(repr=False)
    cluster_id: str


def kept_secrets(file: Path, *, may_create: bool) -> ClusterSecrets:
    """What the file holds; new ones, on disk before this returns, when there is none and no database yet.

    Raises EmbeddedPostgresError for a lost or damaged file of a database that exists.
    """
    try:
        return ClusterSecrets(**json.loads(file.read_bytes()))
    except FileNotFoundError:
        if may_create:
            return _created(file)
        message = f"{file} is gone: without its passwords the embedded database cannot be opened. Restore it."
        raise EmbeddedPostgresError(message) from None
    except (ValueError, TypeError) as error:
        message = f"{file} is damaged: without its passwords the embedded database cannot be opened. Restore it."
        raise EmbeddedPostgresError(message) from error


def _created(file: Path) -> ClusterSecrets:
    made = ClusterSecrets(
        superuser=secrets.token_urlsafe(32),
        service=secrets.token_urlsafe(32),
        sample=secrets.token_urlsafe(32),
        cluster_id=secrets.token_hex(8),
    )
    replace_private(file, json.dumps(asdict(made)))
    return made
