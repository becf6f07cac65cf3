"""Programs of engines, downloaded once per pinned version and cached outside the repository between runs."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.engines.servers import unavailable

DOWNLOAD_TIMEOUT_S = 900.0
RECIPES = Path(__file__).parent
"""The directory with one folder per engine, which contains the engine's pinned versions and configuration."""


def cache_directory() -> Path:
    """Return QUERYSERVER_ENGINE_CACHE, or the default folder in the user's cache directory."""
    chosen = os.environ.get("QUERYSERVER_ENGINE_CACHE")
    if chosen:
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "queryserver-engines"


def kept(name: str, recipe: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """Return the folder that `make` filled, in this run or in an earlier one.

    The cache key is the content of the recipe's files. A folder gets its final name only when it is complete, and two
    simultaneous runs create it only once. Folders of previous recipes remain until the cache is deleted.
    """
    root = cache_directory()
    root.mkdir(parents=True, exist_ok=True)
    content = b"\0".join(file.read_bytes() for file in recipe)
    finished = root / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"
    with _alone(root / f"{name}.lock"):
        if not finished.exists():
            part = root / f"{name}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            make(part)
            part.rename(finished)
    return finished


def run_tool(
    engine: str,
    command: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    *,
    timeout_s: float = DOWNLOAD_TIMEOUT_S,
    attempts: int = 1,
) -> str:
    """Run a package tool or compiler; return its output. Skip the test as unavailable if the command fails or times
    out.

    Set `attempts` above 1 only for repeatable commands that fetch from the network. A command that timed out is not
    repeated.
    """
    for attempt in range(attempts):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            unavailable(engine, f"{command[0]} did not end within {timeout_s:.0f} s")
        except FileNotFoundError:
            unavailable(engine, f"{command[0]} is not installed")
        if not done.returncode:
            break
        print(f"{command[0]} failed, attempt {attempt + 1} of {attempts}: {done.stderr[-3000:]}")
    else:
        unavailable(engine, f"{command[0]} failed: {done.stdout[-1500:]}{done.stderr[-3000:]}")
    return done.stdout


def python_packages(engine: str, name: str) -> Path:
    """Install the packages in the engine's requirements.txt with hash checks; return the folder."""
    requirements = RECIPES / engine / "requirements.txt"

    def fill(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # Packages that must be built use this environment's build tools, so that every hash is known.
        exact = ["--no-deps", "--no-build-isolation", "--require-hashes", "--no-compile"]
        run_tool(engine, [*pip, *exact, "--target", folder, "--requirement", requirements])

    return kept(name, [requirements], fill)


@contextmanager
def _alone(lock: Path) -> Generator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
