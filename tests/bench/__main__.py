"""Measures the server as its users meet it; prints a table and keeps it in bench-results/.

`make bench` runs everything; `make bench ARGS="calls spool"` runs parts.
"""

import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import uvloop
from tests.bench import parts
from tests.bench.setting import bench_server

_PARTS = {
    "latency": parts.latency,
    "calls": parts.calls,
    "spool": parts.spool,
    "many": parts.many_users,
    "unclosed": parts.unclosed,
    "stalls": parts.stalls,
}


async def _run(names: list[str]) -> None:
    results: list[dict[str, str]] = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="qsb") as folder:
            async with bench_server(Path(folder)) as bench:
                for measured in await _PARTS[name](bench):
                    print(f"{measured.what:<62} {measured.value:>14} {measured.target}", flush=True)
                    results.append({"what": measured.what, "value": measured.value, "target": measured.target})
    _keep(results)


def _keep(results: list[dict[str, str]]) -> None:
    folder = Path("bench-results")
    folder.mkdir(exist_ok=True)
    file = folder / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    file.write_text(json.dumps(results, indent=1))
    print(f"kept in {file}")


def main() -> None:
    """Run the parts that are named, or all."""
    names = sys.argv[1:] or list(_PARTS)
    if unknown := [name for name in names if name not in _PARTS]:
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(_PARTS)}")
    uvloop.run(_run(names))


if __name__ == "__main__":
    main()
