"""The bytes of Avro (specification 1.12, Binary Encoding), with bounds on what a hostile file can ask for."""

from queryserver.domain.errors import DecompressionFailed, DecompressionLimit

_MAX_RECORD_COST = 16 * 1024 * 1024
_MAX_VARINT_BYTES = 10


class OutOfBytes(DecompressionFailed):
    """A value goes on behind the last byte."""

    def __init__(self) -> None:
        super().__init__("The avro data end too early.")


class Cursor:
    """Reads `content` from left to right."""

    __slots__ = ("_content", "_cost_left", "place")

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._cost_left = _MAX_RECORD_COST
        self.place = 0

    @property
    def is_at_end(self) -> bool:
        """Whether all has been read."""
        return self.place == len(self._content)

    def begin_record(self) -> None:
        """A record begins, with a budget of its own."""
        self._cost_left = _MAX_RECORD_COST

    def spend(self, cost: int) -> None:
        """Something of some `cost` bytes is made that may take no byte of the file: items of nulls, names of fields.

        Raises DecompressionLimit.
        """
        self._cost_left -= cost
        if self._cost_left < 0:
            raise DecompressionLimit("A record of the file is too large to be shown.")

    def whole(self) -> int:
        """An int or a long: seven bits in a byte, the sign in the lowest bit."""
        content, start = self._content, self.place
        value = shift = 0
        for place in range(start, min(start + _MAX_VARINT_BYTES, len(content))):
            byte = content[place]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.place = place + 1
                return (value >> 1) ^ -(value & 1)
            shift += 7
        if shift < 7 * _MAX_VARINT_BYTES:
            raise OutOfBytes
        raise DecompressionFailed("The avro data hold a number that is too long.")

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size < 0:
            raise DecompressionFailed("The avro data hold a negative length.")
        start = self.place
        if start + size > len(self._content):
            raise OutOfBytes
        self.place = start + size
        return self._content[start : start + size]

    def block_count(self) -> int:
        """How many items follow in this block of an array or a map; 0: that was the last one."""
        count = self.whole()
        if count < 0:
            self.whole()  # the size of the block, for those who skip it
            return -count
        return count
