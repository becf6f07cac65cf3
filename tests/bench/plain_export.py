"""Reads a table of PostgreSQL and writes it to one file, as the reference for exports in the same run.

`csv` is PostgreSQL's own COPY into the file. `parquet` reads through a cursor of asyncpg and writes with pyarrow, as a
script would. Run as a program: `plain_export.py DSN TABLE FORMAT FILE`.
"""

import asyncio
import sys

import asyncpg
import pyarrow as pa
import pyarrow.parquet as pq

_ROWS_AT_ONCE = 50_000


async def _csv(connection: asyncpg.Connection, table: str, file: str) -> None:
    await connection.copy_from_table(table, output=file, format="csv", header=True)


async def _parquet(connection: asyncpg.Connection, table: str, file: str) -> None:
    names = ("id", "shop", "ratio", "label")
    writer: pq.ParquetWriter | None = None
    async with connection.transaction():
        cursor = await connection.cursor(f"SELECT {', '.join(names)} FROM {table}")
        while rows := await cursor.fetch(_ROWS_AT_ONCE):
            columns = [pa.array(values) for values in zip(*rows, strict=True)]
            batch = pa.RecordBatch.from_arrays(columns, names=list(names))
            writer = writer or pq.ParquetWriter(file, batch.schema)
            writer.write_batch(batch)
    if writer is not None:
        writer.close()


async def _main(dsn: str, table: str, form: str, file: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await {"csv": _csv, "parquet": _parquet}[form](connection, table, file)
    finally:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
