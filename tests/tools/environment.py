"""An environment for programs that use SQLAlchemy: its packages are pinned with hashes and kept between runs."""

import sys
from pathlib import Path

from tests.engines.cache import kept, run_tool

ENGINE = "tools"
HERE = Path(__file__).parent
_CLIENT = HERE.parents[1] / "clients" / "python"


def python_with_tools() -> Path:
    """Return the interpreter of an environment with the packages pinned in requirements.lock."""
    lock = HERE / "requirements.lock"

    def fill(folder: Path) -> None:
        run_tool(ENGINE, [sys.executable, "-m", "venv", "--without-pip", folder])
        pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"]
        exact = ["--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
        run_tool(ENGINE, [*pip, *exact, "--no-compile", "--requirement", lock])

    return kept("tools", [lock], fill) / "bin" / "python"


def install_client(folder: Path) -> None:
    """Install the client of this source tree, with its entry points, into a folder. The tests' environment provides the
    build tools.
    """
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run_tool(ENGINE, [*pip, "--no-deps", "--no-index", "--no-build-isolation", "--target", folder, _CLIENT])
