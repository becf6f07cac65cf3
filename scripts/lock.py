"""Write the lock files of requirements/: all packages with pinned versions and hashes, for all Pythons and platforms.

Pinned versions are kept if pyproject.toml permits them; --upgrade selects the newest permitted versions. With --wheels,
nothing is written. Instead, each file is resolved from wheels only, for each supported Python and platform; the exit
code is 1 if a package would have to be built.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from uv import find_uv_bin

PROJECT = Path(__file__).resolve().parent.parent
TARGET = PROJECT / "requirements"
OLDEST = "3.11.0"
PYTHONS = (OLDEST, "3.12.0", "3.13.0", "3.14.0")
# The oldest Linux distributions with Python 3.11 have glibc 2.28.
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin")
# gssapi has wheels only for macOS; on Linux it is built against the system's Kerberos library.
BUILT = {"gssapi"}
UV = find_uv_bin()


@dataclass(frozen=True, slots=True)
class LockFile:
    """A lock file with the packages that `options` select, minus those in the lock files that it extends."""

    name: str
    options: tuple[str, ...]
    extends: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return TARGET / f"{self.name}.lock"

    @property
    def header(self) -> str:
        """The comment on the first line."""
        onto = f" Extends {', '.join(f'{name}.lock' for name in self.extends)}." if self.extends else ""
        return f"# Written by `make lock`.{onto}\n"


FILES = (
    LockFile("service", ()),
    LockFile("build", ("--group=build",), ("service",)),
    LockFile("embedded", ("--extra=embedded",), ("service",)),
    LockFile("ldap", ("--extra=ldap",), ("service",)),
    LockFile("kerberos", ("--extra=kerberos",), ("service",)),
    LockFile("dev", ("--extra=dev",), ("service", "build", "embedded", "ldap")),
)


def write_all(*, upgrade: bool) -> None:
    """Write all lock files. All packages are first resolved together, so that the files have the same versions."""
    selected = [option for file in FILES for option in file.options]
    with tempfile.TemporaryDirectory() as directory:
        everything = Path(directory, "everything.txt")
        if not upgrade:
            present = [pin for file in FILES if file.path.exists() for pin in pins(file.path.read_text("utf-8"))]
            everything.write_text("".join(dict.fromkeys(present)), encoding="utf-8")
        compiled(*selected, f"--output-file={everything}")
        parts = {file.name: pins(compiled(*file.options, f"--constraint={everything}")) for file in FILES}
    TARGET.mkdir(exist_ok=True)
    for file in FILES:
        extended = {pin for name in file.extends for pin in parts[name]}
        own = [pin for pin in parts[file.name] if pin not in extended]
        file.path.write_text(file.header + "".join(own), encoding="utf-8")


def compiled(*options: str) -> str:
    """Resolve pyproject.toml with `options`, and return the pinned requirements for all platforms."""
    shape = ("--universal", f"--python-version={OLDEST}", "--generate-hashes", "--no-annotate", "--no-header")
    return uv("pip", "compile", *shape, *options, "pyproject.toml")


def pins(text: str) -> list[str]:
    """Return the entries of a lock file, each with its hashes."""
    return re.findall(r"^[a-z0-9].*\n(?:[ ].*\n)*", text, re.MULTILINE)


def packages_without_wheels() -> Iterator[str]:
    """Yield a message for each combination of Python and platform for which a package has no wheel."""
    pairs = list(product(PLATFORMS, PYTHONS))
    with ThreadPoolExecutor(4) as threads:  # the threads mostly wait for the registry
        answers = zip(pairs, threads.map(lambda pair: without_wheel(*pair), pairs), strict=True)
        yield from (f"{platform}, Python {python}: {missing}" for (platform, python), missing in answers if missing)


def without_wheel(platform: str, python: str) -> str:
    """Return the resolver's error message; empty if every package has a wheel."""
    entries = [pin.partition(" \\\n")[0] for file in FILES for pin in pins(file.path.read_text("utf-8"))]
    wanted = "\n".join(entry for entry in entries if entry.partition("==")[0] not in BUILT)
    target = (f"--python-platform={platform}", f"--python-version={python}")
    try:
        uv("pip", "compile", "--no-deps", "--only-binary=:all:", *target, "-", text=wanted)
    except subprocess.CalledProcessError as error:
        return error.stderr.strip()
    return ""


def uv(*arguments: str, text: str | None = None) -> str:
    """Run uv with the system's certificates and return its output. Raises CalledProcessError."""
    command = [UV, "--quiet", "--system-certs", *arguments]
    return subprocess.run(command, cwd=PROJECT, input=text, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Return exit code 1 if uv fails or a wheel is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest allowed packages")
    parser.add_argument("--wheels", action="store_true", help="only check that wheels exist")
    arguments = parser.parse_args()
    if arguments.wheels:
        missing = list(packages_without_wheels())
        print("\n".join(missing) or f"Wheels for {', '.join(PLATFORMS)}; Python {', '.join(PYTHONS)}.")
        return int(bool(missing))
    try:
        write_all(upgrade=arguments.upgrade)
    except subprocess.CalledProcessError as error:
        print(error.stderr.strip(), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
