"""Zstandard frames, with Arrow's copy of the library."""

import pyarrow as pa

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
