"""Plain DuckDB in a separate process, as the reference for DuckDB through the server in the same run.

The child process runs this file as a script and may use a different DuckDB release: an extension loads only in the
release it was built for, and packaged extensions lag behind releases.
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

_NICENESS = 10
"""The server's DuckDB processes have the same niceness, so other load on the machine slows down both equally."""


@dataclass(frozen=True)
class StatementTimes:
    """Time of one statement, including reading all its rows, and the CPU time of the process."""

    seconds: float
    processor_s: float
    rows: int
    first_row: str
    """The first row as Python displays it; "" unless the result was read as Python rows."""


class PlainDuckdb:
    """A database that is open in the child process, which runs one statement at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, sql: str, *, into: str = "rows") -> StatementTimes:
        """Run a statement. `into` selects how the result is read: "rows" (Python), "table" (Arrow), or the path of an
        output file.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"sql": sql, "into": into}).encode() + b"\n")
        line = await self._process.stdout.readline()
        assert line, f"DuckDB by itself has ended while it ran {sql[:200]}"
        return StatementTimes(**json.loads(line))


@asynccontextmanager
async def plain_duckdb(
    database: Path | str,
    config: Mapping[str, Any],
    *,
    packages: Path | None = None,
    first: Sequence[str] = (),
    arrow_files: Mapping[str, Path] = MappingProxyType({}),
) -> AsyncGenerator[PlainDuckdb]:
    """Start a child process that opens this database.

    `packages` is a folder whose DuckDB replaces the server's. `first` are initial statements. `arrow_files` are Arrow
    files that become tables under these names.
    """
    tables = json.dumps({name: str(file) for name, file in arrow_files.items()})
    options = [str(database), json.dumps(dict(config)), str(packages or ""), tables]
    command = [sys.executable, "-I", __file__, *options]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        plain = PlainDuckdb(process)
        for statement in first:
            await plain.run(statement)
        yield plain
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _main() -> None:
    os.nice(_NICENESS)
    if sys.argv[3]:
        sys.path.insert(0, sys.argv[3])
    import duckdb  # the parent process does not need it

    connection = duckdb.connect(sys.argv[1], config=json.loads(sys.argv[2]))
    for name, file in json.loads(sys.argv[4]).items():
        from pyarrow import dataset  # not installed in every Python that runs this

        connection.register(name, dataset.dataset(file, format="ipc"))
    for line in sys.stdin:
        print(json.dumps(_ran(connection, **json.loads(line))), flush=True)


def _ran(connection: Any, *, sql: str, into: str) -> dict[str, Any]:
    used, began, first_row = _processor_s(), time.perf_counter(), ""
    if into == "rows":
        found = connection.execute(sql).fetchall()
        rows, first_row = len(found), str(found[:1])
    elif into == "table":
        # A relation is used because the result of `execute` would copy its rows once more.
        rows = connection.sql(sql).to_arrow_table().num_rows
    else:
        rows = _written(connection.sql(sql), into)
    seconds, processor_s = time.perf_counter() - began, _processor_s() - used
    return {"seconds": seconds, "processor_s": processor_s, "rows": rows, "first_row": first_row}


def _written(relation: Any, path: str) -> int:
    """Write the rows as an Arrow stream, compressed like the server's segments; return their number."""
    import pyarrow as pa  # not installed in every Python that runs this

    options, rows = pa.ipc.IpcWriteOptions(compression="lz4"), 0
    with (
        relation.to_arrow_reader(100_000) as reader,
        pa.OSFile(path, "wb") as sink,
        pa.ipc.new_stream(sink, reader.schema, options=options) as writer,
    ):
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    _main()
