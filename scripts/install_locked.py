"""Install the packages in lock files into the environment of this Python, and show the progress.

pip installs the packages and checks their hashes. By itself, it prints four lines for each package or, with --quiet,
nothing for minutes. This script prints one line for each package; on a terminal, it updates a single line. It uses only
the standard library, because it runs before any package is installed.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TextIO

PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
FETCHED = re.compile(
    r"\s*(?:Downloading|Using cached) (?P<name>\w[\w.]*?)-(?P<version>\d[^-]*)[-.]\S*(?P<size> \(.*\))?$"
)
INTERRUPTED = 130
_CLOSING_LINES = 40


def pip_command(lock_files: Iterable[str]) -> list[str]:
    """Return the pip command that installs the lock files and requires a hash for each package."""
    options = ("--disable-pip-version-check", "--no-input", "--progress-bar=off", "--require-hashes")
    requirements = (f"--requirement={file}" for file in lock_files)
    return [sys.executable, "-u", "-m", "pip", "install", *options, *requirements]


def not_installed(lock_files: Iterable[str]) -> int:
    """Return the number of packages that are missing or have another version, including those for other platforms."""
    pinned = {name: wanted for file in lock_files for name, wanted in PIN.findall(Path(file).read_text("utf-8"))}
    return sum(installed_version(name) != wanted for name, wanted in pinned.items())


def installed_version(package: str) -> str | None:
    """Return the version of a package in this environment; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@dataclass(slots=True)
class Progress:
    """Prints a condensed form of pip's output."""

    target: TextIO
    place: str
    expected: int
    fetched: int = 0
    _open: bool = False
    _began: float = field(default_factory=time.monotonic)

    def show(self, line: str) -> None:
        """Process a line of pip's output."""
        if line.startswith("Ignoring "):
            self.expected -= 1
        elif line.startswith("Collecting ") and not self._open:
            self._open = True
            self._line(f"Installing {self.expected} packages into {self.place}: about two minutes the first time.\n")
        elif line.startswith("Installing collected packages:"):
            self._step(f"all {self.fetched} fetched; unpacking them takes half of the time")
        elif (found := FETCHED.match(line)) and not line.endswith(".metadata") and ".metadata (" not in line:
            self.fetched += 1
            name, size = found["name"].replace("_", "-").lower(), found["size"] or ""
            self._step(f"{self.fetched:3}/{self.expected} {name} {found['version']}{size}")

    def end(self, *, success: bool) -> None:
        """Clear the progress line, and report the result if pip succeeded."""
        if self._open and self.target.isatty():
            self._line("\r\x1b[K")
        if self._open and success:
            self._line(f"Installed {self.fetched} packages in {time.monotonic() - self._began:.0f} s.\n")

    def _step(self, text: str) -> None:
        if self.target.isatty():
            width = shutil.get_terminal_size().columns
            self._line(f"\r\x1b[K  {text}"[: width + 3])
        else:
            self._line(f"  {text}\n")

    def _line(self, text: str) -> None:
        self.target.write(text)
        self.target.flush()


def install(lock_files: list[str], target: TextIO) -> int:
    """Install the packages and return pip's exit code. If pip fails, print the last 40 lines of its output."""
    progress = Progress(target, Path(sys.prefix).name, not_installed(lock_files))
    with subprocess.Popen(pip_command(lock_files), stdout=subprocess.PIPE, text=True, errors="replace") as pip:
        printed = list(shown(pip.stdout or (), progress))
    progress.end(success=pip.returncode == 0)
    if pip.returncode != 0:
        target.writelines(printed[-_CLOSING_LINES:])
    return pip.returncode


def shown(lines: Iterable[str], progress: Progress) -> Iterator[str]:
    """Yield each line after passing it to `progress`."""
    for line in lines:
        progress.show(line.rstrip())
        yield line


def main() -> int:
    """Install the lock files in the arguments. Return pip's exit code; 2 if there are no arguments."""
    if len(sys.argv) == 1:
        print("usage: install_locked.py LOCK_FILE...", file=sys.stderr)
        return 2
    try:
        return install(sys.argv[1:], sys.stdout)
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
