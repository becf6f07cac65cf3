"""Download streams: errors, cancellation and memory use (Contract editor 8.2)."""

import asyncio
import gzip
import random
import threading
import time
import tracemalloc
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import pyarrow as pa
import pytest
from tests.fakes.downloads import StoredTables, column, downloaded
from tests.timing import at_best

from queryserver.errors.files import StorageError
from queryserver.formats.arrow import ResultType as R
from queryserver.formats.arrow import unpack_zstandard
from queryserver.formats.download.encoder import ContentCoding, DownloadFormat, FileForm
from queryserver.formats.download.stream import BackgroundEncoder, download, preferred_coding

ALL = list(DownloadFormat)
COLUMNS = [column("n", R.BIGINT), column("text", R.STRING)]


def table(rows: int, width: int = 100) -> pa.Table:
    return pa.table({"n": range(rows), "text": [f"{n:0>{width}}" for n in range(rows)]})


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as threads:
        yield threads


def test_every_format_has_its_content_type():
    assert {wanted: wanted.content_type for wanted in ALL} == {
        "csv": "text/csv; charset=utf-8; header=present",
        "tsv": "text/tab-separated-values; charset=utf-8",
        "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "parquet": "application/vnd.apache.parquet",
        "arrow": "application/vnd.apache.arrow.stream",
        "feather": "application/vnd.apache.arrow.file",
        "ndjson": "application/x-ndjson",
    }


@pytest.mark.parametrize("wanted", ALL)
async def test_failure_of_the_first_read_is_raised_before_the_first_chunk(threads, wanted):
    source = StoredTables(COLUMNS, [table(10)], fails_after=0)
    async with aclosing(download(source, FileForm(wanted), threads=threads)) as pieces:
        with pytest.raises(StorageError):
            await anext(pieces)
    assert source.open_reads == 0


@pytest.mark.parametrize("wanted", [wanted for wanted in ALL if wanted is not DownloadFormat.XLSX])
async def test_failure_of_a_later_read_ends_the_stream_with_the_error(threads, wanted):
    source = StoredTables(COLUMNS, [table(200_000)] * 2, fails_after=1)
    async with aclosing(download(source, FileForm(wanted), threads=threads)) as pieces:
        assert await anext(pieces)
        with pytest.raises(StorageError):
            await read_to_the_end(pieces)
    assert source.open_reads == 0


async def read_to_the_end(pieces: AsyncGenerator[bytes]) -> None:
    async for _ in pieces:
        pass


@pytest.mark.parametrize("wanted", ALL)
async def test_disconnected_reader_stops_the_work(threads, wanted):
    source = StoredTables(COLUMNS, [table(200_000)] * 3)
    async with aclosing(download(source, FileForm(wanted), threads=threads)) as pieces:
        assert await anext(pieces)
    assert source.open_reads == 0


@pytest.mark.parametrize("wanted", ALL)
async def test_download_may_be_canceled_at_any_time(threads, wanted):
    for step in range(8):
        source = StoredTables(COLUMNS, [table(20_000)] * 3)

        async def consume(source: StoredTables = source) -> None:
            async with aclosing(download(source, FileForm(wanted), threads=threads)) as pieces:
                await read_to_the_end(pieces)

        consuming = asyncio.create_task(consume())
        await asyncio.sleep(step / 400)
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
        assert source.open_reads == 0


class SlowEncoder:
    """An encoder whose first call blocks until `go` is set."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.closed = False
        self.closed_while_busy = False
        self._busy = False

    def start(self) -> bytes:
        self._busy = True
        self.begun.set()
        self.go.wait(60)
        self._busy = False
        return b""

    def rows(self, batch: pa.RecordBatch) -> bytes:
        return b""

    def end(self) -> bytes:
        return b""

    def close(self) -> None:
        self.closed_while_busy = self._busy
        self.closed = True


async def test_encoder_is_closed_after_its_thread_finishes(threads):
    encoder = SlowEncoder()
    work = BackgroundEncoder(encoder, threads)
    assert await asyncio.to_thread(encoder.begun.wait, 60)
    work.close()
    assert not encoder.closed
    encoder.go.set()
    await asyncio.to_thread(threads.shutdown)
    assert encoder.closed
    assert not encoder.closed_while_busy


@pytest.mark.parametrize("wanted", ALL)
async def test_small_result_is_a_single_chunk(threads, wanted):
    async with aclosing(download(StoredTables(COLUMNS, [table(10)]), FileForm(wanted), threads=threads)) as pieces:
        assert len([piece async for piece in pieces]) == 1


class Endless(StoredTables):
    """A result that repeats the same table `times` times."""

    def __init__(self, times: int) -> None:
        self._part = table(5000)
        super().__init__(COLUMNS, [self._part])
        self._times = times
        self.rows *= times

    async def tables(self) -> AsyncGenerator[pa.Table]:
        for _ in range(self._times):
            yield self._part


@pytest.mark.item(34)
@pytest.mark.parametrize("wanted", ALL)
@pytest.mark.slow
async def test_memory_does_not_grow_with_the_result(threads, wanted):
    peaks = []
    for times in (40, 160):
        await downloaded(Endless(1), wanted)
        arrow_before = pa.total_allocated_bytes()
        highest = 0
        tracemalloc.start()
        async with aclosing(download(Endless(times), FileForm(wanted), threads=threads)) as pieces:
            async for _ in pieces:
                highest = max(highest, pa.total_allocated_bytes() - arrow_before)
        peaks.append(highest + tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.3 + 4 * 1024 * 1024


async def test_encoding_rows_does_not_block_the_event_loop(threads):
    async def held_up_s() -> tuple[float, None]:
        longest, running = 0.0, True

        async def watch() -> None:
            nonlocal longest
            while running:
                # The CPU time of the event loop's thread does not depend on other load on the machine.
                before = time.thread_time()
                await asyncio.sleep(0.001)
                longest = max(longest, time.thread_time() - before)

        watching = asyncio.create_task(watch())
        async with aclosing(download(Endless(20), FileForm(DownloadFormat.XLSX), threads=threads)) as pieces:
            async for _ in pieces:
                pass
        running = False
        await watching
        return longest, None

    await at_best(held_up_s, below_s=0.2)


@pytest.mark.parametrize("wanted", ALL)
@pytest.mark.parametrize("coding", list(ContentCoding))
async def test_same_result_gives_identical_bytes_in_every_format(wanted, coding, monkeypatch):
    times = iter([0.0, 1_700_000_000.0])
    made = []
    for _ in range(2):
        now = next(times)
        monkeypatch.setattr(time, "time", lambda now=now: now)
        made.append(await downloaded(StoredTables(COLUMNS, [table(3000), table(200)]), wanted, coding=coding))
    assert made[0] == made[1]


@pytest.mark.parametrize("wanted", [wanted for wanted in ALL if not wanted.is_compressed])
async def test_content_coding_leaves_the_file_unchanged(wanted):
    source = StoredTables(COLUMNS, [table(3000), table(200)])
    plain = await downloaded(source, wanted)
    packed = await downloaded(source, wanted, coding=ContentCoding.GZIP)
    assert gzip.decompress(packed) == plain
    framed = await downloaded(source, wanted, coding=ContentCoding.ZSTD)
    assert unpack_zstandard(framed, max_bytes=len(plain)) == plain
    assert max(len(packed), len(framed)) < len(plain) / 2


async def test_compressed_file_is_streamed_in_chunks(threads):
    form = FileForm(DownloadFormat.CSV, coding=ContentCoding.ZSTD)
    pieces = [piece async for piece in download(StoredTables(COLUMNS, [noise(20_000)] * 5), form, threads=threads)]
    assert len(pieces) > 5


def noise(rows: int) -> pa.Table:
    texts = [random.Random(n).randbytes(50).hex() for n in range(rows)]
    return pa.table({"n": range(rows), "text": texts})


def test_preferred_content_coding_follows_the_header():
    for header, coding in {
        "": "identity",
        "identity": "identity",
        "br": "identity",
        "gzip": "gzip",
        "x-gzip": "gzip",
        "GZIP": "gzip",
        "gzip, deflate, br, zstd": "zstd",
        "gzip, deflate, br": "gzip",
        "zstd;q=0.5, gzip;q=0.8": "gzip",
        "zstd;q=0, gzip;q=0": "identity",
        "*": "zstd",
        "*;q=0": "identity",
        "zstd;q=0, *": "gzip",
        "gzip;q=0.5, identity": "identity",
        "gzip;q=0.001": "gzip",
        "identity;q=0": "identity",
        "identity;q=0, gzip;q=0.1": "gzip",
        "gzip;q=x, ;;, zstd; q=0.1": "zstd",
        "gzip;q=1;q=0": "identity",
    }.items():
        assert (header, preferred_coding(header)) == (header, coding)
