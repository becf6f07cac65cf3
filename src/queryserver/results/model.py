"""A result's stored segments."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """One stored segment of a result: rows [start_row, start_row + rows), `size_bytes` long in the store.

    `fence` belongs to the runner that stored it.
    """

    number: int
    start_row: int
    rows: int
    size_bytes: int
    fence: int = 0
