"""Downloads the programs of all engines into the cache: `python -m tests.engines.downloads`.

Tests download missing programs themselves. Downloading the programs earlier, in parallel with CPU-bound work, avoids
waiting for the network. Prints the programs that are unavailable; the exit code is then 1.
"""

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.clients import generators, mcp_programs
from tests.engines import azurite, gethue, hdfs, hive, hive_secured, image, ozone, phoenix, sparksql, trino, versitygw
from tests.tools import environment

# Maven's download folder does not support two concurrent writers, so these run one after another. The largest downloads
# come first.
_MAVEN: Mapping[str, Callable[[], object]] = {
    "trino": trino.trino_program,
    "hive": hive.hive_program,
    "hive-passwords": hive_secured.password_check,
    "hdfs": hdfs.hdfs_program,
    "phoenix": phoenix.phoenix_libraries,
    "ozone": ozone.ozone_libraries,
}
_OTHERS: Mapping[str, Callable[[], object]] = {
    "sparksql": sparksql.spark_home,
    "java-24": trino.java_24,
    "image-base": image.base_archive,
    "s3": versitygw.versitygw_program,
    "azurite": azurite.azurite_program,
    "gethue": gethue.gethue_modules,
    "clients-python": generators.python_environment,
    "clients-hue": generators.hue_environment,
    "clients-typescript": generators.node_packages,
    "clients-mcp": mcp_programs.packages,
    "tools": environment.python_with_tools,
}


def main() -> int:
    """Download all programs; return the exit code."""
    with ThreadPoolExecutor(2) as lanes:
        return int(not all(list(lanes.map(_fetched, (_MAVEN, _OTHERS)))))


def _fetched(programs: Mapping[str, Callable[[], object]]) -> bool:
    complete = True
    for name, fetch in programs.items():
        begun = time.monotonic()
        try:
            fetch()
        except (pytest.skip.Exception, pytest.fail.Exception) as missing:
            print(f"{name}: {missing}", flush=True)
            complete = False
        else:
            print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
    return complete


if __name__ == "__main__":
    sys.exit(main())
