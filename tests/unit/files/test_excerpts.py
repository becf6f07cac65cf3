"""Previews of file contents."""

import asyncio
import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.fakes.storage_reads import OddFileSystem, Oddity

from queryserver.errors.files import DecompressionLimit, StorageUnavailable
from queryserver.files.access import Location
from queryserver.files.downloads import Excerpts, FileExcerpt, hexdump
from queryserver.files.model import StoragePath, StorageUser
from queryserver.formats.unpacking import Codec
from queryserver.platform.fair_queue import FairSemaphore
from queryserver.platform.threads import FairThreads
from queryserver.workbooks.reader import ProcessWorkbooks

LIMIT_BYTES = 100_000
ANA = 1


def pool(threads: ThreadPoolExecutor) -> FairThreads:
    return FairThreads(threads, FairSemaphore(2))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Provide a thread pool; at the end, wait for its tasks."""
    with ThreadPoolExecutor(2) as opened:
        yield opened


@pytest.fixture
def viewing(threads: ThreadPoolExecutor) -> Excerpts:
    return Excerpts(pool(threads), ProcessWorkbooks(), max_unpacked_bytes=LIMIT_BYTES, max_snappy_bytes=LIMIT_BYTES)


async def shown(
    viewing: Excerpts, store: OddFileSystem, name: str, offset: int = 0, codec: Codec | None = None
) -> FileExcerpt:
    storage = store.as_user(StorageUser("ana"))
    place = Location(StoragePath(store.scheme, name), store, storage)
    return await viewing.read(ANA, place, await storage.stat(name), offset, 16, codec)


async def test_offset_far_beyond_the_end_reads_only_the_start(viewing: Excerpts) -> None:
    store = OddFileSystem()
    store.odd["a.txt"] = Oddity(10_000_000)
    for offset in (10_000_000 + 4096, 2**63 - 1):
        store.touched.clear()
        found = await shown(viewing, store, "a.txt", offset)
        assert (found.codec, found.excerpt.requested, found.excerpt.is_last) == (Codec.NONE, b"", True)
        assert len(store.touched) == 1
    near = await shown(viewing, store, "a.txt", 10_000_000 + 1)
    assert (near.excerpt.requested, near.excerpt.before[-1:]) == (b"", b"\n")


@pytest.mark.storage(45)
@pytest.mark.security("S10")
async def test_file_unpacking_to_nothing_is_not_read_to_its_end(viewing: Excerpts) -> None:
    store = OddFileSystem()
    store.odd["a.gz"] = Oddity(2**50, pattern=gzip.compress(b""))
    async with asyncio.timeout(60):
        with pytest.raises(DecompressionLimit, match=str(4 * LIMIT_BYTES)):
            await shown(viewing, store, "a.gz")


@pytest.mark.storage(9)
@pytest.mark.parametrize(
    ("codec", "pattern"),
    [(Codec.GZIP, gzip.compress(b"", mtime=0)), (Codec.PARQUET, b"PAR1"), (Codec.AVRO, b"Obj\x01")],
)
async def test_slow_store_does_not_occupy_a_thread(threads, codec, pattern) -> None:
    store = OddFileSystem()
    store.odd["slow"] = Oddity(100_000, pattern=pattern, pause_s=60.0)
    store.tree.put("quick.gz", gzip.compress(b"quick"))
    viewing = Excerpts(
        pool(threads), ProcessWorkbooks(), max_unpacked_bytes=LIMIT_BYTES, max_snappy_bytes=LIMIT_BYTES, within_s=0.05
    )
    async with asyncio.timeout(30):
        for _ in range(5):
            with pytest.raises(StorageUnavailable, match="in time"):
                await shown(viewing, store, "slow", codec=codec)
    patient = Excerpts(pool(threads), ProcessWorkbooks(), max_unpacked_bytes=LIMIT_BYTES, max_snappy_bytes=LIMIT_BYTES)
    assert (await shown(patient, store, "quick.gz")).excerpt.requested == b"quick"


def lines_of(content: bytes, offset: int) -> list:
    return json.loads(hexdump(content, offset))


def test_hexdump_groups_two_bytes_and_shows_printable_characters():
    assert lines_of(b"Hi\x00!", 0) == [[0, [[72, 105], [0, 33]], "Hi.!"]]


def test_hexdump_has_sixteen_bytes_per_line_from_the_offset():
    lines = lines_of(bytes(range(0x1E, 0x30)) + b"\x7e\x7f\xff", 5)
    assert [offset for offset, _, _ in lines] == [5, 21]
    assert lines[0][2] == ".. !\"#$%&'()*+,-"
    assert lines[1] == [21, [[0x2E, 0x2F], [0x7E, 0x7F], [0xFF]], "./~.."]


def test_hexdump_of_nothing_has_no_lines():
    assert lines_of(b"", 7) == []


def test_hexdump_escapes_quotes_and_backslashes():
    assert lines_of(b'a"b\\c%s', 0)[0][2] == 'a"b\\c%s'
