"""Programs of engines: downloaded once by pinned version, kept outside the repository from run to run."""

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
"""One folder per engine: the versions and the configuration."""


def cache_directory() -> Path:
    """QUERYSERVER_ENGINE_CACHE, or a folder of ours below the user's cache directory."""
    chosen = os.environ.get("QUERYSERVER_ENGINE_CACHE")
    if chosen:
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "queryserver-engines"


def kept(name: str, recipe: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """The folder that `make` filled, in this run or in an earlier one.

    Its key is the content of the recipe's files. A folder has its name only when it is complete; two runs at once make
    it once. Folders of former recipes stay until somebody removes the cache.
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
    """What a package tool or compiler prints; the engine is unavailable when it fails or takes too long.

    `attempts` above 1 are for commands that fetch from the network and can begin anew. One that takes too long is not
    begun again.
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
    """The folder with what the engine's own requirements.txt pins, hashes checked."""
    requirements = RECIPES / engine / "requirements.txt"

    def fill(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # Packages that are built use the environment's own build tools, so that no hash is missing.
        exact = ["--no-deps", "--no-build-isolation", "--require-hashes", "--no-compile"]
        run_tool(engine, [*pip, *exact, "--target", folder, "--requirement", requirements])

    return kept(name, [requirements], fill)


@contextmanager
def _alone(lock: Path) -> Generator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
