"""An Arrow Flight server that sends one table, as the reference for reading results over a network connection."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight


@asynccontextmanager
async def flight_server(file: Path) -> AsyncGenerator[flight.FlightClient]:
    """Serve the table in an Arrow file from the memory of another process, and yield a connected client."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", __file__, str(file), stdout=pipe)
    try:
        assert process.stdout is not None
        port = int(await asyncio.wait_for(process.stdout.readline(), 60))
        with flight.connect(f"grpc://127.0.0.1:{port}") as client:
            yield client
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class _TableServer(flight.FlightServerBase):
    def __init__(self, table: pa.Table) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._table = table

    def do_get(self, context: Any, ticket: Any) -> flight.RecordBatchStream:
        return flight.RecordBatchStream(self._table)


if __name__ == "__main__":
    with pa.OSFile(sys.argv[1]) as source:
        server = _TableServer(pa.ipc.open_stream(source).read_all())
    print(server.port, flush=True)
    server.serve()
