"""An Arrow stream is decoded in groups of messages, however its bytes arrive."""

from collections.abc import AsyncGenerator

import pyarrow as pa
import pytest

from queryserver_client import ConnectionLost, arrow


def table_of(rows: int, *, repeats: int) -> pa.Table:
    return pa.table({"n": pa.array(range(rows), pa.int64()), "t": [f"{n} " * repeats for n in range(rows)]})


def stream_of(table: pa.Table, *, rows_per_message: int, compression: str | None = "lz4") -> bytes:
    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows_per_message)
    return sink.getvalue().to_pybytes()


async def cut(stream: bytes, size: int) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(stream), size):
        yield stream[start : start + size]


@pytest.mark.parametrize("compression", ["lz4", None])
@pytest.mark.parametrize("size", [1, 13, 4096, 1_000_000])
@pytest.mark.parametrize("rows_per_message", [1, 100, 3000])
async def test_rows_do_not_depend_on_sizes_of_chunks_and_messages(
    monkeypatch: pytest.MonkeyPatch, compression: str | None, size: int, rows_per_message: int
):
    """A group has 2,000 bytes, so that some messages are larger than a group."""
    monkeypatch.setattr(arrow, "_GROUP_BYTES", 2000)
    table = table_of(3000 if size > 13 else 300, repeats=5)
    stream = stream_of(table, rows_per_message=rows_per_message, compression=compression)
    items = [item async for item in arrow.batches(cut(stream, size))]
    assert items[0] == table.schema
    read = pa.Table.from_batches([item for item in items if isinstance(item, pa.RecordBatch)], table.schema)
    read.validate(full=True)
    assert read.equals(table)


@pytest.mark.parametrize("size", [1, 1_000_000])
async def test_truncated_stream_returns_its_rows_and_fails(size: int):
    table = table_of(1000, repeats=1)
    stream = stream_of(table, rows_per_message=10)
    for end in (0, 5, 100, len(stream) // 2, len(stream) - 8):
        rows = 0
        with pytest.raises(ConnectionLost):  # noqa: PT012
            async for item in arrow.batches(cut(stream[:end], size)):
                rows += item.num_rows if isinstance(item, pa.RecordBatch) else 0
        if end == len(stream) - 8:  # only the end marker is missing
            assert rows == 1000
        else:
            assert rows > 300 or end <= 100


def test_group_has_limited_size_and_number_of_messages():
    """Decompressed messages are about 256 KiB, however few bytes they have when they arrive."""
    table = pa.table({"n": pa.array([0] * 3_000_000, pa.int8())})
    stream = stream_of(table, rows_per_message=30_000)
    groups = arrow.MessageGroups(pa)
    found = [*groups.feed(stream), *groups.rest()][1:]
    assert groups.is_ended
    assert [len(list(pa.ipc.open_stream(group))) for group in found] == [16] * 6 + [4]


@pytest.mark.parametrize("compression", ["lz4", None])
async def test_small_results_keep_little_memory(compression: str | None):
    stream = stream_of(table_of(3, repeats=1), rows_per_message=3, compression=compression)
    before = pa.total_allocated_bytes()
    kept = [[item async for item in arrow.batches(cut(stream, 1000))] for _ in range(50)]
    assert pa.total_allocated_bytes() - before < 1024 * 1024
    assert len(kept) == 50


async def test_impossible_length_is_corruption():
    stream = bytearray(stream_of(table_of(10, repeats=1), rows_per_message=10))
    length = stream.index(b"\xff\xff\xff\xff", 8) + 4
    stream[length : length + 4] = b"\xff\xff\xff\x7f"
    with pytest.raises(ConnectionLost):
        assert [item async for item in arrow.batches(cut(bytes(stream), 1000))]
