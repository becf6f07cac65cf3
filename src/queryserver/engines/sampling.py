"""The query of a sample, for engines of plain columns (Contract editor 10.3)."""

from collections.abc import Callable

from queryserver.domain.catalog import SAMPLE_ROWS, SampleKind


def nulls_last(value: str, direction: str) -> str:
    """Sort keys, as standard SQL says it."""
    return f"{value} {direction} NULLS LAST"


def sample_query(
    source: str, value: str | None, kind: SampleKind, *, order: Callable[[str, str], str] = nulls_last
) -> str:
    """Rows of `source`, or values of one of its columns; both are quoted already.

    `order` makes the sort keys of a value and ASC or DESC, with NULL last.
    """
    if value is None:
        return f"SELECT * FROM {source} LIMIT {SAMPLE_ROWS}"
    if kind in (SampleKind.MAX, SampleKind.MIN):
        return f"SELECT {value} FROM {source} ORDER BY {order(value, _DIRECTIONS[kind])} LIMIT 1"
    return f"SELECT DISTINCT {value} FROM {source} ORDER BY {order(value, 'ASC')} LIMIT {SAMPLE_ROWS}"


_DIRECTIONS = {SampleKind.MAX: "DESC", SampleKind.MIN: "ASC"}
