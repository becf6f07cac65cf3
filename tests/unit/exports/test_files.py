"""Writing the rows of exports into files, and the destinations of files."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from unittest.mock import AsyncMock, Mock

import pyarrow as pa
import pytest
from tests.fakes.statement_files import EVERY_STORE, GivenFiles
from tests.fakes.storage import LIKE_S3, MemoryFileSystem

from queryserver.errors.base import InvalidParameter, MissingParameter
from queryserver.errors.files import OperationInProgress
from queryserver.exports import files as file_exports
from queryserver.exports.files import FileExports, FileRows
from queryserver.exports.model import FileDestination, completed_destination
from queryserver.files.folder_writes import ExportFiles
from queryserver.files.model import Scheme
from queryserver.files.protocol import StorageTraits
from queryserver.formats.arrow import Column, ResultType
from queryserver.formats.download.encoder import DownloadFormat
from queryserver.identity.model import User
from queryserver.statements.job_session import JobReport

COLUMNS = (Column("n", ResultType.BIGINT, "BIGINT"),)


@pytest.mark.exports(2)
@pytest.mark.parametrize(
    ("name", "kind", "compression", "extension"),
    [
        ("a.csv", DownloadFormat.CSV, "", "csv"),
        ("A.TSV.GZ", DownloadFormat.TSV, "gzip", "tsv.gz"),
        ("a.b.jsonl.zst", DownloadFormat.NDJSON, "zstd", "ndjson.zst"),
        ("a.parquet.gz", DownloadFormat.PARQUET, "gzip", "parquet"),
        ("a.feather", DownloadFormat.FEATHER, "", "feather"),
        ("folder.xlsx/", DownloadFormat.XLSX, "", "xlsx"),
    ],
)
def test_name_determines_format_and_compression(name: str, kind: DownloadFormat, compression: str, extension: str):
    found = completed_destination(FileDestination(f"file:///a.csv/{name}"), format_name=None)
    assert (found.format, found.compression, found.extension) == (kind, compression, extension)
    assert FileDestination.read(found.stored()) == found


@pytest.mark.exports(2)
def test_fields_take_precedence_over_the_name():
    found = completed_destination(FileDestination("a.csv.gz", compression="none"), format_name="tsv")
    assert (found.format, found.compression, found.extension) == (DownloadFormat.TSV, "none", "tsv")


@pytest.mark.exports(2)
@pytest.mark.parametrize("name", ["csv", "a", "a.gz", "a.csv.bz2", "csv.gz", "a.csv/b"])
def test_format_is_required_without_a_known_ending(name: str):
    with pytest.raises(MissingParameter):
        completed_destination(FileDestination(name), format_name=None)


@pytest.mark.exports(2)
@pytest.mark.parametrize(("kind", "compression"), [("xlsx", "zstd"), ("arrow", "gzip"), ("feather", "gzip")])
def test_compression_must_fit_the_format(kind: str, compression: str):
    with pytest.raises(InvalidParameter):
        completed_destination(FileDestination("a", compression=compression), format_name=kind)


@pytest.mark.exports(16)
@pytest.mark.parametrize("kind", [DownloadFormat.CSV, DownloadFormat.NDJSON, DownloadFormat.ARROW])
async def test_few_batches_are_held_whatever_the_number_of_rows(kind: DownloadFormat):
    """A store takes bytes only after it has taken the former ones, so fetching does not run ahead of writing."""
    traits = StorageTraits(container_levels=1, lists_in_order=True)
    file_system = MemoryFileSystem(Scheme.S3A, traits, LIKE_S3, containers=["bucket"])
    given = GivenFiles(file_system)

    @asynccontextmanager
    async def files(on_published: Callable[[], object]) -> AsyncGenerator[ExportFiles]:
        yield ExportFiles(given.access, Mock(), User(1, "ana", rights=EVERY_STORE), on_published=on_published)

    report, ahead, fetched = JobReport(), list[int](), 0
    batch_rows = 40_000

    async def batches() -> AsyncIterator[pa.RecordBatch]:
        nonlocal fetched
        for _ in range(30):
            fetched += 1
            ahead.append(fetched - report.progress * 30 // 100)
            yield pa.record_batch([pa.array(range(batch_rows), pa.int64())], names=["n"])

    destination = FileDestination("s3a://bucket/out", kind)
    with ThreadPoolExecutor(2) as threads:
        sink = FileRows(files, destination, threads, total=30 * batch_rows)
        summary = await sink.write(COLUMNS, batches(), report)
    assert summary.rows == 30 * batch_rows
    assert report.summary == summary.batch
    # The batch being encoded, the one that was fetched meanwhile, and what the rounded progress does not show.
    assert max(ahead) <= 4


@pytest.mark.exports(10)
@pytest.mark.parametrize("refusals", [1, 3])
async def test_repeated_export_waits_for_the_end_of_a_move_to_its_target(
    monkeypatch: pytest.MonkeyPatch, refusals: int
):
    """Another process may still be removing what the first attempt had moved."""
    monkeypatch.setattr(file_exports, "_MOVE_PAUSE_S", 0)
    monkeypatch.setattr(file_exports, "_MOVE_CHECKS", 2)
    check = AsyncMock(side_effect=[*[OperationInProgress("The move has not ended yet.")] * refusals, None])
    monkeypatch.setattr(FileExports, "check", check)
    exports = FileExports(*[Mock()] * 6)
    user, destination = User(1, "ana", rights=EVERY_STORE), FileDestination("s3a://bucket/a")
    with pytest.raises(OperationInProgress) if refusals == 3 else nullcontext():
        await exports._check_when_moves_have_ended(user, destination)
    assert check.await_count == min(refusals + 1, 3)
