"""Arrow tables as bytes: the IPC stream format, uncompressed, so that small results decode in microseconds."""

import pyarrow as pa


def encode(table: pa.Table) -> bytes:
    """A table as one IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def decode(stream: bytes) -> pa.Table:
    """The opposite of `encode`; shares memory with `stream`."""
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_all()
