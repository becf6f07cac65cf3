"""Record batches in the messages between an engine process and the server."""

import pyarrow as pa
import pytest

from queryserver.engines.process.channel import ChannelClosed, Frame
from queryserver.engines.process.messages import BatchReader, BatchWriter


def hugeint(value: int) -> pa.Array:
    """Return a HUGEINT as DuckDB exports it: as a decimal(38) that may have up to 39 digits."""
    return pa.Array.from_buffers(pa.decimal128(38, 0), 1, [None, pa.py_buffer(value.to_bytes(16, "little"))])


HUGE = hugeint(2**127 - 1)


@pytest.mark.parametrize(
    "array",
    [
        HUGE,
        pa.StructArray.from_arrays([HUGE, pa.array(["é"])], ["a", "b"]),
        pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), HUGE),
        pa.FixedSizeListArray.from_arrays(HUGE, 1),
        pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), HUGE),
        pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [HUGE, pa.array([1.5])]),
        pa.array([86_400_000_000], pa.int64()).view(pa.time64("us")),
        pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array([86_400], pa.int32()).view(pa.time32("s"))),
        pa.array(["x", None]),
    ],
)
def test_batches_with_values_beyond_type_bounds_are_transferred(array: pa.Array) -> None:
    batch = pa.RecordBatch.from_arrays([array], names=["v"])
    (received,) = BatchReader(1).batches(sent(batch))
    assert received.equals(batch)


def test_offsets_beyond_the_buffer_are_refused() -> None:
    offsets = pa.array([0, 99, 1], pa.int32())
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets.buffers()[1], pa.py_buffer(b"x")])
    with pytest.raises(ChannelClosed):
        list(BatchReader(1).batches(sent(pa.RecordBatch.from_arrays([broken], names=["v"]))))


def sent(batch: pa.RecordBatch) -> Frame:
    sizes, contents = BatchWriter().parts([batch])
    return Frame({"parts": sizes}, pa.py_buffer(b"".join(content.to_pybytes() for content in contents)))
