"""Blocks of result segments: decoded one by one, they yield the same rows as the whole segment."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.results_contract import mixed_table, numbered

from queryserver.errors.files import StorageError
from queryserver.results import segments


def rows_of(stored: bytes, start: int, rows: int) -> list[dict]:
    """Return the rows, decoding only the blocks that contain them."""
    index = segments.locate_blocks(stored)
    wanted = index.blocks_with(start, rows)
    parts = [index.decode(n, stored[index.blocks[n].start : index.blocks[n].end]) for n in wanted]
    if not parts:
        return []
    return pa.concat_tables(parts).slice(start - index.blocks[wanted[0]].first_row, rows).to_pylist()


def stream(table: pa.Table, chunk_rows: int | None = None) -> bytes:
    """Encode a table in chunks of `chunk_rows` rows, as other versions of the program may do."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=chunk_rows)
    return sink.getvalue().to_pybytes()


@given(rows=st.integers(0, 6000), chunk=st.integers(1, 3000), start=st.integers(0, 6000), length=st.integers(1, 300))
def test_rows_read_by_blocks_equal_the_whole_table(rows, chunk, start, length):
    stored = stream(numbered(0, rows), chunk)
    assert rows_of(stored, start, length) == numbered(0, rows).slice(start, length).to_pylist()


@pytest.mark.parametrize("rows", [1, 511, 512, 513, 5000])
def test_every_type_is_read_by_blocks(rows):
    table = mixed_table(rows)
    stored = segments.encode(table)
    assert rows_of(stored, 0, rows) == table.to_pylist()
    assert rows_of(stored, rows - 1, 10) == table.slice(rows - 1).to_pylist()


def test_typical_segment_has_blocks_of_a_quarter_mebibyte():
    table = pa.table({"text": [f"{n:0100d}" for n in range(40_000)]})
    index = segments.locate_blocks(segments.encode(table))
    assert 12 <= len(index.blocks) <= 24
    assert sum(block.rows for block in index.blocks) == 40_000


def test_many_tiny_batches_are_joined_into_blocks():
    stored = stream(numbered(0, 5000), 10)
    index = segments.locate_blocks(stored)
    assert [block.rows for block in index.blocks] == [520] * 9 + [320]
    assert rows_of(stored, 515, 10) == numbered(515, 10).to_pylist()


def test_stream_with_dictionaries_is_one_block():
    table = pa.table({"word": pa.array(["a", "b", None, "a"] * 1000).dictionary_encode()})
    stored = stream(table, 100)
    assert len(segments.locate_blocks(stored).blocks) == 1
    assert rows_of(stored, 1998, 5) == table.slice(1998, 5).to_pylist()


def test_empty_segment_has_no_blocks():
    assert segments.locate_blocks(segments.encode(mixed_table(0))).blocks == ()


@pytest.mark.parametrize("cut", [1, 8, 9, 500])
def test_incomplete_segment_has_no_index(cut):
    with pytest.raises(StorageError):
        segments.locate_blocks(segments.encode(numbered(0, 3000))[:-cut])


@given(at=st.integers(0, 2000), junk=st.binary(min_size=1, max_size=64))
def test_damaged_segment_is_rejected_or_keeps_its_row_count(at, junk):
    stored = bytearray(segments.encode(numbered(0, 2000)))
    stored[at : at + len(junk)] = junk
    stored = bytes(stored)
    try:
        index = segments.locate_blocks(stored)
        for number, block in enumerate(index.blocks):
            assert index.decode(number, stored[block.start : block.end]).num_rows == block.rows
    except StorageError:
        pass


def test_truncated_block_is_rejected():
    stored = segments.encode(numbered(0, 3000))
    index = segments.locate_blocks(stored)
    block = index.blocks[0]
    with pytest.raises(StorageError):
        index.decode(0, stored[block.start : block.end - 1])
