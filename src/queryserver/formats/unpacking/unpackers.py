"""The unpacker of each codec that is a plain stream; avro and parquet are none."""

from queryserver.formats.unpacking.codecs import Codec, Unpacker
from queryserver.formats.unpacking.snappy import SnappyUnpacker
from queryserver.formats.unpacking.streams import Bz2Unpacker, GzipUnpacker


def unpacker(codec: Codec, *, size_bytes: int, limit_bytes: int) -> Unpacker | None:
    """A new unpacker for a file of `size_bytes`; None where there is none. `limit_bytes`: the largest single block."""
    match codec:
        case Codec.GZIP:
            return GzipUnpacker()
        case Codec.BZ2:
            return Bz2Unpacker()
        case Codec.SNAPPY:
            return SnappyUnpacker(size_bytes, limit_bytes)
        case Codec.AVRO | Codec.PARQUET | Codec.NONE:
            return None
