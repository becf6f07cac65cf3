"""Arrow streams, zstandard, and work on very many columns."""

from collections.abc import Callable
from threading import Semaphore

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


MANY_COLUMNS = 500
"""Of less the memory does not matter."""

_WAIT_S = 10.0
_PLACE = Semaphore()


def begin(*, wait_s: float = _WAIT_S) -> Callable[[], None]:
    """Wait for earlier work, at most so long; call the answer once the work has ended. Further calls do nothing."""
    held = [_PLACE] if _PLACE.acquire(timeout=wait_s) else []

    def end() -> None:
        if held:
            held.pop().release()

    return end


_PIECE_BYTES = 1024 * 1024


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
