"""SQL that differs between dialects."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

_COUNT = "WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < {last}) "


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect that the test settings configure. The key of its interpreter is the dialect's name."""

    name: str
    rows: Callable[[int], str]
    """Returns SQL that selects the integers from 0 to n - 1, in order, in the column `n`."""
    slow: str
    """A statement that runs for at least 30 s unless it is canceled."""
    bad_table: str
    """Part of the engine's error message about the missing table `no_such_table`."""
    integer_type: str
    """The type of the column `n` in the `meta` of results."""

    def __str__(self) -> str:
        return self.name


DUCKDB = Dialect(
    name="duckdb",
    rows=lambda count: f"SELECT range AS n FROM range({count})",
    slow="SELECT sum(a.range * b.range) FROM range(300000) a, range(300000) b",
    bad_table="Table with name no_such_table does not exist",
    integer_type="BIGINT_TYPE",
)
SQLITE = Dialect(
    name="sqlite",
    rows=lambda count: _COUNT.format(last=count - 1) + "SELECT n FROM c",
    slow=_COUNT.format(last=400_000_000) + "SELECT sum(n) FROM c",
    bad_table="no such table: no_such_table",
    integer_type="BIGINT_TYPE",
)
POSTGRESQL = Dialect(
    name="postgresql",
    rows=lambda count: f"SELECT generate_series(0, {count - 1}) AS n",
    slow="SELECT pg_sleep(120)",
    bad_table='relation "no_such_table" does not exist',
    integer_type="INT_TYPE",
)
ALL = (DUCKDB, SQLITE, POSTGRESQL)
every_dialect = pytest.mark.parametrize("dialect", ALL, ids=str)


def literal(text: str) -> str:
    """Quote a string as a standard SQL literal."""
    return "'" + text.replace("'", "''") + "'"
