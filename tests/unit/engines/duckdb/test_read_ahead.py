"""Reading ahead in files: how often the store is called, and how many bytes are held."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from queryserver.engines.duckdb.read_ahead import BLOCK_BYTES, PIECE_BYTES, FileContent, ReadBuffers
from queryserver.errors.files import StorageUnavailable

MIB = 1024 * 1024
FILE = random.Random(7).randbytes(24 * MIB + 1234)


class Store:
    """A file that records the calls that fetch its bytes."""

    def __init__(self, reads: ReadBuffers) -> None:
        self.calls = list[tuple[int, int]]()
        self.fails = False
        self.content: FileContent = reads.content(len(FILE), self._fetch)

    def _fetch(self, offset: int, length: int) -> bytes:
        self.calls.append((offset, length))
        if self.fails:
            message = "down"
            raise StorageUnavailable(message)
        return FILE[offset : offset + length]


@pytest.fixture
def reads() -> Iterator[ReadBuffers]:
    reads = ReadBuffers(cache_bytes=MIB, ahead_bytes=12 * MIB)
    yield reads
    reads.close()


@pytest.fixture
def store(reads: ReadBuffers) -> Store:
    return Store(reads)


def test_small_reads_near_the_end_share_one_call(store: Store, reads: ReadBuffers) -> None:
    opened = store.content.open()
    for at, size in ((len(FILE) - 8, 8), (len(FILE) - 30_000, 30_000), (len(FILE) - 40_000, 500)):
        assert opened.read(at, size) == FILE[at : at + size]
    assert len(store.calls) <= 2
    assert store.content.open().read(len(FILE) - 8, 8) == FILE[-8:]
    assert len(store.calls) <= 2
    for at in range(0, 20 * MIB, MIB):
        assert opened.read(at, 100) == FILE[at : at + 100]
    assert reads.held_bytes <= MIB + BLOCK_BYTES
    store.content.forget()
    assert reads.held_bytes == 0


def test_read_stops_at_end_of_file(store: Store) -> None:
    opened = store.content.open()
    assert opened.read(len(FILE) - 10, 1000) == FILE[-10:]
    assert opened.read(len(FILE) - 3 * MIB, 8 * MIB) == FILE[-3 * MIB :]
    assert opened.read(len(FILE), 10) == b""
    assert opened.read(len(FILE) + 10, 10) == b""


def test_adjacent_chunks_are_fetched_in_one_call(store: Store) -> None:
    opened = store.content.open()
    for group in range(8):
        at = group * 3 * MIB
        for start, size in ((at, 800_000), (at + 800_000, 50_000), (at + 950_000, 170_000)):
            assert opened.read(start, size) == FILE[start : start + size]
    assert len(store.calls) == 8


def test_nothing_is_fetched_ahead_when_following_bytes_are_never_read(store: Store, reads: ReadBuffers) -> None:
    opened = store.content.open()
    for group in range(8):
        assert opened.read(group * 3 * MIB, 500_000) == FILE[group * 3 * MIB :][:500_000]
    assert [length for _, length in store.calls[6:]] == [500_000, 500_000]
    store.content.forget()
    assert reads.held_bytes == 0


@pytest.mark.parametrize("size", [PIECE_BYTES, 300_000])
def test_sequential_reads_are_fetched_ahead(store: Store, reads: ReadBuffers, size: int) -> None:
    opened, found = store.content.open(), bytearray()
    while piece := opened.read(len(found), size):
        found += piece
        assert reads.held_bytes <= 12 * MIB
    assert bytes(found) == FILE
    assert len(store.calls) < 20
    store.content.forget()
    assert reads.held_bytes == 0


def test_threads_reading_one_file_at_many_offsets_get_the_right_bytes(store: Store, reads: ReadBuffers) -> None:
    opened = store.content.open()

    def read(seed: int) -> None:
        chance = random.Random(seed)
        at = 0
        for _ in range(60):
            size = chance.choice([10, 60_000, 500_000, PIECE_BYTES, 5 * MIB])
            at = chance.choice([at, at, chance.randrange(len(FILE))])
            assert opened.read(at, size) == FILE[at : at + size]
            at = min(at + size, len(FILE))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(read, range(6)))
    opened.close()
    store.content.forget()
    assert reads.held_bytes == 0


def test_store_failure_reaches_every_reader_and_reads_recover(store: Store, reads: ReadBuffers) -> None:
    opened = store.content.open()
    store.fails = True
    for size in (10, 500_000, PIECE_BYTES, PIECE_BYTES):
        with pytest.raises(StorageUnavailable):
            opened.read(0, size)
    store.fails = False
    assert opened.read(0, 500_000) == FILE[:500_000]
    opened.close()
    store.content.forget()
    assert reads.held_bytes == 0


def test_bytes_are_fetched_on_demand_when_buffer_is_full(reads: ReadBuffers) -> None:
    assert reads.take(12 * MIB)
    store = Store(reads)
    opened, at = store.content.open(), 0
    while piece := opened.read(at, PIECE_BYTES):
        assert piece == FILE[at : at + PIECE_BYTES]
        at += len(piece)
    store.content.forget()
    reads.give_back(12 * MIB)
    assert reads.held_bytes == 0


def test_closed_file_buffers_no_bytes_while_a_reader_is_open(store: Store, reads: ReadBuffers) -> None:
    opened = store.content.open()
    for at in range(0, 8 * MIB, PIECE_BYTES):
        assert opened.read(at, PIECE_BYTES) == FILE[at : at + PIECE_BYTES]
    assert reads.held_bytes > 0
    store.content.forget()
    assert reads.held_bytes == 0
    assert opened.read(8 * MIB, PIECE_BYTES) == FILE[8 * MIB :][:PIECE_BYTES]
    assert reads.held_bytes == 0
