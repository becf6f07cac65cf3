"""Parts of files: what is asked of the store for them, and how much and how long at most."""

import asyncio
import gzip
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.cases import each
from tests.fakes.storage_reads import OddFileSystem, Oddity

from queryserver.errors.files import DecompressionLimit, StorageUnavailable
from queryserver.files.model import StoragePath, StorageUser
from queryserver.files.places import Place
from queryserver.files.viewing import Shown, Viewing
from queryserver.formats.unpacking import Codec
from queryserver.platform.limits import FairPlaces
from queryserver.platform.threads import FairThreads
from queryserver.workbooks.reader import ProcessWorkbooks

LIMIT_BYTES = 100_000
ANA = 1


def pools(threads: ThreadPoolExecutor) -> tuple[FairThreads, FairThreads]:
    return FairThreads(threads, FairPlaces(2)), FairThreads(threads, FairPlaces(2))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """At the end it waits for what is still done in them."""
    with ThreadPoolExecutor(2) as opened:
        yield opened


@pytest.fixture
def viewing(threads: ThreadPoolExecutor) -> Viewing:
    return Viewing(*pools(threads), ProcessWorkbooks(), max_unpacked_bytes=LIMIT_BYTES, max_snappy_bytes=LIMIT_BYTES)


async def shown(
    viewing: Viewing, store: OddFileSystem, name: str, offset: int = 0, codec: Codec | None = None
) -> Shown:
    storage = store.as_user(StorageUser("ana"))
    place = Place(StoragePath(store.scheme, name), store, storage)
    return await viewing.show(ANA, place, await storage.stat(name), offset, 16, codec)


async def test_what_lies_far_behind_the_end_is_not_asked_for(viewing: Viewing) -> None:
    store = OddFileSystem()
    store.odd["a.txt"] = Oddity(10_000_000)
    for offset in (10_000_000 + 4096, 2**63 - 1):
        store.touched.clear()
        found = await shown(viewing, store, "a.txt", offset)
        assert (found.codec, found.excerpt.asked, found.excerpt.is_last) == (Codec.NONE, b"", True)
        assert len(store.touched) == 1
    near = await shown(viewing, store, "a.txt", 10_000_000 + 1)
    assert (near.excerpt.asked, near.excerpt.before[-1:]) == (b"", b"\n")


@pytest.mark.storage(45)
@pytest.mark.security("S10")
async def test_a_file_that_unpacks_to_nothing_is_not_read_to_its_end(viewing: Viewing) -> None:
    store = OddFileSystem()
    store.odd["a.gz"] = Oddity(2**50, pattern=gzip.compress(b""))
    async with asyncio.timeout(60):
        with pytest.raises(DecompressionLimit, match=str(4 * LIMIT_BYTES)):
            await shown(viewing, store, "a.gz")


@pytest.mark.storage(9)
@each(
    ("codec", "pattern"), (Codec.GZIP, gzip.compress(b"", mtime=0)), (Codec.PARQUET, b"PAR1"), (Codec.AVRO, b"Obj\x01")
)
async def test_a_store_that_is_too_slow_keeps_no_place(
    threads: ThreadPoolExecutor, codec: Codec, pattern: bytes
) -> None:
    store = OddFileSystem()
    store.odd["slow"] = Oddity(100_000, pattern=pattern, pause_s=60.0)
    store.tree.put("quick.gz", gzip.compress(b"quick"))
    viewing = Viewing(
        *pools(threads), ProcessWorkbooks(), max_unpacked_bytes=LIMIT_BYTES, max_snappy_bytes=LIMIT_BYTES, within_s=0.05
    )
    async with asyncio.timeout(30):
        for _ in range(5):
            with pytest.raises(StorageUnavailable, match="too slowly"):
                await shown(viewing, store, "slow", codec=codec)
    patient = Viewing(*pools(threads), ProcessWorkbooks(), max_unpacked_bytes=LIMIT_BYTES, max_snappy_bytes=LIMIT_BYTES)
    assert (await shown(patient, store, "quick.gz")).excerpt.asked == b"quick"
