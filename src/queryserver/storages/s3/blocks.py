"""A stream of bytes, taken in blocks of a wanted size."""

from collections.abc import AsyncIterator

MIB = 1024 * 1024

MIN_PART_BYTES = 5 * MIB
"""Smallest part that S3 takes, except for the last."""
MAX_PARTS = 10_000
"""Most parts that S3 takes."""
_ROUND_BYTES = MIB
# No object is larger: who announces more would only make this process hold larger parts.
_MAX_OBJECT_BYTES = 5 * MIB * MIB
# Of a body of unknown size each part may be a thousandth of what came before: 10,000 parts are 40 TiB then.
_GROWTH = 1000


class Blocks:
    """Takes blocks from a body. Holds what is left of one piece."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self._rest = memoryview(b"")

    async def take(self, size_bytes: int) -> bytearray:
        """The next `size_bytes`; fewer only at the end."""
        block = bytearray()
        while len(block) < size_bytes:
            if not self._rest:
                piece = await anext(self._body, None)
                if piece is None:
                    break
                self._rest = memoryview(piece)
            wanted = size_bytes - len(block)
            block += self._rest[:wanted]
            self._rest = self._rest[wanted:]
        return block


def part_bytes(sent_bytes: int, announced_bytes: int | None) -> int:
    """Size of the next part of a body, so that 10,000 parts suffice. What was announced counts until it is wrong."""
    if announced_bytes is not None and sent_bytes < announced_bytes:
        wanted = -(-min(announced_bytes, _MAX_OBJECT_BYTES) // MAX_PARTS)
    else:
        wanted = sent_bytes // _GROWTH
    return max(MIN_PART_BYTES, -(-wanted // _ROUND_BYTES) * _ROUND_BYTES)
