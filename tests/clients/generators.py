"""Separate environments for client generators and for programs written for Hue. Their packages are pinned with hashes,
and the environments are kept between runs.
"""

import os
import shutil
import sys
from pathlib import Path

from tests.engines.cache import kept, run_tool
from tests.engines.node import program

ENGINE = "clients"
_HERE = Path(__file__).parent
PYTHON, TYPESCRIPT, HUE = _HERE / "python", _HERE / "typescript", _HERE / "hue"


def python_environment() -> Path:
    """Return the Python interpreter of an environment with openapi-python-client. The pinned versions of its packages
    differ from the project's.
    """
    return _python_environment("clients-python", PYTHON / "requirements.lock")


def hue_environment() -> Path:
    """Return the Python interpreter of an environment with clients that were written for Hue."""
    return _python_environment("clients-hue", HUE / "requirements.lock")


def _python_environment(name: str, lock: Path) -> Path:
    def fill(folder: Path) -> None:
        run_tool(ENGINE, [sys.executable, "-m", "venv", "--without-pip", folder])
        pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"]
        exact = ["--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
        run_tool(ENGINE, [*pip, *exact, "--requirement", lock])

    return kept(name, [lock], fill) / "bin" / "python"


def node_packages() -> Path:
    """Return a folder whose node_modules contains openapi-typescript, openapi-fetch and TypeScript.

    Installation scripts of the packages are not run.
    """
    recipe = [TYPESCRIPT / "package.json", TYPESCRIPT / "package-lock.json"]
    npm = program(ENGINE, "npm")

    def fill(folder: Path) -> None:
        for file in recipe:
            shutil.copy(file, folder)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder]
        run_tool(ENGINE, command, node_environment())

    return kept("clients-typescript", recipe, fill)


def node_environment() -> dict[str, str]:
    """Return environment variables in which PATH begins with Node's directory, because npm programs find Node through
    PATH.
    """
    node = Path(program(ENGINE, "node")).parent
    return {**os.environ, "PATH": os.pathsep.join((str(node), os.environ.get("PATH", "")))}
