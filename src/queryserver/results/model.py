"""The stored pieces of a result."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """One stored piece of a result: rows [start_row, start_row + rows), `size_bytes` long in the store.

    `fence` is that of the runner that stored it.
    """

    number: int
    start_row: int
    rows: int
    size_bytes: int
    fence: int = 0
