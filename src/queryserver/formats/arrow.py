"""Arrow: its compute functions, kinds of types, unions, dictionaries, and tables as bytes.

`kernels` are Arrow's compute functions, which pyarrow makes when it is imported, where no type checker sees them.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import types

kernels: Any = pyarrow.compute
_PIECE_BYTES = 1024 * 1024


def is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_binary(kind: pa.DataType) -> bool:
    plain = types.is_binary(kind) or types.is_large_binary(kind)
    return plain or types.is_fixed_size_binary(kind) or types.is_binary_view(kind)


def without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with plain arrays in place of arrays of dictionaries."""
    is_dictionary = types.is_dictionary
    if not any(map(is_dictionary, batch.schema.types)):
        return batch
    arrays = [array.dictionary_decode() if is_dictionary(array.type) else array for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def union_places(array: pa.Array) -> tuple[list[int], list[int]]:
    """For each row the code of its member and the place of its value in that member."""
    # Not `type_codes` and `offsets`: pyarrow 26 gives those of the first rows also for a slice of later ones.
    _, codes_buffer, *rest = array.buffers()
    codes = pa.Array.from_buffers(pa.int8(), len(array), [None, codes_buffer], offset=array.offset).to_pylist()
    if array.type.mode != "dense":
        return codes, list(range(len(codes)))
    places = pa.Array.from_buffers(pa.int32(), len(array), [None, rest[0]], offset=array.offset)
    return codes, places.to_pylist()


def encode(table: pa.Table) -> bytes:
    """The table as a stream of Arrow IPC."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def decode(stream: bytes) -> pa.Table:
    """The opposite of `encode`; shares memory with `stream`."""
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_all()


def unpack_zstandard(packed: bytes, *, max_bytes: int) -> bytearray:
    """What frames unpack to; reading ends soon behind `max_bytes`. Raises ValueError for broken ones."""
    made, piece = bytearray(), bytearray(_PIECE_BYTES)
    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            # Not `read`: Arrow never frees what it had read when the data turn out to be broken.
            while len(made) <= max_bytes and (size := stream.readinto(piece)):
                made += memoryview(piece)[:size]
    except (pa.ArrowException, OSError) as error:
        raise ValueError("The zstandard frames are broken.") from error
    return made
