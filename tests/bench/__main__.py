"""Measures the server under realistic use; prints a table and stores it in bench-results/.

`make bench` runs all parts; `make bench ARGS="calls spool"` runs only the named parts.
"""

import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import uvloop
from tests.bench import (
    client_parts,
    console_parts,
    document_parts,
    duckdb_files_parts,
    duckdb_parts,
    engine_parts,
    export_parts,
    fleet_parts,
    hostile_part,
    import_parts,
    nginx_parts,
    parts,
    platform_parts,
    search_parts,
    storage_parts,
    visit_parts,
)
from tests.bench.setting import Measured, bench_server

# These parts start their own servers or need none.
_ALONE = {
    "hiveserver2": lambda _: engine_parts.hiveserver2(),
    "trino": lambda _: engine_parts.trino_rows(),
    "together": engine_parts.three_engines,
    "transfers": storage_parts.transfers,
    "nginx": nginx_parts.against_nginx,
    "listings": storage_parts.listings,
    "downloads": storage_parts.downloads,
    "previews": import_parts.previews,
    "imports": import_parts.imports,
    "exports": export_parts.exports,
    "search": search_parts.search,
    "documents": document_parts.documents,
    "tokens": platform_parts.tokens,
    "configuration": platform_parts.configuration,
    "duckdb": duckdb_parts.duckdb_rows,
    "duckdb_s3": duckdb_files_parts.duckdb_s3,
    "duckdb_results": duckdb_files_parts.duckdb_results,
    "tpch": duckdb_parts.tpch,
    "hostile": hostile_part.hostile,
    "taskserver": fleet_parts.task_server,
    "takeover": fleet_parts.take_over,
    "visits": visit_parts.visits,
}

_PARTS = {
    "latency": parts.latency,
    "reuse": parts.reuse,
    "calls": parts.calls,
    "pages": parts.pages,
    "cycle": fleet_parts.cycle,
    "spool": parts.spool,
    "many": parts.many_users,
    "unclosed": parts.unclosed,
    "churn": visit_parts.churn,
    "stalls": parts.stalls,
    "client": client_parts.client,
    "console": console_parts.console,
    "tables": engine_parts.many_tables,
}


async def _run(names: list[str]) -> None:
    results: list[dict[str, str]] = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="qsb") as folder:
            for measured in await _measure(name, Path(folder)):
                print(f"{measured.what:<76} {measured.value:>14} {measured.target}", flush=True)
                results.append({"what": measured.what, "value": measured.value, "target": measured.target})
    _keep(results)


async def _measure(name: str, folder: Path) -> list[Measured]:
    if name in _ALONE:
        return await _ALONE[name](folder)
    async with bench_server(folder) as bench:
        return await _PARTS[name](bench)


def _keep(results: list[dict[str, str]]) -> None:
    folder = Path("bench-results")
    folder.mkdir(exist_ok=True)
    file = folder / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    file.write_text(json.dumps(results, indent=1))
    print(f"kept in {file}")


def main() -> None:
    """Run the named parts, or all parts if none is named."""
    known = [*_PARTS, *_ALONE]
    names = sys.argv[1:] or known
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    uvloop.run(_run(names))


if __name__ == "__main__":
    main()
