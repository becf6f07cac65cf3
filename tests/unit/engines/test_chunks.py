"""Chunks of rows stay near a weight that was set, however wide the rows are."""

import pyarrow as pa
import pytest

from queryserver.engines.statement_texts import BATCH_BYTES, ChunkSize, pieces


def batch(rows: int, width: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(["x" * width] * rows, pa.string())], names=["a"])


@pytest.mark.parametrize("width", [1, 1000, 100_000, 10_000_000])
def test_the_size_settles_where_the_rows_weigh_what_was_set(width) -> None:
    size = ChunkSize()
    for _ in range(10):
        size.learn(batch(min(size.rows, 20), width))
    assert size.rows == 10_000 or size.rows == 1 or 0.5 * BATCH_BYTES < size.rows * width <= BATCH_BYTES


def test_the_size_grows_step_by_step() -> None:
    size = ChunkSize()
    first = size.rows
    size.learn(batch(1, 1))
    assert first < size.rows <= 10 * first


def test_a_batch_without_rows_teaches_nothing_bad() -> None:
    size = ChunkSize()
    size.learn(batch(0, 1))
    assert size.rows >= 1


def test_a_heavy_batch_is_cut_in_order() -> None:
    whole = batch(50, 1_000_000)
    cut = list(pieces(whole))
    assert max(piece.num_rows for piece in cut) <= 5
    assert pa.Table.from_batches(cut).equals(pa.Table.from_batches([whole]))


def test_a_light_batch_stays_whole() -> None:
    assert [piece.num_rows for piece in pieces(batch(50, 10))] == [50]
