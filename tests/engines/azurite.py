"""Azurite, the emulator of Azure's Blob service, from its npm package. It has no DFS interface; see `standin_dfs`."""

import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.engines.cache import RECIPES
from tests.engines.node import node_packages, program
from tests.engines.servers import HttpAddress, data_directory, listens, serving
from tests.ports import free_port

ACCOUNT = "devstoreaccount1"
"""Azurite's built-in account; paths begin with its name."""
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's published key, which is the same in every installation."""

_ENGINE = "azurite"
_RECIPE = RECIPES / "azurite_blob"


@contextmanager
def azurite_server() -> Generator[HttpAddress]:
    """Start Azurite 3.37 with empty storage and only the Blob service."""
    node = program(_ENGINE, "node")
    azurite = azurite_program()
    address = HttpAddress("127.0.0.1", free_port())
    with data_directory() as directory:
        command = [
            *(node, azurite),
            *("--blobHost", address.host, "--blobPort", str(address.port), "--location", directory),
            *("--skipApiVersionCheck", "--disableTelemetry", "--silent"),
        ]
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        options = {"env": environment, "process_group": 0, "stdin": subprocess.DEVNULL}
        with serving(command, directory, lambda: listens(address.port), signal.SIGTERM, options=options):
            yield address


def azurite_program() -> Path:
    """Return the script that Node runs."""
    return node_packages(_ENGINE, _RECIPE, cache=_ENGINE) / "azurite" / "dist" / "src" / "blob" / "main.js"
