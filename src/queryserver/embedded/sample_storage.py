"""The sample as files of the local root: text, compressed text and Parquet. All functions block."""

import csv
import gzip
import shutil
from datetime import date
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from queryserver.embedded.files import sync
from queryserver.embedded.sample import SampleTable, Value

SAMPLES = "shared/samples"
_README = """Samples

The tables of the sample databases as files: customers, products, orders and order_items as CSV, web_requests as
compressed CSV, order_items as Parquet too. Everyone may change what lies in /shared.
"""


def ensure_sample_storage(root: Path, tables: tuple[SampleTable, ...]) -> None:
    """Make the local root with the samples if it is missing; a present one is left alone. Idempotent.

    Made under another name and then renamed: the root is there whole or not at all.
    """
    if root.exists():
        return
    partial = root.with_name(f"{root.name}.unfinished")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(mode=0o700, parents=True)
    samples = partial / SAMPLES
    samples.mkdir(parents=True)
    for name, content in _contents(tables):
        _write(samples / name, content)
    for directory in (samples, samples.parent, partial):
        sync(directory)
    partial.rename(root)
    sync(root.parent)


def _contents(tables: tuple[SampleTable, ...]) -> list[tuple[str, bytes]]:
    contents = [("README.txt", _README.encode())]
    for table in tables:
        text = _csv(table).encode()
        if table.name == "web_requests":
            # Without the time in its header, the bytes are the same on every machine.
            contents.append((f"{table.name}.csv.gz", gzip.compress(text, mtime=0)))
        else:
            contents.append((f"{table.name}.csv", text))
        if table.name == "order_items":
            contents.append((f"{table.name}.parquet", _parquet(table)))
    return contents


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    file.chmod(0o644)
    sync(file)


def _csv(table: SampleTable) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows([_cell(value) for value in row] for row in table.rows)
    return text.getvalue()


def _cell(value: Value) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case date():  # and datetime
            return value.isoformat()
        case _:
            return str(value)


def _parquet(table: SampleTable) -> bytes:
    columns = zip(*table.rows, strict=True)
    stored = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(zip(table.column_names, map(pa.array, columns), strict=True))), stored)
    return stored.getvalue().to_pybytes()
