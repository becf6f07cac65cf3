"""Parquet files of a few kilobytes decompress to gigabytes. They are read only in processes whose memory is limited."""

import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.api.driving import Caller, open_api, verdict
from tests.api.importer.conftest import refusal
from tests.api.storage.conftest import storage_settings

FIELD = Path(__file__).parents[1] / "field" / "security"
MIB = 1024 * 1024
MAX_GROWTH_BYTES = 128 * MIB
"""How much a call may add to the server process's memory. The files decompress to a hundred times as much."""


def fixed_values() -> pa.Table:
    """Return a table in which 64 rows refer to a single value of 16 MiB."""
    value = pa.array([b"a" * (16 * MIB)], pa.binary(16 * MIB))
    return pa.table({"x": pa.DictionaryArray.from_arrays(pa.nulls(64, pa.int8()).fill_null(0), value)})


def lists_of_lists() -> pa.Table:
    """Return a table with one row, which is a list of 10,000,000 lists of three numbers each."""
    inner = pa.ListArray.from_arrays(pa.array(range(0, 30_000_001, 3), pa.int32()), pa.nulls(30_000_000, pa.int8()))
    return pa.table({"x": pa.ListArray.from_arrays(pa.array([0, len(inner)], pa.int32()), inner)})


def packed(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", write_statistics=False)
    return file.getvalue()


@pytest.fixture
async def ana(tmp_path, database_dsn):
    async with open_api(storage_settings(tmp_path, database_dsn)) as api:
        yield await api.user("ana")


def forget_largest_memory() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def largest_memory_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


async def refusals(ana: Caller, root: Path, content: bytes) -> None:
    """Check that view, display and import refuse the file while the memory of this process, which is the server, stays
    small.
    """
    (root / "shared" / "bomb").write_bytes(content)
    forget_largest_memory()
    before = largest_memory_bytes()
    path = "file:///shared/bomb"
    for call, fields in ((f"storage/view={path}", {}), ("storage/display", {"path": path})):
        for codec in ({}, {"compression": "parquet"}):
            assert verdict(await ana.get(call, **fields, **codec)) == (413, -1, "decompression_limit")
    imported = {"import_type": "remote", "file_path": path, "file_type": "parquet", "sql_dialect": "hive"}
    assert refusal(await ana.get("importer/file/preview", **imported)) == (400, "file_too_complex")
    assert largest_memory_bytes() - before < MAX_GROWTH_BYTES


ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reset the peak memory of a process")


@pytest.mark.storage(98)
@pytest.mark.security("S10")
@ONLY_LINUX
@pytest.mark.parametrize("name", ["cell1g.parquet", "list.parquet"])
async def test_field_file_that_unpacks_to_gigabytes_is_refused(ana, tmp_path, name):
    await refusals(ana, tmp_path / "files", (FIELD / name).read_bytes())


@ONLY_LINUX
@pytest.mark.parametrize("made", [fixed_values, lists_of_lists])
async def test_small_file_of_huge_values_is_refused(ana, tmp_path, made):
    await refusals(ana, tmp_path / "files", packed(made()))


def test_server_and_worker_processes_import_no_reader_of_user_uploads():
    program = "import sys, queryserver.main, queryserver.worker, queryserver.cli; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    readers = {
        "fastavro", "python_calamine", "queryserver.formats.avro", "queryserver.formats.parquet",
        "queryserver.workbooks.record_files", "queryserver.workbooks.worker",
    }  # fmt: skip
    assert readers.isdisjoint(run.stdout.split())
